"""Between element types: convert, bitcast-convert, reduce-precision, stochastic-convert.

Source: ``openxla/xla:xla/service/elemental_ir_emitter.cc`` (EmitFloatUnaryOp, EmitReducePrecisionIR),
``xla/hlo/evaluator/hlo_evaluator.cc#StochasticConvertOp``. Casts between float types round as ``ml_dtypes`` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.element_types import lookup
from hloscope.core.runtime.evaluator import numerics
from hloscope.core.runtime.evaluator.values import Array, InstructionUnsupported, Kernel, Machine, Prepare

if TYPE_CHECKING:
    from hloscope.core.hlo.element_types import ElementType
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.runtime.evaluator.numerics import Step


# ---------------------------------------------------------------- convert
def converter(source: ElementType, target: ElementType) -> Step:
    """The function that converts values; float to integer saturates, integer to integer keeps the low bits."""
    if source == target:
        return numerics.same
    wide, out = numerics.widen(source), numerics.narrow(target)
    if source.kind == "complex":
        if target.kind == "complex":
            return lambda x: x.astype(target.dtype)
        inner = converter(_half(source), target)
        return lambda x: inner(np.asarray(np.real(x)).copy())
    if target.kind == "pred":
        return lambda x: np.asarray(wide(x) != 0)
    if target.kind == "complex":
        half = numerics.carrier(_half(target))
        return lambda x: wide(x).astype(half).astype(target.dtype)
    if target.is_integral:
        if source.kind == "float":
            return lambda x: out(saturate(wide(x), target))
        dtype = numerics.carrier(target)
        return lambda x: out(wide(x).astype(dtype))
    if source.kind == "float" and source.bits > 32:
        return lambda x: x.astype(target.dtype)  # straight from f64: by way of f32 it would round twice
    dtype = numerics.carrier(target)
    return lambda x: out(wide(x).astype(dtype))


def _half(element: ElementType) -> ElementType:
    return lookup("f32" if element.bits == 64 else "f64")


def saturate(x: Array, target: ElementType) -> Array:
    """Floats (of a carrier) to integers (of a carrier): towards zero, held in range, NaN to 0."""
    signed = target.kind == "int"
    low = -(2 ** (target.bits - 1)) if signed else 0
    high = 2 ** (target.bits - signed) - 1
    dtype = numerics.carrier(target)
    wide = np.trunc(x.astype(np.float64))
    # 2**63 and 2**64 are exact in f64, their predecessors are not: compare with the bound one past the largest.
    over, under = wide >= float(high + 1), wide <= float(low)
    inside = np.where(over | under | np.isnan(wide), 0.0, wide).astype(dtype)
    return np.where(over, dtype.type(high), np.where(under, dtype.type(low), inside))


def _convert(instruction: HloInstruction, machine: Machine) -> Kernel:
    source, target = instruction.operand(0).shape.type, instruction.shape.type
    step = converter(source, target)
    if machine.options.flush_subnormals and {source.name, target.name} == {"f32", "f64"}:
        clean, clean_out = numerics.flush(source), numerics.flush(target)
        return lambda x: clean_out(step(clean(x)))
    if machine.options.flush_subnormals and target.kind == "pred" and source.name in ("f32", "f64"):
        clean = numerics.flush(source)
        return lambda x: step(clean(x))
    return step


# ---------------------------------------------------------------- bitcast-convert
def _bitcast_convert(instruction: HloInstruction, machine: Machine) -> Kernel:
    source, target = instruction.operand(0).shape.type, instruction.shape.type
    if source.bits == 0 or target.bits == 0:
        raise InstructionUnsupported(instruction, f"from {source.name} to {target.name}")
    dims = instruction.shape.dimensions
    if source.bits == target.bits and "complex" not in (source.kind, target.kind):
        # Of any shape: comparators on scalars run on whole arrays.
        return lambda x: _typed(to_bits(x, source), target)
    return lambda x: from_bits(to_bits(x, source), target, source.bits, dims)


def to_bits(x: Array, element: ElementType) -> Array:
    """The bit patterns as unsigned integers of at least 8 bits (complex ones gain a last dimension of parts)."""
    if element.kind == "complex":
        part = np.dtype(f"u{element.bits // 16}")
        return np.ascontiguousarray(x).reshape(x.shape).view(part).reshape(*x.shape, 2)
    bits = x.view(np.dtype(f"u{x.dtype.itemsize}")) if x.dtype.kind != "b" else x.astype(np.uint8)
    if element.bits < 8:
        return np.asarray(bits & np.uint8((1 << element.bits) - 1))
    return bits


def from_bits(bits: Array, target: ElementType, width: int, dims: tuple[int, ...]) -> Array:
    """Bit patterns `width` bits wide as elements of `target`, the first element in the lowest bits."""
    if width == target.bits and target.kind != "complex":
        return _typed(bits, target).reshape(dims)
    flat = np.ascontiguousarray(bits).reshape(-1)
    octets = pack_bits(flat, width) if width < 8 else flat.view(np.uint8)
    if target.bits < 8:
        return _typed(unpack_bits(octets, target.bits), target).reshape(dims)
    if target.kind == "complex":
        return octets.view(target.dtype).reshape(dims)
    return _typed(octets.view(np.dtype(f"u{target.bits // 8}")), target).reshape(dims)


def _typed(bits: Array, target: ElementType) -> Array:
    if target.kind == "pred":
        return bits.astype(bool)
    if target.is_integral and target.bits < 8:
        return numerics.narrow(target)(bits.astype(numerics.carrier(target)))
    return np.asarray(bits).view(target.dtype)


def pack_bits(values: Array, bits: int) -> Array:
    """Small unsigned numbers, several to a byte, the first in the low bits; `bits` divides 8."""
    each = 8 // bits
    padded = np.zeros(-(-values.size // each) * each, np.uint8)
    padded[: values.size] = values
    out = np.zeros(padded.size // each, np.uint8)
    for place in range(each):
        out |= padded[place::each] << np.uint8(place * bits)
    return out


def unpack_bits(octets: Array, bits: int) -> Array:
    """The reverse of `pack_bits`."""
    each = 8 // bits
    out = np.empty(octets.size * each, np.uint8)
    for place in range(each):
        out[place::each] = (octets >> np.uint8(place * bits)) & np.uint8((1 << bits) - 1)
    return out


# ---------------------------------------------------------------- reduce-precision
_FORMATS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"f64": (11, 52), "f32": (8, 23), "f16": (5, 10), "bf16": (8, 7)}
)


def _reduce_precision(instruction: HloInstruction, machine: Machine) -> Kernel:
    element = instruction.shape.type
    exponent, mantissa = instruction.attr("exponent_bits"), instruction.attr("mantissa_bits")
    if element.kind != "float":
        raise InstructionUnsupported(instruction, f"of {element.name}")
    if exponent is None or mantissa is None or exponent < 1 or mantissa < 0:
        raise InstructionUnsupported(instruction, f"to {exponent} exponent and {mantissa} mantissa bits")
    if element.name in _FORMATS:
        return lambda x: reduce_precision(x, element, int(exponent), int(mantissa))
    # The 8-bit floats are f16 there, of which every one of their values is one; the scales' range takes f32's.
    inner = lookup("f32" if element.name == "f8e8m0fnu" else "f16")
    into, out = converter(element, inner), converter(inner, element)
    return lambda x: out(reduce_precision(into(x), inner, int(exponent), int(mantissa)))


def reduce_precision(x: Array, element: ElementType, exponent: int, mantissa: int) -> Array:
    """Round the mantissa to nearest even on the bits; then too large is infinite and subnormal targets are zeros."""
    have_exponent, have_mantissa = _FORMATS[element.name]
    bits = x.view(np.dtype(f"u{x.dtype.itemsize}"))
    kind = bits.dtype.type
    sign = bits & kind(1 << (element.bits - 1))
    body = bits ^ sign
    if mantissa < have_mantissa:
        last = have_mantissa - mantissa
        bias = ((body >> kind(last)) & kind(1)) + kind((1 << (last - 1)) - 1)
        body = (body + bias) & kind(~((1 << last) - 1) & ((1 << element.bits) - 1))
    if exponent < have_exponent:
        zero_exponent = (1 << (have_exponent - 1)) - 1
        reach = (1 << (exponent - 1)) - 1
        place = (body >> kind(have_mantissa)).astype(np.int64)
        infinity = kind(((1 << have_exponent) - 1) << have_mantissa)
        body = np.where(place > zero_exponent + reach, infinity, body)
        body = np.where(place <= zero_exponent - reach, kind(0), body)
    out = np.asarray(sign | body).view(x.dtype)
    return np.where(x != x, x, out)


# ---------------------------------------------------------------- stochastic-convert
def _stochastic_convert(instruction: HloInstruction, machine: Machine) -> Kernel:
    source, target = instruction.operand(0).shape.type, instruction.shape.type
    random = instruction.operand(1).shape.type
    if target.kind != "int":
        raise InstructionUnsupported(instruction, f"from {source.name} to {target.name}")
    wide, out = numerics.widen(source), numerics.narrow(target)

    def kernel(x: Array, draw: Array) -> Array:
        value = wide(x).astype(np.float64)
        size = np.abs(value)
        whole = np.floor(size)
        # A 64-bit draw is rounded here; XLA compares it exactly, a difference of 2**-53 in the threshold.
        up = draw.astype(np.float64) < np.floor((size - whole) * 2.0**random.bits)
        return out(saturate(np.copysign(whole + up, value), target))

    return kernel


TABLE: Mapping[str, Prepare] = MappingProxyType(
    {
        "convert": _convert,
        "bitcast-convert": _bitcast_convert,
        "reduce-precision": _reduce_precision,
        "stochastic-convert": _stochastic_convert,
    }
)
