"""Copies that no replay explains are told by their stage, their neighbours and what they move."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.text import load_module
from hloscope.core.views.copies import copies
from hloscope.core.views.copies_words import is_aliasing, told
from hloscope.core.views.run import load


def test_tpus_copies_say_their_stage(corpus: Path) -> None:
    fixture = Path(__file__).resolve().parents[3] / "fixtures" / "dumps" / "tpu"
    with load(str(fixture)) as run:
        kinds = {row.cause.kind: row.cause.sentence for row in copies(run, every=True).rows}
    assert set(kinds) == {"aliasing", "copy-insertion"}
    assert all("first seen" in sentence for sentence in kinds.values())
    with load(str(corpus / "tpu" / "layout_heavy" / "dump")) as run:
        rows = copies(run, remedies=False).rows
    layout = [row.cause.sentence for row in rows if row.cause.kind == "layout"]
    assert any("86,016 bytes with padding become 626,688" in one for one in layout)
    moved = [row.cause.sentence for row in rows if row.cause.kind == "memory-space"]
    assert moved and all(one.startswith("prefetch: ") for one in moved)


MODULE = """HloModule m, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias) }, num_partitions=4

ENTRY e {
  p = f32[8,128]{1,0:T(8,128)} parameter(0)
  q = f32[8,128]{1,0:T(8,128)} parameter(1)
  c = f32[] constant(0)
  s = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)}, u32[]) copy-start(p)
  n = f32[8,128]{1,0:T(8,128)} negate(q)
  d = f32[8,128]{1,0:T(8,128)S(1)} copy-done(s)
  k = f32[8,128]{1,0:T(8,128)} copy(q)
  z = f32[] copy(c)
  t = f32[8,128]{1,0:T(4,128)} copy(n)
  h = f32[8,128]{1,0:T(8,128)S(5)} copy(n)
  a = f32[8,128]{1,0:T(8,128)} copy(n), sharding={devices=[4,1]<=[4]}
  u = f32[8,128]{1,0:T(8,128)} copy(p)
  v = f32[8,128]{1,0:T(8,128)} custom-call(u), custom_call_target="x", output_to_operand_aliasing={{}: (0, {})}
  ROOT r = (f32[8,128]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)S(1)}, f32[]) tuple(k, d, z)
}
"""


@pytest.mark.parametrize(
    ("name", "kind", "parts"),
    [
        ("s", "memory-space", ("prefetch: the value moves from the default memory, S(0) to fast memory, S(1)",
                               "%d waits for it, 1 instructions later in the schedule, for %r (tuple)")),
        ("k", "copy-insertion", ("%q is parameter 1, donated to result {0}", "element 0 of the result of %e")),
        ("z", "copy-insertion", ("%c is a constant, whose buffer may not be written",)),
        ("t", "tiling", ("tiles 8×128 become 4×128", "4,096 bytes", "%n (negate) defines the value")),
        ("h", "host-transfer", ("offload: the value moves", "nothing reads it")),
        ("a", "spmd", ("the sharding {devices=[4,1]<=[4]} is asked for here", "among 4 partitions")),
    ],
)  # fmt: skip
def test_each_kind_has_its_numbers(name: str, kind: str, parts: tuple[str, ...]) -> None:
    copy = load_module(MODULE).find_instruction(name)
    assert copy is not None
    sentence = told(kind, "words", copy, "pipe", "pass")
    assert all(part in sentence for part in parts), sentence
    assert sentence.endswith("first seen after pipe/pass")


def test_a_copy_for_a_result_that_lives_in_its_operand_is_known() -> None:
    module = load_module(MODULE)
    assert {one.name for one in module.instructions() if one.opcode == "copy" and is_aliasing(one)} == {"u"}


def test_a_copy_of_a_parameter_has_the_line_of_what_comes_of_it(tmp_path: Path) -> None:
    text = """HloModule m, entry_computation_layout={(f32[4,8]{1,0})->f32[4,8]{0,1}}

FileNames
1 "model.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

ENTRY e {
  p = f32[4,8] parameter(0)
  n = f32[4,8] copy(p)
  ROOT r = f32[4,8] negate(n), metadata={op_name="neg" stack_frame_id=1}
}
"""
    path = tmp_path / "m.hlo"
    path.write_text(text)
    with load(str(path)) as run:
        rows = copies(run, remedies=False).rows
    assert rows and all(row.source and (row.source[0].file, row.source[0].line) == ("model.py", 7) for row in rows)
