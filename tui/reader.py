"""The process that reads, compares and analyses for the dashboard: the other end of `hloscope.tui.far`.

Each request runs in a thread of its own on runs that stay open, so that a short question need not wait for a long
answer; reading that nobody asked for steps aside meanwhile. Requests are pickled calls ``(function, arguments)`` in
which a run is named by what it was opened from.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.views.run import Run

NICE = 5
"""How much less of a busy machine the reader gets than the dashboard that answers keys."""

PROGRESS_SECONDS = 0.1
"""Time between two reports of progress."""

_LOOK_SECONDS = 0.1
"""How often work that waits looks whether it is still wanted."""

Spec = tuple[str, str | None]
"""Path and module that a run was opened from."""


class Reader:
    """Answers what comes in on a connection until its other end is gone."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._runs: dict[Spec, Run] = {}
        self._opening = threading.RLock()
        self._sending = threading.Lock()
        self._stopped: set[int] = set()
        self._turn = threading.Condition()
        self._urgent = 0
        """Questions that somebody waits for."""

    def serve(self) -> None:
        """Take requests: ``("do", number, wants to stop, wants progress, steps aside, call)``, ``("stop", number)``,
        ``("open", spec)``, ``("close", spec)``."""
        while True:
            try:
                kind, *rest = pickle.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                break
            if kind == "do":
                threading.Thread(target=self._do, args=rest, daemon=True).start()
            elif kind == "open":
                threading.Thread(target=self._prepare, args=rest, daemon=True).start()
            elif kind == "stop":
                self._stopped.add(rest[0])
            elif (run := self._runs.pop(rest[0], None)) is not None:
                run.close()
        for run in self._runs.values():
            run.close()

    def run(self, spec: Spec) -> Run:
        """The run behind a path, opened once."""
        from hloscope.core.views.run import load

        with self._opening:
            found = self._runs.get(spec)
            if found is None:
                found = self._runs[spec] = load(*spec)
            return found

    def _prepare(self, spec: Spec) -> None:
        try:
            self.run(spec)
        except Exception:  # whoever asks for it is told
            return

    def _give_way(self, number: int) -> bool:
        """Wait while a question is being answered; whether what waits is no longer wanted.

        Asked where nothing is held that an answer may need.
        """
        with self._turn:
            while self._urgent and number not in self._stopped:
                self._turn.wait(_LOOK_SECONDS)
        return number in self._stopped

    def _count_urgent(self, more: int) -> None:
        with self._turn:
            self._urgent += more
            self._turn.notify_all()

    def _do(self, number: int, stoppable: bool, watched: bool, aside: bool, call: bytes) -> None:
        last = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last > PROGRESS_SECONDS:
                last = now
                self._send(number, "progress", pickle.dumps((done, total)))

        more: dict[str, Callable[..., object]] = {}
        if stoppable:
            more["cancelled"] = lambda: self._give_way(number) if aside else number in self._stopped
        if watched:
            more["progress"] = progress
        self._count_urgent(0 if aside else 1)
        try:
            function, args, kwargs = _Loader(self, call).load()
            answer = "done", pickle.dumps(function(*args, **kwargs, **more), pickle.HIGHEST_PROTOCOL)
        except BaseException as error:  # also what a library raises to end the process: the asker is told
            answer = "raised", _dumped(error)
        finally:
            self._count_urgent(0 if aside else -1)
        self._stopped.discard(number)
        self._send(number, *answer)

    def _send(self, number: int, kind: str, data: bytes) -> None:
        with self._sending:
            try:
                self._connection.send((number, kind))
                self._connection.send_bytes(data)
            except OSError:
                return  # nobody is there any more: `serve` ends


class _Loader(pickle.Unpickler):
    """Puts runs in the place of their names."""

    def __init__(self, reader: Reader, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._reader = reader

    def persistent_load(self, pid: Any) -> Run:
        return self._reader.run(pid)


def _dumped(error: BaseException) -> bytes:
    """An exception for the other side; one that cannot be sent as its words."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data


def main(descriptor: int) -> None:
    """Serve a connection that was inherited."""
    try:
        os.nice(NICE)
    except OSError:
        pass
    Reader(Connection(descriptor)).serve()
    # Threads may be deep in an analysis that nobody waits for.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
