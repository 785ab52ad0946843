"""How far our buffer assignment, live ranges and copies agree with what a dump's own reports and stages say."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.analysis.agreement import Agreement, Section
from hloscope.core.analysis.memory_order import module_in_memory_order
from hloscope.core.buffers.assignment import assign_buffers, backend_of
from hloscope.core.buffers.copy_insertion import add_copies, add_special_case_copies, remove_unnecessary_copies
from hloscope.core.buffers.deep_copy import clean_up
from hloscope.core.buffers.late_copies import PostSchedulingCopyInsertion
from hloscope.core.buffers.report_text import (
    buffer_assignment_text,
    live_range_text,
    memory_usage_text,
    values_text,
)
from hloscope.core.dumps.buffer_reports import (
    ReportAllocation,
    ValueName,
    read_buffer_assignment,
    read_live_ranges,
    value_places,
)
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.dumps.proto_order import computation_names
from hloscope.core.errors import DumpError
from hloscope.core.passes.context import PassContext

if TYPE_CHECKING:
    from hloscope.core.analysis.real_compile import RealCompile
    from hloscope.core.buffers.allocation import BufferAllocation, BufferAssignment
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
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
    order = numbering_order(compile_, module)
    assignment = assign_buffers(module, backend_of(compile_.target), computation_order=order)
    figures |= compare_assignment(compile_.label, assignment, read_buffer_assignment(text, path=compile_.path))
    ranges = compile_.report(FileKind.LIVE_RANGE)
    if ranges is not None:
        figures["live_ranges"] = compare_ranges(compile_.label, assignment, ranges)
    figures |= compare_reports(compile_, assignment)
    figures |= compare_copies(compile_, notes)
    figures |= compare_late_copies(compile_)
    return Section(figures, tuple(notes))


def scheduled_module(compile_: RealCompile) -> HloModule | None:
    """The last stage, where it is scheduled; it is what buffer assignment ran on."""
    if not compile_.stages:
        return None
    module = compile_.module(compile_.stages[-1].index)
    return module if module.is_scheduled else None


def numbering_order(compile_: RealCompile, module: HloModule) -> list[HloComputation] | None:
    """The computations in the order by which the compiler numbered values, where a proto of the last stage tells it."""
    data = compile_.proto(compile_.stages[-1].index)
    places = {name: number for number, name in enumerate(computation_names(data))} if data is not None else {}
    if any(one.name not in places for one in module.computations):
        return None
    return sorted(module.computations, key=lambda one: places[one.name])


def compare_assignment(label: str, ours: BufferAssignment, real: list[ReportAllocation]) -> dict[str, Agreement]:
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
        subject = f"{label}: {name.instruction}{{{','.join(map(str, name.shape_index))}}}"
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


def compare_ranges(label: str, assignment: BufferAssignment, text: str) -> Agreement:
    """Live ranges against the report."""
    report = read_live_ranges(text)
    found = {ValueName(value.instruction.name, value.index): ends for value, ends in assignment.ranges.items()}
    result = Agreement()
    for name, real in report.ranges.items():
        subject = f"{label}: {name.instruction}{{{','.join(map(str, name.shape_index))}}}"
        result.add(subject, found.get(name), (real.start, real.end))
    return result


_WRITERS: Mapping[FileKind, tuple[str, Callable[[BufferAssignment], str]]] = MappingProxyType(
    {
        FileKind.BUFFER_ASSIGNMENT: ("report_assignment", buffer_assignment_text),
        FileKind.BUFFER_VALUES: ("report_values", values_text),
        FileKind.LIVE_RANGE: ("report_live_range", live_range_text),
        FileKind.MEMORY_USAGE: ("report_memory_usage", memory_usage_text),
    }
)
"""Report -> (figure, our writer)."""
_NUMBER = re.compile(r"<\d+ ")


def compare_reports(compile_: RealCompile, assignment: BufferAssignment) -> dict[str, Agreement]:
    """The four reports as we write them, line for line but for the order and the numbers of values.

    ``…_bytes`` counts those that are equal to the last byte: numbers depend on the module's history, which no text has.
    """
    found: dict[str, Agreement] = {}
    for kind, (figure, write) in _WRITERS.items():
        real = compile_.report(kind)
        if real is None:
            continue
        ours = write(assignment)
        mine, theirs = (sorted(_NUMBER.sub("<N ", text).split("\n")) for text in (ours, real))
        differing = next((pair for pair in zip(mine, theirs, strict=False) if pair[0] != pair[1]), ("", ""))
        found[figure] = Agreement()
        found[figure].add(compile_.label, *differing, equal=mine == theirs)
        found[f"{figure}_bytes"] = Agreement()
        found[f"{figure}_bytes"].add(compile_.label, "other order or numbers", "the report", equal=ours == real)
    return found


# ---------------------------------------------------------------- copies
STEPS = ("copies_added", "copies_removed", "copies_special", "copies")
"""Figures after the three steps of copy insertion and after its clean-up."""


def compare_copies(compile_: RealCompile, notes: list[str]) -> dict[str, Agreement]:
    """Our copy insertion, run on the stage before the real one: one count a step, and one of all copies at the end."""
    first = next(
        (number for number, stage in enumerate(compile_.stages) if "after_adding_copies" in stage.pass_name
         or stage.pass_name.startswith("adding_copies")),
        None,
    )  # fmt: skip
    if not first or first + 2 >= len(compile_.stages):
        notes.append("no stages within copy-insertion: --xla_dump_hlo_pass_re=.* dumps them")
        return {}
    module, _ = module_in_memory_order(compile_, compile_.stages[first - 1].index)
    info = backend_of(compile_.target).alias_info()
    figures: dict[str, Agreement] = {}
    steps: tuple[Callable[[], object], ...] = (
        lambda: add_copies(module, info),
        lambda: remove_unnecessary_copies(module, info),
        lambda: add_special_case_copies(module, info),
        lambda: clean_up(module),
    )
    for number, (figure, step) in enumerate(zip(STEPS, steps, strict=True)):
        step()
        if first + number >= len(compile_.stages):
            break
        stage = compile_.stages[first + number]
        if figure == "copies" and stage.pass_name != "copy-insertion":
            break
        ours, real = copy_signature(module), copy_signature(compile_.module(stage.index))
        figures[figure] = Agreement()
        extra, missing = ours - real, real - ours
        figures[figure].add(
            compile_.label,
            f"{sum(ours.values())} copies, {_first(extra)}" if extra else f"{sum(ours.values())} copies",
            f"{sum(real.values())} copies, {_first(missing)}" if missing else f"{sum(real.values())} copies",
            equal=ours == real,
        )
    return figures


def compare_late_copies(compile_: RealCompile) -> dict[str, Agreement]:
    """XLA:GPU's second removal, after scheduling, on the stages around it: copies, and where they stand."""
    around = [
        next((stage for stage in compile_.stages if stage.pipeline == name), None)
        for name in ("scheduled-gpu-module", "post-scheduler-xla-transforms")
    ]
    if around[0] is None or around[1] is None:
        return {}
    module, real = compile_.module(around[0].index), compile_.module(around[1].index)
    PostSchedulingCopyInsertion().run(module, PassContext(target="gpu"))
    found = Agreement()
    for computation in real.computations:
        twin = module.find_computation(computation.name)
        ours, theirs = ([] if one is None else [_plain(node) for node in one] for one in (twin, computation))
        if "copy" in ours or "copy" in theirs:
            found.add(f"{compile_.label}: {computation.name}", ours, theirs)
    return {"copies_after_scheduling": found} if found.total else {}


def _plain(node: HloInstruction) -> str:
    """A copy's name depends on how many there were before."""
    return "copy" if node.opcode == "copy" else node.name


def copy_signature(module: HloModule) -> Counter[str]:
    """Every copy by its computation, what it copies, who reads it, and what it waits for; names of copies, tuples and
    their elements do not count."""
    found: Counter[str] = Counter()
    for computation in module.computations:
        for node in computation:
            if node.opcode == "copy":
                users = sorted(
                    f"{'' if user.opcode in _UNNAMED else user.name}:{user.opcode}"
                    f"{[place for place, one in enumerate(user.operands) if one is node]}"
                    for user in node.users
                )
                waits = sorted(_origin(one) for one in node.control_predecessors)
                found[f"{computation.name}: {_origin(node)} -> {users} after {waits}"] += 1
    return found


_UNNAMED = frozenset(("copy", "tuple", "get-tuple-element"))


def _origin(node: HloInstruction, depth: int = 0) -> str:
    if node.opcode not in _UNNAMED or depth > 6:
        return node.name
    index = f"#{node.attr('index')}" if node.opcode == "get-tuple-element" else ""
    return f"{node.opcode}{index}({', '.join(_origin(one, depth + 1) for one in node.operands)})"


def _first(counter: Counter[str]) -> str:
    text = next(iter(sorted(counter)))
    return text if len(text) < 160 else text[:157] + "..."
