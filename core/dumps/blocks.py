"""A compressed stream as a file that can be read anywhere: unpacked once, kept in memory as small packed blocks.

XLA's dumps are near-copies of one another, so the blocks cost a few percent of the text. A stream that unpacks out of
all proportion (a bomb) is refused before it is large.
"""

from __future__ import annotations

import io
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, cast

from hloscope.core.errors import DumpError, UnsupportedError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK_BYTES = 1 << 20
"""Unpacked bytes of one block."""
CACHED_BLOCKS = 8
"""Unpacked blocks that are kept."""
MAX_UNPACKED_BYTES = 256 << 30
"""Largest archive that is opened, in unpacked bytes."""
BOMB_FLOOR_BYTES = 256 << 20
"""Unpacked bytes from which on the ratio is judged."""
BOMB_RATIO = 600
"""Unpacked bytes per packed byte that no dump reaches."""
_READ_BYTES = 1 << 18


class BlockFile(io.RawIOBase):
    """A read-only, seekable file over the chunks of an unpacked stream."""

    def __init__(self, chunks: Iterator[bytes], label: str) -> None:
        super().__init__()
        self._blocks: list[bytes] = []
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._position = 0
        self._size = 0
        pending = bytearray()
        for chunk in chunks:
            pending += chunk
            while len(pending) >= BLOCK_BYTES:
                self._append(bytes(pending[:BLOCK_BYTES]))
                del pending[:BLOCK_BYTES]
        if pending:
            self._append(bytes(pending))
        if not self._size:
            raise DumpError("nothing can be unpacked from the archive: it is empty or breaks off", path=label)

    def _append(self, block: bytes) -> None:
        self._blocks.append(zlib.compress(block, 1))
        self._size += len(block)

    @property
    def packed_bytes(self) -> int:
        """Memory that the blocks take, in bytes."""
        return sum(len(block) for block in self._blocks)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        number, start = divmod(self._position, BLOCK_BYTES)
        if self._position >= self._size:
            return 0
        part = self._block(number)[start : start + len(view)]
        view[: len(part)] = part
        self._position += len(part)
        return len(part)

    def read(self, size: int | None = -1, /) -> bytes:
        # A raw file may return less than was asked for; tarfile takes that for the end.
        remaining = self._size - self._position if size is None or size < 0 else size
        parts: list[bytes] = []
        while remaining > 0 and self._position < self._size:
            number, start = divmod(self._position, BLOCK_BYTES)
            part = self._block(number)[start : start + remaining]
            parts.append(part)
            self._position += len(part)
            remaining -= len(part)
        return b"".join(parts)

    def _block(self, number: int) -> bytes:
        block = self._cache.get(number)
        if block is None:
            block = self._cache[number] = zlib.decompress(self._blocks[number])
            if len(self._cache) > CACHED_BLOCKS:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(number)
        return block


class _Guard:
    """Refuses a stream that unpacks out of proportion."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._packed = 0
        self._unpacked = 0

    def took(self, size: int) -> None:
        self._packed += size

    def gave(self, chunk: bytes) -> bytes:
        self._unpacked += len(chunk)
        if self._unpacked > MAX_UNPACKED_BYTES or (
            self._unpacked > BOMB_FLOOR_BYTES and self._unpacked > BOMB_RATIO * self._packed
        ):
            raise DumpError(
                f"the archive unpacks from {self._packed} to more than {self._unpacked} bytes; refused as a bomb",
                path=self._label,
            )
        return chunk


def gzip_chunks(file: BinaryIO, label: str) -> Iterator[bytes]:
    """The unpacked chunks of a gzip stream of one or many members. Raises ``DumpError`` where it is damaged.

    A stream that merely breaks off ends here: the files before the break are worth reading, and tar notices the end.
    """
    guard = _Guard(label)
    unpacker = zlib.decompressobj(31)
    try:
        while data := file.read(_READ_BYTES):
            guard.took(len(data))
            while data:
                chunk = unpacker.decompress(data, BLOCK_BYTES)
                if chunk:
                    yield guard.gave(chunk)
                data = unpacker.unconsumed_tail
                if unpacker.eof:
                    data = unpacker.unused_data.lstrip(b"\0")
                    unpacker = zlib.decompressobj(31)
    except zlib.error as error:
        raise DumpError(f"damaged gzip data: {error}", path=label) from None


def zstd_chunks(file: BinaryIO, label: str) -> Iterator[bytes]:
    """The unpacked chunks of a zstd stream. Raises ``DumpError`` where it is damaged or zstandard is not installed."""
    try:
        import zstandard
    except ImportError:
        raise UnsupportedError(
            "reading .zst archives needs the zstandard package", path=label, hint="pip install zstandard"
        ) from None
    guard = _Guard(label)
    try:
        counting = _Counting(file, guard)
        with zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(
            cast("BinaryIO", counting), read_across_frames=True, closefd=False
        ) as reader:
            while chunk := reader.read(BLOCK_BYTES):
                yield guard.gave(chunk)
    except zstandard.ZstdError as error:
        raise DumpError(f"damaged zstd data: {error}", path=label) from None


class _Counting(io.RawIOBase):
    """Counts what the decompressor takes from a file."""

    def __init__(self, file: BinaryIO, guard: _Guard) -> None:
        super().__init__()
        self._file = file
        self._guard = guard

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._file.read(len(view))
        self._guard.took(len(data))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        data = self._file.read(-1 if size is None else size)
        self._guard.took(len(data))
        return data
