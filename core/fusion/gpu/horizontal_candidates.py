"""Which kernels that one instruction reads are small enough to be launched as one.

Source: ``openxla/xla:xla/service/gpu/transforms/horizontal_loop_fusion.cc`` and ``horizontal_input_fusion.cc`` as they
were before XLA removed them in July 2025.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import elements, is_elementwise, same_layout_and_dimensions
from hloscope.core.fusion.decision import ALLOWED, Decision

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hloscope.core.hlo.instruction import HloInstruction

SMALL_SLICED = (128 * 2048, 30)
"""Elements and instructions up to which kernels of different shapes are joined."""
SMALL_LOOP = (8192 * 8192, 128)
"""The same for kernels of one shape."""
MAX_OUTPUTS = 32
MAX_SINGLE_OUTPUTS = 64
"""Outputs of one joined kernel that was no fusion before."""
MAX_PARAMETER_BYTES = 4000
_POINTER_BYTES = 8
_TRANSPARENT = frozenset(("get-tuple-element", "bitcast"))


def outputs_of(instruction: HloInstruction) -> tuple[HloInstruction, ...]:
    """What a kernel computes: the instruction, a fusion's root, or the elements of its root tuple."""
    if instruction.opcode != "fusion":
        return (instruction,)
    root = instruction.callee().root
    return root.operands if root.opcode == "tuple" else (root,)


def size_of(instruction: HloInstruction) -> int:
    """Instructions of a kernel."""
    return len(instruction.callee()) if instruction.opcode == "fusion" else 1


def source_of(operand: HloInstruction) -> HloInstruction:
    """The kernel behind an operand, past bitcasts and tuple elements."""
    while operand.opcode in _TRANSPARENT:
        operand = operand.operand(0)
    return operand


def only_read_by(instruction: HloInstruction, consumer: HloInstruction) -> bool:
    """Whether nobody but a consumer and the root reads an instruction, so that joining cannot make a cycle."""
    return all(
        only_read_by(user, consumer) if user.opcode in _TRANSPARENT else user is consumer or user.is_root
        for user in instruction.users
    )


def is_loop_candidate(instruction: HloInstruction) -> bool:
    """Whether an instruction is a kernel that loops over its elements, all outputs of one type."""
    if instruction.control_predecessors or instruction.control_successors:
        return False
    if any(one.layout is not None and one.layout.memory_space for _, one in instruction.shape.leaves() if one.is_array):
        return False
    if instruction.opcode != "fusion":
        return is_elementwise(instruction) and instruction.operand_count > 0
    root, kind = instruction.callee().root, instruction.attr("kind")
    if instruction.shape.is_tuple and root.opcode != "tuple":
        return False  # one reduction with several results
    if kind != "kLoop" and not (kind == "kInput" and root.opcode == "concatenate"):
        return False
    return len({one.shape.element_type for one in outputs_of(instruction)}) == 1


def loop_candidates(consumer: HloInstruction, *, sliced: bool) -> tuple[list[HloInstruction], list[Refused]]:
    """Kernels read by a consumer that may be joined, sorted so that those of one kind are neighbours."""
    found = list(dict.fromkeys(one for one in map(source_of, consumer.operands) if is_loop_candidate(one)))
    kept: list[HloInstruction] = []
    refused: list[Refused] = []
    for one in found:
        decision = _candidate_refusal(one, consumer, found, sliced=sliced)
        if decision:
            kept.append(one)
        else:
            refused.append((one, decision))
    place = {one: number for number, one in enumerate(consumer.parent.instructions)}

    def key(one: HloInstruction) -> tuple[str, int, int, int, int]:
        outputs = outputs_of(one)
        return (outputs[0].shape.element_type, len(outputs), size_of(one), elements(outputs[0].shape), place[one])

    return sorted(kept, key=key), refused


Refused = tuple["HloInstruction", Decision]


def _candidate_refusal(
    one: HloInstruction, consumer: HloInstruction, others: Iterable[HloInstruction], *, sliced: bool
) -> Decision:
    if not only_read_by(one, consumer):
        return Decision.forbid("including it may create cycles in HLO", "no reader but this one", users=one.user_count)
    outputs = outputs_of(one)
    narrow = sliced or outputs[0].opcode == "concatenate"
    most, instructions = (SMALL_SLICED if narrow else SMALL_LOOP)[0], (SMALL_SLICED if sliced else SMALL_LOOP)[1]
    count = prod(outputs[0].shape.dimensions)
    if count > most or (one.opcode == "fusion" and size_of(one) > instructions):
        return Decision.forbid(
            "may not be profitable: its run time is more than a launch",
            f"at most {most} elements and {instructions} instructions",
            elements=count,
            instructions=size_of(one),
        )
    updates = one.opcode == "fusion" and any(each.opcode == "dynamic-update-slice" for each in outputs)
    if updates:
        readers = {user for operand in one.operands for user in operand.users if user is not one}
        if readers & set(others):
            return Decision.forbid("an update in place shares an operand with another candidate")
    return ALLOWED


def next_span(found: list[HloInstruction], start: int, *, sliced: bool) -> tuple[int, Decision]:
    """The end of the run of kernels from `start` on that become one, and what ended it."""
    first = outputs_of(found[start])
    limit = MAX_OUTPUTS if sliced or found[start].opcode == "fusion" else MAX_SINGLE_OUTPUTS
    outputs = pointers = 0
    for end in range(start, len(found)):
        these = outputs_of(found[end])
        outputs += len(these)
        pointers += found[end].operand_count + len(these)
        refused = ALLOWED
        if these[0].shape.element_type != first[0].shape.element_type:
            refused = Decision.forbid("different output types")
        elif len(these) != len(first):
            refused = Decision.forbid("different number of outputs", first=len(first), second=len(these))
        elif not sliced and not same_layout_and_dimensions(first[0].shape, these[0].shape):
            refused = Decision.forbid("different output shape", first=str(first[0].shape), second=str(these[0].shape))
        elif outputs >= limit:
            refused = Decision.forbid("hit max fusion batch size", outputs=outputs, limit=limit)
        elif pointers * _POINTER_BYTES >= MAX_PARAMETER_BYTES:
            refused = Decision.forbid(
                "hit max cuda param size", bytes=pointers * _POINTER_BYTES, limit=MAX_PARAMETER_BYTES
            )
        if not refused:
            return max(end, start + 1), refused
    return len(found), ALLOWED
