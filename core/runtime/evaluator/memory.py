"""What is said where a program is too large to be evaluated."""

from __future__ import annotations

from hloscope.core.memory import available_memory, in_words

__all__ = ["CUT_POINTS", "available_memory", "in_words"]

CUT_POINTS = "hloscope replay --regions compares the stages of a dump by what each of them changed"
"""What is left for a program that is too large."""
