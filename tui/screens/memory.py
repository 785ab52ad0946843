"""What a shape, or two of them, say about memory: the answer to the Layouts screen's question."""

from __future__ import annotations

import re
from collections.abc import Callable

from hloscope.core.errors import HloscopeError
from hloscope.core.views.memory import moves_between
from hloscope.tui.content import Line, plain

_BETWEEN = re.compile(r"\s*(?:->|→|\bto\b)\s*|(?<=[\]}])\s+(?=[a-z])")


def asked(text: str, picture: Callable[[str], list[Line]]) -> list[Line]:
    """The picture of a shape; of two, both pictures and what a reshape, copy or transpose between them costs."""
    shapes = [one for one in _BETWEEN.split(text.strip()) if one]
    if len(shapes) != 2:
        return picture(text.strip())
    try:
        moves = moves_between(*shapes)
    except (HloscopeError, ValueError) as error:
        return [plain(f"  {error}")]
    out = [plain("between them", "heading"), *(plain(f"  {move.sentence}") for move in moves)]
    for shape in shapes:
        out += [plain(), *picture(shape)]
    return out
