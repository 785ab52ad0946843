"""Loops that may never end: what decides whether a ``while`` goes on, and what is said of one that does so for ever.

A round that leaves everything as it was that the condition depends on, and changes no memory, is *idle*: the next one
is the same unless somebody else changes something. Whoever runs alone goes round for ever then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.jaxpr import Equation, Jaxpr, Literal, Span, statements

MOST_ROUNDS = 1 << 16
"""Rounds of one loop that are run."""
CHANGES = frozenset(
    "swap addupdate masked_swap atomic_rmw atomic_cas dma_start dma_wait semaphore_signal semaphore_wait".split()
)
"""Primitives that change memory or a semaphore."""


class EndlessLoop(UnsupportedError):
    """A loop of which no round can differ from the last, whatever else runs."""

    def __init__(self, message: str, place: Span | None) -> None:
        super().__init__(message)
        self.place = place


def deciding(equation: Equation) -> frozenset[int]:
    """Carried values of a ``while`` on which its condition, or what its body does to memory, depends."""
    test, body = cast("Jaxpr", equation.params["cond_jaxpr"]), cast("Jaxpr", equation.params["body_jaxpr"])
    first, second = int(equation.params["cond_nconsts"]), int(equation.params["body_nconsts"])
    count = len(body.outputs)
    for function in (test, body):
        if any(one.primitive in CHANGES for one, _, _ in statements(function)):
            return frozenset(range(count))
    found = {number - first for number in _inputs_of(test, test.outputs) if number >= first}
    while True:
        needed = _inputs_of(body, [body.outputs[number] for number in found])
        more = {number - second for number in needed if number >= second} - found
        if not more:
            return frozenset(found)
        found |= more


def _inputs_of(jaxpr: Jaxpr, atoms: Sequence[Any]) -> set[int]:
    """Positions of the inputs on which atoms of a function depend; a call depends on all that it is given."""
    needed = {one for one in atoms if not isinstance(one, Literal)}
    for equation in reversed(jaxpr.equations):
        if any(one in needed for one in equation.outputs if one is not None):
            needed.update(one for one in equation.inputs if not isinstance(one, Literal))
    return {number for number, variable in enumerate(jaxpr.inputs) if variable in needed}


def same_values(first: Sequence[Any], second: Sequence[Any], numbers: frozenset[int]) -> bool:
    """Whether carried values are the same bits."""
    for number in numbers:
        one, other = first[number], second[number]
        if one is other:
            continue
        a, b = np.asarray(one), np.asarray(other)
        if a.dtype == object or a.shape != b.shape or a.tobytes() != b.tobytes():
            return False
    return True
