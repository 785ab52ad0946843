"""Slices inside the kernel (``ref[pl.ds(8 * i, 8)]``) that reach past the end of their reference.

Exact for starts made of program ids, numbers and counters of loops with a known length.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hloscope.core.pallas.accesses import Access
from hloscope.core.pallas.call import from_point
from hloscope.core.pallas.checks.finding import Finding, Subject
from hloscope.core.pallas.jaxpr import Span

LEFT_TO_A_RUN = "is not checked (--interpret checks it for one input)"
"""What is said of an access that the trace cannot decide and a run can."""


def check_slices(subject: Subject) -> Iterator[Finding]:
    """Every access of every reference, scoped ones and DMAs too."""
    if subject.schedule is None or subject.facts is None or not subject.schedule.steps:
        return
    unknown: list[Span | None] = []
    lanes: list[Span | None] = []
    told: set[object] = set()
    for access in subject.facts.accesses:
        if access.ranges is None:
            continue
        key = (access.ref.key, access.place)
        if key in told:
            continue
        found = _worst(access)
        if access.masked and found is not None:
            lanes.append(access.place)  # right where the mask leaves those lanes out
            continue
        if found is None:
            if any(one.start is None and one.spread is None or one.size is None for one in access.ranges):
                (lanes if access.masked else unknown).append(access.place)
            continue
        told.add(key)
        step, dim, start, size = found
        point = from_point(subject.schedule.point(step))
        verb = "writes" if access.kind in ("write", "atomic", "dma_write", "remote_write") else "reads"
        yield subject.finding(
            "kernel-slice-out-of-range",
            f"{point}the kernel {verb} elements {start}:{start + size} of dimension {dim} of"
            f" {access.ref.name}, which has {access.ref.aval.shape[dim]}",
            access.place,
            severity="warning" if access.steps is None else None,
        )
    for places, kind, which in (
        (lanes, "masked access", "may reach out of range: whether the masks leave those lanes out"),
        (unknown, "access", "whose index depends on data or on an unbounded loop: the range"),
    ):
        if not places:
            continue
        count = f"{len(places)} {kind}es" if len(places) > 1 else f"one {kind}"
        yield subject.finding(
            "unsupported",
            f"{count} of the kernel {which} {LEFT_TO_A_RUN}",
            places[0],
        )


def _worst(access: Access) -> tuple[int, int, int, int] | None:
    """(step, dimension, start, elements) of the first access out of range."""
    assert access.ranges is not None
    for dim, (one, extent) in enumerate(zip(access.ranges, access.ref.aval.shape, strict=True)):
        if one.size is None:
            continue
        reach = (one.size - 1) * one.stride + 1 if one.size else 0
        lows, highs = (one.start, one.start) if one.spread is None else one.spread
        if lows is None or highs is None:
            continue
        bad = (np.asarray(lows) < 0) | (np.asarray(highs) + reach > extent)
        if access.steps is not None:
            bad = bad & access.steps
        hits = np.flatnonzero(bad)
        if len(hits):
            step = int(hits[0]) if bad.ndim else 0
            low, high = (int(np.broadcast_to(np.asarray(v), bad.shape or (1,))[step]) for v in (lows, highs))
            return step, dim, low if low < 0 else high, reach
    return None
