"""What a search means beyond the words on the screen: the whole line of an instruction, and the Python lines of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.text.instruction_text import scan_instruction

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


def matching_names(run: Run, stages: Iterable[int], pattern: str, *, cancelled: Cancelled) -> frozenset[str]:
    """Instructions of some stages whose name, opcode, ``op_name`` or Python line matches, whatever the case.

    Raises CancelledError.
    """
    found: set[str] = set()
    for stage in stages:
        anyhow = pattern if re.match(r"\(\?[aiLmsux]+\)", pattern) else f"(?i){pattern}"
        wanted = with_source_lines(run, stage, anyhow)
        compiled = re.compile(wanted)
        for place in run.search(wanted, stage, cancelled=cancelled):
            # What it reads is told by the lines of those: one name would else match all that use it.
            if place.name not in found and compiled.search(_without_operands(place.text)):
                found.add(place.name)
    return frozenset(found)


def _without_operands(text: str) -> str:
    """An instruction's line with nothing between the parentheses of its opcode."""
    scanned = scan_instruction(text, 0)
    if scanned is None or scanned.operands is None:
        return text
    low, high = scanned.operands
    return text[:low] + text[high:]
