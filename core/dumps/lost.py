"""Numbered stages that a dump no longer has, told by the gaps in XLA's count.

The number of a stage is that of a counter of its module, from 0, which only the writing of such a stage advances:
passes that changed nothing, or that no pattern matches, take no number. So a number that is missing is a file that is
not there: it was deleted, not copied, or could not be written.
Source: ``openxla/xla:xla/service/dump.cc#StepNumberForModule``.
"""

from __future__ import annotations

from collections.abc import Sequence

Step = tuple[object, int]
"""(module id, number); a compile that swaps its module goes on under another id, from 0."""


def lost_before(steps: Sequence[Step | None]) -> dict[int, tuple[int, ...]]:
    """Of stages in order: the position of one → the numbers that are missing right before it. None is no number."""
    found: dict[int, tuple[int, ...]] = {}
    seen: dict[object, int] = {}
    for at, step in enumerate(steps):
        if step is None:
            continue
        module, number = step
        expected = seen.get(module, 0)
        if number > expected:
            found[at] = tuple(range(expected, number))
        seen[module] = max(expected, number + 1)
    return found


def lost_note(numbers: Sequence[int], *, shown: int = 5) -> str:
    """What is said of a module of which numbered stages are not there."""
    listed = ", ".join(f"{one:04d}" for one in numbers[:shown])
    if len(numbers) == 1:
        return f"the stage numbered {listed} is not there: what its pass did shows in the next one"
    rest = f" and {len(numbers) - shown} more" if len(numbers) > shown else ""
    return f"{len(numbers)} numbered stages are not there ({listed}{rest}): what their passes did shows in later ones"
