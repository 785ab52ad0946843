"""The order of users carried from one pass to the next, by names.

Which siblings multi-output fusion tries first depends on the order of users, and that on everything that happened
before. A text has lost it; the run of priority fusion along a dump knows it at its end, and between the two passes only
``cse`` and ``dce`` move users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hloscope.core.hlo.hashing import computation_hash
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.cse import HloCse

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.gate import Question, Refusal


def after_cse(module: HloModule, users: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Users after ``cse``, which runs on the module in place; `users` are those before."""
    follower = _Follower({name: list(order) for name, order in users.items()})
    HloCse(is_layout_sensitive=True).run(module, PassContext(target="gpu", handlers=(follower,)))
    return follower.orders


class _Follower:
    """Watches ``cse`` at its gate."""

    def __init__(self, orders: dict[str, list[str]]) -> None:
        self.orders = orders

    def decide(self, question: Question) -> Refusal | None:
        old = question.instruction
        if old is None or not question.others or old.parent.is_fusion:
            return None
        kept = self.orders.setdefault(question.others[0].name, [])
        kept.extend(user for user in self.orders.get(old.name, ()) if user not in kept)
        self.orders[old.name] = []
        dead = [old]
        while dead:
            one = dead.pop()
            for operand in dict.fromkeys(one.operands):
                if self._remove(operand, one) and operand.parent.is_removable(operand):
                    dead.append(operand)
        return None

    def _remove(self, operand: HloInstruction, user: HloInstruction) -> bool:
        """Drop a user, whose place the last one takes. Returns whether it was the only one."""
        order = self.orders.get(operand.name, [])
        if user.name not in order:
            return False
        place, last = order.index(user.name), order.pop()
        if place < len(order):
            order[place] = last
        return not order


def renamed(users: Mapping[str, Sequence[str]], ours: HloModule, real: HloModule) -> dict[str, list[str]]:
    """Users under the names of another module that computes the same.

    Fusions that constants alone went into are numbered by the order of the constants in memory, which text has lost.
    """
    names: dict[str, str] = {}
    done: dict[HloComputation, bytes] = {}
    for module in (ours, real):
        for computation in module.post_order():
            computation_hash(computation, done)
    twins = {one.name: one for one in real.computations}
    for computation in ours.post_order():
        twin = twins.get(computation.name)
        if computation.is_fusion or twin is None:
            continue
        left: dict[tuple[bytes, tuple[str, ...]], list[str]] = {}
        for one in twin.instructions:
            if one.opcode == "fusion":
                left.setdefault(_key(one, done, {}), []).append(one.name)
        for one in computation.post_order():
            found = left.get(_key(one, done, names)) if one.opcode == "fusion" else None
            if found:
                name = one.name if one.name in found else found[0]
                found.remove(name)
                names[one.name] = name
    return {names.get(name, name): [names.get(user, user) for user in order] for name, order in users.items()}


def _key(
    fusion: HloInstruction, done: dict[HloComputation, bytes], names: Mapping[str, str]
) -> tuple[bytes, tuple[str, ...]]:
    operands = tuple(names.get(operand.name, operand.name) for operand in fusion.operands)
    return done[fusion.callee()], operands
