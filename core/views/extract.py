"""One computation, or what one instruction is computed from, as a module of its own with everything that it calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError, InternalError, UsageError
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.module import HloModule
from hloscope.core.text import parse_module, print_module

if TYPE_CHECKING:
    from hloscope.core.text.module_index import ModuleIndex


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


def extracted_text(index: ModuleIndex, number: int, most: int) -> str | None:
    """The text of `extract_computation`, reading no more of a text than it takes.

    None where that is more than `most` instructions, or where something in it cannot be read.
    """
    needed, waiting, size = set[int](), [number], 0
    while waiting:
        one = waiting.pop()
        if one in needed:
            continue
        if one < 0:
            return None
        needed.add(one)
        computation = index.computation(one)
        size += len(computation)
        if size > most:
            return None
        for i in range(computation.begin, computation.end):
            waiting += index.called(i)
    wanted = index.computation(number)
    source = index.source
    scheduled = ", is_scheduled=true" if index.is_scheduled else ""
    tables = [source[slice(*span)] for span in sorted(index.columns.tables.values())]
    titles = sorted(index.columns.tables, key=lambda key: index.columns.tables[key])
    parts = [f"HloModule {wanted.name}{scheduled}"]
    parts += [f"{title}\n{rows.strip()}" for title, rows in zip(titles, tables, strict=True)]
    parts += [source[slice(*index.computation(one).span)] for one in sorted(needed) if one != number]
    parts.append(f"ENTRY {source[slice(*wanted.span)].removeprefix('ENTRY').lstrip()}")
    module, found = parse_module("\n\n".join([*parts, ""]))
    if module is None or any(one.severity == "error" for one in found):
        return None
    try:
        return print_module(extract_computation(module, wanted.name))
    except (HloscopeError, InternalError):
        return None
