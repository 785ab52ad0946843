"""Progress of long work: a bar on stderr where that is a terminal, nothing elsewhere.

    with progress("reading") as report:
        list_modules(dump, progress=report)
"""

from __future__ import annotations

import sys
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
