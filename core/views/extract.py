"""One computation, or what one instruction is computed from, as a module of its own with everything that it calls."""

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


def extract_result(module: HloModule, computation: str | None, instruction: str) -> HloModule:
    """A module that computes one instruction's value: its computation (the entry for None), with that for its root,
    and without what only others need. Raises UsageError where there is no such instruction."""
    home = module.entry if computation is None else module.find_computation(computation)
    if home is None or not any(one.name == instruction for one in home):
        raise UsageError(f"there is no instruction {instruction}" + (f" in {computation}" if computation else ""))
    copy = extract_computation(module, home.name)
    copy.name = module.name if home is module.entry else copy.name
    for key in ("replica_count", "num_partitions"):
        if key in module.attrs:
            copy.attrs[key] = module.attrs[key]
    entry = copy.entry
    entry.set_root(next(one for one in entry if one.name == instruction))
    for one in reversed(entry.post_order()):
        if not one.user_count:
            entry.remove_with_dead_operands(one)
    while unused := [one for one in copy.computations if not one.is_entry and not one.callers]:
        for one in unused:
            copy.remove_computation(one)
    return copy
