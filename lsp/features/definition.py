"""Go to definition: of an operand, a called computation, a control predecessor, a parameter named in a signature."""

from __future__ import annotations

from lsprotocol import types

from hloscope.core.views import symbols
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature


def definition(reading: Reading, params: types.DefinitionParams) -> types.Location | None:
    """Where the name under the cursor is defined; on a definition, itself. None where the text does not define it."""
    found = symbols.definition(reading.index, reading.offset(params.position))
    return None if found is None else reading.location(found.start, found.end)


FEATURE = Feature(types.TEXT_DOCUMENT_DEFINITION, definition)
