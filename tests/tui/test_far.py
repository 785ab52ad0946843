"""A run that is read by another process: the same answers, an end when asked, and a reader that dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.tui.settling import settle

from hloscope.core.errors import HloscopeError, UsageError
from hloscope.core.views.run import Run, load
from hloscope.core.views.stages import Cancelled, CancelledError, Progress
from hloscope.tui import far
from hloscope.tui.app import DashboardApp
from hloscope.tui.far import FarRun
from hloscope.tui.navigation import Place
from hloscope.tui.screens.stages import StagesScreen

FIXTURES = Path(__file__).parents[2] / "fixtures"
DUMP = str(FIXTURES / "dumps" / "cpu")


@pytest.fixture(scope="module")
def run() -> Generator[FarRun]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FIXTURES.parent), prepend=os.pathsep)  # for the functions of this file
        with FarRun(DUMP) as found:
            yield found


def count_slowly(run: Run, *, cancelled: Cancelled, progress: Progress) -> None:
    """Ends when it is cancelled."""
    done = 0
    while not cancelled():
        done += 1
        progress(done, len(run))
        time.sleep(0.01)
    raise CancelledError("cancelled")


def tell_when(run: Run) -> tuple[float, float]:
    """When it began and ended; it takes a moment."""
    begun = time.monotonic()
    time.sleep(0.3)
    return begun, time.monotonic()


def test_answers_are_those_of_a_run_that_is_read_here(run: FarRun) -> None:
    with load(DUMP) as near:
        assert [row.pass_name for row in run.outline] == [row.pass_name for row in near.outline]
        assert run.timeline() == near.timeline()
        changed = next(row.index for row in near.timeline() if row.changed and row.index)
        assert run.diff(changed) == near.diff(changed)
        assert run.stage_text(changed) == near.stage_text(changed)
        assert run.stage_index(-1).names == near.stage_index(-1).names
        name = near.stage_index(-1).names[-1]
        assert run.why(name) == near.why(name)
        assert [one.name for one in run.search("dot", 0)] == [one.name for one in near.search("dot", 0)]
        assert run.buffers.map(largest=3) == near.buffers.map(largest=3)
        assert run.summary() == near.summary()
    with pytest.raises(UsageError, match="no instruction 'nonesuch'"):
        run.why("nonesuch")


def test_two_runs_are_compared_where_both_are(run: FarRun) -> None:
    from hloscope.core.views.compare import compare_runs

    with FarRun(DUMP, beside=run) as other:
        assert far.call(compare_runs, run, other).first is None
        assert other.reader_pid == run.reader_pid


def test_a_question_ends_when_it_is_cancelled(run: FarRun) -> None:
    reports: list[tuple[int, int]] = []
    stop = threading.Event()

    def progress(done: int, total: int) -> None:
        reports.append((done, total))
        stop.set()

    with pytest.raises(CancelledError):
        run.call(count_slowly, run, cancelled=stop.is_set, progress=progress)
    assert reports and reports[0][1] == len(run)


def test_what_nobody_waits_for_steps_aside(run: FarRun) -> None:
    reported: list[float] = []
    stop, counting = threading.Event(), threading.Event()

    def progress(done: int, total: int) -> None:
        reported.append(time.monotonic())
        counting.set()

    def count() -> None:
        with pytest.raises(CancelledError):
            run.call(count_slowly, run, cancelled=stop.is_set, progress=progress, aside=True)

    thread = threading.Thread(target=count)
    thread.start()
    assert counting.wait(30)
    begun, ended = run.call(tell_when, run)
    deadline = time.monotonic() + 30
    while reported[-1] <= ended and time.monotonic() < deadline:
        time.sleep(0.02)
    stop.set()
    thread.join(30)
    # One report may have been on its way.
    assert len([at for at in reported if begun + 0.1 < at < ended - 0.05]) == 0 and reported[-1] > ended


def test_a_reader_that_dies_fails_one_question_only(run: FarRun) -> None:
    ended = run.reader_pid
    threading.Timer(0.3, os.kill, (ended, signal.SIGKILL)).start()
    with pytest.raises(HloscopeError, match="ended by signal 9"):
        run.call(count_slowly, run, cancelled=lambda: False, progress=lambda done, total: None)
    assert len(run.events(limit=1)) <= 1
    assert run.reader_pid != ended


async def test_the_dashboard_shows_what_the_reader_finds_and_leaves_it(run: FarRun) -> None:
    app = DashboardApp(run, start=Place("stages", 1, "text"))
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        screen = app.screen
        assert isinstance(screen, StagesScreen) and screen.pane is not None
        assert screen.pane.lines[0].text.startswith("HloModule")
        app.go(Place("buffers"))
        await settle(pilot)
    with pytest.raises(CancelledError):
        run.events()
    run.take_up()
    assert run.diff(0).empty
