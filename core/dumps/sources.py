"""Where the files of a dump come from: a folder, or an archive read in place.

Every source lists its files (path, bytes) and reads any of them, whole or from the front. Archives are never unpacked
to disk, so a member's name can do no harm: a name that climbs out of the archive is reported and left out. A compressed
tar is held in memory as small compressed blocks (``blocks.py``), which makes each member readable on its own.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, cast

from hloscope.core.dumps.blocks import BOMB_FLOOR_BYTES, BOMB_RATIO, BlockFile, gzip_chunks, zstd_chunks
from hloscope.core.dumps.cut_zip import CutZip, LocalMember
from hloscope.core.errors import DumpError

M = TypeVar("M")

MAX_DEPTH = 12
"""Folders below the dump that are looked into; XLA writes at most three."""
MAX_MEMBER_BYTES = 8 << 30
"""Largest member of an archive that is read into memory, in bytes."""

_SCANNED_BLOCKS = 2048
"""Blocks of a tar that are read at once while a header is looked for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a source."""

    path: str
    """Relative to the source, ``/`` between folders."""
    size: int
    """Bytes as stored in the dump (after unpacking)."""
    mtime_ns: int = 0


class FileSource(Protocol):
    """The files of one dump."""

    label: str
    """The path as the user gave it."""
    notes: list[str]
    """What was left out, one sentence each."""

    def entries(self) -> Iterator[Entry]:
        """Every file, in no particular order."""
        ...

    def read(self, path: str, limit: int | None = None) -> bytes:
        """The bytes of a file, at most ``limit`` from its front. Raises ``DumpError`` where it cannot be read."""
        ...

    def close(self) -> None:
        """Gives back open files; the source cannot be read afterwards."""
        ...


class FolderSource:
    """A dump directory; symbolic links to folders below it are not followed."""

    def __init__(self, path: str) -> None:
        self.label = path
        self.notes: list[str] = []
        self._root = path

    def entries(self) -> Iterator[Entry]:
        stack = [("", 0)]
        while stack:
            prefix, depth = stack.pop()
            try:
                with os.scandir(os.path.join(self._root, prefix)) as found:
                    for item in found:
                        if item.is_dir(follow_symlinks=False):
                            if depth < MAX_DEPTH:
                                stack.append((f"{prefix}{item.name}/", depth + 1))
                            else:
                                self.notes.append(f"{prefix}{item.name}: too deep, not looked into")
                            continue
                        entry = self._file(prefix, item)
                        if entry is not None:
                            yield entry
            except OSError as error:
                if not prefix:
                    raise DumpError(f"cannot be read: {_reason(error)}", path=self.label) from None
                self.notes.append(f"{prefix}: cannot be read: {_reason(error)}")

    def _file(self, prefix: str, item: os.DirEntry[str]) -> Entry | None:
        try:
            info = item.stat()
        except OSError as error:
            self.notes.append(f"{prefix}{item.name}: cannot be read: {_reason(error)}")
            return None
        if not stat.S_ISREG(info.st_mode):
            return None
        return Entry(prefix + item.name, info.st_size, info.st_mtime_ns)

    def read(self, path: str, limit: int | None = None) -> bytes:
        try:
            with open(os.path.join(self._root, path), "rb", buffering=0) as file:
                if limit is None:
                    return file.readall()
                return file.read(limit) or b""
        except OSError as error:
            raise DumpError(f"cannot be read: {_reason(error)}", path=path) from None

    def close(self) -> None:
        pass


class TarSource:
    """A tar archive, packed or not, read in place."""

    def __init__(self, path: str, file: io.RawIOBase | io.BufferedIOBase) -> None:
        self.label = path
        self.notes: list[str] = []
        self._file = file
        self._members: dict[str, tarfile.TarInfo] = {}
        self._tar: tarfile.TarFile | None = None
        self._broken: str | None = None
        at: int | None = 0
        while at is not None:
            at = self._index(at)
        if not self._members and self._broken is not None:
            raise DumpError(f"not a readable tar archive: {self._broken}", path=path)

    def _index(self, at: int) -> int | None:
        """Takes in the members from byte `at` on; where the next readable header is, should one in between be damaged.

        ``tarfile`` ends at such a header as at the end of an archive, so the end is looked at here.
        """
        where = at
        reader: tarfile.TarFile | None = None
        try:
            self._file.seek(at)
            reader = tarfile.TarFile(fileobj=cast("io.BufferedReader", self._file), mode="r")
            self._tar = self._tar or reader
            for member in reader:
                if member.isfile():
                    _keep(self._members, member.name, member, self.notes)
                elif not member.isdir():
                    self.notes.append(f"{_shown(member.name)}: a link or device, left out")
            where = reader.offset
            self._file.seek(where)
            block = self._file.read(tarfile.BLOCKSIZE) or b""
            if len(block) == tarfile.BLOCKSIZE and not any(block):
                return None
            why = "its end mark is missing"
        except (tarfile.TarError, OSError, EOFError, ValueError) as error:
            why = str(error)
            where = reader.offset if reader is not None else where
        following = self._next_header(where + tarfile.BLOCKSIZE)
        if following is None:
            self._broken = why
            self.notes.append(f"the archive breaks off: {why}")
        else:
            self.notes.append(f"a header of the archive is damaged, at byte {where}: what it is of is left out")
        return following

    def _next_header(self, at: int) -> int | None:
        """The first place from `at` on where a header stands whose checksum is right; None where there is none."""
        try:
            self._file.seek(at)
            while data := self._file.read(_SCANNED_BLOCKS * tarfile.BLOCKSIZE):
                for begin in range(0, len(data), tarfile.BLOCKSIZE):
                    if data[begin + 257 : begin + 262] == b"ustar" and _is_header(data[begin : begin + 512]):
                        return at + begin
                at += len(data)
        except (OSError, EOFError):
            pass
        return None

    def entries(self) -> Iterator[Entry]:
        for name, member in self._members.items():
            yield Entry(name, member.size, int(member.mtime * 1e9))

    def read(self, path: str, limit: int | None = None) -> bytes:
        member = _found(self._members, path)
        if limit is None and member.size > MAX_MEMBER_BYTES:
            raise DumpError(f"{member.size} bytes are too many for one file of an archive", path=path)
        try:
            file = self._tar.extractfile(member) if self._tar is not None else None
            if file is None:
                return b""
            return file.read() if limit is None else file.read(limit)
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise DumpError(f"cannot be read from the archive: {error}", path=path) from None

    def close(self) -> None:
        if self._tar is not None:
            self._tar.close()
        self._file.close()


def _is_header(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


class ZipSource:
    """A zip archive, read in place."""

    def __init__(self, path: str) -> None:
        self.label = path
        self.notes: list[str] = []
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise DumpError(f"not a readable zip archive: {error}", path=path) from None
        self._members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            if not info.is_dir():
                _keep(self._members, info.filename, info, self.notes)

    def entries(self) -> Iterator[Entry]:
        for name, info in self._members.items():
            yield Entry(name, info.file_size)

    def read(self, path: str, limit: int | None = None) -> bytes:
        info = _found(self._members, path)
        _refuse_large(path, info.file_size, info.compress_size, limit)
        try:
            with self._zip.open(info) as file:
                # The size in the directory is a claim: never read past it.
                return file.read(info.file_size if limit is None else min(limit, info.file_size))
        except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError, zlib.error) as error:
            raise DumpError(f"cannot be read from the archive: {error}", path=path) from None

    def close(self) -> None:
        self._zip.close()


class CutZipSource:
    """What is whole of a zip archive that was cut off. Raises ``DumpError`` where nothing is."""

    def __init__(self, path: str) -> None:
        self.label = path
        self.notes: list[str] = []
        self._zip = CutZip(Path(path).open("rb"))
        self._members: dict[str, LocalMember] = {}
        for member in self._zip.members:
            _keep(self._members, member.name, member, self.notes)
        self.notes.append(self._zip.end)
        if not self._members:
            self.close()
            raise DumpError(f"not a readable zip archive: {self._zip.end}", path=path)

    def entries(self) -> Iterator[Entry]:
        for name, member in self._members.items():
            yield Entry(name, member.size)

    def read(self, path: str, limit: int | None = None) -> bytes:
        member = _found(self._members, path)
        _refuse_large(path, member.size, member.packed, limit)
        try:
            return self._zip.read(member, member.size if limit is None else min(limit, member.size))
        except (OSError, zlib.error) as error:
            raise DumpError(f"cannot be read from the archive: {error}", path=path) from None

    def close(self) -> None:
        self._zip.close()


def _keep(members: dict[str, M], name: str, member: M, notes: list[str]) -> None:
    """Take a member in under its path in the archive; a note where its name leads out of it."""
    path = safe_member_name(name)
    if path is None:
        notes.append(f"{_shown(name)}: a name that leaves the archive, left out")
    else:
        members[path] = member


def _found(members: dict[str, M], path: str) -> M:
    """The member with that path. Raises ``DumpError`` where there is none."""
    if path not in members:
        raise DumpError("no such file in the archive", path=path)
    return members[path]


def _refuse_large(path: str, size: int, packed: int, limit: int | None) -> None:
    """Raises ``DumpError`` for a member of a zip that is too large, or that claims to unpack to far too much."""
    if limit is None and size > MAX_MEMBER_BYTES:
        raise DumpError(f"{size} bytes are too many for one file of an archive", path=path)
    if size > BOMB_FLOOR_BYTES and size > BOMB_RATIO * packed:
        raise DumpError(f"{packed} bytes unpack to {size}; refused as a bomb", path=path)


def safe_member_name(name: str) -> str | None:
    """The member's path without ``./`` and leading slashes; None where it leaves the archive or names no file."""
    clean = name.replace("\\", "/").lstrip("/")
    if ".." in clean.split("/") or "\0" in clean:
        return None
    clean = posixpath.normpath(clean)
    return None if clean in (".", "") else clean


def open_source(path: str | os.PathLike[str]) -> FileSource:
    """The files of a dump directory or of an archive of one. Raises ``DumpError`` for anything else."""
    label = os.fspath(path)
    try:
        info = os.stat(label)
    except OSError as error:
        raise DumpError(_reason(error), path=label) from None
    if stat.S_ISDIR(info.st_mode):
        return FolderSource(label)
    if not stat.S_ISREG(info.st_mode):
        raise DumpError("neither a directory nor a file", path=label)
    return _open_archive(label)


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Whether a file is an archive that ``open_source`` reads, judged by its first bytes and, for tar, its name."""
    label = os.fspath(path)
    try:
        with open(label, "rb") as file:
            head = file.read(512)
    except OSError:
        return False
    if head[:4] in _ZIP_MAGIC or head[257:262] == b"ustar":
        return True
    name = label.lower()
    if head[:2] == _GZIP_MAGIC:
        return name.endswith((".tar.gz", ".tgz")) or not name.endswith((".pb.gz", ".txt.gz", ".hlo.gz"))
    if head[:4] == _ZSTD_MAGIC:
        return True
    return name.endswith(".tar")


_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")


def _open_archive(label: str) -> FileSource:
    try:
        file = Path(label).open("rb")
    except OSError as error:
        raise DumpError(_reason(error), path=label) from None
    head = file.read(512)
    file.seek(0)
    if head[:4] in _ZIP_MAGIC:
        file.close()
        # Without its end, where a zip's directory stands, what comes before is still there.
        return ZipSource(label) if zipfile.is_zipfile(label) else CutZipSource(label)
    if head[:2] == _GZIP_MAGIC:
        with file:
            return TarSource(label, BlockFile(gzip_chunks(file, label), label))
    if head[:4] == _ZSTD_MAGIC:
        with file:
            return TarSource(label, BlockFile(zstd_chunks(file, label), label))
    if head[257:262] == b"ustar" or label.lower().endswith(".tar"):
        return TarSource(label, file)
    file.close()
    raise DumpError(
        "neither a dump directory nor an archive of one", path=label, hint="archives: .tar, .tar.gz, .tar.zst, .zip"
    )


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _shown(name: str) -> str:
    return name if name.isprintable() and len(name) < 200 else repr(name[:100])
