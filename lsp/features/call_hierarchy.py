"""Call hierarchy of computations: who calls one, and what it calls."""

from __future__ import annotations

from lsprotocol import types

from hloscope.core.text.module_index import ModuleIndex
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature


def prepare(reading: Reading, params: types.CallHierarchyPrepareParams) -> list[types.CallHierarchyItem] | None:
    """The computation under the cursor, or the one that the instruction under it is in."""
    target = reading.index.at_offset(reading.offset(params.position))
    number = target.refers_to if target.kind in ("computation", "computation-reference") else target.computation
    return [item(reading, number)] if number >= 0 else None


def item(reading: Reading, number: int) -> types.CallHierarchyItem:
    """A computation as the protocol carries it; `data` is its number."""
    one = reading.index.computation(number)
    root = f" -> {reading.index.shape_text(one.root)}" if one.root >= 0 else ""
    return types.CallHierarchyItem(
        one.name or "(no name)",
        types.SymbolKind.Function,
        reading.uri,
        reading.range(*one.span),
        reading.range(*one.name_span),
        detail=f"{'ENTRY, ' if one.is_entry else ''}{len(one)} instructions{root}",
        data=number,
    )


def incoming(reading: Reading, params: types.CallHierarchyIncomingCallsParams) -> list[types.CallHierarchyIncomingCall]:
    """The computations that call it, with the instructions that do."""
    index = reading.index
    number = _number(index, params.item)
    by_home: dict[int, list[types.Range]] = {}
    for i in index.callers(number) if number is not None else ():
        by_home.setdefault(index.computation_of(i), []).append(reading.range(*index.name_span(i)))
    return [types.CallHierarchyIncomingCall(item(reading, home), places) for home, places in by_home.items()]


def outgoing(reading: Reading, params: types.CallHierarchyOutgoingCallsParams) -> list[types.CallHierarchyOutgoingCall]:
    """The computations that it calls, with the instructions that do."""
    index = reading.index
    number = _number(index, params.item)
    if number is None:
        return []
    one = index.computation(number)
    by_callee: dict[int, list[types.Range]] = {}
    for i in range(one.begin, one.end):
        for callee in index.called(i):
            if callee >= 0:
                by_callee.setdefault(callee, []).append(reading.range(*index.name_span(i)))
    return [types.CallHierarchyOutgoingCall(item(reading, callee), places) for callee, places in by_callee.items()]


def _number(index: ModuleIndex, one: types.CallHierarchyItem) -> int | None:
    """The computation that an item means: by name, since an edit may have renumbered them."""
    return index.find_computation(one.name)


PREPARE = Feature(types.TEXT_DOCUMENT_PREPARE_CALL_HIERARCHY, prepare)
INCOMING = Feature(types.CALL_HIERARCHY_INCOMING_CALLS, incoming, heavy=True)
OUTGOING = Feature(types.CALL_HIERARCHY_OUTGOING_CALLS, outgoing, heavy=True)
