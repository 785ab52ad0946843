"""The installed version of hloscope, as ``--version``, every ``--json`` envelope and every ledger state it."""

from __future__ import annotations


def version() -> str:
    """The version in the installed package's metadata; ``0+uninstalled`` for a tree that was never installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution("hloscope")
    except PackageNotFoundError:
        return "0+uninstalled"
    # Its own `version` has the whole file parsed as a mail, which takes longer than the rest of a short command.
    lines = (found.read_text("METADATA") or found.read_text("PKG-INFO") or "").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Version:")), found.version)
