"""How much memory there is, and how it is said."""

from __future__ import annotations

CUT_POINTS = "hloscope replay --regions compares the stages of a dump by what each of them changed"
"""What is left for a program that is too large."""


def in_words(count: int) -> str:
    """Bytes with a unit, ``1.5 GB``."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:,} bytes"


def available_memory() -> int:
    """Bytes that can be allocated without swapping, as the kernel estimates; a large number where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 1 << 62
