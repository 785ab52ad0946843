"""Whether pulling an instruction into a matrix multiplication pays, and how dimension orders get through it.

Source: ``openxla/xla:xla/service/gpu/triton_tiling_propagation.cc``
(GetPropagatedDimOrdersAndRequirementsIfProfitablyFusible, IsInputWorthFusing, IsOutputWorthFusing).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import is_elementwise
from hloscope.core.fusion.decision import ALLOWED, Decision
from hloscope.core.fusion.gpu.dim_order import DimensionOrder, DotProperties, Orders, propagate
from hloscope.core.fusion.gpu.triton_gemm_support import gemm_supports

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.hlo.instruction import HloInstruction

TOLERANCE_BYTES = 1024
"""Bytes by which what a fusion reads or writes may grow."""
MAX_CONTRACTED_FOR_SLICE = 1024
"""Elements of the contracted dimension up to which a slice of what others read too may be fused."""
_REDUCTIONS = frozenset(("reduce", "all-reduce", "all-reduce-start", "all-reduce-done"))
_LEAVES = frozenset(("parameter", "constant"))


def into_input(
    one: HloInstruction, order: DimensionOrder, device: DeviceDescription, properties: DotProperties
) -> tuple[Orders, int] | Decision:
    """Orders of the operands of an instruction that is worth being computed on the way into a dot."""
    passed = _passes(one, order, device, properties, to_operands=True)
    if isinstance(passed, Decision):
        return passed
    if _has_cheap_broadcast(one, passed[0], device, properties):
        return passed
    worth = input_worth(one, properties)
    return passed if worth else worth


def into_output(
    one: HloInstruction,
    source: HloInstruction,
    order: DimensionOrder,
    device: DeviceDescription,
    properties: DotProperties,
) -> tuple[Orders, int] | Decision:
    """The order of an instruction that is worth being computed on the way out of a dot; `source` is on that way."""
    passed = _passes(one, order, device, properties, to_operands=False)
    if isinstance(passed, Decision):
        return passed
    place = one.operands.index(source)
    for number, operand in enumerate(one.operands):
        if number != place and not _is_effective_parameter(operand) and not _is_cheap_broadcast(operand):
            return Decision.forbid(
                "Has multiple inputs - not properly analyzed yet.",
                "other operands that are parameters or broadcasts of them",
                operand=operand.name,
            )
    worth = output_worth(one)
    return passed if worth else worth


def _passes(
    one: HloInstruction, order: DimensionOrder, device: DeviceDescription, properties: DotProperties, *,
    to_operands: bool,
) -> tuple[Orders, int] | Decision:  # fmt: skip
    opcode = one.opcode
    if opcode in ("tuple", "get-tuple-element"):
        return Decision.forbid("Unsupported instruction.", opcode=opcode)
    if opcode in _REDUCTIONS:
        return Decision.forbid("Reductions are not fused yet.")
    if opcode == "pad":
        return Decision.forbid("Pads are not fused yet.")
    if opcode == "power" and one.user_count > 1:
        return Decision.forbid(
            "Not fusing power with multiple users because it may result in expensive op duplication.",
            users=one.user_count,
        )
    supported = gemm_supports(one, device)
    if not supported:
        return supported
    return propagate(one, order, properties, to_operands=to_operands)


def _has_cheap_broadcast(
    one: HloInstruction, orders: Orders, device: DeviceDescription, properties: DotProperties
) -> bool:
    """Whether one of two elementwise operands is a broadcast that can come along."""
    if not is_elementwise(one) or one.operand_count != 2:
        return False
    return any(
        operand.opcode == "broadcast"
        and operand.operand(0).opcode in _LEAVES
        and not isinstance(into_input(operand, orders[operand], device, properties), Decision)
        for operand in one.operands
    )


def _is_effective_parameter(one: HloInstruction) -> bool:
    while one.opcode in ("bitcast", "get-tuple-element"):
        one = one.operand(0)
    return one.opcode == "parameter"


def _is_cheap_broadcast(one: HloInstruction) -> bool:
    return one.opcode == "broadcast" and (one.operand(0).shape.is_scalar or _is_effective_parameter(one.operand(0)))


def _growth(one: HloInstruction) -> int | None:
    """Bytes read less bytes written; None with a tuple among the operands."""
    if any(operand.shape.is_tuple for operand in one.operands):
        return None
    return sum(operand.shape.byte_size for operand in one.operands) - one.shape.byte_size


def input_worth(one: HloInstruction, properties: DotProperties) -> Decision:
    """Whether computing an instruction inside reads hardly more, or its operands are read by nobody else."""
    growth = _growth(one)
    if growth is not None:
        if growth <= TOLERANCE_BYTES:
            return ALLOWED
        if one.user_count <= 1 and _reads_for_itself(one, properties):
            return ALLOWED
    return Decision.forbid(
        "Not obviously profitable to fuse as input.",
        f"at most {TOLERANCE_BYTES} bytes more to read",
        growth=-1 if growth is None else growth,
        users=one.user_count,
    )


def _reads_for_itself(one: HloInstruction, properties: DotProperties) -> bool:
    if one.opcode == "slice":
        if all(operand.opcode in _LEAVES for operand in one.operands):
            return True
        users = one.operand(0).users
        alike = all(user.opcode == "slice" and user.shape.same_dimensions(one.shape) for user in users)
        if len(users) > 1 and properties.contracted <= MAX_CONTRACTED_FOR_SLICE and not alike:
            return True
    if one.opcode == "multiply":
        return False
    return all(operand.opcode in _LEAVES and operand.user_count <= 1 for operand in one.operands)


def output_worth(one: HloInstruction) -> Decision:
    """Whether computing an instruction inside writes hardly more, or nobody else could take it."""
    growth = _growth(one)
    if growth is not None and (growth >= -TOLERANCE_BYTES or _nobody_else(one)):
        return ALLOWED
    return Decision.forbid(
        "Not obviously profitable to fuse as output.",
        f"at most {TOLERANCE_BYTES} bytes more to write",
        growth=0 if growth is None else -growth,
    )


def _nobody_else(one: HloInstruction) -> bool:
    if one.is_root:
        return True
    return one.user_count == 1 and one.users[0].is_root and one.users[0].opcode == "tuple"


# ---------------------------------------------------------------- four-bit integers
def four_bit_refusal(dot: HloInstruction, sources: list[HloInstruction]) -> Decision:
    """Four-bit parameters may not be read along the batch; asked only where the way to every parameter is known.

    `sources` are what the fusion reads. Source: ``openxla/xla:xla/service/gpu/triton_fusion_analysis.cc
    #IsBatchDimMinorForInt4Parameter``.
    """
    if not any(one.shape.element_type == "s4" for one in sources):
        return ALLOWED
    refused: HloInstruction | None = None
    for side, name in enumerate(("lhs", "rhs")):
        batch = dot.attr(f"{name}_batch_dims") or ()
        read = _parameters(dot.operand(side), DotProperties(-1, -1, 1))
        if read is None:
            return ALLOWED
        for parameter, order in read.items():
            if batch and parameter.shape.element_type == "s4" and order.first_stride(batch[0]) == 1:
                refused = parameter
    one = dot
    order = DimensionOrder.of(dot.shape)
    while not one.is_root:
        if one.user_count != 1:
            return ALLOWED
        user = one.users[0]
        passed = propagate(user, order, DotProperties(-1, -1, 1), to_operands=False)
        if isinstance(passed, Decision):
            return ALLOWED
        one, order = user, passed[0][user]
    if refused is None:
        return ALLOWED
    return Decision.forbid(
        "Fusion is not possible because the parameter with the type S4 has minor batch dimension.",
        "another layout of the parameter",
        parameter=refused.name,
    )


def _parameters(start: HloInstruction, properties: DotProperties) -> Orders | None:
    """How each parameter behind an operand is read; None where that is not known for one of them."""
    found: Orders = {}
    orders: Orders = {start: DimensionOrder.of(start.shape)}
    queue = [start]
    for one in queue:
        if one.opcode == "parameter":
            found[one] = orders[one]
            continue
        passed = propagate(one, orders[one], properties, to_operands=True)
        if isinstance(passed, Decision):
            return None
        for operand, order in passed[0].items():
            if operand not in orders:
                orders[operand] = order
                queue.append(operand)
    return found
