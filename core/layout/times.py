"""How often an instruction runs: the product of the trip counts of the loops around it, where they are known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.loops.state import loop_of
from hloscope.core.passes.loops.trip_count import trip_count as counted_trips

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule

_TRIP_COUNT = re.compile(r'known_trip_count\\?"?\s*:\s*\{\s*\\?"?n\\?"?\s*:\s*\\?"?(\d+)')


def trip_count(loop: HloInstruction) -> int | None:
    """Rounds of a while loop as the compiler noted them, else as its counter tells; None where neither does."""
    found = _TRIP_COUNT.search(loop.raw_attrs.get("backend_config") or "")
    if found is not None:
        return int(found[1])
    form = loop_of(loop)
    counted = None if isinstance(form, Refusal) else counted_trips(form)
    return None if counted is None else counted.count


class RunCounts:
    """Runs of the computations of one module for one run of the entry."""

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._known: dict[HloComputation, int | None] = {}

    def of(self, computation: HloComputation) -> int | None:
        """Runs of a computation (at most, where a conditional is on the way); None where a trip count is not known."""
        if computation not in self._known:
            self._known[computation] = 0  # a computation that calls itself never ends; the verifier says so
            self._known[computation] = self._count(computation)
        return self._known[computation]

    def _count(self, computation: HloComputation) -> int | None:
        if computation.is_entry:
            return 1
        total = 0
        for caller in computation.callers:
            runs = self.of(caller.parent)
            if caller.opcode == "while":
                trips = trip_count(caller)
                inside = "body" in caller.called and computation in caller.called["body"]
                trips = None if trips is None else trips if inside else trips + 1
            elif caller.info.calls == "embedded" and caller.opcode not in ("fusion", "custom-call"):
                trips = None  # once an element
            else:
                trips = 1
            if runs is None or trips is None:
                return None
            total += runs * trips
        return total
