"""Literals: constant values as numpy arrays, read from and printed to HLO text.

A literal may be elided (``{...}``, the default for large constants in dumps): then the values are unknown and
``array`` raises. Source: ``openxla/xla:xla/literal.cc#LiteralBase::ToString``, ``xla/util.cc#RoundTripFpToString``,
``xla/hlo/parser/hlo_parser.cc#ParseDenseLiteral``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hloscope.core.errors import EvaluationError, ParseError
from hloscope.core.hlo.attributes import split_top
from hloscope.core.hlo.shape import Shape

if TYPE_CHECKING:
    from hloscope.core.hlo.element_types import ElementType

# Significant digits that always survive a round trip, by type (numeric_limits::max_digits10).
_MAX_DIGITS = {"f64": 17, "f32": 9, "f16": 5, "bf16": 4, "f8e5m2": 2, "f8e5m2fnuz": 2, "f8e8m0fnu": 2, "f4e2m1fn": 2}
_MAX_DIGITS.update({"f6e3m2fn": 2, "c64": 9, "c128": 17})
_TRY_DIGITS = {"f64": 15, "f32": 6, "c64": 6, "c128": 15}

_MOST_BYTES = 1 << 33
"""Largest array that a lone value may stand for."""

ELIDED = "{...}"


@dataclass(frozen=True, eq=False)
class Literal:
    """A value of a shape."""

    shape: Shape
    values: np.ndarray[Any, np.dtype[Any]] | None = None
    """Elements in logical (row-major) order; None for an elided array, a tuple or a token."""
    elements: tuple[Literal, ...] = ()
    """Elements of a tuple."""

    @staticmethod
    def of(array: Any, shape: Shape | None = None) -> Literal:
        """A literal of a numpy array; the shape follows from dtype and dimensions where it is not given."""
        values = np.asarray(array)
        if shape is None:
            from hloscope.core.hlo.element_types import from_dtype

            shape = Shape.array(from_dtype(values.dtype).name, values.shape).with_default_layout()
        return Literal(shape, values)

    @property
    def is_elided(self) -> bool:
        """True where some array's values are not in the text."""
        if self.shape.is_tuple:
            return any(e.is_elided for e in self.elements)
        return self.values is None and self.shape.is_array

    def array(self) -> np.ndarray[Any, np.dtype[Any]]:
        """The elements. Raises EvaluationError where the text left them out."""
        if self.values is None:
            raise EvaluationError(f"the constant of shape {self.shape} is elided ({ELIDED}) in this text")
        return self.values

    def same(self, other: Literal) -> bool:
        """Equal shapes apart from layout and equal bits."""
        if not self.shape.compatible(other.shape):
            return False
        if self.shape.is_tuple:
            return all(a.same(b) for a, b in zip(self.elements, other.elements, strict=True))
        if self.values is None or other.values is None:
            return False
        return self.values.tobytes() == other.values.tobytes()

    def to_text(self, *, large: bool = True, limit: int = 10) -> str:
        """XLA's text inside ``constant(…)``; with `large` False arrays above `limit` elements are elided."""
        if self.shape.is_tuple:
            if not large:
                return ELIDED
            return "( " + ", ".join(e.to_text(large=large, limit=limit) for e in self.elements) + " )"
        if not self.shape.is_array:
            return ""
        if self.values is None or (not large and self.values.size > limit):
            return ELIDED
        form = _formatter(self.shape.type)
        if self.values.ndim == 0:
            return form(self.values[()])
        if self.values.ndim == 1:
            return "{" + ", ".join(form(v) for v in self.values) + "}"
        return _nested(self.values, form, 0, self.values.ndim, 0)


def _nested(values: np.ndarray[Any, np.dtype[Any]], form: Any, depth: int, rank: int, place: int) -> str:
    """An array of two or more dimensions on one line; above three the outer rows say where they are."""
    if values.ndim == 1:
        blank = " " if values.size > 1 else ""
        return "{" + blank + ", ".join([form(v) for v in values]) + blank + "}"
    comment = f" /*i{depth - 1}={place}*/" if rank > 3 and depth else ""
    rows = ", ".join([_nested(row, form, depth + 1, rank, i) for i, row in enumerate(values)])
    return "{" + comment + (" " if len(values) or not comment else "") + rows + " }"


def _formatter(element: ElementType) -> Any:
    if element.kind == "pred":
        return lambda v: "1" if v else "0"
    if element.is_integral:
        return lambda v: str(int(v))
    if element.kind == "complex":
        half = _half(element).name
        return lambda v: f"({format_float(v.real, half)}, {format_float(v.imag, half)})"
    return lambda v: format_float(v, element.name)


def format_scalar(value: Any, element: ElementType) -> str:
    """One element as XLA prints it in a scalar constant; preds are words there."""
    if element.kind == "pred":
        return "true" if value else "false"
    return str(_formatter(element)(value))


_NAN_BITS = {"f16": (16, 10), "bf16": (16, 7), "f32": (32, 23), "f64": (64, 52), "f8e5m2": (8, 2)}


def format_float(value: Any, type_name: str) -> str:
    """A float with the fewest digits that XLA's printer uses: 6 (15) where they round trip, else all (f32, f64)."""
    number = float(value)
    if number != number:
        return _format_nan(value, type_name)
    if number in (float("inf"), float("-inf")):
        return "inf" if number > 0 else "-inf"
    few = _TRY_DIGITS.get(type_name)
    if few is not None:
        text = f"{number:.{few}g}"
        if (np.float32(text) == np.float32(number)) if few == 6 else (float(text) == number):
            return _exponent(text)
    return _exponent(f"{number:.{_MAX_DIGITS.get(type_name, 3)}g}")


def _exponent(text: str) -> str:
    return text


def _format_nan(value: Any, type_name: str) -> str:
    layout = _NAN_BITS.get(type_name)
    if type_name == "f8e8m0fnu":
        return "nan"  # it has no sign
    if layout is None:
        sign = np.asarray(value).tobytes()[-1] & 0x80
        return "-nan" if sign else "nan"
    width, mantissa = layout
    raw = np.asarray(value)
    bits = int.from_bytes(
        raw.astype(raw.dtype.newbyteorder("<") if raw.dtype.kind == "f" else raw.dtype).tobytes(), "little"
    )
    payload = bits & ((1 << mantissa) - 1)
    sign = "-" if bits >> (width - 1) else ""
    quiet = 1 << (mantissa - 1)
    return f"{sign}nan" if payload == quiet else f"{sign}nan({payload:#x})"


# ---------------------------------------------------------------- reading
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n\r]*", re.S)
_TOKEN = re.compile(r"[^\s,{}()]+(?:\(0x[0-9a-fA-F]+\))?|\((?:[^()]|\([^()]*\))*\)")
_TAIL_LEFT_OUT = re.compile(r"\{.*[,}]\s*\.\.\.[\s,]*\}", re.S)
_NAN = re.compile(r"(-?)nan(?:\((0x[0-9a-fA-F]+)\))?$")
_UNSEEN = str.maketrans("", "", " \t\r\n,")


def parse_literal(text: str, shape: Shape) -> Literal:
    """Read the text inside ``constant(…)``. Raises ParseError where XLA's parser would refuse it for the shape."""
    body = (_COMMENT.sub(" ", text) if "/" in text else text).strip()
    if shape.is_tuple:
        if not (body.startswith("(") and body.endswith(")")):
            raise ParseError(f"expected a tuple literal, got {body[:30]!r}")
        parts = split_top(body[1:-1])
        if len(parts) != len(shape.tuple_shapes):
            raise ParseError(f"the tuple literal has {len(parts)} elements, its shape {len(shape.tuple_shapes)}")
        return Literal(shape, None, tuple(parse_literal(p, s) for p, s in zip(parts, shape.tuple_shapes, strict=True)))
    if not shape.is_array:
        return Literal(shape)
    if body.startswith("{") and body.translate(_UNSEEN) == ELIDED and shape.rank:
        return Literal(shape)
    if shape.rank and _TAIL_LEFT_OUT.fullmatch(body) and body.count("{") - body[:-1].count("}") == 1:
        return Literal(shape)  # XLA takes dots behind some elements, and then no element counts
    if shape.type.kind == "unknown":
        raise ParseError(f"values of the unknown element type {shape.element_type}")
    if shape.is_scalar:
        if body.startswith("{"):
            raise ParseError("a scalar literal has no braces")
        tokens = [body]
    else:
        tokens = _TOKEN.findall(body)
        if len(tokens) == 1 and "{" not in body and shape.element_count and shape.type.kind != "complex":
            # XLA's parser lets a lone value stand for an array: it is the first element, the others are zero.
            if shape.byte_size > _MOST_BYTES:
                raise ParseError(f"a literal of {shape.to_text(layout=False)} is too large")
            whole = np.zeros(shape.element_count, dtype=shape.type.dtype)
            whole[:1] = _read_elements(tokens, shape.type)
            return Literal(shape, whole.reshape(shape.dimensions))
        _check_nesting(body, tokens, shape)
    return Literal(shape, _read_elements(tokens, shape.type).reshape(shape.dimensions))


def _check_nesting(body: str, tokens: list[str], shape: Shape) -> None:
    """Braces and element counts of every level at once: the text with each element as a letter, and what it must be."""
    count = shape.element_count
    if len(tokens) == count:
        wanted = "{" + "x" * shape.dimensions[-1] + "}"
        for size in reversed(shape.dimensions[:-1]):
            wanted = "{" + wanted * size + "}"
        if _TOKEN.sub("x", body).translate(_UNSEEN) == wanted:
            return
    if not body.startswith("{") or not body.endswith("}"):
        raise ParseError(f"expected '{{' to open a literal of {shape.to_text(layout=False)}")
    if "..." in tokens:
        raise ParseError("'...' stands alone in the outermost braces of a literal")
    deepest = depth = 0
    for ch in body:
        if ch == "{":
            depth += 1
            deepest = max(deepest, depth)
        elif ch == "}":
            depth -= 1
    if depth or (deepest != shape.rank and count):
        raise ParseError(f"braces nest {deepest} deep, {shape.to_text(layout=False)} has rank {shape.rank}")
    if len(tokens) != count:
        raise ParseError(f"the literal has {len(tokens)} elements, {shape.to_text(layout=False)} needs {count}")
    raise ParseError(f"the braces do not group the elements as {shape.to_text(layout=False)} does")


def _wrapped(token: str) -> int:
    """An integer as XLA's lexer keeps it: 64 bits, an unsigned one too large for the sign wraps."""
    number = int(token) if len(token) < 30 else 1 << 64
    if not -(1 << 63) <= number < 1 << 64:
        raise ParseError(f"{token[:40]} does not fit in 64 bits")
    return number if number < 1 << 63 else number - (1 << 64)


_INTEGER = re.compile(r"-?[0-9]+$")


def _read_elements(tokens: list[str], element: ElementType) -> np.ndarray[Any, np.dtype[Any]]:
    if element.kind == "pred":
        words = {"true": True, "false": False, "1": True, "0": False}
        try:
            return np.array([words[t] if t in words else bool(_integer(t, element)) for t in tokens], dtype=bool)
        except KeyError as bad:
            raise ParseError(f"expected true or false, got {bad.args[0]!r}") from None
    if element.is_integral:
        return _read_integers(tokens, element)
    if element.kind == "complex":
        return _read_complex(tokens, element)
    values = np.array([_read_float(t) for t in tokens], dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        out = values.astype(element.dtype)
        back = out.astype(np.float64)
    odd = ~(np.isfinite(values) & np.isfinite(back))
    for i in np.flatnonzero(odd):
        token = tokens[i]
        found = _NAN.match(token)
        if found is not None:
            out[i : i + 1] = _nan(found[1], found[2], element)
        elif np.isfinite(values[i]) or "inf" not in token:
            raise ParseError(f"{token} overflows {element.name}")
    return out


def check_element(token: str, element: ElementType) -> None:
    """Read one element for nothing. Raises ParseError where it is none of its type, or out of range."""
    _read_elements([token], element)


def _integer(token: str, element: ElementType) -> int:
    if not _INTEGER.match(token):
        raise ParseError(f"expected an integer of type {element.name}, got {token!r}")
    return _wrapped(token)


def _read_integers(tokens: list[str], element: ElementType) -> np.ndarray[Any, np.dtype[Any]]:
    numbers = [_integer(t, element) for t in tokens]
    if element.bits < 64:
        low = -(1 << (element.bits - 1)) if element.kind == "int" else 0
        high = (1 << (element.bits - 1)) - 1 if element.kind == "int" else (1 << element.bits) - 1
        if numbers and not (low <= min(numbers) and max(numbers) <= high):
            number = next(n for n in numbers if not low <= n <= high)
            raise ParseError(f"{number} is out of range for {element.name} ({low} to {high})")
    return np.array(numbers, dtype=np.int64).astype(element.dtype)


def _half(element: ElementType) -> ElementType:
    """The type of the parts of a complex one."""
    from hloscope.core.hlo.element_types import lookup

    return lookup("f32" if element.bits == 64 else "f64")


def _read_complex(tokens: list[str], element: ElementType) -> np.ndarray[Any, np.dtype[Any]]:
    pairs = [t[1:-1].split(",") for t in tokens if t.startswith("(") and t.count(",") == 1]
    if len(pairs) != len(tokens):
        raise ParseError("a complex element is written (real, imaginary)")
    parts = _read_elements([part.strip() for pair in pairs for part in pair], _half(element))
    return np.ascontiguousarray(parts).view(element.dtype).reshape(-1)


_FLOAT = re.compile(r"-?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|inf)$|-\.\d+(?:[eE][+-]?\d+)?$")


def _read_float(token: str) -> float:
    if _INTEGER.match(token):
        number = _wrapped(token)
        # XLA prints a negative zero as -0 and reads that as the integer 0; here the sign stays.
        return float(number) if number or token[0] != "-" else -0.0
    if _NAN.match(token):
        return float("nan")
    if not _FLOAT.match(token):
        raise ParseError(f"expected a number, got {token!r}")
    value = float(token)
    if value in (float("inf"), float("-inf")) and "inf" not in token:
        raise ParseError(f"{token} is out of range for any float")
    return value


_QUIET = 1 << 51
"""The payload of a NaN without one, in 64 bits."""


def _nan(sign: str, payload: str | None, element: ElementType) -> np.ndarray[Any, np.dtype[Any]]:
    bits = int(payload, 16) if payload else _QUIET
    if not 0 < bits < 1 << 52:
        raise ParseError(f"NaN payload {payload} does not fit in 64 bits")
    layout = _NAN_BITS.get(element.name)
    if layout is None:
        if bits != _QUIET:
            raise ParseError(f"{element.name} has no NaN payloads")
        value = np.array([float("nan")], dtype=np.float64).astype(element.dtype)
        return np.negative(value) if sign else value
    width, mantissa = layout
    if bits == _QUIET:
        bits = 1 << (mantissa - 1)
    if bits >= 1 << mantissa:
        raise ParseError(f"NaN payload {payload} does not fit {element.name}")
    exponent = (1 << (width - 1 - mantissa)) - 1
    whole = bits | exponent << mantissa | ((1 << (width - 1)) if sign else 0)
    return np.frombuffer(whole.to_bytes(width // 8, "little"), dtype=element.dtype).copy()
