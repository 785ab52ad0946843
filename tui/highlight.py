"""HLO lines as coloured pieces, and the pieces of two lines that differ. Pure functions on text; no Textual here."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

Piece = tuple[str, str]
"""Text and the class of its colour (see `CLASSES`); the empty class is plain text."""

CLASSES = ("name", "define", "opcode", "shape", "layout", "key", "string", "number", "comment", "keyword", "differs")

LONGEST = 4000
"""Characters of a line that are coloured; what is behind stays plain, so that a megabyte constant costs nothing."""

_TOKEN = re.compile(
    r"(?P<comment>/\*.*?\*/|//.*)"
    r'|(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<keyword>\b(?:ROOT|ENTRY|HloModule)\b)"
    r"|(?P<shape>\b(?:pred|[subf]f?\d+\w*|c64|c128|token|opaque)\[[^\]]*\])(?P<layout>\{[\d,:][^{}]*\})?"
    r"|(?P<key>[A-Za-z_][\w.\-]*(?==[^=\s]))"
    r"|(?P<opcode>\b[a-z][a-z0-9\-]*(?=\())"
    r"|(?P<name>%[\w.\-]+)"
    r"|(?P<number>\b-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b)"
)
_DEFINITION = re.compile(r"\s*(?:ROOT )?(%?[\w.\-]+)(?= = )")


def pieces(line: str) -> list[Piece]:
    """One line of HLO text cut into coloured pieces; joined they give the line back."""
    head, tail = line[:LONGEST], line[LONGEST:]
    out: list[Piece] = []
    defined = _DEFINITION.match(head)
    at = 0
    for found in _TOKEN.finditer(head):
        if found.start() > at:
            out.append((head[at : found.start()], ""))
        kind = found.lastgroup or ""
        if kind in ("shape", "layout"):
            out.append((found["shape"], "shape"))
            if found["layout"]:
                out.append((found["layout"], "layout"))
        elif kind == "name" and defined is not None and found.start() == defined.start(1):
            out.append((found[0], "define"))
        else:
            out.append((found[0], kind))
        at = found.end()
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
