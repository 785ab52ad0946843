"""The installed version of hloscope, as ``--version``, every ``--json`` envelope and every ledger state it."""

from __future__ import annotations


def version() -> str:
    """The version in the installed package's metadata; ``0+uninstalled`` for a tree that was never installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("hloscope")
    except PackageNotFoundError:
        return "0+uninstalled"
