"""Selection ranges: word, operand or attribute, operands, instruction, line, computation, everything."""

from __future__ import annotations

from lsprotocol import types

from hloscope.core.hlo.attributes import split_top
from hloscope.core.text.module_index import ModuleIndex
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
        spans += _parts(index, target.instruction, offset)
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


def _parts(index: ModuleIndex, i: int, offset: int) -> list[tuple[int, int]]:
    """What of an instruction a place is in: an attribute and its value, or the operands and one of them."""
    parts = index.parts(i)
    spans: list[tuple[int, int]] = []
    if parts.shape is not None:
        spans.append(parts.shape)
    for one in parts.attributes:
        spans += [(one.value[0] - len(one.key) - 1, one.value[1]), one.value]
    if parts.operands is not None:
        begin, end = parts.operands
        spans.append(parts.operands)
        for word in split_top(index.source[begin:end]):
            at = index.source.find(word, begin, end)
            spans.append((at, at + len(word)))
            begin = at + len(word)
    return [span for span in spans if span[0] <= offset <= span[1]]


FEATURE = Feature(types.TEXT_DOCUMENT_SELECTION_RANGE, selection)
