"""Folders for dumps that are read and thrown away, also after a kill.

A folder is locked while the process that made it lives, or the program that still writes to it. What a killed process
left lies unlocked, and the next one removes it: a dump can be gigabytes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress

try:
    import fcntl
except ImportError:  # no such locks: nothing is swept
    fcntl = None

_PREFIX = "hloscope-dump."
_KEPT = "hloscope-kept-dump."
_GRACE_SECONDS = 60.0
"""A folder younger than this may not be locked yet."""


@contextmanager
def scratch_folder() -> Generator[tuple[str, tuple[int, ...]]]:
    """A new folder, gone at the end, and the descriptors that a child must inherit to keep it as long as it runs."""
    sweep()
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    lock = _locked(folder)
    try:
        yield folder, () if lock is None else (lock,)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def keep_folder(folder: str) -> str:
    """Moves a scratch folder to a name under which nothing removes it, and returns that."""
    kept = tempfile.mkdtemp(prefix=_KEPT)
    os.replace(folder, kept)  # onto an empty folder
    return kept


def sweep() -> int:
    """Removes the folders that killed processes of this user left, and returns how many."""
    if fcntl is None:
        return 0
    removed = 0
    parent = tempfile.gettempdir()
    with suppress(OSError):
        for entry in list(os.scandir(parent)):
            if entry.name.startswith(_PREFIX) and _is_left(entry):
                removed += _removed(entry.path)
    return removed


def _is_left(entry: os.DirEntry[str]) -> bool:
    try:
        found = entry.stat(follow_symlinks=False)
        ours = entry.is_dir(follow_symlinks=False) and found.st_uid == os.getuid()
    except OSError:
        return False
    return ours and time.time() - found.st_mtime > _GRACE_SECONDS


def _removed(folder: str) -> bool:
    lock = _locked(folder)
    if lock is None:
        return False
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
    return True


def _locked(folder: str) -> int | None:
    """A descriptor that holds the folder's lock; None where somebody else holds it or there are no locks."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
