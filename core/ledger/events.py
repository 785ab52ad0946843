"""The registry of event types: everything that a compile can record, each declared in one place.

To add one: write a class below with ``@event_type`` and list it in ``EVENT_TYPES``. A published event only grows: new
fields go to the end and have a default, names and units stay. Spending fuel is not an event of its own: a decision
carries its fuel ordinal, and the `fuel` view reads it from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hloscope.core.errors import InternalError
from hloscope.core.ledger.declare import Event, event_type, fact


@event_type(
    "rewrite_decision",
    kind="decision",
    sentence="{rule} {verdict}[ on {subject}][ in {computation}][: {code}][, fuel {fuel}][, made {produced}]"
    "[ ({detail})]",
)
class RewriteDecision(Event):
    """A pass came to an optional rewrite and it was applied or refused."""

    pass_name: str = fact("name", "pass that asked")
    rule: str = fact("name", "rewrite rule of that pass")
    occurrence: int = fact("ordinal", "which run of this pass in the module", default=0)
    produced: tuple[str, ...] = fact("names", "instructions that the rewrite made", default=())
    identity: str | None = fact("hash", "key that stays the same when another decision is refused", default=None)
    detail: str | None = fact("text", "numbers behind a refusal, in words", default=None)


@event_type("fuel_exhausted", kind="pass", sentence="{pass_name} ran out of fuel after {limit} rewrites")
class FuelExhausted(Event):
    """A pass used the last of the fuel that it was given; every later rewrite of it is refused."""

    pass_name: str = fact("name", "pass that ran out")
    limit: int = fact("count", "rewrites that it was allowed")


@event_type("pass_skipped", kind="pass", sentence="{pass_name}[ of {pipeline}] was skipped: {code}[ ({filter})]")
class PassSkipped(Event):
    """A pass did not run because a filter or a flag said so."""

    pass_name: str = fact("name", "pass that was skipped")
    pipeline: str = fact("name", "pipeline that holds it", default="")
    occurrence: int = fact("ordinal", "which run of this pass in the module", default=0)
    filter: str | None = fact("text", "the filter entry or flag that decided", default=None)


@event_type("pass_failed", kind="pass", sentence="{pass_name}[ of {pipeline}] failed[ with {code}]: {message}")
class PassFailed(Event):
    """A pass returned an error, which ended its pipeline."""

    pass_name: str = fact("name", "pass that failed")
    message: str = fact("text", "the error")
    pipeline: str = fact("name", "pipeline that holds it", default="")


@event_type("fixpoint_ended", kind="pass", sentence="{pass_name} stopped after {iterations} iterations: {code}")
class FixpointEnded(Event):
    """A fixed-point wrapper gave up before nothing changed any more (`limit`) or saw a state twice (`cycle`)."""

    pass_name: str = fact("name", "pass that was repeated")
    iterations: int = fact("count", "iterations that ran")


@event_type("invariant_failed", kind="finding", sentence="{checker} failed after {after_pass}: {message}")
class InvariantFailed(Event):
    """An invariant checker found the module broken after a pass."""

    checker: str = fact("name", "invariant checker that failed")
    after_pass: str = fact("name", "pass that ran last")
    message: str = fact("text", "what is broken")


@event_type(
    "silent_change",
    kind="finding",
    sentence="{pass_name}[ of {pipeline}] reported changed={reported}, the module says otherwise"
    "[ ({hash_before} → {hash_after})]",
)
class SilentChange(Event):
    """A pass was dishonest about whether it changed the module."""

    pass_name: str = fact("name", "pass that reported")
    reported: bool = fact("flag", "what the pass returned")
    hash_before: str | None = fact("hash", "structural hash of the module before", default=None)
    hash_after: str | None = fact("hash", "structural hash of the module after", default=None)
    pipeline: str = fact("name", "pipeline that holds the pass", default="")


@event_type(
    "unannounced_change",
    kind="finding",
    sentence="the module changed between {after_pass} and {before_pass}, where no pass reported a change"
    "[: {lines} lines differ]",
)
class UnannouncedChange(Event):
    """Two neighbouring snapshots differ in a range of passes none of which reported a change."""

    after_pass: str = fact("name", "pass after which the module was last as reported")
    before_pass: str = fact("name", "pass before which it is different")
    stage_before: int | None = fact("ordinal", "row of the last snapshot before", default=None)
    stage_after: int | None = fact("ordinal", "row of the first snapshot that differs", default=None)
    lines: int | None = fact("count", "lines of text that differ", default=None)


@event_type("parse_finding", kind="finding", sentence="{file}[:{line}][:{column}]: {message}")
class ParseFinding(Event):
    """A stage's text has something that the reader does not understand."""

    file: str = fact("name", "file, relative to the dump")
    message: str = fact("text", "what is wrong")
    line: int | None = fact("count", "1-based line", default=None)
    column: int | None = fact("count", "1-based column in characters", default=None)
    severity: str = fact("name", "`error`, `warning`, `information` or `hint`", default="error")


@event_type("dump_note", kind="finding", sentence="{file}: {message}[ ({size})]")
class DumpNote(Event):
    """A file of the dump was not understood, cut off, or could not be read."""

    file: str = fact("name", "file, relative to the dump")
    message: str = fact("text", "what is the matter with it")
    size: int | None = fact("bytes", "size of the file", default=None)


@event_type(
    "fusion_decision",
    kind="decision",
    sentence="{subject} {verdict}[ into {consumers}][: {reason}][, {us_fused} fused][ against {us_unfused} apart]",
)
class FusionDecision(Event):
    """A fusion pass looked at a producer (the subject) and its consumers."""

    step: int = fact("ordinal", "position among the decisions of this pass")
    consumers: tuple[str, ...] = fact("names", "instructions that would read the fused producer", default=())
    reason: str | None = fact("text", "the compiler's own words", default=None)
    us_fused: float | None = fact("us", "estimated run time when fused", default=None)
    us_unfused: float | None = fact("us", "estimated run time when kept apart", default=None)
    bytes: int | None = fact("bytes", "memory traffic that the fusion saves", default=None)
    made: str | None = fact("name", "the fusion that holds both afterwards", default=None)
    operand: int | None = fact("ordinal", "operand place of the consumer that was asked about", default=None)


@event_type(
    "bisect_probe", kind="search", sentence="{level} {low}..{high}, tried {tried}: {verdict}[ ({code})][, {ns}]"
)
class BisectProbe(Event):
    """One try of a bisection: what was switched on, and whether the result was still right."""

    level: str = fact("name", "what is halved: `pass`, `fuel`, `stage` or `flag`")
    low: int = fact("ordinal", "largest position known to be right before the try")
    high: int = fact("ordinal", "smallest position known to be wrong before the try")
    tried: int = fact("ordinal", "position that was tried")
    ns: int | None = fact("ns", "time of the try", default=None)


@event_type(
    "evaluation_difference",
    kind="finding",
    sentence="output {output}[ at stage {stage}] differs[ by {max_abs} at most][, {max_ulp} units in the last place]"
    "[, worst at {worst_index}]",
)
class EvaluationDifference(Event):
    """Evaluating a module gave another result than the oracle."""

    output: int = fact("ordinal", "flattened output that differs")
    stage: int | None = fact("ordinal", "row of the stage that was evaluated", default=None)
    max_abs: float | None = fact("number", "largest absolute difference", default=None)
    max_ulp: float | None = fact("number", "largest difference in units in the last place", default=None)
    worst_index: str | None = fact("text", "index of the element that differs most", default=None)


@event_type(
    "layout_constraint",
    kind="decision",
    sentence="{rule} asked for {layout} as the {place} of {subject}[ because of the {source}]: {verdict} ({code})"
    "[, priority {priority}][ against {old_priority}][ of {old_layout}][, fuel {fuel}]",
)
class LayoutConstraint(Event):
    """Layout assignment was asked for the layout of a definition or of a use, and set, changed or refused it."""

    place: str = fact("name", "`buffer` or `operand N`, with the tuple index in braces")
    layout: str = fact("name", "dimension order that was asked for, fastest first")
    rule: str = fact("name", "who asks: a backend's constraint, a border, or a rule by which layouts travel")
    priority: int = fact("number", "weight of the request")
    round: int = fact("ordinal", "round of propagation", default=0)
    source: str | None = fact("name", "the constraint that it was derived from", default=None)
    old_layout: str | None = fact("name", "layout that was there before", default=None)
    old_priority: int | None = fact("number", "weight of that one", default=None)


@event_type(
    "layout_copy",
    kind="decision",
    sentence="copy {subject} of {operand}[ for {user}] from {from_layout} to {to_layout}[, {bytes}]: wanted by {wanted}"
    "[, while the definition has its layout from {given}][, priority {priorities}]",
)
class LayoutCopy(Event):
    """Layout assignment put a copy between a definition and a use whose layouts differ."""

    operand: str = fact("name", "the value that is copied")
    from_layout: str = fact("name", "dimension order of the definition, fastest first")
    to_layout: str = fact("name", "dimension order of the use, fastest first")
    wanted: str = fact("text", "the chain of constraints behind the use, nearest first")
    user: str | None = fact("name", "the instruction that reads the copy; empty for a result", default=None)
    bytes: int | None = fact("bytes", "size of the copied value", default=None)
    given: str | None = fact("text", "where the definition has its layout from", default=None)
    priorities: str | None = fact("text", "weight of the use's constraint against the definition's", default=None)


@event_type(
    "copy_added",
    kind="decision",
    sentence="copy {subject}[ of part {index}] {verdict} for {cause}: {code}[, {bytes}]",
)
class CopyAdded(Event):
    """Copy insertion put a copy where values would meet in one buffer; most go again in its second step."""

    cause: str = fact("name", "the loop, conditional or in-place instruction, or the value, that it is for")
    index: str = fact("name", "tuple index of the copied part", default="")
    bytes: int | None = fact("bytes", "size of the copied value", default=None)


@event_type(
    "copy_interference",
    kind="decision",
    sentence="copy {subject} stays: {code}[, {value} is read by {read_by}][ after {overwritten_by} is written]"
    "[, {bytes}]",
)
class CopyInterference(Event):
    """A copy could not be removed, with the read and the write that would meet."""

    value: str | None = fact("name", "the value that would be overwritten", default=None)
    read_by: str | None = fact("name", "the instruction that reads it too late", default=None)
    overwritten_by: str | None = fact("name", "the value that would be written over it", default=None)
    bytes: int | None = fact("bytes", "size of the copied value", default=None)


@event_type(
    "buffer_refusal",
    kind="decision",
    sentence="{subject}{index} does not join allocation {allocation}: {code}[, {other} is there][, needs {want}]"
    "[, has {have}]",
)
class BufferRefusal(Event):
    """Buffer assignment refused to put a value into an allocation that exists."""

    index: str = fact("name", "shape index of the value")
    allocation: int = fact("ordinal", "number of the allocation in the report")
    other: str | None = fact("name", "the value that is there and in the way", default=None)
    want: int | None = fact("bytes", "bytes that the value's buffer needs", default=None)
    have: int | None = fact("bytes", "bytes that the allocation has", default=None)


@event_type(
    "buffer_placement",
    kind="decision",
    sentence="{subject}{index} placed in allocation {allocation} at offset {offset}, {size}[, chosen from {gaps}]"
    "[, fuel {fuel}]",
)
class BufferPlacement(Event):
    """Buffer assignment gave a value its place."""

    index: str = fact("name", "shape index of the value")
    allocation: int = fact("ordinal", "number of the allocation in the report")
    offset: int = fact("bytes", "offset in the allocation")
    size: int = fact("bytes", "bytes that it takes there")
    gaps: str | None = fact("text", "free ranges that the heap chose from, `start-end`, the last open", default=None)


@event_type(
    "memory_peak",
    kind="finding",
    sentence="peak of {bytes} at step {tick}[, while {subject} runs][, {total} allocated]"
    "[, {fragmentation} lost in gaps]",
)
class MemoryPeak(Event):
    """The most memory in use along the schedule rose to this; the last such event is the peak."""

    bytes: int = fact("bytes", "bytes in use")
    tick: int = fact("ordinal", "step of the flattened schedule")
    total: int | None = fact("bytes", "bytes of all allocations", default=None)
    fragmentation: int | None = fact("bytes", "bytes of temporary memory unused at its fullest", default=None)


@event_type(
    "schedule_chosen",
    kind="decision",
    sentence="{algorithm} order {verdict}, simulated peak {bytes}[; the others: {others}]",
)
class ScheduleChosen(Event):
    """A memory scheduler took one of several orders by its simulated peak."""

    algorithm: str = fact("name", "`list`, `dfs`, `post-order` or `bfs`")
    bytes: int = fact("bytes", "simulated peak without gaps, constants left out")
    others: tuple[str, ...] = fact("names", "the other orders with their peaks", default=())


@event_type(
    "pallas_step",
    kind="decision",
    sentence="{kernel} at ({point}) on core {core}[ of device {device}]: {step} {detail}[, {file}:{line}]",
)
class PallasStep(Event):
    """One step of an interpreted Pallas kernel: a block fetched, a copy started, a semaphore signalled, a load."""

    kernel: str = fact("name", "name of the `pallas_call`")
    step: str = fact("name", "`step`, `fetch`, `write_back`, `copy_start`, `copy_done`, `wait`, `signal`, `read` …")
    detail: str = fact("text", "the buffer and the range, or the semaphore and the amount", default="")
    point: str = fact("text", "grid indices of the running step", default="")
    core: int = fact("ordinal", "core that did it; a GPU's program", default=0)
    device: int | None = fact("ordinal", "device, where there are several", default=None)
    file: str | None = fact("name", "file of the statement", default=None)
    line: int | None = fact("count", "1-based line of the statement", default=None)


@event_type("pallas_finding", kind="finding", sentence="{file}:{line}:{column}: {severity}: {message} ({code})")
class PallasFinding(Event):
    """Something wrong with a Pallas kernel, found in its trace or by running it; the code says what."""

    kernel: str = fact("name", "name of the `pallas_call`", default="")
    severity: str = fact("name", "`error`, `warning` or `information`", default="error")
    message: str = fact("text", "one sentence with the numbers", default="")
    file: str = fact("name", "file of the kernel, spec or index map", default="")
    line: int = fact("count", "1-based line", default=0)
    column: int = fact("count", "1-based column in characters", default=0)


def _table(*types: type[Event]) -> Mapping[str, type[Event]]:
    table = {one.spec.name: one for one in types}
    if len(table) != len(types):
        raise InternalError("two event types share a name")
    return MappingProxyType(table)


EVENT_TYPES: Mapping[str, type[Event]] = _table(
    RewriteDecision,
    FusionDecision,
    FuelExhausted,
    PassSkipped,
    PassFailed,
    FixpointEnded,
    InvariantFailed,
    SilentChange,
    UnannouncedChange,
    ParseFinding,
    DumpNote,
    BisectProbe,
    EvaluationDifference,
    LayoutConstraint,
    LayoutCopy,
    CopyAdded,
    CopyInterference,
    BufferRefusal,
    BufferPlacement,
    MemoryPeak,
    ScheduleChosen,
    PallasStep,
    PallasFinding,
)
"""Every event type by the name that the ledger stores."""
