"""A command of hloscope as a child process: its progress line by line, its answer as JSON, and an end when asked.

The user's program and the real compiler may abort, and a search may take minutes: neither may happen in this process.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_GRACE = 2.0
"""Seconds that a child has to end before it is killed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a child said."""

    code: int
    data: dict[str, Any] | None
    """The JSON object that it printed; None where it printed none."""
    said: tuple[str, ...]
    """Its lines on standard error."""


def ask(
    words: Sequence[str], *, cancelled: Callable[[], bool] = lambda: False, line: Callable[[str], None] | None = None
) -> Answer:
    """Run ``hloscope WORDS`` to its end; `line` is given what it says on the way. A cancelled child is ended."""
    command = [sys.executable, "-m", "hloscope.core.cli.main", *words]
    # Commands show their progress on a terminal only, so standard error is one.
    leader, follower = pty.openpty()
    said: list[str] = []
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=follower, start_new_session=True
    )
    os.close(follower)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            if cancelled():
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE)
                if process.poll() is None:
                    process.kill()
                return

    def listen() -> None:
        rest = b""
        with suppress(OSError):  # the terminal's other end is gone with the child
            while data := os.read(leader, 4096):
                *whole, rest = (rest + data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")).split(b"\n")
                for one in whole:
                    text = one.decode("utf-8", "replace").rstrip()
                    if text:
                        said.append(text)
                        if line is not None:
                            line(text)

    threads = [threading.Thread(target=watch, daemon=True), threading.Thread(target=listen, daemon=True)]
    for thread in threads:
        thread.start()
    try:
        assert process.stdout is not None
        printed = process.stdout.read()
        code = process.wait()
    finally:
        done.set()
        for thread in threads:
            thread.join(_GRACE + 1)
        os.close(leader)
    try:
        data = json.loads(printed)
    except ValueError:
        data = None
    return Answer(code, data if isinstance(data, dict) else None, tuple(said))
