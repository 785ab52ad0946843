"""The answer to "may this be fused?": yes, or no with the compiler's words, a stable code and the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hloscope.core.dumps.fusion_decisions import reason_code

Number = int | float | str


@dataclass(frozen=True, slots=True)
class Decision:
    """True where the fusion is allowed."""

    reason: str | None = None
    """XLA's own words for a refusal; None where it is allowed."""
    numbers: Mapping[str, Number] = field(default_factory=lambda: MappingProxyType({}))
    """What the decision rests on."""
    change: str = ""
    """Which fact would have to be different, in our words; empty where the reason says it already."""

    def __bool__(self) -> bool:
        return self.reason is None

    @property
    def code(self) -> str | None:
        """Stable key of the reason: its words, joined by underscores, without the numbers in them."""
        if self.reason is None:
            return None
        return reason_code(self.reason)

    @staticmethod
    def forbid(reason: str, change: str = "", **numbers: Number) -> Decision:
        """A refusal."""
        return Decision(reason, MappingProxyType(numbers), change)


ALLOWED = Decision()
"""The one yes."""
