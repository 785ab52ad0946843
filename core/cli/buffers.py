"""``hloscope buffers PATH``: where every value lives, what fills memory at its peak, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hloscope.core.cli.opening import module_option, opened, say_notes
from hloscope.core.cli.output import Column, TableOptions, emit_object, emit_table, table_options
from hloscope.core.errors import UsageError

if TYPE_CHECKING:
    from hloscope.core.buffers.allocation import BufferAssignment
    from hloscope.core.buffers.hazards import Hazard
    from hloscope.core.buffers.questions import ShareAnswer, WhatIf
    from hloscope.core.buffers.recompute import Recompute
    from hloscope.core.dumps.buffer_reports_oom import OomMessage
    from hloscope.core.views.buffers import BufferMap, PeakValue
    from hloscope.core.views.prove_buffers import Proof

_SHOWN_ALLOCATIONS = 12
_BAR = 24


@click.command("buffers", epilog="Example: hloscope buffers dump/ --hazards --can-share fusion.3 dot.7")
@click.argument("path")
@click.option("--target", metavar="cpu/gpu/h100", help="Whose rules, for a file that does not tell.")
@click.option("--hazards", is_flag=True, help="Look for wrong sharing of memory; exit code 1 where there is some.")
@click.option(
    "--can-share", nargs=2, metavar="A B", help="Could two values (name or name{index}) have the same memory?"
)
@click.option(
    "--what-if", "changes", multiple=True, metavar="CHANGE",
    help="The peak if: drop:NAME, donate:N (parameter number), dtype:NAME=TYPE. May be given again.",
)  # fmt: skip
@click.option("--prove", is_flag=True, help="Have the real compiler make each change in the program, without a device.")
@click.option("--recompute", is_flag=True, help="Values that could be computed again instead of kept over the peak.")
@click.option("--largest", default=10, metavar="N", type=click.IntRange(min=0), help="Values shown at the peak.")
@click.option("--reports", "folder", metavar="DIR", help="Write the four memory reports of hloscope's own assignment.")
@click.option(
    "--values",
    "as_values",
    is_flag=True,
    help="A table of all values instead; --filter, --sort, --limit and --jsonl ask for it, too.",
)
@module_option
@table_options
def command(
    path: str,
    target: str | None,
    hazards: bool,
    can_share: tuple[str, str] | None,
    changes: Sequence[str],
    prove: bool,
    recompute: bool,
    largest: int,
    folder: str | None,
    as_values: bool,
    module: str | None,
    table: TableOptions,
) -> int:
    """Show the buffer map of PATH: the peak with its largest values and why each is alive, and every allocation.

    A dump's own reports are read; where it has none the scheduled module is assigned by hloscope's own pass, and a
    module without a schedule (a plain HLO file) gets copies and a schedule first. PATH may also be a text file with an
    out-of-memory message of XLA, whose table is shown.

    The table of values has the columns name, index, allocation, kind, space, size (bytes), offset, start, end, shape,
    opcode, file, line, op.
    """
    as_json = table.json
    as_values |= table.jsonl or any(one is not None for one in (table.filter, table.sort, table.limit))
    message = _oom_message(path)
    if message is not None:
        emit_object(message, as_json, lambda: _print(_oom_lines(message)))
        return 0
    from hloscope.core.views.buffers import Buffers
    from hloscope.core.views.prove_buffers import prove_changes
    from hloscope.core.xla.targets import backend_of

    if prove and not changes:
        raise UsageError("--prove needs a change to prove", hint="for example --what-if donate:0")
    with opened(path, module) as run:
        buffers = run.buffers if target is None else Buffers(run, target)
        if as_values:
            asked = {"--can-share": can_share, "--what-if": changes, "--recompute": recompute, "--hazards": hazards}
            if any(asked.values()):
                other = next(name for name, given in asked.items() if given)
                raise UsageError(f"{other} answers with more than a table of values: ask for one of the two")
            rows = buffers.value_rows()
            say_notes(buffers.map(largest=0).notes)
            emit_table(({**asdict(one), "bytes": one.size} for one in rows), VALUE_COLUMNS, table, source=run.source)
            return 0
        shared = buffers.can_share(*can_share) if can_share else None
        if folder is not None:
            file = run.outline[-1].file or f"{run.source.module or 'module'}.after_optimizations.txt"
            _write_reports(buffers.assignment, folder, os.path.basename(file).removesuffix(".txt"))
        # Only the real compiler knows a TPU's assignment.
        asked_of_compiler = prove and (backend_of(target) or run.source.target) == "tpu"
        told = [] if asked_of_compiler else [buffers.what_if(change) for change in changes]
        again = buffers.recomputable() if recompute else None
        found = buffers.map(largest=largest, hazards=hazards)
        proofs = prove_changes(run, changes, target) if prove else []
        say_notes(found.notes)
        answer: dict[str, object] = {
            "allocations": found.allocations,
            "peak_bytes": found.peak_bytes,
            "refusals": found.refusals,
            "hazards": found.hazards,
            "peak_step": found.peak_step,
            "peak_instruction": found.peak_instruction,
            "total_bytes": found.total_bytes,
            "fragmentation": found.fragmentation,
            "largest": found.largest,
            "profile": found.profile,
            "origin": found.origin,
            "spaces": [{"color": color, "name": name, "bytes": count} for color, name, count in found.spaces],
            "can_share": shared,
            "what_if": [asdict(one) for one in told],
            "proofs": [asdict(one) for one in proofs],
            "recompute": again,
            "notes": found.notes,
        }
        emit_object(answer, as_json, lambda: _print(_lines(found, shared, told, proofs, again)), source=run.source)
    return int(any(one.severity == "error" for one in found.hazards or ()))


VALUE_COLUMNS = (
    Column("name"), Column("index", first_to_go=5), Column("allocation", title="alloc"), Column("kind"),
    Column("space", hidden=True), Column("size"), Column("offset"), Column("start", first_to_go=2),
    Column("end", first_to_go=1), Column("shape", first_to_go=3), Column("opcode", first_to_go=4),
    Column("bytes", hidden=True), Column("file", hidden=True), Column("line", first_to_go=6), Column("op", hidden=True),
)  # fmt: skip
"""The table of values."""


def _write_reports(assignment: BufferAssignment, folder: str, stem: str) -> None:
    from hloscope.core.buffers.report_text import (
        buffer_assignment_text,
        live_range_text,
        memory_usage_text,
        values_text,
    )

    for end, text in (
        ("buffer-assignment", buffer_assignment_text),
        ("buffer-assignment-values", values_text),
        ("live-range", live_range_text),
        ("memory-usage-report", memory_usage_text),
    ):
        path = os.path.join(folder, f"{stem}-{end}.txt")
        try:
            os.makedirs(folder, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text(assignment))
        except OSError as error:
            raise UsageError((error.strerror or str(error)).lower(), path=path) from None


def _oom_message(path: str) -> OomMessage | None:
    """The message in a text file that is no HLO; None for everything else."""
    if not os.path.isfile(path):
        return None
    from hloscope.core.dumps.buffer_reports_oom import looks_like_oom, read_oom

    with open(path, "rb") as file:
        data = file.read(1 << 20)
    text = data.decode("utf-8", "replace")
    if b"\0" in data or "HloModule " in text or not looks_like_oom(text):
        return None
    return read_oom(text, path=path)


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(line)


def _lines(
    found: BufferMap,
    shared: ShareAnswer | None,
    told: Sequence[WhatIf],
    proofs: Sequence[Proof],
    again: Sequence[Recompute] | None,
) -> Iterator[str]:
    running = f" while {found.peak_instruction} runs" if found.peak_instruction else ""
    yield f"peak {size(found.peak_bytes)} at step {found.peak_step} of {len(found.steps)}{running}"
    yield (
        f"{len(found.allocations)} allocations, {size(found.total_bytes)}; {size(found.fragmentation)} of temporary "
        f"memory unused at its fullest; "
        f"{'as the compiler reported' if found.origin == 'xla' else 'assigned by hloscope'}"
    )
    if len(found.spaces) > 1:
        yield (
            "memory spaces: "
            + ", ".join(f"{name} {size(count)}" for _, name, count in found.spaces)
            + "; the peak is of the first"
        )
    if found.largest:
        yield ""
        yield f"{'size':>10}  {'':<{_BAR}}  value"
    most = found.largest[0].size if found.largest else 1
    for one in found.largest:
        yield from _peak_lines(one, most)
    yield ""
    yield from _allocation_lines(found)
    if found.hazards is not None:
        yield ""
        yield from _hazard_lines(found.hazards)
    if again is not None:
        yield ""
        yield from _recompute_lines(again)
    if shared is not None:
        yield ""
        verdict = "could share" if shared.could else "cannot share"
        yield f"{shared.first} and {shared.second} {verdict} [{shared.code}]: {shared.reason}"
    for one in told:
        yield ""
        moved = one.peak_after - one.peak_before
        yield f"{one.change}: peak {size(one.peak_before)} -> {size(one.peak_after)} ({_signed(moved)})"
        yield f"  allocated {size(one.total_before)} -> {size(one.total_after)}{f'; {one.note}' if one.note else ''}"
    for one in proofs:
        yield ""
        moved = one.peak_after - one.peak_before
        peaks = f"{size(one.peak_before)} -> {size(one.peak_after)} ({_signed(moved)})"
        yield f"{one.change}, by {one.compiler}: peak {peaks}"
        yield f"  allocated {size(one.total_before)} -> {size(one.total_after)}; {one.note}"


def _peak_lines(one: PeakValue, most: int) -> Iterator[str]:
    bar = "█" * max(1, round(_BAR * one.size / most)) if one.size else ""
    index = one.shape_index if one.shape_index != "{}" else ""
    yield f"{size(one.size):>10}  {bar:<{_BAR}}  {one.name}{index}  {one.shape}"
    where = f"  {one.source.file}:{one.source.line}" if one.source is not None else ""
    said = where or (f"  {one.op_name}" if one.op_name else "")
    yield f"{'':>10}  {'':<{_BAR}}  {one.reason}{said}"


def _allocation_lines(found: BufferMap) -> Iterator[str]:
    ordered = sorted(found.allocations, key=lambda one: (-one.size, one.index))
    yield f"{'allocation':>10}  {'size':>10}  {'kind':<17}{'values':>6}  first"
    for one in ordered[:_SHOWN_ALLOCATIONS]:
        kind = one.kind + (f" {one.parameter}" if one.parameter is not None else "")
        kind += " donated" if one.donated else ""
        first = one.values[0].name if one.values else ""
        space = f" (space {one.color})" if one.color else ""
        yield f"{one.index:>10}  {size(one.size):>10}  {kind:<17}{len(one.values):>6}  {first}{space}"
    rest = ordered[_SHOWN_ALLOCATIONS:]
    if rest:
        yield f"{'':>10}  {size(sum(one.size for one in rest)):>10}  and {len(rest)} more"


def _hazard_lines(hazards: Sequence[Hazard]) -> Iterator[str]:
    if not hazards:
        yield "no hazards"
    for one in hazards:
        yield f"{one.severity}: {one.code}: {one.instruction}: {one.message}"


def _recompute_lines(again: Sequence[Recompute]) -> Iterator[str]:
    if not again:
        yield "nothing at the peak could be computed again from what is there later"
    for one in again[:_SHOWN_ALLOCATIONS]:
        yield (
            f"{size(one.size):>10}  {one.name} ({one.opcode}) could be computed again before {one.before}, "
            f"{one.steps} steps later"
        )
    if len(again) > _SHOWN_ALLOCATIONS:
        rest = sum(one.size for one in again[_SHOWN_ALLOCATIONS:])
        yield f"{size(rest):>10}  and {len(again) - _SHOWN_ALLOCATIONS} more"


def _oom_lines(message: OomMessage) -> Iterator[str]:
    if message.wanted is not None:
        yield f"could not allocate {size(message.wanted)}"
    if message.used is not None and message.limit is not None:
        yield f"used {size(message.used)} of {size(message.limit)}"
    for name, count in message.stats.items():
        yield f"  {name:<32}{size(count):>12}"
    yield ""
    if not message.buffers:
        yield "the message has no table of buffers: hloscope buffers DUMP shows what is live at the peak"
    for one in message.buffers:
        said = " ".join(filter(None, (one.shape, one.label, one.kind)))
        yield f"{one.rank:>4}  {size(one.size):>10}  {said}"
        if one.source or one.op_name:
            yield f"{'':>4}  {'':>10}  {' '.join(filter(None, (one.source, one.op_name)))}"


def size(count: int) -> str:
    """Bytes for a person."""
    if abs(count) < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if abs(value) < 1024:
            break
    return f"{value:.1f} {unit}" if unit == "KiB" else f"{value:.2f} {unit}"


def _signed(count: int) -> str:
    return f"{'+' if count > 0 else '-' if count < 0 else '±'}{size(abs(count))}"
