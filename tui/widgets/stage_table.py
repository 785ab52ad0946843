"""The pass timeline as a table: row, pipeline, pass, changed, instruction delta and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from hloscope.core.views.summary import show_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.views.data import PassRow
    from hloscope.core.views.stages import StageRow

_NAME_WIDTH = 46
_TIMED_WIDTH = 36


class StageTable(DataTable[Text]):
    """Rows of the timeline; the cursor's row is the chosen stage. `stages` maps table rows to stage numbers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
        Binding("G", "scroll_bottom", "Bottom", show=False),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=False)
        self.stages: list[int] = []
        """Stage number of each table row."""

    def on_mount(self) -> None:
        """The columns."""
        self._set_columns(timed=False)

    def _set_columns(self, *, timed: bool) -> None:
        self.clear(columns=True)
        titles = [("index", "#"), ("pass", "pass"), ("delta", "Δ"), ("count", "instr")]
        for key, title in [*titles, ("time", "time")] if timed else titles:
            self.add_column(title, key=key)

    def fill(
        self,
        outline: Sequence[StageRow],
        rows: Sequence[PassRow] | None,
        *,
        changed_only: bool = False,
        words: str = "",
        keep: int | None = None,
        only: frozenset[int] | None = None,
    ) -> None:
        """Show the timeline; `rows` is None while counts are not known yet.

        `changed_only` hides rows that changed nothing, `words` keeps rows whose pipeline or pass holds the text,
        `only` keeps rows by number, and the cursor goes to stage `keep` or to the nearest row shown before it.
        """
        timed = rows is not None and any(row.ns is not None for row in rows)
        self._set_columns(timed=timed)
        self.stages = []
        wanted = words.casefold()
        for index, row in enumerate(outline):
            if only is not None and index not in only:
                continue
            known = rows[index] if rows is not None else None
            changed = known.changed if known is not None else row.changed
            if changed_only and changed is False and known is not None and known.unannounced is None:
                continue
            if wanted and wanted not in f"{row.pipeline}/{row.pass_name}".casefold():
                continue
            self.stages.append(index)
            cells = _cells(index, row, known, _TIMED_WIDTH if timed else _NAME_WIDTH)
            self.add_row(*(cells if timed else cells[:-1]), key=str(index))
        if keep is not None and self.stages:
            at = max((i for i, stage in enumerate(self.stages) if stage <= keep), default=0)
            self.move_cursor(row=at, animate=False)

    @property
    def stage(self) -> int | None:
        """The stage under the cursor; None in an empty table."""
        return self.stages[self.cursor_row] if 0 <= self.cursor_row < len(self.stages) else None


def _cells(index: int, row: StageRow, known: PassRow | None, width: int) -> tuple[Text, ...]:
    changed = known.changed if known is not None else row.changed
    style = "dim" if changed is False else "bold" if changed else ""
    name = Text()
    if row.pipeline:
        name.append(f"{row.pipeline}/", "dim")
    name.append(row.pass_name, style)
    if known is not None and known.unannounced is not None:
        name.append(" ⚠", "yellow")
    if len(name) > width:
        name = Text("…", "dim") + name[len(name) - width + 1 :]
    delta = known.instructions_after - known.instructions_before if known is not None else 0
    if known is None:
        shown = Text("…", "dim", justify="right")
    elif delta:
        shown = Text(f"{delta:+,}", "green" if delta < 0 else "magenta", justify="right")
    else:
        shown = Text("~" if changed else "·", "" if changed else "dim", justify="right")
    count = Text(f"{known.instructions_after:,}" if known is not None else "", style, justify="right")
    ns = known.ns if known is not None else row.ns
    time = Text(show_ns(ns) if ns is not None else "", "dim", justify="right")
    return Text(str(index), "dim", justify="right"), name, shown, count, time
