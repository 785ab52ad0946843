"""Containers that show nothing of their own: drawn as one blank line many times, where Textual styles each line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style
from textual import containers
from textual.strip import Strip

if TYPE_CHECKING:
    from textual.geometry import Region
    from textual.widget import Widget


def blank_lines(widget: Widget, crop: Region) -> list[Strip] | None:
    """The lines of a widget that is nothing but its background; None where it has a border or more."""
    styles = widget.styles
    if styles.gutter or widget.opacity != 1.0 or styles.has_rule("hatch") or styles.has_rule("tint"):
        return None
    background = widget.background_colors[1]
    strip = Strip.blank(crop.width, Style.from_color(bgcolor=background.rich_color))
    for one in widget.get_line_filters():
        strip = strip.apply_filter(one, background)
    return [strip] * crop.height


class Horizontal(containers.Horizontal):
    """Children beside one another."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return blank_lines(self, crop) or super().render_lines(crop)


class Vertical(containers.Vertical):
    """Children below one another."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return blank_lines(self, crop) or super().render_lines(crop)
