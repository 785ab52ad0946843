"""The state of a while loop as a list of elements that can be taken away, added and replaced where they stand.

Everything here works in place on the loop, its body and its condition, which nobody else may call; names stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.shape import Shape
from hloscope.core.passes.gate import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule


@dataclass(frozen=True, slots=True)
class Loop:
    """A while loop over a tuple whose body builds the next tuple, with nobody else calling body or condition."""

    instruction: HloInstruction
    body: HloComputation
    condition: HloComputation

    @property
    def width(self) -> int:
        """Elements of the state."""
        return len(self.instruction.shape.tuple_shapes)

    @property
    def parameters(self) -> tuple[HloInstruction, HloInstruction]:
        """The state as the body and as the condition get it."""
        return self.body.parameters[0], self.condition.parameters[0]

    def initial(self, index: int) -> HloInstruction | None:
        """What an element starts as; None where the start is not built here."""
        start = self.instruction.operand(0)
        return start.operand(index) if start.opcode == "tuple" else None

    def following(self, index: int) -> HloInstruction:
        """What the body makes of an element."""
        return self.body.root.operand(index)

    def passes_through(self, index: int) -> bool:
        """Whether the body hands an element on as it got it."""
        return is_element(self.following(index), self.body.parameters[0], index)


def is_element(one: HloInstruction, of: HloInstruction, index: int) -> bool:
    """Whether an instruction takes one element of a value."""
    return one.opcode == "get-tuple-element" and one.operand(0) is of and int(one.attr("index")) == index


def elements_of(value: HloInstruction, index: int) -> list[HloInstruction]:
    """The instructions that take an element of a value."""
    return [user for user in value.users if is_element(user, value, index)]


def loop_of(one: HloInstruction) -> Loop | Refusal:
    """The loop, where it has the form that the rewrites need."""
    body, condition = one.callee("body"), one.callee("condition")
    if len(body.callers) != 1 or len(condition.callers) != 1:
        return Refusal("shared", f"{len(body.callers)} callers of the body, {len(condition.callers)} of the condition")
    if not one.shape.is_tuple:
        return Refusal("no_tuple", str(one.shape))
    if body.root.opcode != "tuple":
        return Refusal("body_root", body.root.opcode)
    for computation in (body, condition):
        parameter = computation.parameters[0]
        if any(user.opcode != "get-tuple-element" for user in parameter.users) or parameter.is_root:
            return Refusal("whole_state", f"{computation.name} uses its state as a whole")
    return Loop(one, body, condition)


def loops_in(module: HloModule) -> list[HloInstruction]:
    """All while loops, those in callees first."""
    return [one for computation in module.post_order() for one in computation if one.opcode == "while"]


def own_state(loop: Loop) -> list[HloInstruction]:
    """Make the start of a loop a tuple that nobody else uses; what was made."""
    start = loop.instruction.operand(0)
    if start.opcode == "tuple" and start.user_count == 1 and not start.is_root:
        return []
    home = loop.instruction.parent
    made: list[HloInstruction] = []
    if start.opcode == "tuple":
        parts = list(start.operands)
    else:
        parts = [
            home.add(HloInstruction("get-tuple-element", shape, [start], attrs={"index": i}))
            for i, shape in enumerate(start.shape.tuple_shapes)
        ]
        made.extend(parts)
    whole = home.add(HloInstruction("tuple", start.shape, parts, metadata=loop.instruction.raw_attrs.get("metadata")))
    loop.instruction.replace_operand(0, whole)
    return [*made, whole]


def take_apart(value: HloInstruction) -> list[HloInstruction]:
    """Make every use of a tuple take its elements; what was made: nothing where that is so already."""
    others = [user for user in value.users if user.opcode != "get-tuple-element"]
    if not others and not value.is_root:
        return []
    home = value.parent
    parts = [
        home.add(HloInstruction("get-tuple-element", shape, [value], attrs={"index": i}))
        for i, shape in enumerate(value.shape.tuple_shapes)
    ]
    whole = home.add(HloInstruction("tuple", value.shape, parts))
    for user in others:
        value.replace_use_with(user, whole)
    if value.is_root:
        home.set_root(whole)
    return [*parts, whole]


def drop_elements(loop: Loop, gone: Mapping[int, int | None]) -> None:
    """Take elements out of the state.

    `gone` maps an element to the one that stands for it, or to None where nobody takes it (any longer). Uses of the
    loop as a whole must have been taken apart.
    """
    own_state(loop)
    kept = [i for i in range(loop.width) if i not in gone]
    places = {old: new for new, old in enumerate(kept)}
    start, root = loop.instruction.operand(0), loop.body.root
    dead: list[HloInstruction] = []
    for holder in (loop.instruction, *loop.parameters):
        shape = Shape.tuple_([holder.shape.tuple_shapes[i] for i in kept])
        for user in holder.users:
            if user.opcode != "get-tuple-element":
                continue
            index = int(user.attr("index"))
            stands = gone.get(index, index)
            if stands is None:
                dead.append(user)
                continue
            user.set_attr("index", places[stands])
        holder.shape = shape
    _shrink(start, kept)
    _shrink(root, kept)
    if start.in_computation and not start.user_count:
        start.parent.remove_with_dead_operands(start)
    for one in dead:
        _remove_with_users(one)


def _remove_with_users(one: HloInstruction) -> None:
    """Remove a node that nothing alive depends on, and first all that depends on it."""
    if not one.in_computation:
        return
    for user in one.users:
        _remove_with_users(user)
    one.parent.remove(one)


def _shrink(whole: HloInstruction, kept: list[int]) -> None:
    """Rebuild a tuple with some of its operands, in place."""
    operands = [whole.operand(i) for i in kept]
    lost = [operand for operand in dict.fromkeys(whole.operands) if operand not in operands]
    whole.detach_operands()
    for operand in operands:
        whole.append_operand(operand)
    whole.shape = Shape.tuple_([operand.shape for operand in operands])
    for operand in lost:
        if operand.in_computation and not operand.user_count and not operand.is_root:
            operand.parent.remove_with_dead_operands(operand)


def add_elements(loop: Loop, starts: list[HloInstruction]) -> list[HloInstruction]:
    """Append invariant elements to the state; the values inside the body, in order."""
    own_state(loop)
    start, root, first = loop.instruction.operand(0), loop.body.root, loop.width
    for one in starts:
        start.append_operand(one)
    shape = Shape.tuple_([operand.shape for operand in start.operands])
    for holder in (start, loop.instruction, *loop.parameters):
        holder.shape = Shape.tuple_([*holder.shape.tuple_shapes[:first], *shape.tuple_shapes[first:]])
    inside: list[HloInstruction] = []
    for i, one in enumerate(starts):
        element = HloInstruction(
            "get-tuple-element", one.shape, [loop.body.parameters[0]], attrs={"index": first + i}
        )
        inside.append(loop.body.add(element))
        root.append_operand(element)
    root.shape = Shape.tuple_([operand.shape for operand in root.operands])
    return inside
