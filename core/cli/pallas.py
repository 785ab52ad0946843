"""``hloscope pallas``: blocks, schedule and faults of the Pallas kernels in a Python file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click

from hloscope.core.cli.output import emit_object, json_option
from hloscope.core.cli.outputs import check_outputs
from hloscope.core.errors import UsageError
from hloscope.core.pallas.chips import TARGETS
from hloscope.core.version import version
from hloscope.core.views.data import Source

BYTES = 1024


@click.command(
    "pallas",
    epilog="Example: hloscope pallas kernels.py:matmul --target v5e --trace --arg 'f32[256,256]' --arg 'f32[256,256]'",
)
@click.option("--target", type=click.Choice(TARGETS), help="The chip whose rules and budgets are checked.")
@click.option("--trace", is_flag=True, help="Import the file in a child process and trace the function.")
@click.option("--interpret", is_flag=True, help="Trace, and run the kernels instrumented.")
@click.option("--arg", "shapes", metavar="'f32[8,128]'", multiple=True, help="A parameter's shape, in order.")
@click.option("--seed", type=int, default=0, show_default=True, help="First seed of orders that --interpret runs.")
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Orders that --interpret runs of each call.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Longest that --interpret runs one call in each interpreter.",
)
@click.option("--ledger", metavar="RUN.ledger", help="Record findings, and every step of the plain run, in a ledger.")
@click.option("--force", is_flag=True, help="Replace RUN.ledger where it exists.")
@click.option("--steps", "all_steps", is_flag=True, help="List what every grid step fetches.")
@click.argument("spec", metavar="FILE.py[:FUNCTION]")
@json_option
def command(
    target: str | None,
    trace: bool,
    interpret: bool,
    shapes: tuple[str, ...],
    seed: int,
    runs: int,
    timeout: float,
    ledger: str | None,
    force: bool,
    all_steps: bool,
    spec: str,
    as_json: bool,
) -> int:
    """Show grid, blocks and memory traffic of the pallas_calls in FILE.py, and what is wrong with them.

    Without --trace the file is only parsed. --trace imports it in a child process and traces FUNCTION, or every
    function whose parameters' defaults give shapes; --interpret also runs the kernels on the defaults' values (random
    ones where there is only a shape), looking for races, uninitialised reads and indices out of range.
    """
    # blocks are small: threads of the linear algebra library cost more than they give (set before numpy is imported)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from hloscope.core.ledger import LedgerWriter, RunInfo
    from hloscope.core.pallas.report import analyse
    from hloscope.core.pallas.tracing import split_pallas_spec

    path, function = split_pallas_spec(spec)
    if shapes and not (trace or interpret):
        raise UsageError("--arg goes with --trace or --interpret")
    if shapes and function is None:
        raise UsageError("--arg goes with FILE.py:FUNCTION", hint="without a function every one of the file is traced")
    check_outputs(force, ledger=ledger, inputs=[path])
    with ExitStack() as stack:
        recorder = None
        if ledger is not None:
            info = RunInfo("core", version(), None, target, None, spec)
            recorder = stack.enter_context(LedgerWriter(ledger, info, force=force))
        report = analyse(
            path, function, target=target, trace=trace, interpret=interpret, args=shapes, seed=seed, runs=runs,
            recorder=recorder, timeout=timeout,
        )  # fmt: skip
    values = {
        "calls": report.calls,
        "findings": [_finding_row(one) for one in report.findings],
        "rungs": report.rungs,
        "jax": report.jax,
    }
    source = Source(path, function or "", f"jax {report.jax}" if report.jax else None, target)
    emit_object(values, as_json, lambda: _show(report, all_steps), source=source)
    return 1 if report.has_errors else 0


def _finding_row(finding: Any) -> dict[str, object]:
    row = {field.name: getattr(finding, field.name) for field in dataclasses.fields(finding) if field.name != "joints"}
    row["related"] = [
        {"file": span.file, "line": span.line, "column": span.column, "message": text} for span, text in finding.related
    ]
    return row


def _show(report: Any, all_steps: bool) -> None:
    for call in report.calls:
        click.echo(_call_line(call))
        for row in call.operands:
            click.echo("  " + _operand_line(row, call.backend))
        for text in call.scratch:
            click.echo(f"  scratch {text}")
        if call.bytes_moved is not None:
            click.echo(f"  moved by the pipeline: {call.bytes_moved:,} bytes")
        for row in call.schedule if all_steps else ():
            click.echo("    " + _step_line(row))
        if all_steps and call.schedule and call.steps and call.steps > len(call.schedule):
            click.echo(f"    … {call.steps - len(call.schedule):,} more steps")
        click.echo("")
    if not report.calls:
        refused = any(one.code == "trace-refused" and one.origin == "jax" for one in report.findings)
        click.echo("no pallas_call was traced to its end\n" if refused else "no pallas_call found\n")
    several = len({(call.function, call.line) for call in report.calls}) > 1
    for one in report.findings:
        whose = _whose(one.function, one.call_line) if several else ""
        click.echo(f"{one.file}:{one.line}:{one.column}: {one.severity}: {one.message} [{one.code}]{whose}")
        for span, text in one.related:
            click.echo(f"    {span}: {text}")
        if one.fix and one.severity in ("error", "warning"):
            click.echo(f"    fix: {one.fix}")
    counts = {word: sum(one.severity == word for one in report.findings) for word in ("error", "warning")}
    undecided = sum(one.code == "unsupported" for one in report.findings)
    made = sum(call.turn == 1 and not call.device for call in report.calls)
    click.echo(
        f"{made} calls, {counts['error']} errors, {counts['warning']} warnings"
        + (f", {undecided} not decided" if undecided else "")
    )
    turns: dict[Any, int] = {}
    for rung in report.rungs:
        key = (rung.function, rung.line, rung.call)
        turns[key] = max(turns.get(key, 1), rung.turn)
    for rung in report.rungs:
        whose = _whose(rung.function, rung.line) if several else ""
        turn = f", run {rung.turn}" if turns[rung.function, rung.line, rung.call] > 1 else ""
        name = f"{rung.name} ({rung.call}{whose}{turn})" if rung.call else rung.name
        outcome = f": {rung.outcome}" if rung.outcome else ""
        seeds = f" with seeds {', '.join(map(str, rung.seeds))}" if rung.seeds else ""
        click.echo(f"{name}{outcome}{seeds}")
    for rung in {one.name: one for one in report.rungs}.values():
        click.echo(f"{rung.name} shows {rung.proves}\n  cannot show {rung.cannot}")


def _whose(function: str | None, line: int | None) -> str:
    """Which call something is about, where there are several."""
    return "" if function is None else f" in {function}" + ("" if line is None else f", call of line {line}")


def _call_line(call: Any) -> str:
    grid = "?" if call.grid is None else "x".join("?" if bound is None else str(bound) for bound in call.grid) or "1"
    steps = f", {call.steps:,} steps" if call.steps is not None else ""
    backend = f", {call.backend}" if call.backend else ""
    whose = f", in {call.function}" if call.traced and call.function else ""
    turn = f", run {call.turn}" if call.turn > 1 else ""
    turn += f", device {call.device}" if call.device is not None else ""
    return f"{call.file}:{call.line}: {call.name}: grid {grid}{steps}{backend}{whose}{turn}"


def _operand_line(row: Any, backend: str | None) -> str:
    parts = [f"{row['kind']} {row['name']}" if not str(row["name"]).startswith(row["kind"]) else str(row["name"])]
    if row.get("array"):
        parts.append(str(row["array"]))
    parts.append(f"block ({', '.join(row['block'])})")
    if row["space"] != "default":
        parts.append(f"in {str(row['space']).upper()}")
    text = " ".join(parts)
    if row.get("blocks") is not None:
        if row["copied"]:
            verb = "fetched" if row["kind"] == "input" else "written"
            text += f": {row['blocks']:,} blocks, {verb} {row['fetches']:,} times, reused {row['reuses']:,}"
            text += f", {_size(row['bytes_moved'])}"
        else:
            window = f": {row['blocks']:,} blocks, windows onto the array"
            text += window if backend == "triton" else ": not copied by the pipeline"
        flags: Sequence[str] = [
            f"{row[key]:,} steps {words}"
            for key, words in (
                ("revisited", "come back"), ("out_of_range", "out of range"), ("partial", "partly past the end"),
            )
            if row[key] and (key != "revisited" or row["kind"] == "output")
        ]  # fmt: skip
        text += "".join(f"; {one}" for one in flags)
    elif row.get("unsupported"):
        text += f": blocks not known ({row['unsupported']})"
    return text


def _step_line(row: Any) -> str:
    point = "(" + ", ".join(map(str, row["point"])) + ")"
    text = f"{row['step']:>4} {point}: fetches {', '.join(row['fetched']) or 'nothing'}"
    if row["reused"]:
        text += f"; reuses {', '.join(row['reused'])}"
    if row["written"]:
        text += f"; writes back {', '.join(row['written'])}"
    return text


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < BYTES or unit == "GiB":
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= BYTES
    return f"{count:,} B"
