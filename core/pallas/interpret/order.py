"""What happened before what: vector clocks, and the accesses that nothing orders.

An agent is a core or a copy in flight. Its clock says, for every agent, up to which of its moments it knows. Starting a
copy hands the starter's clock to it; a semaphore carries the signaller's clock to whoever waits for that signal;
agents are unordered otherwise. Two accesses of the same elements, one of them a write, race unless the later agent's
clock has reached the earlier access's moment. After L. Lamport, "Time, clocks and the ordering of events in a
distributed system", and the epochs of Flanagan and Freund's FastTrack.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hloscope.core.pallas.interpret.memory import Buffer, Region
from hloscope.core.pallas.jaxpr import NO_JOINTS, Joint, Span

Clock = dict[int, int]
"""Agent -> the last of its moments that is known."""


def join(clock: Clock, other: Clock) -> None:
    """Adds what another clock knows."""
    for agent, moment in other.items():
        if clock.get(agent, 0) < moment:
            clock[agent] = moment


@dataclass(slots=True)
class Agents:
    """Numbers of agents. A copy's number is used again once its end is known to whoever starts the next copy."""

    count: int = 0
    resting: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(agent, last moment) of copies that ended."""

    def fresh(self) -> Clock:
        """The clock of a new agent that knows nothing; its own entry is its number."""
        self.count += 1
        return {self.count: 1}

    def child(self, parent: Clock, own: int) -> tuple[int, Clock]:
        """A copy that ``own`` starts: its agent and clock. The starter's later accesses are not ordered with it."""
        for place, (agent, last) in enumerate(self.resting):
            if parent.get(agent, 0) >= last:
                del self.resting[place]
                break
        else:
            self.count += 1
            agent, last = self.count, 0
        clock = dict(parent)
        clock[agent] = last + 1
        parent[own] += 1
        return agent, clock

    def end(self, agent: int, clock: Clock) -> None:
        """A copy is over."""
        self.resting.append((agent, clock[agent]))


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """One access of a buffer."""

    agent: int
    moment: int
    writes: bool
    region: Region
    place: Span | None
    what: str
    """Who did it and when, for a report."""
    by_kernel: bool = True
    """Whether it is a statement of the kernel; False for a copy."""
    joints: frozenset[Joint] = NO_JOINTS
    """What ties its races to one fault."""


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """Two accesses that nothing orders."""

    buffer: Buffer
    first: Touch
    second: Touch


@dataclass(slots=True)
class Detector:
    """Remembers accesses and tells races; an access that a later ordered one makes useless is forgotten."""

    touches: dict[int, list[Touch]] = field(default_factory=dict[int, list[Touch]])
    races: list[Race] = field(default_factory=list[Race])
    _told: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]])

    def access(self, buffer: Buffer, touch: Touch, clock: Clock) -> None:
        """Notes an access by an agent with that clock."""
        before = self.touches.setdefault(buffer.number, [])
        kept: list[Touch] = []
        shape = buffer.data.shape
        for other in before:
            ordered = other.agent == touch.agent or clock.get(other.agent, 0) >= other.moment
            meets = touch.writes != other.writes or (touch.writes and not buffer.ignored)
            if not ordered and meets and touch.region.overlaps(other.region, shape):
                self._report(buffer, other, touch)
            replaced = ordered and (touch.writes or not other.writes) and touch.region.contains(other.region)
            if not replaced:
                kept.append(other)
        kept.append(touch)
        self.touches[buffer.number] = kept

    def forget(self, buffer: Buffer) -> None:
        """The memory is gone, or another's."""
        self.touches.pop(buffer.number, None)

    def _report(self, buffer: Buffer, first: Touch, second: Touch) -> None:
        key = (buffer.name, frozenset({(first.place, first.writes), (second.place, second.writes)}))
        if key not in self._told:
            self._told.add(key)
            self.races.append(Race(buffer, first, second))


@dataclass(slots=True)
class Signal:
    """An amount that somebody added to a semaphore."""

    amount: int
    clock: Clock
    place: Span | None
    what: str
    by_copy: bool = False
    """Whether a copy gave it when it ended."""


@dataclass(slots=True, eq=False)
class Semaphore:
    """A count, and whose signals make it up, oldest first: a wait learns the clocks of the signals that it uses up."""

    name: str
    owner: tuple[int, int]
    signals: deque[Signal] = field(default_factory=deque[Signal])

    @property
    def count(self) -> int:
        """Its value."""
        return sum(one.amount for one in self.signals)

    def add(self, signal: Signal) -> None:
        """A signal."""
        if signal.amount:
            self.signals.append(signal)

    def take(self, amount: int, clock: Clock) -> None:
        """Subtracts an amount that is there; the waiter's clock learns where it came from."""
        while amount > 0:
            first = self.signals[0]
            join(clock, first.clock)
            used = min(amount, first.amount)
            first.amount -= used
            amount -= used
            if not first.amount:
                self.signals.popleft()

    def peek(self, amount: int, clock: Clock) -> None:
        """As ``take``, and leaves the count as it is."""
        for one in self.signals:
            if amount <= 0:
                return
            join(clock, one.clock)
            amount -= one.amount


ORDER_OF_CORES = "the order of cores"
"""What a choice is about that hands over to another core."""
ORDER_OF_STEPS = "the order of steps"
"""What a choice is about that takes the steps of parallel dimensions, or programs, in another order."""
ORDERS = frozenset({ORDER_OF_CORES, ORDER_OF_STEPS})


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice that a schedule made."""

    label: str
    """What was chosen between."""
    options: int
    chosen: int
    place: Span | None
    about: str = ""
    """The memory whose content was chosen, or one of ``ORDERS``."""
    seeded: bool = True
    """Whether seeds vary it; what is not is varied by a run of its own."""
    joints: frozenset[Joint] = NO_JOINTS
    """What ties a finding about it to others."""


@dataclass(slots=True)
class Choices:
    """Decides what a machine leaves open: orders, and when copies end.

    Option 0 is the plain order everywhere. ``seed`` None takes it always; a number makes every choice by that seed;
    ``forced`` replays choices that were recorded and goes on plainly after them.
    """

    seed: int | None = None
    forced: tuple[int, ...] | None = None
    made: list[Decision] = field(default_factory=list[Decision])
    _state: int = 0
    _begun: bool = False

    def choose(self, options: int, label: str, place: Span | None = None, about: str = "") -> int:
        """An option below ``options``; ``about`` names the memory whose content it is."""
        if options <= 1:
            return 0
        chosen = 0
        if self.forced is not None:
            number = len(self.made)
            chosen = self.forced[number] if number < len(self.forced) else 0
            chosen = min(chosen, options - 1)
        elif self.seed is not None:
            chosen = self._next() % options
        self.made.append(Decision(label, options, chosen, place, about))
        return chosen

    def vary(
        self, options: int, label: str, place: Span | None = None, about: str = "",
        joints: frozenset[Joint] = NO_JOINTS,
    ) -> int:  # fmt: skip
        """What something holds that may hold anything: 0, the plain value, unless another option is forced.

        ``about`` names the memory whose content it is."""
        number = len(self.made)
        chosen = min(self.forced[number], options - 1) if self.forced is not None and number < len(self.forced) else 0
        self.made.append(Decision(label, options, chosen, place, about, seeded=False, joints=joints))
        return chosen

    def _next(self) -> int:
        """SplitMix64: the same numbers on every machine and version."""
        mask = (1 << 64) - 1
        if not self._begun:
            self._state, self._begun = (self.seed or 0) & mask, True
        self._state = (self._state + 0x9E3779B97F4A7C15) & mask
        value = self._state
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    @property
    def taken(self) -> tuple[int, ...]:
        """The choices made, for a replay."""
        return tuple(one.chosen for one in self.made)
