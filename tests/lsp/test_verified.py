"""The verifier on a large text: by another process as a whole, at once where an edit was."""

from __future__ import annotations

from typing import Any

import pytest

from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.text.reindex import reindexed
from hloscope.core.views.findings import findings_of_text, findings_of_whole_computations
from hloscope.lsp.documents import Reading
from hloscope.lsp.features.diagnostics import from_advice, from_checker, from_index
from hloscope.lsp.positions import Encoding, TextLines
from hloscope.lsp.verified import Verified

URI = "file:///large/verified.hlo"
SHAPE = "f32[8]{0}"


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """12,000 instructions in 40 computations, called one after the other."""
    lines, count = ["HloModule m", ""], 40
    for k in range(count):
        lines += [f"%f.{k} (p.{k}: f32[8]) -> f32[8] {{", f"  %p.{k} = {SHAPE} parameter(0)"]
        before = f"p.{k}"
        for n in range(300):
            root = "ROOT " if n == 299 else ""
            lines.append(f"  {root}%a.{k}.{n} = {SHAPE} add(%{before}, %p.{k})")
            before = f"a.{k}.{n}"
        lines += ["}", ""]
    lines += ["ENTRY %main (x: f32[8]) -> f32[8] {", f"  %x = {SHAPE} parameter(0)"]
    before = "x"
    for k in range(count):
        root = "ROOT " if k == count - 1 else ""
        lines.append(f"  {root}%c.{k} = {SHAPE} fusion(%{before}), kind=kLoop, calls=%f.{k}")
        before = f"c.{k}"
    return [*lines, "}", ""]


def findings(client: Any, version: int, *, until: int | None = None) -> list[tuple[str, int]]:
    """(code, line) of the first findings of a version, or of the first that are that many."""
    while True:
        found = client.diagnostics(URI, version)
        if until is None or len(found) == until:
            return sorted((one["code"], one["range"]["start"]["line"]) for one in found)


def replace(client: Any, version: int, line: int, old: str, lines: list[str], new: str) -> None:
    start = lines[line].index(old)
    where = {"start": {"line": line, "character": start}, "end": {"line": line, "character": start + len(old)}}
    client.change(URI, version, {"range": where, "text": new})
    lines[line] = lines[line].replace(old, new, 1)


def test_findings_of_a_large_text_come_stay_move_and_go(shared: Any, lines: list[str]) -> None:
    client, lines = shared.client, lines.copy()
    wrong, other = lines.index("%f.20 (p.20: f32[8]) -> f32[8] {") + 100, lines.index(f"  %p.7 = {SHAPE} parameter(0)")
    lines[wrong] = lines[wrong].replace("add(", "and(")
    client.open(URI, "\n".join(lines))
    assert findings(client, 1, until=1) == [("shape-of-and", wrong)]  # the other process
    # An edit elsewhere that is wrong, too: both are there at once, each where it is now.
    client.change(
        URI, 2, {"range": {"start": {"line": 1, "character": 0}, "end": {"line": 1, "character": 0}}, "text": "\n"}
    )
    lines.insert(1, "")
    wrong, other = wrong + 1, other + 1
    assert findings(client, 2, until=1) == [("shape-of-and", wrong)]
    replace(client, 3, other, "f32[8]", lines, "f32[9]")
    codes = findings(client, 3)
    assert ("shape-of-and", wrong) in codes and ("implicit-broadcast", other + 2) in codes
    call = next(n for n, line in enumerate(lines) if "calls=%f.7" in line)
    assert ("fusion-shape", call) in codes  # a finding where the edited computation is called
    replace(client, 4, other, "f32[9]", lines, "f32[8]")
    assert findings(client, 4, until=1) == [("shape-of-and", wrong)]
    replace(client, 5, wrong, "and(", lines, "add(")
    assert findings(client, 5, until=0) == []
    # What only the whole shows: the header promises the entry another result.
    result = "HloModule m, entry_computation_layout={(f32[8]{0})->f32[9]{0}}"
    replace(client, 6, 0, "HloModule m", lines, result)
    [(code, _)] = findings(client, 6, until=1)
    assert code == "entry-result"


class Edited:
    """A large text and its versions, without a client."""

    def __init__(self, text: str) -> None:
        self.verified, self.version, self.text = Verified(), 0, ""
        self.index = ModuleIndex.from_text(text)
        self.reading = self._read(text)

    def _read(self, text: str) -> Reading:
        self.text, self.version = text, self.version + 1
        lines = TextLines.of(text)
        return Reading(URI, self.version, lines, self.index, Encoding.UTF16, None, self.verified)

    def replace(self, old: str, new: str) -> None:
        at = self.text.index(old)
        text = self.text.replace(old, new, 1)
        self.index = reindexed(self.index, text, at, at + len(old)) or ModuleIndex.from_text(text)
        self.reading = self._read(text)

    def at_once(self, *, advice: bool = True) -> list[tuple[str, str]]:
        """Code of each finding a moment after the edit, and the line on which it is."""
        found, lines = from_index(self.reading, advice=advice), self.text.split("\n")
        assert found is not None
        return [(str(one.code), lines[one.range.start.line].split()[0]) for one in found]


def test_what_was_said_of_a_large_text_stands_until_the_next_answer(lines: list[str]) -> None:
    copy, dead = "  %turned = f32[8,8]{0,1} copy(%square)", "  %dead = f32[8]{0} negate(%x)"
    at = next(n for n, line in enumerate(lines) if line.startswith("  %c.0 "))
    square = "  %square = f32[8,8]{1,0} broadcast(%x), dimensions={0}"
    kept = '  %kept = f32[8]{0} custom-call(%turned), custom_call_target="sink"'
    text = "\n".join([*lines[:at], square, copy, dead, kept, *lines[at:]])
    edited = Edited(text)
    assert from_advice(edited.reading) is not None
    said = text.index("%a.7.10 = ")
    row = ["a sentence of the reader", "warning", "read", said, said + len("%a.7.10"), []]
    edited.verified.take(edited.reading, {"reader": [row], "broken": []})
    hints = [("layout-copy", "%turned"), ("dead-instruction", "%dead")]
    assert from_checker(edited.reading) is not None
    for old, new in (("HloModule m\n", "HloModule m\n\n"), ("add(%a.3.9", "add( %a.3.9"), ("%c.9)", "%c.9 )")):
        edited.replace(old, new)
        assert edited.at_once() == [("read", "%a.7.10"), *hints]  # moved with the text, in what was edited, too
    assert edited.at_once(advice=False) == [("read", "%a.7.10")]
    edited.replace("negate(%x)", "negate(%x")
    assert ("layout-copy", "%turned") in edited.at_once()  # half typed
    edited.replace("negate(%x", "negate(%x)")
    assert edited.at_once() == [("read", "%a.7.10"), *hints]
    edited.replace("fusion(%x)", "fusion(%dead)")
    assert edited.at_once() == [("read", "%a.7.10"), hints[0]]  # used by now
    edited.replace("[8,8]{0,1} copy", "[8,8]{1,0} copy")
    edited.replace("add(%a.7.9", "and(%a.7.9")
    edited.replace("and(%a.7.9", "add( %a.7.9")
    assert edited.at_once() == []
    edited.replace("add(%a.5.9", "addd(%a.5.9")
    edited.replace("add(%a.6.9", "addd(%a.6.9")
    assert edited.at_once() == [("unknown-opcode", "%a.5.10"), ("unknown-opcode", "%a.6.10")]


HALF = """HloModule half

%callee (q: f32[4]) -> f32[4] {
  %q = f32[4]{0} parameter(0), metadata={op_name="größe🚀/x"}
  ROOT %r = f32[4]{0} negate(%q)
}

%other (s: f32[4]) -> f32[4] {
  %s = f32[4]{0} parameter(0)
  ROOT %k = f32[4]{0} call(%s), to_apply=%callee
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %b = f32[4]{0} add(%x, %x)
  %k2 = f32[4]{0} call(%b), to_apply=%other
  ROOT %z = f32[4]{0} subtract(%k2, %x)
}
"""


@pytest.mark.parametrize(("old", "new"), [("(%k2, %x)", "(%k3, %x)"), ("add(%x, %x)", "add(%x, "), ("x)\n}\n", "x)\n")])
def test_a_fault_in_one_computation_hides_nothing_in_the_others(shared: Any, old: str, new: str) -> None:
    client, uri = shared.client, f"file:///half{len(new)}.hlo"
    text = HALF.replace("negate(%q)", "negate(%q, %q)")
    client.open(uri, text.replace(old, new))
    found = client.diagnostics(uri, 1)
    assert len(found) == 2
    assert ("operand-count", 4) in [(one["code"], one["range"]["start"]["line"]) for one in found]


def test_a_missing_last_brace_hides_nothing_in_front_of_it() -> None:
    text = HALF.removesuffix("}\n").replace("f32[4]{0} subtract(%k2, %x)", "f32[5]{0} subtract(%k2, %x)")
    index = ModuleIndex.from_text(text)
    assert [one.code for one in index.errors] == ["truncated"]
    assert ("shape-mismatch", "main") in [(one.code, one.computation) for one in findings_of_whole_computations(index)]
    undefined = ModuleIndex.from_text(text.replace("(%k2, %x)", "(%k2, %y)"))
    assert [one.message for one in undefined.errors][1:] == ["instruction y is not defined"]


def test_what_calls_a_computation_with_a_fault_is_left_out() -> None:
    def codes(text: str) -> list[tuple[str, str | None]]:
        found = findings_of_whole_computations(ModuleIndex.from_text(text))
        return [(one.code, one.computation) for one in found]

    # The fault of %main shows, that of %other would need %callee as it will be.
    text = HALF.replace("ROOT %k = f32[4]{0}", "ROOT %k = f32[5]{0}").replace("f32[4]{0} add", "f32[5]{0} add")
    assert {computation for _, computation in codes(text)} == {"other", "main"}
    assert codes(text.replace("negate(%q)", "negate(%qq)")) == []
    assert codes(text.replace("HloModule half", "HloModule half, is_sche={")) == []


def test_half_typed_text_has_no_false_findings() -> None:
    assert not findings_of_text(HALF).reader and not findings_of_text(HALF).broken
    for at in range(0, len(HALF), 3):
        rest = HALF.find("\n", at)
        for text in (HALF[:at], HALF[:at] + HALF[rest:]):
            index = ModuleIndex.from_text(text)
            faults = [one.offset for one in findings_of_text(text).reader if one.severity == "error"]
            if index.errors or faults:
                assert findings_of_whole_computations(index, () if index.errors else faults) == [], text[:at][-40:]
