"""What a bisection is given, and how its answer is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.bisect.result import Culprit
    from hloscope.core.views.data import Source


@dataclass(frozen=True, slots=True)
class Given:
    """One module, and what is right for it."""

    data: bytes
    path: str
    source: Source
    oracle: str
    args_path: str | None
    seed: int

    @property
    def text(self) -> str:
        """The module as text."""
        return self.data.decode("utf-8", "surrogateescape")

    def line(self, culprit: Culprit) -> int | None:
        """1-based line of what a culprit names."""
        from hloscope.core.views.run import find_definition

        place = find_definition(self.data, culprit.instruction, 0) if culprit.instruction is not None else None
        return place.line + 1 if place is not None else culprit.line


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer is given."""

    as_json: bool
    bundle: str | None
    redact: bool
    force: bool
    report: str | None = None
    """File for the answer as Markdown."""
    reduce: bool = True
    """Whether a bundle's module is made small."""
