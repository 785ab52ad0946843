"""Positions: between the characters of a text and the lines and code units that an editor counts in.

An editor says (line, units) in UTF-16, or in UTF-8 or UTF-32 where both sides agreed on it; everything below this
module counts characters from the start of the text. HLO has lines of megabytes, so no conversion walks a line: the
places of the characters that take more than one unit are kept, sorted, for the whole text, and a column is the number
of characters before it plus the number of those. Lines end at ``\\n``, ``\\r\\n`` or ``\\r``, as the protocol says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]

_LINE_END = re.compile(r"\r\n|\n|\r")
_BLOCK = 1 << 20


class Encoding(Enum):
    """The unit in which the client counts columns."""

    UTF8 = "utf-8"
    UTF16 = "utf-16"
    UTF32 = "utf-32"


class TextLines:
    """One text with its lines; never changed, so that a request keeps the one it was asked about."""

    __slots__ = ("_wide", "starts", "text")

    def __init__(self, text: str, starts: Offsets, wide: tuple[Offsets, Offsets, Offsets] | None = None) -> None:
        self.text = text
        self.starts = starts
        """Offset of the first character of each line; the first is 0."""
        self._wide = wide

    @staticmethod
    def of(text: str) -> TextLines:
        """The lines of a whole text."""
        return TextLines(text, np.array([0, *_line_starts(text, 0, len(text))], dtype=np.int64))

    @property
    def line_count(self) -> int:
        """Number of lines; an empty text has one."""
        return len(self.starts)

    def line_of(self, offset: int) -> int:
        """0-based line that holds the character at `offset`."""
        return int(np.searchsorted(self.starts, offset, side="right")) - 1

    def line_end(self, line: int) -> int:
        """Offset of the end of a line's content, before its line end."""
        if line + 1 >= len(self.starts):
            return len(self.text)
        end = int(self.starts[line + 1]) - 1
        start = int(self.starts[line])
        return end - 1 if end > start and self.text[end] == "\n" and self.text[end - 1] == "\r" else end

    def offset(self, line: int, units: int, encoding: Encoding) -> int:
        """The character that a client's position means; positions past the line or the text are clamped.

        A position in the middle of a character (a surrogate pair, a UTF-8 sequence) means that character's start.
        """
        if line < 0:
            return 0
        if line >= len(self.starts):
            return len(self.text)
        start, end = int(self.starts[line]), self.line_end(line)
        units = max(units, 0)
        extra = self._extra(encoding)
        if extra is None:
            return min(start + units, end)
        before = extra(start)
        # Every character takes a unit or more: the answer is not further than that, and not nearer than a quarter.
        low, high = min(start + units // 4, end), min(start + units, end)
        while low < high:
            middle = (low + high + 1) // 2
            if middle - start + extra(middle) - before <= units:
                low = middle
            else:
                high = middle - 1
        return low

    def position(self, offset: int, encoding: Encoding) -> tuple[int, int]:
        """Line and column, in the client's units, of a character; offsets outside the text are clamped."""
        offset = min(max(offset, 0), len(self.text))
        line = self.line_of(offset)
        start = int(self.starts[line])
        # Between a \r and its \n there is no position of its own.
        offset = min(offset, self.line_end(line))
        extra = self._extra(encoding)
        return line, offset - start + (0 if extra is None else extra(offset) - extra(start))

    def positions(self, offsets: Offsets, encoding: Encoding) -> tuple[list[int], list[int]]:
        """Lines and columns of many characters inside the text, none of them within a line end."""
        lines = np.searchsorted(self.starts, offsets, side="right") - 1
        starts = self.starts[lines]
        columns = offsets - starts
        for wide in self._counted(encoding):
            columns = columns + np.searchsorted(wide, offsets) - np.searchsorted(wide, starts)
        return lines.tolist(), columns.tolist()

    def replaced(self, start: int, end: int, new: str) -> TextLines:
        """The text with ``[start, end)`` replaced; only the lines around the edit are searched again."""
        text = f"{self.text[:start]}{new}{self.text[end:]}"
        shift = len(new) - (end - start)
        # One character of margin on both sides: an edit may join or part the two halves of a \r\n.
        first = self.line_of(max(start - 1, 0))
        after = self.line_of(min(end + 1, len(self.text))) + 1
        begin = int(self.starts[first])
        stop = int(self.starts[after]) + shift if after < len(self.starts) else len(text)
        middle = np.array(_line_starts(text, begin, stop), dtype=np.int64)
        tail = self.starts[after:] + shift
        if len(tail) and len(middle) and middle[-1] == tail[0]:
            tail = tail[1:]
        starts = np.concatenate((self.starts[: first + 1], middle, tail))
        if self._wide is None:
            return TextLines(text, starts)
        kept: list[Offsets] = []
        for old, fresh in zip(self._wide, _wide_characters(new), strict=True):
            before, behind = np.searchsorted(old, (start, end))
            kept.append(np.concatenate((old[:before], fresh + start, old[behind:] + shift)))
        return TextLines(text, starts, (kept[0], kept[1], kept[2]))

    def _extra(self, encoding: Encoding) -> Callable[[int], int] | None:
        """Units beyond one a character before an offset of the text; None where every character takes one."""
        counted = self._counted(encoding)
        if not counted:
            return None
        if len(counted) == 1:
            wide = counted[0]
            return lambda offset: int(np.searchsorted(wide, offset))
        return lambda offset: sum(int(np.searchsorted(wide, offset)) for wide in counted)

    def _counted(self, encoding: Encoding) -> tuple[Offsets, ...]:
        """Sorted offsets at which a character takes one unit more, for each such unit."""
        if encoding is Encoding.UTF32 or self.text.isascii():
            return ()
        if self._wide is None:
            self._wide = _wide_characters(self.text)
        return self._wide if encoding is Encoding.UTF8 else self._wide[2:]


def _line_starts(text: str, start: int, stop: int) -> list[int]:
    """Offsets right after each line end in ``text[start:stop]``."""
    if text.find("\r", start, stop) < 0:
        # Most texts by far: the plain search is several times faster than the pattern.
        out: list[int] = []
        at = text.find("\n", start, stop)
        while at >= 0:
            out.append(at + 1)
            at = text.find("\n", at + 1, stop)
        return out
    # A pattern that sees only a part would take the \r of a \r\n at its end for a line end of its own.
    return [found.end() for found in _LINE_END.finditer(text, start, min(stop + 1, len(text))) if found.end() <= stop]


def _wide_characters(text: str) -> tuple[Offsets, Offsets, Offsets]:
    """Offsets of the characters from U+0080, U+0800 and U+10000 on: UTF-8 takes a byte more for each."""
    parts: tuple[list[Offsets], list[Offsets], list[Offsets]] = ([], [], [])
    for start in range(0, len(text), _BLOCK):
        block = text[start : start + _BLOCK]
        if block.isascii():
            continue
        points = np.frombuffer(block.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        for part, threshold in zip(parts, (0x80, 0x800, 0x10000), strict=True):
            part.append(np.flatnonzero(points >= threshold).astype(np.int64) + start)
    empty = np.zeros(0, dtype=np.int64)
    return (
        np.concatenate((empty, *parts[0])), np.concatenate((empty, *parts[1])), np.concatenate((empty, *parts[2])),
    )  # fmt: skip
