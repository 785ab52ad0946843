"""The arithmetic of kernels: MLIR's ``arith`` and ``math`` dialects on numpy arrays and scalars.

Floats below 32 bits are computed in f32 and rounded once, as everywhere in the evaluator; integers wrap. Source:
MLIR's documentation of the two dialects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from hloscope.core.runtime.evaluator import conversion, elementwise, numerics
from hloscope.core.runtime.evaluator.values import Array
from hloscope.core.runtime.kernels.ir import KernelUnsupported

if TYPE_CHECKING:
    from hloscope.core.runtime.kernels.ir import Operation, Type

Compute = Callable[["Operation", "list[Any]"], Any]


def constant(operation: Operation, given: list[Any]) -> Any:
    """``arith.constant``: a scalar or a dense array."""
    kind, value = operation.result_types[0], operation.attributes["value"]
    if isinstance(value, dict):
        data = value["splat"] if "splat" in value else np.asarray(value["dense"])
        return (
            np.broadcast_to(_typed(data, kind), kind.sizes)
            if "splat" in value
            else _typed(data, kind).reshape(kind.sizes)
        )
    if isinstance(value, str):
        raise KernelUnsupported(f"the constant {value[:60]}")
    return _typed(value, kind)


def _typed(value: Any, kind: Type) -> Array:
    element = kind.numbers
    if element.kind == "float":
        return np.asarray(value, np.float64).astype(element.dtype)
    if element.kind == "pred":
        return np.asarray(value).astype(bool)
    return np.asarray(value, np.int64).astype(element.dtype)


def _float(function: Callable[..., Any]) -> Compute:
    def compute(operation: Operation, given: list[Any]) -> Any:
        element = operation.result_types[0].numbers
        wide = [numerics.widen(element)(np.asarray(x)) for x in given]
        return numerics.narrow(element)(np.asarray(function(*wide)).astype(numerics.carrier(element)))

    return compute


def _integer(function: Callable[..., Any], *, unsigned: bool = False) -> Compute:
    def compute(operation: Operation, given: list[Any]) -> Any:
        element = operation.result_types[0].numbers
        if element.kind == "pred":
            return np.asarray(function(*(np.asarray(x).astype(np.int8) for x in given)) & 1).astype(bool)
        wide = [numerics.widen(element)(np.asarray(x)) for x in given]
        if unsigned:
            wide = [_unsigned(x, element.bits) for x in wide]
        out = np.asarray(function(*wide)).astype(numerics.carrier(element))
        return numerics.narrow(element)(out)

    return compute


def _unsigned(x: Array, bits: int) -> Array:
    out = np.asarray(x).view(np.dtype(f"u{x.dtype.itemsize}"))
    return out & out.dtype.type((1 << bits) - 1) if bits < 8 else out


def _divide(x: Array, y: Array) -> Array:
    safe = np.where(y == 0, y.dtype.type(1), y)
    return (x - np.fmod(x, safe)) // safe


def _remainder(x: Array, y: Array) -> Array:
    return np.fmod(x, np.where(y == 0, y.dtype.type(1), y))


def _floor_divide(x: Array, y: Array) -> Array:
    return x // np.where(y == 0, y.dtype.type(1), y)


def _shift(function: Callable[..., Any]) -> Callable[..., Any]:
    """Past the width nothing is defined; here everything is shifted out."""

    def compute(x: Array, y: Array) -> Array:
        bits = 8 * x.dtype.itemsize
        past = (y < 0) | (y >= bits)
        moved = function(x, np.where(past, 0, y).astype(x.dtype))
        return np.where(past, x.dtype.type(0), moved)

    return compute


def _compare_integers(operation: Operation, given: list[Any]) -> Any:
    predicate = int(operation.attributes["predicate"])
    element = operation.types[0].numbers
    a, b = (numerics.widen(element)(np.asarray(x)) for x in given)
    if predicate >= 6 and element.kind != "pred":
        a, b = _unsigned(a, element.bits), _unsigned(b, element.bits)
    return (np.equal, np.not_equal, *(np.less, np.less_equal, np.greater, np.greater_equal) * 2)[predicate](a, b)


_ORDERED = (np.equal, np.greater, np.greater_equal, np.less, np.less_equal, np.not_equal)


def _compare_floats(operation: Operation, given: list[Any]) -> Any:
    predicate = int(operation.attributes["predicate"])
    a, b = (numerics.widen(operation.types[0].numbers)(np.asarray(x)) for x in given)
    nan = np.isnan(a) | np.isnan(b)
    if predicate in (0, 15):
        return np.full(np.shape(nan), predicate == 15)
    if predicate in (7, 14):
        return ~nan if predicate == 7 else nan
    found = _ORDERED[(predicate - 1) % 7](a, b)
    return found & ~nan if predicate < 7 else found | nan


def convert(operation: Operation, given: list[Any]) -> Any:
    """Between types, as HLO's convert: the low bits, nearest even, saturating from floats."""
    return conversion.converter(operation.types[0].numbers, operation.result_types[0].numbers)(np.asarray(given[0]))


def _extend_unsigned(operation: Operation, given: list[Any]) -> Any:
    source, target = operation.types[0].numbers, operation.result_types[0].numbers
    if source.kind == "pred":
        return np.asarray(given[0]).astype(target.dtype)
    return _unsigned(numerics.widen(source)(np.asarray(given[0])), source.bits).astype(target.dtype)


def _extend_signed(operation: Operation, given: list[Any]) -> Any:
    if operation.types[0].element == "i1":
        return -np.asarray(given[0]).astype(operation.result_types[0].numbers.dtype)
    return convert(operation, given)


def _from_unsigned(operation: Operation, given: list[Any]) -> Any:
    source, target = operation.types[0].numbers, operation.result_types[0].numbers
    x = np.asarray(given[0])
    wide = x.astype(np.uint8) if source.kind == "pred" else _unsigned(numerics.widen(source)(x), source.bits)
    return numerics.narrow(target)(wide.astype(numerics.carrier(target)))


def _from_signed(operation: Operation, given: list[Any]) -> Any:
    if operation.types[0].element == "i1":
        return -convert(operation, given)
    return convert(operation, given)


def bitcast(operation: Operation, given: list[Any]) -> Any:
    """The same bits as another type of the same width."""
    source, target = operation.types[0].numbers, operation.result_types[0].numbers
    if source.bits != target.bits or source.kind == "pred" or target.kind == "pred":
        raise KernelUnsupported(f"bits of {source.name} as {target.name}")
    return np.asarray(given[0]).view(target.dtype)


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(x.dtype)


def _round_away(x: Array) -> Array:
    return np.trunc(x + np.copysign(np.nextafter(x.dtype.type(0.5), x.dtype.type(0)), x))


FLOAT_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "absf": np.abs, "atan2": np.arctan2, "ceil": np.ceil, "cos": np.cos, "cosh": np.cosh, "acos": np.arccos,
        "asin": np.arcsin, "atan": np.arctan, "erf": _erf, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
        "floor": np.floor, "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "powf": np.power,
        "round": _round_away, "roundeven": np.rint, "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "sinh": np.sinh,
        "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh, "trunc": np.trunc, "cbrt": np.cbrt,
        "fma": lambda x, y, z: (x.astype(np.float64) * y + z),
    }
)  # fmt: skip


def _table() -> dict[str, Compute]:
    out: dict[str, Compute] = {f"math.{name}": _float(function) for name, function in FLOAT_FUNCTIONS.items()}
    floats = {
        "addf": np.add, "subf": np.subtract, "mulf": np.multiply, "divf": np.divide, "remf": np.fmod,
        "negf": np.negative, "maximumf": elementwise.maximum, "minimumf": elementwise.minimum, "maxnumf": np.fmax,
        "minnumf": np.fmin,
    }  # fmt: skip
    integers = {
        "addi": np.add, "subi": np.subtract, "muli": np.multiply, "divsi": _divide, "remsi": _remainder,
        "floordivsi": _floor_divide, "ceildivsi": lambda x, y: -_floor_divide(-x, y), "andi": np.bitwise_and,
        "ori": np.bitwise_or, "xori": np.bitwise_xor, "maxsi": np.maximum, "minsi": np.minimum,
        "shli": _shift(np.left_shift), "shrsi": _shift(np.right_shift),
    }  # fmt: skip
    words = {
        "divui": _floor_divide, "remui": _remainder, "maxui": np.maximum, "minui": np.minimum,
        "shrui": _shift(np.right_shift),
    }  # fmt: skip
    out.update({f"arith.{name}": _float(function) for name, function in floats.items()})
    out.update({f"arith.{name}": _integer(function) for name, function in integers.items()})
    out.update({f"arith.{name}": _integer(function, unsigned=True) for name, function in words.items()})
    out["math.absi"] = _integer(np.abs)
    out.update(
        {
            "arith.bitcast": bitcast,
            "arith.cmpf": _compare_floats,
            "arith.cmpi": _compare_integers,
            "arith.constant": constant,
            "arith.extf": convert,
            "arith.extsi": _extend_signed,
            "arith.extui": _extend_unsigned,
            "arith.fptosi": convert,
            "arith.fptoui": convert,
            "arith.index_cast": convert,
            "arith.select": lambda operation, given: np.where(*given),
            "arith.sitofp": _from_signed,
            "arith.truncf": convert,
            "arith.trunci": lambda o, g: (
                (np.asarray(g[0]) & 1).astype(bool) if o.result_types[0].element == "i1" else convert(o, g)
            ),
            "arith.uitofp": _from_unsigned,
        }
    )
    return out


TABLE: Mapping[str, Compute] = MappingProxyType(_table())
"""Operation -> its value for its operands' values."""
