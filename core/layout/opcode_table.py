"""Which operations may hold one layout out and another in, and how eagerly a layout passes through them.

An operation that may not change layout needs every operand of its own rank in the layout of its result. The rows are
XLA's; an opcode without a row may not change layout, which is the careful answer. Source:
``openxla/xla:xla/service/layout_assignment.cc#InstructionCanChangeLayout`` and the predicates beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction

MAY_CHANGE = frozenset(
    """
    after-all async-done async-start async-update batch-norm-grad batch-norm-inference batch-norm-training bitcast
    broadcast call collective-permute-done collective-permute-start conditional constant convolution copy copy-done
    copy-start domain dot dynamic-reshape fusion gather get-dimension-size get-tuple-element infeed iota outfeed
    parameter partition-id ragged-dot recv recv-done reduce replica-id reshape rng rng-bit-generator
    rng-get-and-update-state scaled-dot send send-done transpose tuple
    """.split()
)
"""Opcodes whose result may be laid out otherwise than their operands; custom calls are asked one by one."""

ONE_LAYOUT_TARGETS = frozenset({"LayoutConstraint"})
"""Targets of custom calls that may not change layout."""


def may_change_layout(instruction: HloInstruction, one_layout_targets: frozenset[str] = ONE_LAYOUT_TARGETS) -> bool:
    """Whether the result may have another layout than operands of its rank."""
    opcode = instruction.opcode
    if opcode == "custom-call":
        return instruction.attr("custom_call_target") not in one_layout_targets
    return opcode in MAY_CHANGE


def goes_depth_first(instruction: HloInstruction) -> bool:
    """Whether a layout that passes this operation is followed up at once (else it waits its turn).

    Source: ``xla/service/layout_assignment.cc#InstructionShouldPropagateDepthFirst``.
    """
    opcode = instruction.opcode
    if opcode in ("gather", "scatter", "transpose"):
        return True
    if opcode == "fusion":
        return instruction.attr("kind") == "kCustom"
    if opcode == "reshape":
        operand = instruction.operand(0).shape
        if operand.rank == 1:
            return True
        return [d for d in operand.dimensions if d != 1] == [d for d in instruction.shape.dimensions if d != 1]
    return False
