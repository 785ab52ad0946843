"""The stages: the pass timeline, what a stage changed, what was recorded about it, and one instruction's way."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import Static

from hloscope.core.views.run import label
from hloscope.core.views.summary import show_ns
from hloscope.tui.content import (
    Line,
    copy_lines,
    diff_lines,
    event_lines,
    fused_into,
    place_lines,
    text_lines,
    why_lines,
)
from hloscope.tui.far import call
from hloscope.tui.navigation import Place
from hloscope.tui.screens.base import RunScreen, Work
from hloscope.tui.search import with_source_lines
from hloscope.tui.show import counted
from hloscope.tui.widgets.line_pane import LinePane
from hloscope.tui.widgets.plain import Horizontal, Vertical
from hloscope.tui.widgets.stage_table import StageTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult

    from hloscope.core.views.copies import CopyRow
    from hloscope.core.views.data import EventRow, PassRow, Summary, WhyFacts
    from hloscope.core.views.run import Run

View = Literal["diff", "text", "why", "found"]

EVENTS = 2000
"""Events of a stage that are shown."""
_PATIENCE_SECONDS = 0.25
"""How long the lines of the stage before stay where the new ones are not there yet."""
_COPIES = ("copy", "copy-start")
_LOOK_AHEAD_SECONDS = 0.15
"""How long one stays on a stage before its neighbours are worth comparing."""


class StagesScreen(RunScreen):
    """Timeline and stage side by side; below one another on a narrow terminal."""

    NAME = "stages"
    NO_MATCH = "i searches all instructions of the stage, their source lines too"
    PROMPTS = {
        "pass": "show only passes that hold",
        "name": "find instructions in this stage (regular expression over names, opcodes, op_name, FILE.py:LINE)",
        "follow": "show only stages that touched this instruction",
    }
    LEGEND = """
+ added   - removed   ~ modified   > renamed; what differs within a line stands out
Δ: instructions more (+) or fewer (-); ~ changed with the same number; · nothing changed; ? the text is not readable
⚠ another pass of a range may have made the change: none announced it, or a text between was not readable
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("i", "ask('name')", "Find instruction"),
        Binding("p", "ask('pass')", "Filter passes"),
        Binding("c", "toggle_changed", "Changed only"),
        Binding("d", "view('diff')", "Diff"),
        Binding("t", "view('text')", "Text"),
        Binding("s", "toggle_side", "Side by side"),
        Binding("z", "toggle_wrap", "Wrap long lines", show=False),
        Binding("w", "why", "Why"),
        Binding("f", "follow_it", "Follow it"),
        Binding("r", "graph", "Draw its neighbourhood", show=False),
        Binding("X", "bisect", "Bisect this stage's module", show=False),
        Binding("right_square_bracket", "next_change(1)", "Next change", show=False),
        Binding("left_square_bracket", "next_change(-1)", "Previous change", show=False),
        Binding("greater_than_sign", "step(1)", "Next stage", show=False),
        Binding("less_than_sign", "step(-1)", "Previous stage", show=False),
    ]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._rows: Sequence[PassRow] | None = None
        self._stage: int | None = None
        self._view: View = "diff"
        self._subject = ""
        self._words = ""
        self._changed_only = False
        self._side = False
        self._wrap = False
        self._touched: frozenset[int] | None = None
        self._followed = ""
        self._names: dict[int, str] = {}
        """What the followed instruction is called after each of those stages."""
        self._goal: tuple[int, str] | None = None
        self._events: list[EventRow] = []
        self._about: str | None = None
        self._wanted = False
        self._waiting = False
        self._copy = ""
        """The copy whose cause is to be looked for."""

    def body(self) -> ComposeResult:
        """Summary above, the panes."""
        yield Static("", id="summary", markup=False)
        with Horizontal(id="panes"):
            with Vertical(id="left"):
                yield StageTable(id="timeline")
            with Vertical(id="right"):
                yield Static("", id="title", markup=False)
                yield LinePane(id="pane")
                yield LinePane(id="events", fold=True)

    # ---------------------------------------------------------------- start
    def start(self) -> None:
        """Names at once; counts when every stage has been read."""
        self.query_one("#events").display = False
        source = self.run.source
        said = ", ".join(part for part in (source.target, source.xla_build) if part)
        self.query_one("#summary", Static).update(
            f"{source.module or 'module without a name'}  {f'({said})' if said else ''}\nreading stages …"
        )
        table = self.query_one(StageTable)
        table.fill(self.run.outline, None, keep=0)
        self.turn_to(table)
        self.ask_core(self._read, self._timeline_read, group="timeline", what="reading stages")

    def _read(self, work: Work) -> tuple[Sequence[PassRow], Summary]:
        rows = self.run.timeline(cancelled=work.cancelled, progress=work.progress)
        return rows, self.run.summary(cancelled=work.cancelled)

    def _timeline_read(self, found: tuple[Sequence[PassRow], Summary]) -> None:
        self._rows, summary = found
        self.query_one("#summary", Static).update(_headline(summary))
        keep = self._stage
        if not self._wanted and not keep:
            # The first thing to see is a change, not the untouched module.
            keep = next((row.index for row in self._rows if row.changed and row.index), 0)
        self._fill(keep, again=keep != self._stage)
        self.at(self.where())
        now = self._rows[self._stage] if self._stage is not None else None
        if now is not None and (now.fault is not None or now.unread is not None):
            self._show()  # only now is known that its text, or that before, is not readable
        elif self._view == "diff" and self._stage is not None:
            stage = self._stage
            self.ask_core(
                lambda work: self.run.events(pass_index=stage, limit=EVENTS), self._put_events, group="events"
            )
        self._look_ahead()

    def _put_events(self, events: list[EventRow]) -> None:
        if self._view == "diff":
            self._events, self._about = events, None
            self._show_events()

    def _fill(self, keep: int | None, *, again: bool = True) -> None:
        table = self.query_one(StageTable)
        table.fill(
            self.run.outline,
            self._rows,
            changed_only=self._changed_only,
            words=self._words,
            keep=keep,
            only=self._touched,
        )
        if table.stage is None:
            self._pane.show([Line("No pass matches the filter; p changes it.", "note")])
        elif again or table.stage != self._stage:
            self._choose(table.stage)

    @property
    def _pane(self) -> LinePane:
        return self.query_one("#pane", LinePane)

    @property
    def pane(self) -> LinePane | None:
        """The pane of the stage, also while the timeline has the focus."""
        found = super().pane
        return self._pane if isinstance(found, StageTable) else found

    # ---------------------------------------------------------------- where one is
    def place(self) -> Place:
        """Stage, view and line."""
        return Place(self.NAME, self._stage, self._view, self._subject, self._pane.cursor if self._started else 0)

    def where(self) -> str:
        """``12/40 pipeline/pass › diff``."""
        if self._stage is None:
            return ""
        shown = {"diff": "diff", "text": "text", "why": f"why {self._subject}", "found": f"find {self._subject}"}
        total = len(self.run.outline) - 1
        if self._view == "why":
            return shown[self._view]
        follows = f" › only stages that touched {self._followed}" if self._touched is not None else ""
        return f"{self._stage}/{total} {label(self.run.outline[self._stage])} › {shown[self._view]}{follows}"

    def go_to(self, place: Place) -> None:
        """Show a stage or an instruction."""
        if place.view not in ("diff", "text", "why", "found"):
            return
        self._wanted = True
        stage = place.stage if place.stage is not None else self._stage
        table = self.query_one(StageTable)
        self._view, self._subject = place.view, place.subject
        self._goal = (place.cursor, place.goal)
        if stage is not None and stage != self._stage:
            self._stage = stage
            if stage not in table.stages:
                self._words, self._changed_only, self._touched = "", False, None
                self._fill(stage, again=False)
            else:
                table.choose(stage)
        elif stage is None:
            self._stage = 0
        self._show()
        if place.view != "diff" or place.cursor or place.goal:
            self.turn_to(self._pane)

    def remembered(self) -> dict[str, Any]:
        """Filters and ways of showing."""
        return {"words": self._words, "changed": self._changed_only, "side": self._side, "wrap": self._wrap}

    def recall(self, values: dict[str, Any]) -> None:
        """The same as the last time."""
        self._words = str(values.get("words") or "")
        self._changed_only, self._side = bool(values.get("changed")), bool(values.get("side"))
        self._wrap = bool(values.get("wrap"))

    # ---------------------------------------------------------------- choosing a stage
    @on(LinePane.Moved, "#timeline")
    def _row_highlighted(self) -> None:
        stage = self.query_one(StageTable).stage
        if stage is not None and stage != self._stage:
            self._choose(stage)

    def _choose(self, stage: int) -> None:
        self._stage = stage
        if self._touched is not None and stage in self._names:
            self._goal = (0, self._names[stage])
        if self._view not in ("diff", "text"):
            self._view = "diff"
        self._show()

    def action_step(self, by: int) -> None:
        """The next or previous row of the timeline, whatever has the focus."""
        table = self.query_one(StageTable)
        table.move_to(table.cursor + by)

    def action_view(self, view: View) -> None:
        """Diff or full text of the chosen stage."""
        self._view = view
        self._show()

    def action_toggle_side(self) -> None:
        """Before and after beside one another, or one above the other."""
        self._side, self._view = not self._side, "diff"
        self._show()
        self.say("side by side" if self._side else "inline")

    def action_toggle_wrap(self) -> None:
        """Long lines go on below, or to the right."""
        self._wrap = not self._wrap
        self._show()
        self.say("long lines go on below" if self._wrap else "long lines go on to the right")

    def _show(self) -> None:
        if self._stage is None:
            return
        row = self.run.outline[self._stage]
        # What is known of an instruction is about all stages, and as of one that has it.
        title = self._title() if self._view == "why" else f"[{self._stage}] {label(row)}: {self._title()}"
        self.query_one("#title", Static).update(title, layout=False)
        self.at(self.where())
        makers: dict[View, Callable[[Work], tuple[list[Line], list[EventRow]]]] = {
            "diff": partial(self._make_diff, self._stage, max(40, self._pane.size.width - 1)),
            "text": lambda work: (self._text(stage), []),
            "found": lambda work: (self._find(subject, stage, work), []),
            "why": lambda work: self._make_why(subject, work),
        }
        stage, subject = self._stage, self._subject
        self._waiting = True
        self.set_timer(_PATIENCE_SECONDS, partial(self._still, self._stage, self._view, self._subject))
        self.ask_core(makers[self._view], self._put, failed=self._no_lines)
        self._look_ahead()

    def _still(self, *asked: object) -> None:
        """What was shown before must not stand below another title for long."""
        if self._waiting and asked == (self._stage, self._view, self._subject):
            self._pane.show([Line("being worked out …", "note")])

    def _find(self, pattern: str, stage: int, work: Work) -> list[Line]:
        """Instructions of the stage that match; where there is none, the last stage that has one."""
        wanted = call(with_source_lines, self.run, stage, pattern)
        found = place_lines(self.run.search(wanted, stage, limit=20_000, cancelled=work.cancelled), pattern)
        if len(found) > 1:
            return found
        for other in reversed(range(len(self.run.outline))):
            if work.cancelled():
                break
            wanted = call(with_source_lines, self.run, other, pattern)
            if next(self.run.search(wanted, other, limit=1, cancelled=work.cancelled), None) is not None:
                text = f"Stage {other} is the last that has one: enter goes there."
                return [*found, Line(text, "name", None, other, ((text, "name"),))]
        return [*found, Line("No other stage has one either.", "note")]

    def _look_ahead(self) -> None:
        """Compare the next and the previous stages that changed, while the one that is shown is being read."""
        rows, stage = self._rows, self._stage
        if rows is None or stage is None or self._view != "diff":
            return
        beside = (
            next((row.index for row in rows[stage + 1 :] if row.changed), None),
            next((row.index for row in reversed(rows[:stage]) if row.changed and row.index), None),
        )

        def compare(work: Work) -> None:
            time.sleep(_LOOK_AHEAD_SECONDS)
            for index in beside:
                if index is not None:
                    self.run.diff(index, cancelled=work.cancelled)

        self.ask_core(compare, lambda _: None, group="ahead", failed=lambda _: None)

    def _make_diff(self, stage: int, width: int, work: Work) -> tuple[list[Line], list[EventRow]]:
        diff = self.run.diff(stage, cancelled=work.cancelled)
        lines = diff_lines(diff, side=width if self._side else 0, wrap=width if self._wrap else 0)
        known = self._rows[stage] if self._rows is not None else None
        if known is not None and known.fault is not None:
            lines = [Line(one, "warning") for one in _unread(known)]
        elif known is not None and known.unread is not None:
            first, _, last = known.unread.partition(" … ")
            said = (f"By any pass from {first} to {last}:", "no text between is readable.")
            lines = [*(Line(one, "warning") for one in said), *lines]
        if not stage and known is not None and known.fault is None:
            lines = [Line("The module as it came in: nothing stands before it; t shows its text.", "note")]
        # A dump's events need every stage read: what changed is shown before that.
        return lines, self.run.events(pass_index=stage, limit=EVENTS) if self._rows is not None else []

    def _text(self, stage: int) -> list[Line]:
        """The text after a row; what is shown in place of one that is not readable says so first."""
        lines = text_lines(self.run.stage_text(stage))
        known = self._rows[stage] if self._rows is not None else None
        if known is None or known.fault is None:
            return lines
        shown = self.run.outline
        older = stage > 0 and shown[stage].snapshot == shown[stage - 1].snapshot
        said = (f"Not readable: {known.fault}.", "The last readable stage has:" if older else "What is there:")
        return [*(Line(one, "warning") for one in said), *lines]

    def _make_why(self, subject: str, work: Work) -> tuple[list[Line], list[EventRow]]:
        facts = self.run.why(subject, cancelled=work.cancelled, progress=work.progress)
        events = self.run.events(subject=subject.removeprefix("%"), limit=EVENTS)
        lines = why_lines(facts)
        if facts.opcode in _COPIES:
            self._copy = facts.name
        return lines, events

    def _ask_cause(self, name: str) -> None:
        """Why a copy is there: it takes its time, what is known stands there before it."""

        def put(row: CopyRow | None) -> None:
            if row is not None and self._view == "why" and self._subject.removeprefix("%") == name:
                self._pane.add(copy_lines(row))

        from hloscope.core.views.copies import cause_of_copy  # a large import, for copies alone

        self.ask_core(lambda work: call(cause_of_copy, self.run, name), put, group="cause")

    def _title(self) -> str:
        if self._view == "why":
            return f"why {self._subject}"
        if self._view == "found":
            return f"instructions that match {self._subject}"
        return "what changed" if self._view == "diff" else "the module after it"

    def _no_lines(self, told: str) -> None:
        self._put(([Line(told, "note")], []))

    def _put(self, found: tuple[list[Line], list[EventRow]]) -> None:
        lines, self._events = found
        self._waiting = False
        cursor = 0
        if self._goal is not None:
            at, name = self._goal
            self._goal = None
            cursor = next((i for i, line in enumerate(lines) if name and line.instruction == name), at)
        self._pane.fold = self._view == "why" or (self._wrap and self._view == "found")
        self._pane.show(lines, cursor=cursor)
        self._about = None
        self._show_events()
        if self._copy and self._view == "why":
            self._ask_cause(self._copy)
        self._copy = ""

    # ---------------------------------------------------------------- what was recorded
    @on(LinePane.Moved, "#pane")
    def _line_moved(self) -> None:
        self._show_events()

    def _show_events(self) -> None:
        """The events on the instruction under the cursor; all of the stage where it has none."""
        pane = self.query_one("#events", LinePane)
        pane.display = bool(self._events)
        if not self._events:
            return
        line = self._pane.current
        name = line.instruction if line is not None else None
        own = [one for one in self._events if one.subject == name] if name is not None else []
        about = name if own else ""
        if about != self._about:
            self._about = about
            head = f"recorded about {name}" if own else f"recorded: {counted(len(self._events), 'event')}"
            pane.show([Line(head, "heading"), *event_lines(own or self._events)])

    # ---------------------------------------------------------------- following
    def searched(self, line: Line) -> int:
        """What a diff takes away stood in the stage before; steps of a history are about the last stage."""
        stage = self._stage if self._stage is not None else len(self.run.outline) - 1
        return self.run.whole_before(stage) if self._view == "diff" and line.mark == "removed" else stage

    def follow(self, line: Line) -> None:
        """Enter: from the timeline to the stage, from a place found to the text, from a step of a history to its
        diff, else why."""
        if isinstance(self.focused, StageTable):
            self.turn_to(self._pane)
            return
        if self._view == "found" and line.instruction is None and line.stage is not None:
            self.dashboard.go(Place(self.NAME, line.stage, "found", self._subject))
        elif line.instruction is None and line.stage is None:
            self.say("this line names no instruction")
        elif self._view == "found" and line.instruction is not None:
            self.dashboard.go(Place(self.NAME, self._stage, "text", goal=line.instruction))
        elif self._view == "why" and line.stage is not None:
            self.dashboard.go(Place(self.NAME, line.stage, "diff", goal=line.instruction or ""))
        elif line.instruction is not None:
            self.dashboard.go(Place(self.NAME, self._stage, "why", line.instruction))

    def _instruction(self) -> str | None:
        line = self._pane.current
        name = line.instruction if line is not None else None
        name = name or (self._subject if self._view == "why" else None)
        if name is None:
            self.say("put the cursor on an instruction first")
        return name

    def action_follow_it(self) -> None:
        """Only stages that touched the instruction under the cursor; again: all stages."""
        if self._touched is not None:
            self._touched = None
            self._fill(self._stage, again=False)
            self.at(self.where())
            self.say("all stages")
        elif (name := self._instruction()) is not None:
            self.ask_core(
                lambda work: self.run.why(name, cancelled=work.cancelled, progress=work.progress),
                self._put_touched,
                group="follow",
                what=f"following {name}",
            )

    def _put_touched(self, facts: WhyFacts) -> None:
        self._touched = frozenset(step.index for step in facts.passes)
        self._names = {step.index: step.name for step in facts.passes}
        self._followed = facts.name
        self._fill(self._stage)
        self.at(self.where())
        fates = ", ".join(f"{step.what} at {step.index}" for step in facts.passes[:6])
        made = fused_into(facts)
        fates += f" (fused into {made})" if made else ""
        self.say(f"{facts.name}: {fates}; f shows all stages")

    def action_graph(self) -> None:
        """The neighbourhood of the instruction under the cursor."""
        if (name := self._instruction()) is not None:
            self.dashboard.go(Place("graph", self._stage, "", name))

    def action_bisect(self) -> None:
        """Search our compiler, or the real one, on the module of this stage."""
        self.dashboard.go(Place("bisect", self._stage, "stage"))

    # ---------------------------------------------------------------- questions
    def suggestion(self, what: str) -> str:
        """The filter that holds can be changed."""
        return self._words if what == "pass" else ""

    def answered(self, what: str, text: str) -> None:
        """A filter of the passes, or a search for instructions."""
        if what == "pass":
            self._words = text
            self._fill(self._stage)
            self.turn_to(self.query_one(StageTable))
        elif what == "name" and text and self.is_pattern(text):
            self.dashboard.go(Place(self.NAME, self._stage, "found", text))

    def focus_first(self) -> None:
        """To the timeline."""
        self.turn_to(self.query_one(StageTable))

    def action_next_change(self, step: int) -> None:
        """The next change in the diff."""
        if not self._pane.next_change(step):
            self.say("no further change")

    def action_toggle_changed(self) -> None:
        """All passes, or only those that changed something."""
        self._changed_only = not self._changed_only
        self._fill(self._stage, again=False)
        self.say("only passes that changed something" if self._changed_only else "all passes")


def _unread(row: PassRow) -> list[str]:
    """What to say in place of the changes of a stage whose text is not readable."""
    return [
        f"Not known: {row.fault}.",
        "What this pass did is first seen in the next stage that is readable.",
        *([f"  {row.file}"] if row.file is not None else []),
    ]


def _headline(summary: Summary) -> str:
    source = summary.source
    said = ", ".join(part for part in (source.target, source.xla_build) if part)
    time = f", {show_ns(summary.total_ns)}" if summary.total_ns is not None else ""
    events = f", {summary.events:,} event{'s' if summary.events > 1 else ''}" if summary.events else ""
    return (
        f"{source.module or 'module without a name'}  {f'({said})' if said else ''}\n"
        f"{summary.instructions_before:,} → {summary.instructions_after:,} instructions in {summary.computations:,} "
        f"computations; {summary.passes:,} passes, {summary.changed:,} changed it{time}{events}"
    )
