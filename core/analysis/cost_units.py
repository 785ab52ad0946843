"""Time and single precision as XLA's cost model has them, so that its printed numbers come out to the last digit.

A duration is a whole number of ticks of a quarter nanosecond (``absl::Duration``). Every term is rounded to ticks
before terms are added.
"""

from __future__ import annotations

import struct

TICKS_PER_SECOND = 4_000_000_000
TICKS_PER_US = 4000
_PACK = struct.Struct("f")


def f32(value: float) -> float:
    """A number rounded to single precision."""
    return _PACK.unpack(_PACK.pack(value))[0]


def _round(value: float) -> int:
    """C's ``round`` and ``llround``: halves go away from zero."""
    whole = int(value)
    rest = value - whole
    if rest >= 0.5:
        return whole + 1
    return whole - 1 if rest <= -0.5 else whole


llround = _round


def seconds(value: float) -> int:
    """Ticks of a number of seconds."""
    whole = int(value)
    return whole * TICKS_PER_SECOND + _round((value - whole) * TICKS_PER_SECOND)


def nanoseconds(value: float) -> int:
    """Ticks of a number of nanoseconds."""
    return scaled(4, value)


def scaled(ticks: int, factor: float) -> int:
    """A duration times a factor, as ``absl::Duration`` multiplies (whole seconds apart from the rest)."""
    high = (ticks // TICKS_PER_SECOND) * factor
    low = (ticks % TICKS_PER_SECOND) * factor
    whole = int(high)
    low = low / TICKS_PER_SECOND + (high - whole)
    carry = int(low)
    return (whole + carry) * TICKS_PER_SECOND + _round((low - carry) * TICKS_PER_SECOND)


def microseconds(ticks: int) -> float:
    """A duration in microseconds, as dumps print it."""
    return ticks / TICKS_PER_US
