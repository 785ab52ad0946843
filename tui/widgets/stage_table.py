"""The pass timeline as rows: number, pipeline and pass, instructions more or fewer, instructions, time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.views.summary import show_ns
from hloscope.tui.content import Line
from hloscope.tui.widgets.line_pane import LinePane

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events

    from hloscope.core.views.data import PassRow
    from hloscope.core.views.stages import StageRow
    from hloscope.tui.highlight import Piece

_DELTA_WIDTH = 7
_COUNT_WIDTH = 8
_TIME_WIDTH = 8
_LEAST_NAME_WIDTH = 16


class StageTable(LinePane):
    """Rows of the timeline; the cursor's row is the chosen stage. `stages` maps rows to stage numbers."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.stages: list[int] = []
        """Stage number of each row."""
        self._outline: Sequence[StageRow] = ()
        self._rows: Sequence[PassRow] | None = None

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
        self._outline, self._rows = outline, rows
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
        at = self.cursor if keep is None else max((i for i, s in enumerate(self.stages) if s <= keep), default=0)
        self._draw(at)

    def on_resize(self, event: events.Resize) -> None:
        """The name takes the room that the numbers leave."""
        event.prevent_default()
        if self._outline:
            self._draw(self.cursor)

    def _draw(self, cursor: int) -> None:
        timed = self._rows is not None and any(row.ns is not None for row in self._rows)
        number = len(str(max(0, len(self._outline) - 1)))
        rest = number + 2 + _DELTA_WIDTH + _COUNT_WIDTH + (_TIME_WIDTH if timed else 0) + 1
        width = max(_LEAST_NAME_WIDTH, self.size.width - rest)
        self.show(
            [
                _line(i, self._outline[i], self._rows[i] if self._rows is not None else None, number, width, timed)
                for i in self.stages
            ],
            cursor=cursor,
        )

    def choose(self, stage: int) -> None:
        """Put the cursor on a stage that is shown, in the middle of the rows."""
        at = self.stages.index(stage)
        self.move_to(at)
        self.scroll_to(0, max(0, at - self.size.height // 2), animate=False, immediate=True, force=True)

    @property
    def stage(self) -> int | None:
        """The stage under the cursor; None in an empty table."""
        return self.stages[self.cursor] if 0 <= self.cursor < len(self.stages) else None


def _line(index: int, row: StageRow, known: PassRow | None, number: int, width: int, timed: bool) -> Line:
    changed = known.changed if known is not None else row.changed
    style = "note" if changed is False else "strong" if changed else ""
    doubt = known is not None and (known.unannounced is not None or known.unread is not None)
    warning = " ⚠" if doubt else ""
    pipeline = f"{row.pipeline}/" if row.pipeline else ""
    over = len(pipeline) + len(row.pass_name) + len(warning) - width
    if over > 0:
        # The pass is what one looks for: the pipeline gives way first.
        whole = "…" + (pipeline + row.pass_name)[over + 1 :]
        at = max(0, len(whole) - len(row.pass_name))
        pipeline, name = whole[:at], whole[at:]
    else:
        name = row.pass_name
    delta = known.instructions_after - known.instructions_before if known is not None else 0
    if known is None:
        told, kind = "…", "note"
    elif known.fault is not None and changed is None:
        told, kind = "?", "modified"
    elif delta:
        told, kind = f"{delta:+,}", "fewer" if delta < 0 else "more"
    else:
        told, kind = ("~", "") if changed else ("·", "note")
    count = f"{known.instructions_after:,}" if known is not None else ""
    ns = known.ns if known is not None else row.ns
    pieces: list[Piece] = [
        (f"{index:>{number}}  ", "note"),
        (pipeline, "note"),
        (name, style),
        (warning, "modified"),
        (" " * (width - len(pipeline) - len(name) - len(warning)), ""),
        (f"{told:>{_DELTA_WIDTH}}", kind),
        (f"{count:>{_COUNT_WIDTH}}", style),
    ]
    if timed:
        pieces.append((f"{show_ns(ns) if ns is not None else '':>{_TIME_WIDTH}}", "note"))
    pieces = [piece for piece in pieces if piece[0]]
    return Line("".join(text for text, _ in pieces), "", None, index, tuple(pieces))
