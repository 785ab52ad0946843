"""Custom calls by target. An unknown target is an error that names it: guessing would hide a wrong result.

A row prepares a kernel as an opcode does; callers add rows through `EvaluationOptions.custom_calls`. Those of LAPACK,
cuBLAS and cuDNN have files of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import numpy as np

from hloscope.core.runtime.evaluator import collectives, gpu_calls, lapack, sharding, solver_calls, sorting
from hloscope.core.runtime.evaluator.random_bits import generator
from hloscope.core.runtime.evaluator.values import (
    TOKEN,
    Array,
    InstructionUnsupported,
    Kernel,
    Machine,
    Prepare,
    Value,
    zeros,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape


KERNELS = frozenset({"tpu_custom_call", "__gpu$xla.gpu.triton", "mosaic_gpu", "mosaic_gpu_v2", "triton_kernel_call"})
"""Targets whose computation is not in the HLO: Pallas and Triton kernels."""


def prepare(instruction: HloInstruction, machine: Machine) -> Kernel:
    """The kernel of a custom call. Raises InstructionUnsupported for a target that nobody knows."""
    target = str(instruction.attr("custom_call_target") or "")
    if target in machine.options.opaque:
        return _opaque(instruction, machine)
    found = machine.options.custom_calls.get(target) or TARGETS.get(target)
    if found is None and target in KERNELS and machine.options.kernels is not None:
        from hloscope.core.runtime.kernels import calls

        if target in calls.TARGETS:
            return calls.prepare(instruction, machine)
    if found is None and target in KERNELS:
        what = "a Pallas or Triton kernel whose computation is not in the HLO"
        raise InstructionUnsupported(instruction, f"of {target!r}, {what} (--opaque {target} draws its result)")
    if found is None:
        raise InstructionUnsupported(instruction, f"with the unknown target {target!r} (opaque targets draw a result)")
    return found(instruction, machine)


def _opaque(instruction: HloInstruction, machine: Machine) -> Kernel:
    """A result drawn from the seed and the instruction's name: the same in every evaluation of the same instruction."""
    from hloscope.core.runtime.inputs import random_array

    source = generator(instruction, machine)

    def draw(shape: Shape) -> Value:
        if shape.is_tuple:
            return tuple(draw(s) for s in shape.tuple_shapes)
        return random_array(shape, source) if shape.is_array else TOKEN

    value = draw(instruction.shape)
    return lambda *_operands: value


def _identity(instruction: HloInstruction, machine: Machine) -> Kernel:
    def kernel(*operands: Value) -> Value:
        return operands if instruction.shape.is_tuple and len(operands) != 1 else operands[0]

    return kernel


def _top_k(instruction: HloInstruction, machine: Machine) -> Kernel:
    """Values and s32 indices of the k first in total order; the comparator's direction says from which end."""
    k = instruction.shape.tuple_shapes[0].dimensions[-1]
    roots = [c.root for c in instruction.called_computations]
    largest = not any(root.opcode == "compare" and root.attr("direction") in ("LT", "LE") for root in roots)
    element = instruction.operand(0).shape.type
    return lambda x: sorting.top_k(x, element, k, largest)


# ---------------------------------------------------------------- regions that each device runs for itself
def _frontend(instruction: HloInstruction, key: str) -> str:
    attributes = cast("Mapping[str, str]", instruction.attr("frontend_attributes") or {})
    return attributes.get(key, "")


def _spread(instruction: HloInstruction, key: str) -> list[sharding.Sharding]:
    """The shardings of Shardy's pair of calls, one for each operand or result."""
    module = instruction.module
    manual = sharding.manual_axes(_frontend(instruction, "xla.sdy.manual_axes"))
    found = sharding.parse_per_value(_frontend(instruction, key), module, manual)
    if len(found) != instruction.operand_count:
        raise InstructionUnsupported(instruction, f"with {len(found)} shardings for {instruction.operand_count} values")
    return found


def _hlo_sharding(instruction: HloInstruction) -> sharding.Sharding:
    text = instruction.raw_attrs.get("sharding")
    found = sharding.parse_sharding(text) if text else None
    if found is None:
        raise InstructionUnsupported(instruction, "without a sharding of the whole array")
    return found


def _to_local(instruction: HloInstruction, machine: Machine, spread: Sequence[sharding.Sharding]) -> Kernel:
    mesh = collectives.mesh_of(instruction, machine)

    def kernel(*operands: Array) -> Value:
        out = tuple(s.cut(x, mesh.device) for s, x in zip(spread, operands, strict=True))
        return out if instruction.shape.is_tuple else out[0]

    return kernel


def _to_global(instruction: HloInstruction, machine: Machine, spread: Sequence[sharding.Sharding]) -> Kernel:
    mesh = collectives.mesh_of(instruction, machine)
    everybody = tuple(range(mesh.replicas * mesh.partitions))
    shapes = [leaf.dimensions for _, leaf in instruction.shape.leaves()]

    def kernel(*operands: Array) -> Value:
        parts = cast("list[tuple[Array, ...]]", mesh.exchange(instruction, everybody, tuple(operands)))
        out: list[Array] = []
        for number, (one, shape) in enumerate(zip(spread, shapes, strict=True)):
            blocks = [part[number] for part in parts]
            # Where all devices hold everything, each keeps its own copy.
            out.append(operands[number] if one.replicated else one.join(blocks, shape)[0])
        return tuple(out) if instruction.shape.is_tuple else out[0]

    return kernel


def _global_to_local(instruction: HloInstruction, machine: Machine) -> Kernel:
    return _to_local(instruction, machine, _spread(instruction, "xla.sdy.in_shardings"))


def _local_to_global(instruction: HloInstruction, machine: Machine) -> Kernel:
    return _to_global(instruction, machine, _spread(instruction, "xla.sdy.out_shardings"))


def _full_to_shard(instruction: HloInstruction, machine: Machine) -> Kernel:
    return _to_local(instruction, machine, [_hlo_sharding(instruction.operand(0))])


def _shard_to_full(instruction: HloInstruction, machine: Machine) -> Kernel:
    return _to_global(instruction, machine, [_hlo_sharding(instruction)])


def _undefined(instruction: HloInstruction, machine: Machine) -> Kernel:
    """A fresh buffer; its contents are undefined, here zeros."""
    value = zeros(instruction.shape)
    return lambda: value


def _concatenation(instruction: HloInstruction, machine: Machine) -> Kernel:
    """Operands one after the other along the one dimension in which they fall short of the result."""
    target = instruction.shape.dimensions
    part = instruction.operand(0).shape.dimensions
    short = [d for d, (a, b) in enumerate(zip(part, target, strict=True)) if a != b] or [0]
    if len(short) != 1:
        raise InstructionUnsupported(instruction, f"of {list(part)} to {list(target)}")
    return lambda *parts: np.concatenate(parts, axis=short[0])


MANUAL = frozenset(
    {"xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape", "SPMDFullToShardShape", "SPMDShardToFullShape"}
)
"""Targets at the borders of regions that each device runs for itself."""


def _table() -> dict[str, Prepare]:
    out: dict[str, Prepare] = {
        **gpu_calls.TARGETS,
        **lapack.TARGETS,
        **solver_calls.TARGETS,
        "AllocateBuffer": _undefined,
        # Their meaning is in the sizes that arrays carry, which have rules of their own.
        "PadToStatic": _undefined,
        "SliceToDynamic": _undefined,
        "ConcatBitcast": _concatenation,
        "SPMDFullToShardShape": _full_to_shard,
        "SPMDShardToFullShape": _shard_to_full,
        "xla.sdy.GlobalToLocalShape": _global_to_local,
        "xla.sdy.LocalToGlobalShape": _local_to_global,
        "xla.sdy.FuncResultSharding": _identity,
        "LayoutConstraint": _identity,
        "Pin": _identity,
        "Unpin": _identity,
        "AssumeGatherIndicesInBound": _identity,
        "Sharding": _identity,
        "TopK": _top_k,
        "annotate_device_placement": _identity,
        "MoveToHost": _identity,
        "MoveToDevice": _identity,
        "GatherScatterIndicesBitpacked": _identity,
    }
    return out


TARGETS: Mapping[str, Prepare] = MappingProxyType(_table())
"""Target -> what prepares its kernel."""

TABLE: Mapping[str, Prepare] = MappingProxyType({"custom-call": prepare})
