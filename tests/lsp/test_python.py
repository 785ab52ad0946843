"""Python files with Pallas kernels: findings at their lines, hover on a call; other Python is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hloscope.lsp.positions import Encoding, TextLines
from hloscope.lsp.python import traced

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


ONE_LINE = """import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def run(k, x=jnp.ones((32, 128))):
    "😀"; return pl.pallas_call(k, grid=(4,), in_specs=[pl.BlockSpec((8, 128), f), pl.BlockSpec((16, 128), g)])(x, x)

def more(k):
    spec = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=0, grid=(2, 3), scratch_shapes=[pltpu.VMEM((8, 128), "f4")])
    return pl.pallas_call(k, grid_spec=spec)
"""


def test_hover_is_about_what_is_under_the_cursor(shared: Any) -> None:
    client, uri = shared.client, "file:///kernels/one_line.py"
    client.open(uri, ONE_LINE, language="python")
    lines = ONE_LINE.split("\n")

    def said(word: str) -> tuple[str, str]:
        line = next(n for n, one in enumerate(lines) if word in one)
        start = len(lines[line][: lines[line].index(word)].encode("utf-16-le")) // 2
        found = client.at("hover", uri, line, start + 1)
        first, last = found["range"]["start"], found["range"]["end"]
        assert first["line"] == last["line"]
        text = lines[line].encode("utf-16-le")[2 * first["character"] : 2 * last["character"]]
        return found["contents"]["value"], text.decode("utf-16-le")

    value, under = said("pallas_call(k, grid=(4,)")
    assert "grid 4 · 4 steps" in value and "input 1" in value and under.startswith("pl.pallas_call(k, grid=(4,)")
    value, under = said("BlockSpec((8, 128)")
    assert value.startswith("- k, input 0: ") and "input 1" not in value and under == "pl.BlockSpec((8, 128), f)"
    value, under = said("BlockSpec((16, 128)")
    assert value.startswith("- k, input 1: ") and under == "pl.BlockSpec((16, 128), g)"
    value, under = said("PrefetchScalarGridSpec")
    assert "grid 2 × 3 · 6 steps" in value and under.startswith("pltpu.PrefetchScalarGridSpec(")
    value, under = said("VMEM(")
    assert value.startswith("- k, scratch ") and under == 'pltpu.VMEM((8, 128), "f4")'


COMPUTED = """def f(x=jnp.ones((4, 32, 128), jnp.float32)):
    return pl.pallas_call(lambda x_ref, o_ref: None, grid=(4, 4), in_specs=[
        pl.BlockSpec((pl.squeezed, pl.Blocked(8), pl.Element(128, padding=(0, 8))), lambda i, j: (i, j, 0))])(x)
def g(x, n):
    y = pl.pallas_call(make(n), grid=(n,), in_specs=[pl.BlockSpec((n, 128), lambda i: (i, 0))], out_shape=x)(x)
"""


def test_hover_says_what_it_knows_and_no_more(shared: Any) -> None:
    client, uri = shared.client, "file:///kernels/pallas_computed.py"
    client.open(uri, COMPUTED, language="python")
    said = client.at("hover", uri, 1, 15)["contents"]["value"]
    assert said.startswith("**pallas_call** of `<lambda>`\n")
    assert "block `(None, 8, Element(128, padding=(0, 8)))` of 4,096 bytes" in said
    said = client.at("hover", uri, 4, 10)["contents"]["value"]
    assert said.startswith("**pallas_call**\n") and "at least" not in said
    assert "block `(?, 128)`" in said and said.endswith("does not give the sizes of its blocks in bytes")


def test_a_finding_of_one_place_marks_what_stands_there() -> None:
    row = {"file": "", "severity": "information", "code": "unsupported", "message": "é", "fix": None}
    rows = [{**row, "line": 5, "column": column, "end_line": 5, "end_column": column} for column in (1, 9, 200)]
    lines = TextLines.of(COMPUTED)
    marked = traced("file:///a.py", "a.py", {"findings": rows})(lines, Encoding.UTF16)
    text = COMPUTED.split("\n")[4]
    shown = [text[one.range.start.character : one.range.end.character] for one in marked[:2]]
    assert shown == [text.strip(), text[8:]]


def test_python_without_pallas_has_nothing(shared: Any) -> None:
    shared.client.open("file:///plain.py", "x = 1\n", language="python")
    assert shared.client.request("textDocument/documentSymbol", {"textDocument": {"uri": "file:///plain.py"}}) is None
