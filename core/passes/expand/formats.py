"""Bits of other widths and randomly rounded integers by shifts and comparisons.

Source: ``openxla/xla:xla/hlo/transforms/expanders/bitcast_dtypes_expander.cc``, ``stochastic_convert_decomposer.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


def _storage_bits(one: HloInstruction) -> int:
    """Bits that an element has in memory by itself: a pred has a byte."""
    return 8 if one.shape.element_type == "pred" else one.shape.type.bits


def _as(build: Builder, x: HloInstruction, element_type: str) -> HloInstruction:
    """The same bits in another type of the same width."""
    if x.shape.element_type == element_type:
        return x
    return build.make("bitcast-convert", x.shape.with_element_type(element_type), [x])


def _narrower(build: Builder, x: HloInstruction, source: int, target: int) -> HloInstruction:
    """Each element as a row of pieces, the low bits first."""
    sizes = [*x.shape.dimensions, source // target]
    wide = _as(build, build.broadcast(x, range(x.shape.rank), sizes), f"u{source}")
    places = build.iota(f"u{source}", sizes, len(sizes) - 1)
    by = build.binary("multiply", places, build.scalar_like(places.shape, target))
    moved = build.binary("shift-right-logical", wide, by)
    mask = build.scalar_like(moved.shape, (1 << target) - 1)
    return build.convert(build.binary("and", moved, mask), f"u{target}")


def _wider(build: Builder, x: HloInstruction, source: int, target: int) -> HloInstruction:
    """Each row of pieces as one element, its first piece being the low bits."""
    rank = x.shape.rank
    whole: HloInstruction | None = None
    for place in range(target // source):
        starts = [*[0] * (rank - 1), place]
        piece = build.slice(x, starts, [*x.shape.dimensions[:-1], place + 1])
        piece = build.reshape(piece, x.shape.dimensions[:-1])
        piece = build.convert(_as(build, piece, f"u{source}"), f"u{target}")
        if place:
            piece = build.binary("shift-left", piece, build.scalar_like(piece.shape, place * source))
        whole = piece if whole is None else build.binary("or", whole, piece)
    assert whole is not None
    return whole


@rule("expand-bitcast-convert", "bitcast-convert", "bits of another width → shifts, masks and sums of the pieces")
def expand_bitcast_convert(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if not is_static_array(x.shape) or not is_static_array(one.shape):
        return None
    source, target = _storage_bits(x), _storage_bits(one)
    if source == target:
        return None
    if "complex" in (x.shape.type.kind, one.shape.type.kind):
        return Refusal("element_type", f"{x.shape.element_type} to {one.shape.element_type}")

    def make(build: Builder) -> HloInstruction:
        cast = _narrower if source > target else _wider
        return _as(build, cast(build, x, source, target), one.shape.element_type)

    return make


@dataclass(frozen=True)
class BitcastDtypesExpander(RulePass):
    """Bits of another width by shifts."""

    name = "bitcast_dtypes_expander"
    rules = (expand_bitcast_convert,)


@rule(
    "expand-stochastic-convert", "stochastic-convert",
    "a randomly rounded integer → the whole part, one more where the fraction exceeds the random bits",
)  # fmt: skip
def expand_stochastic_convert(one: HloInstruction, options: RuleOptions) -> Answer:
    x, random = one.operands
    if not is_static_array(x.shape):
        return None
    if one.shape.type.kind != "int":
        return Refusal("element_type", f"{x.shape.element_type} to {one.shape.element_type}")
    bits, width = one.shape.type.bits, random.shape.type.bits
    lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def make(build: Builder) -> HloInstruction:
        zero = build.scalar_like(x.shape, 0)
        negative = build.compare(build.unary("sign", x), zero, "LT")
        size = build.unary("abs", x)
        floor = build.unary("floor", size)
        fraction = build.binary("subtract", size, floor)
        if x.shape.element_type == "f16":
            fraction = build.convert(fraction, "f32")  # 2^16 is no f16
        scaled = build.binary("multiply", fraction, build.scalar_like(fraction.shape, float(1 << width)))
        up = build.compare(random, build.convert(scaled, random.shape.element_type), "LT")
        whole = build.convert(floor, one.shape.element_type)
        more = build.binary("add", whole, build.scalar_like(whole.shape, 1))
        rounded = build.select(up, more, whole)
        result = build.select(negative, build.unary("negate", rounded), rounded)
        low = build.compare(x, build.scalar_like(x.shape, lowest), "LE")
        result = build.select(low, build.scalar_like(result.shape, lowest), result)
        high = build.compare(x, build.scalar_like(x.shape, highest), "GE")
        return build.select(high, build.scalar_like(result.shape, highest), result)

    return make


@dataclass(frozen=True)
class StochasticConvertDecomposer(RulePass):
    """Randomly rounded integers by comparisons."""

    name = "stochastic_convert_decomposer"
    rules = (expand_stochastic_convert,)
