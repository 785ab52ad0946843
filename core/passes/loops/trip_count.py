"""How often a loop runs. Source: ``openxla/xla:xla/service/while_loop_analysis.cc``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hloscope.core.errors import HloscopeError

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.passes.loops.state import Loop

BRUTE_FORCE = 128
"""Steps that are tried one by one where no formula applies."""
_UNKNOWN = frozenset({"parameter", "rng", "rng-bit-generator", "infeed", "partition-id", "replica-id", "custom-call"})


@dataclass(frozen=True, slots=True)
class TripCount:
    """What is known of a counted loop."""

    index: int
    """The element of the state that counts."""
    count: int | None
    """Trips; None where they are not known."""
    initial: int | None
    """Where the counter starts."""
    step: int | None
    """What a trip adds to it."""


def counter_index(loop: Loop) -> int | None:
    """The one element that the condition reads and the body makes of itself and constants."""
    state = loop.condition.parameters[0]
    read = {int(user.attr("index")) for user in state.users if user.user_count or user.is_root}
    if len(read) != 1:
        return None
    (index,) = read
    if not loop.instruction.shape.tuple_shapes[index].is_array:
        return None
    return index if _depends_only_on(loop.following(index), loop.body.parameters[0], index) else None


def _depends_only_on(root: HloInstruction, state: HloInstruction, index: int) -> bool:
    seen: set[HloInstruction] = set()
    work = [root]
    while work:
        one = work.pop()
        if one in seen:
            continue
        seen.add(one)
        if one.opcode == "get-tuple-element" and one.operand(0) is state:
            if int(one.attr("index")) != index:
                return False
            continue
        if one.opcode in _UNKNOWN or one.info.collective or one.has_side_effect or len(seen) > 64:
            return False
        work.extend(one.operands)
    return True


def known_value(one: HloInstruction, depth: int = 16) -> np.ndarray[Any, np.dtype[Any]] | None:
    """The value of a small array that follows from constants alone."""
    from hloscope.core.runtime.evaluator import evaluate_instruction

    if not one.shape.is_array or one.shape.is_dynamic or one.shape.element_count > 64 or not depth:
        return None
    if one.opcode == "constant":
        return one.literal.values
    if one.opcode in _UNKNOWN or one.info.collective or one.info.side_effect or one.opcode in ("while", "call"):
        return None
    if one.opcode == "get-tuple-element":
        source = one.operand(0)
        return known_value(source.operand(int(one.attr("index"))), depth - 1) if source.opcode == "tuple" else None
    operands = [known_value(operand, depth - 1) for operand in one.operands]
    if any(operand is None for operand in operands):
        return None
    try:
        return np.asarray(evaluate_instruction(one, [o for o in operands if o is not None]))
    except HloscopeError:
        return None


def initial_value(loop: Loop, index: int) -> np.ndarray[Any, np.dtype[Any]] | None:
    """What an element starts as, where that is known."""
    start = loop.initial(index)
    return None if start is None else known_value(start)


def step_of(loop: Loop, index: int) -> int | None:
    """k where the body adds the constant k to an element, else None."""
    following = loop.following(index)
    if following.opcode != "add" or not following.shape.type.is_integral:
        return None
    state = loop.body.parameters[0]
    for one, other in (following.operands, following.operands[::-1]):
        taken = one.opcode == "get-tuple-element" and one.operand(0) is state and int(one.attr("index")) == index
        if taken and other.opcode == "constant" and other.shape.element_count == 1:
            values = other.literal.values
            return None if values is None else int(values.reshape(-1)[0])
    return None


def trip_count(loop: Loop, limit: int = BRUTE_FORCE) -> TripCount | None:
    """The trips of a loop that counts; None for a loop without a counter. At most `limit` steps are tried."""
    index = counter_index(loop)
    if index is None:
        return None
    start = initial_value(loop, index)
    step = step_of(loop, index)
    whole = None
    if start is not None and start.size == 1 and loop.instruction.shape.tuple_shapes[index].type.is_integral:
        whole = int(start.reshape(-1)[0])
    count = _by_formula(loop, index, whole, step)
    if count is None and start is not None:
        count = _by_trial(loop, index, start, limit)
    return TripCount(index, count, whole, step)


def _by_formula(loop: Loop, index: int, start: int | None, step: int | None) -> int | None:
    """Trips of ``for (i = start; i < bound; i += step)``."""
    root = loop.condition.root
    if start is None or not step or step <= 0 or root.opcode != "compare" or not root.shape.is_scalar:
        return None
    state = loop.condition.parameters[0]
    direction = str(root.attr("direction"))
    left, right = root.operands
    if right.opcode == "get-tuple-element" and right.operand(0) is state:
        left, right = right, left
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
    if left.opcode != "get-tuple-element" or left.operand(0) is not state or direction not in ("LT", "LE"):
        return None
    bound = known_value(right)
    if bound is None:
        return None
    last = int(bound.reshape(-1)[0]) + (direction == "LE")
    kind = root.operand(0).shape.type
    if last + step - 1 > (1 << (kind.bits - (kind.kind == "int"))) - 1:
        return None  # the counter would wrap around
    return max(0, -(-(last - start) // step))


def _by_trial(loop: Loop, index: int, start: np.ndarray[Any, np.dtype[Any]], limit: int) -> int | None:
    value: Any = start
    for trips in range(limit + 1):
        go_on = _evaluated(loop.condition.root, loop.condition, index, value)
        if go_on is None:
            return None
        if not bool(go_on.reshape(-1)[0]):
            return trips
        value = _evaluated(loop.following(index), loop.body, index, value)
        if value is None:
            return None
    return None


def _evaluated(
    root: HloInstruction, computation: HloComputation, index: int, value: np.ndarray[Any, np.dtype[Any]]
) -> np.ndarray[Any, np.dtype[Any]] | None:
    """The value of an instruction that depends on one element of the state."""
    from hloscope.core.runtime.evaluator import evaluate_instruction

    state = computation.parameters[0]
    known: dict[HloInstruction, Any] = {}

    def of(one: HloInstruction) -> Any:
        if one in known:
            return known[one]
        if one.opcode == "get-tuple-element" and one.operand(0) is state:
            found: Any = value
        elif one.opcode == "constant":
            found = one.literal.array()
        elif not one.shape.is_array or one.shape.element_count > 64:
            raise HloscopeError("too large to be tried")
        else:
            found = evaluate_instruction(one, [of(operand) for operand in one.operands])
        known[one] = found
        return found

    try:
        return np.asarray(of(root))
    except HloscopeError:
        return None
