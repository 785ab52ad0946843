"""The last line: the keys of the screen as far as they fit, and always those that lead to all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual.binding import Binding
from textual.widget import Widget

if TYPE_CHECKING:
    from textual import events
    from textual.dom import DOMNode

_SHOWN = {"slash": "/", "ctrl+r,f5": "^r"}

Key = tuple[str, str, str, "DOMNode"]
"""What stands for the key, what it does, the action, and whose."""


class KeyLine(Widget):
    """Keys with what they do; made once from the bindings of the screen and of what has the focus at first."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._places: list[tuple[int, int, Key]] = []
        """Columns from and to, and the key that stands there."""

    def render(self) -> Text:
        """One line."""
        tail: list[Key] = [
            (":", "Commands", "command_palette", self.app),
            ("?", "Help", "help", self.app),
            ("q", "Quit", "quit", self.app),
        ]
        self._places = []
        room = self.size.width - sum(len(_words(key)) for key in tail)
        line = Text(no_wrap=True, overflow="crop")
        for key in self._keys():
            if line.cell_len + len(_words(key)) > room:
                break
            self._put(line, key)
        line.append(" " * max(0, room - line.cell_len))
        for key in tail:
            self._put(line, key)
        return line

    def _put(self, line: Text, key: Key) -> None:
        start = line.cell_len
        line.append(f" {key[0]} ", "bold").append(f"{key[1]} ")
        self._places.append((start, line.cell_len, key))

    async def on_click(self, event: events.Click) -> None:
        """The mouse does what the key does."""
        for start, end, (_, _, action, node) in self._places:
            if start <= event.x < end:
                await self.app.run_action(action, node)
                return

    def _keys(self) -> list[Key]:
        found: dict[str, Key] = {}
        nodes = [*([self.screen.focused] if self.screen.focused is not None else []), self.screen]
        for node in nodes:
            for owner in type(node).__mro__:
                if owner.__module__.startswith("hloscope.tui.screens"):
                    for one in owner.__dict__.get("BINDINGS", ()):
                        if isinstance(one, Binding) and one.show and one.description not in found:
                            shown = one.key_display or _SHOWN.get(one.key, one.key)
                            found[one.description] = (shown, one.description, one.action, node)
        return list(found.values())


def _words(key: Key) -> str:
    return f" {key[0]} {key[1]} "
