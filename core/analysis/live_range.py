"""Live ranges: from when to when, in ticks of the flattened schedule, each value must stay in memory.

The schedule of the entry is walked and called computations are laid in before the instruction that runs them: a loop's
condition, then its body, once. Ranges are closed: a value that is read at tick 7 and one that is made at tick 7 meet.
Source: ``openxla/xla:xla/hlo/utils/hlo_live_range.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.dataflow import ASYNC, branches
from hloscope.core.analysis.dataflow_values import buffer_bytes
from hloscope.core.text.async_sugar import async_start_of, wrapped_computation

if TYPE_CHECKING:
    from hloscope.core.analysis.alias import AliasAnalysis
    from hloscope.core.analysis.dataflow_values import HloPosition, HloValue
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction

Schedule = Mapping["HloComputation", Sequence["HloInstruction"]]
"""Order of instructions by computation."""


@dataclass(slots=True)
class LiveRange:
    """First and last tick at which a value must be kept, both counted in."""

    start: int
    end: int
    end_position: HloPosition
    """The position that keeps it longest, not counting reads."""

    def overlaps(self, other: LiveRange) -> bool:
        """Whether both are alive at some tick."""
        return self.start <= other.end and other.start <= self.end


def module_schedule(analysis: AliasAnalysis) -> Schedule:
    """The order in which a scheduled module lists the instructions of what is no fusion."""
    return {one: one.instructions for one in analysis.module.computations if not analysis.dataflow.is_fused(one)}


class HloLiveRange:
    """Ticks and live ranges of one schedule."""

    def __init__(self, analysis: AliasAnalysis, schedule: Schedule | None = None) -> None:
        self.analysis = analysis
        self.schedule = module_schedule(analysis) if schedule is None else schedule
        self.sequence: list[HloInstruction] = []
        """The flattened schedule."""
        self.tick: dict[HloInstruction, int] = {}
        self.spans: dict[HloComputation, tuple[int, int]] = {}
        """First tick of a computation, and one past its last."""
        self._async: dict[HloComputation, HloComputation] = {}
        self._flatten(analysis.module.entry, None)
        self.end = len(self.sequence)
        """One past the last tick."""
        self.ranges: dict[HloValue, LiveRange] = {}
        """By value, for those of flattened computations."""
        for value in analysis.dataflow.values:
            if value.instruction in self.tick:
                self.ranges[value] = self._range(value)
        self._settle_buffers()

    # ---------------------------------------------------------------- ticks
    def _flatten(self, computation: HloComputation, context: HloComputation | None) -> None:
        if computation in self.spans or computation not in self.schedule:
            return
        if context is not None:
            self._async[computation] = context
        start = len(self.sequence)
        for node in self.schedule[computation]:
            if node.opcode == "call":
                self._flatten(node.callee("to_apply"), context)
            elif node.opcode == "conditional":
                for one in branches(node):
                    self._flatten(one, context)
            elif node.opcode == "while":
                self._flatten(node.callee("condition"), context)
                self._flatten(node.callee("body"), context)
            elif node.opcode in ASYNC:
                wrapped = wrapped_computation(node)
                if wrapped is not None and self._is_bound(node, wrapped):
                    self._flatten(wrapped, wrapped)
            self.tick[node] = len(self.sequence)
            self.sequence.append(node)
        self.spans[computation] = (start, len(self.sequence))

    def _is_bound(self, node: HloInstruction, wrapped: HloComputation) -> bool:
        """Whether all operands of the asynchronous computation are given by now; that is the start in practice."""
        count, link = 0, node
        while link.opcode in ("async-update", "async-done"):
            count += link.operand_count - 1
            link = link.operand(0)
        return count + link.operand_count >= len(wrapped.parameters)

    # ---------------------------------------------------------------- ranges
    def _range(self, value: HloValue) -> LiveRange:
        node = value.instruction
        start, stop = self.spans[node.parent]
        begin = start if node.opcode == "parameter" else self.tick[node]
        end = stop if node.is_root else self.tick[node]
        context = self._async.get(node.parent)
        if context is not None:
            end = max(end, self._async_end(context, stop))
        last = value.positions[0]
        for position in value.positions[1:]:
            holder = position.instruction
            span = self.spans.get(holder.parent)
            at = self.tick.get(holder) if not holder.is_root else span[1] if span is not None else None
            if at is not None and at > end:
                end, last = at, position
        if self.analysis.is_entry_parameter(value) and self.analysis.is_read_only(value):
            end = self.end
        else:
            end = max(end, self.last_use(value))
        return LiveRange(begin, end, last)

    def _async_end(self, context: HloComputation, stop: int) -> int:
        end = -1
        for caller in self.analysis.dataflow.callers(context):
            if caller.opcode in ASYNC:
                done = _done_of(caller)
                end = max(end, stop if done is None or done not in self.tick else self.tick[done])
        return end

    def last_use(self, value: HloValue) -> int:
        """Tick of the last read, -1 where none is scheduled. A loop reads its initial value when its body starts."""
        end = -1
        for use in value.uses:
            reader = use.instruction
            if reader.opcode == "call":
                continue
            if reader.opcode == "while":
                reader = reader.callee("body").parameters[0]
            end = max(end, self.tick.get(reader, -1))
        return end

    def _settle_buffers(self) -> None:
        """Values of one buffer take turns: each ends where the next begins, and the last keeps the longest end."""
        for buffer in self.analysis.buffers:
            if len(buffer.values) < 2:
                continue
            found = [(value, self.ranges[value]) for value in buffer.values if value in self.ranges]
            found.sort(key=lambda one: (one[1].start, one[1].end, one[0].id))
            for (_, first), (_, second) in zip(found, found[1:], strict=False):
                second.end = max(first.end, second.end)
                first.end = min(first.end, second.start)

    # ---------------------------------------------------------------- peak
    def peak_moment(self) -> int:
        """The tick at which most bytes are alive by the report's count: parts have the whole instruction's size."""
        change: dict[int, list[int]] = {}
        for value, found in self.ranges.items():
            size = buffer_bytes(value.instruction.shape)
            change.setdefault(found.start, [0, 0])[0] += size
            change.setdefault(found.end + 1, [0, 0])[1] += size
        used = peak = moment = 0
        for tick in sorted(change):
            used += change[tick][0]
            if used > peak:
                peak, moment = used, tick
            used -= change[tick][1]
        return moment

    def live_at(self, tick: int) -> list[HloValue]:
        """The values alive at a tick, by number."""
        return [value for value, found in self.ranges.items() if found.start <= tick <= found.end]


def _done_of(node: HloInstruction) -> HloInstruction | None:
    start = async_start_of(node)
    link = node if start is None else start
    while link.opcode != "async-done":
        following = next((user for user in link.users if user.opcode in ASYNC[1:]), None)
        if following is None:
            return None
        link = following
    return link
