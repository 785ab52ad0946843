"""Linked editing: a name and all its uses change together while one of them is typed over."""

from __future__ import annotations

from lsprotocol import types

from hloscope.core.views import symbols
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature

_NAMED = ("computation", "computation-reference", "instruction", "operand", "control", "parameter")


def linked_editing(reading: Reading, params: types.LinkedEditingRangeParams) -> types.LinkedEditingRanges | None:
    """The places of the name under the cursor; None where there is none."""
    offset = reading.offset(params.position)
    if reading.index.at_offset(offset).kind not in _NAMED:
        return None
    found = [reading.range(one.span.start, one.span.end) for one in symbols.references(reading.index, offset)]
    return types.LinkedEditingRanges(found, word_pattern=r"[\w.\-]+") if len(found) > 1 else None


FEATURE = Feature(types.TEXT_DOCUMENT_LINKED_EDITING_RANGE, linked_editing)
