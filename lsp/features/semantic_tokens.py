"""Semantic tokens: the colours of the dashboard in the protocol's words, for a range or for a whole text.

A client that asks for changes (``full/delta``) gets the tokens between the first and the last line that differ: only
these are coloured again. A whole text of more than `FULL_TOKENS` gets none: clients ask for the visible range as
well, and colouring megabytes that nobody looks at would keep a worker busy for seconds. A token over several lines (a
string with raw line ends) is cut at each, since many clients take single-line tokens only.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from lsprotocol import types

from hloscope.core.text.highlight import tokens, understood
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature

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
_STRUCTURE = re.compile(r"[\"\\(){}\[\]/*]")
"""What strings, comments, lists and the blocks of a text begin or end with."""
FULL_TOKENS = 5_000
"""Instructions up to which a whole text is coloured at once: ten thousand take seconds."""
_BROKEN_TOKENS = 1_000
"""Instructions up to which a whole text is coloured for each letter of an instruction that is no whole one yet."""

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


@dataclass(frozen=True, slots=True)
class _Given:
    """What a client was given last for a text."""

    number: str
    reading: Reading
    data: np.ndarray
    """Five numbers a row."""


class TokenMemory:
    """The last answer for each text of one client, from which the next is made."""

    _MOST = 8

    def __init__(self) -> None:
        self._given: OrderedDict[str, _Given] = OrderedDict()
        self._numbers = itertools.count(1)
        self._lock = Lock()

    def full(self, reading: Reading, params: types.SemanticTokensParams) -> types.SemanticTokens | None:
        """Tokens of the whole text; None above the limit."""
        del params
        if reading.index.instruction_count > FULL_TOKENS:
            return None
        given = self._known(reading, None)
        return types.SemanticTokens(given.data.reshape(-1).tolist(), given.number)

    def delta(
        self, reading: Reading, params: types.SemanticTokensDeltaParams
    ) -> types.SemanticTokens | types.SemanticTokensDelta | None:
        """The difference to the answer that the client has; the whole where that one is not known any more."""
        if reading.index.instruction_count > FULL_TOKENS:
            return None
        with self._lock:
            before = self._given.get(reading.uri)
        given = self._known(reading, before)
        if before is None or before.number != params.previous_result_id:
            return types.SemanticTokens(given.data.reshape(-1).tolist(), given.number)
        start, old_end, new_end = _differing(before.data, given.data)
        edits: list[types.SemanticTokensEdit] = []
        if start < max(old_end, new_end):
            data = given.data[start:new_end].reshape(-1).tolist()
            edits.append(types.SemanticTokensEdit(5 * start, 5 * (old_end - start), data))
        return types.SemanticTokensDelta(edits, given.number)

    def _known(self, reading: Reading, before: _Given | None) -> _Given:
        data = None if before is None else _recoloured(before, reading)
        if data is None:
            data = np.array(encode(reading, 0, len(reading.text)).data, np.int32).reshape(-1, 5)
        with self._lock:
            given = _Given(str(next(self._numbers)), reading, data)
            self._given[reading.uri] = given
            self._given.move_to_end(reading.uri)
            while len(self._given) > self._MOST:
                self._given.popitem(last=False)
        return given


def _recoloured(before: _Given, reading: Reading) -> np.ndarray | None:
    """The tokens of a text from those of an earlier one; None where too much differs."""
    old, new = before.reading.text, reading.text
    start = _common(old, new)
    end = _common_end(old, new, start)
    if len(new) - end - start > max(10_000, len(new) // 4):
        return None
    if _STRUCTURE.findall(old, start, len(old) - end) != _STRUCTURE.findall(new, start, len(new) - end):
        return None  # a quote or bracket may give all that follows other colours
    # Whole instructions: a string over several lines is coloured as one.
    first = [reading.index.instruction_at(start), before.reading.index.instruction_at(start)]
    if None in first:
        return None  # a table, or a line that is none yet: what stands around it decides
    begin = min([start, *(int(r.index.span(i)[0]) for r, i in zip((reading, before.reading), first) if i is not None)])
    stop_new, stop_old = len(new) - end, len(old) - end
    last_new, last_old = reading.index.instruction_at(stop_new), before.reading.index.instruction_at(stop_old)
    beyond = max(
        0 if last_new is None else reading.index.span(last_new)[1] - stop_new,
        0 if last_old is None else before.reading.index.span(last_old)[1] - stop_old,
    )
    line = reading.lines.line_of(begin)
    after_new = reading.lines.line_of(min(len(new), stop_new + beyond)) + 1
    after_old = before.reading.lines.line_of(min(len(old), stop_old + beyond)) + 1
    if after_new >= reading.lines.line_count or after_old >= before.reading.lines.line_count:
        return None
    lines = np.cumsum(before.data[:, 0])
    low, high = int(np.searchsorted(lines, line)), int(np.searchsorted(lines, after_old))
    middle_lines = slice(int(reading.lines.starts[line]), int(reading.lines.starts[after_new]))
    if reading.index.instruction_count <= _BROKEN_TOKENS and not understood(new[middle_lines]):
        return None
    middle = np.array(encode(reading, middle_lines.start, middle_lines.stop).data, np.int32).reshape(-1, 5)
    tail = before.data[high:].copy()
    shift = after_new - after_old
    line_before = int(lines[low - 1]) if low else 0
    if len(middle):
        line_of_last = int(middle[:, 0].sum())
        middle[0, 0] -= line_before
    else:
        line_of_last = line_before
    if len(tail):
        tail[0, 0] = int(lines[high]) + shift - line_of_last
    return np.concatenate((before.data[:low], middle, tail))


def _common(a: str, b: str) -> int:
    """Length of the common beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_end(a: str, b: str, start: int) -> int:
    """Length of the common end behind `start`."""
    low, high = 0, min(len(a), len(b)) - start
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def _differing(a: np.ndarray, b: np.ndarray) -> tuple[int, int, int]:
    """First row that differs, and one past the last in each."""
    n = min(len(a), len(b))
    same = (a[:n] == b[:n]).all(axis=1)
    start = n if bool(same.all()) else int(np.argmin(same))
    left = n - start
    same = (a[len(a) - left :] == b[len(b) - left :]).all(axis=1)[::-1] if left else np.zeros(0, bool)
    end = left if bool(same.all()) else int(np.argmin(same))
    return start, len(a) - end, len(b) - end


def ranged(reading: Reading, params: types.SemanticTokensRangeParams) -> types.SemanticTokens:
    """Tokens of a range."""
    return encode(reading, reading.offset(params.range.start), reading.offset(params.range.end))


RANGE = Feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_RANGE, ranged, heavy=True, options=LEGEND)
LARGE = "colours of the visible range only"


def remembering() -> tuple[Feature, ...]:
    """The requests about whole texts, with a memory of their own for one client."""
    memory = TokenMemory()
    return (
        Feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, memory.full, heavy=True, options=LEGEND, large=LARGE),
        Feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL_DELTA, memory.delta, heavy=True, options=LEGEND, large=LARGE),
    )
