"""Which buffers each value may live in, as far as layout assignment needs to know.

A *logical buffer* is one node of an instruction's shape tree. Most instructions define every node themselves; tuples,
get-tuple-element and their like pass on the buffers of their operands. Called computations are not looked into.
Source: ``openxla/xla:xla/hlo/analysis/tuple_points_to_analysis.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hloscope.core.errors import InternalError, VerifyError
from hloscope.core.layout.orders import subshapes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape, ShapeIndex


class Buffer:
    """One node of an instruction's result, defined by that instruction."""

    __slots__ = ("aliases", "id", "index", "instruction", "shape")

    def __init__(self, number: int, instruction: HloInstruction, index: ShapeIndex, shape: Shape) -> None:
        self.id = number
        """Position in the order in which unconstrained buffers get their default."""
        self.instruction = instruction
        self.index = index
        self.shape = shape
        """Shape of the node when it was analysed."""
        self.aliases: list[tuple[HloInstruction, ShapeIndex]] = []
        """Everywhere it may appear, in list order."""

    def __repr__(self) -> str:
        at = "".join(f"{{{i}}}" for i in self.index)
        return f"<buffer {self.id} %{self.instruction.name}{at}>"


Buffers = tuple[Buffer, ...]
PointsToSet = dict["ShapeIndex", Buffers]


class PointsTo:
    """The points-to sets of a module's computations."""

    def __init__(self, computations: Iterable[HloComputation]) -> None:
        self._sets: dict[HloInstruction, PointsToSet] = {}
        self._flat: dict[HloInstruction, frozenset[Buffer]] = {}
        self._count = 0
        for computation in computations:
            for instruction in computation.post_order():
                self._sets[instruction] = self._analyse(instruction)
            for instruction in computation.instructions:
                for index, buffers in self._sets[instruction].items():
                    for buffer in buffers:
                        buffer.aliases.append((instruction, index))

    def of(self, instruction: HloInstruction) -> PointsToSet:
        """The set of every node of the instruction's shape, parents first."""
        return self._sets[instruction]

    def knows(self, instruction: HloInstruction) -> bool:
        """Whether the instruction was there when the module was analysed."""
        return instruction in self._sets

    def at(self, instruction: HloInstruction, index: ShapeIndex) -> Buffers:
        """The buffers that one node may live in."""
        found = self._sets[instruction].get(index)
        if found is None:
            raise VerifyError(f"%{instruction.name} has no part at {index}")
        return found

    def only(self, instruction: HloInstruction, index: ShapeIndex) -> Buffer:
        """The one buffer of a node. Raises InternalError where there are several or none."""
        found = self.at(instruction, index)
        if len(found) != 1:
            raise InternalError(f"%{instruction.name} has {len(found)} buffers at {index}")
        return found[0]

    def defined(self, instruction: HloInstruction, index: ShapeIndex) -> Buffer | None:
        """The node's own buffer where it has exactly that one, else None."""
        found = self._sets[instruction][index]
        return found[0] if len(found) == 1 and found[0].instruction is instruction else None

    def forwards(self, instruction: HloInstruction, number: int) -> bool:
        """Whether some buffer of operand `number` is passed on by the instruction."""
        operand = instruction.operand(number)
        return not self._all(instruction).isdisjoint(self._all(operand))

    def forwards_all(self, instruction: HloInstruction, number: int) -> bool:
        """Whether every buffer of operand `number` is passed on by the instruction."""
        return self._all(instruction.operand(number)) <= self._all(instruction)

    def _all(self, instruction: HloInstruction) -> frozenset[Buffer]:
        found = self._flat.get(instruction)
        if found is None:
            found = frozenset(b for buffers in self._sets[instruction].values() for b in buffers)
            self._flat[instruction] = found
        return found

    # ---------------------------------------------------------------- analysis
    def _own(self, instruction: HloInstruction, index: ShapeIndex, shape: Shape) -> Buffers:
        buffer = Buffer(self._count, instruction, index, shape)
        self._count += 1
        return (buffer,)

    def _analyse(self, instruction: HloInstruction) -> PointsToSet:
        source = self._source_of(instruction)
        out: PointsToSet = {}
        for index, shape in subshapes(instruction.shape):
            # Ids are given for every node, forwarded or not, as the analysis before this one does.
            own = self._own(instruction, index, shape)
            place = source(index)
            passed_on: Buffers | None = None
            if place is not None:
                number, inner = place
                if number >= instruction.operand_count:
                    raise VerifyError(f"%{instruction.name} lacks operand {number}")
                passed_on = self._sets[instruction.operand(number)].get(inner)
            fits = passed_on is not None and all(one.shape.is_array == shape.is_array for one in passed_on)
            out[index] = passed_on if passed_on is not None and fits else own
        return out

    def _source_of(self, instruction: HloInstruction) -> Callable[[ShapeIndex], tuple[int, ShapeIndex] | None]:
        """Operand and index that a node's buffers come from; None (or a node that is not there) means its own."""
        opcode = instruction.opcode
        if opcode == "get-tuple-element":
            element = int(instruction.attr("index"))
            return lambda index: (0, (element, *index))
        if opcode == "fusion":
            aliases = {one.output_index: one for one in instruction.attr("output_to_operand_aliasing") or ()}
            return lambda index: (aliases[index].operand, aliases[index].operand_index) if index in aliases else None
        if opcode == "async-update":
            bound = _bound_inputs(instruction)
            return lambda index: (
                (index[1] - bound + 1, index[2:])
                if len(index) > 1 and index[0] == 0 and index[1] >= bound
                else (0, index)
                if index
                else None
            )
        return _SOURCES.get(opcode, _own_only)


def _bound_inputs(update: HloInstruction) -> int:
    """Inputs that an asynchronous computation had before this update."""
    parts = update.operand(0).shape.tuple_shapes
    return len(parts[0].tuple_shapes) if parts else 0


def _own_only(_: ShapeIndex) -> None:
    return None


_SOURCES: Mapping[str, Callable[[ShapeIndex], tuple[int, ShapeIndex] | None]] = {
    "tuple": lambda index: (index[0], index[1:]) if index else None,
    "copy": lambda index: (0, index) if index else None,
    "bitcast": lambda index: (0, index),
    "domain": lambda index: (0, index),
    "add-dependency": lambda index: (0, index),
    "opt-barrier": lambda index: (0, index),
    "async-start": lambda index: (index[1], index[2:]) if len(index) > 1 and index[0] == 0 else None,
    "async-done": lambda index: (0, (1, *index)),
    "send": lambda index: (0, index[1:]) if index and index[0] == 0 else None,
    "recv-done": lambda index: (0, index) if index and index[0] == 0 else None,
    "copy-start": lambda index: (0, index[1:]) if index and index[0] == 1 else None,
    "copy-done": lambda index: (0, (0, *index)),
}
"""Opcode -> where the buffers of a node come from."""
