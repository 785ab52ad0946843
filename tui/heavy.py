"""Work that is done one piece after the other, and who waits for whom."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from textual.worker import NoActiveWorker, Worker, get_current_worker

if TYPE_CHECKING:
    from types import TracebackType


class OneByOne:
    """A lock; a worker that holds it is known by its description, those that wait by themselves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[Worker[Any]] = set()
        self.holder = ""
        """What is being done."""

    def __enter__(self) -> None:
        worker = _worker()
        if worker is not None:
            self._waiting.add(worker)
        self._lock.acquire()
        if worker is not None:
            self._waiting.discard(worker)
        self.holder = worker.description if worker is not None else ""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.holder = ""
        self._lock.release()

    def before(self, worker: Worker[Any]) -> str:
        """What a worker waits for; nothing where it does not wait."""
        return self.holder if worker in self._waiting else ""


def _worker() -> Worker[Any] | None:
    try:
        return get_current_worker()
    except NoActiveWorker:
        return None
