"""Fusion: every decision with its numbers as bars, by cost or in the order of the queue, and why A is not in B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType

from hloscope.core.views.fusion import FusionReport, FusionRow, PairFacts, costliest_first, why_pair
from hloscope.tui.content import Line, plain
from hloscope.tui.far import call
from hloscope.tui.fusion_queue import FusionQueue
from hloscope.tui.navigation import Place
from hloscope.tui.questions import first_reader
from hloscope.tui.screens.base import Work
from hloscope.tui.screens.two_panes import TwoPanesScreen
from hloscope.tui.show import bar, clipped, columns, counted, names, show_bytes, show_us

if TYPE_CHECKING:
    from hloscope.core.views.run import Run

_BAR = 28
_QUEUE = 10
"""Producers of the queue that are shown."""
_TERMS = ("read_us", "write_us", "compute_us", "us")
_TELLERS = {"xla": "XLA's own record", "core": "hloscope's compiler", "inferred": "the stages before and after"}

_VERDICTS = ("", "fused", "refused", "ineligible", "priority")


class FusionScreen(TwoPanesScreen):
    """Decisions on the left; on the right the numbers of one, and its history in the queue."""

    NAME = "fusion"
    PROMPTS = {
        "filter": "show decisions whose line holds (producer, consumers, verdict, reason)",
        "pair": "why is A not fused into B? two names",
        "target": "decide anew for: cpu, h100, a100, b200, mi300, or a file (empty: what the compiler did)",
    }
    LEGEND = """
refusals that stand come first, by the memory traffic that they cost; O shows the order of the queue instead
priority: a place in the queue, with the time that fusing would save; ineligible: cannot be fused at all
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "ask('filter')", "Filter"),
        Binding("v", "next_verdict", "Verdict"),
        Binding("O", "toggle_order", "Queue order"),
        Binding("a", "ask('pair')", "Why A, B"),
        Binding("f", "pair_here", "Why this pair"),
        Binding("u", "ask('target')", "What if: another device", show=False),
        Binding("greater_than_sign", "step(1)", "Next step of the queue", show=False),
        Binding("less_than_sign", "step(-1)", "Previous step of the queue", show=False),
        Binding("r", "graph", "Draw its neighbourhood", show=False),
    ]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._report: FusionReport | None = None
        self._replay: FusionQueue | None = None
        self._target: str | None = None
        self._words = ""
        self._verdict = ""
        self._queue = False
        self._subject = ""

    def start(self) -> None:
        """Read the decisions."""
        self.head("reading fusion decisions …")
        self.turn_to(self.rows)
        self.ask_core(self._read, self._put, group="report", what="fusion", failed=self.fault)

    def _read(self, work: Work) -> tuple[FusionReport, FusionQueue]:
        with self.dashboard.heavy:
            if self._target:
                from hloscope.core.views.fusion import fusion_report

                report = call(fusion_report, self.run, target=self._target)
            else:
                report = self.run.fusion
        return report, FusionQueue(report.rows)

    def _put(self, found: tuple[FusionReport, FusionQueue]) -> None:
        self._report, self._replay = found
        self.say("")
        self._list()

    def _list(self) -> None:
        report = self._report
        if report is None:
            return

        subject, self._subject = self._subject, ""

        def put(found: tuple[str, str, list[Line], int]) -> None:
            head, titles, made, cursor = found
            self.head(head, titles)
            self.fill(made, cursor=cursor, empty="no decision matches; p and v change the filter")

        self.made(len(report.rows), lambda: self._rows(report, subject), put)

    def _rows(self, report: FusionReport, subject: str) -> tuple[str, str, list[Line], int]:
        """The lines above, the decisions that the filters let through, and the first one about `subject`."""
        wanted = self._words.casefold()
        ordered = sorted(report.rows, key=lambda row: row.step) if self._queue else costliest_first(report.rows)
        rows = [row for row in ordered if not self._verdict or row.verdict == self._verdict]
        cells: list[tuple[str, ...]] = []
        shown: list[FusionRow] = []
        for row in rows:
            one = (
                str(row.step),
                row.verdict,
                show_bytes(row.bytes),
                self._saved(row),
                row.producer,
                names(row.consumers, 2) or _because(row),
            )
            if wanted and wanted not in " ".join((*one, row.reason or "", row.code or "")).casefold():
                continue
            shown.append(row)
            cells.append(one)
        titles = ("step", "verdict", "traffic", "saves", "producer", "into, or why not")
        widest = 30 if self.size.width >= 130 else max(12, (self.size.width - 44) // 2)
        # The last column goes on beyond the edge: reasons are sentences.
        first = columns([one[:-1] for one in (titles, *cells)], right=(0, 2, 3), widest=widest)
        room = max(map(len, first))
        lines = [f"{text:<{room}}  {one[-1]}" for text, one in zip(first, (titles, *cells), strict=True)]
        told = [row for row in report.rows if report.how != "recorded" or row.origin != "inferred"]
        guessed = [row for row in report.rows if report.how == "recorded" and row.origin == "inferred"]
        said = _counts(told) or "no decisions"
        said += f"; {len(guessed):,} more inferred from these: {_counts(guessed)}" if guessed else ""
        how = {
            "recorded": "recorded by the compiler",
            "core": "decided by hloscope",
            "inferred": "inferred from the stages",
        }[report.how]  # fmt: skip
        filters = ", ".join(filter(None, (self._verdict, repr(self._words) if self._words else "")))
        head = (
            f"{len(told):,} decisions {how}: {said}"
            + (f"; shown: {len(shown):,} ({filters})" if filters else "")
            + "".join(f"\nnote: {one}" for one in report.notes[:3])
        )
        marks = {"fused": "added", "refused": "removed", "ineligible": "modified"}
        made: list[Line] = []
        for row, text in zip(shown, lines[1:], strict=True):
            at = text.find(row.verdict)
            end = at + len(row.verdict)
            parts = ((text[:at], "note"), (row.verdict, marks.get(row.verdict, "note")), (text[end:], ""))
            made.append(Line(text, "", row.producer, differs=parts, item=row))
        return head, lines[0], made, next((at for at, line in enumerate(made) if line.instruction == subject), 0)

    # ---------------------------------------------------------------- one decision
    def details(self, item: object, line: Line) -> Sequence[Line]:
        """Verdict, reason, times as bars, and what else became of the producer."""
        if not isinstance(item, FusionRow) or self._report is None:
            return ()
        out = [plain(f"{item.producer} {item.verdict}", "heading", instruction=item.producer)]
        out += [plain(f"  into {one}", "", instruction=one) for one in item.consumers[:12]]
        if item.reason:
            out.append(plain(f"  because {_because(item)}"))
        if item.verdict == "priority":
            out.append(plain("  goes into the queue, or is weighed anew: what it saves is its place there"))
        if item.code:
            out.append(plain(f"  code {item.code}"))
        if item.made:
            out.append(plain(f"  made {item.made}", "", instruction=item.made))
        if item.us_unfused is not None and item.us_fused is not None:
            out += [
                plain(),
                plain("estimated time", "heading"),
                *_bars({"unfused": item.us_unfused, "fused": item.us_fused}),
            ]
            saves = show_us(item.us_unfused - item.us_fused)
            if self._replay is not None and self._replay.whole(item) is not None:
                # It waited already: what is written down is about the readers that it got since.
                out[-3] = plain("estimated time with its new readers", "heading")
                saves += f" more, {self._saved(item)} in all"
            out.append(plain(f"  {'saves':<10} {saves}"))
        if item.bytes is not None:
            word = "spared" if item.verdict == "fused" else "to pay"
            out.append(plain(f"  memory traffic {word}: {show_bytes(item.bytes)}"))
        if item.fuel is not None:
            out.append(plain(f"  fuel {item.fuel}"))
        out.append(plain(f"  told by {_TELLERS.get(item.origin, item.origin)}"))
        told = self._replay.about(item.producer) if self._replay is not None else ()
        others = [row for row in told if row is not item]
        if others:
            out += [plain(), plain(f"also about {item.producer}", "heading")]
            for row in others[:30]:
                into = f" into {names(row.consumers, 2)}" if row.consumers else ""
                text = f"  step {row.step}: {row.producer} {row.verdict}{into}"
                out.append(plain(text + (f": {row.reason}" if row.reason else ""), instruction=row.producer))
        out += self._queue_lines(item)
        out += [plain(), plain("f asks why this pair; a asks about any two; w tells all of the instruction")]
        return out

    def _saved(self, row: FusionRow) -> str:
        """What fusing saves in all, also where only a change of it was written down."""
        whole = self._replay.whole(row) if self._replay is not None else None
        if whole is None and row.us_unfused is not None and row.us_fused is not None:
            whole = row.us_unfused - row.us_fused
        return "-" if whole is None else show_us(whole)

    def _queue_lines(self, item: FusionRow) -> list[Line]:
        """The queue as it stands after a step, what comes out of it next on top."""
        if self._replay is None or not self._replay.known:
            return [plain(), plain("no queue is known: only XLA:GPU records one")] if self._queue else []
        count, waiting = self._replay.after(item.step, _QUEUE)
        following = self._replay.following(item.step)
        of = f" of {item.computation}" if item.computation is not None else ""
        out = [plain(), plain(f"the queue{of} after step {item.step}: {counted(count, 'producer')}", "heading")]
        most = max((saved for _, saved in waiting), default=0.0)
        for name, saved in waiting:
            mark = "▶" if following is not None and name == following.producer else " "
            parts = (
                (f" {mark} ", "strong"), (f"{clipped(name, 26):<27}", ""), (f"{bar(saved, most, 12):<13}", "bar"),
                (f"{show_us(saved)}", "" if saved > 0 else "note"),
            )  # fmt: skip
            out.append(Line("".join(text for text, _ in parts), "", name, differs=parts))
        if count > _QUEUE:
            out.append(plain(f"   and {count - _QUEUE:,} that save less"))
        if following is not None:
            out.append(plain(f"   next, at step {following.step}: {following.producer} {following.verdict}"))
        return out

    # ---------------------------------------------------------------- A and B
    def action_pair_here(self) -> None:
        """Why the producer under the cursor is not fused into its first consumer."""
        row = self.chosen
        if isinstance(row, FusionRow) and row.consumers:
            self._ask_pair(row.producer, row.consumers[0])
        elif isinstance(row, FusionRow):
            self._ask_pair(row.producer, "")

    def _ask_pair(self, producer: str, consumer: str) -> None:
        def ask(work: Work) -> PairFacts:
            into = consumer or call(first_reader, self.run, producer)
            with self.dashboard.heavy:
                return call(why_pair, self.run, producer, into, target=self._target)

        self.ask_core(ask, self._put_pair, group="pair", what=f"why {producer}", failed=self._no_pair)

    def _no_pair(self, told: str) -> None:
        self.detail.show(
            [plain(told), plain(), plain("Names are those before fusion, as the list has them; w follows one.")]
        )
        self.say("")

    def _put_pair(self, facts: PairFacts) -> None:
        self.say("")
        self.detail.show(pair_lines(facts))
        self.turn_to(self.detail)

    def answered(self, what: str, text: str) -> None:
        """Filter, pair or device."""
        if what == "filter":
            self._words = text
            self._list()
        elif what == "target":
            self._target = text.strip() or None
            self.start()
        elif what == "pair":
            found = text.replace(",", " ").replace("%", "").split()
            if len(found) == 2:
                self._ask_pair(*found)
            else:
                self.say("two names are needed: A B")

    def suggestion(self, what: str) -> str:
        """The filter that holds; the pair under the cursor."""
        if what == "filter":
            return self._words
        row = self.chosen
        if what == "pair" and isinstance(row, FusionRow):
            return " ".join((row.producer, *row.consumers[:1]))
        return ""

    def action_next_verdict(self) -> None:
        """Only fused, only refused, …, all."""
        self._verdict = _VERDICTS[(_VERDICTS.index(self._verdict) + 1) % len(_VERDICTS)]
        self._list()
        self.say(f"only {self._verdict}" if self._verdict else "all verdicts")

    def action_toggle_order(self) -> None:
        """In the order of the queue, or refusals by cost first."""
        self._queue = not self._queue
        self._list()
        self.say("in the order of the queue; > and < step" if self._queue else "refusals first, by cost")

    def action_step(self, by: int) -> None:
        """Step through the queue."""
        if not self._queue:
            self.action_toggle_order()
        self.rows.action_move(by)

    def action_graph(self) -> None:
        """The producer in its neighbourhood."""
        row = self.chosen
        if isinstance(row, FusionRow):
            self.dashboard.go(Place("graph", None, "", row.made or row.producer))

    # ---------------------------------------------------------------- where one is
    def place(self) -> Place:
        """The decision under the cursor."""
        row = self.chosen if self._started else None
        return Place(self.NAME, subject=row.producer if isinstance(row, FusionRow) else "")

    def go_to(self, place: Place) -> None:
        """Put the cursor on the first decision about an instruction."""
        self._subject = place.subject
        self._list()

    def where(self) -> str:
        """The decision in words."""
        row = self.chosen
        return f"step {row.step} {row.producer} {row.verdict}" if isinstance(row, FusionRow) else ""

    def remembered(self) -> dict[str, Any]:
        """The filter."""
        return {"words": self._words, "verdict": self._verdict, "queue": self._queue}

    def recall(self, values: dict[str, Any]) -> None:
        """The filter."""
        self._words, self._queue = str(values.get("words") or ""), bool(values.get("queue"))
        self._verdict = values["verdict"] if values.get("verdict") in _VERDICTS else ""


def _because(row: FusionRow) -> str:
    return (row.reason or "").removeprefix("not fusing because ").removeprefix("because ")


def _bars(times: Mapping[str, float]) -> list[Line]:
    most = max(times.values(), default=0)
    out: list[Line] = []
    for number, (word, us) in enumerate(times.items()):
        drawn = bar(us, most, _BAR)
        text = f"  {word:<10} {drawn:<{_BAR}} {show_us(us)}"
        parts = (
            (f"  {word:<10} ", "note"),
            (f"{drawn:<{_BAR}}", "bar2" if number % 2 else "bar"),
            (f" {show_us(us)}", ""),
        )
        out.append(Line(text, "", differs=parts))
    return out


def pair_lines(facts: PairFacts) -> list[Line]:
    """Why A is, or is not, fused into B."""
    words = {"fused": "is fused into", "refused": "is not fused into", "ineligible": "is not fused at all, so not into"}
    head = f"{facts.producer} {words.get(facts.verdict, facts.verdict)} {facts.consumer}  ({facts.origin})"
    out = [plain(head, "heading", instruction=facts.producer)]
    if facts.reason:
        by = f" (asked for {facts.refused_by})" if facts.refused_by else ""
        out.append(plain(f"  because  {facts.reason}{by}"))
    if facts.change:
        out.append(plain(f"  needed   {facts.change}"))
    numbers = {key: value for key, value in facts.numbers.items() if isinstance(value, int | float)}
    times = {
        word: float(numbers[key]) for word, key in (("unfused", "us_unfused"), ("fused", "us_fused")) if key in numbers
    }
    if len(times) == 2:
        out += [plain(), plain("estimated time", "heading"), *_bars(times)]
        saves = times["unfused"] - times["fused"]
        out.append(plain(f"  fusing {'would save' if facts.verdict != 'fused' else 'saves'} {show_us(saves)}", ""))
    if "bytes" in numbers:
        word = "spared" if facts.verdict == "fused" else "that fusing would spare"
        out.append(plain(f"  memory traffic {word}: {show_bytes(float(numbers['bytes']))}", ""))
    terms = {key: value for key, value in facts.numbers.items() if isinstance(value, Mapping)}
    for word, values in terms.items():
        spans = {
            term.removesuffix("_us"): float(values[term])
            for term in _TERMS[:3]
            if isinstance(values.get(term), int | float)
        }
        if spans:
            total = values.get("us")
            told = f": {show_us(float(total))}" if isinstance(total, int | float) else ""
            out += [plain(), plain(f"{word}{told}, {values.get('bound_by', '?')} bound", "heading"), *_bars(spans)]
    rest = {key: value for key, value in numbers.items() if key not in ("us_unfused", "us_fused", "bytes", "step")}
    out += [
        plain(f"  {key:<14} {value:,}" if isinstance(value, int) else f"  {key:<14} {value:.4g}")
        for key, value in rest.items()
    ]
    if facts.flips:
        out += [plain(), plain("edits after which it is fused (tried)", "heading")]
        for flip in facts.flips[:12]:
            saves = f", saves {show_us(flip.us_saved)}" if flip.us_saved is not None else ""
            out.append(plain(f"  {flip.change}{saves}"))
    return out + [plain(f"note: {one}") for one in facts.notes]


def _counts(rows: Sequence[FusionRow]) -> str:
    """How many of each verdict."""
    counts = {word: sum(row.verdict == word for row in rows) for word in _VERDICTS if word}
    return ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
