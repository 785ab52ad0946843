"""The memory schedulers of one computation: breadth-first, depth-first, list, and plain post-order.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc`` (`BFScheduler`, `DFSMemoryScheduler`,
`ListScheduler`, `PostOrderScheduler`), ``xla/service/hlo_computation.cc``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.analysis.dataflow_values import buffer_bytes
from hloscope.core.schedule.points_to import PointsTo

if TYPE_CHECKING:
    from hloscope.core.analysis.alias import AliasAnalysis
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction

Scheduler = Callable[["HloComputation", "AliasAnalysis"], "list[HloInstruction]"]

_MOST = 2**63 - 1


def breadth_first(computation: HloComputation, _analysis: AliasAnalysis) -> list[HloInstruction]:
    """Each instruction as soon as all that it needs is there, first come first served: XLA:CPU's default."""
    waiting = {node: len({*node.operands}) + len(node.control_predecessors) for node in computation}
    queue = deque(node for node, count in waiting.items() if not count)
    order: list[HloInstruction] = []
    while queue:
        node = queue.popleft()
        order.append(node)
        for after in (*node.users, *node.control_successors):
            waiting[after] -= 1
            if not waiting[after]:
                queue.append(after)
    return order


def post_order(computation: HloComputation, _analysis: AliasAnalysis) -> list[HloInstruction]:
    """The order in which the text is printed."""
    return computation.post_order()


def depth_first(computation: HloComputation, analysis: AliasAnalysis) -> list[HloInstruction]:
    """Depth-first, of several operands first the one that fans out most below, then the one that needs most memory."""
    extra: dict[HloInstruction, int] = {}
    size: dict[HloInstruction, int] = {}
    running = 0
    for node in computation.post_order():
        if node.opcode in ("parameter", "constant"):
            extra[node] = size[node] = 0
            continue
        own = sum(buffer_bytes(value.shape) for value in _defined(analysis, node))
        running += own
        operands = dict.fromkeys(node.operands)
        extra[node] = min(max(node.user_count - 1, 0) + sum(extra[one] for one in operands), len(computation))
        size[node] = min(own + sum(size[one] for one in operands), running)
    order: list[HloInstruction] = []
    done: set[HloInstruction] = set()

    def needed(node: HloInstruction) -> list[HloInstruction]:
        found = [one for one in dict.fromkeys((*node.operands, *node.control_predecessors)) if one not in done]
        return sorted(found, key=lambda one: (-extra[one], -size[one], one.name))

    dead = [one for one in computation if not one.user_count and not one.control_successors and not one.is_root]
    for start in (*dead, computation.root):
        stack: list[tuple[HloInstruction, Iterator[HloInstruction]]] = []
        if start not in done:
            stack.append((start, iter(needed(start))))
        while stack:
            node, rest = stack[-1]
            following = next((one for one in rest if one not in done), None)
            if following is not None:
                stack.append((following, iter(needed(following))))
                continue
            stack.pop()
            if node not in done:
                done.add(node)
                order.append(node)
    return order


def list_schedule(computation: HloComputation, _analysis: AliasAnalysis) -> list[HloInstruction]:
    """Greedy: of what is ready, what frees most memory; among equals what became ready last."""
    state = ListState(computation)
    order: list[HloInstruction] = []
    while state.ready:
        node = max(state.ready, key=state.ready.__getitem__)
        order.append(node)
        state.take(node)
    return order


class ListState:
    """What the list scheduler knows between two steps."""

    def __init__(self, computation: HloComputation) -> None:
        self.ready: dict[HloInstruction, tuple[tuple[int, int], int]] = {}
        """Instruction -> its priority, and when it became ready or changed it."""
        seen = PointsTo(computation)
        self._size = seen.size
        self._uses = {node: seen.all_of(node.operands) for node in computation}
        self._unread = Counter(one for held in (*self._uses.values(), seen.all_of((computation.root,))) for one in held)
        self._made = {one: sum(map(seen.size, seen.made_by(one))) if _counts(one) else 0 for one in computation}
        self._serial = 0
        self._waiting = {
            node: len(dict.fromkeys(node.operands)) + len(node.control_predecessors) for node in computation
        }
        for node, count in self._waiting.items():
            if not count:
                self._insert(node)

    def _insert(self, node: HloInstruction) -> None:
        self._serial += 1
        self.ready[node] = (self.priority(node), self._serial)

    def take(self, node: HloInstruction) -> None:
        """Run one that is ready."""
        del self.ready[node]
        alone = False
        for value in self._uses[node]:
            self._unread[value] -= 1
            alone |= self._unread[value] == 1
        for after in (*node.users, *node.control_successors):
            self._waiting[after] -= 1
            if not self._waiting[after]:
                self._insert(after)
        if not alone:
            return
        for operand in node.operands:
            for user in operand.users:
                if user in self.ready and self.ready[user][0] != self.priority(user):
                    del self.ready[user]
                    self._insert(user)

    def priority(self, node: HloInstruction) -> tuple[int, int]:
        """Bytes freed, and users; a scalar comes before all."""
        if node.shape.is_array and all(size == 1 for size in node.shape.dimensions):
            return _MOST, _MOST
        freed = sum(self._size(one) for one in self._uses[node] if self._unread[one] == 1 and _counts(one[0]))
        return freed - self._made[node], node.user_count


def _counts(node: HloInstruction) -> bool:
    """Whether its memory is the schedule's to give and take."""
    return node.opcode not in ("parameter", "constant")


def _defined(analysis: AliasAnalysis, node: HloInstruction) -> Iterator[HloValue]:
    for held in analysis.dataflow.sets(node).values():
        for value in held:
            if value.instruction is node:
                yield value


SCHEDULERS: Mapping[str, Scheduler] = MappingProxyType(
    {"list": list_schedule, "dfs": depth_first, "post-order": post_order, "bfs": breadth_first}
)
"""The schedulers by the word that options take."""


def schedule_computations(
    computations: Sequence[HloComputation], analysis: AliasAnalysis, scheduler: Scheduler
) -> dict[HloComputation, list[HloInstruction]]:
    """One order for each computation."""
    return {one: scheduler(one, analysis) for one in computations}
