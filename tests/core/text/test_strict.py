"""The strict mode: what XLA's closed parser refuses is named, with its place; the ordinary mode reads it anyway."""

from __future__ import annotations

import pytest

from hloscope.core.errors import ParseError
from hloscope.core.text import load_module, parse_module, print_module
from hloscope.core.text.reader import read_text

FRAME = """HloModule t

add {{
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}}

ENTRY e {{
  a = f32[4,8]{{1,0}} parameter(0)
  z = f32[] constant(0)
  {line}
}}
"""

# Line, the word that is complained about, part of the message.
REFUSED = [
    ("ROOT n = f32[4,8] negate(a), future=3", "future", "does not know the attribute future of negate"),
    ("ROOT n = f32[4,8] negate(a), result_accuracy={mode=highest}", "{mode", "takes no attribute result_accuracy"),
    ("ROOT n = f32[4,8] frobnicate(a)", "frobnicate", "does not know the opcode frobnicate"),
    ("ROOT n = f9[4] custom-call(a), custom_call_target=\"t\"", "f9", "element type f9"),
    ("ROOT n = f32[4,8] negate(a, a)", "ROOT", "takes 1 operands, not 2"),
    ("ROOT n = f32[4] reduce(a, z), dimensions={1}", "ROOT", "needs the attribute to_apply"),
    ("ROOT n = f32[4] reduce(a, z, z), dimensions={1}, to_apply=add", "ROOT", "even number of operands"),
    ("ROOT n = f32[2] slice(a), slice={[0:1:2:3]}", "[0:1", "expected [start:limit]"),
    ("ROOT n = pred[4,8] compare(a, a), direction=XX", "XX", "expected one of EQ, NE"),
    ("ROOT n = f32[4,8] copy(a), sharding={devices=[2,2]<=[2,2]}", "}", "expected 'T(…)'"),
    ("ROOT n = f32[4,8] copy(a), sharding={maximal}", "maximal", "exactly one device"),
    ("ROOT n = f32[4,8] copy(a), metadata={op_nam=\"x\"}", "op_nam", "metadata has no item op_nam"),
    ("ROOT n = f32[4,8] copy(a), frontend_attributes={k=v}", "v}", "expected a string or a brace group"),
    ("ROOT n = f32[8,4] reshape(late)\n  late = f32[4,8] copy(a)", "late", "not defined before its use"),
    ("ROOT n = f32[5,8] reshape(a)", "ROOT", "elements into"),
    ("ROOT n = f32[2] constant({1})", "})", "has 1 elements"),
    ("ROOT n = s8[] constant(300)", "300", "out of range for s8"),
    ("ROOT __n = f32[4,8] negate(a)", "ROOT", "illegal instruction name __n"),
    ("s = ((f32[4,8]), f32[4,8], u32[]) abs-start(a)\n  ROOT d = f32[4,8] negate-done(s)", "negate-done",
     "began with abs"),
    ("s = (f32[4,8], f32[4,8]) abs-start(a)\n  ROOT d = f32[4,8] copy(a)", "abs-start", "is not ((operands), result"),
    ("ROOT r = f32[4,8] all-reduce(a), replica_groups=[2,2,1]<=[4], to_apply=add", "[2,2,1]", "two dimensions"),
    ("p = pred[] constant(true)\n  ROOT c = f32[4,8] conditional(p, a), branch_computations={add}", "ROOT", "needs"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "word", "message"), REFUSED)
def test_strict_names_the_place(line: str, word: str, message: str) -> None:
    text = FRAME.format(line=line)
    _, found = parse_module(text, strict=True)
    matching = [one for one in found if message in one.message]
    assert matching, [one.message for one in found]
    start = text.index(line)
    assert start <= matching[0].offset <= text.index(word, start) + len(word)
    with pytest.raises(ParseError) as raised:
        load_module(text, "f.hlo", strict=True)
    assert raised.value.line is not None and raised.value.column is not None


@pytest.mark.parametrize(("line", "word", "message"), REFUSED)
def test_the_ordinary_mode_reads_it_and_says_what_xla_would_do(line: str, word: str, message: str) -> None:
    result = read_text(FRAME.format(line=line), check=True)
    assert result.module is not None
    assert result.xla_would_reject
    assert not [one for one in result.diagnostics if one.severity == "error"]
    print_module(result.module)


def test_sound_text_has_no_objection() -> None:
    result = read_text(FRAME.format(line="ROOT r = f32[4] reduce(a, z), dimensions={1}, to_apply=add"), check=True)
    assert not result.objections and not result.diagnostics and not result.xla_would_reject


def test_unknown_words_are_kept_and_noted_once_each() -> None:
    line = "b = f32[4,8] warp(a), heat={3, {4}}\n  c = f32[4,8] warp(b), heat={5}\n  ROOT d = f32[4,8] abs(c), heat=9"
    module, found = parse_module(FRAME.format(line=line))
    assert module is not None
    assert [(one.severity, one.code) for one in found] == [
        ("information", "unknown-opcode"),
        ("information", "unknown-attribute"),
    ]
    printed = print_module(module)
    assert "%b = f32[4,8]{1,0} warp(%a), heat={3, {4}}" in printed
    assert "ROOT %d = f32[4,8]{1,0} abs(%c), heat=9" in printed


def test_log_prefixes_and_leading_text_do_not_hide_the_module() -> None:
    plain = FRAME.format(line="ROOT n = f32[4,8] negate(a)")
    prefix = "I0102 03:04:05.678901   12345 dump.cc:678] "
    logged = "".join(prefix + line for line in plain.splitlines(keepends=True))
    for text in (logged, "some words of a report\n\n" + plain, "\ufeff" + plain):
        module, found = parse_module(text)
        assert module is not None and module.name == "t"
        assert not [one for one in found if one.severity == "error"], found
        assert parse_module(text, strict=True)[1] or text is logged


def test_a_second_module_is_refused_clearly() -> None:
    plain = FRAME.format(line="ROOT n = f32[4,8] negate(a)")
    module, found = parse_module(plain + "\n// -----\n" + plain)
    assert module is not None
    assert [one.code for one in found] == ["second-module"]
    assert found[0].line == plain.count("\n") + 3


def test_a_sugared_start_takes_what_an_async_start_takes() -> None:
    text = """HloModule m

ENTRY e {
  a = f32[4] parameter(0)
  s = ((f32[4]), f32[4], s32[]) negate-start(a), output_to_operand_aliasing={{1}: (0, {})}
  ROOT d = f32[4] negate-done(s)
}
"""
    assert not read_text(text, check=True).xla_would_reject
    done = text.replace("done(s)", "done(s), output_to_operand_aliasing={{1}: (0, {})}")
    result = read_text(done, check=True)
    assert [one.code for one in result.diagnostics] == ["unknown-attribute"] and result.xla_would_reject
