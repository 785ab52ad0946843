"""``hlo-memory-scheduler``: gives every computation an order, the best of several by the simulated peak.

XLA:CPU takes the breadth-first order (``xla_cpu_scheduler_type`` unset or CONCURRENCY_OPTIMIZED) or the depth-first
one; XLA:GPU takes of list, depth-first and post-order the one with the smallest peak.
Source: ``openxla/xla:xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc``, ``xla/service/cpu/cpu_compiler.cc``
(CreateHloSchedule), ``xla/service/gpu/gpu_hlo_schedule.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.alias import AliasAnalysis
from hloscope.core.analysis.alias_info import AliasInfo, GpuAliasInfo
from hloscope.core.analysis.heap_simulator import simulate
from hloscope.core.analysis.live_range import HloLiveRange
from hloscope.core.errors import UsageError
from hloscope.core.ledger.events import ScheduleChosen
from hloscope.core.schedule.async_placement import place_asynchronous
from hloscope.core.schedule.schedulers import SCHEDULERS, schedule_computations

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

Sequences = Mapping["HloComputation", "Sequence[HloInstruction]"]

_CHOICES: Sequence[str] = ("list", "dfs", "post-order")
"""What the best is chosen from; the first of equals wins."""


@dataclass(frozen=True)
class HloMemoryScheduler:
    """The pass."""

    name = "hlo-memory-scheduler"
    is_pipeline = False
    algorithm: str = ""
    """``list``, ``dfs``, ``post-order``, ``bfs``, or ``best``; by default the target's: bfs on CPU, best elsewhere."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Order every computation and mark the module scheduled; one that is scheduled already stays as it is."""
        if module.is_scheduled:
            return False
        on_cpu = ctx.target in ("cpu", "core")
        algorithm = self.algorithm or ("bfs" if on_cpu else "best")
        if algorithm != "best" and algorithm not in SCHEDULERS:
            raise UsageError(f"no scheduler {algorithm!r}", hint=f"there are {', '.join(SCHEDULERS)} and best")
        analysis = AliasAnalysis(module, AliasInfo() if on_cpu else GpuAliasInfo())
        order, peaks = choose_schedule(analysis, algorithm, place_async=not on_cpu)
        order = {one: nodes if ctx.gate("order", computation=one) else one.post_order() for one, nodes in order.items()}
        if ctx.ledger.enabled:
            chosen = min(peaks, key=lambda one: (peaks[one], list(peaks).index(one)))
            ctx.ledger.emit(
                ScheduleChosen(
                    verdict="chosen",
                    algorithm=chosen,
                    bytes=peaks[chosen],
                    others=tuple(f"{name} {size}" for name, size in peaks.items() if name != chosen),
                )
            )
        module.set_schedule({computation: list(nodes) for computation, nodes in order.items()})
        return True


def choose_schedule(
    analysis: AliasAnalysis, algorithm: str, *, place_async: bool = False
) -> tuple[Sequences, Mapping[str, int]]:
    """The order that an algorithm (or the best of several) gives, and the simulated peak of each that was tried.

    `place_async` moves asynchronous operations, as XLA:GPU does.
    """
    computations = [one for one in analysis.module.post_order() if not analysis.dataflow.is_fused(one)]
    names = _CHOICES if algorithm == "best" else (algorithm,)
    orders = {name: schedule_computations(computations, analysis, SCHEDULERS[name]) for name in names}
    if place_async:
        orders = {
            name: {computation: place_asynchronous(order) for computation, order in found.items()}
            for name, found in orders.items()
        }
    peaks = {name: schedule_peak(analysis, order) for name, order in orders.items()}
    best = min(names, key=lambda name: (peaks[name], names.index(name)))
    return orders[best], peaks


def schedule_peak(analysis: AliasAnalysis, order: Sequences) -> int:
    """Most bytes in use under an order, without gaps; constants are not counted.

    Source: ``HeapSimulator::MinimumMemoryForModule``.
    """
    return simulate(HloLiveRange(analysis, order), constants=False).peak
