"""``buffer-assignment``: the assignment as a step of a compile, with every refusal, placement and rise of the peak on
record, and its reports beside the dump.

The module is not changed. Fuel counts the values that join an allocation or get a place in the heap; one that is
refused gets memory of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.analysis.dataflow_values import index_text
from hloscope.core.buffers.assignment import assign_buffers, backend_of
from hloscope.core.buffers.memory_map import map_of_assignment
from hloscope.core.buffers.report_text import buffer_assignment_text, live_range_text, memory_usage_text, values_text
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import UsageError
from hloscope.core.ledger.events import BufferPlacement, BufferRefusal, MemoryPeak

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hloscope.core.analysis.alias import HloBuffer
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.analysis.heap_placement import PlacementStep
    from hloscope.core.analysis.heap_simulator import HeapInterval
    from hloscope.core.buffers.allocation import BufferAllocation, BufferAssignment, Refusal
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.ledger.record import Recorder
    from hloscope.core.passes.context import PassContext

_SHOWN_GAPS = 12
REPORTS: Mapping[FileKind, Callable[[BufferAssignment], str]] = MappingProxyType(
    {
        FileKind.BUFFER_ASSIGNMENT: buffer_assignment_text,
        FileKind.BUFFER_VALUES: values_text,
        FileKind.LIVE_RANGE: live_range_text,
        FileKind.MEMORY_USAGE: memory_usage_text,
    }
)
"""XLA's four memory reports, in the order in which it writes them."""


@dataclass(frozen=True)
class BufferAssignmentPass:
    """The pass."""

    name = "buffer-assignment"
    is_pipeline = False
    skip_unscheduled: bool = False
    """Leave a module without a schedule alone, with a warning: for pipelines whose scheduler may be switched off."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Assign and record. Raises UsageError for a module without a schedule, unless that is skipped."""
        if not module.is_scheduled:
            if self.skip_unscheduled:
                ctx.warnings.append("no buffers were assigned: the module has no schedule")
                return False
            raise UsageError(
                f"module {module.name} is not scheduled", hint="run copy-insertion and hlo-memory-scheduler before"
            )

        refused = False

        def may_share(refusal: Refusal | None, allocation: BufferAllocation, buffer: HloBuffer) -> bool:
            if refusal is not None:
                return True
            nonlocal refused
            step = ctx.gate("join-allocation", buffer.values[0].instruction)
            if step:
                step.done(detail=f"allocation {allocation.index}, {allocation.size} bytes")
            refused |= not step
            return bool(step)

        def may_place(interval: HeapInterval) -> bool:
            nonlocal refused
            step = ctx.gate("place-in-heap", interval.value.instruction)
            if step:
                step.done(detail=f"{interval.size} bytes")
            refused |= not step
            return bool(step)

        assignment = assign_buffers(
            module,
            backend_of(ctx.target),
            keep_refusals=ctx.ledger.enabled,
            may_share=may_share,
            may_place=may_place,
        )
        ctx.assignment = assignment
        if ctx.ledger.enabled:
            record(assignment, ctx.ledger)
        # Without them a ledger's reader assigns the last stage again, which gives the same unless the gate said no.
        if (ctx.dumps is not None and ctx.dumps.enabled) or (ctx.ledger.enabled and refused):
            ctx.reports.update((kind, text(assignment)) for kind, text in REPORTS.items())
        return False


def record(assignment: BufferAssignment, ledger: Recorder) -> None:
    """Put an assignment's refusals, placements and peak into a ledger."""
    for one in assignment.refusals:
        instruction = one.value.instruction
        ledger.emit_values(
            BufferRefusal,
            "refused",
            one.code,
            (
                instruction.name, instruction.parent.name, None, index_text(one.value.index),
                assignment.renumbered.get(one.allocation, one.allocation),
                None if one.other is None else one.other.short(), one.want, one.have,
            ),
        )  # fmt: skip
    steps: Mapping[HloValue, PlacementStep] = {
        step.value: step for placement in assignment.placements.values() for step in placement.steps
    }
    for value, allocation, chunk in assignment.placed():
        step, instruction = steps.get(value), value.instruction
        ledger.emit_values(
            BufferPlacement,
            "placed",
            allocation.kind,
            (
                instruction.name, instruction.parent.name, None, index_text(value.index), allocation.index,
                chunk.offset, chunk.size, None if step is None else _gaps(step),
            ),
        )  # fmt: skip
    memory = map_of_assignment(assignment, sizes_only=True)
    most = -1
    for tick, used in memory.profile:
        if used > most:
            most = used
            running = memory.sequence[tick] if tick < len(memory.sequence) else None
            ledger.emit(
                MemoryPeak(
                    subject=running,
                    bytes=used,
                    tick=tick,
                    total=memory.total_bytes,
                    fragmentation=memory.fragmentation if used == memory.peak[1] else None,
                )
            )


def _gaps(step: PlacementStep) -> str:
    shown = [f"{start}-{'' if end is None else end}" for start, end in step.gaps[:_SHOWN_GAPS]]
    rest = len(step.gaps) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
