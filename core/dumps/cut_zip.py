"""The members of a zip archive whose end is missing, found by the headers in front of each.

A zip's directory stands at its end, so an archive that was cut off has none; what stands before the break is whole.
Source: PKWARE's APPNOTE.TXT, 4.3.7 (local file header) and 4.3.9 (data descriptor).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from hloscope.core.dumps.blocks import BOMB_FLOOR_BYTES, BOMB_RATIO

_HEADER = struct.Struct("<4s5H3I2H")
_MAGIC = b"PK\x03\x04"
_DESCRIPTOR = b"PK\x07\x08"
_SIZES_BEHIND = 1 << 3
"""Flag: checksum and sizes stand behind the data, since the writer could not go back."""
_UTF8 = 1 << 11
_ENCRYPTED = 1
_STORED, _DEFLATED = 0, 8
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class LocalMember:
    """One whole member."""

    name: str
    begin: int
    """Offset of its data in the archive."""
    packed: int
    """Bytes of the data."""
    size: int
    """Bytes once unpacked, as the archive claims."""
    deflated: bool


class CutZip:
    """An archive without its directory, read member by member; members that are not whole are not among them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.end = ""
        """Why nothing follows the last member."""
        self.members: list[LocalMember] = list(self._walk())

    def _walk(self) -> Iterator[LocalMember]:
        self.end = "the archive breaks off: its directory is missing"
        size = self._file.seek(0, 2)
        at = 0
        while at + _HEADER.size <= size:
            self._file.seek(at)
            magic, _, flags, method, _, _, _, packed, unpacked, name_bytes, extra = _HEADER.unpack(
                self._file.read(_HEADER.size)
            )
            if magic != _MAGIC:
                return
            name = self._file.read(name_bytes).decode("utf-8" if flags & _UTF8 else "cp437", "replace")
            begin = at + _HEADER.size + name_bytes + extra
            if flags & _ENCRYPTED or method not in (_STORED, _DEFLATED) or packed == 0xFFFFFFFF:
                self.end = f"the archive breaks off: its directory is missing, and {name} cannot be read without it"
                return
            behind = 0
            if flags & _SIZES_BEHIND:
                found = self._inflated(begin, name) if method == _DEFLATED else None
                if found is None:
                    return
                packed, unpacked = found
                self._file.seek(begin + packed)
                behind = 16 if self._file.read(4) == _DESCRIPTOR else 12
            at = begin + packed + behind
            if at > size:
                self.end = f"the archive breaks off within {name}"
                return
            if not name.endswith("/"):
                yield LocalMember(name, begin, packed, unpacked, method == _DEFLATED)

    def _inflated(self, begin: int, name: str) -> tuple[int, int] | None:
        """The packed and unpacked bytes of data whose end only unpacking tells; None where it has none."""
        self._file.seek(begin)
        unpacker = zlib.decompressobj(-15)
        packed = unpacked = 0
        try:
            while not unpacker.eof:
                data = unpacker.unconsumed_tail or self._file.read(_PIECE)
                if not data:
                    break
                unpacked += len(unpacker.decompress(data, _PIECE))
                packed += len(data) - len(unpacker.unconsumed_tail) - len(unpacker.unused_data)
                if unpacked > BOMB_FLOOR_BYTES and unpacked > BOMB_RATIO * packed:
                    self.end = f"{name} unpacks from {packed} to more than {unpacked} bytes; refused as a bomb"
                    return None
        except zlib.error:
            pass
        if not unpacker.eof:
            self.end = f"the archive breaks off within {name}"
            return None
        return packed, unpacked

    def read(self, member: LocalMember, limit: int) -> bytes:
        """At most `limit` bytes of a member from its front. Raises ``zlib.error`` where it is damaged."""
        self._file.seek(member.begin)
        if not member.deflated:
            return self._file.read(min(limit, member.packed))
        # A length of 0 would mean "all".
        return zlib.decompressobj(-15).decompress(self._file.read(member.packed), limit) if limit else b""

    def close(self) -> None:
        """Gives back the file."""
        self._file.close()
