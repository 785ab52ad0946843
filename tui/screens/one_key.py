"""Waits for one key, at the bottom of the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult


class OneKeyScreen(ModalScreen[str | None]):
    """Gives the character that was pressed, None for anything else."""

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self._prompt = prompt

    def compose(self) -> ComposeResult:
        """The question."""
        yield Static(self._prompt, id="one-key", markup=False)

    def on_key(self, event: events.Key) -> None:
        """Any key is the answer."""
        event.stop()
        event.prevent_default()
        character = event.character
        self.dismiss(character if character is not None and character.isalnum() else None)
