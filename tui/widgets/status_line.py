"""The line at the bottom that always says where you are, and for a moment what just happened."""

from __future__ import annotations

from textual.widgets import Static

from hloscope.tui.show import clipped

_LEAST_PLACE = 12
"""Columns that the place keeps beside a long message."""


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

    def on_resize(self) -> None:
        """Another room for the two."""
        self._draw()

    def _draw(self) -> None:
        place, room = self.place, self.content_size.width
        if self.message and 0 < room < len(place) + 3 + len(self.message):
            # What just happened is told once; where one is can be seen in other ways, too.
            place = clipped(place, max(_LEAST_PLACE, room - 3 - len(self.message)))
        self.update(place + (f"   {self.message}" if self.message else ""), layout=False)
