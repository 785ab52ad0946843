"""``hloscope compare``: the first common stage at which two compiles part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hloscope.core.cli.main import run
from hloscope.core.views.compare import stage_difference
from hloscope.core.views.run import load

HEAD = "HloModule jit_f\n\nENTRY %main (x: f32[4]) -> f32[4] {\n  %x = f32[4]{0} parameter(0)\n"
NAMED = HEAD + '  %a = f32[4]{0} add(%x, %x), metadata={op_name="LINE"}\n  ROOT %n = f32[4]{0} negate(%a)\n}\n'
BOTH = [("before_optimizations", NAMED), ("0001.pipe.after_algsimp.before_dce", NAMED.replace("add", "multiply"))]


def write(folder: Path, stages: list[tuple[str, str]]) -> Path:
    folder.mkdir()
    for name, text in stages:
        (folder / f"module_0001.jit_f.{name}.txt").write_text(text)
    return folder


def compare(capsys: pytest.CaptureFixture[str], a: Path, b: Path) -> tuple[int, dict[str, object]]:
    code = run(["compare", str(a), str(b), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_metadata_and_names_make_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = [(name, text.replace("LINE", "OTHER").replace("%a", "%add.7")) for name, text in BOTH]
    code, answer = compare(capsys, write(tmp_path / "a", BOTH), write(tmp_path / "b", other))
    assert (code, answer["first_divergence"]) == (0, None)
    assert [one["same"] for one in answer["stages"]] == [True, True]  # type: ignore[index, union-attr]


def test_the_pass_that_only_one_side_ran_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = ("0002.pipe.after_cse.before_end", NAMED.replace("add", "multiply").replace("negate", "abs"))
    extra = ("0001.pipe.after_rewriter.before_cse", NAMED.replace("negate", "sine"))
    a = write(tmp_path / "a", [*BOTH, last])
    b = write(tmp_path / "b", [BOTH[0], extra, (last[0], last[1].replace("abs", "cosine"))])
    code, answer = compare(capsys, a, b)
    first = answer["first_divergence"]
    assert code == 1 and isinstance(first, dict)
    assert (first["pass"], first["a"], first["b"], first["last_same"]) == ("cse", 2, 2, [0, 0])
    assert first["between"] == ["A: algsimp", "B: rewriter"]
    assert [(one["a"], one["b"]) for one in first["changes"]] == [
        ("ROOT %n = f32[4]{0} abs(%a)", "ROOT %n = f32[4]{0} cosine(%a)")
    ]
    assert run(["compare", str(a), str(b)]) == 1
    assert "they part at pipe/cse" in capsys.readouterr().out


def test_shardings_count_where_a_partitioner_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sharded = 'parameter(0), sharding={replicated}, frontend_attributes={xla.sdy.sharding="#sdy<@mesh, [{}]>"%s}'

    def parts(name: str, more: str, partitions: str) -> bool:
        stages = [(one, text.replace("jit_f", f"jit_f{partitions}")) for one, text in BOTH]
        other = [(one, text.replace("parameter(0)", sharded % more)) for one, text in stages]
        pair = (write(tmp_path / f"{name}_a", stages), write(tmp_path / f"{name}_b", other))
        return compare(capsys, *pair)[1]["first_divergence"] is not None

    assert not parts("one", "", "")
    assert parts("other", ', key="1"', "")
    assert parts("two", "", ", num_partitions=2")


def test_two_programs_part_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = [(name, text.replace("negate", "abs")) for name, text in BOTH]
    code, answer = compare(capsys, write(tmp_path / "a", BOTH), write(tmp_path / "b", other))
    first = answer["first_divergence"]
    assert code == 1 and isinstance(first, dict) and first["last_same"] is None


def test_our_own_ledger_and_its_dump_line_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "m.hlo"
    source.write_text(HEAD + "  %a = f32[4]{0} copy(%x)\n  ROOT %n = f32[4]{0} negate(%a)\n}\n")
    assert run(["compile", str(source), "-o", str(tmp_path / "l"), "--dump-to", str(tmp_path / "d")]) == 0
    capsys.readouterr()
    run(["compare", str(tmp_path / "l"), str(tmp_path / "d"), "--json"])
    stages = json.loads(capsys.readouterr().out)["stages"]
    both = [one for one in stages if one["a"] is not None and one["b"] is not None]
    assert any("layout" in one["pipeline"] for one in both)


def rows(*names: str) -> list[tuple[str, str]]:
    """One stage for each ``pipeline.pass``, all in one state."""
    return [(f"{number:04}.{name.replace('.', '.after_')}.before_x", NAMED) for number, name in enumerate(names, 1)]


def test_what_only_a_partitioner_reads_is_left_aside_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = "allow_spmd_sharding_propagation_to_output={true}"
    head = [(name, text.replace("jit_f\n", f"jit_f, {flag}\n")) for name, text in BOTH]
    head[1] = (head[1][0], head[1][1].replace("negate", "abs"))
    code, answer = compare(capsys, write(tmp_path / "a", BOTH), write(tmp_path / "b", head))
    assert code == 1 and [one["same"] for one in answer["stages"]] == [True, False]  # type: ignore[index, union-attr]
    assert "allow_spmd_sharding_propagation_to_output" in str(answer["notes"])
    parted = [
        [(name, text.replace("jit_f", "jit_f, num_partitions=2")) for name, text in one] for one in (BOTH[:1], head[:1])
    ]
    code, answer = compare(capsys, write(tmp_path / "c", parted[0]), write(tmp_path / "d", parted[1]))
    where = "before_optimizations on (stage 0 of A, 0 of B)"
    assert code == 1 and answer["notes"] == [f"the headers differ from {where}: {flag.partition('=')[0]}"]
    # Nor do the changes of one stage have it among them.
    for folders, told in ((("a", "b"), ()), (("c", "d"), (flag.partition("=")[0],))):
        with load(str(tmp_path / folders[0])) as a, load(str(tmp_path / folders[1])) as b:
            assert stage_difference(a, 0, b, 0).header == told


def test_headers_are_told_apart_from_instructions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = 'entry_computation_layout={(f32[4]{0:T(128)})->f32[4]{0:T(128)}}, frontend_attributes={a="b"}'
    tpu = [(name, text.replace("jit_f\n", f"jit_f, {layout}\n")) for name, text in BOTH]
    a, b = write(tmp_path / "a", BOTH), write(tmp_path / "b", tpu)
    code, answer = compare(capsys, a, b)
    assert code == 1 and answer["first_divergence"] is None
    assert [one["same"] for one in answer["stages"]] == [True, True]  # type: ignore[index, union-attr]
    assert answer["header_difference"] == {
        "a": 0, "b": 0, "pass_name": "before_optimizations",
        "attributes": ["entry_computation_layout", "frontend_attributes"],
    }  # fmt: skip
    assert run(["compare", str(a), str(b)]) == 1
    assert "no instruction differs in any common stage" in capsys.readouterr().out
    # They part where instructions do, however early the headers did.
    tpu[1] = (tpu[1][0], tpu[1][1].replace("negate", "abs"))
    code, answer = compare(capsys, a, write(tmp_path / "c", tpu))
    first = answer["first_divergence"]
    assert code == 1 and isinstance(first, dict)
    assert (first["pass"], first["last_same"]) == ("algsimp", [0, 0])
    assert answer["header_difference"]["pass_name"] == "before_optimizations"  # type: ignore[index]


def test_rounds_of_a_loop_line_up_from_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turn = ["loop.pipeline-start", "loop.algsimp", "loop.dce"]
    a, b = rows(*turn, "end.cse"), rows(*turn, *turn, *turn, "end.cse")
    _, answer = compare(capsys, write(tmp_path / "a", a), write(tmp_path / "b", b))
    stages = answer["stages"]
    assert isinstance(stages, list)
    assert [(one["a"], one["b"]) for one in stages if one["a"] is not None] == [(0, 0), (1, 1), (2, 2), (3, 9)]
    assert [one["why"] for one in stages if one["a"] is None] == [
        f"round {turn} of loop; the other side was done after 1" for turn in (2, 2, 2, 3, 3, 3)
    ]


def test_equal_constants_that_changed_places_are_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = HEAD.replace("parameter(0)\n", "parameter(0)\n  %C = f32[] constant(0)\n  %D = f32[] constant(0)\n")
    one += (
        "  %p = f32[5]{0} pad(%x, %C), padding=0_1\n  %q = f32[5]{0} pad(%x, %D), padding=1_0\n"
        "  ROOT %n = f32[5]{0} subtract(%p, %q)\n}\n"
    )
    one = one.replace("-> f32[4]", "-> f32[5]")
    a, b = (one.replace("%C", f"%{c}").replace("%D", f"%{d}") for c, d in (("k.1", "k.2"), ("k.2", "k.1")))
    code, _ = compare(capsys, write(tmp_path / "a", [(BOTH[0][0], a)]), write(tmp_path / "b", [(BOTH[0][0], b)]))
    assert code == 0


def test_rows_that_we_lack_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "m.hlo"
    source.write_text(NAMED)
    assert run(["compile", str(source), "-o", str(tmp_path / "l")]) == 0
    capsys.readouterr()
    pipe, late = "HLO_passes_through_layout_assignment", "HLO_passes_after_layout_assignment"
    b = rows(
        f"{pipe}.pipeline-start", f"{pipe}.shape-canonicalizer", f"{pipe}.multi_output_fusion",
        f"{late}.pipeline-start",
        f"{late}.dot-library-passes", "dot-library-passes.pipeline-start", "dot-library-passes.dot-library-rewriter",
        "empty.pipeline-start", "copy-insertion.after_adding_copies",
    )  # fmt: skip
    run(["compare", str(tmp_path / "l"), str(write(tmp_path / "b", b)), "--json"])
    stages = json.loads(capsys.readouterr().out)["stages"]
    why = {(one["pipeline"], one["pass"]): one["why"] for one in stages if one["a"] is None}
    assert why == {
        (pipe, "shape-canonicalizer"):
            "left out: they share memory between modules of one process and change no text",
        (pipe, "multi_output_fusion"): f"our {pipe} does not run it here",
        (late, "dot-library-passes"): "the row of a pipeline that our compile lacks",
        ("dot-library-passes", "pipeline-start"):
            "our compile has no such pipeline: it is for dot-library-rewriter, left out",
        ("dot-library-passes", "dot-library-rewriter"):
            "left out: library kernels, communication, threads: after layout assignment",
        ("empty", "pipeline-start"): "our compile has no such pipeline, and of this one no pass is shown",
        ("copy-insertion", "after_adding_copies"):
            "a step inside copy-insertion that XLA writes down, not a pass",
    }  # fmt: skip
    ours = {one["pipeline"]: one["why"] for one in stages if one["b"] is None}
    assert ours["buffer assignment"].startswith("XLA assigns buffers after its passes")
    run(["compare", str(tmp_path / "l"), str(tmp_path / "b")])
    assert "only B, 1: shape-canonicalizer (left out: they share memory" in capsys.readouterr().out
