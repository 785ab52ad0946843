"""Output blocks of a pipeline inside a kernel, by asking its index map at every step: for the tracing child alone."""

from __future__ import annotations

import itertools
from typing import Any

MOST_PIPELINE_STEPS = 4096
"""Most steps of a pipeline inside a kernel whose index maps are asked for every block."""


def coming_back(index_map: Any, grid: Any) -> list[list[int]] | None:
    """Grid points of a block's first step, of the last step before it comes back, and of the step where it does, with
    another block between them; None where none does."""
    import jax

    first: dict[tuple[int, ...], tuple[int, ...]] = {}
    before: tuple[int, ...] | None = None
    last: tuple[int, ...] = ()
    with jax.ensure_compile_time_eval():
        for point in itertools.product(*map(range, grid)):
            found = index_map(*point)
            block = tuple(int(one) for one in (found if isinstance(found, tuple | list) else (found,)))
            if block != before and block in first:
                return [list(first[block]), list(last), list(point)]
            first.setdefault(block, point)
            before, last = block, point
    return None
