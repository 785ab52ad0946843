"""The last line: the keys of the screen as far as they fit, and always those that lead to all others."""

from __future__ import annotations

from rich.text import Text
from textual.binding import Binding
from textual.widget import Widget

_ALWAYS = ((":", "Commands"), ("?", "Help"), ("q", "Quit"))
_SHOWN = {"slash": "/", "ctrl+r,f5": "^r"}


class KeyLine(Widget):
    """Keys with what they do; made once from the bindings of the screen and of what has the focus at first."""

    def render(self) -> Text:
        """One line."""
        tail = Text()
        for key, text in _ALWAYS:
            tail.append(f" {key} ", "bold").append(f"{text} ")
        line = Text(no_wrap=True, overflow="crop")
        room = self.size.width - tail.cell_len
        for key, text in self._keys():
            part = Text().append(f" {key} ", "bold").append(f"{text} ")
            if line.cell_len + part.cell_len > room:
                break
            line.append_text(part)
        line.append(" " * max(0, room - line.cell_len))
        return line.append_text(tail)

    def _keys(self) -> list[tuple[str, str]]:
        found: dict[str, str] = {}
        nodes = [*([self.screen.focused] if self.screen.focused is not None else []), self.screen]
        for node in nodes:
            for owner in type(node).__mro__:
                if owner.__module__.startswith("hloscope.tui.screens"):
                    for one in owner.__dict__.get("BINDINGS", ()):
                        if isinstance(one, Binding) and one.show and one.description not in found.values():
                            found[one.key_display or _SHOWN.get(one.key, one.key)] = one.description
        return list(found.items())
