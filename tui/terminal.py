"""The terminal before the dashboard takes it over."""

from __future__ import annotations

import signal
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_INPUT_FLAGS, _LOCAL_FLAGS = 0, 3
"""Where `termios.tcgetattr` has what becomes of bytes that come in, and of lines."""
EXIT_TERMINATED = 143


@contextmanager
def keys_wait() -> Generator[None, None, None]:
    """What is typed meanwhile is neither echoed nor gathered into lines: it waits for whoever reads next."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError):
        yield
        return
    quiet = termios.tcgetattr(sys.stdin)
    # As the dashboard wants its keys, but that Ctrl-C still interrupts.
    quiet[_INPUT_FLAGS] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR | termios.IXON)
    quiet[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    # A terminal left so would show nothing of what is typed into the shell.
    terminated = signal.signal(signal.SIGTERM, _end)
    try:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
        signal.signal(signal.SIGTERM, terminated)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)
