"""The language server of one client: the features on pygls, with their texts, threads and errors.

A feature is a function; what surrounds it is here, once: the request waits for the index of the text as it was when
the request came, slow answers are worked out off the loop, and whatever a feature raises becomes one error answer and
one entry in the log.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

from lsprotocol import types
from pygls.exceptions import FeatureRequestError, JsonRpcException
from pygls.lsp.server import LanguageServer

from hloscope.core.errors import HloscopeError, UsageError
from hloscope.core.version import version
from hloscope.lsp import python
from hloscope.lsp.checker import Checker
from hloscope.lsp.commands import (
    LONG_COMMANDS,
    Answer,
    Watch,
    apply_remedy,
    dashboard,
    extract,
    run_long,
    subject_of,
    trace_kernels,
)
from hloscope.lsp.documents import Documents, Pin, PythonChecks, Reading, Steps
from hloscope.lsp.features.completion import without_snippets
from hloscope.lsp.features.diagnostics import checks
from hloscope.lsp.features.dump_findings import from_dump
from hloscope.lsp.features.feature import FULL_INSTRUCTIONS, Feature, WorkspaceFeature
from hloscope.lsp.features.stages import local_path, nowhere
from hloscope.lsp.features.table import COMMANDS, ITEM_FEATURES, LARGE, WORKSPACE_FEATURES, features_of_a_client
from hloscope.lsp.positions import Encoding, TextLines
from hloscope.lsp.protocol import HloProtocol, Prompt
from hloscope.lsp.settings import Settings
from hloscope.lsp.workers import Workers

log = logging.getLogger(__name__)

_REQUEST_FAILED = -32803
_INTERNAL_ERROR = -32603
_WATCHED = "**/*.{txt,hlo}"
_PARENT_SECONDS = 1.0
_REPORT_SECONDS = 0.2
"""Between two lines on how far a command is."""
KERNEL_SECONDS = 120.0
_CHOICES = 8
"""Places that one can choose among in a message."""
"""How long kernels may run; a client may say otherwise."""


class HloServer(LanguageServer):
    """Serves one client; `hloscope.lsp.transport.serve` gives it a stream."""

    def __init__(self, *, parent_gone: Callable[[], None] | None = None) -> None:
        """`parent_gone` is called, from another thread, when the process that the client names as its own has ended;
        None where that process is not on this machine."""
        super().__init__("hloscope", version(), protocol_cls=HloProtocol)
        # Apart from each other: an answer must not wait until two large texts are read.
        self._answers = Workers()
        self._checker = Checker()
        self.documents = Documents(
            Workers(),
            checks=checks(advice=True, checker=self._checker),
            publish=self._publish,
            first_read=self._say_what_large_means,
            python=PythonChecks(python.is_python, self._python_findings),
            asking=self._asking_dump,
            tell=self._tell_reading,
        )
        self.settings = Settings()
        self._tokens = itertools.count(1)
        self._parent_gone = parent_gone
        self._finish: Callable[[int], None] | None = None
        self._ended = threading.Event()
        self._shown_folders: list[str] = []
        # pygls marks what it registers, which a bound method does not allow.
        self.feature(types.INITIALIZE)(lambda params: self._initialize(params))
        self.feature(types.INITIALIZED)(lambda params: self._watch_files())
        self.feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)(lambda params: self._configure(params))
        self.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)(lambda params: self._files_changed(params))
        for feature in features_of_a_client():
            self.feature(feature.method, feature.options)(self._handler(feature))
        for feature in ITEM_FEATURES:
            self.feature(feature.method, feature.options)(self._handler(feature))
        self._commands: dict[str, Callable[..., Awaitable[Any]]] = {
            **{name: self._command(name) for name in COMMANDS},
            **{name: self._long_command(name) for name in LONG_COMMANDS},
            "hloscope.traceKernels": self._kernel_command(interpret=False),
            "hloscope.interpretKernels": self._kernel_command(interpret=True),
            "hloscope.applyRemedy": self._remedy_command(),
            "hloscope.extract": self._extract_command(),
            "hloscope.openDashboard": self._dashboard_command(),
        }
        for name, run in self._commands.items():
            self.command(name)(run)
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
        self._checker.close()
        while self._shown_folders:
            shutil.rmtree(self._shown_folders.pop(), ignore_errors=True)

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
        self.documents.set_checks(checks(advice=settings.advice, checker=self._checker))
        wanted = settings.advice and settings.dump_facts
        self.documents.facts_check = partial(from_dump, settings=settings) if wanted else None

    def _python_findings(self, uri: str, lines: TextLines, encoding: Encoding) -> list[types.Diagnostic]:
        return python.findings(uri, lines, encoding, self.settings.pallas_target)

    def _configure(self, params: types.DidChangeConfigurationParams) -> None:
        self._apply(self.settings.changed(params.settings))
        self.documents.look_again()

    def _watch_files(self) -> None:
        """Ask to be told of changes of dumps, where the client offers it."""
        workspace = self.client_capabilities.workspace
        watched = None if workspace is None else workspace.did_change_watched_files
        if watched is None or not watched.dynamic_registration:
            return
        options = types.DidChangeWatchedFilesRegistrationOptions([types.FileSystemWatcher(_WATCHED)])
        method = types.WORKSPACE_DID_CHANGE_WATCHED_FILES
        self.client_register_capability(
            types.RegistrationParams([types.Registration("hloscope-dumps", method, options)]), lambda _: None
        )

    def _files_changed(self, params: types.DidChangeWatchedFilesParams) -> None:
        self.documents.look_again({change.uri.rpartition("/")[0] for change in params.changes})

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
                if feature.method == types.TEXT_DOCUMENT_COMPLETION and not self._takes_snippets():
                    return without_snippets(feature.answer(reading, params))
                if not feature.heavy:
                    return feature.answer(reading, params)
                return await self._work(lambda: feature.answer(reading, params))

            return self._task(feature.name, uri, answer, [] if pin is None else [pin])

        return Prompt(begin)

    def _takes_snippets(self) -> bool:
        texts = self.client_capabilities.text_document
        items = None if texts is None or texts.completion is None else texts.completion.completion_item
        return items is not None and bool(items.snippet_support)

    async def _python_hover(self, uri: str, lines: TextLines, position: types.Position) -> Any:
        encoding = self.documents.encoding
        return await self._work(lambda: python.hover(uri, lines, position, encoding))

    def execute(self, command: str, arguments: tuple[Any, ...]) -> asyncio.Task[Any]:
        """Run a command of this server; its task is cancelled with the request."""
        run = self._commands.get(command)

        async def answer() -> Any:
            if run is None:
                raise UsageError(f"there is no command {command}")
            return await run(*arguments)

        uri = arguments[0] if arguments and isinstance(arguments[0], str) else ""
        return self._task(command, uri, answer, [])

    def _command(self, name: str) -> Callable[..., Awaitable[Any]]:
        """A command that finds a place, shows it where the client can, and returns it.

        Of several, it is the one chosen, or all where none is.
        """

        async def run(uri: str = "", instruction: str = "", _line: int = 0, *_: object) -> Any:
            found = await asyncio.wrap_future(self._answers.submit(lambda: COMMANDS[name](str(uri), str(instruction))))
            where = found[0][1] if len(found) == 1 else None
            if len(found) > 1:
                where = await self._choice(str(instruction), found)
            if not found:
                said = nowhere(name, str(uri), str(instruction))
                self.window_show_message(types.ShowMessageParams(types.MessageType.Info, said))
            elif where is not None:
                window = self.client_capabilities.window
                if window is not None and window.show_document is not None and window.show_document.support:
                    self.window_show_document(
                        types.ShowDocumentParams(where.uri, take_focus=True, selection=where.range), lambda _: None
                    )
            return where if where is not None or not found else [one for _, one in found]

        return run

    async def _choice(self, instruction: str, found: Sequence[tuple[str, types.Location]]) -> types.Location | None:
        """Have one of several places chosen; None where the client does not."""
        names = [f"%{one}" for one, _ in found]
        shown = ", ".join(names[:_CHOICES]) + (", …" if len(names) > _CHOICES else "")
        said = f"%{instruction} is in {len(names)} fusions of the last stage: {shown}"
        actions = [types.MessageActionItem(one) for one in names[:_CHOICES]]
        asked = types.ShowMessageRequestParams(types.MessageType.Info, said, actions)
        chosen = await self.window_show_message_request_async(asked)
        return None if chosen is None else next((at for one, at in found if f"%{one}" == chosen.title), None)

    def _long_command(self, name: str) -> Callable[..., Awaitable[Any]]:
        """A command that asks the command line, and shows what it says."""
        command = LONG_COMMANDS[name]

        async def run(uri: str = "", *names: object) -> Any:
            words = tuple(str(one).removeprefix("%") for one in names if isinstance(one, str))
            while words and not words[-1]:
                words = words[:-1]
            title = command.titled(words)
            alone = command.about == "here"

            async def work(watch: Watch) -> Any:
                subject = subject_of(str(uri), words, self.documents.text(str(uri)), alone=alone)
                options = self.settings.options(command.options)
                try:
                    return self._shown(await run_long(command, subject, options=options, watch=watch))
                except BaseException:
                    shutil.rmtree(subject.scratch, ignore_errors=True)
                    raise

            return await self._with_progress(title, work, counted=command.counted)

        return run

    def _remedy_command(self) -> Callable[..., Awaitable[Any]]:
        async def run(uri: str = "", copy: str = "", *_: object) -> Any:
            async def work(watch: Watch) -> Any:
                del watch
                subject = subject_of(str(uri), (), self.documents.text(str(uri)))
                try:
                    return self._shown(await apply_remedy(subject, str(copy)))
                except BaseException:
                    shutil.rmtree(subject.scratch, ignore_errors=True)
                    raise

            title = f"Apply the change that removes the copy %{copy}"
            return await self._with_progress(title, work)

        return run

    def _extract_command(self) -> Callable[..., Awaitable[Any]]:
        async def run(uri: str = "", computation: str = "", *_: object) -> Any:
            async def work(watch: Watch) -> Any:
                del watch
                subject = subject_of(str(uri), (), self.documents.text(str(uri)), alone=True)
                try:
                    return self._shown(await extract(subject, str(computation)))
                except BaseException:
                    shutil.rmtree(subject.scratch, ignore_errors=True)
                    raise

            return await self._with_progress(f"Extract %{computation} to a module of its own", work)

        return run

    def _dashboard_command(self) -> Callable[..., Awaitable[Any]]:
        async def run(uri: str = "", *_: object) -> Any:
            async def work() -> Any:
                command = dashboard(subject_of(str(uri), (), self.documents.text(str(uri))))
                return {"terminal": command}

            return await work()

        return run

    def _kernel_command(self, *, interpret: bool) -> Callable[..., Awaitable[Any]]:
        """Trace, or run, the kernels of a Python file on disk in a child process; findings become diagnostics."""

        async def run(uri: str = "", seconds: object = KERNEL_SECONDS, target: object = "", *_: object) -> Any:
            limit = float(seconds) if isinstance(seconds, int | float) and seconds > 0 else KERNEL_SECONDS

            async def work(watch: Watch) -> Any:
                del watch
                path = local_path(str(uri))
                if path is None or not os.path.isfile(path):
                    raise UsageError("save the file first: its kernels run in another process")
                lines = self.documents.python(str(uri))
                with open(path, encoding="utf-8", errors="replace", newline="") as opened:
                    if lines is not None and opened.read() != lines.text:
                        raise UsageError("save the file first: its kernels run in another process")
                chip = target if isinstance(target, str) and target else self.settings.pallas_target
                found = await trace_kernels(path, interpret=interpret, seconds=limit, target=chip)
                return self.documents.traced(str(uri), python.traced(str(uri), path, found))

            title = "Running the kernels" if interpret else "Tracing the kernels"
            return await self._with_progress(title, work)

        return run

    def _shown(self, answer: Answer) -> Any:
        """Show an answer where the client can, and return it. Texts go with the server; modules that it made stay."""
        if answer.path.endswith(".log"):
            self._shown_folders.append(os.path.dirname(answer.path))
        uri = Path(answer.path).as_uri()
        window = self.client_capabilities.window
        if window is not None and window.show_document is not None and window.show_document.support:
            self.window_show_document(types.ShowDocumentParams(uri, take_focus=True), lambda _: None)
        return {"uri": uri, "text": answer.text, **answer.data}

    async def _with_progress(
        self, title: str, work: Callable[[Watch], Awaitable[Any]], *, counted: bool = False
    ) -> Any:
        """Do something long with the client told of it, where it listens; it may cancel it, too.

        `counted` where it will be known how much is done.
        """
        # Without a share now, the client takes none later.
        share = 0 if counted else None
        token = await self._begin(types.WorkDoneProgressBegin(title, cancellable=True, percentage=share))
        if token is None:
            return await work(lambda *_: None)
        progress = self.work_done_progress
        loop = asyncio.get_running_loop()
        told = 0.0

        def watch(line: str, percentage: int | None) -> None:
            nonlocal told
            if line and loop.time() - told >= _REPORT_SECONDS:
                told = loop.time()
                progress.report(token, types.WorkDoneProgressReport(message=line[:200], percentage=percentage))

        task = asyncio.ensure_future(work(watch))
        progress.tokens[token].add_done_callback(lambda _: loop.call_soon_threadsafe(task.cancel))
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self._end(token)

    async def _begin(self, begin: types.WorkDoneProgressBegin) -> str | None:
        """The token of something long that the client is told of; None where it does not listen."""
        window = self.client_capabilities.window
        if window is None or not window.work_done_progress:
            return None
        token = f"hloscope-{next(self._tokens)}"
        try:
            await self.work_done_progress.create_async(token)
        except Exception:
            log.info("the client refused to show progress")
            return None
        self.work_done_progress.begin(token, begin)
        return token

    def _end(self, token: str) -> None:
        self.work_done_progress.end(token, types.WorkDoneProgressEnd())
        self.work_done_progress.tokens.pop(token, None)

    def _asking_dump(self, uri: str) -> AbstractAsyncContextManager[None]:
        """Progress around the child process that works out what a dump knows."""

        @asynccontextmanager
        async def around() -> AsyncGenerator[None]:
            name = uri.rpartition("/")[2]
            token = await self._begin(types.WorkDoneProgressBegin("Reading the dump", message=name, cancellable=False))
            try:
                yield
            finally:
                if token is not None:
                    self._end(token)

        return around()

    async def _tell_reading(self, uri: str, steps: Steps) -> None:
        """Say how far the first look at a long text is, until cancelled; the look does not wait for the client."""
        name = uri.rpartition("/")[2]
        begin = types.WorkDoneProgressBegin("Reading the text", message=name, cancellable=False, percentage=0)
        token = await self._begin(begin)
        if token is None:
            return
        try:
            while True:
                await asyncio.sleep(_REPORT_SECONDS)
                self.work_done_progress.report(token, types.WorkDoneProgressReport(percentage=steps.percentage))
        finally:
            self._end(token)

    def _workspace_handler(self, feature: WorkspaceFeature) -> Prompt:
        def begin(params: Any) -> asyncio.Task[Any]:
            pins = self.documents.pin_all()

            async def answer() -> Any:
                readings = [await pin.reading() for pin in pins]
                loop = asyncio.get_running_loop()

                def say(text: str) -> None:
                    told = types.LogMessageParams(types.MessageType.Info, text)
                    loop.call_soon_threadsafe(self.window_log_message, told)

                return await self._work(lambda: feature.answer(readings, params, say))

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
