"""What a screen draws anew: the lines of widgets that changed, where Textual renders every widget between the first and
the last of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.strip import Strip

_MANY = 300
"""Regions from which looking through them costs more than it spares."""


class ChangesCompositor(Compositor):
    """Renders as `Compositor` does; of a widget only the lines from the first to the last that changed."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: tuple[Region, ...] = ()
        """What is being drawn anew; empty where all of it is."""

    def render_partial_update(self) -> ChopsUpdate | None:
        changed = tuple(self._dirty_regions)
        self._changed = changed if len(changed) <= _MANY else ()
        try:
            return super().render_partial_update()
        finally:
            self._changed = ()

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        if not self._changed:
            yield from super()._get_renders(crop)
            return
        for widget, (region, clip) in self.visible_widgets.items():
            seen = region.intersection(clip)
            parts = [part for one in self._changed if (part := seen.intersection(one))]
            if not parts:
                continue
            top, bottom = min(part.y for part in parts), max(part.bottom for part in parts)
            drawn = Region(seen.x, top, seen.width, bottom - top)
            yield drawn, clip, widget.render_lines(drawn.translate(-region.offset))
