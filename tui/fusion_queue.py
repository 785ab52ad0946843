"""The queue of a fusion pass at any step, and all that is told of one name, in a time that does not grow with the
number of decisions: the queue is kept as it stood at every few thousand rows and gone on with from there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from heapq import nlargest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.views.fusion import FusionRow

APART = 4096
"""Rows between two kept states."""

_ENDS = ("fused", "refused")
"""Verdicts with which something comes out of the queue."""


class FusionQueue:
    """Made once of all decisions; asked for each move of a cursor.

    The pass empties one queue for each computation, one after the other, and writes down of a producer that waits
    already by how much the time it saves has changed. Source:
    ``openxla/xla:xla/backends/gpu/transforms/priority_fusion.cc#ComputeAndSetPriorities``.
    """

    def __init__(self, rows: Sequence[FusionRow]) -> None:
        # A report has the refusals that we inferred at its end.
        self._rows = rows = sorted(rows, key=lambda row: row.step)
        self._begins = _begins(rows)
        self._steps = [row.step for row in rows]
        self._kept: list[dict[str, float]] = []
        # That a producer stayed where it was is our conclusion: nothing came out of the queue for it.
        self._ends = [at for at, row in enumerate(rows) if row.verdict in _ENDS and row.origin != "inferred"]
        self._about: defaultdict[str, list[int]] = defaultdict(list)
        self.known = False
        """Whether a queue was recorded."""
        waiting: dict[str, float] = {}
        self._saves: dict[int, float] = {}
        """By the number of a row, what its producer saves by then."""
        self._whole: dict[int, float] = {}
        made: set[str] = set()
        for at, row in enumerate(rows):
            if row.verdict == "fused":
                made = {row.made or ""} | (made if at and rows[at - 1].verdict == "fused" else set())
            elif row.verdict == "priority" and row.us_unfused is not None and row.us_fused is not None:
                # Of what waits already only the change through the new readers is written down.
                before = waiting.get(row.producer, 0.0) if row.producer not in made else 0.0
                self._saves[at] = before + row.us_unfused - row.us_fused
                if before:
                    self._whole[id(row)] = self._saves[at]
            if at % APART == 0:
                self._kept.append(dict(waiting))
            self._go_on(waiting, at)
            self.known = self.known or row.verdict == "priority"
            for name in {row.producer, row.made or row.producer, *row.consumers}:
                self._about[name].append(at)

    def _go_on(self, waiting: dict[str, float], at: int) -> None:
        """One row later."""
        row = self._rows[at]
        if at in self._begins:
            waiting.clear()
        if row.verdict != "priority":
            waiting.pop(row.producer, None)
            if row.verdict == "fused":
                # The fusion that was made stands in their place.
                for name in row.consumers:
                    if name != row.made:
                        waiting.pop(name, None)
        elif at in self._saves:
            saved = self._saves[at]
            # What would lose time is not put into the queue, and taken out of it where its priority fell.
            if saved < 0:
                waiting.pop(row.producer, None)
            else:
                waiting[row.producer] = saved

    def after(self, step: int, most: int) -> tuple[int, list[tuple[str, float]]]:
        """How many producers wait after a step, and those at most that save most, with the microseconds they save."""
        end = bisect_right(self._steps, step)
        begin = max(0, end - 1) // APART
        waiting = dict(self._kept[begin]) if self._kept else {}
        for at in range(begin * APART, end):
            self._go_on(waiting, at)
        return len(waiting), nlargest(most, waiting.items(), key=lambda one: one[1])

    def following(self, step: int) -> FusionRow | None:
        """The next decision after a step that takes something out of the same queue."""
        here = bisect_right(self._steps, step)
        at = bisect_right(self._ends, here - 1)
        if at >= len(self._ends) or any(here <= begin <= self._ends[at] for begin in self._begins):
            return None
        return self._rows[self._ends[at]]

    def whole(self, row: FusionRow) -> float | None:
        """Microseconds that a producer saves in all, where the row tells only by how much that has changed."""
        return self._whole.get(id(row))

    def about(self, name: str) -> list[FusionRow]:
        """Decisions in which an instruction is producer, consumer or result."""
        return [self._rows[at] for at in self._about.get(name, ())]


def _begins(rows: Sequence[FusionRow]) -> frozenset[int]:
    """Numbers of the rows with which another computation begins."""
    found: set[int] = set()
    here: str | None = None
    for at, row in enumerate(rows):
        if row.computation is not None:
            if here is not None and row.computation != here:
                found.add(at)
            here = row.computation
    return frozenset(found)
