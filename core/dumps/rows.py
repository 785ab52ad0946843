"""The pass timeline of one module: a row for every snapshot and, where something tells them, for every other pass run.

Dumps under-report. With ``--xla_dump_hlo_pass_re=.*`` XLA writes only the passes that said that they changed something,
with a narrower pattern only the passes that match it. So whether a row changed the module is found by comparing
neighbouring snapshots, and a change that no pass announced gets the range of passes in which it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from hloscope.core.dumps.directory import Module, Stage
from hloscope.core.dumps.facts import broken, content_digest, count_instructions, same_program, told_by_both
from hloscope.core.dumps.filenames import Point
from hloscope.core.dumps.nesting import PIPELINE_START, running_pass
from hloscope.core.dumps.options import compile_facts, module_flags
from hloscope.core.dumps.passlog import PassRun, sanitized
from hloscope.core.errors import HloscopeError


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One row of the timeline; ``index`` is what ``--stage`` takes."""

    index: int
    pipeline: str
    pass_name: str
    next_pass: str | None
    changed: bool | None
    """Whether the module differs from the row before; None where neither compiler nor snapshots say. A snapshot that
    breaks off says nothing, and the row after it is compared with the last whole one."""
    announced: bool | None
    """Whether the dump names the pass that made the change; None for an unchanged row, and where a stage before it is
    lost that another pass announced a change by."""
    unannounced: str | None
    """``A … B``: the passes among which an unannounced change lies; None, too, where both hold the same program: it was
    scheduled, or the frontend's attributes of the header differ."""
    instructions_before: int
    instructions_after: int
    start_us: int | None
    ns: int | None
    file: str | None
    """Path of the row's own snapshot, relative to the dump."""
    stage: int | None
    """Index into ``Module.stages`` of the row's own snapshot; None for a row that has none."""
    snapshot_stage: int | None
    """Index of the snapshot that holds after this row; None where none precedes it."""
    pass_id: int | None = None
    """XLA's number of the run."""
    fault: str | None = None
    """What is wrong with the snapshot's text."""
    lost: tuple[int, ...] = ()
    """Numbers of the stages that are not there though they were dumped right before this one."""


@dataclass(frozen=True, slots=True)
class StageReading:
    """What reading one snapshot says."""

    stage: Stage
    digest: bytes
    """Of the part that passes change; equal digests mean no change. Empty where there is no text."""
    instructions: int
    fault: str | None
    """Why the text is not whole, None for a whole one."""
    text: bytes = field(default=b"", repr=False)


StageVisitor = Callable[[StageReading, bytes], None]


def read_stages(module: Module, visit: StageVisitor | None = None) -> Iterator[StageReading]:
    """Reads the snapshots of a module one after the other; ``visit`` gets each with its text.

    A snapshot that cannot be read or holds no HLO has an empty digest and says why in ``fault``.
    """
    previous: StageReading | None = None
    for stage, text in _texts(module.stages):
        reading = _reading(stage, text, previous)
        if reading.digest:
            previous = reading
            if visit is not None and isinstance(text, bytes):
                visit(reading, text)
        yield reading


def _reading(stage: Stage, text: bytes | HloscopeError, previous: StageReading | None) -> StageReading:
    if isinstance(text, HloscopeError):
        return StageReading(stage, b"", 0, text.message)
    fault = broken(text)
    if not text[:1024].lstrip().startswith(b"HloModule"):
        return StageReading(stage, b"", 0, fault)
    digest = content_digest(text)
    if previous is not None and previous.digest == digest:
        return StageReading(stage, digest, previous.instructions, fault, text)
    return StageReading(stage, digest, count_instructions(text), fault, text)


def _texts(stages: Sequence[Stage]) -> Iterator[tuple[Stage, bytes | HloscopeError]]:
    """Every stage with its text or the reason why there is none.

    Protos are turned into text several at a time, also where stages with a text stand between them: in a dump that was
    cut off every few stages have lost theirs, and each call of the reader costs a process.
    """
    ahead: dict[int, bytes | HloscopeError] = {}
    for at, stage in enumerate(stages):
        if stage.has_text:
            yield stage, _text(stage)
            continue
        if stage.index not in ahead:
            batch = _next_protos(stages, at)
            texts = stage.module.dump.read_each([one.file for one in batch])
            ahead.update(zip((one.index for one in batch), texts, strict=True))
        yield stage, ahead.pop(stage.index)


def _next_protos(stages: Sequence[Stage], at: int) -> list[Stage]:
    """The stages from `at` on that are protos alone, as many as one call of the reader takes."""
    found: list[Stage] = []
    size = 0
    for stage in islice(stages, at, None):
        if stage.has_text:
            continue
        size += stage.size
        if found and (len(found) == PROTO_BATCH or size > PROTO_BATCH_BYTES):
            break
        found.append(stage)
    return found


def _text(stage: Stage) -> bytes | HloscopeError:
    try:
        return stage.read_bytes()
    except HloscopeError as error:
        return error


PROTO_BATCH = 16
"""Protos that are turned into text by one call of the proto reader."""
PROTO_BATCH_BYTES = 64 << 20
"""Bytes of protos from which on a call takes no further one: their texts are all held at once."""


def timeline(
    module: Module,
    *,
    runs: Sequence[PassRun] = (),
    readings: Iterable[StageReading] | None = None,
) -> Iterator[TimelineRow]:
    """The rows of a module, one after the other, reading every snapshot once unless ``readings`` are given.

    ``runs`` are the compiler's own pass runs (``passlog.pass_runs``); runs without a snapshot become rows of their own.
    """
    every_change = every_change_dumped(module)
    stages = {stage.path.rsplit("/", 1)[-1]: stage for stage in module.stages}
    points = [(stage.pipeline, stage.pass_name, stage.next_pass) for stage in module.stages]
    last: StageReading | None = None
    unread = False  # whether the snapshot before was not readable: then its own file announced what is seen after it
    source = readings if readings is not None else read_stages(module)
    for index, (run, reading, told) in enumerate(_merged(source, runs, stages, module.lost)):
        if reading is None:
            assert run is not None
            yield _row_of_run(index, run, last, _reported(run, told, every_change, module))
            continue
        inside = running_pass(points, reading.stage.index) is not None
        yield _row(index, run, reading, last, every_change, unread, inside)
        unread = reading.fault is not None or not reading.digest
        if reading.digest and (reading.fault is None or last is None):
            last = reading


def every_change_dumped(module: Module) -> bool:
    """Whether every pass that reported a change was to be dumped: so the flags say, or, where they are not known, the
    files do. Only then is a change that no file is about one that no pass announced."""
    every_change = compile_facts(module).every_change_dumped
    return _starts_dumped(module.stages) if every_change is None else every_change


class _Told(Enum):
    """What the files tell of a run that has none here."""

    NOTHING_DUMPED = "it wrote none: where every change was dumped, it made none"
    DUMPED = "its own is lost"
    UNKNOWN = "one is lost, and it may be its"


def _reported(run: PassRun, told: _Told, every_change: bool, module: Module) -> bool | None:
    """Whether a run without a snapshot said that it changed the module."""
    if run.changed is not None:
        return run.changed
    if told is _Told.DUMPED:
        # With this very pattern nothing is written after a pass that changed nothing.
        return True if module_flags(module).get("xla_dump_hlo_pass_re") == ".*" else None
    return False if every_change and told is _Told.NOTHING_DUMPED else None


def _row_of_run(index: int, run: PassRun, last: StageReading | None, changed: bool | None) -> TimelineRow:
    count = last.instructions if last is not None else 0
    return TimelineRow(
        index, sanitized(run.pipeline), sanitized(run.name), None, changed, True if changed else None, None, count,
        count, run.start_us, run.ns, None, None, last.stage.index if last is not None else None, run.pass_id,
    )  # fmt: skip


def _row(
    index: int,
    run: PassRun | None,
    reading: StageReading,
    last: StageReading | None,
    every_change: bool,
    after_unread: bool,
    inside: bool,
) -> TimelineRow:
    """`inside` says that the stage shows what a pass did that announces it in a later file."""
    before = last.instructions if last is not None else reading.instructions
    start_us, ns, pass_id = (run.start_us, run.ns, run.pass_id) if run is not None else (None, None, None)
    stage = reading.stage
    unread = not reading.digest
    changed: bool | None
    if unread or reading.fault is not None or (last is not None and last.fault is not None):
        # What a pass did to the part that is missing only the compiler can say.
        changed = run.changed if run is not None and not unread else None
    else:
        changed = last is not None and _differ(last, reading)
    announced = None
    unannounced = None
    lost = stage.module.lost.get(stage.index, ())
    shared = bool(lost) and every_change and last is not None and not is_announced(last.stage, stage, False)
    if changed and last is not None and not shared:
        told = run is not None and run.changed is True
        announced = told or inside or is_announced(last.stage, stage, every_change)
        if not announced and not after_unread and reading.fault is None and not _same_program(last, reading):
            unannounced = " … ".join(change_range(last.stage, stage))
    return TimelineRow(
        index, stage.pipeline, stage.pass_name, stage.next_pass, changed, announced, unannounced, before,
        before if unread or (reading.fault and last) else reading.instructions, start_us, ns, stage.path, stage.index,
        stage.index if not unread else (last.stage.index if last is not None else None), pass_id, reading.fault, lost,
    )  # fmt: skip


def _differ(last: StageReading, reading: StageReading) -> bool:
    """Whether two whole snapshots differ; of a text and a proto only what both tell is compared."""
    if last.digest == reading.digest:
        return False
    return last.stage.has_text == reading.stage.has_text or told_by_both(last.text) != told_by_both(reading.text)


def _same_program(last: StageReading, reading: StageReading) -> bool:
    """Whether two snapshots whose texts differ hold the same program."""
    if not last.instructions == reading.instructions > 0:
        return False
    if last.stage.has_text == reading.stage.has_text:
        return same_program(last.text, reading.text)
    return same_program(told_by_both(last.text), told_by_both(reading.text))


def is_announced(last: Stage, stage: Stage, every_change: bool) -> bool:
    """Whether a dump names the pass that made the difference between two neighbouring snapshots.

    ``every_change`` says that every pass that reports a change was to be dumped, so that a file after a pass is that
    pass's report. Without it the pass is known only where the file before says that it comes next.
    """
    name = stage.name
    if name.point is Point.STEP and name.after != PIPELINE_START:
        return every_change or _follows(last, name.after or "")
    if name.point is Point.INSIDE:
        return every_change or _follows(last, name.pipeline or "")
    return False


def _follows(last: Stage, pass_name: str) -> bool:
    name = last.name
    return name.before == pass_name or (name.point is Point.INSIDE and name.pipeline == pass_name)


def change_range(last: Stage, stage: Stage) -> tuple[str, str]:
    """The first and the last pass in which an unannounced change between two neighbouring snapshots can lie."""
    before = last.name
    if before.point is Point.STEP:
        first = before.before or ""
        if first == "pipeline-end":
            first = f"{before.pipeline}/pipeline-end"
    else:
        first = last.pass_name
    after = stage.name
    if after.point is Point.STEP and after.after == PIPELINE_START:
        return first, f"{after.pipeline}/{PIPELINE_START}"
    return first, stage.pass_name


def _starts_dumped(stages: Sequence[Stage]) -> bool:
    """Whether every pipeline's first file is that of its start, as it is when every pass was to be dumped; not where
    no pass has a file, as without the flag."""
    seen: set[str] = set()
    for stage in stages:
        name = stage.name
        if name.point is not Point.STEP or name.pipeline in seen:
            continue
        seen.add(name.pipeline or "")
        if name.after != PIPELINE_START:
            return False
    return bool(seen)


def _merged(
    readings: Iterable[StageReading],
    runs: Sequence[PassRun],
    stages: dict[str, Stage],
    lost: Mapping[int, tuple[int, ...]],
) -> Iterator[tuple[PassRun | None, StageReading | None, _Told]]:
    """Snapshots and pass runs in one order: a run with a snapshot takes its place, others stand between."""
    owned: dict[int, int] = {}
    inside: dict[int, int] = {}
    for number, run in enumerate(runs):
        found = [stage.index for file in (*run.files, *run.steps) if (stage := _stage_of(file, stages)) is not None]
        inside.update(dict.fromkeys(found, number))
        after = [stage.index for file in run.files if (stage := _stage_of(file, stages)) is not None]
        if after:
            owned[number] = max(after)
    owner = {index: number for number, index in owned.items()}
    done = 0
    last_told = max(inside, default=-1)
    nothing = _Told.NOTHING_DUMPED
    for reading in readings:
        index = reading.stage.index
        if index > last_told and reading.stage.name.point is not Point.BEFORE:
            # Nothing ties the bookends at the end to a run: every pass ran before them.
            for run in runs[done:]:
                yield run, None, _Told.DUMPED if run.files else nothing
            done = len(runs)
        number = owner.get(index)
        until = number if number is not None else inside.get(index)
        if until is not None and until >= done:
            # A run is one row, which stands where its file does.
            between = [at for at in range(done, until) if at not in owned or owner[owned[at]] != at]
            gone = {at for at in between if runs[at].files and at not in owned}
            others = _Told.UNKNOWN if len(lost.get(index, ())) > len(gone) else nothing
            for at in between:
                yield runs[at], None, _Told.DUMPED if at in gone else others
            done = until if number is None else until + 1
        yield (runs[number] if number is not None else None), reading, nothing
    for run in runs[done:]:
        yield run, None, _Told.DUMPED if run.files else nothing


def _stage_of(file: str, stages: dict[str, Stage]) -> Stage | None:
    found = stages.get(file)
    if found is not None:
        return found
    stem, dot, _ = file.rpartition(".")
    return stages.get(f"{stem}.txt") if dot else None
