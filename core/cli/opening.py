"""What every command that takes a PATH shares: opening it, choosing the module, and saying what was chosen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import click

from hloscope.core.cli.progress import waiting
from hloscope.core.errors import HloscopeError
from hloscope.core.views.run import Run, load

Command = TypeVar("Command", bound=Callable[..., Any])


def module_option(command: Command) -> Command:
    """Adds ``--module REGEX/INDEX``, passed to the function as ``module``."""
    return click.option(
        "--module", metavar="REGEX/INDEX", help="Which module, where there are several: see hloscope ls."
    )(command)


@contextmanager
def opened(path: str, module: str | None = None) -> Generator[Run, None, None]:
    """The run behind a path, closed at the end; what the reader should know of it goes to stderr."""
    with waiting_for(path):
        run = load(path, module)
    with run:
        # What is said of a single text is that it is not whole: an error that ends the command says so itself, with
        # the place, or is told together with it.
        faults = run.notes if run.source.kind == "hlo" else []
        if not faults:
            say_notes(run.notes)
        try:
            yield run
        except HloscopeError as error:
            if faults and error.line is None and error.hint is None:
                error.hint = faults[0]
            raise
        say_notes(faults)


def waiting_for(path: str) -> AbstractContextManager[None]:
    """A line on the terminal while a path is opened, which takes seconds where it holds many thousands of files."""
    return nullcontext() if path == "-" else waiting(f"opening {path}")


def say_notes(notes: Sequence[str]) -> None:
    """Writes notes to stderr, one a line."""
    for note in notes:
        print(f"hloscope: note: {note}", file=sys.stderr)


def same_module(run: Run, other: str) -> str | None:
    """In a second dump of several modules, the one of the same name."""
    import re

    with load(other) as second:
        names = [one.name for one in second.modules]
    if len(names) > 1 and run.source.module in names:
        return f"^{re.escape(run.source.module)}$"
    return None
