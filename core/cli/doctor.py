"""``hloscope doctor``: which engines and targets this machine has, and the one command that adds each missing one."""

from __future__ import annotations

import click

from hloscope.core.cli.output import Column, TableOptions, emit_table, table_options
from hloscope.core.xla.probe import ProbeRow, probe

COLUMNS = (Column("group"), Column("name"), Column("status"), Column("detail"), Column("remedy"))


@click.command("doctor", epilog="Example: hloscope doctor --filter 'status!=ok'")
@click.option("--quick", is_flag=True, help="Do not try a compile.")
@table_options
def command(quick: bool, table: TableOptions) -> int:
    """Show which engines and targets this machine has, and the one command that adds each missing one.

    The installed XLA:CPU compiles a tiny module in a child process, which takes a second or two. Exits with 1 where
    something that is installed does not work.
    """
    rows = probe(compile_check=not quick)
    emit_table([_row(row) for row in rows], COLUMNS, table)
    return 1 if any(row.status == "broken" for row in rows) else 0


def _row(row: ProbeRow) -> dict[str, object]:
    return {
        "group": row.group,
        "name": row.name,
        "status": row.status,
        "detail": row.detail,
        "remedy": row.remedy or None,
    }
