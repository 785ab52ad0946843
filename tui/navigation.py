"""Where one can be in the dashboard, and how one got there: places, history, marks, the order of the screens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SCREENS: tuple[tuple[str, str, str], ...] = (
    ("overview", "1", "Overview"),
    ("stages", "2", "Stages"),
    ("fusion", "3", "Fusion"),
    ("layouts", "4", "Layouts"),
    ("buffers", "5", "Buffers"),
    ("sql", "6", "SQL"),
    ("compare", "7", "Compare"),
    ("graph", "8", "Graph"),
    ("schedule", "9", "Schedule"),
    ("bisect", "0", "Bisect"),
    ("pallas", "-", "Pallas"),
)
"""Name of a screen, the key that opens it, its title; in the order of ``tab``."""

TITLES = {name: title for name, _, title in SCREENS}


@dataclass(frozen=True, slots=True)
class Place:
    """One place: a screen and what it shows. What a field means is up to the screen."""

    screen: str
    stage: int | None = None
    """Row of the timeline."""
    view: str = ""
    """Which of the screen's views."""
    subject: str = ""
    """The instruction, pattern or path that it is about."""
    cursor: int = 0
    """Line of the cursor."""
    goal: str = ""
    """Instruction to put the cursor on; goes before `cursor`."""

    def to_json(self) -> dict[str, Any]:
        """As plain data for the state file."""
        return asdict(self)

    @staticmethod
    def from_json(data: object) -> Place | None:
        """The way back; None for anything that is no place of this version."""
        if not isinstance(data, dict) or data.get("screen") not in TITLES:
            return None
        stage, cursor = data.get("stage"), data.get("cursor")
        return Place(
            str(data["screen"]),
            stage if isinstance(stage, int) else None,
            str(data.get("view") or ""),
            str(data.get("subject") or ""),
            cursor if isinstance(cursor, int) else 0,
        )


class History:
    """Places that were left, as a browser keeps them."""

    def __init__(self, limit: int = 200) -> None:
        self._limit = limit
        self._behind: list[Place] = []
        self._ahead: list[Place] = []

    def leave(self, place: Place) -> None:
        """Remember a place that is left for a new one; what was ahead is gone."""
        if not self._behind or self._behind[-1] != place:
            self._behind.append(place)
            del self._behind[: -self._limit]
        self._ahead.clear()

    def back(self, now: Place) -> Place | None:
        """The place before, `now` being the one that is left; None at the beginning."""
        if not self._behind:
            return None
        self._ahead.append(now)
        return self._behind.pop()

    def forward(self, now: Place) -> Place | None:
        """The place that ``back`` left; None at the end."""
        if not self._ahead:
            return None
        self._behind.append(now)
        return self._ahead.pop()


def neighbour(name: str, step: int) -> str:
    """The screen `step` further on, round the end."""
    names = [one for one, _, _ in SCREENS]
    return names[(names.index(name) + step) % len(names)]
