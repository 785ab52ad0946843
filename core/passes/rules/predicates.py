"""Questions about values that rules share: is it never negative, is it a power of two, what does a reducer do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.passes.rules.base import is_constant, literal_values, scalar_constant, type_of

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction

_DEPTH = 12


def never_negative(one: HloInstruction, depth: int = _DEPTH) -> bool:
    """Whether every element is at least 0 (or NaN, which no constant here is).

    Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc#IsNonNegative``.
    """
    if not depth or not one.shape.is_array:
        return False
    kind = one.shape.type
    if kind.kind in ("complex", "unknown"):
        return False
    if kind.kind in ("uint", "pred"):
        return True
    signed = kind.kind == "int"

    def of(place: int) -> bool:
        return never_negative(one.operand(place), depth - 1)

    match one.opcode:
        case "multiply":
            return not signed and one.operand(0) is one.operand(1)
        case "exponential" | "logistic":
            return True
        case "abs":
            # The smallest signed integer is its own absolute value.
            return not signed or of(0)
        case "iota":
            size = one.shape.dimensions[int(one.attr("iota_dimension"))]
            return not signed or kind.bits >= 64 or size <= 1 << (kind.bits - 1)
        case "broadcast" | "reshape" | "transpose" | "slice" | "copy":
            return of(0)
        case "constant":
            values = literal_values(one)
            if values is None or values.size != 1:
                return False
            return bool(not np.signbit(values.reshape(-1)[0].astype(np.float64)) and values.reshape(-1)[0] >= 0)
        case "minimum":
            return of(0) and of(1)
        case "maximum":
            return of(0) or of(1)
        case "power":
            return not signed and of(0)
        case "select":
            return of(1) and of(2)
        case "sqrt":
            return False  # -0 stays -0
        case _:
            return False


def power_of_two(value: int) -> int | None:
    """k where value is 2^k, else None."""
    return value.bit_length() - 1 if value > 0 and value & (value - 1) == 0 else None


def is_power_of_two_factor(one: HloInstruction) -> bool:
    """A scalar constant (or a broadcast of one) that is ±2^k, so that multiplying by it only shifts the exponent."""
    scalar = scalar_constant(one)
    if scalar is None or type_of(one) != "float":
        return False
    value = abs(float(scalar.literal.array()[()]))
    return value > 0 and bool(np.isfinite(value)) and float(np.frexp(value)[0]) == 0.5


def is_scalar_value(one: HloInstruction) -> bool:
    """A broadcast of a rank-0 value."""
    return one.opcode == "broadcast" and one.operand(0).shape.is_scalar


def is_scalar_constant_broadcast(one: HloInstruction) -> bool:
    """A broadcast of a scalar constant."""
    return is_scalar_value(one) and one.operand(0).opcode == "constant"


def two_constants(a: HloInstruction, b: HloInstruction) -> bool:
    """Both plain constants, or both broadcasts of scalar constants."""
    if a.opcode == "constant" and b.opcode == "constant":
        return True
    return is_scalar_constant_broadcast(a) and is_scalar_constant_broadcast(b)


def split_constant(one: HloInstruction) -> tuple[HloInstruction, HloInstruction] | None:
    """(other operand, constant operand) of a binary operation with exactly one constant (or broadcast of one)."""
    left, right = one.operands
    if is_constant(right) and not is_constant(left):
        return left, right
    if is_constant(left) and not is_constant(right):
        return right, left
    return None


def reducer_opcode(reducer: HloComputation) -> str | None:
    """The opcode of a reducer of the form op(parameter 0, parameter 1), None for any other."""
    root = reducer.root
    if root.operand_count != 2 or len(reducer.parameters) != 2 or not root.info.elementwise:
        return None
    if set(root.operands) != set(reducer.parameters):
        return None
    known = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
    return root.opcode if root.opcode in known else None


def argument_extreme(reducer: HloComputation, *, nan_wins: bool = False) -> str | None:
    """``max`` or ``min`` for a reducer of (value, place) pairs that keeps the larger or smaller value first.

    With `nan_wins` a reducer of floats must let NaN win, as maximum and minimum do.

    Recognized by the compare of the values and the selects that jax and XLA build; None for anything else.
    """
    root = reducer.root
    if root.opcode != "tuple" or root.operand_count != 2 or len(reducer.parameters) != 4:
        return None
    value = root.operand(0)
    left, _, right, _ = reducer.parameters
    if value.opcode != "select" or value.operand(1) is not left or value.operand(2) is not right:
        return None
    directions: set[str] = set()
    sees_nan = left.shape.type.kind != "float"
    work, seen = [value.operand(0)], set[object]()
    while work:
        node = work.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.opcode == "compare" and node.operand(0) is left and node.operand(1) is right:
            directions.add(str(node.attr("direction")))
        elif node.opcode == "compare" and node.operand(0) is node.operand(1) is left:
            sees_nan |= node.attr("direction") == "NE"
        elif node.opcode in ("or", "and"):
            work.extend(node.operands)
    if nan_wins and not sees_nan:
        return None
    if directions & {"GT", "GE"} and not directions & {"LT", "LE"}:
        return "max"
    if directions & {"LT", "LE"} and not directions & {"GT", "GE"}:
        return "min"
    return None
