"""The dashboard, driven by keys as a user drives it, on a small dump that the test writes."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import termios
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static
from textual.worker import WorkerCancelled

from hloscope.core.views.run import load
from hloscope.tui.app import DashboardApp
from hloscope.tui.navigation import Place
from hloscope.tui.screens.bisection import BisectScreen
from hloscope.tui.screens.help import HelpScreen
from hloscope.tui.screens.stages import StagesScreen
from hloscope.tui.terminal import keys_wait
from hloscope.tui.widgets.line_pane import LinePane
from hloscope.tui.widgets.stage_table import StageTable
from hloscope.tui.widgets.status_line import StatusLine

HEAD = "HloModule jit_f, entry_computation_layout={(f32[4]{0})->f32[4]{0}}\n\nENTRY %main (a: f32[4]) -> f32[4] {\n"
FIRST = HEAD + (
    "  %a = f32[4]{0} parameter(0)\n"
    "  %zero = f32[] constant(0)\n"
    "  %zeros = f32[4]{0} broadcast(%zero), dimensions={}\n"
    "  %sum = f32[4]{0} add(%a, %zeros)\n"
    '  ROOT %out = f32[4]{0} multiply(%sum, %sum), metadata={op_name="jit(f)/mul"}\n}\n\n'
)
SECOND = HEAD + (
    '  %a = f32[4]{0} parameter(0)\n  ROOT %out = f32[4]{0} multiply(%a, %a), metadata={op_name="jit(f)/mul"}\n}\n\n'
)
THIRD = SECOND.replace("%out", "%out.1").replace("jit(f)/mul", "jit(f)/mul")


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """A dump of four stages: untouched, simplified, the same again, one instruction renamed."""
    names = {
        "before_optimizations": FIRST,
        "0000.simplification.after_pipeline-start.before_algsimp": FIRST,
        "0001.simplification.after_algsimp.before_dce": SECOND,
        "0002.cleanup.after_pipeline-start.before_rename-instructions": SECOND,
        "0003.cleanup.after_rename-instructions.before_pipeline-end": THIRD,
        "cpu_after_optimizations": THIRD,
    }
    for name, text in names.items():
        (tmp_path / f"module_0000.jit_f.{name}.txt").write_text(text)
    return tmp_path


@asynccontextmanager
async def dashboard(dump: Path, size: tuple[int, int] = (140, 40)) -> AsyncGenerator[Pilot[None]]:
    with load(str(dump)) as run:
        async with DashboardApp(run, start=Place("stages")).run_test(size=size) as pilot:
            await settle(pilot)
            yield pilot


async def settle(pilot: Pilot[None]) -> None:
    for _ in range(3):
        with suppress(WorkerCancelled):  # a newer question has taken the place of an older one
            await pilot.app.workers.wait_for_complete()
        await pilot.pause()


async def press(pilot: Pilot[None], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await settle(pilot)


def pane(pilot: Pilot[None]) -> LinePane:
    return pilot.app.screen.query_one("#pane", LinePane)


def table(pilot: Pilot[None]) -> StageTable:
    return pilot.app.screen.query_one(StageTable)


def text(pilot: Pilot[None]) -> str:
    return "\n".join(line.text for line in pane(pilot).lines)


def status(pilot: Pilot[None]) -> str:
    return str(pilot.app.screen.query_one(StatusLine).content)


async def test_first_screen_tells_what_was_compiled_and_opens_the_first_change(dump: Path) -> None:
    async with dashboard(dump) as pilot:
        summary = str(pilot.app.screen.query_one("#summary", Static).content)
        assert "jit_f" in summary and "5 → 2 instructions" in summary
        assert table(pilot).stages == [0, 1, 2, 3, 4, 5]
        assert table(pilot).stage == 2
        shown = text(pilot)
        assert "3 removed, 1 modified" in shown
        assert "- %sum = f32[4]{0} add(%a, %zeros)" in shown
        assert "~ out   operands" in shown
        assert "2/5 simplification/algsimp" in status(pilot)


async def test_moving_shows_each_stage_and_a_rename_is_not_a_rewrite(dump: Path) -> None:
    async with dashboard(dump) as pilot:
        await press(pilot, "j")
        assert table(pilot).stage == 3
        assert "No instruction differs" in text(pilot)
        await press(pilot, "j")
        assert "1 renamed" in text(pilot)
        assert "> out → out.1" in text(pilot)
        assert "removed" not in text(pilot)


async def test_text_view_search_and_matches(dump: Path) -> None:
    async with dashboard(dump) as pilot:
        await press(pilot, "t")
        assert "ENTRY %main" in text(pilot)
        await press(pilot, "slash", *"param", "enter")
        assert "1 line matches" in status(pilot)
        current = pane(pilot).current
        assert current is not None and current.instruction == "a"
        await press(pilot, "slash", "[", "enter")
        assert "not a regular expression" in status(pilot)


async def test_search_looks_at_what_a_line_does_not_show(dump: Path) -> None:
    """A diff shows no metadata; names, opcodes, op_name and Python lines are searched nevertheless."""
    made_by = 'metadata={op_name="jit(f)/layer/add" source_file="net.py" source_line=7}'
    table_of_lines = (
        '\nFileNames\n1 "net.py"\n\nFunctionNames\n1 "f"\n\nFileLocations\n1 {file_name_id=1 function_name_id=1 line=7 '
        "end_line=7 column=1 end_column=2}\n\nStackFrames\n1 {file_location_id=1 parent_frame_id=1}\n\n\nENTRY"
    )
    for one in dump.iterdir():
        found = one.read_text().replace("add(%a, %zeros)", f"add(%a, %zeros), {made_by}")
        found = found.replace(
            "broadcast(%zero), dimensions={}", "broadcast(%zero), dimensions={}, metadata={stack_frame_id=1}"
        )
        one.write_text(found.replace("\nENTRY", table_of_lines, 1))
    async with dashboard(dump) as pilot:
        assert "layer" not in text(pilot)
        for words, names in (
            ("layer/add", {"sum"}),
            ("NET.py:7", {"zeros"}),
            (r"= \S+ add\(", {"sum"}),
            ("^  - %zero ", {"zero"}),
        ):
            await press(pilot, "slash")
            pilot.app.screen.query_one("#question", Input).value = words
            await press(pilot, "enter")
            current = pane(pilot).current
            assert current is not None and current.instruction in names, (words, current, status(pilot))
        await press(pilot, "slash", *"nobody", "enter")
        assert "no line matches" in status(pilot)
        for screen, words, told in (("1", "slowest", "match"), ("7", "nobody", "no line matches")):
            await press(pilot, screen, "slash", *words, "enter")
            assert told in status(pilot), screen


async def test_finding_and_following_an_instruction_and_back(dump: Path) -> None:
    async with dashboard(dump) as pilot:
        await press(pilot, "i", *"mul", "enter")
        assert "1 instructions match 'mul'" in text(pilot)
        await press(pilot, "j", "enter")
        current = pane(pilot).current
        assert current is not None and current.instruction == "out" and "text" in status(pilot)
        await press(pilot, "w")
        assert "renamed by cleanup/rename-instructions" in text(pilot)
        assert "jit(f)/mul" in text(pilot)
        await press(pilot, "b")
        assert "ENTRY %main" in text(pilot)
        await press(pilot, "b", "b")
        assert "3 removed" in text(pilot)
        await press(pilot, "b")
        assert "nothing to go back to" in status(pilot)


async def test_work_that_waits_keeps_no_other_work_waiting(dump: Path) -> None:
    """Also where many pieces of it wait, and a screen that was never shown is asked for meanwhile."""
    async with dashboard(dump) as pilot:
        held = threading.Event()
        for number in range(20):
            pilot.app.run_worker(held.wait, thread=True, group=f"held {number}")
        try:
            await pilot.press("0")
            until = time.monotonic() + 20
            while not isinstance(pilot.app.screen, BisectScreen) and time.monotonic() < until:
                await pilot.pause(0.02)
            assert isinstance(pilot.app.screen, BisectScreen)
        finally:
            held.set()


async def test_filters_of_the_timeline(dump: Path) -> None:
    async with dashboard(dump) as pilot:
        await press(pilot, "c")
        assert table(pilot).stages == [2, 4]
        await press(pilot, "p", *"cleanup", "enter")
        assert table(pilot).stages == [4]
        await press(pilot, "p", *"nosuchpass", "enter")
        assert table(pilot).stages == []
        assert "No pass matches" in text(pilot)
        await press(pilot, "c", "p")
        assert pilot.app.screen.query_one("#question").display
        await press(pilot, "escape")
        assert not pilot.app.screen.query_one("#question").display


async def test_help_lists_the_keys_of_this_screen(dump: Path) -> None:
    async with dashboard(dump) as pilot:
        await press(pilot, "question_mark")
        assert isinstance(pilot.app.screen, HelpScreen)
        shown = str(pilot.app.screen.query("#help Static").first(Static).content)
        for binding in StagesScreen.BINDINGS:
            assert getattr(binding, "description", "") in shown
        await press(pilot, "escape")
        assert isinstance(pilot.app.screen, StagesScreen)


@pytest.mark.parametrize("size", [(80, 24), (120, 30), (200, 60)])
async def test_every_size_shows_both_panes(dump: Path, size: tuple[int, int]) -> None:
    async with dashboard(dump, size) as pilot:
        assert table(pilot).size.height >= 4
        assert pane(pilot).size.height >= 5
        assert pane(pilot).size.width >= 60
        await pilot.resize_terminal(100, 24)
        await settle(pilot)
        assert table(pilot).size.height >= 4


async def test_a_single_file_and_a_broken_one_open(tmp_path: Path) -> None:
    one = tmp_path / "m.hlo"
    one.write_text(FIRST[: FIRST.index("ROOT") + 8])
    async with dashboard(one) as pilot:
        await press(pilot, "t")
        assert "%sum" in text(pilot)


async def test_another_module_is_opened_by_number_or_name(dump: Path) -> None:
    for path in list(dump.glob("module_0000.jit_f.*")):
        (dump / path.name.replace("module_0000.jit_f", "module_0001.jit_g")).write_text(path.read_text()[:-2])
    async with dashboard(dump) as pilot:
        app = pilot.app
        assert isinstance(app, DashboardApp) and app.run_opened.source.module == "jit_f"
        for typed, said in (("nonesuch", "no module matches 'nonesuch'"), ("7", "numbered 0 to 1"), ("", "")):
            await press(pilot, "ctrl+o", *typed, "enter")
            assert said in status(pilot) and app.next_module is None
        await press(pilot, "ctrl+o", *"jit_g$")
        await pilot.press("enter")
        assert app.next_module == 1


def test_what_is_typed_before_the_dashboard_is_there_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard, terminal = pty.openpty()
    with open(terminal, "rb", buffering=0) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        before = termios.tcgetattr(stdin)
        with keys_wait():
            os.write(keyboard, b"2\r")
            assert not select.select([keyboard], [], [], 0.05)[0]  # not echoed
            assert os.read(terminal, 9) == b"2\r"  # there without a line's end, and enter is enter
        assert termios.tcgetattr(stdin) == before
    os.close(keyboard)


def _open(*args: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hloscope.core.cli.main", "open", *args],
        capture_output=True,
        text=True,
        cwd=root,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


def test_without_a_terminal_the_summary_is_printed(dump: Path, tmp_path: Path, root: Path) -> None:
    done = _open(str(dump), root=root)
    assert done.returncode == 0, done.stderr
    assert "jit_f" in done.stdout and "simplification/algsimp" in done.stdout
    done = _open(str(dump), "--json", root=root)
    data = json.loads(done.stdout)
    assert data["source"]["module"] == "jit_f"
    assert (data["instructions_before"], data["instructions_after"]) == (5, 2)
    done = _open(str(tmp_path / "missing"), root=root)
    assert done.returncode == 2 and done.stderr.startswith("hloscope: ") and done.stderr.count("\n") == 1
