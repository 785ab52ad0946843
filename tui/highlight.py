"""HLO lines as coloured pieces, and the pieces of two lines that differ. Pure functions on text; no Textual here.

The classes of the pieces come from `hloscope.core.text.highlight`, so that every reader colours alike.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from hloscope.core.text import highlight

Piece = tuple[str, str]
"""Text and the class of its colour (see `CLASSES`); the empty class is plain text."""

CLASSES = (*highlight.CLASSES, "differs")

LONGEST = 4000
"""Characters of a line that are coloured; what is behind stays plain, so that a megabyte constant costs nothing."""


def pieces(line: str) -> list[Piece]:
    """One line of HLO text cut into coloured pieces; joined they give the line back."""
    head, tail = line[:LONGEST], line[LONGEST:]
    out: list[Piece] = []
    at = 0
    for start, end, kind in highlight.tokens(head):
        if start > at:
            out.append((head[at:start], ""))
        out.append((head[start:end], kind))
        at = end
    if at < len(head) or tail:
        out.append((head[at:] + tail, ""))
    return out


_WORD = re.compile(r"[\w.%\-]+|\s+|.", re.S)


def differing(before: str, after: str) -> tuple[list[Piece], list[Piece]]:
    """Two versions of a line; words that only one of them has are of class ``differs``."""
    if len(before) > LONGEST or len(after) > LONGEST:
        return [(before, "")], [(after, "")]
    first, second = _WORD.findall(before), _WORD.findall(after)
    left: list[Piece] = []
    right: list[Piece] = []
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        kind = "" if tag == "equal" else "differs"
        if i2 > i1:
            left.append(("".join(first[i1:i2]), kind))
        if j2 > j1:
            right.append(("".join(second[j1:j2]), kind))
    return left, right
