"""The keys of the screen below, made from its bindings, so that the two cannot disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.screen import Screen


class HelpScreen(ModalScreen[None]):
    """A list of keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", "Close")]

    def __init__(self, below: Screen[object]) -> None:
        super().__init__()
        self._below = below

    def compose(self) -> ComposeResult:
        """Keys, then what the marks mean."""
        with VerticalScroll(id="help"):
            yield Static(_keys(self._below) + getattr(self._below, "LEGEND", ""), markup=False)


def _keys(screen: Screen[object]) -> str:
    """Bindings of the screen, of the widgets in it and of the application, each once."""
    parts: list[str] = []
    seen: set[str] = set()
    for title, nodes in (
        ("this screen", (screen, *screen.query("*"))),
        ("everywhere", (screen.app,)),
    ):
        found: dict[str, str] = {}
        for node in nodes:
            for owner in type(node).__mro__:
                if not owner.__module__.startswith("hloscope."):
                    continue
                for entry in owner.__dict__.get("BINDINGS", ()):
                    if isinstance(entry, Binding) and entry.description and entry.description not in seen:
                        seen.add(entry.description)
                        found[entry.key_display or key_names(entry.key)] = entry.description
        width = max(map(len, found), default=0)
        parts += [title, *(f"  {key:<{width}}  {text}" for key, text in found.items()), ""]
    return "\n".join(parts)


_NAMES = {
    "slash": "/", "question_mark": "?", "right_square_bracket": "]", "left_square_bracket": "[", "minus": "-",
    "greater_than_sign": ">", "less_than_sign": "<", "apostrophe": "'", "colon": ":", "plus": "+", "equals_sign": "=",
}  # fmt: skip


def key_names(keys: str) -> str:
    """Keys as they stand on the keyboard."""
    return " ".join(_NAMES.get(key, key) for key in keys.split(","))
