"""From the core's plain data (offsets in characters, words) to the protocol's types (lines and units, numbers)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from lsprotocol import types

from hloscope.core.errors import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.core.errors import Severity
    from hloscope.lsp.documents import Reading

SOURCE = "hloscope"
"""What an editor shows as the origin of a finding."""

SEVERITIES: Mapping[Severity, types.DiagnosticSeverity] = MappingProxyType(
    {
        "error": types.DiagnosticSeverity.Error,
        "warning": types.DiagnosticSeverity.Warning,
        "information": types.DiagnosticSeverity.Information,
        "hint": types.DiagnosticSeverity.Hint,
    }
)


def to_diagnostic(reading: Reading, found: Diagnostic) -> types.Diagnostic:
    """A finding with the places that belong to it. An empty span is widened, so that there is something to see."""
    start, end = _visible(reading, found.offset, found.end_offset)
    related = [
        types.DiagnosticRelatedInformation(reading.location(first, last), message)
        for first, last, message in found.related
    ]
    return types.Diagnostic(
        range=reading.range(start, end),
        message=found.message,
        severity=SEVERITIES[found.severity],
        code=found.code,
        source=SOURCE,
        related_information=related or None,
    )


def _visible(reading: Reading, start: int, end: int) -> tuple[int, int]:
    if end > start:
        return start, end
    text = reading.text
    if start < len(text) and text[start] not in "\r\n":
        return start, start + 1
    if start > 0 and text[start - 1] not in "\r\n":
        return start - 1, start
    return start, start
