"""Makes the pictures in docs/images from a real compile of examples/train_step.py: ``python docs/screenshots.py``."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from textual.worker import WorkerCancelled

from hloscope.core.views.run import Run, load
from hloscope.tui.app import DashboardApp

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"

SHOTS = {
    "dashboard": ((150, 38), ["c", "p", *"algsimp", "enter", "j"]),
    "text": ((150, 38), ["t", "slash", *"dot[(]", "enter"]),
    "why": ((150, 38), ["i", *"dot_general.*dot[(]", "enter", "j", "enter", "w"]),
    "help": ((100, 34), ["question_mark"]),
}
"""Picture -> size in cells and the keys pressed."""


async def shoot(run: Run, size: tuple[int, int], keys: list[str]) -> str:
    """The SVG of the dashboard after some keys."""
    async with DashboardApp(run).run_test(size=size) as pilot:
        for key in ("", *keys):
            if key:
                await pilot.press(key)
            for _ in range(2):
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
    """Write all pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        ledger = os.path.join(folder, "train_step.ledger")
        compile_example(ledger)
        with load(ledger) as run:
            for name, (size, keys) in SHOTS.items():
                svg = asyncio.run(shoot(run, size, keys))
                # Fonts come from the reader's machine, not from a server.
                svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S)
                (IMAGES / f"{name}.svg").write_text(svg)
                print(f"{name}.svg: {len(svg):,} bytes")


if __name__ == "__main__":
    main()
