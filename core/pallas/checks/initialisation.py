"""Memory that is read before the kernel wrote it: scratch, and output blocks that are accumulated into.

Steps are taken in the sequential order. A read is fine when a store that covers it happens before, at the same step or
an earlier one that sees the same memory; a fault when no store can have happened; and ``unsupported`` in between (a
store that data decides, or several partial ones).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hloscope.core.pallas.accesses import Access, Range
from hloscope.core.pallas.call import at_point
from hloscope.core.pallas.checks.finding import Finding, Subject
from hloscope.core.pallas.checks.outputs import accesses_of, parallel_dims
from hloscope.core.pallas.interpret.order import ORDER_OF_STEPS
from hloscope.core.pallas.jaxpr import NO_JOINTS, Array

NEVER = np.iinfo(np.int64).max


def check_initialised(subject: Subject) -> Iterator[Finding]:
    """Scratch and output references of the kernel."""
    if subject.schedule is None or subject.facts is None or not subject.schedule.steps:
        return
    steps, slots = subject.schedule.steps, subject.call.slots
    programs = subject.backend in ("triton", "mosaic_gpu")
    every = np.arange(steps, dtype=np.int64)
    groups, carried = _groups(subject)
    for number, aval in enumerate(subject.call.scratch):
        if aval.is_semaphore:
            continue
        position = slots.prefetch + len(subject.call.operands) + number
        starts = every if programs else np.zeros(1, np.int64)
        title = "scratch " + subject.call.kernel.name_of(position)
        accesses = subject.facts.of(position)
        whole = list(_reads(subject, accesses, starts, np.append(starts[1:], steps), title))
        yield from whole
        if not whole and not programs and len(groups) > 1:
            yield from _reads(subject, accesses, groups, np.append(groups[1:], steps), title, carried, ORDER_OF_STEPS)
    for place, walk in subject.schedule.walks.items():
        if place < slots.inputs or not walk.copied:
            continue
        aliased = subject.call.alias_of_output(walk.operand.number) is not None
        if aliased and programs:
            continue  # the memory is the input's there
        starts = every if programs else np.flatnonzero(walk.changed).astype(np.int64)
        ends = np.append(starts[1:], steps)
        if not programs:  # coming back to a block is a fault of its own
            first = walk.first_of[walk.block_of[starts]] == starts
            starts, ends = starts[first], ends[first]
        note = "; its alias is not fetched for it: interpret=True shows the input's values there" if aliased else ""
        operand = walk.operand
        yield from _reads(subject, accesses_of(subject, walk), starts, ends, operand.title, note, operand.name)


def _groups(subject: Subject) -> tuple[Array, str]:
    """First steps of the ranges that share all indices of parallel dimensions, and what a read across them means.

    Such ranges run on any core in any order. One range where no dimension is parallel, or one after a sequential one.
    """
    assert subject.schedule is not None
    dims = sorted(parallel_dims(subject))
    if not dims or dims != list(range(len(dims))):
        return np.zeros(1, np.int64), ""
    points = subject.schedule.points[:, : len(dims)]
    changed = np.ones(len(points), bool)
    changed[1:] = (points[1:] != points[:-1]).any(axis=1)
    note = "; what another step of a parallel dimension wrote is on another core, or written later"
    return np.flatnonzero(changed).astype(np.int64), note


def _reads(
    subject: Subject, accesses: Sequence[Access], starts: Array, ends: Array, title: str, note: str = "",
    about: str = "",
) -> Iterator[Finding]:  # fmt: skip
    assert subject.schedule is not None
    writes = [one for one in accesses if one.writes]
    undecided: Access | None = None
    told: set[object] = set()
    for read in accesses:
        if not read.reads or read.place in told:
            continue
        when = _first(read, starts, ends, read.needed)
        certain, possible = _written(writes, read, when, starts, ends)
        bad = np.flatnonzero((when < NEVER) & ~certain & ~possible)
        if len(bad) and read.steps is not None:
            point = subject.schedule.point(int(when[bad[0]]))
            told.add(read.place)
            yield subject.finding(
                "uninitialized-read",
                f"{title} is read{at_point(point)} before anything was written to it"
                + (f", and at {len(bad) - 1:,} more" if len(bad) > 1 else "")
                + note,
                read.place,
                about=about,
                joints=NO_JOINTS if writes else frozenset({("empty", read.ref.name)}),
            )
            continue
        when = _first(read, starts, ends, read.wanted)
        certain, _ = _written(writes, read, when, starts, ends)
        if ((when < NEVER) & ~certain).any():
            undecided = undecided or read
    if undecided is not None:
        yield subject.finding(
            "unsupported",
            f"whether {title} is written before this read is not decided: the stores before it are partial, masked or"
            " depend on data, or a select is to leave it out",
            undecided.place,
        )


def _written(writes: Sequence[Access], read: Access, when: Array, starts: Array, ends: Array) -> tuple[Array, Array]:
    """For each range of steps whether stores before a read at ``when`` surely cover it, and whether one may."""
    certain = np.zeros(len(starts), bool)
    possible = np.zeros(len(starts), bool)
    for write in writes:
        if write is read:
            continue
        if write.kind == "remote_write":  # another device's, at any time
            possible[...] = True
            continue
        before = _before(_first(write, starts, ends), write.order, when, read.order)
        possible |= before
        if write.steps is not None and not write.masked and not write.reads_old and _covers(write, read):
            certain |= before
    return certain, possible


def _first(access: Access, starts: Array, ends: Array, among: Array | None = None) -> Array:
    """The first step of each range of steps (``among`` those of a mask) at which an access happens, or may; ``NEVER``
    where it does not."""
    if access.steps is None and among is None:
        return starts.copy()
    happens = np.ones(1, bool) if access.steps is None else access.steps
    active = np.flatnonzero(happens if among is None else happens & among).astype(np.int64)
    where = np.searchsorted(active, starts)
    found = np.append(active, NEVER)[where]
    return np.where(found < ends, found, NEVER)


def _before(a: Array, a_order: int, b: Array, b_order: int) -> Array:
    return (a < b) | ((a == b) & (a < NEVER) & (a_order < b_order))


def _covers(write: Access, read: Access) -> bool:
    if write.is_whole:
        return True
    if write.ranges is None or read.ranges is None:
        return False
    return all(_range_covers(a, b) for a, b in zip(write.ranges, read.ranges, strict=True))


def _range_covers(outer: Range, inner: Range) -> bool:
    if outer.start is None or inner.start is None or outer.size is None or inner.size is None:
        return False
    if isinstance(outer.start, int) and isinstance(inner.start, int):
        return (
            outer.stride == 1
            and outer.start <= inner.start
            and inner.start + (inner.size - 1) * inner.stride < outer.start + outer.size
        ) or (outer.start, outer.size, outer.stride) == (inner.start, inner.size, inner.stride)
    same = np.array_equal(np.asarray(outer.start), np.asarray(inner.start))
    return same and outer.size == inner.size and outer.stride == inner.stride
