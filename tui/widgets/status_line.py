"""The line at the bottom that always says where you are, and for a moment what just happened."""

from __future__ import annotations

from textual.widgets import Static


class StatusLine(Static):
    """One line: the place on the left, a message after it until the next move."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("", id=id, markup=False)
        self.place = ""
        """Where the user is."""
        self.message = ""
        """What just happened."""

    def say(self, message: str) -> None:
        """Show a message until the place changes."""
        self.message = message
        self._draw()

    def at(self, place: str) -> None:
        """Show another place; the message goes."""
        self.place, self.message = place, ""
        self._draw()

    def _draw(self) -> None:
        self.update(self.place + (f"   {self.message}" if self.message else ""), layout=False)
