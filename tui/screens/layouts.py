"""Layouts: the copies by the bytes that they move, the chain of constraints behind each, and how the array lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.shape import Shape
from hloscope.core.layout.physical import PhysicalView, physical_view
from hloscope.core.views.copies import CopiesAnswer, CopyRow, Link, copies
from hloscope.tui.content import Line, plain
from hloscope.tui.far import call
from hloscope.tui.findings import Fate, fate
from hloscope.tui.navigation import Place
from hloscope.tui.questions import copied_shapes
from hloscope.tui.screens.base import Work
from hloscope.tui.screens.memory import asked
from hloscope.tui.screens.two_panes import TwoPanesScreen
from hloscope.tui.show import bar, columns, show_bytes

if TYPE_CHECKING:
    from hloscope.core.views.run import Run

_BAR = 12
_FATES = {
    Fate.RUNS: "run by themselves",
    Fate.TRANSPOSE: "now transposes",
    Fate.INSIDE: "computed inside fusions",
    Fate.REMOVED: "removed by later passes",
}
_WORDS = {Fate.INSIDE: "in fusion", Fate.REMOVED: "removed"}
"""Instead of a bar."""
_GRID = 8


class LayoutsScreen(TwoPanesScreen):
    """Copies on the left, cause, remedy and picture of one on the right."""

    NAME = "layouts"
    PROMPTS = {"shape": "how does a shape lie in memory? e.g. f32[10,200]{1,0:T(8,128)}; or two shapes"}
    LEGEND = """
copies that layout assignment made and those of the last stage; A shows those of every stage
those that run come first; in fusion: computed on the way, nothing is copied in memory; removed: by a later pass
free: the layouts differ only in dimensions of size 1, no byte moves
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("A", "toggle_all", "Of every stage"),
        Binding("f", "toggle_free", "Free ones too"),
        Binding("p", "ask('shape')", "Picture of a shape"),
    ]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._answer: CopiesAnswer | None = None
        self._all = False
        self._free = True
        self._subject = ""

    def start(self) -> None:
        """Find the copies."""
        self.head("looking for copies and their causes …")
        self.turn_to(self.rows)
        self.ask_core(self._read, self._put, group="report", what="copies", failed=self.fault)

    def _read(self, work: Work) -> CopiesAnswer:
        with self.dashboard.heavy:
            if self._all:
                return call(copies, self.run, every=True, cancelled=work.cancelled, progress=work.progress)
            return self.run.copies

    def _put(self, answer: CopiesAnswer) -> None:
        self._answer = answer
        self.say("")
        self._list()

    def _list(self) -> None:
        if self._answer is None:
            return
        rows = [row for row in self._answer.rows if self._free or not row.free]
        rows.sort(key=lambda row: (fate(row) if fate(row) in _WORDS else 0, -_moved(row)))
        most = max(map(_moved, rows), default=0)
        cells = [
            (
                show_bytes(row.bytes),
                f"×{row.times}" if row.times not in (None, 1) else "×?" if row.times is None else "",
                _WORDS.get(fate(row)) or ("free" if row.free else bar(_moved(row), most, _BAR).ljust(_BAR)),
                row.copy,
                row.cause.kind,
                row.to_layout if row.from_layout == row.to_layout else f"{row.from_layout} → {row.to_layout}",
            )
            for row in rows
        ]
        cells.insert(0, ("size", "runs", "", "copy", "cause", "layout"))
        # Layouts stand last and whole: with tiles they are long.
        first = columns([one[:-1] for one in cells], right=(0,), widest=24)
        room = max(map(len, first))
        lines = [f"{text:<{room}}  {one[-1]}" for text, one in zip(first, cells, strict=True)]
        self.head(
            _told(rows)
            + (" (of every stage)" if self._all else "")
            + "".join(f"\nnote: {one}" for one in self._answer.notes[:2]),
            lines[0] if lines else "",
        )
        made = [
            Line(text, "", row.copy, row.cause.stage, _coloured(text), item=row)
            for row, text in zip(rows, lines[1:], strict=True)
        ]
        at = (
            next((n for n, row in enumerate(rows) if self._subject in (row.copy, *row.also)), 0) if self._subject else 0
        )
        self._subject = ""
        self.fill(made, cursor=at, empty="no copy: nothing is moved for the sake of a layout")

    def details(self, item: object, line: Line) -> Sequence[Line]:
        """Cause chain, remedy, life and picture."""
        if not isinstance(item, CopyRow):
            return ()
        out = [plain(f"{item.copy}  in {item.computation}", "heading", instruction=item.copy, stage=item.cause.stage)]
        out.append(
            plain(
                f"  copies {item.operand}: {item.from_layout} → {item.to_layout}"
                + (", the same order" if item.from_layout == item.to_layout else ""),
                "",
                instruction=item.operand,
            )
        )
        out.append(plain(f"  first seen after [{item.cause.stage}] {item.cause.pass_name}", stage=item.cause.stage))
        as_what = f" as {item.also[-1]}" if item.also else ""
        out.append(plain(f"  gone after {item.gone}" if item.gone else f"  the last stage still has it{as_what}"))
        if item.inside is not None:
            text = f"  inside {item.inside}, which computes it on the way: no copy of its own runs"
            out.append(plain(text, "", instruction=item.inside))
        out += [plain(), plain("why", "heading")]
        out.append(plain(f"  {item.cause.sentence}"))
        for title, chain in (("the use wants", item.cause.chain), ("the definition has", item.cause.given)):
            if chain:
                out += [plain(), plain(title, "heading"), *(_link(depth, link) for depth, link in enumerate(chain))]
        lost = item.cause.lost
        if lost is not None:
            out += [plain(), plain("the attempt to spare it", "heading")]
            told = f"{lost.layout} was asked for by the {lost.by} (priority {lost.priority}), {lost.held} stayed"
            out.append(plain(f"  {told}: {lost.because}"))
        out += [plain(), plain("remedy", "heading")]
        if item.remedy is None:
            out.append(plain("  none is known"))
        else:
            one = item.remedy
            out.append(plain(f"  {one.change}"))
            out.append(
                plain(
                    f"  copies {one.copies_before} → {one.copies_after}, "
                    f"bytes {show_bytes(one.bytes_before)} → {show_bytes(one.bytes_after)}"
                )
            )
            out.append(plain(f"  proven by {', '.join(one.proven_by)}"))
        if item.source:
            out += [plain(), plain("source, innermost first", "heading")]
            out += [Line(f"  {one.file}:{one.line}  {one.function}", "note", item=one) for one in item.source]
        self.ask_core(
            lambda work: call(copied_shapes, self.run, item),
            lambda shapes: self._put_pictures(item, shapes),
            group="pictures",
        )
        return out

    def _put_pictures(self, item: CopyRow, shapes: list[tuple[str, str]]) -> None:
        """The copied array before and after, below what is told of the copy."""
        if self.chosen is item:
            if len({shape for _, shape in shapes}) == 1 and len(shapes) > 1:
                shapes = [("as it lies, before and after the copy", shapes[0][1])]
            more = [line for title, shape in shapes for line in (plain(), plain(title, "heading"), *picture(shape))]
            self.detail.add(more)

    def action_toggle_all(self) -> None:
        """Copies of every stage, or those that count."""
        self._all = not self._all
        self.start()

    def action_toggle_free(self) -> None:
        """Show or hide copies that move nothing."""
        self._free = not self._free
        self._list()
        self.say("all copies" if self._free else "only copies that move bytes")

    def answered(self, what: str, text: str) -> None:
        """A picture of any shape."""
        if what == "shape" and text.strip():
            self.detail.show(asked(text, picture))

    def place(self) -> Place:
        """The copy under the cursor."""
        row = self.chosen if self._started else None
        return Place(self.NAME, subject=row.copy if isinstance(row, CopyRow) else "")

    def go_to(self, place: Place) -> None:
        """Put the cursor on a copy."""
        self._subject = place.subject
        self._list()

    def where(self) -> str:
        """The copy."""
        row = self.chosen
        return row.copy if isinstance(row, CopyRow) else ""

    def remembered(self) -> dict[str, Any]:
        """The filter."""
        return {"free": self._free}

    def recall(self, values: dict[str, Any]) -> None:
        """The filter."""
        self._free = bool(values.get("free", True))


def _coloured(text: str) -> tuple[tuple[str, str], ...]:
    at = next((n for n, sign in enumerate(text) if sign in "█▏▎▍▌▋▊▉"), None)
    if at is None:
        return ((text, ""),)
    end = max(n for n, sign in enumerate(text) if sign in "█▏▎▍▌▋▊▉") + 1
    return ((text[:at], ""), (text[at:end], "bar"), (text[end:], ""))


def _link(depth: int, link: Link) -> Line:
    must = ", mandatory" if link.mandatory else ""
    return plain(
        f"  {'  ' * depth}{'└ ' if depth else ''}{link.where} {link.layout}: {link.because}"
        f" (priority {link.priority}{must})",
        "", instruction=link.instruction,
    )  # fmt: skip


def picture(text: str) -> list[Line]:
    """A shape with its layout in memory: strides, padding, and the first elements where they lie."""
    try:
        view = physical_view(Shape.parse(text))
    except (HloscopeError, ValueError) as error:
        return [plain(f"  {text}: {error}")]
    out = [plain(f"  {view.shape}", "")]
    order = ", ".join(map(str, view.order))
    out.append(
        plain(f"  {show_bytes(view.bytes)}, of them {show_bytes(view.padding_bytes)} padding; fastest first: {order}")
    )
    if view.strides is not None:
        out.append(plain("  bytes from one index to the next: " + ", ".join(map(str, view.strides))))
    if view.tiles:
        out.append(plain("  tiles " + " ".join("(" + ",".join(map(str, tile)) + ")" for tile in view.tiles)))
    return out + _grid(view)


def _grid(view: PhysicalView) -> list[Line]:
    """Numbers of the first elements of the last two dimensions, in the order of memory."""
    if not view.sizes or 0 in view.sizes:
        return []
    rank = len(view.sizes)
    rows = min(_GRID, view.sizes[-2] if rank > 1 else 1)
    wide = min(_GRID, view.sizes[-1])
    numbers = [
        [
            view.bit_offset_of((*[0] * (rank - 2), y, x) if rank > 1 else (x,)) // max(1, view.element_bits)
            for x in range(wide)
        ]
        for y in range(rows)
    ]
    width = max(len(str(number)) for row in numbers for number in row) + 1
    out = [
        plain(
            "  place in memory, in elements: last dimension across" + (", the one before it down" if rank > 1 else "")
        )
    ]
    for row in numbers:
        parts: list[tuple[str, str]] = [("    ", "")]
        for at, number in enumerate(row):
            near = at > 0 and number == row[at - 1] + 1
            parts.append((f"{number:>{width}}", "bar" if near or number == 0 else ""))
        more = " …" if view.sizes[-1] > wide else ""
        parts.append((more, "note"))
        out.append(Line("".join(text for text, _ in parts), "", differs=tuple(parts)))
    if rank > 1 and view.sizes[-2] > rows:
        out.append(plain("    …"))
    return out


def _moved(row: CopyRow) -> int:
    """Bytes that a copy reads, and writes, in one run."""
    return 0 if row.free else (row.bytes or 0) * (row.times or 1)


def _told(rows: Sequence[CopyRow]) -> str:
    """How many copies run and what they move; how many became something else, or nothing."""
    parts: list[str] = []
    for what, words in _FATES.items():
        found = [row for row in rows if fate(row) is what]
        if found or what is Fate.RUNS:
            moved = f" ({show_bytes(sum(map(_moved, found)))} read, and written)" if what <= Fate.TRANSPOSE else ""
            parts.append(f"{len(found):,} {words}{moved}")
    return f"{len(rows):,} copies: {'; '.join(parts)}"
