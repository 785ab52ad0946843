"""``hloscope capture``: runs a program with dumps on, or compiles one function, and keeps a ledger of what XLA did."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import cast

import click

from hloscope.core.cli.opening import say_notes
from hloscope.core.cli.output import Column, TableOptions, emit_table, table_options
from hloscope.core.cli.outputs import check_outputs
from hloscope.core.cli.progress import progress
from hloscope.core.errors import UsageError
from hloscope.core.views.data import Source
from hloscope.core.views.modules import captured_modules, ledger_build
from hloscope.core.views.summary import show_ns
from hloscope.core.xla.capture import capture_command, capture_function
from hloscope.core.xla.compile import is_function_spec
from hloscope.core.xla.targets import TARGETS


class _CaptureCommand(click.Command):
    """Options may follow FILE.py:FUNCTION; what follows a command's first word, or ``--``, belongs to the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and self._names_function(ctx, args):
            ctx.allow_interspersed_args = True
            ctx.ignore_unknown_options = False
        return super().parse_args(ctx, args)

    def _names_function(self, ctx: click.Context, args: list[str]) -> bool:
        found, _, _ = self.make_parser(ctx).parse_args(list(args))
        words: object = found.get("command_line")
        if not isinstance(words, tuple | list) or not words:
            return False
        rest = cast("Sequence[str]", words)
        before = args[: len(args) - len(rest)]
        return is_function_spec(rest[0]) and before[-1:] != ["--"]


@click.command(
    "capture",
    cls=_CaptureCommand,
    # What follows the first word belongs to the program, options included.
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Example: hloscope capture -o run.ledger -- python train.py --steps 3",
)
@click.option("-o", "--output", metavar="RUN.ledger", help="The ledger to write; FUNCTION.ledger for FILE.py:FUNCTION.")
@click.option("--target", type=click.Choice(sorted(TARGETS)), help="Compile FILE.py:FUNCTION for this device.")
@click.option("--arg", "shapes", metavar="'f32[8,128]'", multiple=True, help="A parameter's shape, in order.")
@click.option("--pass-re", metavar="REGEX", default=".*", show_default=True, help="Passes whose stages are dumped.")
@click.option("--dump-to", metavar="DIR", help="Keep XLA's dump in this folder, which must be new or empty.")
@click.option("--force", is_flag=True, help="Replace RUN.ledger where it exists.")
@click.argument("command_line", metavar="COMMAND… | FILE.py:FUNCTION", nargs=-1, type=click.UNPROCESSED, required=True)
@table_options
def command(
    output: str | None,
    target: str | None,
    shapes: tuple[str, ...],
    pass_re: str,
    dump_to: str | None,
    force: bool,
    command_line: tuple[str, ...],
    table: TableOptions,
) -> int:
    """Run COMMAND with XLA's dumps switched on in its environment, and keep a ledger of every module that it compiled.

    With FILE.py:FUNCTION the jitted function is compiled for --target without a device and without running it; shapes
    come from --arg in order, else from its parameters' defaults. XLA_FLAGS counts in both forms.
    The program's exit code is passed on.
    """
    single = len(command_line) == 1 and is_function_spec(command_line[0])
    if not single and click.get_current_context().allow_interspersed_args:
        raise UsageError(
            f"{command_line[0]} takes no further argument, got {' '.join(command_line[1:])!r}",
            hint="shapes are given with --arg; a command follows --",
        )
    if not single and (target is not None or shapes):
        raise UsageError("--target and --arg go with FILE.py:FUNCTION", hint="a command chooses its devices itself")
    if output is None:
        if not single:
            raise UsageError("capture needs -o RUN.ledger")
        output = f"{command_line[0].rpartition(':')[2]}.ledger"
    # A word of the command that is a file is the program or what it reads.
    read = [command_line[0].rpartition(":")[0]] if single else [word for word in command_line if os.path.isfile(word)]
    check_outputs(force, ledger=output, folder=dump_to, inputs=read)
    code = 0
    notes: tuple[str, ...]
    with progress("importing stages") as report:
        if single:
            _, imported = capture_function(
                command_line[0],
                output,
                target=target or "cpu",
                args=shapes,
                keep_dump=dump_to,
                pass_re=pass_re,
                force=force,
                progress=report,
            )
            notes = imported.notes
        else:
            with _stdout_apart(table.json or table.jsonl):
                result = capture_command(
                    command_line, output, keep_dump=dump_to, pass_re=pass_re, force=force, progress=report
                )
            code, imported = result.exit_code, result.report
            notes = (*result.notes, *(imported.notes if imported is not None else ()))
    say_notes(notes)
    if imported is None:
        return code
    _show(output, table)
    return code


@contextmanager
def _stdout_apart(wanted: bool) -> Generator[None, None, None]:
    """Sends what the program prints to stderr, so that our JSON is alone on stdout."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _show(output: str, table: TableOptions) -> None:
    rows = captured_modules(output)
    columns = [
        Column("index"),
        Column("module"),
        Column("passes"),
        Column("changed"),
        Column("instructions_before", title="before"),
        Column("instructions_after", title="after"),
        Column("ns", title="time", show=show_ns, hidden=all(row["ns"] is None for row in rows)),
        Column("events"),
        Column("target", hidden=True),
        Column("stages", hidden=True),
    ]
    target = {str(row["target"]) for row in rows if row["target"] is not None}
    source = Source(output, "", ledger_build(output), target.pop() if len(target) == 1 else None, "ledger")
    emit_table(rows, columns, table, source=source)
    if not (table.json or table.jsonl):
        print(f"\n{output}: {os.path.getsize(output):,} bytes; hloscope open {output}")
