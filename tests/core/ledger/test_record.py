"""Writing: rows of the timeline, what a kill, a full disk or an existing file does, and that off means free."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hloscope.core.errors import InternalError, LedgerError
from hloscope.core.ledger import DumpNote, LedgerReader, LedgerWriter, NullLedger, PassRecord, RewriteDecision, RunInfo


def decision(number: int) -> RewriteDecision:
    return RewriteDecision(subject=f"add.{number}", verdict="applied", fuel=number, pass_name="algsimp", rule="zero")


ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
PRELUDE = """
import os, resource, signal, sys
from hloscope.core.errors import LedgerError
from hloscope.core.ledger import LedgerWriter, RewriteDecision

def decision(number):
    return RewriteDecision(subject=f"add.{number}", verdict="applied", fuel=number, pass_name="p", rule="r")

"""


def run_child(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT)


def test_live_rows_are_numbered_in_the_order_in_which_they_end(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    with LedgerWriter(path, RunInfo(kind="core", target="cpu", flags="--x=1")) as writer:
        writer.begin_module("jit_f", xla_id=3)
        before = writer.add_snapshot("HloModule jit_f\n")
        first = writer.add_pass(PassRecord("before_optimizations", changed=None, snapshot=before, instructions=10))
        outer = writer.begin_pass("simplification", pipeline="main", xla_pass_id=1)
        inner = writer.begin_pass("algsimp", pipeline="simplification", xla_pass_id=2)
        writer.emit(decision(0))
        after = writer.add_snapshot_lines(["HloModule jit_f, x", ""])
        writer.end_pass(inner, changed=True, instructions=9, snapshot=after, fuel_used=1)
        skipped = writer.begin_pass("dce", pipeline="simplification", xla_pass_id=3)
        writer.end_pass(skipped, changed=False)
        writer.end_pass(outer, changed=True)
    assert [one.name for one in tmp_path.iterdir()] == ["run.ledger"]
    with LedgerReader(path) as reader:
        (run,) = reader.runs()
        (module,) = reader.modules()
        rows = reader.passes(module.id)
        text = reader.snapshots.text(after)
    assert (run.kind, run.target, run.flags, run.complete) == ("core", "cpu", "--x=1", True)
    assert (module.name, module.xla_id, module.passes) == ("jit_f", 3, 4)
    assert text == "HloModule jit_f, x\n"
    assert [(one.id, one.stage, one.pass_name, one.parent) for one in rows] == [
        (first, 0, "before_optimizations", None),
        (inner, 1, "algsimp", outer),
        (skipped, 2, "dce", outer),
        (outer, 3, "simplification", None),
    ]
    assert [one.changed for one in rows] == [None, True, False, True]
    assert [(one.instructions_before, one.instructions_after) for one in rows] == [(10, 10), (10, 9), (9, 9), (10, 9)]
    assert [one.snapshot for one in rows] == [before, after, after, after]
    assert rows[1].ns is not None and rows[1].ns > 0 and rows[1].fuel_used == 1


def test_dump_file_names_come_back_whole(tmp_path: Path) -> None:
    names = [
        ("module_0001.f.0003.simplification.after_algsimp.before_cse.txt", "simplification", "algsimp", "cse"),
        ("module_0001.f.0004.copy-insertion.after_adding_copies.txt", "copy-insertion", "adding_copies", None),
        ("module_0001.f.before_optimizations.txt", "", "before_optimizations", None),
        ("module_0001.f.0005.cse.after_x.before_y.txt", "another", "x", "y"),
    ]
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        writer.begin_module("f", file_prefix="module_0001.f.")
        for file, pipeline, name, following in names:
            writer.add_pass(PassRecord(name, pipeline=pipeline, file=file, next_pass=following))
        writer.add_pass(PassRecord("silent"))
        with pytest.raises(InternalError):
            writer.add_pass(PassRecord("other", file="module_0002.g.before_optimizations.txt"))
    with LedgerReader(tmp_path / "run.ledger") as reader:
        rows = reader.passes(1)
    assert [one.file for one in rows] == [*(name[0] for name in names), None]


def test_events_without_a_pass_belong_to_the_module(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        writer.emit(DumpNote(file="a", message="of the dump"))
        module = writer.begin_module("m")
        writer.emit(DumpNote(file="b", message="of the module"))
        row = writer.add_pass(PassRecord("dce"))
        writer.emit(DumpNote(file="c", message="of the pass"), row=row)
    with LedgerReader(tmp_path / "run.ledger") as reader:
        places = [(one.module, one.row, one.stage) for one in reader.events()]
        of_module = [one.event.sentence() for one in reader.events(module=module)]
        of_stage = [one.event.sentence() for one in reader.events(stage=0)]
    assert places == [(None, None, None), (module, None, None), (module, row, 0)]
    assert of_module == ["b: of the module", "c: of the pass"]
    assert of_stage == ["c: of the pass"]


def test_passes_must_end_in_order(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        outer = writer.begin_pass("outer")
        writer.begin_pass("inner")
        with pytest.raises(InternalError):
            writer.end_pass(outer, changed=False)


def test_the_null_ledger_takes_everything_and_says_it_is_off() -> None:
    ledger = NullLedger()
    assert not ledger.enabled
    row = ledger.begin_pass("dce", pipeline="p")
    ledger.emit(decision(0))
    ledger.end_pass(row, changed=True, snapshot=ledger.add_snapshot("x"))
    assert ledger.add_snapshot_lines(["x"]) == 0


def test_a_kill_leaves_what_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    child = run_child(
        """
        writer = LedgerWriter(sys.argv[1])
        writer.begin_module("m")
        texts = []
        for number in range(3000):
            row = writer.begin_pass(f"pass-{number}", pipeline="p", instructions=number)
            writer.emit(decision(number))
            texts.append("".join(f"line {number if line == number % 50 else 0} {line}\\n" for line in range(50)))
            writer.end_pass(row, changed=True, snapshot=writer.add_snapshot(texts[-1]))
            if number == 2900:
                writer.flush()
                print(number, flush=True)
            if number == 2990:
                os.kill(os.getpid(), signal.SIGKILL)
        """,
        str(path),
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert path.with_name("run.ledger-wal").exists()
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir() if not one.name.endswith("-shm")}
    with LedgerReader(path) as reader:
        rows = [one for one in reader.passes(1) if one.stage is not None]
        events = list(reader.events())
        assert not reader.runs()[0].complete
        assert len(rows) >= 2901
        assert [one.stage for one in rows] == list(range(len(rows)))
        assert [one.event.fuel for one in events] == list(range(len(events)))
        assert len(events) >= 2901
        for row in (*rows[:3], *rows[-3:]):
            assert row.snapshot is not None and row.instructions_before is not None
            number = row.instructions_before
            expected = "".join(f"line {number if line == number % 50 else 0} {line}\n" for line in range(50))
            assert reader.snapshots.text(row.snapshot) == expected
    after = {one.name: one.read_bytes() for one in tmp_path.iterdir() if not one.name.endswith("-shm")}
    assert after == before


def test_a_kill_at_any_moment_leaves_a_ledger(tmp_path: Path) -> None:
    script = """
        writer = LedgerWriter(sys.argv[1])
        writer.begin_module("m")
        print("go", flush=True)
        number = 0
        while True:
            row = writer.begin_pass("p")
            for _ in range(50):
                writer.emit(decision(number))
                number += 1
            text = "\\n".join(f"{number} {line}" for line in range(200))
            writer.end_pass(row, changed=True, snapshot=writer.add_snapshot(text))
            writer.flush()
        """
    for attempt in range(4):
        path = tmp_path / f"{attempt}.ledger"
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script), str(path)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT)
        assert child.stdout is not None and child.stdout.readline() == b"go\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.05 + 0.037 * attempt)
        child.kill()
        child.wait()
        child.stdout.close()
        with LedgerReader(path) as reader:
            events = [one.event.fuel for one in reader.events()]
            assert events == list(range(len(events)))
            ended = [one for one in reader.passes(1) if one.stage is not None]
            assert len(events) >= 50 * len(ended)
            for row in ended:
                assert row.snapshot is not None
                number = int(reader.snapshots.text(row.snapshot).split()[0])
                assert number % 50 == 0
            assert reader.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_full_disk_is_one_line_and_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    child = run_child(
        """
        writer = LedgerWriter(sys.argv[1])
        writer.begin_module("m")
        for number in range(1000):
            writer.emit(decision(number))
        writer.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        refused = 0
        for number in range(1000, 100_000):
            try:
                writer.emit(decision(number))
            except LedgerError as error:
                refused += 1
                print(error)
        assert refused == 1 and not writer.enabled
        row = writer.begin_pass("later")
        writer.end_pass(row, changed=False)
        writer.close()
        """,
        str(path),
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith(f"{path}: cannot write the ledger: ")
    assert child.stdout.count("\n") == 1
    with LedgerReader(path) as reader:
        fuels = [one.event.fuel for one in reader.events()]
        assert not reader.runs()[0].complete
    assert len(fuels) >= 1000
    assert fuels == list(range(len(fuels)))


def test_sqlite_saying_full_is_one_line(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "run.ledger")
    writer._connection.execute("PRAGMA max_page_count=1")  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(LedgerError, match=r"run\.ledger: cannot write the ledger: database or disk is full"):
        for number in range(20_000):
            writer.emit(decision(number))
    writer.close()
    assert names_in(tmp_path) == [], "nothing was recorded"


def test_an_existing_file_is_replaced_only_when_told_to(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(LedgerError, match="exists already"):
        LedgerWriter(path)
    assert path.read_text() == "mine"
    with LedgerWriter(path, force=True) as writer:
        writer.begin_module("m")
    with LedgerReader(path) as reader:
        assert [one.name for one in reader.modules()] == ["m"]
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_force_leaves_the_old_file_when_the_new_one_cannot_be_made(tmp_path: Path) -> None:
    path = tmp_path / "old.ledger"
    with LedgerWriter(path) as writer:
        writer.begin_module("old")
    child = run_child(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
        try:
            LedgerWriter(sys.argv[1], force=True)
        except LedgerError as error:
            print(error)
        """,
        str(path),
    )
    assert child.stdout.startswith(f"{path}: cannot create the ledger: "), child.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["old.ledger"]
    with LedgerReader(path) as reader:
        assert [one.name for one in reader.modules()] == ["old"]


def test_force_after_a_kill_does_not_mix_the_two_runs(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    child = run_child(
        """
        writer = LedgerWriter(sys.argv[1])
        writer.begin_module("killed")
        writer.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        str(path),
    )
    assert child.returncode == -signal.SIGKILL
    with LedgerWriter(path, force=True) as writer:
        writer.begin_module("second")
    with LedgerReader(path) as reader:
        assert [one.name for one in reader.modules()] == ["second"]


def test_a_ledger_that_is_being_written_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    with LedgerWriter(path) as writer:
        writer.begin_module("m")
        writer.flush()
        child = run_child(
            """
            try:
                LedgerWriter(sys.argv[1], force=True)
            except LedgerError as error:
                print(error)
            """,
            str(path),
        )
        assert child.stdout == f"{path}: another process is writing this ledger\n", child.stderr
    with LedgerReader(path) as reader:
        assert [one.name for one in reader.modules()] == ["m"]


def old_ledger(folder: Path) -> tuple[Path, bytes]:
    path = folder / "run.ledger"
    with LedgerWriter(path) as writer:
        writer.begin_module("old")
    return path, path.read_bytes()


def modules_in(path: Path) -> list[str]:
    with LedgerReader(path) as reader:
        assert reader.connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return [one.name for one in reader.modules()]


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_force_replaces_the_old_file_when_the_new_one_is_complete(tmp_path: Path) -> None:
    path, old = old_ledger(tmp_path)
    with LedgerWriter(path, force=True) as writer:
        writer.begin_module("new")
        writer.flush()
        assert path.read_bytes() == old
        assert not path.with_name("run.ledger-wal").exists()
        assert modules_in(tmp_path / "run.ledger.partial") == ["new"]
    assert modules_in(path) == ["new"]
    assert names_in(tmp_path) == ["run.ledger"]


def test_force_replaces_also_while_somebody_reads_what_is_written(tmp_path: Path) -> None:
    path, _ = old_ledger(tmp_path)
    writer = LedgerWriter(path, force=True)
    writer.begin_module("new")
    writer.flush()
    with LedgerReader(tmp_path / "run.ledger.partial") as reader:
        cursor = reader.connection.execute("SELECT * FROM modules")
        writer.begin_module("later")
        writer.close()
        assert cursor.fetchone()[2] == "new"
    assert modules_in(path) == ["new", "later"]
    assert not (tmp_path / "run.ledger.partial").exists()
    assert not (tmp_path / "run.ledger-wal").exists()


def test_force_on_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    path, old = old_ledger(tmp_path)
    child = run_child(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        try:
            with LedgerWriter(sys.argv[1], force=True) as writer:
                writer.begin_module("new")
                writer.flush()
                for number in range(100_000):
                    writer.emit(decision(number))
        except LedgerError as error:
            print(error)
        """,
        str(path),
    )
    assert child.stdout.startswith(f"{path}: cannot write the ledger: "), child.stderr
    assert child.stdout.endswith(f"; the file is as it was, what was committed is in {path}.partial\n")
    assert child.stderr == ""
    assert path.read_bytes() == old
    assert not path.with_name("run.ledger-wal").exists()
    assert modules_in(tmp_path / "run.ledger.partial") == ["new"]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("limit", [2_000, 12_000, 25_000])
def test_a_disk_too_full_to_create_on_keeps_nothing_and_says_nothing_of_it(
    tmp_path: Path, limit: int, force: bool
) -> None:
    path = tmp_path / "run.ledger"
    if force:
        old_ledger(tmp_path)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    child = run_child(
        f"""
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        try:
            LedgerWriter(sys.argv[1], force={force})
        except LedgerError as error:
            print(error)
        """,
        str(path),
    )
    assert child.stdout.startswith(f"{path}: cannot "), child.stderr
    assert "committed" not in child.stdout and child.stdout.count("\n") == 1
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


def test_force_killed_half_way_keeps_the_old_file_and_leaves_one_that_opens(tmp_path: Path) -> None:
    path, old = old_ledger(tmp_path)
    script = """
        writer = LedgerWriter(sys.argv[1], force=True)
        writer.begin_module(sys.argv[2])
        writer.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    # The second run finds what the first one left.
    for name in ("killed", "killed again"):
        assert run_child(script, str(path), name).returncode == -signal.SIGKILL
        assert path.read_bytes() == old
        assert not path.with_name("run.ledger-wal").exists()
        assert modules_in(tmp_path / "run.ledger.partial") == [name]
    with LedgerWriter(path, force=True) as writer:
        writer.begin_module("new")
    assert modules_in(path) == ["new"]
    assert names_in(tmp_path) == ["run.ledger"]


def test_force_interrupted_keeps_the_old_file_and_says_where_the_new_one_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, old = old_ledger(tmp_path)
    with pytest.raises(KeyboardInterrupt), LedgerWriter(path, force=True) as writer:
        writer.begin_module("new")
        raise KeyboardInterrupt
    assert path.read_bytes() == old
    said = f"hloscope: {path}: the file is as it was, what was committed is in {path}.partial\n"
    assert capsys.readouterr().err == said
    assert names_in(tmp_path) == ["run.ledger", "run.ledger.partial"]
    with LedgerReader(tmp_path / "run.ledger.partial") as reader:
        assert [one.name for one in reader.modules()] == ["new"]
        assert not reader.runs()[0].complete


def test_force_interrupted_before_anything_was_recorded_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, old = old_ledger(tmp_path)
    with pytest.raises(KeyboardInterrupt), LedgerWriter(path, force=True):
        raise KeyboardInterrupt
    assert path.read_bytes() == old and names_in(tmp_path) == ["run.ledger"]
    assert capsys.readouterr().err == ""


def test_two_forced_runs_at_once_are_not_mixed(tmp_path: Path) -> None:
    path, old = old_ledger(tmp_path)
    with LedgerWriter(path, force=True) as writer:
        writer.begin_module("first")
        writer.flush()
        with pytest.raises(LedgerError, match=r"run\.ledger: another process is writing this ledger"):
            LedgerWriter(path, force=True)
        assert path.read_bytes() == old
    assert modules_in(path) == ["first"]


def test_what_is_not_a_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LedgerError, match="not a regular file"):
        LedgerWriter(tmp_path / "pipe", force=True)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("where", ["missing/run.ledger", "."])
def test_a_place_that_cannot_hold_a_ledger_is_one_line(tmp_path: Path, where: str) -> None:
    with pytest.raises(LedgerError) as caught:
        LedgerWriter(tmp_path / where, force=True)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_keeps_its_rows_and_is_marked_incomplete(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), LedgerWriter(tmp_path / "run.ledger") as writer:
        writer.begin_module("m")
        writer.begin_pass("long")
        raise KeyboardInterrupt
    with LedgerReader(tmp_path / "run.ledger") as reader:
        assert [(one.pass_name, one.stage) for one in reader.passes(1)] == [("long", None)]
        assert not reader.runs()[0].complete


def test_a_finished_ledger_is_one_plain_file(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        for number in range(5000):
            writer.emit(decision(number))
    assert [one.name for one in tmp_path.iterdir()] == ["run.ledger"]
    raw = sqlite3.connect(tmp_path / "run.ledger")
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert raw.execute("SELECT count(*), max(fuel) FROM rewrites").fetchone() == (5000, 4999)
    raw.close()


def test_a_finished_ledger_is_replaced_while_somebody_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    writer = LedgerWriter(path)
    writer.begin_module("old")
    writer.flush()
    with LedgerReader(path) as reader:
        writer.close()
        assert path.with_name("run.ledger-wal").exists(), "the reader keeps it"
        with LedgerWriter(path, force=True) as second:
            second.begin_module("new")
        assert [one.name for one in reader.modules()] == ["old"]
    assert modules_in(path) == ["new"]
    assert names_in(tmp_path) == ["run.ledger"]


def test_a_run_that_ends_before_anything_was_recorded_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), LedgerWriter(tmp_path / "run.ledger"):
        raise KeyboardInterrupt
    assert names_in(tmp_path) == []


def test_values_that_do_not_fit_their_type_are_a_bug_and_not_other_rows(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "run.ledger")
    writer.begin_module("m")
    writer.emit_values(RewriteDecision, None, None, ("only", None))
    with pytest.raises(InternalError, match="too many or too few"):
        writer.flush()
    writer.close(complete=False)
