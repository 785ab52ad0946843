"""The constraints of a module while layouts are found, and the four ways in which one is set.

Everything that asks for a layout goes through here: the request is judged, recorded with its reason, and queued where
it changed something. An optional request (one that only saves a copy) asks the gate first. Source:
``openxla/xla:xla/service/layout_assignment.cc#SetBufferLayout, #SetOperandLayout, #SetInstructionLayout,
#PushAddedConstraints``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.errors import InternalError
from hloscope.core.hlo.layout import Layout
from hloscope.core.layout.constraints import (
    BEGINNING_PRIORITY,
    DEFAULT_PRIORITY,
    FIRST,
    BufferConstraint,
    ComputationConstraint,
    Lost,
    OperandConstraint,
    Request,
    Step,
    Verdict,
)
from hloscope.core.layout.orders import at_most_rank_1, show, show_shape, subshapes, with_order
from hloscope.core.layout.points_to import PointsTo
from hloscope.core.ledger.events import LayoutConstraint

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape, ShapeIndex
    from hloscope.core.layout.backend import Backend
    from hloscope.core.layout.constraints import Constraint, Place
    from hloscope.core.layout.points_to import Buffer
    from hloscope.core.passes.context import PassContext


@dataclass(slots=True)
class EntryLayout:
    """Layouts of the entry's parameters and result; a leaf without one is to be chosen."""

    parameters: list[Shape]
    result: Shape

    def copy(self) -> EntryLayout:
        """An independent copy."""
        return EntryLayout(list(self.parameters), self.result)


class LayoutState:
    """All that layout assignment knows at one moment."""

    def __init__(
        self,
        module: HloModule,
        backend: Backend,
        ctx: PassContext,
        entry_layout: EntryLayout,
        computations: list[HloComputation],
        *,
        remember: bool,
    ) -> None:
        self.module = module
        self.backend = backend
        self.ctx = ctx
        self.computations = computations
        """Those that are worked on, callees before callers."""
        self.points_to = PointsTo(computations)
        self.given = entry_layout.copy()
        """The entry layout as the user gave it."""
        self.entry_layout = entry_layout
        self.interfaces: dict[HloComputation, ComputationConstraint] = {}
        self.mismatches: dict[HloComputation, Shape] = {}
        """Branches whose result layout differs from the best one, with that one."""
        self.channels: dict[int, Layout] = {}
        """Channel of an all-reduce -> the layout that it found first; stays over the rounds."""
        self.priority = BEGINNING_PRIORITY
        """Grows by one each round; optional requests of a round do not displace those of the same one."""
        self.remember = remember
        """Whether requests that lost are kept."""
        self._record = ctx.ledger.enabled
        self.buffers: dict[Buffer, BufferConstraint] = {}
        self.operands: dict[tuple[HloInstruction, int], OperandConstraint] = {}
        self.unconstrained: set[int] = set()
        self._added: list[Constraint] = []
        self._forwards: dict[tuple[HloInstruction, int], bool] = {}
        self._texts: dict[tuple[int, ...], str] = {}
        self._places: dict[int, tuple[Step, str]] = {}

    # ---------------------------------------------------------------- reading
    def interface(self, computation: HloComputation) -> ComputationConstraint:
        """The border of a computation; made with no layouts (its own, for the entry) when first asked for."""
        found = self.interfaces.get(computation)
        if found is None:
            entry = computation.is_entry

            def start(shape: Shape) -> Shape:
                return shape if entry else shape.without_layout()

            found = self.interfaces[computation] = ComputationConstraint(
                computation,
                [start(one.shape) for one in computation.parameters],
                start(computation.root.shape),
                given=False,
                priority=DEFAULT_PRIORITY,
            )
        return found

    def result_layout(self, computation: HloComputation) -> Shape | None:
        """The result's shape with layouts where the computation may see them, else None."""
        interface = self.interface(computation)
        return interface.result if computation.is_entry or interface.result_set else None

    def forwards(self, instruction: HloInstruction, number: int) -> bool:
        """Whether some buffer of an operand is passed on."""
        key = (instruction, number)
        found = self._forwards.get(key)
        if found is None:
            found = self._forwards[key] = self.points_to.forwards(instruction, number)
        return found

    def may_change(self, instruction: HloInstruction) -> bool:
        """The opcode table's answer with the backend's exceptions."""
        return self.backend.may_change_layout(instruction)

    def array_layout(self, instruction: HloInstruction, index: ShapeIndex) -> Layout | None:
        """The layout that a node gets from the buffers it may live in, None where they are not settled.

        Raises InternalError where they differ. Source: ``#InferArrayLayout``.
        """
        first: Layout | None = None
        for buffer in self.points_to.at(instruction, index):
            constraint = self.buffers.get(buffer)
            if constraint is None:
                return None
            if first is None:
                first = constraint.layout
            elif first.minor_to_major != constraint.layout.minor_to_major:
                raise InternalError(f"%{instruction.name} may live in buffers of different layouts at {index}")
        return first

    # ---------------------------------------------------------------- rounds
    def begin_round(self) -> None:
        """Forget what the last round found inside computations; their borders stay."""
        self.buffers.clear()
        self.operands.clear()
        self.unconstrained.clear()
        self._added.clear()

    def request(
        self,
        rule: str,
        source: Step | None = None,
        *,
        mandatory: bool = True,
        depth_first: bool = True,
        priority: int | None = None,
    ) -> Request:
        """A request at the current priority unless another is given."""
        return Request(mandatory, depth_first, self.priority if priority is None else priority, rule, source)

    # ---------------------------------------------------------------- setting
    def set_buffer(self, buffer: Buffer, layout: Layout, request: Request, *, gated: bool = True) -> None:
        """Ask for a layout of a definition. Raises InternalError for a buffer that is no array."""
        if not buffer.shape.is_array:
            raise InternalError(f"{buffer!r} is no array")
        if len(layout.minor_to_major) != buffer.shape.rank:
            raise InternalError(f"layout {layout} does not fit {buffer!r} of shape {buffer.shape}")
        known = self.buffers.get(buffer)
        verdict = FIRST if known is None else known.judge(layout, request)
        step: Step | None = None
        fuel: int | None = None
        if verdict.accepted and verdict.outcome != "raised":
            if gated and not request.mandatory:
                allowed, fuel = self._gate(request, buffer.instruction)
                if not allowed:
                    return
        self.unconstrained.discard(buffer.id)
        if verdict.outcome != "kept" and (verdict.accepted or self.remember):
            step = self._step("buffer", buffer.instruction, None, buffer.index, buffer.shape, layout, request)
        if self._record and verdict.outcome != "kept":
            self._emit("buffer", buffer.instruction, buffer.index, layout, request, verdict, fuel)
        if known is None:
            assert step is not None
            known = self.buffers[buffer] = BufferConstraint(buffer, layout, request, step)
        elif not verdict.accepted:
            if self.remember and step is not None:
                known.lost.append(Lost(step, verdict))
            return
        else:
            assert step is not None
            if self.remember and verdict.outcome == "changed":
                known.lost.append(Lost(known.step, verdict))
            known.apply(verdict, layout, request, step)
            if at_most_rank_1(buffer.shape):
                return
        self._push(known)
        instruction = buffer.instruction
        if instruction.opcode in ("fusion", "call", "custom-call", "async-start"):
            for alias in instruction.attr("output_to_operand_aliasing") or ():
                late = alias.operand >= instruction.operand_count  # bound by a later async-update
                if alias.output_index == buffer.index and not alias.operand_index and not late:
                    shape = with_order(instruction.operand(alias.operand).shape, layout)
                    onward = Request(
                        request.mandatory, request.depth_first, request.priority, "aliased-operand", known.step
                    )
                    self.set_operand(instruction, alias.operand, shape, onward)

    def set_operand(self, instruction: HloInstruction, number: int, shape: Shape, request: Request) -> None:
        """Ask for the layouts of an operand; the only kind of request that a copy can settle."""
        if shape.is_array and not shape.dimensions:
            return
        if not request.mandatory:
            request = _downgraded(request, instruction, number)
        key = (instruction, number)
        known = self.operands.get(key)
        verdict = FIRST if known is None else known.judge(shape, request)
        if verdict.outcome == "kept":
            return
        fuel: int | None = None
        if verdict.accepted and not request.mandatory:
            allowed, fuel = self._gate(request, instruction)
            if not allowed:
                return
        if self._record:
            self._emit(f"operand {number}", instruction, (), shape, request, verdict, fuel)
        if not verdict.accepted and not self.remember:
            return
        step = Step(
            request.rule, "operand", instruction, number, (), shape, request.mandatory, request.depth_first,
            request.priority, self.priority, request.source,
        )  # fmt: skip
        if known is None:
            known = self.operands[key] = OperandConstraint(instruction, number, shape, request, step)
        elif not verdict.accepted:
            known.lost.append(Lost(step, verdict))
            return
        else:
            if self.remember:
                known.lost.append(Lost(known.step, verdict))
            known.apply(shape, request, step)
        self._push(known)

    def set_array_operand(self, instruction: HloInstruction, number: int, layout: Layout, request: Request) -> None:
        """`set_operand` for an array."""
        known = self.operands.get((instruction, number))
        if known is not None and known.shape.layout is not None:
            if known.shape.layout.minor_to_major == layout.minor_to_major:
                return  # nothing would change, and nothing is recorded of that
        self.set_operand(instruction, number, with_order(instruction.operand(number).shape, layout), request)

    def set_instruction(
        self, instruction: HloInstruction, shape: Shape, request: Request, *, alias_allowed: bool = False
    ) -> None:
        """Ask for the layouts of a result and, where the operation may not change layout, of operands of its rank."""
        for index, node in subshapes(shape):
            buffer = self.points_to.only(instruction, index)
            if not alias_allowed and buffer.instruction is not instruction:
                raise InternalError(f"%{instruction.name} does not define its result at {index}")
            if node.is_array and buffer.shape.is_array:
                layout = node.layout if node.layout is not None else Layout() if not node.dimensions else None
                if layout is not None:
                    self.set_buffer(buffer, layout, request)
        if not shape.is_array or instruction.opcode in ("while", "conditional") or self.may_change(instruction):
            return
        layout = shape.layout
        for number, operand in enumerate(instruction.operands):
            if layout is not None and operand.shape.is_array and operand.shape.rank == shape.rank:
                self.set_array_operand(instruction, number, layout, request)

    def push(self, constraint: ComputationConstraint) -> None:
        """Queue the result layout of a computation."""
        self._push(constraint)

    def take_added(self) -> list[Constraint]:
        """Constraints that were queued since the last time."""
        added, self._added = self._added, []
        return added

    # ---------------------------------------------------------------- inside
    def _push(self, constraint: Constraint) -> None:
        if constraint.depth_first:
            self._added.append(constraint)
            return
        at = len(self._added)
        while at > 0 and constraint.priority > self._added[at - 1].priority:
            at -= 1
        self._added.insert(at, constraint)

    def _step(
        self,
        place: Place,
        instruction: HloInstruction,
        operand: int | None,
        index: ShapeIndex,
        shape: Shape,
        layout: Layout,
        request: Request,
    ) -> Step:
        return Step(
            request.rule, place, instruction, operand, index, with_order(shape, layout), request.mandatory,
            request.depth_first, request.priority, self.priority, request.source,
        )  # fmt: skip

    def _gate(self, request: Request, instruction: HloInstruction) -> tuple[bool, int | None]:
        step = self.ctx.gate(request.rule, instruction)
        return step.allowed, None if step.question is None else step.question.ordinal

    def _emit(
        self,
        place: str,
        instruction: HloInstruction,
        index: ShapeIndex,
        wanted: Layout | Shape,
        request: Request,
        verdict: Verdict,
        fuel: int | None,
    ) -> None:
        source, texts = request.source, self._texts
        said = texts.get(wanted.minor_to_major) if isinstance(wanted, Layout) else None
        was = verdict.old
        self.ctx.ledger.emit_values(
            LayoutConstraint,
            verdict.outcome,
            verdict.code,
            (
                instruction.name, instruction.parent.name, fuel,
                place + "{" + ",".join(map(str, index)) + "}" if index else place, said or self._text(wanted),
                request.rule, request.priority, self.priority, None if source is None else self._where(source),
                None if was is None else self._text(was), verdict.old_priority,
            ),
        )  # fmt: skip

    def _text(self, wanted: Layout | Shape) -> str:
        """Layouts in words; there are few different ones and thousands of events."""
        if isinstance(wanted, Layout):
            order = wanted.minor_to_major
        elif wanted.is_tuple or wanted.layout is None:
            return show_shape(wanted)
        else:
            order = wanted.layout.minor_to_major
        found = self._texts.get(order)
        if found is None:
            found = self._texts[order] = show(Layout(order))
        return found

    def _where(self, step: Step) -> str:
        """`Step.where`, put together once for all that is derived from it."""
        found = self._places.get(id(step))
        if found is None:
            # The step is kept, so that its identity stays its own.
            found = self._places[id(step)] = (step, step.where)
        return found[1]


def _downgraded(request: Request, instruction: HloInstruction, number: int) -> Request:
    """Optional requests at small operands of an update, and at a reshape of a slice, wait behind others."""
    opcode = instruction.opcode
    if opcode == "dynamic-update-slice" and number > 0 and request.priority > DEFAULT_PRIORITY:
        return Request(False, False, request.priority - 1, request.rule, request.source)
    if opcode == "reshape" and instruction.operand(0).opcode == "dynamic-slice":
        return Request(False, False, request.priority - 1, request.rule, request.source)
    return request
