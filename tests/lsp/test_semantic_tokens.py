"""Semantic tokens end to end: the classes, positions in UTF-16, and ranges that agree with the whole."""

from __future__ import annotations

from typing import Any

import pytest

URI = "file:///colours.hlo"
TEXT = """HloModule m

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0), metadata={op_name="𝔸é/x"}, frontend_attributes={k="two
lines"}
  ROOT %n = f32[4]{0} negate(/*𝔸*/%a)
}
"""
LINES = TEXT.split("\n")


@pytest.fixture(scope="module")
def client(shared: Any) -> Any:
    shared.client.open(URI, TEXT)
    return shared.client


def decoded(client: Any, data: list[int]) -> list[tuple[str, str, bool]]:
    """(text, type, is a definition) of each token, cut from the text by UTF-16 columns."""
    legend = client.capabilities["semanticTokensProvider"]["legend"]["tokenTypes"]
    out: list[tuple[str, str, bool]] = []
    line = column = 0
    for i in range(0, len(data), 5):
        step, shift, length, kind, modifiers = data[i : i + 5]
        line, column = line + step, shift if step else column + shift
        units = LINES[line].encode("utf-16-le")
        out.append((units[2 * column : 2 * (column + length)].decode("utf-16-le"), legend[kind], bool(modifiers & 1)))
    return out


def test_whole_text(client: Any) -> None:
    found = decoded(client, client.request("textDocument/semanticTokens/full", {"textDocument": {"uri": URI}})["data"])
    for wanted in (
        ("HloModule", "keyword", False),
        ("%n", "variable", True),
        ("negate", "function", False),
        ("f32[4]", "type", False),
        ("{0}", "decorator", False),
        ('"𝔸é/x"', "string", False),
        ("/*𝔸*/", "comment", False),
        ("%a", "variable", False),
        ('"two', "string", False),
        ('lines"', "string", False),
    ):
        assert wanted in found


def test_a_range_gives_the_same_tokens_as_the_whole(client: Any) -> None:
    whole = decoded(client, client.request("textDocument/semanticTokens/full", {"textDocument": {"uri": URI}})["data"])
    where = {"start": {"line": 5, "character": 0}, "end": {"line": 6, "character": 0}}
    part = client.request("textDocument/semanticTokens/range", {"textDocument": {"uri": URI}, "range": where})
    found = decoded(client, part["data"])
    assert found and found == whole[-len(found) :]
    assert found[0] == ("ROOT", "keyword", False)
