"""Probes for tests of whoever makes them: picklable, importable where a worker is."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from hloscope.bisect.search import Outcome


@dataclass(frozen=True)
class Square:
    """Says whether a number's square is at least a limit."""

    number: int
    limit: int = 50

    @property
    def key(self) -> str:
        """The number."""
        return f"square {self.number}"

    def run(self) -> Outcome:
        """Compute."""
        return Outcome("wrong" if self.number**2 >= self.limit else "right", str(self.number))


@dataclass(frozen=True)
class Deadly:
    """Kills its process the first times that it runs, as the marks in a folder say."""

    folder: str
    number: int
    deaths: int = 1

    @property
    def key(self) -> str:
        """The number."""
        return f"deadly {self.number}"

    def run(self) -> Outcome:
        """Leave a mark; die while there are few."""
        mark = Path(self.folder, f"{self.number}.{time.monotonic_ns()}.{os.getpid()}")
        mark.touch()
        if len(list(Path(self.folder).glob(f"{self.number}.*"))) <= self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome("right", str(self.number))
