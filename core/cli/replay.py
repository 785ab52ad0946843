"""``hloscope replay``: every stage of a compile on the same inputs, and the first whose result is another one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hloscope.core.cli.opening import module_option, opened, say_notes
from hloscope.core.cli.output import Column, TableOptions, emit_object, emit_table, json_option
from hloscope.core.cli.progress import progress
from hloscope.core.cli.stage_texts import StageTexts
from hloscope.core.errors import ParseError, UsageError

if TYPE_CHECKING:
    from hloscope.core.runtime.evaluator import Array
    from hloscope.core.runtime.replay import Replay, StageVerdict
    from hloscope.core.views.data import InstructionChange
    from hloscope.core.views.run import Run

FAST_SECONDS = 120.0
"""Longest compile and run of one stage on XLA:CPU, in seconds."""
DIFF_LINES = 40
"""Lines of the first differing stage's diff that are shown."""


@click.command("replay", epilog="Example: hloscope replay dump/ --module train_step")
@click.argument("path", metavar="DUMP")
@module_option
@click.option("--args", "args_path", metavar="ARGS.npz", help="Inputs in_000, in_001, …; random ones by default.")
@click.option("--from", "first", type=int, metavar="N", help="Compare with this stage instead of the first.")
@click.option("--to", "last", type=int, metavar="M", help="Stop after this stage.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything that is random.")
@click.option(
    "--opaque", multiple=True, metavar="TARGET", help="Draw this custom call's results, compare its operands."
)
@click.option("--factor", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Multiplies the bounds.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes; one for each core by default.")
@click.option("--step-limit", type=click.IntRange(min=1), default=1_000_000, help="Loop iterations of one stage.")
@click.option("--regions", is_flag=True, help="Evaluate only what each stage changed, for modules that are too large.")
@click.option("--fast", is_flag=True, help="Let XLA:CPU try stages without layouts and fusions first.")
@click.option("--no-cache", is_flag=True, help="Neither use nor keep verdicts of earlier replays.")
@json_option
def command(
    path: str,
    module: str | None,
    args_path: str | None,
    first: int | None,
    last: int | None,
    seed: int,
    opaque: tuple[str, ...],
    factor: float,
    workers: int | None,
    step_limit: int,
    regions: bool,
    fast: bool,
    no_cache: bool,
    as_json: bool,
) -> int:
    """Evaluate every stage of DUMP on the same inputs and compare its results with the first stage's.

    Shows the first stage that differs beyond tolerance, with what it changed. Programs for several devices run on as
    many simulated ones. Exit 1 where a stage differs.
    """
    from hloscope.core.runtime.replay import ReplayOptions, replay

    with opened(path, module) as run:
        begin = run.resolve(0 if first is None else first)
        end = run.resolve(-1 if last is None else last)
        if end < begin:
            raise UsageError(f"stage {end} comes before stage {begin}", path=path)
        options = ReplayOptions(
            seed=seed,
            opaque=frozenset(opaque),
            workers=workers or 0,
            step_limit=step_limit,
            factor=factor,
            regions=regions,
            fast=_on_xla if fast else None,
            kernels=_kernel,
            cache=None if no_cache else cache_folder(),
        )
        texts = StageTexts(run, begin, end)
        inputs = _inputs(args_path)
        with progress("evaluating stages") as report:
            try:
                found = replay(texts.readers(), options, inputs=inputs, progress=report)
            except ParseError as error:
                error.path = error.path or run.stage_path(begin)  # of the others it is a verdict
                raise
        say_notes(texts.notes)
        rows = [_row(run, verdict, begin) for verdict in found.stages]
        culprit = None if found.first_difference is None else begin + found.first_difference
        keys: dict[str, object] = {
            "first_difference": culprit,
            "stages": rows,
            "evaluated": found.evaluated,
            "notes": list(found.notes),
        }
        emit_object(keys, as_json, lambda: _show(run, found, rows, begin), source=run.source)
    return 0 if culprit is None else 1


def _on_xla(text: str, inputs: Sequence[Array]) -> list[Array]:
    """A stage on the installed XLA:CPU, in a child process. Raises CompileError."""
    from hloscope.core.xla.execute import execute_hlo_text

    return execute_hlo_text(text, inputs, flags=["--xla_backend_optimization_level=0"], timeout=FAST_SECONDS)[0]


def _kernel(dialect: str, body: bytes) -> Mapping[str, object]:
    """The MLIR of a kernel as plain data, read in a child process. Raises CompileError, UsageError."""
    from hloscope.core.xla.kernel_ir import read_kernel

    return read_kernel(dialect, body)


def cache_folder() -> str:
    """Where verdicts are kept: the user's cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "hloscope", "replay")


def _inputs(args_path: str | None) -> Sequence[Array] | None:
    if args_path is None:
        return None
    from hloscope.core.runtime import npz

    return npz.read(args_path).inputs


def _row(run: Run, verdict: StageVerdict, begin: int) -> dict[str, object]:
    index = begin + verdict.index
    row = run.outline[index]
    return {
        "index": index,
        "pipeline": row.pipeline,
        "pass": row.pass_name,
        "status": verdict.status,
        "same_as": None if verdict.same_as is None else begin + verdict.same_as,
        "max_abs": verdict.max_abs,
        "max_ulp": verdict.max_ulp,
        "worst_index": None if verdict.worst_index is None else list(verdict.worst_index),
        "output": verdict.output,
        "widened": verdict.widened,
        "how": verdict.how,
        "devices": verdict.devices,
        "seconds": round(verdict.seconds, 3),
        "reason": verdict.reason,
        "notes": list(verdict.notes),
        "path": [asdict(step) for step in verdict.path],
        "file": row.file,
    }


# ---------------------------------------------------------------- for people
def _show(run: Run, found: Replay, rows: Sequence[dict[str, object]], begin: int) -> None:
    columns = [
        Column("index"),
        Column("pipeline"),
        Column("pass"),
        Column("status"),
        Column("how", hidden=all(row["how"] == "whole" for row in rows)),
        Column("max_abs", show=lambda value: f"{value:.3g}"),
        Column("max_ulp"),
        Column("worst_index", title="worst at", show=str),
    ]
    shown = [row for row in rows if row["same_as"] is None or row["status"] == "differs"]
    emit_table(shown, columns, TableOptions())
    left_out = len(rows) - len(shown)
    if left_out:
        print(f"and {left_out} stages that compute the same as one of these")
    for note in found.notes:
        print(f"note: {note}")
    smaller = [begin + v.index for v in found.stages if any("smaller dimensions" in note for note in v.notes)]
    if smaller:
        print(f"note: {_ranges(smaller)}: too large even by region, evaluated with smaller dimensions")
    for reason, numbers in _not_evaluated(found, begin).items():
        print(f"not evaluated: {_ranges(numbers)}: {reason}")
    if found.first_widened is not None:
        print(
            f"stage {begin + found.first_widened} and others agree only within what rounding errors were seen to do to "
            "the results: a small change would not be noticed there"
        )
    if found.first_difference is None:
        print(f"no difference: {found.evaluated} of {len(rows)} stages were evaluated and agree{_not_checked(found)}")
        return
    _show_culprit(run, found, begin)


def _not_checked(found: Replay) -> str:
    missing = len(found.stages) - found.evaluated
    return f"; {missing} {'was' if missing == 1 else 'were'} not checked" if missing else ""


def _not_evaluated(found: Replay, begin: int) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for verdict in found.stages:
        if verdict.status == "not-evaluated":
            out.setdefault(verdict.reason, []).append(begin + verdict.index)
    return out


def _ranges(numbers: Sequence[int]) -> str:
    """``stages 3-5, 9``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    words = [f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts]
    return f"stage{'s' if len(numbers) > 1 else ''} " + ", ".join(words)


def _show_culprit(run: Run, found: Replay, begin: int) -> None:
    from hloscope.core.views.run import label

    at = found.first_difference or 0
    verdict = found.stages[at]
    before = at - 1
    while before > 0 and found.stages[before].status == "not-evaluated":
        before -= 1
    index, earlier = begin + at, begin + before
    print()
    click.secho(f"stage {index} is the first that differs: {label(run.outline[index])}", bold=True)
    print(f"  {verdict.reason}")
    for note in verdict.notes:
        print(f"  {note}")
    for line in _path_lines(verdict):
        print(f"  {line}")
    if before < at - 1:
        print(f"  the stages after {earlier} could not be evaluated: the change lies between {earlier} and {index}")
    changes = run.diff(earlier, index)
    lines = [
        *_lines("-", changes.removed),
        *_lines("~", changes.modified),
        *_lines("+", changes.added),
    ]
    for text, colour in lines[:DIFF_LINES]:
        click.secho(f"  {text}", fg=colour)
    if len(lines) > DIFF_LINES:
        print(f"  and {len(lines) - DIFF_LINES} more lines: hloscope diff --from {earlier} --to {index}")
    sys.stdout.flush()


def _path_lines(verdict: StageVerdict) -> Iterator[str]:
    """What fed the worst element, up to where both stages have the same value."""
    if verdict.path:
        yield "what fed it, against the first stage:"
    for step in verdict.path:
        other = "" if step.other is None else " (the same)" if step.other == step.value else f" against {step.other}"
        place = ",".join(map(str, step.index))
        yield f"  %{step.name}[{place}] {step.opcode} = {step.value}{other}"
        if step.other is not None and step.other == step.value:
            return


def _lines(mark: str, changes: Sequence[InstructionChange]) -> Iterator[tuple[str, str]]:
    from hloscope.core.views.why import without_metadata

    colours = {"-": "red", "+": "green", "~": "yellow"}
    for change in changes:
        if mark != "~":
            line = change.after if mark == "+" else change.before
            yield f"{mark} {without_metadata(line or '')}", colours[mark]
        elif set(change.what) - {"metadata", "name"}:
            yield f"~ {change.name}: {', '.join(change.what)}", colours[mark]
            yield f"    - {without_metadata(change.before or '')}", colours["-"]
            yield f"    + {without_metadata(change.after or '')}", colours["+"]
