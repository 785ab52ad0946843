"""Opening: closed, being written, killed, read-only, foreign, cut off, damaged, older and newer files."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hloscope.core.errors import LedgerError
from hloscope.core.ledger import (
    SCHEMA,
    LedgerReader,
    LedgerWriter,
    RewriteDecision,
    RunInfo,
    is_ledger,
    open_ledger,
    sql,
    upgrade_ledger,
)
from hloscope.core.ledger import store as store_module


def make(path: Path, events: int = 10, kind: str = "core") -> Path:
    with LedgerWriter(path, RunInfo(kind=kind)) as writer:
        writer.begin_module("m")
        row = writer.begin_pass("algsimp")
        for number in range(events):
            writer.emit(RewriteDecision(subject=f"a.{number}", verdict="refused", code="no", pass_name="p", rule="r"))
        writer.end_pass(row, changed=False, snapshot=writer.add_snapshot("text\n" * 50 + os.urandom(3000).hex()))
    return path


def test_a_small_ledger_carries_no_index(tmp_path: Path) -> None:
    def indexes(path: Path) -> list[str]:
        with LedgerReader(path) as reader:
            return [str(row[0]) for row in reader.sql("SELECT name FROM sqlite_master WHERE type='index'").rows]

    assert indexes(make(tmp_path / "small", kind="dump")) == []
    assert indexes(make(tmp_path / "large", 300, kind="dump")) == ["event_by_pass"]
    with LedgerWriter(tmp_path / "empty", RunInfo(kind="dump")) as writer:
        writer.begin_module("m")
    assert (tmp_path / "empty").stat().st_size <= 14_848


def test_what_is_not_a_ledger_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "hlo.txt").write_text("HloModule m\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 20)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE t(x)")
    other.commit()
    other.close()
    expected = {
        "missing": "No such file", "empty": "the file is empty", "hlo.txt": "not a ledger", "binary": "not a ledger",
        "other.db": "an SQLite database, but not a ledger", ".": "is a directory",
    }  # fmt: skip
    for name, message in expected.items():
        with pytest.raises(LedgerError, match=message) as caught:
            open_ledger(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path))
        assert "\n" not in str(caught.value)
        assert not is_ledger(tmp_path / name)


def test_a_cut_off_ledger_is_one_line(tmp_path: Path) -> None:
    whole = make(tmp_path / "run.ledger", 500).read_bytes()
    for size in (10, 60, 100, 700, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(LedgerError, match="cut off|not a ledger"):
            open_ledger(tmp_path / "cut")


def test_a_damaged_ledger_never_shows_a_traceback(tmp_path: Path) -> None:
    whole = make(tmp_path / "run.ledger", 3000).read_bytes()
    met = 0
    for number, start in enumerate(range(100, len(whole) - 2000, max(len(whole) // 40, 1))):
        path = tmp_path / "damaged"
        # Bytes that are text in no encoding come into SQLite's own messages.
        path.write_bytes(whole[:start] + (b"\xff", b"\xa5")[number % 2] * 2000 + whole[start + 2000 :])
        try:
            with LedgerReader(path) as reader:
                list(reader.events())
                for row in reader.passes(1):
                    if row.snapshot:
                        reader.snapshots.text(row.snapshot)
                reader.sql("SELECT * FROM events")
        except LedgerError as error:
            met += 1
            assert "\n" not in str(error) and str(error).startswith(str(path))
    assert met > 20


def test_a_newer_format_is_refused_in_one_line(tmp_path: Path) -> None:
    path = make(tmp_path / "run.ledger")
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version={SCHEMA.version + 1}")
    raw.close()
    with pytest.raises(LedgerError) as caught:
        open_ledger(path)
    assert str(caught.value) == (
        f"{path}: written by a newer hloscope "
        f"(ledger format {SCHEMA.version + 1}, this version reads up to {SCHEMA.version})"
    )


def test_older_views_of_the_same_format_answer_as_todays_do(tmp_path: Path) -> None:
    path = make(tmp_path / "run.ledger")
    raw = sqlite3.connect(path)
    raw.execute("DROP VIEW passes")
    raw.execute("CREATE VIEW passes AS SELECT id FROM pass_rows")
    raw.commit()
    raw.close()
    before = path.read_bytes()
    with LedgerReader(path) as reader:
        assert reader.sql("SELECT count(own_ns) FROM passes").rows == [(1,)]
    assert path.read_bytes() == before


def _add_machine(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE run_rows ADD COLUMN machine TEXT")
    connection.execute("UPDATE run_rows SET machine='unknown'")


TOMORROW = replace(SCHEMA, version=SCHEMA.version + 1, migrations={SCHEMA.version: _add_machine})


def test_an_older_format_is_upgraded_for_reading_and_left_alone(tmp_path: Path) -> None:
    path = make(tmp_path / "run.ledger")
    before = path.read_bytes()
    connection = open_ledger(path, schema=TOMORROW)
    assert connection.execute("SELECT machine FROM run_rows").fetchall() == [("unknown",)]
    assert connection.execute("SELECT count(*) FROM rewrites").fetchall() == [(10,)]
    connection.close()
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["run.ledger"]


def test_an_older_format_can_be_upgraded_in_place(tmp_path: Path) -> None:
    path = make(tmp_path / "run.ledger")
    assert upgrade_ledger(path, schema=TOMORROW)
    assert not upgrade_ledger(path, schema=TOMORROW)
    connection = open_ledger(path, schema=TOMORROW)
    assert connection.execute("SELECT machine FROM run_rows").fetchall() == [("unknown",)]
    connection.close()
    with pytest.raises(LedgerError, match="newer"):
        open_ledger(path)


def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = make(tmp_path / "run.ledger")

    def broken(connection: sqlite3.Connection) -> None:
        _add_machine(connection)
        connection.execute("ALTER TABLE no_such_table ADD COLUMN x")

    before = path.read_bytes()
    with pytest.raises(LedgerError, match="no such table"):
        upgrade_ledger(path, schema=replace(TOMORROW, migrations={SCHEMA.version: broken}))
    assert path.read_bytes() == before


def test_reading_never_changes_a_closed_ledger(tmp_path: Path) -> None:
    path = make(tmp_path / "run.ledger")
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    connection = open_ledger(path)
    with pytest.raises(sqlite3.OperationalError):
        connection.execute("DELETE FROM event_rows")
    connection.close()
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [one.name for one in tmp_path.iterdir()] == ["run.ledger"]


def killed_ledger(folder: Path) -> Path:
    """A ledger as a killed writer leaves it: the file and the WAL, copied while the writer is open."""
    folder.mkdir()
    with LedgerWriter(folder / "live.ledger") as writer:
        writer.begin_module("m")
        for number in range(100):
            writer.emit(RewriteDecision(subject=f"a.{number}", verdict="applied", pass_name="p", rule="r"))
        writer.flush()
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{folder}/live.ledger{suffix}", f"{folder}/killed.ledger{suffix}")
    (folder / "live.ledger").unlink()
    return folder / "killed.ledger"


def test_a_killed_ledger_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = killed_ledger(tmp_path / "dump")
    real = store_module._connect  # pyright: ignore[reportPrivateUsage]

    def refuse(name: str, options: str) -> store_module.LedgerConnection:
        # Stands for a read-only file system, where SQLite cannot make the -shm file that a WAL needs.
        if options == "mode=ro":
            raise sqlite3.OperationalError("unable to open database file")
        return real(name, options)

    monkeypatch.setattr(store_module, "_connect", refuse)
    before = {one.name: one.read_bytes() for one in path.parent.iterdir()}
    with LedgerReader(path) as reader:
        assert len(list(reader.events())) == 100
        scratch = reader.connection.scratch
        assert scratch is not None and Path(scratch.name).exists()
    assert not Path(scratch.name).exists()
    assert {one.name: one.read_bytes() for one in path.parent.iterdir()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_killed_ledger_in_a_read_only_directory(tmp_path: Path) -> None:
    path = killed_ledger(tmp_path / "dump")
    path.parent.chmod(0o555)
    try:
        with LedgerReader(path) as reader:
            assert len(list(reader.events())) == 100
    finally:
        path.parent.chmod(0o755)


def test_a_killed_ledger_without_its_wal_still_opens(tmp_path: Path) -> None:
    path = killed_ledger(tmp_path / "dump")
    path.with_name("killed.ledger-wal").unlink()
    with LedgerReader(path) as reader:
        assert list(reader.events()) == []
    assert [one.name for one in path.parent.iterdir()] == ["killed.ledger"]


def test_reading_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    seen: list[int] = []
    faults: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                with LedgerReader(path) as reader:
                    fuels = [one.event.fuel for one in reader.events()]
                    assert fuels == list(range(len(fuels)))
                    seen.append(len(fuels))
        except BaseException as error:
            faults.append(error)

    with LedgerWriter(path) as writer:
        writer.begin_module("m")
        thread = threading.Thread(target=read)
        thread.start()
        for number in range(6000):
            writer.emit(RewriteDecision(subject="a", verdict="applied", pass_name="p", rule="r", fuel=number))
            if number % 50 == 0:
                writer.flush()
        done.set()
        thread.join()
    assert not faults
    assert seen
    with LedgerReader(path) as reader:
        assert sum(1 for _ in reader.events()) == 6000


def test_a_reader_that_stays_does_not_stop_the_writer_from_closing(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    writer = LedgerWriter(path)
    writer.begin_module("m")
    writer.flush()
    with LedgerReader(path) as reader:
        cursor = reader.connection.execute("SELECT * FROM modules")
        writer.begin_module("n")
        writer.close()
        assert cursor.fetchone()[2] == "m"
    assert [row[0] for row in sql(path, "SELECT name FROM modules").rows] == ["m", "n"]


def test_a_finished_ledger_is_one_file_though_a_reader_is_connected(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    writer = LedgerWriter(path)
    writer.begin_module("m")
    writer.flush()
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        assert reader.execute("SELECT count(*) FROM modules").fetchone() == (1,)
        writer.begin_module("n")
        writer.close()
        (tmp_path / "alone").mkdir()
        shutil.copyfile(path, tmp_path / "alone" / "run.ledger")
    finally:
        reader.close()
    with LedgerReader(tmp_path / "alone" / "run.ledger") as alone:
        assert [one.name for one in alone.modules()] == ["m", "n"]
        assert alone.runs()[0].complete


def test_a_disk_that_fills_while_the_ledger_is_finished_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.ledger"
    writer = LedgerWriter(path)
    writer.begin_module("m")

    def full(connection: store_module.LedgerConnection) -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store_module, "_is_folded", full)
    said = r"make the ledger one plain file: database or disk is full; keep run\.ledger-wal"
    with pytest.raises(LedgerError, match=said):
        writer.close()


def test_a_damaged_name_or_list_is_one_line(tmp_path: Path) -> None:
    for name, statement in (
        ("name", "UPDATE pass_rows SET pipeline=12345"),
        ("list", "UPDATE event_types SET fields='[[1,'"),
        ("facts", "UPDATE module_rows SET info='{'"),
    ):
        path = make(tmp_path / name)
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        connection.close()
        with LedgerReader(path) as reader, pytest.raises(LedgerError, match="the ledger is damaged"):
            for module in reader.modules():
                reader.passes(module.id)
            list(reader.events())


def test_paths_with_odd_characters(tmp_path: Path) -> None:
    path = make(tmp_path / "a b?c#d%20.ledger")
    assert is_ledger(path)
    assert sql(path, "SELECT count(*) FROM rewrites").rows == [(10,)]
