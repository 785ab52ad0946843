"""Selection ranges: word, instruction, computation, everything."""

from __future__ import annotations

from lsprotocol import types

from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature


def selection(reading: Reading, params: types.SelectionRangeParams) -> list[types.SelectionRange]:
    """For each position the ranges around it, smallest first."""
    return [_around(reading, reading.offset(position)) for position in params.positions]


def _around(reading: Reading, offset: int) -> types.SelectionRange:
    index = reading.index
    target = index.at_offset(offset)
    spans = [(0, len(reading.text))]
    if target.computation >= 0:
        spans.append(index.computation(target.computation).span)
    if target.instruction >= 0:
        spans.append(index.span(target.instruction))
    if target.kind != "none":
        spans.append(target.span)
    found: types.SelectionRange | None = None
    last: tuple[int, int] | None = None
    for start, end in spans:
        if last is None or (last[0] <= start and end <= last[1] and (start, end) != last):
            found = types.SelectionRange(reading.range(start, end), parent=found)
            last = start, end
    assert found is not None
    return found


FEATURE = Feature(types.TEXT_DOCUMENT_SELECTION_RANGE, selection)
