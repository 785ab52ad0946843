"""Code lenses: above each computation who calls it; above a dump's stage where it stands among the others."""

from __future__ import annotations

from lsprotocol import types

from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS, Feature
from hloscope.lsp.features.stages import place_in_dump

_MOST = 2_000


def lenses(reading: Reading, params: types.CodeLensParams) -> list[types.CodeLens]:
    """Lenses of the text; those of computations are left out on a large text."""
    del params
    index = reading.index
    out: list[types.CodeLens] = []
    place = place_in_dump(reading.uri)
    if place is not None:
        top = types.Range(types.Position(0, 0), types.Position(0, 0))
        after = f"after {place.pass_name}" if place.pass_name else ""
        out.append(_lens(top, f"stage {place.number} of {place.count} {after}".strip(), "", []))
        for title, command in (("◀ previous", "hloscope.previousStage"), ("next ▶", "hloscope.nextStage")):
            out.append(_lens(top, title, command, [reading.uri, "", 0]))
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


def _lens(where: types.Range, title: str, command: str, arguments: list[object]) -> types.CodeLens:
    return types.CodeLens(where, command=types.Command(title, command, arguments=arguments or None))


FEATURE = Feature(
    types.TEXT_DOCUMENT_CODE_LENS, lenses, heavy=True, options=types.CodeLensOptions(resolve_provider=False)
)
