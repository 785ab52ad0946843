"""``hloscope sql RUN.ledger QUERY``: SQL over the ledger, read-only."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing

import click

from hloscope.core.cli.opening import say_notes
from hloscope.core.cli.output import Column, TableOptions, emit_table, table_options
from hloscope.core.views.data import Source
from hloscope.core.views.run import load


@click.command("sql", epilog="Example: hloscope sql run.ledger 'select pass, count(*) n from rewrites group by pass'")
@click.argument("path", metavar="RUN.ledger")
@click.argument("query")
@table_options
def command(path: str, query: str, table: TableOptions) -> None:
    """Ask RUN.ledger in SQL; QUERY may be - to read it from standard input. Nothing can be changed.

    Rows are printed while they are found: with --jsonl each at once, a table in blocks. Of a dump its largest module is
    asked; hloscope import makes a ledger of all.

    Views: runs, modules, passes, stages, events, rewrites, refusals, fuel, fusion_decisions, notes.
    """
    if query == "-":
        query = sys.stdin.read()
    # A query over a ledger is about all modules: which one a run would show does not matter, nor its notes.
    with load(path) as run:
        if run.source.kind == "dump":
            say_notes(run.notes)
        single = run.source.module if len(run.modules) == 1 else ""
        source = Source(path, single, run.source.xla_build, run.source.target, run.source.kind)
        with closing(run.sql_rows(query)) as found:
            names = _distinct(next(found))
            rows = (dict(zip(names, map(_plain, row), strict=True)) for row in found)
            emit_table(rows, [Column(name, show=str) for name in names], table, source=source, stream=True)


def _distinct(names: Sequence[object]) -> list[str]:
    """Column names as keys: a second ``id`` becomes ``id_2``."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    for name in map(str, names):
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return found


def _plain(value: object) -> object:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else value
