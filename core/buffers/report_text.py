"""Writers of XLA's four memory reports, in its format, byte for byte where our numbers of values are the compiler's.

Source: ``openxla/xla:xla/service/buffer_assignment.cc``, ``xla/hlo/utils/hlo_live_range.cc#ToString``,
``xla/service/hlo_value.cc#ToString``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hloscope.core.analysis.dataflow_values import buffer_bytes, index_text
from hloscope.core.buffers.colors import space_name
from hloscope.core.buffers.stack_breakdown import breakdown_lines
from hloscope.core.text.printer import DEFAULT, PrintOptions, print_instruction

if TYPE_CHECKING:
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.analysis.heap_placement import Chunk
    from hloscope.core.buffers.allocation import BufferAllocation, BufferAssignment
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import ShapeIndex

SHOWN_ROWS = 50
"""Rows of an allocation, and allocations of a memory space, that are always shown."""
SMALL_SHARE = 0.05
"""What is left below this share of the total is cut after `SHOWN_ROWS`."""


def human_bytes(count: int) -> str:
    """Bytes as XLA writes them: ``96B``, ``6.8KiB``, ``2.10MiB``."""
    if count < 1024:
        return f"{count}B"
    units = "KMGTPE"
    place = 0
    while count >= 1024 * 1024 and place < len(units) - 1:
        count //= 1024
        place += 1
    return f"{count / 1024:.{1 if place == 0 else 2}f}{units[place]}iB"


def short_value(value: HloValue, color: int) -> str:
    """``<17 name{0} (phi) @0>``."""
    return f"<{value.id} {value.short()}{' (phi)' if value.is_phi else ''} @{color}>"


# ---------------------------------------------------------------- buffer assignment
def buffer_assignment_text(assignment: BufferAssignment) -> str:
    """``*-buffer-assignment.txt``."""
    return "\n".join(("BufferAssignment:", *_allocation_lines(assignment), ""))


def _allocation_lines(assignment: BufferAssignment) -> Iterator[str]:
    root = assignment.analysis.module.entry.root
    given_back = set(assignment.analysis.dataflow.value_set(root))
    for one in assignment.allocations:
        head = f"allocation {one.index}: size {one.size}"
        if one.color:
            head += f", color {one.color}"
        if one.parameter is not None:
            shape = assignment.analysis.module.entry.parameters[one.parameter].shape
            head += f", parameter {one.parameter}, shape |{shape.to_text(layout=False)}|"
            head += f" at ShapeIndex {index_text(one.parameter_index)}"
        if one.live_out and not given_back.isdisjoint(one.assigned):
            head += f", output shape is |{root.shape.to_text(layout=False)}|"
        for word, holds in (
            ("constant", one.constant),
            ("thread-local", one.thread_local),
            ("maybe-live-out", one.live_out),
            ("preallocated-temp", one.is_temp),
        ):
            head += f", {word}" if holds else ""
        yield head + ":"
        for value in one.values():
            size = one.assigned[value]
            yield f" value: {short_value(value, one.color)} (size={size.size},offset={size.offset}): {value.shape}"


# ---------------------------------------------------------------- values
def values_text(assignment: BufferAssignment) -> str:
    """``*-buffer-assignment-values.txt``."""
    total = assignment.total_bytes
    lines = ["", f"Total bytes used: {total} ({human_bytes(total)})", "", "Used values:"]
    placed = [(value, one.color) for one in assignment.allocations for value in one.assigned]
    for value, color in sorted(placed, key=lambda one: one[0].id):
        lines += _value_lines(value, color)
    return "\n".join((*lines, ""))


def _value_lines(value: HloValue, color: int) -> Iterator[str]:
    yield short_value(value, color)
    yield " positions:"
    for node, index in value.positions:
        yield "  " + _place(node, index)
    yield " uses:"
    if not value.uses:
        yield "  (none)"
    for use in value.uses:
        operand = use.instruction.operand(use.operand)
        index = f" {index_text(use.operand_index)}" if operand.shape.is_tuple else ""
        yield f"  {use.instruction.name}, operand {use.operand}{index}"
    # The default options keep the line for the snapshot that follows.
    options = _SUGARED if value.instruction.opcode.startswith("async-") else DEFAULT
    yield f" from instruction: {print_instruction(value.instruction, options).strip().removeprefix('ROOT ')}"


_SUGARED = PrintOptions(exact=True)


def _place(node: HloInstruction, index: ShapeIndex) -> str:
    return f"{node.name} {index_text(index)}" if node.shape.is_tuple else node.name


# ---------------------------------------------------------------- live ranges
def live_range_text(assignment: BufferAssignment) -> str:
    """``*-live-range.txt``."""
    live, ranges = assignment.live, assignment.ranges
    lines = [f"HloLiveRange (max {live.end}):", "  InstructionSequence:"]
    lines += [f"    {tick}:{node.name}" for tick, node in enumerate(live.sequence)]
    lines.append("  BufferLiveRange:")
    values = [value for value in assignment.analysis.dataflow.values if value in ranges]
    for value in values:
        start, end = ranges[value]
        lines.append(f"    {value.instruction.name}{index_text(value.index)}:{start}-{end}")
    moment = peak_moment(assignment)
    lines.append(f"  Live ranges at {moment} (peak):")
    alive = [(buffer_bytes(value.shape), value) for value in values if ranges[value][0] <= moment <= ranges[value][1]]
    alive.sort(key=lambda one: (-one[0], one[1].instruction.name, one[1].index))
    total = 0
    for size, value in alive:
        total += size
        name = f"{value.instruction.name}{index_text(value.index)}"
        lines.append(f"    {name}: {size} bytes (cumulative: {total} bytes)")
    lines += breakdown_lines(assignment.analysis.module, alive)
    return "\n".join((*lines, ""))


def peak_moment(assignment: BufferAssignment) -> int:
    """The tick of the report's peak. It counts the whole instruction's shape for every part of its result."""
    change: dict[int, list[int]] = {}
    for value, (start, end) in assignment.ranges.items():
        size = buffer_bytes(value.instruction.shape)
        change.setdefault(start, [0, 0])[0] += size
        change.setdefault(end + 1, [0, 0])[1] += size
    used = peak = moment = 0
    for tick in sorted(change):
        # At one tick XLA counts what starts before what ends.
        used += change[tick][0]
        if used > peak:
            peak, moment = used, tick
        used -= change[tick][1]
    return moment


# ---------------------------------------------------------------- memory usage
def memory_usage_text(assignment: BufferAssignment) -> str:
    """``*-memory-usage-report.txt``."""
    by_color: dict[int, list[BufferAllocation]] = {}
    for one in assignment.allocations:
        by_color.setdefault(one.color, []).append(one)
    lines: list[str] = []
    for color in sorted(by_color):
        found = sorted(by_color[color], key=lambda one: (-one.size, one.index))
        total = sum(one.size for one in found)
        lines.append(f"Memory Space: {space_name(color)} (color={color})")
        lines.append(f"Total bytes: {total} ({human_bytes(total)})")
        done = 0
        for number, one in enumerate(found, 1):
            done += one.size
            lines += [*_usage_lines(one), ""]
            if number > SHOWN_ROWS and total - done < total * SMALL_SHARE:
                break
        lines.append("")
    return "\n".join((*lines, ""))


def _usage_lines(allocation: BufferAllocation) -> Iterator[str]:
    yield "  cumulative_size;       size;       offset; used_by_n_values; shapes_list"
    yield "  " + "-" * 60
    rows: dict[int, list[tuple[HloValue, Chunk]]] = {}
    for value in allocation.values():
        chunk = allocation.assigned[value]
        rows.setdefault(chunk.offset, []).append((value, chunk))
    sized = [(max(chunk.size for _, chunk in row), row) for row in rows.values()]
    sized.sort(key=lambda one: (-one[0], one[1][-1][0].id))
    total = sum(size for size, _ in sized)
    done = 0
    for number, (size, row) in enumerate(sized, 1):
        done += size
        share = 100.0 * done / total if total else float("nan")
        shapes = ", ".join(_shape_counts([value for value, _ in row]))
        yield (
            f"  {human_bytes(done):>9}({share:3.0f}%); {human_bytes(size):>10}; {row[0][1].offset:12d}; "
            f"{len(row):16d}; {shapes}"
        )
        if number > SHOWN_ROWS and total - done < total * SMALL_SHARE:
            rest = len(sized) - number
            yield f"  The rest {rest} values are less than {int(SMALL_SHARE * 100)}% of the total size and not shown."
            break


def _shape_counts(values: Sequence[HloValue]) -> Iterator[str]:
    counts: dict[str, int] = {}
    for value in values:
        text = value.shape.to_text(layout=False)
        counts[text] = counts.get(text, 0) + 1
    for count, text in sorted((count, text) for text, count in counts.items()):
        yield text if count == 1 else f"{count}×{text}"
