"""Every screen on real dumps of the three back ends, at both ends of the sizes that are promised."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
from tests.tui.settling import settle
from tests.tui.terminal import ShownApp
from textual.binding import Binding
from textual.pilot import Pilot
from textual.widgets import Input, Static, TextArea

from hloscope.core.views.buffers import BufferRow, BufferValue
from hloscope.core.views.run import load
from hloscope.tui import child
from hloscope.tui.app import DashboardApp
from hloscope.tui.navigation import SCREENS, Place, neighbour
from hloscope.tui.palette import Actions
from hloscope.tui.screens import base, overview, own_bindings, widget_bindings
from hloscope.tui.screens.base import RunScreen
from hloscope.tui.screens.help import HelpScreen
from hloscope.tui.state import State
from hloscope.tui.widgets.buffer_map import BufferMap
from hloscope.tui.widgets.line_pane import LinePane
from hloscope.tui.widgets.stage_table import StageTable
from hloscope.tui.widgets.status_line import StatusLine
from hloscope.tui.widgets.strip_chart import StripChart

ROOT = Path(__file__).resolve().parent.parent.parent
DUMPS = ROOT / "fixtures" / "dumps"
CPU, GPU, TPU = DUMPS / "cpu", DUMPS / "gpu_narrow", DUMPS / "tpu"

SIZES = ((80, 24), (160, 50))
SMALL = (132, 24)
"""Panes beside one another, and little to draw."""


@asynccontextmanager
async def dashboard(
    path: Path | str,
    *,
    size: tuple[int, int] = SMALL,
    start: Place | None = None,
    other: str | None = None,
    state: State | None = None,
) -> AsyncGenerator[Pilot[None]]:
    with load(str(path)) as run:
        app = ShownApp(run, start=start, other=other, state=state)
        async with app.run_test(size=size) as pilot:
            await settle(pilot)
            yield pilot


async def press(pilot: Pilot[None], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await settle(pilot)


async def ask(pilot: Pilot[None], key: str, text: str) -> None:
    """Open a question by its key and answer it."""
    await pilot.press(key)
    pilot.app.screen.query_one("#question", Input).value = text
    await press(pilot, "enter")


def lines(pilot: Pilot[None], selector: str) -> str:
    """The text of a pane."""
    return "\n".join(line.text for line in pilot.app.screen.query_one(selector, LinePane).lines)


def label(pilot: Pilot[None], selector: str) -> str:
    """The text of a label."""
    return str(pilot.app.screen.query_one(selector, Static).content)


def status(pilot: Pilot[None]) -> str:
    return str(pilot.app.screen.query_one(StatusLine).content)


def picture(pilot: Pilot[None]) -> list[str]:
    """What the terminal shows, line by line."""
    strips = pilot.app.screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]
    return ["".join(segment.text for segment in strip) for strip in strips]


async def test_every_screen_draws_itself_at_every_size() -> None:
    """All screens: the tabs above, the place and the way to help below, nothing wider or higher than the terminal.

    On a TPU's dump; those of the other two are compared with pictures (`test_snapshots`).
    """
    async with dashboard(TPU, size=SIZES[0]) as pilot:
        for size in SIZES:
            await pilot.resize_terminal(*size)
            for name, key, title in SCREENS:
                await press(pilot, "minus" if key == "-" else key)
                shown = picture(pilot)
                assert cast("ShownApp", pilot.app).shown == shown, name
                assert len(shown) == size[1] and all(len(line) <= size[0] for line in shown)
                assert title in shown[0]
                assert name in status(pilot)
                assert "? Help" in shown[-1]
                assert "fault of hloscope" not in "\n".join(shown), name
        for size in ((39, 24), (80, 9), (12, 3)):
            await pilot.resize_terminal(*size)
            await settle(pilot)
            shown = "".join(picture(pilot)).split()
            assert " ".join(shown).startswith("hloscope needs") and len(shown) <= 7
        await pilot.resize_terminal(*SIZES[0])
        await settle(pilot)
        assert "? Help" in picture(pilot)[-1]


async def test_the_overview_names_what_is_worth_looking_at_and_letters_go_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overview, "LARGE", 0)
    async with dashboard(CPU) as pilot:
        assert lines(pilot, "#findings").count("a large module: the letter") == 3
        # What another screen worked out is not offered any more.
        await press(pilot, "5", "1")
        assert "peak memory        71.6 KiB while ynn_fusion.1 runs" in lines(pilot, "#findings")
        assert lines(pilot, "#findings").count("a large module: the letter") == 2
        await press(pilot, "a")
        assert "jit_layout_heavy" in label(pilot, "#facts") and "41 → 70 instructions" in label(pilot, "#facts")
        found = lines(pilot, "#findings")
        assert "largest copy       copy: 19.6 KiB from {0,3,1,2} to {3,2,1,0}" in found
        assert "peak memory        71.6 KiB while ynn_fusion.1 runs" in found
        assert "none in the stages" in found
        assert ", writes " in label(pilot, "#title")
        strip = pilot.app.screen.query_one(StripChart)
        app = cast("ShownApp", pilot.app)
        before, app.drawn = strip.cursor, 0
        await press(pilot, "right_square_bracket")
        # Only what changed is sent, and it is all that changed: the strip, the pass in words, the status line.
        assert 0 < app.drawn <= strip.size.width * (strip.size.height + 2) and app.shown == picture(pilot)
        assert strip.cursor > before and f"[{strip.cursor}]" in label(pilot, "#title")
        # The question line has its place already: nothing above it is laid out or drawn again but what lost the focus.
        app.drawn = 0
        await press(pilot, "slash")
        assert "search this pane" in app.shown[-1] and app.drawn <= strip.size.width * (strip.size.height + 2)
        await press(pilot, "escape")
        stage = strip.cursor
        await press(pilot, "enter")
        assert f"stages › {stage}/26" in status(pilot)
        await press(pilot, "b", "c")
        assert "layouts › copy" in status(pilot) and "transpose.6" in lines(pilot, "#detail")
        await press(pilot, "b", "p")
        assert "buffers" in status(pilot) and "alive at the peak" in label(pilot, "#columns")


async def test_stages_side_by_side_events_and_the_way_of_one_instruction() -> None:
    async with dashboard(GPU, start=Place("stages")) as pilot:
        await ask(pilot, "p", "priority")
        assert "fusion" in lines(pilot, "#pane")
        await press(pilot, "s")
        shown = lines(pilot, "#pane")
        assert " │ " in shown and "side by side" in status(pilot)
        pane = pilot.app.screen.query_one("#pane", LinePane)
        assert all(len(line.text) <= pane.size.width + 1 for line in pane.lines if "│" in line.text)
        await press(pilot, "s", "z")
        assert " │ " not in lines(pilot, "#pane")
    async with dashboard(CPU, start=Place("stages", None, "why", "copy")) as pilot:
        assert "  made by [13] HLO_passes_through_layout_assignment/layout-assignment" in lines(pilot, "#pane")
        assert "history" in lines(pilot, "#pane") and "where its layout comes from" in lines(pilot, "#pane")
        await press(pilot, "f")
        assert "only stages that touched copy" in pilot.app.screen.query_one(StatusLine).place
        assert len(pilot.app.screen.query_one(StageTable).stages) < 10
        await press(pilot, "f")
        assert len(pilot.app.screen.query_one(StageTable).stages) == 27
        await ask(pilot, "g", "transpose.8")
        assert "removed by [19] HLO_passes_after_layout_assignment/fusion, fused into pad_concatenate_fusion" in lines(
            pilot, "#pane"
        )
        await ask(pilot, "i", "build_corpus.py:296 ")
        found = lines(pilot, "#pane")
        assert " instructions match" in found and "%" in found
        await pilot.resize_terminal(80, 24)
        await press(pilot, "y")
        assert any(line.rstrip().endswith("copied the line") for line in picture(pilot))


async def test_fusion_filters_bars_and_the_reason_of_a_pair() -> None:
    async with dashboard(GPU, start=Place("fusion")) as pilot:
        counts = "58 decisions recorded by the compiler: 12 fused, 20 ineligible, 26 priority"
        assert label(pilot, "#head").startswith(f"{counts}; 1 more inferred from these: 1 refused")
        rows = pilot.app.screen.query_one("#list", LinePane)
        every = len(rows.lines)
        await press(pilot, "v")
        assert 0 < len(rows.lines) <= every and all("fused" in line.text for line in rows.lines)
        await press(pilot, "v", "v", "v")
        assert all("priority" in line.text for line in rows.lines)
        assert "unfused" in lines(pilot, "#detail") and "█" in lines(pilot, "#detail")
        await press(pilot, "f")
        assert "fused into" in lines(pilot, "#detail") and "fusing" in lines(pilot, "#detail")
        await press(pilot, "v", "O")
        await press(pilot, *["greater_than_sign"] * 8)
        shown = lines(pilot, "#detail")
        assert "the queue of main.7 after step" in shown and "next, at step" in shown
        await ask(pilot, "p", "nothing-like-it")
        assert "no decision matches" in lines(pilot, "#list")
    async with dashboard(TPU, start=Place("fusion")) as pilot:
        assert "inferred from the stages" in label(pilot, "#head")


async def test_layouts_tell_the_chain_behind_a_copy_and_draw_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_PATIENCE_SECONDS", 0.03)
    async with dashboard(CPU, start=Place("stages", 1)) as pilot:
        app = cast("ShownApp", pilot.app)
        with app.heavy:
            app.heavy.holder = "buffers"
            await pilot.press("4")
            await pilot.pause(0.3)
            # What takes long says what it is, for how long, and for whom it waits, where its answer will stand.
            assert re.fullmatch(r"copies: \d s, waits for buffers", lines(pilot, "#list"))
            assert re.search(r"copies: \d s, waits for buffers; x cancels$", status(pilot))
            await pilot.press("x")
            await pilot.pause(0.1)
            assert lines(pilot, "#list") == "cancelled" and status(pilot).endswith("cancelled")
    async with dashboard(CPU, start=Place("layouts", subject="copy.4")) as pilot:
        assert "layouts › copy.4" in status(pilot)
        shown = lines(pilot, "#detail")
        assert "the use wants" in shown and "mandatory" in shown and "place in memory" in shown
        await ask(pilot, "p", "f32[3,4]{0,1}")
        assert "bytes from one index to the next: 4, 12" in lines(pilot, "#detail")
        assert " 0  3  6  9" in lines(pilot, "#detail")


async def test_the_buffer_map_names_what_is_under_its_cursor_and_answers_questions() -> None:
    async with dashboard(GPU, start=Place("buffers")) as pilot:
        chart = pilot.app.screen.query_one(BufferMap)
        assert "gemm_fusion_dot.2" in status(pilot) and "step 6" in status(pilot)
        assert any("peak, step 6" in line for line in picture(pilot))
        await pilot.press(*["h"] * 8)
        assert chart.step < 6
        await press(pilot, "L")
        assert "parameters: the caller's arrays" in lines(pilot, "#list") and " %" in lines(pilot, "#list")
        await press(pilot, "full_stop", "a")
        assert "preallocated-temp" in lines(pilot, "#list")
        await ask(pilot, "s", "loop_pad_fusion loop_pad_fusion.1")
        assert "cannot share" in lines(pilot, "#list") and "code" in lines(pilot, "#list")
        # Names of earlier stages: one is called otherwise now, one is gone, one never was.
        await ask(pilot, "s", "reduce_sum.5 loop_pad_fusion")
        assert "reduce_sum.5 is reduce_sum.5.0 in the scheduled module" in lines(pilot, "#list")
        await ask(pilot, "s", "loop_pad_fusion dot_general.2")
        told = " ".join(lines(pilot, "#list").split())
        assert "dot_general.2 holds no memory in the scheduled module, removed by [2] hoist-fused-bitcasts" in told
        assert "nearest there: gemm_fusion_dot.2, gemm_fusion_dot" in told
        await ask(pilot, "s", "nobody loop_pad_fusion")
        assert "no instruction 'nobody'" in lines(pilot, "#list")
        await ask(pilot, "s", "loop_pad_fusion")
        assert "two values are needed: A B" in status(pilot)
        await ask(pilot, "u", "drop:loop_pad_fusion")
        assert "peak then" in lines(pilot, "#list")
        await ask(pilot, "u", "drop:transpose.6")
        assert "nearest there: loop_pad_fusion" in " ".join(lines(pilot, "#list").split())
        await press(pilot, "z")
        assert "none found" in lines(pilot, "#list") or ":" in lines(pilot, "#list")
        # More steps than columns: the peak is one of those that share its own, where another value dies.
        values = (BufferValue("dies", "{}", 64, 0, (0, 100)), BufferValue("full", "{}", 60, 4, (101, 101)))
        chart.show(BufferRow(0, 64, 0, "temp", values), [f"i{step}" for step in range(400)], 101)
        assert chart.words().startswith("step 101 (i101): full  60 B at 4")
        chart.action_move(1, 0)
        chart.action_to_peak()
        assert chart.words().startswith("step 101 (i101): full")


async def test_sql_runs_kept_queries_shows_faults_and_exports(tmp_path: Path) -> None:
    state = State(tmp_path / "state.json")
    async with dashboard(CPU, start=Place("sql"), state=state) as pilot:
        pilot.app.screen.query_one(TextArea).text = "select stage, pass from passes where stage=13"
        await press(pilot, "ctrl+r")
        assert "layout-assignment" in lines(pilot, "#rows") and "1 rows" in status(pilot)
        target = tmp_path / "rows.csv"
        await ask(pilot, "E", str(target))
        assert target.read_text().splitlines() == ["stage,pass", "13,layout-assignment"]
        await ask(pilot, "s", "mine")
        assert "mine" in lines(pilot, "#schema")
        pilot.app.screen.query_one("#rows", LinePane).focus()
        await press(pilot, "enter")
        assert "stages › 13/26" in status(pilot)
        await press(pilot, "6")
        pilot.app.screen.query_one(TextArea).text = "select nothing from nowhere"
        await press(pilot, "ctrl+r")
        assert "syntax error" in lines(pilot, "#rows")
        # A query of one's own that went wrong does not stand in the way of the next.
        await press(pilot, "escape", "c", *"values(41)", "ctrl+r")
        assert pilot.app.screen.query_one(TextArea).text == "values(41)" and "41" in lines(pilot, "#rows")
    assert json.loads((tmp_path / "state.json").read_text())["queries"]["mine"].startswith("select stage")


async def test_compare_finds_where_two_compiles_part(tmp_path: Path) -> None:
    second = tmp_path / "other"
    second.mkdir()
    for file in CPU.iterdir():
        text = file.read_text()
        if ".0021." in file.name:
            text = text.replace("f32[13,7,5,11]", "f32[13,7,11,5]")
        if file.name.endswith("debug_options"):
            text += '\nxla_disable_hlo_passes: "algsimp"\n'
        if ".0022." in file.name:
            continue
        (second / file.name).write_text(text)
        if ".0029." in file.name:
            (second / file.name.replace(".0029.", ".0031.")).write_text(text)
    async with dashboard(CPU, other=str(second)) as pilot:
        assert "they part at hlo_normalization/reshape-decomposer" in label(pilot, "#head")
        assert 'flags only of B: xla_disable_hlo_passes: "algsimp"' in label(pilot, "#head")
        assert "▶ ≠" in lines(pilot, "#list") and "here they part" in lines(pilot, "#detail")
        # A row of one side says why, where that is known, in the list and beside it.
        pane = pilot.app.screen.query_one("#list", LinePane)
        again = "round 2 of simplification_after_layout_assignment; the other side was done after 1"
        for start, told in (("  B ", again), ("  A ", "why is not known")):
            at = next(n for n, line in enumerate(pane.lines) if line.text.startswith(start))
            pane.move_to(at)
            await settle(pilot)
            assert told in lines(pilot, "#detail").replace("\n      ", " ")
        assert again in lines(pilot, "#list")
        await press(pilot, "home", "greater_than_sign")
        assert "reshape-decomposer" in status(pilot)
        await press(pilot, "b")
        assert "nothing to go back to" in status(pilot)


async def test_the_graph_grows_goes_inside_and_is_written(tmp_path: Path) -> None:
    async with dashboard(CPU, start=Place("graph", None, "", "copy_reverse_fusion")) as pilot:
        shown = lines(pilot, "#canvas")
        assert "copy_reverse_fusion" in shown and "┌" in shown and "tuple (result)" in shown
        await press(pilot, "k")
        assert "graph › stage 26 › copy_reverse_fusion" not in status(pilot)
        await press(pilot, "j")
        assert "copy_reverse_fusion" in status(pilot)
        for suffix, start in ((".dot", "digraph"), (".svg", "<svg")):
            target = tmp_path / f"graph{suffix}"
            await ask(pilot, "E", str(target))
            assert target.read_text().startswith(start) and "copy_reverse_fusion" in target.read_text()
        await press(pilot, "z")
        assert "reverse" in lines(pilot, "#canvas") and "copy_reverse_fusion" not in lines(pilot, "#canvas")
        await press(pilot, "b")
        assert "copy_reverse_fusion" in lines(pilot, "#canvas")
        await ask(pilot, "i", "transpose.6")
        assert "graph › stage 18 › transpose.6" in status(pilot) and "drawn as of stage 18" in status(pilot)
        await ask(pilot, "i", "nosuch")
        assert "no instruction 'nosuch'" in status(pilot)


async def test_the_schedule_says_what_a_step_waits_for_and_shows_thunks() -> None:
    async with dashboard(GPU, start=Place("schedule")) as pilot:
        assert "17 steps" in label(pilot, "#head")
        await press(pilot, "p")
        assert "gemm_fusion_dot.2" in status(pilot)
        assert "waits for" in lines(pilot, "#detail") and "bitcast.29.0  (step 5, 1 before)" in lines(pilot, "#detail")
        assert "critical path:" in label(pilot, "#head") and "times as fast" in label(pilot, "#head")
        assert "● on it: step" in lines(pilot, "#detail") or "not on it" in lines(pilot, "#detail")
        assert "could run together with" in lines(pilot, "#detail")
        await press(pilot, "c")
        only = pilot.app.screen.query_one("#list", LinePane).lines
        assert 0 < len(only) < 17 and all("●" in line.text for line in only)
        await press(pilot, "t")
        assert "kCustomKernel" in lines(pilot, "#list")


async def test_bisect_runs_as_a_child_and_pallas_reads_a_file(tmp_path: Path) -> None:
    one = tmp_path / "one.hlo"
    one.write_text("HloModule m\n\nENTRY e {\n  a = f32[4]{0} parameter(0)\n  ROOT b = f32[4]{0} negate(a)\n}\n")
    async with dashboard(one, start=Place("bisect")) as pilot:
        assert "hloscope bisect" in label(pilot, "#head") and "r runs it" in label(pilot, "#head")
        await press(pilot, "r")
        assert "verdict: no-difference" in lines(pilot, "#list")
        assert "evidence" in lines(pilot, "#detail")
    # Arguments wait until a function is traced; what the text told stays where that cannot be had.
    wrong = ROOT / "fixtures" / "pallas" / "wrong.py"
    async with dashboard(one, start=Place("pallas", subject=f"{wrong} --arg f32[8,128]")) as pilot:
        assert "calls" in label(pilot, "#head") and "findings" in lines(pilot, "#list")
        await ask(pilot, "a", f"{wrong} --no-such-option")
        assert "no-such-option" in label(pilot, "#head") and "findings" in lines(pilot, "#list")
        await ask(pilot, "a", str(tmp_path / "missing.py"))
        assert "missing.py" in label(pilot, "#head")


async def test_a_traced_kernel_is_walked_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    common = {"block": ["8", "128"], "copied": True, "index_map": {"file": "k.py", "line": 9}}
    operands = [
        {
            "name": "x_ref",
            "kind": "input",
            "array": "float32[16,128]",
            "blocks": 2,
            "fetches": 2,
            "reuses": 2,
            **common,
        },
        {
            "name": "o_ref",
            "kind": "output",
            "array": "float32[8,128]",
            "blocks": 1,
            "fetches": 1,
            "reuses": 3,
            **common,
        },
        {"name": "h_ref", "kind": "input", "array": "float32[64,128]", "copied": False, "space_meaning": "left there"},
    ]
    top, low = "x_ref[0:8, 0:128]", "x_ref[8:16, 0:128]"
    schedule = [
        {"step": 0, "point": [0, 0], "fetched": [top], "reused": [], "written": []},
        {"step": 1, "point": [0, 1], "fetched": [], "reused": [top], "written": []},
        {"step": 2, "point": [1, 0], "fetched": [low], "reused": [], "written": []},
        {"step": 3, "point": [1, 1], "fetched": [], "reused": [low], "written": ["o_ref[0:8, 0:128]"]},
    ]
    call = {"name": "sum_kernel", "file": "k.py", "line": 3, "grid": [2, 2], "traced": True, "steps": 4}
    data = {
        "findings": [],
        "calls": [{**call, "operands": operands, "schedule": schedule, "scratch": ["Ref<vmem>{f32[8]}"]}],
    }
    asked: list[list[str]] = []

    def answer(words: list[str], **_: object) -> child.Answer:
        asked.append(words)
        return child.Answer(0, data, ())

    monkeypatch.setattr(child, "ask", answer)
    async with dashboard(GPU, start=Place("pallas", subject="k.py --trace")) as pilot:
        assert "--trace" in asked[0]
        told = lines(pilot, "#detail").split("\n")
        table = [line for line in told if line.strip()[:1].isdigit() and "(" in line and "block" not in line]
        # Of each operand of each step: the block, and whether it comes, stays or goes.
        assert [line.split("  ")[-1].strip() for line in table] == ["= [0:8, 0:128]"] * 3 + ["▲ [0:8, 0:128]"]
        assert ["▼ [8:16, 0:128]" in line for line in table] == [False, False, True, False]
        assert ["= [8:16, 0:128]" in line for line in table] == [False, False, False, True]
        assert "  ◉ · " in told and "  ■ · " in told and "scratch in VMEM: f32[8]" in lines(pilot, "#detail")
        assert "not moved by the pipeline: left there" in lines(pilot, "#detail")
        await press(pilot, *["right_square_bracket"] * 3)
        told = lines(pilot, "#detail").split("\n")
        assert "  ■ ◉ " in told and "at step 3 (1, 1)" in lines(pilot, "#detail") and "step 3" in status(pilot)
        assert told[told.index("    ■ ") - 1] == "    □   now = [8:16, 0:128]"
        # Coming back to the screen runs nobody's code again.
        await press(pilot, "1", "b")
        assert len(asked) == 1 and "pallas" in status(pilot)


async def test_history_marks_goto_palette_and_what_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(tmp_path / "state.json")
    async with dashboard(CPU, state=state) as pilot:
        await ask(pilot, "g", "13")
        assert "stages › 13/26" in status(pilot)
        await press(pilot, "m", "a", "tab")
        assert "fusion" in status(pilot)
        await press(pilot, "b")
        assert "stages › 13/26" in status(pilot)
        await press(pilot, "B")
        assert "fusion" in status(pilot)
        await press(pilot, "apostrophe", "a")
        assert "stages › 13/26" in status(pilot)
        await press(pilot, "apostrophe", "q")
        assert "there is no mark q; marks: a" in status(pilot)
        await ask(pilot, "g", "layouts")
        assert "layouts" in status(pilot)
        await press(pilot, "question_mark")
        assert isinstance(pilot.app.screen, HelpScreen)
        shown = "\n".join(str(one.content) for one in pilot.app.screen.query("#help Static").results(Static))
        assert "Of every stage" in shown and "Can two share" not in shown and "Mark this place" in shown
        await press(pilot, "escape", "colon")
        assert pilot.app.screen.id != "stages"
        await press(pilot, "escape", "colon")
        pilot.app.screen.query_one(Input).value = "schedule: to the pea"
        await press(pilot, "k", "enter")
        assert "schedule" in status(pilot)
        monkeypatch.chdir(tmp_path)
        await press(pilot, "colon")
        pilot.app.screen.query_one(Input).value = "save a pictur"
        await press(pilot, "e", "enter")
        assert "written to hloscope-schedule.svg" in status(pilot)
        drawn = (tmp_path / "hloscope-schedule.svg").read_text()
        assert "Schedule" in drawn and "save&#160;a&#160;pictur" not in drawn
        await press(pilot, "b", "T")
        theme = pilot.app.theme
        await press(pilot, "y")
        assert pilot.app.clipboard
        await pilot.press("q")
    async with dashboard(CPU, state=State(tmp_path / "state.json")) as pilot:
        assert "layouts" in status(pilot) and pilot.app.theme == theme
        await press(pilot, "apostrophe", "a")
        assert "stages › 13/26" in status(pilot)


def test_tab_goes_round() -> None:
    seen = ["overview"]
    for _ in SCREENS[1:]:
        seen.append(neighbour(seen[-1], 1))
    assert sorted(seen) == sorted(name for name, _, _ in SCREENS)
    assert neighbour(seen[-1], 1) == "overview" and neighbour("overview", -1) == seen[-1]


async def test_the_palette_holds_every_action_of_every_screen() -> None:
    async with dashboard(TPU, start=Place("sql")) as pilot:
        known: set[str] = set()
        for owner in (DashboardApp, RunScreen, LinePane):
            known |= {one.description for one in owner.BINDINGS if isinstance(one, Binding)}
        for name, _, title in SCREENS:
            own = [*own_bindings(name), *(one for _, one in widget_bindings(name))]
            assert own, name
            known |= {one.description if name == "sql" else f"{title}: {one.description}" for one in own}
        held = {title for title, _, _ in Actions(pilot.app.screen).commands()}
        titles = {title for _, _, title in SCREENS}  # in the palette as "Screen: …"
        assert not known - held - titles and {f"Screen: {title}" for title in titles} <= held
        run = next(run for title, _, run in Actions(pilot.app.screen).commands() if title == "Overview: Zoom in")
        run()
        await settle(pilot)
        assert "overview" in status(pilot)


async def test_the_mouse_does_what_keys_do() -> None:
    async with dashboard(GPU, size=(120, 40), start=Place("graph", None, "", "gemm_fusion_dot.2")) as pilot:

        async def click(selector: str, at: tuple[int, int], times: int = 1) -> None:
            await pilot.click(selector, offset=at, times=times)
            await settle(pilot)

        canvas = pilot.app.screen.query_one("#canvas", LinePane)
        left, top = canvas.scroll_offset
        y, text = next((y, one.text) for y, one in enumerate(canvas.lines) if "bitcast." in one.text)
        await click("#canvas", (text.index("bitcast.") - left, y - top))
        assert "› bitcast." in status(pilot)
        await click("#tabs", (1 + picture(pilot)[0].index("Stages"), 0))
        table = pilot.app.screen.query_one(StageTable)
        await click("#timeline", (8, 5))
        assert table.cursor == table.scroll_offset.y + 5 and f"stages › {table.stage}/" in status(pilot)
        await click("#tabs", (1 + picture(pilot)[0].index("Buffers"), 0))
        chart = pilot.app.screen.query_one(BufferMap)
        before = chart.step
        await click("#map", (30, 2))
        assert chart.step < before and f"step {chart.step}" in status(pilot)
        await click("#keys", (1 + picture(pilot)[-1].index("Allocations"), 0))
        assert "preallocated-temp" in lines(pilot, "#list")
        await click("#keys", (1 + picture(pilot)[-1].index("Help"), 0))
        assert isinstance(pilot.app.screen, HelpScreen)
