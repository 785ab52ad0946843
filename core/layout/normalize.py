"""What each operation becomes when its array is written with the slowest dimension first: the rules of
`layout_normalization`.

A rule looks at an instruction and answers with its normal form, with a refusal that carries its reason, or with None
where the operation keeps its shape. Source: ``openxla/xla:xla/service/layout_normalization.cc``,
``xla/service/gpu/conv_layout_normalization.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hloscope.core.hlo.attributes import ConvolutionDimensionNumbers, Window
from hloscope.core.hlo.layout import Layout
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.hlo.shape import Shape
from hloscope.core.layout.bitcast import reshape_is_bitcast
from hloscope.core.layout.orders import inverse, layout_of
from hloscope.core.passes.gate import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hloscope.core.hlo.instruction import HloInstruction

LAYOUTS_DIFFER = "layouts_differ"
"""Refusal: an operand of an operation that keeps layouts has another one."""

NOT_A_BITCAST = "reshape_moves_bytes"
"""Refusal: the reshape was not decomposed before."""

SCATTER_DIMENSIONS = "several_scatter_dimensions"
"""Refusal: the order of several scatter dimensions could not be kept (``scatter_simplifier`` leaves one)."""

SCATTER_BATCHING = "batching_dimensions"
"""Refusal: batching dimensions of a scatter were not written out before."""


@dataclass(frozen=True, slots=True)
class Normal:
    """The normal form of an instruction."""

    opcode: str | None
    """None where the value is its operand."""
    shape: Shape
    operands: Sequence[int]
    """Numbers of the old operands, in the new order."""
    turned: frozenset[int]
    """Those of them that are taken in their normal form; the others stay (starts of slices, initial values)."""
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    detail: str = ""
    """Old and new shape, and what moves."""


# ---------------------------------------------------------------- shapes
def is_row_major(shape: Shape) -> bool:
    """An array whose last dimension is the fastest; one without a layout counts as such."""
    return shape.is_array and (shape.layout is None or shape.layout.is_default_order)


def major_first(shape: Shape) -> tuple[int, ...]:
    """Dimension numbers, the slowest first."""
    return tuple(reversed(layout_of(shape).minor_to_major))


def places(shape: Shape) -> tuple[int, ...]:
    """Where each dimension stands in the normal form."""
    return inverse(major_first(shape))


def normalized(shape: Shape) -> Shape:
    """The row-major array of the same bytes; tiles, packing and memory space stay."""
    if shape.is_tuple:
        return Shape.tuple_([normalized(one) for one in shape.tuple_shapes])
    if not shape.is_array or is_row_major(shape):
        return shape
    order, layout = major_first(shape), layout_of(shape)
    kept = Layout(
        Layout.descending(shape.rank).minor_to_major,
        layout.tiles,
        layout.tail_padding_alignment_in_elements,
        element_size_in_bits=layout.element_size_in_bits,
        memory_space=layout.memory_space,
    )
    dynamic = tuple(shape.dynamic_dimensions[d] for d in order) if shape.dynamic_dimensions else ()
    return Shape(shape.element_type, tuple(shape.dimensions[d] for d in order), dynamic, kept)


def compose(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """``first[second[i]]`` for every i."""
    return tuple(first[i] for i in second)


def _same_order(one: HloInstruction, *numbers: int) -> Refusal | None:
    """A refusal where one of these operands has another order than the result."""
    order = layout_of(one.shape).minor_to_major
    for number in numbers:
        shape = one.operand(number).shape
        if shape.rank != one.shape.rank or layout_of(shape).minor_to_major != order:
            return Refusal(LAYOUTS_DIFFER, f"operand {number} is {shape}, the result {one.shape}")
    return None


def _kept(one: HloInstruction, *without: str) -> dict[str, str]:
    """Attributes that the new instruction takes over as they are."""
    skipped = ("metadata", "sharding", "frontend_attributes", *without)
    return {key: text for key, text in one.raw_attrs.items() if text is not None and key not in skipped}


def _normal(
    one: HloInstruction,
    turned: Sequence[int],
    changed: Mapping[str, Any] | None = None,
    *,
    operands: Sequence[int] | None = None,
    shape: Shape | None = None,
    opcode: str | None = "",
    detail: str = "",
) -> Normal:
    """The same operation on normal forms, with some attributes changed."""
    new = normalized(one.shape) if shape is None else shape
    given = dict(changed or {})
    # Attributes keep their places, as they are printed in order.
    attrs: dict[str, Any] = {key: given.pop(key, text) for key, text in _kept(one).items()}
    attrs.update(given)
    return Normal(
        one.opcode if opcode == "" else opcode,
        new,
        tuple(range(one.operand_count)) if operands is None else tuple(operands),
        frozenset(turned),
        attrs,
        f"{one.shape} as {new}" + (f", {detail}" if detail else ""),
    )


# ---------------------------------------------------------------- rules
def elementwise(one: HloInstruction) -> Normal | Refusal | None:
    """Each element on its own: the same on the turned arrays."""
    wrong = _same_order(one, *range(one.operand_count))
    return wrong or _normal(one, range(one.operand_count))


def ternary(one: HloInstruction) -> Normal | Refusal | None:
    """Select and clamp: scalars among the operands stay."""
    checked = [n for n in range(3) if one.operand(n).shape.dimensions or not one.shape.dimensions]
    return _same_order(one, *checked) or _normal(one, checked)


def bitcast_convert(one: HloInstruction) -> Normal | Refusal | None:
    """With another rank only where the dimension that comes or goes is the fastest."""
    source, shape = one.operand(0).shape, one.shape
    if source.rank == shape.rank:
        return elementwise(one)
    larger = source if source.rank > shape.rank else shape
    if layout_of(larger).minor_to_major[0] != larger.rank - 1:
        return None
    return _normal(one, [0])


def slice_(one: HloInstruction) -> Normal | Refusal | None:
    """Bounds in the new order."""
    bounds = one.attr("slice")
    return _same_order(one, 0) or _normal(one, [0], {"slice": tuple(bounds[d] for d in major_first(one.shape))})


def dynamic_slice(one: HloInstruction) -> Normal | Refusal | None:
    """Sizes and starts in the new order."""
    wrong = _same_order(one, 0)
    if wrong or one.operand_count != 1 + one.shape.rank:
        return wrong  # the old form with all starts in one array has nothing to reorder
    order = major_first(one.shape)
    sizes = tuple(one.attr("dynamic_slice_sizes")[d] for d in order)
    return _normal(one, [0], {"dynamic_slice_sizes": sizes}, operands=(0, *(1 + d for d in order)))


def dynamic_update_slice(one: HloInstruction) -> Normal | Refusal | None:
    """Starts in the new order."""
    wrong = _same_order(one, 0, 1)
    if wrong or one.operand_count != 2 + one.shape.rank:
        return wrong
    return _normal(one, [0, 1], operands=(0, 1, *(2 + d for d in major_first(one.shape))))


def pad(one: HloInstruction) -> Normal | Refusal | None:
    """Padding in the new order."""
    given = one.attr("padding")
    return _same_order(one, 0) or _normal(one, [0], {"padding": tuple(given[d] for d in major_first(one.shape))})


def reverse(one: HloInstruction) -> Normal | Refusal | None:
    """The same dimensions by their new numbers."""
    where = places(one.shape)
    return _same_order(one, 0) or _normal(one, [0], {"dimensions": tuple(sorted(where[d] for d in one.dimensions))})


def concatenate(one: HloInstruction) -> Normal | Refusal | None:
    """Along the same dimension by its new number."""
    every = range(one.operand_count)
    along = places(one.shape)[one.dimensions[0]]
    return _same_order(one, *every) or _normal(one, every, {"dimensions": (along,)})


def reduce_window(one: HloInstruction) -> Normal | Refusal | None:
    """The window in the new order."""
    wrong = _same_order(one, 0)
    if wrong or one.operand_count != 2:
        return wrong
    window: Window = one.attr("window")
    return _normal(one, [0], {"window": Window(tuple(window.dimensions[d] for d in major_first(one.shape)))})


def broadcast(one: HloInstruction) -> Normal | Refusal | None:
    """Operand dimensions in their order in memory go to the new places of theirs."""
    where = places(one.shape)
    source = one.operand(0).shape
    into = tuple(where[d] for d in compose(one.dimensions, major_first(source))) if source.dimensions else ()
    return _normal(one, [0], {"dimensions": into})


def iota(one: HloInstruction) -> Normal | Refusal | None:
    """The counting dimension by its new number."""
    return _normal(one, [], {"iota_dimension": places(one.shape)[one.attr("iota_dimension")]})


def reshape(one: HloInstruction) -> Normal | Refusal | None:
    """A reshape that moves no bytes is one between the normal forms as well."""
    source, shape = one.operand(0).shape, one.shape
    orders = layout_of(source).minor_to_major, layout_of(shape).minor_to_major
    if not reshape_is_bitcast(source.dimensions, orders[0], shape.dimensions, orders[1]):
        return Refusal(NOT_A_BITCAST, f"{source} to {shape}; reshape-decomposer runs before")
    return _normal(one, [0])


def transpose(one: HloInstruction) -> Normal | Refusal | None:
    """The transpose in memory; none where nothing moves."""
    return _moved(one, compose(places(one.operand(0).shape), one.dimensions), free=True)


def copy(one: HloInstruction) -> Normal | Refusal | None:
    """A copy between two layouts is a transpose in memory."""
    return _moved(one, places(one.operand(0).shape), free=False)


def _moved(one: HloInstruction, given: Sequence[int], *, free: bool) -> Normal:
    dimensions = compose(given, major_first(one.shape))
    target = normalized(one.shape)
    if free and dimensions == tuple(range(len(dimensions))):
        return Normal(None, target, (0,), frozenset((0,)), {}, f"{one.shape} as {target}, nothing moves")
    detail = f"{one.shape} as {target}, {one.shape.byte_size} bytes move, dimensions {','.join(map(str, dimensions))}"
    return Normal("transpose", target, (0,), frozenset((0,)), {"dimensions": dimensions}, detail)


def scatter(one: HloInstruction) -> Normal | Refusal | None:
    """Dimension numbers of operands, indices and updates by their new places."""
    count = one.operand_count // 2
    shapes = [operand.shape for operand in one.operands]
    into, indices, update = shapes[0], shapes[count], shapes[count + 1]
    for group in (shapes[:count], shapes[count + 1 :]):
        for shape in group:
            if layout_of(shape).minor_to_major != layout_of(group[0]).minor_to_major:
                return Refusal(LAYOUTS_DIFFER, f"{shape} beside {group[0]}")
    if one.attr("input_batching_dims"):
        return Refusal(SCATTER_BATCHING, "batched_gather_scatter_normalizer runs before")
    windows: tuple[int, ...] = one.attr("update_window_dims") or ()
    if update.rank - len(windows) > 1:
        return Refusal(SCATTER_DIMENSIONS, f"{update.rank - len(windows)}, update {update}")
    inserted: tuple[int, ...] = one.attr("inserted_window_dims") or ()
    order, where = major_first(into), places(into)
    of_indices, of_update = places(indices), places(update)
    rest = iter([of_update[d] for d in windows])
    combined = [None if d in inserted else next(rest) for d in range(into.rank)]
    placed = [combined[d] for d in order]
    vector = one.attr("index_vector_dim")
    return _normal(
        one,
        range(one.operand_count),
        {
            "update_window_dims": tuple(d for d in placed if d is not None),
            "inserted_window_dims": tuple(number for number, d in enumerate(placed) if d is None),
            "scatter_dims_to_operand_dims": tuple(where[d] for d in one.attr("scatter_dims_to_operand_dims") or ()),
            "index_vector_dim": of_indices[vector] if vector < indices.rank else vector,
        },
    )


def convolution(one: HloInstruction) -> Normal | Refusal | None:
    """Dimension labels by their new places."""
    labels = _labels(one, one.operand(0).shape, one.operand(1).shape, one.shape)
    return _normal(one, range(one.operand_count), {"dim_labels": labels})


_CONV = "__cudnn$conv"


def is_library_convolution(one: HloInstruction) -> bool:
    """A convolution that cuDNN computes."""
    if one.opcode != "custom-call" or one.attr("dim_labels") is None:
        return False
    return str(one.attr("custom_call_target") or "").startswith(_CONV)


def custom_call(one: HloInstruction) -> Normal | Refusal | None:
    """Convolutions that the library computes; other calls keep their shapes."""
    if not is_library_convolution(one):
        return None
    target = one.attr("custom_call_target")
    first, second = one.operand(0).shape, one.operand(1).shape
    result = one.shape.tuple_shapes[0] if one.shape.is_tuple else one.shape
    source, kernel, out = first, second, result
    if target == f"{_CONV}BackwardInput":
        source, kernel, out = result, second, first
    elif target == f"{_CONV}BackwardFilter":
        source, kernel, out = first, result, second
    labels = _labels(one, source, kernel, out)
    if normalized(one.shape) == one.shape and labels == one.attr("dim_labels"):
        return None
    return _normal(one, range(one.operand_count), {"dim_labels": labels})


def _labels(one: HloInstruction, source: Shape, kernel: Shape, out: Shape) -> ConvolutionDimensionNumbers:
    old: ConvolutionDimensionNumbers = one.attr("dim_labels")
    a, b, c = places(source), places(kernel), places(out)
    return replace(
        old,
        input_batch=a[old.input_batch],
        input_feature=a[old.input_feature],
        input_spatial=tuple(a[d] for d in old.input_spatial),
        kernel_input_feature=b[old.kernel_input_feature],
        kernel_output_feature=b[old.kernel_output_feature],
        kernel_spatial=tuple(b[d] for d in old.kernel_spatial),
        output_batch=c[old.output_batch],
        output_feature=c[old.output_feature],
        output_spatial=tuple(c[d] for d in old.output_spatial),
    )


_OWN: Mapping[str, Callable[[HloInstruction], Normal | Refusal | None]] = MappingProxyType(
    {
        "bitcast-convert": bitcast_convert,
        "broadcast": broadcast,
        "clamp": ternary,
        "concatenate": concatenate,
        "convolution": convolution,
        "copy": copy,
        "custom-call": custom_call,
        "dynamic-slice": dynamic_slice,
        "dynamic-update-slice": dynamic_update_slice,
        "iota": iota,
        "pad": pad,
        "reduce-window": reduce_window,
        "reshape": reshape,
        "reverse": reverse,
        "scatter": scatter,
        "select": ternary,
        "slice": slice_,
        "transpose": transpose,
    }
)

RULES: Mapping[str, Callable[[HloInstruction], Normal | Refusal | None]] = MappingProxyType(
    {
        **{row.name: elementwise for row in OPCODES.values() if row.elementwise and row.arity in (1, 2)},
        **_OWN,
    }
)
"""Opcode -> its rule."""
