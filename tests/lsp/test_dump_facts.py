"""What the dump around a stage knows, in hovers and findings, and commands that ask for more: progress and
cancelling."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hloscope.core.text import load_module
from hloscope.core.text.module_index import ModuleIndex
from hloscope.lsp.companion import Companion, DumpFacts
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.dump_findings import from_dump
from hloscope.lsp.positions import Encoding, TextLines
from hloscope.lsp.settings import Settings


@pytest.fixture(scope="module")
def dump(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dump")
    for file in (fixtures / "dumps" / "cpu").iterdir():
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def stage(dump: Path) -> Path:
    """The stage after layout assignment: its copies are all there."""
    return next(dump.glob("*.0018.*"))


@pytest.fixture(scope="module")
def client(shared_with: Any, stage: Path) -> Iterator[Any]:
    process = shared_with(
        advice=True, refusedFusionBytes=1000, window={"workDoneProgress": True, "showDocument": {"support": True}}
    )
    process.client.open(stage.as_uri(), stage.read_text())
    yield process.client
    assert "Traceback" not in process.log


@pytest.fixture(scope="module")
def found(client: Any, stage: Path) -> list[dict[str, Any]]:
    """The findings once the dump has been read."""
    params = client.wait_for(
        "textDocument/publishDiagnostics",
        lambda p: any(one["code"] == "layout-copy-cause" for one in p["diagnostics"]),
    )
    assert params["uri"] == stage.as_uri()
    return params["diagnostics"]


def test_copies_and_refused_fusions_are_told_with_cause_and_both_ends(found: list[dict[str, Any]], stage: Path) -> None:
    lines = stage.read_text().split("\n")
    copies = [one for one in found if one["code"] == "layout-copy-cause"]
    refused = [one for one in found if one["code"] == "fusion-refused"]
    assert copies and refused
    for one in copies:
        assert " copy(" in lines[one["range"]["start"]["line"]]
        assert "because" in one["message"] and "bytes" in one["message"]
    assert any(one.get("relatedInformation") for one in copies)
    assert all("bytes written and read again" in one["message"] for one in refused)
    for one in (*copies, *refused):
        for other in one.get("relatedInformation", ()):
            name = other["message"].split()[0]
            assert name in lines[other["location"]["range"]["start"]["line"]]


def test_hover_says_who_made_it_what_it_costs_and_why_it_is_copied(
    client: Any, found: list[dict[str, Any]], stage: Path
) -> None:
    copy = next(one for one in found if one["code"] == "layout-copy-cause")
    where = copy["range"]["start"]
    text = client.at("hover", stage.as_uri(), where["line"], where["character"])["contents"]["value"]
    assert "made by layout-assignment" in text and "copied because" in text
    assert "cost 0 flops" in text and "bytes read" in text


def execute(client: Any, command: str, *arguments: Any) -> Any:
    return client.request("workspace/executeCommand", {"command": f"hloscope.{command}", "arguments": list(arguments)})


def test_a_question_shows_progress_and_its_answer(client: Any, stage: Path) -> None:
    answer = execute(client, "showBufferMap", stage.as_uri())
    assert "peak" in answer["text"].lower()
    seen = [m for m in client.messages if m.get("method") == "$/progress"]
    kinds = {m["params"]["value"]["kind"] for m in seen}
    assert kinds >= {"begin", "end"}
    assert any(m["params"]["value"].get("title") == "Show the buffer map" for m in seen)
    shown = client.wait_for("window/showDocument")
    assert shown["uri"] == answer["uri"]
    said = [m["params"]["value"].get("message", "") for m in seen]
    assert not any(ord(letter) > 0x2500 for one in said for letter in one), "no bar drawn in letters"
    begun = next(m["params"]["value"] for m in seen if m["params"]["value"].get("title") == "Show the buffer map")
    assert "percentage" not in begun  # how much there is to do is not known


def test_the_change_that_removes_a_copy_is_made_in_a_module_of_its_own(
    client: Any, found: list[dict[str, Any]], stage: Path
) -> None:
    with_remedy = next(one for one in found if "To remove it" in one["message"])
    where = with_remedy["range"]
    params = {"textDocument": {"uri": stage.as_uri()}, "range": where, "context": {"diagnostics": []}}
    actions = client.request("textDocument/codeAction", params)
    action = next(one for one in actions if one["title"].startswith("Apply the change that removes this copy"))
    command = action["command"]
    answer = client.request(
        "workspace/executeCommand", {"command": command["command"], "arguments": command["arguments"]}
    )
    text = Path(answer["uri"].removeprefix("file://")).read_text()
    before = next(stage.parent.glob("*.0017.*")).read_text()
    assert load_module(text).instruction_count == load_module(before).instruction_count
    assert load_module(text).attrs["entry_computation_layout"] != load_module(before).attrs["entry_computation_layout"]


def test_a_long_command_is_cancelled_either_way(client: Any, stage: Path) -> None:
    def begun() -> Any:
        params = client.wait_for(
            "$/progress", lambda p: p["value"]["kind"] == "begin" and p["value"]["title"].startswith("Find the pass")
        )
        return params["token"]

    arguments = {"command": "hloscope.bisect", "arguments": [stage.as_uri()]}
    for way in ("progress", "request"):
        number = client.ask("workspace/executeCommand", arguments)
        token = begun()
        started = time.monotonic()
        if way == "progress":
            client.notify("window/workDoneProgress/cancel", {"token": token})
        else:
            client.notify("$/cancelRequest", {"id": number})
        message = client.raw_answer(number)
        assert message["error"]["code"] == -32800, message
        assert time.monotonic() - started < 10


def test_faults_of_commands_are_one_line(client: Any, stage: Path) -> None:
    for command, arguments in (
        ("why", [stage.as_uri(), "no_such_instruction"]),
        ("whyNotFused", [stage.as_uri(), "one"]),
        ("showBufferMap", ["file:///nowhere.hlo"]),
        ("applyRemedy", [stage.as_uri(), "no_such_copy"]),
        ("traceKernels", ["file:///nowhere.py"]),
    ):
        number = client.ask(
            "workspace/executeCommand", {"command": f"hloscope.{command}", "arguments": list(arguments)}
        )
        error = client.raw_answer(number)["error"]
        assert "Traceback" not in error["message"] and "\n" not in error["message"], error


def test_the_dashboard_is_a_command_for_the_terminal(client: Any, stage: Path) -> None:
    command = execute(client, "openDashboard", stage.as_uri())["terminal"]
    assert command[:3] == ["hloscope", "open", str(stage.parent)] and "--stage" in command


def test_settings_turn_findings_down(client: Any, found: list[dict[str, Any]], stage: Path) -> None:
    client.notify("workspace/didChangeConfiguration", {"settings": {"hloscope": {"refusedFusionBytes": 10**9}}})
    params = client.wait_for(
        "textDocument/publishDiagnostics",
        lambda p: not any(one["code"] == "fusion-refused" for one in p["diagnostics"]) and p["diagnostics"],
    )
    assert any(one["code"] == "layout-copy-cause" for one in params["diagnostics"])
    client.notify("workspace/didChangeConfiguration", {"settings": {"hloscope": {"advice": False}}})
    client.wait_for("textDocument/publishDiagnostics", lambda p: p["diagnostics"] == [])
    client.notify("workspace/didChangeConfiguration", {"settings": {"hloscope": {"advice": True}}})


def test_kernels_are_traced_in_another_process(client: Any, fixtures: Path) -> None:
    path = fixtures / "pallas" / "programs.py"
    pytest.importorskip("jax")
    client.open(path.as_uri(), path.read_text(), language="python")
    assert execute(client, "traceKernels", path.as_uri()) > 0
    lines = path.read_text().split("\n")
    # What the text alone shows is there before, at the specs.
    client.wait_for(
        "textDocument/publishDiagnostics",
        lambda p: (
            p["uri"] == path.as_uri()
            and any(
                one["code"] == "parallel-write-race" and "o_ref" in lines[one["range"]["start"]["line"]]
                for one in p["diagnostics"]
            )
        ),
    )
    number = client.ask(
        "workspace/executeCommand", {"command": "hloscope.traceKernels", "arguments": [path.as_uri(), 0.05]}
    )
    assert "seconds" in client.raw_answer(number)["error"]["message"]


KERNELS = """
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def _race(x_hbm, o_ref, buf, sem):
    copy = pltpu.make_async_copy(x_hbm, buf, sem)
    copy.start()
    "é😀"; o_ref[...] = buf[...]
    copy.wait()

def race(x=jnp.ones((8, 128), jnp.float32)):
    scratch = [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA(())]
    return pl.pallas_call(_race, in_specs=[pl.BlockSpec(memory_space=pl.ANY)], out_shape=x, scratch_shapes=scratch)(x)

def _sorted(x_ref, acc_ref, o_ref):
    "é😀"; o_ref[...] = jnp.sort(x_ref[...], axis=-1)

def sorted_rows(x=jnp.ones((8, 128), jnp.float32)):
    return pl.pallas_call(_sorted, out_shape=(x, x))(x)
"""


def test_kernels_run_under_instruments_and_findings_stand_where_they_are(client: Any, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    path = tmp_path / "kernels é.py"
    path.write_text(KERNELS, "utf-8")
    client.open(path.as_uri(), KERNELS, language="python")
    count = execute(client, "interpretKernels", path.as_uri(), 100, "v5e")
    params = client.wait_for("textDocument/publishDiagnostics", lambda p: p["uri"] == path.as_uri())
    assert len(params["diagnostics"]) == count
    lines = [line.encode("utf-16-le") for line in KERNELS.split("\n")]
    told: set[tuple[str, str]] = set()
    for one in params["diagnostics"]:
        first, last = one["range"]["start"], one["range"]["end"]
        assert first["line"] == last["line"]
        text = lines[first["line"]][2 * first["character"] : 2 * last["character"]].decode("utf-16-le")
        told.add((one["code"], text))
    # what the run alone shows, and what the chip's compiler has no rule for
    assert {("race", "buf[...]"), ("no-lowering-rule", "jnp.sort(x_ref[...], axis=-1)")} <= told, told
    # the file on disk is what runs
    client.change(path.as_uri(), 2, {"text": KERNELS + "#"})
    again = {"command": "hloscope.interpretKernels", "arguments": [path.as_uri()]}
    number = client.ask("workspace/executeCommand", again)
    assert "save the file first" in client.raw_answer(number)["error"]["message"]


def test_rates_are_those_of_the_gpu_that_the_dump_s_files_name(shared: Any, fixtures: Path, stage: Path) -> None:
    """Without the facts, which this client does not ask for."""
    gpu = next((fixtures / "dumps" / "gpu").glob("*.0028.*"))
    for file, device in ((gpu, "on NVIDIA"), (stage, None)):
        text = file.read_text()
        line = next(n for n, one in enumerate(text.split("\n")) if " multiply(" in one or " dot(" in one)
        shared.client.open(file.as_uri(), text)
        column = text.split("\n")[line].index("%") + 1
        said = shared.client.at("hover", file.as_uri(), line, column)["contents"]["value"]
        assert "flops a byte" in said
        assert ("bound" in said and device in said) if device is not None else "bound" not in said


def test_a_dump_that_changes_on_disk_is_looked_at_again(start: Any, fixtures: Path, tmp_path: Path) -> None:
    client = start().client
    registers = {"didChangeWatchedFiles": {"dynamicRegistration": True}}
    client.request("initialize", {"processId": None, "rootUri": None, "capabilities": {"workspace": registers}})
    client.notify("initialized", {})
    [watched] = client.wait_for("client/registerCapability")["registrations"]
    assert watched["method"] == "workspace/didChangeWatchedFiles"
    files = sorted((fixtures / "dumps" / "cpu").iterdir())
    here = Path(shutil.copy(next(one for one in files if ".0018." in one.name), tmp_path))
    text = here.read_text()
    line = next(n for n, one in enumerate(text.split("\n")) if " copy(" in one)
    client.open(here.as_uri(), text)
    client.diagnostics(here.as_uri(), 1)

    def said() -> str:
        return client.at("hover", here.as_uri(), line, 4)["contents"]["value"]

    assert "there since the first stage" in said()
    for file in files:
        shutil.copy(file, tmp_path)
    changes = [{"uri": one.as_uri(), "type": 1} for one in tmp_path.iterdir()]
    client.notify("workspace/didChangeWatchedFiles", {"changes": changes})
    deadline = time.monotonic() + 20
    while "made by layout-assignment" not in said() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "made by layout-assignment" in said()


NOTHING_KNOWN: dict[str, Any] = {"times": 1, "remedy": None, "kind": "other"}
COPIES = """HloModule m

%body (p: f32[8,64]) -> f32[8,64] {
  %p = f32[8,64]{0,1} parameter(0)
  ROOT %copy.3 = f32[8,64]{1,0} copy(%p)
}

ENTRY %main (x: f32[8,64], n: s32[]) -> f32[8,64] {
  %x = f32[8,64]{0,1} parameter(0)
  %n = s32[] parameter(1)
  %count = s32[] copy(%n)
  %copy-start = (f32[8,64]{0,1:S(1)}, f32[8,64]{0,1}, u32[]) copy-start(%x)
  %copy-done = f32[8,64]{0,1:S(1)} copy-done(%copy-start)
  %t = f32[8,64]{0,1} tanh(%copy-done)
  ROOT %f = f32[8,64]{1,0} fusion(%t), kind=kLoop, calls=%body
}
"""


def test_each_end_of_a_copy_is_called_what_it_is() -> None:
    def row(name: str, size: int, before: str, after: str, reader: str, operand: str) -> dict[str, Any]:
        return {
            "names": [name], "bytes": size, "from": before, "to": after, "sentence": "so it is", "instruction": reader,
            "operand": operand, "pass": "some-pass", **NOTHING_KNOWN,
        }  # fmt: skip

    companion = Companion("file:///nowhere/m.hlo")
    companion.facts = DumpFacts.of(
        {
            "copies": [
                row("count", 4, "{}", "{}", "t", "n"),
                row("copy-start", 2048, "{0,1}", "{0,1:S(1)}", "copy-done", "x"),
                row("copy.3", 2048, "{0,1}", "{1,0}", "gone", "gone.too"),
            ],
            "fusion": [
                {"producer": "t", "consumers": ["f"], "verdict": "refused", "code": "why", "reason": "why not",
                 "bytes": None, "us": [None, None], "origin": "xla", "made": None}
            ],
        }
    )  # fmt: skip
    lines = TextLines.of(COPIES)
    reading = Reading(companion.uri, 1, lines, ModuleIndex.from_text(COPIES), Encoding.UTF16, companion)
    found = {one.code: one for one in from_dump(reading, Settings(refused_fusion_bytes=0))}

    def ends(code: str) -> list[str]:
        return [one.message for one in found[code].related_information or ()]

    assert set(found) == {"copy-cause", "layout-copy-cause", "fusion-refused"}  # none for a counter
    assert ends("copy-cause") == ["%t reads the copy", "%x is copied"]
    assert ends("layout-copy-cause") == ["%f has the copy as its result", "%p is copied"]
    # Figures and names are of the text that is open, also where the dump told of an earlier stage.
    assert found["layout-copy-cause"].message.startswith(
        "layout copy: 2,048 bytes from {0,1} to {1,0} (by some-pass): "
    )
    later = COPIES.replace("%p = f32[8,64]{0,1}", "%p = f32[8,64]{0,1:T(8,128)}")
    index = ModuleIndex.from_text(later)
    other = Reading(companion.uri, 1, TextLines.of(later), index, Encoding.UTF16, companion)
    [moved] = [one for one in from_dump(other, Settings()) if one.code == "layout-copy-cause"]
    assert moved.message.startswith(
        "layout copy: 2,048 bytes from {0,1:T(8,128)} to {1,0} (by some-pass): the fastest dimension was 0 (size 8) and"
        " becomes 1 (size 64), 32,768 bytes with padding become 2,048; when it appeared, from {0,1} to {1,0}: so it is"
    )
    assert "an unknown number of bytes" in found["fusion-refused"].message
    assert list(from_dump(reading, Settings(refused_fusion_bytes=1))) == [
        found["copy-cause"],
        found["layout-copy-cause"],
    ]
