"""Reading HLO text: everything in the corpus, the odd forms of the field, and recovery from what is broken."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from hloscope.core.errors import ParseError
from hloscope.core.text import PrintOptions, load_module, parse_module, print_module

FRAME = """HloModule t
add {{
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}} // add
ENTRY e {{
  a = f32[4,8]{{1,0}} parameter(0)
  z = f32[] constant(0)
  {line}
}}
"""

ACCEPTED = [
    "ROOT n = f32[4,8]{1,0} negate(a)",
    "ROOT %n = f32[4,8]{1,0} negate(f32[4,8]{1,0} %a)",
    "ROOT n = negate(a)",
    "ROOT n = f32[4,8] add(negate(a), f32[4,8] exponential(a))",
    "ROOT n = f32[4,8] add(a, /*index=1*/a)",
    "ROOT %get-tuple.1.clone_2.remat3-x = f32[4,8] negate(a)",
    "ROOT d = f32[4,4]{1,0}\n    dot(a,\n  a) ,\n rhs_contracting_dims={1} ,  lhs_contracting_dims={1}",
    "ROOT slice = f32[2,8]{1,0} slice(a), slice={[0:2], [0:8]}",
    "ROOT parameter = f32[4,8] negate(a)",
    'ROOT n = f32[4,8] negate(a), backend_config={"outer":{"s":"a}b{","l":[1,2,{}]}}',
    "ROOT n = f32[4,8] negate(a), backend_config='raw {not json'",
    'ROOT n = f32[4,8] negate(a), metadata={op_name="two\nlines"}',
    'ROOT t = (f32[4,8], f32[4,8]) tuple(a, a), origin={({"p" {0}}, {"q"})}',
    "ROOT n = f32[4,8] negate(a:)",
    "ROOT n = f32[4,8] /*inline*/ negate(/*op*/a)",
    "ROOT r = f32[4] reduce(a, z), dimensions={1}, to_apply=add",
    "ROOT r = f32[4,8] all-reduce(a), replica_groups=mesh['x'=2,'y'=2] {'y'}, to_apply=add",
    "ROOT r = f32[4,8] all-reduce(a), replica_groups=[1,4]<=[2,2]T(1,0), to_apply=add",
    'ROOT c = f32[4,8] custom-call(a), custom_call_target="k", literal=s32[2]{0} {1, 2}',
    "ROOT n = f32[4,8] future-opcode(a), future_attribute={1, {2}}",
    "t = (f32[4,8], f32[4,8]) tuple(a, a)\n  ROOT n = f32[4,8] add(t#0, t#1)",
    "ROOT n = f32[4,8] negate(late)\n  late = f32[4,8] abs(a)",
    "n = f32[4,8] negate(a), control-predecessors={z}\n  ROOT o = f32[4,8] abs(n)",
]


@pytest.mark.parametrize("line", ACCEPTED)
def test_odd_forms_are_read_and_printed_stably(line: str) -> None:
    text = FRAME.format(line=line)
    module = load_module(text)
    printed = print_module(module)
    assert print_module(load_module(printed)) == printed
    short = print_module(module, PrintOptions.short())
    assert "%" not in short
    assert print_module(load_module(short)) == printed


REFUSED = [
    ("ROOT n = f32[4,8] negate(missing)", "undefined-name", "missing"),
    ("a = f32[4,8] negate(a)", "duplicate-name", "a = f32[4,8] negate"),
    ("ROOT r = f32[4] reduce(a, z), dimensions={1}, to_apply=nowhere", "undefined-computation", "nowhere"),
    ("ROOT n = f32[4,8] negate(a, ", "unclosed", "(a"),
    ("ROOT n = f32[4,8", "syntax", "f32[4,8"),
    ("ROOT b = f32[] parameter(2)", "parameter-number", "ROOT b"),
    ("ROOT r = f32 reshape(a)", "syntax", "reshape"),
]


@pytest.mark.parametrize(("line", "code", "at"), REFUSED)
def test_errors_have_a_code_and_a_position(line: str, code: str, at: str) -> None:
    text = FRAME.format(line=line)
    _, diagnostics = parse_module(text)
    first = next(d for d in diagnostics if d.code == code)
    wanted = text.index(line)
    assert wanted <= first.offset <= text.index(at, wanted) + len(at)
    row = text.split("\n")[first.line - 1]
    assert first.column <= len(row) + 1
    with pytest.raises(ParseError) as raised:
        load_module(text, "file.hlo")
    assert str(raised.value).startswith(f"file.hlo:{diagnostics[0].line}:{diagnostics[0].column}: ")


def test_one_broken_line_does_not_lose_the_rest() -> None:
    text = FRAME.format(line="b = f32[4,8 negate(a)\n  c = f32[4,8] abs(a)\n  ROOT d = f32[4,8] tanh(c)")
    module, diagnostics = parse_module(text)
    assert module is not None
    assert len(diagnostics) == 1
    assert [i.name for i in module.entry] == ["a", "z", "c", "d"]


def test_truncated_text_keeps_what_is_there() -> None:
    text = FRAME.format(line="ROOT d = f32[4,8] tanh(a)")
    for length in (6, 12, 22, 23, 24, 25, 26):
        module, diagnostics = parse_module(text[: text.index("ROOT d") + length])
        assert module is not None
        assert [d.code for d in diagnostics] == ["truncated"], "one fault, whatever the last line lacks"
        assert module.find_computation("add") is not None
    signed = "HloModule m\n\nENTRY e (p: f32[4]) -> pred[4] {\n  p = f32[4] parameter(0)\n  ROOT c = pred[4] is-finite("
    assert [d.code for d in parse_module(signed, strict=True)[1]] == ["truncated"]
    cut = text.replace("ROOT d = f32[4,8] tanh(a)", "d = f32[4,8] tanh(q)\n  ROOT e = f32[4,8] tanh(d")
    assert [d.code for d in parse_module(cut[: cut.index("tanh(d") + 6])[1]] == ["undefined-name", "truncated"]


@pytest.mark.parametrize(
    "text", ["", "\n\n", "hello world", "HloModule", "HloModule m", "\x00\x01\x02", "{}}}{", "ENTRY e {"]
)
def test_what_is_no_module_is_said_so(text: str) -> None:
    module, diagnostics = parse_module(text)
    assert module is None
    assert diagnostics
    with pytest.raises(ParseError):
        load_module(text)


def _stages(corpus: Path) -> list[Path]:
    found = [p for p in sorted(corpus.glob("*/*/dump/**/*.txt"))]
    random.Random(7).shuffle(found)
    return found


def _hlo_texts(corpus: Path, count: int, limit: int = 400_000) -> list[tuple[Path, str]]:
    out: list[tuple[Path, str]] = []
    for path in _stages(corpus):
        if path.stat().st_size < limit:
            text = path.read_text(errors="surrogateescape")
            if text.startswith("HloModule"):
                out.append((path, text))
        if len(out) == count:
            break
    return out


def test_corpus_reads_and_prints_back_byte_for_byte(corpus: Path) -> None:
    for path, text in _hlo_texts(corpus, 150):
        options = PrintOptions.short() if "short_text" in str(path) else PrintOptions()
        assert print_module(load_module(text, str(path)), options) == text, path


@pytest.mark.corpus
@pytest.mark.slow
def test_whole_corpus_reads_and_prints_back_byte_for_byte(corpus: Path) -> None:
    texts = _hlo_texts(corpus, 100_000, limit=50_000_000)
    assert len(texts) > 2000
    # Two of three files are a stage that changed nothing: equal texts are read once.
    distinct = {(text, "short_text" in str(path)): path for path, text in texts}
    for (text, short), path in distinct.items():
        module = load_module(text, str(path))
        assert print_module(module, PrintOptions.short() if short else PrintOptions()) == text, path


CHILD = """
import json, sys
from jaxlib import _hlo
options = _hlo.HloPrintOptions()
for path in sys.argv[1:]:
    text = open(path, errors="surrogateescape").read()
    print(json.dumps(_hlo.hlo_module_from_text(text).to_string(options)), flush=True)
"""


def test_jaxlib_reads_the_same_module_from_our_print(corpus: Path, tmp_path: Path) -> None:
    pairs: list[str] = []
    for i, (path, text) in enumerate(_hlo_texts(corpus, 30)):
        ours = tmp_path / f"{i}.txt"
        ours.write_text(print_module(load_module(text, str(path))), errors="surrogateescape")
        pairs += [str(path), str(ours)]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *pairs], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    rows = done.stdout.splitlines()
    assert len(rows) == len(pairs)
    for i in range(0, len(rows), 2):
        assert rows[i] == rows[i + 1], pairs[i]


def test_mutated_text_never_raises(corpus: Path) -> None:
    rng = random.Random(11)
    for _, text in _hlo_texts(corpus, 12, limit=60_000):
        for _ in range(8):
            chars = list(text)
            for _ in range(rng.randint(1, 6)):
                at = rng.randrange(len(chars))
                kind = rng.randrange(3)
                if kind == 0:
                    del chars[at : at + rng.randint(1, 40)]
                elif kind == 1:
                    chars[at] = rng.choice('{}()[],=%"\n ')
                else:
                    chars = chars[:at]
                    break
            _, diagnostics = parse_module("".join(chars))
            for found in diagnostics:
                assert found.line >= 1 and found.column >= 1 and found.message


def test_cycles_are_found_in_the_text() -> None:
    module, diagnostics = parse_module(FRAME.format(line="ROOT n = f32[4,8] negate(m)\n  m = f32[4,8] abs(n)"))
    found = [(d.code, d.severity) for d in diagnostics]
    assert found == [("cycle", "warning"), ("use-before-definition", "warning")]
    assert module is not None and "negate(%m)" in print_module(module)
    text = "HloModule m\nf { x = f32[] parameter(0)\n ROOT r = f32[] call(x), to_apply=e }\n"
    _, diagnostics = parse_module(text + "ENTRY e { x = f32[] parameter(0)\n ROOT r = f32[] call(x), to_apply=f }\n")
    assert [d.code for d in diagnostics] == ["use-before-definition", "recursion"]
