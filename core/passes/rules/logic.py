"""Rules on bits, comparisons, choices and bounds.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc`` (HandleAnd, HandleOr, HandleXor,
HandleCompare, HandleSelect, HandleMaximum, HandleMinimum, HandleClamp).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import (
    NAN,
    Answer,
    Rule,
    RuleOptions,
    is_all,
    is_integral,
    rule,
    scalar_constant,
    type_of,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


@rule("not-not", "not", "not(not(x)) → x")
def not_not(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    return inner.operand(0) if inner.opcode == "not" else None


@rule("and-identity", "and", "x and true → x")
def and_identity(one: HloInstruction, options: RuleOptions) -> Answer:
    if type_of(one) != "pred":
        return None
    left, right = one.operands
    return left if is_all(right, True) else right if is_all(left, True) else None


@rule("and-zero", "and", "x & 0 → 0")
def and_zero(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    return right if is_all(right, 0) else left if is_all(left, 0) else None


@rule("or-identity", "or", "x | 0 → x")
def or_identity(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    return left if is_all(right, 0) else right if is_all(left, 0) else None


@rule("or-true", "or", "x or true → true")
def or_true(one: HloInstruction, options: RuleOptions) -> Answer:
    if type_of(one) != "pred":
        return None
    left, right = one.operands
    return right if is_all(right, True) else left if is_all(left, True) else None


@rule("xor-self", "xor", "x ^ x → 0")
def xor_self(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand(0) is not one.operand(1):
        return None
    return lambda build: build.scalar_like(one.shape, 0)


@rule("xor-zero", "xor", "x ^ 0 → x")
def xor_zero(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    return left if is_all(right, 0) else right if is_all(left, 0) else None


@rule("compare-self", "compare", "x = x → true, x < x → false and so on, integers and preds")
def compare_self(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if x is not one.operand(1):
        return None
    if not (is_integral(x) or type_of(x) == "pred"):
        return Refusal(NAN, "NaN compares unequal to itself")
    value = one.attr("direction") in ("EQ", "LE", "GE")
    return lambda build: build.scalar_like(one.shape, value)


@rule("compare-unsigned-zero", "compare", "x < 0 → false, x >= 0 → true and mirrored, unsigned")
def compare_unsigned_zero(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if type_of(left) != "uint":
        return None
    direction = one.attr("direction")
    if (direction == "LT" and is_all(right, 0)) or (direction == "GT" and is_all(left, 0)):
        value = False
    elif (direction == "GE" and is_all(right, 0)) or (direction == "LE" and is_all(left, 0)):
        value = True
    else:
        return None
    return lambda build: build.scalar_like(one.shape, value)


@rule("compare-pred-constant", "compare", "p != false → p, p = true → p, preds")
def compare_pred_constant(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if type_of(left) != "pred":
        return None
    wanted = {"NE": False, "EQ": True}.get(str(one.attr("direction")))
    if wanted is None:
        return None
    return left if is_all(right, wanted) else right if is_all(left, wanted) else None


@rule("select-same", "select", "select(p, x, x) → x")
def select_same(one: HloInstruction, options: RuleOptions) -> Answer:
    return one.operand(1) if one.operand(1) is one.operand(2) else None


@rule("select-constant", "select", "select(true, a, b) → a, select(false, a, b) → b")
def select_constant(one: HloInstruction, options: RuleOptions) -> Answer:
    predicate, on_true, on_false = one.operands
    return on_true if is_all(predicate, True) else on_false if is_all(predicate, False) else None


@rule("select-not", "select", "select(not(p), a, b) → select(p, b, a)")
def select_not(one: HloInstruction, options: RuleOptions) -> Answer:
    predicate, on_true, on_false = one.operands
    if predicate.opcode != "not":
        return None
    return lambda build: build.clone(one, [predicate.operand(0), on_false, on_true])


@rule("select-pred", "select", "select(p, true, false) → p, select(p, false, true) → not(p)")
def select_pred(one: HloInstruction, options: RuleOptions) -> Answer:
    predicate, on_true, on_false = one.operands
    if type_of(one) != "pred" or not options.same_shape(predicate.shape, one.shape):
        return None
    if is_all(on_true, True) and is_all(on_false, False):
        return predicate
    if is_all(on_true, False) and is_all(on_false, True):
        return lambda build: build.make("not", one.shape, [predicate])
    return None


@rule("minmax-same", "maximum minimum", "max(x, x) → x")
def minmax_same(one: HloInstruction, options: RuleOptions) -> Answer:
    return one.operand(0) if one.operand(0) is one.operand(1) else None


@rule("minmax-bound", "maximum minimum", "max(x, lowest) → x, min(x, highest) → x; -inf and inf for floats")
def minmax_bound(one: HloInstruction, options: RuleOptions) -> Answer:
    kind = one.shape.type
    lowest = one.opcode == "maximum"
    if kind.kind == "float":
        # Types without infinities have no value that is right for every input.
        if kind.name not in ("f16", "bf16", "f32", "f64"):
            return None
        bound: float = float("-inf") if lowest else float("inf")
    elif kind.kind == "int":
        bound = -(1 << (kind.bits - 1)) if lowest else (1 << (kind.bits - 1)) - 1
    elif kind.kind == "uint":
        bound = 0 if lowest else (1 << kind.bits) - 1
    elif kind.kind == "pred":
        bound = not lowest
    else:
        return None
    left, right = one.operands
    return left if is_all(right, bound) else right if is_all(left, bound) else None


@rule("minmax-nested", "maximum minimum", "max(max(x, y), y) → max(x, y), max(x, max(x, y)) → max(x, y)")
def minmax_nested(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if left.opcode == one.opcode and any(right is inner for inner in left.operands):
        return left
    return right if right.opcode == one.opcode and left is right.operand(0) else None


@rule("minmax-to-clamp", "maximum minimum", "max(lo, min(x, hi)) → clamp(lo, x, hi), scalar constants lo < hi")
def minmax_to_clamp(one: HloInstruction, options: RuleOptions) -> Answer:
    other = "minimum" if one.opcode == "maximum" else "maximum"
    outer, inner = _constant_and_rest(one)
    if outer is None or inner is None or inner.opcode != other:
        return None
    bound, x = _constant_and_rest(inner)
    if bound is None or x is None:
        return None
    low, high = (outer, bound) if one.opcode == "maximum" else (bound, outer)
    if type_of(one) == "complex" or not bool(low.literal.array()[()] < high.literal.array()[()]):
        return None
    value = x
    return lambda build: build.make("clamp", one.shape, [low, value, high])


def _constant_and_rest(one: HloInstruction) -> tuple[HloInstruction | None, HloInstruction | None]:
    """The scalar constant on one side and what stands on the other; (None, None) unless exactly one side is one."""
    left, right = (scalar_constant(operand) for operand in one.operands)
    if (left is None) == (right is None):
        return None, None
    return (left, one.operand(1)) if left is not None else (right, one.operand(0))


@rule("clamp-clamp", "clamp", "clamp(a, clamp(a, x, b), b) → clamp(a, x, b)")
def clamp_clamp(one: HloInstruction, options: RuleOptions) -> Answer:
    low, inner, high = one.operands
    if inner.opcode != "clamp" or inner.operand(0) is not low or inner.operand(2) is not high:
        return None
    return inner


RULES: tuple[Rule, ...] = (
    not_not, and_identity, and_zero, or_identity, or_true, xor_self, xor_zero, compare_self, compare_unsigned_zero,
    compare_pred_constant, select_same, select_constant, select_not, select_pred, minmax_same, minmax_bound,
    minmax_nested, minmax_to_clamp, clamp_clamp,
)  # fmt: skip
