"""Probes of our own compiler in a process of their own, which can be ended where it is: also in a loop of a library.

The process is started when a probe with a time limit is first made, and kept for the next ones. It says which pass it
is at; when the limit of a phase and a little more are over it is killed, and the outcome names the pass.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.connection import Connection, Pipe
from typing import Any

from hloscope.bisect.search import Outcome

GRACE = 0.5
"""Seconds that a process has beyond its limit, which it keeps by itself wherever Python can stop it."""
STARTING, COMPILING, JUDGING = "the start of a process", "the compile", "evaluating the module"
"""What a process is at; what it says of itself."""
DEATH_SECONDS = 10.0
START_SECONDS = 60.0
"""Longest start of a process."""


@dataclass(frozen=True)
class Heard:
    """A question that a run has put to the gate."""

    ordinal: int
    identity: str
    rule: str
    instruction: str | None


@dataclass(frozen=True)
class Said:
    """What a process answered."""

    outcome: Outcome | None
    """None where the compile came to its end and nothing more was asked, or where the process cannot make the probe."""
    stopped: tuple[int, str] | None = None
    """The run (number and name) at which it had to be killed, or died."""
    heard: tuple[Heard, ...] = ()
    """What the run asked the gate that was listened to."""


@dataclass
class Child:
    """A process that makes probes, started anew after it was killed.

    A probe is a recipe, a choice and a judge of `core_probe`, or no judge where only the compile is asked for.
    """

    _process: subprocess.Popen[bytes] | None = None
    _line: Connection[Any, Any] | None = None
    _compiles: dict[bytes, Said] = field(default_factory=dict[bytes, Said])

    def compile(self, recipe: object, choice: object, seconds: float) -> Said:
        """Whether a compile comes to its end; one that did is not made again."""
        key = pickle.dumps((recipe, choice))
        found = self._compiles.get(key)
        if found is None:
            found = self._compiles[key] = self._asked(recipe, choice, None, seconds)
        return found

    def ask(self, recipe: object, choice: object, judge: object, seconds: float) -> Said:
        """One probe; a compile that had to be killed is not begun again."""
        key = pickle.dumps((recipe, choice))
        known = self._compiles.get(key)
        if known is not None and known.stopped is not None:
            return known
        said = self._asked(recipe, choice, judge, seconds)
        if said.stopped is not None:
            self._compiles[key] = said
        return said

    def heard(self, recipe: object, choice: object, run: tuple[int, str], seconds: float) -> tuple[Heard, ...]:
        """What a run, which does not come to its end, asks the gate before; the compile is made again for that."""
        key = pickle.dumps((recipe, choice, run))
        found = self._compiles.get(key)
        if found is None:
            found = self._compiles[key] = self._asked(recipe, choice, None, seconds, run[0])
        return found.heard if found.stopped == run else ()

    def _asked(self, recipe: object, choice: object, judge: object, seconds: float, listen: int | None = None) -> Said:
        heard: list[Heard] = []
        try:
            request = pickle.dumps((recipe, choice, judge, listen))
        except (pickle.PicklingError, AttributeError, TypeError):
            return Said(None)  # an oracle of this process alone
        line = self._started()
        at: tuple[int, str] | None = None
        phase = STARTING
        try:
            line.send_bytes(request)
            began = time.monotonic()
            while line.poll(
                max(0.0, began + (START_SECONDS if phase == STARTING else seconds + GRACE) - time.monotonic())
            ):
                kind, *rest = line.recv()
                if kind == "done":
                    return Said(rest[0])
                if kind == "phase":
                    phase, at, began = rest[0], None, time.monotonic()
                elif kind == "heard":
                    heard.append(rest[0])
                else:
                    at = (rest[0], rest[1])
        except (EOFError, OSError):
            how = self._end(DEATH_SECONDS)  # a dump of its memory takes a while
            return Said(Outcome("failed", f"{_place(at, phase)} {how}"), at, tuple(heard))
        self._end()
        return Said(Outcome("failed", f"{_place(at, phase)} did not end within {seconds:g} s"), at, tuple(heard))

    def _started(self) -> Connection[Any, Any]:
        if self._process is not None and self._line is not None and self._process.poll() is None:
            return self._line
        self._end()
        ours, theirs = Pipe()
        env = os.environ | {"PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hloscope.bisect.subjects.core_child", str(theirs.fileno())],
                env=env, stdin=subprocess.DEVNULL, stdout=2, pass_fds=(theirs.fileno(),),
            )  # fmt: skip
        self._line = ours
        return ours

    def _end(self, wait: float = 0.0) -> str:
        """End the process; how it ended by itself, where it had or does so within some seconds."""
        process, self._process = self._process, None
        line, self._line = self._line, None
        if line is not None:
            line.close()
        if process is None:
            return ""
        try:
            status = process.wait(wait)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _place(at: tuple[int, str] | None, phase: str) -> str:
    return at[1] if at is not None else phase


@lru_cache(maxsize=1)
def child() -> Child:
    """This process's own."""
    return Child()


# ---------------------------------------------------------------- the process itself
def main() -> None:
    """Answer until the other end is closed."""
    from hloscope.bisect.subjects.core_probe import probe, subject_of

    with Connection(int(sys.argv[1])) as line:
        _end_with_parent()
        while True:
            try:
                request = line.recv_bytes()
            except EOFError:
                return
            try:
                recipe, choice, judge, listen = pickle.loads(request)
            except (pickle.UnpicklingError, AttributeError, ImportError):
                line.send(("done", None))
                continue
            subject = subject_of(recipe)
            line.send(("phase", COMPILING))
            line.send(("done", probe(subject, choice, judge, line.send, listen)))


def _end_with_parent() -> None:
    """Where the system can, end when the parent does, whatever is going on here."""
    try:
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
    except (OSError, AttributeError):
        pass


if __name__ == "__main__":
    main()
