"""A pane of lines that draws only what is visible, with a cursor, search matches and sideways scrolling."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from hloscope.tui.content import Line, folded
from hloscope.tui.widgets.parts import part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events

_WIDEST = 2000
"""Columns that can be scrolled to; a megabyte line is shown up to here."""

_STRIPS = 2000
"""Drawn lines that are kept."""


class LinePane(ScrollView, can_focus=True):
    """Lines with a cursor. ``enter`` on a line that names an instruction posts ``Chosen``."""

    # Other lines are no other layout: its size is given, not taken from what it shows.
    virtual_size = Reactive(Size(0, 0))
    ALLOW_SELECT = False

    KEYS_OF: ClassVar[str] = "in a list"
    """How help calls the place where these keys hold."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "Down", show=False),
        Binding("k,up", "move(-1)", "Up", show=False),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False),
        Binding("home", "move_to(0)", "Top", show=False),
        Binding("end,G", "move_to(-1)", "Bottom", show=False),
        Binding("h,left", "sideways(-8)", "Left", show=False),
        Binding("l,right", "sideways(8)", "Right", show=False),
        Binding("enter", "choose", "Follow the instruction"),
    ]

    class Chosen(Message):
        """The user pressed enter (or clicked twice) on a line."""

        def __init__(self, pane: LinePane, line: Line) -> None:
            super().__init__()
            self.pane = pane
            self.line = line

        @property
        def control(self) -> LinePane:
            """The pane, for selectors."""
            return self.pane

    class Moved(Message):
        """The cursor is on another line."""

        def __init__(self, pane: LinePane) -> None:
            super().__init__()
            self.pane = pane

        @property
        def control(self) -> LinePane:
            """The pane, for selectors."""
            return self.pane

    def __init__(self, *, id: str | None = None, fold: bool = False) -> None:
        super().__init__(id=id)
        self.fold = fold
        """Whether lines of words go on below where the pane is too narrow."""
        self._given: Sequence[Line] = ()
        self._lines: Sequence[Line] = ()
        """As they are drawn."""
        self._first: Sequence[int] = ()
        """Where folded: the number of the given line that each drawn one is part of."""
        self._pattern: re.Pattern[str] | None = None
        self._matching: Sequence[int] | None = ()
        """Numbers of the lines that match; None where other lines are shown since."""
        self._named: frozenset[str] = frozenset()
        """Instructions that match by what the line does not show."""
        self._base = Style()
        self._styles: dict[str, Style] = {}
        """Of each kind of piece, on the pane's own."""
        self._strips: dict[int, Strip] = {}
        """Drawn lines, as long as what they depend on stays the same."""
        self._drawn_for: tuple[object, ...] = ()
        self._unplaced = False
        """Whether lines were given before the pane had a size."""
        self.cursor = 0
        """0-based line under the cursor."""

    def watch_virtual_size(self, size: Size) -> None:
        """The scrollbars follow."""
        self._scroll_update(size)

    # ---------------------------------------------------------------- content
    def show(self, lines: Sequence[Line], *, cursor: int = 0) -> None:
        """Show other lines."""
        self._given = lines
        self._lay_out()
        self._place(self._drawn(cursor))

    def add(self, lines: Sequence[Line]) -> None:
        """More lines at the end; what is looked at stays where it is."""
        at = self.scroll_offset
        self._given = [*self._given, *lines]
        cursor = self.cursor
        self._lay_out()
        self._place(cursor)
        self.scroll_to(at.x, at.y, animate=False, immediate=True, force=True)

    def on_resize(self, event: events.Resize) -> None:
        """Fold anew; the cursor stays in sight."""
        if self.fold and self._given:
            cursor = self._first[self.cursor] if self.cursor < len(self._first) else 0
            self._lay_out()
            self._place(self._drawn(cursor))
        elif self._unplaced:
            self._place(self.cursor)
        elif self._lines:
            here = Region(self.scroll_offset.x, self.cursor, 1, 1)
            self.scroll_to_region(here, animate=False, force=True, immediate=True)

    def _lay_out(self) -> None:
        self._strips.clear()
        self._matching = None
        width = self.size.width - 1
        if not self.fold or width < 20:
            self._lines, self._first = self._given, range(len(self._given))
            return
        lines: list[Line] = []
        first: list[int] = []
        for number, line in enumerate(self._given):
            parts = folded(line, width)
            lines += parts
            first += [number] * len(parts)
        self._lines, self._first = lines, first

    def _drawn(self, cursor: int) -> int:
        """The drawn line that a given one begins at."""
        return bisect_left(self._first, cursor) if self.fold else cursor

    def _place(self, cursor: int) -> None:
        lines = self._lines
        self.cursor = max(0, min(cursor, len(lines) - 1))
        width = min(_WIDEST, max((len(line.text) for line in lines), default=0) + 1)
        self.virtual_size = Size(width, len(lines))
        self._unplaced = not self.size.height
        # Forced: whether it may scroll is decided by the lines that were shown before.
        self.scroll_to(0, max(0, self.cursor - self.size.height // 2), animate=False, immediate=True, force=True)
        self.refresh()

    @property
    def lines(self) -> Sequence[Line]:
        """What is shown, whole."""
        return self._given

    @property
    def current(self) -> Line | None:
        """The line under the cursor; None in an empty pane."""
        return self._given[self._first[self.cursor]] if self._lines else None

    # ---------------------------------------------------------------- search
    @property
    def matched(self) -> bool:
        """Whether a line matches the search."""
        return bool(self._matching)

    @property
    def drawn(self) -> Sequence[Line]:
        """The lines as they stand below one another, long ones folded; what `matches` looks at."""
        return self._lines

    def find(
        self,
        pattern: str | None,
        named: frozenset[str] = frozenset(),
        *,
        go: bool = True,
        matching: Sequence[int] | None = None,
    ) -> int:
        """Mark what matches a regular expression, or is about one of the instructions `named`, and with `go` move to
        the first match at or after the cursor. `matching` is what `matches` found in `drawn`, where that is known.

        Returns the number of lines that match; None takes the marks away. Raises re.error for a bad pattern.
        """
        self._pattern = re.compile(pattern, re.IGNORECASE) if pattern else None
        self._named = named
        self.refresh()
        if not pattern:
            self._matching = ()
            return 0
        self._matching = matches(self._lines, pattern, named) if matching is None else matching
        if self._matching and go:
            at = bisect_left(self._matching, self.cursor)
            self.move_to(self._matching[at % len(self._matching)])
        return len(self._matching)

    def find_next(self, step: int) -> bool:
        """Go to the next (or with -1 the previous) line that matches, round the end. False where none does."""
        if self._matching is None and self._pattern is not None:
            self._matching = matches(self._lines, self._pattern.pattern, self._named)
        found = self._matching
        if not found:
            return False
        at = bisect_right(found, self.cursor) if step > 0 else bisect_left(found, self.cursor) - 1
        self.move_to(found[at % len(found)])
        return True

    def next_change(self, step: int) -> bool:
        """Go to the next line that marks a change."""
        at = self.cursor + step
        while 0 <= at < len(self._lines):
            if self._lines[at].mark in ("added", "removed", "modified", "renamed"):
                self.move_to(at)
                return True
            at += step
        return False

    # ---------------------------------------------------------------- moving
    def move_to(self, line: int) -> None:
        """Put the cursor on a line and bring it into view."""
        if not self._lines:
            return
        old, self.cursor = self.cursor, max(0, min(line, len(self._lines) - 1))
        self.refresh_lines(old - self.scroll_offset.y)
        self.refresh_lines(self.cursor - self.scroll_offset.y)
        # At once: else it is drawn twice, first where it was.
        here = Region(self.scroll_offset.x, self.cursor, 1, 1)
        self.scroll_to_region(here, animate=False, force=True, immediate=True)
        self.post_message(self.Moved(self))

    def action_move(self, by: int) -> None:
        """Cursor up or down."""
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        """A screenful up or down."""
        self.move_to(self.cursor + by * max(1, self.size.height - 1))

    def action_move_to(self, line: int) -> None:
        """To a line; -1 is the last."""
        self.move_to(len(self._lines) - 1 if line < 0 else line)

    def action_sideways(self, by: int) -> None:
        """Scroll left or right."""
        self.scroll_to(x=max(0, self.scroll_offset.x + by), animate=False, force=True)

    def action_choose(self) -> None:
        """Follow the line under the cursor."""
        if self.current is not None:
            self.post_message(self.Chosen(self, self.current))

    def on_click(self, event: events.Click) -> None:
        """The mouse moves the cursor; a double click follows."""
        self.move_to(event.y + self.scroll_offset.y)
        if event.chain == 2:
            self.action_choose()

    # ---------------------------------------------------------------- drawing
    def render_lines(self, crop: Region) -> list[Strip]:
        """The visible lines. Without a border they are taken as they were drawn before, also where they moved."""
        base = self.rich_style
        key = (self.scroll_offset.x, self.size.width, base, self._pattern, self._named, self.app.theme)
        if key != self._drawn_for or len(self._strips) > _STRIPS:
            self._base, self._drawn_for, self._styles = base, key, {"": base}
            self._strips.clear()
        if self.styles.gutter or self.opacity != 1.0:
            return super().render_lines(crop)
        background = self.background_colors[1]
        strips: list[Strip] = []
        for y in crop.line_range:
            strip = self.render_line(y)
            for one in self.get_line_filters():
                strip = strip.apply_filter(one, background)
            strips.append(strip)
        begin, end = crop.column_span
        return strips if (begin, end) == (0, self.size.width) else [strip.crop(begin, end) for strip in strips]

    def render_line(self, y: int) -> Strip:
        """One visible line, coloured when it is drawn."""
        at = self.scroll_offset.y + y
        if at >= len(self._lines):
            return Strip.blank(self.size.width, self._base)
        if at == self.cursor:
            base = self._base + part(self, "pane--cursor" if self.has_focus else "pane--away")
            return self._draw_line(self._lines[at], base, {"": base})
        found = self._strips.get(at)
        if found is None:
            found = self._strips[at] = self._draw_line(self._lines[at], self._base, self._styles)
        return found

    def _draw_line(self, line: Line, base: Style, styles: dict[str, Style]) -> Strip:
        left, width = self.scroll_offset.x, self.size.width
        segments: list[Segment] = []
        used = 0
        for text, kind in line.pieces(left + width):
            style = styles.get(kind)
            if style is None:
                style = styles[kind] = base + part(self, f"pane--{kind}")
            segments.append(Segment(text.replace("\t", "    ") if "\t" in text else text, style))
            used += len(text)
            if used > left + width and self._pattern is None:
                break
        return Strip(self._marked(segments, line)).crop_extend(left, left + width, base)

    def _marked(self, segments: list[Segment], line: Line) -> list[Segment]:
        """The same segments with search matches in their own style; the name where something unseen matches."""
        if self._pattern is None:
            return segments
        text = line.text
        spans = [found.span() for found in self._pattern.finditer(text[:_WIDEST]) if found.end() > found.start()]
        name = line.instruction
        if not spans and name is not None and (name in self._named or self._pattern.search(name) is not None):
            at = text.find(name)
            spans = [(at, at + len(name))] if at >= 0 else []
        if not spans:
            return segments
        match = part(self, "pane--match")
        out: list[Segment] = []
        at = 0
        for text_part, style, _ in segments:
            start, end = at, at + len(text_part)
            for low, high in spans:
                low, high = max(low, start), min(high, end)
                if low < high:
                    if low > at:
                        out.append(Segment(text_part[at - start : low - start], style))
                    out.append(Segment(text_part[low - start : high - start], (style or Style()) + match))
                    at = high
            if at < end:
                out.append(Segment(text_part[at - start :], style))
            at = end
        return out


def matches(lines: Sequence[Line], pattern: str, named: frozenset[str] = frozenset()) -> list[int]:
    """Numbers of the lines that match a regular expression, whatever the case, or are about an instruction whose name
    matches it, whole, or that is one of some. Raises re.error.
    """
    search = re.compile(pattern, re.IGNORECASE).search
    return [
        at
        for at, line in enumerate(lines)
        if search(line.text) is not None
        or ((name := line.instruction) is not None and (name in named or search(name) is not None))
    ]
