"""Bytes moved: pieces of an array count as pieces."""

from __future__ import annotations

from pathlib import Path

from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.views.moved import BytesMoved
from hloscope.core.views.run import load
from hloscope.core.views.traffic import bytes_written

TEXT = """HloModule pieces, is_scheduled=true

%put (whole: f32[16,1024], row: f32[1,1024], at: s32[]) -> f32[16,1024] {
  %whole = f32[16,1024]{1,0} parameter(0)
  %row = f32[1,1024]{1,0} parameter(1)
  %at = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %put.1 = f32[16,1024]{1,0} dynamic-update-slice(%whole, %row, %at, %zero)
}

%take (whole: f32[16,1024], at: s32[]) -> f32[1024] {
  %whole.1 = f32[16,1024]{1,0} parameter(0)
  %at.1 = s32[] parameter(1)
  %zero.1 = s32[] constant(0)
  %row.1 = f32[1,1024]{1,0} dynamic-slice(%whole.1, %at.1, %zero.1), dynamic_slice_sizes={1,1024}
  %flat = f32[1024]{0} bitcast(%row.1)
  ROOT %twice = f32[1024]{0} add(%flat, %flat)
}

%both (whole: f32[16,1024]) -> f32[16,1024] {
  %whole.2 = f32[16,1024]{1,0} parameter(0)
  %head = f32[1,1024]{1,0} slice(%whole.2), slice={[0:1], [0:1024]}
  %wide = f32[16,1024]{1,0} broadcast(%head), dimensions={0,1}
  ROOT %sum = f32[16,1024]{1,0} add(%whole.2, %wide)
}

ENTRY %main (a: f32[16,1024], b: f32[1,1024], i: s32[]) -> f32[16,1024] {
  %a = f32[16,1024]{1,0} parameter(0)
  %b = f32[1,1024]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %putting = f32[16,1024]{1,0} fusion(%a, %b, %i), kind=kLoop, calls=%put
  %taking = f32[1024]{0} fusion(%putting, %i), kind=kLoop, calls=%take
  %mixing = f32[16,1024]{1,0} fusion(%putting), kind=kLoop, calls=%both
  %begun = (f32[16,1024]{1,0}, f32[16,1024]{1,0}, u32[]) copy-start(%mixing)
  %ended = f32[16,1024]{1,0} copy-done(%begun)
  ROOT %plain = f32[16,1024]{1,0} negate(%ended)
}
"""
ROW, WHOLE, NUMBER = 4096, 16 * 4096, 4


def test_what_is_read_and_written_of_an_array_counts_and_no_more() -> None:
    index = ModuleIndex.from_text(TEXT)
    moved = BytesMoved(index)
    found = {name: moved.of(at) for name in index.names if (at := index.find(name)) is not None}
    assert found["putting"] == 2 * ROW + NUMBER  # in place: the row is read and written
    assert found["taking"] == 2 * ROW + NUMBER
    assert found["mixing"] == 2 * WHOLE  # the slice does not spare the other reader
    assert (found["begun"], found["ended"]) == (0, 2 * WHOLE)
    assert found["plain"] == 2 * WHOLE
    assert found["a"] == 0


def test_a_stage_writes_what_its_instructions_write(tmp_path: Path) -> None:
    path = tmp_path / "pieces.hlo"
    path.write_text(TEXT)
    with load(str(path)) as run:
        total = bytes_written(run)[0]
    index = ModuleIndex.from_text(TEXT)
    moved = BytesMoved(index)
    entry = index.entry
    assert entry is not None
    assert total == sum(map(moved.written, range(entry.begin, entry.end)))
    assert total == ROW + ROW + 3 * WHOLE  # put in place, taken, mixed, copied, negated
