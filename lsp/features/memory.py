"""The part of a hover that says how the value lies in memory, and whether the operation moves bytes."""

from __future__ import annotations

from hloscope.core.errors import HloscopeError
from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.views.memory import instruction_move, memory_lines
from hloscope.lsp.features.markdown import shortened

_LONGEST = 300


def memory(index: ModuleIndex, i: int) -> str:
    """Paragraphs to put behind the facts of an instruction; empty where layouts say nothing."""
    shape = index.shape_text(i)
    lines: list[str] = []
    if "{" in shape and not shape.startswith("("):
        try:
            lines += memory_lines(shape)
        except (HloscopeError, ValueError):
            lines = []
    move = instruction_move(index, i)
    out = ["in memory: " + shortened("  \n".join(lines), _LONGEST)] if lines else []
    if move is not None:
        out.append(move.sentence)
    return "".join(f"\n\n{one}" for one in out)
