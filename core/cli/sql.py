"""``hloscope sql RUN.ledger QUERY``: SQL over the ledger, read-only."""

from __future__ import annotations

import sys
from collections import Counter

import click

from hloscope.core.cli.output import Column, TableOptions, emit_table, table_options
from hloscope.core.views.data import Source
from hloscope.core.views.run import load


@click.command("sql", epilog="Example: hloscope sql run.ledger 'select pass, count(*) n from rewrites group by pass'")
@click.argument("path", metavar="RUN.ledger")
@click.argument("query")
@table_options
def command(path: str, query: str, table: TableOptions) -> None:
    """Ask RUN.ledger in SQL; QUERY may be - to read it from standard input. Nothing can be changed.

    Views: runs, modules, passes, stages, events, rewrites, refusals, fuel, fusion_decisions, notes.
    """
    if query == "-":
        query = sys.stdin.read()
    narrowed = table.filter is not None or table.sort is not None
    limit = None if narrowed or table.limit is None else table.limit + 1
    # A query is about all modules: which one a run would show does not matter, nor what it notes about it.
    with load(path) as run:
        result = run.sql(query, limit=limit)
        single = run.source.module if len(run.modules) == 1 else ""
        source = Source(path, single, run.source.xla_build, run.source.target, run.source.kind)
        names = _distinct(result.columns)
        rows = [dict(zip(names, map(_plain, row), strict=True)) for row in result.rows]
        emit_table(rows, [Column(name, show=str) for name in names], table, source=source)


def _distinct(names: tuple[str, ...]) -> list[str]:
    """Column names as keys: a second ``id`` becomes ``id_2``."""
    seen: Counter[str] = Counter()
    found: list[str] = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return found


def _plain(value: object) -> object:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else value
