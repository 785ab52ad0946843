"""The errors among the buffer hazards of a run, one sentence each: what bisection and the overview say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.buffers.hazards import HAZARDS
from hloscope.core.errors import UnsupportedError

if TYPE_CHECKING:
    from hloscope.core.views.run import Run


def hazard_sentences(run: Run) -> list[str]:
    """Wrong sharing in the final module; none where it is not scheduled, or for TPU, whose rules are not known.

    Raises ParseError where the last stage cannot be read.
    """
    if not run.stage_index(len(run) - 1).is_scheduled:
        return []
    try:
        found = run.buffers.hazards()
    except UnsupportedError:
        return []
    return [f"%{one.instruction}: {HAZARDS[one.code]}: {one.message}" for one in found if one.severity == "error"]
