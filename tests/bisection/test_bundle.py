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

from hloscope.bisect.bundle import Extras, redacted, stages_ledger, write_bundle
from hloscope.bisect.result import Answer, Culprit
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
        [sys.executable, "-I", "repro.py"], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.startswith("module.hlo: result 0: off by 8"), done.stdout + done.stderr


def test_nothing_half_written_is_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    folder = tmp_path / "bundle"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(json, "dumps", killed)
        write_bundle(str(folder), answer(), SOURCE, ["bisect"])
    assert not folder.exists() and not list(tmp_path.iterdir())
    assert "report.md" in write_bundle(str(folder), answer(), SOURCE, ["bisect"])
