"""Positions in HLO text: skipping blanks and comments, finding the end of a value, and lines from offsets."""

from __future__ import annotations

import re
from bisect import bisect_right

from hloscope.core.hlo.attributes import skip_string

BLANKS = r"(?>(?:[\s\0\udc80-\udcff]++|//[^\n\r]*+|/\*(?>(?:[^*]++|\*(?!/))*)\*/)*)"
"""Blanks, comments and stray bytes, as a piece of a pattern; atomic, so that it is walked over once."""
BLANK = re.compile(BLANKS)
NAME = re.compile(r"%?([A-Za-z_][\w.\-]*)")
_STRUCTURE = re.compile(r"[\"(){}\[\]]")
_BARE = re.compile(r"(?:<=|->|\[[^\]]*\]|\([^()]*\)|[^\s,(){}\[\]\"'])+")

_CLOSERS = {"(": ")", "{": "}", "[": "]"}


def skip_blank(text: str, pos: int) -> int:
    """The first position at or after `pos` that is neither blank nor comment."""
    found = BLANK.match(text, pos)
    return found.end() if found is not None else pos


def match_bracket(text: str, pos: int, ends: dict[int, int] | None = None) -> int:
    """The position after the bracket that closes the one at `pos`; -1 where the text ends or another kind closes first.

    Double-quoted strings are skipped; brackets of other kinds inside must pair up as well. `ends` is filled with the
    ends of all parentheses inside, so that what is written inside one another is walked over once.
    """
    if ends is not None:
        if pos in ends:
            return ends[pos]
        starts: list[int] = []
        end = _pair(text, pos, starts, ends)
        for start in starts:  # not closed
            ends[start] = -1
        return end
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


def _pair(text: str, pos: int, starts: list[int], ends: dict[int, int]) -> int:
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
            starts.append(found.start())
        elif not starts or _CLOSERS[text[starts[-1]]] != ch:
            return -1
        else:
            ends[starts.pop()] = i
            if not starts:
                return i


_LINE_STRUCTURE = re.compile(r"[\"(){}\[\]\n]")


def instruction_end(text: str, pos: int) -> int:
    """The end of the line on which every bracket opened since `pos` is closed, or the bracket that closes too much."""
    depth, i = 0, pos
    while True:
        found = _LINE_STRUCTURE.search(text, i)
        if found is None:
            return len(text)
        ch = found[0]
        if ch == '"':
            i = skip_string(text, found.start())
            continue
        i = found.end()
        if ch in _CLOSERS:
            depth += 1
        elif ch != "\n":
            depth -= 1
            if depth < 0:
                return found.start()
        elif not depth:
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


_RAW = frozenset({"backend_config", "frontend_attributes"})
"""Attributes whose value is, or holds, text in braces that is nobody's but its writer's."""


def attribute_end(text: str, key: str, pos: int) -> int:
    """The end of the value of an attribute, as `value_end`; in raw groups only braces and strings count."""
    if key in _RAW and text.startswith("{", pos):
        end = brace_end(text, pos)
        if end > 0:
            return end
    end = value_end(text, pos)
    return brace_end(text, pos) if end < 0 and key == "origin" and text.startswith("{", pos) else end


def brace_end(text: str, pos: int) -> int:
    """The end of the brace group at `pos`, braces counted outside double-quoted strings; -1 where it does not end."""
    depth = 0
    for found in _BRACE_STRUCTURE.finditer(text, pos):
        ch = found[0]
        if ch == "{":
            depth += 1
        elif ch == "}":
            depth -= 1
            if depth == 0:
                return found.end()
        elif ch == '"':
            return -1
    return -1


_BRACE_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}"]', re.S)


class LineMap:
    """Lines and columns of character offsets in one text."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        self._starts.extend(m.end() for m in re.finditer(r"\r\n|\n|\r", text))

    def position(self, offset: int) -> tuple[int, int]:
        """1-based line and column of an offset."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1
