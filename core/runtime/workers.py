"""Work spread over processes that end with the caller, however the caller ends.

Each worker is a fresh interpreter that reads tasks from a socket. It does not see Ctrl-C: the caller is interrupted,
and kills its workers. A worker that dies at its task (the system takes it when memory runs out) costs that task only.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar

Task = TypeVar("Task")
Answer = TypeVar("Answer")

_START = """
import sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
try:
    sys.path[:] = connection.recv()
except (EOFError, OSError):  # the caller is gone already
    sys.exit(1)
from hloscope.core.runtime.workers import serve
serve(connection)
"""
_PARENT_SECONDS = 0.5
"""How often a worker looks whether its caller still is there."""


class WorkerFailedError(Exception):
    """A bug that came up in a worker; the text is its traceback."""


def serve(connection: Connection) -> None:
    """A worker: answers tasks until the caller closes the connection or is gone."""
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    try:
        function = connection.recv()
        while True:
            task = connection.recv()
            try:
                answer: tuple[bool, object] = (True, function(task))
            except Exception:
                import traceback

                answer = (False, traceback.format_exc())
            connection.send(answer)
    except (EOFError, OSError):
        return


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(1)


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    place: int | None = None
    """The place of the task that it works at; None while it is idle."""


@dataclass(slots=True)
class Pool(Generic[Task, Answer]):
    """At most `count` workers, started as they are needed; a context manager that kills them."""

    function: Callable[[Task], Answer]
    """A function of a module, called in the workers."""
    lost: Callable[[Task, str], Answer]
    """The answer for a task at which a worker died, with the reason."""
    count: int
    _workers: list[_Worker] = field(default_factory=list)
    _tasks: dict[int, Task] = field(default_factory=dict)

    def __enter__(self) -> Pool[Task, Answer]:
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.connection.close()
            worker.process.wait()
        self._workers.clear()

    def map(self, tasks: Iterator[tuple[int, Task]]) -> Generator[tuple[int, Answer], None, None]:
        """Answers as they come, with the places of their tasks. Raises WorkerFailedError for a bug."""
        for place, task in tasks:
            while self._idle() is None and len(self._workers) >= self.count:
                yield from self._collect()
            self._give(place, task)
            if any(worker.connection.poll() for worker in self._workers if worker.place is not None):
                yield from self._collect()
        while self._tasks:
            yield from self._collect()

    def _idle(self) -> _Worker | None:
        return next((worker for worker in self._workers if worker.place is None), None)

    def _give(self, place: int, task: Task) -> None:
        worker = self._idle() or self._start()
        self._tasks[place] = task
        worker.place = place
        try:
            worker.connection.send(task)
        except OSError:
            pass  # it has died; collecting finds out

    def _start(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs, _no_interrupt():
            # -P: no module of the working directory may stand in for one of ours.
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
            worker = _Worker(process, Connection(ours.detach()))
            self._workers.append(worker)
        try:
            worker.connection.send(list(sys.path))
            worker.connection.send(self.function)
        except OSError:
            pass
        return worker

    def _collect(self) -> Generator[tuple[int, Answer], None, None]:
        busy = {id(worker.connection): worker for worker in self._workers if worker.place is not None}
        for ready in wait([worker.connection for worker in busy.values()]):
            worker = busy[id(ready)]
            place = worker.place if worker.place is not None else 0
            task = self._tasks.pop(place)
            worker.place = None
            try:
                good, answer = worker.connection.recv()
            except (EOFError, OSError, pickle.UnpicklingError):
                yield place, self.lost(task, self._bury(worker))
                continue
            if not good:
                raise WorkerFailedError(answer)
            yield place, answer

    def _bury(self, worker: _Worker) -> str:
        self._workers.remove(worker)
        worker.connection.close()
        code = worker.process.wait()
        if code == -signal.SIGKILL:
            return "the process that evaluated it was killed, as the system does when memory runs out"
        return f"the process that evaluated it ended with {f'signal {-code}' if code < 0 else f'code {code}'}"


@contextmanager
def _no_interrupt() -> Generator[None, None, None]:
    """A process that is started here does not get Ctrl-C; the caller gets it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
