"""hloscope verify as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from hloscope.core.cli import main

GOOD = """HloModule good

ENTRY main {
  p = f32[4]{0} parameter(0)
  ROOT n = f32[4]{0} negate(p)
}
"""
BAD = """HloModule bad

wide {
  x = f32[4]{0} parameter(0)
  ROOT n = f32[4]{0} negate(x)
}

ENTRY main {
  p = f32[4]{0} parameter(0)
  c = f32[4]{0} call(p), to_apply=wide
  n = f32[5]{0} sine(c)
  ROOT r = f32[5]{0} add(n, n)
}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    good, bad = tmp_path / "good.hlo", tmp_path / "bad.hlo"
    good.write_text(GOOD)
    bad.write_text(BAD)
    return good, bad


def hloscope(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main.run([str(one) for one in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_sound_file(capsys: pytest.CaptureFixture[str], files: tuple[Path, Path]) -> None:
    assert hloscope(capsys, "verify", files[0]) == (0, f"{files[0]}: ok\n", "")


def test_a_finding_has_code_name_and_line(capsys: pytest.CaptureFixture[str], files: tuple[Path, Path]) -> None:
    code, out, err = hloscope(capsys, "verify", *files)
    assert (code, err) == (1, "")
    first, *rest = out.splitlines()
    assert first == f"{files[0]}: ok"
    assert rest[0].startswith(f"{files[1]}:11: %n in %main: Expected instruction to have shape equal to f32[4]")
    assert rest[0].endswith("[shape-mismatch]")
    assert len(rest) == 2


def test_json_rows(capsys: pytest.CaptureFixture[str], files: tuple[Path, Path]) -> None:
    code, out, _ = hloscope(capsys, "verify", "--json", *files)
    assert code == 1
    assert json.loads(out)["source"] == {"path": None, "module": None, "xla_build": None, "target": None}
    rows = json.loads(out)["rows"]
    assert rows[0] == {"file": str(files[0]), "ok": True, "findings": []}
    assert rows[1]["ok"] is False
    assert [(f["code"], f["computation"], f["instruction"], f["line"]) for f in rows[1]["findings"]] == [
        ("shape-mismatch", "main", "n", 11),
        ("implicit-broadcast", "main", "n", 11),
    ]
    assert set(rows[1]["findings"][0]) == {"code", "message", "computation", "instruction", "line"}


def test_first_filter_and_limit(capsys: pytest.CaptureFixture[str], files: tuple[Path, Path]) -> None:
    code, out, _ = hloscope(capsys, "verify", "--first", "--jsonl", "--filter", "ok=false", *files)
    assert code == 1
    assert [len(json.loads(line)["findings"]) for line in out.splitlines()] == [1]
    code, out, _ = hloscope(capsys, "verify", "--limit", 1, *files)
    assert code == 1  # a limit ends the list, not the checking
    assert out == f"{files[0]}: ok\n"


def test_text_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path, files: tuple[Path, Path]) -> None:
    broken = tmp_path / "broken.hlo"
    broken.write_text(GOOD.replace("negate(p)", "negate(q)"))
    code, out, err = hloscope(capsys, "verify", broken)
    assert (code, out) == (2, "")
    assert err.startswith(f"hloscope: {broken}:5:") and len(err.splitlines()) == 1
    code, out, err = hloscope(capsys, "verify", "--json", broken, files[0])
    assert code == 2
    assert [row["ok"] for row in json.loads(out)["rows"]] == [False, True]
    code, _, err = hloscope(capsys, "verify", tmp_path / "none.hlo")
    assert code == 2
    assert len(err.splitlines()) == 1


def test_layout_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(
        "HloModule m, is_scheduled=true\n\nENTRY e {\n  p = f32[4,8]{1,0} parameter(0)\n"
        "  ROOT n = f32[4,8]{0,1} negate(p)\n}\n"
    )
    assert hloscope(capsys, "verify", path)[0] == 1
    assert hloscope(capsys, "verify", "--no-layout-sensitive", path)[0] == 0


def test_equal_names_in_two_computations_are_no_finding(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(BAD.replace("f32[5]", "f32[4]"))
    assert hloscope(capsys, "verify", path)[0] == 0


def test_a_finding_of_a_computation_has_its_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(GOOD.replace("HloModule good", "HloModule good, buffer_donor={ (3, {}) }"))
    code, out, _ = hloscope(capsys, "verify", "--json", path)
    (finding,) = json.loads(out)["rows"][0]["findings"]
    assert (code, finding["code"], finding["line"]) == (1, "buffer-donor", 1)
    path.write_text(
        "HloModule m\n\na {\n  x = f32[] parameter(0)\n  y = f32[] negate(x)\n  ROOT z = f32[] sine(y)\n}\n\n"
        "ENTRY e {\n  p = f32[] parameter(0)\n  s = ((f32[]), f32[], s32[]) async-start(p), calls=a\n"
        "  ROOT d = f32[] async-done(s)\n}\n"
    )
    code, out, _ = hloscope(capsys, "verify", "--json", path)
    (finding,) = json.loads(out)["rows"][0]["findings"]
    assert (finding["code"], finding["computation"], finding["instruction"]) == ("async-computation", "a", None)
    assert finding["line"] == 3


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_standard_input_is_read_once(form: list[str]) -> None:
    command = [sys.executable, "-m", "hloscope.core.cli.main", "verify", "-", *form]
    done = subprocess.run(command, input=BAD, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
    assert "implicit-broadcast" in done.stdout


def test_an_archive_is_named_with_its_article(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    (tmp_path / "good.hlo").write_text(GOOD)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "good.hlo", "good.hlo")
    _, _, err = hloscope(capsys, "verify", archive)
    assert err == f"hloscope: {archive}: a single HLO file is needed, not an archive\n"


def test_what_only_the_text_shows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text("HloModule m\nENTRY e {\n  p = f32[4] parameter(0)\n  ROOT c = f32[4] copy(f32[5] p)\n}\n")
    code, out, _ = hloscope(capsys, "verify", path)
    assert code == 1
    assert out == f"{path}:4: %p has shape f32[4], not f32[5] [operand-shape]\n"
    early = "e {\n p = f32[] parameter(0)\n ROOT c = f32[] call(p), to_apply=f\n}\n"
    late = "f {\n q = f32[] parameter(0)\n ROOT r = f32[] negate(n), control-predecessors={m}\n m = f32[] sine(q)\n"
    path.write_text(f"HloModule m\nENTRY {early}{late} n = f32[] cosine(q)\n}}\n")
    code, out, _ = hloscope(capsys, "verify", path)
    said = [line.partition(": ")[2].partition(" is used before its definition")[0] for line in out.splitlines()]
    assert code == 1 and said == ["computation %f", "%n", "control predecessor %m"]
    start = " s = ((f32[]), f32[], s32[]) call-start(p), to_apply=f\n ROOT d = f32[] call-done(s)\n"
    path.write_text(
        "HloModule m\nENTRY e {\n p = f32[] parameter(0)\n" + start + "}\nf {\n ROOT q = f32[] parameter(0)\n}\n"
    )
    code, out, _ = hloscope(capsys, "verify", path)
    assert code == 1 and [line.partition(": ")[2][:36] for line in out.splitlines()] == [
        "computation %f is used before its de"
    ]


def test_a_fault_of_the_header_has_its_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    text = "// a comment\nHloModule m, buffer_donor={ (7, {}) }\nENTRY e { ROOT p = f32[4] parameter(0) }\n"
    path.write_text(text)
    code, out, _ = hloscope(capsys, "verify", path)
    assert code == 1 and out.startswith(f"{path}:2: donor.param_number")
