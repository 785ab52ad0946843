"""The buffers of one computation as the list scheduler sees them: who makes them, and what parts point to.

Computations are seen apart: parameters, and whatever runs another computation, make all that they give. That is coarser
than the dataflow analysis, which follows values through calls and loops.
Source: ``openxla/xla:xla/hlo/analysis/tuple_points_to_analysis.cc``. In jaxlib 0.10.2 the list scheduler
uses it; later XLA takes the dataflow analysis there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.analysis.dataflow_values import buffer_bytes, sub_shapes

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape, ShapeIndex

Buffer = tuple["HloInstruction", "ShapeIndex"]
"""Who makes it, and at which part of its result."""
_Held = dict["ShapeIndex", tuple[Buffer, ...]]


class PointsTo:
    """What every part of every result in a computation points to."""

    def __init__(self, computation: HloComputation) -> None:
        self._held: dict[HloInstruction, _Held] = {}
        self._sizes: dict[Buffer, int] = {}
        for node in computation.post_order():
            forwarded = _FORWARDS.get(node.opcode, _nothing)(self, node)
            held: _Held = {}
            for index, part in sub_shapes(node.shape):
                held[index] = forwarded[index] if index in forwarded else (self._make(node, index, part),)
            self._held[node] = held

    def _make(self, node: HloInstruction, index: ShapeIndex, part: Shape) -> Buffer:
        self._sizes[node, index] = buffer_bytes(part)
        return node, index

    def size(self, buffer: Buffer) -> int:
        """Bytes of a buffer."""
        return self._sizes[buffer]

    def at(self, node: HloInstruction, index: ShapeIndex = ()) -> tuple[Buffer, ...]:
        """What one part points to; nothing for a part that is not there."""
        return self._held[node].get(index, ())

    def all_of(self, nodes: Sequence[HloInstruction]) -> tuple[Buffer, ...]:
        """Every buffer that some part of these points to, once."""
        return tuple({one: None for node in nodes for held in self._held[node].values() for one in held})

    def made_by(self, node: HloInstruction) -> tuple[Buffer, ...]:
        """The buffers that an instruction makes."""
        return tuple(one for held in self._held[node].values() for one in held if one[0] is node)

    def parts(self, node: HloInstruction) -> Iterator[tuple[ShapeIndex, tuple[Buffer, ...]]]:
        """Every part with what it points to."""
        return iter(self._held[node].items())


# ---------------------------------------------------------------- what is passed on
_Forward = Callable[[PointsTo, "HloInstruction"], _Held]


def _nothing(_seen: PointsTo, _node: HloInstruction) -> _Held:
    return {}


def _operand(seen: PointsTo, node: HloInstruction) -> _Held:
    return dict(seen.parts(node.operand(0)))


def _copy(seen: PointsTo, node: HloInstruction) -> _Held:
    return {index: held for index, held in seen.parts(node.operand(0)) if index}


def _tuple(seen: PointsTo, node: HloInstruction) -> _Held:
    return {
        (number, *index): held for number, operand in enumerate(node.operands) for index, held in seen.parts(operand)
    }


def _element(seen: PointsTo, node: HloInstruction) -> _Held:
    return _below(seen, node.operand(0), (int(node.attr("index")),))


def _below(seen: PointsTo, node: HloInstruction, root: ShapeIndex) -> _Held:
    return {index[len(root) :]: held for index, held in seen.parts(node) if index[: len(root)] == root}


def _aliased(seen: PointsTo, node: HloInstruction) -> _Held:
    return {
        one.output_index: seen.at(node.operand(one.operand), one.operand_index)
        for one in node.attr("output_to_operand_aliasing") or ()
        if one.operand < node.operand_count
    }


def _async_start(seen: PointsTo, node: HloInstruction) -> _Held:
    inputs = {
        (0, number, *index): held for number, operand in enumerate(node.operands) for index, held in seen.parts(operand)
    }
    return inputs | _aliased(seen, node)


def _async_update(seen: PointsTo, node: HloInstruction) -> _Held:
    return {index: held for index, held in seen.parts(node.operand(0)) if index and index[0] < 2}


def _async_done(seen: PointsTo, node: HloInstruction) -> _Held:
    return _below(seen, node.operand(0), (1,))


def _copy_start(seen: PointsTo, node: HloInstruction) -> _Held:
    return {(1,): seen.at(node.operand(0))}


def _copy_done(seen: PointsTo, node: HloInstruction) -> _Held:
    return {(): seen.at(node.operand(0), (0,))}


def _send(seen: PointsTo, node: HloInstruction) -> _Held:
    return {(0, *index): held for index, held in seen.parts(node.operand(0))}


def _receive_done(seen: PointsTo, node: HloInstruction) -> _Held:
    return {index: held for index, held in seen.parts(node.operand(0)) if index[:1] == (0,)}


_FORWARDS: Mapping[str, _Forward] = MappingProxyType(
    {
        "bitcast": _operand,
        "domain": _operand,
        "add-dependency": _operand,
        "optimization-barrier": _operand,
        "get-tuple-element": _element,
        "tuple": _tuple,
        "copy": _copy,
        "fusion": _aliased,
        "async-start": _async_start,
        "async-update": _async_update,
        "async-done": _async_done,
        "copy-start": _copy_start,
        "copy-done": _copy_done,
        "send": _send,
        "recv-done": _receive_done,
    }
)
"""Opcodes that pass on what operands hold; every other makes all of its parts. The aliasing of a custom call does not
count: XLA runs the analysis without."""
