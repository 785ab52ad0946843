"""The heap simulator: turns live ranges into a series of allocations, shares and frees, and measures the peak.

Values of one buffer share the address of the first. A value alone in its buffer may take over an operand that is alone
in its own and dies at the same tick. Each event takes one step of the heap's own clock; placement works in those steps.
Source: ``openxla/xla:xla/service/heap_simulator/heap_simulator.cc#RunComputation``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hloscope.core.analysis.dataflow_values import buffer_bytes

if TYPE_CHECKING:
    from hloscope.core.analysis.alias import HloBuffer
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.analysis.live_range import HloLiveRange


@dataclass(slots=True, eq=False)
class HeapInterval:
    """A value in the heap: when, in steps of the heap's clock, and how large."""

    value: HloValue
    size: int
    """Bytes, taken when it was allocated: those of the largest value that shares its memory by then."""
    start: int
    end: int = -1
    placed_alone: bool = True
    """False for a value that shares another's address."""
    shared_by: list[HeapInterval] = field(default_factory=list["HeapInterval"])
    """The values that share this one's address directly."""

    def group(self) -> list[HeapInterval]:
        """This interval and everything that shares its address through others."""
        found: list[HeapInterval] = [self]
        work: list[HeapInterval] = [self]
        seen = {id(self)}
        while work:
            for one in work.pop().shared_by:
                if id(one) not in seen:
                    seen.add(id(one))
                    found.append(one)
                    work.append(one)
        return found


@dataclass(frozen=True, slots=True)
class HeapEvent:
    """One step of the simulation."""

    kind: Literal["alloc", "share", "free"]
    value: HloValue
    size: int
    tick: int
    """Of the schedule."""
    shared_with: HloValue | None = None


@dataclass(slots=True)
class HeapTrace:
    """What the simulation found."""

    intervals: list[HeapInterval]
    """By the order in which the values started; those of zero bytes are left out."""
    empty: list[HloValue]
    """Values of zero bytes, at offset 0."""
    events: list[HeapEvent]
    peak: int
    """Most bytes that were allocated at once, without gaps."""
    peak_tick: int
    """First tick of that."""


class _Groups:
    """Sizes of sets of values that share memory; a set is as large as its largest value."""

    def __init__(self, size_of: Callable[[HloValue], int]) -> None:
        self._size_of = size_of
        self._cell: dict[HloValue, list[int]] = {}
        self._members: dict[int, list[HloValue]] = {}

    def add(self, buffer: HloBuffer) -> None:
        cell = [max(map(self._size_of, buffer.values))]
        self._members[id(cell)] = list(buffer.values)
        for value in buffer.values:
            self._cell[value] = cell

    def size(self, value: HloValue) -> int:
        return self._cell[value][0]

    def merge(self, a: HloValue, b: HloValue) -> None:
        first, second = self._cell[a], self._cell[b]
        if first is second:
            return
        first[0] = max(first[0], second[0])
        moved = self._members.pop(id(second))
        self._members[id(first)].extend(moved)
        for value in moved:
            self._cell[value] = first


def _bytes(value: HloValue) -> int:
    return buffer_bytes(value.shape)


def simulate(
    live: HloLiveRange,
    values: Collection[HloValue] | None = None,
    *,
    constants: bool = True,
    share_operands: bool = True,
    size_of: Callable[[HloValue], int] | None = None,
) -> HeapTrace:
    """Run the schedule's definitions and ends of `values` (of all values that have a range, without it).

    A range grows where an operand's memory is taken over: the operand's end in `live` moves to the taker's.
    """
    analysis = live.analysis
    chosen = live.ranges if values is None else [one for one in values if one in live.ranges]
    order = [one for one in chosen if constants or one.instruction.opcode != "constant"]
    order.sort(key=lambda one: (live.ranges[one].start, live.ranges[one].end, one.id))
    wanted = set(order)
    groups = _Groups(size_of or _bytes)
    for buffer in analysis.buffers:
        groups.add(buffer)
    starts: dict[int, list[HloValue]] = {}
    frees: dict[int, dict[HloValue, None]] = {}
    for value in order:
        starts.setdefault(live.ranges[value].start, []).append(value)
        frees.setdefault(live.ranges[value].end, {})[value] = None
    heap = _Heap(groups)
    first: dict[HloBuffer, HloValue] = {}
    for tick in sorted({*starts, *frees}):
        ending = frees.get(tick, {})
        for value in starts.get(tick, ()):
            buffer = analysis.buffer_of(value)
            if buffer in first:
                heap.share(value, first[buffer], tick)
                continue
            donor = _operand_to_take(live, value, buffer, tick, wanted, ending) if share_operands else None
            if donor is not None:
                heap.free(donor, tick)
                del ending[donor]
                heap.share(value, donor, tick)
                live.ranges[donor].end = live.ranges[value].end
            else:
                heap.allocate(value, tick)
                first[buffer] = value
        for value in ending:
            heap.free(value, tick)
    return HeapTrace(list(heap.intervals.values()), heap.empty, heap.events, heap.peak, heap.peak_tick)


def _operand_to_take(
    live: HloLiveRange,
    value: HloValue,
    buffer: HloBuffer,
    tick: int,
    wanted: set[HloValue],
    ending: dict[HloValue, None],
) -> HloValue | None:
    """The first operand whose memory `value` may take over now."""
    node = value.instruction
    if len(buffer.values) != 1 or node.opcode == "copy":
        return None
    analysis = live.analysis
    for operand in node.operands:
        for held in analysis.dataflow.value_set(operand):
            if held not in ending or held not in wanted or live.ranges[held].end != tick:
                continue
            if len(analysis.buffer_of(held).values) != 1 or not held.instruction.use_count(node):
                continue
            if analysis.sharing(held.instruction, held.index, node, value.index).allowed:
                return held
    return None


class _Heap:
    """The heap's clock and its running total."""

    def __init__(self, groups: _Groups) -> None:
        self._groups = groups
        self._clock = 0
        self._used = 0
        self.intervals: dict[HloValue, HeapInterval] = {}
        self.empty: list[HloValue] = []
        self.events: list[HeapEvent] = []
        self.peak = 0
        self.peak_tick = 0

    def allocate(self, value: HloValue, tick: int) -> None:
        self._begin(value, tick, None)

    def share(self, value: HloValue, other: HloValue, tick: int) -> None:
        self._groups.merge(other, value)
        self._begin(value, tick, other)

    def _begin(self, value: HloValue, tick: int, other: HloValue | None) -> None:
        size = self._groups.size(value)
        self._used += size
        if self._used > self.peak:
            self.peak, self.peak_tick = self._used, tick
        if not size:
            self.empty.append(value)
            return
        made = HeapInterval(value, size, self._clock, placed_alone=other is None)
        self.intervals[value] = made
        self._clock += 1
        if other is not None and other in self.intervals:
            self.intervals[other].shared_by.append(made)
        self.events.append(HeapEvent("alloc" if other is None else "share", value, size, tick, other))

    def free(self, value: HloValue, tick: int) -> None:
        size = self._groups.size(value)
        self._used -= size
        found = self.intervals.get(value)
        if found is not None:
            found.end = self._clock
            self._clock += 1
            self.events.append(HeapEvent("free", value, size, tick))
