"""How quick the dashboard is on a large dump: first paint, moves between stages, keys, memory; each beside its goal.

    python benchmarks/bench_tui.py [--stages 200] [--instructions 40000] [--dump DIR]

Without --dump a synthetic dump is made in the folder for temporary files (a gigabyte at the usual size), and found
there by later runs that ask for the same; with it DIR is used, and made where it does not exist.
The dashboard is driven without a terminal; what it would send to one is put together all the same. "Answered" is the
time until a key was handled and what changed was drawn; "shown" until what it asked for stands there too. In brackets:
processor time of the thread that answers keys, which other work on the machine changes little. Beside them is what
``diff`` takes on the files of one stage.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from make_dumps import make_stages
from textual._compositor import CompositorUpdate
from textual.pilot import Pilot
from textual.widgets import Input, Static
from textual.worker import WorkerCancelled, WorkerFailed

from hloscope.tui.app import DashboardApp
from hloscope.tui.far import FarRun
from hloscope.tui.navigation import Place
from hloscope.tui.state import State
from hloscope.tui.widgets.line_pane import LinePane

MOVES = 10
LEAST_STAGES = MOVES + 8
PATIENCE_SECONDS = 60.0
"""How long any one answer is waited for."""
KEY_MS = 50.0
MOVE_MS = 150.0
PAINT_MS = 2000.0
MEMORY_MIB = 2000.0
Taken = tuple[float, float]
"""Wall seconds, and processor seconds of this thread."""

missed: list[str] = []
"""Rows that were above their goal."""


class Dashboard(DashboardApp):
    """Counts what it draws, and puts together what a terminal would be sent."""

    CSS_PATH = Path(inspect.getfile(DashboardApp)).parent / "app.tcss"
    painted = 0

    def _display(self, screen: Any, renderable: Any) -> None:
        super()._display(screen, renderable)
        if isinstance(renderable, CompositorUpdate):
            renderable.render_segments(self.console)
            self.painted += 1


def dump_folder(given: Path | None, instructions: int, stages: int) -> Path:
    """The dump: given, or made by an earlier run, or made."""
    folder = given or kept_dump(instructions, stages)
    if not folder.exists():
        # Under another name until it is whole: a run that is broken off leaves no half of one to the next.
        folder.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        try:
            make_stages(instructions, stages, making)
            making.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return folder


def kept_dump(instructions: int, stages: int) -> Path:
    """Where a dump of a size lies; another one where what makes it changed, or for another user."""
    makers = b"".join((Path(__file__).parent / name).read_bytes() for name in ("make_dumps.py", "make_hlo.py"))
    told = f"{os.getuid()}-{stages}x{instructions}-{sha256(makers).hexdigest()[:12]}"
    return Path(tempfile.gettempdir()) / f"hloscope-bench-dump-{told}"


async def shown(pilot: Pilot[None]) -> None:
    """Until nothing that was asked for is under way."""
    with suppress(WorkerCancelled, WorkerFailed, TimeoutError):
        await asyncio.wait_for(pilot.app.workers.wait_for_complete(), PATIENCE_SECONDS)
    await drawn(pilot)


async def drawn(pilot: Pilot[None]) -> None:
    """Until the keys and messages that are waiting were handled, drawing among them."""
    app = pilot.app
    handed, done = asyncio.Event(), asyncio.Event()
    app.call_later(handed.set)
    await handed.wait()
    while isinstance(app, DashboardApp) and app.typing:
        await asyncio.sleep(0.0005)
    app.call_after_refresh(done.set)
    await done.wait()


class Clock:
    """Wall seconds since it was made, and processor seconds of the thread that answers keys."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def read(self) -> Taken:
        """Both."""
        return time.perf_counter() - self._wall, time.thread_time() - self._cpu


async def key(pilot: Pilot[None], name: str) -> Taken:
    """Seconds from a key to the drawing of what it changed."""
    clock = Clock()
    pilot.app.simulate_key(name)
    await drawn(pilot)
    return clock.read()


async def answered(pilot: Pilot[None], name: str) -> Taken:
    """Seconds from a key to the first drawing after it: something is said, though not all that was asked for."""
    app = pilot.app
    assert isinstance(app, Dashboard)
    before = app.painted
    clock = Clock()
    app.simulate_key(name)
    while app.painted == before:
        await asyncio.sleep(0)
    return clock.read()


async def moved(pilot: Pilot[None], name: str) -> Taken:
    """A key that goes to another stage, until what it changed is shown."""
    clock = Clock()
    title = pilot.app.screen.query_one("#title", Static)
    before = str(title.content)
    pilot.app.simulate_key(name)
    while str(title.content) == before or any(one.is_running and one.group == "lines" for one in pilot.app.workers):
        await asyncio.sleep(0.002)
    await drawn(pilot)
    return clock.read()


async def measure(run: FarRun, started: Clock, state: State) -> None:
    """Drive it and print."""
    app = Dashboard(run, start=Place("stages"), state=state)
    async with app.run_test(size=(160, 50)) as pilot:
        await drawn(pilot)
        row("first paint (names of all passes)", [started.read()], PAINT_MS)
        row("key answered while stages are read", [await key(pilot, name) for name in ["j", "k"] * 10], KEY_MS)
        await shown(pilot)
        row("every stage counted", [started.read()])
        row("move to a stage, at once", [await moved(pilot, "greater_than_sign") for _ in range(MOVES)])
        visits = ["less_than_sign"] * (MOVES - 1) + ["greater_than_sign"] * (MOVES - 1)
        row("move to a stage, visited before", [await moved(pilot, name) for name in visits], MOVE_MS)
        ahead: list[Taken] = []
        for _ in range(4):
            ahead.append(await moved(pilot, "greater_than_sign"))
            await shown(pilot)
        row("move to a stage, once the last was looked at", ahead[1:])
        await text(pilot)
        clock = Clock()
        await pilot.press("1")
        await shown(pilot)
        row("overview shown", [clock.read()])
        row("key answered on the overview", [await key(pilot, name) for name in ["l", "h"] * 10], KEY_MS)
        app.look_ahead()
        while app.ahead is None or app.ahead:  # somebody reads the overview meanwhile
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        await screens(pilot)
        clock = Clock()
        app.remember()
        row("state saved", [clock.read()], KEY_MS)
        memory(run)


async def text(pilot: Pilot[None]) -> None:
    """Keys in a stage's text, and a search that looks beyond what the pane shows."""
    pane = pilot.app.screen.query_one("#pane", LinePane)
    pane.focus()
    await pilot.press("t")
    await shown(pilot)
    names = ["j"] * 10 + ["pagedown"] * 10 + ["G", "home"] * 5
    row("key answered in the text", [await key(pilot, name) for name in names], KEY_MS)
    await pilot.press("slash")
    pilot.app.screen.query_one("#question", Input).value = "layer_7/.*exp"
    await drawn(pilot)
    clock = Clock()
    row("search of the text answered", [await answered(pilot, "enter")], KEY_MS)
    row("key answered while it goes on elsewhere", [await key(pilot, name) for name in ["n", "j"] * 8], KEY_MS)
    await shown(pilot)
    row("search ended", [clock.read()])
    await pilot.press("escape")


async def screens(pilot: Pilot[None]) -> None:
    """The first visit of each screen, and keys there while what it shows is worked out."""
    first: list[Taken] = []
    then: list[Taken] = []
    for name in ["3", "4", "5", "6", "7", "8", "9", "0", "minus"]:
        first.append(await answered(pilot, name))
        await drawn(pilot)
        then += [await key(pilot, one) for one in ("j", "k", "o", "j")]
    row("key answered by a screen's first visit", first, KEY_MS)
    row("key answered there meanwhile", then, KEY_MS)
    again: list[Taken] = []
    for name in ["3", "5", "9", "2", "1"]:
        again.append(await answered(pilot, name))
        await drawn(pilot)
    row("key answered by a screen visited before", again, KEY_MS)
    worst: list[Taken] = []
    until = time.monotonic() + PATIENCE_SECONDS / 2
    while time.monotonic() < until and any(one.is_running for one in pilot.app.workers):
        worst.append(await key(pilot, "l" if len(worst) % 2 else "h"))
        await asyncio.sleep(0.1)
    row("key answered while analyses end", worst, KEY_MS)


def memory(run: FarRun) -> None:
    """The most that the dashboard and its reader held, together."""
    here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    there = 0.0
    with suppress(OSError):
        status = Path(f"/proc/{run.reader_pid}/status").read_text()
        there = int(status.split("VmHWM:")[1].split()[0]) / 1024
    told = verdict("memory at most", here + there, MEMORY_MIB)
    print(f"{'memory at most':<46} {here + there:>8,.0f} MiB ({here:,.0f} + {there:,.0f} in the reader)   {told}")


def row(title: str, taken: Sequence[Taken], goal: float | None = None) -> None:
    """One figure: the median, the worst, this thread's share of both, and whether the worst keeps the goal."""
    if not taken:
        return
    wall, cpu = ([1000 * one[at] for one in taken] for at in (0, 1))
    worst = f"at worst {max(wall):>6,.0f} ms ({max(cpu):,.0f} ms)" if len(taken) > 1 else ""
    told = verdict(title, max(wall), goal) if goal is not None else ""
    if told.startswith("not") and goal is not None and max(cpu) <= goal:
        told += ", kept by this thread's own time"
    middle = f"{statistics.median(wall):>8,.0f} ms ({statistics.median(cpu):,.0f} ms)"
    print(f"{title:<46} {middle:<24} {worst:<28} {told}".rstrip(), flush=True)


def verdict(title: str, value: float, goal: float) -> str:
    """Whether a goal is kept."""
    if value > goal:
        missed.append(title)
    return f"{'ok' if value <= goal else 'not ok'}: goal {goal:,.0f}"


def plain_diff(folder: Path) -> None:
    """The time of ``diff`` on the texts of two neighbouring stages that differ."""
    files = sorted(folder.glob("*.after_*.txt"), key=lambda path: path.name.split(".")[2])
    pair = next(((a, b) for a, b in zip(files, files[1:], strict=False) if a.read_bytes() != b.read_bytes()), None)
    if pair is not None:
        before = os.times()
        clock = Clock()
        subprocess.run(["diff", *map(str, pair)], stdout=subprocess.DEVNULL, check=False)
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        row("diff on the files of a stage", [(clock.read()[0], used)])


def main() -> None:
    """Make the dump, drive, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=200)
    parser.add_argument("--instructions", type=int, default=40_000)
    parser.add_argument("--dump", type=Path)
    given = parser.parse_args()
    folder = dump_folder(given.dump, given.instructions, given.stages)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    busy = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"{folder}: {size / 1e6:,.0f} MB; load of the machine {busy} on {os.cpu_count()} processors")
    plain_diff(folder)
    started = Clock()
    with FarRun(str(folder)) as run, tempfile.TemporaryDirectory(prefix="hloscope-bench-") as scratch:
        if len(run.outline) < LEAST_STAGES:
            parser.error(f"{folder} has {len(run.outline)} stages; {LEAST_STAGES} are needed to move between")
        asyncio.run(measure(run, started, State(Path(scratch) / "dashboard.json")))
    busy = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    kept = f"above its goal: {'; '.join(missed)}" if missed else "every goal kept"
    print(f"{kept} (load at the end {busy})")


if __name__ == "__main__":
    main()
