"""A dashboard that keeps what a terminal would show after all that was sent to it, piece by piece."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.strip import Strip

from hloscope.tui.app import DashboardApp


class ShownApp(DashboardApp):
    """The application; `shown` is what stands in the terminal."""

    CSS_PATH = Path(inspect.getfile(DashboardApp)).parent / "app.tcss"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cells: dict[tuple[int, int], str] = {}
        self.drawn = 0
        """Cells that were sent."""

    @property
    def shown(self) -> list[str]:
        """Line by line."""
        width, height = self.size
        return ["".join(self.cells.get((x, y), " ") for x in range(width)) for y in range(height)]

    def _display(self, screen: Any, renderable: Any) -> None:
        super()._display(screen, renderable)
        if isinstance(renderable, LayoutUpdate):
            for y, strips in enumerate(renderable.strips):
                self._put(0, y, Strip.join(list(strips)), 0, self.size.width)
        elif isinstance(renderable, ChopsUpdate):
            for y, x1, x2 in renderable.spans:
                for x, strip in renderable.chops[y].items():
                    if strip is not None:
                        self._put(x, y, strip, x1, x2)

    def _put(self, x: int, y: int, strip: Strip, x1: int, x2: int) -> None:
        for at, letter in enumerate(strip.text, x):
            if x1 <= at < x2:
                self.cells[at, y] = letter
                self.drawn += 1
