"""Every reason for which XLA:GPU's priority fusion refuses a producer and a consumer, in the order of asking.

Source: ``openxla/xla:xla/backends/gpu/transforms/priority_fusion.cc#CanFuse``, ``xla/service/gpu/gpu_fusible.cc``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import MAX_IR_SIZE
from hloscope.core.analysis.elementwise import elements, is_elementwise, is_generally_fusible, keeps_bit_width
from hloscope.core.fusion.decision import ALLOWED, Decision
from hloscope.core.fusion.gpu.fusion_analysis import is_triton_fusion
from hloscope.core.fusion.gpu.in_place import in_place_conflict
from hloscope.core.fusion.gpu.shapes import is_unnested_reduction, reduction_shape, tiled_transpose
from hloscope.core.fusion.gpu.triton import triton_supports

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.fusion.gpu.model import GpuModel
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

SIGNIFICANT_REDUCTION = 16
"""Elements reduced into one, from which on a reduce counts."""
MAX_UNNESTED_REDUCTIONS = 8
MAX_PARAMETERS = 96
"""Operands and outputs of one kernel."""

ROOT = "not fusing into the output of the root instruction"
PRODUCER = "the producer is not fusible"
CONSUMER = "the consumer is not fusible"
HEROLESS = "triton heroless fusion is not enabled"
BITCAST = "not fusing into a single bitcast as consumer"
TWO_REDUCES = "both the producer and the consumer contain a reduce"
REDUCE_TO_LOOP = "fusion into output of a reduce fusion would create a loop fusion"
CODE_DUPLICATION = "the fusion would result in an overly large code duplication"
NO_USERS = "No users to fuse"
ONLY_BITCASTS = "not fusing because there are only bitcast users"

_FUSIBLE = frozenset(
    """copy iota constant reduce broadcast concatenate dynamic-slice dynamic-update-slice gather pad reduce-window
    reshape reverse scatter slice transpose""".split()
)


def is_fusible_bitcast(instruction: HloInstruction) -> bool:
    """A bitcast that keeps the element width."""
    return instruction.opcode == "bitcast" and keeps_bit_width(instruction)


def is_fusible(instruction: HloInstruction) -> bool:
    """Whether an instruction can be part of a GPU fusion."""
    if not is_generally_fusible(instruction):
        return False
    opcode = instruction.opcode
    if opcode == "fusion":
        return instruction.attr("kind") != "kCustom" or is_triton_fusion(instruction) or is_elementwise(instruction)
    return opcode in _FUSIBLE or is_elementwise(instruction) or is_fusible_bitcast(instruction)


def is_scatter_fusion(instruction: HloInstruction) -> bool:
    """A scatter, or an input fusion with one at its root."""
    if instruction.opcode == "scatter":
        return True
    return (
        instruction.opcode == "fusion"
        and instruction.attr("kind") == "kInput"
        and instruction.callee().root.opcode == "scatter"
    )


def scatter_refusal(producer: HloInstruction, consumer: HloInstruction) -> Decision:
    """A scatter is fused at a fusion's root only, and its in-place operand comes from outside."""
    if is_scatter_fusion(producer):
        return Decision.forbid("do not fuse into the output of scatter", "a consumer that is no scatter's user")
    if not is_scatter_fusion(consumer):
        return ALLOWED
    buffer = consumer.operand(0)
    if consumer.opcode == "fusion":
        inside = consumer.callee().root.operand(0)
        if inside.opcode == "parameter":
            buffer = consumer.operand(inside.parameter_number)
    if buffer is producer:
        return Decision.forbid("do not fuse into the in-place operand of scatter", buffer=buffer.name)
    if buffer in producer.operands:
        return Decision.forbid("Producer uses the in-place operand of a scatter", buffer=buffer.name)
    return ALLOWED


def _inside(instruction: HloInstruction) -> Iterable[HloInstruction]:
    return instruction.callee().instructions if instruction.opcode == "fusion" else (instruction,)


def significant_reduction(instruction: HloInstruction) -> int | None:
    """The largest reduction factor inside, None where none is significant."""
    found = [
        elements(one.operand(0).shape) // max(1, elements(one.shape))
        for one in _inside(instruction)
        if one.opcode == "reduce" and one.shape.is_array
    ]
    largest = max(found, default=0)
    return largest if largest >= SIGNIFICANT_REDUCTION else None


def shared_memory(instruction: HloInstruction, device: DeviceDescription) -> int:
    """Bytes of shared memory that reductions and transposes inside would take."""
    total = 0
    for one in _inside(instruction):
        opcode = one.opcode
        if opcode == "fusion":
            total += shared_memory(one, device)
        elif opcode == "reduce" and is_unnested_reduction(one, device):
            sizes = sum(operand.shape.type.byte_size for operand in one.operands[: one.operand_count // 2])
            total += 32 * sizes if reduction_shape(one).is_row else 32 * (4 * 32 + 1) * sizes
        elif opcode == "transpose" and (transpose := tiled_transpose(one)) is not None:
            total += transpose.shared_bytes
    return total


def unnested_reductions(instruction: HloInstruction, device: DeviceDescription) -> int:
    """Reductions inside that have a kernel of their own kind."""
    return sum(one.opcode == "reduce" and is_unnested_reduction(one, device) for one in _inside(instruction))


def _subshapes(shape: Shape) -> int:
    return 1 + sum(_subshapes(one) for one in shape.tuple_shapes)


def parameter_refusal(consumer: HloInstruction, producer: HloInstruction, *, consumes: bool = True) -> Decision:
    """A kernel takes so many pointers only; one that consumes the other may keep as many operands as it had."""
    outputs = _subshapes(consumer.shape) + _subshapes(producer.shape)
    if consumer.operand_count + producer.operand_count - 1 + outputs <= MAX_PARAMETERS:
        return ALLOWED
    operands = {*consumer.operands, *producer.operands} - {consumer, producer}
    if (consumes and len(operands) <= consumer.operand_count) or len(operands) + outputs <= MAX_PARAMETERS:
        return ALLOWED
    return Decision.forbid(
        "Number of operands and output buffers is larger than allowed budget per fusion",
        f"at most {MAX_PARAMETERS} operands and outputs together",
        operands=len(operands),
        outputs=outputs,
        limit=MAX_PARAMETERS,
    )


def budget_refusal(
    consumer: HloInstruction, producer: HloInstruction, device: DeviceDescription, *, consumes: bool = True
) -> Decision:
    """Shared memory, reductions and parameters have limits."""
    shared = shared_memory(consumer, device) + shared_memory(producer, device)
    if shared > device.shared_memory_per_block:
        return Decision.forbid(
            f"shared memory usage would be over the budget of {device.shared_memory_per_block}B",
            "fewer or narrower reductions and transposes in one kernel",
            shared_bytes=shared,
            limit=device.shared_memory_per_block,
        )
    reductions = unnested_reductions(consumer, device) + unnested_reductions(producer, device)
    if reductions > MAX_UNNESTED_REDUCTIONS:
        return Decision.forbid(
            f"over {MAX_UNNESTED_REDUCTIONS} unnested reductions in fusion",
            reductions=reductions,
            limit=MAX_UNNESTED_REDUCTIONS,
        )
    return parameter_refusal(consumer, producer, consumes=consumes)


def can_fuse(producer: HloInstruction, consumer: HloInstruction, model: GpuModel) -> Decision:
    """Whether a producer may go into a consumer; the first refusal counts."""
    if producer.is_root:
        return Decision.forbid(ROOT, "the producer's result must not be the computation's")
    if not is_fusible(producer):
        return Decision.forbid(PRODUCER, "an opcode that fusions can hold", opcode=_what(producer))
    if not is_fusible(consumer):
        return Decision.forbid(CONSUMER, "an opcode that fusions can hold", opcode=_what(consumer))
    triton = can_fuse_triton(producer, consumer, model)
    if triton or is_triton_fusion(producer) or is_triton_fusion(consumer):
        return triton
    if is_fusible_bitcast(consumer):
        return Decision.forbid(BITCAST, "the bitcast is fused itself, into what reads it")
    scatter = scatter_refusal(producer, consumer)
    if not scatter:
        return scatter
    first, second = significant_reduction(producer), significant_reduction(consumer)
    if first is not None and second is not None:
        return Decision.forbid(
            TWO_REDUCES,
            f"one of them below {SIGNIFICANT_REDUCTION} elements reduced into one",
            producer_factor=first,
            consumer_factor=second,
            limit=SIGNIFICANT_REDUCTION,
        )
    kind = model.analysis(producer).kind
    if kind == "reduction" and model.analysis(producer, consumer).kind == "loop":
        return Decision.forbid(
            REDUCE_TO_LOOP,
            "only unary elementwise steps between the reduce and the fusion's root",
            emitter="reduction",
            fused_emitter="loop",
        )
    budget = budget_refusal(consumer, producer, model.device)
    if not budget:
        return budget
    size = model.costs.merged_ir_size(producer, consumer)
    if size > MAX_IR_SIZE:
        return Decision.forbid(CODE_DUPLICATION, "fewer uses of the producer", ir_size=size, limit=MAX_IR_SIZE)
    return in_place_conflict(producer, consumer)


def can_fuse_triton(producer: HloInstruction, consumer: HloInstruction, model: GpuModel) -> Decision:
    """Whether the pair can be a Triton fusion; on success its run time is remembered."""
    if not is_fusible(producer):
        return Decision.forbid(PRODUCER, opcode=_what(producer))
    if not is_fusible(consumer):
        return Decision.forbid(CONSUMER, opcode=_what(consumer))
    if not (model.heroless or is_triton_fusion(producer) or is_triton_fusion(consumer)):
        return Decision.forbid(HEROLESS, "xla_gpu_experimental_enable_triton_heroless_priority_fusion")
    for one in (producer, consumer):
        support = triton_supports(one, model.device)
        if not support:
            return support
    limit = parameter_refusal(consumer, producer)
    if not limit:
        return limit
    return model.tile(producer, consumer)


def can_fuse_constant(constant: HloInstruction, user: HloInstruction, device: DeviceDescription) -> Decision:
    """Whether a constant of one element goes into a user, after all other fusing."""
    scatter = scatter_refusal(constant, user)
    if not scatter:
        return scatter
    if is_triton_fusion(user):
        return triton_supports(constant, device)
    if not is_fusible(user):
        return Decision.forbid("User is not fusible", opcode=_what(user))
    return ALLOWED


def _what(instruction: HloInstruction) -> str:
    if instruction.opcode == "fusion":
        return f"fusion of kind {instruction.attr('kind')}"
    return instruction.opcode
