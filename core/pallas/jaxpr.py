"""Traced programs as our own small IR: equations over numbered variables, with the place of each in the user's source.

Everything here is a frozen value read from the description that the tracing child wrote (``describe.py``); nothing
refers to jax. A variable is an integer, unique within one trace; an atom is a variable or a ``Literal``.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hloscope.core.errors import UnsupportedError

Array: TypeAlias = NDArray[Any]

SEMAPHORES = frozenset({"dma_sem", "semaphore", "barrier_semaphore", "barrier_sem", "sem"})
"""Element types of references that hold semaphores; their values are counts."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of the user's source: lines and columns 1-based, columns in characters, the end exclusive."""

    file: str
    function: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def spot(self) -> tuple[str, int, int]:
        """Where it begins, whatever function it is seen from."""
        return self.file, self.line, self.column


Joint: TypeAlias = tuple[object, ...]
"""What ties findings of one call to one fault: those that share a joint are told as one.

``("at", spot, memory)``: a statement's access that something does not order; ``("copy", spot)`` and ``("semaphore",
name)``: a copy that somebody starts, and what it signals; ``("late", memory)``: a copy into memory whose end is not
waited for; ``("fetched", operand)`` and ``("blocks", operand)``: the pipeline's fetch and write-back; ``("again",
operand)``: an output block that comes back; ``("empty", memory)``: nothing is ever stored there; ``("folded",
operand)``: steps of different indices get one block, and ``("uncovered" or "unwritten", operand)``: others get none.
"""
NO_JOINTS: frozenset[Joint] = frozenset()


def joint_at(place: Span | None, memory: str) -> frozenset[Joint]:
    """A statement's access of some memory."""
    return frozenset({("at", place.spot, memory)}) if place is not None else NO_JOINTS


@dataclass(frozen=True, slots=True)
class Aval:
    """The type of a variable: an array, or a reference to memory that holds one."""

    kind: str
    """``array``, ``ref`` or ``other``."""
    shape: tuple[int, ...]
    dtype: str
    space: str | None = None
    """Memory space of a reference, as its backend names it, lower case; ``default`` where nothing was said."""

    @property
    def is_semaphore(self) -> bool:
        """Whether it counts signals instead of holding data."""
        return self.dtype in SEMAPHORES

    def __str__(self) -> str:
        inner = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        return f"Ref<{self.space}>{{{inner}}}" if self.kind == "ref" else inner


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant operand."""

    value: Array
    aval: Aval


Atom: TypeAlias = int | Literal


@dataclass(frozen=True, slots=True)
class Slot:
    """The operand of that number, inside a parameter tree."""

    index: int


@dataclass(frozen=True, slots=True)
class Slice:
    """``pl.ds(start, size, stride)``: start and size are numbers or operands."""

    start: int | Slot
    size: int | Slot
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Indexer:
    """One ``ref[…]``: an entry for each dimension, a slice or an integer (a number, a scalar or an array operand)."""

    indices: tuple[Slice | Slot | int, ...]
    shape: tuple[int, ...]
    int_shape: tuple[int, ...]
    """Shape that the integer entries are broadcast to."""


@dataclass(frozen=True, slots=True)
class Reinterpret:
    """Another view of a reference: ``BitcastTransform``, ``ReshapeTransform``, ``TransposeTransform`` and others."""

    kind: str
    fields: Mapping[str, Any]


Transform: TypeAlias = Indexer | Reinterpret


@dataclass(frozen=True, slots=True)
class RefView:
    """A reference operand seen through transforms, inside a parameter tree."""

    ref: Slot
    transforms: tuple[Transform, ...] = ()


@dataclass(frozen=True, slots=True)
class Record:
    """A named tuple or dataclass of jax's among parameters."""

    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Opaque:
    """A parameter that the description does not carry, such as a Python function."""

    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """One primitive applied to operands."""

    primitive: str
    inputs: tuple[Atom, ...]
    outputs: tuple[int | None, ...]
    """Variables; None where nobody uses the result."""
    out_avals: tuple[Aval, ...]
    params: Mapping[str, Any]
    at: Span | None
    """Innermost place in the user's code."""
    via: Span | None
    """Innermost place in the file that was traced, where ``at`` is in another one."""

    @property
    def place(self) -> Span | None:
        """Where a finding about it belongs."""
        return self.at or self.via


@dataclass(frozen=True, slots=True, eq=False)
class Jaxpr:
    """A traced function."""

    consts: tuple[int, ...]
    const_values: tuple[Array | None, ...]
    """Values of ``consts`` where the function is closed; empty where the caller passes them."""
    inputs: tuple[int, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]
    avals: Mapping[int, Aval]
    """Types of inputs, consts and results."""
    function: str = ""
    names: tuple[str, ...] = ()
    """Names of the inputs in the user's code."""

    def name_of(self, position: int) -> str:
        """What the user calls an input."""
        return self.names[position] if position < len(self.names) and self.names[position] else f"argument {position}"


def dtype_of(name: str) -> np.dtype[Any]:
    """The numpy type of an element type's name. Raises ``UnsupportedError`` where numpy has none."""
    if name in SEMAPHORES:
        return np.dtype(np.int64)
    try:
        return np.dtype(name)
    except TypeError:
        pass
    found = getattr(ml_dtypes, name, None)
    if found is None:
        raise UnsupportedError(f"element type {name} is not supported by the interpreters")
    return np.dtype(found)


def itemsize_bits(name: str) -> int:
    """Width of an element in bits; what sub-byte types occupy when packed."""
    for prefix in ("int", "uint", "float"):
        digits = name.removeprefix(prefix)
        if digits != name:
            number = "".join(iter_digits(digits))
            if number:
                return int(number)
    return 8 if name in ("bool", "bool_") else dtype_of(name).itemsize * 8


def iter_digits(text: str) -> Iterator[str]:
    """The leading digits of a text."""
    for char in text:
        if not char.isdigit():
            return
        yield char


def sub_jaxprs(params: Mapping[str, Any]) -> Iterator[tuple[str, Jaxpr]]:
    """Functions among an equation's parameters, with the parameter's name."""
    for name, value in params.items():
        if isinstance(value, Jaxpr):
            yield name, value
        elif isinstance(value, list | tuple):
            for item in cast("Sequence[object]", value):
                if isinstance(item, Jaxpr):
                    yield name, item


def statements(jaxpr: Jaxpr, outer: Span | None = None) -> Iterator[tuple[Equation, Span | None, int]]:
    """Every equation with its nested ones, the place of each (or of what holds it), and its depth."""
    return _statements(jaxpr, outer, 0)


def _statements(jaxpr: Jaxpr, outer: Span | None, depth: int) -> Iterator[tuple[Equation, Span | None, int]]:
    for equation in jaxpr.equations:
        place = equation.place or outer
        yield equation, place, depth
        for _, inner in sub_jaxprs(equation.params):
            yield from _statements(inner, place, depth + 1)


@dataclass(slots=True)
class Decoder:
    """Reads the JSON description; types and places are looked up by number."""

    avals: tuple[Aval, ...]
    spans: tuple[Span, ...]
    known: dict[int, Aval] = field(default_factory=dict[int, Aval])
    """Types of all variables met so far: inner functions see those of outer ones."""

    def aval(self, index: int) -> Aval:
        """The type of that number."""
        return self.avals[index]

    def span(self, index: int | None) -> Span | None:
        """The place of that number."""
        return None if index is None else self.spans[index]

    def jaxpr(self, data: Mapping[str, Any]) -> Jaxpr:
        """A function."""
        for variable, aval in (*data["consts"], *data["in"]):
            self.known[variable] = self.aval(aval)
        # jax keeps a name for results that nobody reads, such as the old value of a store
        used = {one for one in data["out"] if isinstance(one, int)}
        for one in data["eqns"]:
            used.update(atom for atom in one["in"] if isinstance(atom, int))
        equations = tuple(self._equation(one, used) for one in data["eqns"])
        return Jaxpr(
            consts=tuple(variable for variable, _ in data["consts"]),
            const_values=tuple(decode_array(one) for one in data.get("const_values", ())),
            inputs=tuple(variable for variable, _ in data["in"]),
            equations=equations,
            outputs=tuple(self._atom(one) for one in data["out"]),
            avals=self.known,
            function=data["function"],
            names=tuple(data["names"]),
        )

    def _equation(self, data: Mapping[str, Any], used: Set[int]) -> Equation:
        out_avals = tuple(self.aval(one) for one in data["out_avals"])
        for variable, aval in zip(data["out"], out_avals, strict=True):
            if variable is not None:
                self.known[variable] = aval
        return Equation(
            primitive=data["p"],
            inputs=tuple(self._atom(one) for one in data["in"]),
            outputs=tuple(one if one in used else None for one in data["out"]),
            out_avals=out_avals,
            params={key: self.plain(value) for key, value in data["params"].items()},
            at=self.span(data["at"]),
            via=self.span(data["via"]),
        )

    def _atom(self, data: Any) -> Atom:
        if isinstance(data, int):
            return data
        aval = self.aval(data["aval"])
        value = decode_array(data["lit"])
        if value is None:
            raise UnsupportedError("a literal of the traced program is too large to be written down")
        if aval.dtype in SEMAPHORES or aval.kind == "other":
            return Literal(value, aval)
        return Literal(value.astype(dtype_of(aval.dtype)), aval)

    def plain(self, data: Any) -> Any:
        """A parameter."""
        if isinstance(data, list):
            return tuple(self.plain(item) for item in cast("list[Any]", data))
        if not isinstance(data, dict):
            return data
        found = cast("dict[str, Any]", data)
        for key, read in _READERS.items():
            if key in found:
                return read(self, found)
        return {key: self.plain(value) for key, value in found.items()}


def decode_array(data: Mapping[str, Any]) -> Array | None:
    """An array, or None where its value was not written down."""
    if data["data"] is None:
        return None
    dtype = dtype_of(data["dtype"])
    return np.frombuffer(base64.b64decode(data["data"]), dtype).reshape(data["shape"])


def _indexer(decoder: Decoder, data: Mapping[str, Any]) -> Indexer:
    return Indexer(decoder.plain(data["$index"]), decoder.plain(data["shape"]), decoder.plain(data["int_shape"]))


def _ref(decoder: Decoder, data: Mapping[str, Any]) -> RefView:
    inner = decoder.plain(data["$ref"])
    transforms = decoder.plain(data["transforms"])
    if isinstance(inner, RefView):
        return RefView(inner.ref, (*inner.transforms, *transforms))
    return RefView(inner, transforms)


_READERS: Mapping[str, Any] = {
    "$jaxpr": lambda d, v: d.jaxpr(v["$jaxpr"]),
    "$tree": lambda d, v: d.plain(v["$tree"]),
    "$slot": lambda d, v: Slot(v["$slot"]),
    "$slice": lambda d, v: Slice(*(d.plain(one) for one in v["$slice"])),
    "$index": _indexer,
    "$ref": _ref,
    "$transform": lambda d, v: Reinterpret(v["$transform"], {k: d.plain(one) for k, one in v["fields"].items()}),
    "$float": lambda d, v: float(v["$float"]),
    "$enum": lambda d, v: v["name"],
    "$dtype": lambda d, v: v["$dtype"],
    "$array": lambda d, v: decode_array(v["$array"]),
    "$aval": lambda d, v: d.aval(v["$aval"]),
    "$span": lambda d, v: d.span(v["$span"]),
    "$record": lambda d, v: Record(v["$record"], {k: d.plain(one) for k, one in v["fields"].items()}),
    "$map": lambda d, v: {d.plain(key): d.plain(item) for key, item in v["$map"]},
    "$opaque": lambda d, v: Opaque(v["$opaque"]),
}
