"""Instructions written in the place of operands: ``add(f32[4] negate(p), p)``.

XLA's parser takes them, its printer never makes them; they have no line and no name of their own, so that what shows a
module by lines cannot point at them. `with_lines_of_their_own` writes such a text out.
"""

from __future__ import annotations

import re

from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.text.async_sugar import async_parts
from hloscope.core.text.printer import print_module
from hloscope.core.text.reader import read_text

_COMMENT = r"(?:/\*[^*]*+\*/\s*+)?+"
_SHAPE = r'(?:[a-z][a-z0-9]*+\[[^\]\n"]*+\](?:\{[^{}\n"]*+\})?+|\((?>(?:[^()\n"]++|\([^()\n"]*+\))*)\))\s++'
_NESTED = re.compile(rf"[(,]\s*+{_COMMENT}(?:{_SHAPE})?+([a-z][a-z0-9\-]*+)\(")
_QUOTE = re.compile(r'\\.|(")')


def has_nested_operands(text: str) -> bool:
    """Whether an operand of some instruction is written out in place."""
    for found in _NESTED.finditer(text):
        word = found[1]
        if (word in OPCODES or async_parts(word) is not None) and not _in_string(text, found.start()):
            return True
    return False


def _in_string(text: str, at: int) -> bool:
    """Whether a string that begins in the same line is open."""
    begin = text.rfind("\n", 0, at) + 1
    return sum(found[1] is not None for found in _QUOTE.finditer(text, begin, at)) % 2 == 1


def with_lines_of_their_own(text: str) -> str | None:
    """The module printed with a line for each instruction; None where it cannot be read to the end."""
    reading = read_text(text)
    if reading.module is None or any(one.severity == "error" for one in reading.diagnostics):
        return None
    return print_module(reading.module)
