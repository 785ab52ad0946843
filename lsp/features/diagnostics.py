"""What is wrong with a text: what the index did not understand, else what the full reader finds in it."""

from __future__ import annotations

from lsprotocol import types

from hloscope.core.errors import Diagnostic
from hloscope.core.text import parse_module
from hloscope.lsp.convert import to_diagnostic
from hloscope.lsp.documents import Check, Reading

_AT_ONCE = 1_000
"""Instructions up to which the reader is so fast that "nothing wrong yet" is not worth saying first."""
_READ_INSTRUCTIONS = 10_000
"""The reader takes about 50 ms for a thousand instructions and cannot be stopped."""
_REST_SECONDS = 0.5
_MOST = 1_000
"""Findings that are shown; a text that is not HLO at all has one a line."""


def from_index(reading: Reading) -> list[types.Diagnostic] | None:
    """Findings of the index, a moment after the edit; None where `from_reader` says all there is about as soon."""
    index = reading.index
    if not index.errors and index.instruction_count <= _AT_ONCE:
        return None
    return _shown(reading, list(index.diagnostics))


def from_reader(reading: Reading) -> list[types.Diagnostic] | None:
    """Findings of the reader, and the index's hints on other lines.

    None for a text too large to read on each edit, and for one that the index could not make sense of in places: it
    picks up again closer to the fault than the reader, which then finds fault with what follows, too.
    """
    index = reading.index
    if index.errors or index.instruction_count > _READ_INSTRUCTIONS:
        return None
    _, found = parse_module(reading.text)
    lines = {one.line for one in found}
    return _shown(reading, [*found, *(one for one in index.diagnostics if one.line not in lines)])


def _shown(reading: Reading, found: list[Diagnostic]) -> list[types.Diagnostic]:
    found.sort(key=lambda one: (one.offset, one.end_offset))
    return [to_diagnostic(reading, one) for one in found[:_MOST]]


def _rest(reading: Reading) -> float:
    return 0 if reading.index.instruction_count <= _AT_ONCE else _REST_SECONDS


CHECKS = (Check(from_index, lambda _: 0), Check(from_reader, _rest))
