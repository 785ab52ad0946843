"""What buffer assignment makes: allocations, the values in them, and the reasons why a value is not in another.

Source: ``openxla/xla:xla/service/buffer_assignment.h``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from hloscope.core.analysis.heap_placement import Chunk

if TYPE_CHECKING:
    from hloscope.core.analysis.alias import AliasAnalysis, HloBuffer
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.analysis.heap_placement import Placement
    from hloscope.core.analysis.heap_simulator import HeapTrace
    from hloscope.core.analysis.live_range import HloLiveRange
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import ShapeIndex

Kind = Literal["parameter", "constant", "thread-local", "output", "preallocated-temp"]
"""What an allocation is for. ``output`` holds something that the program gives back."""


@dataclass(eq=False, slots=True)
class BufferAllocation:
    """One block of memory."""

    index: int
    size: int
    """Bytes."""
    color: int = 0
    """Memory space."""
    constant: bool = False
    thread_local: bool = False
    tuple_: bool = False
    """A table of pointers of its own."""
    parameter: int | None = None
    """Number of the entry parameter whose memory it is."""
    parameter_index: ShapeIndex = ()
    aliased: bool = False
    """For a parameter: donated, so that it may be written over."""
    live_out: bool = False
    """May hold what the program gives back."""
    assigned: dict[HloValue, Chunk] = field(default_factory=dict["HloValue", Chunk])
    """Values with their ranges, in the order of assignment."""

    @property
    def read_only(self) -> bool:
        """Whether nothing may be written into it."""
        return self.constant or (self.parameter is not None and not self.aliased)

    @property
    def is_temp(self) -> bool:
        """Whether only the run itself needs it."""
        return not (self.parameter is not None or self.live_out or self.thread_local or self.constant)

    @property
    def kind(self) -> Kind:
        """The first of these that it is."""
        if self.parameter is not None:
            return "parameter"
        if self.constant:
            return "constant"
        if self.thread_local:
            return "thread-local"
        return "output" if self.live_out else "preallocated-temp"  # as XLA calls it

    def values(self) -> list[HloValue]:
        """Values by number."""
        return sorted(self.assigned, key=lambda value: value.id)


class Refusal(NamedTuple):
    """Why a buffer could not join an allocation: the first rule that said no."""

    buffer: HloBuffer
    value: HloValue
    """The value that would have been put there."""
    allocation: int
    """Number of the allocation when it was asked, before the renumbering at the end."""
    code: str
    """One of `REFUSALS`."""
    other: HloValue | None
    """The value that is there already and is in the way."""
    have: int
    """Bytes that the allocation has."""
    want: int
    """Bytes that the buffer needs."""


REFUSALS: Mapping[str, str] = {
    "color": "the memory spaces differ",
    "too_small": "the buffer is larger than the allocation",
    "read_only": "the allocation is a constant or a parameter that is not donated",
    "not_shared": "a tuple table or thread-local memory is never shared",
    "live_ranges_overlap": "a value that is there is alive at the same time",
    "copy_of_it": "a copy of a value that is there needs memory of its own",
    "output_of_other_size": "what is given back needs an allocation of exactly its size",
}
"""Code -> the reason in words, in the order in which the rules are tried."""


@dataclass
class BufferAssignment:
    """Allocations of a module, numbered as in the report."""

    analysis: AliasAnalysis
    live: HloLiveRange
    """Ranges after the heap; one grew where its memory was taken over."""
    ranges: Mapping[HloValue, tuple[int, int]]
    """Ranges before that, as the live range report has them."""
    alignment: int
    """Bytes."""
    allocations: list[BufferAllocation] = field(default_factory=list[BufferAllocation])
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    """Kept where they were asked for."""
    traces: dict[int, HeapTrace] = field(default_factory=dict[int, "HeapTrace"])
    """Heap simulation by memory space."""
    placements: dict[int, Placement] = field(default_factory=dict[int, "Placement"])
    """Placement by memory space."""
    renumbered: Mapping[int, int] = field(default_factory=dict[int, int])
    """Number of an allocation when it was made -> in the report."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all allocations."""
        return sum(one.size for one in self.allocations)

    def allocation_of(self, value: HloValue) -> BufferAllocation | None:
        """The allocation that holds a value; None inside fusions."""
        return self._where.get(value)

    def slice_of(self, value: HloValue) -> tuple[BufferAllocation, Chunk] | None:
        """Allocation and range of a value."""
        found = self._where.get(value)
        return None if found is None else (found, found.assigned[value])

    def at(self, instruction: HloInstruction, index: ShapeIndex = ()) -> list[tuple[BufferAllocation, Chunk]]:
        """Where a part of an instruction's result may lie."""
        found = [self.slice_of(value) for value in self.analysis.dataflow.value_set(instruction, index)]
        return [one for one in found if one is not None]

    def placed(self) -> Iterator[tuple[HloValue, BufferAllocation, Chunk]]:
        """Every value with its place, by allocation and number."""
        for allocation in self.allocations:
            for value in allocation.values():
                yield value, allocation, allocation.assigned[value]

    @cached_property
    def _where(self) -> Mapping[HloValue, BufferAllocation]:
        return {value: one for one in self.allocations for value in one.assigned}


def total(allocations: Sequence[BufferAllocation], color: int) -> int:
    """Bytes of the allocations of one memory space."""
    return sum(one.size for one in allocations if one.color == color)
