"""Events in batches: what SQL reads from them is what was recorded, in any form that a column takes."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path

import pytest

from hloscope.core.errors import LedgerError
from hloscope.core.ledger import LedgerReader, LedgerWriter, RunInfo, batches, sql
from hloscope.core.ledger.declare import Event
from hloscope.core.ledger.events import DumpNote, EvaluationDifference, FusionDecision, RewriteDecision, SilentChange

# Round the places where the form of a number changes: none, zero, the gap in Unicode, the last character, beyond.
NUMBERS = (None, 0, 1, 26, 55_262, 55_263, 55_264, 57_343, 57_344, 1_112_030, 1_112_031, 1_112_032, 2**40)
TEXTS = (None, "", "plain", 'quoted "', "back\\slash", "two\nlines", "\x01\x02", "ümlaut ☃ 🦀", "[1,2]", "null")
FLOATS = (None, 0.0, -1.5, 0.1, 1e300, 5e-324, math.inf, -math.inf, 7)


def recorded() -> list[Event]:
    events: list[Event] = []
    for one in NUMBERS:
        events.append(DumpNote(file="a.txt", message="m", size=one))
        events.append(RewriteDecision(subject="a", fuel=one, pass_name="p", rule="r"))
    events += [RewriteDecision(pass_name="p", rule="r", detail=one, identity="00ff" if one else None) for one in TEXTS]
    events += [RewriteDecision(pass_name="p", rule="r", produced=one) for one in ((), ("x",), ("x", "y"), ("z",))]
    events += [FusionDecision(step=0, us_fused=one, us_unfused=2.5) for one in FLOATS]
    events += [SilentChange(pass_name="p", reported=one) for one in (True, False, True)]
    return events


def written(path: Path, *, kind: str = "core", complete: bool = True) -> Path:
    writer = LedgerWriter(path, RunInfo(kind=kind))
    writer.begin_module("m")
    row = writer.begin_pass("p")
    for one in recorded():
        writer.emit(one)
    writer.end_pass(row, changed=False)
    writer.close(complete=complete)
    return path


def stored_rows(path: Path) -> list[tuple[object, ...]]:
    """As any SQLite tool reads them."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT * FROM every_event ORDER BY id").fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("kind", ["core", "dump"])
def test_every_value_comes_back(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path / "run.ledger", kind=kind)
    with LedgerReader(path) as reader:
        assert [one.event for one in reader.events()] == recorded()
        ours = reader.sql("SELECT * FROM every_event ORDER BY id").rows
    assert stored_rows(path) == ours


@pytest.mark.parametrize("highest", [9, 40])
def test_more_names_than_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, highest: int) -> None:
    monkeypatch.setattr(batches, "_HIGHEST", highest)
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        writer.begin_module("m")
        for number in range(2, 40):
            made = tuple(f"p.{at}" for at in range(number % 3))
            one = RewriteDecision(subject=f"a.{number}", pass_name="p", rule=f"r{number % 5}", produced=made)
            writer.emit(one)
            if number % 11 == 0:
                writer.flush()
    with LedgerReader(tmp_path / "run.ledger") as reader:
        events = [one.event for one in reader.events()]
        ours = reader.sql("SELECT * FROM every_event ORDER BY id").rows
    assert [(one.subject, one.numbers["rule"], one.numbers["produced"]) for one in events] == [
        (f"a.{number}", f"r{number % 5}", tuple(f"p.{at}" for at in range(number % 3))) for number in range(2, 40)
    ]
    assert stored_rows(tmp_path / "run.ledger") == ours


def test_a_compile_leaves_batches_and_an_import_rows(tmp_path: Path) -> None:
    for kind, tables in (("core", 1), ("dump", 0)):
        path = written(tmp_path / kind, kind=kind)
        count = len(recorded())
        # The views in the file and those of our reader count alike.
        question = "SELECT count(*) FROM events"
        assert sqlite3.connect(path).execute(question).fetchall() == sql(path, question).rows == [(count,)]
        assert sql(path, "SELECT count(*) FROM sqlite_master WHERE name='event_batches'").rows == [(tables,)]
        assert sql(path, "SELECT count(*) FROM event_rows").rows == [(0 if tables else count,)]


def test_a_reader_sees_what_is_committed_after_it_has_asked(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        writer.begin_module("m")
        writer.flush()
        with LedgerReader(tmp_path / "run.ledger") as reader:
            for number in range(1, 4):
                writer.emit(RewriteDecision(pass_name="p", rule=f"r{number}"))
                writer.emit(DumpNote(file="f", message="m", size=number))
                writer.flush()
                assert reader.sql("SELECT count(*),max(id) FROM events").rows == [(2 * number, 2 * number)]
                assert reader.sql("SELECT rule FROM rewrites ORDER BY id").rows[-1] == (f"r{number}",)
                assert len(list(reader.events(type_name="dump_note"))) == number


def test_what_is_undefined_comes_back(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        writer.emit(EvaluationDifference(output=0, max_abs=0.5, max_ulp=math.nan))
        writer.emit(EvaluationDifference(output=1, max_abs=math.nan, max_ulp=math.nan))
    with LedgerReader(tmp_path / "run.ledger") as reader:
        found = [one.event.numbers["max_ulp"] for one in reader.events()]
    assert all(isinstance(one, float) and math.isnan(one) for one in found) and len(found) == 2


def test_a_zero_in_a_text_is_the_same_to_everybody(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "run.ledger") as writer:
        writer.emit(RewriteDecision(pass_name="p", rule="nul\0in", detail="nul\0in", subject="a\0b"))
    question = "SELECT subject,data FROM events"
    ours = sql(tmp_path / "run.ledger", question).rows
    assert sqlite3.connect(tmp_path / "run.ledger").execute(question).fetchall() == ours
    assert ours[0][0] == "a?b" and "nul?in" in str(ours[0][1])


def test_a_damaged_batch_is_one_line(tmp_path: Path) -> None:
    path = written(tmp_path / "run.ledger")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE event_batches SET c3='[1,2'")
    connection.commit()
    connection.close()
    with LedgerReader(path) as reader, pytest.raises(LedgerError, match="damaged"):
        list(reader.events())
    with pytest.raises(LedgerError, match="damaged"):
        sql(path, "SELECT * FROM events")


def test_a_ledger_of_the_format_before_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "run.ledger", kind="dump")
    connection = sqlite3.connect(path)
    for view in connection.execute("SELECT name FROM sqlite_master WHERE type='view'").fetchall():
        connection.execute(f"DROP VIEW {view[0]}")
    connection.execute("DROP TABLE report_blocks")
    connection.execute("DROP TABLE report_rows")
    connection.execute(
        "CREATE TABLE report_rows(id INTEGER PRIMARY KEY,module INT,kind TEXT,file TEXT,size INT,data BLOB)"
    )
    connection.execute("INSERT INTO report_rows VALUES(1,1,'live_range','m.txt',4,?)", (b"\0text",))
    connection.execute("PRAGMA user_version=2")
    connection.commit()
    connection.close()
    with LedgerReader(path) as reader:
        assert [one.event for one in reader.events()] == recorded()
        assert reader.report(1, "live_range") == "text" and reader.report(1, "debug_options") is None
        assert reader.sql("SELECT kind,file,size FROM reports").rows == [("live_range", "m.txt", 4)]


def test_reports_share_blocks_and_come_back_whole(tmp_path: Path) -> None:
    kinds = ("live_range", "buffer_assignment")
    with LedgerWriter(tmp_path / "run.ledger", RunInfo(kind="dump")) as writer:
        for module in range(1, 40):
            writer.begin_module(f"m{module}", file_prefix=f"module_{module}.")
            for kind in kinds:
                writer.add_report(kind, f"module_{module}.{kind}.txt", f"{kind} of ☃ {module}\n".encode() * 999)
            if module % 7 == 0:
                writer.flush()
    with LedgerReader(tmp_path / "run.ledger") as reader:
        for module in range(1, 40):
            for kind in kinds:
                assert reader.report(module, kind) == f"{kind} of ☃ {module}\n" * 999
        listed = reader.sql("SELECT file,count(*) FROM reports WHERE module=3 GROUP BY kind ORDER BY kind").rows
    assert listed == [(f"module_3.{kind}.txt", 1) for kind in sorted(kinds)]
    assert (tmp_path / "run.ledger").stat().st_size < 40_000
