"""A screen of a list and, beside it or below, what is known of the chosen row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import on
from textual.widgets import Static

from hloscope.tui.content import Line
from hloscope.tui.screens.base import RunScreen, note
from hloscope.tui.widgets.line_pane import LinePane
from hloscope.tui.widgets.plain import Horizontal, Vertical

if TYPE_CHECKING:
    from textual.app import ComposeResult

_WORDS = 12
"""Lines that are no table."""


class TwoPanesScreen(RunScreen):
    """`#head` above, `#list` on the left, `#detail` on the right. The list's lines carry their row as `item`."""

    def body(self) -> ComposeResult:
        """Headline, heading of the columns, list and detail."""
        yield Static("", id="head", markup=False)
        with Horizontal(id="panes"):
            with Vertical(id="left") as left:
                left.styles.min_width = 30
                yield Static("", id="columns", markup=False)
                yield LinePane(id="list")
            with Vertical(id="right"):
                yield LinePane(id="detail", fold=True)

    @property
    def rows(self) -> LinePane:
        """The rows."""
        return self.query_one("#list", LinePane)

    @property
    def detail(self) -> LinePane:
        """What is known of the chosen row."""
        return self.query_one("#detail", LinePane)

    def head(self, text: str, columns: str = "") -> None:
        """The lines above."""
        self.query_one("#head", Static).update(text)
        found = self.query_one("#columns", Static)
        found.update(columns)
        found.display = bool(columns)

    def fill(self, lines: Sequence[Line], *, cursor: int = 0, empty: str = "nothing to show") -> None:
        """Other rows; a few words instead of rows go on below where the pane is too narrow."""
        self.rows.fold = len(lines) <= _WORDS and all(line.item is None for line in lines)
        self.rows.show(lines or note(empty), cursor=cursor)
        self._chosen()

    def fault(self, message: str) -> None:
        """The list cannot be told."""
        self.head(message)
        self.fill([], empty=message)
        self.say("")

    def details(self, item: object, line: Line) -> Sequence[Line]:
        """What is shown of a row. Called on the thread that answers keys: only what is at hand."""
        return ()

    @on(LinePane.Moved, "#list")
    def _moved(self) -> None:
        self._chosen()

    def _chosen(self) -> None:
        line = self.rows.current
        if line is None or line.item is None:
            self.detail.show(())
        else:
            self.detail.show(self.details(line.item, line))
        self.at(self.where())

    @property
    def chosen(self) -> object:
        """The row under the list's cursor."""
        line = self.rows.current
        return None if line is None else line.item

    def follow(self, line: Line) -> None:
        """Enter on a row goes to its details, in the details to what is named."""
        if self.focused is self.rows and line.item is not None and self.detail.lines:
            self.turn_to(self.detail)
        else:
            super().follow(line)
