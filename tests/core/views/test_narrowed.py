"""Dumps of some passes only: nothing is said to be the work of a pass that was only the first to be dumped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hloscope.core.cli import main
from hloscope.core.dumps.importer import import_dump
from hloscope.core.errors import DumpError
from hloscope.core.views.compare import compare_runs
from hloscope.core.views.narrowed import dumped_passes
from hloscope.core.views.real_compile import RunCompile
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


@pytest.mark.parametrize(("made_by", "keep"), [("layout-assignment", 0), ("fusion", 3000)])
def test_what_a_pass_without_readable_text_did_is_not_laid_on_the_next(
    fixtures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], made_by: str, keep: int
) -> None:
    dump = fixtures / "dumps" / "cpu"
    damaged = tmp_path / "dump"
    shutil.copytree(dump, damaged)
    with load(str(dump)) as run:
        rows = run.passes
        at = next(row.index for row in rows[1:-1] if row.pass_name == made_by and row.changed)
        after = next(index for index in range(at + 1, len(rows)) if run.outline[index].own_snapshot)
        name = next(one.name for one in run.diff(at).added if run.definition(after, one.name) is not None)
        file = damaged / str(rows[at].file)
    for one in (file, file.with_suffix(".hlo.pb")):
        one.unlink(missing_ok=True)
    text = (dump / str(rows[at].file)).read_bytes()
    file.write_bytes(text[:keep] or b"\x03\xff nothing that is HLO\n" * 90)
    start = f"{rows[after].pipeline}/" if rows[after].pass_name == "pipeline-start" else ""
    among = f"{rows[at].pass_name} … {start}{rows[after].pass_name}"
    with load(str(damaged)) as run:
        # Asked before and after all stages were read.
        made = next(one for one in run.why(name).passes if one.what == "appeared")
        assert (made.index, made.among, made.unread) == (after, among, (rows[at].pass_name,))
        row = run.passes[after]
        assert (row.unread, row.unannounced, run.passes[at].changed, run.passes[at].unread) == (among, None, None, None)
        assert [one.index for one in run.passes if one.unread] == [after]
        assert name in [one.name for one in run.diff(after).added] and run.diff(after).from_index == at - 1
        assert [one for one in run.find(name) if one.stage == after]
        with pytest.raises(DumpError, match=f"stage {at}") as error:
            RunCompile(run).module(at)
        assert str(error.value.path).endswith(file.name)
        grown = next(one.title for one in run.summary().notable if "growth" in one.title)
        assert grown.endswith(f"between {among}") == (made_by == "fusion")
    with load(str(dump)) as whole, load(str(damaged)) as run:
        found = compare_runs(whole, run)
        assert found.first is None and found.stages[at].same is None and found.stages[after].same
    assert main.run(["why", str(damaged), name]) == 0
    said = capsys.readouterr().out
    assert f"by a pass between {rows[at].pass_name} and {start}{rows[after].pass_name} (the text after" in said
