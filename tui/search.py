"""What a search means beyond the words on the screen: the whole line of an instruction, and the Python lines of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hloscope.core.views.run import Run
    from hloscope.core.views.stages import Cancelled


def with_source_lines(run: Run, stage: int, pattern: str) -> str:
    """A pattern that also finds the instructions made by a Python line that it matches, as ``FILE:LINE function``.

    Texts name lines by numbers of a table in front of the module.
    """
    compiled = re.compile(pattern)
    frames = run.stage_index(stage).stack_frames
    found = [
        str(number)
        for number in range(1, len(frames.stack_frames) + 1)
        if any(compiled.search(f"{one.file}:{one.line} {one.function}") for one in frames.resolve(number))
    ]
    if not found:
        return pattern
    flags = re.match(r"\(\?[aiLmsux]+\)", pattern)
    head = flags[0] if flags is not None else ""
    return f"{head}(?:{pattern[len(head) :]})|stack_frame_id=(?:{'|'.join(found)})\\b"


def matching_names(run: Run, stages: Iterable[int], pattern: str, cancelled: Cancelled) -> frozenset[str]:
    """Instructions of some stages whose name, opcode, ``op_name`` or Python line matches, whatever the case.

    Raises CancelledError.
    """
    found: set[str] = set()
    for stage in stages:
        anyhow = pattern if re.match(r"\(\?[aiLmsux]+\)", pattern) else f"(?i){pattern}"
        wanted = with_source_lines(run, stage, anyhow)
        found |= {place.name for place in run.search(wanted, stage, cancelled=cancelled)}
    return frozenset(found)
