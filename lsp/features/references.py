"""References: every use of an instruction within its computation, or of a computation within the module."""

from __future__ import annotations

from lsprotocol import types

from hloscope.core.views import symbols
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature


def references(reading: Reading, params: types.ReferenceParams) -> list[types.Location]:
    """Uses in text order; with the declaration, where the client asks for it, and then the signature's name too."""
    places = symbols.references(reading.index, reading.offset(params.position))
    return [
        reading.location(place.span.start, place.span.end)
        for place in places
        if place.kind == "use" or params.context.include_declaration
    ]


FEATURE = Feature(types.TEXT_DOCUMENT_REFERENCES, references, heavy=True)
