"""What the instructions of a module say about its sizes, for programs with smaller ones.

A size is known by its number: wherever 4096 stands, the same smaller size is to stand. Most opcodes ask no more than
that (elementwise ones, dots, reductions). The others give rules here: products of reshapes, sums of concatenations, the
extents of windows, pads and slices, ratios of collectives.
Source: the shapes' rules are those of ``openxla/xla:xla/service/shape_inference.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from hloscope.core.hlo.attributes import ConvolutionDimensionNumbers, Window

if TYPE_CHECKING:
    from hloscope.core.hlo.attributes import PaddingDimension, SliceDimension, WindowDimension
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule

Get: TypeAlias = Callable[[int], int]
"""From a number of the large program to that of the small one."""


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A condition that the sizes of the small program must meet."""

    numbers: frozenset[int]
    """The numbers of the large program that it is about."""
    holds: Callable[[Get], bool]
    exact: bool = True
    """Whether it fixes a number by the others, and is not only a bound."""


def size_rules(module: HloModule) -> Iterator[SizeRule]:
    """The rules of all instructions."""
    for node in module.instructions():
        rule = _RULES.get(node.opcode)
        if rule is not None:
            yield from rule(node)


def _rule(numbers: Sequence[int], holds: Callable[[Get], bool], exact: bool = True) -> SizeRule:
    return SizeRule(frozenset(abs(n) for n in numbers), holds, exact)


def _dims(node: HloInstruction) -> tuple[int, ...]:
    """The dimensions of the (first) array."""
    return next((leaf.dimensions for _, leaf in node.shape.leaves() if leaf.is_array), ())


def _at_most(small: int, large: int) -> SizeRule:
    return _rule((small, large), lambda get: get(small) <= get(large), exact=False)


def _ratio(a: int, b: int) -> Iterator[SizeRule]:
    """One is a multiple of the other, and stays the same one."""
    low, high = sorted((a, b))
    if low and low != high and high % low == 0:
        factor = high // low
        yield _rule((low, high), lambda get: get(high) == factor * get(low))


# ---------------------------------------------------------------- products
def _reshape(node: HloInstruction) -> Iterator[SizeRule]:
    yield from _products(_dims(node.operand(0)), _dims(node))


def _bitcast(node: HloInstruction) -> Iterator[SizeRule]:
    """As a reshape, of the dimensions in the order in which they lie in memory."""
    sides: list[tuple[int, ...]] = []
    for shape in (node.operand(0).shape, node.shape):
        order = shape.layout.minor_to_major if shape.is_array and shape.layout is not None else ()
        dims = shape.dimensions if shape.is_array else ()
        sides.append(tuple(dims[d] for d in reversed(order)) if len(order) == len(dims) else dims)
    if prod(sides[0]) == prod(sides[1]):
        yield from _products(*sides)


def _products(ins: Sequence[int], outs: Sequence[int]) -> Iterator[SizeRule]:
    """One rule for each shortest run of dimensions with equal products."""
    if 0 in ins or 0 in outs:
        return
    i = j = 0
    while i < len(ins) and j < len(outs):
        left, right = [ins[i]], [outs[j]]
        i, j = i + 1, j + 1
        while prod(left) != prod(right):
            if prod(left) < prod(right):
                if i == len(ins):
                    return
                left.append(ins[i])
                i += 1
            else:
                if j == len(outs):
                    return
                right.append(outs[j])
                j += 1
        if left != right:
            a, b = tuple(left), tuple(right)
            yield _rule((*a, *b), lambda get, a=a, b=b: prod(map(get, a)) == prod(map(get, b)))


def _concatenate(node: HloInstruction) -> Iterator[SizeRule]:
    (axis,) = node.dimensions or (0,)
    parts = [_dims(operand)[axis] for operand in node.operands]
    whole = _dims(node)[axis]
    yield _rule((*parts, whole), lambda get: sum(map(get, parts)) == get(whole))


def _ratios(node: HloInstruction) -> Iterator[SizeRule]:
    """Collectives and calls that cut or join dimensions."""
    leaves = [leaf.dimensions for _, leaf in node.shape.leaves() if leaf.is_array]
    if not node.operands or not leaves:
        return
    before, after = _dims(node.operand(0)), leaves[-1]
    if len(before) == len(after):
        for a, b in zip(before, after, strict=True):
            yield from _ratio(a, b)


def _scaled_dot(node: HloInstruction) -> Iterator[SizeRule]:
    for side in (0, 1):
        values, scale = _dims(node.operand(side)), _dims(node.operand(side + 2))
        for a, b in zip(values, scale, strict=False):
            yield from _ratio(a, b)


# ---------------------------------------------------------------- windows, pads, slices
def _extent(window: WindowDimension, size: int, result: int) -> SizeRule:
    def holds(get: Get) -> bool:
        inner = (get(size) - 1) * get(window.base_dilation) + 1 if size else 0
        reach = (get(window.size) - 1) * get(window.window_dilation) + 1
        room = inner + get(window.padding_low) + get(window.padding_high) - reach
        return get(result) == (room // get(window.stride) + 1 if room >= 0 else 0)

    parts = (window.size, window.stride, window.padding_low, window.padding_high)
    return _rule((*parts, window.base_dilation, window.window_dilation, size, result), holds)


def _windows(node: HloInstruction) -> Iterator[SizeRule]:
    window = node.attr("window") or Window(())
    result = _dims(node.operand(1)) if node.opcode == "select-and-scatter" else _dims(node)
    for dim, size, out in zip(window.dimensions, _dims(node.operand(0)), result, strict=False):
        yield _extent(dim, size, out)


def _convolution(node: HloInstruction) -> Iterator[SizeRule]:
    labels, window = node.attr("dim_labels"), node.attr("window") or Window(())
    if not isinstance(labels, ConvolutionDimensionNumbers):
        return
    x, w, out = _dims(node.operand(0)), _dims(node.operand(1)), _dims(node)
    for dim, a, b in zip(window.dimensions, labels.input_spatial, labels.output_spatial, strict=True):
        yield _extent(dim, x[a], out[b])
    groups, batches = int(node.attr("feature_group_count") or 1), int(node.attr("batch_group_count") or 1)
    features, inner = x[labels.input_feature], w[labels.kernel_input_feature]
    if groups > 1:
        yield _rule((features, inner, groups), lambda get: get(features) == get(inner) * get(groups))
    if batches > 1:
        first, last = x[labels.input_batch], out[labels.output_batch]
        yield _rule((first, last, batches), lambda get: get(first) == get(last) * get(batches))
    count = max(groups, batches)
    made = w[labels.kernel_output_feature]
    if count > 1:
        yield _rule((made, count), lambda get: get(made) % get(count) == 0, exact=False)


def _pad(node: HloInstruction) -> Iterator[SizeRule]:
    padding: tuple[PaddingDimension, ...] = node.attr("padding") or ()
    for dim, size, out in zip(padding, _dims(node.operand(0)), _dims(node), strict=False):

        def holds(get: Get, dim: PaddingDimension = dim, size: int = size, out: int = out) -> bool:
            inner = get(size) + max(get(size) - 1, 0) * get(dim.interior)
            return get(dim.low) + inner + get(dim.high) == get(out)

        yield _rule((dim.low, dim.high, dim.interior, size, out), holds)


def _slice(node: HloInstruction) -> Iterator[SizeRule]:
    bounds: tuple[SliceDimension, ...] = node.attr("slice") or ()
    for dim, size, out in zip(bounds, _dims(node.operand(0)), _dims(node), strict=False):

        def holds(get: Get, dim: SliceDimension = dim, out: int = out) -> bool:
            return get(out) == -(-(get(dim.limit) - get(dim.start)) // get(dim.stride))

        yield _rule((dim.start, dim.limit, dim.stride, out), holds)
        yield _at_most(dim.limit, size)


def _parts(node: HloInstruction) -> Iterator[SizeRule]:
    """The part that is read or written fits."""
    sizes = node.attr("dynamic_slice_sizes") or node.attr("slice_sizes") or _dims(node.operand(1))
    for part, size in zip(sizes, _dims(node.operand(0)), strict=False):
        yield _at_most(part, size)


def _fft(node: HloInstruction) -> Iterator[SizeRule]:
    real = {"RFFT": node, "IRFFT": node.operand(0)}.get(str(node.attr("fft_type")))
    lengths = node.attr("fft_length")
    if real is not None and lengths:
        half, whole = _dims(real)[-1], lengths[-1]
        yield _rule((half, whole), lambda get: get(half) == get(whole) // 2 + 1)


_RULES: Mapping[str, Callable[[HloInstruction], Iterator[SizeRule]]] = MappingProxyType(
    {
        "reshape": _reshape,
        "bitcast": _bitcast,
        "concatenate": _concatenate,
        "all-gather": _ratios,
        "all-gather-start": _ratios,
        "reduce-scatter": _ratios,
        "all-to-all": _ratios,
        "custom-call": _ratios,
        "scaled-dot": _scaled_dot,
        "reduce-window": _windows,
        "select-and-scatter": _windows,
        "convolution": _convolution,
        "pad": _pad,
        "slice": _slice,
        "dynamic-slice": _parts,
        "dynamic-update-slice": _parts,
        "gather": _parts,
        "fft": _fft,
    }
)
