"""Each feature end to end on a real stage, and on a small text with what the stage lacks."""

from __future__ import annotations

from typing import Any

import pytest

URI = "file:///dump/module_0000.jit_layout_heavy.cpu_after_optimizations.txt"
SMALL = "file:///small.hlo"
TEXT = """HloModule small, is_scheduled=true

%cond.1 (p: (s32[], f32[64,64])) -> pred[] {
  %p = (s32[], f32[64,64]) parameter(0)
  %e = s32[] get-tuple-element(/*é中𝔸*/%p), index=0
  %n = s32[] constant(3), metadata={op_name="𝔸/`tick`"}
  ROOT %lt = pred[] compare(%n, %n), direction=LT, control-predecessors={%n}
}

%body.1 (p: (s32[], f32[64,64])) -> (s32[], f32[64,64]) {
  ROOT %p = (s32[], f32[64,64]) parameter(0)
}

ENTRY %main (x: (s32[], f32[64,64])) -> (s32[], f32[64,64]) {
  %x = (s32[], f32[64,64]{1,0}) parameter(0), metadata={op_name="x𝔸𝔸"}
  ROOT %w = (s32[], f32[64,64]) while(%x), body=%body.1, condition=%cond.1, metadata={source_file="a.py" source_line=7}
}
"""
LINES = TEXT.split("\n")


@pytest.fixture(scope="module")
def client(shared: Any, stage: str) -> Any:
    shared.client.open(URI, stage)
    shared.client.open(SMALL, TEXT)
    return shared.client


def column(line: int, word: str, within: int = 1) -> int:
    """UTF-16 column of a character inside a word on a line of the small text."""
    before = LINES[line][: LINES[line].index(word) + within]
    return len(before.encode("utf-16-le")) // 2


def hover(client: Any, line: int, word: str, within: int = 1) -> str:
    return client.at("hover", SMALL, line, column(line, word, within))["contents"]["value"]


def spot(where: dict[str, Any]) -> tuple[int, int, int]:
    assert where["start"]["line"] == where["end"]["line"]
    return where["start"]["line"], where["start"]["character"], where["end"]["character"]


def test_hover_on_an_instruction_says_what_is_known(client: Any) -> None:
    result = client.at("hover", URI, 65, 5)
    text = result["contents"]["value"]
    assert result["contents"]["kind"] == "markdown"
    assert spot(result["range"]) == (65, 3, 9)
    for part in ("copy.7", "f32[13,7,11,5]", "{3,2,1,0}", "20,020 bytes (19.55 KiB)", "1 operand: `transpose.3`",
                 "1 user: `rev.2`", "`fused_computation.2`", "build_corpus.py:296", "layout_heavy.<locals>",
                 "jit(layout_heavy)/transpose", "the same values in a new buffer"):  # fmt: skip
        assert part in text, (part, text)


def test_hover_on_an_operand_is_about_the_operand(client: Any) -> None:
    result = client.at("hover", URI, 65, 44)
    assert "transpose.3 = f32[13,7,11,5]" in result["contents"]["value"]


def test_hover_on_words_that_are_no_names(client: Any) -> None:
    assert "contraction" in client.at("hover", URI, 53, 37)["contents"]["value"]
    assert "the comparison: EQ" in hover(client, 6, "direction")
    assert "the computation that the instruction calls" in hover(client, 15, "condition=")
    assert "which element of the tuple" in hover(client, 4, "index")
    assert "attribute of the module" in client.at("hover", SMALL, 0, 22)["contents"]["value"]
    assert client.at("hover", SMALL, 1, 0) is None


def test_hover_on_a_computation(client: Any) -> None:
    for line, word in ((2, "cond.1"), (15, "cond.1")):
        text = hover(client, line, word)
        assert "4 instructions" in text and "1 caller: `w`" in text and "root `lt`" in text
    assert "entry computation" in hover(client, 13, "main")


def test_hover_keeps_markdown_whole(client: Any) -> None:
    assert "`` 𝔸/`tick` ``" in hover(client, 5, "n =", 0)
    assert "a.py:7" in hover(client, 15, "w =", 0)


def test_definition_of_operands_computations_and_parameters(client: Any) -> None:
    assert spot(client.at("definition", URI, 65, 44)["range"]) == (64, 3, 14)
    fusion = client.at("definition", SMALL, 15, column(15, "body.1"))
    assert fusion["uri"] == SMALL and spot(fusion["range"]) == (9, 1, 7)
    assert spot(client.at("definition", SMALL, 13, column(13, "x:", 0))["range"]) == (14, 3, 4)
    # The same name in another computation is another instruction.
    assert spot(client.at("definition", SMALL, 4, column(4, "/%p", 2))["range"]) == (3, 3, 4)
    assert spot(client.at("definition", SMALL, 6, column(6, "={%n", 3))["range"]) == (5, 3, 4)
    assert client.at("definition", SMALL, 1, 0) is None


def test_ranges_behind_non_ascii_text_count_utf16(client: Any) -> None:
    # é and 中 are one unit, 𝔸 is two.
    start = len("  %e = s32[] get-tuple-element(/*é中??*/%")
    assert spot(client.at("hover", SMALL, 4, start)["range"]) == (4, start, start + 1)
    assert spot(client.at("definition", SMALL, 4, start + 1)["range"]) == (3, 3, 4)
    assert client.at("definition", SMALL, 4, start - 3) is None


def test_references_with_and_without_the_declaration(client: Any) -> None:
    def places(declaration: bool) -> list[tuple[int, int, int]]:
        at = column(5, "n =", 0)
        found = client.at("references", SMALL, 5, at, context={"includeDeclaration": declaration})
        return [spot(one["range"]) for one in found]

    first = column(6, "%n", 1)
    second, third = column(6, ", %n", 3), column(6, "{%n", 2)
    uses = [(6, first, first + 1), (6, second, second + 1), (6, third, third + 1)]
    assert places(False) == uses
    assert places(True) == [(5, 3, 4), *uses]
    calls = client.at("references", SMALL, 2, 2, context={"includeDeclaration": False})
    assert [spot(one["range"]) for one in calls] == [(15, column(15, "cond.1", 0), column(15, "cond.1", 6))]


def test_highlight_tells_definition_from_use(client: Any, stage: str) -> None:
    found = client.at("documentHighlight", URI, 65, 5)
    use = stage.split("\n")[66].index("copy.7")
    assert [(spot(one["range"]), one["kind"]) for one in found] == [((65, 3, 9), 3), ((66, use, use + 6), 2)]


def test_symbols_are_a_tree_of_computations_and_instructions(client: Any) -> None:
    symbols = client.about("documentSymbol", URI)
    [module] = symbols
    assert module["name"] == "jit_layout_heavy" and module["kind"] == 2
    flat = {one["name"]: one for one in module["children"]}
    fused = flat["fused_computation.2"]
    assert [child["name"] for child in fused["children"]] == ["param_0.4", "transpose.3", "copy.7", "rev.2"]
    copy = fused["children"][2]
    assert spot(copy["selectionRange"]) == (65, 3, 9)
    assert "copy" in copy["detail"] and "f32[13,7,11,5]" in copy["detail"]
    for one in walk(symbols):
        assert inside(one["selectionRange"], one["range"])
        assert all(inside(child["range"], one["range"]) for child in one.get("children") or [])


def test_folding_covers_computations_and_tables(client: Any) -> None:
    folds = client.about("foldingRange", URI)
    assert {"startLine": 2, "endLine": 47, "kind": "comment"} in folds
    assert {"startLine": 62, "endLine": 67, "kind": "region"} in folds


def test_rename_stays_in_its_computation(client: Any) -> None:
    at = column(3, "p =", 0)
    assert client.at("prepareRename", SMALL, 3, at) == {
        "range": {"start": {"line": 3, "character": 3}, "end": {"line": 3, "character": 4}}, "placeholder": "p",
    }  # fmt: skip
    edits = client.at("rename", SMALL, 3, at, newName="%state")["changes"][SMALL]
    assert [one["range"]["start"]["line"] for one in edits] == [2, 3, 4]
    assert {one["newText"] for one in edits} == {"state"}
    edits = client.at("rename", SMALL, 2, 2, newName="while_cond")["changes"][SMALL]
    assert [one["range"]["start"]["line"] for one in edits] == [2, 15]
    assert client.at("prepareRename", SMALL, 6, column(6, "compare")) is None


@pytest.mark.parametrize(("name", "why"), [("two words", "not an HLO name"), ("lt", "already")])
def test_rename_is_refused_in_words(client: Any, name: str, why: str) -> None:
    number = client.ask_at("rename", SMALL, 5, column(5, "n =", 0), newName=name)
    error = client.raw_answer(number)["error"]
    assert error["code"] == -32803 and why in error["message"]


def test_symbol_search_over_the_open_texts(client: Any) -> None:
    # Other tests' texts are open, too.
    found = client.request("workspace/symbol", {"query": "REGION_1"})
    assert [one["name"] for one in found if one["location"]["uri"] == URI] == ["region_1.6.clone", "region_1.6"]
    [lt] = [one for one in client.request("workspace/symbol", {"query": "%lt"}) if one["name"] == "lt"]
    assert lt["location"]["uri"] == SMALL and lt["containerName"] == "cond.1"


@pytest.mark.parametrize(("encoding", "width"), [("utf-8", 4), ("utf-32", 1)])
def test_columns_are_counted_as_agreed(start: Any, encoding: str, width: int) -> None:
    client = start().client
    client.initialize([encoding])
    text = TEXT.replace('op_name="x𝔸𝔸"', 'op_name="x𝔸𝔸", sharding={𝔸}').replace("%x)", "/*𝔸𝔸*/%x)")
    client.open(SMALL, text)
    before = text.split("\n")[15]
    bare = before.index("/*𝔸𝔸*/%x") + len("/*𝔸𝔸*/%")
    [use] = client.at("references", SMALL, 14, 3, context={"includeDeclaration": False})
    at = bare + 2 * (width - 1)
    assert spot(use["range"]) == (15, at, at + 1)
    assert spot(client.at("definition", SMALL, 15, at)["range"]) == (14, 3, 4)


def walk(symbols: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for symbol in symbols for one in (symbol, *walk(symbol.get("children") or []))]


def inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    def key(position: dict[str, int]) -> tuple[int, int]:
        return position["line"], position["character"]

    return key(outer["start"]) <= key(inner["start"]) and key(inner["end"]) <= key(outer["end"])
