"""The first screen: what was compiled, its passes as a strip, and what is worth looking at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import Static

from hloscope.core.errors import HloscopeError
from hloscope.core.views.narrowed import dumped_passes
from hloscope.core.views.run import label
from hloscope.core.views.summary import show_ns
from hloscope.core.views.traffic import bytes_written
from hloscope.tui.content import Line
from hloscope.tui.far import call
from hloscope.tui.findings import Finding, announced, copy, flags, hazards_told, no_times, peak, refusal, slowest
from hloscope.tui.navigation import Place
from hloscope.tui.screens.base import RunScreen, Work
from hloscope.tui.show import clipped, counted
from hloscope.tui.widgets.line_pane import LinePane
from hloscope.tui.widgets.strip_chart import StripChart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult

    from hloscope.core.views.data import PassRow, Summary
    from hloscope.core.views.run import Run

LARGE = 20_000
"""Instructions of a last stage above which slow answers are worked out only when asked for."""

_SLOW: dict[str, tuple[str, Callable[[Run], Finding]]] = {
    "peak": ("buffers", peak),
    "refusal": ("fusion", refusal),
    "copy": ("copies", copy),
}
"""Findings that take long in a large module: what of the run each reads, and who makes it."""

_LATER = Finding("a large module: the letter, or a for all, works it out", "", None)


class OverviewScreen(RunScreen):
    """Facts, strip, findings."""

    NAME = "overview"
    KEYED = (StripChart,)
    LEGEND = """
the strip: height is the number of instructions; below it time, bytes that the module writes, and what the pass did:
- fewer instructions, + more, ~ changed, · nothing, ! a change that no pass announced, or a broken snapshot
letters before the findings go to their place; a works the slow ones out in a large module
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "all", "Work everything out", show=False),
        Binding("c", "finding('copy')", "Largest copy"),
        Binding("f", "finding('refusal')", "Costliest refusal"),
        Binding("p", "finding('peak')", "Peak memory"),
        Binding("s", "finding('slow')", "Slowest pass"),
        Binding("v", "finding('findings')", "Findings"),
    ]

    _KEYS = (
        ("copy", "c", "largest copy"),
        ("refusal", "f", "costliest refusal"),
        ("peak", "p", "peak memory"),
        ("slow", "s", "slowest pass"),
        ("findings", "v", "findings"),
    )

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._found: dict[str, Finding] = {}
        self._summary: Summary | None = None
        self._rows: Sequence[PassRow] = ()
        self._cursor = 0
        self._flags: str | None = None
        self._pattern: str | None = None
        """Which passes were dumped, where not all were."""
        self._listed_for = 0
        """Columns for which the findings were last told."""
        self._wish = ""
        """The finding whose letter was pressed before it was known."""

    def body(self) -> ComposeResult:
        """Facts above, the strip with the pass under its cursor, the findings."""
        yield Static("", id="facts", markup=False)
        yield StripChart(id="strip")
        yield Static("", id="title", markup=False)
        yield LinePane(id="findings", fold=True)

    def start(self) -> None:
        """Facts at once, the rest as it is read."""
        self.query_one("#facts", Static).update(self._facts())
        self.turn_to(self.query_one(StripChart))
        self._list()
        self.ask_core(self._read, self._put, group="timeline", what="reading stages")

    def _read(self, work: Work) -> tuple[Sequence[PassRow], Summary, str, str | None]:
        rows = self.run.timeline(cancelled=work.cancelled, progress=work.progress)
        summary = self.run.summary(cancelled=work.cancelled)
        return rows, summary, call(flags, self.run), call(dumped_passes, self.run)

    def _put(self, found: tuple[Sequence[PassRow], Summary, str, str | None]) -> None:
        self._rows, self._summary, self._flags, self._pattern = found
        self.query_one("#facts", Static).update(self._facts())
        strip = self.query_one(StripChart)
        first = next((row.index for row in self._rows if row.changed and row.index), 0)
        strip.show(self._rows, self._cursor or first, no_times(self.run))
        self._strip_moved()
        self._found["slow"] = slowest(self.run, self._rows)
        self._found["findings"] = announced(self._summary, self._rows, self._pattern)
        self._list()
        if self._rows[-1].instructions_after <= LARGE:
            self.action_all()
        else:
            for key in _SLOW:
                self._found[key] = _LATER
            self._list()
            self._take_over()
        self.at(self.where())

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """What other screens worked out meanwhile is not offered any more but told."""
        self._take_over()

    def _take_over(self) -> None:
        known = self.run.worked_out
        keys = [key for key, (name, _) in _SLOW.items() if self._found.get(key) is _LATER and name in known]

        def find(work: Work) -> None:
            for key in keys:
                self._find(work, key, _SLOW[key][1])

        if keys:
            self.ask_core(find, lambda _: None, group="known")

    def action_cancel_work(self) -> None:
        """Stop what runs; stages that were not read can be read on."""
        super().action_cancel_work()
        self._wish = ""
        if self._summary is None:
            self.query_one("#facts", Static).update(self._facts().replace("reading them …", "not all read; a reads on"))

    def action_all(self) -> None:
        """Copies, fusion and buffers, one after the other so that keys stay quick; first the stages, where reading
        them was cancelled."""
        if self._summary is None:
            if not any(one.group == "timeline" and one.node is self and one.is_running for one in self.workers):
                self.query_one("#facts", Static).update(self._facts())
                self.ask_core(self._read, self._put, group="timeline", what="reading stages")
            return
        self.ask_core(lambda work: self._find(work, "peak", peak), self._after_peak, group="findings", what="buffers")

    def _after_peak(self, _: None) -> None:
        self.ask_core(
            lambda work: self._find(work, "refusal", refusal), self._after_refusal, group="findings", what="fusion"
        )

    def _after_refusal(self, _: None) -> None:
        self.ask_core(lambda work: self._find(work, "copy", copy), self._after_copies, group="findings", what="copies")

    def _after_copies(self, _: None) -> None:
        self._list()
        self.ask_core(
            lambda work: call(bytes_written, self.run, cancelled=work.cancelled, progress=work.progress, aside=True),
            self._put_bytes,
            group="bytes",
            what="bytes of each stage",
        )
        self.ask_core(lambda work: call(hazards_told, self.run), self._put_hazards, group="findings")

    def _put_bytes(self, written: dict[int, int]) -> None:
        self.say("")
        self.query_one(StripChart).show_bytes(written)
        self._strip_moved()

    def _put_hazards(self, hazards: list[str]) -> None:
        if hazards:
            before = self._found.get("findings")
            text = f"{counted(len(hazards), 'case')} of wrong sharing of memory: {hazards[0]}"
            place = Place("buffers", view="hazards")
            if before is not None and before.place is not None:
                text, place = f"{before.title}; {text}", before.place
            self._found["findings"] = Finding(text, "", place)
            self._list()

    def _find(self, work: Work, key: str, make: Callable[[Run], Finding]) -> None:
        with self.dashboard.heavy:
            if work.cancelled():
                return
            try:
                self._found[key] = call(make, self.run)
            except HloscopeError as error:
                self._found[key] = Finding(error.message, "", None)
        self.app.call_from_thread(self._list)

    # ---------------------------------------------------------------- showing
    def _facts(self) -> str:
        source, summary = self.run.source, self._summary
        said = ", ".join(part for part in (source.target, source.xla_build) if part)
        out = [
            f"{source.module or 'module without a name'}  {f'({said})' if said else ''}  {source.kind} {source.path}"
        ]
        if summary is None:
            return "\n".join([*out, f"{len(self.run.outline):,} passes, reading them …"])
        time = f", {show_ns(summary.total_ns)}" if summary.total_ns is not None else ""
        events = f", {counted(summary.events, 'event')}" if summary.events else ""
        out.append(
            f"{summary.instructions_before:,} → {summary.instructions_after:,} instructions in "
            f"{summary.computations:,} computations; {summary.passes:,} passes, {summary.changed:,} changed it"
            f"{time}{events}"
        )
        out.append("last stage: " + "  ".join(f"{name} {count:,}" for name, count in summary.opcodes[:8]))
        if self._flags:
            out.append(f"flags: {self._flags}")
        out += [f"note: {one}" for one in summary.notes[:2]]
        return "\n".join(out)

    def on_resize(self) -> None:
        """What is told of a finding is as long as the screen is wide."""
        if self._started and self._found and self.size.width != self._listed_for:
            self._list()

    def _list(self) -> None:
        self._listed_for = self.size.width
        lines = [Line("worth looking at first", "heading")]
        for key, letter, title in self._KEYS:
            one = self._found.get(key)
            text = "…" if one is None else clipped(one.title, max(20, self.size.width - 28))
            lines.append(
                Line(
                    f"  {letter}  {title:<18} {text}",
                    "",
                    None,
                    None,
                    (
                        (f"  {letter}  ", "opcode"),
                        (f"{title:<18} ", "define" if one and one.place else "note"),
                        (text, ""),
                    ),
                    item=one,
                )
            )
            if one is not None and one.detail:
                # All five are to be seen at once: the whole reason stands where the letter leads.
                room = 2 * max(30, self.size.width - 30)
                lines.append(Line(f"{'':<24}{clipped(one.detail, room)}", "note", item=one))
        if self._summary is not None and self._summary.notable:
            lines += [Line("", "note"), Line("changes of the module", "heading")]
            lines += [
                Line(
                    f"  [{one.stage}] {one.title}: {one.detail}"
                    if one.stage is not None
                    else f"  {one.title}: {one.detail}",
                    "note",
                    None,
                    one.stage,
                )
                for one in self._summary.notable[:12]
            ]
        pane = self.query_one("#findings", LinePane)
        pane.show(lines, cursor=max(1, pane.cursor))
        self._grant()

    @on(StripChart.Moved)
    def _strip_moved(self) -> None:
        strip = self.query_one(StripChart)
        self._cursor = strip.cursor
        self.query_one("#title", Static).update(strip.words(), layout=False)
        self.at(self.where())

    @on(StripChart.Chosen)
    def _strip_chosen(self, event: StripChart.Chosen) -> None:
        self.dashboard.go(Place("stages", event.stage, "diff"))

    def follow(self, line: Line) -> None:
        """Enter goes to the place of a finding."""
        if isinstance(line.item, Finding):
            self._open(line.item)
        elif line.stage is not None:
            self.dashboard.go(Place("stages", line.stage, "diff"))

    def action_finding(self, key: str) -> None:
        """To the place of a finding by its letter."""
        found = self._found.get(key)
        if found is not None and found is not _LATER:
            self._open(found)
            return
        self._wish = key
        self.say("working it out, then it opens; x cancels")
        if found is _LATER:
            self.ask_core(lambda work: self._find(work, key, _SLOW[key][1]), lambda _: None, group="findings", what=key)

    def _grant(self) -> None:
        """Open what was asked for before it was known, if one is still here."""
        found = self._found.get(self._wish)
        if found is not None and found is not _LATER:
            self._wish = ""
            if self.is_current:
                self._open(found)

    def _open(self, found: Finding) -> None:
        if found.place is None:
            self.say(found.title)
        else:
            self.dashboard.go(found.place)

    def place(self) -> Place:
        """The pass under the cursor."""
        return Place(self.NAME, self._cursor)

    def go_to(self, place: Place) -> None:
        """Put the cursor on a pass."""
        if place.stage is not None:
            self._cursor = place.stage
            self.query_one(StripChart).show(self._rows, place.stage, no_times(self.run))
            self._strip_moved()

    def where(self) -> str:
        """The pass under the cursor."""
        rows = self.run.outline
        return f"{self._cursor}/{len(rows) - 1} {label(rows[self._cursor])}" if self._cursor < len(rows) else ""

    def focus_first(self) -> None:
        """To the strip."""
        self.turn_to(self.query_one(StripChart))
