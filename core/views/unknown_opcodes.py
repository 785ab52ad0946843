"""Instructions whose opcode XLA does not have, at each, with the opcodes that are spelled much like it.

The reader keeps such an opcode as it stands, since a newer compiler may have it; whoever types one has misspelt it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import Diagnostic
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.spelling import nearest
from hloscope.core.text.async_sugar import async_parts

if TYPE_CHECKING:
    from hloscope.core.text.module_index import ModuleIndex

CODE = "unknown-opcode"
_MOST_WORDS = 50
"""For which opcodes spelled like them are looked for."""


def unknown_opcodes(index: ModuleIndex, most: int = 500) -> list[Diagnostic]:
    """A warning at each, `most` at most, by place; none on a line that cannot be read anyway."""
    columns = index.columns
    words = {
        number: word
        for number, word in enumerate(columns.opcode_names)
        if word and word not in OPCODES and async_parts(word) is None
    }
    if not words:
        return []
    said = {word: _sentence(word, near=k < _MOST_WORDS) for k, word in enumerate(words.values())}
    broken = {one.line for one in index.errors}
    out: list[Diagnostic] = []
    for i in np.flatnonzero(np.isin(columns.opcode_ids, list(words)))[:most].tolist():
        word, start = words[int(columns.opcode_ids[i])], int(columns.opcode_starts[i])
        end = start + len(word)
        (line, column), (end_line, end_column) = index.position(start), index.position(end)
        if line + 1 not in broken:
            out.append(
                Diagnostic(said[word], line + 1, column + 1, end_line + 1, end_column + 1, "warning", CODE, start, end)
            )
    return out


def _sentence(word: str, *, near: bool) -> str:
    found = nearest(word, OPCODES, most=2) if near else []
    meant = f"; {' or '.join(found)}?" if found else ""
    return f"XLA's parser does not know the opcode {word[:60]}{meant}"
