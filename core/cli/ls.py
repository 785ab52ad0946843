"""``hloscope ls DUMP``: the modules of a directory, told apart without importing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from hloscope.core.cli.opening import say_notes
from hloscope.core.cli.output import Column, TableOptions, emit_table, table_options
from hloscope.core.cli.progress import progress
from hloscope.core.views.data import Source
from hloscope.core.views.modules import ModuleListing, list_path


@click.command("ls", epilog="Example: hloscope ls dump/ --filter 'name~\"train\"' --sort -instructions")
@click.argument("path", metavar="DUMP")
@table_options
def command(path: str, table: TableOptions) -> None:
    """List the modules of DUMP (a directory, an archive or a ledger), largest first, without importing it.

    "same_as" is the first module with the same program; "differs_by" tells what differs from the compile of the same
    name before (the index under "from"), which is why it was compiled again. "order" counts the modules as they were
    compiled, process by process: --sort order follows them. The index is what --module takes.
    """
    with progress("reading modules") as report:
        listing = list_path(path, progress=report)
    say_notes(listing.notes)
    columns = [
        Column("index"),
        Column("order", hidden=len(listing.rows) < 2, first_to_go=2),
        Column("name"),
        Column("instructions"),
        Column("stages", first_to_go=4),
        Column("files", hidden=all(row.files is None for row in listing.rows), first_to_go=5),
        Column("bytes", first_to_go=3),
        Column("same_as", hidden=all(row.same_as is None for row in listing.rows), first_to_go=1),
        Column("differs_from", title="from", hidden=all(row.differs_from is None for row in listing.rows)),
        Column("differs_by", hidden=all(row.differs_by is None for row in listing.rows)),
        Column("id", hidden=True),
        Column("folder", hidden=True),
        Column("target", hidden=True),
        Column("note", hidden=all(row.note is None for row in listing.rows)),
    ]
    source = Source(path, "", listing.xla_build, listing.target, listing.kind)
    emit_table(_rows(listing.rows), columns, table, source=source)


def _rows(rows: Sequence[ModuleListing]) -> Iterator[dict[str, object]]:
    for row in rows:
        yield asdict(row)
