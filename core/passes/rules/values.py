"""Rules on constants, tuples, conversions, copies, and on sorts that do nothing.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc`` (HandleConstant, HandleGetTupleElement,
HandleConvert, HandleBitcastConvert, HandleCopy, HandleIota, HandleSort).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Rule, RuleOptions, is_static_array, literal_values, rule

if TYPE_CHECKING:
    from hloscope.core.hlo.element_types import ElementType
    from hloscope.core.hlo.instruction import HloInstruction

# Bits of the significand (the hidden one counted) and of the exponent.
_FLOATS = {"f16": (11, 5), "bf16": (8, 8), "f32": (24, 8), "f64": (53, 11)}


@rule("element-of-tuple", "get-tuple-element", "gte(tuple(…, x, …), i) → x")
def element_of_tuple(one: HloInstruction, options: RuleOptions) -> Answer:
    source = one.operand(0)
    return source.operand(int(one.attr("index"))) if source.opcode == "tuple" else None


@rule("constant-splat", "constant", "a constant of equal elements → broadcast of a scalar", insensitive=True)
def constant_splat(one: HloInstruction, options: RuleOptions) -> Answer:
    if not one.shape.is_array or one.shape.rank == 0 or one.shape.element_count < 2:
        return None
    values = literal_values(one)
    if values is None:
        return None
    first = values.reshape(-1)[:1]
    # Equal bits, so that -0 and 0 stay apart and NaN equals itself.
    if values.tobytes() != first.tobytes() * values.size:
        return None
    return lambda build: build.scalar_like(one.shape, first[0])


def preserves_values(source: ElementType, target: ElementType) -> bool:
    """Whether every value of `source` survives a conversion to `target` and back."""
    if source.name == target.name:
        return True
    if source.kind == "pred":
        return target.is_integral or target.is_floating
    if source.is_integral and target.is_integral:
        if source.kind == target.kind:
            return source.bits <= target.bits
        return source.kind == "uint" and source.bits < target.bits
    if target.name not in _FLOATS:
        return False
    digits, exponent = _FLOATS[target.name]
    if source.is_integral:
        return source.bits - (source.kind == "int") <= digits
    if source.name not in _FLOATS:
        return False
    return _FLOATS[source.name][0] <= digits and _FLOATS[source.name][1] <= exponent


@rule("convert-same", "convert bitcast-convert", "a conversion to the type that it has → operand")
def convert_same(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    return x if options.same_shape(x.shape, one.shape) else None


@rule("convert-round-trip", "convert", "convert(convert(x)) → x where the way there loses nothing")
def convert_round_trip(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "convert":
        return None
    x = inner.operand(0)
    if not options.same_shape(x.shape, one.shape) or not preserves_values(x.shape.type, inner.shape.type):
        return None
    return x


@rule("bitcast-convert-chain", "bitcast-convert", "bitcast-convert of bitcast-convert → the last one")
def bitcast_convert_chain(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "bitcast-convert":
        return None
    x = inner.operand(0)
    # Only between types of one width: else dimensions come and go.
    if not x.shape.type.bits == inner.shape.type.bits == one.shape.type.bits:
        return None
    return x if options.same_shape(x.shape, one.shape) else lambda build: build.clone(one, [x])


@rule("copy-same-layout", "copy", "copy of a value in the same layout → operand; a sharded entry root stays")
def copy_same_layout(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.shape != one.operand(0).shape:
        return None
    if one.is_root and one.parent.is_entry and one.raw_attrs.get("sharding") is not None:
        return None
    return one.operand(0)


@rule("copy-copy", "copy", "copy of copy → one copy")
def copy_copy(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "copy":
        return None
    return lambda build: build.clone(one, [inner.operand(0)])


@rule("iota-trivial", "iota", "iota along a dimension of size 1 → 0")
def iota_trivial(one: HloInstruction, options: RuleOptions) -> Answer:
    if not is_static_array(one.shape) or one.shape.dimensions[int(one.attr("iota_dimension"))] > 1:
        return None
    return lambda build: build.scalar_like(one.shape, 0)


@rule("constant-iota", "constant", "0, 1, 2, … → iota, 0, k, 2k, … → iota · k", insensitive=True)
def constant_iota(one: HloInstruction, options: RuleOptions) -> Answer:
    if not is_static_array(one.shape) or one.shape.rank != 1 or one.shape.element_count < 2:
        return None
    if not one.shape.type.is_integral or one.shape.type.bits < 8:
        return None
    values = literal_values(one)
    if values is None:
        return None
    wide = values.astype(np.int64)
    step = int(wide[1])
    if int(wide[0]) or step == 0 or not (wide == np.arange(wide.size) * step).all():
        return None
    if step == 1:
        return lambda build: build.make("iota", one.shape, [], {"iota_dimension": 0})
    return lambda build: build.binary(
        "multiply", build.make("iota", one.shape, [], {"iota_dimension": 0}), build.scalar_like(one.shape, step)
    )


_NARROWED = frozenset({"add", "subtract", "multiply", "divide", "remainder"})


@rule("convert-narrow-arithmetic", "convert", "convert(convert(a) + convert(b)) back to their type → a + b, integers")
def convert_narrow(one: HloInstruction, options: RuleOptions) -> Answer:
    wide = one.operand(0)
    if wide.opcode not in _NARROWED or wide.user_count != 1:
        return None
    sources = [o.operand(0) for o in wide.operands if o.opcode == "convert" and o.user_count == 1]
    if len(sources) != 2:
        return None
    kind, larger = one.shape.type, wide.shape.type
    if any(s.shape.element_type != kind.name for s in sources) or not kind.is_integral or kind.kind != larger.kind:
        return None
    if kind.bits < 8 or larger.bits <= kind.bits:
        return None
    if wide.opcode in ("divide", "remainder") and kind.kind != "uint":
        return Refusal("overflow", "the smallest integer divided by -1")
    return lambda build: build.clone(wide, sources, one.shape)


@rule("bitcast-convert-concatenate", "bitcast-convert",
      "bitcast-convert(concatenate(bitcast-convert(a), …)) → concatenate")  # fmt: skip
def bitcast_convert_concatenate(one: HloInstruction, options: RuleOptions) -> Answer:
    joined = one.operand(0)
    if joined.opcode != "concatenate" or any(o.opcode != "bitcast-convert" for o in joined.operands):
        return None
    sources = [o.operand(0) for o in joined.operands]
    same = all(
        s.shape.element_type == one.shape.element_type and s.shape.dimensions == o.shape.dimensions
        for s, o in zip(sources, joined.operands, strict=True)
    )
    if not same or joined.shape.dimensions != one.shape.dimensions:
        return None
    return lambda build: build.clone(joined, sources, one.shape)


@rule("sort-trivial", "sort", "sort along a dimension of at most one element → operands")
def sort_trivial(one: HloInstruction, options: RuleOptions) -> Answer:
    first = one.operand(0).shape
    if not is_static_array(first) or (first.element_count and first.dimensions[one.dimensions[0]] > 1):
        return None
    if one.operand_count == 1:
        return one.operand(0)
    return lambda build: build.make("tuple", one.shape, one.operands)


@rule("reduce-precision-nothing", "reduce-precision",
      "rounding to the type's own precision → operand, where asked for")  # fmt: skip
def reduce_precision_nothing(one: HloInstruction, options: RuleOptions) -> Answer:
    held = _FLOATS.get(one.shape.element_type)
    if not options.enable_remove_no_op_reduce_precision or held is None:
        return None
    digits, exponent = int(str(one.attr("mantissa_bits") or 0)), int(str(one.attr("exponent_bits") or 0))
    return one.operand(0) if (digits, exponent) == (held[0] - 1, held[1]) else None


RULES: tuple[Rule, ...] = (
    element_of_tuple, constant_splat, constant_iota, convert_same, convert_round_trip, convert_narrow,
    reduce_precision_nothing, bitcast_convert_chain, bitcast_convert_concatenate, copy_same_layout, copy_copy,
    iota_trivial, sort_trivial,
)  # fmt: skip
