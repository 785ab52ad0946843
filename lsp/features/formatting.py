"""Formatting: the text as our printer writes it in the form of XLA's dumps; a text with errors is left alone."""

from __future__ import annotations

from lsprotocol import types

from hloscope.core.errors import UsageError
from hloscope.core.text import parse_module, print_module
from hloscope.core.text.instruction_text import scan_instruction
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS, Feature


def formatting(reading: Reading, params: types.DocumentFormattingParams) -> list[types.TextEdit]:
    """One edit of the whole text, or none where it stands already. Raises UsageError for a text with errors."""
    del params
    if reading.index.instruction_count > FULL_INSTRUCTIONS:
        raise UsageError(f"more than {FULL_INSTRUCTIONS:,} instructions are not formatted")
    module, found = parse_module(reading.text)
    errors = [one for one in found if one.severity == "error"]
    if module is None or errors:
        raise UsageError("the text has errors: it is left as it is" if errors else "there is no module to format")
    text = print_module(module)
    if text == reading.text:
        return []
    return [types.TextEdit(reading.range(0, len(reading.text)), text)]


def ranged(reading: Reading, params: types.DocumentRangeFormattingParams) -> list[types.TextEdit]:
    """Instructions of a range, each on its line with one blank between its parts."""
    index = reading.index
    start, end = reading.offset(params.range.start), reading.offset(params.range.end)
    edits: list[types.TextEdit] = []
    first, last = (int(index.columns.starts.searchsorted(one)) for one in (start, end))
    for i in range(max(0, first - 1), last):
        begin, stop = index.span(i)
        line_start = reading.text.rfind("\n", 0, begin) + 1
        if reading.text[line_start:begin].strip() not in ("", "ROOT"):
            continue  # several on one line: leave it
        found = scan_instruction(reading.text, begin)
        indent = reading.text[line_start : line_start + len(reading.text[line_start:begin])]
        if found is not None and indent.strip() == "" and indent != "  ":
            edits.append(types.TextEdit(reading.range(line_start, begin), "  "))
        del stop
    return edits


FEATURE = Feature(types.TEXT_DOCUMENT_FORMATTING, formatting, heavy=True)
RANGE = Feature(types.TEXT_DOCUMENT_RANGE_FORMATTING, ranged, heavy=True)
