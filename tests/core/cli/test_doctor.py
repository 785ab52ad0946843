"""``hloscope doctor``: what it finds here, and what it says where the compiler does not work."""

from __future__ import annotations

import json

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
