"""Every screen at both ends of the sizes that are promised, compared with pictures of them (``snapshots/*.svg``).

    HLOSCOPE_SNAPSHOTS=new python -m pytest tests/tui/test_snapshots.py

makes the pictures anew: look at them before they are committed. Paths are relative and no clock is on a screen.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from rich.segment import Segment
from rich.style import Style
from tests.tui.settling import settle
from textual.pilot import Pilot

from hloscope.core.views.run import load
from hloscope.tui.app import DashboardApp
from hloscope.tui.navigation import SCREENS, Place

ROOT = Path(__file__).resolve().parent.parent.parent
SHOWN = Path(tempfile.gettempdir()) / "hloscope-snapshots"
"""Where screens that differ are put, to be looked at."""
SIZES = ((80, 24), (160, 50))
SNAPSHOTS = Path(__file__).resolve().parent / "snapshots"

WALKS: dict[str, tuple[str, Sequence[tuple[Place, Sequence[str]]]]] = {
    "cpu": (
        "fixtures/dumps/cpu",
        (
            (Place("overview"), ()),
            (Place("stages", 13, "diff"), ()),
            (Place("layouts", subject="copy.4"), ()),
            (Place("sql"), ("ctrl+r",)),
            (Place("graph", None, "", "copy_reverse_fusion"), ()),
            (Place("bisect", 13, "stage"), ()),
            (Place("pallas", subject="fixtures/tui/kernel.py"), ()),
        ),
    ),
    "gpu": (
        "fixtures/dumps/gpu_narrow",
        (
            (Place("compare"), ()),
            (Place("fusion"), ("O", "greater_than_sign", "greater_than_sign")),
            (Place("buffers", view="peak"), ()),
            (Place("schedule"), ("p",)),
        ),
    ),
}
"""Dump, places in it, and keys that are pressed there."""


def test_every_screen_has_a_picture() -> None:
    assert {place.screen for _, places in WALKS.values() for place, _ in places} == {name for name, _, _ in SCREENS}


@pytest.mark.parametrize("walk", WALKS)
async def test_screens_look_as_they_did(walk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    path, places = WALKS[walk]
    wrong: list[str] = []
    with load(path) as run:
        app = DashboardApp(run, other="fixtures/dumps/gpu_metadata" if walk == "gpu" else None)
        async with app.run_test(size=SIZES[0]) as pilot:
            await settle(pilot)
            for place, keys in places:
                app.go(place)
                await settle(pilot)
                for key in keys:
                    await pilot.press(key)
                    await settle(pilot)
                for size in SIZES:
                    await pilot.resize_terminal(*size)
                    await settle(pilot)
                    wrong += compared(pilot, f"{place.screen}_{size[0]}x{size[1]}")
                await pilot.resize_terminal(*SIZES[0])
    assert not wrong, f"{', '.join(wrong)} differ: see {SHOWN}; this module says how new pictures are made"


def compared(pilot: Pilot[None], name: str) -> list[str]:
    """The name, if the screen differs from its picture; what it looks like now is kept in `SHOWN`."""
    screen = pilot.app.screen
    strips = screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]
    shown = svg(strips, screen.size.width)
    known = SNAPSHOTS / f"{name}.svg"
    if os.environ.get("HLOSCOPE_SNAPSHOTS") == "new":
        known.write_text(shown, encoding="utf-8")
    if known.is_file() and known.read_text(encoding="utf-8") == shown:
        return []
    SHOWN.mkdir(exist_ok=True)
    (SHOWN / known.name).write_text(shown, encoding="utf-8")
    return [name]


# ---------------------------------------------------------------- a drawn screen as a small SVG
_WIDE, _HIGH = 8.4, 17
_INK, _PAPER = "#e0e0e0", "#121212"


def svg(strips: Sequence[Iterable[Segment]], width: int) -> str:
    """Lines of segments, as a terminal of `width` columns shows them: a text a run of cells, a class a style."""
    classes: dict[str, str] = {}
    backs: list[str] = []
    texts: list[str] = []
    for y, strip in enumerate(strips):
        x = 0
        for style, group in groupby(strip, lambda segment: _look(segment.style)):
            text = "".join(segment.text for segment in group)
            ink, paper, more = style
            if paper != _PAPER:
                name = classes.setdefault(f"fill:{paper}", f"b{len(classes)}")
                backs.append(f'<rect class="{name}" x="{x * _WIDE:g}" y="{y * _HIGH}" width="{len(text) * _WIDE:g}"/>')
            if text.strip():
                name = classes.setdefault(f"fill:{ink}{more}", f"t{len(classes)}")
                lead = len(text) - len(text.lstrip())
                shown = escape(text.strip()).replace(" ", "\u00a0")
                texts.append(
                    f'<text class="{name}" x="{(x + lead) * _WIDE:g}" y="{y * _HIGH + 13}"'
                    f' textLength="{len(text.strip()) * _WIDE:g}">{shown}</text>'
                )
            x += len(text)
    rules = "\n".join(f".{name}{{{rule}}}" for rule, name in classes.items())
    size = f'width="{width * _WIDE:g}" height="{len(strips) * _HIGH}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<style>text{{font:14px monospace}}rect{{height:{_HIGH}px}}\n{rules}</style>",
            f'<rect fill="{_PAPER}" {size} style="height:100%"/>',
            *backs,
            *texts,
            "</svg>\n",
        )
    )


def _look(style: Style | None) -> tuple[str, str, str]:
    """Ink, paper and the rest of a style."""
    if style is None:
        return _INK, _PAPER, ""
    ink = style.color.get_truecolor().hex if style.color is not None else _INK
    paper = style.bgcolor.get_truecolor().hex if style.bgcolor is not None else _PAPER
    if style.reverse:
        ink, paper = paper, ink
    more = (";font-weight:bold" if style.bold else "") + (";text-decoration:underline" if style.underline else "")
    return ink, paper, more
