"""What the dump around a stage says of its instructions, as diagnostics: copies with their cause, refused fusions,
hazards.

None is an error of the text. Names that the open text does not have are left out, so that every stage of a dump shows
what it is about.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lsprotocol import types

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.shape import Shape
from hloscope.core.views.copies_words import what_moves
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
_NAME = re.compile(r"%([\w.\-]+)")
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


@dataclass(frozen=True, slots=True)
class CopyHere:
    """A copy as the open text has it, which may be a later stage than the one in which it appeared."""

    i: int
    before: str
    """Layout of what is copied."""
    after: str
    size: int | None
    moves: str
    """What differs between the two, in words."""
    same: bool
    """Whether the layouts are those with which it appeared, in whatever memory."""
    told: bool
    """Whether all names of the cause's sentence are those of this text, too."""

    @property
    def keeps(self) -> bool:
        """Whether only the memory space differs, if that."""
        return _placeless(self.before) == _placeless(self.after)


def copy_here(index: ModuleIndex, row: Mapping[str, Any]) -> CopyHere | None:
    """A copy that the dump tells of, in the open text; None where it has none of its names."""
    places = (index.find(name) for name in row["names"])
    i = next((at for at in places if at is not None and index.opcode(at) in ("copy", "copy-start")), None)
    if i is None:
        return None
    named = all(
        index.find(name) is not None or index.find_computation(name) is not None
        for name in _NAME.findall(row["sentence"])
    )
    given = next(iter(index.operands(i)), -1)
    source = None if given < 0 else _shape(index, given)
    target = _shape(index, i)
    if target is not None and target.is_tuple:
        target = target.tuple_shapes[0]
    if source is None or target is None or not source.is_array or not target.is_array:
        return CopyHere(i, row["from"], row["to"], row["bytes"], "", True, named)
    before, after = str(source.layout or ""), str(target.layout or "")
    same = _placeless(before) == _placeless(row["from"]) and _placeless(after) == _placeless(row["to"])
    return CopyHere(i, before, after, target.byte_size, what_moves(source, target), same, same and named)


def _placeless(layout: str) -> str:
    """A layout without its memory space."""
    return _SPACE.sub("", layout)


def _shape(index: ModuleIndex, i: int) -> Shape | None:
    try:
        found = Shape.parse(index.shape_text(i)).with_default_layout()
        return found if found.byte_size >= 0 else None
    except (HloscopeError, ValueError, KeyError):
        return None


def cause_of(row: Mapping[str, Any], here: CopyHere) -> str:
    """Why the copy is there; where the text is of another stage, as of the one in which it appeared."""
    if here.told:
        return row["sentence"]
    sides = "" if here.same else f", from {row['from']} to {row['to']}"
    return f"when it appeared{sides}: {row['sentence']}"


def _copy(reading: Reading, row: Mapping[str, Any]) -> types.Diagnostic | None:
    index = reading.index
    found = copy_here(index, row)
    if found is None:
        return None
    i = found.i
    size = "" if found.size is None else f"{found.size:,} bytes"
    moves = f"{found.moves}; " if found.moves and not found.same else ""
    because = f"(by {row['pass']}): {moves}{cause_of(row, found)}"
    if found.keeps:
        if (found.size or 0) < _LEAST_BYTES:
            return None
        message = f"copy{size and ' of '}{size} {because}"
        code, severity, wants, has = "copy-cause", types.DiagnosticSeverity.Hint, "reads the copy", "is copied"
    else:
        message = f"layout copy: {size}{size and ' '}from {found.before} to {found.after} {because}"
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
    source: list[Other] = [
        (one, has if index.name(one) == row["operand"] else "is copied") for one in index.operands(i)[:1] if one >= 0
    ]
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
