"""Completion, hints, lenses, hierarchies, actions, formatting, jumps across passes: end to end on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.lsp.conftest import Process

from hloscope.core.text import load_module

URI = "file:///more.hlo"
TEXT = """HloModule more

%sum (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %s = f32[] add(%p, %q)
}

ENTRY %main (x: f32[64,64], y: bf16[64,4096]) -> f32[64] {
  %x = f32[64,64]{1,0} parameter(0)
  %y = bf16[64,4096]{1,0} parameter(1)
  %dead = f32[64,64]{1,0} negate(%x)
  %turned = f32[64,64]{0,1} copy(%x)
  %low = bf16[64,64]{0,1} convert(%turned)
  %back = f32[64,64]{0,1} convert(%low)
  %zero = f32[] constant(0)
  ROOT %r = f32[64]{0} reduce(%back, %zero), dimensions={1}, to_apply=%sum
}
"""
LINES = TEXT.split("\n")


@pytest.fixture(scope="module")
def advised() -> Iterator[Any]:
    process = Process()
    process.client.initialize(advice=True, snippets=True)
    process.client.open(URI, TEXT)
    yield process.client
    process.client.request("shutdown")
    process.client.notify("exit")
    assert process.wait() == 0
    assert process.log == ""


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(LINES) if text in line)


def document(uri: str = URI) -> dict[str, str]:
    return {"uri": uri}


def whole() -> dict[str, Any]:
    return {"start": {"line": 0, "character": 0}, "end": {"line": len(LINES), "character": 0}}


def test_advice_is_given_where_nothing_is_wrong(advised: Any) -> None:
    found = advised.diagnostics(URI, 1)
    assert {(one["code"], one["range"]["start"]["line"]) for one in found} == {
        ("dead-instruction", line_of("%dead")),
        ("layout-copy", line_of("%turned = ")),
        ("convert-round-trip", line_of("%back = ")),
    }
    assert all(one["severity"] >= 3 for one in found)
    copy = next(one for one in found if one["code"] == "layout-copy")
    assert "16,384 bytes from {1,0} to {0,1}" in copy["message"]
    assert copy["relatedInformation"][0]["location"]["range"]["start"]["line"] == line_of("%x = ")


def test_the_verifier_s_findings_are_errors_at_the_instruction(advised: Any) -> None:
    uri = "file:///wrong.hlo"
    advised.open(uri, TEXT.replace("f32[64,64]{1,0} negate(%x)", "f32[32,64]{1,0} negate(%x)"))
    errors = {one["code"]: one for one in advised.diagnostics(uri, 1) if one["severity"] == 1}
    assert {"shape-mismatch"} <= set(errors)
    assert all(one["range"]["start"] == {"line": line_of("%dead"), "character": 3} for one in errors.values())
    assert "f32[64,64]" in errors["shape-mismatch"]["message"]
    # One fault is said once, though advice would find it too.
    uri = "file:///replicas.hlo"
    line = "  %dead = f32[64,64]{1,0} all-reduce(%x), replica_groups={{0,7}}, to_apply=%sum"
    old = next(one for one in LINES if "%dead = " in one)
    advised.open(uri, TEXT.replace("HloModule more", "HloModule more, replica_count=2").replace(old, line))
    assert [one["code"] for one in advised.diagnostics(uri, 1) if one["severity"] <= 2] == ["replica-groups"]
    # Names need be unique in their computation only, as in most texts that are written by hand.
    uri = "file:///alike.hlo"
    alike = "add1 {\n  p0 = f32[] parameter(0)\n  p1 = f32[] parameter(1)\n  ROOT r = f32[] add(p0, p1)\n}\n"
    main = "ENTRY main {\n  p0 = f32[4] parameter(0)\n  z = f32[] constant(0)\n"
    main += "  ROOT r = f32[] reduce(p0, z), dimensions={0}, to_apply=add1\n}\n"
    advised.open(uri, f"HloModule alike\n\n{alike}\n{main}")
    assert advised.diagnostics(uri, 1) == []


def complete(client: Any, typed: str) -> list[dict[str, Any]]:
    uri = f"file:///typed{abs(hash(typed))}.hlo"
    lines = [*LINES[: line_of("ROOT %r")], typed, *LINES[line_of("ROOT %r") :]]
    client.open(uri, "\n".join(lines))
    answer = client.at("completion", uri, line_of("ROOT %r"), len(typed))
    return answer["items"] if answer is not None else []


def test_completion_knows_opcodes_operands_attributes_and_computations(advised: Any) -> None:
    opcodes = {one["label"]: one for one in complete(advised, "  %new = f32[64]{0} red")}
    assert (
        opcodes["reduce"]["textEdit"]["newText"].endswith("dimensions=$2, to_apply=$3")
        or "to_apply=" in (opcodes["reduce"]["textEdit"]["newText"])
    )
    assert opcodes["dot"]["detail"]
    operands = [one["label"] for one in complete(advised, "  %new = f32[64,64]{1,0} add(%x, %")]
    assert operands[0] == "%back" and set(operands[:4]) == {"%back", "%turned", "%dead", "%x"}, "fitting shapes first"
    assert "%low" in operands[4:] and "%p" not in operands, "only what is in scope"
    attributes = [one["label"] for one in complete(advised, "  %new = f32[64]{0} reduce(%x, %zero), dimensions={1}, ")]
    assert attributes[0] == "to_apply" and "dimensions" not in attributes and "metadata" in attributes
    assert "direction" not in attributes
    called = [one["label"] for one in complete(advised, "  %new = f32[64]{0} reduce(%x, %zero), to_apply=%")]
    assert called == ["%sum"]
    assert complete(advised, "  %new = ") == []


@pytest.mark.parametrize(
    ("typed", "labels"),
    [
        ("%f = f32[2] fusion(%x), kind=", ["kLoop", "kInput", "kOutput", "kCustom"]),
        ("%c = pred[2] compare(%x, %x), direction=G", ["EQ", "NE", "GE", "GT", "LE", "LT"]),
        ("%s = f32[2] sort(%x), is_stable=", ["true", "false"]),
        ("%d = f32[2] dot(%x, %x), operand_precision={default,hi", ["default", "high", "highest", "packed_nibble"]),
        ("%g = u32[2] rng-bit-generator(%x), algorithm=", ["rng_default", "rng_three_fry", "rng_philox"]),
        ("%b = f32[2] broadcast(%x), dimensions=", []),
        ("%r = f32[] reduce(%x, %zero), to_apply=%s", ["%sum"]),
    ],
)
def test_completion_knows_the_words_of_attributes(advised: Any, typed: str, labels: list[str]) -> None:
    assert [one["label"] for one in complete(advised, f"  {typed}")] == labels


FITS = """HloModule fits

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%body (q: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  ROOT %q = (s32[], f32[8,4]{1,0}) parameter(0)
}

%cond (p: (s32[], f32[8,4])) -> pred[] {
  %p = (s32[], f32[8,4]{1,0}) parameter(0)
  ROOT %k = pred[] constant(false)
}

ENTRY %main (x: f32[8,16], w: f32[16,4], idx: s32[8]) -> f32[8,4] {
  %x = f32[8,16]{1,0} parameter(0)
  %w = f32[16,4]{1,0} parameter(1)
  %idx = s32[8]{0} parameter(2)
  %z = s32[] constant(0)
  %zero = f32[] constant(0)
  %d = f32[8,4]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %m = pred[8,4]{1,0} compare(%d, %d), direction=EQ
  %init = (s32[], f32[8,4]{1,0}) tuple(%z, %d)
"""


def test_completion_has_first_what_fits_the_opcode(shared: Any) -> None:
    uri, line = "file:///fits.hlo", FITS.count("\n")
    shared.client.open(uri, FITS)
    for version, (typed, first) in enumerate(
        {
            "f32[16,8] transpose(": "%x",
            "f32[16,8] transpose(%x, ": "",
            "s32[8] get-tuple-element(": "%init",
            "s32[] get-tuple-element(": "%init",
            "f32[8] reduce(": "%d %x",
            "f32[8] reduce(%d, ": "%zero",
            "f32[1,4] dynamic-slice(": "%d %w",
            "f32[1,4] dynamic-slice(%d, %": "%z",
            "f32[1,4] dynamic-slice(%d, %z, ": "%z",
            "f32[8,4] dot(": "%d %x",
            "f32[8,4] dot(%x, ": "%w",
            "f32[128] reshape(": "%x",
            "f32[8,4,2] broadcast(": "%d %zero",
            "s32[8,4] convert(": "%m %d",
            "f32[8,4] select(": "%m",
            "f32[8,4] select(%m, ": "%d",
            "f32[8,4] exponential(": "%d",
            "pred[8] compare(": "%idx",
            "(f32[8,4], s32[]) tuple(": "%d",
            "(f32[8,4], s32[]) tuple(f32[8,4]{1,0} %d, ": "%z",
            "f32[8,4] gather(%x, ": "%z %idx",
            "f32[8,20] concatenate(%x, ": "%d %x",
            "f32[9,5] pad(%d, ": "%zero",
            "(s32[], f32[8,4]) while(": "%init",
            "(s32[], f32[8,4]) while(%init), body=": "%body",
            "(s32[], f32[8,4]) while(%init), body=%body, condition=": "%cond",
            "f32[8] reduce(%d, %zero), to_apply=": "%add",
            'f32[8,4] negate(%d), metadata={op_name="': None,
            'f32[8,4] custom-call(%d), custom_call_target="a': None,
            'f32[8,4] custom-call(%d), custom_call_target="a\\"b': None,
            'f32[8,4] negate(%d), metadata={op_name="a,"}, ': "sharding",
        }.items()
    ):
        text = f"  %v = {typed}"
        shared.client.change(uri, version + 2, {"text": FITS + text})
        answer = shared.client.at("completion", uri, line, len(text))
        labels = [one["label"] for one in (answer or {"items": []})["items"]]
        if first is None:
            assert answer is None, typed
        else:
            assert labels[: len(first.split())] == first.split(), (typed, labels)


CALLS = """HloModule calls

%used (a: f32[8], b: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} parameter(1)
  ROOT %c = f32[8]{0} add(%a, %b)
}

%fresh (d: f32[8], e: s32[4]) -> f32[8] {
  %d = f32[8]{0} parameter(0)
  %e = s32[4]{0} parameter(1)
  ROOT %g = f32[8]{0} negate(%d)
}

ENTRY %main (x: f32[8], k: s32[4], h: f32[4]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %k = s32[4]{0} parameter(1)
  %h = f32[4]{0} parameter(2)
  %u = f32[8]{0} fusion(%x, %x), kind=kLoop, calls=%used
  %t = pred[] constant(true)
"""


def test_completion_ranks_the_operands_of_what_calls(shared: Any) -> None:
    """By the computation named on the line, by those that would give the result, by the line's own constraint."""
    uri, line = "file:///calls.hlo", CALLS.count("\n")
    shared.client.open(uri, CALLS)
    for version, (typed, behind, order) in enumerate(
        [
            ("f32[8] fusion(%x, ", "), kind=kLoop, calls=%fresh", "%k %h %t %u %x"),
            ("f32[8] call(%x, ", "), to_apply=used", "%u %x %h %t %k"),
            ("f32[8] fusion(", "", "%u %x %h %t %k"),
            ("f32[8] fusion(%x, ", "", "%k %h %t %u %x"),  # %fresh is called by nothing yet
            ("f32[4] fusion(", "", "%t %u %h %k %x"),  # nothing gives that: the nearest first
            ("f32[8] custom-call(", "", "%t %u %h %k %x"),
            (
                "f32[8] custom-call(%x, ",
                '), custom_call_target="c", operand_layout_constraints={f32[8]{0}, s32[4]{0}}',
                "%k %h %t %u %x",
            ),
        ]
    ):
        text = f"  %v = {typed}"
        shared.client.change(uri, version + 2, {"text": CALLS + text + behind})
        answer = shared.client.at("completion", uri, line, len(text))
        assert " ".join(one["label"] for one in answer["items"]) == order, (typed, behind)


def test_completion_goes_on_after_a_value(advised: Any) -> None:
    labels = [one["label"] for one in complete(advised, "  %r = f32[64] reduce(%back, %zero), to_apply=%sum, dim")]
    assert labels[0] == "dimensions" and "%sum" not in labels


def test_a_client_without_snippets_gets_none(shared: Any) -> None:
    opcodes = {one["label"]: one for one in complete(shared.client, "  %new = f32[64]{0} red")}
    assert opcodes["reduce"]["textEdit"]["newText"] == "reduce("
    assert all("$" not in one["textEdit"]["newText"] for one in opcodes.values())


def test_completion_reaches_all_of_a_long_computation(shared: Any) -> None:
    many = "".join(f"  %n{k} = f32[2] negate(%{'p' if k == 0 else f'n{k - 1}'})\n" for k in range(900))
    text = f"HloModule m\nENTRY %e (p: f32[2]) -> f32[2] {{\n  %p = f32[2] parameter(0)\n{many}  %x = f32[2] add(%n3"
    shared.client.open("file:///long.hlo", text)
    answer = shared.client.at("completion", "file:///long.hlo", 903, len("  %x = f32[2] add(%n3"))
    labels = [one["label"] for one in answer["items"]]
    assert labels[0] == "%n399" and "%n3" in labels and not answer["isIncomplete"]


def test_inlay_hints_show_operand_shapes(advised: Any) -> None:
    found = advised.request("textDocument/inlayHint", {"textDocument": document(), "range": whole()})
    line = line_of("ROOT %r")
    hints = [one for one in found if one["position"]["line"] == line]
    assert [one["label"].strip() for one in hints] == ["f32[64,64]{0,1}", "f32[]"]
    assert hints[0]["position"]["character"] == LINES[line].index("%back")


def test_inlay_hints_name_the_parameters_of_what_is_called(shared: Any) -> None:
    uri = "file:///called.hlo"
    text = """HloModule m

%body (base: f32[2], step: f32[2], param_2: f32[2]) -> f32[2] {
  %base = f32[2] parameter(0)
  %step = f32[2] parameter(1)
  %param_2 = f32[2] parameter(2)
  ROOT %sum = f32[2] add(%base, %step)
}

ENTRY %main (x: f32[2], step: f32[2]) -> f32[2] {
  %x = f32[2] parameter(0)
  %step = f32[2] parameter(1)
  ROOT %f = f32[2] fusion(f32[2] %x, f32[2] %x, f32[2] %step), kind=kLoop, calls=%body
}
"""
    shared.client.open(uri, text)
    found = shared.client.request("textDocument/inlayHint", {"textDocument": document(uri), "range": whole()})
    line = next(one for one in text.split("\n") if "fusion(" in one)
    at = [line.index("%x,"), line.index("%x, f32[2] %step")]
    # param_2 says no more than the place does.
    assert [(one["label"], one["position"]["character"]) for one in found if one["kind"] == 2] == [
        ("base: ", at[0]), ("step: ", at[1]),
    ]  # fmt: skip


def test_lenses_count_callers(advised: Any) -> None:
    found = advised.request("textDocument/codeLens", {"textDocument": document()})
    assert [one["command"]["title"] for one in found] == ["1 caller · 3 instructions", "entry · 8 instructions"]


def test_the_call_hierarchy_goes_both_ways(advised: Any) -> None:
    (item,) = advised.at("prepareCallHierarchy", URI, line_of("%sum (p"), 2)
    assert item["name"] == "sum"
    (caller,) = advised.request("callHierarchy/incomingCalls", {"item": item})
    assert caller["from"]["name"] == "main"
    assert caller["fromRanges"][0]["start"]["line"] == line_of("ROOT %r")
    (callee,) = advised.request("callHierarchy/outgoingCalls", {"item": caller["from"]})
    assert callee["to"]["name"] == "sum"
    assert advised.request("callHierarchy/outgoingCalls", {"item": item}) == []


def test_selection_grows_from_the_word_to_everything(advised: Any) -> None:
    line = line_of("ROOT %r")
    position = {"line": line, "character": LINES[line].index("%back") + 2}
    (found,) = advised.request("textDocument/selectionRange", {"textDocument": document(), "positions": [position]})
    texts = []
    while found is not None:
        first, last = found["range"]["start"], found["range"]["end"]
        one = (first["line"] == last["line"]) and LINES[line][first["character"] : last["character"]]
        texts.append(one or (first["line"], last["line"]))
        found = found.get("parent")
    assert texts == [
        "back", "%back", "%back, %zero", LINES[line].strip(), (line_of("ENTRY"), line + 1), (0, len(LINES) - 1),
    ]  # fmt: skip


def test_a_name_is_edited_everywhere_at_once(advised: Any) -> None:
    line = line_of("%turned = ")
    found = advised.at("linkedEditingRange", URI, line, 4)
    assert sorted(one["start"]["line"] for one in found["ranges"]) == [line, line_of("%low = ")]
    assert advised.at("linkedEditingRange", URI, 0, 0) is None


def test_formatting_gives_the_printer_s_text_and_leaves_errors_alone(advised: Any) -> None:
    uri = "file:///ugly.hlo"
    advised.open(uri, TEXT.replace("  %zero = f32[] constant(0)", "       zero=f32[]   constant( 0 )"))
    options = {"tabSize": 2, "insertSpaces": True}
    (edit,) = advised.request("textDocument/formatting", {"textDocument": document(uri), "options": options})
    assert "  %zero = f32[] constant(0)\n" in edit["newText"]
    assert load_module(edit["newText"]).instruction_count == load_module(TEXT).instruction_count
    remarked = "file:///remarked.hlo"
    text = TEXT.replace("  %zero = f32[] constant(0)", "  // kept\n       %zero=f32[]   constant(0) // too")
    advised.open(remarked, text)
    edits = advised.request("textDocument/formatting", {"textDocument": document(remarked), "options": options})
    changed = [(one["range"]["start"], one["newText"]) for one in edits]
    line = next(k for k, one in enumerate(text.split("\n")) if "// too" in one)
    assert changed == [({"line": line, "character": 0}, "  %zero = f32[] constant(0)")]
    broken = "file:///broken.hlo"
    advised.open(broken, TEXT.replace("negate(%x)", "negate(%x"))
    with pytest.raises(Exception, match="errors"):
        advised.request("textDocument/formatting", {"textDocument": document(broken), "options": options})


def actions(client: Any, uri: str, line: int, character: int) -> dict[str, dict[str, Any]]:
    position = {"line": line, "character": character}
    params = {
        "textDocument": document(uri),
        "range": {"start": position, "end": position},
        "context": {"diagnostics": []},
    }
    return {one["title"]: one for one in client.request("textDocument/codeAction", params)}


def test_dead_code_is_removed_and_a_computation_extracted(advised: Any, tmp_path: Path) -> None:
    found = actions(advised, URI, line_of("ROOT %r"), 8)
    (edit,) = found["Remove 1 instruction that nothing uses"]["edit"]["changes"][URI]
    assert (edit["range"]["start"]["line"], edit["newText"]) == (line_of("%dead"), "")
    longer = "file:///longer.hlo"
    last = next(one for one in LINES if "%dead = " in one)
    advised.open(longer, TEXT.replace(last, f"{last}\n  %deader = f32[64,64] abs(%dead)"))
    (both,) = (one for title, one in actions(advised, longer, 0, 0).items() if title.startswith("Remove 2 "))
    assert [one["range"]["start"]["line"] for one in both["edit"]["changes"][longer]] == [
        line_of("%dead"), line_of("%dead") + 1,
    ]  # fmt: skip
    changes = found["Extract %sum to a module of its own"]["edit"]["documentChanges"]
    assert changes[0]["uri"].endswith("more.sum.hlo")
    module = load_module(changes[1]["edits"][0]["newText"])
    assert (module.entry.name, module.instruction_count) == ("sum", 3)
    # A file that is there is somebody's.
    mine = tmp_path / "mine.hlo"
    advised.open(mine.as_uri(), TEXT)
    (tmp_path / "mine.sum.hlo").write_text("old")
    found = actions(advised, mine.as_uri(), line_of("ROOT %r"), 8)
    changes = found["Extract %sum to a module of its own"]["edit"]["documentChanges"]
    assert changes[0]["uri"] == (tmp_path / "mine.sum.1.hlo").as_uri()
    assert changes[0]["options"] == {"overwrite": False, "ignoreIfExists": False}


def test_the_same_instruction_is_found_in_other_stages(advised: Any, tmp_path: Path) -> None:
    stem = "module_0001.jit_f"
    texts = {
        f"{stem}.before_optimizations.txt": TEXT.replace("%back", "%other"),
        f"{stem}.0001.pipe.after_algsimp.before_dce.txt": TEXT,
        f"{stem}.0002.pipe.after_dce.before_cse.txt": TEXT.replace("%dead = ", "%gone = "),
        f"{stem}.cpu_after_optimizations.txt": TEXT,
    }
    files = []
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        files.append((tmp_path / name).as_uri())
    advised.open(files[1], TEXT)

    def go(command: str, name: str) -> tuple[str, int] | None:
        params = {"command": f"hloscope.{command}", "arguments": [files[1], name, 0]}
        found = advised.request("workspace/executeCommand", params)
        if found is None:
            return None
        at, end = found["range"]["start"], found["range"]["end"]
        line = texts[found["uri"].rpartition("/")[2]].split("\n")[at["line"]]
        assert not name or line.lstrip().startswith(f"%{line[at['character'] : end['character']]} = ")
        return found["uri"], at["line"]

    assert go("nextStage", "back") == (files[2], line_of("%back = "))
    # Where a pass has renamed it, too.
    assert go("nextStage", "dead") == (files[2], line_of("%dead = "))
    assert go("previousStage", "back") == go("firstStage", "back") == (files[0], line_of("%back = "))
    assert go("previousStage", "nothing") is None
    assert advised.wait_for("window/showMessage")["message"] == "no earlier stage has %nothing"
    assert go("openFusion", "back") is None
    assert advised.wait_for("window/showMessage")["message"] == "%back is in no fusion of the last stage"
    assert go("firstStage", "turned") == (files[0], line_of("%turned = "))
    assert go("lastStage", "back") == (files[3], line_of("%back = "))
    assert go("nextStage", "") == (files[2], 0)
    titles = [
        one["command"]["title"]
        for one in advised.request("textDocument/codeLens", {"textDocument": document(files[1])})
    ]
    assert titles[:4] == ["[1] stage 2 of 4 after algsimp", "◀ previous", "next ▶", "1 renamed · diff"]
    assert "renamed by algsimp, was %other · diff · 1 user" in titles


def test_an_instruction_that_ended_up_in_several_fusions_is_offered_in_each(advised: Any, tmp_path: Path) -> None:
    row = 'ROOT %{} = f32[8]{{0}} cosine(%p), metadata={{op_name="jit(f)/cos"}}'
    body = "%{} {{\n  %p = f32[8]{{0}} parameter(0)\n  " + row + "\n}}\n\n"
    before = "HloModule m\n\nENTRY %e {\n  %p = f32[8]{0} parameter(0)\n  " + row.format("cos.1") + "\n}\n"
    after = "HloModule m\n\n" + body.format("one", "cos.7") + body.format("two", "cos.8")
    after += "ENTRY %e {\n  %p = f32[8]{0} parameter(0)\n  %f = f32[8]{0} fusion(%p), kind=kLoop, calls=%one\n"
    after += "  ROOT %g = f32[8]{0} fusion(%f), kind=kLoop, calls=%two\n}\n"
    first, last = (
        tmp_path / f"module_0001.jit_f.{name}.txt" for name in ("before_optimizations", "cpu_after_optimizations")
    )
    first.write_text(before)
    last.write_text(after)
    advised.open(first.as_uri(), before)
    params = {"command": "hloscope.openFusion", "arguments": [first.as_uri(), "cos.1"]}
    found = advised.request("workspace/executeCommand", params)
    asked = advised.wait_for("window/showMessageRequest")
    assert asked["message"] == "%cos.1 is in 2 fusions of the last stage: %f, %g"
    assert [one["title"] for one in asked["actions"]] == ["%f", "%g"]
    # This client chooses none.
    assert [one["range"]["start"]["line"] for one in found] == [14, 15]
    assert found[0]["range"] == {"start": {"line": 14, "character": 3}, "end": {"line": 14, "character": 4}}
    params["arguments"] = [last.as_uri(), "cos.8"]
    assert advised.request("workspace/executeCommand", params)["range"]["start"]["line"] == 15
    # Back from each copy to the one that was copied.
    advised.open(last.as_uri(), after)
    for name in ("cos.7", "cos.8"):
        params = {"command": "hloscope.previousStage", "arguments": [last.as_uri(), name]}
        found = advised.request("workspace/executeCommand", params)
        assert (found["uri"], found["range"]["start"]["line"]) == (first.as_uri(), 4)


def test_links_lead_to_files_that_exist(advised: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("x = 1\n")
    uri = "file:///linked.hlo"
    text = TEXT.replace("negate(%x)", f'negate(%x), metadata={{source_file="{script}" source_line=7}}').replace(
        "copy(%x)", 'copy(%x), metadata={source_file="/nowhere/else.py" source_line=1}'
    )
    advised.open(uri, text)
    (link,) = advised.request("textDocument/documentLink", {"textDocument": document(uri)})
    assert link["target"] == f"{script.as_uri()}#L7"
    assert link["range"]["start"]["line"] == line_of("%dead")
