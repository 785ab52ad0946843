"""Making probes: one after the other, on the local cores, or on a cluster, each at most once.

A *task* is a picklable value that says what it probes (`key`) and can do it (`run`). Whoever searches hands over
several at a time; what the journal knows is not made again, the rest goes to an executor of ``concurrent.futures``.
Dask's ``distributed`` gives one for a cluster. A worker that dies costs a second try of what it was at.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from hloscope.bisect.journal import Journal
from hloscope.bisect.search import Outcome
from hloscope.core.errors import HloscopeError, UsageError
from hloscope.core.version import version

TRIES = 3
"""How often a probe is begun whose worker dies; then its outcome is that it kills its worker."""


class Task(Protocol):
    """One probe."""

    @property
    def key(self) -> str:
        """Names what is probed: two tasks of one key have one outcome."""
        ...

    def run(self) -> Outcome:
        """Make the probe. Runs in any process."""
        ...


def perform(task: Task) -> Outcome:
    """What a worker does. Raises only what no probe of the search could get past."""
    return task.run()


@dataclass
class Prober:
    """Answers tasks."""

    journal: Journal = field(default_factory=Journal.for_once)
    ways: int = 1
    """Probes that are worth making at the same time."""
    cluster: bool = False
    """Whether tasks travel to other machines, which do not see this one's files."""
    _start: Callable[[], Executor] | None = None
    _executor: Executor | None = None

    def ask(self, tasks: Sequence[Task]) -> list[Outcome]:
        """The outcomes of tasks, in their order."""
        found: dict[str, Outcome] = {}
        missing: dict[str, Task] = {}
        for task in tasks:
            known = self.journal.get(task.key)
            if known is not None:
                found[task.key] = known
            else:
                missing.setdefault(task.key, task)
        for key, outcome in self._make(missing):
            found[key] = outcome
        return [found[task.key] for task in tasks]

    def one(self, task: Task) -> Outcome:
        """The outcome of one task."""
        return self.ask([task])[0]

    def _make(self, missing: dict[str, Task]) -> Generator[tuple[str, Outcome]]:
        if self._start is None or (len(missing) < 2 and not self.cluster):
            for key, task in missing.items():
                outcome = task.run()
                self.journal.put(key, outcome)
                yield key, outcome
            return
        left = dict(missing)
        for key, outcome in self._together(left):
            del left[key]
            self.journal.put(key, outcome)
            yield key, outcome
        # One that kills its worker takes down what runs beside it: from here on each is alone.
        for key, task in left.items():
            outcome = self._alone(key, task)
            self.journal.put(key, outcome)
            yield key, outcome

    def _together(self, tasks: dict[str, Task]) -> Generator[tuple[str, Outcome]]:
        """One try of all at once; those whose worker died are missing."""
        if self._executor is None:
            assert self._start is not None
            self._executor = self._start()
        futures: dict[str, Future[Outcome]] = {}
        broken = False
        try:
            for key, task in tasks.items():
                futures[key] = self._executor.submit(perform, task)
        except BrokenProcessPool:
            broken = True
        for key, future in futures.items():
            try:
                outcome = future.result()
            except BrokenProcessPool:
                broken = True
                continue
            except HloscopeError:
                raise
            except Exception as error:
                if type(error).__name__ not in ("KilledWorker", "CancelledError", "FutureCancelledError"):
                    raise
                continue
            yield key, outcome
        if broken:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _alone(self, key: str, task: Task) -> Outcome:
        for _ in range(TRIES - 1):
            for _, outcome in self._together({key: task}):
                return outcome
        return Outcome("failed", f"the process that made the probe died, {TRIES} times")

    def stop(self) -> None:
        """End the workers."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None


@contextmanager
def prober(journal: Journal, jobs: int = 1, cluster: str | None = None) -> Generator[Prober]:
    """A prober for the block. Raises UsageError where the cluster cannot be reached."""
    if cluster is not None:
        with _cluster(cluster) as (start, workers):
            yield Prober(journal, max(1, workers), True, start)
        return
    if jobs < 1:
        raise UsageError(f"--jobs is at least 1, got {jobs}")
    if jobs == 1:
        yield Prober(journal)
        return

    def start() -> Executor:
        # Not fork: threads of numpy's libraries do not live on in a child.
        return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))

    made = Prober(journal, jobs, False, start)
    try:
        yield made
    finally:
        made.stop()


@contextmanager
def _cluster(address: str) -> Generator[tuple[Callable[[], Executor], int]]:
    """Starts executors on the scheduler at an address, and says how many threads its workers have."""
    try:
        import distributed
    except ImportError:
        raise UsageError("--cluster needs Dask", hint="pip install 'hloscope[cluster]'") from None
    make = cast("Any", distributed.Client)
    try:
        client = make(address, timeout="10s", set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(f"--cluster {address}: no scheduler answers ({_short(error)})") from None
    try:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        if not workers:
            raise UsageError(f"--cluster {address}: the scheduler has no workers")
        others = {name: one for name, one in client.run(_version).items() if one != version()}
        if others:
            name, one = next(iter(others.items()))
            raise UsageError(f"--cluster {address}: {name} has hloscope {one or 'not installed'}, this is {version()}")
        threads = sum(int(one["nthreads"]) for one in workers.values())
        yield lambda: client.get_executor(pure=False, retries=TRIES - 1), threads
    finally:
        client.close()


def _version() -> str:
    return version()


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
