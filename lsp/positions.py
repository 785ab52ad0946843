"""Positions: between the characters of a text and the lines and code units that an editor counts in.

An editor says (line, units) in UTF-16, or in UTF-8 or UTF-32 where both sides agreed on it; everything below this
module counts characters from the start of the text. HLO has lines of megabytes, so no conversion walks a line in
Python: an all-ASCII text is plain arithmetic, and a line with other characters gets a running count of its units, made
once by numpy and kept for the last few lines asked. Lines end at ``\\n``, ``\\r\\n`` or ``\\r``, as the protocol says.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

_LINE_END = re.compile(r"\r\n|\n|\r")
_KEPT_LINES = 16


class Encoding(Enum):
    """The unit in which the client counts columns."""

    UTF8 = "utf-8"
    UTF16 = "utf-16"
    UTF32 = "utf-32"


def _line_starts(text: str, start: int = 0, end: int | None = None) -> list[int]:
    """Offsets right after each line end in ``text[start:end]``."""
    stop = len(text) if end is None else end
    if "\r" not in text:
        # Most texts by far: the plain search is several times faster than the pattern.
        out: list[int] = []
        at = text.find("\n", start, stop)
        while at >= 0:
            out.append(at + 1)
            at = text.find("\n", at + 1, stop)
        return out
    # A pattern that sees only a part would take the \r of a \r\n at its end for a line end of its own.
    return [found.end() for found in _LINE_END.finditer(text, start, min(stop + 1, len(text))) if found.end() <= stop]


@dataclass(frozen=True, slots=True)
class TextLines:
    """One text with its lines; immutable, so that a request keeps the one it was asked about."""

    text: str
    starts: npt.NDArray[np.int64]
    """Offset of the first character of each line; the first is 0."""
    _counts: OrderedDict[tuple[int, Encoding], npt.NDArray[np.int64]] = field(
        default_factory=OrderedDict[tuple[int, Encoding], npt.NDArray[np.int64]], compare=False, repr=False
    )
    """Units before each character, for the lines with non-ASCII characters that were asked last."""

    @staticmethod
    def of(text: str) -> TextLines:
        """The lines of a whole text."""
        return TextLines(text, np.array([0, *_line_starts(text)], dtype=np.int64))

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
        if encoding is Encoding.UTF32 or self.text.isascii():
            return min(start + max(units, 0), end)
        counts = self._counted(line, start, end, encoding)
        if counts is None:
            return min(start + max(units, 0), end)
        return start + max(int(np.searchsorted(counts, max(units, 0), side="right")) - 1, 0)

    def position(self, offset: int, encoding: Encoding) -> tuple[int, int]:
        """Line and column, in the client's units, of a character; offsets outside the text are clamped."""
        offset = min(max(offset, 0), len(self.text))
        line = self.line_of(offset)
        start, end = int(self.starts[line]), self.line_end(line)
        # Between a \r and its \n there is no position of its own.
        column = min(offset, end) - start
        if encoding is Encoding.UTF32 or self.text.isascii():
            return line, column
        counts = self._counted(line, start, end, encoding)
        return line, column if counts is None else int(counts[column])

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
        return TextLines(text, np.concatenate((self.starts[: first + 1], middle, tail)))

    def _counted(self, line: int, start: int, end: int, encoding: Encoding) -> npt.NDArray[np.int64] | None:
        """Units before each character of a line and after its last; None where the line is all ASCII."""
        key = (line, encoding)
        known = self._counts.get(key)
        if known is not None:
            return known
        content = self.text[start:end]
        if content.isascii():
            return None
        points = np.frombuffer(content.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        if encoding is Encoding.UTF16:
            widths = 1 + (points > 0xFFFF).astype(np.int64)
        else:
            widths = 1 + (points > 0x7F).astype(np.int64) + (points > 0x7FF) + (points > 0xFFFF)
        counts = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(widths, dtype=np.int64)))
        self._counts[key] = counts
        while len(self._counts) > _KEPT_LINES:
            try:
                self._counts.popitem(last=False)
            except KeyError:
                break  # another thread emptied it first
        return counts
