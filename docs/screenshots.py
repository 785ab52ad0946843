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
from html import unescape
from pathlib import Path
from runpy import run_path

from textual.widgets import Input
from textual.worker import WorkerCancelled

from hloscope.core.views.run import Run, load
from hloscope.tui.app import DashboardApp
from hloscope.tui.navigation import Place

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
GPU = "fixtures/dumps/gpu_narrow"

PLANTED = (
    "--plugin fixtures/faults/planted.py --passes "
    "'dce,cse,algsimp{kind=swap-subtract,only=0},dce,tuple-simplifier,reshape-mover,cse'"
)
"""Passes of ours with one planted rewrite that is wrong."""

KERNEL = """\
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def matmul_kernel(x_ref, w_ref, o_ref, sum_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        sum_ref[...] = jnp.zeros_like(sum_ref)

    sum_ref[...] += jnp.dot(x_ref[...], w_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = sum_ref[...].astype(o_ref.dtype)


def matmul(x=jax.ShapeDtypeStruct((256, 256), jnp.bfloat16), w=jax.ShapeDtypeStruct((256, 384), jnp.bfloat16)):
    return pl.pallas_call(
        matmul_kernel,
        grid=(2, 3, 2),
        in_specs=[pl.BlockSpec((128, 128), lambda i, j, k: (i, k)), pl.BlockSpec((128, 128), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((256, 384), jnp.bfloat16),
        scratch_shapes=[pltpu.VMEM((128, 128), jnp.float32)],
    )(x, w)
"""
"""A kernel whose blocks come and go in a way worth seeing."""


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
    "steps": Shot(Place("pallas", subject="kernels.py --trace"), ["G", "down", *["right_square_bracket"] * 4]),
    "compare": Shot(Place("compare", subject="no_algsimp.ledger")),
    "bisect": Shot(Place("bisect"), ["a", f"?{PLANTED}", "r"], dump="arithmetic.hlo"),
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


_TEXT = re.compile(
    r'(<text [^>]*?x=")([\d.]+)("[^>]*? textLength=")([\d.]+)("[^>]*>)((?:&#160;)*)(.*?)((?:&#160;)*)</text>'
)
_SPACE = "&#160;"


def without_blanks(svg: str) -> str:
    """The same picture with no text that begins or ends with blanks: some renderers drop them, and shift the rest."""

    def moved(found: re.Match[str]) -> str:
        before, x, between, length, after, lead, text, trail = found.groups()
        if not text:
            return ""
        ahead, behind = len(lead) // len(_SPACE), len(trail) // len(_SPACE)
        cells = ahead + behind + len(unescape(text))
        wide = float(length) / cells
        return f"{before}{float(x) + ahead * wide:g}{between}{(cells - ahead - behind) * wide:g}{after}{text}</text>"

    return _TEXT.sub(moved, svg)


def compile_example(ledger: str, flags: str = "") -> None:
    """Capture the example; the folder it lies in is kept out of its source paths."""
    command = ["-m", "hloscope.core.cli.main", "capture", "-o", ledger, "--", sys.executable, "examples/train_step.py"]
    environment = os.environ | {"JAX_HLO_SOURCE_FILE_CANONICALIZATION_REGEX": re.escape(f"{ROOT}/")}
    environment |= {"XLA_FLAGS": flags} if flags else {}
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Write all pictures, or those that are named."""
    IMAGES.mkdir(exist_ok=True)
    os.chdir(ROOT)
    wanted = sys.argv[1:] or list(SHOTS)
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(ROOT / "fixtures", Path(folder) / "fixtures")
        compile_example(os.path.join(folder, "train_step.ledger"))
        compile_example(os.path.join(folder, "no_algsimp.ledger"), "--xla_disable_hlo_passes=algsimp")
        programs: dict[str, str] = run_path("fixtures/faults/programs.py")["PROGRAMS"]
        (Path(folder) / "arithmetic.hlo").write_text(programs["arithmetic"])
        (Path(folder) / "kernels.py").write_text(KERNEL)
        os.chdir(folder)  # the paths in the pictures are those of nobody's machine
        for name in wanted:
            shot = SHOTS[name]
            with load(shot.dump or "train_step.ledger") as run:
                svg = asyncio.run(shoot(run, shot))
            # Fonts come from the reader's machine, not from a server.
            svg = without_blanks(svg)
            svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S)
            (IMAGES / f"{name}.svg").write_text(svg)
            print(f"{name}.svg: {len(svg):,} bytes")
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
