"""Positions against a plain implementation: split the text into lines, encode, count."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from hloscope.lsp.positions import Encoding, TextLines

TEXT = st.text(alphabet="ab\n\ré中𝔸", max_size=40)
CODECS = {Encoding.UTF8: ("utf-8", 1), Encoding.UTF16: ("utf-16-le", 2), Encoding.UTF32: ("utf-32-le", 4)}


def plain_lines(text: str) -> list[tuple[int, int]]:
    """Start and end of the content of every line."""
    out, start = list[tuple[int, int]](), 0
    for found in re.finditer("\r\n|\r|\n", text):
        out.append((start, found.start()))
        start = found.end()
    return [*out, (start, len(text))]


def units(text: str, encoding: Encoding) -> int:
    codec, width = CODECS[encoding]
    return len(text.encode(codec)) // width


@given(TEXT, st.sampled_from(Encoding))
def test_every_character_has_its_position_and_back(text: str, encoding: Encoding) -> None:
    lines = TextLines.of(text)
    assert lines.line_count == len(plain_lines(text))
    for number, (start, end) in enumerate(plain_lines(text)):
        for offset in range(start, end + 1):
            column = units(text[start:offset], encoding)
            assert lines.position(offset, encoding) == (number, column)
            assert lines.offset(number, column, encoding) == offset
        assert lines.offset(number, units(text[start:end], encoding) + 5, encoding) == end
    assert lines.offset(lines.line_count, 0, encoding) == len(text)


@settings(max_examples=300)
@given(TEXT, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), TEXT), max_size=4))
def test_edits_keep_the_lines(text: str, edits: list[tuple[int, int, str]]) -> None:
    lines = TextLines.of(text)
    for a, b, new in edits:
        start, end = sorted((min(a, len(text)), min(b, len(text))))
        text = text[:start] + new + text[end:]
        lines = lines.replaced(start, end, new)
        assert lines.text == text
        assert lines.starts.tolist() == [start for start, _ in plain_lines(text)]


def test_the_middle_of_a_character_is_its_start() -> None:
    lines = TextLines.of("a𝔸b")
    assert [lines.offset(0, n, Encoding.UTF16) for n in range(5)] == [0, 1, 1, 2, 3]
    assert [lines.offset(0, n, Encoding.UTF8) for n in range(7)] == [0, 1, 1, 1, 1, 2, 3]


def test_a_line_of_megabytes_is_counted_once() -> None:
    text = "𝔸" * 1_000_000 + "b"
    lines = TextLines.of(text)
    # A walk for each of these would take minutes.
    for offset in range(0, 1_000_001, 100):
        assert lines.position(offset, Encoding.UTF16) == (0, 2 * offset)
        assert lines.offset(0, 2 * offset, Encoding.UTF16) == offset
