"""Where a run's stages come from: one interface over a dump, a ledger and a single HLO text.

A source knows the rows of the pass timeline and the text of each snapshot. A row without a snapshot of its own points
at the one before it. Everything else (counts, indexes, diffs, histories) is computed once, in ``run.py``, for all.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from hloscope.core.dumps.facts import broken, unfinished
from hloscope.core.dumps.facts import count_instructions as count_definitions
from hloscope.core.dumps.filenames import FileKind, parse_name
from hloscope.core.errors import ParseError, UnsupportedError
from hloscope.core.views.data import EventRow, ModuleRow, Source
from hloscope.core.views.inputs import MAX_ONE_LINE_BYTES

if TYPE_CHECKING:
    from hloscope.core.ledger.queries import Cell, SqlResult

Cancelled = Callable[[], bool]
"""Asked now and then during long work; True ends it with ``CancelledError``."""
Progress = Callable[[int, int], None]
"""Called with (done, total)."""

ENTRY_PASS = "before_optimizations"


class CancelledError(Exception):
    """The caller's ``cancelled`` said so; nothing is left half done."""


def check(cancelled: Cancelled | None) -> None:
    """Raises ``CancelledError`` when the caller no longer wants the answer."""
    if cancelled is not None and cancelled():
        raise CancelledError("cancelled")


@dataclass(frozen=True, slots=True)
class StageRow:
    """One row of the timeline as a source knows it without reading any stage's text."""

    pipeline: str
    pass_name: str
    snapshot: int
    """Number of the snapshot that shows the module after this row."""
    own_snapshot: bool = True
    """False for a row that inherits the snapshot of the row before."""
    changed: bool | None = None
    """What the compiler said; None where it did not."""
    next_pass: str | None = None
    ns: int | None = None
    file: str | None = None
    unannounced: str | None = None
    fuel_used: int | None = None
    instructions: int | None = None
    """Instructions of the snapshot where the source keeps the number."""
    fault: str | None = None
    """What is wrong with the snapshot's text."""


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Which events are asked for; None asks for all."""

    pass_index: int | None = None
    type: str | None = None
    subject: str | None = None
    verdict: str | None = None
    limit: int | None = None


class StageSource(Protocol):
    """What a run is made of."""

    source: Source
    notes: list[str]

    def modules(self) -> Sequence[ModuleRow]:
        """The modules that the path holds, in the order of ``hloscope ls``."""
        ...

    def outline(self) -> Sequence[StageRow]:
        """The timeline as far as it is known without reading a stage; as long as ``rows``, with the same snapshots."""
        ...

    def rows(self, cancelled: Cancelled | None, progress: Progress | None) -> Sequence[StageRow]:
        """The timeline; at least one row."""
        ...

    def data(self, snapshot: int) -> bytes:
        """The text of a snapshot as UTF-8."""
        ...

    def events(self, query: EventQuery) -> list[EventRow]:
        """Recorded events in order."""
        ...

    def event_count(self) -> int:
        """How many events there are."""
        ...

    def report(self, kind: FileKind) -> str | None:
        """A text report that the compiler wrote; None where there is none."""
        ...

    def proto(self, snapshot: int) -> bytes | None:
        """The serialized HloProto of a snapshot; None where only the text was kept."""
        ...

    def sql(self, query: str, limit: int | None, cancelled: Cancelled | None) -> SqlResult:
        """The answer to a read-only query. Raises ``UnsupportedError`` where the source is no database."""
        ...

    def sql_rows(self, query: str) -> Generator[tuple[Cell, ...]]:
        """The column names and then the rows of a query, one by one as they are found. Raises as ``sql`` does."""
        ...

    def close(self) -> None:
        """Gives back files."""
        ...


class TextSource:
    """A single HLO text: one row. Raises ParseError where it holds no instruction."""

    def __init__(self, text: str, path: str, *, target: str | None = None) -> None:
        self._data = text.encode("utf-8", "surrogatepass")
        name = module_name(self._data)
        self.source = Source(path, name, None, target, "hlo")
        listed = count_instructions(self._data)
        if not listed or (listed < self._data.count(b" = ") and len(text) <= MAX_ONE_LINE_BYTES):
            text = _one_a_line(text, path)
            self._data = text.encode("utf-8", "surrogatepass")
        apart = _written_out(text)
        if apart is not None:
            self._data = apart.encode("utf-8", "surrogatepass")
        self._row = _named_row(path)
        fault = None
        if listed:
            fault = broken(self._data) if name else unfinished(self._data)
        self.notes: list[str] = [fault] if fault is not None else []

    def modules(self) -> Sequence[ModuleRow]:
        return (ModuleRow(0, self.source.module, self.source.module, len(self._data), 1),)

    def outline(self) -> Sequence[StageRow]:
        return (self._row,)

    def rows(self, cancelled: Cancelled | None, progress: Progress | None) -> Sequence[StageRow]:
        return self.outline()

    def data(self, snapshot: int) -> bytes:
        return self._data

    def events(self, query: EventQuery) -> list[EventRow]:
        return []

    def report(self, kind: FileKind) -> str | None:
        return None

    def proto(self, snapshot: int) -> bytes | None:
        return None

    def event_count(self) -> int:
        return 0

    def sql(self, query: str, limit: int | None, cancelled: Cancelled | None) -> SqlResult:
        raise self._no_sql()

    def sql_rows(self, query: str) -> Generator[tuple[Cell, ...]]:
        raise self._no_sql()

    def _no_sql(self) -> UnsupportedError:
        return UnsupportedError(
            "SQL needs a ledger, this is a single HLO text",
            path=self.source.path,
            hint="hloscope opt … --ledger RUN.ledger and hloscope compile -o RUN.ledger write one",
        )

    def close(self) -> None:
        pass


def _one_a_line(text: str, path: str) -> str:
    """The same with each instruction at the start of a line. Raises ParseError where there is none."""
    from hloscope.core.text.module_index import ModuleIndex

    index = ModuleIndex.from_text(text)
    if not index.instruction_count:
        raise ParseError("no HLO instruction in it", path=path)
    begins = sorted(index.span(number)[0] for number in range(index.instruction_count))
    parts = [text[begin:end] for begin, end in pairwise([0, *begins, len(text)])]
    for number, part in enumerate(parts[:-1]):
        if part.rpartition("\n")[2].strip():
            parts[number] = part.rstrip(" \t") + "\n  "
    return "".join(parts)


def _written_out(text: str) -> str | None:
    """The same with a line for each instruction that stands in the place of an operand; None where there is none."""
    from hloscope.core.text.nested_operands import has_nested_operands, with_lines_of_their_own

    if len(text) > MAX_ONE_LINE_BYTES or not has_nested_operands(text):
        return None
    return with_lines_of_their_own(text)


def _named_row(path: str) -> StageRow:
    """The row of a single text, named by its file where that is one of a dump."""
    name = parse_name(os.path.basename(path))
    label = (name.after or name.bookend or ENTRY_PASS) if name.is_stage else ENTRY_PASS
    pipeline = (name.pipeline or "") if name.is_stage else ""
    return StageRow(pipeline, label, 0, next_pass=name.before)


_HEADER = re.compile(rb"HloModule\s+([^\s,]+)")


def module_name(data: bytes) -> str:
    """The name in the ``HloModule`` line, empty where the text has none near its front."""
    found = _HEADER.search(data, 0, 1 << 16)
    return found[1].decode("utf-8", "replace") if found else ""


def count_instructions(data: bytes) -> int:
    """Instructions of all computations, counted by their definitions without parsing."""
    return count_definitions(data) or count_definitions(b"\n" + data)  # a bare instruction has no line before it


def text_digest(data: bytes) -> bytes:
    """Identity of a text's content."""
    return hashlib.blake2b(data, digest_size=16).digest()


V = TypeVar("V")


class ByteBoundCache(Generic[V]):
    """A cache that drops what was used least recently once the values weigh more than `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._items: OrderedDict[object, tuple[V, int]] = OrderedDict()
        self._lock = Lock()  # readers ask from worker threads

    def get(self, key: object) -> V | None:
        """The value, or None; it becomes the most recently used."""
        with self._lock:
            found = self._items.get(key)
            if found is None:
                return None
            self._items.move_to_end(key)
            return found[0]

    def put(self, key: object, value: V, weight: int) -> None:
        """Keeps a value; the newest one stays even where it alone weighs more than the limit."""
        with self._lock:
            old = self._items.pop(key, None)
            self._weight += weight - (old[1] if old is not None else 0)
            self._items[key] = (value, weight)
            while self._weight > self._limit and len(self._items) > 1:
                _, (_, dropped) = self._items.popitem(last=False)
                self._weight -= dropped

    def __len__(self) -> int:
        return len(self._items)

    @property
    def weight(self) -> int:
        """Bytes of all values, as they were put."""
        return self._weight
