"""Whether the files that a command is to write may be written: asked once, before anything runs.

    check_outputs(force, ledger=ledger, files=[output], inputs=[path, *plugin])

Without ``--force`` nothing that exists is replaced. With it, still: not what the command itself reads, not one file for
two outputs, and no file that was not named. Devices and pipes are written into, not replaced, and are nobody's loss.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from hloscope.core.errors import UsageError


def check_outputs(
    force: bool,
    *,
    ledger: str | None = None,
    files: Iterable[str | None] = (),
    folder: str | None = None,
    inputs: Iterable[str | None] = (),
) -> None:
    """Raises UsageError where one of a command's outputs may not be written.

    ``files`` are outputs other than a ledger, ``folder`` is one for a dump, ``inputs`` what the command reads; None
    stands for none, among ``inputs`` ``-`` too.
    """
    read = [given for given in _named(inputs) if given != "-"]
    written = _named([ledger, *files])
    for output in written:
        refuse_existing(output, force)
    for at, output in enumerate(written):
        for given in read:
            if _is_one_file(output, given):
                raise UsageError("is what the command reads; its output needs another name", path=output)
        if any(_is_one_file(output, other) for other in (*written[:at], *_named([folder]))):
            raise UsageError("is asked for as two outputs; each needs a name of its own", path=output)
    if folder is not None and force:
        for given in read:
            if _is_one_file(folder, given) or _is_of_dump(given, folder):
                raise UsageError("is what the command reads; the dump needs another folder", path=given)
    if ledger is not None:
        beside = _partial(ledger)
        if _is_filled_file(beside) and not _is_ledger(beside):
            raise UsageError("is not a ledger; the new one would stand there until it is whole", path=beside)


def refuse_existing(output: str, force: bool) -> None:
    """Raises UsageError where a file would be overwritten without ``--force``, or could not be made where it should be:
    asked before the work whose result it is to hold."""
    there = os.path.lexists(output)
    if not force and there:
        raise UsageError("exists already", path=output, hint="--force replaces it")
    folder = os.path.dirname(os.path.abspath(output))
    if not os.path.isdir(folder):
        raise UsageError("cannot be created: its folder does not exist", path=output)
    if not there and not os.access(folder, os.W_OK):
        raise UsageError("cannot be created: its folder cannot be written", path=output)


def _named(paths: Iterable[str | None]) -> Sequence[str]:
    return [path for path in paths if path is not None]


def _is_one_file(one: str, other: str) -> bool:
    """Whether two names stand for one file on disk, there already or not; devices and pipes are no such file."""
    try:
        return os.path.samefile(one, other) and (os.path.isfile(one) or os.path.isdir(one))
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def _is_of_dump(path: str, folder: str) -> bool:
    """Whether a file has a name that a dump written into the folder could need."""
    beside = os.path.dirname(os.path.realpath(path))
    return _is_one_file(beside, folder) and os.path.basename(path).startswith("module_")


def _is_filled_file(path: str) -> bool:
    """A file of nothing, as ``mktemp`` makes, is no loss."""
    return os.path.isfile(path) and os.path.getsize(path) > 0


def _is_ledger(path: str) -> bool:
    from hloscope.core.ledger.store import is_ledger

    return is_ledger(path)


def _partial(path: str) -> str:
    from hloscope.core.ledger.store import partial_path

    return partial_path(path)
