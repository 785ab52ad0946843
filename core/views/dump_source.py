"""A dump directory, or an archive of one, as the stages of a run."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from itertools import count
from tempfile import TemporaryDirectory
from threading import RLock

from hloscope.core.dumps.directory import Dump, Module, open_dump
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.dumps.fusion_decisions import PASS_NAME as FUSION_PASS
from hloscope.core.dumps.fusion_decisions import parse_fusion_dump
from hloscope.core.dumps.importer import write_dump
from hloscope.core.dumps.options import compile_facts
from hloscope.core.dumps.passlog import PassRun, pass_runs
from hloscope.core.dumps.rows import StageReading, TimelineRow, every_change_dumped, timeline
from hloscope.core.errors import DumpError, HloscopeError
from hloscope.core.ledger.declare import Event
from hloscope.core.ledger.events import DumpNote, UnannouncedChange
from hloscope.core.ledger.queries import Cell, LedgerReader, SqlResult
from hloscope.core.ledger.record import LedgerWriter, RunInfo
from hloscope.core.version import version
from hloscope.core.views.choosing import choose
from hloscope.core.views.data import EventRow, ModuleRow, Source
from hloscope.core.views.stages import Cancelled, EventQuery, Progress, StageRow, check
from hloscope.core.xla.protos import proto_reader

_SHOWN_FILES = 3


class DumpSource:
    """One module of a dump."""

    def __init__(self, path: str, module: str | None = None) -> None:
        self._dump = open_with_protos(path)
        try:
            self._open(path, module)
        except BaseException:
            self._dump.close()
            raise

    def _open(self, path: str, module: str | None) -> None:
        self.notes: list[str] = list(self._dump.notes)
        index, note = choose(self.modules(), module, path)
        self._module: Module = self._dump.modules[index]
        if note is not None:
            self.notes.append(note)
        if not self._module.stages:
            raise DumpError(
                f"{self._module.label} has no HLO stage in the dump, only {_files(self._module)}", path=path
            )
        if self._dump.not_understood:
            shown = ", ".join(self._dump.not_understood[:_SHOWN_FILES])
            rest = len(self._dump.not_understood) - _SHOWN_FILES
            self.notes.append(f"not understood: {shown}" + (f" and {rest} more" if rest > 0 else ""))
        facts = compile_facts(self._module)
        self.source = Source(path, self._module.name, facts.xla_build, facts.target, "dump")
        self._timeline: list[TimelineRow] | None = None
        self._reading = RLock()
        """Held while one row is read, by whoever reads on."""
        self._unread: Iterator[TimelineRow] | None = None
        """The rest of a timeline of which some rows were read; None before the first."""
        self._read: list[TimelineRow] = []
        self._scratch: TemporaryDirectory[str] | None = None

    def modules(self) -> Sequence[ModuleRow]:
        return [
            ModuleRow(module.index, module.name, module.label, module.largest_stage_bytes)
            for module in self._dump.modules
        ]

    @cached_property
    def _runs(self) -> Sequence[PassRun]:
        try:
            return pass_runs(self._dump).get(self._module, ())
        except HloscopeError as error:
            self.notes.append(f"pass times cannot be read: {error}")
            return ()

    def outline(self) -> Sequence[StageRow]:
        if self._timeline is not None:
            return self.rows(None, None)
        # Stand-ins with distinct digests: the order of rows depends on names alone.
        readings = [StageReading(stage, b"%d" % stage.index, 0, None) for stage in self._module.stages]
        found = timeline(self._module, runs=self._runs, readings=readings)
        return [_stage_row(row, known=False) for row in found]

    def rows(self, cancelled: Cancelled | None, progress: Progress | None) -> Sequence[StageRow]:
        # Several may ask at once, and one may be cancelled: each reads on where the others are.
        total = len(self.outline()) if self._timeline is None else 0
        while self._timeline is None:
            check(cancelled)
            done = self._read_on()
            if progress is not None:
                progress(done, total)
        return [_stage_row(row, known=True) for row in self._timeline]

    def _read_on(self) -> int:
        """One more row, or the end of them; how many there are now."""
        with self._reading:
            if self._timeline is not None:
                return len(self._timeline)
            if self._unread is None:
                self._unread = timeline(self._module, runs=self._runs)
            try:
                row = next(self._unread, None)
            except BaseException:
                self._unread, self._read = None, []
                raise
            if row is not None:
                self._read.append(row)
            else:
                self._timeline = self._read
                self.notes.extend(
                    f"{row.file}: {row.fault}" for row in self._read if row.fault is not None and row.file is not None
                )
            return len(self._read)

    def data(self, snapshot: int) -> bytes:
        stage = self._module.stages[snapshot]
        try:
            return stage.read_bytes()
        except HloscopeError as error:
            if error.path == stage.path:
                error.path = f"{self._dump.path}/{stage.path}"
            raise

    def events(self, query: EventQuery) -> list[EventRow]:
        fusion_alone = query.type == "fusion_decision"  # no stage is read for those
        found = [
            row
            for row in (self._fusion_events if fusion_alone else self._events)
            if (query.pass_index is None or row.pass_index == query.pass_index)
            and (query.type is None or row.type == query.type)
            and (query.subject is None or row.subject == query.subject)
            and (query.verdict is None or row.verdict == query.verdict)
        ]
        return found[: query.limit]

    def report(self, kind: FileKind) -> str | None:
        # A GPU's dump tells its thunks twice: what they wait for stands in the sequence only.
        for file in sorted(self._module.text_files_of(kind), key=lambda one: "thunk_metadata" in one.path):
            return self._dump.read_file(file).decode("utf-8", "replace")
        return None

    def proto(self, snapshot: int) -> bytes | None:
        return self._module.stages[snapshot].proto()

    def event_count(self) -> int:
        return len(self._events)

    @cached_property
    def _events(self) -> list[EventRow]:
        """What the snapshots themselves say; an import reads the dump's reports too."""
        self.rows(None, None)
        numbers = count(len(self._fusion_events) + 1)
        found: list[EventRow] = []
        # Where passes were not dumped what lies between two files is their work, not a change that nobody announced.
        every_change = every_change_dumped(self._module)
        for row in self._timeline or ():
            if row.unannounced is not None and every_change:
                after, _, before = row.unannounced.partition(" … ")
                event: Event = UnannouncedChange(
                    after_pass=after, before_pass=before, stage_after=row.index, origin="inferred"
                )
                found.append(_event_row(next(numbers), row.index, event))
            if row.fault is not None:
                event = DumpNote(file=row.file or row.pass_name, message=row.fault, origin="inferred")
                found.append(_event_row(next(numbers), row.index, event))
        # The order of rows; within one, what was decided comes last.
        return sorted([*found, *self._fusion_events], key=lambda one: one.pass_index or 0)

    @cached_property
    def _fusion_events(self) -> list[EventRow]:
        """The decisions of the first fusion pass, numbered before all else."""
        at = next((index for index, row in enumerate(self.outline()) if row.pass_name == FUSION_PASS), None)
        if at is None:
            return []
        return [_event_row(number, at, event) for number, event in enumerate(self._fusion_decisions(), 1)]

    def _fusion_decisions(self) -> Iterator[Event]:
        for file in self._module.files_of(FileKind.FUSION_DECISIONS):
            if not file.path.endswith(".txt"):
                continue
            try:
                text = self._dump.read_file(file).decode("utf-8", "replace")
                yield from parse_fusion_dump(text, path=file.path)
            except HloscopeError as error:
                self.notes.append(f"{file.path}: fusion decisions cannot be read: {error.message}")

    def sql(self, query: str, limit: int | None, cancelled: Cancelled | None) -> SqlResult:
        check(cancelled)
        try:
            return self._ledger.sql(query, limit=limit, cancelled=cancelled)
        except HloscopeError as error:
            error.path = self.source.path  # the user does not know of the ledger
            raise

    def sql_rows(self, query: str) -> Generator[tuple[Cell, ...]]:
        return self._ledger.sql_rows(query)

    @cached_property
    def _ledger(self) -> LedgerReader:
        """A ledger of this module, made for the queries and gone with the run."""
        self._scratch = TemporaryDirectory(prefix="hloscope-sql-")
        path = os.path.join(self._scratch.name, "run.ledger")
        with LedgerWriter(path, RunInfo("dump", version(), self.source.xla_build, self.source.target)) as writer:
            write_dump(self._dump, writer, modules=[self._module])
        return LedgerReader(path)

    def close(self) -> None:
        self._dump.close()
        if self._scratch is not None:
            self._ledger.close()
            self._scratch.cleanup()
            self._scratch = None


def open_with_protos(path: str) -> Dump:
    """The dump at a path, able to read stages that were dumped as protos alone (by a child process)."""
    return open_dump(path, proto_reader=proto_reader)


def _stage_row(row: TimelineRow, *, known: bool) -> StageRow:
    return StageRow(
        pipeline=row.pipeline,
        pass_name=row.pass_name,
        snapshot=row.snapshot_stage or 0,
        own_snapshot=row.stage is not None,
        changed=row.changed if known else None,
        next_pass=row.next_pass,
        ns=row.ns,
        file=row.file,
        unannounced=row.unannounced if known else None,
        instructions=row.instructions_after if known else None,
        fault=row.fault,
    )


def _event_row(number: int, stage: int, event: Event) -> EventRow:
    return EventRow(
        id=number,
        pass_index=stage,
        type=event.type_name,
        subject=event.subject,
        verdict=event.verdict,
        code=event.code,
        fuel=event.fuel,
        numbers=dict(event.numbers),
        sentence=event.sentence(),
        origin=event.origin,
    )


def _files(module: Module) -> str:
    kinds = sorted({file.kind.description for file in module.files})
    return ", ".join(kinds[:4]) + (f" and {len(kinds) - 4} other kinds" if len(kinds) > 4 else "")
