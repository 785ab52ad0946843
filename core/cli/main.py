"""The ``hloscope`` command: finds a command by name, runs it, and turns whatever goes wrong into one line.

A command is a row of ``COMMANDS`` (its module is imported when it is used, so that ``hloscope --help`` and
``hloscope parse`` stay quick) or an entry point of the group ``hloscope.commands`` (how ``open``, ``lsp`` and
``bisect`` are found, and how another package adds its own). A command function returns its exit code, or None for 0.

Exit codes: 0 done; 1 the answer is "no"; 2 bad usage or unusable input; 70 a bug of hloscope's own; 130 interrupted;
141 the reader of our output went away; 143 terminated.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

try:
    import click

    from hloscope.core.errors import HloscopeError, UsageError
    from hloscope.core.spelling import did_you_mean
except KeyboardInterrupt:  # Ctrl-C right after the start
    print("hloscope: interrupted", file=sys.stderr)
    raise SystemExit(130) from None

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

EXIT_UNUSABLE = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
EXIT_TERMINATED = 143
_OUTPUT = "standard output"
_NO_ROOM = 64 << 10
"""Bytes of a disk that is as good as full."""

COMPLETION = "_HLOSCOPE_COMPLETE"
"""Set by a shell that asks for completions; the name is click's convention."""

ENTRY_POINT_GROUP = "hloscope.commands"

COMMANDS: Mapping[str, tuple[str, str]] = {
    "ls": ("hloscope.core.cli.ls:command", "List the modules of a dump directory."),
    "capture": ("hloscope.core.cli.capture:command", "Run a program with dumps on and keep a ledger of what XLA did."),
    "compile": ("hloscope.core.cli.compile:command", "Compile a module with the ledger on."),
    "import": ("hloscope.core.cli.import_:command", "Read a dump into a ledger."),
    "parse": ("hloscope.core.cli.parse:command", "Parse HLO text and print it back."),
    "verify": ("hloscope.core.cli.verify:command", "Check the invariants of a module."),
    "opt": ("hloscope.core.cli.opt:command", "Run named passes or a pipeline on a module."),
    "run": ("hloscope.core.cli.run:command", "Evaluate a module on given or random inputs."),
    "replay": ("hloscope.core.cli.replay:command", "Evaluate every stage and show where the result changes."),
    "passes": ("hloscope.core.cli.passes:command", "Show the pass timeline."),
    "compare": ("hloscope.core.cli.compare:command", "Line up two compiles and find the stage at which they part."),
    "diff": ("hloscope.core.cli.diff:command", "Show what a pass changed, or how two modules differ."),
    "fusion": ("hloscope.core.cli.fusion:command", "Show every fusion decision, or every kernel."),
    "why": ("hloscope.core.cli.why:command", "Tell all that is known of an instruction."),
    "copies": ("hloscope.core.cli.copies:command", "Show every layout copy and its cause."),
    "buffers": ("hloscope.core.cli.buffers:command", "Show where values live and what fills memory at its peak."),
    "audit": ("hloscope.core.cli.audit:command", "Measure how far our decisions agree with a real dump."),
    "pallas": ("hloscope.core.cli.pallas:command", "Show blocks, schedule and faults of Pallas kernels."),
    "sql": ("hloscope.core.cli.sql:command", "Ask a ledger in SQL."),
    "doctor": ("hloscope.core.cli.doctor:command", "Show which engines and targets this machine has."),
}
"""Command name -> (``module:attribute`` of the click command, one line for the overview)."""


class CommandTable(click.Group):
    """The top-level group: looks commands up lazily, and reads a bare path as ``open PATH``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *_entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name][0].partition(":")
            return _as_command(cmd_name, getattr(import_module(module), attribute))
        entry = _entry_points().get(cmd_name)
        return _as_command(cmd_name, entry.load()) if entry else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        command = self.get_command(ctx, name)
        if command is not None:
            return name, command, args[1:]
        if _is_path(name):
            opener = self.get_command(ctx, "open")
            if opener is None:
                raise UsageError("the dashboard is not installed", hint="hloscope passes PATH shows the timeline")
            return "open", opener, args
        hint = did_you_mean(name, self.list_commands(ctx), most=2) or "see --help"
        raise UsageError(f"no command and no file {name!r}", hint=hint)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, _short_help(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _print_version(ctx: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    from hloscope.core.version import version

    click.echo(f"hloscope {version()}")
    ctx.exit()


@click.group(
    cls=CommandTable,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="A bare 'hloscope PATH' is 'hloscope open PATH'. Example: hloscope capture -o run.ledger -- python train.py",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print it.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """See what XLA did to a program, pass by pass, and why.

    PATH is a dump directory (--xla_dump_to), an archive of one, a ledger, or an HLO file.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


class Terminated(KeyboardInterrupt):
    """SIGTERM came: the same is undone, and the same child processes are ended, as after Ctrl-C."""


def run(args: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; every failure has become one line on stderr."""
    try:
        code = _invoke(list(sys.argv[1:] if args is None else args))
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            _drop_output()
            return _fail(f"{_OUTPUT}: {error.strerror}", EXIT_UNUSABLE)
    except HloscopeError as error:
        return _fail(str(error), error.exit_code)
    except click.ClickException as error:
        return _fail(_usage_line(error), EXIT_UNUSABLE)
    except Terminated:
        return _fail("terminated", EXIT_TERMINATED)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        _drop_output()
        return EXIT_BROKEN_PIPE
    except MemoryError:
        return _fail("out of memory: what was asked takes more than this process may have", EXIT_UNUSABLE)
    except Exception as error:
        return _unexpected(error)
    return code if isinstance(code, int) else 0


def _invoke(args: list[str]) -> object:
    """What the command returned. ``cli.main`` would do the same, and end broken pipes and Ctrl-C its own way."""
    if COMPLETION in os.environ:
        cli.main(prog_name="hloscope", complete_var=COMPLETION)
    try:
        with cli.make_context("hloscope", args) as context:
            return cli.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code


class _Output(io.FileIO):
    """Standard output, which errors of writing name."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = _OUTPUT
            raise


def main() -> NoReturn:
    """The console script."""
    if sys.stdout is None:  # closed by whoever started us: nobody is to read it
        sys.stdout = open(os.devnull, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Buffered in any case: without (PYTHONUNBUFFERED), a short write to a full disk would be taken for a whole one.
        plain = sys.stdout
        at_once = plain.line_buffering or isinstance(plain.buffer, io.RawIOBase)
        whole = io.BufferedWriter(_Output(plain.fileno(), "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(whole, plain.encoding, plain.errors, line_buffering=at_once)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            # A dump may hold any file name; a terminal of another encoding must not end in an exception.
            reconfigure(errors="backslashreplace")
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:  # the screen and the servers have ends of their own
        signal.signal(signal.SIGTERM, _terminated)
    sys.exit(run())


def _terminated(number: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough while things are put in order
    raise Terminated


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _as_command(name: str, found: object) -> click.Command:
    if not isinstance(found, click.Command):
        raise TypeError(f"the command {name!r} is a {type(found).__name__}, not a click command")
    return found


def _short_help(name: str) -> str:
    """One line for the overview. Another package's command that does not load says so instead of ending the help."""
    if name in COMMANDS:
        return COMMANDS[name][1]
    try:
        return _as_command(name, _entry_points()[name].load()).get_short_help_str(limit=100)
    except Exception as error:
        return f"(does not load: {type(error).__name__}: {error})"


def _is_path(word: str) -> bool:
    return word == "-" or os.sep in word or os.path.lexists(word) or bool(os.path.splitext(word)[1])


def _usage_line(error: click.ClickException) -> str:
    line = " ".join(error.format_message().split())
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{line} (see {context.command_path} --help)" if context else line


def _unexpected(error: Exception) -> int:
    """The operating system's refusals are the user's to mend; anything else is our bug."""
    if os.environ.get("HLOSCOPE_TRACEBACK"):
        import traceback

        traceback.print_exc()
    if isinstance(error, OSError) and error.strerror:
        if error.filename == _OUTPUT:
            _drop_output()
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else _full_place(error)
        return _fail(f"{where}: {error.strerror}" if where else error.strerror, EXIT_UNUSABLE)
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return _fail(f"internal error: {what} (set HLOSCOPE_TRACEBACK=1 to see where)", EXIT_BUG)


def _drop_output() -> None:
    """The interpreter flushes stdout once more at exit; gives it somewhere to go."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _full_place(error: OSError) -> str:
    """Where there is no room, for an error of writing: that names no file."""
    import errno
    import shutil
    import tempfile

    with suppress(OSError):
        folder = tempfile.gettempdir()
        if error.errno == errno.ENOSPC and shutil.disk_usage(folder).free < _NO_ROOM:
            return folder
    return ""


def _fail(line: str, code: int) -> int:
    try:
        print(f"hloscope: {line}", file=sys.stderr, flush=True)
    except OSError:
        pass  # nowhere left to say it
    return code


if __name__ == "__main__":
    main()
