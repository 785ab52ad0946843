"""One instruction from stage to stage: by its name, where a pass renamed it by what the matching pairs it with, and
where a pass copied it into a computation under another name, by its opcode and op_name."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.views.diff import diff_indexes
from hloscope.core.views.matching import without_layout
from hloscope.core.views.run import find_definition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hloscope.core.views.data import Place, StageDiff

MOST_BYTES = 8 << 20
"""Text of a stage up to which a renamed instruction is looked for: some 40,000 instructions, a second."""


def other_name(diff: StageDiff, name: str, *, forth: bool) -> str | None:
    """The name on the other side of a diff of an instruction that got another name; None where none is paired with it.

    Besides the name its operands or attributes may differ, but not its opcode: that is another instruction.
    """
    for change in (*diff.renamed, *diff.modified):
        if change.old_name is not None and "opcode" not in change.what:
            if forth and change.old_name == name:
                return change.name
            if not forth and change.name == name:
                return change.old_name
    return None


def follow(
    read: Callable[[int], bytes], numbers: Iterable[int], start: int, name: str, *, forth: bool, seconds: float
) -> Iterator[Place]:
    """The places of an instruction in other stages, in the order of `numbers`, which lead away from the one that it
    is known in (`start`), towards later ones with `forth`.

    A stage that has neither its name nor a partner is passed over. After `seconds`, or in stages of more than
    `MOST_BYTES`, only names count.
    """
    until = time.monotonic() + seconds
    here, known = start, find_definition(read(start), name, start) is not None
    for number in numbers:
        data = read(number)
        found = find_definition(data, name, number)
        if found is None and known:
            own = read(here)
            if len(data) + len(own) <= 2 * MOST_BYTES and time.monotonic() < until:
                first, last = (own, data) if forth else (data, own)
                older, newer = _index(first), _index(last)
                other = other_name(diff_indexes(older, newer), name, forth=forth)
                if other is None:
                    other = _copied(older, newer, name, forth=forth)
                found = None if other is None else find_definition(data, other, number)
            known = found is not None
        if found is not None:
            here, name, known = number, found.name, True
            yield found


def alike(index: ModuleIndex, here: ModuleIndex, i: int) -> list[int]:
    """Instructions with the opcode and the op_name of one of another stage, and what else they may have of it."""
    op_name, opcode = here.op_name(i), here.opcode(i)
    if not op_name:
        return []
    found = index.search(f"^{re.escape(op_name)}$", "op_name")
    among = [one for one in found if index.opcode(one) == opcode]
    tests: tuple[Callable[[ModuleIndex, int], object], ...] = (
        lambda text, k: without_layout(text.shape_text(k)),
        lambda text, k: text.frames(k),
    )
    for told in tests:
        closer = [one for one in among if told(index, one) == told(here, i)]
        among = closer or among
    return among


def _copied(older: ModuleIndex, newer: ModuleIndex, name: str, *, forth: bool) -> str | None:
    """The name on the other side of what a pass copied: the only one alike in the older stage, which may have several
    copies in the newer; from the older one, the only copy."""
    here = older if forth else newer
    i = here.find(name)
    if i is None or here.opcode(i) == "parameter":
        return None
    sources, copies = alike(older, here, i), alike(newer, here, i)
    if len(sources) != 1 or forth and len(copies) != 1:
        return None
    return newer.name(copies[0]) if forth else older.name(sources[0])


def _index(data: bytes) -> ModuleIndex:
    return ModuleIndex.from_text(data.decode("utf-8", "replace"))
