"""What is worth looking at first in a run: the findings of the overview. Asked of the reader: no Textual here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import HloscopeError
from hloscope.core.views.fusion import costliest_first
from hloscope.core.views.narrowed import only_some
from hloscope.core.views.run import label
from hloscope.core.views.summary import own_times, show_ns
from hloscope.tui.navigation import Place
from hloscope.tui.show import counted, names, show_bytes, show_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.views.copies import CopyRow
    from hloscope.core.views.data import PassRow, Summary
    from hloscope.core.views.run import Run


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth looking at."""

    title: str
    detail: str
    place: Place | None


def flags(run: Run) -> str:
    """The flags of the compile, in one line."""
    text = run.report(FileKind.DEBUG_OPTIONS) or ""
    found = [" ".join(line.split()) for line in text.splitlines() if line.strip() and "xla_dump" not in line]
    if not found and run.source.kind == "ledger":
        try:
            rows = run.sql("select flags from runs where flags is not null", limit=1).rows
        except HloscopeError:
            rows = []
        found = [word for word in str(rows[0][0]).split() if "xla_dump" not in word] if rows and rows[0][0] else []
    return "  ".join(found)


def no_times(run: Run) -> str:
    """Why no pass has a time."""
    if run.source.target == "tpu":
        return "XLA:TPU tells none"
    return "hloscope capture records it"


def slowest(run: Run, rows: Sequence[PassRow]) -> Finding:
    """The slowest pass."""
    timed = [row for row in own_times(rows) if row.ns]
    if not timed:
        return Finding(f"no time of a pass is known: {no_times(run)}", "", None)
    slowest = max(timed, key=lambda row: row.ns or 0)
    total = sum(row.ns or 0 for row in timed)
    share = f", {100 * (slowest.ns or 0) / total:.0f} % of all" if total else ""
    return Finding(f"{show_ns(slowest.ns)} in {label(slowest)}{share}", "", Place("stages", slowest.index, "diff"))


def announced(summary: Summary, rows: Sequence[PassRow], pattern: str | None) -> Finding:
    """What the stages themselves betray; `pattern` is that of a dump of some passes only."""
    hidden = [row for row in rows if row.unannounced is not None]
    broken = [row for row in rows if row.fault is not None]
    if broken:
        one = broken[0]
        return Finding(
            f"{counted(len(broken), 'broken snapshot')}, the first: {one.fault}", "", Place("stages", one.index, "text")
        )
    if pattern is not None:
        text = only_some(pattern)
        if not hidden:
            return Finding(text, "", None)
        one = hidden[0]
        text += f": {counted(len(hidden), 'row')} show what others did, the first between {one.unannounced}"
        return Finding(text, "", Place("stages", one.index, "diff"))
    if hidden:
        one = hidden[0]
        text = f"{counted(len(hidden), 'change')} that no pass announced, the first between {one.unannounced}"
        return Finding(text, "", Place("stages", one.index, "diff"))
    if summary.notes:
        return Finding(summary.notes[0], "", None)
    return Finding("none in the stages", "", None)


def peak(run: Run) -> Finding:
    """Peak memory."""
    found = run.buffers.map(largest=1)
    top = found.largest[0] if found.largest else None
    what = f" while {found.peak_instruction} runs" if found.peak_instruction else ""
    detail = f"largest then: {top.name}, {show_bytes(top.size)}, {top.reason}" if top is not None else ""
    space = f" of {found.spaces[0][1]} memory" if len(found.spaces) > 1 else ""
    others = "".join(f"; {name}: {show_bytes(size)} allocated" for _, name, size in found.spaces[1:])
    return Finding(f"{show_bytes(found.peak_bytes)}{space}{what}{others}", detail, Place("buffers", view="peak"))


def refusal(run: Run) -> Finding:
    """The costliest fusion that was refused."""
    report = run.fusion
    one = next(iter(costliest_first(report.rows)), None)
    if one is None or one.verdict not in ("refused", "ineligible"):
        return Finding(f"no refusal that stands among {len(report.rows)} decisions", "", Place("fusion"))
    into = f" into {names(one.consumers, 2)}" if one.consumers else ""
    gain = f"; {show_us(one.us_unfused)} apart, {show_us(one.us_fused)} fused" if one.us_fused is not None else ""
    return Finding(
        f"{one.producer} not fused{into}: {show_bytes(one.bytes)} of traffic{gain}",
        one.reason or f"no reason is known ({one.origin})",
        Place("fusion", subject=one.producer),
    )


class Fate(IntEnum):
    """What became of a copy, from the dearest to the cheapest."""

    RUNS = 0
    """The last stage has it, by itself."""
    TRANSPOSE = 1
    """It became a transpose, which moves the same bytes."""
    INSIDE = 2
    """A fusion computes it on the way."""
    REMOVED = 3


def fate(row: CopyRow) -> Fate:
    """What became of a copy."""
    if row.gone is None:
        return Fate.RUNS if row.inside is None else Fate.INSIDE
    return Fate.TRANSPOSE if row.gone.endswith("layout_normalization") else Fate.REMOVED


def copy(run: Run) -> Finding:
    """The largest copy that runs; where none does, the largest that there was."""
    rows = [row for row in run.copies.rows if not row.free]
    if not rows:
        return Finding("no copy that moves bytes", "", Place("layouts"))
    one = min(rows, key=lambda row: (fate(row), -(row.bytes or 0) * (row.times or 1)))
    gone = ("", ", now a transpose", f", inside {one.inside}", f", gone after {one.gone}")[fate(one)]
    return Finding(
        f"{one.copy}: {show_bytes(one.bytes)} from {one.from_layout} to {one.to_layout}{gone}",
        one.cause.sentence,
        Place("layouts", subject=one.copy),
    )


def hazards_told(run: Run) -> list[str]:
    """Wrong sharing of memory, a sentence each."""
    from hloscope.core.views.hazards import hazard_sentences

    return hazard_sentences(run)
