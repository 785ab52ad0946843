"""Bisection: start ``hloscope bisect`` as a child, watch its probes, and go to the culprit."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.binding import Binding, BindingType

from hloscope.core.errors import UsageError
from hloscope.core.views.later_passes import has_layouts, later_passes
from hloscope.tui import child
from hloscope.tui.content import Line, plain
from hloscope.tui.navigation import Place
from hloscope.tui.screens.base import Work
from hloscope.tui.screens.two_panes import TwoPanesScreen
from hloscope.tui.show import columns

if TYPE_CHECKING:
    from hloscope.core.views.run import Run

_BAR = 24
_PROBE = re.compile(r"(.*) (-?\d+) of (-?\d+)\.\.(-?\d+):")

_FIRST = "no probe yet: inputs are made, and the first and the last of it are run before anything is searched"
_OUTCOMES = {"right": "added", "wrong": "removed"}


_CHOICES = ("--passes", "--pipeline", "--engine", "--command", "--over", "--against")
"""Options that say what is searched."""
_UNDECIDED = ("compile-failure", "not-deterministic", "wrong-input", "cannot-tell")
"""Verdicts that say that something failed, or is not known: their evidence says what."""


class BisectScreen(TwoPanesScreen):
    """The command, its probes as they come, the answer."""

    NAME = "bisect"
    PROMPTS = {
        "options": "options of hloscope bisect (--engine xla, --args ARGS.npz, --oracle FILE.npz, --pipeline gpu …)"
    }
    LEGEND = """
a dump or ledger: its stages are evaluated and compared; a single module: a compiler is searched on it
a probe's bar: · known to be right, ░ still searched, ▓ known to be wrong, ● what was tried
the search runs in a process of its own; x ends it. docs/bisect.md says what the verdicts mean
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "go", "Run"),
        Binding("a", "ask('options')", "Options"),
        Binding("u", "whole", "The whole run", show=False),
    ]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._options = ""
        self._stage: int | None = None
        self._said: list[str] = []
        self._since = 0.0
        self._searching = False
        self._answer: child.Answer | None = None

    def start(self) -> None:
        """Say what would be run; nothing runs unasked."""
        self.turn_to(self.rows)
        self.set_interval(1.0, self._tick)
        self._show()

    @property
    def _subject(self) -> str:
        return self.run.source.path if self._stage is None else f"stage {self._stage} of {self.run.source.path}"

    @property
    def _goes_on(self) -> bool:
        """Whether the passes after the stage are searched, and not a whole pipeline, which assigns layouts anew."""
        named = any(word.partition("=")[0] in _CHOICES for word in self._options.split())
        return self._stage is not None and not named and has_layouts(self.run.outline, self._stage)

    def _show(self) -> None:
        words = f"hloscope bisect {self._subject} --json {self._options}".rstrip()
        state = (
            f"running for {time.monotonic() - self._since:.0f} s; x ends it"
            if self._searching
            else "r runs it, a sets options"
        )
        self.head(f"{words}\n{state}", "")
        if self._answer is not None and self._answer.data is not None:
            self._put_answer(self._answer.data)
        else:
            whole: dict[str, tuple[int, int]] = {}
            lines = [plain(_live(one, whole), "") for one in self._said[-500:]]
            if not lines and not self._searching:
                lines = self._offer()
            self.fill(lines, cursor=0 if not self._said else len(lines) - 1, empty=_FIRST)

    def _offer(self) -> list[Line]:
        """What a search would do."""
        out = [plain("Which pass, and which decision in it, made the numbers change?", "heading"), plain()]
        if self._stage is not None:
            what = f"compiles the module of stage {self._stage} pass by pass, and runs what comes out of each"
            if self._goes_on:
                what = "runs those of hloscope's passes that the compiler ran after this stage, one by one"
            out += [plain(f"r  {what}"), plain("u  searches the whole run instead, stage by stage")]
            if self._goes_on:
                out.append(plain("   the module has its layouts already; --passes names other passes", "note"))
        elif self.run.source.kind == "hlo":
            out.append(plain("r  compiles the module pass by pass, and runs what comes out of each"))
        else:
            out.append(plain("r  runs the stages of the compile, from both ends, until the first wrong one is found"))
        options = "--args ARGS.npz takes your inputs instead of made ones, --oracle FILE.npz what is right"
        return [*out, plain(f"a  options: --engine xla asks the installed XLA, {options}")]

    def _tick(self) -> None:
        if self._searching:
            self._show()

    def action_whole(self) -> None:
        """Search the run, not the module of one stage."""
        self._stage = None
        self._show()

    def action_go(self) -> None:
        """Start the search."""
        if self._searching:
            self.say("it is running; x ends it")
            return
        self._said, self._answer = [], None
        self._searching, self._since = True, time.monotonic()
        options, stage = shlex.split(self._options), self._stage
        if stage is not None and self._goes_on:
            try:
                options = ["--passes", later_passes(self.run.outline, stage), *options]
            except UsageError as error:
                self._failed(error.message)
                return
        self.ask_core(lambda work: self._ask(work, options, stage), self._done, group="bisect", failed=self._failed)
        self._show()

    def _ask(self, work: Work, options: list[str], stage: int | None) -> child.Answer:
        def line(text: str) -> None:
            self._said.append(text)

        with tempfile.TemporaryDirectory(prefix="hloscope-bisect-") as folder:
            if stage is None:
                module = self.run.source.module
                several = ["--module", f"^{_escaped(module)}$"] if len(self.run.modules) > 1 and module else []
                words = ["bisect", self.run.source.path, *several]
            else:
                path = os.path.join(folder, f"stage_{stage}.hlo")
                with open(path, "wb") as file:
                    file.write(self.run.stage_bytes(stage))
                words = ["bisect", path]
            return child.ask([*words, "--json", *options], cancelled=work.cancelled, line=line)

    def action_cancel_work(self) -> None:
        """End the search."""
        super().action_cancel_work()
        if self._searching:
            self._searching = False
            self._said.append("cancelled")
            self._show()

    def _failed(self, told: str) -> None:
        self._searching = False
        self._said.append(told)
        self._show()

    def _done(self, answer: child.Answer) -> None:
        self._searching, self._answer = False, answer
        if answer.data is None:
            self._said = [*answer.said] or [f"it ended with code {answer.code} and no answer"]
            self._answer = None
        self._show()
        self.turn_to(self.rows)

    def _put_answer(self, data: dict[str, Any]) -> None:
        culprits = cast("list[dict[str, Any]]", data.get("culprits") or [])
        probes = cast("list[dict[str, Any]]", data.get("probes") or [])
        took = "" if self._searching else "r runs it again"
        self.head(
            f"hloscope bisect {self._subject} {self._options}".rstrip()
            + f"\nverdict: {data.get('verdict')}; {len(probes)} probes. {took}"
        )
        lines = [Line(f"verdict: {data.get('verdict')}", "heading", item=data)]
        if data.get("verdict") in _UNDECIDED:
            lines += [plain(f"  {one}", "warning") for one in data.get("evidence") or []]
        for one in culprits:
            stage = one.get("stage")
            where = "/".join(str(one[key]) for key in ("pipeline", "pass") if one.get(key))
            fuel = _counted(one)
            text = f"culprit: {one.get('instruction') or where}  {one.get('rule') or ''}{fuel}"
            lines.append(
                Line(
                    text,
                    "removed",
                    one.get("instruction"),
                    stage if self._stage is None else None,
                    ((text, "removed"),),
                    item=one,
                )
            )
        for one in data.get("cures") or []:
            lines.append(plain(f"cure: {one}"))
        if probes:
            lines.append(Line("probes", "heading"))
            if data.get("verdict") == "compile-failure":
                told = "the failure is searched: failed counts, a wrong result of fewer passes is not followed"
                lines.append(plain(f"  {told}"))
            whole = _whole(probes)
            bars = [_range_bar(one, whole[str(one.get("level"))]) for one in probes]
            rows = [
                ("level", "searched", "tried", "right … wrong", "outcome"),
                *(
                    (
                        str(one.get("level")),
                        f"{one.get('low')}..{one.get('high')}",
                        str(one.get("tried")),
                        found,
                        str(one.get("outcome")),
                    )
                    for one, found in zip(probes, bars, strict=True)
                ),
            ]
            head, *texts = columns(rows)
            lines.append(plain("  " + head))
            for one, text in zip(probes, texts, strict=True):
                outcome = str(one.get("outcome"))
                cut = len(text) - len(outcome)
                parts = ((text[:cut], ""), (outcome, _OUTCOMES.get(outcome, "modified")))
                lines.append(Line("  " + text, "", differs=(("  ", ""), *parts), item=one))
        self.fill(lines, cursor=1 if culprits else 0)

    def details(self, item: object, line: Line) -> Sequence[Line]:
        """A culprit, a probe, or the evidence."""
        if not isinstance(item, dict):
            return ()
        found = cast("dict[str, Any]", item)
        if "verdict" in found:
            return [plain("evidence", "heading"), *(plain(f"  {one}") for one in found.get("evidence") or ["none"])]
        out = [
            plain(
                "culprit" if "sentence" in found else "probe", "heading", instruction=line.instruction, stage=line.stage
            )
        ]
        for key, value in found.items():
            if value not in (None, "", []):
                out.append(plain(f"  {key:<12} {value}", "", instruction=line.instruction, stage=line.stage))
        return out

    def follow(self, line: Line) -> None:
        """Enter on a culprit goes to its stage."""
        if line.stage is not None:
            self.dashboard.go(Place("stages", line.stage, "diff", goal=line.instruction or ""))
        else:
            super().follow(line)

    def answered(self, what: str, text: str) -> None:
        """Options for the next run."""
        if what == "options":
            try:
                shlex.split(text)
            except ValueError as error:
                self.say(str(error))
                return
            self._options = text.strip()
            self._answer = None
            self._show()

    def suggestion(self, what: str) -> str:
        """The options that are set."""
        return self._options if what == "options" else ""

    def place(self) -> Place:
        """What is searched."""
        return Place(self.NAME, self._stage, "stage" if self._stage is not None else "")

    def go_to(self, place: Place) -> None:
        """Search the module of a stage."""
        if place.view == "stage":
            self._stage = place.stage
            self._answer = None
            self._show()

    def where(self) -> str:
        """What is searched."""
        return "running" if self._searching else "" if self._stage is None else f"stage {self._stage}"

    def remembered(self) -> dict[str, Any]:
        """The options."""
        return {"options": self._options}

    def recall(self, values: dict[str, Any]) -> None:
        """The options."""
        self._options = str(values.get("options") or "")


def _counted(culprit: dict[str, Any]) -> str:
    """The decision, counted from 0 as the fuel of events is; a kernel's choices as its evidence counts them."""
    fuel = culprit.get("fuel")
    if fuel is None:
        return ""
    return f", choice {fuel}" if culprit.get("pipeline") == "pallas" else f", decision {fuel - 1}"


def _whole(probes: Sequence[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Of each level the widest range that was searched."""
    out: dict[str, tuple[int, int]] = {}
    for one in probes:
        level, low, high = str(one.get("level")), one.get("low"), one.get("high")
        if isinstance(low, int) and isinstance(high, int):
            before = out.get(level, (low, high))
            out[level] = (min(before[0], low), max(before[1], high))
        else:
            out.setdefault(level, (0, 0))
    return out


def _range_bar(probe: dict[str, Any], whole: tuple[int, int]) -> str:
    """Where a probe lies: ``·`` known to be right, ``░`` still searched, ``▓`` known to be wrong, ``●`` tried."""
    low, high, tried = probe.get("low"), probe.get("high"), probe.get("tried")
    least, most = whole
    if not (isinstance(low, int) and isinstance(high, int) and isinstance(tried, int)) or most <= least:
        return ""

    def cell(at: int) -> int:
        return round((at - least) * (_BAR - 1) / (most - least))

    cells = ["·" if at < cell(low) else "▓" if at > cell(high) else "░" for at in range(_BAR)]
    cells[max(0, min(_BAR - 1, cell(tried)))] = "●"
    return "".join(cells)


def _live(text: str, whole: dict[str, tuple[int, int]]) -> str:
    """A probe as the child tells it, with its bar."""
    found = _PROBE.match(text)
    if found is None:
        return text
    level = found[1].strip()
    probe: dict[str, Any] = {"tried": int(found[2]), "low": int(found[3]), "high": int(found[4])}
    low, high = whole.get(level, (probe["low"], probe["high"]))
    whole[level] = (min(low, probe["low"]), max(high, probe["high"]))
    return f"  {_range_bar(probe, whole[level]):<{_BAR}}  {text.strip()}"


def _escaped(name: str) -> str:
    return re.escape(name)
