"""Markdown whose text comes from files: nothing in it may end a code span or a fence early."""

from __future__ import annotations

import re

_TICKS = re.compile(r"`+")


def span(text: str) -> str:
    """Inline code, on one line."""
    line = " ".join(text.split())
    ticks = _longest(line)
    if not ticks:
        return f"`{line}`"
    fence = "`" * (ticks + 1)
    return f"{fence} {line} {fence}"


def block(text: str, language: str = "hlo") -> str:
    """A fenced block."""
    fence = "`" * max(3, _longest(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def shortened(text: str, most: int) -> str:
    """At most `most` characters, with a mark where some are missing."""
    return text if len(text) <= most else f"{text[: most - 2]} …"


def spans(words: tuple[str, ...] | list[str], most: int) -> str:
    """Names as inline code, and how many more there are."""
    shown = ", ".join(span(word) for word in words[:most])
    return shown if len(words) <= most else f"{shown} and {len(words) - most} more"


def _longest(text: str) -> int:
    return max((len(found) for found in _TICKS.findall(text)), default=0)
