"""Semantic tokens: the colours of the dashboard in the protocol's words, for a range or for a whole text.

A whole text of more than `FULL_INSTRUCTIONS` gets none: clients ask for the visible range as well, and colouring
megabytes that nobody looks at would keep a worker busy for seconds. A token over several lines (a string with raw line
ends) is cut at each, since many clients take single-line tokens only.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from lsprotocol import types

from hloscope.core.text.highlight import tokens
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS, Feature

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS: Mapping[str, types.SemanticTokenTypes] = MappingProxyType(
    {
        "name": types.SemanticTokenTypes.Variable,
        "define": types.SemanticTokenTypes.Variable,
        "opcode": types.SemanticTokenTypes.Function,
        "shape": types.SemanticTokenTypes.Type,
        "layout": types.SemanticTokenTypes.Decorator,
        "key": types.SemanticTokenTypes.Property,
        "string": types.SemanticTokenTypes.String,
        "number": types.SemanticTokenTypes.Number,
        "comment": types.SemanticTokenTypes.Comment,
        "keyword": types.SemanticTokenTypes.Keyword,
    }
)
"""Class of the highlighter -> the protocol's token type."""

_TYPES = list(dict.fromkeys(_KINDS.values()))
_NUMBER = {kind: _TYPES.index(word) for kind, word in _KINDS.items()}
_DEFINITION = 1

LEGEND = types.SemanticTokensLegend(
    token_types=[word.value for word in _TYPES], token_modifiers=[types.SemanticTokenModifiers.Definition.value]
)


def encode(reading: Reading, start: int, end: int) -> types.SemanticTokens:
    """Tokens of ``text[start:end]`` as the protocol's five numbers each, relative to the token before."""
    spans: list[tuple[int, int, str]] = []
    for first, last, kind in tokens(reading.text, start, end):
        while True:
            line_end = reading.lines.line_end(reading.lines.line_of(first))
            if last <= line_end:
                break
            if line_end > first:
                spans.append((first, line_end, kind))
            line = reading.lines.line_of(first) + 1
            if line >= reading.lines.line_count:
                break
            first = int(reading.lines.starts[line])
        if last > first:
            spans.append((first, last, kind))
    if not spans:
        return types.SemanticTokens(data=[])
    lines, columns = reading.lines.positions(np.asarray([s[0] for s in spans]), reading.encoding)
    _, ends = reading.lines.positions(np.asarray([s[1] for s in spans]), reading.encoding)
    data: list[int] = []
    line_before = column_before = 0
    for (_, _, kind), line, column, stop in zip(spans, lines, columns, ends, strict=True):
        step = line - line_before
        data += (step, column if step else column - column_before, stop - column, _NUMBER[kind])
        data.append(_DEFINITION if kind == "define" else 0)
        line_before, column_before = line, column
    return types.SemanticTokens(data=data)


def full(reading: Reading, params: types.SemanticTokensParams) -> types.SemanticTokens | None:
    """Tokens of the whole text; None above the limit."""
    del params
    if reading.index.instruction_count > FULL_INSTRUCTIONS:
        return None
    return encode(reading, 0, len(reading.text))


def ranged(reading: Reading, params: types.SemanticTokensRangeParams) -> types.SemanticTokens:
    """Tokens of a range."""
    return encode(reading, reading.offset(params.range.start), reading.offset(params.range.end))


FULL = Feature(
    types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL,
    full,
    heavy=True,
    options=LEGEND,
    large="colours of the visible range only",
)
RANGE = Feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_RANGE, ranged, heavy=True, options=LEGEND)
