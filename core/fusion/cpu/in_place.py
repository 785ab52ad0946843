"""May a producer move into an instruction that overwrites one of its operands?

The answer keeps a fused loop from reading a buffer at places that it has written already.
Source: ``openxla/xla:xla/service/instruction_fusion.cc#ShouldFuseInPlaceOp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hloscope.core.analysis.elementwise import is_elementwise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hloscope.core.analysis.alias_info import AliasInfo
    from hloscope.core.hlo.instruction import HloInstruction


class InPlaceRefusal(NamedTuple):
    """A reason not to fuse, with XLA's words."""

    code: str
    reason: str


SAME_OPERAND = InPlaceRefusal(
    "in_place_operand_twice",
    "The consumer is an in-place operation that has an additional operand that has the same value as the in-place "
    "buffer",
)
MANY_NON_ELEMENTWISE = InPlaceRefusal(
    "in_place_many_non_elementwise", "Producer fusion has multiple non-elementwise ops, bailing."
)
CONFLICT = InPlaceRefusal("in_place_conflict", "Non-elementwise ops in consumer lead to inplace conflict after fusion.")
MANY_UPDATES = InPlaceRefusal("in_place_many_updates", "multiple dus ops, bailing.")
SLICE_SHAPE = InPlaceRefusal(
    "in_place_slice_shape", "Slice op has a different shape than the update shape of the dus op, bailing."
)
SLICE_INDEX = InPlaceRefusal("in_place_slice_index", "DUS and slice index mismatch")
SLICE_WALK = InPlaceRefusal(
    "in_place_slice_walk", "Fusing slice into DUS will also fuse another non-elementwise op with shared operand as DUS."
)
DYNAMIC_SHAPE = InPlaceRefusal(
    "in_place_dynamic_slice_shape",
    "Dynamic slice op has a different shape than the update shape of the dus op, bailing.",
)
DYNAMIC_INDEX = InPlaceRefusal("in_place_dynamic_slice_index", "DUS and DS index mismatch")
DYNAMIC_WALK = InPlaceRefusal(
    "in_place_dynamic_slice_walk",
    "Fusing DS into DUS will also fuse another non-elementwise op with shared operand as DUS.",
)
UNRECOGNIZED = InPlaceRefusal("in_place_unrecognized", "unrecognized inplace update non-elementwise output pair")

REFUSALS = (
    SAME_OPERAND, MANY_NON_ELEMENTWISE, CONFLICT, MANY_UPDATES, SLICE_SHAPE, SLICE_INDEX, SLICE_WALK, DYNAMIC_SHAPE,
    DYNAMIC_INDEX, DYNAMIC_WALK, UNRECOGNIZED,
)  # fmt: skip


def in_place_refusal(producer: HloInstruction, consumer: HloInstruction, alias: AliasInfo) -> InPlaceRefusal | None:
    """The reason why fusing would overwrite what is still to be read; None where it is safe."""
    for pair in alias.in_place_pairs(consumer):
        buffer = consumer.operand(pair.operand)
        if sum(one is buffer for one in consumer.operands) > 1:
            return SAME_OPERAND
        if buffer is not producer and buffer not in producer.operands:
            continue
        moved = _non_elementwise(producer)
        if len(moved) > 1:
            return MANY_NON_ELEMENTWISE
        if not moved:
            return _elementwise_refusal(producer, consumer)
        return _sliced_refusal(moved[0], producer, consumer)
    return None


def _is_moving(one: HloInstruction) -> bool:
    return one.opcode not in ("fusion", "bitcast", "parameter") and not is_elementwise(one)


def _non_elementwise(producer: HloInstruction) -> list[HloInstruction]:
    if producer.opcode == "fusion":
        return [one for one in producer.callee("calls") if _is_moving(one)]
    return [producer] if _is_moving(producer) else []


def _elementwise_refusal(producer: HloInstruction, consumer: HloInstruction) -> InPlaceRefusal | None:
    if consumer.opcode != "fusion":
        return None
    root = consumer.callee("calls").root
    below = _users_below(_bound(producer, consumer))
    return CONFLICT if any(one is not root and _is_moving(one) for one in below) else None


def _sliced_refusal(read: HloInstruction, producer: HloInstruction, consumer: HloInstruction) -> InPlaceRefusal | None:
    inside = consumer.callee("calls") if consumer.opcode == "fusion" else (consumer,)
    updates = [one for one in inside if one.opcode == "dynamic-update-slice"]
    if not updates:
        return None
    if len(updates) > 1:
        return MANY_UPDATES
    update = updates[0]
    starts = [_outside(one, consumer) for one in update.operands[2:]]
    if read.opcode == "slice":
        if read.shape != update.operand(1).shape:
            return SLICE_SHAPE
        if not all(
            part.stride == 1 and _constant(start) == part.start
            for start, part in zip(starts, read.attr("slice"), strict=True)
        ):
            return SLICE_INDEX
        return SLICE_WALK if _another_moves(producer, consumer, update) else None
    if read.opcode == "dynamic-slice":
        if read.shape != update.operand(1).shape:
            return DYNAMIC_SHAPE
        for start, own in zip(starts, read.operands[1:], strict=True):
            known = _constant(start)
            if start is not own and (known is None or known != _constant(own)):
                return DYNAMIC_INDEX
        return DYNAMIC_WALK if _another_moves(producer, consumer, update) else None
    return UNRECOGNIZED


def _another_moves(producer: HloInstruction, consumer: HloInstruction, update: HloInstruction) -> bool:
    if consumer.opcode != "fusion":
        return False
    below = _users_below(_bound(producer, consumer))
    return any(one is not update and _is_moving(one) for one in below)


def _bound(producer: HloInstruction, fusion: HloInstruction) -> list[HloInstruction]:
    """Parameters of a fusion's body that stand for a producer."""
    parameters = fusion.callee("calls").parameters
    return [parameters[at] for at, one in enumerate(fusion.operands) if one is producer]


def _users_below(starts: Iterable[HloInstruction]) -> list[HloInstruction]:
    """All transitive users."""
    seen: dict[HloInstruction, None] = {}
    stack = list(starts)
    while stack:
        for user in stack.pop().users:
            if user not in seen:
                seen[user] = None
                stack.append(user)
    return list(seen)


def _outside(one: HloInstruction, fusion: HloInstruction) -> HloInstruction:
    """The value outside that a parameter of a fusion stands for."""
    return fusion.operand(one.parameter_number) if one.opcode == "parameter" and fusion.opcode == "fusion" else one


def _constant(one: HloInstruction) -> int | None:
    """Value of an integer constant of one element."""
    if one.opcode != "constant" or one.shape.element_count != 1 or one.literal.values is None:
        return None
    return int(one.literal.values.reshape(-1)[0])
