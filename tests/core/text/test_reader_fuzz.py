"""Broken text never raises anything but the reader's own error, in either mode, and what was read can be printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.verifier import verify
from hloscope.core.text import PrintOptions, print_module
from hloscope.core.text.names import as_xla_reads
from hloscope.core.text.reader import read_text, sound_module
from hloscope.core.text.value_forms import FORMS, canonical_value

ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "fixtures" / "hlo_oddities.json").read_text(encoding="utf-8")
)
TEXTS = [row["text"] for row in ROWS]
PIECES = [
    *'{}()[],=%":#/*\'\n \t\r\\<>-.0', "ROOT ", "ENTRY ", "constant(", "/*", "//", "->", "<=", "={", "}}", "f32[",
    "\x00", "99999999999999999999", "calls=%e", "\ud800", "\u00e9", "abs-start(", "abs-done(",
]  # fmt: skip
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), st.sampled_from(PIECES)), max_size=4)


def _check(text: str) -> None:
    result = read_text(text, check=True)
    for found in (*result.diagnostics, *result.objections):
        assert found.line >= 1 and found.column >= 1 and found.message
        assert 0 <= found.offset <= len(text)
    if result.module is not None and not any(one.severity == "error" for one in result.diagnostics):
        print_module(result.module, PrintOptions())
        print_module(result.module, PrintOptions.canonical())
    try:
        sound_module(result, strict=True)  # what load_module does with what it read
    except HloscopeError:
        pass


@given(st.sampled_from(TEXTS), EDITS)
@settings(max_examples=400, deadline=None)
def test_mutated_text(text: str, edits: list[tuple[float, int, str]]) -> None:
    for where, cut, piece in edits:
        at = int(where * len(text))
        text = text[:at] + piece + text[at + cut :]
    _check(text)


@given(st.sampled_from(TEXTS), st.sampled_from(TEXTS), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_spliced_text(first: str, second: str, cut: float, resume: float) -> None:
    _check(first[: int(cut * len(first))] + second[int(resume * len(second)) :])


@given(st.sampled_from(sorted(FORMS)), st.text(alphabet="{}[]()<=,:\"'%aT_x0123456789-.? \\", max_size=30))
@settings(max_examples=400, deadline=None)
def test_values_are_read_or_refused(name: str, text: str) -> None:
    try:
        canonical_value(name, text)
    except (HloscopeError, ValueError, IndexError):
        pass


@pytest.mark.parametrize(
    "text",
    [
        "HloModule m\nENTRY e { ROOT n = f32[] " + "negate(" * 600 + "x" + ")" * 600 + " }",
        "HloModule m\nENTRY e { ROOT n = f32[] call(), to_apply=" + "{ x = f32[] call(), to_apply=" * 400 + "}" * 401,
        "HloModule m\nENTRY e { ROOT n = " + "(" * 3000 + " }",
        "HloModule m\nENTRY e { ROOT n = " + "(" * 2000 + "f32[]" + ")" * 2000 + " parameter(0) }",
        "HloModule m\nENTRY e { ROOT n = f32[] parameter(0), x=" + "{" * 5000,
        "HloModule m\nENTRY e { ROOT n = f32[] parameter(" + "9" * 5000 + ") }",
        "HloModule m\nENTRY e { ROOT n = f32[" + "9" * 5000 + "] parameter(0) }",
    ],
    ids=["nested operands", "nested bodies", "open brackets", "nested tuples", "open value", "number", "size"],
)
def test_extremes(text: str) -> None:
    _check(text)


@pytest.mark.parametrize(
    "text",
    [
        "HloModule m\nf { p = f32[] parameter(0)\n ROOT c = f32[] call(p), to_apply=g }\n"
        "g { p = f32[] parameter(0)\n ROOT c = f32[] call(p), to_apply=f }\n"
        "ENTRY e { p = f32[] parameter(0)\n ROOT c = f32[] call(p), to_apply=f }\n",
        "HloModule m, replica_count=x\nENTRY e { ROOT p = f32[] parameter(0) }",
        "HloModule m\nENTRY e { ROOT p = f32[2] parameter(0), sharding={devices=[1 1]0} }",
        "HloModule m\nENTRY e { ROOT p = f32[2] parameter(0), metadata={stack_frame_id={}} }",
    ],
    ids=["recursion", "header", "sharding", "metadata"],
)
def test_what_cannot_be_read_can_be_printed_and_verified(text: str) -> None:
    result = read_text(text, check=True)
    module = result.module
    assert module is not None and result.xla_would_reject
    print_module(module, PrintOptions.canonical())
    print_module(as_xla_reads(module), PrintOptions.xla())
    verify(module)
