"""Declaration, implementation, signature help, symbols of other stages, range formatting, changes of colours."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

TEXT = """HloModule m

%body (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %n = f32[4]{0} negate(%p)
}

ENTRY %main (é: f32[4], a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(1)
      %b   =   f32[4]{0}   add( %a,%a ) , metadata={op_name="two  blanks é"}
  ROOT %f = f32[4]{0} fusion(%b), kind=kLoop, calls=%body
}
"""


def test_declaration_and_implementation(shared: Any) -> None:
    client, uri = shared.client, "file:///nav.hlo"
    client.open(uri, TEXT)
    # The use of a parameter: defined in line 8, declared in the signature of line 7.
    assert client.at("definition", uri, 9, 35)["range"]["start"] == {"line": 8, "character": 3}
    assert client.at("declaration", uri, 9, 35)["range"]["start"] == {"line": 7, "character": 24}
    assert client.at("declaration", uri, 10, 30)["range"]["start"]["line"] == 9
    assert [one["range"]["start"]["line"] for one in client.at("implementation", uri, 10, 8)] == [2]
    assert [one["range"]["start"]["line"] for one in client.at("implementation", uri, 10, 55)] == [2]
    assert client.at("implementation", uri, 8, 4) == []


def test_signature_help_marks_what_is_typed(shared: Any) -> None:
    client, uri = shared.client, "file:///signature.hlo"
    client.open(uri, "ENTRY %main {\n  %d = f32[4,4]{1,0} dot(%a, \n")

    def marked(line: str) -> str:
        client.change(uri, 2, {"text": f"ENTRY %main {{\n{line}\n"})
        found = client.at("signatureHelp", uri, 1, len(line.encode("utf-16-le")) // 2)
        signature = found["signatures"][0]
        start, end = signature["parameters"][found["activeParameter"]]["label"]
        return signature["label"].encode("utf-16-le")[2 * start : 2 * end].decode("utf-16-le")

    assert marked("  %d = f32[4,4]{1,0} dot(") == "lhs"
    assert marked("  %d = f32[4,4]{1,0} dot(%a, ") == "rhs"
    assert marked("  %d = f32[4,4]{1,0} dot(%é, %b), lhs_contracting_dims=").startswith("lhs_contracting_dims")
    assert marked("  %d = (f32[4], f32[]) tuple(%a, %b, ") == "operands…"
    assert marked('  %d = f32[4] negate(%a), metadata={op_name="').startswith("metadata")
    client.change(uri, 3, {"text": "ENTRY %main {\n  %d = \n"})
    assert client.at("signatureHelp", uri, 1, 7) is None


def test_symbols_of_the_other_stages(shared: Any, root: Path, tmp_path: Path) -> None:
    stage = next((root / "tests" / "lsp" / "data").glob("*.txt"))
    last = tmp_path / stage.name
    shutil.copy(stage, last)
    first = tmp_path / "module_0000.jit_layout_heavy.before_optimizations.txt"
    first.write_text("HloModule jit_layout_heavy\n\nENTRY main {\n  ROOT only_here.7 = f32[] constant(1)\n}\n")
    client, uri = shared.client, last.as_uri()
    client.open(uri, stage.read_text())
    [found] = client.request("workspace/symbol", {"query": "only_HERE"})
    assert found["location"]["uri"] == first.as_uri() and found["name"] == "only_here.7"
    where = {"start": {"line": 3, "character": 7}, "end": {"line": 3, "character": 18}}
    assert found["location"]["range"] == where
    many = "".join(f"  found_often.{k} = f32[] constant(1)\n" for k in range(2_001))
    first.write_text(f"HloModule jit_layout_heavy\n\nENTRY main {{\n{many}}}\n")
    assert len(client.request("workspace/symbol", {"query": "found_often"})) == 2_000
    told = [one["params"]["message"] for one in client.messages if one.get("method") == "window/logMessage"]
    assert "there are more" in told[-1] and "'found_often'" in told[-1]


def test_range_formatting_leaves_strings_alone(shared: Any) -> None:
    client, uri = shared.client, "file:///range.hlo"
    client.open(uri, TEXT)
    where = {"start": {"line": 8, "character": 0}, "end": {"line": 10, "character": 0}}
    options = {"tabSize": 2, "insertSpaces": True}
    params = {"textDocument": {"uri": uri}, "range": where, "options": options}
    [edit] = client.request("textDocument/rangeFormatting", params)
    assert edit["newText"] == '  %b = f32[4]{0} add(%a, %a), metadata={op_name="two  blanks é"}'
    assert edit["range"]["start"] == {"line": 9, "character": 0}


def test_changes_of_colours_lead_to_the_whole(shared: Any, stage: str) -> None:
    client, uri = shared.client, "file:///delta.hlo"
    rng = random.Random(3)
    client.open(uri, stage)
    document = {"textDocument": {"uri": uri}}
    answer = client.request("textDocument/semanticTokens/full", document)
    data, given, text, changes, version = answer["data"], answer["resultId"], stage, 0, 2
    for version in range(2, 40):
        lines = text.split("\n")
        # In a text that the grammar reads: what is coloured in a broken one depends on how much of it is looked at.
        at = rng.choice([number for number, line in enumerate(lines) if " = " in line])
        new = rng.choice([[], [lines[at], lines[at]], [lines[at] + " // é"], ["", ""]])
        where = {"start": {"line": at, "character": 0}, "end": {"line": at + 1, "character": 0}}
        client.change(uri, version, {"range": where, "text": "".join(line + "\n" for line in new)})
        text = "\n".join(lines[:at] + new + lines[at + 1 :])
        answer = client.request("textDocument/semanticTokens/full/delta", {**document, "previousResultId": given})
        given = answer["resultId"]
        assert "edits" in answer
        for edit in answer["edits"]:
            changes += 1
            data[edit["start"] : edit["start"] + edit["deleteCount"]] = edit["data"]
        if version % 6 == 0:
            whole = client.request(
                "textDocument/semanticTokens/range",
                {**document, "range": {"start": {"line": 0, "character": 0}, "end": {"line": 10_000, "character": 0}}},
            )
            assert data == whole["data"], version
    assert changes > 20
    # What one letter does to the colours of the lines behind it, and back.
    everything = {"start": {"line": 0, "character": 0}, "end": {"line": 10_000, "character": 0}}
    at = next(number for number, line in enumerate(text.split("\n")) if "f32[" in line and " = " in line)
    column = text.split("\n")[at].index("[")
    for letter in ('"', "{", "=", "%", "x y"):
        for old, new in ((0, letter), (len(letter), "")):
            version += 1
            where = {"start": {"line": at, "character": column}, "end": {"line": at, "character": column + old}}
            client.change(uri, version, {"range": where, "text": new})
            answer = client.request("textDocument/semanticTokens/full/delta", {**document, "previousResultId": given})
            given = answer["resultId"]
            for edit in answer["edits"]:
                data[edit["start"] : edit["start"] + edit["deleteCount"]] = edit["data"]
            whole = client.request("textDocument/semanticTokens/range", {**document, "range": everything})
            assert data == whole["data"], (letter, new)
    again = client.request("textDocument/semanticTokens/full/delta", {**document, "previousResultId": "gone"})
    assert again["data"] == data
