"""Folding: each computation from its header to its closing brace, and the source tables in front of them."""

from __future__ import annotations

from lsprotocol import types

from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature


def folding(reading: Reading, params: types.FoldingRangeParams) -> list[types.FoldingRange]:
    """Ranges of whole lines; a computation on one line has nothing to fold."""
    del params
    index, lines = reading.index, reading.lines
    spans = [(c.span, types.FoldingRangeKind.Region) for c in index.computations]
    tables = list(index.columns.tables.values())
    if tables:
        # One fold for the four tables, from the line that names the first.
        first = max(min(start for start, _ in tables) - 1, 0)
        spans.append(((first, max(end for _, end in tables)), types.FoldingRangeKind.Comment))
    out: list[types.FoldingRange] = []
    for (start, end), kind in spans:
        # A span that ends at a line's first character ends on the line before.
        first_line, last_line = lines.line_of(start), lines.line_of(max(end - 1, start))
        if last_line > first_line:
            out.append(types.FoldingRange(first_line, last_line, kind=kind))
    return sorted(out, key=lambda fold: fold.start_line)


FEATURE = Feature(types.TEXT_DOCUMENT_FOLDING_RANGE, folding, heavy=True)
