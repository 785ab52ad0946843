"""Passes that run a pipeline of another name inside them, such as ``spmd-partitioning`` with its ``spmd-cleanup``.

What such a pass did until then shows first in the file of the inner pipeline's start; the pass itself reports the
change when it ends, in a file of its own further down.
"""

from __future__ import annotations

from collections.abc import Sequence

PIPELINE_START = "pipeline-start"
_INNER = {
    "spmd-cleanup": "spmd-partitioning",
    "loop-concat-motion-cleanup": "while-loop-concat-code-motion",
    "after_conditional_code_motion_after_convert_hoisting": "conditional-code-motion",
}
"""Pipelines that a pass runs at its end, once it has changed something. Source: ``openxla/xla:xla/service/``
``spmd/spmd_partitioner.cc``, ``while_loop_concat_code_motion.cc``, ``conditional_code_motion.cc``."""

DumpPoint = tuple[str, str, str | None]
"""(pipeline, pass that the file follows, pass that it says comes next)."""


def running_pass(points: Sequence[DumpPoint], at: int) -> str | None:
    """The pass during which the pipeline began whose start is dump point `at`; None where it is the compiler's own, a
    pass of its parent, or where the pass has no file by which it reported a change.

    ``points`` are the dump points of one module in order.
    """
    pipeline, name, _ = points[at]
    if name != PIPELINE_START or not at:
        return None
    later = points[at + 1 :]
    if (outer := _INNER.get(pipeline)) is not None:
        for other, after, _ in later:
            if after == outer:
                return outer
            if other == pipeline and after == PIPELINE_START:
                break
        return None
    parent, _, following = points[at - 1]
    if not parent or following in (None, pipeline):
        return None
    reported = next((after for other, after, _ in later if other == parent and after != PIPELINE_START), None)
    return following if reported == following else None
