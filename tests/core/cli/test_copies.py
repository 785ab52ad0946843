"""``hloscope copies`` and the layout chain of ``hloscope why``, on real dumps and on single modules."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hloscope.core.cli import main
from hloscope.core.layout.remedies import Change, apply_change
from hloscope.core.runtime.compare import compare_all, rules_for
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module, print_module
from hloscope.core.views.copies import copies, layout_chain
from hloscope.core.views.run import load
from hloscope.core.xla.targets import TARGETS, is_available

TRANSPOSED = """HloModule t, entry_computation_layout={(f32[64,32]{1,0}, f32[48,64]{1,0})->f32[32,48]{1,0}}

ENTRY e {
  a = f32[64,32]{1,0} parameter(0)
  b = f32[48,64]{1,0} parameter(1)
  t = f32[32,64]{1,0} transpose(a), dimensions={1,0}, metadata={op_name="t" source_file="f.py" source_line=7}
  u = f32[64,48]{1,0} transpose(b), dimensions={1,0}
  ROOT d = f32[32,48]{1,0} dot(t, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
LOOP = """HloModule l, entry_computation_layout={(f32[4,8]{0,1}, f32[4,8]{1,0})->f32[4,8]{1,0}}

body {
  s = (s32[], f32[4,8]{1,0}, f32[4,8]{1,0}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4,8]{1,0} get-tuple-element(s), index=1
  y = f32[4,8]{1,0} get-tuple-element(s), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  w = f32[4,8]{1,0} custom-call(x), custom_call_target="w", operand_layout_constraints={f32[4,8]{0,1}}
  z = f32[4,8]{1,0} add(w, y)
  ROOT r = (s32[], f32[4,8]{1,0}, f32[4,8]{1,0}) tuple(j, z, y)
}

condition {
  s.1 = (s32[], f32[4,8]{1,0}, f32[4,8]{1,0}) parameter(0)
  i.1 = s32[] get-tuple-element(s.1), index=0
  n = s32[] constant(5)
  ROOT c = pred[] compare(i.1, n), direction=LT
}

ENTRY e {
  a = f32[4,8]{1,0} parameter(0)
  b = f32[4,8]{1,0} parameter(1)
  zero = s32[] constant(0)
  t = (s32[], f32[4,8]{1,0}, f32[4,8]{1,0}) tuple(zero, a, b)
  l = (s32[], f32[4,8]{1,0}, f32[4,8]{1,0}) while(t), condition=condition, body=body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT g = f32[4,8]{1,0} get-tuple-element(l), index=1
}
"""  # noqa: E501


def rows(path: Path | str, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[list[dict[str, object]], str]:
    assert main.run(["copies", str(path), *options, "--json"]) == 0
    out = capsys.readouterr()
    return json.loads(out.out)["rows"], out.err


@pytest.fixture
def transposed(tmp_path: Path) -> Path:
    path = tmp_path / "t.hlo"
    path.write_text(TRANSPOSED)
    return path


def test_a_single_module_is_run_through_our_pass_and_says_so(
    transposed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = rows(transposed, capsys)
    assert "ran its own layout-assignment for cpu" in said
    by_operand = {row["operand"]: row for row in found}
    assert set(by_operand) == {"t", "u"}
    row = by_operand["t"]
    assert (row["from_layout"], row["to_layout"], row["bytes"], row["times"]) == ("{0,1}", "{1,0}", 8192, 1)
    assert row["line"] == "f.py:7"
    cause = row["cause"]
    assert isinstance(cause, dict)
    assert (cause["kind"], cause["instruction"]) == ("layout", "d")
    assert cause["chain"][0]["rule"] == "cpu-matrix-dot"
    assert [one["rule"] for one in cause["given"]] == ["transpose-to-result", "cpu-row-major-operand"]


def test_a_remedy_is_proven_by_the_pass(transposed: Path) -> None:
    with load(str(transposed)) as run:
        found = {row.operand: row for row in copies(run).rows}
        remedy = found["t"].remedy
    assert remedy is not None and remedy.kind == "dot" and remedy.name == "d"
    assert (remedy.copies_before, remedy.copies_after) == (2, 1)
    assert remedy.bytes_before - remedy.bytes_after == 8192 and remedy.proven_by == ("core",)


SWAPPED = """HloModule w, entry_computation_layout={(f32[16,32]{1,0}, f32[32,8]{1,0}, f32[8,16]{1,0})->f32[8,16]{1,0}}

ENTRY e {
  a = f32[16,32]{1,0} parameter(0)
  b = f32[32,8]{1,0} parameter(1)
  c = f32[8,16]{1,0} parameter(2)
  d = f32[16,8]{1,0} dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[8,16]{1,0} transpose(d), dimensions={1,0}
  ROOT s = f32[8,16]{1,0} add(t, c)
}
"""


def test_a_transposed_product_is_turned_round(tmp_path: Path) -> None:
    path = tmp_path / "w.hlo"
    path.write_text(SWAPPED)
    with load(str(path)) as run:
        (row,) = copies(run).rows
    assert row.remedy is not None and row.remedy.kind == "swap" and row.remedy.copies_after == 0


@pytest.mark.parametrize(
    ("text", "change"),
    [(TRANSPOSED, Change("dot", "d", 0)), (TRANSPOSED, Change("dot", "d", 1)), (SWAPPED, Change("swap", "t", 0))],
)
def test_changes_of_the_program_keep_its_values(text: str, change: Change) -> None:
    module = load_module(text)
    args = inputs_for(module.entry)
    expected = [np.asarray(one) for one in evaluate(module, args)]
    rules = rules_for(module)
    apply_change(module, change)
    got = [np.asarray(one) for one in evaluate(load_module(print_module(module)), args)]
    assert all(one.within for one in compare_all(expected, got, rules))


def test_layouts_of_the_entry_are_remedies_on_the_gpu(tmp_path: Path) -> None:
    path = tmp_path / "g.hlo"
    path.write_text(
        "HloModule g, entry_computation_layout={(f32[4,6]{1,0}, f32[6,4]{1,0})->f32[6,4]{1,0}}\n\nENTRY e {\n"
        "  a = f32[4,6]{1,0} parameter(0)\n  b = f32[6,4]{1,0} parameter(1)\n"
        "  t = f32[6,4]{1,0} transpose(a), dimensions={1,0}\n  ROOT s = f32[6,4]{1,0} add(t, b)\n}\n"
    )
    with load(str(path)) as run:
        (row,) = copies(run, target="gpu").rows
    assert row.remedy is not None and row.remedy.change == "make %a {0,1} at the parameter"
    assert row.remedy.copies_after == row.remedy.bytes_after == 0


def test_a_copy_in_a_loop_counts_its_rounds(tmp_path: Path) -> None:
    path = tmp_path / "l.hlo"
    path.write_text(LOOP)
    with load(str(path)) as run:
        found = {row.operand: row for row in copies(run, target="base").rows}
    assert {row.times for row in found.values() if row.computation == "body"} == {5}
    assert {row.times for row in found.values() if row.computation == "e"} <= {1}


def test_a_copy_runs_as_often_as_the_last_stage_says(tmp_path: Path) -> None:
    unknown = LOOP.replace("n = s32[] constant(5)", 'n = s32[] custom-call(i.1), custom_call_target="n"')
    copied = "v = f32[4,8]{0,1} copy(x)\n  w = f32[4,8]{1,0} custom-call(v)"
    told = unknown.replace("w = f32[4,8]{1,0} custom-call(x)", copied)
    early = told.replace(', backend_config={"known_trip_count":{"n":"5"}}', "")
    (tmp_path / "module_0001.l.0001.pipe.after_one.before_two.txt").write_text(early)
    (tmp_path / "module_0001.l.cpu_after_optimizations.txt").write_text(told)
    with load(str(tmp_path)) as run:
        assert [(row.copy, row.cause.stage, row.times) for row in copies(run).rows] == [("v", 0, 5)]


def test_copies_of_a_real_dump_and_where_they_go(fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, said = rows(fixtures / "dumps" / "cpu", capsys)
    assert "could not" not in said
    layout = [row for row in found if row["kind"] == "layout"]
    assert len(layout) == 7
    assert all(isinstance(row["cause"], dict) and row["cause"]["chain"] and row["cause"]["given"] for row in layout)
    assert all(row["source"] or row["instruction"] is None for row in layout)
    assert any(row["remedy"] for row in layout)
    assert main.run(["copies", str(fixtures / "dumps" / "cpu"), "--limit", "1", "--no-remedies"]) == 0
    assert "because" in capsys.readouterr().out


def test_a_module_that_has_its_layouts_is_listed_as_it_is(fixtures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fixtures / "dumps" / "cpu" / "module_0000.jit_layout_heavy.cpu_after_optimizations.txt"
    found, said = rows(path, capsys)
    assert "has its layouts already" in said and found
    assert all(row["kind"] == "program" and row["remedy"] is None for row in found)
    assert {row["to_layout"] for row in found} > {"{3,2,1,0}"}
    with load(str(path)) as run:
        assert layout_chain(run, str(found[0]["copy"])) is None


def test_the_chain_of_an_instruction(fixtures: Path, transposed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with load(str(fixtures / "dumps" / "cpu")) as run:
        chain = layout_chain(run, "reshape.3")
        assert chain is not None
        assert chain.definitions[0].links[-1].rule == "cpu-matrix-dot"
        assert {lost.code for use in chain.uses for lost in use.lost} == {"operand_is_settled"}
        assert layout_chain(run, "no-such-instruction") is None
    assert main.run(["why", str(transposed), "t", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["layout_chain"]
    assert answer["definitions"][0]["layout"] == "{0,1}"


def test_other_passes_are_told_by_their_stage(fixtures: Path) -> None:
    with load(str(fixtures / "dumps" / "tpu")) as run:
        answer = copies(run, every=True)
    kinds = {row.cause.kind for row in answer.rows}
    assert kinds and "program" not in kinds
    assert all(row.cause.chain == () and row.remedy is None for row in answer.rows)


GIVEN = """HloModule p, entry_computation_layout={(f32[64,32]{1,0}, f32[64,32]{1,0})->f32[64,32]{0,1}}

ENTRY e {
  a = f32[64,32]{1,0} parameter(0)
  b = f32[64,32]{1,0} parameter(1)
  ROOT s = f32[64,32]{1,0} add(a, b)
}
"""


@pytest.mark.slow
def test_the_real_compiler_confirms_a_remedy(tmp_path: Path) -> None:
    if not is_available(TARGETS["cpu"]):
        pytest.skip("no jaxlib")
    path = tmp_path / "p.hlo"
    path.write_text(GIVEN)
    with load(str(path)) as run:
        (row,) = copies(run, prove=True).rows
    assert row.remedy is not None
    assert (row.remedy.change, row.remedy.proven_by) == ("let the entry's result be {1,0}", ("core", "xla"))
