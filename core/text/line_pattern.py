"""The line of an instruction, and the first line of a computation, as XLA prints them: one compiled pattern each.

What these do not take is read by hand (`hloscope.core.text.body_reader`).
"""

from __future__ import annotations

import re

from hloscope.core.hlo.attributes import CALLED, CONTROL
from hloscope.core.text.opcode_syntax import SYNTAX

# Group repeats are written (?>(?:…)*), not (?:…)*+: before 3.11.5 the latter does not give back a half-matched round.
_NAME = r"[A-Za-z_][A-Za-z0-9_.\-]*+"
_STRING = r'"[^"\\\n]*+(?>(?:\\.[^"\\\n]*+)*)"'


def _nested(left: str, right: str, depth: int) -> str:
    left, right = re.escape(left), re.escape(right)
    plain = rf"[^{left}{right}\"'\n]*+"
    inner = plain
    for _ in range(depth):
        inner = rf"{plain}(?>(?:(?:{_STRING}|{left}{inner}{right}){plain})*)"
    return rf"{left}{inner}{right}"


_BRACES = _nested("{", "}", 6)
_PARENS = _nested("(", ")", 3)
_ARRAY = r"[a-z][a-z0-9]*+\[[0-9,<=?]*+\](?:\{[0-9:][^{}\n]*+\})?+"
_SHAPE = rf"(?:{_ARRAY}|{_PARENS})"
_IOTA = r"\[[0-9,]++\]<=\[[0-9,]++\](?:T\([0-9,]++\))?+"
_VALUE = rf"(?:[^\s,{{}}\"'()\[\]/]++(?![\[{{(])|{_STRING}|{_BRACES}|{_IOTA})"
_KEY = r"[A-Za-z_][A-Za-z0-9_.\-]*+"
_PAIR = rf", (?!metadata=){_KEY}={_VALUE}"
LINE = re.compile(
    rf"\s*+(?P<line>(ROOT )?+%?+({_NAME}) = ({_SHAPE}) ([a-z][a-z0-9\-]*+)\(([^()\"'\n]*+)\)"
    rf"((?>(?:{_PAIR})*))(?:, metadata=(?P<metadata>{_BRACES}))?+((?>(?:{_PAIR})*)))(?=\s*+[%A-Za-z_}}])"
)
"""Groups: line (so named too), ROOT, name, shape, opcode, operands, attributes, metadata (so named), the rest."""
COMPUTATION_HEAD = re.compile(rf"(ENTRY\s++)?+(%?+)({_NAME})\s*+(?:{_PARENS}\s*+->\s*+({_SHAPE}))?+\s*+\{{")
"""The first line of a computation as XLA prints it: ENTRY, percent sign, name, result shape."""
PAIRS = re.compile(rf", ({_KEY})=({_VALUE})")
INDEX_COMMENT = re.compile(r"/\*index=[0-9]++\*/")
PLAIN_KEYS = {opcode: frozenset(row.rank) - CALLED.keys() - {CONTROL} for opcode, row in SYNTAX.items()}
"""Attributes that are text alone, by opcode; computations and control edges are the graph's."""
DIGITS = re.compile(r"\d{1,9}$")
"""The number of a parameter."""
