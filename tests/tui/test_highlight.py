"""Colouring cuts a line into pieces and never loses a character."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hloscope.core.text.highlight import CLASSES
from hloscope.tui.highlight import LONGEST, differing, pieces, wrapped

LINE = (
    "  ROOT %fusion.1 = (f32[4]{0:T(8,128)}, s32[]) fusion(%a, /*index=1*/%b.2), kind=kLoop, calls=%fc, "
    'metadata={op_name="jit(f)/a=\\"b\\"" stack_frame_id=3}'
)


def test_parts_of_a_line_have_their_class() -> None:
    found = {(text, kind) for text, kind in pieces(LINE) if kind}
    assert {
        ("ROOT", "keyword"),
        ("%fusion.1", "define"),
        ("f32[4]", "shape"),
        ("{0:T(8,128)}", "layout"),
        ("fusion", "opcode"),
        ("%a", "name"),
        ("/*index=1*/", "comment"),
        ("kind", "key"),
        ("%fc", "name"),
        ('"jit(f)/a=\\"b\\""', "string"),
        ("3", "number"),
    } <= found
    assert {kind for _, kind in found} <= set(CLASSES)


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n"), max_size=200))
def test_no_character_is_lost(line: str) -> None:
    assert "".join(text for text, _ in pieces(line)) == line


def test_a_megabyte_line_is_coloured_at_its_head_only() -> None:
    line = LINE + "x" * 1_000_000
    cut = pieces(line)
    assert "".join(text for text, _ in cut) == line
    assert sum(len(text) for text, kind in cut if kind) <= LONGEST


@given(st.text(max_size=60), st.text(max_size=60))
def test_two_lines_come_back_whole_with_their_difference_marked(before: str, after: str) -> None:
    left, right = differing(before, after)
    assert "".join(text for text, _ in left) == before
    assert "".join(text for text, _ in right) == after
    same_left = "".join(text for text, kind in left if not kind)
    same_right = "".join(text for text, kind in right if not kind)
    assert same_left == same_right


def test_a_line_is_wrapped_at_attributes_else_at_blanks() -> None:
    found = wrapped(pieces("%a.1 = f32[9,136,7]{2,1,0} parameter(0)"), 32, 2)
    assert ["".join(text for text, _ in row) for row in found] == ["%a.1 = f32[9,136,7]{2,1,0} ", "  parameter(0)"]


def test_what_differs_is_the_word() -> None:
    left, right = differing("%a = f32[4]{0} add(%x, %y)", "%a = f32[4]{0} add(%x, %z)")
    assert [text for text, kind in left if kind == "differs"] == ["%y"]
    assert [text for text, kind in right if kind == "differs"] == ["%z"]
