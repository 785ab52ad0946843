"""What the dump around a stage says of its instructions, as diagnostics: copies with their cause, refused fusions,
hazards.

None is an error of the text. Names that the open text does not have are left out, so that every stage of a dump shows
what it is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lsprotocol import types

from hloscope.lsp.convert import SOURCE
from hloscope.lsp.documents import Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.lsp.settings import Settings

_MOST = 300


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
    moved = "" if row["bytes"] is None else f"{row['bytes']:,} bytes "
    message = f"layout copy: {moved}from {row['from']} to {row['to']} (by {row['pass']}): {row['sentence']}"
    if row["remedy"] is not None:
        message += f". To remove it: {row['remedy']}"
    others = [(row["instruction"], "wants the other layout"), (row["operand"], "has this layout")]
    return _at(reading, i, message, "layout-copy-cause", types.DiagnosticSeverity.Information, others)


def _refused(reading: Reading, row: Mapping[str, Any]) -> types.Diagnostic | None:
    index = reading.index
    i = index.find(row["producer"])
    if i is None or row["consumers"] and not any(index.find(name) is not None for name in row["consumers"]):
        return None
    consumers = ", ".join(f"%{name}" for name in row["consumers"][:4]) or "its users"
    numbers = f"{row['bytes']:,} bytes written and read again"
    fused, unfused = row["us"]
    if fused is not None and unfused is not None:
        numbers += f", {fused:.3g} µs fused and {unfused:.3g} µs apart"
    likely = "likely, " if row["origin"] == "inferred" else ""
    message = f"not fused into {consumers} ({likely}{row['code']}): {row['reason']}; {numbers}"
    others = [(name, "reads it") for name in row["consumers"] or map(index.name, index.users(i)[:4])]
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
    others: list[tuple[str | None, str]],
) -> types.Diagnostic:
    index = reading.index
    related: list[types.DiagnosticRelatedInformation] = []
    for name, words in others:
        at = None if name is None else index.find(name, index.computation_of(i))
        if at is not None and at != i:
            place = reading.location(*index.name_span(at))
            related.append(types.DiagnosticRelatedInformation(place, f"%{name} {words}"))
    where = reading.range(*index.name_span(i))
    return types.Diagnostic(where, message, severity, code, source=SOURCE, related_information=related or None)
