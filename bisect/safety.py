"""What evaluation cannot see: orders that were lost, layouts that do not fit, storage that is shared wrongly.

An evaluator computes values in any order that dependences allow and gives every value memory of its own. So a pass that
drops a control edge, leaves a layout behind, or makes a fusion that reads what it has overwritten computes the right
thing there and the wrong thing in an executable. These checks look at the module itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.hlo.dependence import depends_on
from hloscope.core.hlo.verifier import verify
from hloscope.core.hlo.verifier.options import VerifierOptions, uses_tiles
from hloscope.core.passes.context import PassContext

if TYPE_CHECKING:
    from collections.abc import Collection

    from hloscope.core.analysis.alias import AliasAnalysis
    from hloscope.core.analysis.live_range import HloLiveRange
    from hloscope.core.buffers.allocation import BufferAssignment
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule

_IN_PLACE = frozenset({"dynamic-update-slice", "scatter", "fusion", "while", "conditional", "sort", "async-start"})
"""Opcodes that may write over an operand, or whose parts share storage."""


@dataclass(frozen=True, slots=True)
class Unsafe:
    """One thing that is wrong without being a wrong value."""

    kind: str
    """``order``, ``layout`` or ``buffers``."""
    instruction: str
    sentence: str


# ---------------------------------------------------------------- orders
@dataclass(frozen=True, slots=True)
class Edge:
    """A control edge as it stood in a module that may have changed since."""

    first: str
    second: str
    said: tuple[tuple[str, tuple[str, ...]], ...]
    """Opcode and names of the operands of both ends."""

    @property
    def of_copies(self) -> bool:
        """Whether both ends are copies."""
        return all(opcode == "copy" for opcode, _ in self.said)


def control_edges(module: HloModule) -> list[Edge]:
    """All control edges, the earlier instruction first."""
    return [
        Edge(before.name, after.name, (_said(before), _said(after)))
        for computation in module.computations
        for after in computation
        for before in after.control_predecessors
    ]


def lost_orders(
    before: HloModule | Sequence[Edge], after: HloModule, *, copies: bool = False, sequence: bool = True
) -> list[Unsafe]:
    """Control edges of one module between instructions that the other still has, and that nothing orders there.

    Edges between two copies count where `copies` is set: copy insertion makes, renames and removes them again. Without
    `sequence` the place in a schedule is no order: the next pass that schedules is free to change it.
    """
    edges = before if isinstance(before, Sequence) else control_edges(before)
    if not edges:
        return []
    places: dict[str, HloInstruction] = {one.name: one for one in after.instructions()}
    found: list[Unsafe] = []
    for edge in edges:
        one, other = places.get(edge.first), places.get(edge.second)
        if one is None or other is None or one.parent is not other.parent:
            continue
        # Names are given again: only where it is the same instruction.
        if (_said(one), _said(other)) != edge.said or _ordered(one, other, after, sequence):
            continue
        if edge.of_copies and not copies:
            continue  # what they guard shows in the buffers
        if after.is_scheduled and not sequence and _ordered(one, other, after):
            said = f"only the schedule orders %{other.name} after %{one.name} now: a control edge is gone"
        else:
            said = f"nothing orders %{other.name} after %{one.name} any more, as a control edge did"
        found.append(Unsafe("order", other.name, said))
    return found


def _said(one: HloInstruction) -> tuple[str, tuple[str, ...]]:
    return one.opcode, tuple(operand.name for operand in one.operands)


def _ordered(one: HloInstruction, other: HloInstruction, module: HloModule, by_sequence: bool = True) -> bool:
    if module.is_scheduled and by_sequence:
        sequence = list(one.parent)
        return sequence.index(one) < sequence.index(other)
    return depends_on(other, one)


# ---------------------------------------------------------------- layouts
def layout_faults(module: HloModule) -> list[Unsafe]:
    """What the verifier says only where layouts count: for a module whose layouts are assigned.

    Tiled layouts are those of a backend whose rules are not known; nothing is said of them.
    """
    if uses_tiles(module):
        return []
    plain = {(one.code, one.instruction) for one in verify(module, VerifierOptions())}
    strict = verify(module, VerifierOptions(layout_sensitive=True, restrict_layout_changes=True))
    return [
        Unsafe("layout", one.instruction or module.entry.root.name, one.message)
        for one in strict
        if (one.code, one.instruction) not in plain
    ]


# ---------------------------------------------------------------- buffers
def shares_wrongly(module: HloModule, target: str | None, *, copied: bool = False) -> list[Unsafe]:
    """Wrong sharing in the storage that our own assignment gives the module.

    One that has no schedule yet gets a schedule first, on a clone, and copies too unless it has them (`copied`). Empty
    where nothing could be shared wrongly, and where the module cannot be assigned (a TPU's).
    """
    if not any(one.opcode in _IN_PLACE for one in module.instructions()):
        return []
    from hloscope.core.buffers.assignment import assign_buffers, backend_of
    from hloscope.core.buffers.copy_insertion import CopyInsertion
    from hloscope.core.schedule.memory_scheduler import HloMemoryScheduler

    try:
        own = module.clone()
        if not own.is_scheduled:
            context = PassContext(target=target or "cpu")
            if not copied:
                CopyInsertion().run(own, context)
            HloMemoryScheduler().run(own, context)
        return assigned_wrongly(assign_buffers(own, backend_of(target)))
    except (HloscopeError, InternalError):
        return []


def assigned_wrongly(assignment: BufferAssignment) -> list[Unsafe]:
    """Values of an assignment that share storage although both are needed."""
    from hloscope.core.analysis.live_range import HloLiveRange
    from hloscope.core.buffers.hazards import HAZARDS, find_hazards, places_of

    live = HloLiveRange(assignment.analysis)
    met = [
        Unsafe("buffers", one.instruction, f"%{one.instruction}: {HAZARDS[one.code]}: {one.message}")
        for one in find_hazards(assignment.analysis, live, places_of(assignment))
        if one.severity == "error"
    ]
    return [*_read_late(assignment.analysis, live), *met, *_parted(assignment), *_kept_from_writing(assignment)]


def _parted(assignment: BufferAssignment) -> list[Unsafe]:
    """Values that have to be in one place (what a loop carries, what is updated in place) and are not."""
    places = {value: (one.index, chunk.offset) for value, one, chunk in assignment.placed() if chunk.size}
    found: list[Unsafe] = []
    for buffer in assignment.analysis.buffers:
        told = Counter(places[value] for value in buffer.values if value in places)
        if len(told) < 2:
            continue
        usual = told.most_common(1)[0][0]
        apart = next(value for value in buffer.values if places.get(value, usual) != usual)
        other = next(value for value in buffer.values if places.get(value) == usual)
        name, place = apart.instruction.name, places[apart]
        said = (
            f"%{name}: {apart.short()} is in allocation {place[0]} at offset {place[1]}, and {other.short()}, with "
            f"which it has to share its storage, in allocation {usual[0]} at offset {usual[1]}"
        )
        found.append(Unsafe("buffers", name, said))
    return found


def _kept_from_writing(assignment: BufferAssignment) -> list[Unsafe]:
    """Values that are written over a constant or a parameter that the caller keeps, and such that lie elsewhere."""
    buffer_of, read_only = assignment.analysis.buffer_of, assignment.analysis.is_read_only
    found: list[Unsafe] = []
    for one in assignment.allocations:
        held = next((value for value in one.values() if read_only(value)), None)
        if held is None or one.thread_local:
            continue
        if not one.read_only:
            name = held.instruction.name
            said = f"%{name}: {held.short()} is in allocation {one.index}, where nothing puts it"
            found.append(Unsafe("buffers", name, said))
            continue
        kind = "a constant" if one.constant else "a parameter that is not donated"
        for value in one.values():
            if one.assigned[value].size and buffer_of(value) is not buffer_of(held):
                name = value.instruction.name
                said = f"%{name}: {value.short()} is written over {held.short()}, {kind}"
                found.append(Unsafe("buffers", name, said))
    return found


def _read_late(analysis: AliasAnalysis, live: HloLiveRange) -> list[Unsafe]:
    """Values that are read, or returned, after an instruction has written over them in place.

    A value and what is written over it are one buffer for the analysis, so that their ranges cannot meet.
    """
    at = {node: number for number, node in enumerate(live.sequence)}
    found: list[Unsafe] = []
    for node in live.sequence:
        for pair in analysis.info.in_place_pairs(node):
            for value in analysis.dataflow.value_set(node.operand(pair.operand), pair.operand_index):
                later = [
                    use.instruction
                    for use in value.uses
                    if use.instruction.parent is node.parent and at.get(use.instruction, -1) > at[node]
                ]
                root = node.parent.root
                returned = node.parent.module.entry is node.parent and root is not node and any(
                    position.instruction is root for position in value.positions
                )
                if later or returned:
                    reader = f"%{later[0].name} reads it" if later else "it is a result"
                    said = f"%{node.name} writes over %{value.instruction.name} in place, and after that {reader}"
                    found.append(Unsafe("buffers", node.name, said))
    return found


def first_new(found: Collection[Unsafe], known: Collection[Unsafe]) -> Unsafe | None:
    """The first of some findings that is not known already, by kind and instruction."""
    old = {(one.kind, one.instruction) for one in known}
    return next((one for one in found if (one.kind, one.instruction) not in old), None)
