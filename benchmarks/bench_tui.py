"""How quick the dashboard is on a large dump: first paint, moves between stages, keys, memory.

    python benchmarks/bench_tui.py [--stages 200] [--instructions 40000] [--dump DIR]

Without --dump a synthetic dump is made in a temporary folder. The dashboard is driven without a terminal. "Answered" is
the time until the key was handled and the screen drawn again; "shown" until what it asked for stands there too. Beside
them is what ``diff`` takes on the files of one stage. In brackets: processor time, all threads together.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from make_dumps import make_stages
from textual.pilot import Pilot
from textual.widgets import Static
from textual.worker import WorkerCancelled, WorkerFailed

from hloscope.core.views.run import Run
from hloscope.tui.app import DashboardApp
from hloscope.tui.far import FarRun
from hloscope.tui.navigation import Place
from hloscope.tui.widgets.line_pane import LinePane

MOVES = 12
Taken = tuple[float, float]
"""Wall and processor seconds."""


@contextmanager
def dump_folder(given: Path | None, instructions: int, stages: int) -> Generator[Path]:
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


async def drawn(pilot: Pilot[None]) -> None:
    """Until the keys and messages that are waiting were handled, drawing among them."""
    app = pilot.app
    handed, done = asyncio.Event(), asyncio.Event()
    app.call_later(handed.set)
    await handed.wait()
    while isinstance(app, DashboardApp) and app.typing:
        await asyncio.sleep(0)
    app.call_after_refresh(done.set)
    await done.wait()


class Clock:
    """Wall and processor seconds since it was made; the latter also where other work shares the machine."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> Taken:
        """Both."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


async def key(pilot: Pilot[None], name: str) -> Taken:
    """Seconds from a key to the next drawing."""
    clock = Clock()
    pilot.app.simulate_key(name)
    await drawn(pilot)
    return clock.read()


async def moved(pilot: Pilot[None], name: str) -> Taken:
    """A key that goes to another stage, until what it changed is shown."""
    clock = Clock()
    title = pilot.app.screen.query_one("#title", Static)
    before = str(title.content)
    pilot.app.simulate_key(name)
    while str(title.content) == before or any(one.is_running and one.group == "lines" for one in pilot.app.workers):
        await asyncio.sleep(0.001)
    await drawn(pilot)
    return clock.read()


async def measure(run: Run, started: Clock) -> None:
    """Drive it and print."""
    app = DashboardApp(run, start=Place("stages"))
    async with app.run_test(size=(160, 50)) as pilot:
        await drawn(pilot)
        row("first paint (names of all passes)", [started.read()])
        row("key answered while stages are read", [await key(pilot, name) for name in ["j", "k"] * 10])
        await shown(pilot)
        row("every stage counted", [started.read()])
        row("move to a stage, at once", [await moved(pilot, "greater_than_sign") for _ in range(MOVES)])
        row("move to a stage, visited before", [await moved(pilot, "less_than_sign") for _ in range(MOVES - 1)])
        for _ in range(MOVES):
            await moved(pilot, "greater_than_sign")
        ahead: list[Taken] = []
        for _ in range(MOVES):
            await shown(pilot)
            ahead.append(await moved(pilot, "greater_than_sign"))
        row("move to a stage, once the last was looked at", ahead)
        app.screen.query_one("#pane", LinePane).focus()
        await pilot.press("t")
        await shown(pilot)
        keys = ["j"] * 20 + ["pagedown"] * 20 + ["G", "home"] * 5
        row("key answered in the text", [await key(pilot, name) for name in keys])
        clock = Clock()
        await pilot.press("1")
        await shown(pilot)
        row("overview shown", [clock.read()])
        row("key answered on the overview", [await key(pilot, name) for name in ["l", "h"] * 10])
        app.look_ahead()
        while app.ahead is None or app.ahead:  # somebody reads the overview meanwhile
            await asyncio.sleep(0.1)
        visits = [await key(pilot, name) for name in ["3", "4", "5", "6", "7", "8", "9", "0", "minus"]]
        row("key answered by a screen's first visit", visits)
        await shown(pilot)
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{'memory at most':<46} {kib / 1024:>8,.0f} MiB")


def row(title: str, taken: Sequence[Taken]) -> None:
    """One figure: the median, the worst, and the processor's share of both."""
    wall, cpu = ([1000 * one[at] for one in taken] for at in (0, 1))
    worst = f"   at worst {max(wall):>6,.0f} ms ({max(cpu):,.0f} ms)" if len(taken) > 1 else ""
    print(f"{title:<46} {statistics.median(wall):>8,.0f} ms ({statistics.median(cpu):,.0f} ms){worst}", flush=True)


def plain_diff(folder: Path) -> None:
    """The time of ``diff`` on the texts of two neighbouring stages that differ."""
    files = sorted(folder.glob("*.after_*.txt"), key=lambda path: path.name.split(".")[2])
    pair = next(((a, b) for a, b in zip(files, files[1:], strict=False) if a.read_bytes() != b.read_bytes()), None)
    if pair is not None:
        clock = Clock()
        subprocess.run(["diff", *map(str, pair)], stdout=subprocess.DEVNULL, check=False)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        row("diff on the files of a stage", [(clock.read()[0], used.ru_utime + used.ru_stime)])


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
        started = Clock()
        with FarRun(str(folder)) as run:
            asyncio.run(measure(run, started))
        plain_diff(folder)


if __name__ == "__main__":
    main()
