"""The search, apart from what is searched: ask an oracle about prefixes of a numbered list and find where it turns.

Nothing here knows compilers. A *position* k of a list of n things means "the first k of them are switched on"; position
0 is known (or checked) to be right, position n to be wrong. `first_wrong` finds the smallest wrong position, that is,
the thing that made the difference, provided that things stay wrong once they are wrong. Both ends are checked first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Kind = Literal["right", "wrong", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one probe showed."""

    kind: Kind
    """``failed`` is a crash, refusal or compile error: never mixed up with a wrong result."""
    detail: str = ""
    """One sentence: by how much it differs, or how it failed."""

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

    @property
    def remaining(self) -> int:
        """Probes that halving still needs at most after this one."""
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


def first_wrong(
    count: int,
    probe: Callable[[int], Outcome],
    level: str,
    watch: Callable[[Step], None] | None = None,
) -> Found:
    """Find the smallest position of 0..count that shows the fault which position `count` shows.

    Takes two probes for the ends and at most ceil(log2 count) between them, one more for each position without an
    answer. `watch` sees every step. Raises NoFault where the ends do not differ.
    """
    known: dict[int, Outcome] = {}
    steps: list[Step] = []

    def ask(position: int, low: int, high: int) -> Outcome:
        if position not in known:
            known[position] = probe(position)
            step = Step(level, low, high, position, known[position])
            steps.append(step)
            if watch is not None:
                watch(step)
        return known[position]

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
        outcome, position = _ask_between(low, high, ask)
        if outcome is None:
            break
        if outcome.same_fault(wrong):
            high = position
        else:
            low = position
    return Found(high, known[high], low, steps)


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
) -> tuple[frozenset[int], list[Step]]:
    """A smallest set of 0..count-1 that makes the fault go away when it is taken back; nothing can be left out of it.

    `cured` says what is seen with a set taken back: ``right`` where the fault is gone. One member costs at most
    ceil(log2 count) probes and one more. An empty set means that taking back everything does not cure. Several members
    are found one after the other, each with the ones before it held.
    """
    steps: list[Step] = []
    known: dict[frozenset[int], Outcome] = {}

    def ask(members: frozenset[int], low: int, high: int, tried: int) -> bool:
        if members not in known:
            known[members] = cured(members)
            step = Step(level, low, high, tried, known[members])
            steps.append(step)
            if watch is not None:
                watch(step)
        return known[members].kind == "right"

    held: frozenset[int] = frozenset()
    if count == 0 or not ask(frozenset(range(count)), 0, count, count):
        return frozenset(), steps
    limit = count
    while True:
        low, high = 0, limit  # without the first `low` it is wrong, with the first `high` it is right
        while high - low > 1:
            middle = (low + high) // 2
            if ask(held | frozenset(range(middle)), low, high, middle):
                high = middle
            else:
                low = middle
        held |= {high - 1}
        limit = high - 1
        if ask(held, low, high, high) or limit == 0:
            return held, steps


def single_cures(
    names: Sequence[str],
    off: Callable[[Sequence[str]], Outcome],
    level: str,
    watch: Callable[[Step], None] | None = None,
    budget: int = 48,
) -> tuple[list[tuple[str, ...]], list[Step]]:
    """Switches that make the fault go away, each alone; or the smallest group where only several together do.

    Groups are tried by halving: a group that does not help is left, one that helps or breaks the compile is split. At
    most `budget` probes.
    """
    steps: list[Step] = []
    found: list[tuple[str, ...]] = []
    place = {name: at for at, name in enumerate(names)}
    stack: list[tuple[str, ...]] = [tuple(names)] if names else []
    while stack and len(steps) < budget:
        group = stack.pop()
        outcome = off(group)
        step = Step(level, place[group[0]], place[group[-1]] + 1, len(group), outcome)
        steps.append(step)
        if watch is not None:
            watch(step)
        if len(group) == 1:
            if outcome.kind == "right":
                found.append(group)
            continue
        if outcome.kind == "wrong":
            continue
        middle = len(group) // 2
        stack.extend((group[middle:], group[:middle]))
    return found, steps
