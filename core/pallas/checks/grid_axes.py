"""Dimensions of the grid on which nothing depends."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from hloscope.core.pallas.checks.finding import Finding, Subject
from hloscope.core.pallas.checks.outputs import parallel_dims
from hloscope.core.pallas.grid import Schedule, Walk

_EFFECT = re.compile(r"prng|semaphore|dma|barrier|callback|debug")
"""Primitives after which another run of the same step is not the same."""


def unused_words(dim: int, bound: int, outputs: int) -> str:
    """What is wrong with an unused dimension."""
    what = "its output" if outputs == 1 else "its outputs"
    return (
        f"nothing depends on dimension {dim} of the grid, neither an index map nor the kernel:"
        f" every block of {what} is computed {bound} times"
    )


def check_unused(subject: Subject) -> Iterator[Finding]:
    """Dimensions that no window and no program id of the kernel depends on.

    A kernel that carries something from one step to the next (it reads an output, scratch, or what it shares with an
    input) may count on being run again, and so may one with effects: nothing is said of them. Neither is it of parallel
    dimensions, in which such steps race.
    """
    schedule, facts, call = subject.schedule, subject.facts, subject.call
    if schedule is None or facts is None or schedule.steps < 2 or schedule.refused or call.aliases:
        return
    first = call.slots.prefetch + call.slots.inputs
    kept = any(one.reads for one in facts.accesses if one.ref.position is not None and one.ref.position >= first)
    if kept or any(_EFFECT.search(equation.primitive) for equation, _ in facts.primitives):
        return
    own = [d for d in range(len(call.grid)) if d not in call.vmapped]
    asked = {equation.params.get("axis") for equation, _ in facts.primitives if equation.primitive == "program_id"}
    used = {own[axis] for axis in asked if isinstance(axis, int) and axis < len(own)}
    for dim in own:
        bound = schedule.grid[dim]
        if bound < 2 or dim in used or dim in parallel_dims(subject):
            continue
        if not any(_moves(walk, schedule, dim) for walk in schedule.walks.values()):
            yield subject.finding("unused-grid-axis", unused_words(dim, bound, call.slots.outputs))


def _moves(walk: Walk, schedule: Schedule, dim: int) -> bool:
    """Whether a window depends on a dimension of the grid."""
    outer, bound, inner = math.prod(schedule.grid[:dim]), schedule.grid[dim], math.prod(schedule.grid[dim + 1 :])
    for part in (walk.starts, walk.sizes):
        steps = part.reshape(outer, bound, inner, -1)
        if (steps != steps[:, :1]).any():
            return True
    return False
