"""Styles of parts of a line, a bar, a map: one table for the whole dashboard.

They are component classes of the application, not of each widget: a style sheet is matched against every component
class of every widget whenever a screen is shown, and three panes with thirty parts each keep a key waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rich.style import Style

if TYPE_CHECKING:
    from textual.widget import Widget

    from hloscope.tui.app import DashboardApp

MAP_COLOURS = 7
"""Colours that values of a buffer map take in turn."""

PARTS: frozenset[str] = frozenset(
    {
        "pane--name", "pane--define", "pane--opcode", "pane--shape", "pane--layout", "pane--key", "pane--string",
        "pane--comment", "pane--keyword", "pane--differs", "pane--added", "pane--removed",
        "pane--modified", "pane--renamed", "pane--heading", "pane--note", "pane--cursor", "pane--match",
        "pane--warning", "pane--bar", "pane--bar2", "pane--strong", "pane--fewer", "pane--more", "pane--away",
        "strip--bar", "strip--changed", "strip--time", "strip--cursor", "strip--note", "strip--warning",
        "strip--bytes",
        "map--note", "map--peak", "map--cursor", "map--empty", *(f"map--{n}" for n in range(MAP_COLOURS)),
    }
)  # fmt: skip
"""Every part that the style sheet may name."""

_PLAIN = Style()


def part(widget: Widget, name: str) -> Style:
    """The style of a part in the present theme, to be laid over the widget's own; nothing for a part without one."""
    app = cast("DashboardApp", widget.app)
    known = app.parts.get(name)
    if known is None:
        known = app.get_component_styles(name).partial_rich_style if name in PARTS else _PLAIN
        app.parts[name] = known
    return known
