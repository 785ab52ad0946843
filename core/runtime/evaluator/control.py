"""Opcodes that run other computations: while, conditional, call, fusion, and the asynchronous pairs.

Called computations are planned once, when the caller is. Source: ``openxla/xla:xla/hlo/evaluator/hlo_evaluator.cc``
(HandleWhile, HandleConditional, HandleAsyncStart).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import numpy as np

from hloscope.core.runtime.evaluator import conversion
from hloscope.core.runtime.evaluator.values import (
    Array,
    InstructionUnsupported,
    Kernel,
    Machine,
    Prepare,
    Value,
    as_array,
    zeros,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape


def _converter(given: Shape, wanted: Shape) -> Callable[[Value], Value] | None:
    """From a value of one shape to the same of other element types; None where there is nothing to do.

    Types differ at the borders of computations in the middle of precision passes (bfloat16-propagation), where the
    border converts.
    """
    if given.is_tuple and wanted.is_tuple and len(given.tuple_shapes) == len(wanted.tuple_shapes):
        parts = [_converter(a, b) for a, b in zip(given.tuple_shapes, wanted.tuple_shapes, strict=True)]
        if not any(parts):
            return None
        return lambda x: tuple(
            v if part is None else part(v) for v, part in zip(cast("tuple[Value, ...]", x), parts, strict=True)
        )
    if not given.is_array or not wanted.is_array or given.type == wanted.type:
        return None
    change = conversion.converter(given.type, wanted.type)
    return lambda x: change(as_array(x))


def function(machine: Machine, computation: HloComputation, given: Sequence[Shape], result: Shape | None) -> Kernel:
    """A computation called with operands of the shapes `given` for a value of the shape `result`."""
    called = machine.function(computation)
    wanted = [p.shape for p in computation.parameters]
    into = [_converter(a, b) for a, b in zip(given, wanted, strict=False)]
    out = None if result is None else _converter(computation.root.shape, result)
    if not any(into) and out is None:
        return called

    def kernel(*arguments: Value) -> Value:
        values = [x if change is None else change(x) for x, change in zip(arguments, into, strict=True)]
        found = called(*values)
        return found if out is None else out(found)

    return kernel


def _call(instruction: HloInstruction, machine: Machine) -> Kernel:
    return function(machine, instruction.callee(), [o.shape for o in instruction.operands], instruction.shape)


def _while(instruction: HloInstruction, machine: Machine) -> Kernel:
    shape = instruction.shape
    condition = function(machine, instruction.callee("condition"), [shape], None)
    body = function(machine, instruction.callee("body"), [shape], shape)
    start = _converter(instruction.operand(0).shape, shape)

    def kernel(state: Value) -> Value:
        if start is not None:
            state = start(state)
        while bool(as_array(condition(state))):
            machine.count_step(instruction)
            state = body(state)
        return state

    return kernel


def _conditional(instruction: HloInstruction, machine: Machine) -> Kernel:
    called = instruction.called
    if "branch_computations" in called:
        computations = list(called["branch_computations"])
    else:
        computations = [instruction.callee(n) for n in ("true_computation", "false_computation")]
    given = [operand.shape for operand in instruction.operands[1:]]
    branches = [
        function(machine, computation, [shape], instruction.shape)
        for computation, shape in zip(computations, given, strict=False)
    ]
    by_pred = instruction.operand(0).shape.element_type == "pred"
    if len(computations) != instruction.operand_count - 1:
        raise InstructionUnsupported(instruction, f"with {len(computations)} branches")

    def kernel(selector: Array, *arguments: Value) -> Value:
        number = int(np.asarray(selector).reshape(()))
        if by_pred:
            number = 0 if number else 1
        elif not 0 <= number < len(branches):
            number = len(branches) - 1
        return branches[number](arguments[number])

    return kernel


def _async_start(instruction: HloInstruction, machine: Machine) -> Kernel:
    """((operands), result, contexts…): the wrapped computation runs once all its operands are there, normally here."""
    parts = instruction.shape.tuple_shapes
    if len(parts) < 2:
        raise InstructionUnsupported(instruction, f"of the shape {instruction.shape.to_text(layout=False)}")
    return _async_state(instruction, machine)


def _async_state(instruction: HloInstruction, machine: Machine) -> Kernel:
    """The state after a start or an update, which may bind more operands."""
    start, bound = _bound(instruction)
    if instruction is not start and instruction.operand_count == 1:
        return lambda state: state
    parts = instruction.shape.tuple_shapes
    run = _wrapped(start, bound, machine, parts[1]) if start is not None else None
    contexts = tuple(zeros(shape) for shape in parts[2:])
    first = instruction is start

    def kernel(*operands: Value) -> Value:
        given = operands
        if not first:
            given = (*cast("tuple[tuple[Value, ...], ...]", operands[0])[0], *operands[1:])
        return (given, zeros(parts[1]) if run is None else run(*given), *contexts)

    return kernel


def _async_done(instruction: HloInstruction, machine: Machine) -> Kernel:
    start, bound = _bound(instruction)
    run: Kernel | None = None
    if start is not None and len(bound) > _known_before(instruction):
        run = _wrapped(start, bound, machine, instruction.shape)
    elif start is not None and len(bound) < len(start.callee().parameters):
        raise InstructionUnsupported(instruction, f"with {len(bound)} of {len(start.callee().parameters)} operands")

    def kernel(state: tuple[Value, ...], *late: Value) -> Value:
        if run is None:
            return state[1]
        return run(*cast("tuple[Value, ...]", state[0]), *late)

    return kernel


def _bound(instruction: HloInstruction) -> tuple[HloInstruction | None, list[HloInstruction]]:
    """The start that an instruction of its chain goes back to, and the operands bound up to it; no start where the
    chain leaves the computation or passes through other opcodes."""
    late: list[HloInstruction] = []
    node = instruction
    while node.opcode in ("async-update", "async-done"):
        late = [*node.operands[1:], *late]
        node = node.operand(0)
    return (node, [*node.operands, *late]) if node.opcode == "async-start" else (None, late)


def _known_before(instruction: HloInstruction) -> int:
    """Operands that were bound before this instruction, once all were: it has nothing to run then."""
    return len(_bound(instruction.operand(0))[1])


def _wrapped(start: HloInstruction, bound: Sequence[HloInstruction], machine: Machine, result: Shape) -> Kernel | None:
    """The wrapped computation, where all its operands are bound."""
    computation = start.callee()
    if len(bound) < len(computation.parameters):
        return None
    return function(machine, computation, [o.shape for o in bound], result)


TABLE: Mapping[str, Prepare] = MappingProxyType(
    {
        "async-done": _async_done,
        "async-start": _async_start,
        "async-update": _async_state,
        "call": _call,
        "conditional": _conditional,
        "fusion": _call,
        "while": _while,
    }
)
