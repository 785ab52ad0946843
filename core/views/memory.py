"""How a value lies in memory and whether an operation moves its bytes: sentences for hover, `why` and the dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.attributes import parse_ints
from hloscope.core.hlo.shape import Shape
from hloscope.core.layout.orders import layout_of
from hloscope.core.layout.physical import (
    Move,
    PhysicalView,
    copy_move,
    physical_view,
    reshape_move,
    transpose_move,
)

if TYPE_CHECKING:
    from hloscope.core.text.module_index import ModuleIndex

_MOVERS = ("bitcast", "copy", "reshape", "transpose")


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """Whether an operation between two laid out shapes moves bytes."""

    operation: str
    """``reshape``, ``transpose dimensions={1,0}``, ``copy``, ``bitcast``."""
    free: bool
    reason: str

    @property
    def sentence(self) -> str:
        """In words."""
        return f"{self.operation}: {'free' if self.free else 'moves bytes'}; {self.reason}"


def memory_lines(text: str) -> tuple[str, ...]:
    """How an array of this shape lies in memory, in sentences.

    Raises HloscopeError for a text that is no array of known size.
    """
    return _lines(physical_view(Shape.parse(text)))


def _lines(view: PhysicalView) -> tuple[str, ...]:
    waste = f"of them {view.padding_bytes:,} padding ({view.padding_bytes / view.bytes:.1%})" if view.bytes else ""
    out = [f"{view.bytes:,} bytes" + (f", {waste}" if view.padding_bytes else ", no padding")]
    if len(view.sizes) > 1:
        out[0] += f"; dimension {view.order[0]} is the fastest, {view.order[-1]} the slowest"
    if view.strides is not None and view.sizes:
        out.append("bytes from one index to the next, by dimension: " + ", ".join(f"{one:,}" for one in view.strides))
    if view.tiles:
        tiles = " then ".join("×".join("*" if size < 0 else str(size) for size in tile) for tile in view.tiles)
        stored = "×".join(map(str, view.padded))
        out.append(f"tiles {tiles}; stored as {stored} elements of {view.element_bits} bits, slowest first")
    return tuple(out)


def moves_between(source: str, target: str) -> tuple[MoveFacts, ...]:
    """What a reshape, a copy and the transposes that fit would cost between two laid out shapes.

    Raises HloscopeError where they are no arrays of as many elements.
    """
    a, b = Shape.parse(source), Shape.parse(target)
    for one in (a, b):
        physical_view(one)
    if a.element_count != b.element_count:
        raise HloscopeError(f"{a} has {a.element_count} elements, {b} has {b.element_count}")
    out = [_facts("reshape", reshape_move(a, b))]
    if a.dimensions == b.dimensions:
        out.append(_facts("copy", copy_move(a, b)))
    dimensions = _fitting_transpose(a, b)
    if dimensions is not None and dimensions != tuple(range(a.rank)):
        text = "{" + ",".join(map(str, dimensions)) + "}"
        out.append(_facts(f"transpose dimensions={text}", transpose_move(a, dimensions, b)))
    return tuple(out)


def _fitting_transpose(a: Shape, b: Shape) -> tuple[int, ...] | None:
    """The transpose under which each dimension keeps its place in memory, else any that fits, else None."""
    if sorted(a.dimensions) != sorted(b.dimensions):
        return None
    kept = [0] * b.rank
    for old, new in zip(layout_of(a).minor_to_major, layout_of(b).minor_to_major, strict=True):
        kept[new] = old
    if all(a.dimensions[old] == b.dimensions[new] for new, old in enumerate(kept)):
        return tuple(kept)
    left = list(range(a.rank))
    out: list[int] = []
    for size in b.dimensions:
        out.append(next(dim for dim in left if a.dimensions[dim] == size))
        left.remove(out[-1])
    return tuple(out)


def instruction_move(index: ModuleIndex, i: int) -> MoveFacts | None:
    """Whether a reshape, transpose, copy or bitcast of a text moves bytes; None for others and where it is not known.

    Shapes without a layout, as before layout assignment, tell nothing.
    """
    opcode = index.opcode(i)
    operands = index.operands(i)
    if opcode not in _MOVERS or not operands or operands[0] < 0:
        return None
    try:
        source, target = (Shape.parse(index.shape_text(one)) for one in (operands[0], i))
        if any(not one.is_array or (one.rank > 0 and one.layout is None) for one in (source, target)):
            return None
        for one in (source, target):
            physical_view(one)  # raises for what has no place
        return _judged(opcode, source, target, index, i)
    except HloscopeError:
        return None


def _judged(opcode: str, source: Shape, target: Shape, index: ModuleIndex, i: int) -> MoveFacts | None:
    if opcode == "bitcast":
        return MoveFacts(opcode, True, "the same bytes under another shape")
    if opcode == "copy":
        move = copy_move(source, target)
        if move.free:
            move = Move(False, f"all {target.byte_size:,} bytes go to a buffer of their own, in the same order")
        return _facts(opcode, move) if source.dimensions == target.dimensions else None
    if source.element_count != target.element_count:
        return None
    if opcode == "reshape":
        return _facts(opcode, reshape_move(source, target))
    given = index.parts(i).attribute("dimensions")
    dimensions = () if given is None else parse_ints(index.source[slice(*given.value)])
    if tuple(source.dimensions[d] for d in dimensions if d < source.rank) != target.dimensions:
        return None
    return _facts(opcode, transpose_move(source, dimensions, target))


def _facts(operation: str, move: Move) -> MoveFacts:
    return MoveFacts(operation, move.free, move.reason)
