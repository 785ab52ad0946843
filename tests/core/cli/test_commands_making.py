"""parse, compile and capture as a user calls them."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hloscope.core.cli import main
from hloscope.core.ledger.record import LedgerWriter
from hloscope.core.ledger.store import is_ledger
from hloscope.core.text import load_module
from hloscope.core.views.run import load
from hloscope.core.xla.h100_config import H100_SXM
from hloscope.core.xla.targets import TARGETS, is_available

MODULE = """\
HloModule tiny, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

ENTRY %main.1 (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %zero = f32[] constant(0)
  %zeros = f32[4]{0} broadcast(%zero), dimensions={}
  %same = f32[4]{0} add(%p, %zeros), metadata={op_name="jit(f)/add"}
  ROOT %n = f32[4]{0} negate(%same)
}
"""

PROGRAM = """\
import sys
import threading
import jax, jax.numpy as jnp
print("out", jax.jit(lambda x: jnp.sin(x).sum())(jnp.arange(8.0)))
print("err", file=sys.stderr)
sys.exit(3)
"""

FUNCTION = """\
import jax, jax.numpy as jnp

@jax.jit
def step(x=jax.ShapeDtypeStruct((8, 16), jnp.float32), w=jax.ShapeDtypeStruct((16, 4), jnp.float32)):
    return jax.nn.softmax(x @ w)
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.hlo"
    path.write_text(MODULE)
    return path


def hloscope(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main.run([str(one) for one in arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def child(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hloscope.core.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, **options)


# ---------------------------------------------------------------- parse
def test_parse_prints_the_module_back(capsys: pytest.CaptureFixture[str], tiny: Path) -> None:
    code, out, err = hloscope(capsys, "parse", tiny)
    assert (code, err) == (0, "")
    assert out.strip() == MODULE.strip()


def test_parse_reads_back_what_it_prints(capsys: pytest.CaptureFixture[str], fixtures: Path) -> None:
    for file in sorted((fixtures / "dumps").glob("*/*before_optimizations.txt"))[:4]:
        _, out, _ = hloscope(capsys, "parse", file)
        (_, again, _) = hloscope(capsys, "parse", file, "--style", "short")
        assert load_module(out).instruction_count == load_module(again).instruction_count
        assert load_module(out).instruction_count == load_module(file.read_text()).instruction_count


@pytest.mark.parametrize(
    ("style", "line"),
    [
        ("dump", '%same = f32[4]{0} add(%p, %zeros), metadata={op_name="jit(f)/add"}'),
        ("short", 'same = f32[4]{0} add(p, zeros), metadata={op_name="jit(f)/add"}'),
        ("long", '%same = f32[4]{0} add(f32[4]{0} %p, f32[4]{0} %zeros), metadata={op_name="jit(f)/add"}'),
        ("canonical", "tmp_3 = f32[4]{0} add(f32[4]{0} tmp_0, f32[4]{0} tmp_2)"),
    ],
)
def test_styles(capsys: pytest.CaptureFixture[str], tiny: Path, style: str, line: str) -> None:
    _, out, _ = hloscope(capsys, "parse", tiny, "--style", style)
    assert line in [one.strip() for one in out.splitlines()]
    assert load_module(out).instruction_count == 5


def test_equal_modules_have_one_canonical_text(capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "b.hlo"
    renamed.write_text(MODULE.replace("%zeros", "%other").replace("%same", "%x.1").replace("jit(f)", "jit(g)"))
    first = hloscope(capsys, "parse", tiny, "--style", "canonical")[1]
    assert hloscope(capsys, "parse", renamed, "--style", "canonical")[1] == first


def test_check_is_silent_about_text_and_exits_1(capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.hlo"
    broken.write_text(MODULE.replace("negate(%same)", "negate(%missing)"))
    assert hloscope(capsys, "parse", "--check", tiny)[0] == 0
    code, out, err = hloscope(capsys, "parse", "--check", tiny, broken)
    assert code == 1
    assert "HloModule" not in out
    assert f"hloscope: {broken}:8:" in err


def test_parse_rows(capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.hlo"
    cut.write_text(MODULE[: MODULE.index("ROOT") + 10])
    code, out, _ = hloscope(capsys, "parse", tiny, cut, "--json")
    good, bad = json.loads(out)["rows"]
    assert code == 1
    assert set(good) == {"file", "ok", "instructions", "error", "errors", "notes", "xla_would_reject"}
    assert good == {
        "file": str(tiny), "ok": True, "instructions": 5, "error": None, "errors": [], "notes": [],
        "xla_would_reject": False,
    }  # fmt: skip
    assert bad["ok"] is False and bad["errors"][0].keys() >= {"line", "column", "message"}
    assert bad["error"].endswith(bad["errors"][0]["message"])
    assert bad["xla_would_reject"] is True


def test_a_limit_does_not_hide_a_broken_file(capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.hlo"
    broken.write_text(MODULE.replace("negate(%same)", "negate(%missing)"))
    assert hloscope(capsys, "parse", "--check", tiny, broken, "--json", "--limit", 1)[0] == 1


def test_recovered_text_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.hlo"
    broken.write_text(MODULE.replace("%zero = f32[] constant(0)", "%zero = f32[] const!ant(0)"))
    code, out, err = hloscope(capsys, "parse", broken)
    assert code == 1 and "parameter(0)" in out
    assert err.startswith(f"hloscope: {broken}:5:")


def test_standard_input_is_read_once(tiny: Path) -> None:
    done = child("parse", "-", input=MODULE)
    assert (done.returncode, done.stdout.strip()) == (0, MODULE.strip())


@pytest.mark.parametrize("form", ["w:", "w:gz", "zip"])
def test_an_archive_on_a_pipe_is_said_to_be_one(
    capsys: pytest.CaptureFixture[str], tiny: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    made = io.BytesIO()
    if form == "zip":
        with zipfile.ZipFile(made, "w") as archive:
            archive.write(tiny)
    else:
        with tarfile.open(fileobj=made, mode=form) as tar:  # pyright: ignore[reportCallIssue,reportArgumentType]
            tar.add(tiny)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(made.getvalue())))
    assert hloscope(capsys, "ls", "-")[::2] == (
        2,
        "hloscope: -: an archive cannot be read from a pipe; give its path\n",
    )


@pytest.mark.parametrize("many", [False, True])
def test_files_that_cannot_be_used(capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path, many: bool) -> None:
    (tmp_path / "f.hlo").write_bytes(b"\0\1\2" * 100)
    others = [tiny] if many else []
    for path in (tmp_path / "missing.hlo", tmp_path / "f.hlo", tmp_path):
        code, out, err = hloscope(capsys, "parse", "--check", path, *others)
        assert code == 2
        assert err.startswith(f"hloscope: {path}") and err.count("\n") == 1
        assert bool(out) == many


def test_strict_counts_every_finding(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    odd = tmp_path / "odd.hlo"
    odd.write_text(MODULE.replace("negate(%same)", "negate(%same), no_such_attribute=3"))
    lenient = hloscope(capsys, "parse", "--check", odd, "--json")
    strict = hloscope(capsys, "parse", "--check", "--strict", odd, "--json")
    assert lenient[0] == 0
    noted = json.loads(strict[1])["rows"][0]
    assert strict[0] == (1 if noted["errors"] else 0)


# ---------------------------------------------------------------- compile
def test_our_own_compiler_records_what_it_did(capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "run.ledger"
    code, out, _ = hloscope(capsys, "compile", tiny, "-o", ledger, "--dump-to", tmp_path / "dump", "--json")
    assert code == 0
    summary = json.loads(out)
    assert summary["source"]["module"] == "tiny"
    assert summary["instructions_before"] == 5 and summary["instructions_after"] == 4, "negate in a fusion of its own"
    with load(str(ledger)) as run, load(str(tmp_path / "dump")) as dumped:
        assert run.passes[-1].pass_name == "after_optimizations"
        assert run.stage_text(0).strip() == MODULE.strip()
        assert run.stage_text(-1) == dumped.stage_text(-1)
        assert sum(row.fuel_used or 0 for row in run.passes) > 0
        assert any(event.type == "rewrite_decision" for event in run.events(subject="same"))
        assert run.why("same").passes[-1].what == "removed"


def test_buffers_are_the_same_from_reports_and_made_anew(
    capsys: pytest.CaptureFixture[str], fixtures: Path, tmp_path: Path
) -> None:
    """A ledger keeps the compiler's reports only beside a dump; without them a reader assigns the last stage again."""
    source = next((fixtures / "dumps/cpu").glob("*before_optimizations.txt"))
    answers = []
    for name, more in (("kept", ["--dump-to", tmp_path / "dump"]), ("made", [])):
        assert hloscope(capsys, "compile", source, "-o", tmp_path / name, *more)[0] == 0
        with load(str(tmp_path / name)) as run:
            assert bool(run.sql("SELECT * FROM reports").rows) == (name == "kept")
        answer = json.loads(hloscope(capsys, "buffers", tmp_path / name, "--json")[1])
        answers.append({key: value for key, value in answer.items() if key not in ("source", "origin")})
    assert answers[0] == answers[1] and answers[0]["allocations"]


def test_without_fuel_nothing_is_rewritten(capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path) -> None:
    hloscope(capsys, "compile", tiny, "-o", tmp_path / "l", "--fuel", "algsimp=0")
    with load(str(tmp_path / "l")) as run:
        assert " add(" in run.stage_text(-1)


def test_a_gpu_is_described_by_a_file(capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "gpu.txtpb").write_text(H100_SXM)
    words = ("compile", tiny, "--target", tmp_path / "gpu.txtpb", "--json")
    code, out, _ = hloscope(capsys, *words, "-o", tmp_path / "l")
    assert (code, json.loads(out)["source"]["target"]) == (0, "gpu")
    with load(str(tmp_path / "l")) as run:
        assert "pre-spmd-partitioner" in {row.pipeline for row in run.passes}
    if not is_available(TARGETS["h100"]):
        code, out, err = hloscope(capsys, *words, "-o", tmp_path / "m", "--engine", "xla")
        assert (code, out) == (2, "") and "gpu.txtpb" in err and "pip install" in err and err.count("\n") == 1


def test_compile_takes_the_first_stage_of_a_dump(
    capsys: pytest.CaptureFixture[str], fixtures: Path, tmp_path: Path
) -> None:
    code, out, _ = hloscope(capsys, "compile", fixtures / "dumps/cpu_snapshot", "-o", tmp_path / "l", "--json")
    with load(str(fixtures / "dumps/cpu_snapshot")) as run:
        assert code == 0
        assert json.loads(out)["instructions_before"] == run.passes[0].instructions_after


@pytest.mark.parametrize(
    "arguments",
    [
        ["--target", "nothing"],
        ["--target", "v5e"],
        ["--target", "missing.pbtxt"],
        ["--target", __file__],
        ["--fuel", "no_such_pass=1"],
        ["--fuel", "algsimp"],
        ["--engine", "xla", "--fuel", "algsimp=1"],
        ["--engine", "gcc"],
    ],
)
def test_compile_refuses_before_it_writes(
    capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path, arguments: list[str]
) -> None:
    code, _, err = hloscope(capsys, "compile", tiny, "-o", tmp_path / "l", *arguments)
    assert code == 2 and err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.hlo"]


@pytest.mark.parametrize("command", [["compile", "--target", "v5e"], ["opt", "--pipeline", "tpu"]])
def test_what_is_not_public_is_refused_with_what_there_is_instead(
    capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path, command: list[str]
) -> None:
    code, out, err = hloscope(capsys, *command, tiny, "-o", tmp_path / "l")
    assert code == 2 and out == "" and err.count("\n") == 1
    assert f"for {command[-1]}: the passes of XLA:TPU are not public" in err and "--engine xla --target v5e" in err
    code, _, err = hloscope(capsys, "buffers", tiny, "--target", "v5e")
    assert code == 2 and "the TPU compiler's buffer assignment is not reproduced" in err


def test_compile_of_broken_text_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "cut.hlo").write_text(MODULE[: MODULE.index("ROOT") + 10])
    code, _, err = hloscope(capsys, "compile", tmp_path / "cut.hlo", "-o", tmp_path / "l")
    assert code == 2 and "cut.hlo:8:" in err and err.count("\n") == 1
    assert not (tmp_path / "l").exists()
    cut = tmp_path / "cut.hlo"
    cut.write_text(MODULE[: MODULE.index("%same = ")])
    for words, said in (
        (["run", cut], "cut.hlo:7:"),
        (["why", cut, "n"], "no instruction 'n' in the module (the text breaks off inside"),
        (["sql", cut, "select 1"], "SQL needs a ledger"),
    ):
        code, _, err = hloscope(capsys, *words)
        assert code == 2 and said in err and err.count("\n") == 1
    assert "note: the text breaks off" in hloscope(capsys, "passes", cut)[2]


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "l").write_text("precious")
    for command in (["compile", tiny], ["capture", tmp_path / "nothing.py:f"]):
        code, _, err = hloscope(capsys, command[0], "-o", tmp_path / "l", command[1])
        assert code == 2 and "--force" in err
    assert (tmp_path / "l").read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["opt", "--passes", "dce", "IN", "--ledger", "IN", "-o", "new"], "what the command reads"),
        (["opt", "--passes", "dce", "IN", "--ledger", "new", "-o", "linked"], "what the command reads"),
        (["opt", "--passes", "dce", "IN", "--ledger", "new", "-o", "./new"], "two outputs"),
        (["opt", "--passes", "dce", "IN", "--dump-to", "new", "-o", "new"], "two outputs"),
        (["compile", "IN", "-o", "IN"], "what the command reads"),
        (["compile", "IN", "-o", "other.ledger"], "other.ledger.partial: is not a ledger"),
        (["compile", "module_0000.text", "--dump-to", ".", "-o", "new"], "the dump needs another folder"),
        (["run", "IN", "--args", "numbers", "-o", "numbers"], "what the command reads"),
        (["import", "zipped.zip", "-o", "zipped.zip"], "what the command reads"),
        (["capture", "-o", "module_0000.text", "--", "python", "module_0000.text"], "what the command reads"),
        (["capture", "-o", "IN", "IN:f"], "what the command reads"),
        (["pallas", "IN", "--trace", "--ledger", "IN"], "what the command reads"),
    ],
)
def test_force_does_not_harm_other_files(
    capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], said: str,
) -> None:  # fmt: skip
    (tmp_path / "tiny.py").symlink_to(tiny)
    (tmp_path / "linked").hardlink_to(tiny)
    for name in ("old.ledger", "other.ledger"):
        with LedgerWriter(tmp_path / name):
            pass
    for name in ("module_0000.text", "numbers", "other.ledger.partial"):
        (tmp_path / name).write_text(MODULE)
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as archive:
        archive.writestr("dump/module_0000.tiny.before_optimizations.txt", MODULE)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    words = [word.replace("IN", "tiny.py") if word in ("IN", "IN:f") else word for word in arguments]
    code, out, err = hloscope(capsys, words[0], "--force", *words[1:])
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_force_replaces_what_is_no_loss(capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")  # as mktemp makes one
    for _ in range(2):  # then a ledger
        arguments = ("--passes", "dce", tiny, "--ledger", tmp_path / "empty", "-o", "/dev/null", "--force")
        assert hloscope(capsys, "opt", *arguments)[::2] == (0, "")
    assert is_ledger(tmp_path / "empty")


def test_the_real_compiler_compiles_it_too(tiny: Path, tmp_path: Path) -> None:
    done = child("compile", tiny, "--engine", "xla", "-o", tmp_path / "l", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["source"]["target"] == "cpu"
    with load(str(tmp_path / "l")) as run:
        assert run.source.xla_build is not None
        assert run.passes[0].pass_name == "before_optimizations"
        assert any(row.changed for row in run.passes)


# ---------------------------------------------------------------- capture
def test_capture_passes_output_and_exit_code_on(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = child("capture", "-o", tmp_path / "l", "--json", "--", sys.executable, tmp_path / "program.py")
    assert done.returncode == 3
    rows = json.loads(done.stdout)["rows"]  # the program's own output is not in it
    assert any("lambda" in row["module"] for row in rows)
    assert "out " in done.stderr and "err\n" in done.stderr
    with load(str(tmp_path / "l"), "lambda") as run:
        assert any(row.ns for row in run.passes)
        assert "sine(" in run.stage_text(0)


def test_capture_of_a_program_without_jax(tmp_path: Path) -> None:
    done = child("capture", "-o", tmp_path / "l", "--", "sh", "-c", "echo hi; exit 7")
    assert done.returncode == 7
    assert done.stdout == "hi\n"
    assert "compiled nothing" in done.stderr
    assert not (tmp_path / "l").exists()


def test_capture_of_a_function(tmp_path: Path) -> None:
    """Options may follow it; the ledger has its name."""
    (tmp_path / "f.py").write_text(FUNCTION + "\n\ndef boom(x):\n    raise ValueError('no')\n")
    done = child("capture", "f.py:step", "--arg", "f32[4,16]", "--json", "--target", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["module"] for row in json.loads(done.stdout)["rows"]] == ["jit_step"]
    with load(str(tmp_path / "step.ledger")) as run:
        assert run.source.module == "jit_step" and "f32[4,16]" in run.stage_text(0)
        dot = next(run.search(r" dot\(", 0))
        assert run.why(dot.name).source[0].line == 5
    done = child("capture", "--target", "cpu", "-o", "m", "f.py:boom", "--arg", "f32[2]", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert re.search(r"f\.py:\d+: tracing boom failed: ValueError: no", done.stderr)
    assert not (tmp_path / "m").exists()


def test_faults_of_a_function_to_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    for words, said in (
        (["f.py:step", "3", "--arg", "f32[2]"], "f.py:step takes no further argument, got '3'"),
        (["f.py:step", "--argg", "f32[2]"], "--argg"),
    ):
        code, _, err = hloscope(capsys, "capture", "-o", "m", *words)
        assert code == 2 and said in err and err.count("\n") == 1
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("first", [["echo"], ["--", "echo"], ["--", "echo", "f.py:g"]])
def test_options_behind_a_command_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], first: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(["capture", "-o", "l", *first, "--arg", "f32[2]", "--json"]) == 0
    assert capfd.readouterr().out.split() == [*first[first.index("echo") + 1 :], "--arg", "f32[2]", "--json"]


@pytest.mark.parametrize(
    "arguments", [["-o", "l", "--", "no-such-command-here"], ["--", "true"], ["--target", "cpu", "-o", "l", "true"]]
)
def test_capture_that_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, said = hloscope(capsys, "capture", *arguments)
    assert code == 2 and said.startswith("hloscope: ") and said.count("\n") == 1
    assert not list(tmp_path.iterdir())


CAPTURE_IN_PYTHON = """\
import jax, jax.numpy as jnp
from hloscope.core import capture
def loss(w, x):
    return jax.nn.softmax(x @ w).sum()
run = capture(jax.jit(jax.grad(loss)), jnp.ones((16, 4)), jax.ShapeDtypeStruct((8, 16), jnp.float32), ledger="kept")
dot = next(run.search(" dot[(]", 0))
print(len(run.passes), run.why(dot.name).source[0].line, run.diff(0, -1).empty, "XLA_FLAGS" in __import__("os").environ)
run.close()
try:
    capture(lambda x: x + jnp.ones(3), jnp.ones(4))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_capture_in_python(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(CAPTURE_IN_PYTHON)
    done = subprocess.run(
        [sys.executable, "p.py"], capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    passes, line, empty, flags = done.stdout.splitlines()[0].split()
    assert int(passes) > 10 and (line, empty, flags) == ("4", "False", "False")
    assert done.stdout.splitlines()[1].startswith("UsageError the function cannot be lowered for cpu")
    with load(str(tmp_path / "kept")) as run:
        assert run.source.kind == "ledger"


def test_a_module_goes_into_a_pipe_and_through_a_link(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file put in the place of a device would end it for the whole machine."""
    pipe, link, real = tmp_path / "pipe", tmp_path / "link", tmp_path / "real"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    assert hloscope(capsys, "opt", "--passes", "algsimp", tiny, "-o", pipe, "--force")[0] == 0
    reader.join(timeout=30)
    assert pipe.is_fifo() and got and got[0].startswith("HloModule tiny")
    real.write_text("")
    link.symlink_to(real)
    assert hloscope(capsys, "opt", "--passes", "algsimp", tiny, "-o", link, "--force")[0] == 0
    assert link.is_symlink() and real.read_text() == got[0]
