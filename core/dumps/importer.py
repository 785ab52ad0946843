"""Reads a dump into a ledger: modules, the pass timeline, snapshots, fusion decisions, and what could not be read.

The import commits as it goes. Stopped by Ctrl-C, a kill or a full disk, it leaves a ledger that opens, holds what was
committed, and is marked incomplete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hloscope.core.dumps.directory import Dump, Module, ProtoReader, open_dump
from hloscope.core.dumps.filenames import KEPT_REPORTS, FileKind
from hloscope.core.dumps.fusion_decisions import PASS_NAME, parse_fusion_dump
from hloscope.core.dumps.options import CompileFacts, compile_facts, input_digests
from hloscope.core.dumps.passlog import PassRun, pass_runs
from hloscope.core.dumps.rows import StageReading, TimelineRow, every_change_dumped, read_stages, timeline
from hloscope.core.errors import DumpError, HloscopeError
from hloscope.core.ledger.declare import Event
from hloscope.core.ledger.events import DumpNote, UnannouncedChange
from hloscope.core.ledger.record import LedgerWriter, PassRecord, RunInfo
from hloscope.core.version import version

COMMIT_SECONDS = 2.0
"""Longest time that what was read waits for its commit within a module, but for one snapshot."""
MODULE_SECONDS = 0.5
"""The same where a module ends. Reports that are committed together share what they have alike: a commit a module would
make the ledger of many small ones larger by half."""

Progress = Callable[[int, int], None]
"""Called with (snapshots done, snapshots in all)."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import read; the keys of ``hloscope import --json``."""

    files: int
    """Files of the dump."""
    modules: int
    stages: int
    """Snapshots stored."""
    events: int
    not_understood: tuple[str, ...]
    """Files outside the grammar of dump files, by path."""
    notes: tuple[str, ...] = ()
    """What could not be read, one sentence each."""


def import_dump(
    path: str | os.PathLike[str],
    ledger_path: str | os.PathLike[str],
    *,
    module: str | None = None,
    force: bool = False,
    kind: str = "dump",
    source: str | None = None,
    proto_reader: ProtoReader | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Reads a dump directory or archive into a new ledger.

    ``module`` picks modules as ``--module`` does; ``kind`` is ``dump`` or ``capture``; ``source`` is what the ledger
    says it was made from (by default the path). Raises ``DumpError`` for a path
    that holds no dump, ``UsageError`` where no module matches, ``LedgerError`` where the ledger exists (without
    ``force``) or cannot be written. ``KeyboardInterrupt`` passes through after the ledger was closed as incomplete.
    """
    with open_dump(path, proto_reader=proto_reader) as dump:
        modules = dump.matching(module)
        facts = compile_facts(modules[0])
        run = RunInfo(
            kind=kind,
            tool_version=version(),
            xla_build=facts.xla_build,
            target=facts.target,
            flags=flag_text(facts.flags),
            source=source if source is not None else dump.path,
        )
        writer = LedgerWriter(ledger_path, run, force=force)
        try:
            report = write_dump(dump, writer, modules=modules, progress=progress)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and writer.enabled:
                writer.emit(DumpNote(file=dump.path, message="the import was interrupted: the ledger is incomplete"))
            writer.close(complete=False)
            raise
        writer.close()
        return report


def write_dump(
    dump: Dump, writer: LedgerWriter, *, modules: list[Module] | None = None, progress: Progress | None = None
) -> ImportReport:
    """Writes the modules of an open dump (all by default) to a ledger that the caller opens and closes."""
    chosen = dump.modules if modules is None else modules
    job = _Import(dump, writer, sum(len(module.stages) for module in chosen), progress)
    runs = job.guarded_runs()
    for module in chosen:
        job.module(module, runs.get(module, ()))
    job.notes_of_dump()
    return ImportReport(
        files=dump.file_count,
        modules=len(chosen),
        stages=job.stages,
        events=job.events,
        not_understood=tuple(dump.not_understood),
        notes=tuple(job.notes),
    )


def flag_text(flags: Mapping[str, str]) -> str:
    """Flags as a command line: ``--xla_a=1 --xla_b=text``."""
    return " ".join(f"--{key}={value}" for key, value in flags.items())


class _Import:
    """One run of the importer: counts, and the text that was stored last."""

    def __init__(self, dump: Dump, writer: LedgerWriter, total: int, progress: Progress | None) -> None:
        self._dump = dump
        self._writer = writer
        self._total = total
        self._progress = progress
        self._text: bytes | None = None
        self._snapshot: int | None = None
        self.stages = 0
        self.events = 0
        self.notes: list[str] = []
        self._done = 0
        self._every_change = True
        self._compiled: dict[str, object] | None = None
        self._committed = time.monotonic()

    def guarded_runs(self) -> dict[Module, list[PassRun]]:
        """The compiler's own pass runs; a damaged file costs the times, not the import."""
        try:
            return pass_runs(self._dump)
        except HloscopeError as error:
            self._note(error.path or self._dump.path, f"pass times cannot be read: {error}")
            return {}

    def module(self, module: Module, runs: list[PassRun] | tuple[PassRun, ...]) -> None:
        """Writes one module: its timeline with the snapshots, then its decisions."""
        facts = compile_facts(module)
        self._text = self._snapshot = None
        self._writer.begin_module(
            module.name or module.label,
            xla_id=module.id,
            file_prefix=os.path.commonprefix([stage.path for stage in module.stages]) or None,
            info=self._info(module, facts),
        )
        if module.lost_note is not None:
            self.notes.append(f"{module.label}: {module.lost_note}")
        fusion_row: int | None = None
        last_row: TimelineRow | None = None
        self._every_change = every_change_dumped(module)
        for row in timeline(module, runs=runs, readings=read_stages(module, self._store)):
            number = self._row(module, row, last_row)
            if row.pass_name == PASS_NAME and fusion_row is None:
                fusion_row = number
            if row.stage is not None:
                last_row = row
                self._done += 1
                if self._progress is not None:
                    self._progress(self._done, self._total)
                self._commit_after(COMMIT_SECONDS)
        self._fusions(module, fusion_row)
        self._reports(module)
        self._commit_after(MODULE_SECONDS)

    def _info(self, module: Module, facts: CompileFacts) -> dict[str, object]:
        """What is told of a module beside its stages. Of the compile only what the first module of the run has not told
        alike: a program compiles hundreds of small modules with the same flags."""
        compiled: dict[str, object] = {
            "target": facts.target, "xla_build": facts.xla_build, "flags": dict(facts.flags)
        }  # fmt: skip
        if self._compiled is None:
            self._compiled = told = compiled
        else:
            told = {key: value for key, value in compiled.items() if value != self._compiled[key]}
        found = {"folder": module.folder or None, "timestamp_us": module.timestamp_us, **input_digests(module)}
        known = {key: value for key, value in found.items() if value is not None}
        return {**told, "files": len(module.files), "bytes": module.bytes, **known}

    def _commit_after(self, seconds: float) -> None:
        if time.monotonic() - self._committed >= seconds:
            self._writer.flush()
            self._committed = time.monotonic()

    def _store(self, reading: StageReading, text: bytes) -> None:
        """Stores a snapshot; a text equal to the one before is the same snapshot."""
        if text != self._text:
            self._snapshot = self._writer.add_snapshot(text)
            self._text = text
        self.stages += 1

    def _row(self, module: Module, row: TimelineRow, last: TimelineRow | None) -> int:
        own = row.stage is not None and row.snapshot_stage == row.stage
        number = self._writer.add_pass(
            PassRecord(
                name=row.pass_name,
                pipeline=row.pipeline,
                changed=row.changed,
                file=row.file,
                next_pass=row.next_pass,
                xla_pass_id=row.pass_id,
                start_us=row.start_us,
                ns=row.ns,
                snapshot=self._snapshot if own else None,
                instructions=row.instructions_after if own else None,
                unannounced=row.unannounced,
            )
        )
        if row.unannounced is not None and self._every_change:
            self._emit(
                UnannouncedChange(
                    after_pass=last.pass_name if last is not None else "",
                    before_pass=row.next_pass or row.pass_name,
                    stage_before=last.index if last is not None else None,
                    stage_after=row.index,
                    origin="inferred",
                ),
                number,
            )
        if row.fault is not None and row.file is not None and row.stage is not None:
            self._note(row.file, row.fault, number, module.stages[row.stage].size)
        return number

    def _fusions(self, module: Module, row: int | None) -> None:
        for file in module.files_of(FileKind.FUSION_DECISIONS):
            if not file.path.endswith(".txt"):
                continue
            try:
                text = self._dump.read_file(file).decode("utf-8", "replace")
                for event in parse_fusion_dump(text, path=file.path):
                    self._emit(event, row)
            except HloscopeError as error:
                self._note(file.path, f"fusion decisions cannot be read: {error}", row, file.size)

    def _reports(self, module: Module) -> None:
        """Keeps the reports that later questions read, each as it stands."""
        for kind in KEPT_REPORTS:
            # A GPU's dump tells its thunks twice: what they wait for stands in the sequence only.
            for file in sorted(module.text_files_of(kind), key=lambda one: "thunk_metadata" in one.path)[:1]:
                try:
                    self._writer.add_report(kind.value, file.path, self._dump.read_file(file))
                except DumpError as error:
                    self._note(file.path, f"cannot be read: {error}", None, file.size)

    def notes_of_dump(self) -> None:
        """Records the files that were not understood or could not be read."""
        for path in self._dump.not_understood:
            self._emit(DumpNote(file=path, message="outside the grammar of dump files: not read", origin="inferred"))
        for note in self._dump.notes:
            self._note(self._dump.path, note)

    def _note(self, file: str, message: str, row: int | None = None, size: int | None = None) -> None:
        self.notes.append(f"{file}: {message}")
        self._emit(DumpNote(file=file, message=message, size=size, origin="inferred"), row)

    def _emit(self, event: Event, row: int | None = None) -> None:
        self._writer.emit(event, row=row)
        self.events += 1
