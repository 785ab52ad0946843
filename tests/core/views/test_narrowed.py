"""Dumps of some passes only: nothing is said to be the work of a pass that was only the first to be dumped."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.cli import main
from hloscope.core.dumps.importer import import_dump
from hloscope.core.views.narrowed import dumped_passes
from hloscope.core.views.run import load


@pytest.fixture(params=["dump", "ledger"])
def narrow(request: pytest.FixtureRequest, fixtures: Path, tmp_path: Path) -> str:
    """A dump of the passes whose names hold "fusion", and a ledger made of it."""
    path = fixtures / "dumps" / "gpu_narrow"
    if request.param == "dump":
        return str(path)
    import_dump(path, tmp_path / "run.ledger")
    return str(tmp_path / "run.ledger")


def test_what_appears_after_a_gap_was_made_by_a_pass_of_the_gap(narrow: str) -> None:
    with load(narrow) as run:
        assert dumped_passes(run) == "fusion"
        added = {index: [one for one in run.diff(index).added if not one.computation.startswith("fused")]
                 for index in (2, 6)}  # fmt: skip
        after_gap = run.why(added[2][0].name)
        made = next(one for one in after_gap.passes if one.what == "appeared")
        assert (made.index, made.among) == (2, "after_spmd_partitioner … hoist-fused-bitcasts")
        # The stage before was dumped right before priority-fusion: nothing else can have made it.
        direct = next(one for one in run.why(added[6][0].name).passes if one.what == "appeared")
        assert (direct.index, direct.pass_name, direct.among) == (6, "priority-fusion", None)
        assert not [one for one in run.events() if one.type == "unannounced_change"]


def test_the_summary_says_which_passes_there_are_and_blames_no_pass_for_a_gap(narrow: str) -> None:
    with load(narrow) as run:
        told = {one.title: one.detail for one in run.summary().notable}
    between = "before_optimizations … after_spmd_partitioner"
    assert told[f"largest cut: between {between}"] == "43 → 34, by any of these passes"
    assert told["largest growth: fusion/priority-fusion"] == "49 → 72"
    hidden = told["only passes that match 'fusion' were dumped"]
    assert hidden == f"7 of the rows show what others did, the first between {between}"
    assert not [title for title in told if "announced" in title]


def test_the_command_names_the_gap(fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(fixtures / "dumps" / "gpu_narrow")
    with load(path) as run:
        name = next(one.name for one in run.diff(2).added)
    assert main.run(["why", path, name]) == 0
    said = capsys.readouterr().out
    assert (
        "[2] by a pass between after_spmd_partitioner and hoist-fused-bitcasts, which was not dumped: appeared" in said
    )


@pytest.mark.parametrize("case", ["cpu", "gpu"])
def test_a_dump_of_all_passes_is_not_narrowed(fixtures: Path, case: str) -> None:
    with load(str(fixtures / "dumps" / case)) as run:
        assert dumped_passes(run) is None


TEXT = """HloModule f

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %r = f32[8]{0} OPCODE(%x)
}
"""


def test_without_flags_the_stages_tell(tmp_path: Path) -> None:
    (tmp_path / "module_0001.f.before_optimizations.txt").write_text(TEXT.replace("OPCODE", "negate"))
    (tmp_path / "module_0001.f.0000.p.after_b.before_c.txt").write_text(TEXT.replace("OPCODE", "abs"))
    with load(str(tmp_path)) as run:
        assert dumped_passes(run) == ""
        assert run.summary().notable[-1].title == "not all passes were dumped"
