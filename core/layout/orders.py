"""Dimension orders: which dimension of an array lies next to which in memory, fastest first.

An order is a permutation of the dimension numbers, XLA's ``minor_to_major``. Element ``(i0, …)`` lies at the sum of
index times stride, strides being built by walking the order and multiplying sizes. Here is what is asked of orders and
of shapes that carry them; layout assignment looks at nothing else of a layout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hloscope.core.hlo.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hloscope.core.hlo.shape import Shape, ShapeIndex

Order = tuple[int, ...]


def default_order(rank: int) -> Order:
    """Row-major: the last dimension is the fastest."""
    return tuple(range(rank - 1, -1, -1))


def default_layout(rank: int) -> Layout:
    """The row-major layout."""
    return Layout.descending(rank)


def from_major_to_minor(dims: Sequence[int]) -> Layout:
    """The layout whose slowest dimension is the first of `dims`."""
    return Layout(tuple(reversed(dims)))


def inverse(permutation: Sequence[int]) -> Order:
    """The permutation that undoes another."""
    out = [0] * len(permutation)
    for place, value in enumerate(permutation):
        out[value] = place
    return tuple(out)


def without_dimension(order: Order, dim: int) -> Order:
    """The order that is left when a dimension goes; higher numbers move down by one."""
    return tuple(d - (d > dim) for d in order if d != dim)


def moved_to_major(order: Order, dim: int) -> Order:
    """The same order with one dimension as the slowest."""
    return (*(d for d in order if d != dim), dim)


def moved_to_minor(order: Order, dim: int) -> Order:
    """The same order with one dimension as the fastest."""
    return (dim, *(d for d in order if d != dim))


def order_of(shape: Shape) -> Order | None:
    """The order of an array: ``()`` for a scalar, None where no layout is set."""
    if not shape.dimensions:
        return ()
    return None if shape.layout is None else shape.layout.minor_to_major


def layout_of(shape: Shape) -> Layout:
    """The layout that an array has, row-major where none is set."""
    return shape.layout if shape.layout is not None else Layout.descending(shape.rank)


def with_order(shape: Shape, layout: Layout) -> Shape:
    """An array shape with a layout; a scalar without one stays as it is, since it has nothing to order."""
    if shape.layout == layout or (not shape.dimensions and shape.layout is None and layout == Layout()):
        return shape
    return shape.with_layout(layout)


def subshapes(shape: Shape, prefix: ShapeIndex = ()) -> Iterator[tuple[ShapeIndex, Shape]]:
    """All nodes of the shape tree, parents first."""
    yield prefix, shape
    if shape.is_tuple:
        for number, inner in enumerate(shape.tuple_shapes):
            yield from subshapes(inner, (*prefix, number))


def map_leaves(shape: Shape, change: Callable[[ShapeIndex, Shape], Shape], prefix: ShapeIndex = ()) -> Shape:
    """A copy in which every array leaf is what `change` makes of it."""
    if shape.is_tuple:
        inner = tuple(map_leaves(one, change, (*prefix, i)) for i, one in enumerate(shape.tuple_shapes))
        return shape if all(a is b for a, b in zip(inner, shape.tuple_shapes, strict=True)) else _tuple(shape, inner)
    return change(prefix, shape) if shape.is_array else shape


def _tuple(shape: Shape, inner: tuple[Shape, ...]) -> Shape:
    return replace(shape, tuple_shapes=inner)


def with_leaf_layout(shape: Shape, index: ShapeIndex, layout: Layout | None) -> Shape:
    """A copy in which the leaf at an index has another layout."""
    return map_leaves(
        shape,
        lambda at, leaf: (
            leaf if at != index else leaf.with_layout(None) if layout is None else with_order(leaf, layout)
        ),
    )


def row_major(shape: Shape) -> Shape:
    """A copy with row-major leaves and nothing else in the layouts."""
    return map_leaves(shape, lambda _, leaf: with_order(leaf, Layout.descending(leaf.rank)))


def in_default_memory(shape: Shape) -> Shape:
    """A copy whose leaves are in no particular memory space."""

    def clear(_: ShapeIndex, leaf: Shape) -> Shape:
        layout = leaf.layout
        return leaf if layout is None or not layout.memory_space else leaf.with_layout(replace(layout, memory_space=0))

    return map_leaves(shape, clear)


def same_orders(a: Shape, b: Shape) -> bool:
    """Whether all leaves have the same dimension order; a leaf without layout equals only another one."""
    if a.is_tuple:
        return len(a.tuple_shapes) == len(b.tuple_shapes) and all(map(same_orders, a.tuple_shapes, b.tuple_shapes))
    return order_of(a) == order_of(b)


def all_set(shape: Shape) -> bool:
    """Whether every array leaf has a layout."""
    return all(order_of(leaf) is not None for _, leaf in shape.leaves() if leaf.is_array)


def any_set(shape: Shape) -> bool:
    """Whether some array leaf that has dimensions has a layout; scalars do not tell."""
    return any(leaf.layout is not None for _, leaf in shape.leaves() if leaf.is_array and leaf.dimensions)


def at_most_rank_1(shape: Shape) -> bool:
    """Whether no leaf has more than one dimension, so that there is no order to choose."""
    if shape.is_tuple:
        return all(map(at_most_rank_1, shape.tuple_shapes))
    return not shape.is_array or len(shape.dimensions) <= 1


def show(layout: Layout | None) -> str:
    """A layout as text has it."""
    return "{?}" if layout is None else "{" + ",".join(map(str, layout.minor_to_major)) + "}"


def show_shape(shape: Shape) -> str:
    """The dimension orders of all leaves, tuples in parentheses."""
    if shape.is_tuple:
        return "(" + ", ".join(map(show_shape, shape.tuple_shapes)) + ")"
    order = order_of(shape)
    return "{?}" if order is None else "{" + ",".join(map(str, order)) + "}"
