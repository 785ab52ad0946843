"""The real XLA:CPU and a user's own program as what is searched."""

from __future__ import annotations

import io
import json
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloscope.bisect.running import run_command
from hloscope.bisect.search import Outcome, single_cures
from hloscope.bisect.subjects import xla
from hloscope.bisect.subjects.xla_names import check_name, passes_of
from hloscope.core.cli.main import run
from hloscope.core.errors import UsageError

SHIFT = """HloModule shift

ENTRY q {
  a = s32[6,1] parameter(0)
  one = s32[] constant(1)
  ones = s32[6,1] broadcast(one), dimensions={}
  y = s32[6,1] add(a, ones)
  s = s32[5,1] slice(y), slice={[0:5], [0:1]}
  z = s32[] constant(0)
  d = s32[6,1] dynamic-update-slice(y, s, one, z)
  ROOT r = s32[1,6,1] reshape(d)
}
"""
"""Compiled wrongly by jaxlib 0.10.2: a loop writes over what it has still to read (openxla/xla#49176)."""

PROGRAM = """
import os, re, sys
flags = os.environ.get("XLA_FLAGS", "")
found = re.search(r"--xla_dump_to=(\\S+)", flags)
if found:
    for number, name in enumerate(["algsimp", "fusion", "dce", "cse"]):
        file = f"module_0001.f.{number:04d}.pipe.after_{name}.before_next.txt"
        with open(os.path.join(found[1], file), "w") as out:
            out.write("HloModule f\\n\\nENTRY e {\\n  x = f32[] parameter(0)\\n  ROOT y = f32[] negate(x)\\n}\\n")
off = re.search(r"--xla_disable_hlo_passes=(\\S+)", flags)
sys.exit(0 if off and "fusion" in off[1].split(",") else 3)
"""


def bisect(*words: object) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    with redirect_stdout(out):
        code = run(["bisect", *map(str, words), "--json"])
    return code, json.loads(out.getvalue())


@pytest.mark.slow
def test_a_wrong_executable_of_right_stages_is_no_pass_s_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every curing pass is listed, and none is accused."""
    # A child process for each probe; that more passes are halved rightly is tested below.
    monkeypatch.setattr(xla, "SWITCHES", xla.SWITCHES[:1])
    monkeypatch.setattr(xla, "MOST_FUELLED", 1)
    few = ("algsimp", "dce", "fusion", "copy-insertion")
    monkeypatch.setattr(xla, "passes_of", lambda folder: [one for one in passes_of(folder) if one in few])
    source = tmp_path / "shift.hlo"
    source.write_text(SHIFT)
    code, answer = bisect(source, "--engine", "xla")
    if answer["verdict"] == "no-difference":
        pytest.skip("this jaxlib compiles it rightly")
    assert code == 1
    assert answer["verdict"] == "unsafe-buffers", answer
    assert not answer["culprits"], "every stage computes the right thing"
    assert any("every stage computes what the first one does" in said for said in answer["evidence"])
    assert {"--xla_disable_hlo_passes=algsimp", "--xla_disable_hlo_passes=fusion"} <= set(answer["cures"])


def test_a_right_compile_is_said_to_be_one(tmp_path: Path) -> None:
    source = tmp_path / "right.hlo"
    divided = "sharding={devices=[2]<=[2]}"
    body = f"  x = f32[8] parameter(0), {divided}\n  ROOT y = f32[8] negate(x)\n"
    source.write_text(f"HloModule m\n\nENTRY e {{\n{body}}}\n")
    code, answer = bisect(source, "--engine", "xla")
    assert (code, answer["verdict"]) == (0, "no-difference")
    assert any("ran on one device: its shardings were not used" in said for said in answer["evidence"])


REFUSED = """jax.errors.JaxRuntimeError: INTERNAL: during context [hlo verifier]: Expected shape f32[6], actual f32[4]:
%c.1 = f32[4]{0} concatenate(%s, %t), dimensions={0}


Failed after spmd-partitioning"""
MALFORMED = """E1130 16:04:17.4 1 flags.cc:93] Couldn't interpret value tru for flag xla_cpu_enable_fast_math.
F1130 16:04:17.5 25556 parse_flags_from_env.cc:220] Check failed: tsl::Flags::Parse(&argc, argv) Flag parsing failed.
usage: --xla_cpu_enable_fast_math=tru"""
UNKNOWN = "F1130 16:04:16.6   25551 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_nonsense=1"


@pytest.fixture()
def child_that_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What XLA says is real; the process that says it is a shell's."""

    def make(said: str) -> None:
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    return make


def test_the_pass_that_the_verifier_names_is_the_culprit(
    tmp_path: Path, child_that_says: Callable[[str], None]
) -> None:
    source = tmp_path / "m.hlo"
    source.write_text("HloModule m\n\nENTRY e {\n  x = f32[4] parameter(0)\n  ROOT r = f32[4] negate(x)\n}\n")
    child_that_says(REFUSED)
    code, answer = bisect(source, "--engine", "xla", "--no-cures")
    assert (code, answer["verdict"]) == (1, "compile-failure")
    assert [(one["pass"], one["instruction"]) for one in answer["culprits"]] == [("spmd-partitioning", "c.1")]
    assert "Expected shape f32[6]" in answer["culprits"][0]["sentence"]


@pytest.mark.parametrize(
    ("flags", "said", "told"),
    [
        ("--xla_nonsense=1", UNKNOWN, "Unknown flag in XLA_FLAGS: --xla_nonsense=1"),
        ("--xla_cpu_enable_fast_math=tru", MALFORMED, "interpret value tru for flag xla_cpu_enable_fast_math"),
        ("bogus", "", "bogus is no flag"),
        ("--xla_a='", "", "no closing quotation"),
    ],
)
def test_a_flag_that_xla_does_not_take_is_no_fault_of_the_compiler_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], child_that_says: Callable[[str], None],
    flags: str, said: str, told: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    source = tmp_path / "m.hlo"
    source.write_text("HloModule m\n\nENTRY e {\n  x = f32[4] parameter(0)\n  ROOT r = f32[4] negate(x)\n}\n")
    child_that_says(said)
    assert run(["bisect", str(source), "--engine", "xla", "--xla-flags", flags]) == 2
    assert told in capsys.readouterr().err
    assert run(["bisect", "--command", shlex.quote(sys.executable), "--xla-flags", flags]) == 2
    assert told in capsys.readouterr().err
    if said:  # those of the environment are the program's own to read
        monkeypatch.setenv("XLA_FLAGS", flags)
        assert run(["bisect", "--command", shlex.quote(sys.executable)]) == 2
        assert told in capsys.readouterr().err


def test_a_pass_that_does_not_run_cannot_be_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "shift.hlo"
    source.write_text(SHIFT)
    assert run(["bisect", str(source), "--engine", "xla", "--disable-passes", "fusoin"]) == 2
    assert "did you mean fusion" in capsys.readouterr().err


def test_names_in_the_environment_are_held_against_the_compiler_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1 --xla_disable_hlo_passes=dce,fusionn")
    source = tmp_path / "m.hlo"
    source.write_text("HloModule m\n\nENTRY e {\n  x = f32[4] parameter(0)\n  ROOT r = f32[4] negate(x)\n}\n")
    assert run(["bisect", str(source), "--engine", "xla"]) == 2
    said = capsys.readouterr().err
    assert "no pass 'fusionn'" in said and "fusion" in said and "not used here" in said


def test_steps_inside_a_pass_are_no_passes(tmp_path: Path) -> None:
    """XLA takes any name for a pass to switch off: what is none must not be among those that are tried."""
    for name in (
        "before_optimizations", "0001.simplification.after_dce.before_cse", "0002.simplification.after_dce.before_dce",
        "0003.copy-insertion.after_adding_copies_to_resolve_interference",
        "0004.copies.after_copy-insertion.before_pipeline-end", "cpu_after_optimizations",
    ):  # fmt: skip
        (tmp_path / f"module_0001.m.{name}.txt").write_text(
            "HloModule m\n\nENTRY e {\n  ROOT x = f32[] parameter(0)\n}\n"
        )
    assert passes_of(str(tmp_path)) == ["dce", "dce", "copy-insertion"]
    with pytest.raises(UsageError, match="no pass"):
        check_name("after_adding_copies_to_resolve_interference", str(tmp_path))


def test_a_user_s_program_is_searched_by_its_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    code, answer = bisect("--command", f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}")
    assert (code, answer["verdict"]) == (1, "cannot-tell")
    assert answer["cures"] == ["--xla_disable_hlo_passes=fusion"]
    assert answer["culprits"] == []


def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    mark, script = tmp_path / "mark", tmp_path / "hang.sh"
    script.write_text(f"#!/bin/sh\n(sleep 2; touch {shlex.quote(str(mark))}) &\nsleep 30\nexit 0\n")
    script.chmod(0o755)
    started = time.monotonic()
    outcome = run_command(f"{shlex.quote(str(script))}; true", timeout=0.5)
    assert (outcome.kind, time.monotonic() - started < 20) == ("failed", True)
    time.sleep(2)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("program", "kind", "told"),
    [
        ("kill -ABRT $$", "failed", "SIGABRT"),
        ("exit 125", "unknown", "125"),
        ("exit 139", "failed", "SIGSEGV"),
        ("printf 'SomeError: wrong shape:\n  ROOT %%c.1 = f32[4] concatenate(%%a)\nFailed after spmd\n' >&2; exit 1",
         "wrong", "SomeError: wrong shape; %c.1 = f32[4] concatenate(%a); Failed after spmd"),
        ("printf 'INTERNAL: wrong shape:\n%%c.1 = f32[4] concatenate(%%a)\n\n /a.py:1\n\nFailed after spmd\n'; exit 1",
         "wrong", "INTERNAL: wrong shape; %c.1 = f32[4] concatenate(%a); Failed after spmd"),
    ],
)  # fmt: skip
def test_exit_codes_are_read_as_git_bisect_run_does(program: str, kind: str, told: str) -> None:
    outcome = run_command(program, timeout=30)
    assert outcome.kind == kind and told in outcome.detail, outcome


def test_a_program_that_passes_is_asked_three_times() -> None:
    code, answer = bisect("--command", "true")
    assert (code, answer["verdict"]) == (0, "no-difference")
    assert "3 times: with 95 % confidence" in answer["evidence"][0]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 64), st.data())
def test_single_cures_are_all_found_within_their_budget(count: int, data: st.DataObject) -> None:
    names = [f"p{number}" for number in range(count)]
    good = data.draw(st.sets(st.sampled_from(names), max_size=3))
    needed = data.draw(st.sets(st.sampled_from(names), max_size=2)) - good

    def off(group: Any) -> Outcome:
        if needed & set(group):
            return Outcome("failed")
        return Outcome("right" if good & set(group) else "wrong")

    found, steps = single_cures(names, off, "passes off", budget=200)
    assert {group[0] for group in found} == good
    assert all(len(group) == 1 for group in found)
    assert len(steps) <= 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict", "passes"),
    [
        ("square_overflow", "wrong-stage", ["algsimp"]),
        ("library_reduction", "below-hlo", []),
        ("rank_seven_reduction", "compile-failure", []),
    ],
)
def test_public_miscompiles_of_released_wheels(fixtures: Path, name: str, verdict: str, passes: list[str]) -> None:
    code, answer = bisect(fixtures / "faults" / "public" / f"{name}.hlo", "--engine", "xla", "--no-cures")
    if answer["verdict"] == "no-difference":
        pytest.skip("this jaxlib compiles it rightly")
    assert (code, answer["verdict"]) == (1, verdict), answer["evidence"]
    assert [one["pass"] for one in answer["culprits"]] == passes


@pytest.mark.slow
def test_a_module_for_several_devices_is_partitioned(tmp_path: Path) -> None:
    source = tmp_path / "two.hlo"
    rows = "sharding={devices=[2,1]<=[2]}"
    source.write_text(
        "HloModule two, num_partitions=2\n\nENTRY e {\n"
        f"  a = f32[4,6] parameter(0), {rows}\n"
        "  b = f32[4,6] reverse(a), dimensions={0}\n"
        f"  ROOT r = f32[4,6] add(a, b), {rows}\n}}\n"
    )
    code, answer = bisect(source, "--engine", "xla", "--no-cures")
    assert (code, answer["verdict"]) == (0, "no-difference"), answer
    code, answer = bisect(source, "--against=--xla_cpu_enable_fast_math=false")
    assert code == 0 and "the two executables give the same bits" in answer["evidence"]


@pytest.mark.slow
def test_two_programs_are_told_from_two_compiles_of_one(tmp_path: Path) -> None:
    """Each is held against what itself computes: log(exp(x)), which XLA makes x, is not the fault."""
    text = (
        "HloModule m\n\nENTRY e {\n  p = f32[6,6] parameter(0)\n  x = f32[6,6] exponential(p)\n"
        "  n = f32[6,6] negate(x)\n  l = f32[6,6] log(x)\n  d = f32[6,6] divide(n, l)\n"
        "  ROOT r = f32[6,6] add(d, l)\n}\n"
    )
    one, two = tmp_path / "one.hlo", tmp_path / "two.hlo"
    one.write_text(text)
    two.write_text(text.replace(" add(d, l)", " subtract(d, l)"))
    code, answer = bisect(one, "--against", two)
    assert (code, answer["verdict"], answer["culprits"]) == (1, "wrong-input", []), answer
    code, answer = bisect(one, "--against", one)
    assert (code, answer["culprits"]) == (0, []), answer
    two.write_text(text.replace("[6,6]", "[6,5]"))
    assert run(["bisect", str(one), "--against", str(two)]) == 2
