"""A fusion, a single instruction, or a producer and its consumer seen as if they were one fusion already.

The view hides fusion borders: operands are followed through parameters, users out of fusion roots. Nothing is copied.
Source: ``openxla/xla:xla/hlo/utils/hlo_traversal.cc#HloFusionAdaptor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction


class FusionView:
    """One or two instructions (each may be a fusion) as one body."""

    def __init__(self, *parts: HloInstruction) -> None:
        self.parts = parts
        """The producer, if there is one, and the consumer."""
        self._bodies: dict[HloComputation, HloInstruction] = {}
        self._singles: set[HloInstruction] = set()
        self._opcodes: frozenset[str] | None = None
        for part in parts:
            if part.opcode == "fusion":
                self._bodies[part.callee("calls")] = part
            else:
                self._singles.add(part)

    def contains(self, instruction: HloInstruction) -> bool:
        """Whether an instruction is inside."""
        return instruction in self._singles or (instruction.in_computation and instruction.parent in self._bodies)

    def resolve(self, operand: HloInstruction) -> HloInstruction:
        """What an operand really is: the root of a contained fusion, or what a parameter is bound to."""
        while True:
            if operand.opcode == "get-tuple-element" and operand.operand(0).opcode == "fusion":
                root = operand.operand(0).callee().root
                if root.opcode == "tuple" and self.contains(root):
                    return root.operand(operand.attr("index"))
            if not self.contains(operand):
                if operand.opcode == "fusion" and operand.callee() in self._bodies:
                    return operand.callee().root
                return operand
            if operand.opcode != "parameter" or operand in self._singles:
                return operand
            operand = self._bodies[operand.parent].operand(operand.parameter_number)

    def operands(self, instruction: HloInstruction) -> list[HloInstruction]:
        """Operands with borders looked through."""
        if instruction.opcode == "parameter":
            found = self.resolve(instruction)
            return [] if found is instruction else [found]
        return [self.resolve(one) for one in instruction.operands]

    def users(self, instruction: HloInstruction) -> list[HloInstruction]:
        """Users inside with borders looked through; a root tuple is no user."""
        found: list[HloInstruction] = []
        if instruction.in_computation and instruction.is_root and instruction.parent in self._bodies:
            fusion = self._bodies[instruction.parent]
            for user in fusion.users:
                self._add_user(fusion, user, found)
        for user in instruction.users:
            self._add_user(instruction, user, found)
        return found

    def _add_user(self, used: HloInstruction, user: HloInstruction, found: list[HloInstruction]) -> None:
        if user.opcode == "tuple" and user.in_computation and user.is_root and user.parent in self._bodies:
            for outer in self._bodies[user.parent].users:
                if outer.opcode == "get-tuple-element":
                    for reader in outer.users:
                        self._add_user(outer, reader, found)
                elif self.contains(outer):
                    found.append(outer)
            return
        if self.contains(user):
            found.append(user)
        elif user.opcode == "fusion" and user.callee() in self._bodies:
            found.extend(user.callee().parameters[user.operands.index(used)].users)

    def roots(self) -> list[HloInstruction]:
        """What the body computes: its root, or the elements of a root tuple."""
        roots = _roots(self.parts[-1])
        if len(self.parts) == 1:
            return roots
        producer_roots = _roots(self.parts[0])
        for place, root in enumerate(roots):
            if root.opcode != "parameter" or root in self._singles:
                continue
            operand = self.parts[-1].operand(root.parameter_number)
            index = 0
            if operand.opcode == "get-tuple-element":
                index, operand = operand.attr("index"), operand.operand(0)
            if operand is self.parts[0]:
                roots[place] = producer_roots[index]
        return roots

    def parameters(self) -> list[HloInstruction]:
        """What the body reads from outside: the consumer's operands, then what the producer adds."""
        if len(self.parts) == 1:
            return list(self.parts[0].operands)
        producer, consumer = self.parts
        found: list[HloInstruction] = []
        for one in consumer.operands:
            source = one.operand(0) if one.opcode == "get-tuple-element" else one
            if source is not producer:
                found.append(one)
        seen = set(found)
        for one in producer.operands:
            if one not in seen:
                seen.add(one)
                found.append(one)
        return found

    def instructions(self) -> Iterable[HloInstruction]:
        """Everything inside but parameters, tuples and get-tuple-elements."""
        for part in self.parts:
            if part.opcode != "fusion":
                yield part
                continue
            for one in part.callee("calls").instructions:
                if one.opcode not in ("parameter", "tuple", "get-tuple-element"):
                    yield one

    def post_order(self) -> list[HloInstruction]:
        """Operands before users, parameters and root tuples left out."""
        order: list[HloInstruction] = []
        for part in self.parts:
            if part.opcode != "fusion":
                order.append(part)
                continue
            order.extend(
                one
                for one in part.callee("calls").post_order()
                if one.opcode != "parameter" and not (one.opcode == "tuple" and one.is_root)
            )
        return order

    @property
    def opcodes(self) -> frozenset[str]:
        """Opcodes that occur inside."""
        if self._opcodes is None:
            self._opcodes = frozenset(one.opcode for one in self.instructions())
        return self._opcodes

    def any_of(self, predicate: Callable[[HloInstruction], bool]) -> bool:
        """Whether something inside fulfils a predicate."""
        return any(predicate(one) for one in self.instructions())

    def walk(
        self, starts: Iterable[HloInstruction], visit: Callable[[HloInstruction], bool | None], *, up: bool
    ) -> None:
        """Breadth first from `starts`, to operands with `up`, else to users.

        `visit` answers True to go on from a node, False to stop there, None to end the walk.
        """
        seen: set[HloInstruction] = set()
        queue: list[HloInstruction] = []
        for start in starts:
            if start not in seen:
                seen.add(start)
                queue.append(start)
        for node in queue:
            answer = visit(node)
            if answer is None:
                return
            if not answer:
                continue
            for near in self.operands(node) if up else self.users(node):
                if near not in seen and self.contains(near):
                    seen.add(near)
                    queue.append(near)


def _roots(part: HloInstruction) -> list[HloInstruction]:
    if part.opcode != "fusion":
        return [part]
    found: list[HloInstruction] = []

    def collect(one: HloInstruction) -> None:
        if one.opcode == "tuple":
            for operand in one.operands:
                collect(operand)
        else:
            found.append(one)

    collect(part.callee("calls").root)
    return found
