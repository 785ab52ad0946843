"""One computation as a module of its own, with everything that it calls."""

from __future__ import annotations

from hloscope.core.errors import UsageError
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.module import HloModule


def extract_computation(module: HloModule, name: str) -> HloModule:
    """A module whose entry is the computation of that name. Raises UsageError where there is none."""
    wanted = module.find_computation(name)
    if wanted is None:
        raise UsageError(f"there is no computation {name}")
    needed = [one for one in module.post_order() if one is wanted or wanted.reaches(one)]
    copy = HloModule(name)
    copy.stack_frames = module.stack_frames.copy()
    copy.tables_present = module.tables_present
    if module.is_scheduled:
        copy.attrs = {"is_scheduled": "true"}
    twins: dict[HloComputation, HloComputation] = {}
    for one in needed:
        twins[one] = copy.add_computation(HloComputation(one.name), keep_name=True, entry=one is wanted)
        one.clone_into(twins[one], twins)
    return copy
