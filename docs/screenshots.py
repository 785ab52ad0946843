"""Makes the pictures in docs/images from real compiles: ``python docs/screenshots.py [NAME …]``.

The run is examples/train_step.py, captured on the spot; the pictures of what only a GPU's dump tells come from the
dump in fixtures/dumps/gpu_narrow.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from textual.widgets import Input
from textual.worker import WorkerCancelled

from hloscope.core.views.run import Run, load
from hloscope.tui.app import DashboardApp
from hloscope.tui.navigation import Place

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
GPU = "fixtures/dumps/gpu_narrow"


@dataclass(frozen=True)
class Shot:
    """One picture: where it begins, and what is pressed; ``?TEXT`` answers the question that is open."""

    start: Place
    keys: list[str] = field(default_factory=list[str])
    size: tuple[int, int] = (150, 38)
    dump: str | None = None
    """None: the captured example."""


SHOTS = {
    "overview": Shot(Place("overview")),
    "dashboard": Shot(Place("stages"), ["c", "p", "?algsimp", "j"]),
    "side": Shot(Place("stages"), ["c", "p", "?fusion", "s"]),
    "text": Shot(Place("stages"), ["t", "slash", "?dot[(]"]),
    "why": Shot(Place("stages"), ["i", "?dot_general.*dot[(]", "j", "enter", "w"]),
    "fusion": Shot(Place("fusion"), ["v", "v", "v", "v", "f"], dump=GPU),
    "layouts": Shot(Place("layouts"), dump="fixtures/dumps/cpu"),
    "buffers": Shot(Place("buffers"), dump=GPU),
    "sql": Shot(Place("sql"), ["ctrl+r"]),
    "graph": Shot(Place("graph"), ["k", "space", "k"]),
    "schedule": Shot(Place("schedule"), ["p"], dump=GPU),
    "pallas": Shot(Place("pallas", subject="fixtures/pallas/wrong.py")),
    "help": Shot(Place("stages"), ["question_mark"], (100, 44)),
    "small": Shot(Place("buffers"), [], (80, 24), GPU),
}
"""Picture -> how it is made."""


async def shoot(run: Run, shot: Shot) -> str:
    """The SVG of the dashboard after some keys."""
    async with DashboardApp(run, start=shot.start).run_test(size=shot.size) as pilot:
        for key in ("", *shot.keys):
            if key.startswith("?"):
                pilot.app.screen.query_one("#question", Input).value = key[1:]
                await pilot.press("enter")
            elif key:
                await pilot.press(key)
            for _ in range(6):
                with suppress(WorkerCancelled):
                    await pilot.app.workers.wait_for_complete()
                await pilot.pause()
        return pilot.app.export_screenshot(title="hloscope")


def compile_example(ledger: str) -> None:
    """Capture the example; the folder it lies in is kept out of its source paths."""
    command = ["-m", "hloscope.core.cli.main", "capture", "-o", ledger, "--", sys.executable, "examples/train_step.py"]
    environment = os.environ | {"JAX_HLO_SOURCE_FILE_CANONICALIZATION_REGEX": re.escape(f"{ROOT}/")}
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Write all pictures, or those that are named."""
    IMAGES.mkdir(exist_ok=True)
    os.chdir(ROOT)
    wanted = sys.argv[1:] or list(SHOTS)
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(ROOT / "fixtures", Path(folder) / "fixtures")
        compile_example(os.path.join(folder, "train_step.ledger"))
        os.chdir(folder)  # the paths in the pictures are those of nobody's machine
        for name in wanted:
            shot = SHOTS[name]
            with load(shot.dump or "train_step.ledger") as run:
                svg = asyncio.run(shoot(run, shot))
            # Fonts come from the reader's machine, not from a server.
            svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S)
            (IMAGES / f"{name}.svg").write_text(svg)
            print(f"{name}.svg: {len(svg):,} bytes")
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
