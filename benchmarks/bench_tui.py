"""How quick the dashboard is on a large dump: first paint, moves between stages, keys, memory.

    python benchmarks/bench_tui.py [--stages 200] [--instructions 40000] [--dump DIR]

Without --dump a synthetic dump is made in a temporary folder. The dashboard is driven without a terminal. "Answered" is
the time until the key was handled and the screen drawn again; "shown" until what it asked for stands there too. Beside
them is what ``diff`` takes on the files of one stage.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from make_dumps import make_stages
from textual.pilot import Pilot
from textual.widgets import Static
from textual.worker import WorkerCancelled, WorkerFailed

from hloscope.core.views.run import Run, load
from hloscope.tui.app import DashboardApp
from hloscope.tui.navigation import Place
from hloscope.tui.widgets.line_pane import LinePane

MOVES = 12


@contextmanager
def dump_folder(given: Path | None, instructions: int, stages: int) -> Iterator[Path]:
    """The dump: given, or made."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="hloscope-bench-") as folder:
        make_stages(instructions, stages, Path(folder))
        yield Path(folder)


async def shown(pilot: Pilot[None]) -> None:
    """Until nothing that was asked for is under way."""
    with suppress(WorkerCancelled, WorkerFailed):
        await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def drawn(pilot: Pilot[None]) -> float:
    """Seconds until the messages that are waiting were handled, drawing among them."""
    started = time.perf_counter()
    done = asyncio.Event()
    pilot.app.call_after_refresh(done.set)
    await done.wait()
    return time.perf_counter() - started


async def key(pilot: Pilot[None], name: str) -> float:
    """Seconds from a key to the next drawing."""
    started = time.perf_counter()
    pilot.app.simulate_key(name)
    await drawn(pilot)
    return time.perf_counter() - started


async def moved(pilot: Pilot[None], name: str) -> None:
    """A key that goes to another stage, until what it changed is shown."""
    title = pilot.app.screen.query_one("#title", Static)
    before = str(title.content)
    pilot.app.simulate_key(name)
    while str(title.content) == before or any(one.is_running and one.group == "lines" for one in pilot.app.workers):
        await asyncio.sleep(0.001)
    await drawn(pilot)


async def measure(run: Run, started: float) -> None:
    """Drive it and print."""
    app = DashboardApp(run, start=Place("stages"))
    async with app.run_test(size=(160, 50)) as pilot:
        await drawn(pilot)
        row("first paint (names of all passes)", time.perf_counter() - started)
        busy = [await key(pilot, name) for name in ["j", "k"] * 10]
        row("key answered while stages are read", statistics.median(busy), max(busy))
        await shown(pilot)
        row("every stage counted", time.perf_counter() - started)
        first: list[float] = []
        for _ in range(MOVES):
            at = time.perf_counter()
            await moved(pilot, "greater_than_sign")
            first.append(time.perf_counter() - at)
        row("move to a stage, first visit", statistics.median(first), max(first))
        again: list[float] = []
        for _ in range(MOVES - 1):
            at = time.perf_counter()
            await moved(pilot, "less_than_sign")
            again.append(time.perf_counter() - at)
        row("move to a stage, visited before", statistics.median(again), max(again))
        for _ in range(MOVES):
            await moved(pilot, "greater_than_sign")
        ahead: list[float] = []
        for _ in range(MOVES):
            await shown(pilot)
            at = time.perf_counter()
            await moved(pilot, "greater_than_sign")
            ahead.append(time.perf_counter() - at)
        row("first visit, the one before was looked at", statistics.median(ahead), max(ahead))
        app.screen.query_one("#pane", LinePane).focus()
        await pilot.press("t")
        await shown(pilot)
        keys = [await key(pilot, name) for name in ["j"] * 20 + ["pagedown"] * 20 + ["G", "home"] * 5]
        row("key answered in the text", statistics.median(keys), max(keys))
        at = time.perf_counter()
        await pilot.press("1")
        await shown(pilot)
        row("overview shown", time.perf_counter() - at)
        keys = [await key(pilot, name) for name in ["l", "h"] * 10]
        row("key answered on the overview", statistics.median(keys), max(keys))
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{'memory at most':<42} {kib / 1024:>10,.0f} MiB")


def row(title: str, seconds: float, worst: float | None = None) -> None:
    """One figure."""
    more = f"   at worst {1000 * worst:,.0f} ms" if worst is not None else ""
    print(f"{title:<42} {1000 * seconds:>10,.0f} ms{more}", flush=True)


def plain_diff(folder: Path) -> None:
    """The time of ``diff`` on the texts of two neighbouring stages that differ."""
    files = sorted(folder.glob("*.after_*.txt"), key=lambda path: path.name.split(".")[2])
    pair = next(((a, b) for a, b in zip(files, files[1:], strict=False) if a.read_bytes() != b.read_bytes()), None)
    if pair is not None:
        at = time.perf_counter()
        subprocess.run(["diff", *map(str, pair)], stdout=subprocess.DEVNULL, check=False)
        row("diff on the files of a stage", time.perf_counter() - at)


def main() -> None:
    """Make the dump, drive, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=200)
    parser.add_argument("--instructions", type=int, default=40_000)
    parser.add_argument("--dump", type=Path)
    given = parser.parse_args()
    with dump_folder(given.dump, given.instructions, given.stages) as folder:
        size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        print(f"{folder.name}: {size / 1e6:,.0f} MB")
        started = time.perf_counter()
        with load(str(folder)) as run:
            asyncio.run(measure(run, started))
        plain_diff(folder)


if __name__ == "__main__":
    main()
