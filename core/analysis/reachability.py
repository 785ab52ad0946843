"""Which instruction of a computation depends on which, through operands and control edges.

A snapshot: later edits of the graph do not change it. Source: ``openxla/xla:xla/hlo/analysis/hlo_reachability.cc``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction


class Reachability:
    """Dependences within one computation; one bit per pair."""

    def __init__(self, computation: HloComputation) -> None:
        self._bit: dict[HloInstruction, int] = {}
        self._before: list[int] = []
        for node in computation.post_order():
            number = len(self._bit)
            self._bit[node] = number
            reached = 1 << number
            for earlier in (*node.operands, *node.control_predecessors):
                reached |= self._before[self._bit[earlier]]
            self._before.append(reached)

    def __contains__(self, node: HloInstruction) -> bool:
        return node in self._bit

    def add(self, first: HloInstruction, second: HloInstruction) -> None:
        """Note that `second`, and all that depends on it, depends on `first` now."""
        new, bit = self._before[self._bit[first]], self._bit[second]
        for number, reached in enumerate(self._before):
            if reached >> bit & 1:
                self._before[number] = reached | new

    def reaches(self, first: HloInstruction, second: HloInstruction) -> bool:
        """Whether `second` depends on `first`, or is it."""
        return bool(self._before[self._bit[second]] >> self._bit[first] & 1)
