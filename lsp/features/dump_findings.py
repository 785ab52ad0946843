"""What the dump around a stage says of its instructions, as diagnostics: copies with their cause, refused fusions,
hazards.

None is an error of the text. Names that the open text does not have are left out, so that every stage of a dump shows
what it is about.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from hloscope.lsp.convert import SOURCE
from hloscope.lsp.documents import Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.lsp.settings import Settings

Other = tuple[str | int | None, str]
"""Another place of a finding: a name in the same computation or an instruction's number, and what it has to do with it.
"""
_MOST = 300
_SPACE = re.compile(r":?S\(\d+\)")
_LEAST_BYTES = 1024
"""Copies that keep the layout and move less are left to hovers: a loop's counter and the like."""
_OTHERS = 4
"""Places that a finding leads to, of a kind."""


def from_dump(reading: Reading, settings: Settings) -> list[types.Diagnostic]:
    """The findings, at the names of the instructions as the text is now."""
    facts = None if reading.companion is None else reading.companion.facts
    if facts is None or not settings.advice:
        return []
    out: list[types.Diagnostic] = []
    for row in {id(row): row for row in facts.copies.values()}.values():
        found = _copy(reading, row)
        if found is not None:
            out.append(found)
    for row in facts.refused:
        if (row["bytes"] or 0) < settings.refused_fusion_bytes:
            break
        found = _refused(reading, row)
        if found is not None:
            out.append(found)
    for row in facts.hazards:
        found = _hazard(reading, row)
        if found is not None:
            out.append(found)
    return out[:_MOST]


def _copy(reading: Reading, row: Mapping[str, Any]) -> types.Diagnostic | None:
    index = reading.index
    i = next((at for name in row["names"] if (at := index.find(name)) is not None), None)
    if i is None:
        return None
    size = "" if row["bytes"] is None else f"{row['bytes']:,} bytes"
    if _SPACE.sub("", row["from"]) == _SPACE.sub("", row["to"]):
        if (row["bytes"] or 0) < _LEAST_BYTES:
            return None
        message = f"copy{size and ' of '}{size} (by {row['pass']}): {row['sentence']}"
        code, severity, wants, has = "copy-cause", types.DiagnosticSeverity.Hint, "reads the copy", "is copied"
    else:
        moved = f"{size} from {row['from']} to {row['to']}".strip()
        message = f"layout copy: {moved} (by {row['pass']}): {row['sentence']}"
        code, severity = "layout-copy-cause", types.DiagnosticSeverity.Information
        wants, has = "wants the other layout", "has this layout"
    if row["remedy"] is not None:
        message += f". To remove it: {row['remedy']}"
    # In a later stage than that of the copy its neighbours may have other names.
    here = index.computation_of(i)
    reader = None if row["instruction"] is None else index.find(row["instruction"], here)
    if reader is None or index.opcode(reader) == "copy-done":
        readers = _readers(index, i)
    else:
        readers = [(row["instruction"], wants)]
    source: list[Other] = [(row["operand"], has)]
    if row["operand"] is None or index.find(row["operand"], here) is None:
        source = [(one, "is copied") for one in index.operands(i)[:1] if one >= 0]
    return _at(reading, i, message, code, severity, [*readers, *source])


def _readers(index: ModuleIndex, i: int) -> list[Other]:
    """Who reads a copy; of one that is under way, who reads its end; of a computation's result, who calls that."""
    users: list[int] = []
    for user in index.users(i):
        users += index.users(user) if index.opcode(user) == "copy-done" else [user]
    here = index.computation_of(i)
    if not users and index.computation(here).root == i:
        return [(one, "has the copy as its result") for one in index.callers(here)[:_OTHERS]]
    return [(one, "reads the copy") for one in users[:_OTHERS]]


def _refused(reading: Reading, row: Mapping[str, Any]) -> types.Diagnostic | None:
    index = reading.index
    i = index.find(row["producer"])
    if i is None or row["consumers"] and not any(index.find(name) is not None for name in row["consumers"]):
        return None
    consumers = ", ".join(f"%{name}" for name in row["consumers"][:4]) or "its users"
    size = "an unknown number of" if row["bytes"] is None else f"{row['bytes']:,}"
    numbers = f"{size} bytes written and read again"
    fused, unfused = row["us"]
    if fused is not None and unfused is not None:
        numbers += f", {fused:.3g} µs fused and {unfused:.3g} µs apart"
    likely = "likely, " if row["origin"] == "inferred" else ""
    message = f"not fused into {consumers} ({likely}{row['code']}): {row['reason']}; {numbers}"
    others: list[Other] = [(name, "reads it") for name in row["consumers"] or index.users(i)[:_OTHERS]]
    return _at(reading, i, message, "fusion-refused", types.DiagnosticSeverity.Hint, others)


def _hazard(reading: Reading, row: Mapping[str, Any]) -> types.Diagnostic | None:
    i = reading.index.find(row["instruction"])
    if i is None:
        return None
    severity = types.DiagnosticSeverity.Warning if row["error"] else types.DiagnosticSeverity.Information
    return _at(reading, i, row["message"], f"buffer-{row['code']}", severity, [(row["other"], "takes part")])


def _at(
    reading: Reading,
    i: int,
    message: str,
    code: str,
    severity: types.DiagnosticSeverity,
    others: list[Other],
) -> types.Diagnostic:
    index = reading.index
    related: list[types.DiagnosticRelatedInformation] = []
    for name, words in others:
        at = index.find(name, index.computation_of(i)) if isinstance(name, str) else name
        if at is not None and at != i:
            place = reading.location(*index.name_span(at))
            related.append(types.DiagnosticRelatedInformation(place, f"%{index.name(at)} {words}"))
    where = reading.range(*index.name_span(i))
    return types.Diagnostic(where, message, severity, code, source=SOURCE, related_information=related or None)
