"""Code lenses: above each computation who calls it; above a dump's stage where it stands among the others; above each
instruction that the pass before the stage made, changed or renamed, that pass."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from lsprotocol import types

from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.views.diff import diff_indexes
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS, Feature
from hloscope.lsp.features.stages import dump_of, is_bookend, local_path, place_in_dump

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.views.data import StageDiff
    from hloscope.lsp.features.stages import PlaceInDump

_MOST = 2_000
_COMPARED_INSTRUCTIONS = 10_000
"""Comparing larger stages takes longer than an answer may."""


def lenses(reading: Reading, params: types.CodeLensParams) -> list[types.CodeLens]:
    """Lenses of the text; those of computations are left out on a large text."""
    del params
    index = reading.index
    out: list[types.CodeLens] = []
    place = place_in_dump(reading.uri)
    if place is not None:
        out.extend(_stage(reading, place))
    if index.instruction_count > FULL_INSTRUCTIONS:
        return out
    for one in index.computations[:_MOST]:
        if not one.name:
            continue
        callers = index.callers(one.number)
        title = "entry" if one.is_entry else f"{len(callers)} caller{'s'[: len(callers) != 1]}"
        title += f" · {len(one):,} instructions"
        out.append(_lens(reading.range(*one.name_span), title, "", []))
    return out


def _stage(reading: Reading, place: PlaceInDump) -> Iterator[types.CodeLens]:
    """Where the stage stands, and what its pass changed."""
    top = types.Range(types.Position(0, 0), types.Position(0, 0))
    path = local_path(reading.uri) or ""
    after = "" if not place.pass_name else place.pass_name if is_bookend(path) else f"after {place.pass_name}"
    row = "" if place.row is None else f"[{place.row}] "
    yield _lens(top, f"{row}stage {place.number} of {place.count} {after}".strip(), "", [])
    for title, command in (("◀ previous", "hloscope.previousStage"), ("next ▶", "hloscope.nextStage")):
        yield _lens(top, title, command, [reading.uri, "", 0])
    found = _changes(reading)
    if found is None:
        return
    count = {
        "added": len(found.added),
        "modified": len(found.modified),
        "removed": len(found.removed),
        "renamed": len(found.renamed),
    }
    words = ", ".join(f"{number:,} {what}" for what, number in count.items() if number)
    if words:
        yield _lens(top, f"{words} · diff", "hloscope.peekDiff", [reading.uri])
    index = reading.index
    # A stage with a name of its own follows many passes, of which the dump may show none.
    several = is_bookend(path)
    maker = "since the stage before" if several or not place.pass_name else f"by {place.pass_name}"
    left = _MOST
    for verb, changes in (("made", found.added), ("changed", found.modified), ("renamed", found.renamed)):
        for change in changes[: max(0, left)]:
            i = index.find(change.name, change.computation)
            if i is None:
                continue
            left -= 1
            users = len(index.users(i))
            what = f" ({', '.join(change.what)})" if verb == "changed" and change.what else ""
            if change.old_name is not None:
                what += f", was %{change.old_name}"
            title = f"{verb} {maker}{what} · diff · {users} user{'s'[: users != 1]}"
            yield _lens(reading.range(*index.name_span(i)), title, "hloscope.peekDiff", [reading.uri, change.name])


def _changes(reading: Reading) -> StageDiff | None:
    """From the stage before to the text as it is; None where there is none before, or they are large."""
    place = dump_of(reading.uri)
    if place is None or not place.before or reading.index.instruction_count > _COMPARED_INSTRUCTIONS:
        return None
    path = place.files[place.before - 1][0]
    try:
        changed = os.stat(path).st_mtime_ns
        before = _index(path, changed)
    except OSError:
        return None
    if before.instruction_count > _COMPARED_INSTRUCTIONS:
        return None
    return diff_indexes(before, reading.index)


@lru_cache(maxsize=4)
def _index(path: str, changed: int) -> ModuleIndex:
    del changed
    with open(path, encoding="utf-8", errors="replace", newline="") as opened:
        return ModuleIndex.from_text(opened.read())


def _lens(where: types.Range, title: str, command: str, arguments: list[object]) -> types.CodeLens:
    return types.CodeLens(where, command=types.Command(title, command, arguments=arguments or None))


FEATURE = Feature(
    types.TEXT_DOCUMENT_CODE_LENS,
    lenses,
    heavy=True,
    options=types.CodeLensOptions(resolve_provider=False),
    large="no lenses on computations",
)
