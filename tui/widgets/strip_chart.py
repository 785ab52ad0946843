"""The pass timeline as a strip: instructions as columns, below them time, bytes and what changed; with zoom."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from hloscope.core.views.run import label
from hloscope.core.views.summary import own_times, show_ns
from hloscope.tui.show import RISING, show_bytes
from hloscope.tui.widgets.parts import part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.style import Style
    from textual import events

    from hloscope.core.views.data import PassRow

BARS = 4
"""Rows of the columns."""
_GUTTER = 6
_WIDEST = 6


def _short(count: int) -> str:
    """A count in the cells before the strip."""
    for text in (f"{count:,}", f"{count / 1e3:.1f}k", f"{count / 1e3:.0f}k", f"{count / 1e6:.1f}M"):
        if len(text) < _GUTTER:
            return text
    return f"{count / 1e6:.0f}M"


class StripChart(Widget, can_focus=True):
    """One column for each pass; several passes share one where there are more than fit, and the largest shows."""

    KEYS_OF: ClassVar[str] = "in the strip of passes"
    """How help calls the place where these keys hold."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1)", "Pass before", show=False),
        Binding("right,l", "move(1)", "Pass after", show=False),
        Binding("right_square_bracket", "change(1)", "Next pass that changed something", show=False),
        Binding("left_square_bracket", "change(-1)", "Previous pass that changed something", show=False),
        Binding("home", "to(0)", "First pass", show=False),
        Binding("end,G", "to(-1)", "Last pass", show=False),
        Binding("plus,equals_sign", "zoom(1)", "Zoom in", show=False),
        Binding("underscore", "zoom(-1)", "Zoom out", show=False),
        Binding("enter", "choose", "Open the stage", show=False),
    ]

    class Moved(Message):
        """The cursor is on another pass."""

    class Chosen(Message):
        """Enter on a pass."""

        def __init__(self, stage: int) -> None:
            super().__init__()
            self.stage = stage

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._rows: Sequence[PassRow] = ()
        self._bytes: Mapping[int, int] = {}
        self._own: frozenset[int] = frozenset()
        """Rows with a time of their own; a pipeline's is that of its passes, which stands in the columns of those."""
        self._silence = ""
        """Why no pass has a time."""
        self._zoom = 0
        self.cursor = 0
        """Row of the timeline under the cursor."""

    def show(self, rows: Sequence[PassRow], cursor: int = 0, silence: str = "") -> None:
        """Show a timeline; `silence` says why no pass has a time, where none has."""
        self._rows, self._silence = rows, silence
        self._own = frozenset(row.index for row in own_times(rows))
        self.cursor = max(0, min(cursor, len(rows) - 1))
        self.refresh()

    def show_bytes(self, written: Mapping[int, int]) -> None:
        """Bytes that the module of each row writes."""
        self._bytes = written
        self.refresh()

    # ---------------------------------------------------------------- moving
    def _to(self, row: int) -> None:
        if self._rows:
            self.cursor = max(0, min(row, len(self._rows) - 1))
            self.refresh()
            self.post_message(self.Moved())

    def action_move(self, by: int) -> None:
        """To the next column."""
        self._to(self.cursor + by * self._layout()[0])

    def action_to(self, row: int) -> None:
        """To a row; -1 is the last."""
        self._to(len(self._rows) - 1 if row < 0 else row)

    def action_change(self, by: int) -> None:
        """To the next pass that changed something."""
        at = self.cursor + by
        while 0 <= at < len(self._rows):
            if self._rows[at].changed:
                self._to(at)
                return
            at += by

    def action_zoom(self, by: int) -> None:
        """Fewer passes, each wider; or the whole timeline."""
        self._zoom = max(0, min(4, self._zoom + by))
        self.refresh()

    def action_choose(self) -> None:
        """Open the stage."""
        if self._rows:
            self.post_message(self.Chosen(self.cursor))

    def on_click(self, event: events.Click) -> None:
        """The mouse chooses a pass; a double click opens it."""
        each, wide, first = self._layout()
        self._to(first + max(0, event.x - _GUTTER) // wide * each)
        if event.chain == 2:
            self.action_choose()

    # ---------------------------------------------------------------- drawing
    def _layout(self) -> tuple[int, int, int]:
        """Passes in a column, cells of a column, first row shown."""
        room = max(1, self.size.width - _GUTTER)
        count = max(1, len(self._rows))
        shown = max(8, count >> self._zoom)
        each = max(1, ceil(shown / room))
        wide = max(1, min(_WIDEST, room * each // shown))
        fits = room // wide * each
        first = 0 if fits >= count else max(0, min(count - fits, self.cursor - fits // 2)) // each * each
        return each, wide, first

    def render_line(self, y: int) -> Strip:
        """Columns, then time, then marks."""
        width = self.size.width
        if not self._rows:
            return Strip.blank(width, self.rich_style)
        each, wide, first = self._layout()
        most = max(row.instructions_after for row in self._rows) or 1
        slowest = max(map(self._time, self._rows), default=0)
        styles = {
            key: part(self, f"strip--{key}") for key in ("bar", "changed", "time", "bytes", "cursor", "note", "warning")
        }
        base = self.rich_style
        count = _short(most).rjust(_GUTTER - 1) + " "
        gutter = {0: count, BARS: " time ", BARS + 1: "bytes ", BARS + 2: " Δ    "}.get(y, "")
        if y == BARS and not slowest:
            told = f"time  not known: {self._silence}" if self._silence else "time  not known"
            return self._said(told, base + styles["note"])
        if y == BARS + 1 and not self._bytes:
            return self._said("bytes …", base + styles["note"])
        segments = [Segment(gutter.ljust(_GUTTER), base + styles["note"])]
        used = _GUTTER
        for start in range(first, len(self._rows), each):
            if used + wide > width:
                break
            group = self._rows[start : start + each]
            text, kind = self._cell(y, group, most, slowest)
            style = base + styles[kind]
            if start <= self.cursor < start + each:
                style += styles["cursor"]
            cell = text * wide if wide == 1 or y != BARS + 2 else text + " " * (wide - 1)
            if wide > 2 and y < BARS + 2:
                cell = text * (wide - 1) + " "
            segments.append(Segment(cell, style))
            used += wide
        return Strip(segments).adjust_cell_length(width, base)

    def _time(self, row: PassRow) -> int:
        """Nanoseconds of a pass, nought for a pipeline."""
        return row.ns or 0 if row.index in self._own else 0

    def _said(self, text: str, style: Style) -> Strip:
        return Strip([Segment(text, style)]).adjust_cell_length(self.size.width, self.rich_style)

    def _cell(self, y: int, group: Sequence[PassRow], most: int, slowest: int) -> tuple[str, str]:
        changed = any(row.changed for row in group)
        if y < BARS:
            eighths = round(8 * BARS * max(row.instructions_after for row in group) / most)
            above = eighths - 8 * (BARS - 1 - y)
            return RISING[max(0, min(8, max(above, 1 if y == BARS - 1 else 0)))], "changed" if changed else "bar"
        if y == BARS:
            ns = sum(map(self._time, group))
            return (RISING[max(1, min(8, ceil(8 * ns / slowest)))] if ns and slowest else " "), "time"
        if y == BARS + 1:
            most_bytes = max(self._bytes.values(), default=0)
            count = max(self._bytes.get(row.index, 0) for row in group)
            return (RISING[max(1, min(8, round(8 * count / most_bytes)))] if count else " "), "bytes"
        if any(row.unannounced is not None or row.fault is not None for row in group):
            return "!", "warning"
        delta = group[-1].instructions_after - group[0].instructions_before
        if not changed:
            return "·", "note"
        return ("-" if delta < 0 else "+" if delta > 0 else "~"), "changed"

    def words(self) -> str:
        """The pass under the cursor in one line."""
        if not self._rows:
            return ""
        row = self._rows[self.cursor]
        delta = row.instructions_after - row.instructions_before
        what = f"{delta:+,}" if delta else "changed" if row.changed else "no change"
        whole = "" if row.index in self._own else " with its passes"
        time = f", {show_ns(row.ns)}{whole}" if row.ns is not None else ""
        written = self._bytes.get(row.index)
        traffic = ""
        if written is not None:
            before = self._bytes.get(row.index - 1, written)
            sign = "+" if written > before else "-"
            change = f" ({sign}{show_bytes(abs(written - before))})" if written != before else ""
            traffic = f", writes {show_bytes(written)}{change}"
        where = label(row) if self.size.width >= 100 else row.pass_name
        return f"[{row.index}] {where}: {row.instructions_after:,} instructions, {what}{time}{traffic}"
