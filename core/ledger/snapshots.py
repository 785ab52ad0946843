"""Module texts, each stored once.

A text is a sequence of lines. Every distinct line gets a number; the number sequence of a text is cut into *chunks* at
places that depend on the lines alone, so that a stage that shares 99% with its neighbour shares its chunks too; every
distinct chunk gets a number; a snapshot is the list of its chunk numbers. Lines and chunks are kept in compressed
blocks. Two stages can be compared by line numbers without touching the text.

Block payloads start with one codec byte: 0 plain, 1 zlib, 2 zstd.
"""

from __future__ import annotations

import sqlite3
import zlib
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, compress, count, islice
from operator import sub
from typing import Generic, TypeVar, cast

from hloscope.core.errors import InternalError, LedgerError
from hloscope.core.ledger.store import LedgerConnection, reading

_LONG_LINE = 16_384
"""Longer lines (characters) are known by a digest only, so that megabytes of constants are not kept in memory."""
_BLOCK_BYTES = 512 * 1024
"""Text per line block before compression."""
_BLOCK_IDS = 32_768
"""Line numbers per chunk block."""
_CHUNK_MASK, _CHUNK_MIN, _CHUNK_MAX = 31, 8, 512
"""A chunk ends where the hash of a line has these bits zero; shortest and longest chunk in lines."""
_FORGET_BYTES = 256 << 20
"""Text that the writer remembers for finding duplicates before it starts afresh with the next module."""
_ENCODING = ("utf-8", "surrogateescape")


TIGHT, QUICK = 9, 1
"""Compression levels for what stays and for what is soon replaced; both codecs have them."""
_ZSTD_FROM = 4096
"""Shorter payloads gain nothing from zstd."""
_ZLIB_ABOVE = {TIGHT: 40, QUICK: 256}
"""Payloads of so many bytes stay as they are: setting zlib up takes longer than the rest of a small snapshot."""


def pack(raw: bytes, level: int) -> bytes:
    """One block of bytes as the file keeps it: a codec byte and the compressed rest."""
    if len(raw) >= _ZSTD_FROM:
        # A build without the library still writes, in the larger form that every build reads.
        with suppress(ImportError):
            import zstandard

            return b"\2" + zstandard.ZstdCompressor(level=level).compress(raw)
    squeezed = zlib.compress(raw, level) if len(raw) > _ZLIB_ABOVE[level] else raw
    return b"\1" + squeezed if len(squeezed) < len(raw) else b"\0" + raw


def unpack(data: bytes) -> bytes:
    """The bytes of a block. Raises LedgerError where it is damaged."""
    codec, body = data[:1], memoryview(data)[1:]
    if codec == b"\0":
        return bytes(body)
    if codec == b"\1":
        try:
            return zlib.decompress(body)
        except zlib.error as error:
            raise LedgerError(f"a block of module text is damaged ({error})") from error
    if codec == b"\2":
        try:
            import zstandard
        except ImportError as error:
            raise LedgerError("module texts of this ledger need the Python package zstandard") from error
        try:
            return zstandard.ZstdDecompressor().decompress(body)
        except zstandard.ZstdError as error:
            raise LedgerError(f"a block of module text is damaged ({error})") from error
    raise LedgerError(f"a block of module text uses codec {codec!r}, which this version does not have")


def _pack_numbers(numbers: Sequence[int], level: int) -> bytes:
    """Differences of neighbours, as four byte planes: runs of consecutive numbers become runs of equal bytes."""
    raw = array("i", chain(islice(numbers, 1), map(sub, islice(numbers, 1, None), numbers))).tobytes()
    return pack(b"".join(raw[plane::4] for plane in range(4)), level)


def _unpack_numbers(planes: bytes) -> array[int]:
    size = len(planes) // 4
    raw = bytearray(4 * size)
    for plane in range(4):
        raw[plane::4] = planes[plane * size : (plane + 1) * size]
    deltas = array("i")
    deltas.frombytes(raw)
    try:
        return array("i", accumulate(deltas))
    except OverflowError:
        raise LedgerError("a block of module text is damaged (its numbers are none)") from None


class TextParts(Iterable[str]):
    """The lines of a text, given as parts: lists of lines that are not changed any more.

    A part that was in the text before, the same object, is stored without looking at its lines again.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.parts)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a text and what it came to."""

    lines: Sequence[str]
    ids: array[int]
    size: int
    """Bytes, every line with its newline."""


@dataclass(slots=True)
class _Tail:
    """The unfinished end of a block table: what is not written yet, and the small blocks that are."""

    table: str
    first: int = 0
    """Number of the first item after the last full block."""
    written: int = 0
    """Number of the first item that no block holds yet."""


class SnapshotWriter:
    """Adds module texts to a ledger that is being written.

    Nothing reaches the file before ``write``, which the ledger's writer calls inside its transaction.
    """

    def __init__(self, connection: sqlite3.Connection, *, tight: bool = True) -> None:
        self._connection = connection
        self._level = TIGHT if tight else QUICK
        self._lines: defaultdict[object, int] = defaultdict(count().__next__)
        self._line_total = 0
        self._ends_chunk = bytearray()
        self._base = 0
        self._remembered = 0
        self._open_lines: list[str] = []
        self._open_bytes = 0
        self._chunks: dict[bytes, int] = {}
        self._chunk_total = 0
        self._open_chunks: list[array[int]] = []
        self._open_ids = 0
        self._line_tail = _Tail("line_blocks")
        self._chunk_tail = _Tail("chunk_blocks")
        self._rows: list[tuple[int, int, int, bytes]] = []
        self._blocks: list[tuple[str, int, int, bytes]] = []
        self._merged: list[tuple[str, int, int]] = []
        self._known: dict[bytes, int] = {}
        self._total = 0
        self._last: tuple[str | None, int] = (None, 0)
        self._parts: dict[int, _Part] = {}
        self.pending_bytes = 0
        """Bytes of compressed text that wait for ``write``."""

    def add(self, text: str | bytes) -> int:
        """Store a text, byte for byte, and return its snapshot number; the same text gets the same number."""
        if isinstance(text, bytes):
            text = text.decode(*_ENCODING)
        last, number = self._last
        if last is not None and last == text:
            return number
        number = self._add(text.split("\n"), len(text) if text.isascii() else len(text.encode(*_ENCODING)))
        self._last = (text, number)
        return number

    def add_lines(self, lines: Iterable[str]) -> int:
        """Store the text that joining the lines with newlines gives; a final newline is a last, empty line."""
        parts = lines.parts if isinstance(lines, TextParts) else (list(lines),)
        known = self._parts
        self._look_up({id(part): part for part in parts if part and id(part) not in known})
        ids, size = array("i"), 0
        kept: dict[int, _Part] = {}
        for part in parts:
            if part:
                one = kept[id(part)] = known[id(part)]
                ids += one.ids
                size += one.size
        # Held until the next text, so that an identity stays its object's.
        self._parts = kept
        return self._store(ids, size - 1) if ids else self._add([""], 0)

    def _look_up(self, parts: dict[int, Sequence[str]]) -> None:
        """Note the line numbers of parts that are new."""
        lines = list(chain.from_iterable(parts.values()))
        if not lines:
            return
        ids = self._line_numbers(lines)
        start = 0
        for key, part in parts.items():
            end = start + len(part)
            size = sum(map(len, part)) + len(part)
            if not all(map(str.isascii, part)):
                size = len("\n".join(part).encode(*_ENCODING)) + 1
            self._parts[key] = _Part(part, ids[start:end], size)
            start = end

    def _add(self, lines: list[str], size: int) -> int:
        return self._store(self._line_numbers(lines), size)

    def _store(self, ids: array[int], size: int) -> int:
        refs = array("i", self._chunk_numbers(ids))
        key = refs.tobytes()
        number = self._known.get(key)
        if number is None:
            self._total += 1
            number = self._known[key] = self._total
            data = _pack_numbers(refs, self._level)
            self._rows.append((number, len(ids), size, data))
            self.pending_bytes += len(data)
        return number

    def _line_numbers(self, lines: Sequence[str]) -> array[int]:
        keys: Sequence[object] = lines
        long: dict[object, str] = {}
        if max(map(len, lines)) > _LONG_LINE:
            keys = list(lines)
            for index, line in enumerate(lines):
                if len(line) > _LONG_LINE:
                    key = keys[index] = _digest(line)
                    long[key] = line
        ids = array("i", map(self._lines.__getitem__, keys))
        fresh = len(self._lines) + self._base - self._line_total
        if fresh:
            added = list(islice(reversed(self._lines), fresh))
            added.reverse()
            self._append_lines([long.get(key) or str(key) for key in added] if long else cast("list[str]", added))
        return ids

    def _append_lines(self, lines: list[str]) -> None:
        if "\n".join(lines).count("\n") != len(lines) - 1:
            raise InternalError("a line of a snapshot contains a newline")
        first = self._line_total
        numbers = range(first, first + len(lines))
        self._ends_chunk += bytes([(number * 2_654_435_761 >> 15) & _CHUNK_MASK == 0 for number in numbers])
        lengths = list(map(len, lines))
        total = sum(lengths) + len(lines)
        self._remembered += total + 120 * len(lines)
        if self._open_bytes + total < _BLOCK_BYTES:
            self._open_lines += lines
            self._open_bytes += total
            self._line_total = first + len(lines)
            return
        start = 0
        size = self._open_bytes
        for end, length in enumerate(lengths, 1):
            size += length + 1
            if size >= _BLOCK_BYTES:
                self._open_lines += lines[start:end]
                self._line_total = first + end
                self._seal_lines()
                start, size = end, 0
        self._open_lines += lines[start:]
        self._open_bytes = size
        self._line_total = first + len(lines)

    def _chunk_numbers(self, ids: array[int]) -> Iterator[int]:
        start = 0
        end = len(ids)
        flags = self._ends_chunk
        base = self._base
        cuts = compress(count(1), map(flags.__getitem__, ids if not base else [one - base for one in ids]))
        for cut in chain(cuts, (end,)):
            while cut - start > _CHUNK_MAX:
                yield self._chunk_number(ids[start : start + _CHUNK_MAX])
                start += _CHUNK_MAX
            if cut - start >= _CHUNK_MIN or (cut == end and cut > start):
                yield self._chunk_number(ids[start:cut])
                start = cut

    def _chunk_number(self, ids: array[int]) -> int:
        key = ids.tobytes()
        number = self._chunks.get(key)
        if number is None:
            number = self._chunks[key] = self._chunk_total
            self._chunk_total += 1
            self._open_chunks.append(ids)
            self._open_ids += len(ids)
            self._remembered += len(key) + 100
            if self._open_ids >= _BLOCK_IDS:
                self._seal_chunks()
        return number

    def _seal_lines(self) -> None:
        data = pack("\n".join(self._open_lines).encode(*_ENCODING), self._level)
        self._seal(self._line_tail, self._line_total, data)
        self._open_lines = []
        self._open_bytes = 0

    def _seal_chunks(self) -> None:
        self._seal(self._chunk_tail, self._chunk_total, _pack_chunks(self._open_chunks, self._level))
        self._open_chunks = []
        self._open_ids = 0

    def _seal(self, tail: _Tail, end: int, data: bytes) -> None:
        """Queue a full block, and the removal of the small ones that it replaces."""
        if tail.written > tail.first:
            self._merged.append((tail.table, tail.first, end))
        self._blocks.append((tail.table, tail.first, end - tail.first, data))
        self.pending_bytes += len(data)
        tail.first = tail.written = end

    def _tails(self) -> None:
        """Queue what is new since the last write as small blocks; a later full block replaces them."""
        fresh = self._line_total - self._line_tail.written
        if fresh:
            data = pack("\n".join(self._open_lines[-fresh:]).encode(*_ENCODING), QUICK)
            self._blocks.append((self._line_tail.table, self._line_tail.written, fresh, data))
            self._line_tail.written = self._line_total
        fresh = self._chunk_total - self._chunk_tail.written
        if fresh:
            data = _pack_chunks(self._open_chunks[-fresh:], QUICK)
            self._blocks.append((self._chunk_tail.table, self._chunk_tail.written, fresh, data))
            self._chunk_tail.written = self._chunk_total

    def write(self, *, final: bool = False) -> None:
        """Write everything that waits, inside the caller's transaction; ``final`` packs the last blocks as one each."""
        if final and self._level == TIGHT:
            if self._open_lines:
                self._seal_lines()
            if self._open_chunks:
                self._seal_chunks()
        else:
            self._tails()
        for table, first, end in self._merged:
            self._connection.execute(f"DELETE FROM {table} WHERE first>=? AND first<?", (first, end))
        for table, first, size, data in self._blocks:
            self._connection.execute(f"INSERT INTO {table} VALUES(?,?,?)", (first, size, data))
        self._connection.executemany("INSERT INTO snapshot_rows VALUES(?,?,?,?)", self._rows)
        self._merged, self._blocks, self._rows = [], [], []
        self.pending_bytes = 0

    def next_module(self) -> None:
        """Tell that no later text belongs to the current module: memory for finding duplicates may be dropped."""
        self._last = (None, 0)
        self._parts = {}
        if self._remembered > _FORGET_BYTES:
            self._base = self._line_total
            self._lines = defaultdict(count(self._base).__next__)
            self._ends_chunk = bytearray()
            self._chunks = {}
            self._remembered = 0


def _digest(line: str) -> tuple[int, bytes]:
    from hashlib import blake2b

    data = line.encode(*_ENCODING)
    return len(data), blake2b(data, digest_size=20).digest()


def _pack_chunks(chunks: list[array[int]], level: int) -> bytes:
    """Several chunks: how many, their lengths, and all line numbers, as one list of numbers."""
    return _pack_numbers([*map(len, chunks), *chain.from_iterable(chunks)], level)


_T = TypeVar("_T")


class _BlockCache(Generic[_T]):
    """Decoded blocks by the range of numbers that they hold, least recently used dropped first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.size = 0
        """Bytes held."""
        self._blocks: OrderedDict[int, tuple[int, int, _T]] = OrderedDict()
        self._firsts: list[int] = []

    def get(self, number: int) -> tuple[int, _T] | None:
        """(first number, block) of the block that holds a number, or None."""
        at = bisect_right(self._firsts, number) - 1
        if at < 0:
            return None
        first = self._firsts[at]
        end, _, block = self._blocks[first]
        if number >= end:
            return None
        self._blocks.move_to_end(first)
        return first, block

    def put(self, first: int, end: int, cost: int, block: _T) -> None:
        """Remember a block that costs so many bytes."""
        old = self._blocks.pop(first, None)
        if old is None:
            insort(self._firsts, first)
        else:
            self.size -= old[1]
        self._blocks[first] = (end, cost, block)
        self.size += cost
        while self.size > self._limit and len(self._blocks) > 1:
            gone, (_, freed, _) = self._blocks.popitem(last=False)
            self.size -= freed
            del self._firsts[bisect_left(self._firsts, gone)]


_FEW = 4
"""A text that needs less than this fraction of a block takes its lines one by one."""


class SnapshotReader:
    """Reads module texts of a ledger; decoded blocks are cached within ``cache_bytes``."""

    def __init__(self, connection: LedgerConnection, *, cache_bytes: int = 128 << 20) -> None:
        self._connection = connection
        self._line_cache: _BlockCache[list[str]] = _BlockCache(cache_bytes)
        self._chunk_cache: _BlockCache[list[array[int]]] = _BlockCache(cache_bytes // 4)

    @property
    def cached_bytes(self) -> int:
        """Estimated bytes of decoded blocks that are kept."""
        return self._line_cache.size + self._chunk_cache.size

    def __len__(self) -> int:
        """Number of distinct texts."""
        with reading(self._connection.path):
            return int(self._connection.execute("SELECT count(*) FROM snapshot_rows").fetchone()[0])

    def _row(self, snapshot: int) -> tuple[int, int, bytes]:
        """(lines, bytes, chunk numbers) of a text."""
        with reading(self._connection.path):
            row = self._connection.execute(
                "SELECT lines,size,chunks FROM snapshot_rows WHERE id=?", (snapshot,)
            ).fetchone()
        if row is None:
            raise LedgerError(f"the ledger has no module text number {snapshot}", path=self._connection.path)
        return row

    def line_ids(self, snapshot: int) -> array[int]:
        """The line numbers of a text. Within one module, equal numbers mean equal lines and the other way round."""
        lines, _, chunks = self._row(snapshot)
        out = array("i")
        for number in self._numbers(chunks):
            out += self._chunk(number)
        if len(out) != lines:
            raise self._damaged(f"{len(out)} of {lines} lines")
        return out

    def size(self, snapshot: int) -> int:
        """Length of a text in bytes."""
        return self._row(snapshot)[1]

    def line_count(self, snapshot: int) -> int:
        """Lines of a text, counting an empty one after a final newline."""
        return self._row(snapshot)[0]

    def text(self, snapshot: int) -> str:
        """A text as it was stored; bytes that are not UTF-8 come back as surrogate escapes."""
        ids = self.line_ids(snapshot)
        return "\n".join(map(self._texts(ids).__getitem__, ids))

    def encoded(self, snapshot: int) -> bytes:
        """A text as the bytes that were stored."""
        return self.text(snapshot).encode(*_ENCODING)

    def lines(self, ids: Iterable[int]) -> list[str]:
        """The lines with the given numbers, in the given order."""
        wanted = list(ids)
        return list(map(self._texts(wanted).__getitem__, wanted))

    def _texts(self, ids: Iterable[int]) -> dict[int, str]:
        needed = sorted(set(ids))
        found: dict[int, str] = {}
        at = 0
        while at < len(needed):
            first, block = self._line_block(needed[at])
            end = bisect_left(needed, first + len(block), at)
            if (end - at) * _FEW < len(block):
                found.update((number, block[number - first]) for number in needed[at:end])
            else:
                found.update(zip(range(first, first + len(block)), block, strict=True))
            at = end
        return found

    def _line_block(self, number: int) -> tuple[int, list[str]]:
        cached = self._line_cache.get(number)
        if cached is None:
            first, size, data = self._fetch("line_blocks", number)
            raw = self.unpack(data)
            block = raw.decode(*_ENCODING).split("\n")
            if len(block) != size:
                raise self._damaged(f"{len(block)} of {size} lines")
            self._line_cache.put(first, first + size, len(raw) + 60 * size, block)
            cached = first, block
        return cached

    def _chunk(self, number: int) -> array[int]:
        cached = self._chunk_cache.get(number)
        if cached is None:
            first, size, data = self._fetch("chunk_blocks", number)
            numbers = self._numbers(data)
            starts = accumulate(numbers[:size], initial=size)
            block = [numbers[start : start + length] for start, length in zip(starts, numbers[:size], strict=False)]
            self._chunk_cache.put(first, first + size, 4 * len(numbers) + 80 * size, block)
            cached = first, block
        return cached[1][number - cached[0]]

    def _fetch(self, table: str, number: int) -> tuple[int, int, bytes]:
        with reading(self._connection.path):
            row = self._connection.execute(
                f"SELECT first,count,data FROM {table} WHERE first<=? ORDER BY first DESC LIMIT 1", (number,)
            ).fetchone()
        if row is None or number >= row[0] + row[1]:
            raise self._damaged("a block is missing")
        return row

    def unpack(self, data: bytes) -> bytes:
        try:
            return unpack(data)
        except LedgerError as error:
            error.path = self._connection.path
            raise

    def _numbers(self, data: bytes) -> array[int]:
        try:
            return _unpack_numbers(unpack(data))
        except LedgerError as error:
            error.path = self._connection.path
            raise

    def _damaged(self, how: str) -> LedgerError:
        return LedgerError(f"a module text in the ledger is damaged ({how})", path=self._connection.path)
