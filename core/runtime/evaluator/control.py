"""Opcodes that run other computations: while, conditional, call, fusion, and the asynchronous pairs.

Called computations are planned once, when the caller is. Source: ``openxla/xla:xla/hlo/evaluator/hlo_evaluator.cc``
(HandleWhile, HandleConditional, HandleAsyncStart).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.runtime.evaluator.values import (
    Array,
    InstructionUnsupported,
    Kernel,
    Machine,
    Prepare,
    Value,
    as_array,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


def _call(instruction: HloInstruction, machine: Machine) -> Kernel:
    return machine.function(instruction.callee())


def _while(instruction: HloInstruction, machine: Machine) -> Kernel:
    condition = machine.function(instruction.callee("condition"))
    body = machine.function(instruction.callee("body"))

    def kernel(state: Value) -> Value:
        while bool(as_array(condition(state))):
            machine.count_step(instruction)
            state = body(state)
        return state

    return kernel


def _conditional(instruction: HloInstruction, machine: Machine) -> Kernel:
    called = instruction.called
    if "branch_computations" in called:
        branches = [machine.function(c) for c in called["branch_computations"]]
    else:
        branches = [machine.function(instruction.callee(n)) for n in ("true_computation", "false_computation")]
    by_pred = instruction.operand(0).shape.element_type == "pred"
    if len(branches) != instruction.operand_count - 1:
        raise InstructionUnsupported(instruction, f"with {len(branches)} branches")

    def kernel(selector: Array, *arguments: Value) -> Value:
        number = int(np.asarray(selector).reshape(()))
        if by_pred:
            number = 0 if number else 1
        elif not 0 <= number < len(branches):
            number = len(branches) - 1
        return branches[number](arguments[number])

    return kernel


def _async_start(instruction: HloInstruction, machine: Machine) -> Kernel:
    """((operands), result, contexts…): the wrapped computation runs here."""
    wrapped = machine.function(instruction.callee())
    contexts = len(instruction.shape.tuple_shapes) - 2

    def kernel(*operands: Value) -> Value:
        return (tuple(operands), wrapped(*operands), *(np.zeros((), np.uint32) for _ in range(contexts)))

    return kernel


def _async_update(instruction: HloInstruction, machine: Machine) -> Kernel:
    def kernel(state: Value) -> Value:
        return state

    return kernel


def _async_done(instruction: HloInstruction, machine: Machine) -> Kernel:
    def kernel(state: tuple[Value, ...]) -> Value:
        return state[1]

    return kernel


TABLE: Mapping[str, Prepare] = MappingProxyType(
    {
        "async-done": _async_done,
        "async-start": _async_start,
        "async-update": _async_update,
        "call": _call,
        "conditional": _conditional,
        "fusion": _call,
        "while": _while,
    }
)
