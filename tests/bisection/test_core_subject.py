"""Planted faults in our own compiler are found exactly, within the probe budget, and nobody innocent is accused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from math import ceil, log2
from pathlib import Path
from typing import Any

import pytest

from hloscope.bisect.oracles import make_oracle
from hloscope.bisect.result import Answer
from hloscope.bisect.subjects.core import CoreSearch, CoreSubject
from hloscope.bisect.subjects.core_child import Child
from hloscope.bisect.subjects.core_probe import Choice, Recipe
from hloscope.core.hlo import HloModule
from hloscope.core.ledger import BisectProbe, LedgerReader, RewriteDecision
from hloscope.core.passes.flags import PassFlags
from hloscope.core.passes.pipelines import named_pipeline, transforms_pipeline
from hloscope.core.passes.registry import Registry
from hloscope.core.text import load_module

PLUGIN = Path(__file__).with_name("planted.py")

TEXT = """HloModule softmax, entry_computation_layout={(f32[4,8]{1,0}, f32[8]{0})->f32[4,8]{1,0}}

%largest (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %m = f32[] maximum(%x, %y)
}

%sum (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %s = f32[] add(%p, %q)
}

ENTRY %main (a: f32[4,8], b: f32[8]) -> f32[4,8] {
  %a = f32[4,8]{1,0} parameter(0)
  %one = f32[] constant(1)
  %ones = f32[4,8]{1,0} broadcast(%one), dimensions={}
  %same = f32[4,8]{1,0} multiply(%a, %ones)
  %low = f32[] constant(-inf)
  %top = f32[4]{0} reduce(%same, %low), dimensions={1}, to_apply=%largest
  %tops = f32[4,8]{1,0} broadcast(%top), dimensions={0}
  %shifted = f32[4,8]{1,0} subtract(%same, %tops)
  %e = f32[4,8]{1,0} exponential(%shifted)
  %zero = f32[] constant(0)
  %total = f32[4]{0} reduce(%e, %zero), dimensions={1}, to_apply=%sum
  %totals = f32[4,8]{1,0} broadcast(%total), dimensions={0}
  %p = f32[4,8]{1,0} divide(%e, %totals)
  %b = f32[8]{0} parameter(1)
  %bs = f32[4,8]{1,0} broadcast(%b), dimensions={1}
  %minus = f32[4,8]{1,0} subtract(%p, %bs)
  %e2 = f32[4,8]{1,0} exponential(%minus)
  ROOT %out = f32[4,8]{1,0} subtract(%e2, %a)
}
"""


def search(
    passes: str, *, register: str = "register", text: str = TEXT, ledger: str | None = None, pipeline: str | None = None
) -> Answer:
    registry = Registry()
    registry.load_plugin(str(PLUGIN))
    if register != "register":
        from runpy import run_path

        run_path(str(PLUGIN))[register](registry)
    module = load_module(text)
    make: Callable[[], list[Any]] = (
        (lambda: named_pipeline(pipeline, registry))
        if pipeline is not None
        else (lambda: transforms_pipeline(registry.make_all(passes), registry))
    )
    subject = CoreSubject(module, "softmax.hlo", make, registry, PassFlags())
    return CoreSearch(subject, make_oracle("reference", module, None, 0), ledger).run()


@pytest.mark.parametrize("only", [0, 1, 2])
def test_one_wrong_rewrite_among_right_ones_is_named(only: int) -> None:
    answer = search(f"algsimp,swap-subtract{{only={only}}},dce,cse")
    assert answer.verdict == "wrong-stage"
    (culprit,) = answer.culprits
    assert culprit.pass_name == "swap-subtract" and culprit.occurrence == 0
    assert culprit.fuel == only + 1
    assert culprit.rule == "swap-operands"
    assert culprit.instruction == ["shifted", "minus", "out"][only]
    assert "swap-operands applied" in culprit.sentence
    assert f"--fuel swap-subtract={only}" in answer.cures


def test_the_guilty_run_of_a_pass_that_runs_often_is_told_from_the_others() -> None:
    answer = search("swap-subtract{only=9},dce,swap-subtract{only=9},swap-subtract{only=1},cse")
    (culprit,) = answer.culprits
    assert (culprit.occurrence, culprit.fuel, culprit.instruction) == (2, 3 + 3 + 2, "minus")


def test_a_wrong_rule_inside_algsimp_is_found_in_a_whole_pipeline() -> None:
    answer = search("", register="register_rule", pipeline="cpu")
    assert answer.verdict == "wrong-stage"
    (culprit,) = answer.culprits
    assert culprit.pass_name == "algsimp" and culprit.pipeline == "simplification"
    assert culprit.rule == "divide-is-multiply"
    assert culprit.instruction in ("p", "divide"), "a pass before may have made the division anew"


def test_probes_stay_within_the_budget() -> None:
    passes = ",".join(["swap-subtract{only=9}"] * 20 + ["swap-subtract{only=2}"] + ["swap-subtract{only=9}"] * 11)
    answer = search(passes)
    assert answer.culprits[0].occurrence == 20
    for level, size in (("pass", 32), ("fuel", 3)):
        probes = [one for one in answer.probes if one.level == level]
        assert len(probes) <= ceil(log2(size)) + 3


@pytest.mark.parametrize("name", ["ungated-minimum", "silent-minimum"])
def test_a_pass_that_goes_past_the_gate_or_reports_no_change_is_still_found(name: str) -> None:
    answer = search(f"algsimp,{name},dce")
    assert answer.verdict == "wrong-stage"
    (culprit,) = answer.culprits
    assert culprit.pass_name == name and culprit.fuel is None
    assert any("asked the gate for nothing" in said for said in answer.evidence)


def test_a_crash_is_a_compile_failure_and_not_a_wrong_result() -> None:
    answer = search("algsimp,crashing,dce")
    assert answer.verdict == "compile-failure"
    (culprit,) = answer.culprits
    assert culprit.pass_name == "crashing"
    assert any("ZeroDivisionError" in said for said in answer.evidence)


def test_nobody_is_accused_where_nothing_is_wrong() -> None:
    for passes in ("algsimp,dce,cse", "swap-subtract{only=9}", "dce"):
        answer = search(passes)
        assert answer.verdict == "no-difference" and not answer.culprits


def test_the_ledger_holds_the_culprits_event_and_the_probes(tmp_path: Path) -> None:
    path = str(tmp_path / "fault.ledger")
    answer = search("algsimp,swap-subtract{only=1},dce", ledger=path)
    with LedgerReader(path) as reader:
        decisions = [s.event for s in reader.events(type_name="rewrite_decision")]
        probes = [s.event for s in reader.events(type_name="bisect_probe")]
    guilty = [d for d in decisions if isinstance(d, RewriteDecision) and d.identity == answer.culprits[0].decision]
    assert len(guilty) == 1 and guilty[0].subject == "minus"
    assert len(probes) == len(answer.probes) and all(isinstance(p, BisectProbe) for p in probes)


def test_the_fuel_that_is_named_shows_the_fault_with_hloscope_opt(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "softmax.hlo"
    source.write_text(TEXT)
    done = _hloscope(
        root, "bisect", str(source), "--plugin", str(PLUGIN), "--passes", "algsimp,swap-subtract{only=1},dce", "--json"
    )
    assert done.returncode == 1, done.stderr
    data = json.loads(done.stdout)
    assert data["verdict"] == "wrong-stage"
    (culprit,) = data["culprits"]
    assert culprit["file"] == str(source) and culprit["pass"] == "swap-subtract"
    assert TEXT.split("\n")[culprit["line"] - 1].strip().startswith("%minus")
    assert data["probes"] and data["cures"] and data["reduced"] is None and data["bundle"] is None
    right = _optimised(root, source, f"swap-subtract={culprit['fuel'] - 1}")
    wrong = _optimised(root, source, f"swap-subtract={culprit['fuel']}")
    assert "subtract(%p, %bs)" in right and "subtract(%bs, %p)" in wrong


def _hloscope(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hloscope.core.cli.main", *args],
        capture_output=True,
        text=True,
        cwd=root,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )


def _optimised(root: Path, source: Path, fuel: str) -> str:
    done = _hloscope(
        root,
        "opt",
        "--plugin",
        str(PLUGIN),
        "--passes",
        "algsimp,swap-subtract{only=1},dce",
        "--fuel",
        fuel,
        str(source),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_recorded_outputs_and_a_command_serve_as_oracles(tmp_path: Path, root: Path) -> None:
    module: HloModule = load_module(TEXT)
    from hloscope.core.runtime import npz
    from hloscope.core.runtime.evaluator import evaluate
    from hloscope.core.runtime.inputs import inputs_for

    args = inputs_for(module.entry, 3)
    recorded = tmp_path / "run.npz"
    npz.write(recorded, inputs=args, outputs=evaluate(module, args))  # type: ignore[arg-type]
    source = tmp_path / "softmax.hlo"
    source.write_text(TEXT)
    common = ["bisect", str(source), "--plugin", str(PLUGIN), "--json", "--passes", "swap-subtract{only=2},dce"]
    data = json.loads(_hloscope(root, *common, "--oracle", str(recorded)).stdout)
    assert data["culprits"][0]["instruction"] == "out"
    seen = json.loads(_hloscope(root, *common, "--oracle", "grep -q 'subtract(%e2, %a)'").stdout)
    assert seen["verdict"] == "wrong-stage" and seen["culprits"][0]["instruction"] == "out"
    source.write_text(TEXT.replace("constant(1)", "constant(2)"))
    changed = json.loads(_hloscope(root, *common, "--oracle", str(recorded)).stdout)
    assert changed["verdict"] == "wrong-input"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--passes", "nosuch"], "nosuch"),
        (["--passes", "algsimpp"], "algsimp"),
        (["--engine", "xla", "--passes", "dce"], "--engine core"),
        (["--passes", "dce", "--pipeline", "cpu"], "exclude"),
        (["--oracle", "missing.npz"], "missing.npz"),
    ],
)
def test_bad_usage_is_one_line(tmp_path: Path, root: Path, args: list[str], said: str) -> None:
    source = tmp_path / "softmax.hlo"
    source.write_text(TEXT)
    done = _hloscope(root, "bisect", str(source), *args)
    assert done.returncode == 2
    assert done.stderr.startswith("hloscope: ") and done.stderr.count("\n") == 1 and said in done.stderr


def test_a_dump_takes_no_passes(root: Path, fixtures: Path) -> None:
    dump = fixtures / "dumps" / "cpu_snapshot"
    done = _hloscope(root, "bisect", str(dump), "--passes", "dce")
    assert done.returncode == 2
    assert "are for a single module" in done.stderr.splitlines()[-1]


def test_a_pass_that_exits_is_an_outcome_of_the_probe(tmp_path: Path, root: Path) -> None:
    source, plugin = tmp_path / "softmax.hlo", tmp_path / "exits.py"
    source.write_text(TEXT)
    plugin.write_text(
        "import sys\nclass Exits:\n    name = 'exits'\n    is_pipeline = False\n"
        "    def run(self, module, ctx):\n        sys.exit(0)\n"
        "def register(registry):\n    registry.add_pass('exits', Exits)\n"
    )
    done = _hloscope(root, "bisect", str(source), "--plugin", str(plugin), "--passes", "algsimp,exits", "--json")
    assert done.returncode == 1, done.stderr
    data = json.loads(done.stdout)
    assert (data["verdict"], data["culprits"][0]["pass"]) == ("compile-failure", "exits")


ODD = '''
import os, random, signal
from dataclasses import dataclass
from hloscope.core.passes.rules.base import Builder


@dataclass(frozen=True)
class Dice:
    """Swaps what a die says."""

    name = "dice"
    is_pipeline = False

    def run(self, module, ctx):
        changed = False
        for one in [one for one in module.entry if one.opcode == "subtract"]:
            if random.random() < 0.5:
                module.entry.replace(one, Builder(one).make("subtract", one.shape, list(one.operands)[::-1]))
                changed = True
        return changed


@dataclass(frozen=True)
class Loops:
    """Never ends, in a loop that Python cannot stop."""

    name = "loops"
    is_pipeline = False

    def run(self, module, ctx):
        return sum(range(1 << 60)) == 0


@dataclass(frozen=True)
class Dies:
    """Takes its process with it."""

    name = "dies"
    is_pipeline = False

    def run(self, module, ctx):
        asked = [ctx.gate("dies", one) for one in list(module.entry) if one.opcode == "subtract"]
        if len(asked) < 3 or asked[2]:
            os.kill(os.getpid(), signal.SIGSEGV)
        return False


@dataclass(frozen=True)
class Turns:
    """Wrong once, right again with the next run: the operands of the last subtract but one are exchanged."""

    name = "turns"
    is_pipeline = False

    def run(self, module, ctx):
        (tanh,) = [one for one in module.entry if one.opcode == "tanh"]
        last = tanh.operand(0) if tanh.operand(0).opcode == "subtract" else tanh.operand(0).operand(0)
        one = last.operand(0)
        step = ctx.gate("turns", one)
        if step:
            made = Builder(one).make("subtract", one.shape, list(one.operands)[::-1])
            module.entry.replace(one, made)
            step.done(made)
        return bool(step)


@dataclass(frozen=True)
class Mark:
    """Right: tanh(x) becomes -tanh(-x)."""

    name = "mark"
    is_pipeline = False

    def run(self, module, ctx):
        (one,) = [one for one in module.entry if one.opcode == "tanh"]
        build = Builder(one)
        inner = build.make("negate", one.shape, [one.operand(0)])
        module.entry.replace(one, build.make("negate", one.shape, [build.make("tanh", one.shape, [inner])]))
        return True


@dataclass(frozen=True)
class Breaks:
    """Wrong: -tanh becomes tanh."""

    name = "breaks"
    is_pipeline = False

    def run(self, module, ctx):
        found = [one for one in module.entry if one.opcode == "negate" and one.operand(0).opcode == "tanh"]
        for one in found:
            module.entry.replace(one, one.operand(0))
        return bool(found)


def register(registry):
    for made in (Dice, Loops, Dies, Turns, Mark, Breaks):
        registry.add_pass(made.name, made, made.__doc__)
'''
SUBTRACTS = "HloModule m\n\nENTRY e {\n  x = f32[4] parameter(0)\n  y = f32[4] parameter(1)\n" + (
    "  a = f32[4] subtract(x, y)\n  b = f32[4] subtract(a, x)\n  c = f32[4] subtract(b, y)\n"
    "  d = f32[4] subtract(c, a)\n  ROOT r = f32[4] tanh(d)\n}\n"
)


def _odd(tmp_path: Path, passes: str, timeout: float | None = None) -> Answer:
    plugin = tmp_path / "odd.py"
    plugin.write_text(ODD)
    subject = Recipe(SUBTRACTS, "m.hlo", passes, None, ((str(plugin), ODD),), timeout=timeout).subject()
    return CoreSearch(subject, make_oracle("reference", subject.module, None, 0)).run()


def test_a_pass_that_rolls_dice_is_not_deterministic(tmp_path: Path) -> None:
    for _ in range(3):
        answer = _odd(tmp_path, "dce,dice,cse")
        assert (answer.verdict, answer.culprits) == ("not-deterministic", [])
        assert "after transforms_pipeline/dice:0" in answer.evidence[0]


def test_a_pass_that_never_ends_is_ended(tmp_path: Path) -> None:
    """With a time limit in a process that can be killed: also where no line of Python comes any more."""
    before = signal.getsignal(signal.SIGALRM)
    answer = _odd(tmp_path, "dce,mark,loops,cse", timeout=0.3)
    assert answer.verdict == "compile-failure"
    assert [one.pass_name for one in answer.culprits] == ["loops"]
    assert "loops did not end within 0.3 s" in answer.evidence[0]
    assert signal.getsignal(signal.SIGALRM) is before
    recipe = Recipe(SUBTRACTS, "m.hlo", "dce,dies", None, ((str(tmp_path / "odd.py"), ODD),), timeout=20)
    heard = Child().heard(recipe, Choice(), (3, "dies"), 20)
    assert [(one.ordinal, one.rule, one.instruction) for one in heard] == [
        (number, "dies", name) for number, name in enumerate("abcd")
    ]


@pytest.mark.slow  # every death is a start of a process
def test_a_pass_that_takes_its_process_with_it_is_searched_by_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it asked the gate before is known, and refusing the decision in which it dies cures."""
    monkeypatch.setattr("hloscope.bisect.subjects.core.REPEATS", 0)
    answer = _odd(tmp_path, "dce,mark,dies,cse", timeout=20)
    assert "dies was ended by SIGSEGV" in answer.evidence[0]
    (culprit,) = answer.culprits
    assert (answer.verdict, culprit.fuel, culprit.instruction, culprit.rule) == ("compile-failure", 3, "c", "dies")
    assert culprit.decision is not None
    assert answer.cures == ["--fuel dies=2", "--disable-passes dies:0"]


def test_cures_are_tried_on_the_whole_compile(tmp_path: Path) -> None:
    """Two passes that are each wrong alone: neither cures, only both together, and which needs another one is told."""
    answer = _odd(tmp_path, "turns,mark,breaks,turns,turns,dce")
    assert [(one.pass_name, one.occurrence) for one in answer.culprits] == [("turns", 0), ("breaks", 0)]
    assert answer.pair == ("transforms_pipeline/mark:0", "transforms_pipeline/breaks:0")
    assert answer.cures == ["--disable-passes turns:0,breaks:0"]


def test_both_passes_of_a_pair_are_cures(tmp_path: Path) -> None:
    answer = _odd(tmp_path, "mark,breaks,dce")
    assert answer.pair == ("transforms_pipeline/mark:0", "transforms_pipeline/breaks:0")
    assert {"--disable-passes mark:0", "--disable-passes breaks:0"} <= set(answer.cures)
