"""``hloscope doctor``: what this machine, or a dump, has, and the one command or flag that adds what is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from hloscope.core.cli.output import Column, TableOptions, emit_table, table_options
from hloscope.core.dumps.directory import open_dump
from hloscope.core.dumps.presence import presence, with_variable
from hloscope.core.errors import DumpError
from hloscope.core.xla.probe import ProbeRow, probe

COLUMNS = (Column("group"), Column("name"), Column("status"), Column("detail"), Column("remedy"))


@click.command("doctor", epilog="Example: hloscope doctor --filter 'status!=ok'")
@click.argument("dump", metavar="[DUMP]", required=False)
@click.option("--quick", is_flag=True, help="Do not try a compile.")
@table_options
def command(dump: str | None, quick: bool, table: TableOptions) -> int:
    """Show which engines and targets this machine has, and the one command that adds each missing one.

    With DUMP (a directory or an archive of one): what it has for which command, and the flags that make XLA write what
    is missing, in the variable that its back end reads. Exits with 1 where it holds no module.

    The installed XLA:CPU compiles a tiny module in a child process, which takes a second or two. Exits with 1 where
    something that is installed does not work.
    """
    if dump is not None:
        found = list(_of_dump(dump))
        emit_table(found, COLUMNS, table)
        return 1 if found[0]["status"] == "broken" else 0
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


_DUMP = "--xla_dump_to=DIR --xla_dump_hlo_pass_re=.* --xla_dump_hlo_as_text --xla_dump_hlo_as_proto"


def _of_dump(path: str) -> Iterator[dict[str, object]]:
    try:
        opened = open_dump(path)
    except DumpError as error:
        if not os.path.exists(path):
            raise
        remedy = f'XLA_FLAGS="{_DUMP}" (on a TPU LIBTPU_INIT_ARGS="{_DUMP}")'
        yield {"group": "dump", "name": "modules", "status": "broken", "detail": error.message, "remedy": remedy}
        return
    with opened as dump:
        targets = sorted({one.target for one in dump.modules if one.target is not None})
        detail = f"modules: {len(dump.modules)}; files: {dump.file_count}; back end: {', '.join(targets) or 'not told'}"
        yield {"group": "dump", "name": "modules", "status": "ok", "detail": detail, "remedy": None}
        for row in presence(dump):
            status = "ok" if row.found == row.of else "partial" if row.found else "missing"
            detail = f"{row.found} of {row.of} modules; {row.use}"
            remedy = with_variable(dump, row.flags) if row.flags and status != "ok" else None
            yield {"group": "dump", "name": row.name, "status": status, "detail": detail, "remedy": remedy}
        if dump.not_understood:
            shown = ", ".join(dump.not_understood[:3])
            detail = f"{len(dump.not_understood)} files outside the grammar of dumps, such as {shown}"
            yield {"group": "dump", "name": "other-files", "status": "unused", "detail": detail, "remedy": None}
