"""Running priority fusion along a recorded dump: the recorded steps supply what the text has lost, and are compared.

A text keeps neither the order in which instructions became users nor their ids. The dump shows both: the order of
users in every list of consumers, the picks among equal priorities in the order of the fusions made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.core.fusion.gpu.can_fuse import is_fusible_bitcast
from hloscope.core.fusion.gpu.priority_fusion import Step, names_used_before

if TYPE_CHECKING:
    from hloscope.core.fusion.gpu.fuse import UserOrder
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.ledger.events import FusionDecision


def recorded_steps(events: Sequence[FusionDecision]) -> list[Step]:
    """The steps of a dump (or of imported events) as the pass has them."""
    steps: list[Step] = []
    for event in events:
        producer = event.subject or ""
        if event.verdict == "fused":
            made = event.made if event.made is not None else _made(event)
            steps.append(Step("fused", producer, event.consumers, made=made))
        elif event.verdict == "ineligible":
            steps.append(Step("ineligible", producer, reason=event.reason))
        elif event.verdict == "priority":
            # a time of zero is not written
            steps.append(
                Step(
                    "priority", producer, event.consumers, us_unfused=event.us_unfused or 0.0,
                    us_fused=event.us_fused or 0.0,
                )
            )  # fmt: skip
    return steps


def _made(event: FusionDecision) -> str | None:
    """The fusion's name: the consumer's, unless the event says that a new one was made."""
    return event.consumers[0] if event.consumers else None


@dataclass(slots=True)
class Group:
    """Scores between two fusions, and the fusions that follow them."""

    scores: list[Step] = field(default_factory=list[Step])
    fusions: list[Step] = field(default_factory=list[Step])


def groups_of(steps: Sequence[Step]) -> list[Group]:
    """Steps cut where a score follows a fusion: within a group the order of scores means nothing."""
    groups = [Group()]
    for step in steps:
        if step.kind == "fused":
            groups[-1].fusions.append(step)
            continue
        if groups[-1].fusions:
            groups.append(Group())
        groups[-1].scores.append(step)
    return groups


class DumpGuide:
    """Follows a dump's steps (see `hloscope.core.fusion.gpu.priority_fusion.Guide`)."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._groups = groups_of(steps)
        self._fusions = [step for step in steps if step.kind == "fused"]
        self._done = 0
        self._reasons: dict[str, str] = {}
        self._first: dict[str, list[str]] = {}
        for step in steps:
            if step.kind == "priority":
                self._first.setdefault(step.producer, list(step.consumers))
        # fusions seen so far tell which group of scores comes next
        self._starts: list[int] = []
        count = 0
        for group in self._groups:
            self._starts.append(count)
            count += len(group.fusions)

    def order(self, computations: list[HloComputation]) -> list[HloComputation]:
        seen: dict[str, int] = {}
        for group in self._groups:
            for step in (*group.scores, *group.fusions):
                seen.setdefault(step.producer, len(seen))
        last = len(seen)
        place: dict[HloComputation, int] = {}
        for one in computations:
            place[one] = min((seen.get(each.name, last) for each in one.instructions), default=last)
        quiet = [one for one in computations if place[one] == last]
        loud = sorted((one for one in computations if place[one] < last), key=place.__getitem__)
        if not loud or not quiet:
            return computations
        # computations without a step (conditions of loops) burn names: those that come first show in the first one
        first = self.first_name()
        if first is not None and first > names_used_before(computations[0].module):
            return [*quiet, *loud]
        made: list[HloComputation] = []
        for one in computations:
            made.append(one if one in quiet else loud.pop(0))
        return made

    def expected(self, producer: HloInstruction) -> str | None:
        return self._reasons.get(producer.name)

    def first_order(self, name: str) -> list[str] | None:
        return self._first.get(name)

    def first_name(self) -> int | None:
        for step in self._fusions:
            name = step.made or ""
            if name not in step.consumers and name.startswith("fusion"):
                number = name.partition(".")[2]
                return int(number) if number.isdigit() else 0
        return None

    def before_batch(self, find: Callable[[str], HloInstruction | None], users: UserOrder) -> None:
        self._reasons.clear()
        for start, group in zip(self._starts, self._groups, strict=True):
            if start != self._done:
                continue
            for step in group.scores:
                if step.kind == "ineligible" and step.reason is not None:
                    self._reasons[step.producer] = step.reason
                found = find(step.producer) if step.kind == "priority" else None
                if found is not None and {one.name for one in users.of(found)} == set(step.consumers):
                    users.sort(found, step.consumers)

    def pick(self, equal: list[HloInstruction]) -> HloInstruction | None:
        if self._done >= len(self._fusions):
            return None
        wanted = self._fusions[self._done].producer
        found = next((one for one in equal if one.name == wanted), None)
        if found is not None:
            return found
        # bitcasts that no user takes leave no step, and change nothing when they go first
        return next((one for one in equal if is_fusible_bitcast(one) and self._later(one.name) is None), None)

    def _later(self, name: str) -> int | None:
        return next((at for at in range(self._done, len(self._fusions)) if self._fusions[at].producer == name), None)

    def before_fusing(self, producer: HloInstruction, consumers: list[HloInstruction]) -> list[HloInstruction]:
        at = self._done
        order: dict[str, int] = {}
        while at < len(self._fusions) and self._fusions[at].producer == producer.name:
            order.setdefault(self._fusions[at].consumers[0], at)
            at += 1
        sorted_consumers = sorted(consumers, key=lambda one: order.get(one.name, len(self._fusions)))
        self._done += sum(not is_fusible_bitcast(one) for one in consumers)
        return sorted_consumers


def same_time(a: float | None, b: float | None, tolerance: float = 0.0) -> bool:
    """Whether two times agree; dumps print single precision."""
    if a is None or b is None:
        return a is b
    return abs(a - b) <= max(tolerance * abs(b), 5e-7 * max(abs(a), abs(b), 1.0))


def same_score(a: Step, b: Step) -> bool:
    """Whether two scores of a producer agree in kind, reason and times."""
    if a.kind != b.kind:
        return False
    if a.kind == "ineligible":
        return same_reason(a.reason, b.reason)
    return same_time(a.us_unfused, b.us_unfused) and same_time(a.us_fused, b.us_fused)


_PREFIXES = ("Fusion can not be tiled with SymbolicTileAnalysis: ", "TiledRunTimeDataOrError return status: ")


def reason_class(reason: str | None) -> str:
    """A refusal's words without what names instructions: tiling failures print whole index maps."""
    text = reason or ""
    for prefix in _PREFIXES:
        if text.startswith(prefix):
            return prefix.strip(": ")
    return text


def same_reason(a: str | None, b: str | None) -> bool:
    """Whether two refusals are of one class."""
    return reason_class(a) == reason_class(b)


def count_equal(ours: Sequence[Step], real: Sequence[Step]) -> tuple[int, list[tuple[str, str, str]]]:
    """How many of the real steps we have too, group by group, and the first differences (subject, ours, real)."""
    equal = 0
    different: list[tuple[str, str, str]] = []
    mine, theirs = groups_of(ours), groups_of(real)
    for number, group in enumerate(theirs):
        own = mine[number] if number < len(mine) else Group()
        left = list(own.scores)
        for step in group.scores:
            found = next(
                (
                    one for one in left
                    if one.producer == step.producer and same_score(one, step)
                    and (step.kind != "priority" or one.consumers == step.consumers)
                ),
                None,
            )  # fmt: skip
            if found is not None:
                left.remove(found)
                equal += 1
            else:
                near = next((one for one in left if one.producer == step.producer), None)
                different.append((step.producer, describe(near), describe(step)))
        for place, step in enumerate(group.fusions):
            one = own.fusions[place] if place < len(own.fusions) else None
            if one == step:
                equal += 1
            else:
                different.append((step.producer, describe(one), describe(step)))
    return equal, different


def describe(step: Step | None) -> str:
    """A step in a few words."""
    if step is None:
        return "nothing"
    if step.kind == "ineligible":
        return f"ineligible: {step.reason}"
    if step.kind == "fused":
        return f"{step.producer} fused into {', '.join(step.consumers)} as {step.made}"
    return f"{step.us_unfused} apart, {step.us_fused} fused into {', '.join(step.consumers)}"


def initial_scores(steps: Sequence[Step]) -> dict[str, Step]:
    """The first score of every producer."""
    found: dict[str, Step] = {}
    for step in steps:
        if step.kind != "fused":
            found.setdefault(step.producer, step)
    return found


def reason_counts(steps: Sequence[Step]) -> Counter[str]:
    """Refusals by class."""
    return Counter(reason_class(step.reason) for step in steps if step.kind == "ineligible")
