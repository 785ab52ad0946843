"""``hloscope copies PATH``: every layout copy and its cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import click

from hloscope.core.cli.opening import module_option, opened, say_notes
from hloscope.core.cli.output import Column, TableOptions, emit_table, select_rows, table_options
from hloscope.core.cli.progress import progress
from hloscope.core.views.copies import CopyCause, CopyRow, Link, copies


@click.command("copies", epilog="Example: hloscope copies dump/ --sort -bytes --limit 5")
@click.argument("path")
@module_option
@click.option(
    "--target", metavar="cpu/h100/a100/…/FILE", help="Whose rules, where PATH is a single HLO file; base is none's own."
)
@click.option("--all", "every", is_flag=True, help="Also copies that other passes made and removed again.")
@click.option("--no-remedies", is_flag=True, help="Do not look for changes that remove a copy.")
@click.option("--prove", is_flag=True, help="Ask the real compiler, too, whether a change removes its copy.")
@table_options
def command(
    path: str, module: str | None, target: str | None, every: bool, no_remedies: bool, prove: bool, table: TableOptions
) -> None:
    """Show every layout copy of PATH, how much it copies and how often, and its cause: which constraint won, which
    lost, and along which chain they came.

    Copies of layout assignment are found again by hloscope's own pass, run on the stage before it (on a single HLO
    file, on that file). Other copies are told by the pass after which they first appear. A remedy is a change without
    which the copy would be and with which it is not: the pass was run again with it.
    """
    with opened(path, module) as run:
        said = len(run.notes)
        with progress("reading stages") as report:
            answer = copies(run, remedies=not no_remedies, prove=prove, every=every, target=target, progress=report)
        say_notes(run.notes[said:])
        say_notes(answer.notes)
        columns = [
            Column("copy"),
            Column("operand"),
            Column("from_layout", title="from"),
            Column("to_layout", title="to"),
            Column("bytes"),
            Column("times", first_to_go=3),
            Column("kind", first_to_go=2),
            Column("instruction", title="for"),
            Column("line", first_to_go=1),
            Column("stage", hidden=True),
            Column("computation", hidden=True),
            Column("last_stage", hidden=True),
            Column("gone", hidden=True),
            Column("inside", hidden=True),
            Column("free", hidden=True),
        ]
        rows = list(_rows(answer.rows))
        emit_table(rows, columns, table, source=run.source)
        if not (table.json or table.jsonl):
            shown, _ = select_rows(rows, columns, table)
            by_place: dict[tuple[object, ...], CopyRow] = {
                (row.copy, row.computation, row.cause.stage): row for row in answer.rows
            }
            _say_causes([by_place[one["copy"], one["computation"], one["stage"]] for one in shown])


def _say_causes(rows: Sequence[CopyRow]) -> None:
    for row in rows:
        print(f"\n%{row.copy}: {row.cause.sentence}")
        if row.free:
            print("  moves no bytes: the layouts differ only in dimensions of size 1")
        if row.also:
            print(f"  goes on as {', '.join('%' + one for one in row.also)}")
        if row.inside is not None:
            print(f"  computed inside %{row.inside}: no copy of its own runs")
        if row.gone is not None and row.gone.endswith("/layout_normalization"):
            print("  becomes a transpose in layout_normalization, which moves the same bytes")
        elif row.gone is not None:
            print(f"  no longer there after {row.gone}")
        if row.remedy is not None:
            less = row.remedy.bytes_before - row.remedy.bytes_after
            proof = "hloscope's own pass" + (" and the real compiler" if "xla" in row.remedy.proven_by else "")
            print(f"  remedy: {row.remedy.change} ({less:,} bytes less to copy; proven by {proof})")


def _rows(rows: tuple[CopyRow, ...]) -> Iterator[dict[str, object]]:
    for row in rows:
        yield {
            "copy": row.copy,
            "operand": row.operand,
            "from_layout": row.from_layout,
            "to_layout": row.to_layout,
            "bytes": row.bytes,
            "times": row.times,
            "cause": cause_keys(row.cause),
            "source": [dataclasses.asdict(one) for one in row.source],
            "remedy": None if row.remedy is None else dataclasses.asdict(row.remedy),
            "kind": row.cause.kind,
            "instruction": row.cause.instruction,
            "line": f"{row.source[0].file}:{row.source[0].line}" if row.source else None,
            "stage": row.cause.stage,
            "computation": row.computation,
            "last_stage": row.last_stage,
            "gone": row.gone,
            "also": list(row.also),
            "inside": row.inside,
            "free": row.free,
        }


def cause_keys(cause: CopyCause) -> dict[str, object]:
    """A copy's cause as every command's ``--json`` gives it."""
    return {
        "kind": cause.kind,
        "instruction": cause.instruction,
        "sentence": cause.sentence,
        "stage": cause.stage,
        "pass": cause.pass_name,
        "chain": _links(cause.chain),
        "given": _links(cause.given),
        "lost": None if cause.lost is None else dataclasses.asdict(cause.lost),
    }


def _links(links: tuple[Link, ...]) -> list[dict[str, object]]:
    return [dataclasses.asdict(one) for one in links]
