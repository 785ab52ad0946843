"""The questions about buffers, answered by the reader: see `hloscope.tui.far`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.views.buffers import BufferMap, Buffers
from hloscope.tui.far import call

if TYPE_CHECKING:
    from hloscope.core.buffers.hazards import Hazard
    from hloscope.core.buffers.questions import ShareAnswer, WhatIf
    from hloscope.core.views.run import Run


class FarBuffers(Buffers):
    """What the dashboard asks; anything else would be worked out here."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._far = run
        self._told = False

    @property
    def known(self) -> bool:
        return self._told

    def map(self, *, largest: int = 10, hazards: bool = False) -> BufferMap:
        found = call(_map, self._far, largest=largest, hazards=hazards)
        self._told = True
        return found

    def hazards(self) -> list[Hazard]:
        return call(_hazards, self._far)

    def can_share(self, first: str, second: str) -> ShareAnswer:
        return call(_can_share, self._far, first, second)

    def what_if(self, change: str) -> WhatIf:
        return call(_what_if, self._far, change)


def _map(run: Run, *, largest: int, hazards: bool) -> BufferMap:
    return run.buffers.map(largest=largest, hazards=hazards)


def _hazards(run: Run) -> list[Hazard]:
    return run.buffers.hazards()


def _can_share(run: Run, first: str, second: str) -> ShareAnswer:
    return run.buffers.can_share(first, second)


def _what_if(run: Run, change: str) -> WhatIf:
    return run.buffers.what_if(change)
