"""``hloscope diff``: what a stage changed, instruction by instruction, or how two files or dumps differ."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator

import click

from hloscope.core.cli.opening import module_option, same_module, say_notes
from hloscope.core.cli.output import emit_object, json_option
from hloscope.core.dumps.facts import broken, unfinished
from hloscope.core.errors import DumpError, UsageError
from hloscope.core.views.config_keys import CONFIG
from hloscope.core.views.data import InstructionChange, Source, StageDiff
from hloscope.core.views.narrowed import lost_range
from hloscope.core.views.run import Run, diff_runs, label, load
from hloscope.core.views.stages import module_name
from hloscope.core.views.why import part_changes, without_metadata

Line = tuple[str, str]
"""Text and colour (empty for none)."""
_COLOURS = {"+": "green", "-": "red", "~": "yellow", ">": "cyan"}


@click.command("diff", epilog="Example: hloscope diff dump/ --stage 12")
@click.argument("path")
@click.argument("other", metavar="[B]", required=False)
@click.option("--stage", type=int, metavar="N", help="What row N changed; -1 is the last.")
@click.option("--from", "first", type=int, metavar="N", help="Compare from this stage (of A).")
@click.option("--to", "last", type=int, metavar="M", help="Compare to this stage (of B).")
@module_option
@json_option
def command(
    path: str,
    other: str | None,
    stage: int | None,
    first: int | None,
    last: int | None,
    module: str | None,
    as_json: bool,
) -> int:
    """Show what changed, instruction by instruction: added (+), removed (-), modified (~) and renamed (>).

    With one PATH: what row --stage N of its timeline changed, or everything from stage --from to stage --to (by default
    the first and the last). With two, A and B: how the last stage of A differs from the last stage of B, or those that
    --stage, --from and --to name. Exit 1 where something differs, 2 where a stage is not whole: what is missing there
    cannot be compared.
    """
    if stage is not None and (first is not None or last is not None):
        raise UsageError("--stage excludes --from and --to")
    with load(path, module) as run:
        if other is None:
            end = run.resolve(_or(stage, _or(last, -1)))
            begin = max(0, end - 1) if stage is not None else run.resolve(_or(first, 0))
            _require_whole(run, begin, end)
            say_notes(run.notes)
            if stage is not None:
                say_notes(_of_its_steps(run, end))
            found = run.diff(begin, end)
            title = _title(run, found)
            source = run.source
            same = run.stage_digest(found.from_index) == run.stage_digest(found.to_index)
        else:
            with load(other, module if module is not None else same_module(run, other)) as second:
                begin, end = run.resolve(_or(stage, _or(first, -1))), second.resolve(_or(stage, _or(last, -1)))
                _require_whole(run, begin)
                _require_whole(second, end)
                say_notes((*run.notes, *second.notes))
                found = diff_runs(run, begin, second, end)
                title = f"{_name(run, found.from_index)}\n{_name(second, found.to_index)}\n"
                same = run.stage_digest(found.from_index) == second.stage_digest(found.to_index)
                source = Source(f"{path} {other}", run.source.module, run.source.xla_build, run.source.target)
        emit_object(_keys(found), as_json, lambda: _show(title, found, same), source=source)
    return 0 if found.empty else 1


def _require_whole(run: Run, *stages: int) -> None:
    """Raises DumpError where a stage's text breaks off or is none: no difference to it would mean nothing."""
    for stage in stages:
        row, text = run.outline[stage], run.stage_bytes(stage)
        # A file may hold a computation without a module around it.
        bare = run.source.kind == "hlo" and not module_name(text)
        fault = row.fault or (unfinished(text) if bare else broken(text))
        if fault is not None:
            # A stage that is no text at all shows the one before it, of which no line is at fault.
            cut = bare or (module_name(text) and broken(text) is not None)
            line = text.rstrip().count(b"\n") + 1 if cut else None
            hint = "--from and --to name other stages" if len(run) > 1 else None
            raise DumpError(f"{fault}; it cannot be compared", path=run.stage_path(stage), line=line, hint=hint)


def _of_its_steps(run: Run, stage: int) -> list[str]:
    """Where a pass or a nested pipeline has rows of its steps before it, its row shows only what came after them; where
    stages are lost it shows what others did, too."""
    rows = run.outline
    row, first = rows[stage], stage
    started = run.running_passes
    if stage in started:
        return [f"what {started[stage]} did before the pipeline that it runs began"]
    if (among := lost_range(run, stage)) is not None:
        begin, _, end = among.partition(" … ")
        return [f"the work of any pass from {begin} to {end}: a stage between is not there"]
    while first and rows[first - 1].pipeline == row.pass_name != row.pipeline:
        first -= 1
    if first == stage:
        first = max((at for at, name in started.items() if at < stage and name == row.pass_name), default=stage)
    if first in (0, stage):
        return []
    steps = f"row {first} is a step" if stage - first == 1 else f"rows {first} to {stage - 1} are steps"
    return [f"{steps} of {row.pass_name}; all that it changed: --from {first - 1} --to {stage}"]


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _keys(found: StageDiff) -> dict[str, object]:
    return {
        "from": found.from_index,
        "to": found.to_index,
        "added": found.added,
        "removed": found.removed,
        "modified": found.modified,
        "renamed": found.renamed,
        "computations_added": found.computations_added,
        "computations_removed": found.computations_removed,
        "computations_renamed": found.computations_renamed,
        "header": found.header,
        "metadata_alone": found.metadata_alone,
    }


def _name(run: Run, stage: int) -> str:
    where = f" [{stage}] {label(run.outline[stage])}" if len(run) > 1 else ""
    return f"{run.source.path}{where}"


def _title(run: Run, found: StageDiff) -> str:
    rows = run.outline
    last = f"[{found.to_index}] {label(rows[found.to_index])}"
    if found.to_index == found.from_index + 1:
        return f"{last}\n"
    return f"[{found.from_index}] {label(rows[found.from_index])} → {last}\n"


def _show(title: str, found: StageDiff, same: bool) -> None:
    click.secho(title.rstrip("\n"), bold=True)
    if found.empty:
        print("no difference" if same else "no difference but for order, numbering or spelling")
        return
    kinds = {
        "added": found.added,
        "removed": found.removed,
        "modified": found.modified,
        "renamed": found.renamed,
    }
    counts = [f"{len(changes):,} {word}" for word, changes in kinds.items() if changes]
    if counts:
        print(", ".join(counts))
    if found.metadata_alone:
        print(_metadata_alone(found))
    for text, colour in (*_around(found), *_body(found)):
        click.secho(text, fg=colour or None)
    sys.stdout.flush()


def _metadata_alone(found: StageDiff) -> str:
    """That no modified instruction computes anything else, and whether nothing else differs."""
    if found.added or found.removed or found.computations_added or found.computations_removed or found.header:
        return "what is modified differs by metadata alone"
    if found.renamed or found.computations_renamed or any("name" in one.what for one in found.modified):
        return "metadata and names alone differ"
    return "metadata alone differs"


def _around(found: StageDiff) -> Iterator[Line]:
    """What changed outside instructions."""
    for key in found.header:
        yield f"~ header: {key}", _COLOURS["~"]
    for name in found.computations_added:
        yield f"+ computation {name}", _COLOURS["+"]
    for name in found.computations_removed:
        yield f"- computation {name}", _COLOURS["-"]
    for old, new in found.computations_renamed:
        yield f"> computation {old} → {new}", _COLOURS[">"]


def _body(found: StageDiff) -> Iterator[Line]:
    """The changes by computation, in the order of the text."""
    groups: dict[str, list[tuple[int, str, InstructionChange]]] = defaultdict(list)
    marked = (("-", found.removed), ("~", found.modified), (">", found.renamed), ("+", found.added))
    for mark, changes in marked:
        for change in changes:
            line = change.line_after if change.line_after is not None else change.line_before
            groups[change.computation].append((line if line is not None else 0, mark, change))
    for computation, changes in groups.items():
        changes.sort(key=lambda item: item[0])
        yield "", ""
        yield f"{computation}:", ""
        for _, mark, change in changes:
            yield from _change(mark, change)


def _change(mark: str, change: InstructionChange) -> Iterator[Line]:
    colour = _COLOURS[mark]
    before, after = _bare(change.before, change), _bare(change.after, change)
    if mark == "+":
        yield f"  + {after}", colour
    elif mark == "-":
        yield f"  - {before}", colour
    else:
        what = ", ".join(part for part in change.what if part != "name")
        if mark == ">":
            yield f"  > {change.old_name} → {change.name}" + (f" (also {what})" if what else ""), colour
        else:
            yield f"  ~ {change.name}: {what}", colour
        if what:
            yield f"      - {before}", _COLOURS["-"]
            yield f"      + {after}", _COLOURS["+"]
            for part, was, now in part_changes(before, after) if "attributes" in change.what else ():
                if part.startswith(f"{CONFIG}."):
                    yield f"      {part}: {was or 'absent'} → {now or 'absent'}", ""


def _bare(line: str | None, change: InstructionChange) -> str:
    """The line for a person: metadata is shown only where it differs."""
    if line is None:
        return ""
    return line if "metadata" in change.what else without_metadata(line)
