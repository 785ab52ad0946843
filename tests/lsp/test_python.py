"""Python files with Pallas kernels: findings at their lines, hover on a call; other Python is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

URI = "file:///kernels/wrong.py"


@pytest.fixture(scope="module")
def source(fixtures: Path) -> str:
    return (fixtures / "pallas" / "wrong.py").read_text()


@pytest.fixture(scope="module")
def client(shared: Any, source: str) -> Any:
    shared.client.open(URI, source, language="python")
    return shared.client


def test_findings_stand_on_the_line_of_the_fault(client: Any, source: str) -> None:
    found = client.diagnostics(URI, 1)
    lines = source.split("\n")
    assert {one["code"] for one in found} >= {"index-map-out-of-range", "parallel-write-race"}
    for one in found:
        first = one["range"]["start"]
        assert first["character"] < len(lines[first["line"]])
        if one["code"] == "index-map-out-of-range":
            assert "FAULT: index-map-out-of-range" in lines[first["line"]]
            assert one["severity"] == 1


def test_hover_shows_grid_and_blocks(client: Any, source: str) -> None:
    lines = source.split("\n")
    line = next(number for number, text in enumerate(lines) if "lambda i: (i + 1, 0)" in text)
    call = next(number for number in range(line, 0, -1) if "pl.pallas_call(" in lines[number])
    text = client.at("hover", URI, call, lines[call].index("pallas_call"))["contents"]["value"]
    assert "pallas_call" in text and "grid 4 · 4 steps" in text
    assert "- input 0: array `float32[32,128]`, block `(8, 128)` of 4,096 bytes, index map `lambda i: (i, 0)`" in text
    assert "bytes of a TPU's vector memory" in text
    assert client.at("hover", URI, 0, 0) is None


def test_an_edit_takes_the_finding_away(shared: Any, source: str) -> None:
    client, uri = shared.client, "file:///kernels/edited.py"
    client.open(uri, source, language="python")
    before = client.diagnostics(uri, 1)
    client.change(uri, 2, {"text": source.replace("(i + 1, 0)", "(i, 0)")})
    after = client.diagnostics(uri, 2)
    assert len(after) == len(before) - 1
    # What is half typed hides nothing of the rest.
    client.change(uri, 3, {"text": source + "\n\ndef half(x, y=pl.pallas_call(kernel, grid=(\n"})
    assert client.diagnostics(uri, 3) == before
    client.change(uri, 4, {"text": "def half(:\n"})
    assert client.diagnostics(uri, 4) == []


def test_hover_on_a_spec_and_the_sum_of_a_call(shared: Any, fixtures: Path) -> None:
    client, path = shared.client, fixtures / "pallas" / "right.py"
    text, uri = path.read_text(), "file:///kernels/right.py"
    client.open(uri, text, language="python")
    lines = text.split("\n")
    at = next(n for n, line in enumerate(lines) if "lambda i, j, k: (k, j)" in line)
    said = client.at("hover", uri, at, 30)["contents"]["value"]
    assert "input 1" in said and "`lambda i, j, k: (k, j)`" in said and "input 0" not in said
    said = client.at("hover", uri, next(n for n in range(at, 0, -1) if "pallas_call" in lines[n]), 20)["contents"][
        "value"
    ]
    assert "grid 2 × 2 × 2 · 8 steps · parallel, parallel, arbitrary" in said
    # Three blocks of 64 KiB, two of each, and the scratch once.
    assert "458,752 bytes of a TPU's vector memory" in said


def test_python_without_pallas_has_nothing(shared: Any) -> None:
    shared.client.open("file:///plain.py", "x = 1\n", language="python")
    assert shared.client.request("textDocument/documentSymbol", {"textDocument": {"uri": "file:///plain.py"}}) is None
