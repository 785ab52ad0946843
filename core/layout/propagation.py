"""How a layout travels: from definitions to operands and uses, from uses to definitions, siblings and results.

Queued constraints leave a deque at its front. Those that go depth first are put at the front too, the last one added
ahead of the others, so that a layout is followed as far as it goes before an unrelated one gets its turn; the others
wait at the back. Source: ``openxla/xla:xla/service/layout_assignment.cc#PropagateConstraints`` and the propagators
that it calls.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hloscope.core.hlo.layout import Layout
from hloscope.core.layout.constraints import BufferConstraint, OperandConstraint, Step
from hloscope.core.layout.opcode_table import goes_depth_first
from hloscope.core.layout.orders import at_most_rank_1, in_default_memory, layout_of, without_dimension

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.layout.constraints import ComputationConstraint, Constraint
    from hloscope.core.layout.state import LayoutState


def propagate(state: LayoutState) -> None:
    """Follow every queued constraint until nothing is left."""
    work: deque[Constraint] = deque()
    while True:
        for constraint in state.take_added():
            if constraint.depth_first:
                work.appendleft(constraint)
            else:
                work.append(constraint)
        if not work:
            return
        first = work.popleft()
        if isinstance(first, BufferConstraint):
            _buffer_to_operands(state, first)
            _buffer_to_uses(state, first)
        elif isinstance(first, OperandConstraint):
            _operand(state, first)
        else:
            _result(state, first)


# ---------------------------------------------------------------- from a definition
def _buffer_to_operands(state: LayoutState, constraint: BufferConstraint) -> None:
    buffer, layout, step = constraint.buffer, constraint.layout, constraint.step
    instruction = buffer.instruction
    opcode = instruction.opcode
    if not instruction.operand_count or at_most_rank_1(instruction.shape):
        return
    if opcode == "all-reduce":
        number = 0 if instruction.operand_count == 1 else buffer.index[0]
        request = state.request("same-layout-to-operand", step, priority=constraint.priority)
        state.set_array_operand(instruction, number, layout, request)
        return
    bound = not state.may_change(instruction)
    for number, operand in enumerate(instruction.operands):
        shape = operand.shape
        if at_most_rank_1(shape):
            continue
        if bound:
            if not shape.is_array:
                continue
            if shape.rank == len(layout.minor_to_major):
                state.set_array_operand(instruction, number, layout, state.request("same-layout-to-operand", step))
            elif opcode == "bitcast-convert":
                narrowed = _bitcast_convert_operand(instruction.shape, shape.rank)
                state.set_array_operand(
                    instruction, number, narrowed, state.request("bitcast-convert-to-operand", step)
                )
        elif opcode == "broadcast":
            number_of = {dim: place for place, dim in enumerate(instruction.dimensions)}
            order = tuple(number_of[d] for d in layout.minor_to_major if d in number_of)
            request = state.request("broadcast-to-operand", step, depth_first=goes_depth_first(instruction))
            state.set_array_operand(instruction, number, Layout(order), request)
        elif not buffer.index and shape.is_array:
            derived = state.backend.operand_from_output(layout, instruction, number)
            if derived is not None:
                request = state.request(
                    derived.rule,
                    step,
                    mandatory=state.backend.goes_to_operands(instruction),
                    depth_first=goes_depth_first(instruction),
                )
                state.set_array_operand(instruction, number, derived.layout, request)


def _bitcast_convert_operand(shape: Shape, rank: int) -> Layout:
    """From the layout that the result has so far, not from the one that is propagated."""
    order = layout_of(shape).minor_to_major
    last = shape.rank - 1
    return Layout(without_dimension(order, last)) if rank < shape.rank else Layout((last + 1, *order))


def _buffer_to_uses(state: LayoutState, constraint: BufferConstraint) -> None:
    buffer, layout = constraint.buffer, constraint.layout
    request = state.request("definition-to-use", constraint.step, mandatory=False, priority=constraint.priority)
    for alias, _ in buffer.aliases:
        if not alias.shape.is_array:
            continue
        for user in alias.users:
            for number, operand in enumerate(user.operands):
                if operand is alias and not state.forwards(user, number):
                    state.set_array_operand(user, number, layout, request)
    _around_loop(state, constraint)


def _around_loop(state: LayoutState, constraint: BufferConstraint) -> None:
    """What a loop body returns at some place should have the layout in which it comes in there."""
    instruction = constraint.buffer.instruction
    computation = instruction.parent
    callers = computation.callers
    root = computation.root
    if len(callers) != 1 or callers[0].opcode != "while" or root.opcode != "tuple":
        return
    for user in instruction.users:
        if user is root:
            place = next(n for n, operand in enumerate(root.operands) if operand is instruction)
            entering = state.points_to.only(computation.parameters[0], (place, *constraint.buffer.index))
            request = state.request("loop-result-to-parameter", constraint.step, mandatory=False)
            state.set_buffer(entering, constraint.layout, request)


# ---------------------------------------------------------------- from a use
def _to_definitions(
    state: LayoutState, shape: Shape, instruction: HloInstruction, priority: int, rule: str, source: Step | None
) -> None:
    """Ask the definitions behind a value for the layout that a use wants, which would save the copy."""
    request = state.request(rule, source, mandatory=False, priority=priority)
    for index, leaf in shape.leaves():
        layout = leaf.layout if leaf.dimensions else Layout()
        if not leaf.is_array or layout is None:
            continue
        for buffer in state.points_to.at(instruction, index):
            maker = buffer.instruction
            if buffer.shape.is_array and (maker.opcode != "reduce" or not maker.shape.is_tuple):
                state.set_buffer(buffer, layout, request)


def _operand(state: LayoutState, constraint: OperandConstraint) -> None:
    user, number = constraint.instruction, constraint.number
    operand = user.operand(number)
    if at_most_rank_1(operand.shape):
        return
    step, priority = constraint.step, constraint.priority
    _to_definitions(state, constraint.shape, operand, priority, "use-to-definition", step)
    if user.opcode == "custom-call":
        _through_alias(state, constraint)
    if not operand.shape.is_array or is_constrained_collective(user):
        return
    layout = layout_of(constraint.shape)
    points_to = state.points_to
    if user.opcode == "all-reduce":
        result = points_to.only(user, () if user.operand_count == 1 else (number,))
        state.set_buffer(result, layout, state.request("same-layout-to-result", step))
    if state.may_change(user) and not user.shape.is_array and user.opcode != "reduce":
        return
    if state.forwards(user, number):
        return
    if state.backend.goes_to_siblings(user):
        _to_siblings(state, constraint, operand, layout)
        return
    for index, leaf in user.shape.leaves():
        buffer = points_to.defined(user, index)
        if not leaf.is_array or leaf.rank <= 1 or buffer is None:
            continue
        derived = state.backend.output_from_operand(layout, user, number)
        if derived is not None:
            request = state.request(
                derived.rule,
                step,
                mandatory=state.backend.goes_forward(user),
                depth_first=goes_depth_first(user),
                priority=priority,
            )
            state.set_buffer(buffer, derived.layout, request)


def _through_alias(state: LayoutState, constraint: OperandConstraint) -> None:
    """A custom call whose result lives in this operand."""
    user = constraint.instruction
    for alias in user.attr("output_to_operand_aliasing") or ():
        if alias.operand == constraint.number:
            buffer = state.points_to.defined(user, alias.output_index)
            if buffer is not None and buffer.shape.is_array:
                request = state.request(
                    "aliased-result",
                    constraint.step,
                    mandatory=state.backend.goes_forward(user),
                    depth_first=goes_depth_first(user),
                    priority=constraint.priority,
                )
                state.set_buffer(buffer, layout_of(constraint.shape), request)
            return


def _to_siblings(state: LayoutState, constraint: OperandConstraint, operand: HloInstruction, layout: Layout) -> None:
    """All operands and results of one rank have one layout; of a concatenation the largest operand decides."""
    user = constraint.instruction
    rank = operand.shape.rank
    if user.opcode == "concatenate":
        dim = user.dimensions[0]
        size = operand.shape.dimensions[dim]
        if any(one is not operand and one.shape.dimensions[dim] > size for one in user.operands):
            return
    request = state.request("same-layout-to-sibling", constraint.step, priority=constraint.priority)
    for number, sibling in enumerate(user.operands):
        if sibling is not operand and sibling.shape.is_array and sibling.shape.rank == rank > 1:
            state.set_array_operand(user, number, layout, request)
    onward = state.request("same-layout-to-result", constraint.step, priority=constraint.priority)
    for index, leaf in user.shape.leaves():
        if leaf.is_array and leaf.rank == rank > 1:
            buffer = state.points_to.defined(user, index)
            if buffer is not None:
                state.set_buffer(buffer, layout, onward)


# ---------------------------------------------------------------- from the result of a computation
def _result(state: LayoutState, constraint: ComputationConstraint) -> None:
    computation = constraint.computation
    wanted = in_default_memory(constraint.result) if computation.is_entry else constraint.result
    rule = "entry-result" if computation.is_entry else "computation-result"
    source = result_step(state, computation, wanted, rule, constraint.priority)
    _to_definitions(state, wanted, computation.root, state.priority, rule, source)


def result_step(state: LayoutState, computation: HloComputation, wanted: Shape, rule: str, priority: int) -> Step:
    """The step that stands for a computation's result layout."""
    return Step(rule, "result", computation.root, None, (), wanted, True, True, priority, state.priority, None)


def is_constrained_collective(instruction: HloInstruction) -> bool:
    """Whether a collective carries ``constrain_layout=true``."""
    return instruction.info.collective and bool(instruction.attr("constrain_layout"))
