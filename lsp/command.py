"""``hloscope lsp``: the language server on stdin and stdout, or on a socket."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

import click

from hloscope.core.errors import UsageError

LEVELS = ("error", "warning", "info", "debug")


@click.command(name="lsp", epilog="Example: hloscope lsp --tcp 127.0.0.1:2087")
@click.option("--stdio", is_flag=True, help="Serve one client on stdin and stdout (what happens without options, too).")
@click.option("--tcp", metavar="HOST:PORT", help="Serve clients on a socket until the last has left; port 0 picks one.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="warning",
    show_default=True,
    help="What goes to the log, which is stderr.",
)
def command(stdio: bool, tcp: str | None, log_level: str) -> None:
    """Serve HLO files to an editor (LSP 3.17).

    Diagnostics, hover, definition, references, outline, highlights, folding, rename and symbol search for .hlo files
    and XLA's text dumps; findings on the Pallas kernels of Python files, by their text alone.
    """
    if stdio and tcp is not None:
        raise UsageError("--stdio and --tcp exclude each other")
    address = None if tcp is None else _address(tcp)
    logging.basicConfig(
        stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # pygls logs every message's body at info, and every error that our own log has already.
    logging.getLogger("pygls").setLevel(logging.DEBUG if log_level == "debug" else logging.CRITICAL)

    from hloscope.lsp import hosting

    code = hosting.serve_stdio() if address is None else hosting.serve_tcp(*address)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process now: a thread may still be reading the client's stream or a large text."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"expected HOST:PORT, got {text!r}", hint="for example 127.0.0.1:2087")
    return host.strip("[]") or "127.0.0.1", int(port)
