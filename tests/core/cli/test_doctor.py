"""``hloscope doctor``: what it finds here, and what it says where the compiler does not work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hloscope.core.cli.main import run


def rows(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, dict[str, object]]:
    assert run(["doctor", "--json", *arguments]) == code
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}


def test_it_knows_the_engines_and_targets_and_how_to_add_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "--quick")
    assert found["core"]["status"] == "ok"
    assert found["cpu"]["status"] == "ok"
    assert {"h100", "v5e"} <= set(found)
    for row in found.values():
        assert (row["remedy"] is None) is (row["status"] == "ok")


def test_the_compile_is_really_tried(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "--filter", "group=engine")
    assert set(found) == {"core", "xla"}
    assert "compiles for cpu" in str(found["xla"]["detail"])


def test_a_compiler_that_does_not_work_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_ENABLE_X64", "not a boolean")
    found = rows(capsys, code=1)
    assert found["xla"]["status"] == "broken"
    assert found["xla"]["remedy"]


def test_of_a_dump_it_says_what_is_there_and_which_flags_add_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "HloModule m\n\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"
    for number in (1, 2):
        (tmp_path / f"module_000{number}.m.before_optimizations.txt").write_text(text)
        (tmp_path / f"module_000{number}.m.cpu_after_optimizations.txt").write_text(text)
    (tmp_path / "module_0002.m.cpu_after_optimizations-buffer-assignment.txt").write_text("BufferAssignment:\n")
    (tmp_path / "notes").write_text("")
    found = rows(capsys, str(tmp_path))
    told = {name: row["status"] for name, row in found.items()}
    assert told["modules"] == told["program"] == told["result"] == "ok"
    assert (told["passes"], told["buffers"], told["other-files"]) == ("missing", "partial", "unused")
    assert found["passes"]["remedy"] == 'XLA_FLAGS="--xla_dump_hlo_pass_re=.*"'
    assert "pass-times" not in told, "XLA:CPU has no flag for them"
    for one in tmp_path.iterdir():
        one.unlink()
    (only,) = rows(capsys, str(tmp_path), code=1).values()
    assert only["status"] == "broken" and "LIBTPU_INIT_ARGS" in str(only["remedy"])
