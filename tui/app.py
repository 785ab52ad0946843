"""The dashboard application: one run, its screens, and the style sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from hloscope.tui.screens.help import HelpScreen
from hloscope.tui.screens.stages import StagesScreen

if TYPE_CHECKING:
    from hloscope.core.views.run import Run


class DashboardApp(App[None]):
    """The dashboard on one run; the caller opens and closes the run."""

    TITLE = "hloscope"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, run: Run, *, stage: int | None = None) -> None:
        super().__init__()
        self._run_opened = run
        self._stage = stage

    def on_mount(self) -> None:
        """Straight to the timeline."""
        self.push_screen(StagesScreen(self._run_opened, stage=self._stage))

    def action_help(self) -> None:
        """The keys of the screen that is shown."""
        self.push_screen(HelpScreen(self.screen))
