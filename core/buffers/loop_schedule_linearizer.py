"""``loop-schedule-linearizer``: lets every read of a loop's state run before the state is written anew.

Control edges from the reads of each part of the body's parameter to what makes the same part of the body's result; copy
insertion then needs no copy of that part. XLA:GPU runs it before copy-insertion.
Source: ``openxla/xla:xla/service/loop_schedule_linearizer.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.alias import AliasAnalysis
from hloscope.core.analysis.alias_info import AliasInfo, GpuAliasInfo
from hloscope.core.analysis.reachability import Reachability

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class LoopScheduleLinearizer:
    """The pass."""

    name = "loop-schedule-linearizer"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Add the edges of every loop that transfers nothing."""
        analysis: AliasAnalysis | None = None
        changed = False
        for computation in module.post_order():
            for node in computation.post_order():
                if node.opcode != "while" or _transfers(node.callee("body")):
                    continue
                if analysis is None:
                    info = AliasInfo() if ctx.target in ("cpu", "core") else GpuAliasInfo()
                    analysis = AliasAnalysis(module, info)
                changed |= _linearize(node, analysis, ctx)
        return changed


def _transfers(body: HloComputation) -> bool:
    return any(node.info.asynchronous in ("start", "done") or node.opcode in ("send", "recv") for node in body)


def _linearize(loop: HloInstruction, analysis: AliasAnalysis, ctx: PassContext) -> bool:
    body = loop.callee("body")
    flow = analysis.dataflow
    reach: Reachability | None = None
    changed = False
    for index, written in flow.sets(body.root).items():
        held = flow.value_set(body.parameters[0], index)
        if not index or len(written) != 1 or len(held) != 1:
            continue
        new, old = written[0], held[0]
        if new.shape.is_tuple or new is old:
            continue
        writer = new.instruction
        for use in old.uses:
            reader = use.instruction
            if reader is writer or reader.parent is not body or writer.parent is not body:
                continue
            if reader in writer.control_predecessors:
                continue
            if reach is None:
                reach = Reachability(body)
            if reach.reaches(writer, reader):
                continue
            step = ctx.gate("order-read-before-write", writer, others=(reader,))
            if not step:
                continue
            reader.add_control_dependency(writer)
            reach.add(reader, writer)
            step.done()
            changed = True
    return changed
