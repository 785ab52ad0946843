"""Buffers: the map of each allocation, what fills memory at its peak and why, and questions about sharing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widgets import Static

from hloscope.core.views.buffers import BufferMap as MapData
from hloscope.core.views.buffers import BufferRow, PeakValue
from hloscope.tui.content import Line, plain
from hloscope.tui.far import call
from hloscope.tui.finals import final_names
from hloscope.tui.navigation import Place
from hloscope.tui.screens.base import RunScreen, Work, note
from hloscope.tui.show import bar, columns, names, show_bytes
from hloscope.tui.widgets.buffer_map import BufferMap
from hloscope.tui.widgets.line_pane import LinePane
from hloscope.tui.widgets.plain import Horizontal, Vertical

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from hloscope.core.buffers.hazards import Hazard
    from hloscope.core.buffers.questions import ShareAnswer, WhatIf
    from hloscope.core.views.run import Run

_BAR = 14
_NAMED_CHANGE = re.compile(r"(?P<word>drop:|dtype:)%?(?P<name>[^=\s]+)(?P<rest>=.*)?")
"""A change that names a value; the name may be one of an earlier stage."""
_TRIED = 300
"""Steps that are looked at for the fullest one, those first where the sizes of values add up to most."""
_RISKS = "wrong sharing of memory, and donations that were lost"
_VIEWS = ("peak", "lines", "allocations", "values", "hazards")


class BuffersScreen(RunScreen):
    """Map on one side; on the other the peak, the allocations, the values of one, or the hazards."""

    NAME = "buffers"
    KEYED = (BufferMap,)
    PROMPTS = {
        "share": "could these two share memory? A B (a part of a tuple: A{1})",
        "whatif": "what if: drop:NAME, donate:N (parameter number), dtype:NAME=TYPE",
    }
    LEGEND = """
the map: offsets downwards, steps of the schedule across; ┆ is the fullest step, the value under the cursor is hatched
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "view('peak')", "Peak"),
        Binding("L", "view('lines')", "By line"),
        Binding("a", "view('allocations')", "Allocations"),
        Binding("v", "view('values')", "Values of it", show=False),
        Binding("z", "view('hazards')", "Hazards"),
        Binding("s", "ask('share')", "Can two share"),
        Binding("u", "ask('whatif')", "What if"),
        Binding("greater_than_sign", "allocation(1)", "Next allocation", show=False),
        Binding("less_than_sign", "allocation(-1)", "Previous allocation", show=False),
        Binding("r", "graph", "Draw its neighbourhood", show=False),
    ]

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._data: MapData | None = None
        self._view = "peak"
        self._at = 0
        self._by_size: list[int] = []
        self._hazards: list[Hazard] | None = None
        self._asked = ""
        """The question whose answer stands in the place of the list."""

    def body(self) -> ComposeResult:
        """Headline, map and lists."""
        yield Static("", id="head", markup=False)
        with Horizontal(id="panes"):
            with Vertical(id="left"):
                yield Static("", id="title", markup=False)
                yield BufferMap(id="map")
            with Vertical(id="right"):
                yield Static("", id="columns", markup=False)
                yield LinePane(id="list", fold=True)

    def start(self) -> None:
        """Read or make the assignment."""
        self.query_one("#head", Static).update("reading buffers …")
        self.turn_to(self.query_one(BufferMap))
        self.ask_core(self._read, self._put, group="report", what="buffers", failed=self._fault)

    def _read(self, work: Work) -> MapData:
        with self.dashboard.heavy:
            return self.run.buffers.map(largest=200)

    def _fault(self, told: str) -> None:
        self.query_one("#head", Static).update(told)
        self.query_one("#list", LinePane).show(note(told))
        self.say("")

    def _put(self, data: MapData) -> None:
        self._data = data
        self.say("")
        self._by_size = [
            at for at, _ in sorted(enumerate(data.allocations), key=lambda pair: (-pair[1].size, pair[1].index))
        ]
        # The peak is that of the first memory space: the map opens on that memory, not on a larger scratchpad.
        shown = [(at, data.allocations[number]) for at, number in enumerate(self._by_size)]
        temporary = next((at for at, one in shown if "temp" in one.kind and _in_peak(data, one)), None)
        if temporary is None:
            temporary = next((at for at, one in shown if "temp" in one.kind), 0)
        self._at = self._at or temporary
        running = f" while {data.peak_instruction} runs" if data.peak_instruction else ""
        who = "as the compiler reported" if data.origin == "xla" else "assigned by hloscope"
        several = len(data.spaces) > 1
        spaces = "; ".join(f"{name} {show_bytes(size)}" for _, name, size in data.spaces) if several else ""
        where = f" of {data.spaces[0][1]} memory" if several else ""
        self.query_one("#head", Static).update(
            f"peak {show_bytes(data.peak_bytes)}{where} at step {data.peak_step:,} of {len(data.steps):,}{running}; "
            f"{len(data.allocations)} allocations, {show_bytes(data.total_bytes)}, {who}"
            + (f"\nmemory spaces: {spaces}" if spaces else "")
            + "".join(f"\nnote: {one}" for one in data.notes[:2])
        )
        self._show_allocation()
        self._list()

    # ---------------------------------------------------------------- the map
    @property
    def _allocation(self) -> BufferRow | None:
        if self._data is None or not self._by_size:
            return None
        return self._data.allocations[self._by_size[self._at % len(self._by_size)]]

    def _show_allocation(self) -> None:
        one = self._allocation
        if one is not None and self._data is not None:
            peak = self._data.peak_step if _in_peak(self._data, one) else fullest(one)[0]
            self.query_one(BufferMap).show(one, self._data.steps, peak)
            self._moved()

    @on(BufferMap.Moved)
    def _moved(self) -> None:
        one = self._allocation
        if one is None:
            return
        self.query_one("#title", Static).update(
            f"allocation {one.index} ({_kind(one)}, {show_bytes(one.size)}, {len(one.values)} values)",
            layout=False,
        )
        self.at(self.where())

    @on(BufferMap.Chosen)
    def _value_chosen(self, event: BufferMap.Chosen) -> None:
        self.dashboard.go(Place("stages", None, "why", event.value.name))

    def action_allocation(self, by: int) -> None:
        """The map of the next smaller or larger allocation."""
        if self._by_size:
            self._at = (self._at + by) % len(self._by_size)
            self._show_allocation()
            if self._view in ("values", "peak"):
                self._list()

    # ---------------------------------------------------------------- the lists
    def action_view(self, view: str) -> None:
        """Another list."""
        self._view = view
        if view == "hazards" and self._hazards is None:
            self.ask_core(
                self._look, self._put_hazards, group="hazards", what="looking for wrong sharing", failed=self._told
            )
        self._list()
        self.turn_to(self.query_one("#list", LinePane))

    def _look(self, work: Work) -> list[Hazard]:
        with self.dashboard.heavy:
            return self.run.buffers.hazards()

    def _put_hazards(self, found: list[Hazard]) -> None:
        self._hazards = found
        self._list()
        self.say("")

    def _told(self, text: str) -> None:
        self._answer(note(text))

    def _list(self) -> None:
        data = self._data
        if data is None:
            return
        makers = {
            "peak": self._peak,
            "lines": _by_line,
            "allocations": self._allocations,
            "values": self._values,
            "hazards": self._risks,
        }
        self._asked = ""
        heading, lines = makers[self._view](data)
        self.query_one("#columns", Static).update(heading)
        self.query_one("#list", LinePane).show(lines)
        self.at(self.where())

    def _peak(self, data: MapData) -> tuple[str, list[Line]]:
        shown = self._allocation
        if shown is not None and not _in_peak(data, shown):
            return _elsewhere(data, shown)
        most = max((one.size for one in data.largest), default=0)
        lines: list[Line] = []
        for one in data.largest:
            drawn = bar(one.size, most, _BAR)
            index = one.shape_index if one.shape_index != "{}" else ""
            name = f"{one.name}{index}"
            parts = (
                (f"{show_bytes(one.size):>10} ", ""),
                (f"{drawn:<{_BAR}} ", "bar"),
                (name, "name"),
                (f"  {one.shape}", "shape"),
            )
            lines.append(Line("".join(text for text, _ in parts), "", one.name, differs=parts, item=one))
            source = f"  {one.source.file}:{one.source.line}" if one.source is not None else ""
            lines.append(Line(f"{'':>11}{one.reason}{source}", "note", one.name, item=one.source or one))
        space = f" of {data.spaces[0][1]} memory" if len(data.spaces) > 1 else ""
        return f"alive at the peak{space}, largest first, and why", lines or list(note("nothing is alive at the peak"))

    def _allocations(self, data: MapData) -> tuple[str, list[Line]]:
        rows = [data.allocations[at] for at in self._by_size]
        cells = [
            (
                str(one.index),
                show_bytes(one.size),
                _kind(one),
                str(len(one.values)),
                str(one.color),
                one.values[0].name if one.values else "",
            )
            for one in rows
        ]
        lines = columns(
            [("no", "size", "kind", "values", "space", "first value"), *cells], right=(0, 1, 3, 4), widest=40
        )
        made = [
            Line(text, "", one.values[0].name if one.values else None, differs=((text, ""),), item=one)
            for one, text in zip(rows, lines[1:], strict=True)
        ]
        return lines[0], made

    def _values(self, data: MapData) -> tuple[str, list[Line]]:
        one = self._allocation
        if one is None:
            return "values", []
        found = sorted(one.values, key=lambda value: (value.offset, value.live or (0, 0)))
        cells = [
            (
                f"{value.offset:,}", show_bytes(value.size),
                f"{value.live[0]:,}–{value.live[1]:,}" if value.live is not None else "-",
                value.name + (value.shape_index if value.shape_index != "{}" else ""), value.shape,
            )
            for value in found
        ]  # fmt: skip
        lines = columns([("offset", "size", "alive", "value", "shape"), *cells], right=(0, 1, 2), widest=40)
        return lines[0], [
            Line(text, "", value.name, differs=((text, ""),), item=value)
            for value, text in zip(found, lines[1:], strict=True)
        ]

    def _risks(self, data: MapData) -> tuple[str, list[Line]]:
        if self._hazards is None:
            return _RISKS, list(note("looking …  (after the analyses that run already)"))
        if not self._hazards:
            kept = sum(one.donated for one in data.allocations)
            told = f"{kept} donated parameters hold a result" if kept > 1 else "one donated parameter holds a result"
            return _RISKS, list(
                note(
                    f"none found: no wrong sharing, no lost donation; {told if kept else 'none is donated'}. "
                    "What jax itself could not use it said when it compiled; the compiler was not told of that"
                )
            )
        return _RISKS, [
            Line(
                f"{one.severity} {one.code}: {one.instruction}: {one.message}",
                "warning" if one.severity == "error" else "note",
                one.instruction,
            )
            for one in self._hazards
        ]

    def follow(self, line: Line) -> None:
        """Enter on an allocation shows its map, else why."""
        if isinstance(line.item, BufferRow) and self._data is not None:
            self._at = next(
                at for at, number in enumerate(self._by_size) if self._data.allocations[number] is line.item
            )
            self._show_allocation()
            self.turn_to(self.query_one(BufferMap))
        else:
            super().follow(line)

    # ---------------------------------------------------------------- questions
    def suggestion(self, what: str) -> str:
        """The value under the cursor."""
        value = self.query_one(BufferMap).value
        line = self.line
        name = (
            value.name
            if isinstance(self.focused, BufferMap) and value
            else line.instruction
            if line is not None
            else None
        )
        if name is None:
            return ""
        return f"{name} " if what == "share" else f"drop:{name}" if what == "whatif" else ""

    def answered(self, what: str, text: str) -> None:
        """Sharing, or another peak."""
        text = text.strip()
        if not text:
            return
        if what == "share":
            found = text.replace(",", " ").split() if "{" not in text else text.split()
            if len(found) != 2:
                self.say("two values are needed: A B")
                return
            self.ask_core(
                lambda work: self._share(*found), self._put_share, group="ask", what="can they share", failed=self._told
            )
        else:
            self.ask_core(lambda work: self._change(text), self._put_change, group="ask", what=text, failed=self._told)

    def _share(self, *asked: str) -> tuple[ShareAnswer, list[str]]:
        """The answer, and what names of earlier stages are called now."""
        with self.dashboard.heavy:
            first, second = call(final_names, self.run, asked)
            renamed = [
                f"{old} is {new} in the scheduled module" for old, new in zip(asked, (first, second), strict=True)
            ]
            told = [text for text, old, new in zip(renamed, asked, (first, second), strict=True) if old != new]
            return self.run.buffers.can_share(first, second), told

    def _change(self, text: str) -> tuple[WhatIf, str]:
        """The answer, and what a name of an earlier stage is called now."""
        with self.dashboard.heavy:
            named = _NAMED_CHANGE.fullmatch(text.strip())
            if named is None:
                return self.run.buffers.what_if(text), ""
            (now,) = call(final_names, self.run, [named["name"]])
            told = f"{named['name']} is {now} in the scheduled module" if now != named["name"] else ""
            return self.run.buffers.what_if(f"{named['word']}{now}{named['rest'] or ''}"), told

    def _put_share(self, answer: tuple[ShareAnswer, list[str]]) -> None:
        found, told = answer
        verdict = "they share" if found.shares else "could share" if found.could else "cannot share"
        lines = [
            plain(f"{found.first} and {found.second}: {verdict}", "heading"),
            *(plain(f"  {text}") for text in told),
            plain(f"  {found.reason}"),
            plain(f"  code {found.code}"),
            *(plain(f"  {key} {value:,}") for key, value in found.numbers.items()),
        ]
        self._answer(lines)

    def _put_change(self, answer: tuple[WhatIf, str]) -> None:
        found, told = answer
        most = max(found.peak_before, found.peak_after)
        lines = [plain(found.change, "heading"), *([plain(f"  {told}")] if told else [])]
        for word, size in (("peak now", found.peak_before), ("peak then", found.peak_after)):
            parts = ((f"  {word:<10} ", "note"), (f"{bar(size, most, 30):<30} ", "bar"), (show_bytes(size), ""))
            lines.append(Line("".join(text for text, _ in parts), "", differs=parts))
        lines.append(plain(f"  allocated {show_bytes(found.total_before)} → {show_bytes(found.total_after)}"))
        if found.note:
            lines.append(plain(f"  {found.note}"))
        self._answer(lines)

    def _answer(self, lines: Sequence[Line]) -> None:
        self._asked = lines[0].text if lines else ""
        self.at(self.where())
        self.say("")
        self.query_one("#columns", Static).update("answer (p, a and v show the lists)")
        self.query_one("#list", LinePane).show(lines)

    def action_graph(self) -> None:
        """The value in its neighbourhood."""
        value = self.query_one(BufferMap).value
        if value is not None:
            self.dashboard.go(Place("graph", None, "", value.name))

    def action_why(self) -> None:
        """All that is known of the value under the map's cursor, or on the line."""
        value = self.query_one(BufferMap).value
        if isinstance(self.focused, BufferMap) and value is not None:
            self.dashboard.go(Place("stages", None, "why", value.name))
        else:
            super().action_why()

    def focus_first(self) -> None:
        """To the map."""
        self.turn_to(self.query_one(BufferMap))

    # ---------------------------------------------------------------- where one is
    def place(self) -> Place:
        """The list that is shown."""
        return Place(self.NAME, view=self._view, cursor=self._at)

    def go_to(self, place: Place) -> None:
        """Another list."""
        if place.view in _VIEWS and place.view != self._view:
            self.action_view(place.view)

    def where(self) -> str:
        """What is under the cursor."""
        shown = f"answer: {self._asked}" if self._asked else self._view
        return f"{shown} › {self.query_one(BufferMap).words()}" if self._allocation is not None else shown

    def remembered(self) -> dict[str, Any]:
        """The list."""
        return {"view": self._view}

    def recall(self, values: dict[str, Any]) -> None:
        """The list."""
        if values.get("view") in ("peak", "lines", "allocations"):
            self._view = str(values["view"])


def _by_line(data: MapData) -> tuple[str, list[Line]]:
    """What is alive at the peak by the Python line that made it."""
    groups: dict[str, list[PeakValue]] = {}
    for one in data.largest:
        made = f"{one.source.file}:{one.source.line}" if one.source is not None else "no source line"
        where = "parameters: the caller's arrays" if "parameter" in one.kind else made
        groups.setdefault(where, []).append(one)
    sizes = {where: sum(one.size for one in found) for where, found in groups.items()}
    most = max(sizes.values(), default=0)
    lines: list[Line] = []
    for where in sorted(groups, key=lambda one: -sizes[one]):
        found = groups[where]
        share = f"{100 * sizes[where] / data.peak_bytes:3.0f} %" if data.peak_bytes else ""
        parts = (
            (f"{show_bytes(sizes[where]):>10} {share} ", ""),
            (f"{bar(sizes[where], most, _BAR):<{_BAR}} ", "bar"),
            (where, "strong"),
        )
        lines.append(
            Line("".join(text for text, _ in parts), "", found[0].name, differs=parts, item=found[0].source or found[0])
        )
        reasons = f", {found[0].reason}" if len({one.reason for one in found}) == 1 else ""
        lines.append(Line(f"{'':>17}{names([one.name for one in found], 4)}{reasons}", "note", found[0].name))
    return "alive at the peak, by the Python line that made it", lines or list(note("nothing is alive at the peak"))


def _in_peak(data: MapData, one: BufferRow) -> bool:
    """Whether an allocation lies in the memory space that the peak is of."""
    return not data.spaces or one.color == data.spaces[0][0]


def fullest(one: BufferRow) -> tuple[int, int]:
    """The step at which most bytes of an allocation are in use, and how many: values may lie over one another."""
    change: Counter[int] = Counter()
    for value in one.values:
        if value.live is not None:
            change[value.live[0]] += value.size
            change[value.live[1] + 1] -= value.size
    steps = sorted(change)
    bounds = sorted(zip(accumulate(change[step] for step in steps), steps, strict=True), key=lambda at: (-at[0], at[1]))
    found = (0, 0)
    for bound, step in bounds[:_TRIED]:
        if bound <= found[1]:
            break
        size = _covered(one, step)
        if size > found[1]:
            found = step, size
    return found


def _covered(one: BufferRow, step: int) -> int:
    """Bytes of an allocation that some value lies in at a step."""
    alive = (value for value in one.values if value.live is not None and value.live[0] <= step <= value.live[1])
    end = covered = 0
    for low, high in sorted((value.offset, value.offset + value.size) for value in alive):
        covered += max(0, high - max(low, end))
        end = max(end, high)
    return covered


def _elsewhere(data: MapData, one: BufferRow) -> tuple[str, list[Line]]:
    """What is alive in an allocation of another memory space when that is at its fullest."""
    step, covered = fullest(one)
    alive = [value for value in one.values if value.live is not None and value.live[0] <= step <= value.live[1]]
    alive.sort(key=lambda value: (-value.size, value.name))
    most = max((value.size for value in alive), default=0)
    lines: list[Line] = []
    for value in alive:
        name = value.name + (value.shape_index if value.shape_index != "{}" else "")
        assert value.live is not None
        parts = (
            (f"{show_bytes(value.size):>10} ", ""), (f"{bar(value.size, most, _BAR):<{_BAR}} ", "bar"), (name, "name"),
            (f"  {value.shape}", "shape"), (f"  steps {value.live[0]:,}–{value.live[1]:,}", "note"),
        )  # fmt: skip
        lines.append(Line("".join(text for text, _ in parts), "", value.name, differs=parts, item=value))
    space = next((name for color, name, _ in data.spaces if color == one.color), str(one.color))
    heading = f"alive in {space} memory at its fullest: {show_bytes(covered)} at step {step:,}"
    return heading, lines or list(note("no value's life is known"))


def _kind(one: BufferRow) -> str:
    return one.kind + (f" {one.parameter}" if one.parameter is not None else "") + (" donated" if one.donated else "")
