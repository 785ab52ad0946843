"""A run whose reading, comparing and analysing happens in another process, so that keys are answered meanwhile.

Names and the outline are read here; every question that needs a stage's text goes to `hloscope.tui.reader`. `call` runs
any function of the core there:

    found = call(copies, run, every=True, cancelled=work.cancelled)

Answers are plain data. A reader that dies (a crash, no memory) fails the questions that wait and is started anew for
the next one.
"""

from __future__ import annotations

import io
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hloscope.core.errors import UnsupportedError
from hloscope.core.views.opening import open_stages
from hloscope.core.views.run import Run
from hloscope.core.views.stages import ByteBoundCache, Cancelled, CancelledError, Progress

if TYPE_CHECKING:
    from hloscope.core.dumps.filenames import FileKind
    from hloscope.core.ledger.queries import SqlResult
    from hloscope.core.text.module_index import ModuleIndex
    from hloscope.core.views.buffers import Buffers
    from hloscope.core.views.copies import CopiesAnswer
    from hloscope.core.views.data import EventRow, PassRow, Place, StageDiff, Summary, WhyFacts
    from hloscope.core.views.fusion import FusionReport
    from hloscope.core.views.stages import StageRow
    from hloscope.tui.reader import Spec

T = TypeVar("T")

TEXT_BYTES = 32 << 20
"""Stage texts that are kept here; the reader keeps more."""

_LOOK_SECONDS = 0.05
"""How often somebody who waits looks whether the answer is still wanted."""

_GRACE_SECONDS = 0.5
"""How long a reader that is no longer needed has to end by itself."""


def call(
    function: Callable[..., T],
    *args: Any,
    cancelled: Cancelled | None = None,
    progress: Progress | None = None,
    aside: bool = False,
    **kwargs: Any,
) -> T:
    """What `function` returns: by the reader of the first `FarRun` among its arguments, else here and now.

    The function must be one of a module's own, or a method by its class; `cancelled` and `progress` are passed on where
    given. With `aside` it makes way for other questions whenever it asks whether it was cancelled, which it must not do
    while it holds what they may need. Raises what it raises, and CancelledError.
    """
    run = next((one for one in args if isinstance(one, FarRun)), None)
    if run is not None:
        return run.call(function, *args, cancelled=cancelled, progress=progress, aside=aside, **kwargs)
    more = {"cancelled": cancelled, "progress": progress}
    return function(*args, **kwargs, **{key: value for key, value in more.items() if value is not None})


class _Waiting:
    """One question on its way."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.kind = ""
        self.data = b""
        self.answered = threading.Event()


class _Link:
    """A reader and the questions that it was asked. Threads share it."""

    def __init__(self) -> None:
        mine, its = socket.socketpair()
        with its:
            # A session of its own: what interrupts the terminal is for the dashboard. -P: a file of the user's that
            # has the name of a module of Python's is not imported.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hloscope.tui.reader", str(its.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(its.fileno(),), start_new_session=True,
            )  # fmt: skip
        self._socket = mine
        self._connection = Connection(mine.detach())
        self._sending = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._numbers = 0
        self.lost = self.abandoned = False
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        """The reader's process."""
        return self._process.pid

    def send(self, *message: object) -> None:
        """Tell it something; nothing where it is gone."""
        with self._sending, suppress(OSError):
            self._connection.send(message)

    def ask(
        self, data: bytes, cancelled: Cancelled | None, progress: Progress | None, *, aside: bool
    ) -> tuple[str, bytes]:
        """Kind and data of an answer. Raises CancelledError, and UnsupportedError where the reader died."""
        waiting = _Waiting(progress)
        with self._sending:
            self._numbers += 1
            number = self._numbers
            self._waiting[number] = waiting
            with suppress(OSError):
                self._connection.send(("do", number, cancelled is not None, progress is not None, aside, data))
        while not waiting.answered.wait(_LOOK_SECONDS):
            if cancelled is not None and cancelled():
                self._waiting.pop(number, None)
                self.send("stop", number)
                raise CancelledError("cancelled")
            if self.lost:
                self._waiting.pop(number, None)
                if self.abandoned:
                    raise CancelledError("cancelled")
                raise UnsupportedError(f"the process that reads for the dashboard {self._end()}; ask again")
        return waiting.kind, waiting.data

    def _end(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_GRACE_SECONDS)
            return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return "is gone"

    def _listen(self) -> None:
        while True:
            try:
                number, kind = self._connection.recv()
                data = self._connection.recv_bytes()
            except (EOFError, OSError):
                self.lost = True
                return
            if kind == "progress":
                waiting = self._waiting.get(number)
                if waiting is not None and waiting.progress is not None:
                    waiting.progress(*pickle.loads(data))
            elif (waiting := self._waiting.pop(number, None)) is not None:
                waiting.kind, waiting.data = kind, data
                waiting.answered.set()

    def close(self) -> None:
        """End the reader."""
        self.lost = True
        with suppress(OSError), socket.socket(fileno=self._connection.fileno()) as ending:
            ending.shutdown(socket.SHUT_RDWR)
            ending.detach()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_SECONDS)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class _Desk:
    """The reader that several runs share: started when first needed, and again when it died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._link: _Link | None = None
        self.users = 0
        self.abandoned = False

    def link(self) -> _Link:
        """A reader that lives. Raises CancelledError where nobody wants an answer any more."""
        with self._lock:
            if self.abandoned:
                raise CancelledError("cancelled")
            if self._link is None or self._link.lost:
                if self._link is not None:
                    self._link.close()
                self._link = _Link()
            return self._link

    def abandon(self) -> None:
        """End the reader; who waits for it is told that the answer is no longer wanted."""
        self.abandoned = True
        with self._lock:
            if self._link is not None:
                self._link.abandoned = True
                self._link.close()
                self._link = None

    def leave(self, spec: Spec) -> None:
        """A run is closed; the last one ends the reader."""
        self.users -= 1
        with self._lock:
            if self._link is None:
                return
            if self.users > 0:
                self._link.send("close", spec)
            else:
                self._link.close()
                self._link = None


class _Pickler(pickle.Pickler):
    """Names runs by what they were opened from."""

    def persistent_id(self, obj: Any) -> Spec | None:
        return obj.spec if isinstance(obj, FarRun) else None


class FarRun(Run):
    """As `hloscope.core.views.run.load` makes one, with everything heavy done elsewhere.

    Raises the same at once for what cannot be opened. With `beside` two runs share a reader, so that they can be
    compared.
    """

    def __init__(self, path: str, module: str | None = None, *, beside: FarRun | None = None) -> None:
        self._desk = beside._desk if beside is not None else _Desk()
        self.spec: Spec = (path, module)
        """What it was opened from."""
        link = self._desk.link()  # it starts while names are read here
        link.send("open", self.spec)
        self._desk.users += 1
        try:
            super().__init__(open_stages(path, module))
        except BaseException:
            self._desk.leave(self.spec)
            raise
        self._texts: ByteBoundCache[bytes] = ByteBoundCache(TEXT_BYTES)

    @property
    def reader_pid(self) -> int:
        """The process that reads."""
        return self._desk.link().pid

    def abandon(self) -> None:
        """The reader ends; who waits for it, or asks something new, is told that it was cancelled."""
        self._desk.abandon()

    def take_up(self) -> None:
        """Questions are answered again, after `abandon`."""
        self._desk.abandoned = False

    def close(self) -> None:
        super().close()
        self._desk.leave(self.spec)

    def call(
        self,
        function: Callable[..., T],
        *args: Any,
        cancelled: Cancelled | None = None,
        progress: Progress | None = None,
        aside: bool = False,
        **kwargs: Any,
    ) -> T:
        """See the module's `call`."""
        data = io.BytesIO()
        _Pickler(data, pickle.HIGHEST_PROTOCOL).dump((function, args, kwargs))
        kind, answer = self._desk.link().ask(data.getvalue(), cancelled, progress, aside=aside)
        if kind == "raised":
            raise cast("BaseException", pickle.loads(answer))
        return cast("T", pickle.loads(answer))

    # ---------------------------------------------------------------- what is asked there
    def timeline(self, *, cancelled: Cancelled | None = None, progress: Progress | None = None) -> list[PassRow]:
        if self._passes is None:
            found = self.call(_timeline, self, cancelled=cancelled, progress=progress, aside=True)
            self._rows, self._passes, notes = found
            self.notes.extend(one for one in notes if one not in self.notes)
        return self._passes

    def summary(self, *, cancelled: Cancelled | None = None, progress: Progress | None = None) -> Summary:
        if self._summary is None:
            self._summary = self.call(Run.summary, self, cancelled=cancelled, progress=progress)
        return self._summary

    def stage_bytes(self, index: int) -> bytes:
        stage = self.resolve(index)
        found = self._texts.get(stage)
        if found is None:
            found = self.call(Run.stage_bytes, self, stage)
            self._texts.put(stage, found, len(found))
        return found

    def stage_digest(self, index: int) -> bytes:
        return self.call(Run.stage_digest, self, index)

    def stage_index(self, index: int) -> ModuleIndex:
        stage = self.resolve(index)
        found = self._indexes.get(stage)
        if found is None:
            found = self.call(Run.stage_index, self, stage)
            self._indexes.put(stage, found, len(found.source) + found.nbytes)
        return found

    def report(self, kind: FileKind) -> str | None:
        return self.call(Run.report, self, kind)

    def diff(self, index: int, to: int | None = None, *, cancelled: Cancelled | None = None) -> StageDiff:
        found = self._diffs.get((index, to))
        if found is None:
            found = self.call(Run.diff, self, index, to, cancelled=cancelled)
            changes = (*found.added, *found.removed, *found.modified, *found.renamed)
            weight = 400 + sum(300 + len(one.before or "") + len(one.after or "") for one in changes)
            self._diffs.put((index, to), found, weight)
        return found

    def definition(self, index: int, name: str) -> Place | None:
        return self.call(Run.definition, self, index, name)

    def find(self, name: str, *, cancelled: Cancelled | None = None, progress: Progress | None = None) -> list[Place]:
        return self.call(Run.find, self, name, cancelled=cancelled, progress=progress)

    def search(
        self, pattern: str, index: int, *, limit: int | None = None, cancelled: Cancelled | None = None
    ) -> Iterator[Place]:
        return iter(self.call(_search, self, pattern, index, limit=limit, cancelled=cancelled))

    def why(
        self,
        name: str,
        *,
        stage: int | None = None,
        cancelled: Cancelled | None = None,
        progress: Progress | None = None,
    ) -> WhyFacts:
        key = (name.removeprefix("%"), stage)
        found = self._why.get(key)
        if found is None:
            found = self.call(Run.why, self, name, stage=stage, cancelled=cancelled, progress=progress)
            self._why[key] = found
        return found

    def events(
        self,
        *,
        pass_index: int | None = None,
        type: str | None = None,
        subject: str | None = None,
        verdict: str | None = None,
        limit: int | None = None,
    ) -> list[EventRow]:
        return self.call(
            Run.events, self, pass_index=pass_index, type=type, subject=subject, verdict=verdict, limit=limit
        )

    def sql(self, query: str, *, limit: int | None = None, cancelled: Cancelled | None = None) -> SqlResult:
        return self.call(Run.sql, self, query, limit=limit, cancelled=cancelled)

    @property
    def event_count(self) -> int:
        return self.call(_event_count, self)

    @property
    def fusion(self) -> FusionReport:
        if self._fusion is None:
            self._fusion = self.call(_fusion, self)
        return self._fusion

    @property
    def copies(self) -> CopiesAnswer:
        if self._copies is None:
            self._copies = self.call(_copies, self)
        return self._copies

    @property
    def buffers(self) -> Buffers:
        if self._buffers is None:
            from hloscope.tui.far_buffers import FarBuffers  # not before it is asked for: it is a large import

            self._buffers = FarBuffers(self)
        return self._buffers


# ---------------------------------------------------------------- what the reader runs
def _timeline(
    run: Run, *, cancelled: Cancelled | None = None, progress: Progress | None = None
) -> tuple[list[StageRow], list[PassRow], list[str]]:
    passes = run.timeline(cancelled=cancelled, progress=progress)
    return list(run.outline), passes, list(run.notes)


def _search(
    run: Run, pattern: str, index: int, *, limit: int | None = None, cancelled: Cancelled | None = None
) -> list[Place]:
    return list(run.search(pattern, index, limit=limit, cancelled=cancelled))


def _event_count(run: Run) -> int:
    return run.event_count


def _fusion(run: Run) -> FusionReport:
    return run.fusion


def _copies(run: Run) -> CopiesAnswer:
    return run.copies
