"""Constants in strict reading: what XLA's parser takes, and the place of what it refuses.

Verdicts and columns are those of the parser in jaxlib 0.10.2.
"""

from __future__ import annotations

import pytest

from hloscope.core.text.reader import read_text

TAKEN = [
    ("f32[2]", "{1 2}"), ("f32[2]", "{1-2}"), ("f32[2]", "{,1,,2,}"), ("f32[3]", "5"), ("f32[2,2]", "{{1,2}{3,4}}"),
    ("f32[0,2]", "{}"), ("(f32[],f32[])", "(1 2)"), ("(f32[2],s32[])", "({1,2} 3)"), ("pred[2]", "{2,0}"),
    ("f32[2,3]", "{...}"), ("f32[2]", "{1,...}"), ("c64[2]", "{(1,2) (3,4)}"), ("f32[]", "-.5"),
    ("s64[]", "18446744073709551615"),
    ("f32[2]", "{1/*x*/2}"), ("f8e4m3fn[2]", "{448,449}"), ("f8e5m2[1]", "{nan(0x3)}"), ("f32[2]{0:E(4}", "{1,2}"),
    ("()", "()"), ("f32[]", "nan(0x400001)"),
]  # fmt: skip
REFUSED = [
    ("f32[2,3]", "{{...},{...}}", 2), ("f32[2,3]", "{. . .}", 1), ("f32[]", "...", 0), ("s4[2]", "{7,8}", 3),
    ("u8[2]", "{-1,0}", 1), ("f8e4m3fn[1]", "{500}", 1), ("f8e8m0fnu[1]", "{-1}", 1), ("f32[]", "1e39", 0),
    ("f64[]", "1e400", 0), ("f32[]", ".5", 0), ("f32[]", "1_1", 0), ("f32[2]", "{1x2}", 1),
    ("f32[2,1]", "{{1},5,{2}}", 8),
    ("f32[2]", "{1,2}}", 5), ("f32[2]", "{{1,2}}", 1), ("f32[2]", "1,2", 1), ("f32[]", "()", 0), ("f32[]", "true", 0),
    ("s64[]", "99999999999999999999999", 0), ("f32[2,2]", "{1,2,3,4}", 8), ("s32[]", "inf", 0), ("c64[]", "(1,2,3)", 4),
    ("c64[]", "1", 0), ("c64[]", "(1e40,0)", 0), ("f32[3]", "{1,2,3", 6), ("(f32[2],(s32[],f32[]))", "({1,2},(3))", 9),
    ("s32[2]", "{...,1,2}", 8), ("s32[2]", "{...,1,2,3}", 9), ("f32[3]", "{1,2}", 4), ("f32[2]", "{1,2,3}", 5),
    ("f32[]", "{1}", 0), ("f32[]", "1 2", 2), ("f32[]", "1,", 1), ("f32[]", ",1", 1), ("f32[0,2]", "{{}}", 1),
    ("(f32[],f32[])", "(1, 2,)", 5), ("s32[2]", "{1,2.5}", 3), ("f32[]", "nan(0x0)", 0), ("f16[]", "nan(0x401)", 0),
    ("c64[]", "(1 2)", 3), ("token[]", "1", 0), ("f8e4m3fn[1]", "{nan(0x1)}", 1),
]  # fmt: skip


def _text(shape: str, literal: str) -> str:
    return f"HloModule m\n\nENTRY e {{\n  ROOT c = {shape} constant({literal})\n}}\n"


@pytest.mark.parametrize(("shape", "literal"), TAKEN)
def test_taken(shape: str, literal: str) -> None:
    result = read_text(_text(shape, literal), check=True)
    assert not result.xla_would_reject, result.refusals()


@pytest.mark.parametrize(("shape", "literal", "at"), REFUSED)
def test_refused_at_its_place(shape: str, literal: str, at: int) -> None:
    text = _text(shape, literal)
    found = read_text(text, check=True).refusals()
    assert found and found[0].line == 4
    if literal.count("{") == literal.count("}"):  # else the reader itself stops, where the bracket opens
        assert found[0].offset == text.index("constant(") + len("constant(") + at


def test_a_fault_in_a_later_row_has_that_row_s_line() -> None:
    text = "HloModule m\n\nENTRY e {\n  ROOT c = s8[2,2] constant({\n    {1, 2},\n    /* row */ {3, 400}\n  })\n}\n"
    (found,) = read_text(text, check=True).refusals()
    assert (found.line, found.column, found.code) == (6, 19, "xla-literal")


def test_a_literal_of_many_plain_values_is_not_walked_over() -> None:
    rows = ", ".join(["{ 1, -2.5e+06, nan, -inf }"] * 2000)
    assert not read_text(_text("f32[2000,4]", "{ " + rows + " }"), check=True).xla_would_reject
