"""The buffer map of a run as plain data: where every value lives and when, what fills memory at its peak, and why.

A dump's own reports are read. Where it lacks them, for a ledger without them and for a single HLO file the scheduled
module is assigned by our own pass; a module that is not scheduled is given copies and a schedule first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from hloscope.core.analysis.alias import AliasAnalysis
from hloscope.core.analysis.alias_info import AliasInfo
from hloscope.core.analysis.live_range import HloLiveRange
from hloscope.core.buffers.assignment import assign_buffers, backend_of
from hloscope.core.buffers.colors import space_name
from hloscope.core.buffers.hazards import (
    Hazard,
    control_edges,
    find_hazards,
    lost_donations,
    order_hazards,
    places_in_report,
    places_of,
)
from hloscope.core.buffers.memory_map import MapValue, MemoryMap, map_of_assignment, map_of_reports
from hloscope.core.buffers.questions import ShareAnswer, WhatIf, can_share, what_if
from hloscope.core.buffers.recompute import Recompute, recomputable
from hloscope.core.dumps.buffer_reports import read_buffer_assignment, read_live_ranges, read_values
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import DumpError, HloscopeError, UnsupportedError
from hloscope.core.text.reader import check_room
from hloscope.core.views.data import BufferPlace, SourceFrame
from hloscope.core.xla.targets import backend_of as backend_of_target

if TYPE_CHECKING:
    from hloscope.core.buffers.allocation import BufferAssignment, Refusal
    from hloscope.core.buffers.memory_map import MapAllocation
    from hloscope.core.dumps.buffer_reports import LiveRangeReport, ReportAllocation, ValueRecord
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.core.views.run import Run

_ASSIGNING_BYTES = 5000
"""Memory that an assignment takes for each instruction."""
_Read = TypeVar("_Read")
_TOTAL = re.compile(r"^Total bytes used: (\d+)", re.M)
_DEFINED = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = ", re.M)


@dataclass(frozen=True, slots=True)
class BufferValue:
    """A value in its place."""

    name: str
    """The instruction that makes it."""
    shape_index: str
    """``{}``, ``{1,0}``."""
    size: int
    """Bytes."""
    offset: int
    live: tuple[int, int] | None
    """First and last step of the flattened schedule; None for memory of a thread's own, or where nothing tells."""
    shape: str = ""


@dataclass(frozen=True, slots=True)
class BufferRow:
    """One allocation."""

    index: int
    size: int
    """Bytes."""
    color: int
    """Memory space."""
    kind: str
    """``parameter``, ``constant``, ``thread-local``, ``output``, ``temp`` or ``preallocated-temp``."""
    values: tuple[BufferValue, ...]
    parameter: int | None = None
    donated: bool = False


@dataclass(frozen=True, slots=True)
class ValueRow:
    """One value on one line."""

    name: str
    index: str
    """Part of the instruction's result, ``{1}``."""
    allocation: int
    kind: str
    """The allocation's."""
    space: int
    """Memory space."""
    size: int
    offset: int
    start: int | None
    """First step of its life; None where that is not known (thread-local values)."""
    end: int | None
    shape: str
    opcode: str | None
    file: str | None
    line: int | None
    """The Python line that made it, the innermost."""
    op: str | None
    """The operation's name in the program."""


@dataclass(frozen=True, slots=True)
class PeakValue:
    """One of the largest values at the peak."""

    name: str
    shape_index: str
    size: int
    allocation: int
    kind: str
    shape: str
    live: tuple[int, int] | None
    reason: str
    """Why it is alive, in one line."""
    code: str
    until: str | None
    """The instruction that reads it last."""
    op_name: str | None
    source: SourceFrame | None
    """The Python line that made it, the innermost."""


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """Why a value did not join an allocation."""

    name: str
    shape_index: str
    allocation: int
    code: str
    other: str | None
    have: int
    want: int


@dataclass(frozen=True, slots=True)
class BufferMap:
    """All of it."""

    allocations: tuple[BufferRow, ...]
    peak_bytes: int
    peak_step: int
    peak_instruction: str | None
    """What runs then."""
    total_bytes: int
    fragmentation: int
    """Bytes of temporary memory that nothing uses at its fullest."""
    largest: tuple[PeakValue, ...]
    refusals: tuple[RefusalRow, ...]
    """By our own assignment; of a compiler's report only where a question made it run and it agrees with the report."""
    hazards: tuple[Hazard, ...] | None
    """None where they were not asked for."""
    profile: tuple[tuple[int, int], ...]
    """(step, bytes in use from then on)."""
    steps: tuple[str, ...]
    """Instruction at each step."""
    origin: str
    """``xla``: read from the compiler's reports; ``core``: our own assignment."""
    notes: tuple[str, ...] = field(default=())
    spaces: tuple[tuple[int, str, int], ...] = ()
    """(number, name, bytes of its allocations) of every memory space; the peak is that of the first, ``default``."""

    def __repr__(self) -> str:
        return (
            f"<buffer map: {len(self.allocations):,} allocations, {self.total_bytes:,} bytes, peak {self.peak_bytes:,}>"
        )


class Buffers:
    """What is known of a run's buffers; parts are worked out when asked and kept."""

    def __init__(self, run: Run, target: str | None = None) -> None:
        self._run = run
        self._target = backend_of_target(target) or run.source.target
        """Whose rules: the run's target unless the caller knows better."""
        self._notes: list[str] = []
        self._assignment: BufferAssignment | None = None
        self._report: list[ReportAllocation] | None = None
        self._ranges: LiveRangeReport | None = None
        self._module: HloModule | None = None
        self._map: MemoryMap | None = None

    def __repr__(self) -> str:
        name = self._run.source.module or "?"
        if self._map is None and self._run.report(FileKind.BUFFER_ASSIGNMENT) is None:
            return f"<buffers of {name}: to be assigned by the first question>"  # which takes long in a large module
        try:
            found = self.memory
        except HloscopeError as error:
            return f"<buffers of {name}: {error.message}>"
        by = "by the compiler's reports" if found.origin == "xla" else "assigned by our own pass"
        return f"<buffers of {name}: {len(found.allocations):,} allocations, {found.total_bytes:,} bytes, {by}>"

    @property
    def known(self) -> bool:
        """Whether the map was worked out already."""
        return self._map is not None

    # ---------------------------------------------------------------- parts
    @property
    def memory(self) -> MemoryMap:
        """Allocations and lives. Raises a HloscopeError where nothing tells them and the module cannot be assigned."""
        if self._map is None:
            self._read_reports()
            if self._report is None:
                self._map = map_of_assignment(self.assignment)
            else:
                records = self._records(self._report)
                self._map = map_of_reports(self._report, self._ranges, records or ())
                if self._run.source.by_core:
                    self._map.origin = "core"
                self._complete(self._map, uses=records is not None)
        return self._map

    def _read_reports(self) -> None:
        text = self._run.report(FileKind.BUFFER_ASSIGNMENT)
        if text is None or self._report is not None:
            return
        report = self._readable("buffers", lambda: read_buffer_assignment(text))
        if not report:
            if report is not None:
                self._note("the report on buffers is empty; it is left aside")
            return
        if self._is_foreign("buffers", {value.name.instruction for one in report for value in one.values}):
            return
        self._report = report
        told = self._run.report(FileKind.LIVE_RANGE)
        ranges = self._readable("live ranges", lambda: read_live_ranges(told)) if told is not None else None
        if ranges is None or self._is_foreign("live ranges", {one.instruction for one in ranges.ranges}):
            return
        if ranges.peak_tick is None and "Peak memory could not" not in (told or ""):
            self._note("the report on live ranges is cut off before its end; it is left aside")
            return
        self._ranges = ranges

    def _records(self, report: Sequence[ReportAllocation]) -> Sequence[ValueRecord] | None:
        """The report on values; None where there is none that can be used."""
        text = self._run.report(FileKind.BUFFER_VALUES)
        records = self._readable("values", lambda: read_values(text)) if text else None
        if records is None or text is None:
            return None
        total = _TOTAL.search(text)
        size = sum(one.size for one in report)
        if total is not None and int(total[1]) != size:
            self._note(
                f"the report on buffers has {size:,} bytes, the one on values tells of {int(total[1]):,}: one of them"
                " is cut off or another compile's"
            )
        if self._is_foreign("values", {one.name.instruction for one in records}):
            return None
        lost = sum(len(one.values) for one in report) - len(records)
        if lost > 0:
            self._note(f"the report on values is cut off, {lost} values are missing; it is left aside")
            return None
        return records

    def _readable(self, what: str, read: Callable[[], _Read]) -> _Read | None:
        """What a report says; None, and a note, where it cannot be read."""
        try:
            return read()
        except DumpError as error:
            self._note(f"the report on {what} cannot be read, line {error.line}: {error.message}; it is left aside")
            return None

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _is_foreign(self, what: str, named: set[str]) -> bool:
        """Whether a report is about another module than the scheduled one beside it; said in a note."""
        text = self._run.stage_text(-1)
        if "is_scheduled=true" not in text[: text.find("\n")]:
            return False
        lost = named - set(_DEFINED.findall(text))
        if 2 * len(lost) <= len(named):
            return False
        self._note(
            f"the report on {what} is another module's: {len(lost)} of the {len(named)} instructions that it names are"
            " not in this one; it is left aside"
        )
        return True

    def _complete(self, memory: MemoryMap, *, uses: bool) -> None:
        """Fill in lives and reads that the reports lack, from our own analysis of the same module."""
        if self._ranges is not None and uses:
            return
        missing = "live ranges" if self._ranges is None else "uses"
        if self._target == "tpu":
            memory.notes.append(f"the dump has no report to use on {missing}, and the TPU's module is not analysed")
            return
        try:
            own = map_of_assignment(self.assignment)
        except HloscopeError as error:
            memory.notes.append(f"the dump has no report to use on {missing}, nor a module that tells: {error}")
            return
        memory.notes.append(f"the dump has no report to use on {missing}: they are computed from the scheduled module")
        from dataclasses import replace

        memory.sequence = own.sequence
        made: list[MapAllocation] = []
        for one in memory.allocations:
            values: list[MapValue] = []
            for value in one.values:
                twin = own.values.get((value.name, value.index))
                values.append(
                    value
                    if twin is None
                    else replace(value, live=value.live or twin.live, uses=value.uses or twin.uses)
                )
            made.append(replace(one, values=tuple(values)))
        memory.allocations = made

    @property
    def module(self) -> HloModule:
        """The scheduled module: the run's last stage, or that stage with copies and a schedule of ours."""
        if self._module is None:
            check_room(self._run.stage_text(-1), self._run.source.path, each=_ASSIGNING_BYTES)
            module = self._run.stage_module(-1)
            if not module.is_scheduled:
                from hloscope.core.views.scheduling import schedule_for_buffers

                self._notes += schedule_for_buffers(module, self._target)
            self._module = module
        return self._module

    @property
    def assignment(self) -> BufferAssignment:
        """Our own assignment of the scheduled module. Raises UnsupportedError for a TPU's module."""
        if self._assignment is None:
            if self._target == "tpu":
                raise UnsupportedError(
                    "the TPU compiler's buffer assignment is not reproduced",
                    path=self._run.source.path,
                    hint="a dump with its *-buffer-assignment.txt is read"
                    if self._report is None
                    else "hloscope buffers DUMP --what-if donate:0 --prove asks the compiler itself",
                )
            self._assignment = assign_buffers(self.module, backend_of(self._target), keep_refusals=True)
        return self._assignment

    # ---------------------------------------------------------------- answers
    def map(self, *, largest: int = 10, hazards: bool = False) -> BufferMap:
        """The map with the largest values at the peak; `hazards` looks for wrong sharing as well."""
        memory = self.memory
        step, peak = memory.peak
        found = tuple(self.hazards()) if hazards else None
        if self._run.source.by_core:
            _ = self.assignment  # the same once more, for what it refused
        refusals = self._assignment.refusals if self._assignment is not None and self._replayed() else ()
        return BufferMap(
            allocations=tuple(_row(one) for one in memory.allocations),
            peak_bytes=peak,
            peak_step=step,
            peak_instruction=memory.sequence[step] if step < len(memory.sequence) else None,
            total_bytes=memory.total_bytes,
            fragmentation=memory.fragmentation,
            largest=tuple(self._largest(memory, largest)),
            refusals=tuple(_refusal(one, self._assignment) for one in refusals),
            hazards=found,
            profile=tuple(memory.profile),
            steps=tuple(memory.sequence),
            origin=memory.origin,
            notes=(*self._notes, *memory.notes),
            spaces=tuple((color, space_name(color), size) for color, size in memory.spaces.items()),
        )

    def value_rows(self) -> list[ValueRow]:
        """Every value with its place, its life and where it comes from, in the order of allocations."""
        index = self._run.stage_index(-1)
        found: list[ValueRow] = []
        for allocation in self.memory.allocations:
            for value in allocation.values:
                row = index.find(value.name)
                op_name, frame = _origin(index, value.name, value.index)
                start, end = value.live if value.live is not None else (None, None)
                found.append(
                    ValueRow(
                        value.name, _text(value.index), allocation.index, allocation.kind, allocation.color,
                        value.size, value.offset, start, end, value.shape,
                        index.opcode(row) if row is not None else None,
                        frame.file if frame is not None else None, frame.line if frame is not None else None, op_name,
                    )
                )  # fmt: skip
        return found

    def _replayed(self) -> bool:
        """Whether our assignment, which has run, is the one that is shown."""
        if self._report is None or self._assignment is None:
            return True
        told = places_in_report(self._assignment.analysis, self._report)
        return told == places_of(self._assignment)

    def _largest(self, memory: MemoryMap, count: int) -> list[PeakValue]:
        index = self._run.stage_index(-1)
        found: list[PeakValue] = []
        for row in memory.largest_at_peak(count):
            value, allocation = row.value, memory.allocations[row.value.allocation]
            op_name, frame = _origin(index, value.name, value.index)
            found.append(
                PeakValue(
                    value.name, _text(value.index), value.size, value.allocation, allocation.kind, value.shape,
                    value.live, row.reason, row.code, row.until, op_name, frame,
                )
            )  # fmt: skip
        return found

    def hazards(self) -> list[Hazard]:
        """Wrong sharing in the assignment (the compiler's own where a dump has it), and donations that were lost.

        Raises UnsupportedError for a TPU's module without the compiler's report.
        """
        self._read_reports()
        on_tpu = self._target == "tpu"
        if on_tpu and self._report is not None:
            analysis = AliasAnalysis(self.module, AliasInfo())
        else:
            analysis = self.assignment.analysis
        places = places_of(self.assignment) if self._report is None else places_in_report(analysis, self._report)
        # The heap lengthened some ranges of the assignment's own; hazards are looked for in the program's.
        found = find_hazards(analysis, HloLiveRange(analysis), places, self._ranges, rules_known=not on_tpu)
        found += order_hazards(self.module, self._edges_before_scheduling())
        if len(self._run) > 1:
            try:
                first = self._run.stage_module(0)
                found += lost_donations(first, self.module)
            except HloscopeError as error:
                self._notes.append(f"donations cannot be told: {error}")
        return found

    def _edges_before_scheduling(self) -> list[tuple[str, str]]:
        """Control edges of the last stage without a schedule; none where it cannot be read."""
        for number in range(len(self._run) - 1, -1, -1):
            text = self._run.stage_text(number)
            if "is_scheduled=true" in text.partition("\n")[0]:
                continue
            if "control-predecessors" not in text:
                return []
            try:
                return control_edges(self._run.stage_module(number))
            except HloscopeError as error:
                self._notes.append(f"control edges before scheduling cannot be told: {error}")
                return []
        return []

    def can_share(self, first: str, second: str) -> ShareAnswer:
        """Whether two values could have the same memory. Raises UsageError for names that hold none."""
        return can_share(self.assignment, first, second)

    def what_if(self, change: str) -> WhatIf:
        """The peak after a change, by our own assignment; see `hloscope.core.buffers.questions.what_if`."""
        backend = backend_of(self._target)
        return what_if(self.module, backend, self.assignment, change)

    def recomputable(self) -> list[Recompute]:
        """Values that could be computed again instead of kept over the peak, by our own assignment, largest first."""
        return recomputable(self.assignment)

    def of(self, name: str) -> tuple[BufferPlace, ...]:
        """Where the parts of an instruction's result lie, by the compiler's report alone; empty where there is none.

        A report that cannot be read is noted, not raised: it is one fact among many.
        """
        try:
            self._read_reports()
        except HloscopeError as error:
            self._notes.append(error.message)
            return ()
        found: list[BufferPlace] = []
        for one in self._report or ():
            for value in one.values:
                if value.name.instruction == name:
                    shared = sum(1 for other in one.values if other.offset == value.offset) - 1
                    life = self._ranges.ranges.get(value.name) if self._ranges is not None else None
                    live = (life.start, life.end) if life is not None else None
                    index = _text(value.name.shape_index)
                    found.append(BufferPlace(index, one.index, one.kind, value.offset, value.size, live, shared))
        return tuple(found)


def _row(one: MapAllocation) -> BufferRow:
    values = tuple(
        BufferValue(value.name, _text(value.index), value.size, value.offset, value.live, value.shape)
        for value in one.values
    )
    return BufferRow(one.index, one.size, one.color, one.kind, values, one.parameter, one.donated)


def _refusal(one: Refusal, assignment: BufferAssignment | None) -> RefusalRow:
    number = assignment.renumbered.get(one.allocation, one.allocation) if assignment is not None else one.allocation
    return RefusalRow(
        one.value.instruction.name,
        _text(one.value.index),
        number,
        one.code,
        one.other.short() if one.other is not None else None,
        one.have,
        one.want,
    )


def _text(index: Sequence[int]) -> str:
    return "{" + ",".join(map(str, index)) + "}"


_FORWARDED = ("copy", "bitcast", "get-tuple-element", "opt-barrier", "copy-done", "copy-start")
_HOPS = 8
"""Instructions without a line that are gone back through."""


def _origin(index: ModuleIndex, name: str, part: Sequence[int] = ()) -> tuple[str | None, SourceFrame | None]:
    """Operation and innermost Python line of a value; what writes it where its own instruction has none.

    The state of a loop is written by what the loop's body gives back; that line is its origin, else the loop's own.
    """
    at = index.find(name)
    if at is None:
        return None, None
    op_name = index.op_name(at)
    seen: set[int] = set()
    waiting = [(at, tuple(part))]
    while waiting and len(seen) < _HOPS:
        one, place = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        frames = index.frames(one)
        if frames:
            frame = SourceFrame(frames[0].file, frames[0].line, frames[0].column, frames[0].function)
            return op_name or index.op_name(one), frame
        waiting = _writers(index, one, place) + waiting
    return op_name, None


def _writers(index: ModuleIndex, at: int, part: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
    """What an instruction's value comes from, the likeliest first: (row, part of its tuple)."""
    opcode, operands = index.opcode(at), index.operands(at)
    if opcode in _FORWARDED:
        return [(operands[0], part if opcode == "opt-barrier" else ())] if operands else []
    if opcode == "tuple":
        return [(operands[part[0]], part[1:])] if part and part[0] < len(operands) else []
    if opcode == "while":
        roots = [index.computation(one).root for one in index.called(at) if one >= 0]
        return [(row, part) for row in roots if row >= 0 and index.opcode(row) == "tuple"]
    if opcode == "parameter":
        return [
            pair
            for caller in index.callers(index.computation_of(at))
            if index.opcode(caller) == "while"
            for pair in (*_writers(index, caller, part), (caller, part))
        ]
    return []
