"""Buffer assignment as XLA:CPU and XLA:GPU do it: every value of a scheduled module gets an allocation and an offset.

Constants, entry parameters, thread-local values and tuple tables get allocations of their own. What the program gives
back gets one each, and smaller values may join those. Everything else goes through the heap simulator into one block.
Source: ``openxla/xla:xla/service/buffer_assignment.cc#BufferAssigner``.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.core.analysis.alias import AliasAnalysis
from hloscope.core.analysis.alias_info import AliasInfo, GpuAliasInfo
from hloscope.core.analysis.dataflow_values import buffer_bytes
from hloscope.core.analysis.heap_placement import Chunk, MayPlace, place_best
from hloscope.core.analysis.heap_simulator import simulate
from hloscope.core.analysis.live_range import HloLiveRange
from hloscope.core.buffers.allocation import BufferAllocation, BufferAssignment, Refusal
from hloscope.core.buffers.colors import color_buffers, may_use

if TYPE_CHECKING:
    from hloscope.core.analysis.alias import HloBuffer
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule


MayShare = Callable[["Refusal | None", BufferAllocation, "HloBuffer"], bool]
"""Asked whether a buffer may join an allocation, with the rule that refuses it already, if any."""


@dataclass(frozen=True, slots=True)
class Backend:
    """The constants and hooks of a back end."""

    name: str
    alignment: int
    """Every offset is a multiple of this many bytes; sizes are not rounded."""
    gpu: bool

    def alias_info(self) -> AliasInfo:
        """A fresh set of alias rules."""
        return GpuAliasInfo() if self.gpu else AliasInfo()


CPU = Backend("cpu", 64, gpu=False)
GPU = Backend("gpu", 256, gpu=True)


@dataclass(frozen=True, slots=True)
class Changes:
    """What to suppose otherwise than the module says."""

    sizes: Mapping[tuple[str, tuple[int, ...]], int] = field(default_factory=dict[tuple[str, tuple[int, ...]], int])
    """Bytes by (instruction, index)."""

    def size_of(self, value: HloValue) -> int:
        """Bytes of a value."""
        found = self.sizes.get((value.instruction.name, value.index)) if self.sizes else None
        return buffer_bytes(value.shape) if found is None else found


def backend_of(target: str | None) -> Backend:
    """The back end of a target name; every GPU has the same rules here, anything else the CPU's."""
    return GPU if target not in (None, "cpu", "core", "tpu") else CPU


def assign_buffers(
    module: HloModule,
    backend: Backend = CPU,
    *,
    keep_refusals: bool = False,
    computation_order: Sequence[HloComputation] | None = None,
    changes: Changes | None = None,
    may_share: MayShare | None = None,
    may_place: MayPlace | None = None,
) -> BufferAssignment:
    """Assign the buffers of a scheduled module.

    `computation_order` numbers the values as the compiler did, where that is known. `may_share` is asked before a
    buffer joins an allocation that exists, `may_place` before one gets a place in the heap; both may refuse. Raises
    VerifyError and UnsupportedError for modules that XLA's assignment would not take.
    """
    analysis = AliasAnalysis(module, backend.alias_info(), computation_order)
    return _Assigner(
        analysis, HloLiveRange(analysis), backend, keep_refusals, changes or Changes(), may_share, may_place
    ).run()


class _Assigner:
    """The state of one assignment."""

    def __init__(
        self,
        analysis: AliasAnalysis,
        live: HloLiveRange,
        backend: Backend,
        keep_refusals: bool,
        changes: Changes,
        may_share: MayShare | None,
        may_place: MayPlace | None,
    ) -> None:
        self._analysis = analysis
        self._live = live
        self._backend = backend
        self._keep = keep_refusals
        self._may_share = may_share
        self._may_place = may_place
        ranges = {value: (one.start, one.end) for value, one in live.ranges.items()}
        self._result = BufferAssignment(analysis, live, ranges, backend.alignment)
        self._allocations = self._result.allocations
        self._holder: dict[HloBuffer, BufferAllocation] = {}
        self._size_of = changes.size_of
        self._size = {one: max(map(changes.size_of, one.values)) for one in analysis.buffers}
        self._color = color_buffers(analysis, gpu=backend.gpu)
        self._pool: list[BufferAllocation] = []
        self._occupied: dict[int, list[tuple[int, int, int, HloValue]]] = {}
        """By allocation: (start, end, number, value) of what is in it, by start."""
        self._delayed: list[HloBuffer] = []
        self._global, self._local = computations_by_kind(analysis.module)

    def run(self) -> BufferAssignment:
        for buffer in self._sorted(self._global):
            self._assign(buffer, thread_local=False)
        self._assign_heaps()
        for buffer in self._sorted(self._local):
            self._assign(buffer, thread_local=True)
        for buffer in self._analysis.live_out:
            self._holder[buffer].live_out = True
        self._combine_temps()
        return self._result

    # ---------------------------------------------------------------- order
    def _sorted(self, computations: set[HloComputation]) -> list[HloBuffer]:
        """Largest first, then what lives out, then by position, callers before callees."""
        position: dict[HloInstruction, int] = {}
        for computation in reversed(self._analysis.module.post_order()):
            if computation in computations:
                for node in computation.post_order():
                    position[node] = len(position)
        found = [one for one in self._analysis.buffers if one.values[0].instruction.parent in computations]
        live_out = self._analysis.live_out

        def key(buffer: HloBuffer) -> tuple[int, bool, int, int]:
            places = [position[value.instruction] for value in buffer.values if value.instruction in position]
            return -self._size[buffer], buffer not in live_out, min(places), buffer.id

        return sorted(found, key=key)

    # ---------------------------------------------------------------- one buffer
    def _assign(self, buffer: HloBuffer, *, thread_local: bool) -> None:
        if buffer in self._holder:
            return
        special = self._special(buffer, thread_local=thread_local)
        if special is not None:
            self._put(buffer, special)
            return
        for allocation in (*self._operand_allocations(buffer), *reversed(self._pool)):
            if self._join(buffer, allocation):
                return
        if buffer not in self._analysis.live_out:
            self._delayed.append(buffer)
            return
        self._pool.append(self._put(buffer, self._new(buffer)))

    def _special(self, buffer: HloBuffer, *, thread_local: bool) -> BufferAllocation | None:
        """The allocation of a buffer that never shares; a donated parameter joins the pool."""
        for value in buffer.values:
            if value.instruction.opcode == "constant":
                made = self._new(buffer)
                made.constant = True
                return made
            if self._analysis.is_entry_parameter(value):
                made = self._new(buffer)
                made.parameter, made.parameter_index = value.instruction.parameter_number, value.index
                made.aliased = self._analysis.is_aliased_parameter(made.parameter, value.index)
                if made.aliased:
                    self._pool.append(made)
                return made
        if thread_local:
            made = self._new(buffer)
            made.thread_local = True
            return made
        if any(value.shape.is_tuple for value in buffer.values):
            made = self._new(buffer)
            made.tuple_ = True
            return made
        return None

    def _new(self, buffer: HloBuffer) -> BufferAllocation:
        made = BufferAllocation(len(self._allocations), self._size[buffer], self._color[buffer])
        self._allocations.append(made)
        return made

    def _put(self, buffer: HloBuffer, allocation: BufferAllocation) -> BufferAllocation:
        rows = self._occupied.setdefault(allocation.index, [])
        for value in buffer.values:
            allocation.assigned[value] = Chunk(0, self._size[buffer])
            found = self._live.ranges.get(value)
            if found is not None:
                insort(rows, (found.start, found.end, value.id, value))
        self._holder[buffer] = allocation
        return allocation

    def _operand_allocations(self, buffer: HloBuffer) -> Iterable[BufferAllocation]:
        for value in buffer.values:
            if value.index or value.shape.is_tuple:
                continue
            for operand in value.instruction.operands:
                found = {
                    holder.index: holder
                    for held in self._analysis.dataflow.value_set(operand)
                    if (holder := self._holder.get(self._analysis.buffer_of(held))) is not None
                }
                yield from found.values()

    def _join(self, buffer: HloBuffer, allocation: BufferAllocation) -> bool:
        refusal = self._refusal(buffer, allocation)
        allowed = refusal is None
        if self._may_share is not None:
            allowed = self._may_share(refusal, allocation, buffer) and allowed
        if refusal is not None and self._keep:
            self._result.refusals.append(refusal)
        if allowed:
            self._put(buffer, allocation)
        return allowed

    def _refusal(self, buffer: HloBuffer, allocation: BufferAllocation) -> Refusal | None:
        """The first rule that keeps a buffer out of an allocation. Source: ``MaybeAssignBuffer``."""
        want, color = self._size[buffer], self._color[buffer]

        def no(code: str, value: HloValue | None = None, other: HloValue | None = None) -> Refusal:
            return Refusal(buffer, value or buffer.values[0], allocation.index, code, other, allocation.size, want)

        if color != allocation.color and (allocation.parameter is not None or allocation.live_out):
            return no("color")
        if not may_use(color, allocation.color, gpu=self._backend.gpu):
            return no("color")
        if want > allocation.size:
            return no("too_small")
        if allocation.read_only:
            return no("read_only")
        if allocation.thread_local or allocation.tuple_:
            return no("not_shared")
        for value in buffer.values:
            for other in self._neighbours(allocation, value):
                if interferes(self._live, other, value):
                    return no("live_ranges_overlap", value, other)
            copied = self._copied_from(allocation, value)
            if copied is not None:
                return no("copy_of_it", value, copied)
        if buffer in self._analysis.live_out and want != allocation.size:
            return no("output_of_other_size")
        return None

    def _neighbours(self, allocation: BufferAllocation, value: HloValue) -> Iterable[HloValue]:
        """The values of a shared allocation that are alive at some step with `value`: its ranges are disjoint, but for
        the steps at which one hands over to the next, so that they stand in order."""
        found = self._live.ranges.get(value)
        if found is None:
            return ()
        rows = self._occupied.get(allocation.index, ())
        last = bisect_right(rows, found.end, key=lambda row: row[0])
        near: list[HloValue] = []
        for start, end, _, other in reversed(rows[:last]):
            if end < found.start and start < found.start:
                break
            near.append(other)
        return near

    def _copied_from(self, allocation: BufferAllocation, value: HloValue) -> HloValue | None:
        """The value there that `value` is a copy of."""
        node = value.instruction
        if node.opcode != "copy":
            return None
        sets = self._analysis.dataflow.sets(node.operand(0)).values()
        return next((one for values in sets for one in values if one in allocation.assigned), None)

    # ---------------------------------------------------------------- the heap
    def _assign_heaps(self) -> None:
        by_color: dict[int, list[HloBuffer]] = {}
        for buffer in self._delayed:
            by_color.setdefault(self._color[buffer], []).append(buffer)
        for color in sorted(by_color):
            values = [value for buffer in by_color[color] for value in buffer.values]
            trace = simulate(self._live, values, size_of=self._size_of)
            placement = place_best(trace.intervals, self._backend.alignment, self._may_place)
            self._result.traces[color], self._result.placements[color] = trace, placement
            made = BufferAllocation(len(self._allocations), placement.heap_size, color)
            self._allocations.append(made)
            chunks = {**placement.chunks, **dict.fromkeys(trace.empty, Chunk(0, 0))}
            for buffer in by_color[color]:
                self._holder[buffer] = made
                for value in buffer.values:
                    if value in chunks:
                        made.assigned[value] = chunks[value]

    # ---------------------------------------------------------------- end
    def _combine_temps(self) -> None:
        """All temporary allocations of one memory space become one block. Source: ``CombineTempAllocations``."""
        order = list(self._allocations)
        first = partition(order, lambda one: not one.is_temp)
        kept, bases = order[:first], dict[int, BufferAllocation]()
        for temp in order[first:]:
            base = bases.get(temp.color)
            if base is None:
                bases[temp.color] = temp
                kept.append(temp)
                continue
            offset = -(-base.size // self._backend.alignment) * self._backend.alignment
            for value, chunk in temp.assigned.items():
                base.assigned[value] = Chunk(chunk.offset + offset, chunk.size)
            base.size = offset + temp.size
        self._result.renumbered = {one.index: number for number, one in enumerate(kept)}
        for number, one in enumerate(kept):
            one.index = number
        self._allocations[:] = kept


def partition(items: list[BufferAllocation], belongs: Callable[[BufferAllocation], bool]) -> int:
    """Move what belongs to the front as ``std::partition`` does for random access; returns how many do."""
    left, right = 0, len(items)
    while True:
        while left < right and belongs(items[left]):
            left += 1
        while left < right and not belongs(items[right - 1]):
            right -= 1
        if left >= right:
            return left
        items[left], items[right - 1] = items[right - 1], items[left]
        left += 1
        right -= 1


def computations_by_kind(module: HloModule) -> tuple[set[HloComputation], set[HloComputation]]:
    """The computations whose values live in global memory, and those whose values live in a thread's own.

    Bodies of fusions are in neither. Source: ``GatherComputationsByAllocationType``.
    """
    in_global: set[HloComputation] = set()
    in_local: set[HloComputation] = set()
    work = [(module.entry, False)]
    while work:
        computation, local = work.pop()
        known = in_local if local else in_global
        if computation in known:
            continue
        known.add(computation)
        for node in computation:
            inner = local or node.info.calls != "control-flow"
            work.extend((one, inner) for one in node.called_computations)
    fused = {one for one in in_local if one.is_fusion}
    return in_global - in_local, in_local - fused


def interferes(live: HloLiveRange, a: HloValue, b: HloValue) -> bool:
    """Whether two values may not have the same memory. Source: ``LiveRangeInterferes``."""
    first, second = live.ranges.get(a), live.ranges.get(b)
    if first is None or second is None or not first.overlaps(second):
        return False
    if first.end == second.start and may_take_over(live, a, b):
        return False
    return not (first.end != second.start and second.end == first.start and may_take_over(live, b, a))


def may_take_over(live: HloLiveRange, operand: HloValue, user: HloValue) -> bool:
    """Whether the instruction that makes `user` may write it over `operand`, which it reads.

    XLA (jaxlib 0.10.2) looks at the last position of the operand's value alone: where a bitcast of it comes later, an
    instruction that reads the value itself is refused. Builds from August 2026 on try every position.
    """
    node = user.instruction
    if node.opcode == "copy":
        return False
    holder, index = live.ranges[operand].end_position
    return bool(holder.use_count(node)) and live.analysis.sharing(holder, index, node, user.index).allowed
