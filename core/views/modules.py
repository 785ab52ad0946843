"""The modules behind a PATH, told apart: what ``hloscope ls`` shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from hloscope.core.views.inputs import InputKind, classify
from hloscope.core.views.stages import Progress

if TYPE_CHECKING:
    from hloscope.core.dumps.facts import TextFacts
    from hloscope.core.dumps.listing import Compiled
    from hloscope.core.ledger.queries import LedgerReader


@dataclass(frozen=True, slots=True)
class ModuleListing:
    """One module; the fields are the columns of ``hloscope ls``."""

    index: int
    """What ``--module`` takes."""
    name: str
    instructions: int | None
    """Instructions of the first stage; None where no stage can be read as text."""
    stages: int
    """Snapshots, as the dump has them: one is counted again where a later one has the same text."""
    files: int | None
    """Files of the dump that belong to it; None where there was no dump."""
    bytes: int
    """Bytes of those files; where there was no dump, of the largest stage's text."""
    same_as: int | None = None
    """Index of the first module with the same program."""
    differs_by: str | None = None
    """What differs from the compile of the same name before."""
    differs_from: int | None = None
    """Index of that compile."""
    id: int | None = None
    """XLA's module id."""
    folder: str = ""
    target: str | None = None
    note: str | None = None
    """What is wrong with the stage that was read."""
    order: int = 0
    """Position among the modules as they were compiled, from 0; processes one after the other."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The modules of a path."""

    kind: Literal["dump", "ledger", "hlo"]
    rows: tuple[ModuleListing, ...]
    notes: list[str]
    target: str | None = None
    """The target of all of them, None where they differ or do not say."""
    xla_build: str | None = None
    """The compiler build that made all of them (``jaxlib 0.10.2``); None as for the target."""


def list_path(path: str, *, progress: Progress | None = None) -> Listing:
    """The modules of a dump, an archive, a ledger or a single file, largest first.

    Reads one stage a module. Raises a HloscopeError of one line for what cannot be opened.
    """
    given = classify(path)
    if given.kind in (InputKind.DIRECTORY, InputKind.ARCHIVE):
        return _dump(path, progress)
    if given.kind is InputKind.LEDGER:
        return _ledger(path, progress)
    from hloscope.core.views.inputs import read_hlo_text
    from hloscope.core.views.stages import TextSource, count_instructions

    source = TextSource(read_hlo_text(given), path)
    data = source.data(0)
    note = next(iter(source.notes), None)
    row = ModuleListing(0, source.source.module, count_instructions(data), 1, None, len(data), note=note)
    return Listing("hlo", (row,), [])


def _dump(path: str, progress: Progress | None) -> Listing:
    from hloscope.core.dumps.listing import list_modules
    from hloscope.core.dumps.options import xla_build
    from hloscope.core.views.dump_source import open_with_protos

    with open_with_protos(path) as dump:
        rows = tuple(
            ModuleListing(
                index=row.index,
                name=row.name,
                instructions=row.instructions,
                stages=row.stages,
                files=row.files,
                bytes=row.bytes,
                same_as=row.same_as,
                differs_by=row.differs_by,
                differs_from=row.differs_from,
                id=row.id,
                folder=row.folder,
                target=row.target,
                note=row.note,
                order=row.order,
            )
            for row in list_modules(dump, progress=progress)
        )
        targets = {row.target for row in rows}
        # One module tells it of all: reading the topology of each would cost as much as the rest of the listing.
        builds = {module.build for module in dump.modules}
        build = xla_build(dump.modules[0]) if len(builds) == 1 else None
        return Listing("dump", rows, list(dump.notes), targets.pop() if len(targets) == 1 else None, build)


_LEDGER_MODULES = """
SELECT m.id, m.name, m.xla_id, m.run, m.info, r.target,
 (SELECT p.before FROM pass_rows p WHERE p.module=m.id AND p.ordinal IS NOT NULL ORDER BY p.ordinal LIMIT 1),
 (SELECT coalesce(nullif(count(p.file),0),count(DISTINCT p.snapshot)) FROM pass_rows p WHERE p.module=m.id),
 (SELECT max(s.size) FROM pass_rows p JOIN snapshot_rows s ON s.id=p.snapshot WHERE p.module=m.id),
 (SELECT p.snapshot FROM pass_rows p WHERE p.module=m.id AND p.snapshot IS NOT NULL ORDER BY p.ordinal LIMIT 1)
FROM module_rows m LEFT JOIN run_rows r ON r.id=m.run ORDER BY 9 DESC, m.id
"""


_OF_COMPILE = ("target", "xla_build", "flags")
"""What a module does not say of its compile is as the first module of the run says it."""


def _ledger(path: str, progress: Progress | None) -> Listing:
    from hloscope.core.dumps.facts import broken, scan
    from hloscope.core.dumps.listing import compile_order, tell_apart
    from hloscope.core.ledger.queries import LedgerReader
    from hloscope.core.views.ledger_source import UNFINISHED

    rows: list[ModuleListing] = []
    compiles: list[_StoredModule] = []
    scanned: dict[int, tuple[TextFacts, str | None]] = {}
    with LedgerReader(path) as reader:
        found = reader.sql(_LEDGER_MODULES).rows
        firsts: dict[object, dict[str, object]] = {}
        for _, _, _, run, stored, *_ in sorted(found, key=lambda row: _number(row[0]) or 0):
            firsts.setdefault(run, {key: value for key, value in _info(stored).items() if key in _OF_COMPILE})
        for index, (_, name, xla_id, run, stored, target, before, stages, size, snapshot) in enumerate(found):
            info = {**firsts[run], **_info(stored)}
            number = _number(snapshot)
            if number is not None and number not in scanned:
                text = reader.snapshots.encoded(number)
                scanned[number] = scan(text), broken(text)
            facts, note = scanned[number] if number is not None else (None, "no snapshot")
            compiles.append(
                _StoredModule(index, str(name), _number(xla_id), _number(run) or 0, info, facts, number, reader)
            )
            rows.append(
                ModuleListing(
                    index=index,
                    name=str(name),
                    instructions=_number(before) if facts is None else facts.instructions,
                    stages=_number(stages) or 0,
                    files=_number(info.get("files")),
                    bytes=_number(info.get("bytes")) or _number(size) or 0,
                    id=_number(xla_id),
                    folder=str(info.get("folder") or ""),
                    target=_text(info.get("target", target)),
                    note=note,
                )
            )
            if progress is not None:
                progress(index + 1, len(found))
        same, differs = tell_apart(compiles)
        order = compile_order(compiles)
        complete = all(run.complete for run in reader.runs())
        build = _one_build(reader)
    for index, row in enumerate(rows):
        earlier, how = differs.get(index, (None, None))
        rows[index] = replace(row, same_as=same.get(index), differs_by=how, differs_from=earlier, order=order[index])
    targets = {row.target for row in rows}
    notes = [] if complete else [UNFINISHED]
    return Listing("ledger", tuple(rows), notes, targets.pop() if len(targets) == 1 else None, build)


def _one_build(reader: LedgerReader) -> str | None:
    builds = {run.xla_build for run in reader.runs()}
    return builds.pop() if len(builds) == 1 else None


@dataclass(frozen=True, slots=True)
class _StoredModule:
    """A module of a ledger as ``tell_apart`` sees it."""

    index: int
    name: str
    xla_id: int | None
    run: int
    info: Mapping[str, object]
    facts: TextFacts | None
    snapshot: int | None
    reader: LedgerReader

    @property
    def group(self) -> str:
        from hloscope.core.dumps.listing import process_folder

        return f"{self.run:06d} {process_folder(str(self.info.get('folder') or ''), self.name)}"

    @property
    def folder(self) -> str | None:
        from hloscope.core.dumps.listing import process_folder

        folder = str(self.info.get("folder") or "")
        return folder if process_folder(folder, self.name) == folder else None

    @property
    def when(self) -> tuple[int, int]:
        return _number(self.info.get("timestamp_us")) or 0, self.index if self.xla_id is None else self.xla_id

    @property
    def text_bytes(self) -> int:
        return 0 if self.snapshot is None else self.reader.snapshots.size(self.snapshot)

    def text(self) -> bytes:
        return b"" if self.snapshot is None else self.reader.snapshots.encoded(self.snapshot)

    def flags(self) -> Mapping[str, str]:
        found = self.info.get("flags")
        return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}

    def other_difference(self, earlier: Compiled, /) -> str:
        from hloscope.core.dumps.listing import input_phrase
        from hloscope.core.dumps.options import COMPILE_INPUTS

        if isinstance(earlier, _StoredModule):
            for kind in COMPILE_INPUTS:
                was, now = earlier.info.get(kind.value), self.info.get(kind.value)
                if was and now and was != now:
                    return input_phrase(kind)
        return ""


def _info(stored: object) -> dict[str, object]:
    import json

    found: object = json.loads(stored) if isinstance(stored, str) else None
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


_CAPTURED = """
SELECT m.name AS module, r.target AS target,
 (SELECT count(*) FROM pass_rows p WHERE p.module=m.id AND p.ordinal IS NOT NULL) AS passes,
 (SELECT count(*) FROM pass_rows p WHERE p.module=m.id AND p.changed) AS changed,
 (SELECT coalesce(nullif(count(p.file),0),count(DISTINCT p.snapshot)) FROM pass_rows p WHERE p.module=m.id) AS stages,
 (SELECT p.before FROM pass_rows p WHERE p.module=m.id AND p.ordinal IS NOT NULL ORDER BY p.ordinal LIMIT 1)
  AS instructions_before,
 (SELECT p.after FROM pass_rows p WHERE p.module=m.id AND p.ordinal IS NOT NULL ORDER BY p.ordinal DESC LIMIT 1)
  AS instructions_after,
 (SELECT sum(p.own_ns) FROM passes p WHERE p.module=m.id AND p.stage IS NOT NULL) AS ns,
 (SELECT count(*) FROM every_event e LEFT JOIN pass_rows p ON p.id=e.pass WHERE coalesce(e.module,p.module)=m.id)
  AS events
FROM module_rows m LEFT JOIN run_rows r ON r.id=m.run
ORDER BY (SELECT max(s.size) FROM pass_rows p JOIN snapshot_rows s ON s.id=p.snapshot WHERE p.module=m.id) DESC, m.id
"""


def ledger_build(path: str) -> str | None:
    """The compiler build that all runs of a ledger are of; None where they differ or do not say."""
    from hloscope.core.ledger.queries import LedgerReader

    with LedgerReader(path) as reader:
        return _one_build(reader)


def captured_modules(path: str) -> list[dict[str, object]]:
    """One summary a module of a ledger, largest first: passes, changed, stages, instructions, nanoseconds, events."""
    from hloscope.core.ledger.queries import LedgerReader

    with LedgerReader(path) as reader:
        found = reader.sql(_CAPTURED)
    return [{"index": index, **dict(zip(found.columns, row, strict=True))} for index, row in enumerate(found.rows)]
