"""Messages on a pair of byte streams, for stdio and for a socket alike.

One thread reads and decodes (a file of 100 MB arrives as one message and must not stop the answers to others), one
thread writes (a client that is slow to read must not stop the loop), and the loop in between only handles messages,
in the order in which they came. Source: LSP 3.17, "Base Protocol".
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from hloscope.lsp.server import HloServer

log = logging.getLogger(__name__)

_DRAIN_SECONDS = 2.0


class FramingError(Exception):
    """The bytes are not LSP's; there is no way to find the next message."""


def read_frames(stream: BinaryIO) -> Iterator[bytes]:
    """The bodies of the messages on a stream, until it ends; a body cut short by the end is dropped.

    Raises `FramingError` where a header has no usable Content-Length.
    """
    while True:
        length: int | None = None
        while True:
            line = stream.readline(4096)
            if not line:
                return
            if line in (b"\r\n", b"\n"):
                break
            name, colon, value = line.partition(b":")
            if not colon:
                raise FramingError(f"expected a header, got {line[:60]!r}")
            if name.strip().lower() == b"content-length":
                if not value.strip().isdigit():
                    raise FramingError(f"the Content-Length {value.strip()[:60]!r} is no number")
                length = int(value)
        if length is None:
            raise FramingError("a header without Content-Length")
        body = stream.read(length)
        if len(body) < length:
            return
        yield body


class Outbox:
    """Where the protocol writes; returns at once, and keeps the order."""

    def __init__(self, stream: BinaryIO, broken: Callable[[], None]) -> None:
        self._stream = stream
        self._broken = broken
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hloscope-writer", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Queue bytes for the client."""
        self._queue.put(data)

    def close(self) -> None:
        """Send what is queued; gives up after a while where the client does not read."""
        self._queue.put(None)
        self._thread.join(_DRAIN_SECONDS)

    def _run(self) -> None:
        while (data := self._queue.get()) is not None:
            try:
                self._stream.write(data)
                self._stream.flush()
            except (OSError, ValueError):
                self._broken()
                return


async def serve(server: HloServer, reader: BinaryIO, writer: BinaryIO) -> int:
    """Handle one client until it says exit or goes away.

    Returns the exit code that the protocol asks for: 0 after shutdown, 1 for an end without one.
    """
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[int] = loop.create_future()

    def finish(code: int) -> None:
        if not finished.done():
            finished.set_result(code)

    def from_thread(call: Callable[..., object], *args: object) -> None:
        try:
            loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # the loop has ended; nobody is left to tell

    def read() -> None:
        try:
            for body in read_frames(reader):
                message = server.wire.decode(body)
                if message is not None:
                    from_thread(server.wire.handle, message)
        except FramingError as error:
            log.error("closing the connection: %s", error)
        except (OSError, ValueError) as error:
            log.info("the client's stream ended: %s", error)
        finally:
            from_thread(lambda: finish(server.exit_code))

    outbox = Outbox(writer, lambda: from_thread(lambda: finish(server.exit_code)))
    server.protocol.set_writer(outbox)
    server.begin(finish)
    threading.Thread(target=read, name="hloscope-reader", daemon=True).start()
    try:
        return await finished
    finally:
        server.end()
        outbox.close()


def decode_error(message: str, code: int, msg_id: object) -> bytes:
    """The bytes of an error answer to a message that could not be understood."""
    body = json.dumps({"jsonrpc": "2.0", "id": msg_id, "error": {"code": code, "message": message}})
    return frame(body)


def frame(body: str) -> bytes:
    """A JSON body as it goes over the wire; `body` is all ASCII, so characters are bytes."""
    data = body.encode("utf-8")
    return b"Content-Length: %d\r\n\r\n%s" % (len(data), data)
