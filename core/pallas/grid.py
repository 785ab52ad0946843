"""A call's grid, walked: which window every operand sees at every step, what is fetched again, and what that costs.

The walk is the order of the interpreters and of a TPU core without parallel dimensions: last axis fastest. An input is
fetched at the steps where its window differs from the step before; an output is written back at the steps where its
window differs from the next. What lies in ``any`` or ``hbm`` memory is not copied by the pipeline, and an operand that
is one whole block is copied once. Source: ``jax-ml/jax:jax/_src/pallas/mosaic/pipeline.py#BufferedRef``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.blocks import Window, block_count
from hloscope.core.pallas.call import Operand, PallasCall
from hloscope.core.pallas.index_map import Affine, affine, evaluate, grid_points
from hloscope.core.pallas.jaxpr import Array, Slot, itemsize_bits

UNCOPIED_SPACES = frozenset({"any", "hbm", "gmem", "semaphore", "host"})
"""Memory spaces whose blocks the pipeline leaves where they are: the kernel copies for itself."""
MOST_WINDOWS = 4000
"""Most distinct windows that are compared pairwise for overlaps."""
MOST_ELEMENTS = 1 << 26
"""Largest array whose coverage is kept element by element."""


@dataclass(slots=True, eq=False)
class Walk:
    """One operand's windows over the whole grid, in order."""

    operand: Operand
    starts: Array
    """(steps, dimensions): first element of the window."""
    sizes: Array
    """(steps, dimensions): elements of the window."""
    changed: Array
    """(steps,): whether the window differs from the step before; True at the first."""
    first_of: Array
    """Step that first sees each distinct window."""
    block_of: Array
    """(steps,): number of the window among the distinct ones."""

    @property
    def steps(self) -> int:
        """Steps of the grid."""
        return int(self.starts.shape[0])

    def window(self, step: int) -> Window:
        """What the operand sees at a step."""
        return Window(tuple(map(int, self.starts[step])), tuple(map(int, self.sizes[step])))

    @property
    def copied(self) -> bool:
        """Whether the pipeline copies blocks of it at all."""
        return self.operand.space not in UNCOPIED_SPACES

    @property
    def fetches(self) -> int:
        """Copies of a block into fast memory, or of an output block back out of it."""
        return int(np.count_nonzero(self.changed)) if self.copied else 0

    def moved(self, step: int) -> bool:
        """Whether an input is fetched before a step, or an output written back after it."""
        if not self.copied:
            return False
        if self.operand.kind == "input":
            return bool(self.changed[step])
        return step == self.steps - 1 or bool(self.changed[step + 1])

    @property
    def bytes_moved(self) -> int:
        """Bytes between the array and fast memory in all; padding is not moved."""
        if not self.copied:
            return 0
        low = np.maximum(self.starts, 0)
        high = np.minimum(self.starts + self.sizes, np.asarray(self.operand.array.shape, np.int64))
        inside = np.prod(np.maximum(0, high - low), axis=1, dtype=np.int64)
        return int(inside[self.changed].sum()) * itemsize_bits(self.operand.array.dtype) // 8

    def outside(self) -> Array:
        """Steps whose window has no element of the array."""
        shape = np.asarray(self.operand.array.shape, np.int64)
        return np.flatnonzero(((self.starts >= shape) | (self.starts + self.sizes <= 0)).any(axis=1))

    def beyond(self) -> Array:
        """Steps whose window begins before the array, or reaches past the end of its last block."""
        shape = np.asarray(self.operand.padded_shape, np.int64)
        low = np.asarray([-dim.padding[0] for dim in self.operand.dims], np.int64)
        return np.flatnonzero(((self.starts < low) | (self.starts + self.sizes > shape + low)).any(axis=1))

    def overhanging(self) -> Array:
        """Steps whose window holds elements of the array and padding too."""
        shape = np.asarray(self.operand.array.shape, np.int64)
        over = np.asarray(((self.starts < 0) | (self.starts + self.sizes > shape)).any(axis=1))
        over[self.outside()] = False
        return np.flatnonzero(over)

    def revisited(self) -> Array:
        """Steps that come back to a window after another one was seen between."""
        seen_before = np.zeros(self.steps, bool)
        seen_before[np.arange(self.steps) > self.first_of[self.block_of]] = True
        return np.flatnonzero(self.changed & seen_before)

    def visits(self) -> Array:
        """How many steps see each distinct window."""
        return np.bincount(self.block_of, minlength=len(self.first_of))

    def unwritten(self) -> tuple[int, tuple[int, ...] | None]:
        """Elements of the array that no window covers, and the first of them.

        Raises ``UnsupportedError`` where blocks may overlap partly and the array is too large to mark.
        """
        shape = self.operand.array.shape
        windows = [self.window(int(step)) for step in self.first_of] if len(self.first_of) <= 1 << 16 else None
        aligned = all(dim.kind in ("blocked", "squeezed") for dim in self.operand.dims)
        if aligned:
            counts = [block_count(n, dim) for n, dim in zip(shape, self.operand.dims, strict=True)]
            if math.prod(counts) > MOST_ELEMENTS:
                raise UnsupportedError("too many blocks to mark which were written")
            sizes = np.asarray(self.operand.block_shape, np.int64)
            blocks = self.starts[self.first_of] // np.maximum(sizes, 1)
            good = ((blocks >= 0) & (blocks < np.asarray(counts))).all(axis=1)
            mark = np.zeros(counts, bool)
            if good.any():
                mark[tuple(blocks[good].T)] = True
            missing = np.argwhere(~mark)
            if not len(missing):
                return 0, None
            ends = np.minimum((missing + 1) * sizes, np.asarray(shape))
            elements = int(np.prod(ends - missing * sizes, axis=1).sum())
            return elements, tuple(int(i * n) for i, n in zip(missing[0], sizes, strict=True))
        if math.prod(shape) > MOST_ELEMENTS or windows is None:
            raise UnsupportedError("the array is too large to mark which elements were written")
        mark = np.zeros(shape, bool)
        for one in windows:
            part = one.inside(shape)
            if part is not None:
                mark[part] = True
        missing = np.argwhere(~mark)
        return (0, None) if not len(missing) else (len(missing), tuple(map(int, missing[0])))

    def partial_overlap(self) -> tuple[int, int] | None:
        """Two steps whose windows differ and share an element; blocks of a fixed raster cannot.

        Raises ``UnsupportedError`` where there are too many distinct windows to compare.
        """
        if all(dim.kind in ("blocked", "squeezed") for dim in self.operand.dims):
            return None
        if len(self.first_of) > MOST_WINDOWS:
            raise UnsupportedError(f"more than {MOST_WINDOWS:,} distinct windows are not compared for overlaps")
        starts, sizes = self.starts[self.first_of], self.sizes[self.first_of]
        for number in range(len(self.first_of) - 1):
            rest = slice(number + 1, None)
            meets = (
                (starts[number] < starts[rest] + sizes[rest]) & (starts[rest] < starts[number] + sizes[number])
            ).all(1)
            hits = np.flatnonzero(meets)
            if len(hits):
                return int(self.first_of[number]), int(self.first_of[number + 1 + hits[0]])
        return None


@dataclass(slots=True, eq=False)
class Schedule:
    """A call's walk: one entry for each operand that could be walked, and a reason for each that could not."""

    call: PallasCall
    grid: tuple[int, ...]
    points: Array
    walks: dict[int, Walk] = field(default_factory=dict[int, Walk])
    """Position of the operand among inputs and outputs -> its walk."""
    refused: dict[int, str] = field(default_factory=dict[int, str])
    """Position -> why its windows are not known."""

    @property
    def steps(self) -> int:
        """Steps of the grid; 0 where a bound is 0."""
        return int(self.points.shape[0])

    def point(self, step: int) -> tuple[int, ...]:
        """Grid indices of a step."""
        return tuple(map(int, self.points[step]))

    @property
    def bytes_moved(self) -> int | None:
        """Bytes that the pipeline moves for all operands; None where some windows are not known."""
        if self.refused:
            return None
        return sum(walk.bytes_moved for walk in self.walks.values())


def walk(call: PallasCall, *, bounds: Sequence[int] | None = None, prefetch: Sequence[Array | None] = ()) -> Schedule:
    """Walks a call's grid.

    ``bounds`` are the values of dynamic grid bounds, in order; ``prefetch`` the scalar prefetch operands where they are
    known. Raises ``UnsupportedError`` for a grid whose bounds are not known or that is too large to walk.
    """
    grid = concrete_grid(call, bounds)
    schedule = Schedule(call, grid, grid_points(grid))
    for position, operand in enumerate(call.operands):
        try:
            schedule.walks[position] = walk_operand(operand, schedule.points, prefetch)
        except UnsupportedError as error:
            schedule.refused[position] = error.message
    return schedule


def concrete_grid(call: PallasCall, bounds: Sequence[int] | None) -> tuple[int, ...]:
    """The grid with its dynamic bounds filled in. Raises ``UnsupportedError`` where one is not known."""
    given = list(bounds or ())
    grid: list[int] = []
    for bound in call.grid:
        if bound is None:
            if not given:
                raise UnsupportedError("a grid bound is an operand whose value is not known without running")
            bound = int(given.pop(0))
        grid.append(bound)
    return tuple(grid)


def walk_operand(operand: Operand, points: Array, prefetch: Sequence[Array | None] = ()) -> Walk:
    """One operand's windows. Raises ``UnsupportedError`` where they are not known."""
    results = evaluate(operand.index_map, points, prefetch)
    steps, rank = points.shape[0], len(operand.dims)
    starts, sizes = np.zeros((steps, rank), np.int64), np.zeros((steps, rank), np.int64)
    for d, (dim, entry) in enumerate(zip(operand.dims, operand.index_tree, strict=True)):
        if dim.kind == "indirect":
            raise UnsupportedError("a gather of single elements (pl.Indirect) has no contiguous window")
        sizes[:, d] = dim.size
        if dim.kind == "bounded_slice":
            start, size = (entry.start, entry.size) if hasattr(entry, "start") else (entry, dim.size)
            starts[:, d] = results[start.index] if isinstance(start, Slot) else start
            sizes[:, d] = results[size.index] if isinstance(size, Slot) else size
            continue
        index = results[entry.index].astype(np.int64) if isinstance(entry, Slot) else np.int64(entry)
        starts[:, d] = index * dim.size if dim.kind == "blocked" else index - dim.padding[0]
    both = np.concatenate([starts, sizes], axis=1)
    changed = np.ones(steps, bool)
    if steps > 1:
        changed[1:] = (both[1:] != both[:-1]).any(axis=1)
    if rank == 0:
        first, block = np.zeros(min(1, steps), np.int64), np.zeros(steps, np.int64)
    else:
        _, first, block = np.unique(both, axis=0, return_index=True, return_inverse=True)
    return Walk(operand, starts, sizes, changed, first, block.reshape(-1))


def affine_starts(operand: Operand, rank: int) -> tuple[Affine | None, ...]:
    """Each dimension's first element as an affine function of the grid; None where it is not one."""
    results = affine(operand.index_map, rank)
    found: list[Affine | None] = []
    for dim, entry in zip(operand.dims, operand.index_tree, strict=True):
        if dim.kind in ("indirect", "bounded_slice") or not isinstance(entry, Slot):
            found.append(None)
            continue
        value = results[entry.index]
        if value is None:
            found.append(None)
        elif dim.kind == "blocked":
            found.append(value.scaled(dim.size))
        else:
            found.append(Affine(value.constant - dim.padding[0], value.coefficients))
    return tuple(found)
