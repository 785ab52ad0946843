"""The main screen: the summary, the pass timeline, and what the chosen stage changed."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Footer, Input, Static
from textual.worker import get_current_worker

from hloscope.core.errors import HloscopeError
from hloscope.core.views.run import label
from hloscope.core.views.stages import CancelledError
from hloscope.core.views.summary import show_ns
from hloscope.tui.content import Line, diff_lines, place_lines, text_lines, why_lines
from hloscope.tui.widgets.line_pane import LinePane
from hloscope.tui.widgets.stage_table import StageTable
from hloscope.tui.widgets.status_line import StatusLine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult

    from hloscope.core.views.data import PassRow, Summary
    from hloscope.core.views.run import Run

View = Literal["diff", "text", "why", "found"]
Asking = Literal["", "search", "pass", "name"]

_PROMPTS = {
    "search": "search this pane (regular expression)",
    "pass": "show only passes that hold",
    "name": "find instructions in this stage (regular expression over the line)",
}


class StagesScreen(Screen[None]):
    """Timeline and stage side by side; below one another on a narrow terminal."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (130, "-wide")]

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "ask('search')", "Search", key_display="/"),
        Binding("n", "next_match(1)", "Next match", show=False),
        Binding("N", "next_match(-1)", "Previous match", show=False),
        Binding("i", "ask('name')", "Find instruction"),
        Binding("p", "ask('pass')", "Filter passes"),
        Binding("c", "toggle_changed", "Changed only"),
        Binding("d", "view('diff')", "Diff"),
        Binding("t", "view('text')", "Text"),
        Binding("w", "why", "Why"),
        Binding("right_square_bracket", "next_change(1)", "Next change", show=False),
        Binding("left_square_bracket", "next_change(-1)", "Previous change", show=False),
        Binding("greater_than_sign", "step(1)", "Next stage", show=False),
        Binding("less_than_sign", "step(-1)", "Previous stage", show=False),
        Binding("b,backspace", "back", "Back", show=False),
        Binding("tab", "app.focus_next", "Other pane", show=False),
        Binding("escape", "leave", "Leave", show=False),
    ]

    def __init__(self, run: Run, *, stage: int | None = None) -> None:
        super().__init__()
        self._run_opened = run
        self._rows: Sequence[PassRow] | None = None
        self._start = stage
        self._stage: int | None = None
        self._view: View = "diff"
        self._subject = ""
        self._asking: Asking = ""
        self._words = ""
        self._changed_only = False
        self._goal: tuple[int, str] | None = None
        self._history: list[tuple[int, View, str, int]] = []

    def compose(self) -> ComposeResult:
        """Summary above, the two panes, the question line, status and keys."""
        yield Static("", id="summary", markup=False)
        with Horizontal(id="panes"):
            with Vertical(id="left"):
                yield StageTable(id="timeline")
            with Vertical(id="right"):
                yield Static("", id="title", markup=False)
                yield LinePane(id="pane")
        yield Input(id="question", compact=True)
        yield StatusLine(id="status")
        yield Footer(show_command_palette=False)

    # ---------------------------------------------------------------- start
    def on_mount(self) -> None:
        """Names at once; counts when every stage has been read."""
        self.query_one("#question", Input).display = False
        source = self._run_opened.source
        said = ", ".join(part for part in (source.target, source.xla_build) if part)
        self.query_one("#summary", Static).update(
            f"{source.module or 'module without a name'}  {f'({said})' if said else ''}\nreading stages …"
        )
        table = self.query_one(StageTable)
        table.fill(self._run_opened.outline, None, keep=0)
        table.focus()
        self._read_timeline()

    @work(thread=True, exclusive=True, group="timeline")
    def _read_timeline(self) -> None:
        worker = get_current_worker()
        report = partial(self.app.call_from_thread, self._say_progress)

        def progress(done: int, total: int) -> None:
            if done == total or done % 8 == 0:
                report(done, total)

        try:
            rows = self._run_opened.timeline(cancelled=lambda: worker.is_cancelled, progress=progress)
            summary = self._run_opened.summary(cancelled=lambda: worker.is_cancelled)
        except CancelledError:
            return
        except HloscopeError as error:
            self.app.call_from_thread(self._say, str(error))
            return
        self.app.call_from_thread(self._timeline_read, rows, summary)

    def _say_progress(self, done: int, total: int) -> None:
        self.query_one(StatusLine).say(f"reading stages: {done} of {total}")

    def _timeline_read(self, rows: Sequence[PassRow], summary: Summary) -> None:
        self._rows = rows
        self.query_one("#summary", Static).update(_headline(summary))
        keep = self._start if self._start is not None else self._stage
        if self._start is None and not self._stage:
            # The first thing to see is a change, not the untouched module.
            keep = next((row.index for row in rows if row.changed and row.index), 0)
        self._start = None
        self._fill(keep)
        self.query_one(StatusLine).at(self._place())

    def _fill(self, keep: int | None) -> None:
        table = self.query_one(StageTable)
        table.fill(self._run_opened.outline, self._rows, changed_only=self._changed_only, words=self._words, keep=keep)
        if table.stage is None:
            self.query_one(LinePane).show([Line("No pass matches the filter; p changes it.", "note")])
        else:
            self._choose(table.stage)

    # ---------------------------------------------------------------- choosing a stage
    @on(StageTable.RowHighlighted)
    def _row_highlighted(self) -> None:
        stage = self.query_one(StageTable).stage
        if stage is not None and stage != self._stage:
            self._choose(stage)

    @on(StageTable.RowSelected)
    def _row_selected(self) -> None:
        self.query_one(LinePane).focus()

    def _choose(self, stage: int) -> None:
        self._stage = stage
        if self._view not in ("diff", "text"):
            self._view = "diff"
        self._show()

    def action_step(self, by: int) -> None:
        """The next or previous row of the timeline, whatever has the focus."""
        table = self.query_one(StageTable)
        table.move_cursor(row=table.cursor_row + by, animate=False)

    def action_view(self, view: View) -> None:
        """Diff or full text of the chosen stage."""
        self._view = view
        self._show()

    def _show(self) -> None:
        if self._stage is None:
            return
        row = self._run_opened.outline[self._stage]
        self.query_one("#title", Static).update(f"[{self._stage}] {label(row)}: {self._title()}")
        self.query_one(StatusLine).at(self._place())
        stage, subject = self._stage, self._subject
        makers: dict[View, Callable[[Callable[[], bool]], list[Line]]] = {
            "diff": lambda cancelled: diff_lines(
                self._run_opened.diff(stage, cancelled=cancelled),
                self._run_opened.events(pass_index=stage, limit=2000),
            ),
            "text": lambda cancelled: text_lines(self._run_opened.stage_text(stage)),
            "found": lambda cancelled: place_lines(
                self._run_opened.search(subject, stage, limit=20_000, cancelled=cancelled), subject
            ),
            "why": lambda cancelled: why_lines(self._run_opened.why(subject, cancelled=cancelled)),
        }
        self._make_lines(makers[self._view])

    def _title(self) -> str:
        if self._view == "why":
            return f"why {self._subject}"
        if self._view == "found":
            return f"instructions that match {self._subject}"
        return "what changed" if self._view == "diff" else "the module after it"

    @work(thread=True, exclusive=True, group="lines")
    def _make_lines(self, make: Callable[[Callable[[], bool]], list[Line]]) -> None:
        worker = get_current_worker()
        try:
            lines = make(lambda: worker.is_cancelled)
        except CancelledError:
            return
        except HloscopeError as error:
            lines = [Line(str(error), "note")]
        if not worker.is_cancelled:
            self.app.call_from_thread(self._put_lines, lines)

    def _put_lines(self, lines: list[Line]) -> None:
        pane = self.query_one(LinePane)
        cursor = 0
        if self._goal is not None:
            at, name = self._goal
            self._goal = None
            cursor = next((i for i, line in enumerate(lines) if name and line.instruction == name), at)
        pane.show(lines, cursor=cursor)

    # ---------------------------------------------------------------- following
    @on(LinePane.Chosen)
    def _follow(self, event: LinePane.Chosen) -> None:
        line = event.line
        if line.instruction is None and line.stage is None:
            self._say("this line names no instruction")
        elif self._view == "found" and line.instruction is not None:
            self._go("text", "", self._stage, line.instruction)
        elif self._view == "why" and line.stage is not None:
            self._go("diff", "", line.stage, line.instruction or "")
        elif line.instruction is not None:
            self._go("why", line.instruction, self._stage, "")

    def action_why(self) -> None:
        """All that is known of the instruction under the cursor."""
        line = self.query_one(LinePane).current
        if line is None or line.instruction is None:
            self._say("put the cursor on an instruction first")
        else:
            self._go("why", line.instruction, self._stage, "")

    def _go(self, view: View, subject: str, stage: int | None, goal: str) -> None:
        if self._stage is not None:
            self._history.append((self._stage, self._view, self._subject, self.query_one(LinePane).cursor))
        self._restore(view, subject, stage, (0, goal))
        self.query_one(LinePane).focus()

    def _restore(self, view: View, subject: str, stage: int | None, goal: tuple[int, str]) -> None:
        table = self.query_one(StageTable)
        self._view, self._subject, self._goal = view, subject, goal
        if stage is not None and stage != self._stage:
            self._stage = stage
            if stage not in table.stages:
                self._words, self._changed_only = "", False
                self._fill_quietly(stage)
            else:
                table.move_cursor(row=table.stages.index(stage), animate=False)
        self._show()

    def _fill_quietly(self, keep: int) -> None:
        table = self.query_one(StageTable)
        table.fill(self._run_opened.outline, self._rows, keep=keep)

    def action_back(self) -> None:
        """To where the last jump came from."""
        if not self._history:
            self._say("nothing to go back to")
            return
        stage, view, subject, cursor = self._history.pop()
        self._restore(view, subject, stage, (cursor, ""))

    # ---------------------------------------------------------------- questions
    def action_ask(self, what: Asking) -> None:
        """Open the question line."""
        self._asking = what
        question = self.query_one("#question", Input)
        question.placeholder = _PROMPTS[what]
        question.value = self._words if what == "pass" else ""
        question.display = True
        question.focus()

    @on(Input.Submitted, "#question")
    def _answered(self, event: Input.Submitted) -> None:
        what, text = self._asking, event.value
        self._close_question()
        if what == "pass":
            self._words = text
            self._fill(self._stage)
            self.query_one(StageTable).focus()
            return
        pane = self.query_one(LinePane)
        pane.focus()
        try:
            re.compile(text)
        except re.error as error:
            self._say(f"not a regular expression: {error}")
            return
        if what == "name" and text:
            self._go("found", text, self._stage, "")
        elif what == "search":
            count = pane.find(text or None)
            self._say(f"{count:,} lines match; n and N go on" if text else "")

    def action_leave(self) -> None:
        """Close the question line, else take search marks away and go to the timeline."""
        if self.query_one("#question", Input).display:
            self._close_question()
        else:
            self.query_one(LinePane).find(None)
        self.query_one(StageTable).focus()

    def _close_question(self) -> None:
        self._asking = ""
        self.query_one("#question", Input).display = False

    def action_next_match(self, step: int) -> None:
        """The next line that matches the search."""
        if not self.query_one(LinePane).find_next(step):
            self._say("no match; / searches")

    def action_next_change(self, step: int) -> None:
        """The next change in the diff."""
        if not self.query_one(LinePane).next_change(step):
            self._say("no further change")

    def action_toggle_changed(self) -> None:
        """All passes, or only those that changed something."""
        self._changed_only = not self._changed_only
        self._fill(self._stage)
        self._say("only passes that changed something" if self._changed_only else "all passes")

    # ---------------------------------------------------------------- the status line
    def _say(self, message: str) -> None:
        self.query_one(StatusLine).say(message)

    def _place(self) -> str:
        source = self._run_opened.source
        if self._stage is None:
            return source.path
        shown = {"diff": "diff", "text": "text", "why": f"why {self._subject}", "found": f"find {self._subject}"}
        row = self._run_opened.outline[self._stage]
        total = len(self._run_opened.outline) - 1
        return f"{source.module} › {self._stage}/{total} {label(row)} › {shown[self._view]}"


def _headline(summary: Summary) -> str:
    source = summary.source
    said = ", ".join(part for part in (source.target, source.xla_build) if part)
    time = f", {show_ns(summary.total_ns)}" if summary.total_ns is not None else ""
    opcodes = "  ".join(f"{name} {count}" for name, count in summary.opcodes[:8])
    events = f", {summary.events:,} event{'s' if summary.events > 1 else ''}" if summary.events else ""
    first = [
        f"{source.module or 'module without a name'}  {f'({said})' if said else ''}",
        f"{summary.instructions_before:,} → {summary.instructions_after:,} instructions in {summary.computations:,} "
        f"computations; {summary.passes:,} passes, {summary.changed:,} changed it{time}{events}",
        f"last stage: {opcodes}",
    ]
    first += [
        f"{'▸' if one.stage is None else f'▸ {one.stage}'} {one.title}: {one.detail}" for one in summary.notable[:3]
    ]
    first += [f"note: {note}" for note in summary.notes[:2]]
    return "\n".join(first)
