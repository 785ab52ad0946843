"""Shapes that XLA makes from an instruction's parts, whatever its text says.

Source: ``openxla/xla:xla/hlo/ir/hlo_instruction.cc`` (CreateSend, CreateRecv, CreateInfeed, CreateOutfeed,
CreateAfterAll, CreateAddDependency).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.shape import Shape

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule

BY_XLA = frozenset({"after-all", "outfeed", "send-done", "add-dependency", "send", "recv", "infeed", "recv-done"})
"""Opcodes of which this is so."""


def take_made_shapes(module: HloModule) -> None:
    """Give the instructions of a module the shapes that XLA makes, whatever the text says of them."""
    for node in module.instructions():
        if node.opcode in BY_XLA:
            wanted = made_shape(node)
            if wanted is not None and wanted != node.shape:
                node.shape = wanted


def taken_shape(node: HloInstruction) -> Shape:
    """The shape that users of an instruction see in XLA: the made one, else that of the text."""
    made = made_shape(node) if node.opcode in BY_XLA else None
    return node.shape if made is None else made


def made_shape(node: HloInstruction) -> Shape | None:
    """The shape that XLA gives the instruction, None where its opcode or its parts do not say."""
    shape, operands, token = node.shape, node.operands, Shape.token()
    first = shape.tuple_shapes[0] if shape.tuple_shapes else None
    made: Shape | None = None
    if node.opcode in ("after-all", "outfeed", "send-done"):
        made = token
    elif node.opcode == "add-dependency" and operands:
        made = operands[0].shape
    elif node.opcode == "send" and operands:
        made = Shape.tuple_((operands[0].shape, Shape.scalar("u32"), token))
    elif node.opcode == "recv" and first is not None:
        made = Shape.tuple_((first, Shape.scalar("u32"), token))
    elif node.opcode == "infeed" and first is not None:
        made = Shape.tuple_((first, token))
    elif node.opcode == "recv-done" and operands and operands[0].shape.tuple_shapes:
        made = Shape.tuple_((operands[0].shape.tuple_shapes[0], token))
    return made.with_default_layout() if made is not None else None
