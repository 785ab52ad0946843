"""``hloscope opt`` and the registry behind it: what is run, what is written, and every way to ask wrongly."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hloscope.core.cli.main import run
from hloscope.core.dumps.options import parse_debug_options
from hloscope.core.errors import UsageError
from hloscope.core.ledger import LedgerReader
from hloscope.core.passes.pipeline import HloPassFix, HloPassPipeline, pass_names
from hloscope.core.passes.pipelines import PIPELINES, cut_before, named_pipeline
from hloscope.core.passes.registry import PASSES, Registry, pass_text, split_passes
from hloscope.core.text import load_module, print_module

TEXT = """HloModule sums

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %zero = f32[] constant(0)
  %zeros = f32[4]{0} broadcast(%zero), dimensions={}
  %kept = f32[4]{0} negate(%a)
  %dead = f32[4]{0} abs(%a)
  ROOT %sum = f32[4]{0} add(%kept, %zeros)
}
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text(TEXT)
    return path


def opt(*words: object) -> int:
    return run(["opt", *map(str, words)])


def test_passes_run_in_order_and_names_stay(module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.txt"
    assert opt("--passes", "algsimp,dce", module, "-o", out) == 0
    made = load_module(out.read_text())
    assert made.entry.root.name == "kept"
    assert [one.name for one in made.entry] == ["a", "kept"]
    assert capsys.readouterr().out == ""


def test_json_says_what_each_pass_did(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt("--passes", "cse,algsimp,dce", module, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["changed"] is True
    assert answer["source"]["module"] == "sums"
    assert [(row["pass"], row["changed"], row["fuel_used"]) for row in answer["passes"]] == [
        ("cse", False, 0), ("algsimp", True, 1), ("dce", True, 1)
    ]  # fmt: skip
    assert opt("--passes", "cse", module, "--json") == 0
    assert json.loads(capsys.readouterr().out)["changed"] is False


def test_the_text_goes_to_standard_output(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt("--passes", "cse", module) == 0
    assert capsys.readouterr().out == print_module(load_module(TEXT))


def test_a_pipeline_is_cut_and_its_passes_disabled(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt("--pipeline", "cpu", "--until", "tuple-simplifier", "--disable-passes", "algsimp", module, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["passes"]
    names = [row["pass"] for row in rows]
    assert names[:3] == ["strip-memory-placement-annotations", "flatten-call-graph", "sharding-remover"]
    assert names[-1] == "while-loop-invariant-code-motion"
    assert names.count("algsimp") == 1 and "tuple-simplifier" not in names
    assert [row["fuel_used"] for row in rows if row["pass"] == "algsimp"] == [0]


def test_fuel_and_its_warning(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt("--passes", "algsimp,dce", "--fuel", "algsimp=0", "--fuel", "cse=1", module, "--json") == 0
    said = capsys.readouterr()
    assert [row["fuel_used"] for row in json.loads(said.out)["passes"]] == [0, 1]
    assert said.err == "hloscope: warning: fuel for cse was never asked for\n"


def test_a_ledger_and_a_dump_are_written_and_not_overwritten(
    module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, dump = tmp_path / "run.ledger", tmp_path / "dump"
    words = ("--passes", "algsimp,dce", module, "--json", "--ledger", ledger, "--dump-to", dump)
    assert opt(*words) == 0
    with LedgerReader(ledger) as reader:
        rows = reader.connection.execute("SELECT pass, changed FROM passes ORDER BY id").fetchall()
        assert [tuple(row) for row in rows] == [
            ("before_optimizations", 0), ("pipeline-start", 0), ("algsimp", 1), ("dce", 1), ("after_optimizations", 0)
        ]  # fmt: skip
        query = "SELECT verdict, subject FROM events WHERE type='rewrite_decision'"
        rules = reader.connection.execute(query).fetchall()
        assert [tuple(row) for row in rules] == [("applied", "sum"), ("applied", "dead")]
    assert sorted(one.name for one in dump.iterdir()) == [
        "module_0000.sums.0000.transforms_pipeline.after_pipeline-start.before_algsimp.txt",
        "module_0000.sums.0001.transforms_pipeline.after_algsimp.before_dce.txt",
        "module_0000.sums.0002.transforms_pipeline.after_dce.before_pipeline-end.txt",
        "module_0000.sums.before_optimizations.txt",
        "module_0000.sums.cpu_after_optimizations.txt",
        "module_0000.sums.debug_options",
    ]
    assert parse_debug_options((dump / "module_0000.sums.debug_options").read_text()) == {
        "xla_dump_to": str(dump), "xla_dump_hlo_pass_re": ".*", "xla_dump_large_constants": "true",
    }  # fmt: skip
    before = {one: one.read_bytes() for one in (*dump.iterdir(), ledger)}
    capsys.readouterr()
    assert opt("--passes", "cse", module, "--ledger", ledger) == 2
    assert opt("--passes", "cse", module, "--dump-to", dump) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 2
    assert {one: one.read_bytes() for one in before} == before
    assert opt(*words, "--force") == 0


def test_flags_of_a_real_compile_can_be_pasted(
    module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "host")
    module.write_text(TEXT.replace("negate(%a)", 'negate(%a), metadata={op_name="n"}'))
    flags = (
        f"--xla_dump_to={tmp_path / 'dump'} --xla_dump_hlo_as_text --xla_dump_hlo_as_proto --xla_fuel=dce=0 "
        "--xla_dump_hlo_as_long_text=false --xla_dump_disable_metadata --xla_dump_hlo_to_subfolder "
        "--xla_gpu_autotune_level=0 --xla_disable_hlo_passes=cse --xla_disable_hlo_passes=tuple-simplifier"
    )
    passes = "cse,tuple-simplifier,algsimp,dce"
    assert opt("--passes", passes, module, "-o", tmp_path / "out", "--flags", flags) == 0
    assert capsys.readouterr().err == (
        "hloscope: warning: no effect here: --xla_dump_hlo_as_proto, --xla_gpu_autotune_level\n"
    )
    folder = tmp_path / "dump" / "sums" / f"host_{os.getpid()}"
    before, after, told = sorted(folder.iterdir())  # no pass was asked for
    assert before.name == "module_0000.sums.before_optimizations.txt" and "_after_" in after.name
    assert "%" not in before.read_text() and "metadata=" not in before.read_text()
    made = load_module((tmp_path / "out").read_text())
    assert [one.name for one in made.entry if one.name in ("kept", "dead", "sum")] == ["kept", "dead"]
    assert told.read_text().splitlines() == [
        'xla_disable_hlo_passes: "cse"',
        'xla_disable_hlo_passes: "tuple-simplifier"',
        f'xla_dump_to: "{tmp_path / "dump"}"',
        "xla_dump_hlo_as_text: true",
        "xla_dump_hlo_to_subfolder: true",
        "xla_dump_hlo_as_long_text: false",
        "xla_dump_disable_metadata: true",
        "xla_dump_large_constants: true",
    ]
    assert opt("--passes", "dce", module, "--flags", "--xla_dump_hlo_pas_re=cse") == 2
    assert "did you mean xla_dump_hlo_pass_re" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--passes", "algsmip"], "did you mean algsimp?"),
        (["--passes", "cse{is_layout=true}"], "did you mean is_layout_sensitive?"),
        (["--passes", "cse{is_layout_sensitive=2}"], "is true or false"),
        (["--passes", "dce{x=1}"], "has no options"),
        (["--passes", ""], "names no pass"),
        (["--passes", "dce", "--pipeline", "cpu"], "either --passes or --pipeline"),
        ([], "either --passes or --pipeline"),
        (["--passes", "dce", "--until", "dce"], "--until cuts a --pipeline"),
        (["--pipeline", "cpu", "--until", "csee"], "did you mean cse"),
        (["--pipeline", "tpu"], "no pipeline of our own for tpu"),
        (["--passes", "dce", "--fuel", "dce"], "fuel is given as PASS=N"),
        (["--passes", "dce", "--fuel", "dc=1"], "did you mean dce?"),
        (["--passes", "dce", "--disable-passes", "dce:x"], "after ':'"),
        (["--passes", "dce", "--disable-passes", "dc"], "did you mean dce?"),
        (["--passes", "dce", "--disable-passes", "dce", "--enable-passes-only", "dce"], "cannot set both"),
        (["--passes", "dce", "--flags", "--nope=1"], "no flag is called 'nope'"),
        (["--passes", "dce", "--json", "-o", "-"], "both write to standard output"),
        (["--passes", "dce", "--plugin", "nowhere.py"], "nowhere.py: the plugin cannot be read"),
    ],
)
def test_wrong_questions_get_one_line(
    module: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opt(*words, module) == 2
    said = capsys.readouterr()
    assert message in said.err and len(said.err.splitlines()) == 1 and said.out == ""


def test_an_output_that_exists_stays(module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.txt"
    out.write_text("mine")
    assert opt("--passes", "dce", module, "-o", out) == 2
    assert out.read_text() == "mine"
    assert opt("--passes", "dce", module, "-o", tmp_path / "no" / "out.txt") == 2
    assert "no/out.txt" in capsys.readouterr().err
    assert opt("--passes", "dce", module, "-o", out, "--force") == 0
    assert out.read_text() != "mine"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_the_list_names_passes_and_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    assert opt("--list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["name"] for row in rows if row["kind"] == "pass"} == set(PASSES)
    assert {row["name"] for row in rows if row["kind"] == "pipeline"} == set(PIPELINES)
    assert all(row["description"] for row in rows)


PLUGIN = """
from dataclasses import dataclass
from hloscope.core.passes.rules.base import rule

@dataclass(frozen=True)
class Renamer:
    suffix: str = "x"
    fail: bool = False
    name = "renamer"
    is_pipeline = False

    def run(self, module, ctx):
        if self.fail:
            raise KeyError("boom")
        step = ctx.gate("rename", module.entry.root)
        if step:
            module.entry.root.rename(module.entry.root.name + self.suffix)
            step.done()
        return bool(step)

@rule("abs-negate", "abs", "|-x| -> |x|")
def abs_negate(one, options):
    inner = one.operand(0)
    return (lambda build: build.clone(one, [inner.operand(0)])) if inner.opcode == "negate" else None

def register(registry):
    registry.add_pass("renamer", Renamer, "renames the root")
    registry.add_rule(abs_negate)
"""


def test_a_plugin_adds_passes_and_rules(module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    assert opt("--plugin", plugin, "--passes", "renamer{suffix=_new}", module) == 0
    assert "ROOT %sum_new = " in capsys.readouterr().out
    module.write_text(TEXT.replace("abs(%a)", "abs(%kept)").replace("add(%kept, %zeros)", "add(%dead, %zeros)"))
    assert opt("--plugin", plugin, "--passes", "algsimp", module) == 0
    assert "ROOT %dead = f32[4]{0} abs(%a)" in capsys.readouterr().out
    assert opt("--plugin", plugin, "--passes", "renamer{fail=true}", module) == 2
    line = PLUGIN.splitlines().index('            raise KeyError("boom")') + 1
    assert capsys.readouterr().err == f"hloscope: {plugin}:{line}: the plugin failed: KeyError: 'boom'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "a plugin needs a function register(registry)"),
        ("def register(registry):\n    return 1 / 0\n", ":2: the plugin failed: ZeroDivisionError"),
        ("def register(registry:\n", ":1: the plugin failed: SyntaxError"),
        ("import nothing_of_that_name\n", ":1: the plugin failed: ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", ":2: the plugin failed: SystemExit: 3"),
        ("def register(registry):\n    raise SystemExit\n", ":2: the plugin failed: SystemExit"),
        ("def register(registry):\n    registry.add_rule(len)\n", ":2: a rule is made with @rule"),
        ("def register(registry):\n    registry.add_pass('p', 3)\n", ":2: pass p needs a factory that makes it"),
    ],
)
def test_plugins_that_fail_get_one_line(
    module: Path, tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(text)
    assert opt("--plugin", plugin, "--passes", "dce", module) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 7", "{}:13: the factory of pass p made an int, which is no pass: it lacks name (a text), is_pipeline"),
        ("return None", "{}:13: the factory of pass p made a NoneType"),
        ("return Half", "{}:13: the factory of pass p made the class Half"),
        ("return Half()", "made a Half, which is no pass: it lacks is_pipeline (True or False), run(module, ctx)\n"),
        ("return 1 / 0", "{}:3: the plugin failed: ZeroDivisionError"),
        ("return len()", "{}:3: the plugin failed: TypeError"),
        ("sys.exit(3)", "{}:3: the plugin failed: SystemExit: 3"),
        ("return Ends()", "{}:11: the plugin failed: SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("command", ["opt", "compile"])
def test_what_is_no_pass_gets_one_line(
    module: Path, tmp_path: Path, command: str, body: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        f"import sys\ndef make():\n    {body}\nclass Half:\n    name = 'p'\n"
        "class Ends:\n    name = 'p'\n    is_pipeline = False\n"
        "    def run(self, module, ctx):\n        if module:\n            sys.exit(3)\n"
        "def register(registry):\n    registry.add_pass('p', make)\n    registry.add_pass('algsimp', make)\n"
    )
    rest = ["--passes", "p"] if command == "opt" else ["-o", str(tmp_path / "run.ledger")]
    assert run([command, str(module), "--plugin", str(plugin), *rest]) == 2
    said = capsys.readouterr().err
    if command == "compile":
        message = message.replace(":13:", ":14:").replace("pass p", "pass algsimp")
    assert message.format(plugin) in said and len(said.splitlines()) == 1


# ---------------------------------------------------------------- the registry
def test_every_pass_can_be_made_and_has_its_name() -> None:
    registry = Registry()
    for name in PASSES:
        assert registry.make(name).name == name
        assert pass_text(registry.make(name)) == name


@pytest.mark.parametrize(
    "text", ["cse{is_layout_sensitive=true}", "call-inliner{single_call_site=true,update_metadata=false}"]
)
def test_options_survive_a_round_trip(text: str) -> None:
    made = Registry().make(text)
    assert pass_text(made) == text
    assert Registry().make(pass_text(made)) == made


def test_lists_of_passes_are_split_outside_braces() -> None:
    assert split_passes("a, b{x=1,y=2},,c") == ["a", "b{x=1,y=2}", "c"]


def test_pipelines_have_the_real_names() -> None:
    cpu = [name for one in named_pipeline("cpu", Registry()) for name in pass_names(one)]
    assert [name for name in cpu if name not in PASSES] == [
        "pre-spmd-partitioner", "sharding-removal", "SubbytePacker pipeline", "HLO passes through layout assignment",
        "simplification", "post_scatter_expansion_simplification",
    ]  # fmt: skip
    gpu = [one.name for one in named_pipeline("gpu", Registry())]
    assert gpu == [
        "pre-spmd-partitioner", "sharding-removal", "optimization", "collective-optimizations", "layout assignment",
    ]  # fmt: skip


def test_cutting_keeps_everything_before() -> None:
    whole = named_pipeline("cpu", Registry())
    cut = cut_before(whole, "constant_folding")
    names = [name for one in cut for name in pass_names(one)]
    assert names[:2] == ["pre-spmd-partitioner", "strip-memory-placement-annotations"]
    assert names[2:7] == ["sharding-removal", "flatten-call-graph", "sharding-remover", "control-dep-rewriter", "dce"]
    assert names[-3:] == ["simplify-while-loops", "dce", "reshape-mover"]
    everything = [name for one in whole for name in pass_names(one)]
    assert names == everything[: everything.index("constant_folding")]
    inner = cut[3]
    assert isinstance(inner, HloPassPipeline) and not any(isinstance(one, HloPassFix) for one in inner.passes)
    with pytest.raises(UsageError, match="no pass of this pipeline"):
        cut_before(whole, "buffer-assignment")
