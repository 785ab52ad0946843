"""Copies that a pass takes into a fusion: followed by what their users read, and counted only where they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hloscope.core.cli import main
from hloscope.core.views.copies import copies
from hloscope.core.views.run import Run, load

BEFORE = """HloModule f

zeros {
  %c = f32[] constant(0)
  ROOT %b = f32[64,8]{1,0} broadcast(%c), dimensions={}
}

ENTRY %main (x: f32[64,8], y: f32[64,8]) -> (f32[64,8], f32[64,8], f32[64,8], f32[64,8]) {
  %x = f32[64,8]{1,0} parameter(0)
  %y = f32[64,8]{1,0} parameter(1)
  %z = f32[64,8]{1,0} fusion(), kind=kLoop, calls=zeros
  %copy.1 = f32[64,8]{1,0} copy(%z)
  %copy.2 = f32[64,8]{1,0} copy(%z)
  %copy.3 = f32[64,8]{0,1} copy(%x)
  ROOT %t = (f32[64,8], f32[64,8], f32[64,8], f32[64,8]) tuple(%z, %copy.1, %copy.2, %copy.3)
}
"""
AFTER = """HloModule f

zeros {
  %c = f32[] constant(0)
  %b = f32[64,8]{1,0} broadcast(%c), dimensions={}
  %copy.8 = f32[64,8]{1,0} copy(%b)
  %copy.9 = f32[64,8]{1,0} copy(%b)
  ROOT %u = (f32[64,8], f32[64,8], f32[64,8]) tuple(%b, %copy.9, %copy.8)
}

wrapped {
  %p = f32[64,8]{1,0} parameter(0)
  ROOT %copy.7 = f32[64,8]{0,1} copy(%p)
}

ENTRY %main (x: f32[64,8], y: f32[64,8]) -> (f32[64,8], f32[64,8], f32[64,8], f32[64,8]) {
  %x = f32[64,8]{1,0} parameter(0)
  %y = f32[64,8]{1,0} parameter(1)
  %z = (f32[64,8], f32[64,8], f32[64,8]) fusion(), kind=kLoop, calls=zeros
  %g.0 = f32[64,8]{1,0} get-tuple-element(%z), index=0
  %g.1 = f32[64,8]{1,0} get-tuple-element(%z), index=1
  %g.2 = f32[64,8]{1,0} get-tuple-element(%z), index=2
  %w = f32[64,8]{0,1} fusion(%x), kind=kLoop, calls=wrapped
  ROOT %t = (f32[64,8], f32[64,8], f32[64,8], f32[64,8]) tuple(%g.0, %g.1, %g.2, %w)
}
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    folder = tmp_path / "dump"
    folder.mkdir()
    (folder / "module_0001.f.before_optimizations.txt").write_text(BEFORE)
    (folder / "module_0001.f.0000.p.after_pipeline-start.before_copy_fusion.txt").write_text(BEFORE)
    (folder / "module_0001.f.0001.p.after_copy_fusion.before_c.txt").write_text(AFTER)
    return str(folder)


@pytest.fixture
def run(path: str) -> Iterator[Run]:
    with load(path) as opened:
        yield opened


@pytest.mark.parametrize(
    ("old", "new", "fusion"), [("copy.1", "copy.9", "z"), ("copy.2", "copy.8", "z"), ("copy.3", "copy.7", "w")]
)
def test_the_old_and_the_new_name_lead_to_each_other(run: Run, old: str, new: str, fusion: str) -> None:
    gone, came = run.why(old).passes[-1], run.why(new).passes[0]
    assert (gone.what, gone.other, gone.inside) == ("removed", new, fusion)
    assert (came.what, came.other, came.inside) == ("appeared", old, fusion)


def test_the_command_tells_both_ways(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["why", path, "copy.1"]) == 0 and main.run(["why", path, "copy.9"]) == 0
    said = capsys.readouterr().out
    assert "[2] p/copy_fusion: removed, goes on as copy.9 inside z, its users now read g.1" in said
    assert "[2] p/copy_fusion: appeared inside z, in place of copy.1" in said


def test_what_a_fusion_computes_on_the_way_is_no_copy_but_a_fusion_that_only_copies_is(run: Run) -> None:
    found = {row.copy: (row.also, row.inside, row.gone) for row in copies(run, remedies=False).rows}
    assert found["copy.1"] == (("copy.9",), "z", None)
    assert found["copy.2"] == (("copy.8",), "z", None)
    assert found["copy.3"] == (("copy.7",), None, None)
