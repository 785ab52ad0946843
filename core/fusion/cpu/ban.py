"""Producers that must not be duplicated: found once per computation, before anything is fused.

A producer is free where fusing it into every user cannot cost memory traffic: it reads at most one big operand, its
operands together are no larger than its result, or every path from it can be fused away.
Source: ``openxla/xla:xla/service/instruction_fusion.cc#ComputeGloballyUnfusible, #CanFuseOnAllPaths``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import elements, is_generally_fusible
from hloscope.core.fusion.cpu.predicates import is_effective_scalar

if TYPE_CHECKING:
    from hloscope.core.fusion.cpu.gates import Ladder
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape


def ban_duplication(order: list[HloInstruction], ladder: Ladder) -> None:
    """Fill `ladder.banned` for the instructions of one computation, given in post order."""
    number = {one: at for at, one in enumerate(order)}
    above: list[int] = []  # bit i of above[k]: instruction i reaches instruction k
    for at, one in enumerate(order):
        reached = 1 << at
        for before in (*one.operands, *one.control_predecessors):
            reached |= above[number[before]]
        above.append(reached)
    for at in range(len(order) - 1, -1, -1):
        producer = order[at]
        if _reads_one_big_operand(producer) or _reads_no_more_than_it_writes(producer):
            continue
        paths = _Paths(producer, at, above, number, ladder)
        if is_generally_fusible(producer) and all(paths.fusible_to(user) for user in producer.users):
            continue
        ladder.banned.add(producer)


def _true_rank(shape: Shape) -> int:
    return sum(size > 1 for size in shape.dimensions) if shape.is_array else 0


def _reads_one_big_operand(producer: HloInstruction) -> bool:
    rank = max((_true_rank(leaf) for _, leaf in producer.shape.leaves() if leaf.is_array), default=0)
    big = 0
    for one in producer.operands:
        if one.opcode in ("broadcast", "iota") or (one.opcode == "constant" and is_effective_scalar(one)):
            continue
        big += _true_rank(one.shape) >= rank
    return big <= 1


def _reads_no_more_than_it_writes(producer: HloInstruction) -> bool:
    return sum(elements(one.shape) for one in set(producer.operands)) <= elements(producer.shape)


class _Paths:
    """Whether one producer can be fused along every path to a consumer; answers are kept."""

    def __init__(
        self,
        producer: HloInstruction,
        at: int,
        above: list[int],
        number: dict[HloInstruction, int],
        ladder: Ladder,
    ) -> None:
        self._bit = 1 << at
        self._above = above
        self._number = number
        self._ladder = ladder
        self._known: dict[HloInstruction, bool] = {producer: True}

    def fusible_to(self, consumer: HloInstruction) -> bool:
        """Depth first, operand by operand, until the first edge that cannot be fused."""
        known = self._known
        stack: list[tuple[HloInstruction, int]] = [(consumer, 0)]
        while stack:
            one, position = stack.pop()
            if one in known:
                continue
            if not is_generally_fusible(one):
                known[one] = False
                continue
            known_so_far = self._walk(one, position)
            if isinstance(known_so_far, bool):
                known[one] = known_so_far
            else:
                stack.append((one, known_so_far))
                stack.append((one.operand(known_so_far), 0))
        return known[consumer]

    def _walk(self, one: HloInstruction, position: int) -> bool | int:
        """The answer for an instruction, or the operand position whose answer is needed first."""
        operands = one.operands
        for at in range(position, len(operands)):
            operand = operands[at]
            if not self._above[self._number[operand]] & self._bit:
                continue
            answer = self._known.get(operand)
            if answer is None:
                if operand in self._ladder.banned or self._ladder.unbanned(one, at) is not None:
                    return False
                return at
            if not answer or operand in self._ladder.banned or self._ladder.unbanned(one, at) is not None:
                return False
        return True
