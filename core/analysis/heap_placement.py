"""Offsets for heap intervals: the largest first, each into the tightest gap that stays free for its whole life.

Source: ``openxla/xla:xla/service/heap_simulator/heap_simulator.cc#GlobalDecreasingSizeBestFitHeap``,
``xla/service/buffer_assignment.cc#AssignBuffersWithSequentialOrdering`` (the better of two orders).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.analysis.heap_simulator import HeapInterval

Order = Literal["spatial", "temporal"]


class Chunk(NamedTuple):
    """A range of bytes."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.offset + self.size

    def overlaps(self, other: Chunk) -> bool:
        """Whether some byte is in both."""
        return self.offset < other.end and other.offset < self.end


@dataclass(frozen=True, slots=True)
class PlacementStep:
    """One placement as it was decided."""

    value: HloValue
    size: int
    offset: int
    gaps: tuple[tuple[int, int | None], ...]
    """(start, end) of the free ranges that it was chosen from, by offset; the last one has no end."""
    group: int
    """Values that get this offset with it, itself counted in."""


@dataclass(slots=True)
class Placement:
    """Offsets of one heap."""

    order: Order
    heap_size: int
    chunks: dict[HloValue, Chunk]
    steps: list[PlacementStep]


MayPlace = Callable[["HeapInterval"], bool]


def place_best(intervals: Sequence[HeapInterval], alignment: int, may_place: MayPlace | None = None) -> Placement:
    """The smaller heap of both orders; the spatial one where they are as large."""
    spatial = place(intervals, alignment, "spatial")
    temporal = place(intervals, alignment, "temporal")
    best = temporal if temporal.heap_size < spatial.heap_size else spatial
    return best if may_place is None else place(intervals, alignment, best.order, may_place)


def place(
    intervals: Sequence[HeapInterval], alignment: int, order: Order, may_place: MayPlace | None = None
) -> Placement:
    """Place every interval that does not share another's address. Offsets are multiples of `alignment` bytes.

    One that `may_place` refuses gets bytes of its own behind everything that has been placed by then and later: no gap
    is looked for.
    """
    groups = {id(one): one.group() for one in intervals if one.placed_alone}
    ordered = sorted((one for one in intervals if one.placed_alone), key=_key(order, groups))
    busy = _Busy(len(intervals))
    chunks: dict[HloValue, Chunk] = {}
    steps: list[PlacementStep] = []
    alone: list[HeapInterval] = []
    heap_size = 0
    for one in ordered:
        group = groups[id(one)]
        size = max(member.size for member in group)
        if may_place is not None and not may_place(one):
            alone.append(one)
            continue
        gaps = busy.gaps(group, one.size, alignment)
        fitting = [(end - start, start) for start, end in gaps if end is not None and end - start >= size]
        offset = min(fitting)[1] if fitting else gaps[-1][0]
        chunk = Chunk(offset, size)
        for member in group:
            chunks[member.value] = chunk
            busy.add(member, chunk)
        heap_size = max(heap_size, chunk.end)
        steps.append(PlacementStep(one.value, size, offset, tuple(gaps), len(group)))
    for one in alone:
        group = groups[id(one)]
        chunk = Chunk(-(-heap_size // alignment) * alignment, max(member.size for member in group))
        chunks.update((member.value, chunk) for member in group)
        heap_size = chunk.end
        steps.append(PlacementStep(one.value, chunk.size, chunk.offset, ((chunk.offset, None),), len(group)))
    return Placement(order, heap_size, chunks, steps)


def _key(order: Order, groups: dict[int, list[HeapInterval]]) -> Callable[[HeapInterval], tuple[int, int, int]]:
    if order == "spatial":
        return lambda one: (-one.size, one.start - one.end, one.value.id)
    return lambda one: (
        one.start - max(member.end for member in groups[id(one)]), -one.size, one.value.id
    )  # fmt: skip


class _Busy:
    """The committed chunks with their times, as columns: a placement looks at all of them at once."""

    def __init__(self, capacity: int) -> None:
        import numpy

        self._numpy = numpy
        self._columns = numpy.zeros((4, capacity), dtype=numpy.int64)  # start, end, offset, end of chunk
        self._count = 0

    def add(self, member: HeapInterval, chunk: Chunk) -> None:
        self._columns[:, self._count] = (member.start, member.end, chunk.offset, chunk.end)
        self._count += 1

    def gaps(self, group: Sequence[HeapInterval], size: int, alignment: int) -> list[tuple[int, int | None]]:
        """Free ranges of at least `size` bytes during the life of every member, by offset."""
        numpy = self._numpy
        start, end, low, high = self._columns[:, : self._count]
        hit: Any = numpy.zeros(self._count, dtype=bool)
        for member in group:
            hit |= (start <= member.end) & (end >= member.start)
        low, high = low[hit], high[hit]
        if not low.size:
            return [(0, None)]
        order = numpy.argsort(low, kind="stable")
        low, high = low[order], numpy.maximum.accumulate(high[order])
        free = numpy.concatenate(([0], -(-high // alignment) * alignment))
        wide = numpy.flatnonzero(low - free[:-1] >= size)
        found: list[tuple[int, int | None]] = [(int(free[i]), int(low[i])) for i in wide]
        found.append((int(free[-1]), None))
        return found
