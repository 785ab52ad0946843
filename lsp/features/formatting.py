"""Formatting: the text as our printer writes it in the form of XLA's dumps; a text with errors is left alone.

A text with comments, which the printer does not have, is formatted instruction by instruction.
"""

from __future__ import annotations

import re

from lsprotocol import types

from hloscope.core.errors import UsageError
from hloscope.core.hlo.attributes import split_top
from hloscope.core.text import parse_module, print_module
from hloscope.core.text.instruction_text import scan_instruction
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS, Feature

_STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.S)
_COMMENT = re.compile(r"/\*|//")
_INDEX = re.compile(r"/\*index=\d+\*/")
"""What XLA puts between the parts of a long tuple, and the printer too."""
_MANY = re.compile(r"\s+")


def formatting(reading: Reading, params: types.DocumentFormattingParams) -> list[types.TextEdit]:
    """One edit of the whole text, or none where it stands already. Raises UsageError for a text with errors."""
    del params
    if reading.index.instruction_count > FULL_INSTRUCTIONS:
        raise UsageError(f"more than {FULL_INSTRUCTIONS:,} instructions are not formatted")
    module, found = parse_module(reading.text)
    errors = [one for one in found if one.severity == "error"]
    if module is None or errors:
        raise UsageError("the text has errors: it is left as it is" if errors else "there is no module to format")
    if _COMMENT.search(_INDEX.sub("", _STRINGS.sub('""', reading.text))):
        return _instructions(reading, 0, len(reading.text))
    text = print_module(module)
    if text == reading.text:
        return []
    return [types.TextEdit(reading.range(0, len(reading.text)), text)]


def ranged(reading: Reading, params: types.DocumentRangeFormattingParams) -> list[types.TextEdit]:
    """Instructions of a range, each on one line as XLA's dumps have it.

    Left alone are those with faults or comments, and where several share a line. Words are not changed: what the text
    leaves out (operand shapes, percent signs) stays left out.
    """
    return _instructions(reading, reading.offset(params.range.start), reading.offset(params.range.end))


def _instructions(reading: Reading, start: int, end: int) -> list[types.TextEdit]:
    index = reading.index
    edits: list[types.TextEdit] = []
    first, last = (int(index.columns.starts.searchsorted(one)) for one in (start, end))
    for i in range(max(0, first - 1), last):
        begin, stop = index.span(i)
        line_start = reading.text.rfind("\n", 0, begin) + 1
        if stop < start or reading.text[line_start:begin].strip():
            continue
        text = reading.text[line_start:stop]
        line = _line(reading.text, begin)
        if line is not None and line != text:
            edits.append(types.TextEdit(reading.range(line_start, stop), line))
    return edits


def _line(text: str, begin: int) -> str | None:
    """The canonical line of the instruction at an offset; None where it had better be left alone."""
    part = scan_instruction(text, begin)
    if part is None or part.problems or part.shape is None or part.opcode is None or part.operands is None:
        return None
    if _COMMENT.search(_STRINGS.sub('""', text[begin : part.end])):
        return None
    percent = "%" if text[part.name[0] - 1 : part.name[0]] == "%" else ""
    operands = ", ".join(_blanks(one) for one in split_top(text[slice(*part.operands)]))
    if text[slice(*part.opcode)] == "constant":
        operands = text[slice(*part.operands)].strip()
    attributes = "".join(f", {one.key}={text[slice(*one.value)]}" for one in part.attributes)
    head = f"  {'ROOT ' if part.is_root else ''}{percent}{text[slice(*part.name)]}"
    shape, opcode = _blanks(text[slice(*part.shape)]), text[slice(*part.opcode)]
    return f"{head} = {shape} {opcode}({operands}){attributes}"


def _blanks(text: str) -> str:
    """One blank where there are several; strings are not touched."""
    parts = _STRINGS.split(text)
    strings = _STRINGS.findall(text)
    out = [_MANY.sub(" ", parts[0])]
    for string, part in zip(strings, parts[1:], strict=True):
        out += [string, _MANY.sub(" ", part)]
    return "".join(out).strip()


FEATURE = Feature(types.TEXT_DOCUMENT_FORMATTING, formatting, heavy=True)
RANGE = Feature(types.TEXT_DOCUMENT_RANGE_FORMATTING, ranged, heavy=True)
