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

LEGEND = """
+ added   - removed   ~ modified   > renamed
Δ: instructions more (+) or fewer (-); ~ changed with the same number; · nothing changed
⚠ a change that no pass announced lies in the range of passes that the summary names
"""


class HelpScreen(ModalScreen[None]):
    """A list of keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", "Close")]

    def __init__(self, below: Screen[object]) -> None:
        super().__init__()
        self._below = below

    def compose(self) -> ComposeResult:
        """Keys, then what the marks mean."""
        with VerticalScroll(id="help"):
            yield Static(_keys(self._below) + LEGEND, markup=False)


def _keys(screen: Screen[object]) -> str:
    """Bindings of the screen, of the widgets in it and of the application, each once."""
    seen: dict[str, str] = {}
    for node in (screen, *screen.query("StageTable, LinePane"), screen.app):
        for entry in type(node).BINDINGS:
            if isinstance(entry, Binding) and entry.description and entry.description not in seen.values():
                seen[entry.key_display or _names(entry.key)] = entry.description
    width = max(map(len, seen), default=0)
    return "\n".join(f"  {key:<{width}}  {text}" for key, text in seen.items()) + "\n"


_NAMES = {
    "slash": "/", "question_mark": "?", "right_square_bracket": "]", "left_square_bracket": "[",
    "greater_than_sign": ">", "less_than_sign": "<",
}  # fmt: skip


def _names(keys: str) -> str:
    return " ".join(_NAMES.get(key, key) for key in keys.split(","))
