"""Pallas: the kernels of a Python file with their grid and blocks, what each step fetches, and what is wrong."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.binding import Binding, BindingType

from hloscope.tui import child
from hloscope.tui.content import Line, plain
from hloscope.tui.navigation import Place
from hloscope.tui.screens.base import Work
from hloscope.tui.screens.two_panes import TwoPanesScreen
from hloscope.tui.show import counted, show_bytes

if TYPE_CHECKING:
    from hloscope.core.views.run import Run

_MARKS = {"error": "removed", "warning": "modified"}
_SEVERITIES = {"error": 0, "warning": 1, "information": 2}
_GRID_ROWS = 12
_GRID_COLUMNS = 24


class _Place:
    """A line of the file, for $EDITOR."""

    def __init__(self, file: str, line: int) -> None:
        self.file, self.line = file, line


class PallasScreen(TwoPanesScreen):
    """Findings and kernels on the left, one of them on the right."""

    NAME = "pallas"
    PROMPTS = {"file": "FILE.py[:FUNCTION] and options (--target v5e, --trace, --interpret, --arg 'f32[8,128]')"}
    LEGEND = """
without --trace the file is only parsed; --trace imports it in a child process, --interpret runs its kernels there
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "ask('file')", "File"),
        Binding("r", "again", "Again"),
        Binding("t", "trace('--trace')", "Trace it"),
        Binding("u", "trace('--interpret')", "Run it instrumented"),
        Binding("right_square_bracket", "step(1)", "Next grid step", show=False),
        Binding("left_square_bracket", "step(-1)", "Previous grid step", show=False),
    ]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._words = ""
        self._data: dict[str, Any] | None = None
        self._step = 0

    def start(self) -> None:
        """Ask for a file."""
        self.turn_to(self.rows)
        if self._words:
            self.action_again()
        else:
            self.head("a names a Python file with pallas_call in it")
            self.fill([], empty="Grid, blocks, races and other faults of Pallas kernels: a names the file.")

    def answered(self, what: str, text: str) -> None:
        """Another file."""
        if text.strip():
            self._words = text.strip()
            self.action_again()

    def suggestion(self, what: str) -> str:
        """The file that is open."""
        return self._words if what == "file" else ""

    def action_trace(self, option: str) -> None:
        """The same file, traced or run."""
        if self._words:
            kept = [word for word in self._words.split() if word not in ("--trace", "--interpret")]
            self._words = " ".join([*kept, option])
            self.action_again()

    def action_again(self) -> None:
        """Read the file anew."""
        if not self._words:
            self.say("a names a file first")
            return
        try:
            words = shlex.split(self._words)
        except ValueError as error:
            self.say(str(error))
            return
        self.head(f"hloscope pallas {self._words} …")

        def ask(work: Work) -> child.Answer:
            return child.ask(["pallas", *words, "--json"], cancelled=work.cancelled)

        self.ask_core(ask, self._put, group="pallas", what="pallas", failed=self.fault)

    def _put(self, answer: child.Answer) -> None:
        self.say("")
        if answer.data is None:
            self.fault(answer.said[-1] if answer.said else f"it ended with code {answer.code} and no answer")
            return
        self._data = answer.data
        self._list()

    def _list(self) -> None:
        data = self._data or {}
        calls = cast("list[dict[str, Any]]", data.get("calls") or [])
        findings = cast("list[dict[str, Any]]", data.get("findings") or [])
        counts = {word: sum(one.get("severity") == word for one in findings) for word in ("error", "warning")}
        self.head(
            f"{self._words}: {counted(len(calls), 'call')}, {counted(counts['error'], 'error')}, "
            f"{counted(counts['warning'], 'warning')}"
        )
        lines: list[Line] = [Line("findings", "heading")] if findings else []
        for one in sorted(findings, key=lambda one: _SEVERITIES.get(str(one.get("severity")), len(_SEVERITIES))):
            severity = str(one.get("severity"))
            text = f"  {severity:<11} {one.get('line')}: {one.get('message')}  [{one.get('code')}]"
            parts = ((f"  {severity:<11} ", _MARKS.get(severity, "note")), (text[14:], ""))
            lines.append(Line(text, "", differs=parts, item=one))
        lines.append(Line("kernels", "heading"))
        for one in calls:
            grid = "×".join("?" if bound is None else str(bound) for bound in one.get("grid") or []) or "1"
            steps = f", {one['steps']:,} steps" if one.get("steps") is not None else ""
            text = f"  {one.get('name')}  line {one.get('line')}: grid {grid}{steps}"
            lines.append(Line(text, "", differs=((text, ""),), item=one))
        self.fill(lines, cursor=1 if len(lines) > 1 else 0)

    def details(self, item: object, line: Line) -> Sequence[Line]:
        """A finding with its fix, or a kernel with its blocks and grid."""
        if not isinstance(item, dict):
            return ()
        found = cast("dict[str, Any]", item)
        return self._finding(found) if "severity" in found else self._call(found)

    def _finding(self, one: dict[str, Any]) -> list[Line]:
        place = _Place(str(one.get("file")), int(one.get("line") or 1))
        out = [
            Line(f"{one.get('severity')}: {one.get('code')}", "heading", item=place),
            plain(f"  {one.get('message')}", ""),
        ]
        out.append(Line(f"  at {place.file}:{place.line}  (e opens it)", "note", item=place))
        for other in one.get("related") or []:
            at = _Place(str(other.get("file")), int(other.get("line") or 1))
            out.append(Line(f"  {at.file}:{at.line}: {other.get('message')}", "note", item=at))
        if one.get("fix"):
            out += [plain(), plain("fix", "heading"), plain(f"  {one['fix']}", "")]
        known = (
            "severity",
            "code",
            "message",
            "file",
            "line",
            "column",
            "end_line",
            "end_column",
            "related",
            "fix",
            "origin",
        )
        rest = {key: value for key, value in one.items() if key not in known and value not in (None, "", [], {}, 0)}
        return out + [plain(f"  {key} {value}") for key, value in rest.items()]

    def _call(self, one: dict[str, Any]) -> list[Line]:
        place = _Place(str(one.get("file")), int(one.get("line") or 1))
        out = [Line(f"{one.get('name')}  {place.file}:{place.line}", "heading", item=place)]
        if one.get("bytes_moved") is not None:
            out.append(plain(f"  moved by the pipeline: {show_bytes(one['bytes_moved'])}"))
        out += [plain(), plain("operands", "heading")]
        for row in one.get("operands") or []:
            out.append(
                plain(
                    f"  {row.get('name')} {row.get('array') or ''} block ({', '.join(row.get('block') or [])})", "name"
                )
            )
            if row.get("blocks") is not None:
                verb = "fetched" if row.get("kind") == "input" else "written"
                out.append(
                    plain(
                        f"    {row['blocks']:,} blocks, {verb} {row.get('fetches', 0):,} times, reused "
                        f"{row.get('reuses', 0):,}, {show_bytes(row.get('bytes_moved'))}"
                    )
                )
            elif row.get("unsupported"):
                out.append(plain(f"    blocks not known: {row['unsupported']}"))
        out += [plain(f"  scratch {text}") for text in one.get("scratch") or []]
        schedule = cast("list[dict[str, Any]]", one.get("schedule") or [])
        out += [plain(), plain("grid", "heading"), *self._grid(one, schedule)]
        if schedule:
            out += [plain(), plain("steps", "heading")]
            for row in schedule[:500]:
                point = "(" + ", ".join(map(str, row.get("point") or [])) + ")"
                text = f"  {row.get('step'):>4} {point}: fetches {', '.join(row.get('fetched') or []) or 'nothing'}"
                if row.get("written"):
                    text += f"; writes back {', '.join(row['written'])}"
                out.append(plain(text, "" if row.get("fetched") else "note"))
        elif not one.get("traced"):
            out.append(plain("  t traces the function: then each step tells what it fetches and writes"))
        return out

    def _grid(self, one: dict[str, Any], schedule: list[dict[str, Any]]) -> list[Line]:
        """The last two dimensions as cells, in the order of the steps; full ones fetch something."""
        grid = [bound for bound in one.get("grid") or [] if bound is not None]
        if not grid or len(grid) != len(one.get("grid") or []):
            return [plain("  not known from the text")] if one.get("grid") else [plain("  one step")]
        wide, high = grid[-1], grid[-2] if len(grid) > 1 else 1
        fetches = {tuple(row.get("point") or []): len(row.get("fetched") or []) for row in schedule}
        out: list[Line] = []
        for y in range(min(high, _GRID_ROWS)):
            cells = ""
            for x in range(min(wide, _GRID_COLUMNS)):
                point = (*[0] * (len(grid) - 2), y, x) if len(grid) > 1 else (x,)
                count = fetches.get(point)
                cells += "□ " if count is None else "■ " if count else "· "
            out.append(plain(f"  {cells}{'…' if wide > _GRID_COLUMNS else ''}", "bar"))
        if high > _GRID_ROWS:
            out.append(plain("  …"))
        ends = " × ".join(map(str, grid))
        out.append(
            plain(
                f"  {ends} steps, the last dimension fastest"
                + ("; ■ fetches a block, · reuses all" if schedule else "")
            )
        )
        return out

    def action_step(self, by: int) -> None:
        """To the next step of the schedule in the details."""
        self.detail.action_move(by)

    def action_edit_source(self) -> None:
        """The line of the finding or kernel under the cursor."""
        line = self.line
        found = line.item if line is not None else None
        if isinstance(found, dict):
            one = cast("dict[str, Any]", found)
            self.dashboard.edit(str(one.get("file")), int(one.get("line") or 1))
        else:
            super().action_edit_source()

    def place(self) -> Place:
        """The file."""
        return Place(self.NAME, subject=self._words)

    def go_to(self, place: Place) -> None:
        """Open a file."""
        if place.subject and place.subject != self._words:
            self._words = place.subject
            self.action_again()

    def where(self) -> str:
        """The file."""
        return self._words

    def remembered(self) -> dict[str, Any]:
        """The file, without options that run it."""
        kept = [word for word in self._words.split() if word not in ("--trace", "--interpret")]
        return {"words": " ".join(kept)}

    def recall(self, values: dict[str, Any]) -> None:
        """The file."""
        self._words = str(values.get("words") or "")
