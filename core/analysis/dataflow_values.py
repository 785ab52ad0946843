"""What flows: a value, the places that hold it, and the operand places that read it.

A value is one array, tuple table or token that some instruction makes. It is named by the instruction and the shape
index where it is made, and it may be seen at many other positions: an element of a tuple, a loop's parameter, the
result of a call.
Source: ``openxla/xla:xla/service/hlo_value.h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hloscope.core.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape, ShapeIndex

POINTER_BYTES = 8
"""Bytes of one entry of a tuple's table of pointers, on every back end."""


class HloPosition(NamedTuple):
    """A part of an instruction's result."""

    instruction: HloInstruction
    shape_index: ShapeIndex

    def __str__(self) -> str:
        return position_text(self.instruction, self.shape_index)


class HloUse(NamedTuple):
    """An operand place that reads a value."""

    instruction: HloInstruction
    """The reader."""
    operand: int
    """Number of the operand place."""
    operand_index: ShapeIndex
    """Part of that operand's shape."""


class HloValue:
    """One value. Values have identity; the number is their order in the analysis that made them."""

    __slots__ = ("_uses", "id", "index", "instruction", "is_phi", "positions")

    def __init__(self, number: int, instruction: HloInstruction, index: ShapeIndex, *, is_phi: bool) -> None:
        self.id = number
        self.instruction = instruction
        """The instruction that makes it."""
        self.index = index
        """Where in that instruction's shape."""
        self.is_phi = is_phi
        """Made where control flow joins, not by an instruction's own work."""
        self.positions: list[HloPosition] = [HloPosition(instruction, index)]
        """Everything that holds it, the place where it is made first."""
        self._uses: tuple[HloUse, ...] | None = None

    def __repr__(self) -> str:
        return f"<value {self.id} {self.short()}>"

    def short(self) -> str:
        """Name and index as the reports write them: the index only for tuple-shaped instructions."""
        return position_text(self.instruction, self.index)

    @property
    def shape(self) -> Shape:
        """The shape of this part alone."""
        return self.instruction.shape.sub(self.index)

    @property
    def uses(self) -> tuple[HloUse, ...]:
        """The places that read it, by position and then by user; worked out once, as the graph was then.

        A tuple only passes its operands on, and so do get-tuple-element and copy below the top; such a user counts only
        where it is the root of a computation that gives the value back.
        """
        if self._uses is None:
            self._uses = tuple(self._find_uses())
        return self._uses

    def _find_uses(self) -> list[HloUse]:
        roots = {one.instruction for one in self.positions if one.instruction.is_root}
        found: list[HloUse] = []
        for holder, index in self.positions:
            for user in holder.users:
                if not _reads(user.opcode, index) and user not in roots:
                    continue
                found.extend(HloUse(user, place, index) for place, one in enumerate(user.operands) if one is holder)
        return found


def _reads(opcode: str, index: ShapeIndex) -> bool:
    if opcode in ("tuple", "domain"):
        return False
    return not index or opcode not in ("get-tuple-element", "copy")


def index_text(index: ShapeIndex) -> str:
    """``{}``, ``{1,0}``."""
    return "{" + ",".join(map(str, index)) + "}"


def position_text(instruction: HloInstruction, index: ShapeIndex) -> str:
    """``name``, or ``name{index}`` for a tuple-shaped instruction."""
    return instruction.name + (index_text(index) if instruction.shape.is_tuple else "")


def sub_shapes(shape: Shape) -> Sequence[tuple[ShapeIndex, Shape]]:
    """Every part of a shape with its index, a tuple before its elements."""
    if not shape.is_tuple:
        return (((), shape),)
    found: list[tuple[ShapeIndex, Shape]] = []
    _collect(shape, (), found)
    return found


def _collect(shape: Shape, index: ShapeIndex, found: list[tuple[ShapeIndex, Shape]]) -> None:
    found.append((index, shape))
    if shape.is_tuple:
        for number, part in enumerate(shape.tuple_shapes):
            _collect(part, (*index, number), found)


def has_index(shape: Shape, index: ShapeIndex) -> bool:
    """Whether a shape has such a part."""
    for number in index:
        if not shape.is_tuple or number >= len(shape.tuple_shapes):
            return False
        shape = shape.tuple_shapes[number]
    return True


def buffer_bytes(shape: Shape) -> int:
    """Bytes of the buffer for one part of a shape: a tuple is its table of pointers, its elements are not counted.

    Dynamic dimensions add 4 bytes per dimension for their sizes. Raises UnsupportedError for an unbounded one.
    Source: ``openxla/xla:xla/service/cpu/cpu_executable.cc#ShapeSizeBytes``, ``xla/shape_util.cc#ByteSizeOf``.
    """
    if shape.is_tuple:
        return POINTER_BYTES * len(shape.tuple_shapes)
    if shape.element_type == "opaque":
        return POINTER_BYTES
    if shape.element_type == "buffer":
        return buffer_bytes(shape.tuple_shapes[0])
    if shape.is_unbounded:
        raise UnsupportedError(f"a value of shape {shape} has no size that is known when compiling")
    return shape.byte_size + (4 * shape.rank if shape.is_dynamic else 0)
