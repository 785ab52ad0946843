"""Making fusions: a new fusion around an instruction, and a producer pulled into it.

`UserOrder` keeps the users of the instructions of one computation in XLA's order, which the order of fusing and the
names depend on: adding appends, removing moves the last user into the hole. Source:
``openxla/xla:xla/hlo/ir/hlo_instructions.cc#CloneAndAppendInstructionIntoCalledComputation, #MergeFusionInstruction``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class UserOrder:
    """Users of every instruction of a computation, in XLA's order."""

    def __init__(self, computation: HloComputation, order: Mapping[str, Sequence[str]] | None = None) -> None:
        """`order` gives names of users by name of the instruction, where it is known better than from the text."""
        self._users: dict[HloInstruction, list[HloInstruction]] = {}
        for one in computation.instructions:
            users = list(one.users)
            wanted = order.get(one.name) if order is not None else None
            if wanted is not None:
                place = {name: number for number, name in enumerate(wanted)}
                users.sort(key=lambda user: place.get(user.name, len(place)))
            self._users[one] = users

    def of(self, instruction: HloInstruction) -> list[HloInstruction]:
        """Users of an instruction (a copy)."""
        return list(self._users.get(instruction, ()))

    def sort(self, instruction: HloInstruction, names: Sequence[str]) -> None:
        """Put the users of an instruction into a known order."""
        place = {name: number for number, name in enumerate(names)}
        self._users[instruction].sort(key=lambda user: place.get(user.name, len(place)))

    def add(self, operand: HloInstruction, user: HloInstruction) -> None:
        """Note a user; once is enough."""
        users = self._users.setdefault(operand, [])
        if user not in users:
            users.append(user)

    def remove(self, operand: HloInstruction, user: HloInstruction) -> None:
        """Forget a user; the last one takes its place."""
        users = self._users.get(operand)
        if users is None or user not in users:
            return
        hole = users.index(user)
        last = users.pop()
        if hole < len(users):
            users[hole] = last

    def merge(self, fusion: HloInstruction, other: HloInstruction) -> None:
        """Follow `other` becoming part of `fusion` beside what it computes; to be called before it does.

        XLA copies each instruction of a fusion into the computation first, takes the copies in from the last to the
        first, and removes them: every one of them is a user of what it reads for a while.
        """
        copies = _copies(other)
        for copy, read in copies:
            for operand in read:
                self.add(operand, copy)
        if copies:
            self._leave(other)
        for copy, read in reversed(copies):
            for operand in read:
                self.add(operand, fusion)
            for operand in read:
                self.remove(operand, copy)
        if not copies:
            for operand in dict.fromkeys(other.operands):
                self.add(operand, fusion)
            self._leave(other)

    def _leave(self, user: HloInstruction) -> None:
        for operand in dict.fromkeys(user.operands):
            self.remove(operand, user)

    def forget(self, instruction: HloInstruction, operands: Iterable[HloInstruction]) -> None:
        """Drop an instruction that was removed and had these operands."""
        for operand in dict.fromkeys(operands):
            self.remove(operand, instruction)
        self._users.pop(instruction, None)


def _copies(fusion: HloInstruction) -> list[tuple[HloInstruction, list[HloInstruction]]]:
    """A stand-in for each instruction of a fusion, with the operands of the fusion that it reads."""
    if fusion.opcode != "fusion":
        return []
    root = fusion.callee().root
    return [
        (
            HloInstruction(one.opcode, one.shape, name=one.name),
            [
                fusion.operand(operand.parameter_number)
                for operand in dict.fromkeys(one.operands)
                if operand.opcode == "parameter"
            ],
        )
        for one in fusion.callee().post_order()
        if one.opcode != "parameter" and not (one.opcode == "tuple" and one is root)
    ]


def wrap(consumer: HloInstruction, kind: str, name: str, users: UserOrder | None = None) -> HloInstruction:
    """Put an instruction into a fusion of its own, which takes its place; the fusion is returned."""
    computation = consumer.parent
    operands = list(dict.fromkeys(consumer.operands))
    body = HloComputation("fused_computation")
    module = computation.module
    module.add_computation(body, first=True)
    made: dict[HloInstruction, HloInstruction] = {}
    for number, operand in enumerate(operands):
        made[operand] = body.add(
            HloInstruction("parameter", operand.shape, name=f"param_{number}", payload=str(number))
        )
    clone = consumer.clone_with(operands=[made[one] for one in consumer.operands])
    body.add(clone)
    body.set_root(clone)
    fusion = HloInstruction("fusion", consumer.shape, operands, name=name, attrs={"kind": kind}, called={"calls": body})
    for key in ("metadata", "frontend_attributes"):
        text = consumer.raw_attrs.get(key)
        if text is not None:
            fusion.set_attr(key, text)
    computation.add(fusion)
    old_users = users.of(consumer) if users is not None else []
    if users is not None:
        for operand in operands:
            users.add(operand, fusion)
    old_operands = consumer.operands
    for before in consumer.control_predecessors:
        before.add_control_dependency(fusion)
    for after in consumer.control_successors:
        fusion.add_control_dependency(after)
    consumer.drop_all_control_dependencies()
    consumer.replace_all_uses_with(fusion)
    if users is not None:
        for user in old_users:
            users.add(fusion, user)
        users.forget(consumer, old_operands)
    computation.remove(consumer)
    return fusion


def pull_in(fusion: HloInstruction, producer: HloInstruction, users: UserOrder | None = None) -> None:
    """Make a producer (or what is in it, where it is a fusion) part of a fusion that reads it; the producer stays."""
    body = fusion.callee()
    place = fusion.operands.index(producer)
    parameter = body.parameters[place]
    new_operands: dict[HloInstruction, HloInstruction] = {
        one: body.parameters[number] for number, one in enumerate(fusion.operands) if number != place
    }
    kept = [one for number, one in enumerate(fusion.operands) if number != place]
    added: list[HloInstruction] = []

    def bound(operand: HloInstruction) -> HloInstruction:
        known = new_operands.get(operand)
        if known is None:
            known = HloInstruction("parameter", operand.shape, name="param", payload=str(len(body.parameters)))
            body.add(known)
            new_operands[operand] = known
            added.append(operand)
        return known

    if producer.opcode == "fusion":
        # XLA clones from the root upwards, so parameters appear in that order
        inner = producer.callee()
        result = _merge(body, producer, inner, bound)
    else:
        result = producer.clone_with(operands=[bound(one) for one in producer.operands])
        body.add(result)
    parameter.replace_all_uses_with(result)
    if body.root is parameter:
        body.set_root(result)
    body.remove(parameter)
    for number, one in enumerate(body.parameters):
        if one.parameter_number != number:
            one.set_parameter_number(number)
    set_operands(fusion, [*kept, *added])
    if users is not None:
        users.remove(producer, fusion)
        for operand in added:
            users.add(operand, fusion)


def _merge(
    body: HloComputation,
    producer: HloInstruction,
    inner: HloComputation,
    bound: Callable[[HloInstruction], HloInstruction],
) -> HloInstruction:
    order = [one for one in inner.post_order() if one.opcode != "parameter"]
    outer: dict[HloInstruction, HloInstruction] = {}
    for one in reversed(order):
        for operand in one.operands:
            if operand.opcode == "parameter" and operand not in outer:
                outer[operand] = bound(producer.operand(operand.parameter_number))
    root = inner.root
    if root.opcode == "parameter":
        return outer.get(root) or bound(producer.operand(root.parameter_number))
    made: dict[HloInstruction, HloInstruction] = dict(outer)
    for one in order:
        clone = one.clone_with(operands=[made[operand] for operand in one.operands])
        made[one] = body.add(clone)
    return made[root]


def set_operands(fusion: HloInstruction, operands: list[HloInstruction]) -> None:
    """Give a fusion these operands in place of those that it has."""
    fusion.detach_operands()
    for operand in operands:
        fusion.append_operand(operand)
