"""The queue of priority fusion: producers by the time that fusing each into all its users would save.

Source: ``openxla/xla:xla/backends/gpu/transforms/priority_fusion.cc#PriorityFusionQueue``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import is_generally_fusible
from hloscope.core.fusion.cost_model.run_time import LAUNCH_OVERHEAD
from hloscope.core.fusion.decision import ALLOWED, Decision
from hloscope.core.fusion.gpu.can_fuse import NO_USERS, ONLY_BITCASTS, can_fuse, is_fusible, is_fusible_bitcast

if TYPE_CHECKING:
    from hloscope.core.fusion.gpu.fuse import UserOrder
    from hloscope.core.fusion.gpu.model import GpuModel
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction

INFINITE = 1 << 62
"""Priority of bitcasts, in ticks; the negative of it stands for "never"."""


@dataclass(frozen=True, slots=True)
class Score:
    """One priority that was computed."""

    producer: HloInstruction
    name: str
    """The producer's name when it was scored."""
    consumers: tuple[str, ...]
    priority: int
    """Ticks; `INFINITE` or its negative."""
    decision: Decision
    """Why it is not in the queue, where it may not be fused."""
    refused_by: str | None = None
    """The user that cannot take it."""
    unfused: int = 0
    """Ticks apart; a difference to the score before where `incremental`."""
    fused: int = 0
    incremental: bool = False


Tie = Callable[[list["HloInstruction"]], "HloInstruction | None"]


class _Priorities:
    """Producers by priority: the largest is found without a look at all others."""

    def __init__(self) -> None:
        self.of: dict[HloInstruction, int] = {}
        self._equal: dict[int, dict[HloInstruction, None]] = {}
        self._heap: list[int] = []
        """Negated priorities; some may have nobody left."""

    def set(self, producer: HloInstruction, priority: int) -> None:
        """Enter a producer, or move it."""
        if self.of.get(producer) == priority:
            return
        self.drop(producer)
        self.of[producer] = priority
        if priority not in self._equal:
            heappush(self._heap, -priority)
        self._equal.setdefault(priority, {})[producer] = None

    def drop(self, producer: HloInstruction) -> None:
        """Take a producer out, if it is in."""
        priority = self.of.pop(producer, None)
        if priority is not None:
            self._equal[priority].pop(producer)

    def largest(self) -> list[HloInstruction]:
        """The producers of the highest priority; there must be one."""
        while not self._equal[-self._heap[0]]:
            del self._equal[-heappop(self._heap)]
        return list(self._equal[-self._heap[0]])


@dataclass(slots=True)
class PriorityQueue:
    """Producers of one computation and their priorities."""

    computation: HloComputation
    model: GpuModel
    users: UserOrder
    on_score: Callable[[Score], None]
    tie: Tie | None = None
    """Asked which of several producers of equal priority goes first; None for the youngest."""
    expected: Callable[[HloInstruction], str | None] | None = None
    """The reason of a refusal that is known to come, where users refuse for several reasons."""
    ids: dict[HloInstruction, int] = field(default_factory=dict["HloInstruction", int])
    producer: HloInstruction | None = None
    """The producer that was taken last."""
    consumers: list[HloInstruction] = field(default_factory=list["HloInstruction"])
    _priorities: _Priorities = field(default_factory=lambda: _Priorities())
    _decisions: dict[HloInstruction, dict[HloInstruction, Decision]] = field(
        default_factory=dict["HloInstruction", dict["HloInstruction", Decision]]
    )
    _to_update: dict[HloInstruction, None] = field(default_factory=dict["HloInstruction", None])
    _new_consumers: dict[HloInstruction, list[HloInstruction]] = field(
        default_factory=dict["HloInstruction", list["HloInstruction"]]
    )
    _removed: dict[HloInstruction, tuple[int, int]] = field(default_factory=dict["HloInstruction", tuple[int, int]])
    _next_id: int = 0

    def start(self) -> None:
        """Score every producer of the computation."""
        for one in self.computation.instructions:
            self.number(one)
        members: list[HloInstruction] = []
        for one in self.computation.post_order():
            if is_fusible(one):
                self.model.run_time(one)
            if one.opcode in ("parameter", "tuple", "get-tuple-element") or not one.user_count:
                continue
            if is_generally_fusible(one):
                members.append(one)
        self._score_all(members)

    def number(self, instruction: HloInstruction) -> None:
        """Give an instruction the next id; the younger one wins among equals."""
        if instruction not in self.ids:
            self.ids[instruction] = self._next_id
            self._next_id += 1

    # ---------------------------------------------------------------- taking
    def take(self) -> bool:
        """Take the best producer that has a consumer; False once there is none."""
        self.producer, self.consumers = None, []
        while self._priorities.of and not self.consumers:
            best = self._best()
            self._priorities.drop(best)
            self.producer = best
            self.consumers = self.users.of(best)
            if is_fusible_bitcast(best):
                self.consumers = [one for one in self.consumers if self.decide(best, one)]
        return bool(self.consumers)

    def _best(self) -> HloInstruction:
        equal = self._priorities.largest()
        if len(equal) > 1 and self.tie is not None:
            chosen = self.tie(equal)
            if chosen is not None:
                return chosen
        return max(equal, key=self.ids.__getitem__)

    def decide(self, producer: HloInstruction, consumer: HloInstruction) -> Decision:
        """Whether the pair may be fused; remembered until one of both changes."""
        known = self._decisions.setdefault(producer, {})
        found = known.get(consumer)
        if found is None:
            found = known[consumer] = can_fuse(producer, consumer, self.model)
        return found

    # ---------------------------------------------------------------- after a fusion
    def on_fused(self, fusion: HloInstruction, producer: HloInstruction, consumer: HloInstruction) -> None:
        """Note what must be scored again."""
        self.number(fusion)
        if fusion is not consumer:
            self.remove(consumer)
        for operand in fusion.operands:
            if operand is producer or operand.opcode in ("constant", "get-tuple-element"):
                continue
            if not is_generally_fusible(operand):
                continue
            self._to_update[operand] = None
            self._new_consumers.setdefault(operand, []).append(fusion)
        self._to_update[fusion] = None

    def remove(self, instruction: HloInstruction) -> None:
        """Forget an instruction that is gone."""
        self._to_update.pop(instruction, None)
        self._priorities.drop(instruction)

    def note_removed_consumers(self) -> None:
        """Add up what the consumers that have just changed contributed to the scores of their operands."""
        for operand in self._new_consumers:
            if operand not in self._priorities.of:
                continue
            pairs = self.model.known_pairs(operand)
            if pairs is None:
                continue
            unfused = self.model.run_time(operand).exec + LAUNCH_OVERHEAD
            fused = 0
            for consumer in (*self.consumers, self.producer):
                if consumer in pairs:
                    fused += pairs[consumer].exec
                    unfused += self.model.run_time(consumer).exec
            self._removed[operand] = (unfused, fused)

    def invalidate(self, instruction: HloInstruction) -> None:
        """Forget decisions and times of an instruction that has changed."""
        self._decisions.pop(instruction, None)
        for operand in instruction.operands:
            known = self._decisions.get(operand)
            if known is not None:
                known.pop(instruction, None)
        self.model.invalidate(instruction)

    def update(self) -> None:
        """Score again what a fusion has touched."""
        for one in self._to_update:
            self.model.costs.revisit(one)
        for one in self._to_update:
            if is_fusible(one):
                self.model.run_time(one)
        self._score_all(list(self._to_update))
        self._to_update.clear()
        self._new_consumers.clear()
        self._removed.clear()

    # ---------------------------------------------------------------- scoring
    def _score_all(self, instructions: Iterable[HloInstruction]) -> None:
        scores = [self.score(one) for one in instructions]
        for score in scores:
            self.on_score(score)
            if score.priority < 0:
                self._priorities.drop(score.producer)
            else:
                self._priorities.set(score.producer, score.priority)

    def score(self, producer: HloInstruction) -> Score:
        """The time that fusing a producer into its users saves."""
        users = self.users.of(producer)
        names = tuple(one.name for one in users)
        if is_fusible_bitcast(producer):
            return Score(producer, producer.name, names, INFINITE, ALLOWED)
        if producer.opcode == "constant":
            return Score(producer, producer.name, names, -INFINITE, ALLOWED)
        decision, by = self._with_all_users(producer, users)
        if not decision:
            return Score(producer, producer.name, names, -INFINITE, decision, by)
        removed = self._removed.get(producer)
        if removed is None:
            unfused, fused = self.model.estimate(producer, users)
            return Score(producer, producer.name, names, unfused - fused, ALLOWED, None, unfused, fused)
        unfused, fused = self.model.estimate(producer, self._new_consumers[producer])
        unfused -= removed[0]
        fused -= removed[1]
        priority = self._priorities.of[producer] + unfused - fused
        return Score(producer, producer.name, names, priority, ALLOWED, None, unfused, fused, True)

    def _with_all_users(self, producer: HloInstruction, users: list[HloInstruction]) -> tuple[Decision, str | None]:
        if not users:
            return Decision.forbid(NO_USERS), None
        asked = [user for user in users if not is_fusible_bitcast(user)]
        if not asked:
            return Decision.forbid(ONLY_BITCASTS, "a user that is no bitcast"), None
        wanted = self.expected(producer) if self.expected is not None else None
        first: tuple[Decision, str] | None = None
        for user in asked:
            decision = self.decide(producer, user)
            if not decision:
                if wanted is None or decision.reason == wanted:
                    return decision, user.name
                first = first or (decision, user.name)
        return first or (ALLOWED, None)
