"""Elementwise opcodes: one table per arity, opcode -> the function for each kind of element type.

The functions work on carriers (see `numerics`). Edge rules as XLA:CPU has them: integers wrap, x/0 is -1 (all ones
for unsigned) and x rem 0 is x, NaN wins in min and max and +0 is above -0, shift counts are unsigned and past the width
shift everything out.
Source: ``openxla/xla:xla/service/elemental_ir_emitter.cc``, ``xla/hlo/evaluator/hlo_evaluator_typed_visitor.h``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hloscope.core.runtime.evaluator import numerics
from hloscope.core.runtime.evaluator.values import Array, InstructionUnsupported, Kernel, Machine, Prepare

if TYPE_CHECKING:
    from hloscope.core.hlo.element_types import ElementType
    from hloscope.core.hlo.instruction import HloInstruction

Function: TypeAlias = Callable[..., Array]
ByKind: TypeAlias = Mapping[str, Function]


# ---------------------------------------------------------------- unary
def _sign(x: Array) -> Array:
    return np.where(np.isnan(x) | (x == 0), x, np.copysign(x.dtype.type(1), x))


def _sign_complex(x: Array) -> Array:
    return np.where(x == 0, x, x / np.abs(x)).astype(x.dtype)


def _round_away(x: Array) -> Array:
    # The largest number below one half: adding one half itself would lift 0.49999997 to 1.
    below = np.nextafter(x.dtype.type(0.5), x.dtype.type(0))
    return np.trunc(x + np.copysign(below, x))


def _rsqrt(x: Array) -> Array:
    return np.reciprocal(np.sqrt(x))


def _sqrt_complex(z: Array) -> Array:
    """numpy's, but a zero imaginary part counts as +0 whatever its sign: the square root of -4-0i is +2i."""
    z = np.array(z)
    np.imag(z)[np.imag(z) == 0] = 0
    return np.sqrt(z)


def _rsqrt_complex(z: Array) -> Array:
    """0 for whatever is infinite, where numpy gives NaN; infinite at 0."""
    out = np.array(np.reciprocal(np.sqrt(z)))
    zero, endless = z == 0, np.isinf(np.real(z)) | np.isinf(np.imag(z))
    np.real(out)[zero] = np.inf
    np.real(out)[endless] = np.copysign(0, np.real(z)[endless])
    np.imag(out)[endless] = np.copysign(0, -np.imag(z)[endless])
    return out


def _log1p_complex(z: Array) -> Array:
    """numpy's loses the real part of small numbers: there |1 + z|^2 - 1 is computed without the 1."""
    x, y = (np.asarray(part).astype(np.float64) for part in (np.real(z), np.imag(z)))
    small = np.abs(z) < 0.5
    real = np.where(small, 0.5 * np.log1p(np.where(small, x * (2 + x) + y * y, 0)), np.real(np.log1p(z)))
    out = np.empty(z.shape, z.dtype)
    np.real(out)[...], np.imag(out)[...] = real, np.arctan2(y, 1 + x)
    return out


def _logistic(x: Array) -> Array:
    one = x.dtype.type(1)
    return one / (one + np.exp(-x))


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(x.dtype)


def _as_unsigned(x: Array) -> Array:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


_UNARY: Mapping[str, ByKind] = MappingProxyType(
    {
        "abs": {"int": np.abs, "uint": numerics.same, "float": np.abs, "complex": np.abs},
        "negate": {"int": np.negative, "uint": np.negative, "float": np.negative, "complex": np.negative},
        "not": {"pred": np.logical_not, "int": np.invert, "uint": np.invert},
        "sign": {"int": np.sign, "uint": np.sign, "float": _sign, "complex": _sign_complex},
        "floor": {"float": np.floor},
        "ceil": {"float": np.ceil},
        "round-nearest-even": {"float": np.rint},
        "round-nearest-afz": {"float": _round_away},
        "sqrt": {"float": np.sqrt, "complex": _sqrt_complex},
        "rsqrt": {"float": _rsqrt, "complex": _rsqrt_complex},
        "cbrt": {"float": np.cbrt},
        "exponential": {"float": np.exp, "complex": np.exp},
        "exponential-minus-one": {"float": np.expm1, "complex": np.expm1},
        "log": {"float": np.log, "complex": np.log},
        "log-plus-one": {"float": np.log1p, "complex": _log1p_complex},
        "logistic": {"float": _logistic, "complex": _logistic},
        "tanh": {"float": np.tanh, "complex": np.tanh},
        "sine": {"float": np.sin, "complex": np.sin},
        "cosine": {"float": np.cos, "complex": np.cos},
        "tan": {"float": np.tan, "complex": np.tan},
        "erf": {"float": _erf},
        "acos": {"float": np.arccos, "complex": np.arccos},
        "acosh": {"float": np.arccosh, "complex": np.arccosh},
        "asin": {"float": np.arcsin, "complex": np.arcsin},
        "asinh": {"float": np.arcsinh, "complex": np.arcsinh},
        "atanh": {"float": np.arctanh, "complex": np.arctanh},
        "sinh": {"float": np.sinh, "complex": np.sinh},
        "cosh": {"float": np.cosh, "complex": np.cosh},
    }
)

# What these do to a subnormal does not depend on flushing: bit edits, and routines that look at the bits.
_UNFLUSHED = frozenset({"abs", "negate", "not", "power", "atan2"})


# ---------------------------------------------------------------- binary
def _divide_signed(x: Array, y: Array) -> Array:
    zero = y == 0
    safe = np.where(zero, y.dtype.type(1), y)
    return np.where(zero, y.dtype.type(-1), (x - np.fmod(x, safe)) // safe)


def _divide_unsigned(x: Array, y: Array) -> Array:
    zero = y == 0
    return np.where(zero, np.iinfo(y.dtype).max, x // np.where(zero, y.dtype.type(1), y))


def _remainder_int(x: Array, y: Array) -> Array:
    zero = y == 0
    return np.where(zero, x, np.fmod(x, np.where(zero, y.dtype.type(1), y)))


def _divide_complex(x: Array, y: Array) -> Array:
    out = np.asarray(x / y)
    # A finite number over an infinite one is 0, an infinite one over a finite one infinite; numpy says NaN for both.
    vanishing = np.isfinite(x) & np.isinf(y)
    out = np.where(vanishing, out.dtype.type(0), out)
    return out


def maximum(x: Array, y: Array) -> Array:
    """The larger; NaN wins, and +0 is above -0 whatever the order of operands."""
    out = np.maximum(x, y)
    zero = (x == 0) & (y == 0)
    return np.where(zero, x + y, out) if zero.any() else out


def minimum(x: Array, y: Array) -> Array:
    """The smaller; NaN wins, and -0 is below +0 whatever the order of operands."""
    out = np.minimum(x, y)
    zero = (x == 0) & (y == 0)
    return np.where(zero, -(-x + -y), out) if zero.any() else out


def _power_int(x: Array, y: Array) -> Array:
    x, y = np.broadcast_arrays(x, y)
    base, out = x.copy(), np.ones_like(x)
    left = np.where(y < 0, y.dtype.type(0), y)
    while left.any():
        out = np.where(left & 1, out * base, out)
        base = base * base
        left = left >> 1
    if y.dtype.kind == "i" and (y < 0).any():
        minus_one = np.where(y & 1, x.dtype.type(-1), x.dtype.type(1))
        inverse = np.where(x == 1, x.dtype.type(1), np.where(x == -1, minus_one, x.dtype.type(0)))
        out = np.where(y < 0, inverse, out)
    return out


def _power_complex(x: Array, y: Array) -> Array:
    return np.where(y == 0, x.dtype.type(1), np.power(x, y)).astype(x.dtype)


def _atan2_complex(y: Array, x: Array) -> Array:
    return (-1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y))).astype(x.dtype)


def _mulhi(x: Array, y: Array) -> Array:
    size = x.dtype.itemsize
    if size < 8:
        wide = np.dtype(f"{x.dtype.kind}{size * 2}")
        return ((x.astype(wide) * y.astype(wide)) >> (8 * size)).astype(x.dtype)
    mask = np.uint64(0xFFFFFFFF)
    a, b = _as_unsigned(x), _as_unsigned(y)
    a0, a1, b0, b1 = a & mask, a >> np.uint64(32), b & mask, b >> np.uint64(32)
    middle = a1 * b0 + ((a0 * b0) >> np.uint64(32))
    cross = a0 * b1 + (middle & mask)
    high = a1 * b1 + (middle >> np.uint64(32)) + (cross >> np.uint64(32))
    if x.dtype.kind == "i":  # two's complement: take away the other factor where one is negative
        high = high - np.where(x < 0, b, np.uint64(0)) - np.where(y < 0, a, np.uint64(0))
    return np.asarray(high).view(x.dtype)


_BINARY: Mapping[str, ByKind] = MappingProxyType(
    {
        "add": {"pred": np.logical_or, "int": np.add, "uint": np.add, "float": np.add, "complex": np.add},
        "subtract": {"int": np.subtract, "uint": np.subtract, "float": np.subtract, "complex": np.subtract},
        "multiply": {
            "pred": np.logical_and,
            "int": np.multiply,
            "uint": np.multiply,
            "float": np.multiply,
            "complex": np.multiply,
        },
        "divide": {"int": _divide_signed, "uint": _divide_unsigned, "float": np.divide, "complex": _divide_complex},
        "remainder": {"int": _remainder_int, "uint": _remainder_int, "float": np.fmod},
        "maximum": {"pred": np.logical_or, "int": np.maximum, "uint": np.maximum, "float": maximum},
        "minimum": {"pred": np.logical_and, "int": np.minimum, "uint": np.minimum, "float": minimum},
        "power": {"int": _power_int, "uint": _power_int, "float": np.power, "complex": _power_complex},
        "atan2": {"float": np.arctan2, "complex": _atan2_complex},
        "and": {"pred": np.logical_and, "int": np.bitwise_and, "uint": np.bitwise_and},
        "or": {"pred": np.logical_or, "int": np.bitwise_or, "uint": np.bitwise_or},
        "xor": {"pred": np.logical_xor, "int": np.bitwise_xor, "uint": np.bitwise_xor},
        "mulhi": {"int": _mulhi, "uint": _mulhi},
    }
)


# ---------------------------------------------------------------- preparing
def pick(instruction: HloInstruction, table: ByKind, element: ElementType) -> Function:
    """The function for an element type's kind. Raises InstructionUnsupported where the opcode has none."""
    found = table.get(element.kind)
    if found is None:
        raise InstructionUnsupported(instruction, f"of {element.name} operands is not defined")
    return found


def _unary(instruction: HloInstruction, machine: Machine) -> Kernel:
    element = instruction.operand(0).shape.type
    function = pick(instruction, _UNARY[instruction.opcode], element)
    into, out = numerics.widen(element), numerics.narrow(instruction.shape.type)
    if machine.options.flush_subnormals and instruction.opcode not in _UNFLUSHED:
        clean, clean_out = numerics.flush(element), numerics.flush(instruction.shape.type)
        return lambda x: out(clean_out(function(clean(into(x)))))
    if into is numerics.same and out is numerics.same:
        return function
    return lambda x: out(function(into(x)))


def _binary(instruction: HloInstruction, machine: Machine) -> Kernel:
    element = instruction.shape.type
    sides = [operand.shape.type for operand in instruction.operands]
    function = pick(instruction, _BINARY[instruction.opcode], element)
    into, out = [numerics.widen(side) for side in sides], numerics.narrow(element)
    if any(side != element for side in sides):  # mixed precision of floats: the higher one results
        dtype = numerics.carrier(element)
        first, second = into
        return lambda x, y: out(function(first(x).astype(dtype), second(y).astype(dtype)))
    wide = into[0]
    if machine.options.flush_subnormals and instruction.opcode not in _UNFLUSHED:
        clean = numerics.flush(element)
        return lambda x, y: out(clean(function(clean(wide(x)), clean(wide(y)))))
    if wide is numerics.same and out is numerics.same:
        return function
    return lambda x, y: out(function(wide(x), wide(y)))


def _shift(instruction: HloInstruction, machine: Machine) -> Kernel:
    element = instruction.shape.type
    if not element.is_integral:
        raise InstructionUnsupported(instruction, f"of {element.name} operands is not defined")
    opcode, bits = instruction.opcode, element.bits
    wide, out = numerics.widen(element), numerics.narrow(element)
    arithmetic = opcode == "shift-right-arithmetic"

    def kernel(x: Array, y: Array) -> Array:
        value, count = wide(x), wide(y)
        past = (count < 0) | (count >= bits)
        unsigned = _as_unsigned(np.asarray(value))
        if bits < 8:
            unsigned = unsigned & np.uint8((1 << bits) - 1)
        if arithmetic:  # the top bit is the sign, for unsigned types too; past the width only the sign is left
            spare = unsigned.dtype.type(8 * unsigned.dtype.itemsize - bits)
            signed_dtype = np.dtype(f"i{unsigned.dtype.itemsize}")
            signed = np.asarray(unsigned << spare).view(signed_dtype) >> spare.astype(signed_dtype)
            steps = np.where(past, bits - 1, count).astype(signed.dtype)
            return out(np.asarray(signed >> steps).view(value.dtype))
        steps = np.where(past, 0, count).astype(unsigned.dtype)
        moved = unsigned << steps if opcode == "shift-left" else unsigned >> steps
        return out(np.asarray(np.where(past, unsigned.dtype.type(0), moved)).view(value.dtype))

    return kernel


def _count_bits(instruction: HloInstruction, machine: Machine) -> Kernel:
    element = instruction.shape.type
    if not element.is_integral:
        raise InstructionUnsupported(instruction, f"of {element.name} operands is not defined")
    wide, out, bits = numerics.widen(element), numerics.narrow(element), element.bits
    leading = instruction.opcode == "count-leading-zeros"

    def kernel(x: Array) -> Array:
        value = _as_unsigned(np.ascontiguousarray(wide(x))).reshape(x.shape)
        if bits < 8:
            value = value & np.uint8((1 << bits) - 1)
        count = np.zeros(x.shape, np.int64)
        for place in range(bits):
            bit = (value >> value.dtype.type(place)) & value.dtype.type(1)
            count = np.where(bit, bits - 1 - place, count) if leading else count + bit.astype(np.int64)
        if leading:
            count = np.where(value == 0, bits, count)
        return out(np.asarray(count).astype(numerics.carrier(element)))

    return kernel


def _is_finite(instruction: HloInstruction, machine: Machine) -> Kernel:
    wide = numerics.widen(instruction.operand(0).shape.type)
    return lambda x: np.isfinite(wide(x))


_COMPARE: Mapping[str, Function] = MappingProxyType(
    {
        "EQ": np.equal,
        "NE": np.not_equal,
        "LT": np.less,
        "LE": np.less_equal,
        "GT": np.greater,
        "GE": np.greater_equal,
    }
)


def _compare(instruction: HloInstruction, machine: Machine) -> Kernel:
    element = instruction.operand(0).shape.type
    direction = instruction.attr("direction")
    function = _COMPARE.get(direction or "")
    if function is None:
        raise InstructionUnsupported(instruction, f"with direction={direction}")
    if element.kind == "complex" and direction not in ("EQ", "NE"):
        raise InstructionUnsupported(instruction, f"of complex operands with direction={direction}")
    if instruction.attr("type") == "TOTALORDER" and element.kind == "float":
        return lambda x, y: function(numerics.total_order_key(x, element), numerics.total_order_key(y, element))
    wide = numerics.widen(element)
    if machine.options.flush_subnormals:
        clean = numerics.flush(element)
        return lambda x, y: function(clean(wide(x)), clean(wide(y)))
    return lambda x, y: function(wide(x), wide(y))


def _clamp(instruction: HloInstruction, machine: Machine) -> Kernel:
    element = instruction.shape.type
    wide, out = numerics.widen(element), numerics.narrow(element)
    low, high = pick(instruction, _BINARY["maximum"], element), pick(instruction, _BINARY["minimum"], element)
    return lambda least, x, most: out(high(wide(most), low(wide(x), wide(least))))


def _select(instruction: HloInstruction, machine: Machine) -> Kernel:
    return np.where


def _complex(instruction: HloInstruction, machine: Machine) -> Kernel:
    dtype = instruction.shape.type.dtype

    def kernel(real: Array, imag: Array) -> Array:
        out = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imag)), dtype)
        np.real(out)[...] = real
        np.imag(out)[...] = imag
        return out

    return kernel


def _part(instruction: HloInstruction, machine: Machine) -> Kernel:
    real = instruction.opcode == "real"
    if instruction.operand(0).shape.type.kind == "complex":
        return (lambda x: x.real) if real else (lambda x: x.imag)
    return numerics.same if real else np.zeros_like


def _table() -> dict[str, Prepare]:
    out: dict[str, Prepare] = dict.fromkeys(_UNARY, _unary)
    out.update(dict.fromkeys(_BINARY, _binary))
    out.update(dict.fromkeys(("shift-left", "shift-right-logical", "shift-right-arithmetic"), _shift))
    out.update(dict.fromkeys(("count-leading-zeros", "popcnt"), _count_bits))
    out.update({"is-finite": _is_finite, "compare": _compare, "clamp": _clamp, "select": _select})
    out.update({"complex": _complex, "real": _part, "imag": _part})
    return out


TABLE: Mapping[str, Prepare] = MappingProxyType(_table())
