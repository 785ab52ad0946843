"""``hloscope passes PATH``: the pass timeline."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from hloscope.core.cli.opening import module_option, opened, say_notes
from hloscope.core.cli.output import Column, TableOptions, emit_table, table_options
from hloscope.core.cli.progress import progress
from hloscope.core.views.data import PassRow
from hloscope.core.views.narrowed import dumped_passes, only_some
from hloscope.core.views.summary import show_ns


@click.command("passes", epilog="Example: hloscope passes dump/ --filter 'changed and delta>0' --sort -delta")
@click.argument("path")
@module_option
@table_options
def command(path: str, module: str | None, table: TableOptions) -> None:
    """Show the pass timeline of PATH: every pass, whether it changed the module, and by how many instructions.

    The index is what --stage of the other commands takes. A pass counts as changing when the module's text differs from
    the one before; "unannounced" names the passes in which a change lies that none of them reported, or that were not
    dumped; that it was scheduled, that computations stand in another order, or that frontend_attributes of the header
    differ, is "changed" alone: the program stays the same. A snapshot that breaks off ("fault") says nothing: the row
    after it is compared with the last whole one, and "unread" names the passes any of which may have made that change;
    so it does after numbered stages that are not there.
    "inside" names the pass that runs the pipeline whose start the row is: the change is what it did until then.
    """
    with opened(path, module) as run:
        said = len(run.notes)
        say_notes([run.lost_note] if run.lost_note is not None else [])
        with progress("reading stages") as report:
            rows = run.timeline(progress=report)
        say_notes(run.notes[said:])
        narrow = sys.stdout.isatty() and not (table.json or table.jsonl)
        columns = [
            Column("index"),
            Column("pipeline"),
            Column("pass"),
            Column("changed"),
            Column("instructions_before", hidden=True),
            Column("instructions_after", title="after"),
            Column("delta", show=_signed),
            Column("ns", show=show_ns, hidden=all(row.ns is None for row in rows)),
            Column("fuel_used", title="fuel", hidden=all(row.fuel_used is None for row in rows)),
            Column("unannounced", hidden=narrow or all(row.unannounced is None for row in rows)),
            Column("inside", hidden=all(row.inside is None for row in rows)),
            Column("unread", hidden=narrow or all(row.unread is None for row in rows)),
            Column("fault", hidden=all(row.fault is None for row in rows)),
            Column("file", hidden=True),
            Column("next_pass", hidden=True),
        ]
        emit_table(_rows(rows), columns, table, source=run.source)
        if narrow:
            _say_unannounced(rows, dumped_passes(run))


def _say_unannounced(rows: list[PassRow], pattern: str | None) -> None:
    """On a terminal the ranges are too wide for a column."""
    found = [row for row in rows if row.unannounced is not None]
    if found and pattern is None:
        print("\nChanges that no pass announced:")
    elif found and pattern is not None:
        print(f"\nChanges by passes in between ({only_some(pattern)}):")
    for row in found:
        print(f"  {row.index:>4}  in {row.unannounced}")
    if blurred := [row for row in rows if row.unread is not None]:
        print("\nChanges by any of several passes, as a text between was not readable or is lost:")
        for row in blurred:
            print(f"  {row.index:>4}  in {row.unread}")


def _rows(rows: list[PassRow]) -> Iterator[dict[str, object]]:
    known = True
    for row in rows:
        after = row.instructions_after if row.seen else None
        # A pass that changed nothing left as many as there were, however many those are.
        delta = row.instructions_after - row.instructions_before if row.seen or row.changed is False else None
        before = row.instructions_before if known or row.seen else None
        known = row.seen
        yield {
            "index": row.index,
            "pipeline": row.pipeline,
            "pass": row.pass_name,
            "changed": row.changed,
            "instructions_before": before,
            "instructions_after": after,
            "delta": delta,
            "ns": row.ns,
            "file": row.file,
            "unannounced": row.unannounced,
            "next_pass": row.next_pass,
            "fuel_used": row.fuel_used,
            "unread": row.unread,
            "inside": row.inside,
            "fault": row.fault,
        }


def _signed(value: object) -> str:
    return f"{value:+,}" if isinstance(value, int) and value else "0" if value == 0 else "-"
