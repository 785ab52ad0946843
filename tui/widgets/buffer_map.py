"""Memory over time: an allocation's offsets downwards, the steps of the schedule across, two rows of cells a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from hloscope.tui.show import show_bytes
from hloscope.tui.widgets.parts import MAP_COLOURS, part

if TYPE_CHECKING:
    from textual import events

    from hloscope.core.views.buffers import BufferRow, BufferValue

_GUTTER = 10
_EMPTY = -1


class BufferMap(Widget, can_focus=True):
    """The map of one allocation with a cursor that names the value under it."""

    KEYS_OF: ClassVar[str] = "in the map"
    """How help calls the place where these keys hold."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1,0)", "Earlier", show=False),
        Binding("right,l", "move(1,0)", "Later", show=False),
        Binding("up,k", "move(0,-1)", "Lower address", show=False),
        Binding("down,j", "move(0,1)", "Higher address", show=False),
        Binding("full_stop", "to_peak", "To the peak", show=False),
        Binding("enter", "choose", "What is under the cursor", show=False),
    ]

    class Moved(Message):
        """The cursor is elsewhere."""

    class Chosen(Message):
        """Enter on a value."""

        def __init__(self, value: BufferValue) -> None:
            super().__init__()
            self.value = value

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._allocation: BufferRow | None = None
        self._steps = 1
        self._peak = 0
        self._names: Sequence[str] = ()
        self._grid: list[list[int]] = []
        self._drawn: tuple[int, int] = (0, 0)
        self.x = 0
        """Column of the cursor."""
        self.y = 0
        """Row of the cursor, two in a line."""
        self._under: tuple[tuple[int, int, int], BufferValue | None] | None = None
        """Column, row and step of the cursor, and the value there."""
        self._held = (0, 0.0)
        """Step, and part of the allocation above it: where the cursor is at any size."""

    def show(self, allocation: BufferRow, names: Sequence[str], peak: int) -> None:
        """Show an allocation; `names` says what runs at each step, `peak` is the fullest step."""
        self._allocation, self._names, self._peak = allocation, names, peak
        last = max((value.live[1] for value in allocation.values if value.live is not None), default=0)
        self._steps = max(1, len(names), last + 1)
        self._drawn = (0, 0)
        self._held, self._under = (peak, self._first(allocation, peak)), None
        self.x, self.y = self._column(peak), self._row(self._held[1])
        self.refresh()

    def on_resize(self) -> None:
        """The cursor stays at its step and offset."""
        step, part_of = self._held
        self.x = self._column(step)
        self.y = self._row(part_of)
        self.post_message(self.Moved())

    # ---------------------------------------------------------------- geometry
    @property
    def _wide(self) -> int:
        return max(1, self.size.width - _GUTTER)

    @property
    def _high(self) -> int:
        return max(2, 2 * (self.size.height - 1))

    def _column(self, step: int, wide: int | None = None) -> int:
        wide = self._wide if wide is None else wide
        return min(wide - 1, step * wide // self._steps)

    def _row(self, part_of: float) -> int:
        return max(0, min(int(part_of * self._high), self._high - 1))

    @staticmethod
    def _first(one: BufferRow, step: int) -> float:
        """The part of an allocation above the first thing to look at in a step: what lies at its begin, else the
        largest."""
        alive = [value for value in one.values if value.live is not None and value.live[0] <= step <= value.live[1]]
        if not alive or not one.size or any(value.offset == 0 for value in alive):
            return 0.0
        largest = max(alive, key=lambda value: value.size)
        return (largest.offset + largest.size / 2) / one.size

    def _make_grid(self) -> None:
        """Which value each cell shows: the one that fills most of it, roughly; later ones over earlier ones."""
        wide, high = self._wide, self._high
        self._drawn, self._under = (wide, high), None
        self._grid = [[_EMPTY] * wide for _ in range(high)]
        one = self._allocation
        if one is None or not one.size:
            return
        largest_last = sorted(range(len(one.values)), key=lambda at: one.values[at].size)
        taken: list[list[bool]] = [[False] * wide for _ in range(high)]
        for at in reversed(largest_last):
            value = one.values[at]
            if not value.size:
                continue
            first, last = value.live if value.live is not None else (0, self._steps - 1)
            x0 = self._column(first, wide)
            x1 = max(x0, (last + 1) * wide // self._steps - 1)
            y0 = min(high - 1, value.offset * high // one.size)
            y1 = max(y0, min(high, -(-(value.offset + value.size) * high // one.size)) - 1)
            for y in range(y0, y1 + 1):
                row, busy = self._grid[y], taken[y]
                for x in range(x0, min(wide, x1 + 1)):
                    if not busy[x]:
                        busy[x], row[x] = True, at

    # ---------------------------------------------------------------- the cursor
    def action_move(self, dx: int, dy: int) -> None:
        """One cell."""
        self._to(self.x + dx, self.y + dy)

    def action_to_peak(self) -> None:
        """The column of the fullest step."""
        self._to(self._column(self._peak), self.y, self._peak)
        if self.value is None and self._allocation is not None:
            self._to(self.x, self._row(self._first(self._allocation, self._peak)), self._peak)

    def _to(self, x: int, y: int, step: int | None = None) -> None:
        """To a cell; of the steps that share its column to the last, or to the one that is given."""
        self.x, self.y = max(0, min(x, self._wide - 1)), max(0, min(y, self._high - 1))
        last = min(self._steps - 1, ((self.x + 1) * self._steps - 1) // self._wide)
        self._held = (last if step is None else step, self.y / self._high)
        self.refresh()
        self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        """The mouse moves the cursor."""
        self._to(event.x - _GUTTER, 2 * event.y)
        if event.chain == 2:
            self.action_choose()

    def action_choose(self) -> None:
        """The value under the cursor."""
        value = self.value
        if value is not None:
            self.post_message(self.Chosen(value))

    @property
    def value(self) -> BufferValue | None:
        """The value under the cursor; None for a gap."""
        if self._drawn != (self._wide, self._high):
            self._make_grid()
        if self._allocation is None or self.y >= len(self._grid) or self.x >= len(self._grid[0]):
            return None
        where = (self.x, self.y, self.step)
        if self._under is None or self._under[0] != where:
            self._under = where, self._value_at(self._allocation, *where)
        return self._under[1]

    def _value_at(self, one: BufferRow, x: int, y: int, step: int) -> BufferValue | None:
        """What lives there at the very step, the largest first; else what the cell shows of the steps beside it."""
        low, high = one.size * y // self._high, max(1, one.size * (y + 1) // self._high)
        lives = (
            value
            for value in one.values
            if value.offset < high
            and value.offset + value.size > low
            and (value.live is None or value.live[0] <= step <= value.live[1])
        )
        found = max(lives, key=lambda value: value.size, default=None)
        at = self._grid[y][x]
        return found if found is not None or at == _EMPTY else one.values[at]

    @property
    def step(self) -> int:
        """The step under the cursor."""
        return min(self._steps - 1, self._held[0])

    def words(self) -> str:
        """What is under the cursor, in one line."""
        step = self.step
        running = f" ({self._names[step]})" if step < len(self._names) else ""
        value = self.value
        if value is None:
            return f"step {step:,}{running}: nothing lives here"
        index = value.shape_index if value.shape_index != "{}" else ""
        live = f", alive {value.live[0]:,} to {value.live[1]:,}" if value.live is not None else ""
        return f"step {step:,}{running}: {value.name}{index}  {show_bytes(value.size)} at {value.offset:,}{live}"

    # ---------------------------------------------------------------- drawing
    def render_line(self, y: int) -> Strip:
        """Two rows of cells as half blocks; the last line says where the peak is."""
        width = self.size.width
        one = self._allocation
        if one is None:
            return Strip.blank(width, self.rich_style)
        if self._drawn != (self._wide, self._high):
            self._make_grid()
        base = self.rich_style
        note = part(self, "map--note")
        if y >= self.size.height - 1:
            peak = part(self, "map--peak")
            at = self._column(self._peak)
            text = f"▲ peak, step {self._peak:,}"
            if at + len(text) > self._wide:
                text = f"peak, step {self._peak:,} ▲"
                at = max(0, at - len(text) + 1)
            return Strip([Segment(" " * (_GUTTER + at), base), Segment(text, base + peak)]).adjust_cell_length(
                width, base
            )
        offset = one.size * 2 * y // self._high
        segments = [Segment(f"{show_bytes(offset) if y % 4 == 0 else '':>{_GUTTER - 1}} ", base + note)]
        colours = [part(self, f"map--{n}").color for n in range(MAP_COLOURS)]
        empty = part(self, "map--empty").color
        upper, lower = self._grid[2 * y], self._grid[2 * y + 1]
        peak_column = self._column(self._peak)
        cursor = part(self, "map--cursor")
        focus = self.value
        picked = one.values.index(focus) if focus is not None else None
        for x in range(len(upper)):
            a, b = upper[x], lower[x]
            top = empty if a == _EMPTY else colours[a % MAP_COLOURS]
            bottom = empty if b == _EMPTY else colours[b % MAP_COLOURS]
            style = Style(color=top, bgcolor=bottom)
            text = "▀"
            if a == b and x == peak_column:
                text, style = (
                    "┆",
                    Style(color=part(self, "map--peak").color, bgcolor=bottom),
                )
            if a == b == picked and a != _EMPTY and (x + y) % 2 == 0:
                text, style = "▒", Style(color=base.color, bgcolor=bottom)
            if x == self.x and y == self.y // 2:
                text, style = ("▀" if self.y % 2 == 0 else "▄"), Style(color=base.color, bgcolor=bottom) + cursor
            segments.append(Segment(text, style))
        return Strip(Strip(segments).simplify()).adjust_cell_length(width, base)
