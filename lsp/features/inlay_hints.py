"""Inlay hints: the shape of every operand where the text names it alone, and the bytes of large results."""

from __future__ import annotations

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


def inlay_hints(reading: Reading, params: types.InlayHintParams) -> list[types.InlayHint]:
    """Hints of the instructions in the range."""
    index = reading.index
    start, end = reading.offset(params.range.start), reading.offset(params.range.end)
    out: list[types.InlayHint] = []
    for i in _within(index, start, end):
        parts = index.parts(i)
        if parts.operands is not None and "[" not in index.operands_text(i):
            for reference, operand in zip(parts.operand_references(index.source), index.operands(i), strict=False):
                if operand >= 0:
                    text = shortened(index.shape_text(operand), _SHAPE)
                    start_of = reference.span[0] - (index.source[reference.span[0] - 1] == "%")
                    out.append(_hint(reading, start_of, f"{text} ", types.InlayHintKind.Type))
        size = _bytes(index.shape_text(i))
        if size is not None and size >= LARGE_BYTES:
            out.append(_hint(reading, index.span(i)[1], f"  {size / (1 << 20):,.1f} MiB", None))
        if len(out) >= _MOST:
            break
    return out


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
