"""The public views and SQL over them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hloscope.core.errors import LedgerError
from hloscope.core.ledger import (
    VIEWS,
    DumpNote,
    FusionDecision,
    LedgerReader,
    LedgerWriter,
    ParseFinding,
    PassRecord,
    RewriteDecision,
    sql,
)
from hloscope.core.ledger.schema_doc import document
from hloscope.core.views.modules import captured_modules

OUTCOMES = [("applied", None), ("refused", "fuel_exhausted"), ("refused", "shape")]
REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("ledger") / "run.ledger"
    with LedgerWriter(path) as writer:
        writer.begin_module("jit_f", info={"fingerprint": "abc"})
        texts = [writer.add_snapshot(text) for text in ("a\n", "b\n")]
        writer.add_pass(PassRecord("before_optimizations", snapshot=texts[0], instructions=3))
        row = writer.add_pass(
            PassRecord(
                "algsimp", "simplification", changed=True, snapshot=texts[1], instructions=2, ns=5000, start_us=100,
                unannounced="x … y",
            )
        )  # fmt: skip
        for fuel, (verdict, code) in enumerate(OUTCOMES):
            writer.emit(
                RewriteDecision(
                    subject=f"add.{fuel}", computation="main", verdict=verdict, code=code, fuel=fuel,
                    pass_name="algsimp", rule="add-zero", produced=("p.1", "p.2") if fuel == 0 else (),
                ),
                row=row,
            )  # fmt: skip
        writer.add_pass(PassRecord("dce", "simplification", changed=False))
        fusion = writer.add_pass(PassRecord("priority-fusion", "fusion"))
        writer.emit(
            FusionDecision(
                subject="mul.1", verdict="priority", step=0, consumers=("add.1", "add.2"), us_fused=1.5, us_unfused=2.5,
                origin="xla", agrees=True,
            ),
            row=fusion,
        )  # fmt: skip
        writer.emit(
            FusionDecision(subject="dot.1", verdict="ineligible", step=1, reason="not fusible", origin="xla"),
            row=fusion,
        )
        writer.emit(DumpNote(file="x.bin", message="not understood", code="unknown_file"))
        writer.emit(ParseFinding(file="y.txt", message="odd", line=4))
        writer.add_report("live_range", "z-live-range.txt", b"BufferLiveRange:\n")
    yield path


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    return list(sql(path, query).rows)


def test_a_report_comes_back_as_it_was_given(ledger: Path) -> None:
    with LedgerReader(ledger) as reader:
        assert reader.report(1, "live_range") == "BufferLiveRange:\n"
        assert reader.report(1, "buffer_assignment") is None
    assert rows(ledger, "SELECT kind,file,size FROM reports") == [("live_range", "z-live-range.txt", 17)]


def test_every_view_has_the_documented_columns(ledger: Path) -> None:
    for view in VIEWS:
        answer = sql(ledger, f"SELECT * FROM {view.name}")
        assert answer.columns == tuple(one.name for one in view.columns)
        assert answer.rows, view.name
        assert view.meaning.endswith(".") and all(one.meaning for one in view.columns)


def test_the_timeline(ledger: Path) -> None:
    columns = "stage, pipeline, pass, changed, instructions_before, instructions_after, ns, end_us"
    assert rows(ledger, f"SELECT {columns} FROM passes") == [
        (0, "", "before_optimizations", None, 3, 3, None, None),
        (1, "simplification", "algsimp", 1, 3, 2, 5000, 105),
        (2, "simplification", "dce", 0, 2, 2, None, None),
        (3, "fusion", "priority-fusion", None, 2, 2, None, None),
    ]
    assert rows(ledger, "SELECT stage, lines, size FROM stages") == [(0, 2, 2), (1, 2, 2)]
    assert rows(ledger, "SELECT name, passes, info FROM modules") == [("jit_f", 4, '{"fingerprint":"abc"}')]


def test_the_time_of_nested_pipelines_is_counted_once(tmp_path: Path) -> None:
    """Rows in the order in which XLA logs them: a pipeline's own after those of its passes."""
    path = tmp_path / "run.ledger"
    rows = [
        ("cse", "simplify", 10, 4), ("simplify", "simplify", 14, 2), ("simplify", "all", 10, 7),
        ("copy-insertion", "all", 20, 5), ("steps", "copy-insertion", None, None), ("cse", "all", 26, 3),
        ("simplify", "late", 30, 2),
    ]  # fmt: skip
    with LedgerWriter(path) as writer:
        writer.begin_module("m")
        for name, pipeline, start, us in rows:
            ns = None if us is None else us * 1000
            writer.add_pass(PassRecord(name, pipeline, start_us=start, ns=ns))
    with LedgerReader(path) as reader:
        found = reader.sql("SELECT own_ns/1000 FROM passes ORDER BY stage").rows
    assert [one[0] for one in found] == [4, 2, None, 5, None, 3, 2]
    (captured,) = captured_modules(str(path))
    assert captured["ns"] == 16_000


def test_decisions(ledger: Path) -> None:
    assert rows(ledger, "SELECT stage, pass, rule, subject, verdict, code, fuel, produced FROM rewrites") == [
        (1, "algsimp", "add-zero", "add.0", "applied", None, 0, "p.1 p.2"),
        (1, "algsimp", "add-zero", "add.1", "refused", "fuel_exhausted", 1, None),
        (1, "algsimp", "add-zero", "add.2", "refused", "shape", 2, None),
    ]
    assert rows(ledger, "SELECT type, subject, code FROM refusals") == [
        ("rewrite_decision", "add.1", "fuel_exhausted"),
        ("rewrite_decision", "add.2", "shape"),
        ("fusion_decision", "dot.1", None),
    ]
    assert rows(ledger, "SELECT pass, decisions, applied, exhausted, first, last FROM fuel") == [
        ("algsimp", 3, 1, 1, 0, 2)
    ]
    columns = "step, producer, consumers, verdict, reason, us_fused, us_unfused, origin"
    assert rows(ledger, f"SELECT {columns} FROM fusion_decisions") == [
        (0, "mul.1", "add.1 add.2", "priority", None, 1.5, 2.5, "xla"),
        (1, "dot.1", None, "ineligible", "not fusible", None, None, "xla"),
    ]


def test_events_and_notes(ledger: Path) -> None:
    found = rows(ledger, "SELECT data FROM events WHERE type = 'rewrite_decision' ORDER BY id LIMIT 1")
    assert json.loads(str(found[0][0])) == {
        "pass_name": "algsimp", "rule": "add-zero", "occurrence": 0, "produced": ["p.1", "p.2"], "identity": None,
        "detail": None,
    }  # fmt: skip
    assert rows(ledger, "SELECT agrees, method FROM events WHERE subject = 'mul.1'") == [(1, "recorded")]
    assert rows(ledger, "SELECT module, code, file, line, message FROM notes") == [
        (1, "unknown_file", "x.bin", None, "not understood"),
        (1, None, "y.txt", 4, "odd"),
    ]
    assert rows(ledger, "SELECT sentence(id) FROM notes") == [("x.bin: not understood",), ("y.txt:4: odd",)]


def test_typed_events_can_be_narrowed(ledger: Path) -> None:
    with LedgerReader(ledger) as reader:
        assert [one.event.subject for one in reader.events(type_name="fusion_decision")] == ["mul.1", "dot.1"]
        assert [one.event.subject for one in reader.events(stage=1)] == ["add.0", "add.1", "add.2"]
        assert [one.event.code for one in reader.events(subject="add.2")] == ["shape"]
        assert list(reader.events(module=9)) == []


def test_any_sqlite_tool_can_ask(ledger: Path) -> None:
    script = "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM rewrites'))"
    assert subprocess.run([sys.executable, "-c", script, ledger], capture_output=True, text=True).stdout == "(3,)\n"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("", "returns no rows"),
        ("SELECT color FROM passes", "no such column: color"),
        ("SELECT * FROM pases", "no such table: pases (views: runs, modules, passes,"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("DELETE FROM event_rows", "only reading statements"),
        ("CREATE TEMP TABLE t(x)", "only reading statements"),
        ("ATTACH 'other.db' AS other", "only reading statements"),
        ("PRAGMA journal_mode=WAL", "only reading statements"),
        ("VACUUM INTO 'copy.db'", "only reading statements"),
        ("BEGIN", "only reading statements"),
        ("SELECT load_extension('x')", "only reading statements"),
    ],
)
def test_bad_sql_is_one_line(ledger: Path, query: str, message: str) -> None:
    before = ledger.read_bytes()
    with pytest.raises(LedgerError) as caught:
        sql(ledger, query)
    text = str(caught.value)
    assert message in text
    assert text.startswith(f"{ledger}: SQL: ") and "\n" not in text
    assert ledger.read_bytes() == before
    assert sorted(one.name for one in ledger.parent.iterdir()) == ["run.ledger"]


def test_limits_parameters_and_common_table_expressions(ledger: Path) -> None:
    answer = sql(ledger, "SELECT id FROM events ORDER BY id", limit=2)
    assert (answer.rows, answer.truncated) == ([(1,), (2,)], True)
    assert not sql(ledger, "SELECT id FROM notes", limit=2).truncated
    counting = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<3) SELECT sum(i) FROM n"
    assert rows(ledger, counting) == [(6,)]
    assert sql(ledger, "SELECT pass FROM passes WHERE stage=?", parameters=(2,)).rows == [("dce",)]


def test_a_query_can_be_cancelled(ledger: Path) -> None:
    asked: list[bool] = []

    def cancelled() -> bool:
        asked.append(True)
        return len(asked) > 2

    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT count(*) FROM n"
    with LedgerReader(ledger) as reader:
        with pytest.raises(LedgerError, match="SQL: cancelled"):
            reader.sql(endless, cancelled=cancelled)
        assert reader.sql("SELECT 1").rows == [(1,)]


def test_the_documentation_is_up_to_date() -> None:
    assert (REPOSITORY / "docs" / "ledger.md").read_text(encoding="utf-8") == document()
