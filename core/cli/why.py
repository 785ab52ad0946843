"""``hloscope why PATH NAME``: all that is known of an instruction; with two names, why they are not fused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hloscope.core.cli.copies import cause_keys
from hloscope.core.cli.opening import module_option, opened
from hloscope.core.cli.output import emit_object, json_option
from hloscope.core.cli.progress import progress
from hloscope.core.cli.why_pair import why_pair_command
from hloscope.core.errors import UsageError
from hloscope.core.layout.explain import LayoutChain
from hloscope.core.views.copies import CopyRow, cause_of_copy
from hloscope.core.views.data import BufferPlace, EventRow, HistoryStep, WhyFacts
from hloscope.core.views.fusion import FusionRow
from hloscope.core.views.narrowed import told_range
from hloscope.core.views.why import part_changes

if TYPE_CHECKING:
    from hloscope.core.views.run import Run

_SHOWN_NAMES = 8
_SHOWN_FRAMES = 6
_SHOWN_EVENTS = 20
_LONGEST = 400
"""Characters of a value that are shown to a person."""


@click.command("why", epilog="Example: hloscope why dump/ fusion.3")
@click.argument("path")
@click.argument("name")
@click.argument("consumer", metavar="[B]", required=False)
@click.option("--stage", type=int, metavar="N", help="The facts as of this stage; by default the last that holds NAME.")
@click.option("--target", metavar="NAME/FILE", help="With B: by whose rules, instead of what was recorded.")
@click.option("--prove", is_flag=True, help="With B: ask the real compiler, too, whether an edit makes it fuse them.")
@module_option
@json_option
def command(
    path: str,
    name: str,
    consumer: str | None,
    stage: int | None,
    target: str | None,
    prove: bool,
    module: str | None,
    as_json: bool,
) -> None:
    """Tell all that is known of the instruction NAME: what it is, which Python line it comes from, and what every pass
    did to it, through renames.

    layout_chain says where its layouts come from, constraint by constraint; it is null where layout assignment is not
    in PATH or its rules are not public (TPU). fusion has the decisions that put it into a fusion or kept it out, and is
    null where PATH shows no fusion pass. buffer says which allocation holds
    it, and is null where PATH has no buffer report.

    With B, an instruction that reads NAME: why NAME is, or is not, fused into it, the numbers behind that, and edits of
    the HLO after which it is. What the compiler recorded, or its stages show, is the verdict. Names that instructions
    got after the fusion pass will do.
    """
    if consumer is not None:
        if stage is not None:
            raise UsageError("--stage goes with one name")
        why_pair_command(path, name, consumer, target=target, prove=prove, module=module, as_json=as_json)
        return
    if target is not None or prove:
        raise UsageError("--target and --prove go with two names")
    with opened(path, module) as run:
        with progress("following the instruction") as report:
            facts = run.why(name, stage=stage, progress=report)
            copy = _copy(run, facts)
        names = {step.name for step in facts.passes} | {facts.name}
        events = [event for one in sorted(names) for event in run.events(subject=one)]
        keys = {**_keys(facts, events), "copy": copy and {"operand": copy.operand, "cause": cause_keys(copy.cause)}}
        emit_object(keys, as_json, _text(facts, events, copy), source=run.source)


def _copy(run: Run, facts: WhyFacts) -> CopyRow | None:
    """What is known of a copy's cause, where there are stages that can tell it."""
    if facts.opcode != "copy" or len(run) < 2:
        return None
    return cause_of_copy(run, facts.name)


def _keys(facts: WhyFacts, events: list[EventRow]) -> dict[str, object]:
    return {
        "instruction": facts.instruction,
        "source": facts.source,
        "shape": facts.shape,
        "layout": facts.layout,
        "bytes": facts.bytes,
        "fusion": facts.fusion,
        "layout_chain": facts.layout_chain,
        "buffer": facts.buffer,
        "passes": [_step(step) for step in facts.passes],
        "name": facts.name,
        "opcode": facts.opcode,
        "computation": facts.computation,
        "is_root": facts.is_root,
        "operands": facts.operands,
        "users": facts.users,
        "called_by": facts.called_by,
        "op_name": facts.op_name,
        "stage": facts.stage,
        "first_stage": facts.first_stage,
        "last_stage": facts.last_stage,
        "events": events,
        "notes": facts.notes,
    }


def _step(step: HistoryStep) -> dict[str, object]:
    return {
        "index": step.index,
        "pipeline": step.pipeline,
        "pass": step.pass_name,
        "what": step.what,
        "name": step.name,
        "parts": step.parts,
        "before": step.before,
        "after": step.after,
        "replaced_by": step.replaced_by,
        "among": step.among,
        "unread": step.unread,
        "other": step.other,
        "inside": step.inside,
    }


def _text(facts: WhyFacts, events: list[EventRow], copy: CopyRow | None) -> str:
    lines = [facts.instruction, ""]
    inside = f"{facts.computation}{' (its root)' if facts.is_root else ''}"
    if facts.called_by:
        inside += f", called by {_names(facts.called_by)}"
    size = f"{facts.bytes:,} bytes" if facts.bytes is not None else "size not known"
    lines += [
        f"  opcode    {facts.opcode}",
        f"  shape     {facts.shape}{f', layout {facts.layout}' if facts.layout else ''}, {size}",
        f"  in        {inside}",
        f"  operands  {_names(facts.operands)}",
        f"  users     {_names(facts.users)}",
        f"  stages    {facts.first_stage} to {facts.last_stage}; shown as of {facts.stage}",
    ]
    if facts.op_name:
        lines.append(f"  op_name   {facts.op_name}")
    for number, frame in enumerate(facts.source[:_SHOWN_FRAMES]):
        where = f"{frame.file}:{frame.line}" + (f" in {frame.function}" if frame.function else "")
        lines.append(f"  {'source' if number == 0 else '':<8}  {where}")
    if len(facts.source) > _SHOWN_FRAMES:
        lines.append(f"  {'':<8}  and {len(facts.source) - _SHOWN_FRAMES} more frames")
    lines.append("")
    for step in facts.passes:
        lines += _history(step)
    if copy is not None:
        change = f"{copy.operand}: {copy.from_layout} to {copy.to_layout}"
        lines += ["", "Why this copy:", f"  copies {change}", f"  {copy.cause.kind}: {copy.cause.sentence}"]
        lines.append("  hloscope copies PATH shows all of them, with what would remove them")
    if facts.fusion:
        lines += _fusions(facts.fusion)
    if facts.buffer is not None:
        lines += _buffers(facts.buffer)
    if facts.layout_chain is not None:
        lines += _layouts(facts.layout_chain)
    if events:
        lines += ["", "Recorded decisions and findings:"]
        for event in events[:_SHOWN_EVENTS]:
            stage = f"[{event.pass_index}] " if event.pass_index is not None else ""
            lines.append(f"  {stage}{event.sentence}")
        if len(events) > _SHOWN_EVENTS:
            lines.append(f"  and {len(events) - _SHOWN_EVENTS} more")
    lines += ["", *(f"Note: {note}." for note in facts.notes)]
    return "\n".join(lines) + "\n"


def _fusions(rows: tuple[FusionRow, ...]) -> list[str]:
    """What became of it as a producer, and what was fused into it; of repeated answers the last counts."""
    last: dict[tuple[str, tuple[str, ...], str], FusionRow] = {}
    for row in rows:
        if row.verdict != "priority":
            last[row.producer, row.consumers, row.verdict] = row
    lines = ["", "Fusion:"]
    for row in list(last.values())[:_SHOWN_EVENTS]:
        into = f" into {_names(row.consumers)}" if row.consumers else ""
        made = f" as {row.made}" if row.made is not None and row.made not in row.consumers else ""
        why = f": {row.reason}" if row.reason else ""
        lines.append(f"  {row.producer} {row.verdict}{into}{made}{why} ({row.origin})")
    if len(last) > _SHOWN_EVENTS:
        lines.append(f"  and {len(last) - _SHOWN_EVENTS} more")
    return lines if last else []


def _buffers(places: tuple[BufferPlace, ...]) -> list[str]:
    """Where the parts of the result lie."""
    lines = ["", "Buffer:"]
    for one in places[:_SHOWN_NAMES]:
        part = f"{one.shape_index} " if one.shape_index != "{}" else ""
        life = f", live in steps {one.live[0]} to {one.live[1]}" if one.live is not None else ""
        others = f"{one.shared_with} other value" + ("s" if one.shared_with != 1 else "")
        shared = f", in turn with {others}" if one.shared_with else ""
        at = f"bytes {one.offset:,} to {one.offset + one.size:,}"
        lines.append(f"  {part}allocation {one.allocation} ({one.kind}), {at}{life}{shared}")
    return lines


def _layouts(chain: LayoutChain) -> list[str]:
    """Where layouts come from, the nearest constraint first."""
    lines = ["", "Layout:"]
    for one in (*chain.definitions[:_SHOWN_NAMES], *chain.uses[:_SHOWN_NAMES]):
        lines.append(f"  {one.where} is {one.layout}")
        lines += [f"    {link.layout} at {link.where}: {link.because}" for link in one.links]
        lines += [f"    not {lost.layout} ({lost.rule}, priority {lost.priority}): {lost.because}" for lost in one.lost]
    return [*lines, *(f"  Note: {note}." for note in chain.notes)]


def _history(step: HistoryStep) -> list[str]:
    where = f"[{step.index}] " + (f"{step.pipeline}/{step.pass_name}" if step.pipeline else step.pass_name)
    if step.among is not None:
        where = f"[{step.index}] by {told_range(step.among, step.unread)}"
    if step.what == "present":
        return [f"{where}: there from the start" + (f" as {step.name}" if step.name else "")]
    if step.what == "appeared":
        place = f" inside {step.inside}, in place of {step.other}" if step.other else ""
        return [f"{where}: appeared{place}", f"    + {step.after}"]
    if step.what == "renamed":
        return [f"{where}: renamed to {step.name}", f"    - {step.before}", f"    + {step.after}"]
    if step.what == "removed":
        by = f", its users now read {_names(step.replaced_by)}" if step.replaced_by else ""
        goes = f", goes on as {step.other} inside {step.inside}" if step.other else ""
        return [f"{where}: removed{goes}{by}"]
    lines = [f"{where}: modified ({', '.join(step.parts)})"]
    for part, before, after in part_changes(step.before or "", step.after or ""):
        lines += [f"    {part}", f"      - {_cut(before) or '(none)'}", f"      + {_cut(after) or '(none)'}"]
    return lines


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 30]}… ({len(text):,} characters)"


def _names(names: tuple[str, ...]) -> str:
    if not names:
        return "none"
    rest = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {rest} more" if rest > 0 else "")
