"""Removal of copies whose two sides can share memory: the second of copy insertion's three steps.

The values of each buffer stand in a list in the order in which they are made. Removing a copy joins the list that it
reads from and the list that it starts; it may go where every value then still ends before the next is made.
Source: ``openxla/xla:xla/service/copy_removal.cc#CopyRemover``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import TYPE_CHECKING

from hloscope.core.analysis.dataflow import branches
from hloscope.core.buffers.copy_regions import RegionAnalysis, region

if TYPE_CHECKING:
    from hloscope.core.analysis.alias import AliasAnalysis, HloBuffer
    from hloscope.core.analysis.dataflow_values import HloUse, HloValue
    from hloscope.core.analysis.ordering import HloOrdering
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule


@dataclass(frozen=True, slots=True)
class Interference:
    """Why a copy has to stay."""

    code: str
    """One of `CODES`."""
    first: HloValue | None = None
    """The value whose last read would come too late."""
    use: HloUse | None = None
    """That read, where one alone is to blame."""
    second: HloValue | None = None
    """The value that would be written over it."""


CODES = {
    "no_single_source": "what it copies may be one of several values",
    "shape_or_layout": "it changes shape, layout or memory space",
    "middle_to_middle": "it copies a value that is not its buffer's last into a place that is not its buffer's first",
    "live_ranges_overlap": "both sides would be alive at once",
    "scatter_reads_source": "a scatter with several operands reads the source as well",
}
"""Code -> the reason in words."""


class _Node:
    """A value in its buffer's list."""

    __slots__ = ("next", "prev", "uses", "value")

    def __init__(self, value: HloValue) -> None:
        self.value = value
        self.uses: list[HloUse] = list(value.uses)
        self.prev: _Node = self
        self.next: _Node = self


class CopyRemover:
    """The lists of one module, and which copies can go."""

    def __init__(
        self,
        module: HloModule,
        analysis: AliasAnalysis,
        ordering: HloOrdering,
        schedule: object = None,
        *,
        region_limit: int = 0,
    ) -> None:
        self._info = analysis.info
        self._region_limit = region_limit
        self._ordering = ordering
        self._heads: set[_Node] = set()
        self._source: dict[HloInstruction, _Node] = {}
        self._target: dict[HloInstruction, _Node] = {}
        numbers = _numbers(module, scheduled=schedule is not None)
        nodes: dict[HloValue, _Node] = {}
        for buffer in analysis.buffers:
            self._add_list(buffer, numbers, nodes)
        for computation in module.computations:
            for node in computation:
                if node.opcode != "copy" or analysis.dataflow.is_fused(computation):
                    continue
                values = analysis.dataflow.value_set(node.operand(0))
                own = analysis.dataflow.defined_at(node)
                if len(values) == 1 and own is not None:
                    self._source[node], self._target[node] = nodes[values[0]], nodes[own]

    def _add_list(self, buffer: HloBuffer, numbers: dict[HloInstruction, int], nodes: dict[HloValue, _Node]) -> None:
        def compare(a: HloValue, b: HloValue) -> int:
            earlier = numbers.get(a.instruction, 0) < numbers.get(b.instruction, 0)
            first, second = (a, b) if earlier else (b, a)
            if self._ordering.defined_before(first, second):
                return -1 if earlier else 1
            if self._ordering.defined_before(second, first):
                return 1 if earlier else -1
            if numbers.get(a.instruction, 0) == numbers.get(b.instruction, 0):
                return 0
            return -1 if earlier else 1

        values = sorted(buffer.values, key=cmp_to_key(compare)) if len(buffer.values) > 1 else buffer.values
        made = [_Node(value) for value in values]
        for node, following in zip(made, [*made[1:], made[0]], strict=True):
            node.next, following.prev = following, node
        nodes.update((node.value, node) for node in made)
        self._heads.add(made[0])

    # ---------------------------------------------------------------- lists
    def _following(self, node: _Node) -> _Node | None:
        return None if node.next in self._heads else node.next

    def _preceding(self, node: _Node) -> _Node | None:
        return None if node in self._heads else node.prev

    def _forward(self, node: _Node | None) -> Iterator[_Node]:
        while node is not None:
            yield node
            node = self._following(node)

    def _backward(self, node: _Node | None) -> Iterator[_Node]:
        while node is not None:
            yield node
            node = self._preceding(node)

    def _splice_after(self, head: _Node, after: _Node) -> None:
        self._heads.discard(head)
        tail = head.prev
        following = after.next
        after.next, head.prev = head, after
        tail.next, following.prev = following, tail

    # ---------------------------------------------------------------- one copy
    def is_candidate(self, copy: HloInstruction) -> bool:
        """Whether a copy was there when this was made and has one source."""
        return copy in self._source

    def check(self, copy: HloInstruction) -> Interference | None:
        """Why a copy has to stay, None where `elide` may be called."""
        if copy not in self._source:
            return Interference("no_single_source")
        if copy.shape != copy.operand(0).shape:
            return Interference("shape_or_layout")
        source, target = self._source[copy], self._target[copy]
        if source.next is target:
            return None
        following = self._following(target)
        if target in self._heads:
            if following is not None and _shared_scatter(following.value, source):
                return Interference("scatter_reads_source", source.value, None, following.value)
            late = self._late(source, following) or self._late(target.prev, self._following(source))
            return self._unless_regions_fit(copy, late, into_source=True)
        if self._following(source) is None:
            late = self._late(self._preceding(target), source.next) or self._late(source, following)
            return self._unless_regions_fit(copy, late, into_source=False)
        return Interference("middle_to_middle", source.value, None, target.value)

    def _unless_regions_fit(
        self, copy: HloInstruction, late: Interference | None, *, into_source: bool
    ) -> Interference | None:
        """The interference, unless region analysis is on and finds none; it may add control edges."""
        if late is None or not self._region_limit or copy.operand(0).opcode == "broadcast":
            return late
        sides = [list(self._round(node)) for node in (self._source[copy], self._target[copy])]
        costs = [sum(1 + len(node.uses) for node in side) for side in sides]
        if 0 < self._region_limit < costs[0] * costs[1]:
            return late
        regions = [region([(node.value, node.uses) for node in side]) for side in sides]
        analysis = RegionAnalysis(self._ordering, self._info)
        return late if analysis.interfere(*regions, target_into_source=into_source) else None

    def _round(self, node: _Node) -> Iterator[_Node]:
        here = node
        while True:
            yield here
            here = here.next
            if here is node:
                return

    def _late(self, before: _Node | None, after: _Node | None) -> Interference | None:
        """The first pair of which a value up to `before` does not end before one from `after` on is made."""
        for second in self._forward(after):
            for first in self._backward(before):
                if not self._ends_before(first, second):
                    return self._blame(first, second)
        return None

    def _ends_before(self, first: _Node, second: _Node) -> bool:
        if not first.uses:
            return self._ordering.defined_before(first.value, second.value)
        root = second.value.instruction.parent.root
        if any(holder is root for holder, _ in first.value.positions):
            return False
        return self._ordering.uses_before_definition(first.uses, second.value)

    def _blame(self, first: _Node, second: _Node) -> Interference:
        for use in first.uses:
            if not self._ordering.uses_before_definition([use], second.value):
                return Interference("live_ranges_overlap", first.value, use, second.value)
        return Interference("live_ranges_overlap", first.value, None, second.value)

    def elide(self, copy: HloInstruction) -> None:
        """Join the lists of a copy that `check` passed, and take it out of the graph's way; it stays, without users."""
        source, target = self._source[copy], self._target[copy]
        if source.next is target:
            pass
        elif target in self._heads:
            self._splice_after(target, source)
        else:
            head, preceding = source.next, target.prev
            self._splice_after(head, preceding)
        before = target.prev
        before.next, target.next.prev = target.next, before
        if target in self._heads:
            self._heads.discard(target)
            self._heads.add(target.next)
        for number, use in enumerate(before.uses):
            if use.instruction is copy:
                del before.uses[number]
                break
        for use in target.uses:
            before.uses.append(use)
            if use.instruction in self._source:
                self._source[use.instruction] = before
        del self._source[copy], self._target[copy]


def _shared_scatter(value: HloValue, source: _Node) -> bool:
    node = value.instruction
    scatter = node.callee("calls").root if node.opcode == "fusion" else node
    if scatter.opcode != "scatter" or not scatter.shape.is_tuple:
        return False
    return any(use.instruction is node for use in source.uses)


def _numbers(module: HloModule, *, scheduled: bool) -> dict[HloInstruction, int]:
    """Depth-first numbers from the entry: parameters, then the rest, called computations before their callers."""
    numbers: dict[HloInstruction, int] = {}
    seen: set[HloComputation] = set()

    def visit(computation: HloComputation) -> None:
        if computation in seen:
            return
        seen.add(computation)
        for node in computation.parameters:
            numbers[node] = len(numbers)
        for node in computation.instructions if scheduled else computation.post_order():
            if node.opcode == "parameter":
                continue
            for callee in _callees(node):
                visit(callee)
            numbers[node] = len(numbers)

    visit(module.entry)
    for computation in module.computations:
        visit(computation)
    return numbers


def _callees(node: HloInstruction) -> Sequence[HloComputation]:
    if node.opcode == "while":
        return (node.callee("condition"), node.callee("body"))
    return branches(node) if node.opcode == "conditional" else node.called_computations


def remove_copies(
    module: HloModule,
    remover: CopyRemover,
    ask: Callable[[HloInstruction], bool] | None = None,
    told: Callable[[HloInstruction, Interference | None], None] | None = None,
) -> int:
    """Elide copies until a sweep finds none; `ask` may refuse one, `told` hears what came of each in the end.

    Dead copies stay in the module. Returns how many were elided.
    """
    elided, refused = 0, set["HloInstruction"]()
    reasons: dict[HloInstruction, Interference] = {}
    changed = True
    while changed:
        changed = False
        for computation in module.computations:
            for copy in computation:
                if copy.opcode != "copy" or not remover.is_candidate(copy) or copy in refused:
                    continue
                reason = remover.check(copy)
                if reason is not None:
                    reasons[copy] = reason
                    continue
                if ask is not None and not ask(copy):
                    refused.add(copy)
                    continue
                remover.elide(copy)
                copy.drop_all_control_dependencies()
                copy.replace_all_uses_with(copy.operand(0))
                reasons.pop(copy, None)
                if told is not None:
                    told(copy, None)
                elided += 1
                changed = True
    if told is not None:
        for copy, reason in reasons.items():
            told(copy, reason)
    return elided
