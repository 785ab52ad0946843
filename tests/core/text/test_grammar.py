"""The grammar reads every HLO text, loses little of a half-typed one, and colours as its fallback does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_sitter import Node, Parser, Query, Tree

from hloscope.core.text.highlight import CLASSES, engine, grammar, tokens
from hloscope.core.text.highlight_plain import Token, plain_tokens
from hloscope.core.xla.probe import probe

ROOT = Path(__file__).resolve().parents[3]
GRAMMAR = ROOT / "core" / "text" / "grammar"
QUERIES = ROOT / "core" / "text" / "queries"

needs_grammar = pytest.mark.skipif(grammar() is None, reason="the grammar's extension was not built")


def parse(text: str | bytes) -> Tree:
    known = grammar()
    assert known is not None
    return Parser(known.language).parse(text if isinstance(text, bytes) else text.encode())


def first_error(tree: Tree) -> str:
    """What the first broken node holds and where; empty for none."""
    waiting = [tree.root_node]
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            return f"{node.type} at line {node.start_point.row + 1}: {(node.text or b'')[:80]!r}"
        if node.has_error:
            waiting.extend(reversed(node.children))
    return ""


def is_hlo(path: Path) -> bool:
    with path.open("rb") as file:
        return b"HloModule" in file.read(300)


def hlo_files(root: Path) -> list[Path]:
    return [path for path in sorted(root.rglob("*.txt")) if is_hlo(path)]


# ---------------------------------------------------------------- structure


class Case(NamedTuple):
    name: str
    text: str
    tree: str


def cases() -> Iterator[Case]:
    """The tests of the grammar, in the form of ``tree-sitter test``."""
    for path in sorted((GRAMMAR / "test" / "corpus").glob("*.txt")):
        for part in re.finditer(
            r"^={3,}\n(?P<name>[^\n]+)\n={3,}\n(?P<text>.*?)\n-{3,}\n(?P<tree>.*?)(?=^={3,}\n|\Z)",
            path.read_text("utf-8"),
            re.M | re.S,
        ):
            yield Case(f"{path.stem}: {part['name']}", part["text"].strip("\n"), part["tree"])


def test_the_cases_are_all_found() -> None:
    headings = sum(path.read_text("utf-8").count("=" * 80) for path in (GRAMMAR / "test" / "corpus").glob("*.txt"))
    assert len(list(cases())) == headings // 2 >= 40


@needs_grammar
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_tree(case: Case) -> None:
    wanted = " ".join(case.tree.split()).replace(" )", ")")
    assert str(parse(case.text).root_node) == wanted


@needs_grammar
def test_fixtures_have_no_error(fixtures: Path) -> None:
    files = hlo_files(fixtures / "stages") + hlo_files(fixtures / "dumps")
    assert len(files) > 10
    assert [f"{path}: {error}" for path in files if (error := first_error(parse(path.read_bytes())))] == []


@needs_grammar
@pytest.mark.corpus
def test_sample_of_the_corpus_has_no_error(corpus: Path) -> None:
    files = [path for path in sorted(corpus.rglob("*.txt"))[::150] if is_hlo(path)]
    assert len(files) > 10
    assert [f"{path}: {error}" for path in files if (error := first_error(parse(path.read_bytes())))] == []


@needs_grammar
@pytest.mark.corpus
@pytest.mark.slow
def test_the_whole_corpus_has_no_error(corpus: Path) -> None:
    files = hlo_files(corpus)
    assert len(files) > 2000
    texts = {path.read_bytes(): path for path in files}  # most files are a stage that changed nothing
    assert [f"{path}: {error}" for text, path in texts.items() if (error := first_error(parse(text)))] == []


def module_text(instructions: int) -> str:
    rows = (
        f"  %add.{i} = f32[8,16]{{1,0:T(8,128)}} add(%add.{i - 1}, f32[8,16]{{1,0}} %p), "
        f'metadata={{op_name="jit(f)/{i}" stack_frame_id=3}}, backend_config={{"flag":[1,{{"x":"y"}}]}}\n'
        for i in range(1, instructions)
    )
    return "HloModule m\n\nENTRY %e (p: f32[8,16]) -> f32[8,16] {\n" + "".join(rows) + "}\n"


@needs_grammar
def test_time_grows_linearly() -> None:
    def seconds(instructions: int) -> float:
        text = module_text(instructions).encode()
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            assert not parse(text).root_node.has_error
            best = min(best, time.process_time() - began)
        return best

    # Eight times the text; quadratic time would be sixty-four times as long.
    assert seconds(8000) < 24 * seconds(1000)


@needs_grammar
@pytest.mark.parametrize(
    "value",
    [
        "c = s32[300000] constant({" + ", ".join(str(i) for i in range(300_000)) + "})",
        'c = f32[] custom-call(), backend_config="' + 'QUJD\\"' * 200_000 + '"',
        'c = f32[] custom-call(), backend_config={"l":[' + ",".join('{"k":"v"}' for _ in range(100_000)) + "]}",
        "c = f32[] custom-call(), backend_config=" + "{" * 20_000 + "}" * 20_000,
    ],
    ids=["literal", "string", "json", "deep"],
)
def test_long_lines_are_read(value: str) -> None:
    assert not parse("ENTRY e {\n  " + value + "\n}\n").root_node.has_error


# ---------------------------------------------------------------- half-typed text

FRAME = """HloModule m

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  ROOT %s = f32[] add(%x, %y), metadata={{op_name="jit(f)/add"}}
}}

ENTRY %e (a: f32[4]) -> f32[4] {{
  %a = f32[4]{{0}} parameter(0)
{line}
  %c = f32[4]{{0}} abs(%b), metadata={{op_name="jit(f)/abs" stack_frame_id=3}}
  ROOT %r = (f32[4]{{0}}) tuple(%c), metadata={{op_name="jit(f)/r"}}
}}
"""
LINE = (
    "  %h = f32[4]{0} fusion(%a, %b), kind=kLoop, calls=%add, "
    'metadata={op_name="jit(f)/x" source_line=3}, backend_config={"a":{"b":[1,2]}}'
)


def defined_names(node: Node) -> Iterator[str]:
    if node.type == "instruction" and (name := node.child_by_field_name("name")) is not None:
        yield (name.text or b"").decode()
    for child in node.children:
        yield from defined_names(child)


@needs_grammar
@pytest.mark.parametrize("sign", ["%", ""], ids=["long", "short"])
def test_a_line_being_typed_leaves_its_neighbours_alone(sign: str) -> None:
    wanted = {name.replace("%", sign) for name in ("%x", "%s", "%a", "%c", "%r")}
    for length in range(len(LINE)):
        text = FRAME.format(line=LINE[:length]).replace("%", sign)
        missing = wanted - set(defined_names(parse(text).root_node))
        assert not missing, LINE[:length]


# ---------------------------------------------------------------- queries


@needs_grammar
@pytest.mark.parametrize("name", ["highlights", "folds", "locals", "indents", "outline"])
def test_queries_fit_the_grammar(name: str) -> None:
    known = grammar()
    assert known is not None
    assert Query(known.language, (QUERIES / f"{name}.scm").read_text("utf-8")).pattern_count > 0


# ---------------------------------------------------------------- tokens

INSTRUCTION = (
    "  ROOT %fusion.1 = (f32[4]{0:T(8,128)}, s32[]) fusion(%a, /*index=1*/b.2), kind=kLoop, calls=%fc, "
    'metadata={op_name="jit(f)/a=\\"b\\"" stack_frame_id=3}, window={size=2x2 pad=0_1x1_1}'
)
CLASSED = [
    ("ROOT", "keyword"),
    ("%fusion.1", "define"),
    ("f32[4]", "shape"),
    ("{0:T(8,128)}", "layout"),
    ("s32[]", "shape"),
    ("fusion", "opcode"),
    ("%a", "name"),
    ("/*index=1*/", "comment"),
    ("b.2", "name"),
    ("kind", "key"),
    ("calls", "key"),
    ("%fc", "name"),
    ("metadata", "key"),
    ("op_name", "key"),
    ('"jit(f)/a=\\"b\\""', "string"),
    ("stack_frame_id", "key"),
    ("3", "number"),
    ("window", "key"),
    ("size", "key"),
    ("2x2", "number"),
    ("pad", "key"),
    ("0_1x1_1", "number"),
]


def classed(text: str, found: list[Token]) -> list[tuple[str, str]]:
    return [(text[start:end], kind) for start, end, kind in found]


def test_both_engines_class_an_instruction_alike() -> None:
    assert classed(INSTRUCTION, tokens(INSTRUCTION)) == CLASSED
    assert classed(INSTRUCTION, plain_tokens(INSTRUCTION, 0, len(INSTRUCTION))) == CLASSED


@needs_grammar
def test_both_engines_class_real_text_alike(fixtures: Path) -> None:
    for name in ("cpu_layout.after.txt", "gpu_cse.after.txt", "gpu_fusion.before.txt", "tpu_short.txt"):
        text = (fixtures / "stages" / name).read_text("utf-8")[:60_000]
        text = text[: text.rfind("\n") + 1]
        assert classed(text, tokens(text)) == classed(text, plain_tokens(text, 0, len(text))), name


def test_without_the_extension_regular_expressions_colour() -> None:
    program = (
        "import sys; sys.modules['tree_sitter'] = None\n"
        "from hloscope.core.text.highlight import engine, tokens\n"
        "from hloscope.core.xla.probe import probe\n"
        f"text = {INSTRUCTION!r}\n"
        "row = next(row for row in probe(compile_check=False) if row.name == 'highlighting')\n"
        "print(engine(), row.status)\n"
        "print([(text[a:b], kind) for a, b, kind in tokens(text)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ}, cwd=ROOT
    )
    first, second = done.stdout.splitlines()
    assert first == "regular expressions missing"
    assert second == repr(CLASSED)


@needs_grammar
def test_the_doctor_names_the_engine() -> None:
    row = next(row for row in probe(compile_check=False) if row.name == "highlighting")
    assert (row.status, row.detail, engine()) == ("ok", "tree-sitter", "tree-sitter")


def test_a_range_gives_what_the_whole_gives_there() -> None:
    text = "HloModule m\n\n" + FRAME.format(line=INSTRUCTION).partition("\n\n")[2]
    start = text.index("fusion.1") + 2
    end = text.index("stack_frame_id=3") + 5
    inside = tokens(text, start, end)
    assert inside[0] == (start, text.index(" = (f32[4]{0:T"), "define")
    assert inside[-1] == (text.index("stack_frame_id=3"), end, "key")
    whole = {(max(a, start), min(b, end), kind) for a, b, kind in tokens(text) if a < end and b > start}
    assert set(inside) == whole


def test_offsets_are_characters() -> None:
    text = 'n = f32[] negate(a), metadata={op_name="größe/μ😀" source_line=3}, kind=k\n'
    assert ("source_line", "key") in classed(text, tokens(text))
    assert ('"größe/μ😀"', "string") in classed(text, tokens(text))


PIECES = st.sampled_from(
    [
        "%a",
        "b",
        " = ",
        "f32[4]",
        "{0}",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        '"',
        "'",
        "\n",
        ", ",
        "add",
        "key=",
        "/*",
        "*/",
        "ROOT ",
    ]
    + [
        "ENTRY ",
        "HloModule m",
        "1",
        "-inf",
        "...",
        "é",
        "\ud800",
        "\r\n",
        "to_apply=",
        "constant(",
        "<=",
        "//",
        ":",
        "\\",
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=40).map("".join))
def test_tokens_of_any_text_are_in_order_and_apart(text: str) -> None:
    for found in (tokens(text), plain_tokens(text, 0, len(text))):
        at = 0
        for start, end, kind in found:
            assert at <= start < end <= len(text)
            assert kind in CLASSES
            at = end


@pytest.mark.parametrize("value", ['{op_name="abc}', '{op_name="abc', '"abc'])
def test_an_open_quote_is_an_error_of_its_own_line(value: str) -> None:
    known = grammar()
    if known is None:
        pytest.skip("the grammar's extension is not built")
    from tree_sitter import Parser

    text = f"ENTRY e {{\n  p = f32[2] parameter(0), metadata={value}\n  ROOT c = f32[2] copy(p)\n}}\n"
    root = Parser(known.language).parse(text.encode()).root_node
    assert root.has_error
    computation = root.children[0]
    body = computation.child_by_field_name("body")
    assert body is not None
    names = [c.child_by_field_name("name") for c in body.children if c.type == "instruction"]
    assert [n.text for n in names if n is not None] == [b"p", b"c"]


def test_a_long_line_is_coloured_where_it_is_looked_at() -> None:
    values = ", ".join(f"{i}.5" for i in range(60_000))
    line = f"  c = f32[60000] constant({{{values}}}), metadata={{op_name=\"{'a/b' * 30_000}\"}}\n"
    assert len(line) > 500_000
    whole = tokens(line)
    assert sum(kind == "number" for _, _, kind in whole) == 60_000
    middle = line.index("30000.5")
    assert tokens(line, middle, middle + 16) == [(middle, middle + 7, "number"), (middle + 9, middle + 16, "number")]
    inside = line.index("a/b") + 50_000
    assert tokens(line, inside, inside + 10) == [(inside, inside + 10, "string")]
    assert (2, 3, "define") in tokens(line, 0, 30)
