"""How many bytes the instructions of a stage write: what the timeline shows beside counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.views.moved import IN_PLACE, BytesMoved, bytes_of, is_free
from hloscope.core.views.stages import check

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.core.views.run import Run

def bytes_written(
    run: Run, *, cancelled: Callable[[], bool] | None = None, progress: Callable[[int, int], None] | None = None
) -> dict[int, int]:
    """For each row of the timeline the bytes that its module writes to memory (as `BytesMoved.written` counts them).

    Neither what is inside fusions and reducers counts, nor opcodes that only name memory. Loops count once. Equal
    stages are read once.
    """
    out: dict[int, int] = {}
    known: dict[bytes, int] = {}
    total = len(run.outline)
    for index in range(total):
        check(cancelled)
        digest = run.stage_digest(index)
        if digest not in known:
            known[digest] = _written(run.stage_index(index))
        out[index] = known[digest]
        if progress is not None:
            progress(index + 1, total)
    return out


def _written(index: ModuleIndex) -> int:
    c = index.columns
    if not index.instruction_count:
        return 0
    inner = {"fusion", "reduce", "reduce-window", "map", "scatter", "sort", "select-and-scatter", "all-reduce",
             "reduce-scatter"}  # fmt: skip
    writes = ~np.array([is_free(name) for name in c.opcode_names])[c.opcode_ids]
    hides = np.array([name in inner for name in c.opcode_names], bool)[c.opcode_ids]
    hidden = {called for i in np.flatnonzero(hides).tolist() for called in index.called(i) if called >= 0}
    for number in hidden:
        writes[c.computation_begins[number] : c.computation_ends[number]] = False
    parts = writes & np.array([name in IN_PLACE for name in c.opcode_names])[c.opcode_ids]
    moved = BytesMoved(index)
    counts = np.bincount(c.shape_ids[writes & ~parts], minlength=len(c.shape_texts))
    whole = sum(bytes_of(c.shape_texts[at]) * int(counts[at]) for at in np.flatnonzero(counts).tolist())
    return whole + sum(map(moved.written, np.flatnonzero(parts).tolist()))
