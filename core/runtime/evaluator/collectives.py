"""Collectives of a program for one device, where each is a local copy; more devices are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.runtime.evaluator.values import InstructionUnsupported, Kernel, Machine, Prepare, Value, zeros

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


def _devices(instruction: HloInstruction) -> int:
    if not instruction.in_computation:
        return 1
    module = instruction.module
    return module.num_partitions * module.replica_count


def _alone(instruction: HloInstruction) -> None:
    devices = _devices(instruction)
    if devices > 1:
        raise InstructionUnsupported(instruction, f"between {devices} devices")


def _local(instruction: HloInstruction, machine: Machine) -> Kernel:
    """The operands themselves: a group of one has nobody else's data."""
    _alone(instruction)

    def kernel(*operands: Value) -> Value:
        return operands[0] if len(operands) == 1 else tuple(operands)

    return kernel


def _start(instruction: HloInstruction, machine: Machine) -> Kernel:
    """all-gather-start and its like carry operand and result; all-reduce-start only the result."""
    _alone(instruction)
    if instruction.opcode == "all-reduce-start":
        return _local(instruction, machine)
    contexts = len(instruction.shape.tuple_shapes) - 2

    def kernel(*operands: Value) -> Value:
        value = operands[0] if len(operands) == 1 else tuple(operands)
        return (value, value, *(np.zeros((), np.uint32) for _ in range(contexts)))

    return kernel


def _done(instruction: HloInstruction, machine: Machine) -> Kernel:
    _alone(instruction)
    if instruction.opcode == "all-reduce-done":
        return _local(instruction, machine)

    def kernel(state: tuple[Value, ...]) -> Value:
        return state[1]

    return kernel


def _permute(instruction: HloInstruction, machine: Machine) -> Kernel:
    """A device that nobody sends to gets zeros."""
    _alone(instruction)
    received = (0, 0) in (instruction.attr("source_target_pairs") or ())
    empty = zeros(instruction.shape)
    return lambda x, *_others: x if received else empty


TABLE: Mapping[str, Prepare] = MappingProxyType(
    {
        "all-gather": _local,
        "all-gather-done": _done,
        "all-gather-start": _start,
        "all-reduce": _local,
        "all-reduce-done": _done,
        "all-reduce-start": _start,
        "all-to-all": _local,
        "collective-broadcast": _local,
        "collective-permute": _permute,
        "reduce-scatter": _local,
    }
)
