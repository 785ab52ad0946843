"""The critical path of a run's last stage: the chain of steps that no reordering shortens, and what could run together.

A step's weight is its estimated time on the dump's GPU where that is known, else the bytes that it reads and writes
(`hloscope.core.views.moved`).
What a loop runs counts as often as its known trip count says, once where the text does not say it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hloscope.core.errors import HloscopeError
from hloscope.core.views.moved import BytesMoved

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.core.views.run import Run

_TRIPS = re.compile(r'known_trip_count"?\s*[:=]\s*\{\s*"?n"?\s*[:=]\s*"?(\d+)')


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The answer, by instruction names of the last stage."""

    unit: Literal["us", "bytes"]
    """What weights are measured in."""
    path: tuple[str, ...]
    """The steps of the longest chain that weigh something, in order."""
    length: float
    """Weight of the chain."""
    work: float
    """Weight of all steps."""
    weights: dict[str, float]
    slack: dict[str, float]
    """How much heavier a step could get before it lengthened the whole; nought on the path."""
    _names: tuple[str, ...]
    _before: tuple[tuple[int, ...], ...]
    _after: tuple[tuple[int, ...], ...]
    _numbers: dict[str, int]

    @property
    def at_once(self) -> float:
        """How many times faster it were if everything that could run together did."""
        return self.work / self.length if self.length else 1.0

    def together(self, name: str) -> list[str]:
        """Steps that neither wait for an instruction nor are waited for by it, heaviest first; empty for a stranger."""
        start = self._numbers.get(name)
        if start is None:
            return []
        bound = _reached(start, self._before) | _reached(start, self._after)
        free = [one for one, at in self._numbers.items() if at not in bound and self.weights.get(one)]
        return sorted(free, key=lambda one: (-self.weights[one], self._numbers[one]))


def critical_path(run: Run, *, cancelled: Callable[[], bool] | None = None) -> CriticalPath:
    """Find it in the last stage, the entry computation and whatever runs as steps of its own below it.

    Raises a HloscopeError where the stage cannot be read, CancelledError when asked to stop.
    """
    from hloscope.core.views.stages import check

    index = run.stage_index(-1)
    check(cancelled)
    often = _repeats(index)
    nodes = [i for c, count in often.items() if count for i in range(*_bounds(index, c))]
    number = {i: at for at, i in enumerate(nodes)}
    before = _waits(index, often, number, nodes)
    check(cancelled)
    after: list[list[int]] = [[] for _ in nodes]
    for at, found in enumerate(before):
        for other in found:
            after[other].append(at)
    unit, weigh = _weights(run, index)
    weights = [weigh(i) * often[index.computation_of(i)] for i in nodes]
    order = _order(before)
    finish, tail = [0.0] * len(nodes), [0.0] * len(nodes)
    for at in order:
        finish[at] = weights[at] + max((finish[other] for other in before[at]), default=0.0)
    for at in reversed(order):
        tail[at] = max((tail[other] + weights[other] for other in after[at]), default=0.0)
    length = max(finish, default=0.0)
    at = max(range(len(nodes)), key=finish.__getitem__, default=-1)
    chain: list[int] = []
    while at >= 0:
        chain.append(at)
        at = max(before[at], key=finish.__getitem__, default=-1)
    names = [index.name(i) for i in nodes]
    return CriticalPath(
        unit,
        tuple(names[at] for at in reversed(chain) if weights[at]),
        length,
        sum(weights),
        dict(zip(names, weights, strict=True)),
        {name: max(0.0, length - finish[at] - tail[at]) for at, name in enumerate(names)},
        tuple(names),
        tuple(map(tuple, before)),
        tuple(map(tuple, after)),
        {name: at for at, name in enumerate(names)},
    )


def _bounds(index: ModuleIndex, number: int) -> tuple[int, int]:
    one = index.computations[number]
    return one.begin, one.end


def _repeats(index: ModuleIndex) -> dict[int, float]:
    """How often each computation runs whose instructions are steps: the entry, loops, branches and calls below it."""
    entry = index.entry
    out: dict[int, float] = {}
    waiting = [(entry.number, 1.0)] if entry is not None else []
    while waiting:
        number, count = waiting.pop()
        if number < 0 or number in out:
            continue
        out[number] = count
        for i in range(*_bounds(index, number)):
            if index.opcode(i) in ("while", "call", "conditional"):
                found = _TRIPS.search(index.attributes_text(i))
                trips = float(found[1]) if found is not None else 1.0
                waiting += [(called, count * trips) for called in index.called(i)]
    return out


def _waits(
    index: ModuleIndex, often: dict[int, float], number: dict[int, int], nodes: Sequence[int]
) -> list[list[int]]:
    """What each step waits for: operands, the roots of what it calls, and for a parameter what its callers read."""
    out: list[list[int]] = []
    for i in nodes:
        found = [number[j] for j in index.operands(i) if j in number]
        for called in index.called(i):
            root = index.computations[called].root if called >= 0 else -1
            if called in often and root in number:
                found.append(number[root])
        if index.opcode(i) == "parameter":
            for caller in index.callers(index.computation_of(i)):
                if caller in number:
                    found += [number[j] for j in index.operands(caller) if j in number]
        out.append(sorted(set(found)))
    return out


def _order(before: Sequence[Sequence[int]]) -> list[int]:
    """Every step behind what it waits for; what waits for itself in a broken text comes as it stands."""
    out: list[int] = []
    state = bytearray(len(before))
    for start in range(len(before)):
        stack = [(start, 0)]
        while stack:
            at, k = stack.pop()
            if k == 0:
                if state[at]:
                    continue
                state[at] = 1
            while k < len(before[at]) and state[before[at][k]]:
                k += 1
            if k < len(before[at]):
                stack += [(at, k + 1), (before[at][k], 0)]
            else:
                state[at] = 2
                out.append(at)
    return out


def _weights(run: Run, index: ModuleIndex) -> tuple[Literal["us", "bytes"], Callable[[int], float]]:
    if run.source.target == "gpu":
        from hloscope.core.views.fusion import kernel_times

        try:
            times = kernel_times(run)
        except HloscopeError:
            times = {}
        if any(times.values()):
            return "us", lambda i: times.get(index.name(i), 0.0)
    moved = BytesMoved(index)
    return "bytes", lambda i: float(moved.of(i))


def _reached(start: int, edges: Sequence[Sequence[int]]) -> set[int]:
    seen = {start}
    waiting = [start]
    while waiting:
        for other in edges[waiting.pop()]:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen
