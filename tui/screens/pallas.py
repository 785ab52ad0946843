"""Pallas: the kernels of a Python file with their grid and blocks, what each step fetches, and what is wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.binding import Binding, BindingType

from hloscope.tui import child
from hloscope.tui.content import Line, Mark, plain
from hloscope.tui.far import call
from hloscope.tui.navigation import Place
from hloscope.tui.questions import KernelCall, own_kernels
from hloscope.tui.screens.base import Work
from hloscope.tui.screens.two_panes import TwoPanesScreen
from hloscope.tui.show import columns, counted, show_bytes

if TYPE_CHECKING:
    from hloscope.core.views.run import Run

_MARKS = {"error": "removed", "warning": "modified"}
_SEVERITIES = {"error": 0, "warning": 1, "information": 2}
_GRID_ROWS = 12
_GRID_COLUMNS = 24
_STEPS = 500
_AROUND = 3
"""Lines of the file that are shown before and after the one that a finding is about."""
_SCRATCH = re.compile(r"Ref<(\w+)>\{(.*)\}")
_BLOCK = re.compile(r"(?P<name>.*)\[(?P<ranges>[^\]]*)\]")


@dataclass(frozen=True, slots=True)
class _Held:
    """The block of an operand that a step works on."""

    ranges: str
    sign: str
    """How it came or goes: as the heading of the steps says."""


class _Place:
    """A line of the file, for $EDITOR."""

    def __init__(self, file: str, line: int) -> None:
        self.file, self.line = file, line


_OFFER = "Grid, blocks, races and other faults of Pallas kernels: a names the file."


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
        Binding("right_square_bracket", "step(1)", "Next grid step", key_display="]"),
        Binding("left_square_bracket", "step(-1)", "Previous grid step", key_display="[", show=False),
    ]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._words = ""
        self._own: list[str] = []
        """Python files that the compiled program's own kernels come from."""
        self._data: dict[str, Any] | None = None
        self._data_of = ""
        """The file that it tells of."""
        self._step = 0
        self._told: object = None
        self._files: dict[str, list[str]] = {}
        """Lines of the files that findings are in."""

    def start(self) -> None:
        """Ask for a file."""
        self.turn_to(self.rows)
        if self._words:
            self.action_again()
        else:
            self.head("a names a Python file with pallas_call in it")
            self.fill([], empty=_OFFER)
            self.ask_core(lambda work: call(own_kernels, self.run), self._put_own, group="own", failed=lambda _: None)

    def _put_own(self, found: list[KernelCall]) -> None:
        """The kernels that the compiled program calls, until a file is named."""
        if self._words or not found:
            return
        self._own = [one.file for one in found if one.file is not None]
        lines = [plain(_OFFER, ""), plain(), Line("kernels of its own that the compiled program calls", "heading")]
        for one in found:
            at = f"{one.file}:{one.line}" if one.file is not None else "no source line"
            item = _Place(one.file, one.line) if one.file is not None and one.line is not None else None
            lines.append(Line(f"  {one.name}  ({one.target})  {at}", "note", one.name, item=item))
        self.fill(lines, cursor=3)

    def answered(self, what: str, text: str) -> None:
        """Another file."""
        if text.strip():
            self._words = text.strip()
            self.action_again()

    def suggestion(self, what: str) -> str:
        """The file that is open."""
        return (self._words or next(iter(self._own), "")) if what == "file" else ""

    def action_trace(self, option: str) -> None:
        """The same file, traced or run."""
        if self._words:
            self._words = f"{_only_read(self._words)} {option}"
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

        def ask(work: Work) -> tuple[child.Answer, dict[str, list[str]]]:
            answer = child.ask(["pallas", *_asked(words), "--json"], cancelled=work.cancelled)
            found = cast("list[dict[str, Any]]", (answer.data or {}).get("findings") or [])
            return answer, {name: _text(name) for name in {str(one.get("file")) for one in found}}

        self.ask_core(ask, self._put, group="pallas", what="pallas", failed=self.fault)

    def _put(self, found: tuple[child.Answer, dict[str, list[str]]]) -> None:
        self.say("")
        answer, self._files = found
        if answer.data is None:
            told = answer.said[-1] if answer.said else f"it ended with code {answer.code} and no answer"
            if self._data is not None and self._data_of == _file(self._words):
                # What the text alone told of the file still holds.
                self._list()
                self.head(told)
            else:
                self.fault(told)
            return
        self._data, self._data_of = answer.data, _file(self._words)
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
        wide = max((len(str(one.get("code"))) for one in findings), default=0)
        for one in sorted(findings, key=lambda one: _SEVERITIES.get(str(one.get("severity")), len(_SEVERITIES))):
            severity = str(one.get("severity"))
            code, rest = f"{one.get('code')!s:<{wide}}", f"  {one.get('message')}"
            parts = (
                (f"  {severity:<11} ", _MARKS.get(severity, "note")),
                (f"{one.get('line')!s:>4}  ", "note"),
                (code, ""),
                (rest, "note"),
            )
            lines.append(Line("".join(text for text, _ in parts), "", differs=parts, item=one))
        lines.append(Line("kernels", "heading"))
        rows = [("name", "line", "grid", "steps")]
        for one in calls:
            grid = "×".join("?" if bound is None else str(bound) for bound in one.get("grid") or []) or "-"
            steps = f"{one['steps']:,}" if one.get("steps") is not None else "?"
            rows.append((_named(one), str(one.get("line")), grid, steps))
        first, *texts = columns(rows, right=(1, 3))
        if calls:
            lines.append(plain(f"  {first}"))
        for one, text in zip(calls, texts, strict=True):
            lines.append(Line(f"  {text}", "", differs=((f"  {text}", ""),), item=one))
        self.fill(lines, cursor=next((n for n, line in enumerate(lines) if line.item is not None), 0))

    def details(self, item: object, line: Line) -> Sequence[Line]:
        """A finding with its fix, or a kernel with its blocks and grid."""
        if not isinstance(item, dict):
            return ()
        found = cast("dict[str, Any]", item)
        if self._told is not found:
            self._told, self._step = found, 0
        return self._finding(found) if "severity" in found else self._call(found)

    def _finding(self, one: dict[str, Any]) -> list[Line]:
        place = _Place(str(one.get("file")), int(one.get("line") or 1))
        out = [
            Line(f"{one.get('severity')}: {one.get('code')}", "heading", item=place),
            plain(f"  {one.get('message')}", ""),
        ]
        out.append(Line(f"  at {place.file}:{place.line}  (e opens it)", "note", item=place))
        if one.get("call"):
            told = f"  in the call of {one['call']}" + (f", made by {one['function']}" if one.get("function") else "")
            made = _Place(place.file, int(one["call_line"])) if one.get("call_line") else place
            out.append(Line(told + (f" in line {made.line}" if one.get("call_line") else ""), "note", item=made))
        out += self._excerpt(place)
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
            "call",
            "function",
            "call_line",
        )
        rest = {key: value for key, value in one.items() if key not in known and value not in (None, "", [], {}, 0)}
        return out + [plain(f"  {key} {value}") for key, value in rest.items()]

    def _excerpt(self, place: _Place) -> list[Line]:
        """The lines of the file around a place."""
        text = self._files.get(place.file, ())
        first = max(0, place.line - 1 - _AROUND)
        out: list[Line] = [plain()] if text else []
        for number, line in enumerate(text[first : place.line + _AROUND], first + 1):
            here = number == place.line
            shown: tuple[tuple[str, Mark], ...] = (
                (f"  {'▶' if here else ' '} {number:>4}  ", "warning" if here else "note"),
                (line, "strong" if here else ""),
            )
            out.append(Line("".join(part for part, _ in shown), "", differs=shown, item=_Place(place.file, number)))
        return out

    def _call(self, one: dict[str, Any]) -> list[Line]:
        place = _Place(str(one.get("file")), int(one.get("line") or 1))
        schedule = cast("list[dict[str, Any]]", one.get("schedule") or [])
        operands = cast("list[dict[str, Any]]", one.get("operands") or [])
        held = _held(schedule, [str(row.get("name")) for row in operands])
        self._step = max(0, min(self._step, len(schedule) - 1))
        out = [Line(f"{_named(one)}  {place.file}:{place.line}", "heading", item=place)]
        if one.get("bytes_moved") is not None:
            out.append(plain(f"  moved by the pipeline: {show_bytes(one['bytes_moved'])}"))
        out += [plain(), *self._grid(one, schedule)]
        if schedule:
            point = _point(schedule[self._step])
            out.append(plain(f"  at step {self._step} {point}; [ and ] step", "strong"))
        out += [plain(), plain("operands", "heading")]
        for row in operands:
            name = str(row.get("name"))
            out += self._operand(row, held[self._step].get(name) if held else None, held, name)
        out += [plain(f"  scratch {_SCRATCH.sub(_scratch, str(text))}") for text in one.get("scratch") or []]
        if schedule:
            out += [plain(), plain("steps: ▼ fetches, = keeps, ▲ writes back after it", "heading")]
            out += _steps(schedule[:_STEPS], held, [str(row["name"]) for row in operands if row.get("copied")])
            if len(schedule) > _STEPS:
                out.append(plain(f"  … {len(schedule) - _STEPS:,} more"))
        elif one.get("traced"):
            out += [plain(), plain("  the blocks of its steps are not known: see the findings")]
        else:
            out += [plain(), plain("  t traces the function: then each step tells what it fetches and writes")]
        return out

    def _operand(
        self, row: dict[str, Any], now: _Held | None, held: Sequence[dict[str, _Held]], name: str
    ) -> list[Line]:
        """An operand, what is moved of it, and where in it the step is."""
        place = cast("dict[str, Any]", row.get("index_map") or row.get("spec") or {})
        item = _Place(str(place["file"]), int(place["line"])) if place.get("file") else None
        text = f"  {name} {row.get('array') or ''} block ({', '.join(row.get('block') or [])})"
        out = [Line(text, "name", differs=((text, "name"),), item=item)]
        if row.get("copied") is False:
            return [*out, plain(f"    not moved by the pipeline: {row.get('space_meaning') or row.get('space')}")]
        if row.get("blocks") is not None:
            verb = "fetched" if row.get("kind") == "input" else "written"
            out.append(
                plain(
                    f"    {counted(row['blocks'], 'block')}, {verb} {counted(row.get('fetches', 0), 'time')}, kept "
                    f"{counted(row.get('reuses', 0), 'time')}, {show_bytes(row.get('bytes_moved'))}"
                )
            )
        elif row.get("unsupported"):
            out.append(plain(f"    blocks not known: {row['unsupported']}"))
        if now is not None:
            out += _block_map(now, [step[name] for step in held if name in step])
        return out

    def _grid(self, one: dict[str, Any], schedule: list[dict[str, Any]]) -> list[Line]:
        """The last two dimensions as cells, in the order of the steps; full ones fetch something."""
        bounds = one.get("grid") or []
        grid = [int(bound) for bound in bounds if bound is not None]
        if not bounds:
            return [plain("grid of one step", "heading")]
        ends = "×".join("?" if bound is None else str(bound) for bound in bounds)
        if len(grid) != len(bounds):
            return [plain(f"grid {ends}: not known from the text", "heading")]
        now = tuple(schedule[self._step].get("point") or []) if schedule else ()
        outer = tuple(now[: len(grid) - 2]) if len(grid) > 2 else ()
        outer = outer or tuple([0] * (len(grid) - 2))
        at = f", of which index {', '.join(map(str, outer))}" if outer else ""
        out = [plain(f"grid {ends}, the last dimension fastest{at}", "heading")]
        wide, high = grid[-1], grid[-2] if len(grid) > 1 else 1
        # The part of the grid that the step lies in.
        left = max(0, min(wide - _GRID_COLUMNS, (now[-1] if now else 0) - _GRID_COLUMNS // 2))
        top = max(0, min(high - _GRID_ROWS, (now[-2] if len(now) > 1 else 0) - _GRID_ROWS // 2))
        fetches = {tuple(row.get("point") or []): len(row.get("fetched") or []) for row in schedule}
        for y in range(top, min(high, top + _GRID_ROWS)):
            cells = "… " if left else ""
            for x in range(left, min(wide, left + _GRID_COLUMNS)):
                point = (*outer, y, x) if len(grid) > 1 else (x,)
                count = fetches.get(point)
                cells += "◉ " if point == now else "□ " if count is None else "■ " if count else "· "
            out.append(plain(f"  {cells}{'…' if wide > left + _GRID_COLUMNS else ''}", "bar"))
        if high > top + _GRID_ROWS:
            out.append(plain("  …"))
        if schedule:
            out.append(plain("  ■ fetches a block, · has all it reads, ◉ the step told below"))
        return out

    def action_step(self, by: int) -> None:
        """To the next step of the grid, shown in the grid, in the operands and in the list of steps."""
        found = self.chosen
        steps = len(found.get("schedule") or []) if isinstance(found, dict) else 0
        if not steps:
            self.say("put the cursor on a kernel that is traced (t) first")
            return
        self._step = max(0, min(steps - 1, self._step + by))
        lines = self._call(cast("dict[str, Any]", found))
        row = next((n for n, line in enumerate(lines) if line.item == self._step), 0)
        # From the list the grid and the operands are looked at, in the details the table of steps.
        self.detail.show(lines, cursor=row if self.focused is self.detail else 0)
        self.at(self.where())

    def follow(self, line: Line) -> None:
        """Enter on a step shows it in the grid and the operands."""
        if isinstance(line.item, int) and isinstance(self.chosen, dict):
            self.action_step(line.item - self._step)
        else:
            super().follow(line)

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
        """The file, without options that run it: coming back, or opening anew, runs nothing."""
        return Place(self.NAME, subject=_only_read(self._words))

    def go_to(self, place: Place) -> None:
        """Open a file."""
        if place.subject and _only_read(place.subject) != _only_read(self._words):
            self._words = place.subject
            self.action_again()

    def where(self) -> str:
        """The file and the step."""
        found = self.chosen
        if isinstance(found, dict) and "severity" not in found and found.get("schedule"):
            return f"{self._words} › {found.get('name')} step {self._step}"
        return self._words

    def remembered(self) -> dict[str, Any]:
        """The file, without options that run it."""
        return {"words": _only_read(self._words)}

    def recall(self, values: dict[str, Any]) -> None:
        """The file."""
        self._words = str(values.get("words") or "")


def _text(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _named(call: Mapping[str, Any]) -> str:
    """A call's name, and which run of it where it runs more than once."""
    turn = call.get("turn") or 1
    return f"{call.get('name')}, run {turn}" if turn > 1 else str(call.get("name"))


def _file(words: str) -> str:
    return words.partition(".py")[0]


def _asked(words: list[str]) -> list[str]:
    """The words of a command: arguments of a function wait until it is traced."""
    if not {"--trace", "--interpret"}.isdisjoint(words):
        return words
    return [
        word
        for at, word in enumerate(words)
        if word != "--arg" and not word.startswith("--arg=") and words[at - 1 : at] != ["--arg"]
    ]


def _only_read(words: str) -> str:
    return " ".join(word for word in words.split() if word not in ("--trace", "--interpret"))


def _scratch(found: re.Match[str]) -> str:
    return f"in {found[1].upper()}: {found[2]}"


def _point(row: dict[str, Any]) -> str:
    return f"({', '.join(map(str, row.get('point') or []))})"


def _held(schedule: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, _Held]]:
    """For each step the block of each operand: what was fetched for it, kept for it, or is written back after it."""
    out: list[dict[str, _Held]] = []
    for row in schedule:
        found: dict[str, _Held] = {}
        for key, sign in (("reused", "="), ("fetched", "▼"), ("written", "▲")):
            for text in row.get(key) or []:
                block = _BLOCK.fullmatch(str(text))
                if block is not None:
                    # An operand that is both read and written back was told first as what is read.
                    before = found[block["name"]].sign if block["name"] in found else ""
                    found[block["name"]] = _Held(block["ranges"], before + sign)
        out.append(found)
    # A block that is written back later is the one that the steps before work on.
    for name in names:
        later = ""
        for step in reversed(out):
            if name in step:
                later = step[name].ranges if "▲" in step[name].sign else ""
            elif later:
                step[name] = _Held(later, "=")
    return out


def _steps(schedule: Sequence[dict[str, Any]], held: Sequence[dict[str, _Held]], names: Sequence[str]) -> list[Line]:
    """A table: the point of each step, and of each operand its block."""
    rows = [("step", "point", *names)]
    for row, found in zip(schedule, held, strict=False):
        blocks = [f"{found[name].sign} [{found[name].ranges}]" if name in found else "-" for name in names]
        rows.append((str(row.get("step")), _point(row), *blocks))
    first, *rest = columns(rows)
    busy = [any("▼" in one.sign or "▲" in one.sign for one in found.values()) for found in held]
    out = [Line(f"  {first}", "note", differs=(("  ", "note"), (first, "note")))]
    for number, (text, moves) in enumerate(zip(rest, busy, strict=False)):
        parts: tuple[tuple[str, Mark], ...] = (("  ", ""), (text, "" if moves else "note"))
        out.append(Line(f"  {text}", "", differs=parts, item=number))
    return out


def _block_map(now: _Held, steps: Sequence[_Held]) -> list[Line]:
    """The blocks that any step touches, by their place in the last two dimensions; the step's own is full."""
    places = {one.ranges: _ranges(one.ranges) for one in (*steps, now)}
    here = places[now.ranges]
    if not here:
        return []
    same = [at for at in places.values() if len(at) == len(here) and at[:-2] == here[:-2]]
    rows = sorted({at[-2] if len(at) > 1 else (0, 1) for at in same})
    across = sorted({at[-1] for at in same})
    if len(same) < 2 or len(rows) > _GRID_ROWS or len(across) > _GRID_COLUMNS:
        return [plain(f"    now {now.sign} [{now.ranges}]", "bar")]
    known = set(same)
    out: list[Line] = []
    for number, y in enumerate(rows):
        cells = ""
        for x in across:
            at = (*here[:-2], y, x) if len(here) > 1 else (x,)
            cells += "■ " if at == here else "□ " if at in known else "  "
        out.append(plain(f"    {cells}" + (f"  now {now.sign} [{now.ranges}]" if number == 0 else ""), "bar"))
    return out


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    """``0:128, 256:512`` as pairs."""
    found: list[tuple[int, int]] = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        low, _, high = part.partition(":")
        try:
            found.append((int(low), int(high or low)))
        except ValueError:
            return ()
    return tuple(found)
