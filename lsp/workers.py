"""Threads that do the slow work, so that the protocol's loop only ever answers, reads and writes.

Jobs wait in one queue, the more urgent first and otherwise in order. A job whose answer nobody wants any more when its
turn comes is dropped without running. The threads are daemons: a parse in progress never keeps a server alive.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from queue import PriorityQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Urgency(IntEnum):
    """Which jobs go first."""

    REQUEST = 0
    """Somebody waits for it."""
    INDEX = 1
    """Somebody will ask for it soon."""
    BACKGROUND = 2
    """Diagnostics: welcome when there is time."""


@dataclass(order=True, slots=True)
class _Job:
    urgency: int
    number: int
    run: Callable[[], Any] = field(compare=False)
    wanted: Callable[[], bool] = field(compare=False)
    future: Future[Any] = field(compare=False)


class Workers:
    """A few daemon threads on one queue."""

    def __init__(self, threads: int = 2) -> None:
        self._queue: PriorityQueue[_Job] = PriorityQueue()
        self._numbers = itertools.count()
        for number in range(threads):
            threading.Thread(target=self._work, name=f"hloscope-worker-{number}", daemon=True).start()

    def submit(
        self,
        run: Callable[[], T],
        *,
        urgency: Urgency = Urgency.REQUEST,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Future[T]:
        """Queue a job. Its future is cancelled, not run, where `wanted` says no when its turn comes."""
        future: Future[T] = Future()
        self._queue.put(_Job(int(urgency), next(self._numbers), run, wanted, future))
        return future

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            if not job.wanted():
                job.future.cancel()
                # Tells those who wait that the cancelled future is done.
                job.future.set_running_or_notify_cancel()
                continue
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                job.future.set_result(job.run())
            except BaseException as error:
                job.future.set_exception(error)
            # The queue's get would keep the last text alive until the next job comes.
            del job
