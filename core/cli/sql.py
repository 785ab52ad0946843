"""``hloscope sql RUN.ledger QUERY``: SQL over the ledger, read-only."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing

import click

from hloscope.core.cli.opening import opened
from hloscope.core.cli.output import Column, TableOptions, emit_table, table_options
from hloscope.core.errors import UsageError
from hloscope.core.ledger.queries import Cell, LedgerReader
from hloscope.core.views.data import Source
from hloscope.core.views.inputs import InputKind, classify


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
    if not query.strip():
        raise UsageError("the query is empty")
    if classify(path).kind is InputKind.LEDGER:
        with LedgerReader(path) as reader:
            _answer(reader.sql_rows(query), _source(path, reader), table)
        return
    with opened(path) as run:
        _answer(run.sql_rows(query), run.source, table)


def _answer(asked: Generator[tuple[Cell, ...]], source: Source, table: TableOptions) -> None:
    with closing(asked) as found:
        names = _distinct(next(found))
        rows = (dict(zip(names, map(_plain, row), strict=True)) for row in found)
        emit_table(rows, [Column(name, show=str) for name in names], table, source=source, stream=True)


def _source(path: str, reader: LedgerReader) -> Source:
    """A query over a ledger is about all modules, of which there may be none yet."""
    modules, runs = reader.modules(), reader.runs()
    build, target = (runs[0].xla_build, runs[0].target) if runs else (None, None)
    return Source(path, modules[0].name if len(modules) == 1 else "", build, target, "ledger")


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
