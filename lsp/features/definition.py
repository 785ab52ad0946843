"""Go to definition, declaration and implementation of what is under the cursor.

The declaration of a parameter is its name in the computation's signature; of anything else it is the definition. The
implementation of an instruction is what it calls: a fusion's body, a loop's condition and body, a reducer.
"""

from __future__ import annotations

from lsprotocol import types

from hloscope.core.views import symbols
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature


def definition(reading: Reading, params: types.DefinitionParams) -> types.Location | None:
    """Where the name under the cursor is defined; on a definition, itself. None where the text does not define it."""
    found = symbols.definition(reading.index, reading.offset(params.position))
    return None if found is None else reading.location(found.start, found.end)


def declaration(reading: Reading, params: types.DeclarationParams) -> types.Location | None:
    """Of a parameter, its name in the signature; else the definition."""
    index = reading.index
    offset = reading.offset(params.position)
    target = index.at_offset(offset)
    if target.kind in ("instruction", "operand", "parameter", "control") and target.refers_to >= 0:
        name, home = index.name(target.refers_to), index.computation_of(target.refers_to)
        if index.opcode(target.refers_to) == "parameter":
            for word, span in index.signature_names(home):
                if word == name:
                    return reading.location(*span)
    found = symbols.definition(index, offset)
    return None if found is None else reading.location(found.start, found.end)


def implementation(reading: Reading, params: types.ImplementationParams) -> list[types.Location]:
    """The computations that the instruction under the cursor calls; of a computation's name, itself."""
    index = reading.index
    target = index.at_offset(reading.offset(params.position))
    if target.kind in ("computation", "computation-reference"):
        called = [target.refers_to]
    else:
        called = index.called(target.refers_to) if target.refers_to >= 0 else []
        if not called and target.instruction >= 0:
            called = index.called(target.instruction)
    return [reading.location(*index.computation(one).name_span) for one in called if one >= 0]


FEATURE = Feature(types.TEXT_DOCUMENT_DEFINITION, definition)
DECLARATION = Feature(types.TEXT_DOCUMENT_DECLARATION, declaration)
IMPLEMENTATION = Feature(types.TEXT_DOCUMENT_IMPLEMENTATION, implementation)
