"""A ledger as the stages of a run."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from functools import cached_property
from threading import RLock

from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import LedgerError
from hloscope.core.ledger.events import DumpNote
from hloscope.core.ledger.queries import Cell, LedgerReader, SqlResult, StoredEvent
from hloscope.core.ledger.queries import ModuleRow as StoredModule
from hloscope.core.ledger.store import lacks_its_wal
from hloscope.core.views.choosing import choose
from hloscope.core.views.data import EventRow, ModuleRow, Source
from hloscope.core.views.stages import Cancelled, EventQuery, Progress, StageRow

UNFINISHED = "the run did not finish: the ledger holds what was committed until then"
"""What is said of a ledger whose writer was killed, or still writes."""


class LedgerSource:
    """One module of a ledger."""

    def __init__(self, path: str, module: str | None = None) -> None:
        self._reader = LedgerReader(path)
        # Readers ask from worker threads; a query's authorizer and its cancelling belong to the one connection.
        self._lock = RLock()
        try:
            self._open(path, module)
        except BaseException:
            self._reader.close()
            raise

    def _open(self, path: str, module: str | None) -> None:
        self.notes: list[str] = []
        self._modules = self._ordered(self._reader.modules())
        runs = {run.id: run for run in self._reader.runs()}
        if not self._modules:
            unfinished = any(not run.complete for run in runs.values())
            why = " yet: its run has just begun, or ended before the first was there" if unfinished else ""
            if lacks_its_wal(os.fspath(path)):
                why += f"; what was committed is in {os.path.basename(path)}-wal, which is not beside it"
            raise LedgerError("the ledger holds no module" + why, path=path)
        index, note = choose(self.modules(), module, path)
        if note is not None:
            self.notes.append(note)
        self._module = self._modules[index]
        run = runs.get(self._module.run)
        if run is not None and not run.complete:
            self.notes.append(UNFINISHED + self._running())
        self.source = Source(
            path=path,
            module=self._module.name,
            xla_build=run.xla_build if run is not None else None,
            target=run.target if run is not None else None,
            kind="ledger",
            by_core=run is not None and run.kind == "core",
        )

    def _running(self) -> str:
        """The pass of the module that had begun and not ended, in words; the innermost."""
        found = self._reader.sql(
            "SELECT pipeline,pass FROM passes WHERE module=? AND stage IS NULL ORDER BY id DESC LIMIT 1",
            parameters=(self._module.id,),
        ).rows
        return f"; the last pass that began is {'/'.join(str(part) for part in found[0] if part)}" if found else ""

    def _ordered(self, modules: list[StoredModule]) -> list[StoredModule]:
        """Largest first, as ``hloscope ls`` orders a dump."""
        largest: dict[int, int] = {
            int(row[0] or 0): int(row[1] or 0)
            for row in self._reader.sql(
                "SELECT p.module,max(s.size) FROM pass_rows p JOIN snapshot_rows s ON s.id=p.snapshot GROUP BY p.module"
            ).rows
        }
        self._largest = largest
        return sorted(modules, key=lambda module: (-largest.get(module.id, 0), module.id))

    def modules(self) -> Sequence[ModuleRow]:
        return [
            ModuleRow(index, one.name, one.name, self._largest.get(one.id, 0), one.passes)
            for index, one in enumerate(self._modules)
        ]

    def rows(self, cancelled: Cancelled | None, progress: Progress | None) -> Sequence[StageRow]:
        return self.outline()

    def outline(self) -> Sequence[StageRow]:
        return self._rows

    @cached_property
    def _rows(self) -> Sequence[StageRow]:
        entries = [entry for entry in self._reader.passes(self._module.id) if entry.stage is not None]
        first = next((entry.snapshot for entry in entries if entry.snapshot is not None), None)
        if first is None:
            message = f"module {self._module.name} has no module text in this ledger"
            raise LedgerError(message, path=self.source.path, hint="hloscope sql asks its events")
        faults = {
            stored.event.file: stored.event.message
            for stored in self._reader.events(module=self._module.id, type_name="dump_note")
            if isinstance(stored.event, DumpNote)
        }
        rows: list[StageRow] = []
        snapshot = first
        for entry in entries:
            own = entry.snapshot is not None and (not rows or entry.snapshot != snapshot)
            snapshot = entry.snapshot if entry.snapshot is not None else snapshot
            rows.append(
                StageRow(
                    pipeline=entry.pipeline,
                    pass_name=entry.pass_name,
                    snapshot=snapshot,
                    own_snapshot=own,
                    changed=entry.changed,
                    next_pass=entry.next_pass,
                    ns=entry.ns,
                    file=entry.file,
                    unannounced=entry.unannounced,
                    fuel_used=entry.fuel_used,
                    instructions=entry.instructions_after,
                    fault=faults.get(entry.file) if entry.file is not None else None,
                )
            )
        return rows

    def data(self, snapshot: int) -> bytes:
        try:
            with self._lock:
                return self._reader.snapshots.encoded(snapshot)
        except LedgerError as error:
            raise LedgerError(error.message, path=self.source.path) from error

    def events(self, query: EventQuery) -> list[EventRow]:
        found: list[EventRow] = []
        with self._lock:
            for stored in self._reader.events(
                module=self._module.id, stage=query.pass_index, type_name=query.type, subject=query.subject
            ):
                if query.verdict is not None and stored.event.verdict != query.verdict:
                    continue
                if query.limit is not None and len(found) >= query.limit:
                    break
                found.append(_event_row(stored))
        return found

    def report(self, kind: FileKind) -> str | None:
        with self._lock:
            return self._reader.report(self._module.id, kind.value)

    def proto(self, snapshot: int) -> bytes | None:
        return None

    def event_count(self) -> int:
        return self._event_count

    @cached_property
    def _event_count(self) -> int:
        joined = "every_event e LEFT JOIN pass_rows p ON p.id=e.pass"
        query = f"SELECT count(*) FROM {joined} WHERE coalesce(e.module,p.module)=?"
        return int(self._reader.sql(query, parameters=(self._module.id,)).rows[0][0] or 0)

    def sql(self, query: str, limit: int | None, cancelled: Cancelled | None) -> SqlResult:
        with self._lock:
            return self._reader.sql(query, limit=limit, cancelled=cancelled)

    def sql_rows(self, query: str) -> Generator[tuple[Cell, ...]]:
        return self._reader.sql_rows(query)

    def close(self) -> None:
        self._reader.close()


def _event_row(stored: StoredEvent) -> EventRow:
    event = stored.event
    return EventRow(
        id=stored.id,
        pass_index=stored.stage,
        type=event.type_name,
        subject=event.subject,
        verdict=event.verdict,
        code=event.code,
        fuel=event.fuel,
        numbers=dict(event.numbers),
        sentence=event.sentence(),
        origin=event.origin,
    )
