"""Readers of the four text reports that XLA writes about memory, of any back end, into plain tables.

``*-buffer-assignment.txt`` (allocations and the values in them), ``*-buffer-assignment-values.txt`` (positions and
uses), ``*-live-range.txt`` (ticks) and ``*-memory-usage-report.txt`` (allocations by size). A value is named by the
instruction that makes it and a shape index. Source: ``openxla/xla:xla/service/buffer_assignment.cc#ToString``,
``#BufferAssignment::ToReport``, ``xla/hlo/utils/hlo_live_range.cc#ToString``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from hloscope.core.errors import DumpError

Index = tuple[int, ...]


class ValueName(NamedTuple):
    """Which value: the instruction that makes it, and the part of its result."""

    instruction: str
    shape_index: Index


@dataclass(frozen=True, slots=True)
class ReportValue:
    """A value in an allocation."""

    number: int
    name: ValueName
    is_phi: bool
    color: int
    size: int
    """Bytes that it has there, which may be more than it needs."""
    offset: int
    shape: str
    """With layout."""


@dataclass(slots=True)
class ReportAllocation:
    """One allocation as the report lists it."""

    index: int
    size: int
    color: int = 0
    page: int | None = None
    parameter: int | None = None
    parameter_index: Index = ()
    parameter_shape: str | None = None
    output_shape: str | None = None
    """Shape of what the program gives back, where this holds the root's own value."""
    constant: bool = False
    thread_local: bool = False
    live_out: bool = False
    preallocated: bool = False
    values: list[ReportValue] = field(default_factory=list[ReportValue])
    reused: list[tuple[ValueName, int]] = field(default_factory=list[tuple[ValueName, int]])
    """Values of other memory spaces that lie in its gaps, with their space."""

    @property
    def kind(self) -> str:
        """What it is for, in one word."""
        if self.parameter is not None:
            return "parameter"
        for name, holds in (
            ("constant", self.constant),
            ("thread-local", self.thread_local),
            ("output", self.live_out),
        ):
            if holds:
                return name
        return "preallocated-temp" if self.preallocated else "temp"

    @property
    def flags(self) -> tuple[object, ...]:
        """All that the header line says beside the number: what two allocations are compared by."""
        return (
            self.size, self.color, self.page, self.parameter, self.parameter_index, self.output_shape, self.constant,
            self.thread_local, self.live_out, self.preallocated,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReportRange:
    """A live range in ticks, both ends counted in."""

    start: int
    end: int


@dataclass(slots=True)
class LiveRangeReport:
    """The live range report."""

    end: int
    """One past the last tick."""
    sequence: list[str] = field(default_factory=list[str])
    """Instruction at each tick."""
    ranges: dict[ValueName, ReportRange] = field(default_factory=dict[ValueName, ReportRange])
    """In the report's order."""
    peak_tick: int | None = None
    peak: list[tuple[ValueName, int]] = field(default_factory=list[tuple[ValueName, int]])
    """What is alive then, with its bytes, largest first."""


@dataclass(frozen=True, slots=True)
class ReportUse:
    """A place that reads a value."""

    instruction: str
    operand: int
    index: Index


@dataclass(slots=True)
class ValueRecord:
    """Positions and uses of a value."""

    number: int
    name: ValueName
    is_phi: bool
    positions: list[ValueName] = field(default_factory=list[ValueName])
    uses: list[ReportUse] = field(default_factory=list[ReportUse])
    line: str = ""
    """The text of the instruction that makes it."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Values at one offset of an allocation."""

    cumulative: str
    percent: int
    size: str
    offset: int
    values: int
    shapes: str


@dataclass(slots=True)
class UsageSpace:
    """One memory space of the memory usage report."""

    name: str
    color: int
    total: int
    allocations: list[list[UsageRow]] = field(default_factory=list[list[UsageRow]])
    not_shown: list[str] = field(default_factory=list[str])


def parse_index(text: str) -> Index:
    """``{1,0}`` as a tuple."""
    body = text.strip().strip("{}")
    return tuple(int(part) for part in body.split(",")) if body else ()


_SHORT = r"<(?P<number>\d+) (?P<name>[^\s{}@]+)(?P<index>\{[\d,]*\})?(?P<phi> \(phi\))? @(?P<color>\d+)>"
_ALLOCATION = re.compile(r"allocation (?P<index>\d+): size (?P<size>\d+)(?P<rest>.*):$")
_VALUE = re.compile(rf" value: {_SHORT} \(size=(?P<size>\d+),offset=(?P<offset>\d+)\): (?P<shape>.*)$")
_REUSED = re.compile(r"  value: <(?P<number>\d+) (?P<name>[^\s{}@]+)(?P<index>\{[\d,]*\})?.*> \(color=(?P<color>\d+)\)")
_PARAMETER = re.compile(r", parameter (\d+), shape \|(.*?)\| at ShapeIndex (\{[\d,]*\})")
_OUTPUT = re.compile(r", output shape is \|(.*?)\|")
_NUMBER = re.compile(r", (color|page) (\d+)")


def read_buffer_assignment(text: str, *, path: str | None = None) -> list[ReportAllocation]:
    """The allocations of ``*-buffer-assignment.txt``, in order. Raises DumpError for a line of another form.

    Releases up to jaxlib 0.4 append a sum, the values and the live ranges to the same file; the reading stops there.
    """
    found: list[ReportAllocation] = []
    for number, line in _lines(text):
        if line == "BufferAssignment:":
            continue
        if line.startswith("Total bytes used:"):
            break
        if (head := _ALLOCATION.fullmatch(line)) is not None:
            found.append(_allocation(head))
        elif found and (value := _VALUE.fullmatch(line)) is not None:
            found[-1].values.append(
                ReportValue(
                    int(value["number"]), _named(value), value["phi"] is not None, int(value["color"]),
                    int(value["size"]), int(value["offset"]), value["shape"],
                )
            )  # fmt: skip
        elif found and (reused := _REUSED.fullmatch(line)) is not None:
            found[-1].reused.append((_named(reused), int(reused["color"])))
        elif line.strip() in ("Uses:", "From instruction:") or line.startswith(" reused by"):
            continue
        else:
            _fail("buffer assignment report", line, number, path)
    return found


def _allocation(head: re.Match[str]) -> ReportAllocation:
    rest = head["rest"]
    made = ReportAllocation(int(head["index"]), int(head["size"]))
    if (parameter := _PARAMETER.search(rest)) is not None:
        made.parameter, made.parameter_shape = int(parameter[1]), parameter[2]
        made.parameter_index = parse_index(parameter[3])
    if (output := _OUTPUT.search(rest)) is not None:
        made.output_shape = output[1]
    bare = re.sub(r"\|.*?\|", "", rest)
    for word, value in _NUMBER.findall(bare):
        setattr(made, word, int(value))
    words = [part.strip() for part in bare.split(",")]
    made.constant, made.thread_local = "constant" in words, "thread-local" in words
    made.live_out, made.preallocated = "maybe-live-out" in words, "preallocated-temp" in words
    return made


def _named(found: re.Match[str]) -> ValueName:
    return ValueName(found["name"], parse_index(found["index"] or ""))


_RANGE = re.compile(r"    (?P<name>[^\s{}]+)(?P<index>\{[\d,]*\}):(?P<start>-?\d+)-(?P<end>-?\d+)$")
_TICK = re.compile(r"    (\d+):(\S+)$")
_ALIVE = re.compile(
    r"    (?P<name>[^\s{}]+)(?P<index>\{[\d,]*\}): (?P<bytes>\d+) bytes(?: \(cumulative: \d+ bytes\))?$"
)


def read_live_ranges(text: str, *, path: str | None = None) -> LiveRangeReport:
    """``*-live-range.txt`` without its breakdown by stack. Raises DumpError for a line of another form."""
    report: LiveRangeReport | None = None
    part = ""
    for number, line in _lines(text):
        if (head := re.fullmatch(r"HloLiveRange \(max (\d+)\):", line)) is not None:
            report = LiveRangeReport(int(head[1]))
        elif report is None:
            _fail("live range report", line, number, path)
        elif (peak := re.match(r"  Live ranges at (\d+) \(peak\):", line)) is not None:
            part, report.peak_tick = "peak", int(peak[1])
        elif line.startswith("  ") and not line.startswith("    ") and line.endswith(":"):
            part = line.strip()
        elif part == "InstructionSequence:" and (tick := _TICK.fullmatch(line)) is not None:
            report.sequence.append(tick[2])
        elif part == "BufferLiveRange:" and (found := _RANGE.fullmatch(line)) is not None:
            report.ranges[_named(found)] = ReportRange(int(found["start"]), int(found["end"]))
        elif part == "peak" and (alive := _ALIVE.fullmatch(line)) is not None:
            report.peak.append((_named(alive), int(alive["bytes"])))
        elif line.startswith("  Stack trace breakdown") or line.startswith("  Peak memory could not"):
            break
        else:
            _fail("live range report", line, number, path)
    if report is None:
        raise DumpError("the live range report is empty", path=path)
    return report


_RECORD = re.compile(_SHORT + r"$")
_USE = re.compile(r"  (?P<name>[^\s,]+), operand (?P<operand>\d+)(?: (?P<index>\{[\d,]*\}))?$")
_POSITION = re.compile(r"  (?P<name>[^\s{}]+)(?: (?P<index>\{[\d,]*\}))?$")


def read_values(text: str, *, path: str | None = None) -> list[ValueRecord]:
    """The records of ``*-buffer-assignment-values.txt``. Raises DumpError for a line of another form."""
    found: list[ValueRecord] = []
    part = ""
    for number, line in _lines(text):
        if (head := _RECORD.fullmatch(line)) is not None:
            found.append(ValueRecord(int(head["number"]), _named(head), head["phi"] is not None))
        elif line.startswith(("Total bytes used:", "Used values:")):
            continue
        elif not found:
            _fail("buffer values report", line, number, path)
        elif line in (" positions:", " uses:"):
            part = line.strip(" :")
        elif line.startswith(" from instruction:"):
            found[-1].line, part = line.removeprefix(" from instruction:").strip(), ""
        elif part == "positions" and (position := _POSITION.fullmatch(line)) is not None:
            found[-1].positions.append(_named(position))
        elif part == "uses" and line.strip() == "(none)":
            continue
        elif part == "uses" and (use := _USE.fullmatch(line)) is not None:
            found[-1].uses.append(ReportUse(use["name"], int(use["operand"]), parse_index(use["index"] or "")))
        elif not part and found[-1].line:
            found[-1].line += "\n" + line  # a backend config may hold line ends
        else:
            _fail("buffer values report", line, number, path)
    return found


_SPACE = re.compile(r"Memory Space: (\S+) \(color=(\d+)\)")
_ROW = re.compile(r"\s*(\S+)\(\s*(\d+)%\);\s*([^;]+);\s*(\d+);\s*(\d+); (.*)$")


def read_memory_usage(text: str, *, path: str | None = None) -> list[UsageSpace]:
    """The memory spaces of ``*-memory-usage-report.txt``. Raises DumpError for a line of another form."""
    found: list[UsageSpace] = []
    for number, line in _lines(text):
        if (space := _SPACE.fullmatch(line)) is not None:
            found.append(UsageSpace(space[1], int(space[2]), 0))
        elif not found:
            _fail("memory usage report", line, number, path)
        elif (total := re.match(r"Total bytes: (\d+)", line)) is not None:
            found[-1].total = int(total[1])
        elif line.startswith("  cumulative_size;"):
            found[-1].allocations.append([])
        elif line.startswith("  ------"):
            continue
        elif "are less than" in line:
            found[-1].not_shown.append(line.strip())
        elif found[-1].allocations and (row := _ROW.fullmatch(line)) is not None:
            found[-1].allocations[-1].append(
                UsageRow(row[1], int(row[2]), row[3].strip(), int(row[4]), int(row[5]), row[6])
            )
        else:
            _fail("memory usage report", line, number, path)
    return found


def value_places(allocations: list[ReportAllocation]) -> Mapping[ValueName, tuple[ReportAllocation, ReportValue]]:
    """Every value with its allocation."""
    return {value.name: (one, value) for one in allocations for value in one.values}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if line.strip():
            yield number, line


def _fail(what: str, line: str, number: int, path: str | None) -> NoReturn:
    raise DumpError(f"not a line of a {what}: {line.strip()[:60]!r}", path=path, line=number)
