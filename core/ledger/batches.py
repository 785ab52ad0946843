"""Batches of events: the form in which a writer puts events into the file, and how a reader makes rows of them.

A compile waits for its ledger, and a row of an SQLite table costs several times what it takes to note the event. So
the events of one type that one commit holds become one row of ``event_batches``, whose columns are those of
``event_rows``, each holding the values of all events: nothing (none has one), a number (all have that one), a JSON
array, or *characters*, one for each event, whose code point is the number (see `schema.UNPACKED` for the exact form).
All of it can be read in SQL: the view ``every_event`` holds rows and batches. Our own reader makes a temporary table
of it once per connection, because every question would read all batches again. An import, whose ledger is to be small
and is read more often than written, turns its batches into rows when it ends.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hloscope.core.errors import InternalError, LedgerError
from hloscope.core.ledger.schema import ABSENT, EVENT_COLUMNS, GAP, GAP_AT, INDEXED_ROWS, OFFSET, PACKED, SCHEMA

if TYPE_CHECKING:
    import sqlite3

    from hloscope.core.ledger.declare import EventSpec, Unit
    from hloscope.core.ledger.store import LedgerConnection

SHARED = ("subject", "computation", "fuel")
"""What an event says of itself beside its type's own fields."""
_OWN_FROM = EVENT_COLUMNS.index("v0")
_MARKS = ",".join("?" * len(EVENT_COLUMNS))
_INSERT = f"INTO {{}}({','.join(EVENT_COLUMNS)})VALUES({_MARKS})"
INSERT_BATCH = f"INSERT INTO event_batches VALUES(?,?,{','.join('?' * (len(EVENT_COLUMNS)))})"
_HIGHEST = 0x10FFFF - GAP - OFFSET
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def character(number: int) -> str:
    """A number as a character. Raises ValueError where it is negative or has none."""
    if number < 0:
        raise ValueError(f"{number} is below zero")
    return chr(number + OFFSET if number < GAP_AT else number + OFFSET + GAP)


def _code(number: int) -> str:
    """A number as a character, or in its seven digits where it has none."""
    return character(number) if number <= _HIGHEST else str(number)


def _number(text: str) -> int | None:
    """What `_code` was given; None for the missing number."""
    if len(text) > 1:
        return int(text)
    code = ord(text)
    return None if text == ABSENT else code - OFFSET if code < GAP_AT + OFFSET else code - OFFSET - GAP


class Texts:
    """Characters of names and numbers."""

    def __init__(self) -> None:
        self.names: defaultdict[str | None, str] = defaultdict(map(_code, count(1)).__next__)
        """Each name that has occurred, as its number. The missing name is a missing number: nobody needs a test."""
        self.names[None] = ABSENT
        self.wholes = _Wholes({None: ABSENT})

    @property
    def packable(self) -> bool:
        """Whether every name has a character; Unicode has a million, and the largest modules more names."""
        return len(self.names) <= _HIGHEST

    def number(self, name: str | None) -> int | None:
        """Number of a name, a new one where it has none."""
        return _number(self.names[name])


class _Wholes(dict[int | None, str]):
    """Whole numbers as characters; the same few occur over and over."""

    def __missing__(self, number: int) -> str:
        text = self[number] = character(number)
        return text


Column = list[Any]
Stored = int | str | None


def _all_names(column: Column, texts: Texts) -> Stored:
    packed = PACKED + "".join(map(texts.names.__getitem__, column))
    return packed if texts.packable else _encode(list(map(texts.number, column)))


def _name_lists(column: Column, texts: Texts) -> Stored:
    """Nothing, one number, or a JSON array in a string; SQLite's json_each reads all three."""
    if max(map(len, column)) <= 1:
        return _all_names([one[0] if one else None for one in column], texts)
    number = texts.number
    listed = [[number(name) for name in one] for one in column]
    return _encode([_encode(one) if len(one) > 1 else one[0] if one else None for one in listed])


def _free_texts(column: Column, _: Texts) -> Stored:
    return _encode([one if one is None or (one.isascii() and "\0" not in one) else clean(one) for one in column])


def _digests(column: Column, _: Texts) -> Stored:
    if None in column:
        return _encode(column)
    return '["' + '","'.join(column) + '"]'


def _numbers(column: Column, texts: Texts) -> Stored:
    """JSON has no infinity and nothing undefined: they are words, which the reader takes for what they mean."""
    if _INTEGERS.issuperset(map(type, column)):
        return _wholes(column, texts)
    return _encode([one if one is None or -math.inf < one < math.inf else str(one) for one in column])


_INTEGERS = frozenset({int, type(None)})


def _wholes(column: Column, texts: Texts) -> Stored:
    try:
        return PACKED + "".join(map(texts.wholes.__getitem__, column))
    except (ValueError, TypeError, OverflowError):
        return _encode(column)


_FORMS: Mapping[Unit, Callable[[Column, Texts], Stored]] = MappingProxyType(
    {
        "name": _all_names, "names": _name_lists, "text": _free_texts, "hash": _digests,
        "us": _numbers, "number": _numbers,
    }
)  # fmt: skip
"""How the values of a column are stored, by the unit of its field; those of any other are whole numbers."""


class Plan:
    """Events of one type that wait, and how they become a batch."""

    __slots__ = ("_forms", "_name", "_width", "columns", "flat", "number", "outcomes", "short")

    def __init__(self, number: int, spec: EventSpec) -> None:
        self.number = number
        self.columns = attrgetter(*SHARED, *(one.name for one in spec.fields))
        """What an event says of itself, in the order of the columns."""
        self.outcomes: dict[object, int] = {}
        """Number of each combination of verdict, code and so on; a ledger has few of them."""
        self.short: dict[tuple[str | None, str | None], int] = {}
        """The same by verdict and code alone, for events of our own."""
        self.flat: list[Any] = []
        """The batch that waits, row after row. One list of plain values: objects that stay would set off a search for
        garbage every few hundred events."""
        self._name = spec.name
        self._width = _OWN_FROM + len(spec.fields)
        units: list[Unit] = ["count", "count", "count", "name", "name", "ordinal", *(one.unit for one in spec.fields)]
        self._forms = [(at, _FORMS.get(unit, _wholes)) for at, unit in enumerate(units, 1)]

    def batch(self, texts: Texts) -> list[Stored]:
        """The row of what waits: number of its first event, how many there are, and their columns."""
        flat, width = self.flat, self._width
        total, rest = divmod(len(flat), width)
        if rest:
            raise InternalError(f"an event of type {self._name} was recorded with too many or too few values")
        first: int = flat[0]
        # Numbers of events are kept as distances from the first, which are small.
        ids = "".join([chr(one) for one in [one - first + OFFSET for one in flat[::width]]])
        row: list[Stored] = [first, total, PACKED + ids]
        for at, form in self._forms:
            column = flat[at::width]
            one = column[0]
            # Most columns say the same of many events in turn.
            same = one is column[-1] and column.count(one) == total
            if same and one is None:
                row.append(None)
            elif same and form is _all_names:
                row.append(texts.number(one))
            elif same and form is _wholes:
                row.append(one)
            else:
                row.append(form(column, texts))
        flat.clear()
        return row + [None] * (len(EVENT_COLUMNS) - width)


def clean(text: str) -> str:
    """Text that SQLite takes whole: bytes of file names that are not UTF-8 become question marks, and zeros, too."""
    return text.replace("\0", "?") if text.isascii() else text.encode("utf-8", "replace").decode().replace("\0", "?")


def _unpacked(column: Stored, size: int) -> Column:
    if not isinstance(column, str):
        return [column] * size
    if not column.startswith(PACKED):
        return json.loads(column)
    codes = memoryview(column[1:].encode("utf-32-le", "surrogatepass")).cast("I")
    absent = ord(ABSENT)
    if max(codes, default=0) < GAP_AT + OFFSET:
        return [None if code == absent else code - OFFSET for code in codes]
    return list(map(_number, column[1:]))


def _rows(connection: sqlite3.Connection, after: int) -> Iterator[tuple[int, Iterator[tuple[Any, ...]]]]:
    """(number, rows) of the batches behind one."""
    for first, size, *columns in connection.execute(
        "SELECT * FROM event_batches WHERE first>? ORDER BY first", (after,)
    ):
        numbers, *rest = (_unpacked(one, size) for one in columns)
        yield first, zip([first + one for one in numbers], *rest, strict=True)


def batches_to_rows(connection: sqlite3.Connection) -> None:
    """Turn every batch into rows of ``event_rows``, inside the caller's transaction."""
    insert = f"INSERT {_INSERT.format('event_rows')}"
    for _, rows in _rows(connection, 0):
        connection.executemany(insert, rows)
    SCHEMA.without_batches(connection)


def unpack_batches(connection: LedgerConnection) -> None:
    """Make what waits in batches quick to ask: rows of a temporary ``every_event``, which hides the view.

    Batches that came since the last call are added. Raises LedgerError where a batch is damaged.
    """
    if not connection.execute("SELECT 1 FROM main.sqlite_master WHERE name='event_batches'").fetchone():
        return
    newest = connection.execute("SELECT max(first) FROM event_batches").fetchone()[0] or 0
    if newest <= connection.unpacked:
        return
    connection.execute("PRAGMA query_only=0")
    try:
        if not connection.unpacked:
            listed = ",".join(EVENT_COLUMNS[1:])
            connection.execute(f"CREATE TEMP TABLE every_event(id INTEGER PRIMARY KEY,{listed})")
            connection.execute("INSERT INTO temp.every_event SELECT * FROM main.event_rows")
            SCHEMA.views_over_unpacked(connection)
        insert = f"INSERT OR REPLACE {_INSERT.format('temp.every_event')}"
        for first, rows in _rows(connection, connection.unpacked):
            connection.executemany(insert, rows)
            connection.unpacked = first
        if connection.execute("SELECT count(*) FROM temp.every_event").fetchone()[0] >= INDEXED_ROWS:
            connection.execute("CREATE INDEX IF NOT EXISTS temp.unpacked_by_pass ON every_event(pass)")
    except (ValueError, TypeError, IndexError) as error:
        raise LedgerError("the ledger is damaged (a batch of events cannot be read)", path=connection.path) from error
    finally:
        connection.execute("PRAGMA query_only=1")
