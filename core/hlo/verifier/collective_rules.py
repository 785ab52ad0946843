"""Replica groups, shard counts and source-target pairs of collectives.

Source: ``openxla/xla:xla/service/hlo_verifier.cc#CheckReplicaGroups, #CheckCommonAllGatherInvariants,
#CheckDuplicatedSourceOrTarget, #CheckInplaceCollectivePermute``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.errors import UnsupportedError
from hloscope.core.hlo.infer_shape import InferenceError
from hloscope.core.hlo.infer_shape.base import is_array
from hloscope.core.hlo.infer_shape.collectives import group_mode, is_inplace, outputs_of, subgroup_size
from hloscope.core.hlo.verifier.findings import broken, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hloscope.core.hlo.infer_shape import Request
    from hloscope.core.hlo.infer_shape.collectives import GroupMode
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.hlo.verifier.context import Context

    Check = Callable[[Context, HloInstruction, Request], None]


def _mode(request: Request) -> GroupMode:
    try:
        return group_mode(request)
    except InferenceError as error:
        broken("group-mode", error.message)


def _groups(request: Request) -> tuple[tuple[int, ...], ...] | None:
    """The groups, None where they are given in a form that lists no ids."""
    try:
        return tuple(request.attr("replica_groups", ()))
    except UnsupportedError:
        return None


def check_groups(context: Context, instruction: HloInstruction, request: Request, *, uniform: bool = True) -> None:
    """`CheckReplicaGroups`."""
    if not context.options.check_replica_groups:
        return
    mode, groups = _mode(request), _groups(request)
    if groups is None:
        return
    text = describe(instruction)
    if not groups:
        if mode == "flattened_id":
            broken("replica-groups", "Replica groups must be specified in flattened-id mode")
        return
    if any(not group for group in groups):
        broken("replica-groups", f"Instruction cannot have an empty replica group: {text}")
    count = sum(map(len, groups))
    seen: set[int] = set()
    for group in groups:
        for member in group:
            if not 0 <= member < count:
                broken(
                    "replica-groups",
                    f"Replica {member} is out of range (should be in [0, {count}) range) in instruction's "
                    f"replica-groups: {text}",
                )
            if member in seen:
                broken("replica-groups", f"Replica {member} is repeated in instruction's replica-groups: {text}")
            seen.add(member)
    expected, what = {
        "cross_replica": (request.replicas, "replicas"),
        "cross_replica_and_partition": (request.replicas, "replicas"),
        "cross_partition": (request.partitions, "partitions"),
        "flattened_id": (request.replicas * request.partitions, "flattened IDs"),
    }[mode]
    if expected not in (1, count):
        broken(
            "replica-groups",
            f"In {mode} mode, replica groups should contain {expected} {what}, but found {count}: {text}",
        )
    if uniform and len({len(group) for group in groups}) > 1:
        broken("replica-groups", "Replica groups expected to be of uniform size")


def _check_shards(instruction: HloInstruction, request: Request, *, gathered: bool) -> None:
    dimensions = tuple(request.need("dimensions"))
    if len(dimensions) != 1 or dimensions[0] < 0:
        broken("shard-count", f"{instruction.opcode} needs one dimension >= 0: {describe(instruction)}")
    dim, outputs = dimensions[0], outputs_of(request)
    if not request.operands:
        broken("operand-count", f"{instruction.opcode} needs an operand: {describe(instruction)}")
    if len(outputs) != len(request.operands):
        broken(
            "shard-count",
            f"{instruction.opcode} has {len(request.operands)} operands and a result of another number of parts: "
            f"{describe(instruction)}",
        )
    for operand, output in zip(request.operands, outputs, strict=True):
        if not is_array(operand) or dim >= operand.rank or not is_array(output) or dim >= output.rank:
            broken("shard-count", f"dimension {dim} is out of bounds in {describe(instruction)}")
    mode = _mode(request)
    if _groups(request) is None:
        return
    big, small = outputs[0].dimensions[dim], request.operands[0].dimensions[dim]
    if not gathered:
        big, small = small, big
    size = subgroup_size(request, mode)
    count = -(-big // small) if small > 0 else 0
    if size not in (1, count):
        broken("shard-count", f"shard_count = {count}, subgroup_size = {size}, {describe(instruction)}")


def _all_gather(context: Context, instruction: HloInstruction, request: Request) -> None:
    check_groups(context, instruction, request)
    _check_shards(instruction, request, gathered=True)


def _reduce_scatter(context: Context, instruction: HloInstruction, request: Request) -> None:
    check_groups(context, instruction, request)
    _check_shards(instruction, request, gathered=False)


def _all_reduce(context: Context, instruction: HloInstruction, request: Request) -> None:
    check_groups(context, instruction, request, uniform=False)


def _pairs(context: Context, instruction: HloInstruction, request: Request) -> None:
    """`CheckInplaceCollectivePermute` and `CheckDuplicatedSourceOrTarget`."""
    allowed = 1
    if is_inplace(request):
        _check_inplace(instruction, request)
        offsets = request.operand(2)
        if request.operand(0).is_tuple:
            offsets = offsets.tuple_shapes[0]
        allowed = len(offsets.tuple_shapes)
    pairs: tuple[tuple[int, ...], ...] = tuple(request.attr("source_target_pairs", ()))
    text = describe(instruction)
    if any(len(pair) != 2 for pair in pairs):
        broken("source-target-pairs", f"expects 'source_target_pairs=' to be pairs: {text}")
    limit = request.replicas if _mode(request) == "cross_replica" else request.partitions
    if limit == 1:
        limit = max([1, *(member + 1 for pair in pairs for member in pair)])
    counts: dict[tuple[str, int], int] = {}
    for pair in pairs:
        for name, member in zip(("Source", "Target"), pair, strict=True):
            if member < 0:
                broken(
                    "source-target-pairs",
                    f"{name} {member} in the instruction's source-target pair must be >= 0 : {text}",
                )
            if member >= limit:
                broken(
                    "source-target-pairs",
                    f"{name} {member} in the instruction's source-target pair must be < {limit} : {text}",
                )
            seen = counts.get((name, member), 0)
            if seen == allowed:
                times = "more than once" if allowed == 1 else f"more than {allowed} times"
                broken(
                    "source-target-pairs",
                    f"{name} {member} appears {times} in instruction's source-target pairs: {text}",
                )
            counts[name, member] = seen + 1


def _check_inplace(instruction: HloInstruction, request: Request) -> None:
    if instruction.operand_count != 4:
        broken("inplace-permute", f"Unexpected number of operands: {instruction.operand_count}.")
    source, target, source_at, target_at = request.operands
    if is_array(source) and is_array(target):
        _check_offset(source, source_at)
        _check_offset(target, target_at)
        return
    if not source.is_tuple or not target.is_tuple or len(source.tuple_shapes) != len(target.tuple_shapes):
        broken("inplace-permute", "Unmatching input buffers and output buffers.")
    for buffers, offsets, name in ((source, source_at, "input"), (target, target_at, "output")):
        if not offsets.is_tuple or len(offsets.tuple_shapes) != len(buffers.tuple_shapes):
            broken("inplace-permute", f"Unmatching {name} buffers and {name} offset.")
        for buffer, offset in zip(buffers.tuple_shapes, offsets.tuple_shapes, strict=True):
            _check_offset(buffer, offset)


def _check_offset(buffer: Shape, offset: Shape) -> None:
    if not offset.is_tuple:
        broken("inplace-permute", "Buffer offset is not tuple.")
    parts = offset.tuple_shapes
    arrays, tuples = all(is_array(s) for s in parts), all(s.is_tuple for s in parts)
    if not arrays and not tuples:
        broken("inplace-permute", "Buffer offset should either be a tuple of arrays or  a tuple of tuples.")
    counts = {len(s.tuple_shapes) for s in parts} if tuples and parts else {len(parts)}
    if counts != {buffer.rank}:
        broken("inplace-permute", "Buffer offset index should have the same number of elements as the buffer's rank.")


def _nothing(context: Context, instruction: HloInstruction, request: Request) -> None:
    """Shapes alone are checked."""


HANDLERS: Mapping[str, Check] = MappingProxyType(
    {
        "all-gather": _all_gather,
        "all-gather-start": _all_gather,
        "all-reduce": _all_reduce,
        "all-reduce-start": _all_reduce,
        "reduce-scatter": _reduce_scatter,
        "all-to-all": check_groups,
        "ragged-all-to-all": check_groups,
        "collective-permute": _pairs,
        "collective-permute-start": _pairs,
        "collective-broadcast": _nothing,
    }
)
"""What is checked before the shape, by opcode."""
