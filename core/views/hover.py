"""What is known of the word under a cursor from the text alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.opcodes import lookup
from hloscope.core.hlo.shape import Shape
from hloscope.core.views.data import HoverFacts, SourceFrame
from hloscope.core.views.symbols import text_span

if TYPE_CHECKING:
    from hloscope.core.text.module_index import ModuleIndex

_NAMED = ("instruction", "operand", "control", "parameter")
_PARTS = ("opcode", "shape", "attribute")


def hover(index: ModuleIndex, offset: int) -> HoverFacts | None:
    """The instruction that the word under the cursor means: of an operand, the one that defines it; on an opcode,
    shape or attribute, the one it belongs to; on a computation's name, its root. None elsewhere.

    The span of the answer is that of the word.
    """
    target = index.at_offset(offset)
    if target.kind in ("computation", "computation-reference") and target.refers_to >= 0:
        i = index.computation(target.refers_to).root
    elif target.kind in _NAMED or target.kind in _PARTS:
        i = target.refers_to
    else:
        return None
    return instruction_facts(index, i, target.span) if i >= 0 else None


def instruction_facts(index: ModuleIndex, i: int, span: tuple[int, int] | None = None) -> HoverFacts:
    """The facts of one instruction; `span` (its name's by default) is what the editor marks."""
    opcode = index.opcode(i)
    shape_text = index.shape_text(i)
    layout, size = _layout_and_bytes(shape_text)
    computation = index.computation(index.computation_of(i))
    operands = tuple(r.name for r in index.parts(i).operand_references(index.source))
    name = index.name(i)
    words = ", ".join(operands) if operands else _payload(index, i)
    return HoverFacts(
        name=name,
        opcode=opcode,
        meaning=lookup(opcode).meaning,
        signature=f"{name} = {shape_text} {opcode}({words})",
        shape=shape_text,
        layout=layout,
        bytes=size,
        operands=operands,
        users=tuple(index.name(u) for u in index.users(i)),
        computation=computation.name,
        is_root=i == computation.root,
        op_name=index.op_name(i),
        source=tuple(SourceFrame(f.file, f.line, f.column, f.function) for f in index.frames(i)),
        span=text_span(index, *(span if span is not None else index.name_span(i))),
    )


def _payload(index: ModuleIndex, i: int) -> str:
    """What stands between the parentheses where that is no operand; shortened."""
    text = index.operands_text(i)
    return text if len(text) <= 60 else text[:57] + "…"


def _layout_and_bytes(text: str) -> tuple[str | None, int | None]:
    """The layout's text (None without one, or for a tuple) and the bytes (None where the size is not known)."""
    try:
        shape = Shape.parse(text)
    except (HloscopeError, ValueError):
        return None, None
    layout = str(shape.layout) if shape.layout is not None else None
    if any(leaf.is_array and leaf.type.kind == "unknown" for _, leaf in shape.leaves()):
        return layout, None
    try:
        return layout, shape.byte_size
    except ValueError:
        return layout, None
