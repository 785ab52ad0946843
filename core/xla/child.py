"""Child processes: the real compiler and the user's code run there, because either may abort the process.

A child is one of the scripts beside this file. It reads its request from a JSON file and writes its answer to another,
so that whatever the compiler or the user's code prints does no harm.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from hloscope.core.dumps.passlog import is_log_line
from hloscope.core.errors import CompileError, HloscopeError, UsageError

Json = Mapping[str, object]
"""A request or an answer."""

Start: TypeAlias = Callable[[Sequence[str], Mapping[str, str], BinaryIO, float], int]
"""Runs a command with an environment, its output in a file, for at most so many seconds, and gives its exit status.

Raises ``subprocess.TimeoutExpired``, and ``OSError`` where it cannot be started."""

_NO_ROOM = 64 << 10
"""Bytes: with less, what a child wanted to say had no room."""

_FATAL = re.compile(r"^F[0-9]{4} [0-9:.]+\s+[0-9]+ \S+\] ?(.*)$")
_LOG = re.compile(r"^[IW][0-9]{4} [0-9:.]+\s+[0-9]+ \S+\] ")
_NOISE = ("*** ", "    @", "@ ", "[failure_signal_handler", "Fatal Python error", "Thread 0x", "Extension modules")
_APART = re.compile(r"Failed after [\w.-]+|Couldn't interpret value .* for flag [\w-]+")
"""What XLA says some lines from the failure: the pass whose result its verifier refuses, the flag that is malformed."""
_EXCEPTION = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*(?:Error|Exception|Exit|Interrupt): (.*)$")


def run_child(
    script: str,
    request: Json,
    *,
    env: Mapping[str, str],
    timeout: float,
    what: str,
    log_path: str | None = None,
    start: Start | None = None,
) -> dict[str, object]:
    """Runs a script of this folder on a request and returns its answer.

    Raises ``CompileError`` with the last line that says something where the child crashes or takes longer than
    ``timeout`` seconds, and ``UsageError`` where the child blames its request. ``log_path`` is where what the compiler
    logged of its passes goes; ``start`` runs the command in another way than as a new process.
    """
    with tempfile.TemporaryDirectory(prefix="hloscope-") as folder:
        asked, answered, errors = (Path(folder, name) for name in ("request.json", "answer.json", "stderr.txt"))
        asked.write_text(json.dumps(request))
        command = [sys.executable, "-P", str(Path(__file__).with_name(script)), str(asked), str(answered)]
        with errors.open("wb") as stderr:
            try:
                status = (start or _as_process)(command, env, stderr, timeout)
            except subprocess.TimeoutExpired:
                raise CompileError(f"{what} did not finish within {timeout:g} s") from None
            except OSError as error:
                raise CompileError(f"{what} cannot be started: {error}") from None
        if log_path is not None:
            try:
                _keep_log(errors, log_path)
            except OSError as error:
                said = (error.strerror or str(error)).lower()
                raise CompileError(f"the compiler's log cannot be written: {said}", path=log_path) from None
        answer = _answer(answered)
        if answer is not None and "error" in answer:
            raise _told(answer, what)
        if status != 0 or answer is None:
            text = errors.read_text("utf-8", "replace")
            said = last_line(text)
            if said:
                said = "; ".join([said, *(one for one in dict.fromkeys(_APART.findall(text)) if one not in said)])
            if not said and shutil.disk_usage(folder).free < _NO_ROOM:
                said = f"no space left in {tempfile.gettempdir()}"
            raise CompileError(f"{what} {_ended(status)}: {said}" if said else f"{what} {_ended(status)}")
        return answer


def _as_process(command: Sequence[str], env: Mapping[str, str], said: BinaryIO, timeout: float) -> int:
    return subprocess.run(
        command, env=dict(env), stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=timeout
    ).returncode


def _keep_log(stderr: Path, log_path: str) -> None:
    with stderr.open("rb") as said, open(log_path, "wb") as log:
        log.writelines(line for line in said if is_log_line(line.decode("utf-8", "replace").rstrip("\r\n")))


def _answer(path: Path) -> dict[str, object] | None:
    try:
        loaded: object = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return cast("dict[str, object]", loaded) if isinstance(loaded, dict) else None


def _told(answer: Json, what: str) -> HloscopeError:
    message = str(answer["error"])
    line = answer.get("line")
    path = answer.get("path")
    kind = UsageError if answer.get("usage") else CompileError
    return kind(
        message if answer.get("usage") else f"{what} failed: {message}",
        path=str(path) if path is not None else None,
        line=line if isinstance(line, int) else None,
    )


def _ended(status: int) -> str:
    if status < 0:
        import signal

        try:
            return f"was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"was ended by signal {-status}"
    return f"ended with status {status}"


def last_line(text: str) -> str:
    """The line of a child's stderr that says what went wrong: a fatal check, else an exception, else the last line.

    An exception whose line ends with a colon goes on in the next line that is not indented.
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if (match := _FATAL.match(line)) is not None:
            return match[1].strip()
    telling = [line for line in lines if not line.startswith(_NOISE) and not line.startswith((" ", "\t"))]
    for number in reversed(range(len(telling))):
        if _EXCEPTION.match(telling[number]) is not None:
            return _with_its_reason(telling[number:])
    telling = [line for line in telling if not _LOG.match(line)]
    return telling[-1] if telling else ""


def _with_its_reason(lines: list[str]) -> str:
    said, *rest = lines
    for line in rest:
        if not said.endswith(":"):
            break
        said += f" {line}"
    return said


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child that compiles by itself: the user's, without flags that were meant for a program."""
    env = {key: value for key, value in os.environ.items() if key not in _PROGRAM_VARIABLES}
    env.update(extra or {})
    return env


_PROGRAM_VARIABLES = frozenset({"XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_COMPILATION_CACHE_DIR", "JAX_PLATFORMS"})
