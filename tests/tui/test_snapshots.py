"""Every screen at both ends of the sizes that are promised, compared with pictures of them (``snapshots/*.svg``).

    HLOSCOPE_SNAPSHOTS=new python -m pytest tests/tui/test_snapshots.py

makes the pictures anew: look at them before they are committed. Paths are relative and no clock is on a screen.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from textual.pilot import Pilot

from hloscope.core.views.run import load
from hloscope.tui.app import DashboardApp
from hloscope.tui.navigation import SCREENS, Place

from .svg import svg
from .test_screens import SIZES, press, settle

ROOT = Path(__file__).resolve().parent.parent.parent
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
            (Place("pallas", subject="fixtures/pallas/wrong.py"), ()),
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
                await press(pilot, *keys)
                for size in SIZES:
                    await pilot.resize_terminal(*size)
                    await settle(pilot)
                    wrong += compared(pilot, f"{place.screen}_{size[0]}x{size[1]}")
                await pilot.resize_terminal(*SIZES[0])
    assert not wrong, f"{', '.join(wrong)} differ; the module says how new pictures are made"


def compared(pilot: Pilot[None], name: str) -> list[str]:
    """The name, if the screen differs from its picture; what it looks like now is kept beside it."""
    screen = pilot.app.screen
    strips = screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]
    shown = svg(strips, screen.size.width)
    known = SNAPSHOTS / f"{name}.svg"
    if os.environ.get("HLOSCOPE_SNAPSHOTS") == "new":
        known.write_text(shown, encoding="utf-8")
    if known.is_file() and known.read_text(encoding="utf-8") == shown:
        return []
    known.with_suffix(".now.svg").write_text(shown, encoding="utf-8")
    return [name]
