"""Times of buffer analyses on one scheduled module or on a made one.

    python benchmarks/bench_buffers.py [MODULE.txt]

Without a file a module of 20,000 instructions in a thousand layers is made. Prints seconds for each analysis.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hloscope.core.analysis.alias import AliasAnalysis
from hloscope.core.analysis.live_range import HloLiveRange
from hloscope.core.buffers.assignment import assign_buffers
from hloscope.core.buffers.hazards import find_hazards, places_of
from hloscope.core.buffers.memory_map import map_of_assignment
from hloscope.core.buffers.report_text import memory_usage_text
from hloscope.core.hlo.module import HloModule
from hloscope.core.text import load_module

_T = TypeVar("_T")
_LAYERS = 1000


def made_module() -> HloModule:
    """Layers of reversals and sums whose values live for many steps."""
    lines = ["HloModule made, is_scheduled=true", "", "ENTRY e {", "  h0 = f32[4096]{0} parameter(0)"]
    for layer in range(_LAYERS):
        last = f"h{layer}"
        for number in range(18):
            lines.append(
                f"  x{layer}_{number} = f32[{4096 - number}]{{0}} slice({last}), slice={{[0:{4096 - number}]}}"
            )
        lines.append(f"  h{layer + 1} = f32[4096]{{0}} add({last}, x{layer}_0)")
    root = f"h{_LAYERS}"
    lines.append(f"  ROOT r = f32[4096]{{0}} reverse({root}), dimensions={{0}}")
    return load_module("\n".join([*lines, "}", ""]))


def timed(what: str, work: Callable[[], _T]) -> _T:
    """Run and print the seconds."""
    start = time.perf_counter()
    found = work()
    print(f"{what:<28}{time.perf_counter() - start:9.3f} s")
    return found


def main() -> None:
    """Measure."""
    path = sys.argv[1] if len(sys.argv) > 1 else None
    module = timed("read", lambda: load_module(Path(path).read_text(), path=path) if path else made_module())
    print(f"{module.instruction_count:,} instructions")
    analysis = timed("dataflow and aliases", lambda: AliasAnalysis(module))
    live = timed("live ranges", lambda: HloLiveRange(analysis))
    assignment = timed("assignment, all of it", lambda: assign_buffers(module))
    timed("map and peak", lambda: map_of_assignment(assignment).peak)
    timed("memory usage report", lambda: memory_usage_text(assignment))
    timed("hazards", lambda: find_hazards(assignment.analysis, live, places_of(assignment)))


if __name__ == "__main__":
    main()
