"""The schema-free reader of protobuf's text format."""

from __future__ import annotations

import pytest

from hloscope.core.dumps.textproto import Message, parse_textproto
from hloscope.core.errors import ParseError


def test_scalars_messages_lists_and_comments() -> None:
    message = parse_textproto(
        """
        # a comment
        name: "a\\tb" 'c'  # joined
        count: -3, rate: 1.5e3; flag: true
        empty {}
        angle < x: 1 >
        list: [1, 2, 3]
        one: [4] names: [A]
        shapes [ { n: 1 }, { n: 2 } ]
        [type.googleapis.com/x.Y] { z: 0x1F }
        """
    )
    assert message.text("name") == "a\tbc"
    assert (message.integer("count"), message.number("rate"), message.text("flag")) == (-3, 1500.0, "true")
    assert message.texts("list") == ["1", "2", "3"]
    assert (message.texts("one"), message.texts("names")) == (["4"], ["A"])
    assert [one.integer("n") for one in message.messages("shapes")] == [1, 2]
    assert message.messages("angle")[0].integer("x") == 1
    assert message.messages("[type.googleapis.com/x.Y]")[0].integer("z") == 31
    assert message.text("missing") is None and message.integer("name") is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [(r"\n\"\\", '\n"\\'), (r"\342\200\246", "…"), (r"\xe2\x80\xa6", "…"), (r"\u2026", "…"), (r"\377", "\ufffd")],
)
def test_escapes(written: str, meant: str) -> None:
    assert parse_textproto(f'a: "{written}"').text("a") == meant


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a: 1\nb {", 2, 4, "the text ends before '}'"),
        ("a: 1\n  }", 2, 3, "unexpected '}'"),
        ("a:", 1, 3, "the text ends where a value is expected"),
        ("a 1", 1, 3, "expected ':' or '{'"),
        ("a: 1\nb: \x01", 2, 4, "unexpected character"),
        ("a: [1 2]", 1, 7, "expected ',' or ']'"),
        ('a: "open\n"', 1, 4, "unexpected character"),
        ("a { 1: 2 }", 1, 5, "expected a field name"),
    ],
)
def test_errors_have_their_place(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_textproto(text, path="file.pbtxt")
    assert (caught.value.path, caught.value.line, caught.value.column) == ("file.pbtxt", line, column)
    assert message in caught.value.message


def test_nesting_is_bounded() -> None:
    with pytest.raises(ParseError, match="nest deeper"):
        parse_textproto("a {" * 5000)


def test_a_message_prints_on_one_line() -> None:
    assert parse_textproto("a: 1 b { c: x }") == Message([("a", "1"), ("b", Message([("c", "x")]))])
    assert parse_textproto("a: 1 b { c: x }").to_text() == "{a: 1, b {c: x}}"
