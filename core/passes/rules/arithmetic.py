"""Rules on sums, differences, products and signs.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc`` (HandleAdd, HandleSubtract,
HandleMultiply, HandleNegate, HandleAbs, HandleComplex, HandleReal, HandleImag).

Floats are treated as the real compiler treats them: constants are gathered across sums and products although each step
rounds, and the sign of a zero may change. What is not right for infinities and NaN refuses with a reason, except where
the real compiler applies it always (a product with a converted pred).
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
    is_all,
    is_constant,
    is_integral,
    rule,
    scalar_constant,
    type_of,
)
from hloscope.core.passes.rules.predicates import (
    is_power_of_two_factor,
    is_scalar_value,
    never_negative,
    two_constants,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


def _joined(build: Builder, opcode: str, a: HloInstruction, b: HloInstruction) -> HloInstruction:
    """An operation on two constants, or on the scalars that two broadcasts spread."""
    if a.opcode == "constant":
        return build.make(opcode, a.shape, [a, b])
    scalars = [x.operand(0) for x in (a, b)]
    return build.broadcast_scalar(build.make(opcode, scalars[0].shape, scalars), a.shape)


# ---------------------------------------------------------------- sums
@rule("add-zero", "add", "x + 0 → x, 0 + x → x")
def add_zero(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    return left if is_all(right, 0) else right if is_all(left, 0) else None


@rule("add-constant-right", "add", "c + x → x + c, x no constant")
def add_constant_right(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if left.opcode != "constant" or right.opcode == "constant":
        return None
    return lambda build: build.clone(one, [right, left])


@rule("add-add-constants", "add", "(x + c1) + c2 → x + (c1 + c2)", insensitive=True)
def add_add_constants(one: HloInstruction, options: RuleOptions) -> Answer:
    inner, second = one.operands
    if inner.opcode != "add":
        return None
    x, first = inner.operands
    if is_constant(x) or not two_constants(first, second):
        return None
    return lambda build: build.clone(one, [x, _joined(build, "add", first, second)])


@rule("add-subtract-constants", "add", "(c1 - x) + c2 → (c1 + c2) - x", insensitive=True)
def add_subtract_constants(one: HloInstruction, options: RuleOptions) -> Answer:
    inner, second = one.operands
    if inner.opcode != "subtract":
        return None
    first, x = inner.operands
    if is_constant(x) or not two_constants(first, second):
        return None
    return lambda build: build.clone(inner, [_joined(build, "add", first, second), x])


@rule("add-difference", "add", "x + (y - x) → y, integers")
def add_difference(one: HloInstruction, options: RuleOptions) -> Answer:
    for x, other in (one.operands, one.operands[::-1]):
        if other.opcode == "subtract" and other.operand(1) is x:
            if not is_integral(one) and not options.enable_fast_math:
                return Refusal(NAN, "an infinity minus itself is NaN")
            return other.operand(0)
    return None


@rule("add-update", "add", "x + dus(0, u, i) → dus(x, ds(x, i) + u, i)", insensitive=True)
def add_update(one: HloInstruction, options: RuleOptions) -> Answer:
    for x, other in (one.operands, one.operands[::-1]):
        if other.opcode == "dynamic-update-slice" and other.user_count == 1 and is_all(other.operand(0), 0):
            update, starts = other.operand(1), other.operands[2:]
            if any(not start.shape.is_scalar for start in starts) or other is x:
                return None
            whole = x

            def make(build: Builder) -> HloInstruction:
                old = build.dynamic_slice(whole, starts, update.shape.dimensions)
                return build.dynamic_update_slice(whole, build.binary("add", old, update), starts)

            return make
    return None


@rule("add-common-factor", "add", "a·c + b·c → (a + b)·c, integers or c a power of two")
def add_common_factor(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if any(o.opcode != "multiply" or o.user_count != 1 for o in (left, right)):
        return None
    for a, c in (left.operands, left.operands[::-1]):
        for b, d in (right.operands, right.operands[::-1]):
            if c is not d:
                continue
            if not is_integral(one) and not is_power_of_two_factor(c):
                return Refusal("rounding", "the factor is no power of two")
            first, second, factor = a, b, c
            return lambda build: build.clone(left, [build.binary("add", first, second), factor])
    return None


# ---------------------------------------------------------------- differences
@rule("subtract-zero", "subtract", "x - 0 → x")
def subtract_zero(one: HloInstruction, options: RuleOptions) -> Answer:
    return one.operand(0) if is_all(one.operand(1), 0) else None


@rule("subtract-self", "subtract", "x - x → 0, integers")
def subtract_self(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand(0) is not one.operand(1):
        return None
    if not is_integral(one) and not options.enable_fast_math:
        return Refusal(NAN, "an infinity or NaN minus itself is NaN")
    return lambda build: build.scalar_like(one.shape, 0)


@rule("subtract-constant", "subtract", "x - c → x + (-c), x no constant")
def subtract_constant(one: HloInstruction, options: RuleOptions) -> Answer:
    x, c = one.operands
    if x.opcode == "constant":
        return None
    if c.opcode == "constant":
        return lambda build: build.make("add", one.shape, [x, build.make("negate", c.shape, [c])])
    if c.opcode != "broadcast" or c.operand(0).opcode != "constant":
        return None
    inner = c.operand(0)

    def make(build: Builder) -> HloInstruction:
        negated = build.make("negate", inner.shape, [inner])
        negative = build.make("broadcast", c.shape, [negated], {"dimensions": c.dimensions})
        return build.make("add", one.shape, [x, negative])

    return make


@rule("subtract-sum", "subtract", "x - (x - y) → y, x - (x + y) → -y, (x + y) - x → y, integers")
def subtract_sum(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    found: HloInstruction | None = None
    negated = False
    if right.opcode == "subtract" and right.operand(0) is left:
        found = right.operand(1)
    elif right.opcode == "add" and left in right.operands:
        found, negated = right.operand(1 - right.operands.index(left)), True
    elif left.opcode == "add" and right in left.operands:
        found = left.operand(1 - left.operands.index(right))
    if found is None:
        return None
    if not is_integral(one) and not options.enable_fast_math:
        return Refusal(NAN, "an infinity minus itself is NaN")
    y = found
    return (lambda build: build.unary("negate", y)) if negated else y


# ---------------------------------------------------------------- products
@rule("multiply-one", "multiply", "x * 1 → x, 1 * x → x")
def multiply_one(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    return left if is_all(right, 1) else right if is_all(left, 1) else None


@rule("multiply-zero", "multiply", "x * 0 → 0, integers")
def multiply_zero(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    zero = right if is_all(right, 0) else left if is_all(left, 0) else None
    if zero is None:
        return None
    if type_of(one) not in ("int", "uint", "pred") and not options.enable_fast_math:
        return Refusal(NAN, "an infinity or NaN times zero is NaN")
    return zero


@rule("multiply-negated", "multiply", "(-a) * (-b) → a * b")
def multiply_negated(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if left.opcode != "negate" or right.opcode != "negate":
        return None
    return lambda build: build.clone(one, [left.operand(0), right.operand(0)])


@rule("multiply-absolute", "multiply", "|a| * |a| → a * a, no complex numbers")
def multiply_absolute(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if left is not right or left.opcode != "abs" or type_of(left.operand(0)) == "complex":
        return None
    return lambda build: build.clone(one, [left.operand(0), left.operand(0)])


@rule("multiply-pred", "multiply", "x * convert(p) → select(p, x, 0)")
def multiply_pred(one: HloInstruction, options: RuleOptions) -> Answer:
    for x, other in (one.operands, one.operands[::-1]):
        if other.opcode == "convert" and type_of(other.operand(0)) == "pred":
            value, p = x, other.operand(0)
            return lambda build: build.select(p, value, build.scalar_like(one.shape, 0))
    return None


def _constant_factor(one: HloInstruction) -> tuple[HloInstruction, HloInstruction] | None:
    """(a, c) of a product a · c with a plain constant c on one side alone."""
    if one.opcode != "multiply":
        return None
    left, right = one.operands
    if right.opcode == "constant" and left.opcode != "constant":
        return left, right
    if left.opcode == "constant" and right.opcode != "constant":
        return right, left
    return None


@rule("multiply-gather-constants", "multiply", "(a·c1)·(b·c2) → (a·b)·(c1·c2), (a·c1)·c2 → a·(c1·c2)")
def multiply_constants(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    first, second = _constant_factor(left), _constant_factor(right)
    if first is not None and second is not None:
        (a, c), (b, d) = first, second
        return lambda build: build.clone(one, [build.binary("multiply", a, b), build.binary("multiply", c, d)])
    for product, other in ((first, right), (second, left)):
        if product is not None and other.opcode == "constant":
            (x, factor), constant = product, other
            return lambda build: build.clone(one, [x, build.binary("multiply", factor, constant)])
    return None


@rule("multiply-scalar-factors", "multiply", "(a·c)·broadcast(b) → a·broadcast(b·c), scalars", insensitive=True)
def multiply_scalars(one: HloInstruction, options: RuleOptions) -> Answer:
    for product, spread in (one.operands, one.operands[::-1]):
        if product.opcode != "multiply" or not is_scalar_value(spread):
            continue
        b = spread.operand(0)
        for a, c in (product.operands, product.operands[::-1]):
            factor = scalar_constant(c)
            if factor is None or is_constant(a):
                continue
            kept, scalar = a, factor
            return lambda build: build.clone(
                one, [kept, build.broadcast_scalar(build.binary("multiply", b, scalar), one.shape)]
            )
    return None


@rule("multiply-powers", "multiply", "exp(a) · exp(b) → exp(a + b)")
def multiply_powers(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if left.opcode != "exponential" or right.opcode != "exponential":
        return None
    a, b = left.operand(0), right.operand(0)
    return lambda build: build.unary("exponential", build.binary("add", a, b))


@rule("multiply-roots", "multiply", "sqrt(x)·sqrt(x) → x, rsqrt(x)·rsqrt(x) → 1/x, x never negative")
def multiply_roots(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if left is not right or left.opcode not in ("sqrt", "rsqrt"):
        return None
    x = left.operand(0)
    if not never_negative(x):
        return Refusal("sign", "the operand may be negative")
    if left.opcode == "sqrt":
        return x
    return lambda build: build.binary("divide", build.scalar_like(one.shape, 1), x)


# ---------------------------------------------------------------- signs and parts
@rule("negate-negate", "negate", "-(-x) → x")
def negate_negate(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    return inner.operand(0) if inner.opcode == "negate" else None


@rule("abs-nonnegative", "abs", "|x| → x where x is never negative")
def abs_nonnegative(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if type_of(x) == "complex" or type_of(one) == "complex":
        return None
    return x if x.opcode == "abs" or never_negative(x) else None


@rule("complex-of-parts", "complex", "complex(real(z), imag(z)) → z")
def complex_of_parts(one: HloInstruction, options: RuleOptions) -> Answer:
    real, imag = one.operands
    if real.opcode != "real" or imag.opcode != "imag" or real.operand(0) is not imag.operand(0):
        return None
    return real.operand(0)


@rule("real-of-complex", "real", "real(complex(r, i)) → r, real(x) → x for a real x")
def real_of_complex(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if x.opcode == "complex":
        return x.operand(0)
    return x if type_of(x) == "float" else None


@rule("imag-of-complex", "imag", "imag(complex(r, i)) → i, imag(x) → 0 for a real x")
def imag_of_complex(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if x.opcode == "complex":
        return x.operand(1)
    if type_of(x) != "float":
        return None
    return lambda build: build.scalar_like(one.shape, 0)


RULES: tuple[Rule, ...] = (
    add_zero, add_constant_right, add_add_constants, add_subtract_constants, add_difference, add_update,
    add_common_factor, subtract_self, subtract_zero, subtract_constant, subtract_sum, multiply_one, multiply_zero,
    multiply_negated, multiply_absolute, multiply_pred, multiply_constants, multiply_scalars, multiply_powers,
    multiply_roots, negate_negate, abs_nonnegative, complex_of_parts, real_of_complex, imag_of_complex,
)  # fmt: skip
