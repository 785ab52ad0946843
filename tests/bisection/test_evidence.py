"""Verdicts that a single probe cannot give: pairs, flaky results, what values hide, names, releases, kernels."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

from hloscope.bisect.journal import Journal
from hloscope.bisect.oracles import make_oracle
from hloscope.bisect.probing import Prober
from hloscope.bisect.result import Answer
from hloscope.bisect.search import Outcome, single_cures
from hloscope.bisect.subjects.core import CoreSearch, CoreSubject
from hloscope.bisect.subjects.dump import DumpSearch
from hloscope.bisect.subjects.xla import CommandSearch
from hloscope.bisect.subjects.xla_names import check_name, disabled_in
from hloscope.core.errors import CompileError, UsageError
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.module import HloModule
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.flags import PassFlags
from hloscope.core.passes.pipelines import transforms_pipeline
from hloscope.core.passes.registry import Registry
from hloscope.core.runtime.verdicts import ReplayOptions
from hloscope.core.text import load_module
from hloscope.core.views.run import load

TEXT = """HloModule chain

ENTRY %main (a: f32[4], b: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %b = f32[4]{0} parameter(1)
  %c = f32[4]{0} subtract(%a, %b)
  %d = f32[4]{0} multiply(%c, %b)
  ROOT %e = f32[4]{0} exponential(%d)
}
"""


@dataclass(frozen=True)
class Note:
    """Leaves a note that another pass may believe; the values stay what they are."""

    name = "note"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        for node in [one for one in module.instructions() if one.opcode == "subtract"]:
            with ctx.gate("note", node) as step:
                if step:
                    node.set_attr("frontend_attributes", '{commutes="yes"}')
        return True


@dataclass(frozen=True)
class Believe:
    """Swaps what is noted as commuting."""

    name = "believe"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        changed = False
        for node in [one for one in module.instructions() if one.opcode in ("subtract", "multiply")]:
            step = ctx.gate("believe", node)
            if not step:
                continue
            operands = node.operands
            if node.opcode == "subtract" and "frontend_attributes" in node.raw_attrs:
                operands = operands[::-1]
            step.done(node.parent.replace(node, HloInstruction(node.opcode, node.shape, operands)))
            changed = True
        return changed


@dataclass(frozen=True)
class Halves:
    """Turns exponentials into another function: a fault of its own."""

    name = "halves"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        for node in [one for one in module.instructions() if one.opcode == "exponential"]:
            node.parent.replace(node, HloInstruction("tanh", node.shape, node.operands))
        return True


def search(passes: str, oracle: Any = None) -> Any:
    registry = Registry()
    for one in (Note, Believe, Halves):
        registry.add_pass(one.name, one)
    module = load_module(TEXT)
    subject = CoreSubject(
        module, "chain.hlo", lambda: transforms_pipeline(registry.make_all(passes), registry), registry, PassFlags()
    )
    return CoreSearch(subject, oracle or make_oracle("reference", module, None, 0)).run()


def test_two_passes_that_are_wrong_only_together_are_a_pair() -> None:
    answer = search("dce,note,cse,believe,dce")
    assert answer.pair == ("transforms_pipeline/note:0", "transforms_pipeline/believe:0")
    assert [(one.pass_name, one.instruction) for one in answer.culprits] == [("believe", "c")]
    assert search("dce,note,cse,dce").verdict == "no-difference"
    assert search("dce,believe,cse").verdict == "no-difference"


def test_a_pass_that_is_wrong_by_itself_has_no_partner_and_hides_nobody() -> None:
    alone = search("dce,note,halves,cse")
    assert alone.pair == () and [one.pass_name for one in alone.culprits] == ["halves"]
    both = search("note,believe,cse,halves,dce")
    assert [one.pass_name for one in both.culprits] == ["believe", "halves"]


def test_switches_that_cure_only_together_are_found_as_a_group() -> None:
    names = [f"p{number}" for number in range(21)]

    def off(group: Any) -> Outcome:
        return Outcome("right" if {"p3", "p17"} <= set(group) else "wrong")

    found, steps = single_cures(names, off, "passes off")
    assert found == [("p3", "p17")] and len(steps) <= 48


class Flaky:
    """An oracle that says now this, now that, of a wrong module."""

    name = "flaky"
    evaluates = False

    def __init__(self) -> None:
        self.asked = 0

    def add_arrays(self, files: object) -> None:
        """It has none."""

    def judge(self, module: HloModule) -> Outcome:
        """Wrong every second time."""
        self.asked += 1
        return Outcome("wrong" if self.asked % 2 else "right")


def test_a_flaky_oracle_accuses_nobody() -> None:
    answer = search("note,believe,dce", Flaky())
    assert (answer.verdict, answer.culprits) == ("not-deterministic", [])
    assert any("3 times right, 1 times wrong" in said for said in answer.evidence)


def test_a_program_that_fails_now_and_then_is_not_deterministic(tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = tmp_path / "program.py"
    script.write_text(
        f"import pathlib, sys\np = pathlib.Path({str(count)!r})\n"
        "p.write_text((p.read_text() if p.exists() else '') + 'x')\nsys.exit(len(p.read_text()) % 2)\n"
    )
    with Journal.for_once() as journal:
        answer = CommandSearch(f"{sys.executable} {script}", prober=Prober(journal)).run()
    assert (answer.verdict, answer.culprits, answer.cures) == ("not-deterministic", [], [])
    assert any("95 % confidence" in said for said in answer.evidence)


SHARED = """HloModule m, entry_computation_layout={(s32[6,1]{1,0})->s32[1,6,1]{2,1,0}}

ENTRY %e (a: s32[6,1]) -> s32[1,6,1] {
  %a = s32[6,1]{1,0} parameter(0)
  %y = s32[6,1]{1,0} add(%a, %a)
  %part = s32[5,1]{1,0} slice(%y), slice={[0:5], [0:1]}
  %one = s32[] constant(1)
  %zero = s32[] constant(0)
  %d = s32[6,1]{1,0} dynamic-update-slice(%y, %part, %one, %zero)
  ROOT %r = s32[1,6,1]{2,1,0} reshape(%d)
}
"""
SHARED_AFTER = """HloModule m, is_scheduled=true, entry_computation_layout={(s32[6,1]{1,0})->s32[1,6,1]{2,1,0}}

%fused (p: s32[6,1]) -> s32[1,6,1] {
  %p = s32[6,1]{1,0} parameter(0)
  %b = s32[1,6,1]{2,1,0} bitcast(%p)
  %part = s32[5,1]{1,0} slice(%p), slice={[0:5], [0:1]}
  %c = s32[1,5,1]{2,1,0} bitcast(%part)
  %zero = s32[] constant(0)
  %one = s32[] constant(1)
  ROOT %d = s32[1,6,1]{2,1,0} dynamic-update-slice(%b, %c, %zero, %one, %zero)
}

ENTRY %e (a: s32[6,1]) -> s32[1,6,1] {
  %a = s32[6,1]{1,0} parameter(0)
  %y = s32[6,1]{1,0} add(%a, %a)
  ROOT %f = s32[1,6,1]{2,1,0} fusion(%y), kind=kLoop, calls=%fused
}
"""


def test_the_buffers_of_a_program_s_modules_are_looked_at(tmp_path: Path) -> None:
    """A program that dumps two modules, of which one writes over what it still reads; what is left out is told."""
    plain = SHARED.replace("add(", "multiply(")
    modules = {"0001.a": (plain, plain), "0002.b": (SHARED, SHARED_AFTER), "0003.c": ("HloModule c {", "")}
    for name, texts in modules.items():
        for stage, text in zip(("before_optimizations", "cpu_after_optimizations"), texts, strict=True):
            (tmp_path / f"module_{name}.{stage}.txt").write_text(text)
    script = tmp_path / "program.sh"
    script.write_text(f'cp {tmp_path}/module_*.txt "$(echo $XLA_FLAGS | sed "s/.*dump_to=//;s/ .*//")"\nexit 1\n')

    def search() -> Answer:
        with Journal.for_once() as journal:
            return CommandSearch(f"sh {script}", cures=False, prober=Prober(journal)).run()

    answer = search()
    assert (answer.verdict, answer.culprits) == ("unsafe-buffers", [])
    assert "module b, on random inputs:" in answer.evidence
    assert any("%f: an instruction writes over what it still has to read" in one for one in answer.evidence)
    (tmp_path / "module_0002.b.cpu_after_optimizations.txt").unlink()
    without = search()
    assert without.verdict == "cannot-tell"
    assert any("2 of 3 modules compute the same" in one for one in without.evidence)
    assert any("module c" in one or "module 2" in one for one in without.evidence)


# ---------------------------------------------------------------- what values hide
STAGE = """HloModule m, entry_computation_layout={(f32[4,6]{1,0}, f32[4,6]{1,0})->(f32[4,6]{1,0}, f32[4,6]{1,0})}

ENTRY %main (a: f32[4,6], b: f32[4,6]) -> (f32[4,6], f32[4,6]) {
  %a = f32[4,6]{1,0} parameter(0)
  %b = f32[4,6]{1,0} parameter(1)
  %one = f32[4,6]{1,0} add(%a, %b)
  %two = f32[4,6]{1,0} multiply(%a, %b), control-predecessors={%one}
  %three = f32[4,6]{1,0} subtract(%two, %b)
  ROOT %out = (f32[4,6]{1,0}, f32[4,6]{1,0}) tuple(%one, %three)
}
"""
NAMES = (
    "before_optimizations", "0001.p.after_layout-assignment.before_dce", "0002.p.after_dce.before_cse",
    "0003.p.after_cse.before_x", "cpu_after_optimizations",
)  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "instruction", "said"),
    [
        (", control-predecessors={%one}", "", "two", "nothing orders %two after %one"),
        ("%two = f32[4,6]{1,0} multiply", "%two = f32[4,6]{0,1} multiply", "two", "layout"),
        ("SCHEDULED, control-predecessors={%one}", "", "two", "only the schedule orders %two after %one"),
        ("", "", None, ""),
    ],
)
def test_orders_and_layouts_of_a_dump(tmp_path: Path, old: str, new: str, instruction: str | None, said: str) -> None:
    stage = STAGE
    if old.startswith("SCHEDULED"):
        old, stage = old.removeprefix("SCHEDULED"), STAGE.replace("HloModule m", "HloModule m, is_scheduled=true")
    for number, name in enumerate(NAMES):
        text = stage.replace(old, new) if old and number >= 2 else stage
        # Stages that differ in nothing but a name are told apart.
        (tmp_path / f"module_0001.m.{name}.txt").write_text(text.replace("%three", f"%three.{number}"))
    with load(str(tmp_path)) as run:
        answer = DumpSearch(run, options=ReplayOptions(workers=1)).run()
    if instruction is None:
        assert (answer.verdict, answer.culprits) == ("no-difference", [])
        return
    assert answer.verdict == "wrong-stage"
    assert (answer.culprits[0].pass_name, answer.culprits[0].instruction) == ("dce", instruction)
    assert said in answer.culprits[0].sentence


# ---------------------------------------------------------------- names
def test_names_of_passes_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    (tmp_path / "module_0001.m.before_optimizations.txt").write_text(STAGE)
    (tmp_path / "module_0001.m.0001.p.after_algsimp.before_odd-pass.txt").write_text(STAGE)
    for known in ("algsimp", "odd-pass", "@3", "p/algsimp:0", "algsimp:1"):
        check_name(known, str(tmp_path))
    with pytest.raises(UsageError, match="no pass 'algsmip'") as raised:
        check_name("algsmip", str(tmp_path))
    assert "algsimp" in (raised.value.hint or "")
    assert disabled_in(["--xla_foo=1", "--xla_disable_hlo_passes=a,b"]) == ["a", "b"]


# ---------------------------------------------------------------- releases
@pytest.mark.slow
def test_the_first_release_that_changes_the_result_is_found(tmp_path: Path) -> None:
    from hloscope.bisect.subjects.over import OverSearch
    from hloscope.core.runtime.inputs import inputs_for

    shift: str = run_path(str(Path(__file__).with_name("test_xla_subject.py")))["SHIFT"]
    # "Releases" before 3 are the installed one with a pass off, which computes the right thing.
    old = tmp_path / "python"
    old.write_text(
        f'#!/bin/sh\nXLA_FLAGS="$XLA_FLAGS --xla_disable_hlo_passes=fusion" exec {sys.executable} "$@"\n'
    )
    old.chmod(0o755)

    def install(version: str) -> str:
        return str(old) if int(version[0]) < 3 else sys.executable

    module = load_module(shift)
    versions = ["1.0", "2.0", "3.0", "4.0"]
    answer = OverSearch(module, shift, "shift.hlo", inputs_for(module.entry), versions, install=install).run()
    if not answer.changes:
        pytest.skip("this jaxlib compiles it rightly")
    change = next(one for one in answer.changes if one["measure"] == "result")
    assert (change["before"], change["after"], change["was"], change["is"]) == ("2.0", "3.0", "right", "wrong")
    assert answer.verdict == "unsafe-buffers" and not answer.culprits


@pytest.mark.parametrize("spec", ["jax=0.6.0..0.7.0", "jaxlib=0.7.0", "jaxlib=0.7.0..0.6.0", "jaxlib"])
def test_ranges_of_releases_that_cannot_be_read_are_one_line(spec: str) -> None:
    from hloscope.bisect.subjects.versions import versions_between

    with pytest.raises(UsageError):
        versions_between(spec)


# ---------------------------------------------------------------- kernels
class KilledSearch(BaseException):
    """What stands for a kill."""


class KilledJournal(Journal):
    """A journal whose process dies when it is to note a second outcome."""

    def put(self, key: str, outcome: Outcome) -> None:
        if self._known:
            raise KilledSearch
        super().put(key, outcome)

    @staticmethod
    def for_question(*parts: str | bytes, fresh: bool = False) -> Journal:
        return KilledJournal(Journal.for_question(*parts, fresh=fresh).folder)


def test_the_choice_and_the_statement_of_a_kernel(fixtures: Path) -> None:
    pytest.importorskip("jax")
    from hloscope.bisect.subjects.pallas import PallasSearch
    from hloscope.core.pallas.tracing import trace_file

    path = str(fixtures / "pallas" / "wrong.py")
    whole = trace_file(path)
    lines = Path(path).read_text().split("\n")
    expected = {
        # function: verdict, fuel, what stands in the kernel's line
        "read_early": ("not-deterministic", 2, "buf"),
        "used_again_too_soon": ("not-deterministic", 3, "buf"),
        "same_cell": ("not-deterministic", 1, "x_ref"),
        "waits_for_nothing": ("wrong-input", None, "wait"),
    }
    for function, (verdict, fuel, words) in expected.items():
        trace = replace(whole, programs=tuple(one for one in whole.programs if one.function == function))
        answer = PallasSearch(trace).run()
        (culprit,) = answer.culprits
        assert (answer.verdict, culprit.fuel) == (verdict, fuel), function
        assert culprit.line is not None and words in lines[culprit.line - 1], function
        assert culprit.file == path
        if fuel is None or fuel < 2:
            continue
        # Killed at its second probe and begun again: the same answer, with what the journal has.
        with pytest.raises(KilledSearch):
            PallasSearch(trace, journal=KilledJournal.for_question(function)).run()
        journal = Journal.for_question(function)
        again = PallasSearch(trace, journal=journal).run()
        assert again.culprits == answer.culprits, "the same seeds make the same choices"
        assert journal.resumed == 1
        journal.close()


def test_a_race_of_parallel_steps_is_no_uninitialised_read(tmp_path: Path) -> None:
    """The second of two cores begins with what nobody wrote: that is the race's doing, whatever the chip."""
    pytest.importorskip("jax")
    from hloscope.bisect.subjects.pallas import PallasSearch
    from hloscope.core.pallas.tracing import trace_file

    path = tmp_path / "race.py"
    path.write_text(
        "import jax\nimport jax.numpy as jnp\nfrom jax.experimental import pallas as pl\n"
        "from jax.experimental.pallas import tpu as pltpu\n"
        "X = jax.ShapeDtypeStruct((32, 128), jnp.float32)\n\n\n"
        "def kernel(x_ref, o_ref):\n    @pl.when(pl.program_id(0) == 0)\n    def _():\n"
        "        o_ref[...] = jnp.zeros_like(o_ref)\n"
        "    o_ref[...] = o_ref[...] * 0.5 + x_ref[...]\n\n\n"
        "def total(x=X, word='parallel'):\n"
        "    return pl.pallas_call(\n"
        "        kernel, grid=(4,), in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],\n"
        "        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),\n"
        "        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),\n"
        "        compiler_params=pltpu.CompilerParams(dimension_semantics=(word,)),\n    )(x)\n\n\n"
        "def in_order(x=X):\n    return total(x, 'arbitrary')\n\n\n"
        "def carrying(x_ref, o_ref, s):\n    @pl.when(pl.program_id(0) == 0)\n    def _():\n"
        "        s[...] = jnp.zeros_like(s)\n    s[...] += x_ref[...]\n    o_ref[...] = s[...]\n\n\n"
        "def carried(x=X):\n"
        "    block = pl.BlockSpec((8, 128), lambda i: (i, 0))\n"
        "    return pl.pallas_call(\n"
        "        carrying, grid=(4,), in_specs=[block], out_specs=block, out_shape=X,\n"
        "        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],\n"
        "        compiler_params=pltpu.CompilerParams(dimension_semantics=('parallel',)),\n    )(x)\n"
    )
    whole = trace_file(str(path), facts=False)
    for target in ("v5e", None):
        for program in whole.programs:
            answer = PallasSearch(replace(whole, programs=(program,)), target=target).run()
            if program.function == "in_order":
                assert (answer.verdict, answer.culprits) == ("no-difference", [])
                continue
            assert answer.verdict == "not-deterministic" and answer.probes
            (culprit,) = answer.culprits
            if program.function == "carried":
                assert culprit.line == 32 and "dimension 0 of the grid may run in any order" in culprit.sentence
                assert any("arbitrary" in one for one in answer.cures)
                continue
            assert (culprit.line, culprit.fuel) == (11, 1), "the first of the two writes; the first step's index"
            assert "both write" in culprit.sentence and "race.py:12" in culprit.sentence
            told = " ".join(answer.evidence)
            assert "uninitialized-read" not in told and "race.py:18" in told, "the index map that gives both the block"
            assert any("arbitrary" in one for one in answer.cures)


def test_the_choice_of_a_kernels_lowering(tmp_path: Path) -> None:
    """Where no order changes the result, what a dot of default precision may round is searched."""
    pytest.importorskip("jax")
    from hloscope.bisect.subjects.pallas import PallasSearch
    from hloscope.core.pallas.tracing import trace_file

    path = tmp_path / "dots.py"
    path.write_text(
        "import jax\nimport jax.numpy as jnp\nfrom jax.experimental import pallas as pl\n"
        "X = jax.ShapeDtypeStruct((128, 128), jnp.float32)\n\n\n"
        "def two(x=X, y=X):\n    def kernel(x_ref, y_ref, o_ref):\n"
        "        exact = jnp.dot(x_ref[...], y_ref[...], precision=jax.lax.Precision.HIGHEST)\n"
        "        o_ref[...] = jnp.dot(exact, y_ref[...])\n\n"
        "    return pl.pallas_call(kernel, out_shape=X)(x, y)\n\n\n"
        "def one(x=X, y=X):\n    def kernel(x_ref, y_ref, o_ref):\n"
        "        o_ref[...] = jnp.dot(x_ref[...], y_ref[...], precision=jax.lax.Precision.HIGHEST)\n\n"
        "    return pl.pallas_call(kernel, out_shape=X)(x, y)\n"
    )
    whole = trace_file(str(path), facts=False)
    answers = {
        program.function: PallasSearch(replace(whole, programs=(program,)), target="v5e").run()
        for program in whole.programs
    }
    assert (answers["one"].verdict, answers["one"].culprits) == ("no-difference", [])
    (culprit,) = answers["two"].culprits
    assert (answers["two"].verdict, culprit.fuel, culprit.line) == ("allowed-change", 1, 10)
    assert "rounded to bf16" in culprit.sentence and not answers["two"].fault
    assert any("dots.py:10: rounding in this dot alone" in one for one in answers["two"].evidence)
    on_gpu = PallasSearch(replace(whole, programs=whole.programs[:1]), target="a100").run()
    assert on_gpu.verdict == "cannot-tell", "a kernel without compiler parameters is Mosaic GPU's there"


def test_releases_that_there_are_not_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hloscope.bisect.subjects import versions

    monkeypatch.setenv("HLOSCOPE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(versions, "_released", lambda: ["0.6.2", "0.10.1", "0.10.2"])
    assert versions.versions_between("jaxlib=0.10.2,0.6.2") == ["0.6.2", "0.10.2"]
    with pytest.raises(UsageError, match=r"no release 0.10.3 of jaxlib") as refused:
        versions.versions_between("jaxlib=0.6.2,0.10.3")
    assert "0.10.2" in (refused.value.hint or "")


def test_where_nothing_changes_only_the_ends_are_asked() -> None:
    from hloscope.bisect.subjects.over import OverSearch

    asked: list[str] = []

    def install(version: str) -> str:
        asked.append(version)
        raise CompileError(f"jaxlib {version} crashes")

    module = load_module("HloModule m\n\nENTRY e {\n  a = f32[] parameter(0)\n  ROOT r = f32[] negate(a)\n}\n")
    versions = [f"0.{number}.0" for number in range(40)]
    answer = OverSearch(module, "", "m.hlo", [np.array(1, np.float32)], versions, install=install).run()
    assert answer.verdict == "compile-failure" and sorted(asked) == ["0.0.0", "0.39.0"]


def test_the_first_release_that_changes_copies_fusions_or_the_peak_is_named() -> None:
    """As a scatter in a loop goes from 0.4.30 to 0.10.2; what the journal has is asked of no release."""
    from hloscope.bisect.subjects.over import OverSearch, VersionTask

    module = load_module("HloModule m\n\nENTRY e {\n  a = f32[] parameter(0)\n  ROOT r = f32[] negate(a)\n}\n")
    seen = {  # copies, fusions, peak
        "0.4.26": (3, 3, None), "0.4.30": (3, 3, 25808), "0.4.35": (3, 3, 25904), "0.4.38": (3, 3, 25904),
        "0.6.2": (1, 1, 25744), "0.10.1": (2, 2, 25744), "0.10.2": (3, 2, 25744),
    }  # fmt: skip

    def install(version: str) -> str:
        raise AssertionError(version)

    journal = Journal.for_once()
    for version, (copies, fusions, peak) in seen.items():
        told = {"said": "the expected result", "copies": copies, "fusions": fusions, "peak": peak}
        journal.put(VersionTask("", (), (), version, (), install).key, Outcome("right", json.dumps(told)))
    with journal:
        search = OverSearch(module, "", "m.hlo", [np.array(1, np.float32)], list(seen), prober=Prober(journal))
        search.install = install
        answer = search.run()
    assert answer.verdict == "no-difference" and [tuple(one.values()) for one in answer.changes] == [
        ("copies", "0.4.38", "0.6.2", "3", "1"),
        ("fusions", "0.4.38", "0.6.2", "3", "1"),
        ("peak", "0.4.30", "0.4.35", "25808", "25904"),
    ]
    assert "copies: 3 up to jaxlib 0.4.38, 1 with 0.6.2, 3 with 0.10.2" in answer.evidence
