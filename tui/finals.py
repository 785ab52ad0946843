"""What an instruction of an earlier stage is called in the scheduled module, for questions that are about that one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError, UsageError
from hloscope.tui.show import names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from hloscope.core.views.data import WhyFacts
    from hloscope.core.views.run import Run

_STEPS = 20
"""Names that are followed at most."""


def final_name(run: Run, name: str, known: AbstractSet[str]) -> str:
    """The one value of the scheduled module (`known`) that took an instruction's place; `name` where it is one itself,
    or nothing is known of it. A part of a tuple (``A{1}``) keeps its index only as long as the name stays.

    Raises UsageError where it has gone and no single name took its place; the message offers the nearest ones.
    """
    base = name.removeprefix("%").split("{")[0]
    if base in known:
        return name
    try:
        facts = run.why(base)
    except HloscopeError:
        return name
    heirs = _heirs(run, facts, known)
    if len(heirs) == 1:
        return heirs[0]
    last = facts.passes[-1] if facts.passes else None
    gone = f", removed by [{last.index}] {last.pass_name}" if last is not None and last.what == "removed" else ""
    near = heirs or _of_the_same_operation(run, facts, known)
    offer = f"; nearest there: {names(near, 4)}" if near else ""
    raise UsageError(f"{base} holds no memory in the scheduled module{gone}{offer}")


def final_names(run: Run, asked: Sequence[str]) -> list[str]:
    """`final_name` of each, among the values that have a place in memory."""
    known = {value.name for row in run.buffers.map(largest=200).allocations for value in row.values}
    return [final_name(run, name, known) for name in asked]


def _heirs(run: Run, facts: WhyFacts, known: AbstractSet[str]) -> list[str]:
    """Values that an instruction's history, or that of what replaced it, leads to."""
    found: list[str] = []
    todo, seen = [facts], {facts.name}
    while todo and len(seen) <= _STEPS:
        one = todo.pop(0)
        last = one.passes[-1] if one.passes else None
        if last is None:
            continue
        inside = one.called_by if last.what != "removed" else ()
        for name in (last.name, *last.replaced_by, *inside):
            if name in known:
                found += [name] if name not in found else []
            elif name not in seen:
                seen.add(name)
                try:
                    todo.append(run.why(name))
                except HloscopeError:
                    continue
    return found


def _of_the_same_operation(run: Run, facts: WhyFacts, known: AbstractSet[str]) -> list[str]:
    """Values made by the same operation of the program, or by fusions that hold it."""
    if not facts.op_name:
        return []
    last = len(run.outline) - 1
    index = run.stage_index(last)
    wanted = f'= [^"]*\\b{re.escape(facts.opcode)}\\(.*op_name="{re.escape(facts.op_name)}"'
    found: list[str] = []
    for place in run.search(wanted, last, limit=_STEPS):
        at = index.find(place.name)
        callers = run.why(place.name, stage=last).called_by if at is not None and place.name not in known else ()
        found += [name for name in (place.name, *callers) if name in known and name not in found]
    return found
