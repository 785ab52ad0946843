"""Where an index map's blocks lie: outside the array, or over its end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hloscope.core.pallas.blocks import GENERIC_KINDS
from hloscope.core.pallas.call import Operand, from_point
from hloscope.core.pallas.checks.finding import Finding, Subject, points_text
from hloscope.core.pallas.grid import Walk, affine_starts
from hloscope.core.pallas.interpret.primitives import clamped
from hloscope.core.pallas.jaxpr import Array


def _clamped_to(operand: Operand, dim: int, start: int) -> str:
    """What ``interpret=True`` does with a window outside: starts below 0 count from the end, then it clamps."""
    block = operand.dims[dim]
    begin = clamped(start + block.padding[0], block.size, operand.padded_shape[dim]) - block.padding[0]
    from_end = ", counting from the end," if start + block.padding[0] < 0 else ""
    if block.kind != "blocked":
        return f": interpret=True{from_end} silently uses elements {begin}:{begin + block.size}"
    number = begin // block.size
    last = ", the last one," if (number + 1) * block.size >= operand.padded_shape[dim] else ""
    return f": interpret=True{from_end} silently uses block {number}{last} again"


def check_grid(subject: Subject) -> Iterator[Finding]:
    """A grid that is not known, or that runs nothing."""
    if subject.schedule is None:
        yield subject.finding("unsupported", f"steps are not checked one by one: {subject.grid_refused}")
        return
    if subject.schedule.steps == 0:
        grid = points_text(subject.schedule.grid)
        yield subject.finding("empty-grid", f"the grid {grid} has no step: the kernel never runs")
    for position, reason in subject.schedule.refused.items():
        operand = subject.call.operands[position]
        yield subject.finding("unsupported", f"blocks of {operand.title} are not checked: {reason}", operand.place)


def check_range(subject: Subject) -> Iterator[Finding]:
    """Blocks that begin past the end of the array, exactly: in closed form for affine maps, else by every step."""
    if subject.schedule is None:
        yield from _ranges_in_closed_form(subject)
        return
    if not subject.schedule.steps:
        return
    for walk in subject.schedule.walks.values():
        yield from _range_of(subject, walk)
        yield from _bounds_of(subject, walk)


def _bounds_of(subject: Subject, walk: Walk) -> Iterator[Finding]:
    """Slices that are larger than their ``BoundedSlice`` says, or have no size."""
    assert subject.schedule is not None
    for dim, block in enumerate(walk.operand.dims):
        if block.kind != "bounded_slice":
            continue
        steps = np.flatnonzero((walk.sizes[:, dim] > block.size) | (walk.sizes[:, dim] < 0))
        if len(steps):
            point, size = subject.schedule.point(int(steps[0])), int(walk.sizes[steps[0], dim])
            yield subject.finding(
                "index-map-out-of-range",
                f"{from_point(point)}the index map of {walk.operand.title} asks for {size} elements in dimension {dim},"
                f" and {block} holds at most {block.size}",
                walk.operand.place,
            )


def _ranges_in_closed_form(subject: Subject) -> Iterator[Finding]:
    """A grid that is too large to walk: affine maps have exact ranges without a walk."""
    grid = subject.call.static_grid
    if grid is None or min(grid, default=1) <= 0:
        return
    for operand in subject.call.operands:
        for dim, start in enumerate(affine_starts(operand, len(grid))):
            if start is None:
                yield subject.finding(
                    "unsupported",
                    f"dimension {dim} of the blocks of {operand.title} is not affine in the grid",
                    operand.place,
                )
                break
            low, high = start.range(grid)
            size, first = operand.dims[dim].size, -operand.dims[dim].padding[0]
            last = operand.padded_shape[dim] + first
            if low >= first and high + size <= last:
                continue
            past = high + size > last
            point, begin = start.corner(grid, greatest=past), high if past else low
            verb = "reads" if operand.kind == "input" else "writes"
            yield subject.finding(
                "index-map-out-of-range",
                f"{from_point(point)}the index map of {operand.title} {verb} elements {begin}:{begin + size} of"
                f" {operand.array.shape[dim]} in dimension {dim} (first element {start} of i0, i1 …)"
                f"{_clamped_to(operand, dim, begin)}",
                operand.place,
            )
            break


def _range_of(subject: Subject, walk: Walk) -> Iterator[Finding]:
    assert subject.schedule is not None
    operand, shape = walk.operand, walk.operand.array.shape
    beyond = walk.beyond()
    if not len(beyond):
        return
    outside = walk.outside()
    step = int(outside[0]) if len(outside) else int(beyond[0])
    window, point = walk.window(step), subject.schedule.point(step)
    dim = next(
        d
        for d, (start, size, extent, pad) in enumerate(
            zip(window.starts, window.sizes, operand.padded_shape, operand.dims, strict=True)
        )
        if start < -pad.padding[0] or start + size > extent - pad.padding[0]
    )
    how = affine_starts(operand, len(subject.schedule.grid))[dim]
    whole = f" (first element {how} of i0, i1 …)" if how is not None and len(subject.schedule.grid) > 1 else ""
    affected = len(beyond)
    many = f"; {affected:,} of {walk.steps:,} steps" if affected > 1 else ""
    if operand.dims[dim].kind == "blocked":
        index = window.starts[dim] // window.sizes[dim]
        blocks = -(-shape[dim] // window.sizes[dim])
        what = f"block {index} of {blocks} in dimension {dim}"
    else:
        what = (
            f"elements {window.starts[dim]}:{window.starts[dim] + window.sizes[dim]} of {shape[dim]} in dimension {dim}"
        )
    verb = "reads" if operand.kind == "input" else "writes"
    generic = all(one.kind in GENERIC_KINDS for one in operand.dims)
    instead = _clamped_to(operand, dim, int(window.starts[dim])) if generic else ""
    yield subject.finding(
        "index-map-out-of-range",
        f"{from_point(point)}the index map of {operand.title} {verb} {what}{whole}{many}{instead}",
        operand.place,
    )


def check_partial(subject: Subject) -> Iterator[Finding]:
    """Last blocks that reach past the end: fine for what is written, garbage for what is read."""
    if subject.schedule is None:
        return
    for walk in subject.schedule.walks.values():
        steps = np.setdiff1d(walk.overhanging(), walk.beyond())  # those are told as out of range
        if not len(steps):
            continue
        shape = np.asarray(walk.operand.array.shape, np.int64)
        starts, sizes = walk.starts[steps], walk.sizes[steps]
        over = np.clip(-starts, 0, sizes) + np.clip(starts + sizes - shape, 0, sizes)
        most = over.max(axis=0)  # a step may pass the end in one dimension alone: each is told with its own last block
        words = ", ".join(
            f"{most[d]} of its {walk.operand.dims[d].size} elements in dimension {d}" for d in np.flatnonzero(most)
        )
        what = (
            "holds values that nobody wrote" if walk.operand.kind == "input" else "is dropped when it is written back"
        )
        yield subject.finding(
            "partial-block",
            f"the last block of {walk.operand.title} reaches past the end of"
            f" {walk.operand.array} by {words}: that part {what}",
            walk.operand.place,
        )


def padded_dims(walk: Walk) -> frozenset[int]:
    """Dimensions of the array in which some window holds padding."""
    return frozenset(map(int, np.flatnonzero(padding_of(walk).any(axis=0))))


def padding_of(walk: Walk) -> Array:
    """(steps, dimensions) booleans: where a window holds padding."""
    shape = np.asarray(walk.operand.array.shape, np.int64)
    over = (walk.starts < 0) | (walk.starts + walk.sizes > shape)
    over[walk.outside()] = False  # a block that lies outside altogether is another fault
    return over
