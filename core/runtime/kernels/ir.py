"""A kernel's MLIR as plain data: types, operations, blocks, functions.

What reads the text is handed in from outside (`EvaluationOptions.kernels`): it takes the installed jaxlib.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from hloscope.core.errors import UnsupportedError
from hloscope.core.hlo.element_types import lookup

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hloscope.core.hlo.element_types import ElementType

_SHAPED = re.compile(r"(vector|memref|tensor)<((?:[0-9?]+x)*)(.*)>\Z", re.S)
_ELEMENTS = {
    "i1": "pred", "i2": "s2", "i4": "s4", "i8": "s8", "i16": "s16", "i32": "s32", "i64": "s64", "index": "s64",
    "bf16": "bf16", "f16": "f16", "f32": "f32", "f64": "f64", "f8E4M3FN": "f8e4m3fn", "f8E5M2": "f8e5m2",
    "f8E4M3B11FNUZ": "f8e4m3b11fnuz",
}  # fmt: skip


class KernelUnsupported(UnsupportedError):
    """A kernel that is not computed, and why."""


@dataclass(frozen=True, slots=True)
class Type:
    """``vector<8x128xf32>``: what it is, its dimensions, its element."""

    kind: str
    """``vector``, ``memref``, ``tensor`` or ``scalar``."""
    sizes: tuple[int, ...]
    element: str
    """MLIR's word: ``f32``, ``i32``, ``!tt.ptr<f32>``."""

    @property
    def numbers(self) -> ElementType:
        """The element type in HLO's words; signless integers are signed. Raises KernelUnsupported."""
        name = _ELEMENTS.get(self.element)
        if name is None:
            raise KernelUnsupported(f"the element type {self.element}")
        return lookup(name)

    @property
    def is_semaphore(self) -> bool:
        """Whether it counts copies and signals instead of holding data."""
        return "semaphore" in self.element

    @staticmethod
    def parse(text: str) -> Type:
        """A type from its text. Raises KernelUnsupported for dimensions that are not known."""
        found = _SHAPED.match(text)
        if found is None:
            return Type("scalar", (), text)
        kind, sizes, rest = found.groups()
        if "?" in sizes:
            raise KernelUnsupported(f"the type {text}, whose dimensions are known at run time only")
        element = rest if kind == "tensor" else rest.split(",")[0].strip()
        if kind == "tensor" and element.count("<") == element.count(">"):
            element = element.split(", ")[0]
        return Type(kind, tuple(int(n) for n in sizes.split("x")[:-1]), element)


@dataclass(slots=True)
class Block:
    """Arguments and operations."""

    arguments: list[int]
    types: list[Type]
    operations: list[Operation]

    def every(self) -> Iterator[Operation]:
        """The operations, those inside others too."""
        for operation in self.operations:
            yield operation
            for region in operation.regions:
                yield from region.every()


@dataclass(slots=True)
class Operation:
    """One operation: values are numbers."""

    name: str
    operands: list[int]
    types: list[Type]
    """Of the operands."""
    attributes: Mapping[str, Any]
    regions: list[Block]
    results: list[int]
    result_types: list[Type]

    def segments(self) -> list[list[int]]:
        """Positions of operands, group by group, where some groups may be empty."""
        out: list[list[int]] = []
        start = 0
        for size in self.attributes.get("operandSegmentSizes", []):
            out.append(list(range(start, start + size)))
            start += size
        return out


@dataclass(slots=True)
class Function:
    """A function of a kernel."""

    attributes: Mapping[str, Any]
    body: Block


def functions(data: Mapping[str, object]) -> dict[str, Function]:
    """The functions of a kernel from what its reader gave, in order. Raises KernelUnsupported."""
    out: dict[str, Function] = {}
    for name, raw in cast("dict[str, dict[str, Any]]", data["functions"]).items():
        if raw["blocks"] != 1:
            raise KernelUnsupported("jumps between blocks")
        out[name] = Function(raw["attrs"], _block(raw["body"]))
    return out


def _block(raw: dict[str, Any]) -> Block:
    return Block(
        [number for number, _ in raw["args"]],
        [Type.parse(text) for _, text in raw["args"]],
        [_operation(op) for op in raw["ops"]],
    )


def _operation(raw: dict[str, Any]) -> Operation:
    return Operation(
        raw["op"],
        raw["in"],
        [Type.parse(text) for text in raw["types"]],
        raw["attrs"],
        [_block(region) for region in raw["regions"]],
        [number for number, _ in raw["out"]],
        [Type.parse(text) for _, text in raw["out"]],
    )
