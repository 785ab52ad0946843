"""How far our buffer assignment, live ranges and copies agree with what a dump's own reports and stages say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.analysis.agreement import Agreement, Section
from hloscope.core.buffers.assignment import assign_buffers, backend_of
from hloscope.core.dumps.buffer_reports import (
    ReportAllocation,
    ValueName,
    read_buffer_assignment,
    read_live_ranges,
    value_places,
)
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import DumpError

if TYPE_CHECKING:
    from hloscope.core.analysis.real_compile import RealCompile
    from hloscope.core.buffers.allocation import BufferAllocation, BufferAssignment
    from hloscope.core.hlo.module import HloModule


def audit(compile_: RealCompile) -> Section:
    """Compare one module. Raises DumpError where the dump has nothing to compare with."""
    figures: dict[str, Agreement] = {}
    notes: list[str] = []
    if compile_.target == "tpu":
        raise DumpError(f"{compile_.label}: the TPU compiler's assignment is not reproduced", path=compile_.path)
    module = scheduled_module(compile_)
    text = compile_.report(FileKind.BUFFER_ASSIGNMENT)
    if module is None or text is None:
        raise DumpError(f"{compile_.label}: no scheduled module with a buffer report", path=compile_.path)
    assignment = assign_buffers(module, backend_of(compile_.target))
    figures |= compare_assignment(compile_.label, assignment, read_buffer_assignment(text, path=compile_.path))
    ranges = compile_.report(FileKind.LIVE_RANGE)
    if ranges is not None:
        figures["live_ranges"] = compare_ranges(assignment, ranges)
    return Section(figures, tuple(notes))


def scheduled_module(compile_: RealCompile) -> HloModule | None:
    """The last stage, where it is scheduled; it is what buffer assignment ran on."""
    if not compile_.stages:
        return None
    module = compile_.module(compile_.stages[-1].index)
    return module if module.is_scheduled else None


def compare_assignment(
    label: str, ours: BufferAssignment, real: list[ReportAllocation]
) -> dict[str, Agreement]:
    """The figures of one module against its report."""
    modules, allocations, sizes = Agreement(), Agreement(), Agreement()
    offsets, nonzero, numbers = Agreement(), Agreement(), Agreement()
    mine = [header(one, ours) for one in ours.allocations]
    theirs = [one.flags for one in real]
    equal = sorted(map(str, mine)) == sorted(map(str, theirs))
    modules.add(
        label,
        f"{len(mine)} allocations, {ours.total_bytes} bytes",
        f"{len(theirs)} allocations, {sum(one.size for one in real)} bytes",
        equal=equal,
    )
    for number, one in enumerate(theirs):
        own = mine[number] if number < len(mine) else None
        allocations.add(f"{label}: allocation {number}", own, one)
    placed = {
        ValueName(value.instruction.name, value.index): (allocation, chunk)
        for value, allocation, chunk in ours.placed()
    }
    for name, (allocation, value) in value_places(real).items():
        found = placed.get(name)
        subject = f"{label}: {name.instruction}{{{','.join(map(str, name.index))}}}"
        if found is None:
            offsets.add(subject, "not placed", value.offset)
            continue
        own, chunk = found
        told = (header(own, ours), chunk.offset, chunk.size)
        wanted = (allocation.flags, value.offset, value.size)
        offsets.add(subject, told, wanted)
        sizes.add(subject, chunk.size, value.size)
        numbers.add(subject, own.index, allocation.index)
        if value.offset:
            nonzero.add(subject, told, wanted)
    return {
        "modules": modules,
        "allocations": allocations,
        "offsets": offsets,
        "offsets_nonzero": nonzero,
        "value_sizes": sizes,
        "allocation_numbers": numbers,
    }


def header(one: BufferAllocation, assignment: BufferAssignment) -> tuple[object, ...]:
    """An allocation as the report's header line describes it; see `ReportAllocation.flags`."""
    root = assignment.analysis.module.entry.root
    holds_root = any(value in one.assigned for value in assignment.analysis.dataflow.value_set(root))
    output = root.shape.to_text(layout=False) if holds_root and one.live_out else None
    return (
        one.size, one.color, None, one.parameter, one.parameter_index, output, one.constant, one.thread_local,
        one.live_out, one.is_temp,
    )  # fmt: skip


def compare_ranges(assignment: BufferAssignment, text: str) -> Agreement:
    """Live ranges against the report."""
    report = read_live_ranges(text)
    found = {
        ValueName(value.instruction.name, value.index): ends for value, ends in assignment.ranges.items()
    }
    result = Agreement()
    for name, real in report.ranges.items():
        result.add(f"{name.instruction}{name.index}", found.get(name), (real.start, real.end))
    return result
