"""Whether a scheduler could have given an order, however it met equals.

The breadth-first scheduler appends what becomes ready in the order of users; the list scheduler takes, of equals, what
became ready last. Both orders live in the compiler's memory alone, so here either may be any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hloscope.core.schedule.schedulers import SCHEDULERS, ListState

if TYPE_CHECKING:
    from hloscope.core.analysis.alias import AliasAnalysis
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction


def first_impossible_step(
    algorithm: str, computation: HloComputation, order: Sequence[HloInstruction], analysis: AliasAnalysis
) -> int | None:
    """The first step that the scheduler would not have taken after those before it; None for a whole order.

    ``dfs`` and ``post-order`` leave nothing open but the list order of roots, and are compared step by step.
    """
    if algorithm == "bfs":
        return _breadth_first(computation, order)
    if algorithm == "list":
        return _list(computation, order)
    ours = SCHEDULERS[algorithm](computation, analysis)
    return next((step for step, (a, b) in enumerate(zip(ours, order, strict=True)) if a is not b), None)


def _breadth_first(computation: HloComputation, order: Sequence[HloInstruction]) -> int | None:
    waiting = {node: len({*node.operands}) + len(node.control_predecessors) for node in computation}
    place = {node: step for step, node in enumerate(order)}
    ready = [node for node, count in waiting.items() if not count]
    end = 0
    for step in range(-1, len(order)):
        if step >= 0:
            ready = []
            for after in (*order[step].users, *order[step].control_successors):
                waiting[after] -= 1
                if not waiting[after]:
                    ready.append(after)
        places = sorted(place[node] for node in ready)
        wanted = range(end, end + len(ready))
        wrong = next((a for a, b in zip(wanted, places, strict=True) if a != b), None)
        if wrong is not None:
            return wrong
        end = wanted.stop
    return None


def _list(computation: HloComputation, order: Sequence[HloInstruction]) -> int | None:
    state = ListState(computation)
    for step, node in enumerate(order):
        if node not in state.ready or state.priority(node) != max(map(state.priority, state.ready)):
            return step
        state.take(node)
    return None
