"""The protocol as pygls speaks it, with the parts replaced that matter for large files and for bad clients.

pygls keeps its own copy of each text and walks lines character by character; here documents are ours alone. Requests
before ``initialize``, after ``shutdown`` or with wrong parameters get the error that the protocol names, and no error
carries a Python traceback.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams
from pygls.protocol import LanguageServerProtocol

from hloscope.lsp.transport import decode_error, frame

if TYPE_CHECKING:
    from cattrs import Converter

    from hloscope.lsp.server import HloServer

log = logging.getLogger(__name__)

_PARSE_ERROR = -32700
_INVALID_REQUEST = -32600
_INVALID_PARAMS = -32602
_NOT_INITIALIZED = -32002


@dataclass(frozen=True, slots=True)
class Encoded:
    """A result that is JSON already: the large ones are encoded off the loop."""

    body: str


class Prompt:
    """A handler that is called as its message comes, before any later message, and returns what to wait for.

    pygls would start a coroutine function only after the messages that have arrived behind it, edits among them.
    """

    def __init__(self, begin: Callable[[Any], asyncio.Task[Any]]) -> None:
        self._begin = begin

    def __call__(self, params: Any) -> asyncio.Task[Any]:
        return self._begin(params)


class HloProtocol(LanguageServerProtocol):
    """LSP for one client."""

    def __init__(self, server: HloServer, converter: Converter) -> None:
        super().__init__(server, converter)
        for method, handler in (
            (types.TEXT_DOCUMENT_DID_OPEN, self._did_open),
            (types.TEXT_DOCUMENT_DID_CHANGE, self._did_change),
            (types.TEXT_DOCUMENT_DID_CLOSE, self._did_close),
            (types.EXIT, self._exit),
            # pygls would not end a command that is cancelled.
            (types.WORKSPACE_EXECUTE_COMMAND, Prompt(self._execute)),
        ):
            self.fm.add_builtin_feature(method, handler)

    # ---------------------------------------------------------------- incoming
    def decode(self, body: bytes) -> Any:
        """One message from its bytes; None, and an error answer where one is due, for what is not a message."""
        try:
            data: Any = json.loads(body)
        except (ValueError, RecursionError) as error:
            self._refuse(None, _PARSE_ERROR, f"not JSON: {error}")
            return None
        if not isinstance(data, dict) or "jsonrpc" not in data:
            self._refuse(None, _INVALID_REQUEST, "not a JSON-RPC message")
            return None
        try:
            return self.structure_message(data)
        except JsonRpcException as error:
            code = _INVALID_PARAMS if isinstance(error, JsonRpcInvalidParams) else _INVALID_REQUEST
            if "id" in data and "method" in data:
                self._refuse(data["id"], code, f"the parameters of {data['method']} are not as the protocol has them")
            else:
                log.warning("ignoring a malformed %s", data.get("method", "answer"))
            return None

    def handle(self, message: Any) -> None:
        """Act on one decoded message, on the loop. Never raises."""
        try:
            method: str = getattr(message, "method", "")
            msg_id = getattr(message, "id", None)
            if method and method != types.EXIT:
                refusal = self._refusal(method)
                if refusal is not None:
                    if msg_id is not None:
                        self._refuse(msg_id, *refusal)
                    return
            self.handle_message(message)
        except Exception:
            log.exception("a message could not be handled")

    def _execute_handler(
        self,
        msg_id: str | int,
        handler: Callable[..., Any],
        callback: Callable[[Any], None],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(handler, Prompt):
            super()._execute_handler(msg_id, handler, callback, args, kwargs)
            return
        task: Any = handler(*(args or ()))
        self._request_futures[msg_id] = task
        task.add_done_callback(callback)

    def _refusal(self, method: str) -> tuple[int, str] | None:
        if self._shutdown:
            return _INVALID_REQUEST, "the server is shutting down"
        if self._workspace is None and method != types.INITIALIZE:
            return _NOT_INITIALIZED, "the server is not initialized"
        if self._workspace is not None and method == types.INITIALIZE:
            return _INVALID_REQUEST, "the server is initialized already"
        return None

    # ---------------------------------------------------------------- outgoing
    def _send_response(
        self, msg_id: str | int, result: Any | None = None, error: types.ResponseError | None = None
    ) -> None:
        if error is not None:
            # pygls puts the traceback into the data; it belongs to the log, where it is already.
            error = types.ResponseError(code=error.code, message=error.message)
        elif isinstance(result, Encoded):
            self._write(frame(f'{{"jsonrpc":"2.0","id":{json.dumps(msg_id)},"result":{result.body}}}'))
            return
        super()._send_response(msg_id, result, error)

    def encode(self, result: object) -> Encoded:
        """A result as JSON, if it is not that yet; safe to call from any thread."""
        if isinstance(result, Encoded):
            return result
        return Encoded(json.dumps(self._converter.unstructure(result), separators=(",", ":")))

    def _refuse(self, msg_id: object, code: int, message: str) -> None:
        log.warning("refused: %s", message)
        self._write(decode_error(message, code, msg_id))

    def _write(self, data: bytes) -> None:
        if self.writer is not None:
            self.writer.write(data)

    # ---------------------------------------------------------------- documents and life
    def _did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        self._host.documents.open(item.uri, item.language_id, item.version, item.text)

    def _did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        self._host.documents.change(params.text_document.uri, params.text_document.version, params.content_changes)

    def _did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        self._host.documents.close(params.text_document.uri)

    def _execute(self, params: types.ExecuteCommandParams) -> asyncio.Task[Any]:
        return self._host.execute(params.command, tuple(params.arguments or ()))

    def _exit(self, params: object) -> None:
        # The process is the transport's business: other clients may be on the same one.
        del params
        self._host.finish()

    @property
    def _host(self) -> HloServer:
        return cast("HloServer", self._server)

    @property
    def asked_to_shut_down(self) -> bool:
        """The client has sent ``shutdown``."""
        return self._shutdown
