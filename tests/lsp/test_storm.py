"""Everything at once: every request, out of order, cancelled, at places that are gone, with edits in between; and
memory."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

AT_A_PLACE = (
    "hover", "definition", "declaration", "implementation", "references", "documentHighlight", "prepareRename",
    "rename", "completion", "signatureHelp", "linkedEditingRange", "prepareCallHierarchy", "selectionRange",
)  # fmt: skip
OF_A_RANGE = ("codeAction", "inlayHint", "semanticTokens/range", "rangeFormatting")
OF_THE_TEXT = (
    "documentSymbol", "foldingRange", "codeLens", "documentLink", "formatting", "semanticTokens/full",
    "semanticTokens/full/delta",
)  # fmt: skip
PIECES = (
    "",
    "",
    "é",
    "𝔸",
    "%",
    "{",
    "}",
    '"',
    "\n",
    "ROOT ",
    ", ",
    "(",
    "x",
    "/* 中 */",
    "\r\n",
    "%y = f32[2]{0} add(%a, ",
)
ALLOWED = (-32800, -32803)
"""Cancelled, and "the text is at fault": formatting one with errors, renaming to a name that is taken."""


def params_of(method: str, uri: str, rng: random.Random, lines: int) -> dict[str, Any]:
    def place() -> dict[str, int]:
        # Beyond the end of a line or of the text as well: the client's idea of it may be older.
        return {"line": rng.randrange(lines + 40), "character": rng.choice([0, 3, 9, 40, 200, 10**6])}

    params: dict[str, Any] = {"textDocument": {"uri": uri}}
    if method in AT_A_PLACE:
        params["position"] = place()
        if method == "references":
            params["context"] = {"includeDeclaration": True}
        elif method == "rename":
            params["newName"] = rng.choice(["fresh", "é", "add.1", "", "%p"])
        elif method == "selectionRange":
            params["positions"] = [place(), place()]
    elif method in OF_A_RANGE:
        first, second = sorted((place(), place()), key=lambda one: (one["line"], one["character"]))
        params["range"] = {"start": first, "end": second}
        params["context"] = {"diagnostics": []}
        params["options"] = {"tabSize": 2, "insertSpaces": True}
    elif method == "formatting":
        params["options"] = {"tabSize": 2, "insertSpaces": True}
    elif method == "semanticTokens/full/delta":
        params["previousResultId"] = str(rng.randrange(30))
    return params


def fits(where: dict[str, Any], text: str) -> bool:
    """Whether a range lies in a text, its columns in UTF-16 and between whole characters."""
    lines = text.replace("\r\n", "\n").split("\n")
    ends: list[tuple[int, int]] = []
    for one in (where["start"], where["end"]):
        line, column = one["line"], one["character"]
        if line >= len(lines):
            return False
        units = lines[line].encode("utf-16-le")
        if 2 * column > len(units):
            return False
        try:
            units[: 2 * column].decode("utf-16-le")
        except UnicodeDecodeError:
            return False
        ends.append((line, column))
    return ends[0] <= ends[1]


def ranges(result: Any, uri: str) -> list[dict[str, Any]]:
    """The ranges in an answer that are about a text."""
    if isinstance(result, list):
        return [where for one in result for where in ranges(one, uri)]
    if not isinstance(result, dict) or result.get("uri", uri) != uri:
        return []
    if set(result) == {"start", "end"} and isinstance(result["start"], dict):
        return [result]
    return [where for key, one in result.items() if key != "documentChanges" for where in ranges(one, uri)]


def test_every_request_in_any_order(start: Any, stage: str) -> None:
    server = start()
    client = server.client
    client.initialize(advice=True, dumpFacts=False)
    rng = random.Random(11)
    # Two texts of two folders in one server.
    uris = ["file:///one/module_0001.jit_f.after_optimizations.txt", "file:///two/é.hlo"]
    texts = dict.fromkeys(uris, stage.replace("jit_layout_heavy", "jit_é中𝔸"))
    versions = dict.fromkeys(uris, 1)
    for uri in uris:
        client.open(uri, texts[uri])
    asked: list[tuple[int, str, str, str]] = []
    cancelled: set[int] = set()
    for _ in range(130):
        uri = rng.choice(uris)
        if rng.random() < 0.3:
            lines = texts[uri].split("\n")
            line = rng.randrange(len(lines))
            plain = lines[line]
            column = rng.randrange(len(plain) + 1)
            units = len(plain[:column].encode("utf-16-le")) // 2
            new = rng.choice(PIECES)
            lines[line] = plain[:column] + new + plain[column:]
            texts[uri] = "\n".join(lines)
            versions[uri] += 1
            spot = {"line": line, "character": units}
            client.change(uri, versions[uri], {"range": {"start": spot, "end": spot}, "text": new})
            continue
        method = rng.choice(AT_A_PLACE + OF_A_RANGE + OF_THE_TEXT)
        params = params_of(method, uri, rng, texts[uri].count("\n"))
        asked.append((client.ask(f"textDocument/{method}", params), method, uri, texts[uri]))
        if rng.random() < 0.15:
            number = rng.choice(asked)[0]
            client.notify("$/cancelRequest", {"id": number})
            cancelled.add(number)
        if rng.random() < 0.05:
            client.ask("workspace/symbol", {"query": rng.choice(["add", "é", "."])})
    seen = 0
    for number, method, uri, text in asked:
        message = client.raw_answer(number)
        if "error" in message:
            error = message["error"]
            assert error["code"] in ALLOWED and (error["code"] != -32800 or number in cancelled), (method, error)
            assert "Traceback" not in str(error) and "data" not in error
            continue
        for where in ranges(message["result"], uri):
            seen += 1
            assert fits(where, text), (method, where)
    assert seen > 100
    client.request("shutdown")
    client.notify("exit")
    assert server.wait() == 0
    assert "Traceback" not in server.log and "ERROR" not in server.log, server.log[-2000:]


def memory(process: int) -> float:
    """MiB that a process holds."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def edited(start: Any, large: str, edits: int, size: int) -> tuple[float, float]:
    """Memory after a tenth of the edits, and after all of them."""
    server = start()
    client = server.client
    client.initialize()
    uri = "file:///edited.hlo"
    text = "\n".join([*large.split("\n")[:size], "}", ""])
    client.open(uri, text)
    client.diagnostics(uri, 1)
    rng = random.Random(5)
    early = 0.0
    for number in range(edits):
        line = rng.randrange(10, size - 100)
        if number % 2:
            where = {"start": {"line": line, "character": 0}, "end": {"line": line, "character": 0}}
            client.change(uri, number + 2, {"range": where, "text": f"  %n.{number} = f32[{number}]{{0}} negate(%x)\n"})
        else:
            where = {"start": {"line": line, "character": 0}, "end": {"line": line + 1, "character": 0}}
            client.change(uri, number + 2, {"range": where, "text": ""})
        if number % 10 == 9:
            client.at("hover", uri, line, 5)
        if number % (edits // 3) == 99:
            client.request("textDocument/semanticTokens/full", {"textDocument": {"uri": uri}})
        client.messages.clear()
        if number == edits // 10:
            time.sleep(0.3)
            early = memory(server.popen.pid)
    client.diagnostics(uri, edits + 1)
    time.sleep(0.3)
    return early, memory(server.popen.pid)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_is_flat_over_edits(start: Any, large: str) -> None:
    early, late = edited(start, large, 300, 600)
    assert late - early < 25, (early, late)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not os.environ.get("HLOSCOPE_LONG"), reason="takes minutes: set HLOSCOPE_LONG=1")
def test_memory_is_flat_over_ten_thousand_edits(start: Any, large: str) -> None:
    early, late = edited(start, large, 10_000, 1_000)
    assert late - early < 25, (early, late)
