"""Inlay hints: the shape of every operand where the text names it alone, the parameter that it becomes in what is
called, and the bytes of large results."""

from __future__ import annotations

import re

from lsprotocol import types

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.shape import Shape
from hloscope.core.text.module_index import ModuleIndex
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.feature import Feature
from hloscope.lsp.features.markdown import shortened

LARGE_BYTES = 1 << 20
"""Results of at least this size say how large they are."""
_SHAPE = 48
_MOST = 2_000
_HANDS_ON = frozenset({"call", "fusion", "map", "while", "async-start"})
"""Opcodes whose operands are the parameters of what they call."""
_PARAMETERS = 200
"""Instructions of a computation among which a parameter is looked for: they come first."""
_NAMELESS = re.compile(r"(?:param|parameter|p|arg)[_.]?\d+(?:\.\w+)*", re.I)
"""Names that say no more than the operand's place."""


def inlay_hints(reading: Reading, params: types.InlayHintParams) -> list[types.InlayHint]:
    """Hints of the instructions in the range."""
    index = reading.index
    start, end = reading.offset(params.range.start), reading.offset(params.range.end)
    out: list[types.InlayHint] = []
    for i in _within(index, start, end):
        parts = index.parts(i)
        if parts.operands is not None and index.opcode(i) != "parameter":
            becomes, shaped = _parameters(index, i), "[" in index.operands_text(i)
            for number, (reference, operand) in enumerate(
                zip(parts.operand_references(index.source), index.operands(i), strict=False)
            ):
                start_of = reference.span[0] - (index.source[reference.span[0] - 1] == "%")
                name = becomes.get(number)
                if name is not None and name != reference.name and _NAMELESS.fullmatch(name) is None:
                    out.append(_hint(reading, start_of, f"{name}: ", types.InlayHintKind.Parameter))
                if operand >= 0 and not shaped:
                    text = shortened(index.shape_text(operand), _SHAPE)
                    out.append(_hint(reading, start_of, f"{text} ", types.InlayHintKind.Type))
        size = _bytes(index.shape_text(i))
        if size is not None and size >= LARGE_BYTES:
            out.append(_hint(reading, index.span(i)[1], f"  {size / (1 << 20):,.1f} MiB", None))
        if len(out) >= _MOST:
            break
    return out


def _parameters(index: ModuleIndex, i: int) -> dict[int, str]:
    """The names of an instruction's operands in the computation that it calls, by operand."""
    opcode, called = index.opcode(i), index.called(i)
    if opcode == "conditional":
        return {k + 1: name for k, body in enumerate(called) if (name := _parameter(index, body, 0)) is not None}
    if opcode not in _HANDS_ON or not called:
        return {}
    body = called[0]
    if opcode == "while":
        # Its condition may call it differently; the body is what works on it.
        named = next(iter(index.parts(i).attribute_references(index.source, ("body",))), None)
        found = None if named is None else index.find_computation(named.name)
        body = -1 if found is None else found
    return {
        k: name for k in range(len(index.operands(i))) if (name := _parameter(index, body, k)) is not None
    }  # fmt: skip


def _parameter(index: ModuleIndex, number: int, k: int) -> str | None:
    if number < 0:
        return None
    one = index.computation(number)
    for i in range(one.begin, min(one.end, one.begin + _PARAMETERS)):
        if index.opcode(i) == "parameter" and index.operands_text(i).strip() == str(k):
            return index.name(i)
    return None


def _within(index: ModuleIndex, start: int, end: int) -> range:
    """Instructions whose definitions begin in a range of offsets."""
    starts = index.columns.starts
    first, last = int(starts.searchsorted(start)), int(starts.searchsorted(end))
    return range(max(0, first - 1), last)


def _hint(reading: Reading, offset: int, text: str, kind: types.InlayHintKind | None) -> types.InlayHint:
    position = reading.range(offset, offset).start
    return types.InlayHint(position, text, kind=kind)


def _bytes(text: str) -> int | None:
    try:
        return Shape.parse(text).byte_size
    except (HloscopeError, ValueError):
        return None


FEATURE = Feature(types.TEXT_DOCUMENT_INLAY_HINT, inlay_hints, heavy=True)
