"""Document symbols: the module, its computations and their instructions, as a tree; no instructions on a large text."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from lsprotocol import types

from hloscope.core.views.data import Symbol
from hloscope.core.views.symbols import document_symbols
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS, Feature
from hloscope.lsp.features.markdown import shortened

_DETAIL = 120
_KINDS: Mapping[Literal["module", "computation", "instruction"], types.SymbolKind] = MappingProxyType(
    {
        "module": types.SymbolKind.Module,
        "computation": types.SymbolKind.Function,
        "instruction": types.SymbolKind.Variable,
    }
)


def outline(reading: Reading, params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
    """The tree in text order."""
    del params
    if reading.index.instruction_count > FULL_INSTRUCTIONS:
        return _computations(reading)
    return [_symbol(reading, one) for one in document_symbols(reading.index)]


def _symbol(reading: Reading, one: Symbol) -> types.DocumentSymbol:
    return types.DocumentSymbol(
        name=one.name,
        detail=shortened(one.detail, _DETAIL),
        kind=_KINDS[one.kind],
        range=reading.range(one.span.start, one.span.end),
        selection_range=reading.range(one.selection.start, one.selection.end),
        children=[_symbol(reading, child) for child in one.children] or None,
    )


def _computations(reading: Reading) -> list[types.DocumentSymbol]:
    return [
        types.DocumentSymbol(
            name=one.name,
            detail=f"{len(one):,} instructions",
            kind=types.SymbolKind.Function,
            range=reading.range(*one.span),
            selection_range=reading.range(*one.name_span),
        )
        for one in reading.index.computations
        if one.name
    ]


FEATURE = Feature(
    types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, outline, heavy=True, large="the outline lists computations only"
)
