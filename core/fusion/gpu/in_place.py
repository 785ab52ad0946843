"""Whether fusing would make a kernel read what it has overwritten: the rules for consumers that update in place.

Source: ``openxla/xla:xla/service/instruction_fusion.cc#ShouldFuseInPlaceOp, #IsSafeToFuseSliceIntoDusFusion``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.analysis.alias_info import AliasInfo
from hloscope.core.analysis.elementwise import is_elementwise
from hloscope.core.fusion.decision import ALLOWED, Decision

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import ShapeIndex

_SAME_BUFFER = (
    "The consumer is an in-place operation that has an additional operand that has the same value as the in-place "
    "buffer"
)
_NOT_COUNTED = frozenset(("fusion", "bitcast", "parameter"))


def in_place_conflict(producer: HloInstruction, consumer: HloInstruction) -> Decision:
    """Whether a consumer that updates in place may take a producer that touches the same buffer."""
    for pair in AliasInfo().in_place_pairs(consumer):
        place, index = pair.operand, pair.output_index
        buffer = consumer.operand(place)
        if any(one is buffer for other, one in enumerate(consumer.operands) if other != place):
            return Decision.forbid(_SAME_BUFFER, f"another copy of %{buffer.name}", buffer=buffer.name)
        if buffer is producer or buffer in producer.operands:
            return _pair(producer, consumer, index)
    return ALLOWED


def _inside(instruction: HloInstruction) -> list[HloInstruction]:
    return list(instruction.callee().instructions) if instruction.opcode == "fusion" else [instruction]


def _moves_elements(instruction: HloInstruction) -> bool:
    return instruction.opcode not in _NOT_COUNTED and not is_elementwise(instruction)


def _pair(producer: HloInstruction, consumer: HloInstruction, index: ShapeIndex) -> Decision:
    moving = [one for one in _inside(producer) if _moves_elements(one)]
    if len(moving) > 1:
        return Decision.forbid(
            "Producer fusion has multiple non-elementwise ops, bailing.",
            "the producer with one such instruction at most",
            count=len(moving),
            instructions=", ".join(one.name for one in moving[:4]),
        )
    if not moving:
        return _elementwise_producer(producer, consumer, index)
    updates = [one for one in _inside(consumer) if one.opcode == "dynamic-update-slice"]
    if not updates:
        return ALLOWED
    if len(updates) > 1:
        return Decision.forbid("multiple dus ops, bailing.", count=len(updates))
    if moving[0].opcode == "slice":
        return _slice(producer, consumer, moving[0], updates[0])
    if moving[0].opcode == "dynamic-slice":
        return _dynamic_slice(producer, consumer, moving[0], updates[0])
    return Decision.forbid(
        "unrecognized inplace update non-elementwise output pair",
        "a slice at the update's own place instead of it",
        opcode=moving[0].opcode,
    )


def _elementwise_producer(producer: HloInstruction, consumer: HloInstruction, index: ShapeIndex) -> Decision:
    if consumer.opcode != "fusion":
        return ALLOWED
    body = consumer.callee()
    in_place = body.root
    while index and in_place.opcode == "tuple":
        in_place, index = in_place.operand(index[0]), index[1:]
    start = body.parameters[consumer.operands.index(producer)]
    seen = {start}
    queue = [start]
    for node in queue:
        if node is not in_place and _moves_elements(node):
            return Decision.forbid(
                "Non-elementwise ops in consumer lead to inplace conflict after fusion.", instruction=node.name
            )
        for user in node.users:
            if user not in seen:
                seen.add(user)
                queue.append(user)
    return ALLOWED


def _bound(owner: HloInstruction, operand: HloInstruction) -> HloInstruction:
    if owner.opcode == "fusion" and operand.opcode == "parameter":
        return owner.operand(operand.parameter_number)
    return operand


def _constant(instruction: HloInstruction) -> int | None:
    if instruction.opcode != "constant" or instruction.literal.values is None:
        return None
    return int(instruction.literal.values.flat[0])


def _slice(
    producer: HloInstruction, consumer: HloInstruction, piece: HloInstruction, update: HloInstruction
) -> Decision:
    if piece.shape != update.operand(1).shape:
        return Decision.forbid(
            "Slice op has a different shape than the update shape of the dus op, bailing.",
            slice=str(piece.shape),
            update=str(update.operand(1).shape),
        )
    for dim, bounds in enumerate(piece.attr("slice")):
        start = _constant(_bound(consumer, update.operand(2 + dim)))
        if start is None or start != bounds.start or bounds.stride != 1:
            return Decision.forbid("DUS and slice index mismatch", "equal constant starts", dimension=dim)
    return _safe_walk(producer, consumer, update, "slice")


def _dynamic_slice(
    producer: HloInstruction, consumer: HloInstruction, piece: HloInstruction, update: HloInstruction
) -> Decision:
    if piece.shape != update.operand(1).shape:
        return Decision.forbid(
            "Dynamic slice op has a different shape than the update shape of the dus op, bailing.",
            slice=str(piece.shape),
            update=str(update.operand(1).shape),
        )
    for dim in range(update.shape.rank):
        read = _bound(producer, piece.operand(1 + dim))
        written = _bound(consumer, update.operand(2 + dim))
        a, b = _constant(read), _constant(written)
        if a != b or (a is None and read is not written):
            return Decision.forbid("DUS and DS index mismatch", "the same start instructions", dimension=dim)
    return _safe_walk(producer, consumer, update, "DS")


def _safe_walk(producer: HloInstruction, consumer: HloInstruction, update: HloInstruction, what: str) -> Decision:
    """No other element-moving instruction of a consumer fusion may read the producer."""
    if consumer.opcode != "fusion":
        return ALLOWED
    starts = [consumer.callee().parameters[place] for place, one in enumerate(consumer.operands) if one is producer]
    seen = set(starts)
    queue = list(starts)
    for node in queue:
        for user in node.users:
            if user is update or user in seen:
                continue
            if _moves_elements(user):
                return Decision.forbid(
                    f"Fusing {what} into DUS will also fuse another non-elementwise op with shared operand as DUS.",
                    instruction=user.name,
                )
            seen.add(user)
            queue.append(user)
    return ALLOWED
