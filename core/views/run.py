"""``load(PATH)`` opens whatever PATH is as a ``Run``: the pass timeline of one module, its stages and what changed.

    run = load("dump/", module="train_step")
    run.passes[12], run.diff(12), run.why("fusion.3")

Opening reads names only. A stage is read when a question needs its text; indexes and diffs are kept within a bound in
bytes, by content, so that stages that are equal share one. Long answers take ``cancelled`` and ``progress``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hloscope.core.dumps.lost import lost_note
from hloscope.core.errors import DumpError, HloscopeError, ParseError, UsageError
from hloscope.core.views.data import EventRow, ModuleRow, PassRow, Place, Source, StageDiff, Summary, WhyFacts
from hloscope.core.views.narrowed import (
    dumped_passes,
    lost_stages,
    running_passes,
    unread_before,
    unread_range,
    unseen_rows,
)
from hloscope.core.views.stages import (
    ByteBoundCache,
    Cancelled,
    CancelledError,
    EventQuery,
    Progress,
    StageRow,
    StageSource,
    check,
    count_instructions,
    text_digest,
)

if TYPE_CHECKING:
    from hloscope.core.analysis.real_compile import PassPair
    from hloscope.core.dumps.filenames import FileKind
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.layout.replay import Replay
    from hloscope.core.ledger.queries import Cell, SqlResult
    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.core.views.buffers import Buffers
    from hloscope.core.views.copies import CopiesAnswer
    from hloscope.core.views.fusion import FusionReport

__all__ = ["CancelledError", "Run", "Stage", "diff_runs", "label", "load"]

TEXT_BYTES = 96 << 20
"""Stage texts that a run keeps."""
INDEX_BYTES = 256 << 20
"""Indexes that a run keeps."""
DIFF_BYTES = 64 << 20
"""Diffs that a run keeps."""


@dataclass(frozen=True, slots=True)
class _Content:
    """What is remembered of a snapshot that was read once."""

    digest: bytes
    instructions: int


@dataclass(frozen=True, slots=True, repr=False)
class Stage:
    """One row's state of the module, read when asked."""

    run: Run
    index: int

    @property
    def row(self) -> PassRow:
        """The row of the timeline."""
        return self.run.passes[self.index]

    @property
    def text(self) -> str:
        """The HLO text."""
        return self.run.stage_text(self.index)

    @property
    def module_index(self) -> ModuleIndex:
        """The columnar index of the text."""
        return self.run.stage_index(self.index)

    def __repr__(self) -> str:
        row = self.run.outline[self.index]
        return f"<stage {self.index} of {self.run.source.module}: {label(row)}>"


class Run:
    """One module on its way through the compiler. Make one with ``load``; close it, or use it in a ``with`` block."""

    def __init__(self, source: StageSource) -> None:
        self._source = source
        self._rows: Sequence[StageRow] | None = None
        self._passes: list[PassRow] | None = None
        self._content: dict[int, _Content] = {}
        self._faults: dict[int, str | None] = {}
        self._known: dict[bytes, _Content] = {}
        self._lock = RLock()
        self._comparing = RLock()
        """Held while two stages are compared: whoever wants the same answer meanwhile finds it made."""
        self._data: ByteBoundCache[bytes] = ByteBoundCache(TEXT_BYTES)
        self._indexes: ByteBoundCache[ModuleIndex] = ByteBoundCache(INDEX_BYTES)
        self._diffs: ByteBoundCache[StageDiff] = ByteBoundCache(DIFF_BYTES)
        self._summary: Summary | None = None
        self._copies: CopiesAnswer | None = None
        self._buffers: Buffers | None = None
        self._replays: dict[int, Replay] = {}
        self._fusion: FusionReport | None = None
        self._why: dict[tuple[str, int | None], WhyFacts] = {}
        self._on_close: list[Callable[[], object]] = []

    # ---------------------------------------------------------------- what it is
    @property
    def source(self) -> Source:
        """What was opened."""
        return self._source.source

    @property
    def notes(self) -> list[str]:
        """What could not be read and what was chosen, one sentence each."""
        return self._source.notes

    @property
    def modules(self) -> Sequence[ModuleRow]:
        """The modules that the path holds; this run shows one of them."""
        return self._source.modules()

    def __len__(self) -> int:
        return len(self.outline)

    def __repr__(self) -> str:
        target = f" for {self.source.target}" if self.source.target else ""
        return f"<run {self.source.module or '?'}{target}: {len(self)} passes, {self.source.path}>"

    def _repr_html_(self) -> str:
        from hloscope.core.views.summary import timeline_html

        return timeline_html(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives back files; stages that were not read cannot be read afterwards."""
        self._source.close()
        while self._on_close:
            self._on_close.pop()()

    def on_close(self, action: Callable[[], object]) -> None:
        """Lets the run own something that must go when it is closed, such as a temporary file."""
        self._on_close.append(action)

    # ---------------------------------------------------------------- timeline
    @property
    def outline(self) -> Sequence[StageRow]:
        """The timeline as names tell it, without reading a stage: what can be shown at once."""
        if self._rows is None:
            self._rows = self._source.outline()
        return self._rows

    @property
    def passes(self) -> list[PassRow]:
        """The timeline with instruction counts and what changed; reads every stage once, the first time."""
        return self.timeline()

    def timeline(self, *, cancelled: Cancelled | None = None, progress: Progress | None = None) -> list[PassRow]:
        """The same as ``passes``, for callers that want to stop it or watch it. Raises CancelledError."""
        if self._passes is None:
            known = self._source.rows(cancelled, progress)
            rows: list[PassRow] = []
            before: int | None = None
            for index, row in enumerate(known):
                check(cancelled)
                after = row.instructions
                if after is None:
                    after = self._read(row.snapshot).instructions
                rows.append(_pass_row(index, row, after if before is None else before, after))
                before = after
            for at, name in self.running_passes.items():
                if rows[at].changed and rows[at].unannounced is None:
                    rows[at] = replace(rows[at], inside=name)
            for at in () if self.source.by_core else unseen_rows(known):
                rows[at] = replace(rows[at], seen=False)
            self._rows, self._passes = known, rows
            for at in {row.index + 1 for row in rows if row.fault is not None}:
                self._mark_unread(at)
            for at in self.lost:
                if rows[at].changed and rows[at].unannounced is None:
                    rows[at] = replace(rows[at], unread=unread_range(self, at, None), inside=None)
        return self._passes

    @cached_property
    def lost(self) -> dict[int, tuple[int, ...]]:
        """Row → the numbers of the stages that were dumped right before its own and are not there any more."""
        return lost_stages(self.outline)

    @cached_property
    def running_passes(self) -> dict[int, str]:
        """The starts of pipelines that a pass runs: row → that pass."""
        return running_passes(self.outline)

    @property
    def lost_note(self) -> str | None:
        """What is said of numbered stages that were dumped and are not there any more; None where none is missing."""
        numbers = [number for found in self.lost.values() for number in found]
        return lost_note(numbers) if numbers else None

    @property
    def known_timeline(self) -> list[PassRow] | None:
        """The timeline where it was asked for already."""
        return self._passes

    def _mark_unread(self, index: int) -> None:
        """Tells the first readable stage from `index` on that what it shows may be the work of the passes before."""
        assert self._passes is not None
        while index < len(self._passes) and (self.fault(index) is not None or not self.outline[index].own_snapshot):
            index += 1
        if index < len(self._passes) and self._passes[index].changed:
            among = unread_range(self, index, dumped_passes(self))
            self._passes[index] = replace(self._passes[index], unread=among)

    def resolve(self, index: int) -> int:
        """A stage number as the user means it (negative counts from the end). Raises UsageError past the ends."""
        count = len(self.outline)
        if not -count <= index < count:
            raise UsageError(f"there is no stage {index}: they are numbered 0 to {count - 1}", path=self.source.path)
        return index % count

    def stage(self, index: int) -> Stage:
        """One stage as an object."""
        return Stage(self, self.resolve(index))

    # ---------------------------------------------------------------- stages
    def fault(self, index: int) -> str | None:
        """Why the text of a stage is not readable as a whole; None where it is. Reads that stage at most."""
        row = self.outline[index]
        if row.fault is not None or self._passes is not None or self.source.kind != "dump" or not row.own_snapshot:
            return row.fault
        if row.snapshot not in self._faults:
            from hloscope.core.dumps.facts import broken

            try:
                self._faults[row.snapshot] = broken(self._bytes(row.snapshot))
            except HloscopeError as error:
                self._faults[row.snapshot] = error.message
        return self._faults[row.snapshot]

    def whole_before(self, index: int) -> int:
        """The stage that a row is compared with: that before it, unless its text is not readable; then the last one
        that is. 0 where there is none."""
        unread = unread_before(self, index)
        return max(0, (unread[0] if unread else index) - 1)

    def stage_bytes(self, index: int) -> bytes:
        """The text after a row, as UTF-8."""
        return self._bytes(self.outline[self.resolve(index)].snapshot)

    def stage_text(self, index: int) -> str:
        """The text after a row. Bytes that are not UTF-8 become replacement characters."""
        return self.stage_bytes(index).decode("utf-8", "replace")

    def stage_path(self, index: int) -> str:
        """Where the text after a row stands, for errors that name a line of it: the file of the dump, by its name in
        what was opened."""
        at = self.resolve(index)
        while at and not self.outline[at].own_snapshot:
            at -= 1
        file = self.outline[at].file
        return self.source.path if file is None else f"{self.source.path}/{file}"

    def stage_module(self, index: int) -> HloModule:
        """The module after a row, made anew. Raises DumpError for a row that has a fault and ParseError for another
        text that is not right, both with the file and, as far as there is one, the place in it."""
        from hloscope.core.text import load_module

        fault, data, path = self.fault(self.resolve(index)), self.stage_bytes(index), self.stage_path(index)
        if fault is None:
            return load_module(data.decode("utf-8", "replace"), path=path)
        from hloscope.core.dumps.facts import broken

        told = DumpError(fault, path=path)
        if data.startswith(b"HloModule") and broken(data) is not None:  # else it is the text of a stage before
            try:
                load_module(data.decode("utf-8", "replace"), path=path)
                told.line = data.rstrip().count(b"\n") + 1
            except ParseError as error:
                told = DumpError(error.message, path=path, line=error.line, column=error.column)
        raise told

    def stage_digest(self, index: int) -> bytes:
        """Identity of the text: equal for stages with equal text."""
        return self._read(self.outline[self.resolve(index)].snapshot).digest

    def stage_index(self, index: int) -> ModuleIndex:
        """The columnar index of the text after a row."""
        from hloscope.core.text.module_index import ModuleIndex

        snapshot = self.outline[self.resolve(index)].snapshot
        digest = self._read(snapshot).digest
        found = self._indexes.get(digest)
        if found is None:
            data = self._bytes(snapshot)
            found = ModuleIndex.from_text(data.decode("utf-8", "replace"))
            self._indexes.put(digest, found, len(data) + found.nbytes)
        return found

    def _bytes(self, snapshot: int) -> bytes:
        # Readers ask from worker threads; one file or database handle serves them all.
        with self._lock:
            data = self._data.get(snapshot)
            if data is None:
                data = self._source.data(snapshot)
                self._data.put(snapshot, data, len(data))
            return data

    def _read(self, snapshot: int) -> _Content:
        found = self._content.get(snapshot)
        if found is None:
            data = self._bytes(snapshot)
            digest = text_digest(data)
            twin = self._known.get(digest)
            if twin is None:
                twin = self._known[digest] = _Content(digest, count_instructions(data))
            found = self._content[snapshot] = twin
        return found

    def stage_proto(self, index: int) -> bytes | None:
        """The serialized HloProto of a stage, which keeps ids and constants that text loses; None where not dumped."""
        return self._source.proto(self.outline[self.resolve(index)].snapshot)

    def report(self, kind: FileKind) -> str | None:
        """A text report that the compiler wrote on the module (buffers, fusion decisions, …); None without one."""
        return self._source.report(kind)

    # ---------------------------------------------------------------- differences
    def diff(self, index: int, to: int | None = None, *, cancelled: Cancelled | None = None) -> StageDiff:
        """What row `index` changed; with `to`, what changed from stage `index` to stage `to`.

        Where the stage before is not readable, what a row changed is told from the last one that is. The first row has
        nothing before it: its diff is empty.
        """
        last = self.resolve(index if to is None else to)
        first = self.whole_before(last) if to is None else self.resolve(index)
        key = (self.stage_digest(first), self.stage_digest(last), first, last)
        found = self._diffs.get(key)
        if found is None:
            with self._comparing:
                check(cancelled)
                found = self._diffs.get(key) or self._diff(first, last)
            changes = (*found.added, *found.removed, *found.modified, *found.renamed)
            weight = 400 + sum(300 + len(one.before or "") + len(one.after or "") for one in changes)
            self._diffs.put(key, found, weight)
        return found

    def _diff(self, first: int, last: int) -> StageDiff:
        if self.stage_digest(first) == self.stage_digest(last):
            return StageDiff(first, last, (), (), (), ())
        from hloscope.core.views.diff import diff_indexes

        return diff_indexes(self.stage_index(first), self.stage_index(last), from_index=first, to_index=last)

    # ---------------------------------------------------------------- finding
    def definition(self, index: int, name: str) -> Place | None:
        """Where an instruction of exactly that name is defined in a stage; found without an index."""
        return find_definition(self.stage_bytes(index), name, self.resolve(index))

    def find(self, name: str, *, cancelled: Cancelled | None = None, progress: Progress | None = None) -> list[Place]:
        """Where an instruction of exactly that name is defined, over all stages: one place for each range of rows in
        which its line stays the same."""
        from hloscope.core.views.why import same_line

        places: list[Place] = []
        previous: Place | None = None
        last_digest: bytes | None = None
        for index in range(len(self)):
            check(cancelled)
            if self.fault(index) is not None:
                continue
            digest = self.stage_digest(index)
            found = previous if digest == last_digest else self.definition(index, name)
            if found is not None and previous is not None and same_line(previous.text, found.text):
                places[-1] = _until(places[-1], index)
            elif found is not None:
                places.append(_until(found, index))
            previous, last_digest = found, digest
            if progress is not None:
                progress(index + 1, len(self))
        return places

    def search(
        self, pattern: str, index: int, *, limit: int | None = None, cancelled: Cancelled | None = None
    ) -> Iterator[Place]:
        """Instructions of one stage whose line matches a regular expression. Raises UsageError for a bad one."""
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise UsageError(f"{pattern!r} is not a regular expression: {error}") from None
        stage = self.resolve(index)
        offset = count = 0
        for number, line in enumerate(self.stage_text(stage).split("\n")):
            start = _DEFINED.match(line)
            if start is not None and compiled.search(line):
                yield Place(stage, start["name"], number, offset + start.start("what"), line.strip())
                count += 1
                if limit is not None and count >= limit:
                    return
            offset += len(line) + 1
            if number % 4096 == 0:
                check(cancelled)

    def why(
        self,
        name: str,
        *,
        stage: int | None = None,
        cancelled: Cancelled | None = None,
        progress: Progress | None = None,
    ) -> WhyFacts:
        """All that is known of an instruction, as of the last stage that holds it (or of `stage`).

        Raises UsageError where no stage holds it.
        """
        from hloscope.core.views.why import why

        key = (name.removeprefix("%"), stage)
        found = self._why.get(key)
        if found is None:
            found = self._why[key] = why(self, key[0], stage=stage, cancelled=cancelled, progress=progress)
        return found

    # ---------------------------------------------------------------- events and SQL
    def events(
        self,
        *,
        pass_index: int | None = None,
        type: str | None = None,
        subject: str | None = None,
        verdict: str | None = None,
        limit: int | None = None,
    ) -> list[EventRow]:
        """What was recorded, in order, narrowed by what is given."""
        return self._source.events(EventQuery(pass_index, type, subject, verdict, limit))

    @property
    def event_count(self) -> int:
        """How many events the run has."""
        return self._source.event_count()

    def sql(self, query: str, *, limit: int | None = None, cancelled: Cancelled | None = None) -> SqlResult:
        """The answer to a read-only query over the ledger's views. Raises LedgerError for bad SQL, UnsupportedError
        where the run is no ledger."""
        if not query.strip():
            raise UsageError("the query is empty")
        return self._source.sql(query, limit, cancelled)

    def sql_rows(self, query: str) -> Generator[tuple[Cell, ...]]:
        """The column names and then the rows of a query, one by one as they are found. Raises as ``sql`` does."""
        if not query.strip():
            raise UsageError("the query is empty")
        return self._source.sql_rows(query)

    @property
    def fusion(self) -> FusionReport:
        """Every fusion decision; kept. Raises DumpError or UnsupportedError where there is none to tell."""
        if self._fusion is None:
            from hloscope.core.views.fusion import fusion_report

            self._fusion = fusion_report(self)
        return self._fusion

    def layout_replay(self, pair: PassPair) -> Replay:
        """Our layout assignment, run on the stage before the real one; kept. Raises as `core.layout.replay.replay`."""
        found = self._replays.get(pair.after.index)
        if found is None:
            from hloscope.core.layout.replay import replay
            from hloscope.core.views.real_compile import RunCompile

            found = self._replays[pair.after.index] = replay(RunCompile(self), pair, remember=True)
        return found

    @property
    def copies(self) -> CopiesAnswer:
        """The layout copies with their causes and remedies, as ``hloscope copies`` shows them; worked out once."""
        if self._copies is None:
            from hloscope.core.views.copies import copies

            self._copies = copies(self)
        return self._copies

    @property
    def buffers(self) -> Buffers:
        """The buffer map with its questions, as ``hloscope buffers`` shows them; parts are worked out once."""
        if self._buffers is None:
            from hloscope.core.views.buffers import Buffers

            self._buffers = Buffers(self)
        return self._buffers

    @property
    def worked_out(self) -> frozenset[str]:
        """Those of ``fusion``, ``copies`` and ``buffers`` that were asked for already: asking again takes no time."""
        known = {
            "fusion": self._fusion is not None,
            "copies": self._copies is not None,
            "buffers": self._buffers is not None and self._buffers.known,
        }
        return frozenset(name for name, done in known.items() if done)

    def summary(self, *, cancelled: Cancelled | None = None, progress: Progress | None = None) -> Summary:
        """The dashboard's first screen as data."""
        if self._summary is None:
            from hloscope.core.views.summary import summarize

            self._summary = summarize(self, cancelled=cancelled, progress=progress)
        return self._summary


_BEFORE_NAME = re.compile(rb"[ \t]*(?:ROOT[ \t]+)?%?")
_AFTER_NAME = re.compile(rb"[ \t]*=")
_INDENTATION = 256
"""Bytes before a definition's name that are looked at."""
_DEFINED = re.compile(r"\s+(?P<what>(?:ROOT\s+)?%?(?P<name>[^\s=%]+)\s*=\s)")


def _pass_row(index: int, row: StageRow, before: int, after: int) -> PassRow:
    return PassRow(
        index=index,
        pipeline=row.pipeline,
        pass_name=row.pass_name,
        changed=row.changed,
        instructions_before=before,
        instructions_after=after,
        ns=row.ns,
        file=row.file,
        unannounced=row.unannounced,
        next_pass=row.next_pass,
        fuel_used=row.fuel_used,
        fault=row.fault,
    )


def label(row: StageRow | PassRow) -> str:
    """``pipeline/pass``, or the pass alone where there is no pipeline."""
    return f"{row.pipeline}/{row.pass_name}" if row.pipeline else row.pass_name


def find_definition(data: bytes, name: str, stage: int) -> Place | None:
    """The line that defines an instruction, found by its name in the bytes of a stage's text."""
    wanted = name.encode("utf-8", "replace")
    if not wanted:
        return None
    at = data.find(wanted)
    while at >= 0:
        # A definition's name is near its line's start: a constant of megabytes on one line is not walked back over.
        near = max(0, at - _INDENTATION)
        begin = data.rfind(b"\n", near, at) + 1 or near
        before = data[begin:at]
        if _BEFORE_NAME.fullmatch(before) and _AFTER_NAME.match(data, at + len(wanted)):
            start = begin + len(before) - len(before.lstrip())
            return _place(data, start, name, stage)
        at = data.find(wanted, at + 1)
    return None


def _place(data: bytes, start: int, name: str, stage: int) -> Place:
    end = data.find(b"\n", start)
    text = data[start : end if end >= 0 else len(data)].decode("utf-8", "replace").rstrip()
    line = data.count(b"\n", 0, start)
    offset = start if data.isascii() else len(data[:start].decode("utf-8", "replace"))
    return Place(stage, name, line, offset, text)


def _until(place: Place, last: int) -> Place:
    return Place(place.stage, place.name, place.line, place.start, place.text, last)


def diff_runs(before: Run, from_stage: int, after: Run, to_stage: int) -> StageDiff:
    """What differs between a stage of one run and a stage of another."""
    first, last = before.resolve(from_stage), after.resolve(to_stage)
    if before.stage_digest(first) == after.stage_digest(last):
        return StageDiff(first, last, (), (), (), ())
    from hloscope.core.views.diff import diff_indexes

    return diff_indexes(before.stage_index(first), after.stage_index(last), from_index=first, to_index=last)


def load(path: str, module: str | int | None = None) -> Run:
    """Opens a dump directory, an archive of one, a ledger, an HLO text file or an HLO proto; ``-`` is standard input.

    `module` picks one of several by its number in ``hloscope ls`` or by a regular expression; without it the largest is
    taken and ``Run.notes`` says so. Raises a HloscopeError of one line for anything that cannot be opened.
    """
    from hloscope.core.views.opening import open_stages

    return Run(open_stages(str(path), None if module is None else str(module)))
