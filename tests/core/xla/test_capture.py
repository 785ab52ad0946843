"""Capturing a program's compiles."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from hloscope.core.dumps.directory import open_dump
from hloscope.core.errors import LedgerError, UsageError
from hloscope.core.ledger.queries import LedgerReader
from hloscope.core.xla.capture import StderrSplitter, capture_command, capture_function
from hloscope.core.xla.scratch import scratch_folder, sweep


def test_a_program_is_captured_with_pass_times_and_its_exit_code(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    ledger, kept, stderr = tmp_path / "run.ledger", tmp_path / "kept", io.BytesIO()
    result = capture_command([sys.executable, str(program)], ledger, keep_dump=kept, stderr=stderr)
    assert result.exit_code == 3 and result.dump_to == str(kept)
    assert stderr.getvalue() == b"to stderr\n"
    assert result.report is not None and result.report.modules >= 1 and result.report.not_understood == ()
    with LedgerReader(ledger) as reader:
        run = reader.runs()[0]
        assert run.kind == "capture" and run.target == "cpu" and run.xla_build and run.complete
        assert run.source is not None and "program.py" in run.source
        assert run.flags is not None and "--xla_cpu_enable_fast_math=true" in run.flags
        module = next(module for module in reader.modules() if module.name == "jit_step")
        passes = reader.passes(module.id)
        assert sum(one.ns is not None for one in passes) > 50
        assert [one.pass_name for one in passes][0] == "before_optimizations"
    with open_dump(kept) as dump:
        step = dump.select("^jit_step$")[0]
        assert step.stages[0].proto() is not None


def test_what_was_compiled_before_a_crash_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    program = tmp_path / "crash.py"
    program.write_text("import jax, os\njax.jit(lambda x: x * 2)(3.0)\nos.abort()\n")
    ledger = tmp_path / "run.ledger"
    result = capture_command([sys.executable, str(program)], ledger, stderr=io.BytesIO())
    assert result.exit_code == 128 + 6 and result.dump_to is None
    with LedgerReader(ledger) as reader:
        assert len(reader.modules()) == 1


def test_a_program_that_compiles_nothing(tmp_path: Path) -> None:
    ledger = tmp_path / "run.ledger"
    stderr = io.BytesIO()
    result = capture_command(["sh", "-c", "printf 'no newline' >&2; exit 7"], ledger, stderr=stderr)
    assert result.exit_code == 7 and result.report is None and not ledger.exists()
    assert stderr.getvalue() == b"no newline"
    assert any("compiled nothing" in note for note in result.notes)
    (tmp_path / "log").write_bytes(LOG)
    overwrote = capture_command(["sh", "-c", f"cat {tmp_path}/log >&2"], ledger, stderr=stderr)
    assert overwrote.report is None and any("sets XLA_FLAGS itself" in note for note in overwrote.notes)


def test_faults_are_found_before_the_program_runs(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    command = ["sh", "-c", f"touch {touched}"]
    with pytest.raises(UsageError, match="no such command"):
        capture_command(["no-such-command-here"], tmp_path / "a.ledger")
    with pytest.raises(UsageError, match="no command"):
        capture_command([], tmp_path / "a.ledger")
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    with pytest.raises(UsageError, match="not empty"):
        capture_command(command, tmp_path / "a.ledger", keep_dump=full)
    ledger = tmp_path / "there.ledger"
    ledger.write_bytes(b"something")
    with pytest.raises(LedgerError):
        capture_command(command, ledger)
    with pytest.raises(LedgerError, match="cannot create the ledger: No such file or directory"):
        capture_command(command, tmp_path / "nowhere" / "a.ledger")
    with pytest.raises(LedgerError, match="cannot create the ledger: Not a directory"):
        capture_command(command, ledger / "a.ledger", force=True)
    with pytest.raises(LedgerError, match="is a directory"):
        capture_command(command, full, force=True)
    with pytest.raises(UsageError, match=r"--pass-re '\(' is no regular expression"):
        capture_command(command, tmp_path / "a.ledger", pass_re="(")
    with pytest.raises(LedgerError, match="No such file or directory"):
        capture_function("no.py:f", tmp_path / "nowhere" / "a.ledger")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["full", "there.ledger"]
    assert ledger.read_bytes() == b"something" and not touched.exists()


def test_the_dump_is_kept_where_its_import_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run of hours wrote is not thrown away because the ledger's folder went away meanwhile."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    place = tmp_path / "place"
    place.mkdir()
    script = f"f=${{XLA_FLAGS#*--xla_dump_to=}}; f=${{f%% *}}; rmdir {place}"
    script += "; echo 'HloModule f' > $f/module_0000.f.before_optimizations.txt"
    with pytest.raises(LedgerError, match="cannot create the ledger: .*the dump is kept: hloscope import") as caught:
        capture_command(["sh", "-c", script], place / "a.ledger", stderr=io.BytesIO())
    (kept,) = tmp_path.glob("hloscope-kept-*")
    assert f"hloscope import {kept} -o {place / 'a.ledger'}" in str(caught.value)
    with open_dump(kept) as dump:
        assert [module.name for module in dump.modules] == ["f"]
    assert not list(tmp_path.glob("hloscope-dump*"))


def test_a_function_is_captured_without_running_it(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own flags count, but for the folder that is dumped to."""
    ledger = tmp_path / "run.ledger"
    monkeypatch.setenv("XLA_FLAGS", f"--xla_disable_hlo_passes=cse,dce --xla_dump_to={tmp_path / 'elsewhere'}")
    result, report = capture_function(f"{program}:step", ledger, pass_re="algsimp|fusion|cse|dce")
    assert result.target == "cpu" and report.modules == 1
    with LedgerReader(ledger) as reader:
        (module,) = reader.modules()
        assert module.name == "jit_step"
        assert sum(one.ns is not None for one in reader.passes(module.id)) > 50
        assert not {"cse", "dce"} & {one.pass_name for one in reader.passes(module.id)}
        files = {one.pass_name for one in reader.passes(module.id) if one.file is not None}
        assert "algsimp" in files and not {"layout-assignment", "copy-insertion", "call-inliner"} & files
    assert not (tmp_path / "elsewhere").exists()


LOG = b"I1129 21:26:20.877319    6463 hlo_pass_pipeline.cc:303] Running HLO pass pipeline on module f: p\n"
OTHER = b"I1129 21:26:20.877319    6463 pjrt_client.cc:579] device count\n"
WARNING = b"W1129 21:26:20.877319    6463 dump.cc:5] look out\n"


def split(data: bytes, size: int) -> tuple[bytes, bytes]:
    splitter = StderrSplitter()
    shown, logged = b"", b""
    for at in range(0, len(data), size):
        more_shown, more_logged = splitter.feed(data[at : at + size])
        shown, logged = shown + more_shown, logged + more_logged
    return shown + splitter.rest(), logged


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_only_the_log_lines_are_taken_out_of_stderr(size: int) -> None:
    data = b"hello\n" + LOG + b"I am user text\n" + OTHER + WARNING + b"10%\r20%\rInd"
    shown, logged = split(data, size)
    assert shown == b"hello\nI am user text\n" + WARNING + b"10%\r20%\rInd"
    assert logged == LOG


def test_progress_bars_pass_at_once() -> None:
    splitter = StderrSplitter()
    assert splitter.feed(b"\r 10%") == (b"\r 10%", b"")
    assert splitter.feed(b"\r 20%") == (b"\r 20%", b"")
    assert splitter.feed(b"\n" + LOG[:10]) == (b"\n", b"")
    assert splitter.feed(LOG[10:]) == (b"", LOG)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_the_program_and_imports_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program gets SIGINT as from a terminal (to the whole group); the capture goes on to import."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    program, ledger = tmp_path / "long.py", tmp_path / "run.ledger"
    program.write_text(
        "import jax, os, signal, time\njax.jit(lambda x: x * 2)(3.0)\n"
        "try:\n    os.killpg(0, signal.SIGINT)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    time.sleep(1.2)\n    raise\n"
    )
    script = textwrap.dedent(
        f"""
        import os, sys
        from hloscope.core.xla.capture import capture_command
        result = capture_command([sys.executable, {str(program)!r}], {str(ledger)!r})
        print(result.exit_code, result.report.modules)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, start_new_session=True
    )
    assert done.stdout.split() in (["130", "1"], ["1", "1"]), done.stderr
    assert "KeyboardInterrupt" in done.stderr and "During handling" not in done.stderr  # once


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_capture_alone_is_passed_on_to_the_program(tmp_path: Path, number: signal.Signals) -> None:
    """A scheduler ends the capture, which must not leave the program running."""
    words = ["capture", "-o", str(tmp_path / "run.ledger"), "--", "sh", "-c", "echo $$; exec sleep 120"]
    with subprocess.Popen(
        [sys.executable, "-m", "hloscope.core.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + number and "compiled nothing" in said and "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(program, 0)


@pytest.mark.skipif(os.name != "posix", reason="signals and locks")
def test_what_a_killed_capture_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    script = "import time\nfrom hloscope.core.xla.scratch import scratch_folder\n"
    script += "with scratch_folder() as (folder, _):\n    print(folder, flush=True)\n    time.sleep(60)\n"
    folders: list[Path] = []
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folders.append(Path(process.stdout.readline().strip()))
        os.utime(folders[0], (0, 0))
        assert sweep() == 0 and folders[0].is_dir(), "its process is alive"
        process.kill()
    other = tmp_path / "hloscope-dump.mine"
    other.mkdir()
    with scratch_folder() as (made, held):
        assert not folders[0].exists() and other.is_dir() and Path(made).parent == tmp_path
        # The program that still writes keeps its folder, whatever became of the capture.
        with subprocess.Popen(["sleep", "60"], pass_fds=held) as program:
            os.dup2(0, held[0])
            os.utime(made, (0, 0))
            assert sweep() == 0 and Path(made).is_dir()
            program.kill()
