"""``hloscope compare A B``: two compiles of one program, and the first stage at which they part."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import click

from hloscope.core.cli.opening import module_option, same_module, say_notes
from hloscope.core.cli.output import emit_object, json_option
from hloscope.core.cli.progress import progress
from hloscope.core.views.compare import Compared, ComparedStage, Divergence, compare_runs
from hloscope.core.views.data import Source
from hloscope.core.views.run import Run, load
from hloscope.core.views.why import without_metadata

CHANGES = 20
"""Changes of the first divergence that are shown."""
NAMES = 4
"""Passes of one reason that are named."""


@click.command("compare", epilog="Example: hloscope compare good_dump/ bad_dump/ --module train_step")
@click.argument("path", metavar="A")
@click.argument("other", metavar="B")
@click.option("--stages", "every", is_flag=True, help="Show every row of both timelines.")
@module_option
@json_option
def command(path: str, other: str, every: bool, module: str | None, as_json: bool) -> int:
    """Line up two compiles of one program (two flag sets, two versions, two hosts of one job) pass by pass.

    Shows the first pass after which their instructions differ by more than names and metadata, and by what; headers are
    told apart from that. Exit 1 where they part.
    """
    with load(path, module) as a:
        say_notes(a.notes)
        with load(other, module if module is not None else same_module(a, other)) as b:
            say_notes(b.notes)
            with progress("comparing stages") as report:
                found = compare_runs(a, b, progress=report)
            source = Source(f"{path} {other}", a.source.module, a.source.xla_build, a.source.target)
            emit_object(_keys(found), as_json, lambda: _show(a, b, found, every), source=source)
    return 0 if found.first is None and found.header is None else 1


def _keys(found: Compared) -> dict[str, object]:
    return {
        "first_divergence": None if found.first is None else _divergence(found.first),
        "stages": [
            {
                "a": one.a,
                "b": one.b,
                "pipeline": one.pipeline,
                "pass": one.pass_name,
                "same": one.same,
                "why": one.why,
            }
            for one in found.stages
        ],  # fmt: skip
        "header_difference": None if found.header is None else dataclasses.asdict(found.header),
        "notes": list(found.notes),
    }


def _divergence(one: Divergence) -> dict[str, object]:
    return {
        "a": one.a,
        "b": one.b,
        "pipeline": one.pipeline,
        "pass": one.pass_name,
        "last_same": None if one.last_same is None else list(one.last_same),
        "between": list(one.between),
        "changes": [
            {"name": change.name, "computation": change.computation, "a": change.before, "b": change.after}
            for change in one.real()
        ],
        "header": list(one.diff.header),
    }


def _show(a: Run, b: Run, found: Compared, every: bool) -> None:
    for note in found.notes:
        print(f"note: {note}")
    common = sum(one.same is not None for one in found.stages)
    alike = sum(one.same is True for one in found.stages)
    print(
        f"{len(a)} and {len(b)} stages, {common} in both, {alike} of them in the same state; "
        f"{found.only_a} only in A, {found.only_b} only in B"
    )
    if every:
        for one in found.stages:
            print(_line(one))
    else:
        for line in _reasons(found.stages):
            print(line)
    first = found.first
    if first is None:
        print(f"no {'difference' if found.header is None else 'instruction differs'} in any common stage")
        return
    where = f"{first.pipeline}/{first.pass_name}" if first.pipeline else first.pass_name
    click.secho(f"they part at {where} (stage {first.a} of A, {first.b} of B)", bold=True)
    if first.last_same is None:
        print("  their instructions differ from the start: two programs")
    else:
        print(f"  last the same after stage {first.last_same[0]} of A, {first.last_same[1]} of B")
    for name in first.between[:CHANGES]:
        print(f"  in between, {name}")
    if len(first.between) > CHANGES:
        print(f"  in between, {len(first.between) - CHANGES} more: --stages")
    for line in first.diff.header:
        print(f"  header: {line}")
    changes = list(_changes(first))
    for text, colour in changes[:CHANGES]:
        click.secho(f"  {text}", fg=colour)
    if len(changes) > CHANGES:
        print(f"  and {len(changes) - CHANGES} more: hloscope diff A B --from {first.a} --to {first.b}")


def _line(one: ComparedStage) -> str:
    mark = {True: "=", False: "≠", None: _side(one)}[one.same]
    a = "-" if one.a is None else str(one.a)
    b = "-" if one.b is None else str(one.b)
    return f"  {mark} {a:>4} {b:>4}  {one.pipeline}/{one.pass_name}{f'  ({one.why})' if one.why else ''}"


def _side(one: ComparedStage) -> str:
    """Which side has a row that cannot be compared; ``?`` where both have it."""
    return "A" if one.b is None else "B" if one.a is None else "?"


def _reasons(stages: Sequence[ComparedStage]) -> Iterator[str]:
    """One line for each reason why a side lacks rows, with the passes that it is about."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in stages:
        if one.why is not None:
            passes = found.setdefault((_side(one), one.why), [])
            passes.append(one.pipeline if one.pass_name == "pipeline-start" else one.pass_name)
    for (side, why), passes in found.items():
        names = list(dict.fromkeys(passes))
        shown = ", ".join(names[:NAMES]) + (f" and {len(names) - NAMES} more" if len(names) > NAMES else "")
        yield f"  {f'only {side}' if side != '?' else 'in both'}, {len(passes)}: {shown} ({why})"


def _changes(one: Divergence) -> Iterator[tuple[str, str]]:
    for change in one.real():
        if change.before is not None:
            yield f"- {without_metadata(change.before)}", "red"
        if change.after is not None:
            yield f"+ {without_metadata(change.after)}", "green"
