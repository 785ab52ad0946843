"""Ledger files on disk: creating one without harming another, and opening one in whatever state it is found.

A ledger is written in SQLite's WAL mode and closed to one plain file. A reader may meet it closed, while it is being
written, or as a killed writer left it (with a ``-wal`` file beside it), possibly on a file system that it cannot
write; in each case it sees exactly what was committed, and never changes the ledger.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hloscope.core.errors import LedgerError
from hloscope.core.ledger.schema import APPLICATION_ID, INDEXED_ROWS, INDEXES, SCHEMA, Schema

_MAGIC = b"SQLite format 3\0"
_HEADER_SIZE = 100
_SIDE_FILES = ("-wal", "-shm", "-journal")
_BUSY_SECONDS = 5.0
_SMALL_FILES = ((300_000, 512), (4_000_000, 1024))
"""(largest file in bytes, page size): half-empty pages are what a small ledger is made of."""
PAGE_SIZE = 4096
"""Of a file that is compacted when it is complete."""
SMALL_PAGE_SIZE = 2048
"""Of one that stays as it is written."""
_COMPACT_LIMIT = 256 << 20
"""Above this size in bytes a file is not rewritten at the end."""


class LedgerConnection(sqlite3.Connection):
    """A connection that knows its ledger's path and removes its private copy, if it needed one, when closed."""

    path: str = ""
    """The file itself; a run that replaces another one writes a sibling of it."""
    replaces: str | None = None
    """The existing file that a writer's takes the place of when it is complete."""
    inode: int = 0
    """Of the file that a writer made."""
    scratch: tempfile.TemporaryDirectory[str] | None = None
    unpacked: int = 0
    """Number of the last batch of events that a reader has made rows of."""

    def close(self) -> None:
        super().close()
        if self.scratch is not None:
            self.scratch.cleanup()
            self.scratch = None


_FULL_BYTES = 256 << 10


def _disk_is_full(path: str) -> bool:
    """Whether next to nothing is left where the file is: SQLite says no more than "I/O error" on some file systems."""
    try:
        return shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free < _FULL_BYTES
    except OSError:
        return False


def ledger_error(path: str, error: Exception, doing: str, kept: str = "") -> LedgerError:
    """One line for what SQLite or the system refused; ``kept`` says what a full disk has left, if anything."""
    after = f"; {kept}" if kept else ""
    text = str(error)
    if isinstance(error, OSError):
        return LedgerError(f"cannot {doing}: {error.strerror or text}{after}", path=path)
    if "locked" in text or "busy" in text:
        return LedgerError(f"cannot {doing}: another process holds the ledger", path=path)
    if "full" in text or "disk I/O" in text:
        full = "database or disk is full" if _disk_is_full(path) else text
        return LedgerError(f"cannot {doing}: {full}{after}", path=path)
    if isinstance(error, UnicodeError):
        return LedgerError("the ledger is damaged (a text in it is not UTF-8)", path=path)
    if isinstance(error, json.JSONDecodeError):
        return LedgerError("the ledger is damaged (a list in it cannot be read)", path=path)
    if "malformed" in text or "not a database" in text or "corrupt" in text:
        return LedgerError(f"the ledger is damaged ({text})", path=path)
    return LedgerError(f"cannot {doing}: {text}", path=path)


@contextmanager
def reading(path: str) -> Generator[None]:
    """Turn SQLite's and the system's errors while reading into one LedgerError line."""
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeError, json.JSONDecodeError) as error:
        raise ledger_error(path, error, "read the ledger") from error


def is_ledger(path: str | os.PathLike[str]) -> bool:
    """Whether a file carries a ledger's mark; False for anything else, including what cannot be read."""
    try:
        with open(path, "rb") as stream:
            header = stream.read(_HEADER_SIZE)
    except OSError:
        return False
    return header.startswith(_MAGIC) and struct.unpack(">I", header[68:72].ljust(4, b"\0"))[0] == APPLICATION_ID


def _check_header(path: str, schema: Schema) -> int:
    """The schema version of a ledger file; raises LedgerError for anything that cannot be one."""
    try:
        if os.path.isdir(path):
            raise LedgerError("is a directory, not a ledger", path=path)
        size = os.path.getsize(path)
        with open(path, "rb") as stream:
            header = stream.read(_HEADER_SIZE)
    except OSError as error:
        raise ledger_error(path, error, "open the ledger") from error
    if not header:
        raise LedgerError("the file is empty, not a ledger", path=path)
    if not header.startswith(_MAGIC[: len(header)]):
        raise LedgerError("not a ledger", path=path)
    if len(header) < _HEADER_SIZE:
        raise LedgerError(f"the ledger is cut off after {size} bytes", path=path)
    (application,) = struct.unpack(">I", header[68:72])
    if application != APPLICATION_ID:
        raise LedgerError("an SQLite database, but not a ledger", path=path)
    (version,) = struct.unpack(">I", header[60:64])
    if version > schema.version:
        raise LedgerError(
            f"written by a newer hloscope (ledger format {version}, this version reads up to {schema.version})",
            path=path,
        )
    page_size = struct.unpack(">H", header[16:18])[0]
    expected = struct.unpack(">I", header[28:32])[0] * (65536 if page_size == 1 else page_size)
    if size < expected and not os.path.exists(path + "-wal"):
        raise LedgerError(f"the ledger is cut off: {size} of {expected} bytes", path=path)
    return int(version)


def _connect(path: str, options: str) -> LedgerConnection:
    uri = f"file:{quote(os.path.abspath(path))}?{options}"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=_BUSY_SECONDS, factory=LedgerConnection, check_same_thread=False
    )
    return connection


def _probe(connection: LedgerConnection) -> LedgerConnection:
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except (sqlite3.Error, UnicodeError):
        connection.close()
        raise
    return connection


def _open_copy(path: str) -> LedgerConnection:
    """Open a private copy, made where SQLite may write: recovering what a killed writer left needs that."""
    scratch = tempfile.TemporaryDirectory(prefix="hloscope-ledger-")
    try:
        copy = os.path.join(scratch.name, "ledger")
        for suffix in ("", "-wal", "-journal"):
            if os.path.exists(path + suffix):
                shutil.copyfile(path + suffix, copy + suffix)
        connection = _probe(_connect(copy, "mode=rw"))
    except BaseException:
        scratch.cleanup()
        raise
    connection.scratch = scratch
    return connection


def _has_content(path: str) -> bool:
    with suppress(OSError):
        return os.path.getsize(path) > 0
    return False


def lacks_its_wal(path: str) -> bool:
    """Whether a ledger was being written and the file beside it, which holds what was committed, is not there."""
    with suppress(OSError), open(path, "rb") as stream:
        # The format that SQLite notes in bytes 18 and 19 is 2 in WAL mode.
        return stream.read(20)[18:] == b"\2\2" and not _has_content(path + "-wal")
    return False


def open_ledger(path: str | os.PathLike[str], *, schema: Schema = SCHEMA) -> LedgerConnection:
    """Open a ledger for reading, in whatever state it is; the file itself is never changed.

    A file of an older format is upgraded in a private copy. Raises LedgerError (one line) for a missing, foreign, cut
    off, damaged or newer file.
    """
    name = os.fspath(path)
    version = _check_header(name, schema)
    try:
        if _has_content(name + "-wal") or _has_content(name + "-journal"):
            try:
                connection = _probe(_connect(name, "mode=ro"))
            except sqlite3.OperationalError:
                connection = _open_copy(name)
        else:
            connection = _probe(_connect(name, "mode=ro&immutable=1"))
        if version < schema.version:
            connection = _upgraded_copy(connection, version, schema)
        connection.execute("PRAGMA temp_store=MEMORY")
        schema.shadow_views(connection)
    except (sqlite3.Error, OSError, UnicodeError) as error:
        raise ledger_error(name, error, "open the ledger") from error
    connection.path = name
    connection.execute("PRAGMA query_only=1")
    return connection


def _upgraded_copy(old: LedgerConnection, version: int, schema: Schema) -> LedgerConnection:
    scratch = tempfile.TemporaryDirectory(prefix="hloscope-ledger-")
    try:
        new = _connect(os.path.join(scratch.name, "ledger"), "mode=rwc")
        new.scratch = scratch
        old.backup(new)
        schema.migrate(new, version)
    except BaseException:
        scratch.cleanup()
        raise
    finally:
        old.close()
    return new


def upgrade_ledger(path: str | os.PathLike[str], *, schema: Schema = SCHEMA) -> bool:
    """Bring a file of an older format up to date in place, in one transaction; False when it already was."""
    name = os.fspath(path)
    version = _check_header(name, schema)
    if version == schema.version:
        return False
    try:
        connection = _connect(name, "mode=rw")
        try:
            schema.migrate(connection, version)
        finally:
            connection.close()
    except (sqlite3.Error, OSError) as error:
        raise ledger_error(name, error, "upgrade the ledger") from error
    return True


def partial_path(path: str) -> str:
    """Where a run that is to replace an existing ledger is written until it is complete."""
    return f"{path}.partial"


def create_ledger(
    path: str | os.PathLike[str], *, force: bool = False, page_size: int = PAGE_SIZE
) -> LedgerConnection:
    """Make an empty ledger and open it for writing.

    An existing file is refused unless ``force`` is set, and then stays as it is until ``publish_ledger``: the new run
    is written to ``partial_path``, where it can be read if it is killed, in place of what a dead writer left there.
    Without an existing file the run is written under its own name. Raises LedgerError.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        raise LedgerError("is a directory, not a ledger", path=name)
    target, replaces = name, None
    if os.path.lexists(name):
        if not force:
            raise LedgerError("exists already; it is not overwritten without being told to", path=name)
        if os.path.exists(name) and not os.path.isfile(name):
            raise LedgerError("is not a regular file; it is not replaced", path=name)
        _refuse_live(name, name)
        target, replaces = partial_path(name), name
        if os.path.isdir(target):
            raise LedgerError("is a directory, not a ledger", path=target)
        _refuse_live(target, name)
    fresh = f"{name}.new-{os.getpid()}"
    try:
        try:
            _make_empty(fresh, page_size)
            if replaces is not None:
                remove_ledger(target)
            _publish(fresh, target)
        finally:
            remove_ledger(fresh)
        try:
            # A stale WAL without its file would otherwise be replayed into the new one.
            _remove_side_files(target)
            connection = _connect(target, "mode=rw")
            connection.path, connection.replaces, connection.inode = target, replaces, os.stat(target).st_ino
            # A killed process loses nothing that it handed to the system; waiting for the disk would guard against
            # a power cut, and costs more than all else that a ledger costs.
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("PRAGMA journal_mode=WAL")
        except BaseException:
            remove_ledger(target)
            raise
    except FileExistsError as error:
        if replaces is not None:
            raise LedgerError("another process is writing this ledger", path=name) from error
        raise LedgerError("exists already; it is not overwritten without being told to", path=name) from error
    except (sqlite3.Error, OSError) as error:
        raise ledger_error(name, error, "create the ledger") from error
    return connection


def is_made_by(connection: LedgerConnection) -> bool:
    """Whether the file under a writer's name is still the one that it made."""
    try:
        return os.stat(connection.path).st_ino == connection.inode
    except OSError:
        return False


def remove_ledger(path: str) -> None:
    """Remove a ledger file, if there is one, with what SQLite keeps beside it."""
    Path(path).unlink(missing_ok=True)
    _remove_side_files(path)


def _remove_side_files(path: str) -> None:
    for suffix in _SIDE_FILES:
        Path(path + suffix).unlink(missing_ok=True)


def _make_empty(path: str, page_size: int) -> None:
    with open(path, "xb") as stream:
        stream.write(_empty(page_size))


@cache
def _empty(page_size: int) -> bytes:
    """The file of an empty ledger; put together in memory, and once, since SQLite takes milliseconds over the views."""
    connection: Any = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size={page_size}")
        connection.execute("BEGIN")
        SCHEMA.create(connection)
        connection.execute("COMMIT")
        return connection.serialize()
    finally:
        connection.close()


def _publish(fresh: str, name: str) -> None:
    """Give the new file its name unless somebody else just took it."""
    try:
        os.link(fresh, name)
    except FileExistsError:
        raise
    except OSError:
        # File systems without hard links: the name is claimed first, then replaced.
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.replace(fresh, name)


def _refuse_live(name: str, said: str) -> None:
    """Refuse to replace a ledger that another process is writing at this moment; folds what a dead one left.

    Readers of a finished run are no reason: they keep the old file until they close it.
    """
    if not is_ledger(name) or not _has_content(name + "-wal"):
        return
    try:
        connection = sqlite3.connect(name, timeout=0.0, isolation_level=None)
        try:
            # Only the last connection can leave WAL mode, so this fails exactly while a writer is alive.
            connection.execute("PRAGMA journal_mode=DELETE")
        finally:
            connection.close()
    except sqlite3.OperationalError as error:
        if "locked" in str(error) and not _is_finished(name):
            raise LedgerError("another process is writing this ledger", path=said) from error
    except sqlite3.Error:
        return


def _is_finished(name: str) -> bool:
    try:
        connection = _connect(name, "mode=ro")
        try:
            return not connection.execute("SELECT count(*) FROM run_rows WHERE NOT complete").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error:
        return False


def close_ledger(connection: LedgerConnection, *, compact: bool = True) -> None:
    """Fold the WAL into the file, shrink the file where asked to and close it.

    Every step may fail without losing anything. Raises LedgerError where the disk is too full for folding: everything
    is there then, in the file and in the WAL beside it together.
    """
    try:
        connection.execute("PRAGMA busy_timeout=200")
        with suppress(sqlite3.Error):
            for table, statement in INDEXES.items():
                if connection.execute(f"SELECT 1 FROM {table} LIMIT 1 OFFSET {INDEXED_ROWS - 1}").fetchone():
                    connection.execute(statement)
        try:
            if _is_folded(connection) and compact:
                with suppress(sqlite3.Error):
                    _compact(connection)
        except sqlite3.Error as error:
            if "full" in str(error) or "disk I/O" in str(error):
                name = connection.path
                kept = f"keep {os.path.basename(name)}-wal beside it, which holds the rest"
                raise ledger_error(name, error, "make the ledger one plain file", kept) from error
    finally:
        connection.close()


def _is_folded(connection: LedgerConnection) -> bool:
    """Fold the WAL into the file; False where a reader that still looks on keeps WAL mode alive.

    Then what the reader does not use is moved all the same, so that the file alone holds everything.
    """
    try:
        if connection.execute("PRAGMA journal_mode=DELETE").fetchone()[0] == "delete":
            return True
    except sqlite3.OperationalError as error:
        if "locked" not in str(error) and "busy" not in str(error):
            raise
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return False


def publish_ledger(connection: LedgerConnection) -> None:
    """Give a complete, closed run the name of the file that it replaces; nothing to do for one written in place.

    Raises LedgerError and leaves both files where that cannot be done.
    """
    name, partial = connection.replaces, connection.path
    if name is None:
        return
    _refuse_live(name, name)
    whole = partial
    try:
        if not is_made_by(connection):
            raise LedgerError("another process is writing this ledger", path=name)
        if _has_content(partial + "-wal"):
            # A reader that still looks on has kept the WAL apart; one file can be replaced at once, two cannot.
            whole = f"{name}.new-{os.getpid()}"
            _copy_whole(partial, whole)
        # A stale WAL of the old file would otherwise be replayed into the new one.
        _remove_side_files(name)
        os.replace(whole, name)
        remove_ledger(partial)
    except (sqlite3.Error, OSError) as error:
        raise ledger_error(name, error, "replace the ledger", f"the new one is {partial}") from error
    finally:
        if whole != partial:
            remove_ledger(whole)


def _copy_whole(path: str, copy: str) -> None:
    connection = _connect(path, "mode=rw")
    try:
        connection.execute("VACUUM INTO ?", (copy,))
    finally:
        connection.close()


def _compact(connection: LedgerConnection) -> None:
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    free = connection.execute("PRAGMA freelist_count").fetchone()[0]
    size = (pages - free) * connection.execute("PRAGMA page_size").fetchone()[0]
    if size > _COMPACT_LIMIT and free * 10 < pages:
        return
    page_size = next((one for limit, one in _SMALL_FILES if size <= limit), 4096)
    connection.execute(f"PRAGMA page_size={page_size}")
    connection.execute("VACUUM")
