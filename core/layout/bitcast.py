"""When a reshape, a transpose or a change of layout moves no bytes, and the layout that makes a reshape free.

A reshape keeps the row-major number of every element. Cut the dimensions of both sides at the places where the running
products agree: each stretch between two cuts is reshaped on its own, and it moves no bytes exactly when its dimensions
lie next to each other, the last one fastest. Dimensions of size 1 lie anywhere. Source:
``openxla/xla:xla/shape_util.cc#AlignLayouts, #ReshapeIsBitcast``, ``xla/util.cc#CommonFactors``,
``xla/backends/gpu/transforms/layout_assignment.cc#AlignLayoutsGPU``.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from hloscope.core.layout.orders import Order

if TYPE_CHECKING:
    from collections.abc import Sequence

Sizes = tuple[int, ...]


def common_factors(a: Sequence[int], b: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of positions up to which both lists have the same product, from (0, 0) to both ends."""
    if tuple(a) == tuple(b):
        return [(i, i) for i in range(len(a) + 1)]
    cuts: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b) and a[i] == b[j]:
        cuts.append((i, j))
        i, j = i + 1, j + 1
    if prod(a[i:]) != prod(b[j:]):
        return [(0, 0), (len(a), len(b))]
    if prod(a[i:]) == 0:
        return [*cuts, (i, j), (len(a), len(b))]
    products = [1, 1]
    while True:
        if products[0] == products[1] and (not cuts or (i, j) > cuts[-1]):
            cuts.append((i, j))
        more = (i < len(a), j < len(b))
        if not any(more):
            return cuts
        equal = products[0] == products[1]
        take_a = products[0] < products[1] or (more[0] and (not more[1] or (equal and a[i] <= b[j])))
        take_b = products[1] < products[0] or (more[1] and (not more[0] or (equal and b[j] <= a[i])))
        if take_a:
            products[0] *= a[i]
            i += 1
        if take_b:
            products[1] *= b[j]
            j += 1


def without_ones(sizes: Sizes, order: Order) -> tuple[Sizes, Order]:
    """Sizes and order with the dimensions of size 1 left out."""
    if 1 not in sizes:
        return sizes, order
    number = {}
    for dim, size in enumerate(sizes):
        if size != 1:
            number[dim] = len(number)
    return tuple(s for s in sizes if s != 1), tuple(number[d] for d in order if d in number)


def align(sizes: Sizes, order: Order, target: Sizes) -> Order | None:
    """The order of `target` that makes the reshape from `sizes` in `order` free; None where there is none.

    Dimensions of size 1 in the target become the slowest ones, the last of them first.
    """
    if 1 not in sizes and 1 not in target:
        return _align(sizes, order, target)
    found = _align(*without_ones(sizes, order), tuple(s for s in target if s != 1))
    if found is None:
        return None
    kept = [dim for dim, size in enumerate(target) if size != 1]
    ones = [dim for dim in range(len(target) - 1, -1, -1) if target[dim] == 1]
    return (*(kept[d] for d in found), *ones)


def align_like(sizes: Sizes, order: Order, target: Sizes, template: Order) -> Order | None:
    """As `align`, but dimensions of size 1 keep the neighbour that they follow in `template`."""
    if 1 not in sizes and 1 not in target:
        return _align(sizes, order, target)
    found = _align(*without_ones(sizes, order), tuple(s for s in target if s != 1))
    if found is None:
        return None
    kept = [dim for dim, size in enumerate(target) if size != 1]
    followers: dict[int, list[int]] = {-1: []}
    last = -1
    for dim in template:
        if target[dim] == 1:
            followers[last].append(dim)
        else:
            last = dim
            followers[dim] = []
    out = list(followers[-1])
    for d in found:
        out += [kept[d], *followers[kept[d]]]
    return tuple(out)


def _align(sizes: Sizes, order: Order, target: Sizes) -> Order | None:
    cuts = common_factors(sizes, target)
    place = {dim: at for at, dim in enumerate(order)}
    stretch_of: dict[int, int] = {}
    for stretch, ((start, _), (end, _)) in enumerate(zip(cuts, cuts[1:], strict=False)):
        at = place.get(start, 0)
        for dim in range(start, end):
            if dim > start:
                at -= 1
                if at < 0 or order[at] != dim:
                    return None
            stretch_of[dim] = stretch
    out: list[int] = []
    at = 0
    while len(out) < len(target):
        stretch = stretch_of[order[at]]
        (start, target_start), (end, target_end) = cuts[stretch], cuts[stretch + 1]
        out.extend(range(target_end - 1, target_start - 1, -1))
        at += end - start
    return tuple(out)


def reshape_is_bitcast(sizes: Sizes, order: Order, target: Sizes, target_order: Order) -> bool:
    """Whether a reshape between two laid out shapes moves no bytes."""
    if prod(sizes) == 0:
        return True
    plain, plain_order = without_ones(sizes, order)
    wanted, wanted_order = without_ones(target, target_order)
    return _align(plain, plain_order, wanted) == wanted_order


def transpose_is_bitcast(sizes: Sizes, order: Order, dimensions: Sequence[int], out_order: Order) -> bool:
    """Whether a transpose moves no bytes: output dimension i is dimension ``dimensions[i]`` of the operand.

    XLA itself asks for equal orders even where they differ only by dimensions of size 1; this says what is true.
    """
    moved = tuple(dimensions[d] for d in out_order)
    return prod(sizes) == 0 or without_ones(sizes, order) == without_ones(sizes, moved)


def relayout_is_bitcast(sizes: Sizes, order: Order, new: Order) -> bool:
    """Whether a copy between two layouts of one shape moves no bytes."""
    return prod(sizes) == 0 or without_ones(sizes, order) == without_ones(sizes, new)
