"""Loops that may never end: what decides whether a ``while`` goes on, and what is said of one that does so for ever.

A round that leaves everything as it was that the condition depends on, and changes no memory, is *idle*: the next one
is the same unless somebody else changes something. Whoever runs alone goes round for ever then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.jaxpr import Equation, Jaxpr, Literal, Span, statements, sub_jaxprs

MOST_ROUNDS = 1 << 16
"""Rounds of one loop that are run."""
LONG = 64
"""Rounds after which a loop's stores are looked at: one of what is there already changes nothing."""
SIGNALS = frozenset({"dma_start", "dma_wait", "semaphore_signal", "semaphore_wait"})
"""Primitives that change memory or a semaphore whatever they are given."""
CHANGES = SIGNALS | {"swap", "addupdate", "masked_swap", "atomic_rmw", "atomic_cas"}
"""Primitives that may change memory or a semaphore."""


class Stopped(UnsupportedError):
    """What an interpreter does not have, and the statement that asks for it."""

    def __init__(self, message: str, place: Span | None) -> None:
        super().__init__(message)
        self.place = place


class EndlessLoop(Stopped):
    """A loop of which no round can differ from the last, whatever else runs."""


def deciding(equation: Equation) -> frozenset[int]:
    """Carried values of a ``while`` on which its condition, or what its body does to memory, depends."""
    test, body = cast("Jaxpr", equation.params["cond_jaxpr"]), cast("Jaxpr", equation.params["body_jaxpr"])
    first, second = int(equation.params["cond_nconsts"]), int(equation.params["body_nconsts"])
    written = _written_atoms(body)
    found = {number - first for number in _inputs_of(test, [*test.outputs, *_written_atoms(test)]) if number >= first}
    while True:
        needed = _inputs_of(body, [*(body.outputs[number] for number in found), *written])
        more = {number - second for number in needed if number >= second} - found
        if not more:
            return frozenset(found)
        found |= more


def _written_atoms(jaxpr: Jaxpr) -> list[Any]:
    """What the statements of a function are given that change memory, those inside of calls and branches too."""
    found: list[Any] = []
    for equation in jaxpr.equations:
        inner = (one for _, function in sub_jaxprs(equation.params) for one, _, _ in statements(function))
        if equation.primitive in CHANGES or any(one.primitive in CHANGES for one in inner):
            found.extend(equation.inputs)
    return found


def changes(before: Any, after: Any, mask: Any) -> int:
    """1 where an access leaves other bits than were there, in the lanes that its mask selects; else 0."""
    old, new = np.broadcast_arrays(np.asarray(before), np.asarray(after))
    if mask is not None:
        chosen = np.broadcast_to(mask, old.shape)
        old, new = old[chosen], new[chosen]
    return int(old.dtype != new.dtype or old.tobytes() != new.tobytes())


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
