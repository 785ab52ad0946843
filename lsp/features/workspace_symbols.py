"""Symbol search over all open HLO texts: computations first, then instructions whose name holds the words typed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lsprotocol import types

from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import WorkspaceFeature

_MOST = 500
"""Symbols in one answer; whoever looks for one types another letter."""


def workspace_symbols(
    readings: Sequence[Reading], params: types.WorkspaceSymbolParams
) -> list[types.SymbolInformation]:
    """Names that hold the query, in any case."""
    query = params.query.strip().removeprefix("%").lower()
    out: list[types.SymbolInformation] = []
    for found in (_computations, _instructions):
        for reading in readings:
            for symbol in found(reading, query):
                out.append(symbol)
                if len(out) == _MOST:
                    return out
    return out


def _computations(reading: Reading, query: str) -> Iterator[types.SymbolInformation]:
    for computation in reading.index.computations:
        if query in computation.name.lower():
            place = reading.location(*computation.name_span)
            yield types.SymbolInformation(place, computation.name, types.SymbolKind.Function)


def _instructions(reading: Reading, query: str) -> Iterator[types.SymbolInformation]:
    index = reading.index
    for i, name in enumerate(index.names):
        if query in name.lower():
            owner = index.computation(index.computation_of(i)).name
            yield types.SymbolInformation(
                reading.location(*index.name_span(i)), name, types.SymbolKind.Variable, container_name=owner
            )


FEATURE = WorkspaceFeature(types.WORKSPACE_SYMBOL, workspace_symbols)
