"""Wrong sharing of memory, found over a scheduled module and an assignment of it without running anything.

The assignment may be ours or a real compiler's. A finding of severity ``error`` is a program that computes with what it
has overwritten; one of severity ``note`` costs memory only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from hloscope.core.analysis.dataflow import ASYNC, branches
from hloscope.core.buffers.in_place_reads import misplaced_read
from hloscope.core.dumps.buffer_reports import ValueName
from hloscope.core.hlo.attributes import braced, split_top
from hloscope.core.hlo.verifier.module_rules import entry_aliases

if TYPE_CHECKING:
    from hloscope.core.analysis.alias import AliasAnalysis
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.analysis.live_range import HloLiveRange
    from hloscope.core.buffers.allocation import BufferAssignment
    from hloscope.core.dumps.buffer_reports import LiveRangeReport, ReportAllocation
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule


class Place(NamedTuple):
    """A range of bytes of an allocation."""

    allocation: int
    offset: int
    size: int

    def overlaps(self, other: Place) -> bool:
        """Whether some byte is in both."""
        return (
            self.allocation == other.allocation
            and self.offset < other.offset + other.size
            and other.offset < self.offset + self.size
        )


@dataclass(frozen=True, slots=True)
class Hazard:
    """One finding."""

    code: str
    """One of `HAZARDS`."""
    severity: Literal["error", "note"]
    instruction: str
    message: str
    values: tuple[str, ...] = ()
    allocation: int | None = None
    other_instruction: str | None = None
    """The second instruction that takes part, where there is one."""


HAZARDS = {
    "outputs_share_storage": "two results of one instruction have the same bytes",
    "reads_other_positions": "an instruction writes over what it still has to read at other positions",
    "alive_together": "two values have the same bytes while both are needed",
    "overwritten_before_read": "a value is read after another was written over it",
    "donated_overwritten": "a donated parameter is read after an output was written over it",
    "live_range_too_short": "the compiler's live range ends before the last read",
    "order_lost": "an instruction runs before one that it has to wait for",
    "donation_lost": "a donation that was asked for is not used",
}
"""Code -> what it means."""


def places_of(assignment: BufferAssignment) -> dict[HloValue, Place]:
    """Where our own assignment put every value."""
    return {value: Place(one.index, chunk.offset, chunk.size) for value, one, chunk in assignment.placed()}


def places_in_report(analysis: AliasAnalysis, report: Sequence[ReportAllocation]) -> dict[HloValue, Place]:
    """Where a compiler's report puts the values of a module; values that it does not name are left out."""
    told = {value.name: Place(one.index, value.offset, value.size) for one in report for value in one.values}
    found = ((value, told.get(ValueName(value.instruction.name, value.index))) for value in analysis.dataflow.values)
    return {value: place for value, place in found if place is not None}


def find_hazards(
    analysis: AliasAnalysis,
    live: HloLiveRange,
    places: Mapping[HloValue, Place],
    report: LiveRangeReport | None = None,
    *,
    rules_known: bool = True,
) -> list[Hazard]:
    """All findings on one assignment, by instruction. `report`: the compiler's own live ranges where it wrote them.

    Where the compiler's rules of sharing are not known (TPU), two values meet only if one is read after the other is
    written: it may write over an operand in ways of its own.
    """
    finder = _Finder(analysis, live, places, rules_known=rules_known)
    found = [*finder.shared_outputs(), *finder.misplaced_reads(), *finder.meetings(), *finder.late_reads()]
    if report is not None:
        found += finder.short_ranges(report)
    return found


def control_edges(module: HloModule) -> list[tuple[str, str]]:
    """Names of instructions that a control edge orders, the earlier one first."""
    return [(one.name, node.name) for node in module.instructions() for one in node.control_predecessors]


def order_hazards(module: HloModule, edges: Iterable[tuple[str, str]] = ()) -> Iterator[Hazard]:
    """Where a schedule runs against operands, its own control edges, or edges that an earlier stage had.

    `edges` are `control_edges` of that stage; those whose instructions are gone, or apart, say nothing.
    """
    place: dict[HloInstruction, int] = {}
    for computation in module.computations:
        place.update({node: step for step, node in enumerate(computation.instructions)})
    for node, step in place.items():
        if node.parent.is_fusion:
            continue
        for why, befores in (("reads", node.operands), ("waits for", node.control_predecessors)):
            for before in dict.fromkeys(befores):
                if place[before] > step:
                    yield Hazard(
                        "order_lost", "error", node.name, f"it {why} {before.name}, which runs after it",
                        other_instruction=before.name,
                    )  # fmt: skip
    named = {node.name: node for node in place}
    for first, second in edges:
        before, after = named.get(first), named.get(second)
        if before is None or after is None or before.parent is not after.parent or before in after.control_predecessors:
            continue
        if place[before] > place[after]:
            yield Hazard(
                "order_lost", "error", second,
                f"a control edge that made it wait for {first} was dropped, and it runs before it",
                other_instruction=first,
            )  # fmt: skip


class _Finder:
    def __init__(
        self, analysis: AliasAnalysis, live: HloLiveRange, places: Mapping[HloValue, Place], *, rules_known: bool
    ) -> None:
        self._rules_known = rules_known
        self._analysis = analysis
        self._live = live
        self._places = places
        self._around: dict[HloComputation, tuple[HloInstruction, ...]] = {}

    # ---------------------------------------------------------------- outputs of one instruction
    def shared_outputs(self) -> Iterator[Hazard]:
        for node in self._live.sequence:
            if not node.shape.is_tuple or node.opcode in ("tuple", "while", "conditional", "call", "get-tuple-element"):
                continue
            own = [value for values in self._analysis.dataflow.sets(node).values() for value in values]
            made = [one for one in own if one.instruction is node and one in self._places and self._places[one].size]
            for number, first in enumerate(made):
                for second in made[number + 1 :]:
                    if self._places[first].overlaps(self._places[second]) and self._needed(first, second):
                        place = self._places[first]
                        yield Hazard(
                            "outputs_share_storage",
                            "error",
                            node.name,
                            f"results {first.short()} and {second.short()} both lie in allocation {place.allocation} "
                            f"at offset {place.offset}, and both are used: both hold what is written last",
                            (first.short(), second.short()),
                            place.allocation,
                        )

    def _needed(self, first: HloValue, second: HloValue) -> bool:
        return all(one.uses or self._analysis.buffer_of(one) in self._analysis.live_out for one in (first, second))

    # ---------------------------------------------------------------- reads of what is written
    def misplaced_reads(self) -> Iterator[Hazard]:
        for node in self._live.sequence:
            if node.opcode != "fusion":
                continue
            for pair in self._analysis.info.in_place_pairs(node):
                operand = node.operand(pair.operand)
                read = self._analysis.dataflow.value_set(operand, pair.operand_index)
                written = self._analysis.dataflow.value_set(node, pair.output_index)
                if not any(self._overlap(a, b) for a in read for b in written):
                    continue
                fault = misplaced_read(node, pair, self._analysis.info)
                if fault is not None:
                    yield Hazard(
                        "reads_other_positions",
                        "error",
                        node.name,
                        f"it writes over operand {pair.operand} ({operand.name}) in place and reads it through "
                        f"{fault.reader}: {fault.reason}",
                        tuple(value.short() for value in (*read[:1], *written[:1])),
                        self._places[written[0]].allocation if written and written[0] in self._places else None,
                        operand.name,
                    )

    def _overlap(self, a: HloValue, b: HloValue) -> bool:
        return a in self._places and b in self._places and self._places[a].overlaps(self._places[b])

    # ---------------------------------------------------------------- two values at once
    def meetings(self) -> Iterator[Hazard]:
        """Values of different buffers that have common bytes and are alive together."""
        import numpy

        values = [one for one in self._places if one in self._live.ranges and self._places[one].size]
        if not values:
            return
        rows = numpy.array(
            [(*self._places[one], self._live.ranges[one].start, self._live.ranges[one].end) for one in values],
            dtype=numpy.int64,
        )
        allocation, offset, size, start, end = rows.T
        for number, first in enumerate(values):
            hit = (
                (allocation[number] == allocation[number + 1 :])
                & (offset[number] < offset[number + 1 :] + size[number + 1 :])
                & (offset[number + 1 :] < offset[number] + size[number])
                & (start[number] <= end[number + 1 :])
                & (start[number + 1 :] <= end[number])
            )
            for place in numpy.flatnonzero(hit):
                second = values[number + 1 + int(place)]
                if self._analysis.buffer_of(first) is not self._analysis.buffer_of(second):
                    yield from self._meeting(first, second)

    def _meeting(self, a: HloValue, b: HloValue) -> Iterator[Hazard]:
        early, late = sorted((a, b), key=lambda one: (self._live.ranges[one].start, self._live.ranges[one].end))
        first, second = self._live.ranges[early], self._live.ranges[late]
        if first.end == second.start and self._may_take_over(early, late):
            return
        # A heap that took over an operand kept the operand's range open until the taker's end.
        if self._was_taken_over(early, late):
            return
        if not self._rules_known and not self._read_after(early, late):
            return
        place = self._places[late]
        yield Hazard(
            "alive_together",
            "error",
            late.instruction.name,
            f"{late.short()} is written at step {second.start} over {early.short()}, which is needed until step "
            f"{first.end} (allocation {place.allocation}, offset {place.offset})",
            (early.short(), late.short()),
            place.allocation,
            early.instruction.name,
        )

    def _may_take_over(self, early: HloValue, late: HloValue) -> bool:
        node = late.instruction
        return node.opcode != "copy" and any(
            holder.use_count(node) and self._analysis.sharing(holder, index, node, late.index).allowed
            for holder, index in early.positions
        )

    def _was_taken_over(self, early: HloValue, late: HloValue) -> bool:
        last = self._live.last_use(early)
        return last <= self._live.ranges[late].start and self._may_take_over(early, late)

    def _read_after(self, early: HloValue, late: HloValue) -> bool:
        """Whether somebody reads a value, or the program gives it back, after another was written."""
        tick = self._live.tick
        written = late.instruction
        if self._analysis.buffer_of(early) in self._analysis.live_out:
            return True
        return any(
            use.instruction not in tick
            or (use.instruction is written and written.opcode == "copy")
            or (
                use.instruction.opcode not in _PASSING
                and (tick[use.instruction] > tick[written] or self._repeats(early, late, use.instruction))
                and not self._exclusive(written, use.instruction)
            )
            for use in early.uses
        )

    # ---------------------------------------------------------------- turns within one buffer
    def late_reads(self) -> Iterator[Hazard]:
        """Reads of a value after another value of its buffer was written."""
        for buffer in self._analysis.buffers:
            if len(buffer.values) < 2:
                continue
            writers = [one for one in buffer.values if _writes(one) and one.instruction in self._live.tick]
            for value in buffer.values:
                if value.instruction in self._live.tick:
                    for writer in writers:
                        if writer is not value and self._places.get(value, None) is not None:
                            yield from self._late_read(value, writer)

    def _late_read(self, value: HloValue, writer: HloValue) -> Iterator[Hazard]:
        tick = self._live.tick
        written, made = tick[writer.instruction], tick[value.instruction]
        for use in value.uses:
            reader = use.instruction
            if reader not in tick or reader.opcode in _PASSING:
                continue
            again = self._repeats(value, writer, reader)
            if not again and not made <= written <= tick[reader]:
                continue
            if not again and written == tick[reader]:
                # The writer reads it itself; whether it may is asked where positions are compared.
                if reader is writer.instruction:
                    continue
            if self._exclusive(writer.instruction, reader) or value.instruction is writer.instruction:
                continue
            donated = self._analysis.is_entry_parameter(value)
            yield Hazard(
                "donated_overwritten" if donated else "overwritten_before_read",
                "error",
                reader.name,
                f"it reads {value.short()} at step {tick[reader]}, after {writer.short()} was written over it at step "
                f"{written}" + (" of an earlier turn of the loop" if again and written > tick[reader] else ""),
                (value.short(), writer.short()),
                self._places[value].allocation,
                writer.instruction.name,
            )
            return

    def _repeats(self, value: HloValue, writer: HloValue, reader: HloInstruction) -> bool:
        """Whether a loop around reader and writer, but not around the value, brings the write before the next read."""
        inside = set(self._loops(reader)) & set(self._loops(writer.instruction))
        return bool(inside - set(self._loops(value.instruction)))

    def _loops(self, node: HloInstruction) -> tuple[HloInstruction, ...]:
        """The loops around an instruction."""
        found = self._around.get(node.parent)
        if found is None:
            callers = self._analysis.dataflow.callers(node.parent)
            found = ()
            if len(callers) == 1 and callers[0].info.calls == "control-flow":
                found = self._loops(callers[0])
                if callers[0].opcode == "while":
                    found = (*found, callers[0])
            self._around[node.parent] = found
        return found

    def _exclusive(self, a: HloInstruction, b: HloInstruction) -> bool:
        """Whether two instructions are in different branches of one conditional."""
        chains = [self._branch_chain(one) for one in (a, b)]
        return any(node in chains[1] and chains[1][node] is not branch for node, branch in chains[0].items())

    def _branch_chain(self, node: HloInstruction) -> dict[HloInstruction, HloComputation]:
        found: dict[HloInstruction, HloComputation] = {}
        here = node.parent
        while len(callers := self._analysis.dataflow.callers(here)) == 1:
            if callers[0].opcode == "conditional" and here in branches(callers[0]):
                found[callers[0]] = here
            here = callers[0].parent
        return found

    # ---------------------------------------------------------------- the compiler's ranges
    def short_ranges(self, report: LiveRangeReport) -> Iterator[Hazard]:
        for value in self._places:
            told = report.ranges.get(ValueName(value.instruction.name, value.index))
            if told is None or value.instruction not in self._live.tick:
                continue
            reads = [
                (self._live.tick[use.instruction], use.instruction)
                for use in value.uses
                if use.instruction in self._live.tick and use.instruction.opcode not in _PASSING
            ]
            # A value of a buffer of several ends for the compiler where the next is made, read or not.
            if not reads or self._live.ranges[value].end <= told.end:
                continue
            tick, reader = max(reads, key=lambda one: one[0])
            if tick > told.end:
                yield Hazard(
                    "live_range_too_short",
                    "error",
                    reader.name,
                    f"it reads {value.short()} at step {tick}, the compiler keeps it until step {told.end}",
                    (value.short(),),
                    self._places[value].allocation,
                    value.instruction.name,
                )


_PASSING = frozenset(
    ("tuple", "get-tuple-element", "while", "conditional", "call", "bitcast", "opt-barrier", *ASYNC)
)  # fmt: skip
"""Readers that only pass a value on; what they pass it to is looked at by itself."""


def _writes(value: HloValue) -> bool:
    return not value.is_phi and value.instruction.opcode not in ("parameter", "constant", *_PASSING)


# ---------------------------------------------------------------- donation
def lost_donations(first: HloModule, last: HloModule) -> Iterator[Hazard]:
    """Donations that the program asked for (in its first stage) and that the final module does not use."""
    asked: dict[tuple[int, tuple[int, ...]], str] = {}
    for one in entry_aliases(first.attrs.get("input_output_alias", "{}")) or ():
        asked[one.parameter, one.parameter_index] = "asked for as an alias of an output"
    for one in _donors(first.attrs.get("buffer_donor", "{}")):
        asked.setdefault(one, "offered as a buffer donor")
    used = {
        (one.parameter, one.parameter_index) for one in entry_aliases(last.attrs.get("input_output_alias", "{}")) or ()
    }
    free = [(index, part) for index, part in last.entry.root.shape.leaves()]
    taken = {one.output_index for one in entry_aliases(last.attrs.get("input_output_alias", "{}")) or ()}
    for (number, index), how in asked.items():
        if (number, index) in used or number >= len(last.entry.parameters):
            continue
        parameter = last.entry.parameters[number]
        shape = parameter.shape.sub(index)
        same = [place for place, part in free if part == shape]
        alike = [place for place, part in free if part.compatible(shape)]
        size = [place for place, part in free if part.is_array and shape.is_array and part.byte_size == shape.byte_size]
        if any(place not in taken for place in same):
            reason = "an output of its shape is free, but is a parameter, a constant or given back twice"
        elif same:
            reason = "every output of its shape has another parameter's memory"
        elif alike:
            reason = "the output of its shape has another layout"
        elif size:
            reason = "the output of its size has another shape or type"
        else:
            reason = f"no output has its size, {shape.byte_size if shape.is_array else 0:,} bytes"
        yield Hazard(
            "donation_lost",
            "note",
            parameter.name,
            f"parameter {number} ({parameter.name}, {shape.to_text(layout=False)}) was {how}: {reason}",
            (parameter.name,),
        )


def _donors(text: str) -> Iterator[tuple[int, tuple[int, ...]]]:
    for part in split_top(braced(text)):
        numbers = part.strip().strip("()").replace("{", " ").replace("}", " ").split(",")
        digits = [int(one) for one in numbers if one.strip().isdigit()]
        if digits:
            yield digits[0], tuple(digits[1:])
