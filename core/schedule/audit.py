"""How far our memory schedulers agree with the schedule of a dump: the order of every computation, and the peak.

The order in which a scheduler meets equals is that of instructions and users in the compiler's memory. A proto beside
the text tells the first; the second is kept nowhere. So an order may differ where every step of it is one that the
scheduler could have taken, which is counted apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.analysis.agreement import Agreement, Section
from hloscope.core.analysis.alias import AliasAnalysis
from hloscope.core.analysis.alias_info import AliasInfo, GpuAliasInfo
from hloscope.core.analysis.memory_order import module_in_memory_order
from hloscope.core.errors import DumpError
from hloscope.core.schedule.memory_scheduler import choose_schedule, schedule_peak
from hloscope.core.schedule.possible_orders import first_impossible_step

if TYPE_CHECKING:
    from hloscope.core.analysis.real_compile import RealCompile
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction

_TIES = "equals are met in an order that text has lost"


def audit(compile_: RealCompile) -> Section:
    """Compare one module. Raises DumpError where the dump has no stages around scheduling."""
    if compile_.target == "tpu":
        raise DumpError(f"{compile_.label}: the TPU compiler's schedulers are not reproduced", path=compile_.path)
    first = next((number for number, one in enumerate(compile_.stages) if _scheduled(compile_.text(one.index))), None)
    if not first:
        raise DumpError(
            f"{compile_.label}: no stages before and after scheduling", path=compile_.path,
            hint="--xla_dump_hlo_pass_re=.* dumps them",
        )  # fmt: skip
    on_cpu = compile_.target != "gpu"
    module, known = module_in_memory_order(compile_, compile_.stages[first - 1].index)
    real = compile_.module(compile_.stages[first].index)
    analysis = AliasAnalysis(module, AliasInfo() if on_cpu else GpuAliasInfo())
    ours, peaks = choose_schedule(analysis, "bfs" if on_cpu else "best", place_async=not on_cpu)
    algorithm = min(peaks, key=lambda one: (peaks[one], list(peaks).index(one)))
    orders, possible, peak = Agreement(), Agreement(), Agreement()
    nodes = {one.name: one for one in module.instructions()}
    theirs: dict[HloComputation, list[HloInstruction]] = {}
    for computation, order in ours.items():
        twin = real.find_computation(computation.name)
        names = [one.name for one in twin.instructions] if twin is not None else []
        mine = [one.name for one in order]
        at = next((place for place, (a, b) in enumerate(zip(mine, names, strict=False)) if a != b), len(names))
        told = (f"step {at}: {mine[at]}", f"step {at}: {names[at]}") if at < min(len(mine), len(names)) else ("", "")
        subject = f"{compile_.label}: {computation.name}"
        orders.add(subject, *told, equal=mine == names, note=_TIES)
        if sorted(names) != sorted(mine):
            continue
        theirs[computation] = [nodes[name] for name in names]
        step = first_impossible_step(algorithm, computation, theirs[computation], analysis)
        wrong = "" if step is None else f"step {step}: {names[step]}"
        possible.add(subject, f"what {algorithm} may take", wrong, equal=step is None)
    tried = ", ".join(f"{name} {size:,}" for name, size in peaks.items())
    note = f"{compile_.label}: peak in bytes {tried}"
    if len(theirs) == len(ours):
        real_peak = schedule_peak(analysis, theirs)
        peak.add(compile_.label, peaks[algorithm], real_peak)
        note += f"; of the real order {real_peak:,}"
    else:
        note += f"; instructions were renamed between {compile_.stages[first - 1].pass_name} and scheduling"
    notes = [note if known else f"{note}; no proto tells the order of instructions in memory"]
    figures = {"schedule_orders": orders, "schedule_possible": possible, "schedule_peaks": peak}
    return Section(figures, tuple(notes))


def _scheduled(text: str) -> bool:
    return "is_scheduled=true" in text.partition("\n")[0]
