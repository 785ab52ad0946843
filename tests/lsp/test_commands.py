"""Commands on what is under the cursor and on the stages behind the open one; how far they are, and their faults."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hloscope.core.text import load_module
from hloscope.lsp.commands import Share

URI = "file:///nowhere/m.hlo"
TEXT = """HloModule m

%f (p: f32[64]) -> f32[64] {
  %p = f32[64] parameter(0)
  %t = f32[64] tanh(%p)
  %n = f32[64] negate(%t)
  ROOT %m = f32[64] multiply(%n, %p)
}

ENTRY %main (x: f32[64], y: f32[64]) -> (f32[64], f32[64]) {
  %x = f32[64] parameter(0)
  %y = f32[64] parameter(1)
  %a = f32[64] add(%x, %y)
  %c = f32[64] fusion(%a), kind=kLoop, calls=%f
  %e = f32[64] exponential(%y)
  %g = f32[64] tanh(%e)
  ROOT %r = (f32[64], f32[64]) tuple(%c, %g)
}
"""


@pytest.fixture(scope="module")
def client(shared_with: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """With an oracle by which every tanh is a fault."""
    if sys.platform == "win32":
        pytest.skip("the oracle is a shell script")
    oracle = tmp_path_factory.mktemp("oracle") / "no_tanh.sh"
    oracle.write_text('#!/bin/sh\n! grep -q "tanh(" "$1"\n')
    oracle.chmod(0o755)
    process = shared_with(window={"workDoneProgress": True}, reduceOptions=["--oracle", str(oracle)])
    process.client.open(URI, TEXT)
    yield process.client
    assert "Traceback" not in process.log


def actions(client: Any, line: str) -> dict[str, list[Any]]:
    """Arguments by title of the code actions at the first name of a line."""
    number, column = next((n, one.index("%") + 1) for n, one in enumerate(TEXT.split("\n")) if one.startswith(line))
    where = {"line": number, "character": column}
    params = {
        "textDocument": {"uri": URI}, "range": {"start": where, "end": where}, "context": {"diagnostics": []},
    }  # fmt: skip
    found = client.request("textDocument/codeAction", params)
    return {one["title"]: one["command"]["arguments"] for one in found if "command" in one}


def execute(client: Any, command: str, *arguments: Any) -> Any:
    return client.request("workspace/executeCommand", {"command": f"hloscope.{command}", "arguments": list(arguments)})


def reduced(client: Any, arguments: list[Any]) -> list[str]:
    """Opcodes of the small module."""
    answer = execute(client, "reduce", *arguments)
    return [one.opcode for one in load_module(Path(answer["uri"].removeprefix("file://")).read_text()).entry]


def test_reduce_takes_no_more_than_is_under_the_cursor(client: Any) -> None:
    inside = actions(client, "  %n")
    from_here = next(one for title, one in inside.items() if title.startswith("Reduce from here"))
    assert from_here == [URI, "f", "n"]
    assert inside["Reduce %f to a small module with the same fault"] == [URI, "f"]
    assert reduced(client, from_here) == ["parameter", "tanh"]
    # The fault is not in what %e is computed from, though the module has it.
    number = client.ask("workspace/executeCommand", {"command": "hloscope.reduce", "arguments": [URI, "main", "e"]})
    assert "does not show the fault" in client.raw_answer(number)["error"]["message"]
    said = [m["params"]["value"].get("message", "") for m in client.messages if m.get("method") == "$/progress"]
    assert any("instructions after" in one for one in said)
    assert not any("previous stage" in title for title in inside)  # it is in no dump
    # Nobody asks why something is not fused into a tuple.
    asked = [title for line in ("  %a", "  %g") for title in actions(client, line) if "is not fused" in title]
    assert asked == ["Explain why %a is not fused into %c"]


def test_the_share_that_is_done_is_that_of_what_is_counted_first() -> None:
    share = Share()
    said = [f"reading stages \u2501\u2501\u2578   \u2501 {one}" for one in (" 3/12 0:00:05", "12/12")]
    assert [share.of(one) for one in (*said, "note", "other \u2501\u2501 1/4")] == [25, 99, None, None]
    search = Share()  # several rounds, nobody knows how many
    assert search.of("  stage 50 of 0..100: right; 6 more at most") is None


def test_a_part_that_is_not_there_is_said_in_one_line(client: Any) -> None:
    params = {"command": "hloscope.reduce", "arguments": [URI, "main", "zz"]}
    error = client.raw_answer(client.ask("workspace/executeCommand", params))["error"]
    assert error["message"] == "there is no instruction zz in main"


def test_diff_and_search_start_at_the_open_stage(client: Any, fixtures: Path, tmp_path: Path) -> None:
    for file in (fixtures / "dumps" / "cpu").iterdir():
        shutil.copy(file, tmp_path)
    stage = next(tmp_path.glob("*.0018.*")).as_uri()
    client.open(stage, Path(stage.removeprefix("file://")).read_text())
    found = client.about("codeLens", stage)
    titles = [one["command"]["title"] for one in found]
    assert "11 added, 7 modified · diff" in titles and titles.count("made by layout-assignment · diff · 1 user") == 10
    changed = next(
        one for one in found if one["command"]["title"].startswith("changed by layout-assignment (operands)")
    )
    name = changed["command"]["arguments"][1]
    line = Path(stage.removeprefix("file://")).read_text().split("\n")[changed["range"]["start"]["line"]]
    assert f"%{name} = " in line
    alone = execute(client, "peekDiff", stage, name)["text"]
    assert f"~ {name}: operands" in alone and alone.count("  ~ ") == 1 and "  + %copy" not in alone.split("\n", 3)[3]
    answer = execute(client, "bisectFromHere", stage)["text"]
    assert "no-difference" in answer
    count = int(answer.split("all ")[1].split()[0])
    assert 1 < count <= len([one for one in tmp_path.glob("*.txt") if one.name > Path(stage).name]) + 1
    number = client.ask("workspace/executeCommand", {"command": "hloscope.bisectFromHere", "arguments": [URI]})
    assert client.raw_answer(number)["error"]["message"] == "the file is no stage of a dump"


def test_a_stage_is_numbered_as_the_timeline_with_the_compiler_s_log_has_it(client: Any, fixtures: Path) -> None:
    stage = next((fixtures / "dumps" / "cpu_logged").glob("*.0006.*"))  # the third file, but the 64th pass run
    client.open(stage.as_uri(), stage.read_text())
    titles = [one["command"]["title"] for one in client.about("codeLens", stage.as_uri())]
    assert titles[0] == "[63] stage 3 of 10 after algsimp"
    assert "2 added, 1 modified, 2 removed · diff" in titles
    assert execute(client, "peekDiff", stage.as_uri())["text"].startswith(
        "[63] simplification/algsimp\n2 added, 2 removed, 1"
    )
    assert execute(client, "openDashboard", stage.as_uri())["terminal"][-2:] == ["--stage", "63"]


def test_a_large_computation_is_extracted_by_command(client: Any) -> None:
    lines = [f"  %n.{k} = f32[8] negate(%{'p' if k == 0 else f'n.{k - 1}'})" for k in range(1_100)]
    lines[-1] = "  ROOT" + lines[-1][1:]
    text = "\n".join(
        ["HloModule m", "", "%big (p: f32[8]) -> f32[8] {", "  %p = f32[8] parameter(0)", *lines, "}", "",
         "ENTRY %main (x: f32[8]) -> f32[8] {", "  %x = f32[8] parameter(0)",
         "  ROOT %c = f32[8] call(%x), to_apply=%big", "}", ""]
    )  # fmt: skip
    uri = "file:///nowhere/big.hlo"
    client.open(uri, text)
    where = {"line": 2, "character": 2}
    params = {
        "textDocument": {"uri": uri}, "range": {"start": where, "end": where}, "context": {"diagnostics": []},
    }  # fmt: skip
    found = client.request("textDocument/codeAction", params)
    command = next(one["command"] for one in found if one["title"] == "Extract %big to a module of its own")
    answer = execute(client, command["command"].removeprefix("hloscope."), *command["arguments"])
    assert load_module(answer["text"]).entry.name == "big" and load_module(answer["text"]).instruction_count == 1_101
