"""Edits and requests in between: each answer is about the text as it was when the request came."""

from __future__ import annotations

import random
from typing import Any

HEAD = "HloModule m\n\nENTRY %main (x: f32[8]) -> f32[8] {\n  %x = f32[8]{0} parameter(0)\n"
WORDS = '%x = f32[8]{0} parameter(0), metadata={op_name="é中𝔸"}'


def span(sl: int, sc: int, el: int, ec: int) -> dict[str, Any]:
    return {"start": {"line": sl, "character": sc}, "end": {"line": el, "character": ec}}


def utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def slice16(text: str, where: dict[str, Any]) -> str:
    """What a client's range covers, worked out apart from the server's code; fails for a range outside the text."""

    def offset(position: dict[str, int]) -> int:
        lines = text.split("\n")
        line = lines[position["line"]]
        before = line.encode("utf-16-le")[: 2 * position["character"]].decode("utf-16-le")
        assert utf16(before) == position["character"]
        return sum(len(one) + 1 for one in lines[: position["line"]]) + len(before)

    start, end = offset(where["start"]), offset(where["end"])
    assert start <= end
    return text[start:end]


def test_an_error_appears_and_an_edit_takes_it_away(shared: Any, stage: str) -> None:
    client = shared.client
    uri = "file:///d/module_0000.jit_f.cpu_after_optimizations.txt"
    client.open(uri, stage)
    assert client.diagnostics(uri, 1) == []
    line = stage.split("\n")[53]
    client.change(uri, 2, {"range": span(53, len(line), 53, len(line)), "text": "\n  %half = f32[3]{0} "})
    [found] = client.diagnostics(uri, 2)
    assert found["severity"] == 1 and found["source"] == "hloscope" and found["code"] == "syntax"
    assert found["range"]["start"]["line"] == 54
    # The rest of the half-typed text is as good as before.
    assert "dot" in client.at("hover", uri, 53, 9)["contents"]["value"]
    operand = stage.split("\n")[59].index("%param_0.1")
    assert client.at("definition", uri, 60, operand + 2)["range"]["start"]["line"] == 58
    [module] = client.about("documentSymbol", uri)
    names = [one["name"] for one in module["children"]]
    assert "fused_computation" in names and "fused_computation.7" in names
    client.change(uri, 3, {"range": span(53, len(line), 54, 20), "text": ""})
    assert client.diagnostics(uri, 3) == []


def test_related_places_of_a_double_definition(shared: Any) -> None:
    client = shared.client
    text = HEAD + "  %y = f32[8]{0} negate(%x)\n  ROOT %y = f32[8]{0} negate(%x)\n}\n"
    client.open("file:///double.hlo", text)
    [found] = client.diagnostics("file:///double.hlo", 1)
    [related] = found["relatedInformation"]
    assert found["range"]["start"]["line"] == 5 and related["location"]["range"]["start"]["line"] == 4
    client.notify("textDocument/didClose", {"textDocument": {"uri": "file:///double.hlo"}})
    assert client.wait_for("textDocument/publishDiagnostics")["diagnostics"] == []


def test_requests_see_exactly_the_edits_before_them(shared: Any) -> None:
    client = shared.client
    uri, text = "file:///exact.hlo", HEAD + "  ROOT %y = f32[8]{0} negate(%x)\n}\n"
    client.open(uri, text)
    asked: list[tuple[int, int]] = []
    for number in range(40):
        # A line more in front each time: what is defined where moves by one.
        client.change(uri, number + 2, {"range": span(1, 0, 1, 0), "text": "// one more\n"})
        asked.append((number + 1, client.ask_at("definition", uri, 5 + number, 29)))
    for moved, number in asked:
        assert client.answer(number)["range"] == span(3 + moved, 3, 3 + moved, 4)


def test_several_edits_in_one_message_and_whole_texts(shared: Any) -> None:
    client = shared.client
    uri = "file:///several.hlo"
    client.open(uri, "nothing yet")
    client.change(
        uri,
        2,
        {"text": HEAD},
        {"range": span(4, 0, 4, 0), "text": "  ROOT %y = f32[8]{0} negate(%x)\n}\n"},
        {"range": span(4, 8, 4, 9), "text": "zebra"},
    )
    assert client.diagnostics(uri, 2) == []
    assert "zebra" in client.at("hover", uri, 4, 10)["contents"]["value"]


def test_two_texts_at_once(shared: Any, stage: str) -> None:
    client = shared.client
    one, two = "file:///one.hlo", "file:///two.hlo"
    client.open(one, stage)
    client.open(two, HEAD + "  ROOT %y = f32[8]{0} negate(%x)\n}\n")
    for number in range(2, 12):
        client.change(one, number, {"range": span(0, 0, 0, 0), "text": "// a\n"})
        client.change(two, number, {"range": span(0, 0, 0, 0), "text": "// b\n"})
        first = client.ask_at("definition", one, 53 + number - 1, 47)
        second = client.ask_at("definition", two, 4 + number - 1, 29)
        assert client.answer(second)["range"]["start"] == {"line": 3 + number - 1, "character": 3}
        assert client.answer(first)["range"]["start"] == {"line": 51 + number - 1, "character": 3}
        assert client.at("definition", two, 4 + number - 1, 29)["uri"] == two


def test_files_that_are_not_hlo_get_nothing(shared: Any, stage: str) -> None:
    client = shared.client
    quiet = {
        "file:///notes.txt": "buy milk {{{",
        "file:///d/module_0000.jit_f.cpu_after_optimizations-buffer-assignment.txt": "BufferAssignment:\n",
        "file:///a.py": "HloModule = 3\n",
    }
    for uri, text in quiet.items():
        client.open(uri, text)
        assert client.about("documentSymbol", uri) is None and client.at("hover", uri, 0, 1) is None
    loud = {"file:///notes2.txt": stage, "file:///x/0001.hlo.txt": stage, "untitled:1": stage}
    for uri, text in loud.items():
        client.open(uri, text)
        assert client.diagnostics(uri, 1) == []
        assert client.about("documentSymbol", uri)
    published = {m["params"]["uri"] for m in client.messages if m.get("method") == "textDocument/publishDiagnostics"}
    assert published & {*quiet, *loud} == {*loud}
    client.change("file:///notes.txt", 2, {"text": stage})
    assert client.diagnostics("file:///notes.txt", 2) == []


def test_random_requests_and_edits_never_fail_and_never_point_outside(shared: Any, stage: str) -> None:
    client = shared.client
    uri = "file:///random.hlo"
    rng = random.Random(20)
    text, version = stage.replace("jit(layout_heavy)", "é中𝔸"), 1
    client.open(uri, text)
    asked: list[tuple[int, str, str, str]] = []
    cancelled: set[int] = set()
    for _ in range(300):
        lines = text.split("\n")
        line = rng.randrange(len(lines))
        column = utf16(lines[line][: rng.randrange(len(lines[line]) + 1)])
        action = rng.choice(["hover", "definition", "references", "documentHighlight", "prepareRename", "rename",
                             "documentSymbol", "foldingRange", "edit", "edit"])  # fmt: skip
        if action == "edit":
            end_line = min(line + rng.choice([0, 0, 0, 1, 3]), len(lines) - 1)
            end = utf16(lines[end_line][: rng.randrange(len(lines[end_line]) + 1)])
            if end_line == line and end < column:
                column, end = end, column
            new = rng.choice(["", "", "𝔸", "%", "{", "}", '"', "\n", WORDS, "ROOT ", ", ", "(", "x"])
            where = span(line, column, end_line, end)
            old = slice16(text, where)
            at = sum(len(one) + 1 for one in lines[:line]) + len(
                lines[line].encode("utf-16-le")[: 2 * column].decode("utf-16-le")
            )
            text = text[:at] + new + text[at + len(old) :]
            version += 1
            client.change(uri, version, {"range": where, "text": new})
            if len(text) < len(stage) // 2:
                text, version = stage, version + 1
                client.change(uri, version, {"text": text})
        elif action in ("documentSymbol", "foldingRange"):
            asked.append((client.ask(f"textDocument/{action}", {"textDocument": {"uri": uri}}), action, text, ""))
        else:
            more = {"references": {"context": {"includeDeclaration": True}}, "rename": {"newName": "fresh.1"}}
            number = client.ask_at(action, uri, line, column, **more.get(action, {}))
            asked.append((number, action, text, lines[line]))
            if rng.random() < 0.1:
                client.notify("$/cancelRequest", {"id": number})
                cancelled.add(number)
    hits = 0
    for number, action, then, _ in asked:
        message = client.raw_answer(number)
        if "error" in message:
            assert number in cancelled and message["error"]["code"] == -32800, message
            continue
        for where in ranges(message["result"]):
            hits += 1
            covered = slice16(then, where)
            if action in ("definition", "references", "documentHighlight", "prepareRename", "rename"):
                assert covered and not set(covered) & set("%\n =(),"), (action, covered)
    assert hits > 200


def ranges(result: Any) -> list[dict[str, Any]]:
    """Every range in an answer."""
    if isinstance(result, list):
        return [where for one in result for where in ranges(one)]
    if not isinstance(result, dict):
        return []
    if set(result) == {"start", "end"}:
        return [result]
    return [where for one in result.values() for where in ranges(one)]
