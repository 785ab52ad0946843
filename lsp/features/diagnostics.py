"""What is wrong with a text: the index's findings at once, then the reader's on texts that it can read in a moment."""

from __future__ import annotations

from lsprotocol import types

from hloscope.core.errors import Diagnostic
from hloscope.core.text import parse_module
from hloscope.lsp.convert import to_diagnostic
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS

LARGE = "diagnostics are the index's alone, without the full reader's"
"""What large texts get."""

_AT_ONCE = 1_000
"""Instructions up to which the reader is so fast that the index's findings are not worth showing first."""
_MOST = 1_000
"""Findings that are shown; a text that is not HLO at all has one a line."""


def from_index(reading: Reading) -> list[types.Diagnostic] | None:
    """Findings of the index, a moment after the edit; None for a text so small that `from_reader` is as fast."""
    if reading.index.instruction_count <= _AT_ONCE:
        return None
    return _shown(reading, list(reading.index.diagnostics))


def from_reader(reading: Reading) -> list[types.Diagnostic] | None:
    """Findings of the reader, and those of the index on other lines; None for a text too large to read on each edit."""
    if reading.index.instruction_count > FULL_INSTRUCTIONS:
        return None
    _, found = parse_module(reading.text)
    lines = {one.line for one in found}
    return _shown(reading, [*found, *(one for one in reading.index.diagnostics if one.line not in lines)])


def _shown(reading: Reading, found: list[Diagnostic]) -> list[types.Diagnostic]:
    found.sort(key=lambda one: (one.offset, one.end_offset))
    return [to_diagnostic(reading, one) for one in found[:_MOST]]


CHECKS = (from_index, from_reader)
