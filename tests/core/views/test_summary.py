"""The time of a compile: which rows of a timeline tell a time of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core import load
from hloscope.core.dumps.importer import import_dump
from hloscope.core.views.data import PassRow
from hloscope.core.views.summary import own_times, summarize


def timeline(*rows: tuple[str, str, int | None]) -> list[PassRow]:
    return [PassRow(at, pipeline, name, False, 1, 1, ns, None, None) for at, (pipeline, name, ns) in enumerate(rows)]


def names(rows: list[PassRow]) -> list[str]:
    return [f"{row.pipeline}/{row.pass_name}" for row in own_times(rows)]


def test_a_nested_pipeline_s_row_holds_the_times_of_its_passes() -> None:
    ended = timeline(
        ("outer", "dce", 1), ("inner", "cse", 5), ("core", "dot", 2), ("inner", "core", 3), ("outer", "inner", 9)
    )
    assert names(ended) == ["outer/dce", "inner/cse", "core/dot"]
    begun = timeline(("outer", "dce", 1), ("outer", "inner", 9), ("inner", "cse", 5), ("inner", "dce", 3))
    assert names(begun) == ["outer/dce", "inner/cse", "inner/dce"]


def test_a_pass_keeps_its_time_though_a_pipeline_has_its_name() -> None:
    # XLA dumps the steps of copy insertion under its name, without times; autotuner/autotuner is a pass.
    steps = timeline(
        ("copies", "flatten", 2), ("copy-insertion", "after_adding", None), ("copies", "copy-insertion", 60)
    )
    assert names(steps) == ["copies/flatten", "copy-insertion/after_adding", "copies/copy-insertion"]
    same = timeline(
        ("autotuner", "wrapper", 22), ("autotuner", "autotuner", 29), ("layout", "cse", 1), ("x", "layout", 8)
    )
    assert names(same) == ["autotuner/wrapper", "autotuner/autotuner", "layout/cse"]
    apart = timeline(("post", "layout_normalization", 1), ("post", "algsimp", 2), ("layout_normalization", "dce", 3))
    assert names(apart) == ["post/layout_normalization", "post/algsimp", "layout_normalization/dce"]


def test_computations_with_numbered_elements_count(tmp_path: Path) -> None:
    body = "(p: (s32[], /*index=5*/f32[4])) -> (s32[], /*index=5*/f32[4]) {"
    text = f"HloModule m\n\n%b {body}\n  ROOT %p = (s32[], f32[4]) parameter(0)\n}}\n\nENTRY %e {body}\n"
    path = tmp_path / "m.hlo"
    path.write_text(text + "  ROOT %q = (s32[], f32[4]) parameter(0), metadata={op_name=\"a={\"}\n}\n")
    with load(str(path)) as run:
        assert summarize(run).computations == 2


@pytest.mark.parametrize("dump", ["cpu_logged", "gpu_metadata"])
def test_sql_sums_the_rows_that_the_summary_sums(fixtures: Path, tmp_path: Path, dump: str) -> None:
    path = tmp_path / "run.ledger"
    import_dump(fixtures / "dumps" / dump, path)
    with load(str(path)) as run:
        told = {row[0] for row in run.sql("SELECT stage FROM passes WHERE own_ns IS NOT NULL").rows}
        assert told and told == {row.index for row in own_times(run.passes) if row.ns is not None}
