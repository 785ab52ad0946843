"""Commands of the user's: run with everything that they start, ended with it, and read by their exit code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from hloscope.bisect.search import Outcome
from hloscope.core.errors import UsageError

_FAILED_AFTER = re.compile(r"^.*Failed after [\w.-]+.*$", re.M)

FLAG_REFUSED = (
    re.compile(r"Unknown flags? in XLA_FLAGS: .*"),
    re.compile(r"Couldn't interpret value .* for flag [\w-]+"),
    re.compile(r"Flag parsing failed"),
)
"""How XLA ends a process whose flags it does not take; the sentence that says most comes first."""

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?(%[\w.-]+ = .*)$", re.M)


class Overrun(BaseException):
    """A block took longer than it may. No Exception, which what runs in the block may catch."""


@contextmanager
def limited(seconds: float | None) -> Generator[None]:
    """Run a block for at most some seconds; forever with None. Raises Overrun at the next line of Python after them.

    Only a process's main thread can be stopped so; elsewhere, and where the system has no timers, the block is not.
    """
    here = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if seconds is None or not here:
        yield
        return

    def stop(*_: object) -> None:
        raise Overrun(f"did not end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    # Again and again: one may be lost in a callback of a destructor.
    signal.setitimer(signal.ITIMER_REAL, seconds, max(seconds, 1.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_command(command: str | Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None) -> Outcome:
    """Run a command (a shell's where it is one text) and read its exit code as ``git bisect run`` does.

    0 is right, 125 no answer, 1 to 124 wrong; a signal, another code, or more than `timeout` seconds failed. What the
    command has started is ended with it. Raises UsageError where it cannot be run.
    """
    try:
        process = subprocess.Popen(
            command, shell=isinstance(command, str), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise UsageError(f"the command cannot run: {error}") from error
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return Outcome("failed", f"it did not end within {timeout:g} s")
    finally:
        _end(process)
    return _read(process.returncode, err or out)


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and what it left running."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _read(status: int, text: str) -> Outcome:
    from hloscope.core.xla.child import last_line

    if status == 0:
        return Outcome("right")
    how = f"ended by {_name(-status)}" if status < 0 else f"exit code {status}"
    if status > 128 and (name := _name(status - 128)):
        how += f" ({name})"
    flag = next((found for one in FLAG_REFUSED[:-1] if (found := one.search(text)) is not None), None)
    said = last_line(text)[:200] if flag is None else flag[0]
    refused = _FAILED_AFTER.search(text)
    if refused is not None:
        told = "" if said in refused[0] else said.replace(refused[0].strip(), "")
        said = _refusal(text[: refused.start()], told.strip().rstrip(":"), refused[0].strip())
    told = how + (f": {said}" if said else "")
    if status == 125:
        return Outcome("unknown", told)
    return Outcome("wrong" if 0 < status < 125 else "failed", told)


def _refusal(before: str, said: str, refused: str) -> str:
    """What a verifier says in several lines, as one: the rule that is broken, the instruction, the pass."""
    named = _INSTRUCTION.search(before)
    if named is None:
        return "; ".join(one for one in (said, refused[-300:]) if one)
    rule = said or (before[: named.start()].strip().splitlines() or [""])[-1].strip()[-200:].rstrip(":")
    return "; ".join(one for one in (rule, named[1][:200], refused[-300:]) if one)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""
