"""The language server of one client: the features on pygls, with their texts, threads and errors.

A feature is a function; what surrounds it is here, once: the request waits for the index of the text as it was when
the request came, slow answers are worked out off the loop, and whatever a feature raises becomes one error answer and
one entry in the log.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

from lsprotocol import types
from pygls.exceptions import FeatureRequestError, JsonRpcException
from pygls.lsp.server import LanguageServer

from hloscope.core.errors import HloscopeError
from hloscope.core.version import version
from hloscope.lsp import python
from hloscope.lsp.documents import Documents, Pin, PythonChecks, Reading
from hloscope.lsp.features.diagnostics import checks
from hloscope.lsp.features.dump_findings import from_dump
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS, Feature, WorkspaceFeature
from hloscope.lsp.features.table import COMMANDS, ITEM_FEATURES, LARGE, WORKSPACE_FEATURES, features_of_a_client
from hloscope.lsp.positions import Encoding, TextLines
from hloscope.lsp.protocol import HloProtocol, Prompt
from hloscope.lsp.settings import Settings
from hloscope.lsp.workers import Workers

log = logging.getLogger(__name__)

_REQUEST_FAILED = -32803
_INTERNAL_ERROR = -32603
_PARENT_SECONDS = 1.0


class HloServer(LanguageServer):
    """Serves one client; `hloscope.lsp.transport.serve` gives it a stream."""

    def __init__(self, *, parent_gone: Callable[[], None] | None = None) -> None:
        """`parent_gone` is called, from another thread, when the process that the client names as its own has ended;
        None where that process is not on this machine."""
        super().__init__("hloscope", version(), protocol_cls=HloProtocol)
        # Apart from each other: an answer must not wait until two large texts are read.
        self._answers = Workers()
        self.documents = Documents(
            Workers(),
            checks=checks(advice=True),
            publish=self._publish,
            first_read=self._say_what_large_means,
            python=PythonChecks(python.is_python, python.findings),
        )
        self.settings = Settings()
        self._parent_gone = parent_gone
        self._finish: Callable[[int], None] | None = None
        self._ended = threading.Event()
        # pygls marks what it registers, which a bound method does not allow.
        self.feature(types.INITIALIZE)(lambda params: self._initialize(params))
        self.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)(lambda params: self._configure(params))
        for feature in features_of_a_client():
            self.feature(feature.method, feature.options)(self._handler(feature))
        for feature in ITEM_FEATURES:
            self.feature(feature.method, feature.options)(self._handler(feature))
        for name in COMMANDS:
            self.command(name)(self._command(name))
        for feature in WORKSPACE_FEATURES:
            self.feature(feature.method, feature.options)(self._workspace_handler(feature))

    @property
    def wire(self) -> HloProtocol:
        """The protocol, by its own type."""
        return cast(HloProtocol, self.protocol)

    # ---------------------------------------------------------------- life
    @property
    def exit_code(self) -> int:
        """What the process should return if the client ended now: 0 once it has asked for the shutdown."""
        return 0 if self.wire.asked_to_shut_down else 1

    def begin(self, finish: Callable[[int], None]) -> None:
        """The stream is up; `finish` ends it with an exit code."""
        self._finish = finish

    def finish(self) -> None:
        """The client said exit."""
        if self._finish is not None:
            self._finish(self.exit_code)

    def end(self) -> None:
        """The stream is gone."""
        self._ended.set()

    def report_server_error(self, error: Exception, source: object) -> None:
        """Errors outside a request go to the log (a box in the editor would help nobody); those of requests are
        answers."""
        if source is not FeatureRequestError:
            log.error("%s", error)

    def _initialize(self, params: types.InitializeParams) -> None:
        chosen = self.protocol.workspace.position_encoding
        self.documents.encoding = Encoding(str(getattr(chosen, "value", chosen)))
        self._apply(self.settings.changed(params.initialization_options))
        if self._parent_gone is not None and params.process_id is not None and _alive(params.process_id):
            # A number that names no process here belongs to another machine or container: nothing to watch.
            threading.Thread(
                target=self._watch, args=(params.process_id, self._parent_gone), name="hloscope-parent", daemon=True
            ).start()

    def _apply(self, settings: Settings) -> None:
        self.settings = settings
        self.documents.set_checks(checks(advice=settings.advice))
        wanted = settings.advice and settings.dump_facts
        self.documents.facts_check = partial(from_dump, settings=settings) if wanted else None

    def _configure(self, params: types.DidChangeConfigurationParams) -> None:
        self._apply(self.settings.changed(params.settings))
        self.documents.look_again()

    def _watch(self, process: int, gone: Callable[[], None]) -> None:
        while not self._ended.wait(_PARENT_SECONDS):
            if not _alive(process):
                log.warning("the client's process %d is gone", process)
                gone()
                return

    # ---------------------------------------------------------------- requests
    def _handler(self, feature: Feature) -> Prompt:
        def begin(params: Any) -> asyncio.Task[Any]:
            uri: str = params.item.uri if hasattr(params, "item") else params.text_document.uri
            pin = self.documents.pin(uri)
            if pin is None and feature.method == types.TEXT_DOCUMENT_HOVER:
                lines = self.documents.python(uri)
                if lines is not None:
                    return self._task("hover", uri, lambda: self._python_hover(uri, lines, params.position), [])

            async def answer() -> Any:
                if pin is None:
                    return None
                reading = await pin.reading()
                if not feature.heavy:
                    return feature.answer(reading, params)
                return await self._work(lambda: feature.answer(reading, params))

            return self._task(feature.name, uri, answer, [] if pin is None else [pin])

        return Prompt(begin)

    async def _python_hover(self, uri: str, lines: TextLines, position: types.Position) -> Any:
        return await self._work(lambda: python.hover(uri, lines, position))

    def _command(self, name: str) -> Callable[..., Awaitable[Any]]:
        """A command that finds a place, shows it where the client can, and returns it."""

        async def run(uri: str = "", instruction: str = "", _line: int = 0, *_: object) -> Any:
            where = await asyncio.wrap_future(self._answers.submit(lambda: COMMANDS[name](str(uri), str(instruction))))
            if where is not None:
                window = self.client_capabilities.window
                if window is not None and window.show_document is not None and window.show_document.support:
                    self.window_show_document(
                        types.ShowDocumentParams(where.uri, take_focus=True, selection=where.range), lambda _: None
                    )
            return where

        return run

    def _workspace_handler(self, feature: WorkspaceFeature) -> Prompt:
        def begin(params: Any) -> asyncio.Task[Any]:
            pins = self.documents.pin_all()

            async def answer() -> Any:
                readings = [await pin.reading() for pin in pins]
                return await self._work(lambda: feature.answer(readings, params))

            return self._task(feature.name, "the open files", answer, pins)

        return Prompt(begin)

    def _task(
        self, name: str, where: str, answer: Callable[[], Awaitable[Any]], pins: Sequence[Pin]
    ) -> asyncio.Task[Any]:
        def release(task: asyncio.Task[Any]) -> None:
            del task
            for pin in pins:
                pin.release()

        task = asyncio.ensure_future(self._guard(name, where, answer))
        # Not in the coroutine: one that is cancelled before its first step never runs.
        task.add_done_callback(release)
        return task

    async def _work(self, answer: Callable[[], object]) -> Any:
        """An answer from a worker, encoded there too: JSON of megabytes would hold up the loop."""
        return await asyncio.wrap_future(self._answers.submit(lambda: self.wire.encode(answer())))

    async def _guard(self, name: str, where: str, answer: Callable[[], Awaitable[Any]]) -> Any:
        started = time.perf_counter()
        try:
            return await answer()
        except HloscopeError as error:
            # The text or the request is at fault, not the server.
            raise JsonRpcException(str(error), _REQUEST_FAILED) from None
        except Exception as error:
            log.exception("%s of %s failed", name, where)
            raise JsonRpcException(f"{name} failed: {type(error).__name__}: {error}", _INTERNAL_ERROR) from None
        finally:
            log.debug("%s of %s: %.1f ms", name, where, (time.perf_counter() - started) * 1000)

    # ---------------------------------------------------------------- notifications
    def _publish(self, uri: str, number: int | None, found: list[types.Diagnostic]) -> None:
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found, number))

    def _say_what_large_means(self, reading: Reading) -> None:
        count = reading.index.instruction_count
        if count <= FULL_INSTRUCTIONS:
            return
        name = reading.uri.rpartition("/")[2]
        message = f"{name} has {count:,} instructions (more than {FULL_INSTRUCTIONS:,}): {LARGE}."
        self.window_show_message(types.ShowMessageParams(types.MessageType.Info, message))


def _alive(process: int) -> bool:
    if sys.platform == "win32":
        return True  # os.kill would end it there; the end of the stream has to do
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
