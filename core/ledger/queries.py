"""Asking a ledger: plain rows by SQL, and the typed rows that views and passes of other rooms build on."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

from hloscope.core.errors import LedgerError
from hloscope.core.ledger.batches import unpack_batches
from hloscope.core.ledger.declare import ENVELOPE, MAX_FIELDS, Event, EventSpec, FieldSpec, Kind, UnknownEvent, Value
from hloscope.core.ledger.events import EVENT_TYPES
from hloscope.core.ledger.schema import VIEWS
from hloscope.core.ledger.snapshots import SnapshotReader, unpack
from hloscope.core.ledger.store import LedgerConnection, open_ledger, reading

Cell = int | float | str | bytes | None
_OWN_COLUMNS = ",".join(f"e.v{at}" for at in range(MAX_FIELDS))
_STEPS_BETWEEN_CHECKS = 20_000
_REPORT_KINDS = 8
"""Blocks of reports that are kept unpacked: one of each kind, and some."""
_ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_ALLOWED_PRAGMAS = frozenset({"table_info", "table_xinfo", "table_list", "index_list", "index_info"})


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The answer to a query."""

    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    truncated: bool = False
    """Whether rows beyond the limit were left out."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run; the columns of the `runs` view."""

    id: int
    kind: str
    tool_version: str
    xla_build: str | None
    target: str | None
    flags: str | None
    source: str | None
    created_us: int
    complete: bool


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One module; the columns of the `modules` view."""

    id: int
    run: int
    name: str
    xla_id: int | None
    file_prefix: str | None
    info: dict[str, Any]
    passes: int


@dataclass(frozen=True, slots=True)
class PassEntry:
    """One row of the timeline; the columns of the `passes` view."""

    id: int
    module: int
    stage: int | None
    """Row in the timeline; None for a pass that had not ended when the ledger was written."""
    pipeline: str
    pass_name: str
    changed: bool | None
    instructions_before: int | None
    instructions_after: int | None
    start_us: int | None
    ns: int | None
    fuel_used: int | None
    file: str | None
    next_pass: str | None
    snapshot: int | None
    unannounced: str | None
    xla_pass_id: int | None
    parent: int | None


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event with its place in the ledger."""

    id: int
    module: int | None
    row: int | None
    """Number of its pass row."""
    stage: int | None
    """Row of the timeline."""
    event: Event


def _about_events() -> re.Pattern[str]:
    names = {"every_event", "event_base", "sentence"}
    for view in VIEWS:
        if any(name in view.source.split() for name in ("event_base", "events")):
            names.add(view.name)
    return re.compile(rf"\b(?:{'|'.join(sorted(names))})\b", re.IGNORECASE)


_ABOUT_EVENTS = _about_events()
"""Finds what a query must name in order to see events; only for such a query are batches unpacked."""


def sql(
    source: str | os.PathLike[str] | LedgerConnection,
    query: str,
    *,
    parameters: Sequence[Cell] = (),
    limit: int | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> SqlResult:
    """Run one reading statement over a ledger; ``cancelled`` is asked now and then and stops it.

    Nothing but SELECT passes. Raises LedgerError with one line for bad SQL, for a statement that would do more than
    read, and when cancelled.
    """
    if isinstance(source, LedgerConnection):
        return _run_query(source, query, parameters, limit, cancelled)
    connection = open_ledger(source)
    try:
        return _run_query(connection, query, parameters, limit, cancelled)
    finally:
        connection.close()


def _authorize(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    if action == sqlite3.SQLITE_PRAGMA:
        return sqlite3.SQLITE_OK if first in _ALLOWED_PRAGMAS else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and second == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _run_query(
    connection: LedgerConnection,
    query: str,
    parameters: Sequence[Cell],
    limit: int | None,
    cancelled: Callable[[], bool] | None,
) -> SqlResult:
    with _asking(connection, query, cancelled):
        cursor, columns = _started(connection, query, parameters)
        rows = cursor.fetchall() if limit is None else cursor.fetchmany(limit + 1)
    truncated = limit is not None and len(rows) > limit
    return SqlResult(columns, rows[:limit] if truncated else rows, truncated)


def _stream_query(connection: LedgerConnection, query: str) -> Generator[tuple[Cell, ...]]:
    with _asking(connection, query, None):
        cursor, columns = _started(connection, query, ())
        yield columns
        yield from cursor


def _started(
    connection: LedgerConnection, query: str, parameters: Sequence[Cell]
) -> tuple[sqlite3.Cursor, tuple[str, ...]]:
    cursor = connection.execute(query, parameters)
    if cursor.description is None:
        raise LedgerError("SQL: the statement returns no rows; only SELECT is answered", path=connection.path)
    return cursor, tuple(str(one[0]) for one in cursor.description)


@contextmanager
def _asking(connection: LedgerConnection, query: str, cancelled: Callable[[], bool] | None) -> Generator[None]:
    """While a query of the user runs: nothing but reading is allowed, and what SQLite refuses is one line."""
    if _ABOUT_EVENTS.search(query):
        with reading(connection.path):
            unpack_batches(connection)
    decoder = _Decoder(connection)
    connection.create_function("sentence", 1, lambda number: _sentence(decoder, number))
    connection.set_authorizer(_authorize)
    # Always there: Ctrl-C is noticed while Python code runs, and what it raises ends the query as an interruption.
    connection.set_progress_handler(lambda: int(cancelled is not None and cancelled()), _STEPS_BETWEEN_CHECKS)
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
        if str(error) == "interrupted" and not (cancelled is not None and cancelled()):
            raise KeyboardInterrupt from None
        raise _sql_error(connection.path, error) from error
    finally:
        connection.set_authorizer(None)
        connection.set_progress_handler(None, 0)


def _sql_error(path: str, error: Exception) -> LedgerError:
    text = " ".join(str(error).split())
    if isinstance(error, UnicodeError) or "malformed" in text or "Could not decode" in text:
        return LedgerError("the ledger is damaged", path=path)
    if text == "interrupted":
        return LedgerError("SQL: cancelled", path=path)
    if "not authorized" in text or "authorization denied" in text or "prohibited" in text or "readonly" in text:
        return LedgerError("SQL: only reading statements (SELECT) are allowed", path=path)
    if "one statement at a time" in text:
        return LedgerError("SQL: one statement at a time", path=path)
    if "no such table" in text:
        return LedgerError(f"SQL: {text}", path=path, hint="views: " + ", ".join(one.name for one in VIEWS))
    return LedgerError(f"SQL: {text}", path=path)


def _sentence(decoder: _Decoder, number: Cell) -> str | None:
    """The SQL function ``sentence(ID)``: an event in words."""
    found = next(decoder.select(" WHERE e.id=?", [number]), None)
    return None if found is None else found.event.sentence()


def _pass_entry(
    row: int, module: int, stage: int | None, pipeline: str, name: str, changed: int | None, *rest: Any
) -> PassEntry:
    return PassEntry(row, module, stage, pipeline, name, None if changed is None else bool(changed), *rest)


class LedgerReader:
    """An open ledger: its rows as typed objects, its texts, and SQL over its views."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.connection = open_ledger(path)
        self.path = os.fspath(path)
        self.snapshots = SnapshotReader(self.connection)
        self._blocks: dict[bytes, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close it; the texts are no longer readable."""
        self.connection.close()

    def runs(self) -> list[RunRow]:
        """Every run."""
        with reading(self.path):
            found = self.connection.execute("SELECT * FROM runs ORDER BY id").fetchall()
        return [RunRow(*row[:-1], complete=bool(row[-1])) for row in found]

    def modules(self) -> list[ModuleRow]:
        """Every module."""
        with reading(self.path):
            found = self.connection.execute("SELECT * FROM modules ORDER BY id").fetchall()
            return [ModuleRow(*row[:5], info=json.loads(row[5] or "{}"), passes=row[6]) for row in found]

    def passes(self, module: int) -> list[PassEntry]:
        """The timeline of a module; passes that never ended come last, with no stage."""
        with reading(self.path):
            found = self.connection.execute(
                "SELECT id,module,stage,pipeline,pass,changed,instructions_before,instructions_after,start_us,ns,"
                "fuel_used,file,next_pass,snapshot,unannounced,xla_pass_id,parent FROM passes WHERE module=?"
                " ORDER BY stage IS NULL,stage,id",
                (module,),
            ).fetchall()
        if any(None in row[3:5] for row in found):
            raise LedgerError("the ledger is damaged (a name is missing)", path=self.path)
        return [_pass_entry(*row) for row in found]

    def report(self, module: int, kind: str) -> str | None:
        """A report that the compiler wrote on a module, the first of its kind; None where none was kept."""
        with reading(self.path):
            found = self.connection.execute(
                "SELECT r.data,b.data,r.start,r.size FROM report_rows r LEFT JOIN report_blocks b ON b.id=r.block"
                " WHERE r.module=? AND r.kind IN(?,(SELECT id FROM strings WHERE text=?)) ORDER BY r.id LIMIT 1",
                (module, kind, kind),
            ).fetchone()
        if found is None:
            return None
        own, block, start, size = cast("tuple[bytes | None, bytes | None, int, int]", found)
        if own is not None:
            text = unpack(own)
        elif block is not None:
            text = self._block(block)[start : start + size]
        else:
            raise LedgerError("the ledger is damaged (a report is missing)", path=self.path)
        return text.decode("utf-8", "replace")

    def _block(self, data: bytes) -> bytes:
        # The reports of one module, and those of the next, are in the same few blocks.
        known = self._blocks.get(data)
        if known is None:
            if len(self._blocks) >= _REPORT_KINDS:
                self._blocks.pop(next(iter(self._blocks)))
            known = self._blocks[data] = unpack(data)
        return known

    def events(
        self,
        *,
        module: int | None = None,
        row: int | None = None,
        stage: int | None = None,
        type_name: str | None = None,
        subject: str | None = None,
    ) -> Iterator[StoredEvent]:
        """Events in the order of recording; see read_events."""
        return read_events(self.connection, module=module, row=row, stage=stage, type_name=type_name, subject=subject)

    def sql(
        self,
        query: str,
        *,
        parameters: Sequence[Cell] = (),
        limit: int | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> SqlResult:
        """See the function of the same name."""
        return _run_query(self.connection, query, parameters, limit, cancelled)

    def sql_rows(self, query: str) -> Generator[tuple[Cell, ...]]:
        """The column names, then the rows of a query one by one as SQLite finds them. Raises as ``sql`` does."""
        return _stream_query(self.connection, query)


def read_events(
    connection: LedgerConnection,
    *,
    module: int | None = None,
    row: int | None = None,
    stage: int | None = None,
    type_name: str | None = None,
    subject: str | None = None,
) -> Iterator[StoredEvent]:
    """Events as typed objects, in the order of recording, narrowed by what is given.

    An event of a type that this version does not know comes as UnknownEvent, with fields and sentence as the ledger
    says. Raises LedgerError when the ledger is damaged.
    """
    conditions: list[str] = []
    values: list[Cell] = []
    for condition, value in (
        ("coalesce(e.module,p.module)=?", module),
        ("e.pass=?", row),
        ("p.ordinal=?", stage),
        ("t.name=?", type_name),
        ("e.subject IN(SELECT id FROM strings WHERE text=?)", subject),
    ):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    where = " WHERE " + " AND ".join(conditions) if conditions else ""
    with reading(connection.path):
        unpack_batches(connection)
        yield from _Decoder(connection).select(where, values)


class _Decoder:
    """Turns stored rows back into events; names are looked up once."""

    def __init__(self, connection: LedgerConnection) -> None:
        self._connection = connection
        self._names: dict[int, str] = {}
        self._specs: dict[tuple[str, str], EventSpec] = {}

    def select(self, where: str, values: Sequence[Cell]) -> Iterator[StoredEvent]:
        """Events that a condition over the stored tables picks, in the order of recording."""
        cursor = self._connection.execute(
            "SELECT e.id,coalesce(e.module,p.module),e.pass,p.ordinal,t.name,t.kind,t.sentence,t.fields,e.subject,"
            f"e.computation,o.verdict,o.code,e.fuel,o.origin,o.method,o.agrees,{_OWN_COLUMNS} FROM every_event e"
            " JOIN outcomes o ON o.id=e.outcome JOIN event_types t ON t.id=o.type"
            f" LEFT JOIN pass_rows p ON p.id=e.pass{where} ORDER BY e.id",
            values,
        )
        for found in cursor:
            yield StoredEvent(found[0], found[1], found[2], found[3], self.event(*found[4:]))

    def name(self, number: int | None) -> str | None:
        if number is None:
            return None
        found = self._names.get(number)
        if found is None:
            row = self._connection.execute("SELECT text FROM strings WHERE id=?", (number,)).fetchone()
            if row is None:
                raise LedgerError("the ledger is damaged (a name is missing)", path=self._connection.path)
            found = self._names[number] = str(row[0])
        return found

    def event(
        self, type_name: str, kind: Kind, sentence: str, listed: str, subject: int | None, computation: int | None,
        verdict: int | None, code: int | None, fuel: int | None, origin: int, method: int, agrees: int | None,
        *stored: Any,
    ) -> Event:  # fmt: skip
        spec = self._specs.get((type_name, listed))
        if spec is None:
            fields = tuple(FieldSpec(name, unit, "") for name, unit in json.loads(listed))
            spec = self._specs[type_name, listed] = EventSpec(type_name, kind, "", sentence, fields)
        envelope: dict[str, Any] = {
            "subject": self.name(subject), "computation": self.name(computation), "verdict": self.name(verdict),
            "code": self.name(code), "fuel": fuel, "origin": self.name(origin), "method": self.name(method),
            "agrees": None if agrees is None else bool(agrees),
        }  # fmt: skip
        values = tuple(self._value(one.unit, value) for one, value in zip(spec.fields, stored, strict=False))
        known = EVENT_TYPES.get(type_name)
        if known is None:
            return UnknownEvent(**envelope, stored=spec, values=values)
        ours = {one.name: one for one in known.spec.fields}
        pairs = zip(spec.fields, values, strict=True)
        given: dict[str, Any] = {one.name: value for one, value in pairs if one.name in ours}
        if any(one.required and given.get(one.name) is None for one in ours.values()):
            return UnknownEvent(**envelope, stored=spec, values=values)
        return known(**envelope, **{name: value for name, value in given.items() if value is not None})

    def _value(self, unit: str, value: Any) -> Value:
        if unit == "name":
            return self.name(value)
        if unit == "names":
            numbers = json.loads(value) if isinstance(value, str) else [] if value is None else [value]
            return tuple(self.name(one) or "" for one in numbers)
        if unit == "flag":
            return None if value is None else bool(value)
        if isinstance(value, str) and unit in ("us", "number"):
            return float(value)
        return value


ENVELOPE_COLUMNS: tuple[str, ...] = tuple(one.name for one in ENVELOPE)
"""Columns of the `events` view that every event shares."""
