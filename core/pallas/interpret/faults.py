"""What an instrumented run reports: faults with both places, and the steps that led to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.interpret.order import Decision
from hloscope.core.pallas.jaxpr import NO_JOINTS, Array, Joint, Span


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong that a run met."""

    code: str
    """A code of ``checks.registry.CODES``."""
    message: str
    place: Span | None
    related: tuple[tuple[Span | None, str], ...] = ()
    about: str = ""
    """The memory that it concerns, where it is one that nobody wrote; the choice of memory that changes a result."""

    fix: str | None = None
    """What would put it right, where the code's own advice does not fit."""
    joints: frozenset[Joint] = NO_JOINTS
    """What ties it to others that tell of the same fault."""

    @property
    def key(self) -> tuple[object, ...]:
        """Faults with one key are told once."""
        return self.code, self.place, tuple(span for span, _ in self.related)


class Halted(UnsupportedError):
    """A fault after which the run cannot go on."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened in a run."""

    kind: str
    """``step``, ``fetch``, ``write_back``, ``copy_start``, ``copy_done``, ``wait``, ``signal``, ``read``, ``write``,
    ``read_unwritten``."""
    detail: str
    point: tuple[int, ...]
    device: int
    core: int
    place: Span | None


Observer: TypeAlias = Callable[[Step], None]


@dataclass(slots=True, eq=False)
class Outcome:
    """What a run of one call gave."""

    outputs: list[list[Array]]
    """Outputs of every device."""
    faults: list[Fault]
    decisions: Sequence[Decision]
    """Choices made, in order: replaying them gives the same run again."""
    finished: bool = True
    """False after a deadlock."""


class Faults:
    """Collects faults, each once."""

    def __init__(self) -> None:
        self.found: list[Fault] = []
        self._seen: set[tuple[object, ...]] = set()

    def add(self, fault: Fault) -> None:
        """Adds a fault unless it is there."""
        if fault.key not in self._seen:
            self._seen.add(fault.key)
            self.found.append(fault)
