"""Rules on constants, tuples, conversions, copies, and on reductions and sorts that do nothing.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc`` (HandleConstant, HandleGetTupleElement,
HandleConvert, HandleBitcastConvert, HandleCopy, HandleIota, HandleReduce, HandleSort).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.passes.rules.base import Answer, Builder, Rule, RuleOptions, is_static_array, literal_values, rule

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


@rule("reduce-nothing", "reduce", "reduce over sizes of 1 or over nothing → reshape of the operand", insensitive=True)
def reduce_nothing(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand_count != 2 or not is_static_array(one.shape):
        return None
    x = one.operand(0)
    if not is_static_array(x.shape) or x.shape.element_count != one.shape.element_count:
        return None
    if not x.shape.element_count or x.shape.element_type != one.shape.element_type:
        return None
    # The initial value is an identity of the reducer by the operation's definition, so it adds nothing.
    return x if options.same_shape(x.shape, one.shape) else lambda build: build.make("reshape", one.shape, [x])


@rule("reduce-empty", "reduce", "reduce of an array without elements → the initial value", insensitive=True)
def reduce_empty(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand_count != 2 or not is_static_array(one.shape):
        return None
    x, initial = one.operands
    if not is_static_array(x.shape) or x.shape.element_count or not one.shape.element_count:
        return None
    if one.shape.is_scalar:
        return initial
    return lambda build: build.broadcast_scalar(initial, one.shape)


@rule("reduce-of-reduce", "reduce", "reduce(reduce(x)) → one reduce, where the order does not count", insensitive=True)
def reduce_of_reduce(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if one.operand_count != 2 or inner.opcode != "reduce" or inner.operand_count != 2 or inner.user_count != 1:
        return None
    if one.operand(1) is not inner.operand(1):
        return None
    outer_op, inner_op = _reducer_opcode(one), _reducer_opcode(inner)
    if outer_op is None or outer_op != inner_op:
        return None
    # Adding floats in another order rounds differently.
    if outer_op not in ("maximum", "minimum", "and", "or") and not one.shape.type.is_integral:
        return None
    x = inner.operand(0)
    kept = [d for d in range(x.shape.rank) if d not in inner.dimensions]
    dims = tuple(sorted([*inner.dimensions, *(kept[d] for d in one.dimensions)]))

    def make(build: Builder) -> HloInstruction:
        whole = build.clone(one, [x, one.operand(1)])
        whole.set_attr("dimensions", dims)
        return whole

    return make


def _reducer_opcode(one: HloInstruction) -> str | None:
    """The opcode of a reducer of the form op(parameter 0, parameter 1), None for any other."""
    root = one.callee("to_apply").root
    if root.operand_count != 2 or {o.opcode for o in root.operands} != {"parameter"}:
        return None
    if root.operand(0) is root.operand(1):
        return None
    return root.opcode if root.opcode in ("add", "multiply", "maximum", "minimum", "and", "or") else None


@rule("sort-trivial", "sort", "sort along a dimension of at most one element → operands")
def sort_trivial(one: HloInstruction, options: RuleOptions) -> Answer:
    first = one.operand(0).shape
    if not is_static_array(first) or (first.element_count and first.dimensions[one.dimensions[0]] > 1):
        return None
    if one.operand_count == 1:
        return one.operand(0)
    return lambda build: build.make("tuple", one.shape, one.operands)


RULES: tuple[Rule, ...] = (
    element_of_tuple, constant_splat, convert_same, convert_round_trip, bitcast_convert_chain, copy_same_layout,
    copy_copy, iota_trivial, reduce_nothing, reduce_empty, reduce_of_reduce, sort_trivial,
)  # fmt: skip
