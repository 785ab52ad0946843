"""The columnar index: every form of HLO text, broken text, and agreement with XLA's own parser."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloscope.core.text.module_index import ModuleIndex

STAGES = Path(__file__).resolve().parents[3] / "fixtures" / "stages"
FILES = sorted(STAGES.glob("*.txt"))


def index(text: str) -> ModuleIndex:
    return ModuleIndex.from_text(text)


def check_invariants(ix: ModuleIndex) -> None:
    """What holds for every text, right or wrong."""
    c, n = ix.columns, ix.instruction_count
    assert np.all(c.starts <= c.names) and np.all(c.names < c.name_ends) and np.all(c.name_ends <= c.ends)
    assert np.all(c.operand_starts <= c.operand_ends) and np.all(c.ends <= len(ix.source))
    assert len(c.operand_rows) == n + 1 and int(c.operand_rows[-1]) == len(c.operands)
    assert len(c.call_rows) == n + 1 and int(c.call_rows[-1]) == len(c.calls)
    covered = [i for comp in ix.computations for i in range(comp.begin, comp.end)]
    assert covered == list(range(n))
    for i in range(min(n, 40)):
        assert re.fullmatch(r"[A-Za-z0-9_.\-]+", ix.name(i))
        assert ix.text(i).removeprefix("ROOT").lstrip().removeprefix("%").startswith(ix.name(i))
        begin, end = ix.computation(ix.computation_of(i)).begin, ix.computation(ix.computation_of(i)).end
        for k in ix.operands(i):
            assert k == -1 or (begin <= k < end and i in ix.users(k))
    for d in ix.diagnostics:
        assert 0 <= d.offset <= d.end_offset <= len(ix.source) and d.line >= 1 and d.message
    for offset in range(0, len(ix.source) + 1, max(1, len(ix.source) // 20)):
        target = ix.at_offset(offset)
        assert target.span[0] <= target.span[1]
        assert ix.offset(*ix.position(offset)) <= offset


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_real_stage_is_indexed_without_findings(path: Path) -> None:
    ix = index(path.read_text())
    assert ix.diagnostics == () and not ix.truncated
    assert ix.instruction_count == len(re.findall(r"^  (?:ROOT )?%?[\w.\-]+ = ", ix.source, re.M))
    assert ix.entry is not None and ix.entry.is_entry and ix.module_name.startswith("jit_")
    assert (ix.columns.operands >= 0).all() and (ix.columns.calls >= 0).all()
    check_invariants(ix)


FORMS = {
    "percent": ("HloModule m\nENTRY %e (p: f32[4]) -> f32[4] {\n  %p = f32[4]{0} parameter(0)\n"
                "  ROOT %n = f32[4]{0} negate(f32[4]{0} %p)\n}\n"),
    "bare": "HloModule m\nENTRY e {\n  p = f32[4]{0} parameter(0)\n  ROOT n = f32[4]{0} negate(p)\n}\n",
    "one line": "HloModule m ENTRY e { p = f32[4]{0} parameter(0) ROOT n = f32[4]{0} negate(p) }",
    "tabs": ("HloModule m\nENTRY\te\t(p: f32[4])\t->\tf32[4] {\n\tp = f32[4] parameter(0)\n"
             "\tROOT n =\tf32[4]\tnegate(\tp )\n}"),
    "no blanks": "HloModule m\nENTRY e{%p=f32[4]{0} parameter(0)\nROOT %n=f32[4]{0} negate(%p)}",
    "comments": ("HloModule m // tail\n/* block\n over lines */\nENTRY e { // c\n  p = f32[4] /*inline*/ parameter(0)\n"
                 "  ROOT n = f32[4] negate(/*op*/p)\n} // e\n"),
    "several lines": ("HloModule m\nENTRY e {\n  p = f32[4]\n    parameter(0)\n"
                      "  ROOT n = f32[4]{0}\n    negate(\n  p)\n}\n"),
    "no shape": "HloModule m\nENTRY e {\n  p = f32[4] parameter(0)\n  ROOT n = negate(p)\n}\n",
    "thread": ("HloModule m\nENTRY e {\n  p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p)\n"
               '}, execution_thread="main"\n'),
    "late": "HloModule m\nENTRY e {\n  ROOT n = f32[4] negate(p)\n  p = f32[4] parameter(0)\n}\n",
    "carriage returns": "HloModule m\r\nENTRY e {\r\n  p = f32[4] parameter(0)\r\n  ROOT n = f32[4] negate(p)\r\n}\r\n",
    "colon": "HloModule m:\n\nENTRY e {\n  p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p:)\n}\n",
    "no entry word": "HloModule m\ne {\n  p = f32[4] parameter(0)\n  ROOT n = f32[4] negate(p)\n}\n",
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_index(form: str) -> None:
    ix = index(FORMS[form])
    assert ix.diagnostics == ()
    assert sorted(ix.names) == ["n", "p"]
    n, p = ix.find("n"), ix.find("p")
    assert n is not None and p is not None
    assert ix.opcode(n) == "negate" and ix.operands(n) == [p] and ix.users(p) == [n]
    assert ix.entry is not None and ix.entry.name == "e" and ix.entry.root == n
    check_invariants(ix)


@pytest.mark.parametrize(
    "line",
    [
        'c = f32[4] custom-call(p), custom_call_target="a}b{\\"x", backend_config="{\\"k\\":1}"',
        "c = f32[4] custom-call(p), backend_config='raw {not json'",
        'c = f32[4] custom-call(p), backend_config={"outer":{"s":"a}b{","l":[1,2,{}]}}',
        'c = f32[4] custom-call(p), frontend_attributes={cfg={n = 1 : i32, t = dense<1> : tensor<i32>}, e=""}',
        'c = f32[4] copy(p), metadata={op_name="two\nlines" stack_frame_id=1}',
        "c = (f32[4]{0:T(8,128)(2,1)S(1)}, (s32[], /*index=1*/pred[])) custom-call(p, /*index=1*/p)",
        "c = f32[4]{0} all-gather(p), replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}",
        "c = f32[4]{0} all-gather(p), replica_groups=mesh['a'=2,'b'=4] {'a'}, dimensions={0}",
        "c = f32[4] copy(p),\n    sharding={devices=[2,1]<=[2]},\n    control-predecessors={p}",
        "c = b(f32[4]{0}) custom-call(p)",
        "c = f32[4] copy(\n  p) ,\n  x={1}\n  ,  y={2}",
        'c = f32[4] copy(p), metadata={op_name="a // b = c"}',
        'c = f32[4] copy(p), metadata={op_name="a\\\\"}',
    ],
)
def test_awkward_instructions_are_taken_whole(line: str) -> None:
    text = f"HloModule m\nENTRY e {{\n  p = f32[4] parameter(0)\n  {line}\n  ROOT n = f32[4] negate(p)\n}}\n"
    ix = index(text)
    assert ix.diagnostics == () and ix.names == ["p", "c", "n"]
    assert ix.text(1) == line and set(ix.operands(1)) == {0}
    check_invariants(ix)


def test_literals_and_parameters_are_no_operands() -> None:
    text = "HloModule m\nENTRY e {\n a = s32[2,2] constant({ {1, 2}, /*i0=1*/{3, 4} })\n ROOT p = f32[] parameter(0)\n}"
    ix = index(text)
    assert [ix.operands(i) for i in range(2)] == [[], []] and ix.diagnostics == ()


def test_header_over_several_lines_with_a_whole_module_in_a_string() -> None:
    text = (
        "HloModule m, is_scheduled=true, entry_computation_layout={(f32[])->f32[]}, origin_recovery_table={\n"
        '  {"old"} : {"new"},\n  "\n  HloModule rec\n\n  ENTRY r (q: s32[2]) -> s32[2] {\n'
        "    %q = s32[2]{0} parameter(0)\n"
        '    ROOT %n = s32[2]{0} negate(%q)\n  }\n  "\n}\n\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n'
    )
    ix = index(text)
    assert ix.names == ["p"] and ix.diagnostics == () and ix.is_scheduled
    assert list(ix.header_attributes) == ["is_scheduled", "entry_computation_layout", "origin_recovery_table"]
    assert ix.header_attributes["entry_computation_layout"] == "{(f32[])->f32[]}"


def test_frames_are_resolved_through_parents_printed_plus_one() -> None:
    text = (
        'HloModule m\n\nFileNames\n1 "/w/toy.py"\n2 "/w/lib.py"\n\nFunctionNames\n1 "<module>"\n2 "inner"\n\n'
        "FileLocations\n"
        "1 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=0 end_column=7}\n"
        "2 {file_name_id=2 function_name_id=2 line=3 end_line=4 column=2 end_column=20}\n\nStackFrames\n"
        "1 {file_location_id=1 parent_frame_id=1}\n2 {file_location_id=2 parent_frame_id=2}\n\n"
        "ENTRY e {\n  p = f32[] parameter(0)\n  ROOT n = f32[] negate(p), "
        'metadata={op_name="a/\\"b" stack_frame_id=2}\n}\n'
    )
    ix = index(text)
    assert [(f.file, f.function, f.line) for f in ix.frames(1)] == [
        ("/w/lib.py", "inner", 3),
        ("/w/toy.py", "<module>", 9),
    ]
    assert ix.op_name(1) == 'a/"b' and ix.frames(0) == () and ix.diagnostics == ()


def test_old_metadata_gives_a_frame_too() -> None:
    ix = index('ENTRY e {\n ROOT p = f32[] parameter(0), metadata={source_file="/w/t.py" source_line=3}\n}')
    assert [(f.file, f.line) for f in ix.frames(0)] == [("/w/t.py", 3)]


def test_computation_written_inside_an_instruction() -> None:
    text = (
        "HloModule m\nENTRY e {\n  p = f32[4] parameter(0)\n  z = f32[] constant(0)\n"
        "  r = f32[] reduce(p, z), dimensions={0}, to_apply=\n  {\n    a = f32[] parameter(0)\n"
        "    b = f32[] parameter(1)\n"
        "    ROOT s = f32[] add(a, b)\n  }\n  ROOT n = f32[] negate(r)\n}\n"
    )
    before = text.replace("ENTRY e", "g {\n  a = f32[4] parameter(0)\n  ROOT b = f32[4] negate(a)\n}\nENTRY e")
    for shown in (text, text.replace("\n", " ").replace("HloModule m ", "HloModule m\n"), before):
        ix = index(shown)
        more = int(shown is before)
        assert ix.diagnostics == () and ix.instruction_count == 7 + 2 * more and ix.computation_count == 2 + more
        if more:
            assert list(ix.operands(1)) == [0] and ix.name(1) == "b"
        r, s, n = ix.find("r"), ix.find("s"), ix.find("n")
        assert r is not None and s is not None and n is not None
        assert [ix.name(k) for k in ix.operands(s)] == ["a", "b"] and ix.operands(n) == [r]
        assert ix.called(r) == [ix.computation_of(s)] and ix.computation_of(s) != ix.computation_of(r)
        assert ix.instruction_at(shown.index("s = f32")) == s
        check_invariants(ix)


def findings(body: str) -> list[tuple[str, str]]:
    text = f"HloModule m\n\nENTRY e {{\n  p = f32[] parameter(0)\n{body}  ROOT n = f32[] negate(p)\n}}\n"
    ix = index(text)
    assert ix.find("n") is not None and ix.entry is not None, "the rest of the file is kept"
    assert ix.operands(ix.find("n") or 0) == [0]
    check_invariants(ix)
    return [(d.code, text[d.offset : d.end_offset]) for d in ix.diagnostics]


@pytest.mark.parametrize(
    ("body", "code", "span"),
    [
        ("  x = f32[] negate(nobody)\n", "undefined", "nobody"),
        ("  x = f32[] call(p), to_apply=nowhere\n", "undefined", "nowhere"),
        ("  p = f32[] negate(p)\n", "duplicate", "p"),
        ("  x = f32[] add(p, \n", "unclosed", "(p, "),
        ("  x = f32[] negate(p), metadata={op_name=\n", "unclosed", "{op_name="),
        ('  x = f32[] negate(p), metadata={op_name="abc}\n', "unclosed", '{op_name="abc}'),
        ("  x = f32[] neg\n", "syntax", ""),
        ("  x = f32[]\n", "syntax", ""),
        ("  x = \n", "syntax", ""),
        ("  x = f32[] negate(p), \n", "syntax", ","),
        ("  what is this\n", "syntax", "what is this"),
    ],
)
def test_half_typed_lines_become_one_finding_and_lose_nothing_else(body: str, code: str, span: str) -> None:
    assert findings(body) == [(code, span)]


def test_rows_between_lines_that_cannot_be_read_are_all_there() -> None:
    """Every other line of a long body is half typed: nothing whole is lost, and what is wrong stands where it is."""
    whole, typed = "  %a{0} = f32[8]{{0}} add(%p, %p)", "  %h{0} = f32[8]{{0}} add(%p, %p"
    lines = [(whole if k % 2 else typed).format(k) for k in range(3_000)]
    ix = index("\n".join(["HloModule m", "ENTRY %e {", "  %p = f32[8]{0} parameter(0)", *lines, "}", ""]))
    assert [ix.text(2 * k + 2) for k in range(1_500)] == [line.strip() for line in lines[1::2]]
    assert [ix.operands(i) for i in range(2, 3_001, 2)] == [[0, 0]] * 1_500
    wrong = [d for d in ix.diagnostics if d.code == "unclosed"]
    assert len(wrong) == 500 == len(ix.diagnostics)
    assert all(ix.source[d.offset : d.end_offset] == "(%p, %p" and d.line == 2 * k + 4 for k, d in enumerate(wrong))
    check_invariants(ix)


@pytest.mark.parametrize(
    ("text", "other"),
    [(" = ", "="), (" = ", "\t=  "), ("(p, q)", "(p,q)"), ("), ", ") ,"), (" add(", " Add ("), ("}\n", "} // so\n")],
)
def test_blanks_and_letters_as_one_types_them(text: str, other: str) -> None:
    line = "  ROOT b = (f32[8]{0:T(8)}, f32[]) add(p, q), metadata={op_name=\"x(\"}\n"
    short = f"HloModule m\nENTRY e {{\n  p = f32[] parameter(0)\n  q = f32[] parameter(1)\n{line}}}\n"
    for lines in (1, 60):  # a few rows are taken one by one, many at once
        ix = index(short.replace(line, line.replace("ROOT b", "c") * (lines - 1) + line.replace(text, other)))
        i = ix.instruction_count - 1
        part = ix.parts(i)
        assert ix.errors == () or lines > 2 and {d.code for d in ix.errors} == {"duplicate"}
        assert ix.operands(i) == [0, 1] and ix.opcode(i).lower() == "add" and ix.is_root(i)
        assert ix.shape_text(i) == "(f32[8]{0:T(8)}, f32[])" and ix.span(i) == (part.start, part.end)
        assert ix.op_name(i) == "x("


def test_more_findings() -> None:
    assert [d.code for d in index("x = f32[] parameter(0)\n").diagnostics] == ["outside"]
    two = index("HloModule m\nENTRY a { ROOT p = f32[] parameter(0) }\nENTRY b { ROOT p = f32[] parameter(0) }\n")
    assert [d.code for d in two.diagnostics] == ["duplicate"] and two.computation_count == 2
    log = index("I0000 12:00 x.cc:1] HloModule m\nENTRY a { ROOT p = f32[] parameter(0) }\n")
    assert [(d.code, d.severity) for d in log.diagnostics] == [("prefix", "warning")] and log.module_name == "m"
    bom = index("\ufeffHloModule m\nENTRY a { ROOT p = f32[] parameter(0) }\n")
    assert [d.code for d in bom.diagnostics] == ["byte-order-mark"] and bom.module_name == "m"
    open_ended = index("HloModule m\nf {\n  a = f32[] parameter(0)\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n")
    assert [d.code for d in open_ended.diagnostics] == ["unclosed"] and open_ended.computation_count == 2


def test_another_process_finds_names_too() -> None:
    """Every process has hashes of strings of its own."""
    index = ModuleIndex.from_text(FILES[0].read_text())
    name = index.name(index.instruction_count - 1)
    known = index.find_all(name)
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).find_all(sys.argv[1]))"
    command = [sys.executable, "-c", code, name]
    done = subprocess.run(command, input=pickle.dumps(index), capture_output=True, check=True)
    assert known and done.stdout.decode().strip() == str(known)


def test_each_use_of_an_unknown_name_is_told_where_it_stands() -> None:
    lines = [f"  %a.{n} = f32[] add(%b.{n}, %b.{n}), metadata={{op_name=\"b.{n + 1}\"}}\n" for n in range(2, 4_000)]
    text = "".join(["HloModule m\nENTRY e {\n", *lines, "  ROOT %r = f32[] add(%a.2, %b.3)\n}\n"])
    begin = time.process_time()
    index(text.replace("(%b.", "(%a.").replace(", %b.", ", %a."))
    known = time.process_time()
    ix = index(text)
    # A search for each from the computation's begin took more than a hundred times as long as where all are known.
    assert time.process_time() - known < 30 * (known - begin)
    for number, one in enumerate(ix.diagnostics):
        assert text[one.offset : one.end_offset] == f"b.{number + 2}" and one.line == number + 3
    assert len(ix.diagnostics) > 200
    calls = "HloModule m\nENTRY e {\n  p = f32[] parameter(0)\n"
    calls += "  a = f32[] call(p), to_apply=f\n  b = f32[] call(a), to_apply=f\n}\n"
    assert [(one.line, one.message) for one in index(calls).diagnostics] == [
        (line, "computation f is not defined") for line in (4, 5)
    ]


def test_truncated_text_does_not_complain_of_what_it_lost() -> None:
    text = FORMS["late"].replace("  p =", "  q = f32[4] abs(n)\n  p =")
    lost = index(text[: text.index("n)\n  p = ")])
    assert lost.truncated and "undefined" not in [d.code for d in lost.diagnostics] and lost.operands(0) == [-1]
    # Whole lines: a name must stand before its use, so no end of the text could define it.
    cut = index(text[: text.index("  q = ")])
    assert cut.truncated and [d.code for d in cut.diagnostics] == ["truncated", "undefined"]


@pytest.mark.parametrize("text", ["", "\n", "\0\1\2", "}", "{", '"', "HloModule", "ENTRY", "= = =", "%", "a" * 5000])
def test_anything_is_indexed(text: str) -> None:
    ix = index(text)
    check_invariants(ix)
    assert ix.instruction_count == 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_and_truncated_files_never_raise(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(FILES)).read_text()
    start = data.draw(st.integers(0, len(text)))
    piece = text[start : start + data.draw(st.integers(0, 6000))]
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(piece)))
        width = data.draw(st.integers(0, 40))
        put = data.draw(st.text(alphabet="(){}[]\"'\\/*=,%\n x0R", max_size=6))
        piece = piece[:at] + put + piece[at + width :]
    check_invariants(index(piece))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="abROT =%(){}[],\"'\n\\/*0f:", max_size=200))
def test_random_text_never_raises(text: str) -> None:
    check_invariants(index(text))


@pytest.mark.parametrize(
    "text",
    [
        "HloModule m\nENTRY e {\n" + "  x = f32[2] add((((((((\n" * 20000 + "}\n",
        "f (((((((\n" * 40000,
        "HloModule m\nENTRY e {\n" + "  x = y.z((((\n" * 20000 + "}\n",
        "HloModule m\nENTRY e {\n  c = f32[] constant({" + "{1,2}," * 400000 + "})\n  ROOT d = f32[] copy(c)\n}\n",
        "HloModule m\nENTRY e {\n  c = f32[] constant({" + "\n" * 400000 + "\n  ROOT d = f32[] copy(c)\n}\n",
        "HloModule m\n" + '  "' * 100000,
        "{" * 400000,
        "\n" * 400000 + "x",
    ],
    ids=["parens", "headers", "shapeless", "literal", "blank lines", "quotes", "braces", "newlines"],
)
@pytest.mark.timeout(60)
def test_hostile_texts_take_linear_time(text: str) -> None:
    """A quadratic walk over any of these would take hours; the timeout is the assertion."""
    index(text)


def test_a_long_literal_is_taken_whole() -> None:
    body = "{" + "{1,2}," * 300000 + "{1,2}}"
    ix = index(f"HloModule m\nENTRY e {{\n  c = f32[300001,2] constant({body})\n  ROOT d = f32[300001,2] copy(c)\n}}\n")
    assert ix.diagnostics == () and ix.operands_text(0) == body and ix.operands(1) == [0]


def test_find_and_search() -> None:
    ix = index((STAGES / "gpu_cse.before.txt").read_text())
    assert ix.entry is not None
    for i in range(ix.instruction_count):
        assert i in ix.find_all(ix.name(i)) and ix.find("%" + ix.name(i), ix.computation_of(i)) == i
    assert ix.find("nobody") is None and ix.find_computation("nobody") is None
    exp = ix.search("^exponential$", "opcode")
    assert exp and all(ix.opcode(i) == "exponential" for i in exp)
    assert ix.search("exp", "op_name") and all("exp" in (ix.op_name(i) or "") for i in ix.search("exp", "op_name"))
    assert set(ix.search("exponential")) >= set(exp) and len(ix.search("=", "line", limit=3)) == 3
    assert ix.search("(", "line") == list(range(ix.instruction_count)), "a broken pattern is taken literally"
    histogram = dict(ix.opcode_histogram())
    assert sum(histogram.values()) == ix.instruction_count and histogram["exponential"] == len(exp)


def test_under_the_cursor() -> None:
    text = (STAGES / "tpu_codegen.txt").read_text()
    ix = index(text)
    fusion = ix.search("^fusion$", "opcode")[-1]
    at = ix.span(fusion)[0]

    def target(word: str) -> tuple[str, str, int]:
        found = ix.at_offset(text.index(word, at))
        assert text[slice(*found.span)].startswith(found.name)
        return found.kind, found.name, found.refers_to

    operand = ix.operands(fusion)[0]
    assert target(ix.name(fusion)) == ("instruction", ix.name(fusion), fusion)
    assert target(ix.name(operand) + ",") == ("operand", ix.name(operand), operand)
    assert target("fusion(") == ("opcode", "fusion", fusion)
    called = ix.called(fusion)[0]
    assert target(ix.computation(called).name) == ("computation-reference", ix.computation(called).name, called)
    assert target("kind=")[:2] == ("attribute", "kind")
    assert ix.at_offset(text.index(ix.shape_text(fusion), at)).kind == "shape"
    assert ix.at_offset(ix.computation(called).name_span[0]).kind == "computation"
    assert ix.at_offset(3).kind == "none" and ix.at_offset(text.index("is_scheduled")).kind == "header"


def test_columns_are_small() -> None:
    text = (STAGES / "tpu_codegen.txt").read_text()
    body = "".join(f"  n{k} = f32[4] negate(p)\n" for k in range(20000))
    ix = index(f"HloModule m\nENTRY e {{\n  p = f32[4] parameter(0)\n{body}}}\n")
    assert ix.users(0) == list(range(1, 20001)) and ix.find("n77") == 78 and ix.line(0) == 2
    assert ix.nbytes / ix.instruction_count <= 200
    assert index(text).instruction_count == 168


_COUNT = """
import json, sys
from jaxlib import _hlo
out = {}
for path in sys.argv[1:]:
    try:
        module = _hlo.hlo_module_from_text(open(path).read())
        out[path] = sum(len(c.instructions()) for c in module.computations())
    except Exception:
        out[path] = None
print(json.dumps(out))
"""


@pytest.mark.corpus
def test_counts_agree_with_the_parser_of_xla(corpus: Path) -> None:
    paths = [p for p in sorted(corpus.glob("*/*/dump/*.txt")) if p.open(errors="replace").read(9) == "HloModule"]
    for path in paths[::7]:
        ix = index(path.read_text())
        assert ix.diagnostics == () and (ix.columns.operands >= 0).all(), path
    sample = [p for p in paths[::61] if p.stat().st_size < 400_000]
    run = subprocess.run(
        [sys.executable, "-c", _COUNT, *map(str, sample)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr[-500:]
    counts: dict[str, int | None] = json.loads(run.stdout.splitlines()[-1])
    compared = 0
    for path, count in counts.items():
        if count is not None:
            assert index(Path(path).read_text()).instruction_count == count, path
            compared += 1
    assert compared >= 20
