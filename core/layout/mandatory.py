"""Constraints that must hold: at the entry, at infeeds and outfeeds, at called computations, at custom calls.

Source: ``openxla/xla:xla/service/layout_assignment.cc#AddMandatoryConstraints, #AddCustomCallConstraints,
#CalculateComputationLayout``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hloscope.core.errors import InternalError
from hloscope.core.layout.orders import (
    any_set,
    in_default_memory,
    map_leaves,
    same_orders,
    with_leaf_layout,
    with_order,
)
from hloscope.core.layout.propagation import is_constrained_collective

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape, ShapeIndex
    from hloscope.core.layout.constraints import ComputationConstraint
    from hloscope.core.layout.state import EntryLayout, LayoutState

ROUNDS = 2
"""Rounds that are always run (``kNumberOfPropagationRounds``)."""


def entry_any_set(entry: EntryLayout) -> bool:
    """Whether the entry's layout is given somewhere; an entry of scalars alone counts as given."""
    shapes = [*entry.parameters, entry.result]
    if any(map(any_set, shapes)):
        return True
    return not any(leaf.is_array and leaf.dimensions for shape in shapes for _, leaf in shape.leaves())


def add_mandatory(state: LayoutState, computation: HloComputation) -> None:
    """The three sweeps in list order."""
    for instruction in computation.instructions:
        _fixed(state, computation, instruction)
    for instruction in computation.instructions:
        handler = _CALLERS.get(instruction.opcode)
        if handler is not None:
            handler(state, instruction)
    _result(state, computation)


def _fixed(state: LayoutState, computation: HloComputation, instruction: HloInstruction) -> None:
    """Values whose layout somebody else has settled."""
    opcode = instruction.opcode
    if opcode == "infeed":
        state.set_instruction(instruction, instruction.shape, state.request("infeed"))
    elif opcode == "outfeed":
        shape = instruction.attr("outfeed_shape") or instruction.operand(0).shape
        state.set_operand(instruction, 0, shape.with_default_layout(), state.request("outfeed"))
    elif opcode == "parameter":
        interface = state.interface(computation)
        given = computation.is_entry and entry_any_set(state.entry_layout)
        if given or (interface.parameters_set and computation not in state.mismatches):
            shape = in_default_memory(interface.parameters[instruction.parameter_number])
            rule = "entry-parameter" if computation.is_entry else "computation-parameter"
            state.set_instruction(instruction, shape, state.request(rule))
    elif is_constrained_collective(instruction):
        shape = instruction.shape.with_default_layout()
        request = state.request("constrained-collective")
        state.set_instruction(instruction, shape, request)
        for number in range(instruction.operand_count):
            state.set_operand(instruction, number, shape.tuple_shapes[number] if shape.is_tuple else shape, request)
    elif _shares_channel(instruction) and not state.backend.spmd:
        layout = state.channels.get(instruction.attr("channel_id"))
        if layout is not None and instruction.shape.is_array:
            state.set_instruction(instruction, with_order(instruction.shape, layout), state.request("channel"))


def _shares_channel(instruction: HloInstruction) -> bool:
    """Whether an all-reduce meets those of other modules on a channel."""
    return instruction.opcode in ("all-reduce", "all-reduce-start") and instruction.attr("channel_id") is not None


def note_channels(state: LayoutState, computation: HloComputation) -> None:
    """Keep what the all-reduces of a computation found, for the next round: the first layout of a channel stands.

    Host transfers carry their own layout and take no part. Source: ``#ConstrainChannelLayouts``.
    """
    for instruction in computation.post_order():
        if instruction.opcode == "all-reduce" and instruction.shape.is_array and _shares_channel(instruction):
            layout = state.array_layout(instruction, ())
            if layout is not None:
                state.channels.setdefault(instruction.attr("channel_id"), layout)


# ---------------------------------------------------------------- callers
def _call(state: LayoutState, instruction: HloInstruction) -> None:
    callee = state.interfaces.get(instruction.callee("to_apply"))
    if callee is None:
        return
    state.set_instruction(instruction, callee.result, state.request("callee-result"))
    for number, shape in enumerate(callee.parameters):
        state.set_operand(instruction, number, shape, state.request("callee-parameter"))


def _while(state: LayoutState, instruction: HloInstruction) -> None:
    body = state.interfaces.get(instruction.callee("body"))
    if body is None:
        return
    condition = state.interface(instruction.callee("condition"))
    if not same_orders(body.result, body.parameters[0]):
        body.parameters[0] = body.result
        body.reset(state.priority + ROUNDS)
    if not same_orders(condition.parameters[0], body.parameters[0]):
        condition.parameters[0] = body.parameters[0]
        condition.reset(state.priority + ROUNDS)
    request = state.request("loop-body")
    state.set_operand(instruction, 0, body.result, request)
    state.set_instruction(instruction, body.result, request)


def branches_of(instruction: HloInstruction) -> tuple[HloComputation, ...]:
    """The branch computations of a conditional, in the order of its operands."""
    called = instruction.called
    if "branch_computations" in called:
        return called["branch_computations"]
    return (*called["true_computation"], *called["false_computation"])


def _conditional(state: LayoutState, instruction: HloInstruction) -> None:
    branches = branches_of(instruction)
    if branches[0] not in state.interfaces:
        return
    best, most = 0, 0
    for number, branch in enumerate(branches):
        shape = instruction.operand(number + 1).shape
        if len(branch) > most and not (shape.is_tuple and not shape.tuple_shapes):
            best, most = number, len(branch)
    chosen = state.interface(branches[best])
    request = state.request("branch-parameter")
    for number, branch in enumerate(branches):
        interface = state.interface(branch)
        if same_orders(interface.result, chosen.result):
            state.set_operand(instruction, number + 1, interface.parameters[0], request)
        else:
            state.mismatches.setdefault(branch, chosen.result)
    state.set_operand(instruction, best + 1, chosen.parameters[0], request)
    state.set_instruction(instruction, chosen.result, state.request("branch-result"))


def _async_start(state: LayoutState, instruction: HloInstruction) -> None:
    callee = _async_callee(state, instruction)
    if callee is None:
        return
    changed = False
    for number, operand in enumerate(instruction.operands):
        changed |= _adopt(state, callee.parameters, number, operand, ())
    results = [callee.result]
    if _adopt(state, results, 0, instruction, (1,)):
        callee.result = results[0]
        changed = True
    if changed:
        callee.reset(state.priority + ROUNDS)
    for number, shape in enumerate(callee.parameters[: instruction.operand_count]):
        if any_set(shape):
            state.set_operand(instruction, number, shape, state.request("callee-parameter"))
    shape = instruction.shape
    if any_set(callee.result) and len(shape.tuple_shapes) > 1 and shape.tuple_shapes[1].compatible(callee.result):
        wanted = _with_element(shape, 1, callee.result)
        request = state.request("callee-result", mandatory=callee.result_set)
        state.set_instruction(instruction, wanted, request, alias_allowed=True)


def _async_done(state: LayoutState, instruction: HloInstruction) -> None:
    start = instruction.operand(0)
    while start.opcode == "async-update":
        start = start.operand(0)
    callee = _async_callee(state, start)
    if callee is None:
        return
    changed = False
    given = state.entry_layout.result
    if instruction.parent.is_entry and instruction.is_root and any_set(given):
        if not same_orders(callee.result, given):
            callee.result = given
            changed = True
    else:
        results = [callee.result]
        if _adopt(state, results, 0, instruction, ()):
            callee.result = results[0]
            changed = True
    if changed:
        callee.reset(state.priority + ROUNDS)
    if any_set(callee.result):
        request = state.request("callee-result", mandatory=changed or callee.result_set)
        state.set_instruction(instruction, callee.result, request, alias_allowed=True)


def _async_callee(state: LayoutState, instruction: HloInstruction) -> ComputationConstraint | None:
    callees = instruction.called_computations
    return state.interfaces.get(callees[0]) if callees else None


def _adopt(
    state: LayoutState, shapes: list[Shape], number: int, instruction: HloInstruction, prefix: tuple[int, ...]
) -> bool:
    """Write into a callee's shape what the caller's value has found; returns whether something differed."""
    if number >= len(shapes):
        return False
    changed = False
    for index, leaf in shapes[number].leaves():
        if not leaf.is_array or leaf.layout is None:
            continue
        layout = state.array_layout(instruction, (*prefix, *index))
        if layout is not None and layout.minor_to_major != leaf.layout.minor_to_major:
            shapes[number] = with_leaf_layout(shapes[number], index, layout)
            changed = True
    return changed


def _with_element(shape: Shape, number: int, element: Shape) -> Shape:
    parts = list(shape.tuple_shapes)
    parts[number] = element
    return replace(shape, tuple_shapes=tuple(parts))


_CALLERS = {
    "call": _call,
    "while": _while,
    "conditional": _conditional,
    "async-start": _async_start,
    "async-done": _async_done,
}


def _result(state: LayoutState, computation: HloComputation) -> None:
    interface = state.interface(computation)
    if computation in state.mismatches:
        interface.result = state.mismatches[computation]
        interface.reset(state.priority + ROUNDS, parameters_set=False)
        state.push(interface)
    elif (
        computation.is_entry and entry_any_set(state.entry_layout) and any_set(state.entry_layout.result)
    ) or state.priority > 0:
        if state.result_layout(computation) is not None:
            state.push(interface)


# ---------------------------------------------------------------- custom calls
def is_layout_constrained(instruction: HloInstruction) -> bool:
    """Whether a custom call demands layouts of its operands."""
    return instruction.opcode == "custom-call" and "operand_layout_constraints" in instruction.raw_attrs


def add_custom_calls(state: LayoutState, computation: HloComputation) -> None:
    """Custom calls that demand layouts of their operands and have one of their result."""
    for instruction in computation.post_order():
        if not is_layout_constrained(instruction):
            continue
        own = instruction.shape.with_default_layout()
        request = state.request("custom-call")
        state.set_instruction(instruction, own, request, alias_allowed=True)
        if instruction.attr("custom_call_target") == "LayoutConstraint":
            state.set_operand(instruction, 0, own, request)
            continue
        demands = instruction.attr("operand_layout_constraints")
        for number, demand in enumerate(demands):
            if state.forwards(instruction, number):
                if not state.points_to.forwards_all(instruction, number):
                    raise InternalError(f"%{instruction.name} passes on a part of operand {number}")
                continue
            shape = demand.with_default_layout()
            state.set_operand(instruction, number, shape, request)
            if instruction.operand(number).opcode == "copy":
                state.set_operand(instruction.operand(number), 0, shape, request)


# ---------------------------------------------------------------- after a computation
def settle_interfaces(state: LayoutState, computation: HloComputation) -> None:
    """Write what was found inside a computation into its border, and into those of its fusions."""
    for instruction in computation.post_order():
        if instruction.opcode == "fusion":
            fused = instruction.callee("calls")
            _adopt_all(state, state.interface(fused), instruction, instruction.operands, state.priority + 1)
    if state.priority == 0 or computation in state.mismatches:
        interface = state.interface(computation)
        _adopt_all(state, interface, computation.root, computation.parameters, state.priority + ROUNDS)
        if computation.is_entry:
            state.entry_layout.parameters = list(interface.parameters)
            state.entry_layout.result = interface.result


def _adopt_all(
    state: LayoutState,
    interface: ComputationConstraint,
    result: HloInstruction,
    operands: tuple[HloInstruction, ...],
    priority: int,
) -> None:
    mismatch = interface.computation in state.mismatches
    if interface.priority >= priority and not mismatch:
        return
    if not mismatch:
        interface.result = _found(state, result, interface.result)
    for number, operand in enumerate(operands):
        interface.parameters[number] = _found(state, operand, interface.parameters[number])
    interface.reset(priority)


def _found(state: LayoutState, instruction: HloInstruction, shape: Shape) -> Shape:
    def leaf_of(index: ShapeIndex, leaf: Shape) -> Shape:
        layout = state.array_layout(instruction, index)
        return leaf if layout is None else with_order(leaf, layout)

    return map_leaves(shape, leaf_of)
