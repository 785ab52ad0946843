"""Questions about an assignment: could two values share memory, and what if something were otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.core.analysis.dataflow_values import buffer_bytes
from hloscope.core.buffers.assignment import Changes, assign_buffers, interferes, may_take_over
from hloscope.core.buffers.colors import layout_space
from hloscope.core.buffers.copy_insertion import copy_donated, remove_unnecessary_copies
from hloscope.core.buffers.deep_copy import clean_up
from hloscope.core.buffers.late_copies import PostSchedulingCopyInsertion, updated
from hloscope.core.buffers.memory_map import map_of_assignment
from hloscope.core.errors import UsageError
from hloscope.core.hlo.element_types import ELEMENT_TYPES
from hloscope.core.passes.context import PassContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.analysis.alias import HloBuffer
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.buffers.allocation import BufferAssignment
    from hloscope.core.buffers.assignment import Backend
    from hloscope.core.hlo.module import HloModule


@dataclass(frozen=True, slots=True)
class ShareAnswer:
    """Whether two values could have the same memory."""

    first: str
    second: str
    could: bool
    shares: bool
    """They do, in part at least."""
    code: str
    reason: str
    numbers: dict[str, int] = field(default_factory=dict[str, int])


def values_named(assignment: BufferAssignment, text: str) -> list[HloValue]:
    """The values that ``name`` or ``name{1,0}`` may hold; of a tuple's bare name its table. Raises UsageError."""
    name, brace, rest = text.removeprefix("%").partition("{")
    index = tuple(int(part) for part in rest.rstrip("}").split(",") if part.strip().isdigit()) if brace else ()
    module = assignment.analysis.module
    node = module.find_instruction(name)
    if node is None:
        raise UsageError(f"no instruction {name!r} in the scheduled module")
    found = assignment.analysis.dataflow.value_set(node, index)
    if not found:
        raise UsageError(f"{text} holds no value: it is inside a fusion, or has no such part")
    return list(found)


def can_share(assignment: BufferAssignment, first: str, second: str) -> ShareAnswer:
    """Whether the values at two positions could share memory, with the first rule that says no. Raises UsageError."""
    for a in values_named(assignment, first):
        for b in values_named(assignment, second):
            answer = _pair(assignment, first, second, a, b)
            if not answer.could:
                return answer
    return _pair(assignment, first, second, values_named(assignment, first)[0], values_named(assignment, second)[0])


def _pair(assignment: BufferAssignment, first: str, second: str, a: HloValue, b: HloValue) -> ShareAnswer:
    analysis, live = assignment.analysis, assignment.live
    places = assignment.slice_of(a), assignment.slice_of(b)
    shares = (
        places[0] is not None
        and places[1] is not None
        and places[0][0] is places[1][0]
        and places[0][1].overlaps(places[1][1])
    )

    def say(could: bool, code: str, reason: str, **numbers: int) -> ShareAnswer:
        return ShareAnswer(first, second, could, shares, code, reason, numbers)

    if a is b:
        return say(True, "same_value", f"both hold the value made by {a.short()}")
    if analysis.buffer_of(a) is analysis.buffer_of(b):
        return say(True, "must_alias", "they have to: loop state, in-place instructions and donations keep one buffer")
    for value in (a, b):
        if analysis.is_read_only(value):
            what = "a constant" if value.instruction.opcode == "constant" else "a parameter that is not donated"
            return say(False, "read_only", f"{value.short()} is {what}: nothing may be written over it")
        if value.shape.is_tuple:
            return say(False, "not_shared", f"{value.short()} is a table of pointers, which has memory of its own")
        if value not in live.ranges:
            return say(False, "not_shared", f"{value.short()} lives in a thread's own memory")
    spaces = layout_space(a), layout_space(b)
    if spaces[0] != spaces[1]:
        return say(False, "color", f"they lie in memory spaces {spaces[0]} and {spaces[1]}")
    ends = assignment.ranges[a], assignment.ranges[b]
    numbers = {
        "first_start": ends[0][0], "first_end": ends[0][1], "second_start": ends[1][0], "second_end": ends[1][1],
    }  # fmt: skip
    early, late = (a, b) if ends[0][0] <= ends[1][0] else (b, a)
    if interferes(live, a, b):
        if assignment.ranges[early][1] == assignment.ranges[late][0]:
            why = _no_take_over(assignment, early, late)
            return say(False, "live_ranges_touch", why, **numbers)
        holder = _last_reader(assignment, early)
        reason = (
            f"{early.short()} is alive from step {ends[0][0] if early is a else ends[1][0]} to "
            f"{assignment.ranges[early][1]}{f' ({holder} reads it last)' if holder else ''}, "
            f"{late.short()} is made at step {assignment.ranges[late][0]}"
        )
        return say(False, "live_ranges_overlap", reason, **numbers)
    for one, other in ((a, b), (b, a)):
        node = one.instruction
        if node.opcode == "copy" and any(holder.use_count(node) for holder, _ in other.positions):
            return say(False, "copy_of_it", f"{one.short()} is a copy of it", **numbers)
    for one, other in ((a, b), (b, a)):
        if analysis.buffer_of(one) in analysis.live_out and _bytes(analysis.buffer_of(other)) > _bytes(
            analysis.buffer_of(one)
        ):
            said = f"{one.short()} is given back, and its allocation has exactly its size"
            return say(False, "too_small", said, **numbers)
    said = "they share" if shares else "never alive at once; the packing put them apart"
    return say(True, "shares" if shares else "disjoint", said, **numbers)


def _bytes(buffer: HloBuffer) -> int:
    return max(buffer_bytes(value.shape) for value in buffer.values)


def _last_reader(assignment: BufferAssignment, value: HloValue) -> str | None:
    ticks = assignment.live.tick
    read = [(ticks[use.instruction], use.instruction.name) for use in value.uses if use.instruction in ticks]
    return max(read)[1] if read else None


def _no_take_over(assignment: BufferAssignment, early: HloValue, late: HloValue) -> str:
    node = late.instruction
    if node.opcode == "copy":
        return f"{late.short()} is a copy that reads it"
    holder, index = assignment.live.ranges[early].end_position
    if not holder.use_count(node):
        return f"{node.name} runs while {early.short()} is still read, and is not its reader"
    hint = assignment.analysis.sharing(holder, index, node, late.index)
    assert not hint.allowed or may_take_over(assignment.live, early, late)
    return f"{node.name} reads {early.short()} and may not write over it: {hint.code}"


# ---------------------------------------------------------------- what if
@dataclass(frozen=True, slots=True)
class WhatIf:
    """The memory after a change, beside that before."""

    change: str
    peak_before: int
    peak_after: int
    total_before: int
    total_after: int
    note: str = ""


CHANGES = "drop:NAME, donate:N, dtype:NAME=TYPE"
"""What can be asked, as the command line writes it."""


def what_if(module: HloModule, backend: Backend, before: BufferAssignment, change: str) -> WhatIf:
    """The peak if a value were not kept (``drop:NAME``), parameter N were donated (``donate:N``), or a value had
    another element type (``dtype:NAME=bf16``). Raises UsageError for anything else."""
    kind, _, rest = change.partition(":")
    note = ""
    if kind == "drop" and rest:
        dropped = _together(before, rest)
        changes = Changes(sizes={(one.instruction.name, one.index): 0 for one in dropped})
        note = _also(dropped, rest)
        after = assign_buffers(module, backend, changes=changes)
    elif kind == "dtype" and "=" in rest:
        name, _, type_name = rest.partition("=")
        found = ELEMENT_TYPES.get(type_name)
        if found is None or not found.bits:
            raise UsageError(f"{type_name!r} is no element type with a size")
        changed = _together(before, name)
        sizes = {(one.instruction.name, one.index): _resized(one, found.bits) for one in changed}
        note = _also(changed, name)
        after = assign_buffers(module, backend, changes=Changes(sizes=sizes))
    elif kind == "donate" and rest.isdigit():
        after, note = _donate(module, backend, before, int(rest))
    else:
        raise UsageError(f"a change is one of {CHANGES}; got {change!r}")
    old, new = map_of_assignment(before), map_of_assignment(after)
    return WhatIf(change, old.peak[1], new.peak[1], before.total_bytes, after.total_bytes, note)


def _together(assignment: BufferAssignment, name: str) -> Sequence[HloValue]:
    found = {
        value: None for one in values_named(assignment, name) for value in assignment.analysis.buffer_of(one).values
    }
    return list(found)


def _also(values: Sequence[HloValue], name: str) -> str:
    if len(values) < 2:
        return ""
    return f"{name} has to share memory with {len(values) - 1} more values, which change with it"


def _resized(value: HloValue, bits: int) -> int:
    shape = value.shape
    if not shape.is_array:
        return buffer_bytes(shape)
    return (shape.element_count * bits + 7) // 8


def _copied_for_donation(module: HloModule, backend: Backend) -> int:
    """Do what copy insertion does for the donations of a scheduled module; returns how many bytes more are copied."""

    def copied() -> int:
        copies = (one for one in module.instructions() if one.opcode == "copy" and not one.parent.is_fusion)
        return sum(buffer_bytes(one.shape) for one in copies)

    known = copied()
    order = {one: one.instructions for one in module.computations if not one.is_fusion}
    module.set_schedule(None)
    copy_donated(module)
    remove_unnecessary_copies(module, backend.alias_info())
    clean_up(module)
    module.set_schedule(updated(order))
    if backend.gpu:
        PostSchedulingCopyInsertion().run(module, PassContext(target="gpu"))
    return copied() - known


def _donate(module: HloModule, backend: Backend, before: BufferAssignment, number: int) -> tuple[BufferAssignment, str]:
    entry = module.entry
    if number >= len(entry.parameters):
        raise UsageError(f"there is no parameter {number}: the entry has {len(entry.parameters)}")
    parameter, root = entry.parameters[number], entry.root
    if not parameter.shape.is_array:
        raise UsageError(f"parameter {number} is no array: donate one of its parts")
    analysis = before.analysis
    if analysis.is_aliased_parameter(number, ()):
        raise UsageError(f"parameter {number} is donated already")
    taken = {one.output_index for one in analysis.aliases}
    for index, part in root.shape.leaves():
        values = analysis.dataflow.value_set(root, index)
        if index in taken or part != parameter.shape or len(values) != 1 or analysis.is_read_only(values[0]):
            continue
        changed = module.clone()
        inside = (changed.attrs.get("input_output_alias") or "{}").strip()[1:-1].strip()
        alias = f"{{{','.join(map(str, index))}}}: ({number}, {{}}, may-alias)"
        changed.attrs["input_output_alias"] = "{ " + ", ".join(filter(None, (inside, alias))) + " }"
        copies = _copied_for_donation(changed, backend)
        after = assign_buffers(changed, backend)
        note = f"taken by output {{{','.join(map(str, index))}}}"
        if copies > 0:
            value = analysis.dataflow.value_set(parameter)[0]
            last, made = before.live.last_use(value), before.ranges[values[0]][0]
            note += f"; the compiler would copy {copies:,} bytes more, since "
            if last > made:
                note += f"the parameter is read until step {last} and the output is made at step {made}"
            else:
                note += "no dependency makes all readers of the parameter run before the output is made"
        return after, note
    raise UsageError(f"no output can take parameter {number}: none that is free has shape {parameter.shape}")
