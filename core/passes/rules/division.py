"""Rules on quotients, remainders, powers, exponentials, logarithms and roots.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc`` (HandleDivide, HandleRemainder,
HandlePower, HandleExp, HandleLog, HandleSqrt, HandleRsqrt).
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
    type_of,
)
from hloscope.core.passes.rules.predicates import is_scalar_value, never_negative, power_of_two

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


# ---------------------------------------------------------------- quotients
@rule("divide-one", "divide", "x / 1 → x")
def divide_one(one: HloInstruction, options: RuleOptions) -> Answer:
    return one.operand(0) if is_all(one.operand(1), 1) else None


def _exponent(one: HloInstruction) -> int | None:
    """k where a scalar constant or its broadcast is the integer 2^k."""
    value = constant_value(one)
    return None if value is None else power_of_two(int(value))


@rule("divide-unsigned-power-of-two", "divide", "x / 2^k → x >> k, unsigned")
def divide_unsigned(one: HloInstruction, options: RuleOptions) -> Answer:
    shift = _exponent(one.operand(1)) if type_of(one) == "uint" else None
    if shift is None:
        return None
    amount = shift
    return lambda build: build.make(
        "shift-right-logical", one.shape, [one.operand(0), build.scalar_like(one.shape, amount)]
    )


def _magnitude(build: Builder, x: HloInstruction) -> tuple[HloInstruction, HloInstruction]:
    """(x < 0, |x|) with the smallest integer its own magnitude."""
    negative = build.compare(x, build.scalar_like(x.shape, 0), "LT")
    return negative, build.select(negative, build.unary("negate", x), x)


@rule("divide-signed-power-of-two", "divide", "x / 2^k → ±(|x| >> k), signed")
def divide_signed(one: HloInstruction, options: RuleOptions) -> Answer:
    shift = _exponent(one.operand(1)) if type_of(one) == "int" else None
    if shift is None:
        return None
    amount = shift

    def make(build: Builder) -> HloInstruction:
        negative, size = _magnitude(build, one.operand(0))
        shifted = build.binary("shift-right-logical", size, build.scalar_like(one.shape, amount))
        return build.select(negative, build.unary("negate", shifted), shifted)

    return make


@rule("divide-by-exponential", "divide", "exp(a)/exp(b) → exp(a - b), a/exp(b) → a·exp(-b)")
def divide_exponential(one: HloInstruction, options: RuleOptions) -> Answer:
    a, power = one.operands
    if power.opcode != "exponential":
        return None
    b = power.operand(0)
    if a.opcode == "exponential":
        return lambda build: build.unary("exponential", build.binary("subtract", a.operand(0), b))
    return lambda build: build.binary("multiply", a, build.unary("exponential", build.unary("negate", b)))


@rule("divide-by-power", "divide", "a / b^c → a · b^(-c)")
def divide_power(one: HloInstruction, options: RuleOptions) -> Answer:
    a, power = one.operands
    if power.opcode != "power" or type_of(one) not in ("float", "complex"):
        return None
    b, c = power.operands
    return lambda build: build.binary("multiply", a, build.binary("power", b, build.unary("negate", c)))


@rule("divide-by-root", "divide", "a / sqrt(b) → a · rsqrt(b), a / rsqrt(b) → a · sqrt(b), the root used here alone")
def divide_root(one: HloInstruction, options: RuleOptions) -> Answer:
    a, root = one.operands
    other = {"sqrt": "rsqrt", "rsqrt": "sqrt"}.get(root.opcode)
    if other is None or root.user_count != 1 or a is root:
        return None
    opcode = other
    return lambda build: build.binary("multiply", a, build.unary(opcode, root.operand(0)))


@rule("divide-constant", "divide", "a / c → a · (1/c), a no constant, 1/c a normal number")
def divide_constant(one: HloInstruction, options: RuleOptions) -> Answer:
    a, c = one.operands
    kind = one.shape.type
    if kind.kind not in ("float", "complex") or is_constant(a):
        return None
    plain = c.operand(0) if c.opcode == "broadcast" else c
    if plain.opcode != "constant" or plain.literal.values is None:
        return None
    values = plain.literal.array()
    with np.errstate(all="ignore"):
        inverse = (1 / values.astype(np.complex128 if kind.kind == "complex" else np.float64)).astype(values.dtype)
    if kind.kind == "float":
        wide = np.abs(inverse.astype(np.float64))
        tiny = {"f64": 2.3e-308, "f32": 1.2e-38, "bf16": 1.2e-38, "f16": 6.2e-5}.get(kind.name, 1.0)
        known = np.abs(values.astype(np.float64))
        lost = ((known != 0) & ~np.isfinite(wide)) | (np.isfinite(known) & (wide < tiny))
        if bool(lost.any()):
            return Refusal("reciprocal", f"{kind.name} does not hold 1/c as a normal number")

    def make(build: Builder) -> HloInstruction:
        factor = build.constant(inverse, plain.shape)
        if c is not plain:
            factor = build.make("broadcast", c.shape, [factor], {"dimensions": c.dimensions})
        return build.make("multiply", one.shape, [a, factor])

    return make


@rule("divide-broadcast", "divide", "a / broadcast(b) → a · broadcast(1/b), b used here alone, on CPU",
      insensitive=True)  # fmt: skip
def divide_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    a, spread = one.operands
    if not options.executing_on_cpu or spread.opcode != "broadcast" or not options.enable_sink_broadcast:
        return None
    if type_of(one) != "float" or a is spread:
        return None
    b = spread.operand(0)
    if b.user_count != 1 or b.use_count(spread) != 1:
        return Refusal("other_users", f"{b.user_count} users of the divisor")

    def make(build: Builder) -> HloInstruction:
        inverse = build.binary("divide", build.scalar_like(b.shape, 1), b)
        wide = build.make("broadcast", spread.shape, [inverse], {"dimensions": spread.dimensions})
        return build.make("multiply", one.shape, [a, wide])

    return make


@rule("divide-quotients", "divide", "(a/b)/(c/d) → (a·d)/(b·c), (a/b)/c → a/(b·c), a/(b/c) → (a·c)/b")
def divide_quotients(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if type_of(one) not in ("float", "complex"):
        return None
    if left.opcode == "divide" and right.opcode == "divide":
        (a, b), (c, d) = left.operands, right.operands
        return lambda build: build.clone(one, [build.binary("multiply", a, d), build.binary("multiply", b, c)])
    if left.opcode == "divide":
        a, b = left.operands
        return lambda build: build.clone(one, [a, build.binary("multiply", b, right)])
    if right.opcode == "divide":
        b, c = right.operands
        return lambda build: build.clone(one, [build.binary("multiply", left, c), b])
    return None


@rule("divide-pred", "divide", "convert(p) / broadcast(y) → convert(p) · broadcast(1/y)", insensitive=True)
def divide_pred(one: HloInstruction, options: RuleOptions) -> Answer:
    x, spread = one.operands
    if x.opcode != "convert" or type_of(x.operand(0)) != "pred" or not is_scalar_value(spread):
        return None
    if type_of(one) != "float":
        return None
    y = spread.operand(0)
    return lambda build: build.binary(
        "multiply", build.broadcast_scalar(build.binary("divide", build.scalar_like(y.shape, 1), y), one.shape), x
    )


# ---------------------------------------------------------------- remainders
@rule("remainder-twice", "remainder", "(a % b) % b → a % b")
def remainder_twice(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    return inner if inner.opcode == "remainder" and inner.operand(1) is one.operand(1) else None


@rule("remainder-unsigned-power-of-two", "remainder", "x % 2^k → x & (2^k - 1), unsigned")
def remainder_unsigned(one: HloInstruction, options: RuleOptions) -> Answer:
    if type_of(one) != "uint":
        return None
    shift = _exponent(one.operand(1))
    if shift is None:
        return None
    mask = (1 << shift) - 1
    return lambda build: build.make("and", one.shape, [one.operand(0), build.scalar_like(one.shape, mask)])


@rule("remainder-signed-power-of-two", "remainder", "x % 2^k → ±(|x| & (2^k - 1)), signed")
def remainder_signed(one: HloInstruction, options: RuleOptions) -> Answer:
    if type_of(one) != "int":
        return None
    shift = _exponent(one.operand(1))
    if shift is None:
        return None
    mask = (1 << shift) - 1

    def make(build: Builder) -> HloInstruction:
        negative, size = _magnitude(build, one.operand(0))
        rest = build.binary("and", size, build.scalar_like(one.shape, mask))
        return build.select(negative, build.unary("negate", rest), rest)

    return make


@rule("remainder-iota", "remainder", "iota % c → iota for c at least its extent, (iota + c) % c → iota % c")
def remainder_iota(one: HloInstruction, options: RuleOptions) -> Answer:
    x, c = one.operands
    value = constant_value(c) if is_integral(one) else None
    if value is None or int(value) <= 0:
        return None
    divisor = int(value)

    def extent(iota: HloInstruction) -> int:
        return iota.shape.dimensions[int(iota.attr("iota_dimension"))]

    kind = one.shape.type
    room = (1 << (kind.bits - (kind.kind == "int"))) - 1
    if x.opcode == "iota":
        return x if divisor >= extent(x) and extent(x) - 1 <= room else None
    if x.opcode != "add":
        return None
    for iota, added in (x.operands, x.operands[::-1]):
        if iota.opcode == "iota" and constant_value(added) == value and divisor + extent(iota) - 1 <= room:
            kept = iota
            return lambda build: build.clone(one, [kept, c])
    return None


# ---------------------------------------------------------------- powers
@rule("power-zero", "power", "x ^ 0 → 1")
def power_zero(one: HloInstruction, options: RuleOptions) -> Answer:
    if not is_all(one.operand(1), 0):
        return None
    return lambda build: build.scalar_like(one.shape, 1)


@rule("power-one", "power", "x ^ 1 → x")
def power_one(one: HloInstruction, options: RuleOptions) -> Answer:
    return one.operand(0) if is_all(one.operand(1), 1) else None


@rule("power-of-exponential", "power", "exp(a) ^ b → exp(a · b)")
def power_of_exponential(one: HloInstruction, options: RuleOptions) -> Answer:
    base, b = one.operands
    if base.opcode != "exponential" or type_of(one) != "float":
        return None
    return lambda build: build.unary("exponential", build.binary("multiply", base.operand(0), b))


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


@rule("power-half", "power", "x ^ 0.5 → sqrt(x), x never negative")
def power_half(one: HloInstruction, options: RuleOptions) -> Answer:
    if type_of(one) != "float" or not is_all(one.operand(1), 0.5):
        return None
    if not never_negative(one.operand(0)):
        return Refusal("sign", "the operand may be negative")
    return lambda build: build.unary("sqrt", one.operand(0))


# ---------------------------------------------------------------- exponentials and logarithms
@rule("exponential-zero", "exponential", "exp(0) → 1")
def exponential_zero(one: HloInstruction, options: RuleOptions) -> Answer:
    if not is_all(one.operand(0), 0):
        return None
    return lambda build: build.scalar_like(one.shape, 1)


@rule("log-of-exponential", "log", "log(exp(a)) → a")
def log_of_exponential(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "exponential" or type_of(one) != "float":
        return None
    return inner.operand(0)


@rule("log-of-power", "log", "log(a ^ b) → b = 0 ? 0 : b · log|a|, floats")
def log_of_power(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "power" or type_of(one) != "float":
        return None
    a, b = inner.operands

    def make(build: Builder) -> HloInstruction:
        zero = build.scalar_like(one.shape, 0)
        scaled = build.binary("multiply", build.unary("log", build.unary("abs", a)), b)
        return build.select(build.compare(b, zero, "EQ"), zero, scaled)

    return make


@rule("log-of-root", "log", "log(sqrt(a)) → ½·log(a), log(rsqrt(a)) → -½·log(a)")
def log_of_root(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    factor = {"sqrt": 0.5, "rsqrt": -0.5}.get(inner.opcode)
    if factor is None or type_of(one) != "float":
        return None
    return lambda build: build.binary(
        "multiply", build.unary("log", inner.operand(0)), build.scalar_like(one.shape, factor)
    )


# ---------------------------------------------------------------- roots
@rule("sqrt-of-square", "sqrt", "sqrt(a · a) → |a|, with fast math")
def sqrt_of_square(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "multiply" or inner.operand(0) is not inner.operand(1) or type_of(one) != "float":
        return None
    if not options.enable_fast_math:
        return Refusal(NAN, "the square may overflow")
    return lambda build: build.unary("abs", inner.operand(0))


@rule("rsqrt-of-inverse", "rsqrt", "rsqrt(a ^ -2) → a, rsqrt(1 / a) → sqrt(a), a never negative")
def rsqrt_of_inverse(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode == "power" and is_all(inner.operand(1), -2):
        a, root = inner.operand(0), False
    elif inner.opcode == "divide" and is_all(inner.operand(0), 1):
        a, root = inner.operand(1), True
    else:
        return None
    if not never_negative(a):
        return Refusal("sign", "the operand may be negative")
    return (lambda build: build.unary("sqrt", a)) if root else a


RULES: tuple[Rule, ...] = (
    divide_one, divide_unsigned, divide_signed, divide_exponential, divide_power, divide_root, divide_constant,
    divide_broadcast, divide_quotients, divide_pred, remainder_twice, remainder_unsigned, remainder_signed,
    remainder_iota, power_zero, power_one, power_of_exponential, power_two, power_three, power_minus_one, power_half,
    exponential_zero, log_of_exponential, log_of_power, log_of_root, sqrt_of_square, rsqrt_of_inverse,
)  # fmt: skip
