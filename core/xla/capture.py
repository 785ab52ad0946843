"""Captures every compile of a program: runs it with dumps switched on and reads what it wrote into one ledger.

The program keeps its own ``XLA_FLAGS``, its stdin, stdout and stderr, and its exit code. XLA's log of pass times goes
to its stderr; those lines are kept for the import and not shown.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import BinaryIO, Self

from hloscope.core.dumps.directory import open_dump
from hloscope.core.dumps.filenames import CAPTURE_FILE, PASS_LOG_FILE
from hloscope.core.dumps.importer import ImportReport, Progress, import_dump
from hloscope.core.dumps.passlog import is_log_line
from hloscope.core.errors import DumpError, HloscopeError, UsageError
from hloscope.core.xla.compile import CompileResult, compile_function, compile_stablehlo
from hloscope.core.xla.flags import capture_environment, dump_flags, supported_flags, user_dump_folder
from hloscope.core.xla.notes import write_capture_note
from hloscope.core.xla.place import require_place
from hloscope.core.xla.protos import proto_reader
from hloscope.core.xla.scratch import keep_folder, scratch_folder
from hloscope.core.xla.targets import package_version

_GROUP_SECONDS = 1.0
"""Within this time a signal that was sent to a group has ended a process of it."""
_LOG_START = re.compile(rb"^[VIWEF][0-9]{4} ")
_NOT_IN_RE2 = re.compile(r"\A(?:\\\\|\\[^1-9\\]|[^\\])*?(?P<form>\(\?(?:<?[=!]|>|\(|P=|#)|\\[1-9])")
_ONLY_IN_RE2 = re.compile(r"\\[pP](?:\{[^}]*\}|[A-Za-z])|\\[zCQE]|\(\?-?[imsU]+(?:-[imsU]+)?\)|\[\[:\^?[a-z]+:\]")
"""What Python's own reader of patterns does not know, or not in this place."""
_INFO_LINE = re.compile(rb"^[IV][0-9]{4} [0-9:.]+\s+[0-9]+ [\w./-]+:[0-9]+\] ")


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """What a capture did."""

    exit_code: int
    """The program's own; 128 + N where signal N ended it."""
    report: ImportReport | None
    """What was imported; None where the program compiled nothing."""
    dump_to: str | None
    """The folder with the dump, where it is kept."""
    notes: tuple[str, ...] = ()


def capture_command(
    argv: Sequence[str],
    ledger_path: str | os.PathLike[str],
    *,
    keep_dump: str | os.PathLike[str] | None = None,
    pass_re: str = ".*",
    proto: bool = True,
    force: bool = False,
    progress: Progress | None = None,
    stderr: BinaryIO | None = None,
) -> CaptureResult:
    """Runs a command with dumps on and imports every module that it compiled, also where it died half-way.

    The dump goes to a temporary folder, or to ``keep_dump``, which must be new or empty. ``stderr`` takes the program's
    standard error (by default this process's). Raises ``UsageError`` where the command cannot be started or the folder
    is not empty, or ``pass_re`` is no regular expression, ``LedgerError`` where the ledger exists (without ``force``)
    or cannot be created, before the program runs. Where the import fails later the dump is kept, and the error says
    where.
    """
    if not argv:
        raise UsageError("no command to run", hint="hloscope capture -o RUN.ledger -- python train.py")
    require_place(ledger_path, force=force)
    _require_pattern(pass_re)
    program = shutil.which(argv[0])
    if program is None:
        raise UsageError(f"{argv[0]}: no such command")
    with _dump_folder(keep_dump) as (folder, held):
        notes: list[str] = []
        python = program if re.match(r"python[0-9.]*$", os.path.basename(program)) else sys.executable
        ours = dump_flags(folder, pass_re=pass_re, proto=proto, extra=supported_flags(python))
        own = user_dump_folder(os.environ.get("XLA_FLAGS"))
        if own is not None:
            notes.append(f"the program's own --xla_dump_to={own} is overridden while it is captured")
        env = capture_environment(os.environ, ours)
        log_path = os.path.join(folder, PASS_LOG_FILE)
        exit_code = _run(list(argv), env, log_path, stderr or sys.stderr.buffer, held)
        note_path = os.path.join(folder, CAPTURE_FILE)
        with _named(note_path):
            write_capture_note(
                note_path,
                command=shlex.join(argv),
                jaxlib=package_version("jaxlib") if python == sys.executable or _same_environment(python) else None,
                flags=env["XLA_FLAGS"],
                exit_code=str(exit_code),
            )
        with _dump_kept(folder, ledger_path, given=keep_dump is not None):
            report = _import(folder, ledger_path, force, progress, shlex.join(argv))
        if report is None:
            notes.append(_OVERWRITTEN if _compiled_something(log_path) else "the program compiled nothing with XLA")
        kept = folder if keep_dump is not None else None
        return CaptureResult(exit_code, report, kept, tuple(notes))


_OVERWRITTEN = (
    "XLA compiled something and dumped nothing: the program sets XLA_FLAGS itself; let it append to what is there "
    "(os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + ' --…')"
)


def _require_pattern(pass_re: str) -> None:
    """Raises UsageError for a pattern that XLA could not read: it would say so in the program's output, and dump no
    pass. XLA reads patterns with RE2, which has no lookaround and no back references."""
    beyond = _NOT_IN_RE2.match(pass_re)
    if beyond is not None:
        raise UsageError(f"--pass-re {pass_re!r}: XLA's patterns (RE2) have no {beyond['form']}")
    try:
        re.compile(_ONLY_IN_RE2.sub("x", pass_re))
    except re.error as error:
        raise UsageError(f"--pass-re {pass_re!r} is no regular expression: {error}") from None


@contextmanager
def _dump_kept(folder: str, ledger_path: str | os.PathLike[str], *, given: bool) -> Generator[None]:
    """An import that fails does not cost the run that was captured: its dump stays, and the error names it."""
    try:
        yield
    except HloscopeError as error:
        kept = folder if given else keep_folder(folder)
        command = shlex.join(["hloscope", "import", kept, "-o", os.fspath(ledger_path)])
        error.hint = "; ".join(part for part in (error.hint, f"the dump is kept: {command}") if part)
        raise


def _compiled_something(log_path: str) -> bool:
    """Whether XLA's log of passes, which no flag switches off, has a line."""
    try:
        return os.path.getsize(log_path) > 0
    except OSError:
        return False


def capture_function(
    spec: str,
    ledger_path: str | os.PathLike[str],
    *,
    target: str = "cpu",
    args: Sequence[str] = (),
    flags: Sequence[str] = (),
    keep_dump: str | os.PathLike[str] | None = None,
    pass_re: str = ".*",
    force: bool = False,
    progress: Progress | None = None,
) -> tuple[CompileResult, ImportReport]:
    """Compiles ``FILE.py:FUNCTION`` for a target without running it, with the user's own ``XLA_FLAGS``, and imports the
    dump.

    Raises as ``compile_function`` and ``import_dump`` do, and UsageError where ``pass_re`` is no regular expression.
    """
    _require_pattern(pass_re)

    def run(folder: str) -> CompileResult:
        return compile_function(
            spec,
            dump_to=folder,
            target=target,
            args=args,
            flags=flags,
            pass_re=pass_re,
            pass_log=True,
            as_user=True,
        )

    return _compiled(run, ledger_path, keep_dump, force, progress, spec, module=_module_of(spec))


def capture_stablehlo(
    program: str | bytes,
    ledger_path: str | os.PathLike[str],
    *,
    source: str = "",
    target: str = "cpu",
    flags: Sequence[str] = (),
    keep_dump: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> tuple[CompileResult, ImportReport]:
    """Compiles StableHLO (what ``jax.jit(f).lower(…)`` gives) for a target in a child, with the user's own
    ``XLA_FLAGS``, and imports the dump.

    ``source`` is what the ledger names as its origin.
    """

    def run(folder: str) -> CompileResult:
        return compile_stablehlo(program, dump_to=folder, target=target, flags=flags, pass_log=True, as_user=True)

    return _compiled(run, ledger_path, keep_dump, force, progress, source)


def _module_of(spec: str) -> str:
    """The name that jax gives the module of a function, as a pattern for ``--module``."""
    return rf"^jit_{re.escape(spec.rpartition(':')[2].rpartition('.')[2])}$"


def _compiled(
    compile_to: Callable[[str], CompileResult],
    ledger_path: str | os.PathLike[str],
    keep_dump: str | os.PathLike[str] | None,
    force: bool,
    progress: Progress | None,
    source: str,
    module: str | None = None,
) -> tuple[CompileResult, ImportReport]:
    require_place(ledger_path, force=force)
    with _dump_folder(keep_dump) as (folder, _):
        result = compile_to(folder)
        # Importing the file may compile small things of its own: only the function is wanted, if it is found by name.
        if module is not None and not _has_module(folder, module):
            module = None
        with _dump_kept(folder, ledger_path, given=keep_dump is not None):
            report = import_dump(
                folder,
                ledger_path,
                module=module,
                force=force,
                kind="capture",
                proto_reader=proto_reader,
                progress=progress,
            )
        return result, report


def _has_module(folder: str, pattern: str) -> bool:
    with open_dump(folder) as dump:
        return any(re.search(pattern, module.name) for module in dump.modules)


@contextmanager
def _dump_folder(keep_dump: str | os.PathLike[str] | None) -> Generator[tuple[str, tuple[int, ...]]]:
    """The folder for the dump, and what a child inherits to keep it; only a temporary one is removed."""
    if keep_dump is None:
        with scratch_folder() as made:
            yield made
        return
    folder = os.path.abspath(keep_dump)
    try:
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            raise UsageError("the folder for the dump is not empty", path=os.fspath(keep_dump))
    except OSError as error:
        raise UsageError((error.strerror or str(error)).lower(), path=os.fspath(keep_dump)) from None
    yield folder, ()


def _import(
    folder: str, ledger_path: str | os.PathLike[str], force: bool, progress: Progress | None, source: str
) -> ImportReport | None:
    try:
        return import_dump(
            folder,
            ledger_path,
            force=force,
            kind="capture",
            source=source,
            proto_reader=proto_reader,
            progress=progress,
        )
    except DumpError:
        return None


def _same_environment(python: str) -> bool:
    ours, theirs = os.path.abspath(sys.executable), os.path.abspath(python)
    return os.path.realpath(theirs) == os.path.realpath(ours) and os.path.dirname(theirs) == os.path.dirname(ours)


def _run(argv: list[str], env: dict[str, str], log_path: str, stderr: BinaryIO, held: tuple[int, ...]) -> int:
    """Runs the program to its end; its stderr goes on to ours, the compiler's log lines to a file."""
    reader, writer = _stderr_channel(stderr)
    # What the program compiled until it is interrupted is still imported.
    with _signals_are_the_programs() as signals:
        try:
            child = subprocess.Popen(argv, env=env, stderr=writer, pass_fds=held)
            signals.began(child)
        except OSError as error:
            os.close(reader)
            raise UsageError(f"{argv[0]}: {(error.strerror or str(error)).lower()}") from None
        finally:
            os.close(writer)
        with _named(log_path), open(log_path, "wb") as log:
            pump = threading.Thread(target=_pump, args=(reader, stderr, log), daemon=True)
            pump.start()
            status = child.wait()
            # A process that the program left behind may hold the channel open: what it says later is not waited for.
            pump.join(timeout=5)
    return 128 - status if status < 0 else status


@contextmanager
def _named(path: str) -> Generator[None]:
    """What the system refuses while a file is written (a full disk, a limit) names the file."""
    try:
        yield
    except OSError as error:
        raise DumpError(f"cannot write the dump: {error.strerror or error}", path=path) from error


def _stderr_channel(stderr: BinaryIO) -> tuple[int, int]:
    """(read end, write end): a pseudo terminal where our stderr is one, so that progress bars stay alive."""
    try:
        if stderr.isatty():
            import pty
            import tty

            reader, writer = pty.openpty()
            tty.setraw(writer)
            return reader, writer
    except (ImportError, OSError, ValueError):
        pass
    return os.pipe()


class _signals_are_the_programs:
    """SIGTERM and SIGINT are passed on to the program while it runs; children get the defaults again.

    SIGINT is not where the program has it already: a terminal sends it to a whole group of processes. Whether it was
    sent so is seen by another process of this group, which it ends.
    """

    _child: subprocess.Popen[bytes] | None = None
    _early: signal.Signals | None = None
    """The last signal that came before the program was known: it may run by then."""
    _other: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._old: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        if threading.current_thread() is threading.main_thread():
            # A handler (not SIG_IGN) is reset in the child by exec.
            self._old[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupt)
            self._old[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._end)
            self._start_other()
        return self

    def began(self, child: subprocess.Popen[bytes]) -> None:
        """The program runs."""
        self._child = child
        if self._early is not None:
            child.send_signal(self._early)

    def _pass_on(self, number: signal.Signals) -> None:
        if self._child is None:
            self._early = number
        else:
            self._child.send_signal(number)

    def _start_other(self) -> None:
        with suppress(OSError):
            # It ends with this process: then nobody holds the other end of what it reads.
            self._other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def _end_other(self) -> bool:
        """Whether it has ended by itself; it is gone afterwards."""
        other, self._other = self._other, None
        if other is None:
            return True
        try:
            other.wait(_GROUP_SECONDS)
            return True
        except subprocess.TimeoutExpired:
            other.kill()
            return False
        finally:
            other.communicate()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._end_other():
            self._pass_on(signal.SIGINT)
        self._start_other()

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._pass_on(signal.SIGTERM)

    def __exit__(self, *_: object) -> None:
        if self._other is not None:
            self._other.kill()
            self._other.communicate()
        for number, old in self._old.items():
            if old is not None:
                signal.signal(number, old)


def _pump(reader: int, stderr: BinaryIO, log: BinaryIO) -> None:
    """Passes a program's stderr on as it comes; only a line that may be a log line is held back until it is whole."""
    splitter = StderrSplitter()
    with suppress(OSError, ValueError):
        while data := os.read(reader, 1 << 16):
            shown, logged = splitter.feed(data)
            # The program's stderr goes on where its log cannot be kept; closing the log says so.
            with suppress(OSError):
                log.write(logged)
            if shown:
                stderr.write(shown)
                stderr.flush()
    with suppress(OSError, ValueError):
        stderr.write(splitter.rest())
        stderr.flush()
    os.close(reader)


class StderrSplitter:
    """Splits a stream into what the user sees and the compiler's log lines that only this capture asked for."""

    def __init__(self) -> None:
        self._held = b""
        self._line_start = True

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """(bytes to show, log lines to keep) of the next bytes of the stream."""
        shown, logged = bytearray(), bytearray()
        data = self._held + data
        self._held = b""
        at = 0
        while at < len(data):
            end = data.find(b"\n", at) + 1
            line = data[at:end] if end else data[at:]
            if not self._line_start:
                shown += line
            elif not end:
                if _may_be_log(line):
                    self._held = line
                    return bytes(shown), bytes(logged)
                shown += line
            elif _INFO_LINE.match(line):
                if is_log_line(line.decode("utf-8", "replace").rstrip("\r\n")):
                    logged += line
            else:
                shown += line
            self._line_start = bool(end)
            at = end or len(data)
        return bytes(shown), bytes(logged)

    def rest(self) -> bytes:
        """What was held back when the stream ended."""
        return self._held


def _may_be_log(start: bytes) -> bool:
    """Whether an unfinished line can still become a log line."""
    return _LOG_START.match(start) is not None if len(start) >= 6 else start[:1] in (b"I", b"V")
