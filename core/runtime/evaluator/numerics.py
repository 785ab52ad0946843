"""Element types in arithmetic: which numpy type carries a computation, and the way in and out of it.

Floats below 32 bits are computed in f32 and rounded back once per operation, which is what XLA:CPU does; integers below
8 bits are computed in 8 bits and cut. ``ml_dtypes``' own arithmetic gives the same numbers many times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hloscope.core.runtime.evaluator.values import Array

if TYPE_CHECKING:
    from hloscope.core.hlo.element_types import ElementType

Step: TypeAlias = Callable[[Array], Array]


def same(x: Array) -> Array:
    """The operand."""
    return x


def carrier(element: ElementType) -> np.dtype[np.generic]:
    """The numpy type in which arithmetic on `element` is done."""
    if element.kind == "float" and element.bits < 32:
        return np.dtype(np.float32)
    if element.kind == "int" and element.bits < 8:
        return np.dtype(np.int8)
    if element.kind == "uint" and element.bits < 8:
        return np.dtype(np.uint8)
    return element.dtype


def widen(element: ElementType) -> Step:
    """From the element's dtype to its carrier; every value is kept."""
    if element.name == "bf16":
        return _bf16_to_f32
    target = carrier(element)
    if target == element.dtype:
        return same
    return lambda x: x.astype(target)


def narrow(element: ElementType) -> Step:
    """From the carrier back to the element's dtype: nearest even for floats, low bits for integers."""
    if element.name == "bf16":
        return _f32_to_bf16
    dtype = element.dtype
    if element.is_integral and element.bits < 8:
        return lambda x: cut(x, element).astype(dtype)
    if carrier(element) == dtype:
        return same
    return lambda x: x.astype(dtype)


def cut(x: Array, element: ElementType) -> Array:
    """Wrap an 8-bit carrier to a sub-byte integer type: the low bits, sign extended for signed types."""
    spare = 8 - element.bits
    if element.kind == "int":
        return (x.astype(np.int8) << np.int8(spare)) >> np.int8(spare)
    return x.astype(np.uint8) & np.uint8((1 << element.bits) - 1)


def _bf16_to_f32(x: Array) -> Array:
    wide = x.view(np.uint16).astype(np.uint32)
    return np.asarray(np.left_shift(wide, 16, dtype=np.uint32)).view(np.float32)


def _f32_to_bf16(x: Array) -> Array:
    import ml_dtypes

    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    nan = np.isnan(x)
    if nan.any():
        rounded = np.where(nan, (bits >> 16) | np.uint32(0x40), rounded)
    return np.asarray(rounded).astype(np.uint16).view(ml_dtypes.bfloat16)


def flush(element: ElementType) -> Step:
    """Subnormals of the carrier become zeros of their sign; only types with f32's or f64's exponent range have any.

    f16 and the 8-bit floats are computed in f32, where their subnormals are normal numbers.
    """
    if element.name not in ("f32", "f64", "bf16"):
        return same
    tiny = np.finfo(np.float64 if element.name == "f64" else np.float32).tiny

    def step(x: Array) -> Array:
        return np.where(np.abs(x) < tiny, np.copysign(x.dtype.type(0), x), x)

    return step


def total_order_key(x: Array, element: ElementType) -> Array:
    """Signed integers that sort as XLA's total order: -NaN < -inf < ... < -0 < +0 < ... < inf < NaN.

    Integers and preds map to themselves.
    """
    if element.kind == "pred":
        return x.astype(np.int8)
    if element.kind != "float":
        return widen(element)(x)
    bits = x.view(np.dtype(f"i{x.dtype.itemsize}"))
    if element.bits < 8:  # the sign sits below the byte's top bits
        bits = bits << np.int8(8 - element.bits)
    magnitude = np.iinfo(bits.dtype).max
    return np.where(bits < 0, bits ^ magnitude, bits)


def lowest(element: ElementType) -> Array:
    """The identity of maximum, in the carrier."""
    if element.kind == "pred":
        return np.asarray(False)
    if element.is_integral:
        value = -(1 << (element.bits - 1)) if element.kind == "int" else 0
        return np.asarray(value, carrier(element))
    return np.asarray(-np.inf, carrier(element))


def highest(element: ElementType) -> Array:
    """The identity of minimum, in the carrier."""
    if element.kind == "pred":
        return np.asarray(True)
    if element.is_integral:
        value = (1 << (element.bits - (element.kind == "int"))) - 1
        return np.asarray(value, carrier(element))
    return np.asarray(np.inf, carrier(element))
