"""The odd corners of HLO text, each tried on the parser of jaxlib 0.10.2: the same verdict, and a print that it reads.

`fixtures/hlo_oddities.json` holds whole modules with that parser's verdict.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hloscope.core.text import PrintOptions, parse_module, print_module
from hloscope.core.text.names import as_xla_reads
from hloscope.core.text.reader import read_text

ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "fixtures" / "hlo_oddities.json").read_text(encoding="utf-8")
)
ACCEPTED = [row for row in ROWS if row["jaxlib_accepts"]]
REFUSED = [row for row in ROWS if not row["jaxlib_accepts"]]


def test_there_are_enough_of_both() -> None:
    assert len(ACCEPTED) > 200 and len(REFUSED) > 40


@pytest.mark.parametrize("row", ACCEPTED, ids=lambda row: row["id"])
def test_what_xla_accepts_is_accepted_and_prints_stably(row: dict[str, Any]) -> None:
    result = read_text(row["text"], check=True)
    assert result.module is not None
    assert [d.message for d in (*result.diagnostics, *result.objections)] == []
    printed = print_module(result.module)
    again = read_text(printed, check=True)
    assert not again.xla_would_reject
    assert again.module is not None and print_module(again.module) == printed


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row["id"])
def test_what_xla_refuses_is_refused_in_strict_mode_with_a_position(row: dict[str, Any]) -> None:
    text = row["text"]
    assert read_text(text, check=True).xla_would_reject
    _, found = parse_module(text, strict=True)
    assert found
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for one in found:
        assert one.severity == "error" and one.message
        assert 1 <= one.line <= len(lines) and 1 <= one.column <= len(lines[one.line - 1]) + 1


# What this reader takes on purpose, though XLA does not: later definitions, newer syntax, sloppy spacing, new words.
RECOVERED = (
    "A14", "A22", "A23", "A27", "A30", "A35", "B6", "B15", "B15b", "B27", "B34", "B37", "D9", "E25", "E33", "G20",
    "G35",
)  # fmt: skip


@pytest.mark.parametrize("name", RECOVERED)
def test_the_ordinary_mode_takes_more(name: str) -> None:
    text = next(row["text"] for row in ROWS if row["id"] == name)
    module, found = parse_module(text)
    assert module is not None
    assert not [one for one in found if one.severity == "error"]
    assert print_module(module)


# jaxlib 0.10.2 itself does not keep these: a NaN's imaginary part, a negative zero, a nested module's text.
LOSSY = {"D15", "D36", "A13b"}

CHILD = """
import json, sys
from jaxlib import _hlo
for line in sys.stdin:
    try:
        print(json.dumps(_hlo.hlo_module_from_text(json.loads(line)).to_string(_hlo.HloPrintOptions())), flush=True)
    except Exception as error:
        print(json.dumps(["refused", str(error)]), flush=True)
"""


def test_jaxlib_prints_what_we_print() -> None:
    """Its print of our print is its print of the original, and ours with the same options is the same text."""
    pytest.importorskip("jaxlib")
    rows = [row for row in ACCEPTED if row["id"] not in LOSSY]
    texts: list[str] = []
    exact: list[str] = []
    for row in rows:
        module, _ = parse_module(row["text"])
        assert module is not None
        texts += [row["text"], print_module(module)]
        exact.append(print_module(as_xla_reads(module), PrintOptions.xla()))
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input="".join(json.dumps(text) + "\n" for text in texts),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(texts), done.stderr[-500:]
    for i, row in enumerate(rows):
        assert answers[2 * i] == answers[2 * i + 1], row["id"]
        assert answers[2 * i].rstrip("\n") == exact[i].rstrip("\n"), row["id"]
