"""Whether a ledger can be made where it is wanted, asked before the work that it shall hold begins."""

from __future__ import annotations

import os
import tempfile

from hloscope.core.errors import LedgerError


def require_place(path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Raises LedgerError where a ledger could not be created, or replaced with ``force``; leaves nothing behind."""
    name = os.fspath(path)
    if os.path.isdir(name):
        raise LedgerError("is a directory, not a ledger", path=name)
    if os.path.lexists(name):
        if not force:
            raise LedgerError("exists already", path=name, hint="--force overwrites it")
        if os.path.exists(name) and not os.path.isfile(name):
            raise LedgerError("is not a regular file; it is not replaced", path=name)
    folder, own = os.path.split(os.path.abspath(name))
    try:
        descriptor, tried = tempfile.mkstemp(prefix=f"{own}.new-", dir=folder)
        os.close(descriptor)
        os.unlink(tried)
    except OSError as error:
        raise LedgerError(f"cannot create the ledger: {error.strerror or error}", path=name) from None
