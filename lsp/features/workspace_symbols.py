"""Symbol search over all open HLO texts, and over the other stages of the dumps that they are in.

Computations of open texts come first, then their instructions, then the stages on disk, nearest first: these are
searched as bytes, for a while. The protocol has no word for an answer that is not whole: the client's log says it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence

from lsprotocol import types

from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import WorkspaceFeature
from hloscope.lsp.features.stages import other_stages

_SHORTEST = 2
"""Letters from which on files on disk are searched."""
_SECONDS = 1.0
MOST = 2_000
"""Symbols in one answer; whoever looks for one types another letter."""


def workspace_symbols(
    readings: Sequence[Reading], params: types.WorkspaceSymbolParams, say: Callable[[str], None]
) -> list[types.SymbolInformation]:
    """Names that hold the query, in any case; `say` is told where there are more."""
    query = params.query.strip().removeprefix("%").lower()
    out: list[types.SymbolInformation] = []
    for found in (_computations, _instructions):
        for reading in readings:
            for symbol in found(reading, query):
                if len(out) == MOST:
                    say(f"{params.query!r}: the first {MOST:,} symbols of the open files; there are more")
                    return out
                out.append(symbol)
    if len(query) >= _SHORTEST:
        open_already = {reading.uri for reading in readings}
        deadline = time.monotonic() + _SECONDS
        for symbol in _on_disk(readings, query, open_already, deadline):
            if len(out) == MOST:
                say(
                    f"{params.query!r}: the first {MOST:,} symbols, the stages nearest to the open ones; there are more"
                )
                return out
            out.append(symbol)
        if time.monotonic() > deadline:
            say(f"{params.query!r}: the symbols of the nearest stages; not all were searched in {_SECONDS:g} s")
    return out


def _on_disk(
    readings: Sequence[Reading], query: str, open_already: set[str], deadline: float
) -> Iterator[types.SymbolInformation]:
    """Instructions and computations of the stages that are not open."""
    word = re.escape(query.encode("utf-8", "surrogatepass"))
    line = re.compile(
        rb"^[ \t]*(?:ROOT )?(?:ENTRY )?%?(?P<name>[\w.\-]*" + word + rb"[\w.\-]*)(?P<kind> = | ?(?:\(|\{))", re.M | re.I
    )
    for reading in readings:
        for uri, path in other_stages(reading.uri):
            if uri in open_already or time.monotonic() > deadline:
                continue
            open_already.add(uri)
            try:
                with open(path, "rb") as opened:
                    data = opened.read()
            except OSError:
                continue
            at = number = 0
            for found in line.finditer(data):
                number += data.count(b"\n", at, found.start("name"))
                at = found.start("name")
                column = at - (data.rfind(b"\n", 0, at) + 1)
                name = found["name"].decode("utf-8", "replace")
                # Names are ASCII and so is what stands before them: a byte is a unit in every encoding.
                where = types.Range(types.Position(number, column), types.Position(number, column + len(found["name"])))
                kind = types.SymbolKind.Variable if found["kind"] == b" = " else types.SymbolKind.Function
                yield types.SymbolInformation(
                    types.Location(uri, where), name, kind, container_name=os.path.basename(path)
                )
                if time.monotonic() > deadline:
                    return


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
