"""Normalization diamonds: a value is reduced, the result is broadcast, and both meet in one elementwise operation.

Softmax is two of them in a row (the maximum subtracted, the sum divided by), layer normalization is another two.
Source: ``openxla/xla:xla/backends/gpu/transforms/softmax_rewriter_triton.cc`` (what makes a diamond, and
#IsTriviallyFusible).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hloscope.core.analysis.elementwise import is_elementwise, minor_to_major
from hloscope.core.fusion.decision import ALLOWED, Decision
from hloscope.core.fusion.gpu.triton import triton_supports

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape


class Diamond(NamedTuple):
    """Where the two ways part and where they meet."""

    root: HloInstruction
    producer: HloInstruction


def match_diamond(root: HloInstruction, device: DeviceDescription) -> Diamond | Decision:
    """The diamond that ends at an instruction, or why there is none."""
    if not _is_binary(root):
        return Decision.forbid("Root is not elementwise binary.", opcode=root.opcode)
    supported = triton_supports(root, device)
    if not supported:
        return Decision.forbid("Root is not supported for Triton instruction.", opcode=root.opcode)
    broadcast = _up_to(root.operand(1), "broadcast", device)
    if broadcast is None:
        return Decision.forbid("Could not find a trivial connection from root to a broadcast.")
    reduce = _up_to(broadcast.operand(0), "reduce", device)
    if reduce is None:
        return Decision.forbid("Could not find a trivial connection from matched broadcast to a reduction.")
    if not (_row_major(broadcast.shape) and _row_major(reduce.shape)):
        return Decision.forbid("Broadcast or reduce have non-default layouts.")
    refused = _reduction_refusal(reduce, device)
    if not refused:
        return refused
    if broadcast.user_count != 1 or reduce.user_count != 1:
        return Decision.forbid(
            "More than one use of broadcast or reduce.",
            "one user of each",
            broadcast=broadcast.user_count,
            reduce=reduce.user_count,
        )
    if broadcast.shape.rank - 1 in broadcast.dimensions:
        return Decision.forbid("Broadcast is not along the reduction dimension.")
    producer = reduce.operand(0)
    while is_trivially_fusible(producer, device):
        producer = _onwards(producer)
    if not _row_major(producer.shape):
        return Decision.forbid("Producer has non-default layout.")
    if not _connected(producer, root.operand(0), device):
        return Decision.forbid("Producer is not trivially connected.", producer=producer.name)
    if producer is not root.operand(0) and root.operand(0).user_count != 1:
        return Decision.forbid("Unsupported root-producer connection.", users=root.operand(0).user_count)
    return Diamond(root, producer)


def _reduction_refusal(reduce: HloInstruction, device: DeviceDescription) -> Decision:
    supported = triton_supports(reduce, device)
    if not supported:
        return supported
    if reduce.dimensions != (reduce.operand(0).shape.rank - 1,):
        return Decision.forbid(
            "The reductions in the diamond must reduce 1 dimension and that dimension must be the last dimension of "
            "the operand.",
            dimensions=",".join(map(str, reduce.dimensions)),
        )
    identity = reduce.operand(1)
    converted = identity.opcode == "convert" and identity.operand(0).opcode == "constant"
    if identity.opcode != "constant" and not (converted and triton_supports(identity, device)):
        return Decision.forbid(
            "Reduction identity is not a constant or a supported convert of a constant.", identity=identity.name
        )
    return ALLOWED


def is_trivially_fusible(one: HloInstruction, device: DeviceDescription) -> bool:
    """Whether an instruction adds no traffic and goes with any tiling: one user, one operand that is no splat."""
    if one.user_count > 1 or not _row_major(one.shape):
        return False
    if one.opcode == "bitcast":
        return True
    if is_elementwise(one) and one.operand_count == 1:
        return bool(triton_supports(one, device))
    if not _is_binary(one):
        return False
    first, second = one.operands
    if first is second or _is_splat(first) != _is_splat(second):
        return bool(triton_supports(one, device))
    return False


def _is_binary(one: HloInstruction) -> bool:
    return is_elementwise(one) and one.operand_count == 2


def _is_splat(one: HloInstruction) -> bool:
    if one.opcode != "broadcast":
        return False
    source = one.operand(0)
    return source.opcode == "parameter" or (source.opcode == "constant" and source.shape.is_scalar)


def _onwards(one: HloInstruction) -> HloInstruction:
    """The operand on which the way goes on: the first that is no splat."""
    return one.operand(1) if one.operand_count > 1 and _is_splat(one.operand(0)) else one.operand(0)


def _up_to(start: HloInstruction, opcode: str, device: DeviceDescription) -> HloInstruction | None:
    one = start
    while one.opcode != opcode:
        if not is_trivially_fusible(one, device):
            return None
        one = _onwards(one)
    return one


def _connected(producer: HloInstruction, consumer: HloInstruction, device: DeviceDescription) -> bool:
    if producer is consumer:
        return True
    one = consumer
    while True:
        found = _up_to(one, producer.opcode, device)
        if found is None:
            return False
        if found is producer:
            return True
        if not is_trivially_fusible(found, device):
            return False
        one = found.operand(0)


def _row_major(shape: Shape) -> bool:
    return shape.is_array and minor_to_major(shape) == tuple(range(shape.rank - 1, -1, -1))
