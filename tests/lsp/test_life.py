"""How a server begins and ends, and what it does with clients that do not keep the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from hloscope.core.cli.main import run
from hloscope.lsp import server as server_module
from hloscope.lsp.documents import Reading
from hloscope.lsp.features import hover
from hloscope.lsp.features.feature import Feature
from hloscope.lsp.transport import serve

Start = Callable[..., Any]


def test_shutdown_then_exit_is_0(start: Start, stage: str) -> None:
    server = start("--stdio")
    client = server.client
    early = client.ask("textDocument/hover", {"textDocument": {"uri": "file:///a.hlo"}, "position": at(0, 0)})
    assert client.raw_answer(early)["error"]["code"] == -32002
    result = client.initialize()
    assert result["serverInfo"]["name"] == "hloscope"
    assert result["capabilities"]["textDocumentSync"] == {"openClose": True, "change": 2, "save": False}
    client.open("file:///a.hlo", stage)
    assert client.request("shutdown") is None
    late = client.ask("textDocument/hover", {"textDocument": {"uri": "file:///a.hlo"}, "position": at(0, 0)})
    assert client.raw_answer(late)["error"]["code"] == -32600
    client.notify("exit")
    assert server.wait() == 0


def test_the_end_of_the_stream_ends_the_server_in_the_middle_of_work(start: Start, large: str) -> None:
    server = start()
    server.client.initialize()
    server.client.open("file:///a.hlo", large)
    server.client.ask("textDocument/documentSymbol", {"textDocument": {"uri": "file:///a.hlo"}})
    server.stdin.close()
    assert server.wait() == 1
    assert "Traceback" not in server.log


def test_a_client_that_dies_takes_the_server_with_it(start: Start) -> None:
    # The stream stays open, as it does where a child of the client has inherited it.
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    server = start()
    server.client.initialize(process=parent.pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert server.wait() == 1


def test_malformed_messages_get_the_protocols_errors(start: Start) -> None:
    server = start()
    client = server.client
    client.initialize()
    client.send_bytes(b"Content-Length: 5\r\n\r\n{oops")
    assert client.raw_answer(None)["error"]["code"] == -32700
    client.send([1, 2])
    assert client.raw_answer(None)["error"]["code"] == -32600
    bad = client.ask("textDocument/hover", {"textDocument": 5})
    assert client.raw_answer(bad)["error"]["code"] == -32602
    unknown = client.ask("textDocument/noSuchThing", {})
    assert client.raw_answer(unknown)["error"]["code"] == -32601
    again = client.ask("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
    assert client.raw_answer(again)["error"]["code"] == -32600
    client.notify("textDocument/didChange", {"textDocument": {"uri": "file:///no", "version": 1}, "contentChanges": []})
    client.notify("textDocument/noSuchThing", {})
    assert client.request("textDocument/hover", {"textDocument": {"uri": "file:///no"}, "position": at(0, 0)}) is None
    assert "Traceback" not in json.dumps(client.messages) and '"traceback"' not in json.dumps(client.messages)
    client.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
    assert server.wait() == 1


def test_a_cancelled_request_is_answered_as_cancelled(shared: Any, large: str) -> None:
    client = shared.client
    client.open("file:///a.hlo", large)
    hover = client.ask_at("hover", "file:///a.hlo", 3, 4)
    symbols = client.ask("textDocument/documentSymbol", {"textDocument": {"uri": "file:///a.hlo"}})
    client.notify("$/cancelRequest", {"id": hover})
    client.notify("$/cancelRequest", {"id": 99_999})
    assert client.raw_answer(hover)["error"]["code"] == -32800
    # The text that both waited for is still read for the other.
    assert len(client.answer(symbols)) == 1
    assert client.at("hover", "file:///a.hlo", 3, 4) is not None


def test_a_feature_that_fails_is_one_error_answer(monkeypatch: pytest.MonkeyPatch, stage: str, over: Any) -> None:
    def broken(reading: Reading, params: object) -> None:
        raise ZeroDivisionError("planted")

    broken_ones = (Feature("textDocument/definition", broken), Feature("textDocument/references", broken, heavy=True))
    monkeypatch.setattr(server_module, "features_of_a_client", lambda: (*broken_ones, hover.FEATURE))
    ours, theirs = socket.socketpair()
    code = Future[int]()
    thread = threading.Thread(
        target=lambda: code.set_result(
            asyncio.run(serve(server_module.HloServer(), theirs.makefile("rb"), theirs.makefile("wb")))
        )
    )
    thread.start()
    client = over(ours.makefile("rb"), ours.makefile("wb"))
    client.initialize()
    client.open("file:///a.hlo", stage)
    for method, more in (("definition", {}), ("references", {"context": {"includeDeclaration": True}})):
        error = client.raw_answer(client.ask_at(method, "file:///a.hlo", 53, 9, **more))["error"]
        assert error == {"code": -32603, "message": f"{method} failed: ZeroDivisionError: planted"}
    assert client.at("hover", "file:///a.hlo", 53, 9) is not None
    client.request("shutdown")
    client.notify("exit")
    assert code.result(30) == 0
    thread.join(30)
    ours.close()
    theirs.close()


def test_tcp_serves_each_client_apart_and_ends_with_the_last(start: Start, stage: str, over: Any) -> None:
    server = start("--tcp", "127.0.0.1:0")
    found = re.search(r"listens on 127\.0\.0\.1:(\d+)", server.log_line.get(timeout=30))
    assert found is not None
    sockets = [socket.create_connection(("127.0.0.1", int(found[1]))) for _ in range(2)]
    clients = [over(connection.makefile("rb"), connection.makefile("wb")) for connection in sockets]
    for client, encoding in zip(clients, ("utf-8", "utf-16"), strict=True):
        assert client.initialize([encoding])["capabilities"]["positionEncoding"] == encoding
    for number, client in enumerate(clients):
        client.open("file:///same.hlo", stage if number else stage.replace("dot.2", "tod.2"))
    answers = [client.at("hover", "file:///same.hlo", 53, 9)["contents"]["value"] for client in clients]
    assert "tod.2" in answers[0] and "tod.2" not in answers[1] and "dot.2" in answers[1]
    clients[0].request("shutdown")
    clients[0].notify("exit")
    assert clients[0].ended.wait(30)
    assert server.popen.poll() is None
    assert clients[1].at("hover", "file:///same.hlo", 53, 9) is not None
    clients[1].request("shutdown")
    sockets[1].shutdown(socket.SHUT_RDWR)
    assert server.wait() == 0


@pytest.mark.parametrize("options", [["--tcp", "here"], ["--tcp", "127.0.0.1:99999"], ["--tcp", "h:1", "--stdio"]])
def test_bad_options_are_one_line(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lsp", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("hloscope: ") and err.count("\n") == 1


def at(line: int, character: int) -> dict[str, int]:
    return {"line": line, "character": character}
