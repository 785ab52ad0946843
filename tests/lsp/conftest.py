"""A small client on a real server process: bytes in, bytes out, nothing of the server's own code."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

DATA = Path(__file__).resolve().parent / "data"
SECONDS = 90
"""A command starts a process, which a busy machine may keep waiting."""


class ServerError(Exception):
    """An error answer."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.error = error


class Client:
    """Speaks LSP over two byte streams. Positions are the test's business."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader, self._writer = reader, writer
        self._next = 0
        self._answers: dict[Any, queue.Queue[dict[str, Any]]] = {}
        self.notifications: queue.Queue[dict[str, Any]] = queue.Queue()
        self.messages: list[dict[str, Any]] = []
        """Everything received."""
        self.capabilities: dict[str, Any] = {}
        self.ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    # -------------------------------------------------------------- bytes
    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)
        self._writer.flush()

    def send(self, message: Any) -> None:
        body = json.dumps(message).encode()
        self.send_bytes(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def _read(self) -> None:
        try:
            while True:
                header = b""
                while not header.endswith(b"\r\n\r\n"):
                    byte = self._reader.read(1)
                    if not byte:
                        return
                    header += byte
                assert header.startswith(b"Content-Length: "), header
                length = int(header.split(b"\r\n")[0].split(b":")[1])
                message = json.loads(self._reader.read(length))
                self.messages.append(message)
                if "method" in message:
                    self.notifications.put(message)
                    if "id" in message:
                        # What the server asks of a client is granted.
                        self.send({"jsonrpc": "2.0", "id": message["id"], "result": None})
                else:
                    self._answers.setdefault(message["id"], queue.Queue()).put(message)
        except (OSError, ValueError):
            return
        finally:
            self.ended.set()

    # -------------------------------------------------------------- messages
    def notify(self, method: str, params: Any = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, params: Any = None) -> int:
        """Send a request; `answer` waits for what comes back."""
        self._next += 1
        self._answers.setdefault(self._next, queue.Queue())
        self.send({"jsonrpc": "2.0", "id": self._next, "method": method, "params": params})
        return self._next

    def raw_answer(self, number: Any) -> dict[str, Any]:
        return self._get(self._answers.setdefault(number, queue.Queue()))

    def _get(self, source: queue.Queue[dict[str, Any]]) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                return source.get(timeout=0.2)
            except queue.Empty:
                assert not self.ended.is_set() or not source.empty(), "the server is gone"
        raise TimeoutError("the server does not answer")

    def answer(self, number: int) -> Any:
        message = self.raw_answer(number)
        if "error" in message:
            raise ServerError(message["error"])
        return message["result"]

    def request(self, method: str, params: Any = None) -> Any:
        return self.answer(self.ask(method, params))

    def wait_for(self, method: str, accept: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The parameters of the next notification of that kind that fits; others are dropped."""
        while True:
            message = self._get(self.notifications)
            if message["method"] == method and accept(message["params"]):
                return message["params"]

    # -------------------------------------------------------------- the usual
    def initialize(
        self,
        encodings: list[str] | None = None,
        process: int | None = None,
        *,
        advice: bool = False,
        snippets: bool = False,
        window: dict[str, Any] | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        general = {"positionEncodings": encodings} if encodings else {}
        params = {
            "processId": process,
            "rootUri": None,
            "capabilities": {
                "general": general,
                "window": window or {},
                "textDocument": {"completion": {"completionItem": {"snippetSupport": snippets}}},
            },
            "initializationOptions": {"advice": advice, **settings},
        }
        result = self.request("initialize", params)
        self.capabilities = result["capabilities"]
        self.notify("initialized", {})
        return result

    def open(self, uri: str, text: str, version: int = 1, language: str = "plaintext") -> None:
        item = {"uri": uri, "languageId": language, "version": version, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})

    def change(self, uri: str, version: int, *changes: dict[str, Any]) -> None:
        params = {"textDocument": {"uri": uri, "version": version}, "contentChanges": list(changes)}
        self.notify("textDocument/didChange", params)

    def at(self, method: str, uri: str, line: int, character: int, **more: Any) -> Any:
        return self.answer(self.ask_at(method, uri, line, character, **more))

    def ask_at(self, method: str, uri: str, line: int, character: int, **more: Any) -> int:
        position = {"line": line, "character": character}
        return self.ask(f"textDocument/{method}", {"textDocument": {"uri": uri}, "position": position, **more})

    def about(self, method: str, uri: str) -> Any:
        return self.request(f"textDocument/{method}", {"textDocument": {"uri": uri}})

    def diagnostics(self, uri: str, version: int) -> list[dict[str, Any]]:
        """The first findings published for that version."""
        params = self.wait_for(
            "textDocument/publishDiagnostics", lambda p: p["uri"] == uri and p.get("version") == version
        )
        return params["diagnostics"]


class Process:
    """A server process with its client."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "hloscope.core.cli.main", "lsp", *options]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.popen.stdin is not None and self.popen.stdout is not None and self.popen.stderr is not None
        self.stderr: list[str] = []
        self.log_line: queue.Queue[str] = queue.Queue()
        self._log = threading.Thread(target=self._drain, args=(self.popen.stderr,), daemon=True)
        self._log.start()
        self.stdin = self.popen.stdin
        self.client = Client(cast(BinaryIO, self.popen.stdout), cast(BinaryIO, self.popen.stdin))

    def _drain(self, stream: Any) -> None:
        for line in stream:
            self.stderr.append(line.decode())
            self.log_line.put(line.decode())

    def wait(self) -> int:
        code = self.popen.wait(SECONDS)
        self._log.join(SECONDS)
        return code

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.wait()

    @property
    def log(self) -> str:
        return "".join(self.stderr)


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Starts servers; those still there at the end are killed."""
    running: list[Process] = []

    def begin(*options: str) -> Process:
        process = Process(*options)
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()


@pytest.fixture(scope="session")
def shared() -> Iterator[Process]:
    """One initialized server for all tests that need no settings, each with texts of its own; its log must stay empty.

    A start takes as long as most of these tests together.
    """
    process = Process()
    process.client.initialize()
    yield process
    process.client.request("shutdown")
    process.client.notify("exit")
    assert process.wait() == 0
    assert process.log == ""


@pytest.fixture(scope="module")
def shared_with() -> Iterator[Callable[..., Process]]:
    """Makes one initialized server with other settings for the tests of a module."""
    running: list[Process] = []

    def begin(**options: Any) -> Process:
        process = Process()
        process.client.initialize(**options)
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()


@pytest.fixture(scope="session")
def stage() -> str:
    """A real stage of a real compile."""
    return next(DATA.glob("*after_optimizations.txt")).read_text()


@pytest.fixture(scope="session")
def large() -> str:
    """A text that takes a while to read: 30,000 instructions in one computation."""
    lines = ["HloModule large", "", "ENTRY %main (x: f32[8]) -> f32[8] {", "  %x = f32[8]{0} parameter(0)"]
    lines += ["  %a.0 = f32[8]{0} negate(%x)"]
    lines += [f"  %a.{n} = f32[8]{{0}} add(%a.{n - 1}, %x)" for n in range(1, 30_000)]
    return "\n".join([*lines, "}", ""])


@pytest.fixture(scope="session")
def over() -> type[Client]:
    """The client alone, for streams that a test opens itself."""
    return Client
