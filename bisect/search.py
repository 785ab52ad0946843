"""The search, apart from what is searched: ask an oracle about prefixes of a numbered list and find where it turns.

Nothing here knows compilers. A *position* k of a list of n things means "the first k of them are switched on"; position
0 is known (or checked) to be right, position n to be wrong. `first_wrong` finds the smallest wrong position, that is,
the thing that made the difference, provided that things stay wrong once they are wrong. Both ends are checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["right", "wrong", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one probe showed."""

    kind: Kind
    """``failed`` is a crash, refusal or compile error: never mixed up with a wrong result."""
    detail: str = ""
    """One sentence: by how much it differs, or how it failed."""
    digest: str = ""
    """Of the results' bits, where the prober keeps it: two runs of one thing that differ are not deterministic."""

    aspect: str = ""
    """What is wrong where it is not a value: ``order``, ``layout`` or ``buffers``."""

    def same_fault(self, other: Outcome) -> bool:
        """Whether two probes show the fault in the same way."""
        return self.kind == other.kind


@dataclass(frozen=True, slots=True)
class Step:
    """One probe of a search, for progress and for the ledger."""

    level: str
    low: int
    """Largest position known to be right before the probe."""
    high: int
    """Smallest position known to be wrong before the probe."""
    tried: int
    outcome: Outcome
    so_far: str = ""
    """What is known of the verdict before this level's end, in words."""
    one_by_one: bool = False
    """Whether the level looks at one thing after the other: nothing is halved."""

    @property
    def remaining(self) -> int:
        """Probes that this level still needs at most after this one."""
        if self.one_by_one:
            return 0 if self.outcome.kind == "wrong" else max(0, self.high - self.tried)
        low, high = self.low, self.high
        if self.outcome.kind == "right":
            low = self.tried
        elif self.outcome.kind != "unknown":
            high = min(high, self.tried)
        return max(0, (high - low - 1).bit_length())


@dataclass(slots=True)
class Found:
    """The end of a search."""

    position: int
    """Smallest position that shows the fault: thing number ``position - 1`` makes it."""
    outcome: Outcome
    """What that position showed."""
    low: int
    """Largest position below it that is right; ``position - 1`` unless probes in between gave no answer."""
    steps: list[Step] = field(default_factory=list[Step])

    @property
    def exact(self) -> bool:
        """Whether the neighbouring position below was seen to be right."""
        return self.low == self.position - 1


class NoFault(Exception):
    """The ends do not differ, so there is nothing to search. `where` says which end surprised."""

    def __init__(self, where: Literal["absent", "everywhere", "unknown"], outcome: Outcome) -> None:
        super().__init__(f"the fault is {where}")
        self.where: Literal["absent", "everywhere", "unknown"] = where
        """``absent``: the last position is right. ``everywhere``: position 0 shows it too. ``unknown``: an end gave no
        answer."""
        self.outcome = outcome


Many = Callable[[Sequence[int]], Sequence[Outcome]]
"""Makes several probes at once, each for a position."""


def first_wrong(
    count: int,
    probe: Callable[[int], Outcome],
    level: str,
    watch: Callable[[Step], None] | None = None,
    many: Many | None = None,
    ways: int = 1,
) -> Found:
    """Find the smallest position of 0..count that shows the fault which position `count` shows.

    Takes two probes for the ends and at most ceil(log2 count) between them, one more for each position without an
    answer. With `ways` above 1 that many positions are asked for at once, through `many`: more probes, fewer rounds.
    `watch` sees every step. Raises NoFault where the ends do not differ.
    """
    known: dict[int, Outcome] = {}
    steps: list[Step] = []

    def ask_all(positions: Sequence[int], low: int, high: int) -> list[Outcome]:
        missing = [one for one in dict.fromkeys(positions) if one not in known]
        outcomes = many(missing) if many is not None and len(missing) > 1 else [probe(one) for one in missing]
        for position, outcome in zip(missing, outcomes, strict=True):
            known[position] = outcome
            step = Step(level, low, high, position, outcome)
            steps.append(step)
            if watch is not None:
                watch(step)
        return [known[one] for one in positions]

    def ask(position: int, low: int, high: int) -> Outcome:
        return ask_all([position], low, high)[0]

    if ways > 1:
        ask_all([count, 0], 0, count)
    wrong = ask(count, 0, count)
    if wrong.kind == "right":
        raise NoFault("absent", wrong)
    if wrong.kind == "unknown":
        raise NoFault("unknown", wrong)
    base = ask(0, 0, count)
    if base.kind == "unknown":
        raise NoFault("unknown", base)
    if base.same_fault(wrong):
        raise NoFault("everywhere", base)
    low, high = 0, count
    while high - low > 1:
        asked = _spread(low, high, ways)
        answers = {p: one for p, one in zip(asked, ask_all(asked, low, high), strict=True) if one.kind != "unknown"}
        if not answers:
            outcome, position = _ask_between(low, high, ask)
            if outcome is None:
                break
            answers = {position: outcome}
        high = min((p for p, one in answers.items() if one.same_fault(wrong)), default=high)
        low = max((p for p, one in answers.items() if p < high and not one.same_fault(wrong)), default=low)
    return Found(high, known[high], low, steps)


def _spread(low: int, high: int, ways: int) -> list[int]:
    """At most `ways` positions between two, evenly; the middle where it is one."""
    if ways <= 1:
        return [(low + high) // 2]
    ways = min(ways, high - low - 1)
    return [low + (high - low) * number // (ways + 1) for number in range(1, ways + 1)]


def _ask_between(low: int, high: int, ask: Callable[[int, int, int], Outcome]) -> tuple[Outcome | None, int]:
    """Ask in the middle; where that gives no answer, ask its neighbours outwards. None where nobody answers."""
    middle = (low + high) // 2
    for distance in range(high - low):
        for position in dict.fromkeys((middle - distance, middle + distance)):
            if low < position < high:
                outcome = ask(position, low, high)
                if outcome.kind != "unknown":
                    return outcome, position
    return None, middle


def smallest_cure(
    count: int,
    cured: Callable[[frozenset[int]], Outcome],
    level: str,
    watch: Callable[[Step], None] | None = None,
    many: Callable[[Sequence[frozenset[int]]], Sequence[Outcome]] | None = None,
    ways: int = 1,
) -> tuple[frozenset[int], list[Step]]:
    """A smallest set of 0..count-1 that makes the fault go away when it is taken back; nothing can be left out of it.

    `cured` says what is seen with a set taken back: ``right`` where the fault is gone. One member costs at most
    ceil(log2 count) probes and one more. An empty set means that taking back everything does not cure. Several members
    are found one after the other, each with the ones before it held. `many` and `ways` are as in `first_wrong`.
    """
    steps: list[Step] = []
    known: dict[frozenset[int], Outcome] = {}

    def ask_all(sets: Sequence[tuple[frozenset[int], int]], low: int, high: int) -> list[bool]:
        missing = {members: tried for members, tried in sets if members not in known}
        wanted = list(missing)
        outcomes = many(wanted) if many is not None and len(wanted) > 1 else [cured(one) for one in wanted]
        for members, outcome in zip(wanted, outcomes, strict=True):
            known[members] = outcome
            step = Step(level, low, high, missing[members], outcome)
            steps.append(step)
            if watch is not None:
                watch(step)
        return [known[members].kind == "right" for members, _ in sets]

    def ask(members: frozenset[int], low: int, high: int, tried: int) -> bool:
        return ask_all([(members, tried)], low, high)[0]

    held: frozenset[int] = frozenset()
    if count == 0 or not ask(frozenset(range(count)), 0, count, count):
        return frozenset(), steps
    limit = count
    while True:
        low, high = 0, limit  # without the first `low` it is wrong, with the first `high` it is right
        while high - low > 1:
            tried = _spread(low, high, ways)
            right = ask_all([(held | frozenset(range(one)), one) for one in tried], low, high)
            high = min((one for one, good in zip(tried, right, strict=True) if good), default=high)
            low = max((one for one, good in zip(tried, right, strict=True) if not good and one < high), default=low)
        held |= {high - 1}
        limit = high - 1
        if ask(held, low, high, high) or limit == 0:
            return held, steps


def confidence(agreeing: int) -> str:
    """What a number of repeats that all agreed says of a result that may be flaky, in words.

    A probe that gives the other answer with probability p agrees n times with (1 - p)^n: with 95 % confidence
    p is below 1 - 0.05^(1/n).
    """
    bound = 1 - 0.05 ** (1 / max(1, agreeing))
    return f"with 95 % confidence fewer than {bound:.0%} of the runs give another answer"


def single_cures(
    names: Sequence[str],
    off: Callable[[Sequence[str]], Outcome],
    level: str,
    watch: Callable[[Step], None] | None = None,
    budget: int = 48,
    many: Callable[[Sequence[Sequence[str]]], Sequence[Outcome]] | None = None,
    ways: int = 1,
) -> tuple[list[tuple[str, ...]], list[Step]]:
    """Switches that make the fault go away, each alone; or the smallest group where only several together do.

    Groups are tried by halving: a group that does not help is left, one that helps or breaks the compile is split.
    Where a group helps and none of its members does, the members that are needed are found one after the other. At
    most `budget` probes.
    """
    steps: list[Step] = []
    found: list[tuple[str, ...]] = []
    place = {name: at for at, name in enumerate(names)}
    known: dict[tuple[str, ...], Outcome] = {}

    def ask(groups: Sequence[tuple[str, ...]]) -> list[Outcome]:
        missing = [one for one in dict.fromkeys(groups) if one not in known]
        outcomes = many(missing) if many is not None and len(missing) > 1 else [off(one) for one in missing]
        for group, outcome in zip(missing, outcomes, strict=True):
            known[group] = outcome
            step = Step(level, place[group[0]], place[group[-1]] + 1, len(group), outcome)
            steps.append(step)
            if watch is not None:
                watch(step)
        return [known[one] for one in groups]

    stack: list[tuple[str, ...]] = [tuple(names)] if names else []
    helped: list[tuple[str, ...]] = []
    while stack and len(steps) < budget:
        groups = [stack.pop() for _ in range(min(max(1, ways), len(stack), budget - len(steps)))]
        following: list[tuple[str, ...]] = []
        for group, outcome in zip(groups, ask(groups), strict=True):
            if outcome.kind == "right":
                helped.append(group)
            if len(group) == 1:
                if outcome.kind == "right":
                    found.append(group)
            elif outcome.kind != "wrong":
                middle = len(group) // 2
                following.extend((group[:middle], group[middle:]))
        stack.extend(reversed(following))
    if not found and helped and not stack:
        # Only several together help: of the smallest group that does, those that cannot be left on.
        group = min(helped, key=len)
        members = needed(group, lambda one: len(steps) < budget and ask([one])[0].kind == "right")
        if len(members) > 1:
            found.append(members)
    return found, steps


def needed(group: tuple[str, ...], helps: Callable[[tuple[str, ...]], bool]) -> tuple[str, ...]:
    """A smallest part of a group that still helps: ddmin over what can be left out."""
    left, size = group, max(1, len(group) // 2)
    while True:
        at = 0
        while at < len(left) and len(left) > 1:
            fewer = left[:at] + left[at + size :]
            if fewer and helps(fewer):
                left = fewer
            else:
                at += size
        if size == 1:
            return left
        size //= 2
