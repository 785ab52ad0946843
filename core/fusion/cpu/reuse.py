"""Which operands an instruction reads more than once, and how often a fusion would compute a producer.

Source: ``openxla/xla:xla/hlo/ir/hlo_instruction.cc#OperandElementUse``,
``xla/service/instruction_fusion.cc#UpdateReusedOperandsForFusion``, ``xla/service/fusion_node_indexing_evaluation.cc``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import is_elementwise

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

MAX_EMITTED = 15
"""More copies than this of one producer in a kernel cost too much code (``kAllowedCodeDuplication``)."""
_COPIED_ONCE = frozenset("concatenate dot dynamic-update-slice pad reduce reduce-window".split())
_NEVER_REUSE = frozenset("bitcast concatenate reshape reverse slice transpose gather".split())


class Use(IntEnum):
    """How an element of an operand is read; the smallest of several ways is the one that counts."""

    REUSED = 0
    ONCE = 1
    NONE = 2


def reuses(instruction: HloInstruction, position: int) -> bool:
    """Whether elements of the operand at a position may be read more than once."""
    return _use(instruction, position) is Use.REUSED


def _use(instruction: HloInstruction, position: int) -> Use:
    opcode = instruction.opcode
    if opcode in _NEVER_REUSE:
        return Use.ONCE
    if opcode == "pad":
        return Use.REUSED if position > 0 else Use.ONCE
    if opcode == "reduce":
        return Use.REUSED if position >= instruction.operand_count // 2 else Use.ONCE
    if opcode == "dynamic-update-slice":
        return Use.REUSED if position >= 2 else Use.ONCE
    if opcode == "dot":
        thin = instruction.shape.rank <= 1 and position < 2 and instruction.operand(1 - position).shape.rank <= 1
        return Use.ONCE if thin else Use.REUSED
    if opcode == "fusion":
        return _use_in_fusion(instruction, position)
    return Use.ONCE if is_elementwise(instruction) else Use.REUSED


def _use_in_fusion(fusion: HloInstruction, position: int) -> Use:
    """The worst use on any path from the body's root to the parameter."""
    body = fusion.callee("calls")
    parameter = body.parameters[position]
    best: dict[HloInstruction, Use] = {parameter: Use.ONCE}
    for one in body.post_order():
        if one is parameter or one.opcode == "parameter":
            continue
        found = Use.NONE
        for place, operand in enumerate(one.operands):
            below = best.get(operand, Use.NONE)
            if below is Use.NONE:
                continue
            own = _use(one, place)
            found = min(found, Use.REUSED if own is Use.REUSED else below)
        best[one] = found
    return best.get(body.root, Use.NONE)


class ReusedOperands:
    """Per instruction the operands that it may read more than once, kept as fusions grow.

    A set is made when it is first asked for and follows values, not positions, as XLA's does.
    """

    def __init__(self) -> None:
        self._sets: dict[HloInstruction, set[HloInstruction]] = {}

    def of(self, instruction: HloInstruction) -> set[HloInstruction]:
        """The reused operands of an instruction."""
        found = self._sets.get(instruction)
        if found is None:
            operands = instruction.operands
            found = {one for place, one in enumerate(operands) if reuses(instruction, place)}
            self._sets[instruction] = found
        return found

    def fused(self, producer: HloInstruction, fusion: HloInstruction) -> None:
        """Note that a producer is about to move into a fusion: below a reused value everything is reused."""
        inside = self.of(fusion)
        if producer in inside:
            inside.discard(producer)
            inside.update(producer.operands)
        else:
            inside |= self.of(producer)


class DuplicationEstimate:
    """How often the emitter would write out each instruction of one fusion.

    An instruction is written once for each way in which its element index is computed; operands of the same dimensions
    and layout take over the index of their user.
    """

    def __init__(self, fusion: HloInstruction) -> None:
        self._fusion = fusion
        self._count: dict[HloInstruction, int] = {fusion: 1}
        body = fusion.callee("calls")
        self._users: dict[HloInstruction, dict[HloInstruction, None]] = {body.root: {fusion: None}}
        for one in reversed(body.post_order()):
            if one.opcode != "parameter":
                self._settle(one)

    def emitted(self, operand: HloInstruction) -> int:
        """Copies of an operand of the fusion that would be written if it moved in."""
        return sum(self._count[user] for user in self._users.get(operand, ()))

    def too_high(self, producer: HloInstruction) -> int | None:
        """The number of copies where they are too many; None where they are not."""
        if producer.opcode == "broadcast":
            return None
        copies = self.emitted(producer)
        if copies > MAX_EMITTED:
            return copies
        if producer.opcode in _COPIED_ONCE and (copies > 1 or _real_uses(producer) > 1):
            return max(copies, 2)
        return None

    def leave(self, producer: HloInstruction) -> dict[HloInstruction, None]:
        """Take a producer out of the operands, before it is cloned into the body; give the result to `enter`."""
        return self._users.pop(producer, {})

    def enter(self, clone: HloInstruction, users: dict[HloInstruction, None]) -> None:
        """Note the clone of a producer in the body."""
        self._users[clone] = users
        self._settle(clone)

    def _settle(self, one: HloInstruction) -> None:
        users = self._users.setdefault(one, {})
        self._count[one] = self.emitted(one)
        for operand in one.operands:
            read = operand
            if operand.opcode == "parameter":
                read = self._fusion.operand(operand.parameter_number)
            of_read = self._users.setdefault(read, {})
            if one.opcode == "transpose" or _same_index(read.shape, one.shape):
                of_read.update(users)
            else:
                of_read[one] = None


def _same_index(a: Shape, b: Shape) -> bool:
    return a.dimensions == b.dimensions and a.layout == b.layout and a.tuple_shapes == b.tuple_shapes


def _real_uses(producer: HloInstruction) -> int:
    """Uses where a fusion counts as the users of its parameter."""
    total = 0
    for user in producer.users:
        if user.opcode == "fusion":
            parameters = user.callee("calls").parameters
            total += sum(parameters[at].user_count for at, one in enumerate(user.operands) if one is producer)
        else:
            total += 1
    return total
