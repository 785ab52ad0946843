"""The folder for a bug report: what a maintainer without this tool gets, and what it must not tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from hloscope.bisect.bundle import Extras, by_number, redacted, report, stages_ledger, write_bundle
from hloscope.bisect.portable import Portable, portable
from hloscope.bisect.result import Answer, Culprit
from hloscope.core.errors import UnsupportedError
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.text import load_module
from hloscope.core.views.data import Source
from hloscope.core.views.run import load

TEXT = """HloModule jit_bobs_plan, entry_computation_layout={(bf16[4])->bf16[4]}, frontend_attributes={mesh="bob={x}"}

FileNames
1 "/users/bob/proj/train.py"

FunctionNames
1 "bobs_plan"

FileLocations
1 {file_name_id=1 function_name_id=1 line=4 end_line=4 column=9 end_column=20}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

ENTRY %main (x: bf16[4]) -> bf16[4] {
  %x = bf16[4]{0} parameter(0), sharding={replicated metadata={op_name="bob"}}, metadata={op_name="bob{"}
  ROOT %y = bf16[4]{0} negate(%x), frontend_attributes={who="{bob}"}, metadata={op_name="b/bob" stack_frame_id=1}
}
"""


def answer() -> Answer:
    x = np.arange(4).astype(ml_dtypes.bfloat16)
    found = Answer("below-hlo", [Culprit("/users/bob/proj/secret.hlo", "fusion", "", 0, sentence="of jit_bobs_plan")])
    found.evidence = ["seen in /users/bob/proj/secret.hlo", "module jit_bobs_plan"]
    found.texts["module.hlo"] = TEXT
    found.arrays = {"inputs.npz": ([x], []), "expected.npz": ([], [np.negative(x)])}
    return found


SOURCE = Source("/users/bob/proj/secret.hlo", "jit_bobs_plan", None, "cpu")


def test_a_bundle_tells_no_names_unless_it_is_asked_to(tmp_path: Path) -> None:
    dump = tmp_path / "bobs"
    dump.mkdir()
    for number, name in enumerate(("before_optimizations", "cpu_after_optimizations")):
        (dump / f"module_0001.jit_bobs_plan.{name}.txt").write_text(TEXT.replace("negate", "abs") if number else TEXT)
    words = ["bisect", "proj/bob/secret.hlo", "--args", "/data/bob/in.npz"]
    for redact in (True, False):
        folder = tmp_path / f"bundle{redact}"
        with load(str(dump)) as run:
            extras = Extras(
                ["--xla_a=1", "--xla_b=2"], True, lambda: load_module(TEXT),
                lambda path, run=run, redact=redact: stages_ledger(run, path, redact=redact),
            )  # fmt: skip
            write_bundle(str(folder), answer(), SOURCE, words, redact=redact, extras=extras)
        telling = sorted(one.name for one in folder.iterdir() if b"bob" in one.read_bytes())
        assert telling == ([] if redact else ["minimal.hlo", "module.hlo", "report.md"])
        report = (folder / "report.md").read_text()
        assert "XLA_FLAGS='--xla_a=1 --xla_b=2' python repro.py" in report and "minimal.hlo" in report
        with load(str(folder / "run.ledger")) as run:
            told = "".join(run.stage_text(at) for at in range(len(run)))  # they are stored compressed
            assert ("bob" in told) is not redact
            assert [load_module(run.stage_text(at)).entry.root.opcode for at in (0, len(run) - 1)] == ["negate", "abs"]
    assert load_module(redacted(TEXT)).name == "module"


@pytest.mark.slow
def test_the_script_needs_nothing_of_this_tool(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    found = answer()
    found.arrays["expected.npz"][1][0][1] = 7
    write_bundle(str(folder), found, SOURCE, ["bisect"], extras=Extras(jax=True))
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-I", str(folder / "repro.py")],
        cwd="/",
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.startswith("module.hlo: result 0: off by 8"), done.stdout + done.stderr


LAID_OUT = """HloModule m, is_scheduled=true, entry_computation_layout={(f32[2,3]{0,1:T(2,128)S(1)})->f32[6]{0}}

%body (p: f32[3,2]) -> f32[3,2] {
  %p = f32[3,2]{1,0} parameter(0)
  ROOT %n = f32[3,2]{1,0} negate(%p)
}

ENTRY %main (s1: f32[2,3]) -> f32[6] {
  %s1 = f32[2,3]{0,1} parameter(0)
  %start = (f32[2,3]{0,1:S(1)}, f32[2,3]{0,1}, u32[]{:S(2)}) copy-start(%s1)
  %done = f32[2,3]{0,1:S(1)} copy-done(%start)
  %turned = f32[3,2]{1,0} bitcast(%done)
  %fused = f32[3,2]{1,0} fusion(%turned), kind=kCustom, calls=%body, backend_config={"kind":"__triton"}
  %sure = f32[3,2]{1,0} custom-call(%fused), custom_call_target="AssumeGatherIndicesInBound"
  ROOT %flat = f32[6]{0} bitcast(%sure)
}
"""


def test_a_stage_of_another_back_end_is_written_as_xla_cpu_takes_it() -> None:
    made = portable(LAID_OUT, native=False)
    module = load_module(made.text)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (result,) = evaluate(module, [x])
    # Column by column, as the bytes lay.
    np.testing.assert_array_equal(np.asarray(result), [0, -3, -1, -4, -2, -5])
    np.testing.assert_array_equal(np.asarray(evaluate(load_module(LAID_OUT), [x])[0]), np.asarray(result))
    used = {one.opcode for one in module.instructions()}
    assert used == {"parameter", "copy", "transpose", "negate", "reshape"}
    assert not module.is_scheduled and "S(1)" not in made.text and "{0,1}" not in made.text
    assert module.entry.parameters[0].name == "s1_" and any("%s1" in one for one in made.changes)
    assert portable(TEXT, native=True) == Portable(TEXT, ())
    tiles = LAID_OUT.replace("f32[6]{0} bitcast", "f32[6]{0:T(256)} bitcast").replace(
        "%sure = f32[3,2]{1,0}", "%sure = f32[3,2]{1,0:T(8,128)}"
    )
    with pytest.raises(UnsupportedError, match="tiles"):
        portable(tiles, native=False)


@pytest.mark.slow
def test_stages_of_a_tpu_run_with_jax_alone(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    wrong = LAID_OUT.replace("negate", "abs")
    found = Answer("wrong-stage", [Culprit("dump/2.txt", "fusion", "main", 0)])
    found.texts = {"first.hlo": LAID_OUT, "before.hlo": LAID_OUT, "after.hlo": wrong}
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found.arrays = {"inputs.npz": ([x], []), "expected.npz": ([], [-x.T.reshape(-1)])}
    source = Source("dump", "m", None, "v5e")
    files = write_bundle(str(folder), found, source, ["bisect"], extras=Extras(tried=True))
    assert {"before.cpu.hlo", "after.cpu.hlo", "actual.npz"} <= set(files)
    report = (folder / "report.md").read_text()
    assert "first.cpu.hlo: result 0: the same bits" in report
    assert "after.cpu.hlo: result 0: off by 10 at [5]: 5.0 where -5.0 is expected" in report
    assert "actual.npz: the same bits" in report and "`after.cpu.hlo` is `after.hlo` as XLA:CPU takes it" in report
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for name in ("before.hlo", "absent.hlo"):
        done = subprocess.run(
            [sys.executable, "-I", "repro.py", name], cwd=folder, env=env, capture_output=True, text=True, timeout=300,
            check=True,
        )  # fmt: skip
        assert ("the same bits" in done.stdout) is (name == "before.hlo")


def test_nothing_half_written_is_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    folder = tmp_path / "bundle"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(json, "dumps", killed)
        write_bundle(str(folder), answer(), SOURCE, ["bisect"])
    assert not folder.exists() and not list(tmp_path.iterdir())
    assert "report.md" in write_bundle(str(folder), answer(), SOURCE, ["bisect"])


@pytest.mark.parametrize(
    ("target", "name", "said"),
    [
        ("cpu", "fusion", "`hlo-opt --platform=cpu --passes=fusion before.hlo`"),
        ("v5e", "algsimp", "`hlo-opt --platform=cpu --passes=algsimp before.hlo`"),
        ("h100", "sanitize-constant-names", "`hlo-opt --platform=gpu --passes=sanitize-constant-names before.hlo`"),
        ("h100", "priority-fusion", "XLA's `hlo-opt` does not have the pass priority-fusion"),
        ("core", "cse", "XLA's `hlo-opt` does not have the pass cse"),
    ],
)
def test_commands_are_such_as_xla_s_tools_take(target: str, name: str, said: str) -> None:
    """There is no TPU in ``hlo-opt``, and only the passes that it registers."""
    answer = Answer("wrong-stage", [Culprit("m.hlo", name, "p", 0)])
    lines = list(report(answer, Source("m.hlo", "m", "x", target), ["m.hlo"], ["before.hlo", "after.hlo"]))
    assert [line for line in lines if said in line]
    assert sum("hlo-opt" in line for line in lines) == 1


def test_the_command_for_a_dump_names_what_is_in_the_bundle() -> None:
    """The dump stays behind, and a redacted name of a module would pick another one of it."""
    words = ["bisect", "dump", "--module", "jit_f"]
    told = list(report(answer(), Source("dump", "jit_f", None, "cpu"), words, ["run.ledger", "inputs.npz"]))
    assert "- `hloscope bisect run.ledger --args inputs.npz`" in told
    assert not any("--module" in line for line in told)


def test_a_module_is_numbered_where_its_name_is_taken_out(tmp_path: Path) -> None:
    """Too large for a ledger in the bundle: the dump itself is named, with a module that the command can find."""
    words = ["bisect", "dump", "--module", "bobs_plan", "--seed", "1"]
    for redact, told in ((True, "--module 2 --seed"), (False, "--module bobs_plan --seed")):
        folder = tmp_path / f"bundle{redact}"
        write_bundle(str(folder), answer(), SOURCE, words, redact=redact, extras=Extras(modules=[2]))
        assert f"- `hloscope bisect dump {told} 1`" in (folder / "report.md").read_text()
    notes: list[str] = []
    assert by_number(["a", "--module=f", "b"], [1, 1], notes) == ["a", "--module=1", "b"] and not notes
    assert by_number(["a", "--module", "f", "b"], [1, 4], notes) == ["a", "b"]
    assert notes == ["the module is number 1 of the first dump, 4 of the second"]
