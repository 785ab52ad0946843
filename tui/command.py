"""``hloscope open PATH``: the dashboard on a terminal, the summary of its first screen anywhere else."""

from __future__ import annotations

import gc
import sys
from contextlib import ExitStack, nullcontext

import click

from hloscope.core.cli.opening import module_option, opened, say_notes, waiting_for
from hloscope.core.cli.output import emit_object, json_option
from hloscope.core.cli.progress import progress
from hloscope.core.views.summary import summary_keys, summary_text


@click.command("open", epilog="Example: hloscope open run.ledger")
@click.argument("path")
@module_option
@click.option("--stage", type=int, metavar="N", help="Start at this row of the timeline; -1 is the last.")
@click.option("--compare", "other", metavar="OTHER", help="Start with PATH and OTHER lined up.")
@json_option
def command(path: str, module: str | None, stage: int | None, other: str | None, as_json: bool) -> int:
    """Open the dashboard on PATH: a dump directory, an archive of one, a ledger, or an HLO file.

    Where stdout is no terminal (or with --json) the summary that its first screen shows is printed instead.
    """
    if not as_json and sys.stdout.isatty() and sys.stdin.isatty():
        wanted = _show(path, module, stage, other)
        while wanted is not None:
            wanted = _show(path, str(wanted), None, None)
        return 0
    with opened(path, module) as run:
        if stage is not None:
            run.resolve(stage)
        said = len(run.notes)
        with progress("reading stages") as report:
            summary = run.summary(progress=report)
        say_notes(run.notes[said:])
        emit_object(summary_keys(summary), as_json, lambda: print(summary_text(summary), end=""), source=run.source)
    return 0


def _show(path: str, module: str | None, stage: int | None, other: str | None) -> int | None:
    """The dashboard, until it is left; the number of the module that is to be shown instead, None for the end."""
    from hloscope.tui.terminal import keys_wait

    with ExitStack() as stack:
        with nullcontext() if path == "-" else keys_wait(), waiting_for(path):
            from hloscope.tui.far import FarRun

            run = stack.enter_context(FarRun(path, module))
            # A ledger of events alone has no stage to show: that is said before the terminal is taken.
            run.resolve(0)
            if stage is not None:
                stage = run.resolve(stage)
            from hloscope.tui.app import DashboardApp
            from hloscope.tui.navigation import Place
            from hloscope.tui.state import State, state_path

            start = Place("stages", stage, "diff") if stage is not None else None
            app = DashboardApp(run, start=start, other=other, state=State(state_path()))
        say_notes(run.notes)
        app.run()
        if app.next_module is None:
            # The process ends: looking through the names of a large dump once more would only keep the shell waiting.
            gc.freeze()
        return app.next_module
