"""What XLA's reader and verifier would refuse in a text: in all of it, or at once in the computations that an edit
touched.

The whole takes about 40 ms for a thousand instructions. A computation alone is verified in a small module of its own,
with what it calls and what calls it: the rules about single instructions and their neighbours hold there as they do in
the whole, those about the module (schedules, aliases, channels) are left to the look at the whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.verifier import RULES, Finding, options_for, verify
from hloscope.core.text import parse_module
from hloscope.core.text.made_shapes import take_made_shapes

if TYPE_CHECKING:
    from hloscope.core.errors import Diagnostic
    from hloscope.core.text.module_index import ModuleIndex

MOST_AT_ONCE = 1_500
"""Instructions, callees included, up to which computations are verified on their own."""
_MOST_CALLERS = 4
_HEADER = ("is_scheduled", "replica_count", "num_partitions")
_TILED = "f32[8,128]{1,0:T(8,128)}"
_LOCAL = ("shape", "instruction")
_NOT_LOCAL = frozenset({"thread", "async-computation"})
_STANDS_IN = "stands.in.for"
_BETWEEN = "\n\n"
_MOST_LOOKS = 3
"""At computations of a text with faults, each without those that the reader did not take the time before."""


@dataclass(frozen=True, slots=True)
class TextFindings:
    """What is wrong with a whole text."""

    reader: tuple[Diagnostic, ...]
    broken: tuple[Finding, ...]
    """Of the verifier; empty where the text cannot be read."""


def findings_of_text(text: str) -> TextFindings:
    """Everything that the reader and, where there is a module, the verifier finds."""
    module, found = parse_module(text)
    if module is None or any(one.severity == "error" for one in found):
        return TextFindings(tuple(found), ())
    take_made_shapes(module)
    try:
        # The reader renames what is called alike in two computations, so such a text is sound.
        options = replace(options_for(module), verify_unique_names=False)
    except HloscopeError:
        options = None  # for which the verifier has a finding of its own
    return TextFindings(tuple(found), tuple(verify(module, options)))


def findings_of_computations(index: ModuleIndex, numbers: Iterable[int]) -> list[Finding] | None:
    """What the verifier finds in some computations and in the instructions that call them.

    None where they are too large for a quick answer, or name what the text does not define.
    """
    found, faulty = _looked_at(index, sorted(set(numbers)), frozenset())
    return None if faulty or found is None else found


def findings_of_whole_computations(index: ModuleIndex, faults: Iterable[int] = ()) -> list[Finding]:
    """What the verifier finds in those computations of a text with faults that have none: neither one that the index
    knows nor one at the offsets `faults`.

    A computation that calls one with a fault, or one that the text does not define, is left out with it. Nothing is
    said of a text whose header has the fault, or that is too large for a quick answer.
    """
    cut = {one.offset for one in index.errors if one.code == "truncated"}
    wrong = [*faults, *(one.offset for one in index.errors if one.offset not in cut)]
    bodies = index.computations
    if not bodies or any(offset < bodies[0].span[0] for offset in wrong):
        return []
    if any(one.span[0] < before.span[1] for before, one in pairwise(bodies)):
        return []
    # Of the last, no more than its end may be missing.
    unclosed = {one.number for one in bodies[-1:] if one.name_span[0] in cut}
    broken = {
        number
        for number, one in enumerate(bodies)
        if (index.source[one.span[1] - 1] != "}" and number not in unclosed)
        or any(one.span[0] <= at <= one.span[1] for at in wrong)
    }
    for _ in range(_MOST_LOOKS):
        broken = _with_callers(index, broken)
        whole = [number for number in range(len(bodies)) if number not in broken]
        if not whole:
            return []
        found, faulty = _looked_at(index, whole, broken, unclosed)
        if found is None:
            return []
        if not faulty:
            return found
        # The reader finds more than the index: what it does not take is broken, too.
        broken |= faulty
    return []


def _with_callers(index: ModuleIndex, broken: Iterable[int]) -> set[int]:
    """These computations, and all that come to call one of them or one that is not there."""
    out = set(broken)
    for number, one in enumerate(index.computations):
        if any(called < 0 for i in range(one.begin, one.end) for called in index.called(i)):
            out.add(number)
    waiting = list(out)
    while waiting:
        for i in index.callers(waiting.pop()):
            home = index.computation_of(i)
            if home not in out:
                out.add(home)
                waiting.append(home)
    return out


def _looked_at(
    index: ModuleIndex, wanted: list[int], broken: Collection[int], unclosed: Collection[int] = ()
) -> tuple[list[Finding] | None, set[int]]:
    """What the verifier finds in computations and in the calls of them that stand in none of the `broken`; and those
    that the reader does not take, of which the calls count as those around them. None where they are too large.

    Those that are `unclosed` get their brace.
    """
    callers = {
        number: [i for i in index.callers(number) if index.computation_of(i) not in broken][:_MOST_CALLERS]
        for number in wanted
    }
    needed = _needed(index, [*wanted, *(one for rows in callers.values() for i in rows for one in index.called(i))])
    if needed is None:
        return None, set()
    bodies = [index.source[slice(*index.computation(n).span)] + "\n}" * (n in unclosed) for n in needed]
    entry = index.columns.entry
    rows = list(dict.fromkeys(i for group in callers.values() for i in group if index.computation_of(i) not in wanted))
    if entry not in needed:
        bodies.append(_caller(index, rows))
    told = index.header_attributes
    header = "".join(f", {key}={told[key]}" for key in _HEADER if key in told)
    parts = [f"HloModule part{header}", *bodies, ""]
    found = findings_of_text(_BETWEEN.join(parts))
    wrong = [one.offset for one in found.reader if one.severity == "error"]
    if wrong:
        starts = list(accumulate((len(part) + len(_BETWEEN) for part in parts), initial=0))[1:]
        places = [bisect_right(starts, offset) - 1 for offset in wrong]
        faulty = {needed[place] for place in places if 0 <= place < len(needed)}
        return (None, set()) if len(faulty) == 0 else ([], faulty)
    inside = {index.computation(number).name for number in wanted}
    calling = {index.name(i): index.computation(index.computation_of(i)).name for i in rows}
    out: list[Finding] = []
    for one in found.broken:
        rule = RULES.get(one.code)
        if rule is None or rule.phase not in _LOCAL or one.code in _NOT_LOCAL:
            continue
        if one.computation in inside:
            out.append(one)
        elif one.computation == _STANDS_IN and one.instruction in calling:
            out.append(Finding(one.code, one.message, calling[one.instruction], one.instruction))
    return out, set()


def _needed(index: ModuleIndex, waiting: list[int]) -> list[int] | None:
    """Computations with all that they call, in the text's order; None where they are too many or not there."""
    seen, size = set[int](), 0
    while waiting:
        number = waiting.pop()
        if number in seen:
            continue
        if number < 0:
            return None
        one = index.computation(number)
        size += len(one)
        if size > MOST_AT_ONCE:
            return None
        seen.add(number)
        for i in range(one.begin, one.end):
            waiting += index.called(i)
    return sorted(seen)


def _caller(index: ModuleIndex, rows: list[int]) -> str:
    """An entry with the instructions that call what is verified, their operands given as parameters.

    It has a tiled shape where the text's entry has one: by that the verifier tells what is let through.
    """
    given = [op for op in dict.fromkeys(op for i in rows for op in index.operands(i)) if op >= 0 and op not in rows]
    lines = [f"  %{index.name(op)} = {index.shape_text(op)} parameter({n})" for n, op in enumerate(given)]
    entry = index.entry
    if entry is not None and any(":T(" in index.shape_text(i) for i in range(entry.begin, entry.end)):
        lines.append(f"  %{_STANDS_IN}.tiles = {_TILED} parameter({len(lines)})")
    for i in rows:
        rest = index.source[index.name_span(i)[1] : index.span(i)[1]]
        lines.append(f"  %{index.name(i)}{rest}")
    return "\n".join([f"ENTRY %{_STANDS_IN} {{", *lines, f"  ROOT %{_STANDS_IN}.root = () tuple()", "}"])
