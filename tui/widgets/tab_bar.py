"""The line at the top: the screens with their keys, the one that is shown standing out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.message import Message
from textual.widget import Widget

from hloscope.tui.navigation import SCREENS

if TYPE_CHECKING:
    from textual import events

_GAP = 2


class TabBar(Widget):
    """Names where they fit, else keys alone."""

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, current: str) -> None:
        super().__init__(id="tabs")
        self._current = current

    def _labels(self) -> list[tuple[str, str]]:
        whole = [(name, f"{key} {title}") for name, key, title in SCREENS]
        if sum(len(text) + _GAP for _, text in whole) <= self.size.width:
            return whole
        return [
            (name, f"{key} {title}" if name == self._current else key if self.size.width < 70 else f"{key}{title[:4]}")
            for name, key, title in SCREENS
        ]

    def render(self) -> Text:
        """One line."""
        text = Text(no_wrap=True, overflow="crop")
        for name, label in self._labels():
            text.append(f" {label} ", "bold reverse" if name == self._current else "")
        return text

    def on_click(self, event: events.Click) -> None:
        """The mouse opens a screen, too."""
        at = 0
        for name, label in self._labels():
            at += len(label) + _GAP
            if event.x < at:
                self.post_message(self.Chosen(name))
                return
