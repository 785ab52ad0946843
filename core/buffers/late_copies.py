"""Copies looked at once more when the schedule is known: XLA:GPU's second copy removal.

Before scheduling two values may only share memory if no order makes them meet; with the order fixed more copies can go.
Copies that other reasons ask for are put back and take their place in the schedule as early as their operands allow.
Source: ``openxla/xla:xla/service/gpu/gpu_compiler.cc#RunPostSchedulingCopyInsertion``,
``xla/hlo/ir/hlo_schedule.cc#UpdateComputationSchedule``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.alias_info import AliasInfo, GpuAliasInfo
from hloscope.core.buffers.copy_insertion import add_special_case_copies, remove_unnecessary_copies
from hloscope.core.buffers.deep_copy import clean_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class PostSchedulingCopyInsertion:
    """The pass; XLA runs it outside of any pipeline and without a name."""

    name = "post-scheduling-copy-insertion"
    is_pipeline = False
    region_analysis_limit: int = 0
    """As in ``copy-insertion``."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Remove what the order makes needless; a module without a schedule stays as it is."""
        if not module.is_scheduled:
            return False
        before = [one.name for one in module.instructions()]
        info = GpuAliasInfo() if ctx.target not in ("cpu", "core") else AliasInfo()
        order = {one: one.instructions for one in module.computations if not one.is_fusion}
        remove_unnecessary_copies(module, info, ctx, self.region_analysis_limit)
        clean_up(module)
        module.set_schedule(None)
        add_special_case_copies(module, info, ctx)
        clean_up(module)
        module.set_schedule(updated(order))
        return [one.name for one in module.instructions()] != before


def updated(
    order: Mapping[HloComputation, Sequence[HloInstruction]],
) -> dict[HloComputation, list[HloInstruction]]:
    """A schedule after instructions came and went: known ones keep their order, new ones run as soon as they can."""
    return {one: _updated(one, known) for one, known in order.items() if one.module_or_none is not None}


def _updated(computation: HloComputation, known: Sequence[HloInstruction]) -> list[HloInstruction]:
    kept = [one for one in known if one.in_computation and one.parent is computation]
    old = set(kept)
    fresh = [one for one in computation.instructions if one not in old]
    waiting = {one: len({*one.operands, *one.control_predecessors}) for one in fresh}
    found: list[HloInstruction] = []
    done: set[HloInstruction] = set()

    def emit(first: HloInstruction) -> None:
        work = deque([first])
        while work:
            node = work.popleft()
            found.append(node)
            done.add(node)
            for after in dict.fromkeys((*node.users, *node.control_successors)):
                if after in waiting and after not in done:
                    waiting[after] -= 1
                    if not waiting[after]:
                        work.append(after)

    for one in [node for node in fresh if not waiting[node]]:
        emit(one)
    for one in kept:
        emit(one)
    return found
