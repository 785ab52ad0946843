"""HLO lines as coloured pieces, and the pieces of two lines that differ. Pure functions on text; no Textual here.

The classes of the pieces come from `hloscope.core.text.highlight`, so that every reader colours alike.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

Piece = tuple[str, str]
"""Text and the class of its colour: one of `core.text.highlight.CLASSES`, ``differs``, or none for plain text."""

LONGEST = 4000
"""Characters of a line that are coloured; what is behind stays plain, so that a megabyte constant costs nothing."""


def pieces(line: str) -> list[Piece]:
    """One line of HLO text cut into coloured pieces; joined they give the line back."""
    from hloscope.core.text import highlight  # not before the first line of HLO is drawn

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


def wrapped(found: list[Piece], width: int, indent: int, at_sign: str = ", ") -> list[list[Piece]]:
    """Pieces cut into rows of at most `width` characters, behind `at_sign` if it can be, else at a blank: attributes
    and words stay whole.

    Rows after the first begin with `indent` blanks.
    """
    text = "".join(part for part, _ in found)
    if len(text) <= width:
        return [found]
    cuts: list[int] = []
    at, room = 0, width
    while len(text) - at > room:
        found_at = ((text.rfind(sign, at + room // 3, at + room), len(sign)) for sign in (at_sign, " "))
        at = next((end + long for end, long in found_at if end >= 0), at + room)
        cuts.append(at)
        room = max(8, width - indent)
    rows: list[list[Piece]] = [[]]
    position = 0
    for part, kind in found:
        while cuts and position + len(part) > cuts[0]:
            head = part[: cuts[0] - position]
            if head:
                rows[-1].append((head, kind))
            part, position = part[len(head) :], cuts.pop(0)
            rows.append([(" " * indent, "")])
        if part:
            rows[-1].append((part, kind))
            position += len(part)
    return rows
