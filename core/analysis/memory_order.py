"""A stage in the order that the compiler had it in: exactly where a proto was dumped beside the text, else by age.

Passes walk lists in memory, whose order decides between equals; a text is printed depth-first instead.
"""

from __future__ import annotations

import heapq
import re
from typing import TYPE_CHECKING

from hloscope.core.dumps.proto_order import computation_names, instruction_places

if TYPE_CHECKING:
    from hloscope.core.analysis.real_compile import RealCompile
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule

_AGE = re.compile(r"\.(\d+)$")


def module_in_memory_order(compile_: RealCompile, index: int) -> tuple[HloModule, bool]:
    """A fresh graph of a stage that is not scheduled, and whether its order is the compiler's for certain."""
    module = compile_.module(index)
    data = compile_.proto(index)
    places = instruction_places(data) if data is not None else {}
    if all(
        one.name in places and all(node.name in places[one.name] for node in one) for one in module.computations
    ):  # fmt: skip
        number = {name: place for place, name in enumerate(computation_names(data or b""))}
        module.reorder(sorted(module.computations, key=lambda one: number[one.name]))
        for one in module.computations:
            here = places[one.name]
            one.reorder(sorted(one.instructions, key=lambda node: here[node.name]))
        return module, True
    module.reorder(by_age(module))
    return module, False


def by_age(module: HloModule) -> list[HloComputation]:
    """Computations, callees first; of those that are ready, fused ones, then originals by age, then clones.

    An original's age is the number that its name ends with, which the import from StableHLO gave.
    """
    order = module.post_order()
    place = {one: number for number, one in enumerate(order)}
    waiting = {one: {callee for node in one for callee in node.called_computations} for one in order}
    callers: dict[HloComputation, list[HloComputation]] = {one: [] for one in order}
    for one, callees in waiting.items():
        for callee in callees:
            callers[callee].append(one)

    def rank(one: HloComputation) -> tuple[int, int, int]:
        if not any(caller.info.calls == "control-flow" for caller in one.callers):
            return 0, 0, place[one]
        age = _AGE.search(one.name)
        if age is None or ".clone" in one.name or ".sunk" in one.name:
            return 2, 0, place[one]
        return 1, int(age[1]), place[one]

    ready = [(rank(one), one) for one, callees in waiting.items() if not callees]
    heapq.heapify(ready)
    found: list[HloComputation] = []
    while ready:
        one = heapq.heappop(ready)[1]
        found.append(one)
        for caller in callers[one]:
            waiting[caller].discard(one)
            if not waiting[caller]:
                heapq.heappush(ready, (rank(caller), caller))
    return found
