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
    Builder,
    Rule,
    RuleOptions,
    constant_value,
    is_all,
    is_integral,
    rule,
    scalar_constant,
    type_of,
)
from hloscope.core.passes.rules.predicates import never_negative

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


@rule("and-two-bounds", "and", "(x < a) and (x < b) → x < min(a, b), signed scalar constants")
def and_two_bounds(one: HloInstruction, options: RuleOptions) -> Answer:
    bounds = [_upper_bound(operand) for operand in one.operands]
    if type_of(one) != "pred" or bounds[0] is None or bounds[1] is None or bounds[0][0] is not bounds[1][0]:
        return None
    keep = 0 if bounds[0][1] <= bounds[1][1] else 1
    return one.operand(keep)


def _upper_bound(one: HloInstruction) -> tuple[HloInstruction, int] | None:
    """(x, a) for x < a or a > x with a scalar constant a of type s32."""
    if one.opcode != "compare":
        return None
    left, right = one.operands
    direction = one.attr("direction")
    if direction == "GT":
        left, right = right, left
    if direction not in ("LT", "GT") or right.opcode != "constant" or not right.shape.is_scalar:
        return None
    return (left, int(right.literal.array()[()])) if right.shape.element_type == "s32" else None


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


_SWAPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


@rule("compare-nonnegative-zero", "compare", "x < 0 → false, x >= 0 → true and mirrored, x never negative")
def compare_nonnegative(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    direction = str(one.attr("direction"))
    if is_all(left, 0) and not is_all(right, 0):
        left, right, direction = right, left, _SWAPPED.get(direction, direction)
    if direction not in ("LT", "GE") or not is_all(right, 0) or one.attr("type") == "TOTALORDER":
        return None
    if type_of(left) not in ("int", "float") or not never_negative(left):
        return None
    if type_of(left) == "float" and direction == "GE" and not _never_nan(left):
        return Refusal(NAN, "NaN is not at least 0")
    value = direction == "GE"
    return lambda build: build.scalar_like(one.shape, value)


def _never_nan(one: HloInstruction) -> bool:
    """Values that no arithmetic made: converted integers, iotas, constants and absolute values of them."""
    while one.opcode in ("abs", "broadcast", "reshape"):
        one = one.operand(0)
    return one.opcode == "iota" or (one.opcode == "convert" and type_of(one.operand(0)) in ("int", "uint", "pred"))


@rule("compare-select", "compare", "(a >= b ? 1 : 0) != 0 → a >= b")
def compare_select(one: HloInstruction, options: RuleOptions) -> Answer:
    chosen = one.operand(0)
    if one.attr("direction") != "NE" or chosen.opcode != "select" or not is_all(one.operand(1), 0):
        return None
    p, on_true, on_false = chosen.operands
    if not is_all(on_true, 1) or not is_all(on_false, 0) or not options.same_shape(p.shape, one.shape):
        return None
    return p


@rule("compare-extreme", "compare", "max(a, b) > b → a > b, a > min(a, b) → a > b and so on")
def compare_extreme(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.attr("direction") != "GT":
        return None
    left, right = one.operands
    found: tuple[HloInstruction, HloInstruction] | None = None
    if left.opcode == "maximum" and right in left.operands:
        other = left.operand(1) if left.operand(0) is right else left.operand(0)
        found = (other, right)
    elif right.opcode == "minimum" and left in right.operands:
        other = right.operand(1) if right.operand(0) is left else right.operand(0)
        found = (left, other)
    if found is None:
        return None
    pair = found
    return lambda build: build.clone(one, pair)


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


@rule("select-compare", "select", "(a > b ? a : b) → a or b and so on, preds")
def select_compare(one: HloInstruction, options: RuleOptions) -> Answer:
    p, on_true, on_false = one.operands
    if type_of(one) != "pred" or p.opcode != "compare" or p.operands != (on_true, on_false):
        return None
    direction = str(p.attr("direction"))
    if direction == "EQ":
        return on_false
    if direction == "NE":
        return on_true
    opcode = "or" if direction in ("GT", "GE") else "and"
    return lambda build: build.make(opcode, one.shape, [on_true, on_false])


@rule("select-update", "select", "p ? x : dus(x, u, i) → dus(x, p' ? ds(x, i) : u, i)", insensitive=True)
def select_update(one: HloInstruction, options: RuleOptions) -> Answer:
    p, on_true, on_false = one.operands
    for whole, update, changed_when in ((on_true, on_false, False), (on_false, on_true, True)):
        if update.opcode != "dynamic-update-slice" or update.operand(0) is not whole or update.user_count != 1:
            continue
        starts, new = update.operands[2:], update.operand(1)
        if any(not start.shape.is_scalar for start in starts):
            return None
        x, fresh, when = whole, new, changed_when

        def make(build: Builder) -> HloInstruction:
            sizes = fresh.shape.dimensions
            chooser = p if p.shape.is_scalar else build.dynamic_slice(p, starts, sizes)
            old = build.dynamic_slice(x, starts, sizes)
            pair = (fresh, old) if when else (old, fresh)
            return build.dynamic_update_slice(x, build.select(chooser, *pair), starts)

        return make
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


@rule("minmax-swapped", "maximum minimum", "max(y, max(x, y)) → max(y, x)")
def minmax_swapped(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if right.opcode != one.opcode or left is not right.operand(1) or left is right.operand(0):
        return None
    return lambda build: build.clone(one, [left, right.operand(0)])


@rule("maximum-of-clamp", "maximum", "max(lo, clamp(lo, x, hi)) → clamp(lo, x, hi), scalar constants lo <= hi")
def maximum_of_clamp(one: HloInstruction, options: RuleOptions) -> Answer:
    for low, held in (one.operands, one.operands[::-1]):
        if held.opcode != "clamp" or held.operand(0) is not low:
            continue
        least, most = constant_value(low), constant_value(held.operand(2))
        if least is None or most is None or not bool(least <= most):
            return Refusal("bounds", "not known to be in order")
        return held
    return None


@rule("maximum-monotone", "maximum", "max(f(x), f(y)) → f(max(x, y)) for f in cbrt, erf, logistic, tanh")
def maximum_monotone(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if left.opcode not in ("cbrt", "erf", "logistic", "tanh") or left.opcode != right.opcode or left is right:
        return None
    return lambda build: build.unary(left.opcode, build.make("maximum", one.shape, [left.operand(0), right.operand(0)]))


@rule("minmax-to-clamp", "maximum minimum", "max(lo, min(x, hi)) → clamp(lo, x, hi), scalar constants lo < hi")
def minmax_to_clamp(one: HloInstruction, options: RuleOptions) -> Answer:
    other = "minimum" if one.opcode == "maximum" else "maximum"
    outer, inner = _constant_and_rest(one)
    if outer is None or inner is None or inner.opcode != other:
        return None
    bound, x = _constant_and_rest(inner)
    if bound is None or x is None:
        return None
    outermost, innermost = _constant_side(one), _constant_side(inner)
    low, high = (outermost, innermost) if one.opcode == "maximum" else (innermost, outermost)
    least, most = (outer, bound) if one.opcode == "maximum" else (bound, outer)
    if type_of(one) == "complex" or not bool(least.literal.array()[()] < most.literal.array()[()]):
        return None
    value = x
    return lambda build: build.make("clamp", one.shape, [low, value, high])


def _constant_side(one: HloInstruction) -> HloInstruction:
    """The operand that is a scalar constant or a broadcast of one."""
    return one.operand(0) if scalar_constant(one.operand(0)) is not None else one.operand(1)


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


@rule("clamp-device-id", "clamp", "clamp(0, partition-id or replica-id, c) → the id, where ids are at most c")
def clamp_device_id(one: HloInstruction, options: RuleOptions) -> Answer:
    low, number, high = one.operands
    if number.opcode not in ("partition-id", "replica-id") or not is_all(low, 0):
        return None
    module = one.module
    count = module.num_partitions if number.opcode == "partition-id" else module.replica_count
    top = constant_value(high)
    if top is None or count == 1 or count > int(top) + 1:
        return Refusal("count", f"{count} devices, at most {top}")
    return number


RULES: tuple[Rule, ...] = (
    not_not, and_identity, and_zero, and_two_bounds, or_identity, or_true, xor_self, xor_zero, compare_unsigned_zero,
    compare_nonnegative, compare_self, compare_pred_constant, compare_select, compare_extreme, select_same,
    select_constant, select_not, select_pred, select_compare, select_update, minmax_same, minmax_bound,
    minmax_nested, minmax_swapped, minmax_to_clamp, maximum_of_clamp, maximum_monotone, clamp_clamp, clamp_device_id,
)  # fmt: skip
