"""What every screen of the dashboard shares: its frame, work in the background, questions, search, and moving about.

A screen says what it shows (`body`, `start`), where one is in it (`place`, `go_to`), and what enter does (`follow`).
Work runs in threads: one piece for each `group`, a newer one taking the place of an older one, with progress in the
status line; ``x`` cancels it. Nothing that asks the core runs on the thread that answers keys.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from textual import on
from textual.binding import Binding, BindingType
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static
from textual.worker import Worker, get_current_worker

from hloscope.core.errors import HloscopeError, UsageError
from hloscope.core.views.stages import CancelledError
from hloscope.tui.content import Line
from hloscope.tui.far import call
from hloscope.tui.navigation import Place
from hloscope.tui.questions import source_line
from hloscope.tui.search import matching_names
from hloscope.tui.widgets.compositor import ChangesCompositor
from hloscope.tui.widgets.key_line import KeyLine
from hloscope.tui.widgets.line_pane import LinePane, matches
from hloscope.tui.widgets.plain import Vertical, blank_lines
from hloscope.tui.widgets.status_line import StatusLine
from hloscope.tui.widgets.tab_bar import TabBar

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult
    from textual.geometry import Region, Size
    from textual.strip import Strip

    from hloscope.core.views.run import Run
    from hloscope.tui.app import DashboardApp

T = TypeVar("T")

LEAST = (40, 10)
"""Columns and lines below which one line says that it is too small; from 80×24 on everything has its room."""

_FIRST_DRAWN_SECONDS = 0.05
"""How long work waits for the screen that asks for it to be drawn."""

WIDE = 130
"""Columns from which panes stand beside one another."""

SEARCHED_STAGES = 8
"""Stages in which a search looks for what the lines of a pane do not show."""

AT_ONCE = 2_000
"""Rows that are made on the thread that answers keys."""

_PATIENCE_SECONDS = 1.0
"""How long work may take before it says how far it is."""

_PROGRESS_SECONDS = 0.2
"""Time between two reports of progress that are shown."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a piece of work is given to be stopped and watched."""

    cancelled: Callable[[], bool]
    progress: Callable[[int, int], None]


class RunScreen(Screen[None]):
    """One screen on the run."""

    NAME: ClassVar[str] = ""
    """As `navigation.SCREENS` lists it."""
    PROMPTS: ClassVar[dict[str, str]] = {}
    """What is asked for by this screen's own questions."""
    NO_MATCH: ClassVar[str] = "g goes to an instruction by its name"
    """What is said where a search finds nothing."""
    LEGEND: ClassVar[str] = ""
    """What help says below the keys."""

    KEYED: ClassVar[tuple[type[Widget], ...]] = ()
    """Widgets of this screen that have keys of their own."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (LEAST[0], "-narrow"), (WIDE, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (LEAST[1], "-tall")]

    AUTO_FOCUS = ""
    """Each says at its start who has the focus; another one before that is drawn for nothing."""

    # Those who lose and get the focus draw themselves anew; the others look the same.
    focused: Reactive[Widget | None] = Reactive(None, repaint=False)

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "ask('search')", "Search", key_display="/"),
        Binding("n", "next_match(1)", "Next match", show=False),
        Binding("N", "next_match(-1)", "Previous match", show=False),
        Binding("g", "ask('goto')", "Go to"),
        Binding("ctrl+o", "ask('module')", "Open another module", show=False),
        Binding("o", "other_pane", "Other pane", show=False),
        Binding("w", "why", "Why", show=False),
        Binding("y", "copy_line", "Copy the line", show=False),
        Binding("Y", "copy_all", "Copy everything shown in the pane", show=False),
        Binding("e", "edit_source", "Open the source line in $EDITOR", show=False),
        Binding("x", "cancel_work", "Cancel what runs", show=False),
        Binding("escape", "leave", "Leave", show=False),
        Binding("tab", "app.next_screen(1)", "Next screen", show=False),
        Binding("shift+tab", "app.next_screen(-1)", "Previous screen", show=False),
    ]

    _PROMPT = {
        "search": "search this pane (regular expression over its words, names, opcodes, op_name, FILE.py:LINE)",
        "goto": "go to: stage number (-1 is the last), instruction, or the name of a screen",
        "module": "which module: its number in hloscope ls, or a regular expression on its name",
    }

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._compositor = ChangesCompositor()
        self.run = run
        self._asking = ""
        self._started = False
        self.begun = False
        """Whether it was ever shown."""
        self.styled = -1
        """For which of the application's colours it was styled."""
        self._drawn_next = False
        self._begun_at = 0.0
        self._came_from: LinePane | None = None
        self._noted: Sequence[Line] | None = None
        """What an empty pane says meanwhile."""

    @property
    def dashboard(self) -> DashboardApp:
        """The application."""
        return cast("DashboardApp", self.app)

    def compose(self) -> ComposeResult:
        """Tabs, the screen's own part, the question line, status and keys."""
        yield Static(f"hloscope needs {LEAST[0]} columns and {LEAST[1]} lines", id="too-small", markup=False)
        yield TabBar(self.NAME)
        yield from self.body()
        yield StatusLine(id="status")
        with Vertical(id="foot"):
            yield Input(id="question", compact=True)
            yield KeyLine(id="keys")

    def on_mount(self) -> None:
        """The question line shows only when something is asked."""
        self.query_one("#question", Input).display = False
        self._started = True

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """The first time that it is shown, it asks for what it shows."""
        # Matching the style sheet against every widget takes longer than drawing them.
        event.refresh_styles = self.styled != self.dashboard.colours
        self.styled = self.dashboard.colours
        self.begin()

    def on_screen_suspend(self) -> None:
        """What was said is old when one comes back, unless it tells what goes on still."""
        if not any(one.node is self and one.is_running for one in self.workers):
            self.say("")

    def classes_at(self, size: Size) -> list[str]:
        """What it is called at a size, known before it is drawn so that it is not laid out twice."""
        return [
            max((at, name) for at, name in steps if at <= length)[1]
            for length, steps in (
                (size.width, self.HORIZONTAL_BREAKPOINTS or []),
                (size.height, self.VERTICAL_BREAKPOINTS or []),
            )
        ]

    def lay_out_ahead(self, size: Size) -> bool:
        """Give every widget its place before the first visit; False where they are not all there yet."""
        if self._started and not self.is_current:
            self._refresh_layout(size)
        return self._started

    def render_lines(self, crop: Region) -> list[Strip]:
        """The screen itself is a background."""
        return blank_lines(self, crop, super().render_lines)

    def _refresh_layout(self, size: Size | None = None, scroll: bool = False) -> None:
        """Not drawn at once where everything is drawn next anyway."""
        self._drawn_next = self._repaint_required
        super()._refresh_layout(size, scroll)
        self._drawn_next = False

    def draw_now(self) -> None:
        """What waits for the next frame."""
        self._on_timer_update()

    def _compositor_refresh(self) -> None:
        if not self._drawn_next:
            super()._compositor_refresh()

    def _screen_resized(self, size: Size) -> None:
        """Nothing where it is laid out for that size: a screen is told its size again when it is shown."""
        if self._compositor.size != size or self._layout_required:
            super()._screen_resized(size)

    def begin(self) -> None:
        """Start, once: a screen may have been made ahead of its first visit."""
        if not self.begun and self._started:
            self.begun, self._begun_at = True, time.monotonic()
            self.at(self.where())
            self.start()
            # The keys of what has the focus are among those that the line shows.
            self.call_after_refresh(self.query_one(KeyLine).refresh)

    # ---------------------------------------------------------------- what a screen says of itself
    def body(self) -> ComposeResult:
        """The screen's own widgets."""
        raise NotImplementedError

    def start(self) -> None:
        """Called once, when the screen is first shown."""

    def place(self) -> Place:
        """Where one is."""
        return Place(self.NAME)

    def go_to(self, place: Place) -> None:
        """Show a place of this screen."""

    def where(self) -> str:
        """The place in words, behind the module's name."""
        return ""

    def follow(self, line: Line) -> None:
        """Enter on a line: by default to its stage, else to what is known of its instruction."""
        if line.instruction is not None:
            self.dashboard.go(Place("stages", line.stage, "why", line.instruction))
        elif line.stage is not None:
            self.dashboard.go(Place("stages", line.stage, "diff"))
        else:
            self.say("this line names no instruction")

    def answered(self, what: str, text: str) -> None:
        """The answer to one of this screen's own questions."""

    def remembered(self) -> dict[str, Any]:
        """Filters and the like, for the next opening."""
        return {}

    def recall(self, values: dict[str, Any]) -> None:
        """What `remembered` gave, before `start`."""

    # ---------------------------------------------------------------- work
    def ask_core(
        self,
        make: Callable[[Work], T],
        then: Callable[[T], None],
        *,
        group: str = "lines",
        what: str = "",
        failed: Callable[[str], None] | None = None,
    ) -> None:
        """Run `make` in a thread and `then` with its result; errors of the user's become one line."""

        def finished(result: T, *, told_progress: bool) -> None:
            if told_progress or (what and self.query_one(StatusLine).message.startswith(what)):
                self.say("")
            then(result)

        def job() -> None:
            worker = get_current_worker()
            last = [0.0]
            # Two threads take turns: what the screen looks like comes before what it is to tell.
            time.sleep(max(0.0, self._begun_at + _FIRST_DRAWN_SECONDS - time.monotonic()))

            def progress(done: int, total: int) -> None:
                now = time.monotonic()
                far[:] = [f", {done:,} of {total:,}"]
                if now - last[0] > _PROGRESS_SECONDS:
                    last[0] = now
                    self._from_thread(
                        worker, lambda: self.say(f"{what or 'working'}: {done:,} of {total:,}; x cancels")
                    )

            try:
                result = make(Work(lambda: worker.is_cancelled, progress))
            except CancelledError:
                return
            except HloscopeError as error:
                told = str(error)
            except Exception as error:  # a fault of ours in one answer must not take the whole dashboard away
                told = f"this is a fault of hloscope, not of your program: {type(error).__name__}: {error}"
            else:
                self._from_thread(worker, lambda: finished(result, told_progress=last[0] > 0))
                return
            self._from_thread(worker, lambda: (failed or self.say)(told))

        far: list[str] = []
        if what:
            self.say(f"{what} …")
        worker = self.run_worker(
            job, thread=True, exclusive=True, group=group, exit_on_error=False, description=what or group
        )
        if what:
            self._watch(worker, what, far)

    def _watch(self, worker: Worker[None], what: str, far: Sequence[str]) -> None:
        """Work that takes longer says each second what it does, for how long already, how far it is, and for whom it
        waits; in an empty pane as well."""
        begun = time.monotonic()

        def tell() -> None:
            if worker.is_finished or not self.is_attached:
                timer.stop()
                return
            before = self.dashboard.heavy.before(worker)
            text = (
                f"{what}: {time.monotonic() - begun:.0f} s" + "".join(far) + (f", waits for {before}" if before else "")
            )
            if self.query_one(StatusLine).message.startswith(what):
                self.say(f"{text}; x cancels")
            self._note_instead(text)

        timer = self.set_interval(_PATIENCE_SECONDS, tell)

    def _note_instead(self, text: str, *, empty: bool = True) -> None:
        """A few words in the first pane, where it shows nothing (with `empty`) or others of these."""
        pane = next(iter(self.panes()), None)
        if pane is not None and (pane.lines is self._noted or (empty and not pane.lines)):
            self._noted = note(text)
            pane.show(self._noted)

    def made(
        self, rows: int, make: Callable[[], T], then: Callable[[T], None], *, group: str = "rows", what: str = ""
    ) -> None:
        """`then` with what `make` gives: at once where it is made of few rows, else by a thread, keys being answered
        meanwhile."""
        if rows <= AT_ONCE:
            then(make())
        else:
            self.ask_core(lambda work: make(), then, group=group, what=what)

    def _from_thread(self, worker: Worker[Any], action: Callable[[], object]) -> None:
        """Do something on the application's thread, unless nobody wants it any more."""

        def unless_late() -> None:
            if not worker.is_cancelled and self.is_attached:
                action()

        if not worker.is_cancelled and self.app.is_running:
            self.app.call_from_thread(unless_late)

    def action_cancel_work(self) -> None:
        """Stop what runs for this screen."""
        running = [one for one in self.workers if one.node is self and one.is_running]
        for one in running:
            one.cancel()
        self._note_instead("cancelled", empty=False)
        self.say("cancelled" if running else "nothing runs")

    # ---------------------------------------------------------------- panes
    def panes(self) -> list[LinePane]:
        """The panes of lines that are shown, in order."""
        return [one for one in self.query(LinePane) if one.display]

    @property
    def pane(self) -> LinePane | None:
        """The pane that has the focus, else the one that had it, else the first."""
        if isinstance(self.focused, LinePane):
            return self.focused
        if self._came_from is not None and self._came_from.is_attached:
            return self._came_from
        panes = self.panes()
        return panes[0] if panes else None

    @property
    def line(self) -> Line | None:
        """The line under the cursor."""
        pane = self.pane
        return pane.current if pane is not None else None

    def turn_to(self, widget: Widget) -> None:
        """Move the focus; while something is being asked it stays there, and comes here when it was answered."""
        if not self.query_one("#question", Input).display:
            widget.focus()
        elif isinstance(widget, LinePane):
            self._came_from = widget

    def action_other_pane(self) -> None:
        """Move the focus to the next pane."""
        self.focus_next()

    @on(LinePane.Chosen)
    def _line_chosen(self, event: LinePane.Chosen) -> None:
        event.stop()
        self.follow(event.line)

    def action_why(self) -> None:
        """All that is known of the instruction under the cursor."""
        line = self.line
        if line is None or line.instruction is None:
            self.say("put the cursor on an instruction first")
        else:
            self.dashboard.go(Place("stages", line.stage, "why", line.instruction))

    def action_copy_line(self) -> None:
        """The line under the cursor to the clipboard."""
        line = self.line
        if line is not None:
            self.app.copy_to_clipboard(line.text.strip())
            self.say("copied the line")

    def action_copy_all(self) -> None:
        """Everything in the pane to the clipboard."""
        pane = self.pane
        if pane is not None:
            self.app.copy_to_clipboard("\n".join(line.text for line in pane.lines))
            self.say(f"copied {len(pane.lines):,} lines")

    def action_edit_source(self) -> None:
        """The Python line that made the instruction under the cursor."""
        line = self.line
        if line is None:
            return
        known = line_of(line.item)
        if known is not None:
            self.dashboard.edit(*known)
        elif line.instruction is not None:
            name = line.instruction
            stage = line.stage if line.stage is not None else self.place().stage
            self.ask_core(
                lambda work: call(source_line, self.run, name, stage if stage is not None else -1),
                lambda frame: self.dashboard.edit(*frame) if frame else self.say(f"{name} carries no source line"),
                group="source",
            )
        else:
            self.say("put the cursor on an instruction first")

    # ---------------------------------------------------------------- questions
    def action_ask(self, what: str) -> None:
        """Open the question line."""
        if isinstance(self.focused, LinePane):
            self._came_from = self.focused
        self._asking = what
        question = self.query_one("#question", Input)
        question.placeholder = self.PROMPTS.get(what) or self._PROMPT[what]
        question.value = self.suggestion(what)
        # In the place of the keys, which are not what one types now: the panes keep their size.
        question.display, self.query_one(KeyLine).display = True, False
        question.focus()

    def suggestion(self, what: str) -> str:
        """What stands in the question line at first."""
        return ""

    @on(Input.Submitted, "#question")
    def _submitted(self, event: Input.Submitted) -> None:
        what, text = self._asking, event.value
        self.close_question()
        pane = self.pane
        if pane is not None:
            pane.focus()
        if what == "goto":
            self.dashboard.go_by_words(text.strip())
        elif what == "search":
            self._find_in_pane(text)
        elif what == "module":
            self._open_module(text)
        else:
            self.answered(what, text)

    def _open_module(self, text: str) -> None:
        try:
            if text.strip():
                self.dashboard.other_module(text)
        except UsageError as error:
            self.say(error.message)

    def _find_in_pane(self, text: str) -> None:
        pane = self.pane
        if pane is None or not self.is_pattern(text):
            return
        if not text:
            pane.find(None)
            self.say("")
            return
        lines = pane.drawn

        def seen(found: list[int]) -> None:
            if pane.is_attached and pane.drawn is lines:
                self._tell_matches(pane, pane.find(text, matching=found), frozenset(), more=" …")
                self.ask_core(lambda work: self._beyond(work, text, lines), known, group="search")

        def known(answer: tuple[frozenset[str], list[int]]) -> None:
            names, found = answer
            if pane.is_attached and pane.drawn is lines:
                count = pane.find(text, names, go=not pane.matched, matching=found)
                self._tell_matches(pane, count, names)

        self.made(len(lines), lambda: matches(lines, text), seen, group="search", what="searching")

    def _beyond(self, work: Work, text: str, lines: Sequence[Line]) -> tuple[frozenset[str], list[int]]:
        """What the lines do not show is looked up in the modules that they are about."""
        stages = sorted({self.searched(one) for one in lines if one.instruction is not None}, reverse=True)
        if not stages:
            return frozenset(), matches(lines, text)
        names = call(matching_names, self.run, stages[:SEARCHED_STAGES], text, cancelled=work.cancelled)
        return names, matches(lines, text, names)

    def searched(self, line: Line) -> int:
        """The stage in which the instruction of a line is looked at by a search."""
        stage = line.stage if line.stage is not None else self.place().stage
        last = len(self.run.outline) - 1
        return stage if stage is not None and 0 <= stage <= last else last

    def _tell_matches(self, pane: LinePane, count: int, names: frozenset[str], more: str = "") -> None:
        """What a search found."""
        if count:
            told = f"{count:,} line{'s match' if count > 1 else ' matches'}; n and N go on{more}"
        elif names:
            told = f"no line here; {len(names):,} instruction{'s' if len(names) > 1 else ''} elsewhere; {self.NO_MATCH}"
        else:
            told = f"no line matches; {self.NO_MATCH}{more}"
        self.say(told)

    def is_pattern(self, text: str) -> bool:
        """Whether a text is a regular expression; says so where it is none."""
        try:
            re.compile(text)
        except re.error as error:
            self.say(f"not a regular expression: {error}")
            return False
        return True

    def close_question(self) -> None:
        """Take the question line away."""
        self._asking = ""
        self.query_one("#question", Input).display, self.query_one(KeyLine).display = False, True

    def action_leave(self) -> None:
        """Close the question line, else take search marks away and go to the first pane."""
        question = self.query_one("#question", Input)
        if question.display:
            self.close_question()
        elif (pane := self.pane) is not None:
            pane.find(None)
        self.focus_first()

    def focus_first(self) -> None:
        """Give the focus to where it is at the start."""
        panes = self.panes()
        if panes:
            self.turn_to(panes[0])

    def action_next_match(self, step: int) -> None:
        """The next line that matches the search."""
        pane = self.pane
        if pane is None or not pane.find_next(step):
            self.say("no match; / searches")

    # ---------------------------------------------------------------- the status line
    def say(self, message: str) -> None:
        """What just happened."""
        if self._started:
            self.query_one(StatusLine).say(message)

    def at(self, where: str) -> None:
        """Where one is now."""
        if self._started:
            module = self.run.source.module or self.run.source.path
            line, place = self.query_one(StatusLine), " › ".join(filter(None, (module, self.NAME, where)))
            # A pane that is drawn anew tells its place again: what just happened is not to be lost by that.
            if place != line.place:
                line.at(place)

    @on(TabBar.Chosen)
    def _tab(self, event: TabBar.Chosen) -> None:
        self.dashboard.go(Place(event.name))


def note(text: str) -> Sequence[Line]:
    """One line instead of an answer."""
    return [Line(text, "note")]


def line_of(item: object) -> tuple[str, int] | None:
    """File and line that a row carries: its own, or those of its (innermost) source frame."""
    source = getattr(item, "source", None)
    for one in (item, source, source[0] if isinstance(source, tuple) and source else None):
        file, line = getattr(one, "file", None), getattr(one, "line", None)
        if isinstance(file, str) and isinstance(line, int):
            return file, line
    return None
