"""Arithmetic rules. Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc``.

Floats: a rule is kept where it is exact for every value, infinities and NaN included, up to the sign of a zero or NaN
(adding zero takes -0 to 0 before the rewrite and keeps it after; the real compiler accepts that too). Where it is not,
the rule applies to integers alone and refuses floats with a reason. x², x³ and x⁻¹ replace a call of the power
function by operations that round on their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import (
    NAN,
    Answer,
    Builder,
    Rule,
    RuleOptions,
    constant_value,
    is_all,
    is_constant,
    is_integral,
    rule,
    scalar_constant,
    type_of,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


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


@rule("add-add-constants", "add", "(x + c1) + c2 → x + (c1 + c2), integers")
def add_add_constants(one: HloInstruction, options: RuleOptions) -> Answer:
    inner, second = one.operands
    if inner.opcode != "add" or not is_integral(one):
        return None
    x, first = inner.operands
    if first.opcode == "constant" and second.opcode == "constant" and x.opcode != "constant":
        return lambda build: build.clone(one, [x, build.make("add", one.shape, [first, second])])
    a, b = scalar_constant(first), scalar_constant(second)
    if a is None or b is None or first.opcode != second.opcode or is_constant(x):
        return None

    def make(build: Builder) -> HloInstruction:
        total = build.make("add", a.shape, [a, b])
        return build.clone(one, [x, build.broadcast_scalar(total, one.shape)])

    return make


@rule("subtract-zero", "subtract", "x - 0 → x")
def subtract_zero(one: HloInstruction, options: RuleOptions) -> Answer:
    return one.operand(0) if is_all(one.operand(1), 0) else None


@rule("subtract-self", "subtract", "x - x → 0, integers")
def subtract_self(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand(0) is not one.operand(1):
        return None
    if not is_integral(one):
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
    if type_of(one) not in ("int", "uint", "pred"):
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


@rule("divide-one", "divide", "x / 1 → x")
def divide_one(one: HloInstruction, options: RuleOptions) -> Answer:
    return one.operand(0) if is_all(one.operand(1), 1) else None


def _power_of_two(value: int) -> int | None:
    return value.bit_length() - 1 if value > 0 and value & (value - 1) == 0 else None


@rule("divide-unsigned-power-of-two", "divide", "x / 2^k → x >> k, unsigned")
def divide_unsigned(one: HloInstruction, options: RuleOptions) -> Answer:
    if type_of(one) != "uint":
        return None
    value = constant_value(one.operand(1))
    shift = None if value is None else _power_of_two(int(value))
    if not shift:
        return None
    amount = shift
    return lambda build: build.make(
        "shift-right-logical", one.shape, [one.operand(0), build.scalar_like(one.shape, amount)]
    )


@rule("divide-float-power-of-two", "divide", "x / c → x * (1 / c), c a power of two, so that both round the same")
def divide_float(one: HloInstruction, options: RuleOptions) -> Answer:
    x, c = one.operands
    if type_of(one) != "float" or x.opcode == "constant":
        return None
    value = constant_value(c)
    if value is None or one.shape.type.bits < 16:
        return None
    number = float(value)
    if not np.isfinite(number) or number == 0 or abs(np.frexp(number)[0]) != 0.5:
        return None
    # Reciprocals that are no normal numbers of the type would lose bits.
    if abs(np.frexp(number)[1]) > {"f16": 13, "bf16": 120, "f32": 120, "f64": 1000}.get(one.shape.element_type, 0):
        return None
    return lambda build: build.make("multiply", one.shape, [x, build.scalar_like(one.shape, 1.0 / number)])


@rule("remainder-unsigned-power-of-two", "remainder", "x % 2^k → x & (2^k - 1), unsigned")
def remainder_unsigned(one: HloInstruction, options: RuleOptions) -> Answer:
    if type_of(one) != "uint":
        return None
    value = constant_value(one.operand(1))
    if value is None or _power_of_two(int(value)) is None:
        return None
    mask = int(value) - 1
    return lambda build: build.make("and", one.shape, [one.operand(0), build.scalar_like(one.shape, mask)])


@rule("power-zero", "power", "x ^ 0 → 1")
def power_zero(one: HloInstruction, options: RuleOptions) -> Answer:
    if not is_all(one.operand(1), 0):
        return None
    return lambda build: build.scalar_like(one.shape, 1)


@rule("power-one", "power", "x ^ 1 → x")
def power_one(one: HloInstruction, options: RuleOptions) -> Answer:
    return one.operand(0) if is_all(one.operand(1), 1) else None


@rule("power-two", "power", "x ^ 2 → x * x")
def power_two(one: HloInstruction, options: RuleOptions) -> Answer:
    if not is_all(one.operand(1), 2):
        return None
    return lambda build: build.make("multiply", one.shape, [one.operand(0), one.operand(0)])


@rule("power-three", "power", "x ^ 3 → x * (x * x)")
def power_three(one: HloInstruction, options: RuleOptions) -> Answer:
    if not is_all(one.operand(1), 3):
        return None
    x = one.operand(0)
    return lambda build: build.make("multiply", one.shape, [x, build.make("multiply", one.shape, [x, x])])


@rule("power-minus-one", "power", "x ^ -1 → 1 / x, floats")
def power_minus_one(one: HloInstruction, options: RuleOptions) -> Answer:
    if type_of(one) not in ("float", "complex") or not is_all(one.operand(1), -1):
        return None
    return lambda build: build.make("divide", one.shape, [build.scalar_like(one.shape, 1), one.operand(0)])


@rule("negate-negate", "negate", "-(-x) → x")
def negate_negate(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    return inner.operand(0) if inner.opcode == "negate" else None


@rule("abs-nonnegative", "abs", "|x| → x where x is an absolute value, an exponential or unsigned")
def abs_nonnegative(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if type_of(x) == "complex" or type_of(one) == "complex":
        return None
    return x if x.opcode in ("abs", "exponential") or type_of(x) == "uint" else None


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
    add_zero, add_constant_right, add_add_constants, subtract_zero, subtract_self, subtract_constant, multiply_one,
    multiply_zero, multiply_negated, multiply_absolute, divide_one, divide_unsigned, divide_float, remainder_unsigned,
    power_zero, power_one, power_two, power_three, power_minus_one, negate_negate, abs_nonnegative, complex_of_parts,
    real_of_complex, imag_of_complex,
)  # fmt: skip
