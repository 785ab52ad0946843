"""Progress of long work: a bar on stderr where that is a terminal, nothing elsewhere.

with progress("reading") as report:
    list_modules(dump, progress=report)

with waiting("opening dump/"):
    load("dump/")
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

Report = Callable[[int, int], None]
"""Called with the steps done and the steps in all."""


@contextmanager
def progress(what: str) -> Generator[Report, None, None]:
    """Yields the function to call as the work goes on; the bar is gone when the block ends."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


_PATIENCE_SECONDS = 0.3
"""What takes less is not worth a word."""
_TURN_SECONDS = 0.2
_DIAL = "|/-\\"


@contextmanager
def waiting(what: str) -> Generator[None, None, None]:
    """Says what goes on, and for how long already, while it cannot be told how far it is; the line is gone when the
    block ends."""
    if not sys.stderr.isatty():
        yield
        return
    begun, over = time.monotonic(), threading.Event()
    told = False

    def tell() -> None:
        nonlocal told
        pause, turn = _PATIENCE_SECONDS, 0
        while not over.wait(pause):
            told = True
            line = f"{_DIAL[turn % len(_DIAL)]} {what}: {time.monotonic() - begun:.0f} s"
            print(f"\r{line[: _columns() - 1]}\x1b[K", end="", file=sys.stderr, flush=True)
            pause, turn = _TURN_SECONDS, turn + 1

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
        if told:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80
