"""What becomes of output blocks: written twice, by steps that may run at once, come back to, or never written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.accesses import Access
from hloscope.core.pallas.checks.finding import Finding, Subject, points_text
from hloscope.core.pallas.checks.kernel_slices import LEFT_TO_A_RUN
from hloscope.core.pallas.grid import MOST_WINDOWS, Walk
from hloscope.core.pallas.jaxpr import NO_JOINTS, Array, Equation, Joint


def _outputs(subject: Subject) -> Iterator[Walk]:
    if subject.schedule is None or not subject.schedule.steps:
        return
    for position, walk in subject.schedule.walks.items():
        if position >= subject.call.slots.inputs:
            yield walk


def accesses_of(subject: Subject, walk: Walk) -> tuple[Access, ...]:
    """What the kernel does to an operand."""
    if subject.facts is None:
        return ()
    slots = subject.call.slots
    offset = slots.prefetch + (
        walk.operand.number if walk.operand.kind == "input" else slots.inputs + walk.operand.number
    )
    return subject.facts.of(offset)


def check_unwritten(subject: Subject) -> Iterator[Finding]:
    """Elements of an output that no block covers, and outputs that the kernel never stores to."""
    for walk in _outputs(subject):
        operand = walk.operand
        stores = [one for one in accesses_of(subject, walk) if one.writes]
        aliased = subject.call.alias_of_output(operand.number) is not None
        if subject.facts is not None and not stores and not aliased:
            yield subject.finding(
                "output-never-written",
                f"the kernel never stores to {operand.title}",
                subject.call.kernel_at,
                about=operand.name,
                joints=frozenset({("empty", operand.name)}),
            )
            continue
        if not walk.copied or aliased or len(walk.beyond()):
            continue  # blocks that lie outside are a fault of their own, which leaves others out
        try:
            missing, first = walk.unwritten()
        except UnsupportedError as error:
            yield subject.finding("unsupported", f"coverage of {operand.title} is not checked: {error.message}")
            continue
        if missing:
            yield subject.finding(
                "output-never-written",
                f"{missing:,} of {int(np.prod(operand.array.shape)):,} elements of {operand.title} are in no block of"
                f" the grid (first at {points_text(first or ())}): they hold whatever the memory held",
                operand.place,
                about=operand.name,
                joints=frozenset({("uncovered", operand.name)}),
            )


def folded(subject: Subject, walk: Walk, windows: Array, dims: frozenset[int] = frozenset()) -> frozenset[Joint]:
    """What ties a block that steps share to others that no step has: steps with different indices of the dimensions
    that the map looks at, or of ``dims``, get one block. ``windows`` holds a row a step."""
    assert subject.schedule is not None
    points, grid = subject.schedule.points, subject.schedule.grid
    if len(windows) != len(points):
        return NO_JOINTS
    _, number = np.unique(windows, axis=0, return_inverse=True)
    table = np.reshape(number, grid)
    used = [d for d in range(len(grid)) if d in dims or (table != np.take(table, [0], axis=d)).any()]
    if int(number.max()) + 1 >= math.prod(grid[d] for d in used):
        return NO_JOINTS
    return frozenset((word, walk.operand.name) for word in ("folded", "uncovered", "unwritten"))


def check_revisits(subject: Subject) -> Iterator[Finding]:
    """Output blocks that the grid comes back to after writing another one."""
    for walk in _outputs(subject):
        steps = walk.revisited()
        if not len(steps) or not walk.copied:
            continue
        assert subject.schedule is not None
        if subject.backend in ("triton", "mosaic_gpu"):
            continue  # programs have no order there: the parallel check speaks
        accesses = accesses_of(subject, walk)
        steps = steps[[_had_something(walk, accesses, int(step)) for step in steps]]
        if not len(steps):
            continue  # what is written back before is overwritten by what is stored
        step = int(steps[0])
        first = int(walk.first_of[walk.block_of[step]])
        accumulates = next((one for one in accesses if one.reads), None)
        joints = folded(subject, walk, walk.block_of[:, None])
        if accumulates is not None:
            joints |= {("again", walk.operand.name)}
        between = subject.schedule.point(step - 1)
        here, before = subject.schedule.point(step), subject.schedule.point(first)
        loss = (
            "what was accumulated before is lost on a TPU, where the block is not read again"
            if accumulates is not None
            else "only the last visit's values remain"
        )
        yield subject.finding(
            "output-revisited",
            f"{walk.operand.title} comes back to the block {walk.window(step)} at {points_text(here)} after"
            f" {points_text(before)} wrote it and {points_text(between)} wrote another: {loss}",
            walk.operand.place,
            severity="error" if accumulates is not None else "warning",
            related=[(accumulates.place, "reads the block here")] if accumulates is not None else (),
            about=walk.operand.name if accumulates is not None else "",
            joints=joints,
        )


def _had_something(walk: Walk, accesses: Sequence[Access], step: int) -> bool:
    """Whether something may have been stored to a block before the visit of it that begins at a step."""
    if any(one.steps is None or one.reads for one in accesses):
        return True
    stores = _steps_of([one for one in accesses if one.writes], walk.steps)
    return bool((stores[:step] & (walk.block_of[:step] == walk.block_of[step])).any())


def check_overwritten(subject: Subject) -> Iterator[Finding]:
    """Steps whose whole result the next step writes over, in a kernel that carries nothing from one to the other.

    A kernel that reads an output or scratch may store what it has so far; one with several outputs may store the same
    again. Of both nothing is said.
    """
    walks = list(_outputs(subject))
    schedule, facts, call = subject.schedule, subject.facts, subject.call
    if schedule is None or facts is None or len(walks) != 1 or call.slots.outputs != 1 or call.aliases:
        return
    (walk,) = walks
    first = call.slots.prefetch + call.slots.inputs
    for one in facts.accesses:
        if one.ref.position is not None and one.ref.position < first:
            if one.writes:
                return
        elif one.kind != "write" or one.reads or not one.is_whole or one.steps is None or not one.steps.all():
            return
    if not walk.copied or subject.backend in ("triton", "mosaic_gpu") or parallel_dims(subject):
        return  # there the steps race
    same = walk.block_of[1:] == walk.block_of[:-1]
    moved = np.zeros(walk.steps - 1, bool)
    for position, other in schedule.walks.items():
        if position < call.slots.inputs and other.copied:
            moved |= other.block_of[1:] != other.block_of[:-1]
    steps = np.flatnonzero(same & moved)
    if not len(steps):
        return
    step = int(steps[0])
    a, b = (points_text(schedule.point(one)) for one in (step, step + 1))
    yield subject.finding(
        "output-revisited",
        f"{b} writes all of the block {walk.window(step)} of {walk.operand.title} over what {a} computed from other"
        f" blocks of its inputs: that is lost ({len(steps):,} of {walk.steps:,} steps)",
        walk.operand.place,
        severity="warning",
        joints=folded(subject, walk, walk.block_of[:, None]),
        fix="give each step a block of its own, or accumulate into the block",
    )


LOCKS = frozenset({"semaphore_wait", "atomic_cas"})
"""Primitives by which steps that run at once may take turns."""


def takes_turns(equation: Equation) -> bool:
    """Whether steps that run at once may take turns by a statement: a wait, or an atomic whose old value somebody uses,
    as locks (an exchange) and tickets (an addition) do."""
    if equation.primitive in LOCKS:
        return True
    return equation.primitive == "atomic_rmw" and any(one is not None for one in equation.outputs)


def check_parallel(subject: Subject) -> Iterator[Finding]:
    """Output blocks that steps write which may run at the same time: parallel dimensions, or any programs of a GPU."""
    if subject.schedule is None:
        return
    dims = parallel_dims(subject)
    if not dims:
        return
    for walk in _outputs(subject):
        if walk.operand.number in subject.unused:
            continue  # what races there is dropped
        stores = [one for one in accesses_of(subject, walk) if one.writes]
        plain = [one for one in stores if one.kind not in ("atomic", "remote_write")]
        if not plain:
            continue
        where = " and ".join(str(d) for d in sorted(dims))
        kind = "programs" if subject.backend in ("triton", "mosaic_gpu") else f"steps of parallel dimension {where}"
        if not walk.copied or subject.backend in ("triton", "mosaic_gpu"):
            # Nothing is written but what the kernel itself stores or copies there.
            yield from _own_writes(subject, walk, plain, dims, kind)
            continue
        active = _steps_of(plain, walk.steps)
        found = _two_writers(walk, subject.schedule.points, dims, active)
        if found is None:
            continue
        a, b = (subject.schedule.point(step) for step in found)
        guarded = any(one.steps is None for one in plain)
        yield subject.finding(
            "parallel-write-race",
            f"{points_text(a)} and {points_text(b)} both write {walk.window(found[0])} of {walk.operand.title}, and"
            f" {kind} run in any order or at once"
            + (" (the store is under a condition on data, which may exclude it)" if guarded else ""),
            plain[0].place,
            walk.operand.place,
            severity="warning" if guarded else None,
            related=[(walk.operand.place, "both steps get the same block from this index map")],
            about=walk.operand.name,
            joints=folded(subject, walk, walk.block_of[:, None]) | {("blocks", walk.operand.name)},
        )


def _own_writes(
    subject: Subject, walk: Walk, stores: Sequence[Access], dims: frozenset[int], kind: str
) -> Iterator[Finding]:
    """Two steps that may run at once whose own stores meet in an array that no pipeline copies."""
    assert subject.schedule is not None
    title = walk.operand.title
    try:
        found = _meeting(walk, stores, subject.schedule.points, sorted(dims))
    except UnsupportedError as error:
        yield subject.finding(
            "unsupported", f"whether {kind} write the same elements of {title} is not checked: {error.message}",
            stores[0].place,
        )  # fmt: skip
        return
    if found is None:
        return
    first, second, low, high = found
    (one, a), (other, b) = first, second
    window = ", ".join(f"{start}:{end}" for start, end in zip(low, high, strict=True))
    turns = subject.facts is not None and any(takes_turns(one) for one, _ in subject.facts.primitives)
    if turns or one.steps is None or other.steps is None:
        why = "semaphores, locks or atomics order" if turns else "a condition on data excludes one of"
        yield subject.finding(
            "unsupported",
            f"whether {why} {points_text(subject.schedule.point(a))} and"
            f" {points_text(subject.schedule.point(b))}, which both write [{window}] of {title}, {LEFT_TO_A_RUN}",
            one.place,
        )
        return
    yield subject.finding(
        "parallel-write-race",
        f"{points_text(subject.schedule.point(a))} and {points_text(subject.schedule.point(b))} both write [{window}]"
        f" of {title}, and {kind} run in any order or at once",
        one.place,
        related=[(other.place, "the other write")] if other is not one else (),
        about=walk.operand.name,
        joints=_of_stores(subject, walk, (one, other)) | _folded_stores(subject, walk, one, dims),
    )


def _of_stores(subject: Subject, walk: Walk, stores: Sequence[Access]) -> frozenset[Joint]:
    """What ties a finding about stores to the races that a run finds with them."""
    source = subject.call.alias_of_output(walk.operand.number)
    names = [walk.operand.name] if source is None else [walk.operand.name, source.name]
    found: set[Joint] = set()
    for one in stores:
        if one.place is not None:
            found |= {("copy", one.place.spot), *(("at", one.place.spot, name) for name in names)}
    return frozenset(found)


def _folded_stores(subject: Subject, walk: Walk, store: Access, dims: frozenset[int]) -> frozenset[Joint]:
    """``folded`` for what one statement stores at each step; no step sums up there what another began."""
    if store.ranges is None or store.steps is None or not store.steps.all():
        return NO_JOINTS
    low = walk.starts.copy()
    kept = [d for d, dim in enumerate(walk.operand.dims) if dim.in_ref]
    for d, one in zip(kept, store.ranges, strict=True):
        if one.start is None:
            return NO_JOINTS
        low[:, d] += one.start
    return folded(subject, walk, low, dims)


_Writer = tuple[Access, int]
"""A store and the step at which it happens."""


def _meeting(
    walk: Walk, stores: Sequence[Access], points: Array, columns: Sequence[int]
) -> tuple[_Writer, _Writer, list[int], list[int]] | None:
    """Two writes of steps that differ in one of `columns` and what they share; None where no two meet.

    Raises UnsupportedError where the elements of a write are not known, or are too many to compare.
    """
    lows: list[Array] = []
    highs: list[Array] = []
    of: list[_Writer] = []
    kept = [d for d, dim in enumerate(walk.operand.dims) if dim.in_ref]
    for store in stores:
        if store.ranges is None or len(store.ranges) != len(kept):
            raise UnsupportedError("a write goes through another view of it")
        low, high = walk.starts.copy(), walk.starts + walk.sizes
        for d, one in zip(kept, store.ranges, strict=True):
            if one.start is None or one.size is None or one.stride != 1:
                raise UnsupportedError("where a write goes depends on data, on a loop or on strides")
            low[:, d] = walk.starts[:, d] + one.start
            high[:, d] = low[:, d] + one.size
        steps = range(walk.steps) if store.steps is None else map(int, np.flatnonzero(store.steps))
        of += [(store, step) for step in steps]
        at = [step for _, step in of[sum(map(len, lows)) :]]
        lows.append(low[at])
        highs.append(high[at])
    if len(of) > MOST_WINDOWS:
        raise UnsupportedError(f"more than {MOST_WINDOWS:,} writes are not compared")
    low, high = np.concatenate(lows), np.concatenate(highs)
    place = points[[step for _, step in of]][:, columns]
    for number in range(len(of) - 1):
        rest = slice(number + 1, None)
        meets = ((low[number] < high[rest]) & (low[rest] < high[number])).all(1)
        hits = np.flatnonzero(meets & (place[number] != place[rest]).any(1))
        if len(hits):
            other = number + 1 + int(hits[0])
            shared = np.maximum(low[number], low[other]), np.minimum(high[number], high[other])
            return of[number], of[other], shared[0].tolist(), shared[1].tolist()
    return None


def check_semantics(subject: Subject) -> Iterator[Finding]:
    """Words of a TPU call that are not one for each dimension, or parallel dimensions that are no prefix of the grid.

    Sources: ``jax-ml/jax:jax/_src/pallas/mosaic/lowering.py#MosaicGridMapping``,
    ``jax/_src/pallas/mosaic/interpret/interpret_pallas_call.py#_get_parallel_dim_semantics``.
    """
    given, call = subject.call.given_semantics, subject.call
    if subject.backend not in (None, "tpu") or call.compiler.get("dimension_semantics") is None:
        return
    own = [d for d in range(len(call.grid)) if d not in call.vmapped]
    if len(given) != len(own):
        yield subject.finding(
            "dimension-semantics-length", f"{len(given)} dimension_semantics for a grid of {len(own)} dimensions"
        )
        return
    for (before, earlier), (number, later) in pairwise(zip(own, given, strict=True)):
        if later == "parallel" and earlier != "parallel":
            yield subject.finding(
                "dimension-semantics",
                f"dimension {number} of the grid is parallel and dimension {before} before it is {earlier}",
            )
            return


def parallel_dims(subject: Subject) -> frozenset[int]:
    """Grid dimensions whose steps may run at the same time."""
    rank = len(subject.call.grid)
    if subject.backend == "triton":
        return frozenset(range(rank))
    if subject.backend == "mosaic_gpu":
        return frozenset(d for d, word in enumerate(subject.call.semantics) if word != "sequential")
    return frozenset(d for d, word in enumerate(subject.call.semantics) if word in ("parallel", "core_parallel"))


def _steps_of(accesses: Sequence[Access], steps: int) -> Array:
    """Steps at which one of the accesses happens, or may."""
    active = np.zeros(steps, bool)
    for one in accesses:
        active |= np.ones(steps, bool) if one.steps is None else one.steps
    return active


def _two_writers(walk: Walk, points: Array, dims: frozenset[int], active: Array) -> tuple[int, int] | None:
    """Two active steps with one window that differ in a parallel dimension."""
    chosen = np.flatnonzero(active)
    order = chosen[np.argsort(walk.block_of[chosen], kind="stable")]
    columns = sorted(dims)
    blocks = walk.block_of[order]
    same = np.flatnonzero(blocks[1:] == blocks[:-1])
    # within one block, the first step is compared with every other: some pair differs exactly if one of those does
    firsts = np.maximum.accumulate(np.where(np.r_[True, blocks[1:] != blocks[:-1]], np.arange(len(blocks)), 0))
    for k in same + 1:
        a, b = int(order[firsts[k]]), int(order[k])
        if (points[a, columns] != points[b, columns]).any():
            return a, b
    try:
        overlap = walk.partial_overlap()
    except UnsupportedError:
        return None
    if (
        overlap is not None
        and active[list(overlap)].all()
        and (points[overlap[0], columns] != points[overlap[1], columns]).any()
    ):
        return overlap
    return None


def check_overlaps(subject: Subject) -> Iterator[Finding]:
    """Output windows that differ and share elements."""
    for walk in _outputs(subject):
        try:
            pair = walk.partial_overlap()
        except UnsupportedError as error:
            yield subject.finding("unsupported", f"overlaps of {walk.operand.title} are not checked: {error.message}")
            continue
        if pair is not None and walk.copied:
            assert subject.schedule is not None
            a, b = (points_text(subject.schedule.point(step)) for step in pair)
            yield subject.finding(
                "overlapping-writes",
                f"blocks {walk.window(pair[0])} at {a} and {walk.window(pair[1])} at {b} of {walk.operand.title}"
                " overlap: the later write replaces part of the earlier one",
                walk.operand.place,
            )
