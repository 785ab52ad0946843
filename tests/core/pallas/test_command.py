"""``hloscope pallas``: its JSON, its exit codes, and one line for each bad request."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hloscope.core.cli.main import run
from hloscope.core.pallas.tracing import Trace

FIXTURES = os.path.relpath(Path(__file__).resolve().parents[3] / "fixtures" / "pallas")


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code = run(["pallas", *args, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_json_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"{FIXTURES}/wrong.py"
    code, found = answer(
        capsys, f"{path}:read_early", "--interpret", "--target", "v5e", "--arg", "f32[8,128]", "--seed", "3"
    )
    assert code == 1
    assert found["source"]["path"] == path and found["source"]["target"] == "v5e"
    (call,) = found["calls"]
    assert (call["name"], call["grid"], call["steps"]) == ("_read_early", [], 1)
    assert [row["name"] for row in call["operands"]] == ["x_hbm", "o_ref"]
    race = next(one for one in found["findings"] if one["code"] == "race")
    keys = ("code", "severity", "message", "file", "line", "column", "end_line", "end_column")
    assert all(key in race for key in keys) and race["file"] == path and race["severity"] == "error"
    assert {rung["name"]: rung["outcome"] for rung in found["rungs"]} == {
        "trace": None, "generic": "done", "tpu": "fault",
    }  # fmt: skip
    assert all(rung["proves"] and rung["cannot"] for rung in found["rungs"])
    assert next(rung["seeds"] for rung in found["rungs"] if rung["name"] == "tpu") == [3, 4, 5, 6]


def test_without_trace_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, f"{FIXTURES}/wrong.py", "--target", "v5e")
    assert code == 1 and len(found["calls"]) == 28
    assert [one["code"] for one in found["findings"] if one["severity"] == "error"] == ["index-map-out-of-range"] * 3
    code, found = answer(capsys, f"{FIXTURES}/right.py:matmul")
    assert code == 0 and [call["name"] for call in found["calls"]] == ["_matmul_kernel"]


def test_the_text_for_people(capsys: pytest.CaptureFixture[str], right: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloscope.core.pallas.report.trace_file", lambda *_, **__: right)
    assert run(["pallas", f"{FIXTURES}/right.py", "--trace", "--steps"]) == 0
    text = capsys.readouterr().out
    assert "_matmul_kernel: grid 2x2x2, 8 steps, tpu, in matmul\n" in text
    assert "input x_ref float32[256,256] block (128, 128): 4 blocks, fetched 8 times, reused 0, 512.0 KiB" in text
    assert "1 (0, 0, 1): fetches x_ref[0:128, 128:256], y_ref[128:256, 0:128]" in text
    assert text.count("cannot show") == 1


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("kernels.txt",), "not of the form FILE.py[:FUNCTION]"),
        (("missing.py",), "missing.py: no such file"),
        ((f"{FIXTURES}/right.py", "--arg", "f32[8]"), "--arg goes with --trace"),
        ((f"{FIXTURES}/right.py", "--target", "v99"), "--target"),
        ((f"{FIXTURES}/right.py:nothing",), "no function 'nothing'"),
    ],
)
def test_bad_requests(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], told: str) -> None:
    assert run(["pallas", *args]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hloscope: ") and told in error and error.count("\n") == 1


def test_a_shape_that_is_missing_is_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    path.write_text("def f(x, y):\n    return x\n")
    assert run(["pallas", f"{path}:f", "--trace", "--arg", "f32[8]"]) == 2
    error = capsys.readouterr().err
    assert "parameter 'y' of f has no default that gives its shape" in error and "(2 in order)" in error
