"""The screens, one a file; each is imported when it is first shown."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from textual.binding import Binding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from textual.widget import Widget

    from hloscope.core.views.run import Run
    from hloscope.tui.screens.base import RunScreen

_CLASSES = {
    "overview": "OverviewScreen",
    "stages": "StagesScreen",
    "fusion": "FusionScreen",
    "layouts": "LayoutsScreen",
    "buffers": "BuffersScreen",
    "sql": "SqlScreen",
    "compare": "CompareScreen",
    "graph": "GraphScreen",
    "schedule": "ScheduleScreen",
    "bisect": "BisectScreen",
    "pallas": "PallasScreen",
}

_FILES = {"bisect": "bisection"}
"""A module that carries a name of the standard library would be found in its place."""


def import_screen(name: str) -> ModuleType:
    """The module that a screen is in."""
    return import_module(f"hloscope.tui.screens.{_FILES.get(name, name)}")


def import_all() -> None:
    """Import what the screens need, so that the first visit of one does not keep keys waiting."""
    for name in _CLASSES:
        import_screen(name)


def own_bindings(name: str) -> list[Binding]:
    """The keys that a screen has of its own."""
    module = import_screen(name)
    return [one for one in getattr(module, _CLASSES[name]).BINDINGS if isinstance(one, Binding)]


def widget_bindings(name: str) -> Iterator[tuple[type[Widget], Binding]]:
    """The keys of the widgets that only this screen has, each with its widget."""
    module = import_screen(name)
    for kind in getattr(module, _CLASSES[name]).KEYED:
        for one in kind.BINDINGS:
            if isinstance(one, Binding) and one.description:
                yield kind, one


def make_screen(name: str, run: Run) -> RunScreen:
    """A new screen by its name in `hloscope.tui.navigation.SCREENS`."""
    module = import_screen(name)
    return getattr(module, _CLASSES[name])(run)
