"""The buffer map: allocations, the values in them with offset and life, and the moment of the peak, as plain data.

It is made from our own assignment or read from a compiler's reports; both give the same tables. Sizes are bytes, times
are ticks of the flattened schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from hloscope.core.analysis.dataflow_values import index_text

if TYPE_CHECKING:
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.buffers.allocation import BufferAllocation, BufferAssignment
    from hloscope.core.dumps.buffer_reports import LiveRangeReport, ReportAllocation, ValueRecord

Index = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MapUse:
    """A read of a value."""

    instruction: str
    tick: int | None


@dataclass(frozen=True, slots=True)
class MapValue:
    """A value in its place."""

    name: str
    index: Index
    allocation: int
    size: int
    """Bytes that it has there."""
    offset: int
    shape: str
    """Without layout."""
    live: tuple[int, int] | None
    """First and last tick, both counted in; None for memory of a thread's own."""
    is_phi: bool = False
    """The state of a loop or the result of a conditional, made by no instruction of its own."""
    uses: tuple[MapUse, ...] = ()

    @property
    def label(self) -> str:
        """``name``, or ``name{index}`` for a part of a tuple."""
        return self.name + (index_text(self.index) if self.index else "")


@dataclass(frozen=True, slots=True)
class MapAllocation:
    """One block of memory."""

    index: int
    size: int
    color: int
    kind: str
    """``parameter``, ``constant``, ``thread-local``, ``output``, ``temp`` or ``preallocated-temp``."""
    values: tuple[MapValue, ...]
    parameter: int | None = None
    parameter_index: Index = ()
    donated: bool = False
    """A parameter whose memory the program may write over."""

    @property
    def whole_run(self) -> bool:
        """Taken from the first to the last tick, whatever lives in it: the caller holds it."""
        return self.parameter is not None or self.kind == "constant"


@dataclass(frozen=True, slots=True)
class PeakRow:
    """A value that is alive at the peak."""

    value: MapValue
    reason: str
    """Why it is alive, in one line."""
    code: Literal["parameter", "donated", "constant", "output", "loop_state", "waiting", "making"]
    until: str | None
    """The instruction that needs it longest."""


@dataclass
class MemoryMap:
    """All of it."""

    allocations: Sequence[MapAllocation]
    sequence: Sequence[str]
    """Instruction at each tick; empty where nothing told the schedule."""
    origin: Literal["core", "xla"]
    """Who assigned: our own pass, or the compiler whose reports these are."""
    space: int = 0
    """The memory space whose peak is told; spaces do not add up."""
    notes: list[str] = field(default_factory=list[str])

    @property
    def total_bytes(self) -> int:
        """Bytes of all allocations."""
        return sum(one.size for one in self.allocations)

    @cached_property
    def values(self) -> Mapping[tuple[str, Index], MapValue]:
        """Every value by name and index."""
        return {(value.name, value.index): value for one in self.allocations for value in one.values}

    @cached_property
    def profile(self) -> Sequence[tuple[int, int]]:
        """(tick, bytes in use from then on), at every tick where it changes.

        What the caller holds (parameters, constants) counts throughout, everything else while something lives there.
        """
        base = sum(one.size for one in self.allocations if one.whole_run and one.color == self.space)
        starts: dict[int, list[MapValue]] = {}
        ends: dict[int, list[MapValue]] = {}
        for one in self.allocations:
            if one.whole_run or one.color != self.space:
                continue
            for value in one.values:
                if value.live is not None and value.size:
                    starts.setdefault(value.live[0], []).append(value)
                    ends.setdefault(value.live[1] + 1, []).append(value)
        there: dict[tuple[int, int], list[int]] = {}
        used, found = base, [(0, base)]
        for tick in sorted({*starts, *ends}):
            for value in ends.get(tick, ()):
                sizes = there[value.allocation, value.offset]
                used -= max(sizes)
                sizes.remove(value.size)
                used += max(sizes, default=0)
            for value in starts.get(tick, ()):
                sizes = there.setdefault((value.allocation, value.offset), [])
                used -= max(sizes, default=0)
                sizes.append(value.size)
                used += max(sizes)
            found.append((tick, used))
        return found

    @cached_property
    def peak(self) -> tuple[int, int]:
        """(first tick of the peak, bytes in use then)."""
        return max(self.profile, key=lambda one: (one[1], -one[0]))

    def at(self, tick: int) -> list[MapValue]:
        """What is alive at a tick or held by the caller, largest first; of values that take turns, the last."""
        found: dict[tuple[int, int], MapValue] = {}
        for one in self.allocations:
            for value in one.values if one.color == self.space else ():
                alive = value.live is not None and value.live[0] <= tick <= value.live[1]
                if not alive and not (one.whole_run and not value.is_phi and len(one.values) == 1):
                    continue
                known = found.get((value.allocation, value.offset))
                if known is None or (value.live or (0, 0))[0] >= (known.live or (0, 0))[0]:
                    found[value.allocation, value.offset] = value
        there = {number for number, _ in found}
        for one in self.allocations:
            # It counts though nothing lives in it now, as in a donated parameter before the output is written.
            if one.whole_run and one.color == self.space and one.index not in there and one.values:
                held = min(one.values, key=lambda value: (-value.size, (value.live or (0, 0))[0]))
                found[held.allocation, held.offset] = held
        return sorted(found.values(), key=lambda value: (-value.size, value.name, value.index))

    def largest_at_peak(self, count: int = 10) -> list[PeakRow]:
        """The largest values at the peak, with why each is there."""
        tick = self.peak[0]
        return [self.why_alive(value, tick) for value in self.at(tick)[:count]]

    def why_alive(self, value: MapValue, tick: int) -> PeakRow:
        """The shortest reason why a value takes memory at a tick."""
        allocation = self.allocations[value.allocation]
        last = max((use for use in value.uses if use.tick is not None), key=lambda use: use.tick or 0, default=None)
        until = last.instruction if last is not None else None
        if allocation.parameter is not None and allocation.kind != "constant":
            if not allocation.donated:
                return PeakRow(
                    value, f"parameter {allocation.parameter}, not donated: the caller keeps it", "parameter", until
                )
            said = f"parameter {allocation.parameter}, donated: "
            lives = value.live is None or value.live[0] <= tick <= value.live[1]
            said += "an output is written over it" if lives else "held for an output, nothing lives in it at this step"
            return PeakRow(value, said, "donated", until)
        if allocation.kind == "constant":
            return PeakRow(value, "constant, kept for the whole run", "constant", until)
        if value.is_phi:
            return PeakRow(value, f"state of {value.name}: kept in place through every turn", "loop_state", until)
        ends = bool(self.sequence) and last is not None and last.tick == len(self.sequence) - 1
        if allocation.kind == "output" and (ends or last is None):
            return PeakRow(value, "given back by the program", "output", until)
        if value.live is not None and value.live[0] == tick:
            return PeakRow(value, f"being made by {value.name}", "making", until)
        if value.live is not None and last is not None and last.tick is not None and last.tick >= tick:
            steps = last.tick - tick
            when = "is read now" if not steps else f"waits {steps} step{'s' if steps > 1 else ''}"
            return PeakRow(value, f"{when}{' by' if not steps else ' for'} {last.instruction}", "waiting", until)
        if allocation.kind == "output":
            return PeakRow(value, "given back by the program", "output", until)
        return PeakRow(value, "kept by what holds it: a tuple, a loop or a call", "loop_state", until)

    @property
    def spaces(self) -> Mapping[int, int]:
        """Bytes of all allocations by memory space."""
        found: dict[int, int] = {}
        for one in self.allocations:
            found[one.color] = found.get(one.color, 0) + one.size
        return dict(sorted(found.items()))

    @property
    def fragmentation(self) -> int:
        """Bytes of temporary memory that nothing uses at the fullest moment of that memory: gaps and padding."""
        lost = 0
        for one in self.allocations:
            if one.kind in ("temp", "preallocated-temp") and one.values:
                alone = MemoryMap([one], (), self.origin, one.color)
                lost += max(0, one.size - alone.peak[1])
        return lost


# ---------------------------------------------------------------- from our own assignment
def map_of_assignment(assignment: BufferAssignment, *, sizes_only: bool = False) -> MemoryMap:
    """The map of what our pass assigned; with `sizes_only` without shapes and uses of values, which cost the most."""
    return MemoryMap(
        [_own_allocation(one, assignment, sizes_only) for one in assignment.allocations],
        [node.name for node in assignment.live.sequence],
        "core",
    )


def _own_allocation(one: BufferAllocation, assignment: BufferAssignment, sizes_only: bool) -> MapAllocation:
    values = tuple(_own_value(value, one, assignment, sizes_only) for value in one.values())
    return MapAllocation(
        one.index, one.size, one.color, one.kind, values, one.parameter, one.parameter_index, one.aliased
    )


def _own_value(value: HloValue, one: BufferAllocation, assignment: BufferAssignment, sizes_only: bool) -> MapValue:
    chunk, tick = one.assigned[value], assignment.live.tick
    return MapValue(
        value.instruction.name,
        value.index,
        one.index,
        chunk.size,
        chunk.offset,
        "" if sizes_only else value.shape.to_text(layout=False),
        assignment.ranges.get(value),
        value.is_phi,
        () if sizes_only else tuple(MapUse(use.instruction.name, tick.get(use.instruction)) for use in value.uses),
    )


# ---------------------------------------------------------------- from a compiler's reports
def map_of_reports(
    allocations: Sequence[ReportAllocation],
    ranges: LiveRangeReport | None,
    records: Sequence[ValueRecord] = (),
) -> MemoryMap:
    """The map that reports tell; without a live range report no value has a life."""
    ticks = {name: tick for tick, name in enumerate(ranges.sequence)} if ranges is not None else {}
    uses = {
        record.name: tuple(MapUse(use.instruction, ticks.get(use.instruction)) for use in record.uses)
        for record in records
    }
    made: list[MapAllocation] = []
    for one in allocations:
        values: list[MapValue] = []
        for value in one.values:
            found = ranges.ranges.get(value.name) if ranges is not None else None
            values.append(
                MapValue(
                    value.name.instruction,
                    value.name.shape_index,
                    one.index,
                    value.size,
                    value.offset,
                    _bare(value.shape),
                    (found.start, found.end) if found is not None else None,
                    value.is_phi,
                    uses.get(value.name, ()),
                )
            )
        donated = one.parameter is not None and one.live_out
        made.append(
            MapAllocation(
                one.index, one.size, one.color, one.kind, tuple(values), one.parameter, one.parameter_index, donated
            )
        )
    return MemoryMap(made, ranges.sequence if ranges is not None else (), "xla")


def _bare(shape: str) -> str:
    from hloscope.core.errors import ParseError
    from hloscope.core.hlo.shape import Shape

    try:
        return Shape.parse(shape).to_text(layout=False)
    except ParseError:
        return shape


def find_value(memory: MemoryMap, text: str) -> MapValue | None:
    """The value that ``name`` or ``name{1,0}`` means; a bare name of a tuple-shaped instruction is its table."""
    name, brace, rest = text.removeprefix("%").partition("{")
    index = tuple(int(part) for part in rest.rstrip("}").split(",") if part.strip().isdigit()) if brace else ()
    return memory.values.get((name, index))


def rectangles(memory: MemoryMap) -> Iterator[tuple[MapAllocation, MapValue]]:
    """Every value that has a life and bytes, with its allocation: what the map draws."""
    for one in memory.allocations:
        for value in one.values:
            if value.live is not None and value.size:
                yield one, value
