"""Rename: an instruction within its computation, a computation everywhere; refused where the name is taken."""

from __future__ import annotations

import re

from lsprotocol import types

from hloscope.core.errors import UsageError
from hloscope.core.text.module_index import Target
from hloscope.core.views import symbols
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature

_NAME = re.compile(r"%?([A-Za-z_][A-Za-z0-9_.\-]*)")
_COMPUTATIONS = ("computation", "computation-reference")
_NAMED = (*_COMPUTATIONS, "instruction", "operand", "control", "parameter")


def prepare(reading: Reading, params: types.PrepareRenameParams) -> types.PrepareRenamePlaceholder | None:
    """The name that would be renamed; None where there is none under the cursor."""
    target = reading.index.at_offset(reading.offset(params.position))
    if target.kind not in _NAMED:
        return None
    return types.PrepareRenamePlaceholder(reading.range(*target.span), target.name)


def rename(reading: Reading, params: types.RenameParams) -> types.WorkspaceEdit | None:
    """The edits. Raises `UsageError` for what is no HLO name and for a name that the same scope has already."""
    offset = reading.offset(params.position)
    target = reading.index.at_offset(offset)
    if target.kind not in _NAMED:
        return None
    wanted = _NAME.fullmatch(params.new_name)
    if wanted is None:
        raise UsageError(f"{params.new_name!r} is not an HLO name")
    new = wanted[1]
    if new != target.name and _taken(reading, target, new):
        what = "a computation" if target.kind in _COMPUTATIONS else "an instruction"
        raise UsageError(f"there is {what} {new} already")
    places = symbols.references(reading.index, offset)
    edits = [types.TextEdit(reading.range(place.span.start, place.span.end), new) for place in places]
    return types.WorkspaceEdit(changes={reading.uri: edits})


def _taken(reading: Reading, target: Target, new: str) -> bool:
    if target.kind in _COMPUTATIONS:
        return reading.index.find_computation(new) is not None
    return reading.index.find(new, target.computation) is not None


FEATURE = Feature(types.TEXT_DOCUMENT_RENAME, rename, heavy=True)
PREPARE = Feature(types.TEXT_DOCUMENT_PREPARE_RENAME, prepare)
