"""Texts as people paste them: single instructions, logs, code blocks, broken lines; what XLA's parser says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.errors import ParseError
from hloscope.core.text.printer import PrintOptions, print_module
from hloscope.core.text.reader import load_module, read_text
from hloscope.core.views.inputs import read_hlo_text

BODY = "HloModule m\n\nENTRY e {\n  p = f32[2] parameter(0)\n  ROOT n = f32[2] negate(p)\n}\n"
LOG = "I0000 00:00:1700000000.123456   12345 pass.cc:12] "
PASTED = {
    "a log": "".join(LOG + line + "\n" for line in BODY.splitlines()),
    "words in front": "what XLA wrote:\n" + BODY,
    "a code block": "```\n" + BODY + "```\n",
    "long comments": "// CHECK\n" * 10_000 + BODY,
}


@pytest.mark.parametrize("what", PASTED)
def test_what_stands_around_a_module_is_passed_over(tmp_path: Path, what: str) -> None:
    path = tmp_path / "pasted.txt"
    path.write_text(PASTED[what])
    result = read_text(read_hlo_text(str(path)), check=True)
    assert result.module is not None and result.module.instruction_count == 2
    assert not [one for one in result.diagnostics if one.severity == "error"]
    assert result.xla_would_reject == (what != "long comments")


@pytest.mark.parametrize("text", ["f32[2] add(f32[2] %a, f32[2] %b)", "%x = add(f32[2] %a, f32[2] %b)",
                                  "(f32[2], f32[2]) tuple(f32[2] %a, f32[2] %b)"])  # fmt: skip
def test_a_single_instruction_is_a_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "one.txt"
    path.write_text(text)
    result = read_text(read_hlo_text(str(path)), check=True)
    assert result.module is not None and result.module.instruction_count == 3 and not result.xla_would_reject


def test_what_is_no_hlo_is_still_none(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear compiler,\nthe HloModule of yesterday …\n")
    with pytest.raises(ParseError, match="not HLO text"):
        read_hlo_text(str(path))


def test_computations_in_a_single_instruction_are_named_beside_the_entry() -> None:
    inner = "{\n  t = f32[5] parameter(0)\n  ROOT c = f32[5] ceil(t)\n}"
    text = f"f32[5] conditional(s32[], f32[5], f32[5]), branch_computations={{\n{inner},\n{inner}\n}}"
    module = load_module(text, strict=True)
    assert [one.name for one in module.computations] == ["_.1", "_.2", "_"]
    assert load_module(print_module(module), strict=True).instruction_count == module.instruction_count


def test_the_entry_of_a_single_instruction_has_default_layouts() -> None:
    module = load_module("f32[2,3]{0,1} negate(f32[2,3]{0,1} %a)")
    wanted = "entry_computation_layout={(f32[2,3]{1,0})->f32[2,3]{1,0}}"
    assert wanted in print_module(module) and wanted in print_module(module, PrintOptions.xla())


@pytest.mark.parametrize(("text", "taken"), [
    ("name {\n  ROOT c = f32[] constant(1)\n}", True),
    ("%name (p: f32[]) -> f32[] {\n  ROOT %p = f32[] parameter(0)\n}", False),
    ("HloModule m\nENTRY%e {\n  ROOT%p = f32[] parameter(0)\n}", True),
    ("HloModule m\nENTRY e {\n  ROOT p = f32[] parameter(0), backend_config={a\0b}\n}", True),
    ("HloModule m\nENTRY e {\n  ROOT p = f32[] parameter(0), backend_config={\u00e9}\n}", True),
    ("HloModule m\nENTRY e {\n  ROOT p = f32[] parameter(0), backend_config={\"a\\\nb\":1}\n}", False),
    ("HloModule m\nENTRY e {\n  a = f32[] constant(1), control-predecessors={b}\n  ROOT b = f32[] constant(2)\n}",
     False),
    ("HloModule m\nENTRY e {\n  ROOT p = f32[] parameter(0), origin={(({\"w\"})}\n}", True),
    ("HloModule m\nENTRY e {\n  p = f32[] parameter(0)\n  s = ((f32[]), f32[]) parameter-start(p)\n"
     "  ROOT d = f32[] parameter-done(s)\n}", False),
])  # fmt: skip
def test_verdicts_of_jaxlib(text: str, taken: bool) -> None:
    assert read_text(text, check=True).xla_would_reject is not taken


def test_each_broken_line_is_told_once_and_what_it_takes_along_is_not() -> None:
    text = (
        "HloModule m\n\nENTRY e {\n  p = f32[2] parameter(0)\n  q = f32[2] add(p, p\n  r = f32[2,] negate(p)\n"
        "  s f32[2] negate(p)\n  t = f32[2] neg ate(p)\n  ROOT n = f32[2] multiply(q, nope)\n}\n"
    )
    result = read_text(text)
    assert [one.line for one in result.diagnostics] == [5, 6, 7, 8, 9]
    assert "%nope is not defined" in result.diagnostics[-1].message
    assert all("\n" not in one.message and "\\n" not in one.message for one in result.diagnostics)


def test_a_lone_value_of_a_large_array_stays_one() -> None:
    text = "HloModule m\n\nENTRY e {\n  ROOT c = f32[4096,4096] constant(0)\n}\n"
    assert "f32[4096,4096]{1,0} constant(0)" in print_module(load_module(text, strict=True))
    vast = text.replace("[4096,4096]", "[1099511627776]")
    assert read_text(vast).module is not None and read_text(vast, check=True).xla_would_reject


def test_an_inferred_shape_follows_from_the_shape_that_xla_makes() -> None:
    text = (
        "HloModule m\n\nENTRY e {\n  p = f32[2,3] parameter(0)\n  k = token[] after-all()\n"
        "  s = (f32[2,3]{0,1}, u32[], token[]) send(p, k), channel_id=1\n  ROOT t = tuple(s)\n}\n"
    )
    assert str(load_module(text).entry.root.shape) == "((f32[2,3]{1,0}, u32[], token[]))"
