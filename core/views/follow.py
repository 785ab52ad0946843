"""One instruction from stage to stage: by its name, and where a pass renamed it, by what the matching pairs it with."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.views.diff import diff_indexes
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
                other = other_name(diff_indexes(_index(first), _index(last)), name, forth=forth)
                found = None if other is None else find_definition(data, other, number)
            known = found is not None
        if found is not None:
            here, name, known = number, found.name, True
            yield found


def _index(data: bytes) -> ModuleIndex:
    return ModuleIndex.from_text(data.decode("utf-8", "replace"))
