"""The summary of a run: the numbers of the first screen and the things worth looking at first."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from hloscope.core.dumps.facts import opcode_counts
from hloscope.core.views.data import Notable, PassRow, Summary
from hloscope.core.views.narrowed import dumped_passes, only_some
from hloscope.core.views.stages import Cancelled, Progress, check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.views.run import Run

TOP_OPCODES = 12
_COMPUTATION = re.compile(rb"(?:\A|\n)(?:ENTRY )?%?[\w.$-]+[^\n=]*(?:/\*index=\d+\*/[^\n=]*)*\{[ \t]*\r?(?=\n)")
_HTML_ROWS = 40


def summarize(run: Run, *, cancelled: Cancelled | None = None, progress: Progress | None = None) -> Summary:
    """The summary of a run; reads every stage once. Raises CancelledError."""
    rows = run.timeline(cancelled=cancelled, progress=progress)
    check(cancelled)
    last = run.stage_bytes(-1)
    opcodes = opcode_counts(last)
    times = [row.ns for row in own_times(rows) if row.ns is not None]
    return Summary(
        source=run.source,
        stages=sum(row.file is not None for row in rows) or len({row.snapshot for row in run.outline}),
        passes=len(rows),
        changed=sum(1 for row in rows if row.changed),
        instructions_before=rows[0].instructions_before,
        instructions_after=rows[-1].instructions_after,
        computations=len(_COMPUTATION.findall(last)),
        total_ns=sum(times) if times else None,
        events=run.event_count,
        opcodes=tuple(opcodes.most_common(TOP_OPCODES)),
        notable=tuple(_notable(rows, dumped_passes(run))),
        notes=tuple(run.notes),
    )


def own_times(rows: Sequence[PassRow]) -> list[PassRow]:
    """The rows whose time is their own, so that their sum is the time of the compile.

    The row of a nested pipeline is left out where the rows of its passes, which stand beside it and carry its name as
    their pipeline's, tell times: it holds theirs. Steps that a pass dumps under its own name tell none, and a pass may
    have the name of a pipeline elsewhere; both keep their row. A pass that runs a pipeline of another name keeps what
    that does not take.
    """
    own = {at: row for at, row in enumerate(rows) if not _holds_others(rows, at)}
    for at, start in enumerate(rows):
        if start.inside is None:
            continue
        end = next((i for i in range(at, len(rows)) if rows[i].pass_name == start.inside), at)
        held = sum(own[i].ns or 0 for i in range(at, end) if i in own)
        if held and end in own and (ns := own[end].ns) is not None:
            own[end] = replace(own[end], ns=max(0, ns - held))
    return list(own.values())


def _holds_others(rows: Sequence[PassRow], at: int) -> bool:
    row = rows[at]
    if row.pipeline == row.pass_name:
        return False
    # Rows end after those that they hold in a log; metadata has them in the order in which they begin.
    for first, step in ((at - 1, -1), (at + 1, 1)):
        if 0 <= first < len(rows) and rows[first].pipeline == row.pass_name:
            stop = -1 if step < 0 else len(rows)
            beside = takewhile(lambda one: one.pipeline != row.pipeline, (rows[i] for i in range(first, stop, step)))
            if _within(list(beside), row):
                return True
    return False


def _within(beside: list[PassRow], row: PassRow) -> bool:
    """Whether rows beside a row tell times that its own can hold."""
    times = [one.ns for one in beside if one.pipeline == row.pass_name and one.ns is not None]
    return bool(times) and (row.ns is None or row.ns >= max(times))


def _notable(rows: list[PassRow], pattern: str | None) -> list[Notable]:
    found: list[Notable] = []
    grown = max(rows, key=lambda row: row.instructions_after - row.instructions_before)
    shrunk = min(rows, key=lambda row: row.instructions_after - row.instructions_before)
    for row, word in ((grown, "largest growth"), (shrunk, "largest cut")):
        delta = row.instructions_after - row.instructions_before
        if (delta > 0) == (row is grown) and delta:
            change = f"{row.instructions_before:,} → {row.instructions_after:,}"
            where = row.inside or _label(row)
            if (among := row.unannounced or row.unread) is not None:
                where = f"between {among}"
                change += ", by any of these passes"
            found.append(Notable(f"{word}: {where}", change, row.index))
    timed = [row for row in own_times(rows) if row.ns and row.pipeline]
    if timed:
        slowest = max(timed, key=lambda row: row.ns or 0)
        found.append(Notable(f"slowest: {_label(slowest)}", show_ns(slowest.ns), slowest.index))
    hidden = [row for row in rows if row.unannounced is not None]
    if pattern is None:
        found += [Notable("a change that no pass announced", f"between {one.unannounced}", one.index) for one in hidden]
    else:
        what = f"{len(hidden)} of the rows show" if len(hidden) != 1 else "one row shows"
        detail = f"{what} what others did, the first between {hidden[0].unannounced}" if hidden else "nothing is hidden"
        found.append(Notable(only_some(pattern), detail, hidden[0].index if hidden else None))
    return found


def _label(row: PassRow) -> str:
    return f"{row.pipeline}/{row.pass_name}" if row.pipeline else row.pass_name


def show_ns(ns: object) -> str:
    """A time as a person reads it."""
    if not isinstance(ns, int | float):
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.0f} ns"


def summary_keys(summary: Summary) -> dict[str, object]:
    """The summary as every command's ``--json`` gives it, beside the source."""
    return {
        "stages": summary.stages,
        "passes": summary.passes,
        "changed": summary.changed,
        "instructions_before": summary.instructions_before,
        "instructions_after": summary.instructions_after,
        "computations": summary.computations,
        "total_ns": summary.total_ns,
        "events": summary.events,
        "opcodes": dict(summary.opcodes),
        "notable": summary.notable,
        "notes": summary.notes,
    }


def summary_text(summary: Summary) -> str:
    """The summary for a person on a pipe or a small terminal, 80 columns wide."""
    source = summary.source
    said = ", ".join(part for part in (source.target, source.xla_build) if part)
    lines = [
        f"{source.module or 'module without a name'}{f'  ({said})' if said else ''}",
        f"{source.path}: {source.kind}",
        "",
        f"  passes        {summary.passes:>8,}   changed   {summary.changed:>8,}   stages  {summary.stages:>8,}",
        f"  instructions  {summary.instructions_before:>8,}   at last   {summary.instructions_after:>8,}"
        f"   events  {summary.events:>8,}",
        f"  computations  {summary.computations:>8,}   time      {show_ns(summary.total_ns):>8}",
    ]
    if summary.opcodes:
        lines += ["", "  commonest at last: " + _wrapped([f"{name} {count}" for name, count in summary.opcodes], 21)]
    if summary.notable:
        lines.append("")
        for one in summary.notable[:8]:
            where = f"[{one.stage}] " if one.stage is not None else ""
            lines.append(f"  {where}{one.title}: {one.detail}")
        if len(summary.notable) > 8:
            lines.append(f"  and {len(summary.notable) - 8} more")
    lines += [f"  note: {note}" for note in summary.notes]
    return "\n".join(lines) + "\n"


def _wrapped(parts: list[str], indent: int, width: int = 78) -> str:
    lines = [""]
    for part in parts:
        if lines[-1] and indent + len(lines[-1]) + len(part) + 2 > width:
            lines.append("")
        lines[-1] += (", " if lines[-1] else "") + part
    return (",\n" + " " * indent).join(lines)


def timeline_html(run: Run) -> str:
    """What a notebook shows of a run: its name and the passes that changed something."""
    rows = run.passes
    shown = [row for row in rows if row.changed is not False] or rows
    cells = "".join(
        f"<tr><td>{row.index}</td><td>{html.escape(row.pipeline)}</td><td>{html.escape(row.pass_name)}</td>"
        f"<td style='text-align:right'>{row.instructions_after - row.instructions_before:+d}</td>"
        f"<td style='text-align:right'>{row.instructions_after:,}</td></tr>"
        for row in shown[:_HTML_ROWS]
    )
    more = f"<p>… and {len(shown) - _HTML_ROWS} more</p>" if len(shown) > _HTML_ROWS else ""
    return (
        f"<b>{html.escape(run.source.module)}</b> <code>{html.escape(run.source.path)}</code>, {len(rows)} passes"
        "<table><tr><th>stage</th><th>pipeline</th><th>pass</th><th>&Delta;</th><th>instructions</th></tr>"
        f"{cells}</table>{more}"
    )
