"""Writing a ledger: what passes record through, and the writer behind it.

A pass holds a ``Recorder`` and asks ``enabled`` once before it builds an event, so that recording costs one attribute
test when it is off. When on, an event's values are put on a list, which is encoded and written at starts of passes and
after some thousands of events, each time in one transaction. A writer that is killed loses only what came after the
last of them.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sqlite3
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from types import TracebackType
from typing import Any, Protocol, Self, cast

from hloscope.core.errors import InternalError
from hloscope.core.ledger.batches import INSERT_BATCH, SHARED, Plan, Texts, batches_to_rows, clean
from hloscope.core.ledger.declare import Event, Value
from hloscope.core.ledger.schema import FILE_MARK, REPORT_MARK
from hloscope.core.ledger.snapshots import QUICK, TIGHT, SnapshotWriter, pack
from hloscope.core.ledger.store import (
    PAGE_SIZE,
    SMALL_PAGE_SIZE,
    close_ledger,
    create_ledger,
    is_made_by,
    ledger_error,
    publish_ledger,
    remove_ledger,
)

_BATCH_EVENTS, _BATCH_PASSES = 1024, 4096
_BATCH_BYTES = 4 << 20
_REPORT_BLOCK_BYTES = 256 << 10
_AT_ONCE = (50, 8, 1)
"""Rows that one statement inserts. Few sizes, so that SQLite finds the statement among those that it has compiled."""
COMMIT_GAP_NS = 100_000_000
"""Starts of passes that follow a commit faster than this share the next one."""
_PASS_COLUMNS = (
    "id", "module", "ordinal", "xla_id", "parent", "pipeline", "pass", "next_pass", "changed", "start_us", "ns", "file",
    "snapshot", "before", "after", "fuel", "unannounced",
)  # fmt: skip
_INSERT_PASS = f"INSERT INTO pass_rows({','.join(_PASS_COLUMNS)})VALUES({','.join('?' * len(_PASS_COLUMNS))})"
_ENDED = ("ordinal", "next_pass", "changed", "ns", "file", "snapshot", "after", "fuel", "unannounced")
"""What is known of a pass when it ends."""
_ENDED_AT = tuple(map(_PASS_COLUMNS.index, _ENDED))
_END_PASS = f"UPDATE pass_rows SET {','.join(f'{column}=?' for column in _ENDED)} WHERE id=?"
_encode_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Recorder(Protocol):
    """What a pass, a pipeline or an importer records through."""

    @property
    def enabled(self) -> bool:
        """Whether recording does anything; test it before building an event."""
        ...

    def emit(self, event: Event) -> None:
        """Record an event; it belongs to the innermost open pass, else to the current module."""
        ...

    def emit_values(self, kind: type[Event], verdict: str | None, code: str | None, values: tuple[Value, ...]) -> None:
        """Record an event of our own without making the object, where thousands come at once.

        `values` are subject, computation, fuel ordinal and then the type's own fields, in the order of declaration.
        """
        ...

    def begin_pass(
        self, name: str, *, pipeline: str = "", xla_pass_id: int | None = None, instructions: int | None = None
    ) -> int:
        """Open a row of the timeline and return its number; call it before deciding whether the pass runs."""
        ...

    def end_pass(
        self,
        row: int,
        *,
        changed: bool | None,
        instructions: int | None = None,
        snapshot: int | None = None,
        fuel_used: int | None = None,
        file: str | None = None,
        next_pass: str | None = None,
        ns: int | None = None,
        unannounced: str | None = None,
    ) -> None:
        """Close a row: whether it changed the module, the instructions and the text after it, fuel spent, dump file.

        `ns` is the run time of the pass alone where the caller measured it; else it is the time since the row opened.
        `unannounced` is ``A … B``, the range of passes that hides a change which none of them reported.
        """
        ...

    def add_snapshot(self, text: str | bytes) -> int:
        """Store a module text and return its number."""
        ...

    def add_snapshot_lines(self, lines: Iterable[str]) -> int:
        """Store a module text given as lines and return its number."""
        ...


Ledger = Recorder
"""The name by which passes know it."""


class NullLedger:
    """Records nothing."""

    enabled = False

    def emit(self, event: Event) -> None:
        """Drop the event."""

    def emit_values(self, kind: type[Event], verdict: str | None, code: str | None, values: tuple[Value, ...]) -> None:
        """Make the event for `emit`, which a recorder that keeps events overrides."""
        if self.enabled:
            names = (*SHARED, *(one.name for one in kind.spec.fields))
            stated: dict[str, Any] = dict(zip(names, values, strict=True))
            self.emit(kind(verdict=verdict, code=code, **stated))

    def begin_pass(
        self, name: str, *, pipeline: str = "", xla_pass_id: int | None = None, instructions: int | None = None
    ) -> int:
        """Number 0, which stands for no row."""
        return 0

    def end_pass(
        self,
        row: int,
        *,
        changed: bool | None,
        instructions: int | None = None,
        snapshot: int | None = None,
        fuel_used: int | None = None,
        file: str | None = None,
        next_pass: str | None = None,
        ns: int | None = None,
        unannounced: str | None = None,
    ) -> None:
        """Nothing."""

    def add_snapshot(self, text: str | bytes) -> int:
        """Number 0, which stands for no text."""
        return 0

    def add_snapshot_lines(self, lines: Iterable[str]) -> int:
        """Number 0, which stands for no text."""
        return 0


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a ledger says about the compile that it describes."""

    kind: str = "core"
    """``core`` (our own compile), ``dump`` (imported) or ``capture``."""
    tool_version: str = ""
    xla_build: str | None = None
    target: str | None = None
    flags: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One complete row of the timeline, as an importer knows it."""

    name: str
    pipeline: str = ""
    changed: bool | None = None
    file: str | None = None
    """Dump file, relative to the dump."""
    next_pass: str | None = None
    xla_pass_id: int | None = None
    start_us: int | None = None
    """Microseconds since 1970."""
    ns: int | None = None
    """Run time in nanoseconds."""
    snapshot: int | None = None
    """Text after the pass; None inherits that of the row before."""
    instructions: int | None = None
    """Instructions after the pass; None inherits."""
    fuel_used: int | None = None
    unannounced: str | None = None


_outcome_of = attrgetter("verdict", "code", "origin", "method", "agrees")


class LedgerWriter:
    """Creates a ledger and writes it; use it in a ``with`` block or call ``close``.

    One thread at a time. Raises LedgerError when the file exists and ``force`` is not set, and once when the disk is
    full or otherwise refuses; what was committed by then stays readable, and later calls do nothing.

    With ``force`` an existing file is replaced by ``close`` and only by a complete run. Any other leaves it as it was
    and stays beside it, as ``NAME.partial``; a line on stderr says so, unless the LedgerError does.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        run: RunInfo | None = None,
        *,
        force: bool = False,
        commit_gap_ns: int = COMMIT_GAP_NS,
    ) -> None:
        # A compile that waits for its ledger wants speed; an import wants a small file.
        self._tight = run is not None and run.kind != "core"
        size = PAGE_SIZE if self._tight else SMALL_PAGE_SIZE
        self._connection = create_ledger(path, force=force, page_size=size)
        self.path = os.fspath(path)
        self.enabled = True
        """False once closed or after an error."""
        self._snapshots = SnapshotWriter(self._connection, tight=self._tight)
        self._texts = Texts()
        self._strings_written = 1
        self._plans: dict[type[Event], Plan] = {}
        self._new_types: list[tuple[int, str, str, str, str]] = []
        self._flush_at = _BATCH_EVENTS
        """Number of the event that has the waiting ones written."""
        self._event_total = 0
        self._outcome_total = 0
        self._statements: list[tuple[str, tuple[object, ...]]] = []
        self._report_blocks: dict[str, tuple[int, bytearray]] = {}
        """Reports that wait to be packed, by kind: those of one kind say nearly the same."""
        self._report_block_total = 0
        self._pass_rows: dict[int, list[object]] = {}
        """Rows of the timeline that wait, by number; most passes end before their row is written."""
        self._pass_ends: list[tuple[object, ...]] = []
        """What became of passes whose rows were written when they began."""
        self._run = 0
        self._module: int | None = None
        self._module_total = 0
        self._prefix: str | None = None
        self._pass_total = 0
        self._ordinal = 0
        self._instructions: int | None = None
        self._snapshot: int | None = None
        self._open: list[tuple[int, int, str, str]] = []
        self._pass: int | None = None
        self._closed = False
        self._committed = 0
        self._commit_gap = commit_gap_ns
        self._holds = False
        """Whether more than the run itself was committed."""
        self._refused = False
        try:
            self.begin_run(run or RunInfo())
        except BaseException:
            self._connection.close()
            remove_ledger(self._connection.path)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(complete=kind is None)

    # What the run is about

    def begin_run(self, run: RunInfo) -> int:
        """Start another run in the same file and return its number; the first one starts by itself."""
        if not self.enabled:
            return 0
        self._finish_run()
        self._run += 1
        row = (self._run, run.kind, run.tool_version, run.xla_build, run.target, run.flags, run.source)
        created = time.time_ns() // 1000
        self._statements.append(("INSERT INTO run_rows VALUES(?,?,?,?,?,?,?,?,0)", (*row, created)))
        self.flush()
        return self._run

    def _finish_run(self) -> None:
        if self._run:
            self._statements.append(("UPDATE run_rows SET complete=1 WHERE id=?", (self._run,)))

    def begin_module(
        self,
        name: str,
        *,
        xla_id: int | None = None,
        file_prefix: str | None = None,
        info: dict[str, object] | None = None,
    ) -> int:
        """Start a module and return its number; passes, events and snapshots that follow belong to it.

        ``file_prefix`` is what the names of its dump files share; stored names are shortened by it.
        """
        if not self.enabled:
            return 0
        self._module_total += 1
        self._module = self._module_total
        self._prefix = file_prefix
        self._ordinal = 0
        self._instructions = self._snapshot = self._pass = None
        self._open.clear()
        self._snapshots.next_module()
        row = (self._module, self._run, name, xla_id, file_prefix, None if info is None else _encode_json(info))
        self._statements.append(("INSERT INTO module_rows VALUES(?,?,?,?,?,?)", row))
        return self._module

    # Passes

    def begin_pass(
        self, name: str, *, pipeline: str = "", xla_pass_id: int | None = None, instructions: int | None = None
    ) -> int:
        """See Recorder. Commits what was recorded, and that this pass started, unless it did so in the last 100 ms."""
        if not self.enabled:
            return 0
        self._pass_total += 1
        row = self._pass_total
        before = self._instructions if instructions is None else instructions
        parent = self._open[-1][0] if self._open else None
        started = time.time_ns()
        number = self._texts.number
        self._pass_rows[row] = [
            row, self._module, None, xla_pass_id, parent, number(pipeline), number(name), None, None,
            started // 1000, None, None, self._snapshot, before, None, None, None,
        ]  # fmt: skip
        self._open.append((row, time.perf_counter_ns(), pipeline, name))
        self._pass = row
        if time.perf_counter_ns() - self._committed >= self._commit_gap:
            self.flush()
            self._open[-1] = (row, time.perf_counter_ns(), pipeline, name)
        return row

    def end_pass(
        self,
        row: int,
        *,
        changed: bool | None,
        instructions: int | None = None,
        snapshot: int | None = None,
        fuel_used: int | None = None,
        file: str | None = None,
        next_pass: str | None = None,
        ns: int | None = None,
        unannounced: str | None = None,
    ) -> None:
        """See Recorder. Rows are numbered for the timeline in the order in which they end, as dump files are."""
        ended = time.perf_counter_ns()
        if not self.enabled:
            return
        if not self._open or self._open[-1][0] != row:
            raise InternalError(f"pass row {row} is closed out of order")
        _, started, pipeline, name = self._open.pop()
        self._pass = self._open[-1][0] if self._open else None
        self._inherit(instructions, snapshot)
        spent = ended - started if ns is None else ns
        stored = None if file is None else self._stored_file(file, pipeline, name, next_pass)
        unannounced = None if unannounced is None else clean(unannounced)
        known = (
            self._ordinal, self._texts.number(next_pass), changed, spent, stored, self._snapshot, self._instructions,
            fuel_used, unannounced,
        )  # fmt: skip
        waiting = self._pass_rows.get(row)
        if waiting is None:
            self._pass_ends.append((*known, row))
        else:
            for at, value in zip(_ENDED_AT, known, strict=True):
                waiting[at] = value
        self._ordinal += 1

    def add_pass(self, record: PassRecord) -> int:
        """Write a complete row, as an importer has it, and return its number for ``emit(…, row=…)``."""
        if not self.enabled:
            return 0
        self._pass_total += 1
        before = self._instructions
        self._inherit(record.instructions, record.snapshot)
        number = self._texts.number
        self._pass_rows[self._pass_total] = [
            self._pass_total, self._module, self._ordinal, record.xla_pass_id, None,
            number(record.pipeline), number(record.name), number(record.next_pass),
            record.changed, record.start_us, record.ns,
            self._stored_file(record.file, record.pipeline, record.name, record.next_pass), self._snapshot,
            self._instructions if before is None else before, self._instructions, record.fuel_used,
            None if record.unannounced is None else clean(record.unannounced),
        ]  # fmt: skip
        self._ordinal += 1
        if len(self._pass_rows) >= _BATCH_PASSES:
            self.flush()
        return self._pass_total

    def _inherit(self, instructions: int | None, snapshot: int | None) -> None:
        if instructions is not None:
            self._instructions = instructions
        if snapshot is not None:
            self._snapshot = snapshot

    def _stored_file(self, file: str | None, pipeline: str, name: str, next_pass: str | None) -> str | None:
        if file is None:
            return None
        if self._prefix:
            if not file.startswith(self._prefix):
                raise InternalError(f"dump file {file} does not start with the prefix of its module")
            file = file[len(self._prefix) :]
        said = f"{pipeline}.after_{name}.before_{next_pass}.txt"
        return clean(file[: -len(said)] + FILE_MARK if next_pass is not None and file.endswith(said) else file)

    # Events and texts

    def emit(self, event: Event, *, row: int | None = None) -> None:
        """Record an event for a pass row, by default the innermost open one."""
        if not self.enabled:
            return
        plan = self._plans.get(type(event)) or self._plan(type(event))
        key = _outcome_of(event)
        outcome = plan.outcomes.get(key) or self._outcome(plan, key)
        if row is None:
            row = self._pass
        self._event_total = total = self._event_total + 1
        plan.flat += (total, outcome, row, None if row else self._module, *plan.columns(event))
        if total >= self._flush_at:
            self.flush()

    def emit_values(self, kind: type[Event], verdict: str | None, code: str | None, values: tuple[Value, ...]) -> None:
        """See Recorder."""
        if not self.enabled:
            return
        plan = self._plans.get(kind) or self._plan(kind)
        outcome = plan.short.get((verdict, code))
        if outcome is None:
            key = (verdict, code, "core", "recorded", None)
            outcome = plan.short[verdict, code] = plan.outcomes.get(key) or self._outcome(plan, key)
        row = self._pass
        self._event_total = total = self._event_total + 1
        flat = plan.flat
        flat += (total, outcome, row, None if row else self._module)
        flat += values
        if total >= self._flush_at:
            self.flush()

    def add_snapshot(self, text: str | bytes) -> int:
        """Store a module text and return its number."""
        if not self.enabled:
            return 0
        number = self._snapshots.add(text)
        if self._snapshots.pending_bytes > _BATCH_BYTES:
            self.flush()
        return number

    def add_snapshot_lines(self, lines: Iterable[str]) -> int:
        """Store a module text given as lines and return its number."""
        if not self.enabled:
            return 0
        number = self._snapshots.add_lines(lines)
        if self._snapshots.pending_bytes > _BATCH_BYTES:
            self.flush()
        return number

    def add_report(self, kind: str, file: str, text: bytes) -> None:
        """Keep a text report that the compiler wrote on the current module; `kind` is a ``FileKind`` value."""
        if not self.enabled:
            return
        if self._prefix and file.startswith(self._prefix):
            file = REPORT_MARK + file[len(self._prefix) :]
        block = self._report_blocks.get(kind)
        if block is None:
            self._report_block_total += 1
            block = self._report_blocks[kind] = (self._report_block_total, bytearray())
        number = self._texts.number
        row = (self._module, number(kind), number(file), len(text), block[0], len(block[1]))
        self._statements.append(("INSERT INTO report_rows(module,kind,file,size,block,start)VALUES(?,?,?,?,?,?)", row))
        block[1].extend(text)
        if len(block[1]) >= _REPORT_BLOCK_BYTES:
            self._seal_report(kind)

    def _seal_report(self, kind: str) -> None:
        number, text = self._report_blocks.pop(kind)
        row = (number, pack(bytes(text), TIGHT if self._tight else QUICK))
        self._statements.append(("INSERT INTO report_blocks VALUES(?,?)", row))

    # The file

    def flush(self) -> None:
        """Commit everything recorded so far. Raises LedgerError once when it cannot be written."""
        if self.enabled:
            self._write(final=False)

    def _write(self, *, final: bool) -> None:
        # Encoding makes many short-lived tuples; looking through the module for garbage meanwhile finds nothing.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._commit(final=final)
        finally:
            if collecting:
                gc.enable()

    def _commit(self, *, final: bool) -> None:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._snapshots.write(final=final)
            batches = [plan.batch(self._texts) for plan in self._plans.values() if plan.flat]
            self._write_strings()
            for kind in list(self._report_blocks):
                self._seal_report(kind)
            for statement, values in self._statements:
                connection.execute(statement, [clean(one) if isinstance(one, str) else one for one in values])
            connection.executemany(_INSERT_PASS, map(_without_none, self._pass_rows.values()))
            connection.executemany(_END_PASS, self._pass_ends)
            connection.executemany("INSERT INTO event_types VALUES(?,?,?,?,?)", self._new_types)
            connection.executemany(INSERT_BATCH, map(_without_none, batches))
            if final and self._tight:
                batches_to_rows(connection)
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self._give_up()
            self._refused = True
            raise ledger_error(self.path, error, "write the ledger", self._kept()) from error
        except BaseException:
            # Interrupted half way: the batch is lost as a whole, the file stays consistent.
            self._give_up()
            raise
        self._committed = time.perf_counter_ns()
        self._holds = bool(self._module_total or self._event_total)
        self._statements.clear()
        self._pass_rows.clear()
        self._pass_ends.clear()
        self._new_types.clear()
        self._flush_at = self._event_total + _BATCH_EVENTS

    def _write_strings(self) -> None:
        fresh = len(self._texts.names) - self._strings_written
        if not fresh:
            return
        named = cast("Iterable[str]", islice(reversed(self._texts.names), fresh))
        texts = list(map(clean, named))
        texts.reverse()
        # Their numbers are consecutive, as SQLite gives them.
        _insert_many(self._connection, "INSERT INTO strings(text)VALUES", 1, texts)
        self._strings_written += fresh

    def _kept(self) -> str:
        """What an error has left on disk, for its message."""
        if not self._holds:
            return ""
        if self._connection.replaces is None:
            return "what was committed before is kept"
        return f"the file is as it was, what was committed is in {self._connection.path}"

    def _give_up(self) -> None:
        self.enabled = False
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            pass

    def _outcome(self, plan: Plan, key: tuple[str | None, str | None, str, str, bool | None]) -> int:
        self._outcome_total += 1
        verdict, code, origin, method, agrees = key
        number = self._texts.number
        row = (plan.number, number(verdict), number(code), number(origin), number(method), agrees)
        self._statements.append(("INSERT INTO outcomes VALUES(?,?,?,?,?,?,?)", (self._outcome_total, *row)))
        plan.outcomes[key] = self._outcome_total
        return self._outcome_total

    def _plan(self, kind: type[Event]) -> Plan:
        spec = kind.spec
        plan = self._plans[kind] = Plan(len(self._plans) + 1, spec)
        stored = _encode_json([[one.name, one.unit] for one in spec.fields])
        self._new_types.append((plan.number, spec.name, spec.kind, spec.sentence, stored))
        return plan

    def close(self, *, complete: bool = True) -> None:
        """Commit, fold everything into one plain file, and close; closing twice is harmless. Raises LedgerError.

        A complete run takes the name of the file that it replaces, if it does; an incomplete one stays beside it.
        """
        if self._closed:
            return
        self._closed = True
        whole = False
        try:
            if self.enabled:
                if complete:
                    self._finish_run()
                self._write(final=True)
                whole = complete
        finally:
            self.enabled = False
            try:
                close_ledger(self._connection, compact=self._tight)
            except BaseException:
                whole = False
                raise
            finally:
                if not whole:
                    self._leave_partial()
        if whole:
            publish_ledger(self._connection)

    def _leave_partial(self) -> None:
        if not self._holds:
            if is_made_by(self._connection):
                remove_ledger(self._connection.path)
        elif self._connection.replaces is not None and not self._refused and sys.stderr is not None:
            print(f"hloscope: {self.path}: {self._kept()}", file=sys.stderr, flush=True)


_NULL = math.nan
"""What SQLite stores as a missing value. Python looks for an adapter of each None, which takes longer than the rest."""


def _without_none(values: Iterable[Any]) -> list[Any]:
    return [_NULL if one is None else one for one in values]


def _insert_many(connection: sqlite3.Connection, head: str, width: int, values: list[Any]) -> None:
    """Insert rows of so many values each, which stand one after another."""
    one = f"({','.join('?' * width)})"
    at = 0
    for rows in _AT_ONCE:
        step = rows * width
        statement = head + ",".join([one] * rows)
        while len(values) - at >= step:
            connection.execute(statement, values[at : at + step])
            at += step
