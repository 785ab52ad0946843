"""Threads that do the slow work, so that the protocol's loop only ever answers, reads and writes.

Jobs wait in one queue, the more urgent first and otherwise in order. A job whose answer nobody wants any more when its
turn comes is dropped without running. The threads are daemons: a parse in progress never keeps a server alive.

Each version of a text is one piece of memory, and the next one a little longer: what they leave behind is in pieces
that the C library keeps. It is asked to hand them back once a thread has had nothing to do for a while.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from queue import Empty, PriorityQueue
from typing import Any, TypeVar

T = TypeVar("T")
REST_SECONDS = 2.0
"""How long a thread must have nothing to do before memory is handed back."""


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
        worked = False
        while True:
            try:
                job = self._queue.get(timeout=REST_SECONDS if worked else None)
            except Empty:
                _hand_back_memory()
                worked = False
                continue
            worked = True
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


@cache
def _trim() -> Callable[[int], int] | None:
    """glibc's ``malloc_trim``; None under another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None


def _hand_back_memory() -> None:
    """Give the system what the allocator holds and nobody uses."""
    trim = _trim()
    if trim is not None:
        trim(0)
