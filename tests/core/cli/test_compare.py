"""``hloscope compare``: the first common stage at which two compiles part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hloscope.core.cli.main import run

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
