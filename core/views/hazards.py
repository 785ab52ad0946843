"""Wrong sharing of memory in the final module of a run: the compiler's own assignment where it wrote one, else ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.buffers.assignment import assign_buffers, backend_of
from hloscope.core.buffers.hazards import HAZARDS, find_hazards, lost_donations, places_in_report, places_of
from hloscope.core.dumps.buffer_reports import read_buffer_assignment, read_live_ranges
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.views.real_compile import RunCompile

if TYPE_CHECKING:
    from hloscope.core.buffers.hazards import Hazard
    from hloscope.core.views.run import Run


def hazards_of(run: Run) -> list[Hazard]:
    """Findings on the last stage, errors first; none where it is not scheduled, or for TPU, whose reports are of memory
    that other rules share.

    Raises ParseError where it cannot be read.
    """
    compile_ = RunCompile(run)
    if compile_.target == "tpu":
        return []
    module = compile_.module(len(run) - 1)
    if not module.is_scheduled:
        return []
    assignment = assign_buffers(module, backend_of(compile_.target))
    text = compile_.report(FileKind.BUFFER_ASSIGNMENT)
    ranges = compile_.report(FileKind.LIVE_RANGE)
    places = places_of(assignment)
    if text is not None:
        places = places_in_report(assignment.analysis, read_buffer_assignment(text, path=compile_.path))
    report = read_live_ranges(ranges) if ranges is not None else None
    found = find_hazards(assignment.analysis, assignment.live, places, report)
    if len(run) > 1:
        found = [*found, *lost_donations(compile_.module(0), module)]
    return sorted(found, key=lambda one: one.severity != "error")


def hazard_sentences(run: Run) -> list[str]:
    """The errors among the findings, one sentence each."""
    return [
        f"%{one.instruction}: {HAZARDS[one.code]}: {one.message}" for one in hazards_of(run) if one.severity == "error"
    ]
