"""Positions in HLO text: skipping blanks and comments, finding the end of a value, and lines from offsets."""

from __future__ import annotations

import re
from bisect import bisect_right

from hloscope.core.hlo.attributes import skip_string

BLANK = re.compile(r"(?:[\s]+|//[^\n\r]*|/\*.*?\*/)*", re.S)
NAME = re.compile(r"%?([A-Za-z_][\w.\-]*)")
_STRUCTURE = re.compile(r"[\"(){}\[\]]")
_BARE = re.compile(r"(?:<=|->|\[[^\]]*\]|\([^()]*\)|[^\s,(){}\[\]\"'])+")

_CLOSERS = {"(": ")", "{": "}", "[": "]"}


def skip_blank(text: str, pos: int) -> int:
    """The first position at or after `pos` that is neither blank nor comment."""
    found = BLANK.match(text, pos)
    return found.end() if found is not None else pos


def match_bracket(text: str, pos: int) -> int:
    """The position after the bracket that closes the one at `pos`; -1 where the text ends or another kind closes first.

    Double-quoted strings are skipped; brackets of other kinds inside must pair up as well.
    """
    wanted: list[str] = []
    i = pos
    while True:
        found = _STRUCTURE.search(text, i)
        if found is None:
            return -1
        ch = found[0]
        if ch == '"':
            i = skip_string(text, found.start())
            continue
        i = found.end()
        if ch in _CLOSERS:
            wanted.append(_CLOSERS[ch])
        elif not wanted or wanted.pop() != ch:
            return -1
        elif not wanted:
            return i


def value_end(text: str, pos: int) -> int:
    """The end of the attribute value at `pos`: a string, a bracket group, or a bare word; -1 if there is none."""
    if pos >= len(text):
        return -1
    ch = text[pos]
    if ch in "\"'":
        end = skip_string(text, pos)
        return end if text[end - 1] == ch and end - 1 > pos else -1
    if ch == "{":
        return match_bracket(text, pos)
    if ch == "(":
        end = match_bracket(text, pos)
        # A shape's arrow (``(…)->…``) belongs to the value.
        if end > 0 and text.startswith("->", skip_blank(text, end)):
            return value_end(text, skip_blank(text, end) + 2)
        return end
    found = _BARE.match(text, pos)
    if found is None:
        return -1
    end = found.end()
    # An array shape carries its layout (``f32[2]{0}``) and a literal after it, a mesh its axes (``mesh['a'=2] {'a'}``).
    if text[end - 1] == "]":
        brace = skip_blank(text, end)
        while text.startswith("{", brace):
            end = match_bracket(text, brace)
            if end < 0:
                return -1
            brace = skip_blank(text, end)
    return end


class LineMap:
    """Lines and columns of character offsets in one text."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        self._starts.extend(m.end() for m in re.finditer(r"\r\n|\n|\r", text))

    def position(self, offset: int) -> tuple[int, int]:
        """1-based line and column of an offset."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1
