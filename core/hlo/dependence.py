"""Whether one instruction has to run before another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


def depends_on(later: HloInstruction, earlier: HloInstruction) -> bool:
    """Whether `later` depends on `earlier` through operands and control edges, or is it.

    One walk for one question, on the graph as it is now; `core.analysis.reachability` answers many of a snapshot.
    """
    seen = {later}
    stack = [later]
    while stack:
        one = stack.pop()
        if one is earlier:
            return True
        for before in (*one.operands, *one.control_predecessors):
            if before not in seen:
                seen.add(before)
                stack.append(before)
    return False
