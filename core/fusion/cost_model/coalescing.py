"""Whether neighbouring threads read neighbouring elements: one rough answer for a whole kernel.

Source: ``openxla/xla:xla/service/gpu/model/coalescing_analysis.cc#IsReadCoalescedHeuristic``,
``xla/service/gpu/gpu_fusible.cc#TransposesMinorDimension``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import is_elementwise, minor_to_major
from hloscope.core.fusion.gpu.fusion_view import FusionView
from hloscope.core.fusion.gpu.shapes import is_real_reduction, is_unnested_reduction

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape


_MOVES = frozenset(("copy", "transpose", "fusion"))
"""Opcodes that can change which dimension is fastest."""


def uncoalesced_cause(
    kind: str, device: DeviceDescription, producer: HloInstruction, consumer: HloInstruction | None = None
) -> str | None:
    """Why the reads of an instruction, or of a pair fused, are taken to be scattered; None where they are not."""
    if kind != "transpose":
        for one in (producer, consumer):
            bad = _bad_transpose(one) if one is not None else None
            if bad is not None:
                return f"%{bad.name} moves the most minor dimension"
    if kind == "reduction" and consumer is not None:
        if is_input_fusible_reduction(producer, device) and is_input_fusible_reduction(consumer, device):
            return "both sides are reductions"
    return None


def _bad_transpose(instruction: HloInstruction) -> HloInstruction | None:
    inside = instruction.callee().instructions if instruction.opcode == "fusion" else (instruction,)
    for one in inside:
        if one.opcode in _MOVES and transposes_minor_dimension(one) and not _reads_broadcast(one.operand(0)):
            return one
    return None


def _reads_broadcast(instruction: HloInstruction) -> bool:
    while True:
        if instruction.opcode in ("broadcast", "iota"):
            return True
        if instruction.operand_count != 1:
            return False
        if instruction.opcode != "bitcast" and not is_elementwise(instruction):
            return False
        instruction = instruction.operand(0)


def _most_minor(shape: Shape) -> tuple[int, int]:
    """The most minor dimension of size above 1 and its place in the layout; -1 where there is none."""
    order = minor_to_major(shape)
    for place, dim in enumerate(order):
        if shape.dimensions[dim] > 1:
            return dim, place
    return -1, len(order)


def transposes_minor_dimension(instruction: HloInstruction) -> bool:
    """Whether the dimension that is fastest in the result is another than in the operand."""
    if instruction.opcode == "fusion":
        return any(transposes_minor_dimension(one) for one in instruction.callee().instructions)
    if instruction.opcode == "copy":
        return _most_minor(instruction.operand(0).shape)[0] != _most_minor(instruction.shape)[0]
    if instruction.opcode != "transpose":
        return False
    operand = instruction.operand(0).shape
    order = minor_to_major(operand)
    _, first = _most_minor(operand)
    for dim in minor_to_major(instruction.shape):
        if instruction.shape.dimensions[dim] != 1:
            return order.index(instruction.dimensions[dim]) > first
    return False


def is_input_fusible_reduction(instruction: HloInstruction, device: DeviceDescription) -> bool:
    """A reduce with a kernel of its own kind, or a fusion with such a one at a root."""
    if instruction.opcode != "fusion":
        return is_unnested_reduction(instruction, device)
    from hloscope.core.fusion.gpu.fusion_analysis import non_trivial_hero

    view = FusionView(instruction)
    return any(is_real_reduction(root, non_trivial_hero(root, view), device) for root in view.roots())
