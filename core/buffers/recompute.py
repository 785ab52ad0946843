"""Values that could be computed again instead of being kept over the peak: what rematerialization would look at.

A value qualifies where it is alive at the peak, is read after it, was not just made, and everything that its
instruction needs is there at that later read anyway. XLA's own pass weighs candidates by cost and repeats.
Source: ``openxla/xla:xla/service/hlo_rematerialization.cc``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.buffers.memory_map import map_of_assignment

if TYPE_CHECKING:
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.buffers.allocation import BufferAssignment
    from hloscope.core.hlo.instruction import HloInstruction

_KEPT = frozenset(
    ("parameter", "constant", "while", "conditional", "call", "custom-call", "rng", "rng-bit-generator", "infeed",
     "recv", "rng-get-and-update-state", "copy-start", "tuple", "get-tuple-element", "bitcast", "opt-barrier")
)  # fmt: skip
"""Opcodes that are never run a second time."""


@dataclass(frozen=True, slots=True)
class Recompute:
    """One candidate."""

    name: str
    opcode: str
    size: int
    """Bytes that it takes at the peak."""
    before: str
    """The reader that it would be computed again for."""
    steps: int
    """How long it waits over the peak for that reader."""


def recomputable(assignment: BufferAssignment) -> list[Recompute]:
    """The candidates at the peak, largest first."""
    peak = map_of_assignment(assignment).peak[0]
    found = [one for value in assignment.ranges for one in _candidate(assignment, value, peak)]
    return sorted(found, key=lambda one: (-one.size, one.name))


def _candidate(assignment: BufferAssignment, value: HloValue, peak: int) -> Iterator[Recompute]:
    start, end = assignment.ranges[value]
    node = value.instruction
    if not start < peak < end or value.index or value.is_phi or not value.shape.is_array:
        return
    if node.opcode in _KEPT or node.info.collective or node.has_side_effect:
        return
    if len(assignment.analysis.buffer_of(value).values) > 1:
        return  # loop state and in-place results are not theirs to drop
    tick = assignment.live.tick
    later = sorted(
        (tick[use.instruction], use.instruction.name) for use in value.uses if tick.get(use.instruction, -1) > peak
    )
    if not later or not all(_alive_at(assignment, operand, later[0][0]) for operand in node.operands):
        return
    place = assignment.slice_of(value)
    if place is not None and place[1].size:
        yield Recompute(node.name, node.opcode, place[1].size, later[0][1], later[0][0] - peak)


def _alive_at(assignment: BufferAssignment, operand: HloInstruction, tick: int) -> bool:
    """Whether what an operand holds is there at a later tick without being kept for it."""
    for value in assignment.analysis.dataflow.value_set(operand):
        found = assignment.ranges.get(value)
        if found is None or (found[1] < tick and value.instruction.opcode != "constant"):
            return False
    return True
