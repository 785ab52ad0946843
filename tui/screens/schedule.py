"""The order in which the last stage runs, memory in use, the critical path, what could run together, and thunks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from hloscope.core.views.critical_path import CriticalPath, critical_path
from hloscope.tui.content import Line, plain
from hloscope.tui.far import call
from hloscope.tui.navigation import Place
from hloscope.tui.questions import Schedule, Step, schedule
from hloscope.tui.screens.base import AT_ONCE, Work
from hloscope.tui.screens.two_panes import TwoPanesScreen
from hloscope.tui.show import bar, clipped, columns, counted, names, show_bytes, show_us

if TYPE_CHECKING:
    from hloscope.core.views.run import Run

_KERNELS = frozenset({"fusion", "custom-call", "dot", "convolution", "sort"})
"""Opcodes that take time whenever they run."""
_BAR = 14


class ScheduleScreen(TwoPanesScreen):
    """Order on the left, what a step waits for and what waits for it on the right."""

    NAME = "schedule"
    LEGEND = """
in use: memory that something lives in at that step, as the buffers screen counts it
●: on the critical path, the chain of steps that no order shortens (by estimated time on a GPU, else by bytes moved)
t shows the sequence of thunks of a dump that has it
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "toggle_thunks", "Thunks"),
        Binding("p", "peak", "To the peak"),
        Binding("c", "toggle_critical", "Critical path"),
        Binding("right_square_bracket", "critical(1)", "Next step of the critical path", show=False),
        Binding("left_square_bracket", "critical(-1)", "Previous step of the critical path", show=False),
        Binding("r", "graph", "Draw its neighbourhood", show=False),
    ]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._steps: Sequence[Step] = ()
        self._when: dict[str, int] = {}
        """Step of each instruction."""
        self._thunks: Sequence[str] | None = None
        self._show_thunks = False
        self._peak = 0
        self._origin = ""
        self._critical: CriticalPath | None = None
        self._beside: tuple[str, list[str]] | None = None
        """The step last looked at in a large module, and what could run beside it."""
        self._on_path: frozenset[str] = frozenset()
        self._only_critical = False

    def start(self) -> None:
        """Read the order."""
        self.head("reading the schedule …")
        self.turn_to(self.rows)
        self.ask_core(self._read, self._put, group="report", what="schedule", failed=self.fault)

    def _read(self, work: Work) -> Schedule:
        with self.dashboard.heavy:
            return call(schedule, self.run)

    def _put(self, found: Schedule) -> None:
        self._steps, self._thunks, self._peak, self._origin = found.steps, found.thunks, found.peak, found.origin
        self._when = {one.name: one.number for one in found.steps}
        self.say("")
        self._list()
        self.ask_core(
            lambda work: call(critical_path, self.run, cancelled=work.cancelled),
            self._put_critical,
            group="critical",
            what="critical path",
        )

    def _put_critical(self, found: CriticalPath) -> None:
        self._critical, self._on_path, self._beside = found, frozenset(found.path), None
        self.say("")
        self._list(self.rows.cursor)

    def _list(self, cursor: int = 0) -> None:
        def put(found: tuple[str, str, list[Line]]) -> None:
            self.head(*found[:2])
            self.fill(found[2], cursor=cursor, empty="no schedule")

        self.made(len(self._steps), self._rows, put)

    def _rows(self) -> tuple[str, str, list[Line]]:
        """The lines above, and the rows."""
        thunks = f"; {len(self._thunks):,} lines of thunks (t)" if self._thunks else "; the dump has no thunk sequence"
        if self._show_thunks and self._thunks:
            names_of = {re.sub(r"[^\w]", "_", one.name): one.name for one in self._steps}
            made: list[Line] = []
            for line in self._thunks:
                found = next((names_of[word] for word in line.split() if word in names_of), None)
                made.append(plain(line, "", instruction=found))
            return f"{len(self._steps):,} steps, {self._origin}{thunks}", "", made
        known = [one.used for one in self._steps if one.used is not None]
        most, least = max(known, default=0), min(known, default=0)
        # Parameters lie there all the time: the bar tells what is above the least, which is what changes.
        floor = least if least < most else 0
        roomy = self.size.width >= 100
        weights = self._critical.weights if self._critical is not None else {}
        steps = [one for one in self._steps if not self._only_critical or one.name in self._on_path]
        cells = [
            (
                str(one.number),
                "●" if one.name in self._on_path else "",
                one.opcode if roomy else clipped(one.opcode, 12),
                one.name if roomy else clipped(one.name, 24),
                self._weight(weights[one.name]) if weights.get(one.name) else "",
                show_bytes(one.used) if one.used is not None else "",
                bar((one.used or 0) - floor, most - floor, _BAR if roomy else _BAR // 2),
            )
            for one in steps
        ]
        takes = "moves" if self._critical is not None and self._critical.unit != "us" else "takes"
        above = f"above {show_bytes(floor)}" if floor and roomy else ""
        titles = ("step", "", "opcode", "instruction", takes, "in use", above)
        lines = columns([titles, *cells], right=(0, 4, 5), widest=28)
        made = []
        for one, text in zip(steps, lines[1:], strict=True):
            cut = len(text.rstrip("█▏▎▍▌▋▊▉"))
            kind = "bar2" if one.number == self._peak else "bar"
            made.append(Line(text, "", one.name, differs=((text[:cut], ""), (text[cut:], kind)), item=one))
        told = f"\n{self._critical_words()}" if self._critical is not None else ""
        return f"{len(self._steps):,} steps, {self._origin}{thunks}{told}", lines[0] if lines else "", made

    def _weight(self, value: float) -> str:
        return show_us(value) if self._critical is not None and self._critical.unit == "us" else show_bytes(value)

    def _critical_words(self) -> str:
        found = self._critical
        if found is None or not found.length:
            return "critical path: no step is known to take time"
        what = "of" if found.unit == "us" else "moved of"
        silent = [one.name for one in self._steps if one.opcode in _KERNELS and not found.weights.get(one.name)]
        unknown = f"\nof {counted(len(silent), 'kernel')} no time is known: {names(silent, 3)}" if silent else ""
        return (
            f"critical path: {len(found.path):,} steps, {self._weight(found.length)} {what} {self._weight(found.work)}"
            f"; at most {found.at_once:.1f} times as fast if all that can did run together"
            + (unknown if found.unit == "us" else "")
        )

    def _critical_lines(self, name: str) -> list[Line]:
        found = self._critical
        if found is None or name not in found.weights:
            return []
        weight, slack = found.weights[name], found.slack.get(name, 0.0)
        out = [plain(), plain("critical path", "heading")]
        word = "takes about" if found.unit == "us" else "moves"
        out.append(plain(f"  {word} {self._weight(weight)}" if weight else "  takes no time that is known"))
        if name in self._on_path:
            out.append(plain(f"  ● on it: step {found.path.index(name) + 1} of {len(found.path)}", "strong"))
        else:
            out.append(plain(f"  not on it: {self._weight(slack)} could be added before it makes the whole longer"))
        free = self._together(found, name)
        if free is None:
            return [*out, plain(), plain("could run together with", "heading"), plain("  looking …")]
        out += [plain(), plain(f"could run together with ({len(free):,})", "heading")]
        out += [plain(f"  {one}  {self._weight(found.weights[one])}", "", instruction=one) for one in free[:12]]
        if len(free) > 12:
            out.append(plain(f"  and {len(free) - 12:,} lighter ones"))
        elif not free:
            out.append(plain("  nothing: every other step waits for it, or it for them"))
        return out

    def _together(self, found: CriticalPath, name: str) -> list[str] | None:
        """What could run beside a step; None where a thread looks for it, which then shows the step again."""
        if len(found.weights) <= AT_ONCE:
            return found.together(name)
        if self._beside is not None and self._beside[0] == name:
            return self._beside[1]

        def put(free: list[str]) -> None:
            one = self.chosen
            if isinstance(one, Step) and one.name == name and self._critical is found:
                self._beside = name, free
                self._chosen()

        self.ask_core(lambda work: found.together(name), put, group="together")
        return None

    def details(self, item: object, line: Line) -> Sequence[Line]:
        """Neighbours in the graph, with the steps at which they run."""
        if not isinstance(item, Step):
            return ()
        when = self._when
        out = [plain(f"step {item.number}: {item.name}", "heading", instruction=item.name)]
        out.append(plain(f"  {item.opcode} of {item.shape}, in {item.computation}"))
        out.append(plain())
        out.append(plain("waits for", "heading"))
        for name in item.operands:
            ago = f"step {when[name]}, {item.number - when[name]} before" if name in when else "no step of its own"
            out.append(plain(f"  {name}  ({ago})", "", instruction=name))
        if not item.operands:
            out.append(plain("  nothing"))
        out += [plain(), plain("waited for by", "heading")]
        for name in item.users:
            later = f"step {when[name]}, {when[name] - item.number} later" if name in when else "no step of its own"
            out.append(plain(f"  {name}  ({later})", "", instruction=name))
        if not item.users:
            out.append(plain("  nothing: it is given back, or has an effect"))
        ready = max((when[name] for name in item.operands if name in when), default=None)
        if ready is not None and item.number - ready > 1:
            free = [one.name for one in self._steps[ready + 1 : item.number]]
            out += [plain(), plain(f"what it reads is there since step {ready}; ran in between: {names(free, 6)}")]
        return out + self._critical_lines(item.name)

    def action_toggle_critical(self) -> None:
        """Only the steps of the critical path, or all."""
        if self._critical is None:
            self.say("not worked out yet")
            return
        self._only_critical, self._show_thunks = not self._only_critical, False
        self._list()
        self.say("only the critical path" if self._only_critical else "all steps")

    def action_critical(self, by: int) -> None:
        """To the next step of the critical path."""
        at = self.rows.cursor + by
        while 0 <= at < len(self.rows.lines):
            if self.rows.lines[at].instruction in self._on_path:
                self.rows.move_to(at)
                return
            at += by
        self.say("no further step of the critical path")

    def action_toggle_thunks(self) -> None:
        """Thunks, or instructions."""
        if not self._thunks:
            self.say("the dump has no thunk sequence (only XLA:GPU writes one)")
            return
        self._show_thunks = not self._show_thunks
        self._list()

    def action_peak(self) -> None:
        """To the step at which most memory is in use."""
        if not self._steps:
            return
        if self._show_thunks or self._only_critical:
            self._show_thunks = self._only_critical = False
            self._list(self._peak)
        else:
            self.rows.move_to(self._peak)

    def action_graph(self) -> None:
        """The step in its neighbourhood."""
        line = self.line
        if line is not None and line.instruction is not None:
            self.dashboard.go(Place("graph", None, "", line.instruction))

    def where(self) -> str:
        """The step."""
        one = self.chosen
        return f"step {one.number} {one.name}" if isinstance(one, Step) else ""
