"""Running servers: one on stdin and stdout, or one for each client of a socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import threading

from hloscope.core.errors import UsageError
from hloscope.lsp.server import HloServer
from hloscope.lsp.transport import serve

log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.001


def serve_stdio() -> int:
    """Serve the client on stdin and stdout until it is done or gone; returns the exit code."""
    _share_time()
    # The streams are the protocol's alone: whatever else prints goes to the log, not between two messages.
    reader = os.fdopen(os.dup(0), "rb")
    writer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return asyncio.run(serve(HloServer(parent_gone=lambda: os._exit(1)), reader, writer))


def serve_tcp(host: str, port: int) -> int:
    """Serve clients on a socket, each with a server of its own, until the last of them has left.

    The address goes to stderr, on the first line, once the socket listens: with port 0 that is how a client learns it.
    Raises `UsageError` where the address cannot be had.
    """
    _share_time()
    try:
        listener = socket.create_server((host, port), family=_family(host))
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error}") from None
    bound = listener.getsockname()
    named = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
    print(f"hloscope lsp listens on {named}:{bound[1]}", file=sys.stderr, flush=True)
    clients: set[threading.Thread] = set()
    changed = threading.Condition()
    code = 0

    def host_client(connection: socket.socket, server: HloServer) -> None:
        nonlocal code
        try:
            with connection, connection.makefile("rb") as reader, connection.makefile("wb") as writer:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = asyncio.run(serve(server, reader, writer))
                with contextlib.suppress(OSError):
                    # Wakes the thread that still reads, where the client said exit and did not close.
                    connection.shutdown(socket.SHUT_RDWR)
        except Exception:
            log.exception("a client's server ended")
        finally:
            with changed:
                clients.discard(threading.current_thread())
                changed.notify_all()

    def accept() -> None:
        while True:
            try:
                connection, peer = listener.accept()
            except OSError:
                return
            log.info("client from %s", peer)
            # Made here, one after the other: lsprotocol completes its types while a converter is made.
            server = HloServer()
            thread = threading.Thread(
                target=host_client, args=(connection, server), name="hloscope-client", daemon=True
            )
            with changed:
                clients.add(thread)
                changed.notify_all()
            thread.start()

    threading.Thread(target=accept, name="hloscope-accept", daemon=True).start()
    with changed:
        changed.wait_for(lambda: bool(clients))
        changed.wait_for(lambda: not clients)
    listener.close()
    return code


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _share_time() -> None:
    """Python's threads take turns of this length: a parse in one must not hold up an answer in another."""
    sys.setswitchinterval(_SWITCH_SECONDS)
