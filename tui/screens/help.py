"""The keys of the screen below, made from its bindings, so that the two cannot disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import ItemGrid, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        found = sections(self._below)
        own, shared = found[:-1], found[-1:]
        with VerticalScroll(id="help"), ItemGrid(min_column_width=44, id="keys-of"):
            legend = getattr(self._below, "LEGEND", "")
            yield Static("\n".join(map(_listed, own)) + legend, markup=False)
            yield Static("\n".join(map(_listed, shared)), markup=False)


Section = tuple[str, list[tuple[str, str]]]
"""A title; keys and what they do."""


def sections(screen: Screen[object]) -> list[Section]:
    """The screen's own keys, then those of each kind of widget in it, last what every screen has. Each once."""
    own: Section = (f"this screen: {getattr(screen, 'NAME', '') or 'keys'}", [])
    shared: Section = ("in every screen", [])
    widgets: dict[str, Section] = {}
    for owner in _ours(type(screen)):
        into = own if owner.__dict__.get("NAME") else shared
        into[1].extend(_rows(owner))
    shared[1].extend(row for owner in _ours(type(screen.app)) for row in _rows(owner))
    for widget in screen.query("*"):
        for owner in _ours(type(widget)):
            title = owner.__dict__.get("KEYS_OF")
            if title and title not in widgets:
                widgets[title] = (title, list(_rows(owner)))
            if not owner.__dict__.get("_inherit_bindings", True):
                break  # the keys of what it is made from do something else here
    return [one for one in (own, *widgets.values(), shared) if one[1]]


def _ours(kind: type) -> list[type]:
    return [owner for owner in kind.__mro__ if owner.__module__.startswith("hloscope.")]


def _rows(owner: type) -> Iterator[tuple[str, str]]:
    for entry in owner.__dict__.get("BINDINGS", ()):
        if isinstance(entry, Binding) and entry.description:
            yield entry.key_display or key_names(entry.key), entry.description


def _listed(section: Section) -> str:
    title, rows = section
    width = max(len(key) for key, _ in rows)
    return "\n".join([title, *(f"  {key:<{width}}  {text}" for key, text in rows), ""])


_NAMES = {
    "slash": "/", "question_mark": "?", "right_square_bracket": "]", "left_square_bracket": "[", "minus": "-",
    "greater_than_sign": ">", "less_than_sign": "<", "apostrophe": "'", "colon": ":", "plus": "+", "equals_sign": "=",
    "underscore": "_", "full_stop": ".",
}  # fmt: skip


def key_names(keys: str) -> str:
    """Keys as they stand on the keyboard."""
    return " ".join(_NAMES.get(key, key) for key in keys.split(","))
