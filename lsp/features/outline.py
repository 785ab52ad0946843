"""Document symbols: the module, its computations and their instructions, as a tree; no instructions on a large text.

The tree of a large module is tens of megabytes of JSON. It is written straight from the index's columns, all positions
worked out at once: through an object for every symbol and range it takes twenty times as long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from lsprotocol import types

from hloscope.core.text.module_index import ModuleIndex
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS, Feature
from hloscope.lsp.features.markdown import shortened
from hloscope.lsp.positions import Offsets
from hloscope.lsp.protocol import Encoded

_DETAIL = 120


def outline(reading: Reading, params: types.DocumentSymbolParams) -> Encoded:
    """The tree in text order. Without a module header the computations stand alone."""
    del params
    index, columns = reading.index, reading.index.columns
    computations = index.computations
    within = list[list[str]]([[] for _ in computations])
    if index.instruction_count <= FULL_INSTRUCTIONS:
        spans = _ranges(reading, columns.starts, columns.ends)
        names = _ranges(reading, columns.names, columns.name_ends)
        details = _details(index)
        rows = [
            _symbol(name, detail, types.SymbolKind.Variable, span, selection)
            for name, detail, span, selection in zip(index.names, details, spans, names, strict=True)
        ]
        within = [rows[one.begin : one.end] for one in computations]
    spans = _ranges(reading, columns.computation_starts, columns.computation_stops)
    names = _ranges(reading, columns.computation_names, columns.computation_name_ends)
    out: list[str] = []
    for one, span, selection, children in zip(computations, spans, names, within, strict=True):
        if not len(one) and not one.name:
            continue
        root = f" -> {index.shape_text(one.root)}" if one.root >= 0 else ""
        detail = f"{'ENTRY, ' if one.is_entry else ''}{len(one):,} instruction{'s'[: len(one) != 1]}{root}"
        # An editor refuses a symbol without a name.
        name = one.name or "(outside any computation)"
        out.append(_symbol(name, detail, types.SymbolKind.Function, span, selection, children))
    if index.module_name:
        end = max([columns.header[1], *(one.span[1] for one in computations)])
        span, selection = _ranges(
            reading,
            np.array([columns.header[0], columns.module_name[0]]),
            np.array([end, columns.module_name[1]]),
        )
        detail = f"{len(computations):,} computations, {index.instruction_count:,} instructions"
        out = [_symbol(index.module_name, detail, types.SymbolKind.Module, span, selection, out)]
    return Encoded(f"[{','.join(out)}]")


def _details(index: ModuleIndex) -> Iterator[str]:
    """Opcode and shape of every instruction."""
    columns = index.columns
    opcodes, shapes = columns.opcode_names, columns.shape_texts
    for opcode, shape in zip(columns.opcode_ids.tolist(), columns.shape_ids.tolist(), strict=True):
        yield f"{opcodes[opcode]} {shapes[shape]}".strip()


def _ranges(reading: Reading, starts: Offsets, ends: Offsets) -> list[str]:
    """The JSON of many ranges."""
    lines, characters = reading.lines.positions(starts.astype(np.int64), reading.encoding)
    end_lines, end_characters = reading.lines.positions(ends.astype(np.int64), reading.encoding)
    return [
        f'{{"start":{{"line":{a},"character":{b}}},"end":{{"line":{c},"character":{d}}}}}'
        for a, b, c, d in zip(lines, characters, end_lines, end_characters, strict=True)
    ]


def _symbol(
    name: str, detail: str, kind: types.SymbolKind, span: str, selection: str, children: list[str] | None = None
) -> str:
    below = f',"children":[{",".join(children)}]' if children else ""
    return (
        f'{{"name":{json.dumps(name)},"detail":{json.dumps(shortened(detail, _DETAIL))},"kind":{kind.value},'
        f'"range":{span},"selectionRange":{selection}{below}}}'
    )


FEATURE = Feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL, outline, heavy=True, large="the outline lists computations only")
