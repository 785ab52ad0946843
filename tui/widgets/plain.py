"""Containers that show nothing of their own: drawn as one blank line many times, where Textual styles each line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import containers
from textual.geometry import Region

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.strip import Strip
    from textual.widget import Widget


def blank_lines(widget: Widget, crop: Region, line: Callable[[Region], list[Strip]]) -> list[Strip]:
    """The lines of a widget that shows its background, or that and what stands on its left and right: one made by
    `line` is every one of them. With more than that all are made by `line`."""
    gutter = widget.styles.gutter
    if gutter.top or gutter.bottom or crop.height < 2:
        return line(crop)
    return line(Region(crop.x, crop.y, crop.width, 1)) * crop.height


class Horizontal(containers.Horizontal):
    """Children beside one another."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return blank_lines(self, crop, super().render_lines)


class Vertical(containers.Vertical):
    """Children below one another."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return blank_lines(self, crop, super().render_lines)
