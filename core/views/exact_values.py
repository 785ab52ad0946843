"""Whether values of one type fit into another as they are: where they came from a narrower type, nothing is lost.

What is asked of is an index alone; a value is followed backwards through what only moves or selects values, into and
out of fusions, up to conversions, constants and the like.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.text.module_index import ModuleIndex

DIGITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
"""Bits of the significand, the hidden one included."""
_WITHIN = {"f64": ("f32", "f16", "bf16"), "f32": ("f16", "bf16"), "f16": (), "bf16": ()}
"""Floating-point types of 16 bits and more whose values a type has, besides its own."""
_SMALL = re.compile(r"f4e\w+|f6e\w+|f8e[3-5]\w+")
"""Types of 8 bits and fewer, of which each of the above has all values; not those that are an exponent alone."""
_INTEGER = re.compile(r"([su])(\d+)")
_SMALLEST_EXPONENT = {"f64": -1021, "f32": -125, "f16": -13, "bf16": -125}
"""Of normal numbers, as `math.frexp` counts."""
_LARGEST_EXPONENT = {"f64": 1024, "f32": 128, "f16": 16, "bf16": 128}

_MOVES: dict[str, tuple[int, ...] | None] = {
    "abs": (0,), "bitcast": (0,), "broadcast": (0,), "concatenate": None, "copy": (0,), "dynamic-slice": (0,),
    "dynamic-update-slice": (0, 1), "gather": (0,), "maximum": (0, 1), "minimum": (0, 1), "negate": (0,),
    "optimization-barrier": (0,), "pad": (0, 1), "reshape": (0,), "reverse": (0,), "select": (1, 2), "slice": (0,),
    "transpose": (0,),
}  # fmt: skip
"""Operands whose values, or these with another sign, are the result's; None for all."""
_MOST_STEPS = 64


def fits(given: str, wanted: str) -> bool:
    """Whether a floating-point type `wanted` of `DIGITS` has every value of an element type."""
    if given == wanted or given in _WITHIN[wanted] or given == "pred" or _SMALL.fullmatch(given):
        return True
    whole = _INTEGER.fullmatch(given)
    return whole is not None and int(whole[2]) - (whole[1] == "s") <= DIGITS[wanted]


def exact(index: ModuleIndex, i: int, wanted: str) -> bool:
    """Whether all values of instruction `i` are known to be values of the type `wanted`, too."""
    waiting, seen = [i], set[int]()
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        if len(seen) > _MOST_STEPS:
            return False
        given = _element_type(index, at)
        if given is None:
            return False
        if fits(given, wanted):
            continue
        sources = _sources(index, at, given, wanted)
        if sources is None:
            return False
        waiting += sources
    return True


def _sources(index: ModuleIndex, i: int, given: str, wanted: str) -> list[int] | None:
    """Instructions whose values it has; none of one whose values fit themselves; None where it cannot be told."""
    opcode, operands = index.opcode(i), index.operands(i)
    if opcode == "constant":
        return [] if _fits_number(index.operands_text(i), wanted) else None
    if opcode == "fusion":
        roots = [index.computation(one).root for one in index.called(i) if one >= 0]
        return roots if len(roots) == 1 and roots[0] >= 0 else None
    if opcode == "parameter":
        return _given(index, i)
    if opcode == "convert":
        # Into a wider type it keeps the values; into a narrower one they are rounded to what may not fit.
        before = None if len(operands) != 1 or operands[0] < 0 else _element_type(index, operands[0])
        if before is None or given not in DIGITS:
            return None
        return operands if fits(before, given) else None
    which = _MOVES.get(opcode, ())
    which = range(len(operands)) if which is None else which
    if not which or max(which) >= len(operands) or any(operands[k] < 0 for k in which):
        return None
    sources = [operands[k] for k in which]
    # A bitcast to another type gives the bits another meaning.
    return sources if all(_element_type(index, one) == given for one in sources) else None


def _given(index: ModuleIndex, i: int) -> list[int] | None:
    """What a fusion gives for a parameter of its body."""
    callers = index.callers(index.computation_of(i))
    number = index.operands_text(i).strip()
    if len(callers) != 1 or index.opcode(callers[0]) != "fusion" or not number.isdigit():
        return None
    operands = index.operands(callers[0])
    if int(number) >= len(operands) or operands[int(number)] < 0:
        return None
    return [operands[int(number)]]


def _fits_number(text: str, wanted: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    if not math.isfinite(value) or not value:
        return True
    part, exponent = math.frexp(value)
    within = _SMALLEST_EXPONENT[wanted] <= exponent <= _LARGEST_EXPONENT[wanted]
    return within and (part * 2 ** DIGITS[wanted]).is_integer()


def _element_type(index: ModuleIndex, i: int) -> str | None:
    """Of an array; None for tuples, tokens and the like."""
    text = index.shape_text(i)
    word = text.partition("[")[0].strip()
    return word if word and word[0] != "(" and "[" in text else None
