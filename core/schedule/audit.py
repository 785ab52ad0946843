"""How far our memory schedulers agree with the schedule of a dump: the order of every computation, and the peak.

The order in which a scheduler meets equals is that of instructions and users in the compiler's memory, which text has
lost; so orders may differ where the peak does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.analysis.agreement import Agreement, Section
from hloscope.core.analysis.alias import AliasAnalysis
from hloscope.core.analysis.alias_info import AliasInfo, GpuAliasInfo
from hloscope.core.errors import DumpError
from hloscope.core.schedule.memory_scheduler import choose_schedule, schedule_peak

if TYPE_CHECKING:
    from hloscope.core.analysis.real_compile import RealCompile

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
    module, real = (compile_.module(compile_.stages[number].index) for number in (first - 1, first))
    analysis = AliasAnalysis(module, AliasInfo() if on_cpu else GpuAliasInfo())
    ours, peaks = choose_schedule(analysis, "bfs" if on_cpu else "best", place_async=not on_cpu)
    orders, peak = Agreement(), Agreement()
    nodes = {one.name: one for one in module.instructions()}
    theirs = {}
    for computation, order in ours.items():
        twin = real.find_computation(computation.name)
        names = [one.name for one in twin.instructions] if twin is not None else []
        mine = [one.name for one in order]
        at = next((place for place, (a, b) in enumerate(zip(mine, names, strict=False)) if a != b), len(names))
        told = (f"step {at}: {mine[at]}", f"step {at}: {names[at]}") if at < min(len(mine), len(names)) else ("", "")
        orders.add(f"{compile_.label}: {computation.name}", *told, equal=mine == names, note=_TIES)
        if all(name in nodes for name in names) and len(names) == len(order):
            theirs[computation] = [nodes[name] for name in names]
    notes: list[str] = []
    if len(theirs) == len(ours):
        peak.add(compile_.label, min(peaks.values()), schedule_peak(analysis, theirs))
    else:
        notes.append(f"instructions were renamed between {compile_.stages[first - 1].pass_name} and scheduling")
    return Section({"schedule_orders": orders, "schedule_peaks": peak}, tuple(notes))


def _scheduled(text: str) -> bool:
    return "is_scheduled=true" in text.partition("\n")[0]
