"""Two compiles side by side: which passes both have, where they part, and what differs at any pair of stages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from hloscope.core.cli.opening import same_module
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.views.compare import Compared, ComparedStage, compare_runs, stage_difference
from hloscope.core.views.run import load
from hloscope.tui.content import Line, diff_lines, plain
from hloscope.tui.far import FarRun, call
from hloscope.tui.findings import flags
from hloscope.tui.highlight import Piece
from hloscope.tui.navigation import Place
from hloscope.tui.screens.base import Work
from hloscope.tui.screens.two_panes import TwoPanesScreen
from hloscope.tui.show import clipped, counted, names, tail

if TYPE_CHECKING:
    from hloscope.core.views.run import Run

NAME = 34
"""Columns for the name of a pass."""

FLAGS = 6
"""Flags of one side that are told."""

_WORDS_ONLY = {"metadata", "name"}
"""Parts of an instruction that do nothing."""

_SIGNS = {True: ("=", "note"), False: ("≠", "removed")}


class CompareScreen(TwoPanesScreen):
    """Rows of both timelines on the left, what differs on the right."""

    NAME = "compare"
    PROMPTS = {"other": "compare with which dump, ledger or HLO file?"}
    LEGEND = """
= the same (but for names and metadata), ≠ not the same, A or B: only one side has the pass
after the stage at which they part, rows are the same only to the letter
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "ask('other')", "Compare with"),
        Binding("d", "first", "Where they part"),
        Binding("greater_than_sign", "differing(1)", "Next that differs", key_display=">"),
        Binding("less_than_sign", "differing(-1)", "Previous that differs", key_display="<", show=False),
        Binding("p", "toggle_common", "Common passes only"),
        Binding("s", "toggle_side", "Side by side"),
        Binding("M", "toggle_metadata", "Metadata too", show=False),
    ]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._path = ""
        self._other: Run | None = None
        self._found: Compared | None = None
        self._flags: list[str] = []
        """How the flags of the two differ, in words."""
        self._common = False
        self._side = True
        self._metadata = False
        self._subject: ComparedStage | None = None

    def start(self) -> None:
        """Ask for the second compile, or open the one that was given."""
        self.turn_to(self.rows)
        if self._path or self.dashboard.other:
            self._open(self._path or self.dashboard.other or "")
        else:
            self.head("a asks for the dump, ledger or HLO file to compare with")
            self.fill([], empty="Compare two flag sets, two versions, or two hosts of one job: a names the other.")

    def _open(self, path: str) -> None:
        self._path = path
        self.head(f"comparing with {path} …")
        self.ask_core(self._read, self._put, group="compare", what="comparing stages", failed=self.fault)

    def _read(self, work: Work) -> tuple[Run, Compared, list[str]]:
        path = os.path.expanduser(self._path)
        module = same_module(self.run, path)
        other = FarRun(path, module, beside=self.run) if isinstance(self.run, FarRun) else load(path, module)
        try:
            found = call(compare_runs, self.run, other, cancelled=work.cancelled, progress=work.progress)
            known = all(one.source.kind == "ledger" or one.report(FileKind.DEBUG_OPTIONS) for one in (self.run, other))
            told = _flags_told(call(flags, self.run), call(flags, other)) if known else []
        except BaseException:
            other.close()
            raise
        return other, found, told

    def _put(self, answer: tuple[Run, Compared, list[str]]) -> None:
        if self._other is not None:
            self._other.close()
            self.dashboard.dropped()
        self._other, self._found, self._flags = answer
        self.run.on_close(self._other.close)
        self.say("")
        self._list()
        self.action_first()

    def _list(self) -> None:
        found = self._found
        if found is None or self._other is None:
            return
        first = found.first
        where = "no difference in any common stage"
        if found.header is not None:
            where = "no instruction differs in any common stage"
        if first is not None:
            name = f"{first.pipeline}/{first.pass_name}" if first.pipeline else first.pass_name
            where = f"they part at {name} (stage {first.a} of A, {first.b} of B)"
            lone, *others = first.between or ("",)
            if lone:
                where += f", in between, {lone}" + (f" and {len(others)} more" if others else "")
            if first.last_same is None:
                where = f"different programs from the start: {where}"
        self.head(
            f"A {tail(self.run.source.path, 60)}{_compiler(self.run)}: {len(self.run)} passes; "
            f"B {tail(self._path, 60)}{_compiler(self._other)}: {len(self._other)}\n"
            f"{where}; {counted(found.only_a, 'row')} only in A, {found.only_b} only in B"
            + "".join(f"\n{one}" for one in self._flags)
            + "".join(f"\nnote: {one}" for one in found.notes),
            f"        A     B  {'pass':<{NAME}}  pipeline, or why one side lacks it",
        )
        lines: list[Line] = []
        for one in found.stages:
            if self._common and one.same is None:
                continue
            side = "A" if one.b is None else "B" if one.a is None else "?"
            sign, kind = _SIGNS[one.same] if one.same is not None else (side, "modified")
            parts = first is not None and one.a == first.a and one.b == first.b
            numbers = f"{'-' if one.a is None else one.a:>5} {'-' if one.b is None else one.b:>5}"
            name = f"{clipped(one.pass_name, NAME):<{NAME}}"
            beside = one.why or one.pipeline
            text = f"{'▶' if parts else ' '} {sign} {numbers}  {name}  {beside}"
            shown: list[Piece] = [
                (f"{'▶' if parts else ' '} ", "warning"),
                (sign, kind),
                (f" {numbers}  {name}", "note" if one.same else ""),
                (f"  {beside}", "note"),
            ]
            lines.append(Line(text, "", None, one.a, tuple(shown), item=one))
        self.fill(lines, empty="no common pass")

    def details(self, item: object, line: Line) -> Sequence[Line]:
        """Worked out in the background: two indexes may have to be made."""
        if not isinstance(item, ComparedStage) or self._other is None:
            return ()
        if item.a is None or item.b is None:
            has = "A" if item.b is None else "B"
            because = item.why or "why is not known: the other side did not run it here, or its dump has no row of it"
            return [plain(f"only {has} shows {item.pass_name}", "heading"), plain(f"  {because}", "")]
        if item.same is None:
            return [plain(f"not known whether they are the same: {item.why}")]
        if item.exact:
            return [plain("equal to the letter")]
        self._subject = item
        a, b, other = item.a, item.b, self._other
        width = max(40, self.detail.size.width - 1)
        side = width if self._side else 0

        def make(work: Work) -> list[Line]:
            diff, hidden = call(stage_difference, self.run, a, other, b), 0
            if not self._metadata:
                # Two calls of one program rarely agree in these, and hundreds of them hide what matters.
                told = tuple(one for one in diff.modified if set(one.what) - _WORDS_ONLY)
                hidden, diff = len(diff.modified) - len(told), replace(diff, modified=told)
            lines = [] if hidden and diff.empty else diff_lines(diff, side=side, wrap=width)
            more = [plain(f"{counted(hidden, 'instruction')} with other metadata only: M shows them")] if hidden else []
            return [*more, *lines]

        self.ask_core(make, lambda lines: self._put_diff(item, lines), group="diff")
        return [plain("comparing …")]

    def _put_diff(self, item: ComparedStage, lines: list[Line]) -> None:
        if self._subject is item:
            found = self._found
            between: list[Line] = []
            if found is not None and found.first is not None and (found.first.a, found.first.b) == (item.a, item.b):
                count = counted(len(found.first.real()), "change")
                between = [plain(f"here they part: {count} that count, - is A, + is B", "heading")]
                between += [plain(f"in between, {name}") for name in found.first.between[:20]]
            self.detail.show([*between, *lines])

    def action_first(self) -> None:
        """To the first common pass after which they differ."""
        first = self._found.first if self._found is not None else None
        if first is None:
            return
        at = next((n for n, line in enumerate(self.rows.lines) if _is(line.item, first.a, first.b)), None)
        if at is not None:
            self.rows.move_to(at)

    def action_differing(self, by: int) -> None:
        """To the next row of both sides after which they differ."""
        at = self.rows.cursor + by
        while 0 <= at < len(self.rows.lines):
            item = self.rows.lines[at].item
            if isinstance(item, ComparedStage) and item.same is False:
                self.rows.move_to(at)
                return
            at += by
        self.say("no further row that differs")

    def action_toggle_common(self) -> None:
        """Hide passes that only one side has."""
        self._common = not self._common
        kept = self.chosen
        self._list()
        at = next((n for n, line in enumerate(self.rows.lines) if line.item is kept), None)
        if at is not None:
            self.rows.move_to(at)
        self.say("common passes only" if self._common else "all passes")

    def action_toggle_metadata(self) -> None:
        """Show, or leave out, instructions that differ in metadata only."""
        self._metadata = not self._metadata
        self._chosen()
        self.say("metadata too" if self._metadata else "without what differs in metadata only")

    def action_toggle_side(self) -> None:
        """Side by side, or inline."""
        self._side = not self._side
        self._chosen()

    def answered(self, what: str, text: str) -> None:
        """The second path."""
        if text.strip():
            self._open(text.strip())

    def suggestion(self, what: str) -> str:
        """The path that is open."""
        return self._path if what == "other" else ""

    def place(self) -> Place:
        """The second path."""
        return Place(self.NAME, subject=self._path)

    def go_to(self, place: Place) -> None:
        """Open a second path."""
        if place.subject and place.subject != self._path:
            self._open(place.subject)

    def where(self) -> str:
        """The pair."""
        one = self.chosen
        pair = f"A {one.a} B {one.b} {one.pass_name}" if isinstance(one, ComparedStage) else ""
        return " › ".join(filter(None, (tail(self._path, 40), pair)))


def _flags_told(a: str, b: str) -> list[str]:
    """What only one side was given."""
    sides = [{_flag(one): one.strip() for one in text.split("  ") if one.strip()} for text in (a, b)]
    only = [[one for key, one in sides[at].items() if key not in sides[1 - at]] for at in (0, 1)]
    return [f"flags only of {name}: {names(found, FLAGS)}" for name, found in zip("AB", only, strict=True) if found]


def _flag(text: str) -> str:
    """``--name=value`` as a program gives it and ``name: "value"`` as a dump writes it, alike."""
    name, _, value = text.strip().lstrip("-").replace(": ", "=", 1).partition("=")
    return name + "=" + value.strip('"')


def _is(item: object, a: int, b: int) -> bool:
    return isinstance(item, ComparedStage) and (item.a, item.b) == (a, b)


def _compiler(run: Run) -> str:
    """Target and build, as far as they are known."""
    told = ", ".join(part for part in (run.source.target, run.source.xla_build) if part)
    return f" ({told})" if told else ""
