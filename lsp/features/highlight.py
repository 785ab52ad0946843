"""Highlight: the definition of the name under the cursor as written, its uses as read."""

from __future__ import annotations

from lsprotocol import types

from hloscope.core.views import symbols
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature


def highlight(reading: Reading, params: types.DocumentHighlightParams) -> list[types.DocumentHighlight]:
    """Every place where the name stands for the same thing."""
    kind = types.DocumentHighlightKind
    return [
        types.DocumentHighlight(
            reading.range(place.span.start, place.span.end), kind.Read if place.kind == "use" else kind.Write
        )
        for place in symbols.highlights(reading.index, reading.offset(params.position))
    ]


FEATURE = Feature(types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT, highlight, heavy=True)
