"""How far a decision of ours agrees with what a real dump shows: the figures of ``hloscope audit``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KEPT = 10
"""Disagreements that are kept, the first ones."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One thing that the real compiler decided otherwise."""

    subject: str
    """What was decided on: an instruction, an edge ``a -> b``, a value, a module."""
    ours: str
    real: str
    note: str = ""
    """The likely reason where it is known (such as an order that text has lost)."""


@dataclass(slots=True)
class Agreement:
    """A count of equal decisions, filled with `add`."""

    agree: int = 0
    total: int = 0
    first_disagreements: list[Disagreement] = field(default_factory=list[Disagreement])

    def add(self, subject: str, ours: object, real: object, *, note: str = "", equal: bool | None = None) -> bool:
        """Count one decision; `equal` where ``ours == real`` is not the question. Returns whether it agrees."""
        same = ours == real if equal is None else equal
        self.total += 1
        if same:
            self.agree += 1
        elif len(self.first_disagreements) < KEPT:
            self.first_disagreements.append(Disagreement(subject, str(ours), str(real), note))
        return same

    def merge(self, other: Agreement) -> None:
        """Add the counts of another module."""
        self.agree += other.agree
        self.total += other.total
        self.first_disagreements.extend(other.first_disagreements[: KEPT - len(self.first_disagreements)])

    @property
    def share(self) -> float | None:
        """Share that agrees, 0 to 1; None where nothing was compared."""
        return self.agree / self.total if self.total else None


@dataclass(frozen=True, slots=True)
class Section:
    """What one room compared with the dump."""

    figures: Mapping[str, Agreement]
    """By figure name, such as ``instructions`` and ``copies`` of the section ``layout``."""
    notes: tuple[str, ...] = ()
    """What could not be compared and why, one sentence each."""
