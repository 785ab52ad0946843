"""Fusion decisions of a run: what ``hloscope fusion`` shows, ``Run.fusion``, and why A is not fused into B.

Decisions that the real compiler or a pass of ours recorded are shown as they are. A dump without any has its fusions
recovered by matching the stages around the pass; where the core has the backend's rules it adds the likely reason of
each edge left apart, unless the stages contradict it: both are marked inferred. On a single HLO file the core's own
decider is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from hloscope.core.analysis.cost import shape_bytes
from hloscope.core.analysis.device import load_device
from hloscope.core.analysis.elementwise import is_generally_fusible
from hloscope.core.analysis.real_compile import stages_around
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import DumpError, HloscopeError, UsageError
from hloscope.core.fusion.cpu.instruction_fusion import fused_computations
from hloscope.core.fusion.deciders import FUSION_PASSES, backend_of, decide
from hloscope.core.fusion.groups import Group, recover_groups
from hloscope.core.fusion.pair import NO_BENEFIT, Flip, PairVerdict, flips, judge
from hloscope.core.fusion.readers import FREE, Readers, edge_bytes
from hloscope.core.ledger.declare import Origin
from hloscope.core.text.reader import check_room
from hloscope.core.views.real_compile import RunCompile

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.fusion.gpu.kernels import Kernel
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.ledger.events import FusionDecision
    from hloscope.core.views.run import Run

How = Literal["recorded", "core", "inferred"]
PROVEN_FLIPS = 3
"""Edits that the real compiler is asked about."""
_MOST_BITCASTS = 8
"""One behind the other, between a producer and its reader."""
_NO_BENEFIT_WORDS = "fusing it into all its users was not estimated to be faster"


@dataclass(frozen=True, slots=True)
class FusionRow:
    """One decision."""

    step: int
    producer: str
    consumers: tuple[str, ...]
    verdict: str
    """``fused``, ``refused``, ``ineligible`` or ``priority``."""
    code: str | None
    reason: str | None
    us_fused: float | None
    us_unfused: float | None
    bytes: int | None
    """Memory traffic that is saved, or lost because of it: the producer's result written once (0 times where it is part
    of a result, so written anyway) and read by each user, a slice of it by one that slices. What is no kernel (an
    element of a tuple, a bitcast, a constant) costs nothing."""
    fuel: int | None
    origin: Origin
    made: str | None = None
    """The fusion that holds both afterwards."""
    computation: str | None = None
    pass_name: str | None = None
    """The pass that decided, counted in `step` from 0; None where the fusions were found by comparing stages."""
    readers: tuple[str, ...] = ()
    """Who read the producer when it was decided; empty where the module before the pass is not known."""


@dataclass(frozen=True, slots=True)
class FusionReport:
    """All decisions of a run."""

    rows: tuple[FusionRow, ...]
    how: How
    backend: str | None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        told = "".join(f", {count:,} {word}" for word, count in Counter(row.verdict for row in self.rows).most_common())
        return f"<fusion decisions: {len(self.rows):,} ({self.how}){told}>"

    def of(self, name: str) -> tuple[FusionRow, ...]:
        """Decisions in which an instruction is producer, consumer or result."""
        return tuple(row for row in self.rows if name in (row.producer, row.made, *row.consumers))


@dataclass(frozen=True, slots=True)
class PairFacts:
    """Why A is, or is not, fused into B."""

    producer: str
    consumer: str
    verdict: str
    code: str | None
    reason: str | None
    numbers: Mapping[str, object]
    flips: tuple[Flip, ...]
    origin: Origin
    change: str = ""
    """Which fact would have to be different."""
    refused_by: str | None = None
    """The other user that refuses, where it is not this one."""
    core: PairVerdict | None = None
    """The core's own answer where it is not what is shown."""
    notes: tuple[str, ...] = ()


def costliest_first(rows: Sequence[FusionRow]) -> list[FusionRow]:
    """What stayed apart, by what that costs in memory traffic; then the rest in order, among them refusals that were
    decided anew later."""
    last = {row.producer: at for at, row in enumerate(rows)}

    def key(place: tuple[int, FusionRow]) -> tuple[int, int]:
        at, row = place
        stands = row.verdict == "refused" or (row.verdict == "ineligible" and last[row.producer] == at)
        return (0, -(row.bytes or 0)) if stands else (1, row.step)

    return [row for _, row in sorted(enumerate(rows), key=key)]


# ---------------------------------------------------------------- all decisions
_DECIDING_BYTES = 7000
"""Memory that deciding on a module takes for each instruction."""


def fusion_report(run: Run, *, target: str | None = None, graphs: bool = True) -> FusionReport:
    """The decisions of a run. With `target` (a name or a file) the core decides anew for it on the pass's input.

    Without `graphs` only what was recorded is told, with none of the figures that need a module's graph; DumpError
    where nothing was. Raises UnsupportedError for a target without public rules and where memory is too small,
    DumpError where there is nothing to decide on.
    """
    if target is not None:
        return _decided(run, backend_of(target), None if target == "cpu" else target)
    events = run.events(type="fusion_decision")
    if events:
        names = {index: row.pass_name for index, row in enumerate(run.outline)}  # run.passes would read every stage
        rows = [
            FusionRow(
                pass_name=names.get(one.pass_index) if one.pass_index is not None else None,
                step=_int(one.numbers.get("step")) or 0,
                producer=one.subject or "",
                consumers=_names(one.numbers.get("consumers")),
                verdict=one.verdict or "",
                code=one.code,
                reason=_text(one.numbers.get("reason")),
                us_fused=_float(one.numbers.get("us_fused")),
                us_unfused=_float(one.numbers.get("us_unfused")),
                bytes=_int(one.numbers.get("bytes")),
                fuel=one.fuel,
                origin=one.origin,
                made=_text(one.numbers.get("made")),
            )
            for one in events
        ]
        before = _input(run) if graphs else None
        return FusionReport(tuple(_finish(rows, before)), "recorded", run.source.target)
    if not graphs:
        raise DumpError("no fusion decision was recorded", path=run.source.path)
    if len(run) <= 1:
        return _decided(run, "gpu" if _looks_like_gpu(run.stage_text(0)) else "cpu", None)
    return _inferred(run)


def _finish(rows: list[FusionRow], before: HloModule | None) -> list[FusionRow]:
    """Fill in bytes, readers and fuel, and add the producers that stayed apart because nothing was gained."""
    graph = Readers(before)
    made: list[FusionRow] = []
    fused: set[str] = set()
    last: dict[str, FusionRow] = {}
    merges = 0
    for row in rows:
        readers = graph.of(row.producer)
        asked = readers if row.verdict == "ineligible" and readers else row.consumers or readers
        cost = graph.traffic(row.producer, asked)
        full = replace(
            row, bytes=row.bytes if cost is None else cost, readers=readers,
            computation=row.computation or graph.home.get(row.producer),
        )  # fmt: skip
        if row.verdict == "fused":
            if row.fuel is None and row.origin == "xla":
                full = replace(full, fuel=merges)
            merges += 1
            fused.add(row.producer)
            if row.consumers:
                graph.fuse(row.producer, row.consumers[0], row.made or row.consumers[0])
        made.append(full)
        last[row.producer] = full
    gone = fused | {name for row in rows if row.verdict == "fused" for name in row.consumers if row.made != name}
    for name, row in last.items():
        if row.verdict == "priority" and name not in gone:
            made.append(_without_benefit(row))
    return made


def _without_benefit(row: FusionRow) -> FusionRow:
    origin = "inferred" if row.origin == "xla" else row.origin
    return replace(row, verdict="refused", code=NO_BENEFIT, reason=_NO_BENEFIT_WORDS, origin=origin)


def _decided(run: Run, backend: str, device: str | None) -> FusionReport:
    check_room(run.stage_text(0), run.source.path, each=_DECIDING_BYTES)
    module, stage = _module_before(run, backend)
    config = run.report(FileKind.TARGET_CONFIG)
    where = _device(device, config) if backend == "gpu" else None
    decided = decide(module, backend, where)
    name = f"XLA:{backend.upper()}" + (f" on {where.name}" if where is not None else "")
    note = f"decided by hloscope's own {FUSION_PASSES[backend]} as {name} would"
    if len(run) > 1:
        note += f", on the stage after {stage}"
    rows = [_row(one, FUSION_PASSES[backend]) for one in decided.decisions]
    before, _ = _module_before(run, backend)
    return FusionReport(tuple(_finish(rows, before)), "core", backend, (note,))


def _row(one: FusionDecision, pass_name: str) -> FusionRow:
    return FusionRow(
        one.step, one.subject or "", one.consumers, one.verdict or "", one.code, one.reason, one.us_fused,
        one.us_unfused, one.bytes, one.fuel, one.origin, one.made, one.computation, pass_name,
    )  # fmt: skip


def _device(name: str | None, config: str | None) -> DeviceDescription:
    from hloscope.core.analysis.device import parse_device

    if name is not None and name != "gpu":
        return load_device(name)
    return load_device() if config is None else parse_device(config)


def _looks_like_gpu(text: str) -> bool:
    return '"__triton' in text or "__cublas" in text or "__cudnn" in text or "operation_queue_id" in text


def _module_before(run: Run, backend: str) -> tuple[HloModule, str]:
    """The input of the fusion pass (the last stage of a run that has none), and where it is from."""
    compile_ = RunCompile(run)
    try:
        pair = stages_around(compile_, FUSION_PASSES.get(backend, "fusion"))[0]
    except DumpError:
        index = len(run) - 1 if len(run) <= 1 else 0
        return compile_.module(index), compile_.stages[index].pass_name
    return compile_.module(pair.before.index), pair.before.pass_name


def _input(run: Run) -> HloModule | None:
    """The module before the pass whose decisions were recorded; None where the run does not show it."""
    try:
        return _module_before(run, run.source.target or "gpu")[0]
    except HloscopeError:
        return None


def _inferred(run: Run) -> FusionReport:
    backend = run.source.target or "cpu"
    compile_ = RunCompile(run)
    pairs = stages_around(compile_, FUSION_PASSES.get(backend, "fusion"))
    rows: list[FusionRow] = []
    unread = [one for one in run.notes if "fusion decisions cannot be read" in one]
    why = "" if unread else "the compiler recorded no fusion decisions; "
    notes = [*unread, f"{run.source.module}: {why}fusions are found by comparing stages"]
    for pair in pairs[:1]:
        row = run.outline[pair.after.index]
        if not row.own_snapshot and row.changed is not False:
            raise DumpError(f"{run.source.module}: no stage after {row.pass_name} was dumped", path=run.source.path)
        before, after = compile_.module(pair.before.index), compile_.module(pair.after.index)
        groups = recover_groups(before, after)
        rows.extend(_group_rows(before, groups))
        rows.extend(_apart_rows(before, after, groups, backend, len(rows), notes))
    return FusionReport(tuple(rows), "inferred", backend, tuple(notes))


def _group_rows(before: HloModule, groups: Sequence[Group]) -> list[FusionRow]:
    instructions = {one.name: one for one in before.instructions() if not one.parent.is_fusion}
    rows: list[FusionRow] = []
    for group in groups:
        members = set(group.members)
        for name in group.members:
            one = instructions[name]
            users = [user for user in one.users if user.name in members]
            if not users:
                continue
            readers, size = tuple(user.name for user in users), edge_bytes(one, users)
            rows.append(
                FusionRow(
                    len(rows), name, readers, "fused", None, None, None, None, size, None, "inferred", group.fusion,
                    group.computation,
                )
            )  # fmt: skip
    return rows


def _apart_rows(
    before: HloModule, after: HloModule, groups: Sequence[Group], backend: str, first: int, notes: list[str]
) -> list[FusionRow]:
    """Edges that stayed apart, with the core's reason where it has one that the stages do not contradict."""
    found = {one.name for one in after.instructions() if not one.parent.is_fusion}
    found.update(name for group in groups for name in group.members)
    lost = 0
    together = {(a, b) for group in groups for a in group.members for b in group.members}
    reasons = _core_reasons(before.clone(), backend, notes)
    rows: list[FusionRow] = []
    for computation in fused_computations(before):
        for one in computation.post_order():
            if not is_generally_fusible(one) or one.opcode in FREE:
                continue
            for user in one.users:
                if (one.name, user.name) in together or not is_generally_fusible(user) or user.opcode == "tuple":
                    continue
                if one.name not in found or user.name not in found:
                    lost += 1
                    continue
                code, reason = reasons.of(one.name, user.name)
                size = edge_bytes(one, [user])
                rows.append(
                    FusionRow(
                        first + len(rows), one.name, (user.name,), "refused", code, reason, None, None, size, None,
                        "inferred", None, computation.name,
                    )
                )  # fmt: skip
    if lost:
        notes.append(f"{lost:,} edges are not told: the pass made something else of one end")
    return rows


@dataclass(slots=True)
class _Reasons:
    """What the core says of edges left apart."""

    edges: dict[tuple[str, str], tuple[str | None, str | None]]
    producers: dict[str, tuple[str | None, str | None]]
    """Of a producer that goes into all its readers or into none."""

    def of(self, producer: str, reader: str) -> tuple[str | None, str | None]:
        """Code and reason; None twice where the core has fused them or was never asked."""
        return self.edges.get((producer, reader)) or self.producers.get(producer, (None, None))


def _core_reasons(before: HloModule, backend: str, notes: list[str]) -> _Reasons:
    reasons = _Reasons({}, {})
    if backend not in ("cpu", "gpu"):
        notes.append(f"the rules of XLA:{backend.upper()} are not public: edges left apart have no reason")
        return reasons
    holds: dict[str, frozenset[str]] = {}
    value: dict[str, str] = {}  # the instruction that a fusion's result was
    for one in decide(before, backend).decisions:
        producer = value.get(one.subject or "", one.subject or "")
        if one.verdict == "ineligible":
            reasons.producers[producer] = (one.code, one.reason)
        elif one.verdict == "priority":
            reasons.producers[producer] = (NO_BENEFIT, _NO_BENEFIT_WORDS)
        elif one.verdict == "fused":
            reasons.producers.pop(producer, None)
        for reader in one.consumers:
            for name in holds.get(reader, frozenset((reader,))):
                if one.verdict in ("refused", "ineligible"):
                    reasons.edges[producer, name] = (one.code, one.reason)
                else:
                    reasons.edges.pop((producer, name), None)
            if one.verdict == "fused" and one.made is not None:
                both = holds.get(reader, frozenset((reader,))) | holds.get(one.subject or "", frozenset((producer,)))
                holds[one.made] = both
                value[one.made] = value.get(reader, reader)
    return reasons


# ---------------------------------------------------------------- one pair
def _no_pair(module: HloModule, producer: str, consumer: str, named: tuple[str, str]) -> str:
    """Why there is no verdict on two instructions, in the names that were asked about and those that they had."""
    if any(one.name == producer and one.opcode == "parameter" for one in module.instructions()):
        return f"{named[0]!r} is a parameter: nothing computes it that could be fused into {named[1]!r}"
    older = [
        f"{now!r} was {then!r} there" for now, then in zip(named, (producer, consumer), strict=True) if now != then
    ]
    return f"{consumer!r} does not read {producer!r} where that is decided" + (
        f" ({', '.join(older)})" if older else ""
    )


def why_pair(
    run: Run, producer: str, consumer: str, *, target: str | None = None, prove: bool = False, tries: bool = True
) -> PairFacts:
    """Why a producer is not fused into a consumer, with edits of the HLO that turn the verdict round.

    What the compiler recorded, or what its stages show, is the verdict; the core adds the numbers, and is not shown
    where it is contradicted. Raises UsageError where the two are not producer and reader.
    """
    producer, consumer = producer.removeprefix("%"), consumer.removeprefix("%")
    backend = backend_of(target) if target is not None else (run.source.target or "")
    if backend not in ("cpu", "gpu"):
        backend = "tpu" if backend == "tpu" else "gpu" if _looks_like_gpu(run.stage_text(-1)) else "cpu"
    module, _ = _module_before(run, backend)
    device = None
    if backend == "gpu":
        device = _device(target, run.report(FileKind.TARGET_CONFIG))
    decided = fusion_report(run, target=target)
    notes: list[str] = []
    known = {one.name for one in module.instructions() if not one.parent.is_fusion}
    known |= {name for one in decided.rows for name in (one.producer, one.made, *one.consumers) if name is not None}
    named = producer, consumer
    producer, consumer = (_as_decided(run, name, module, known, notes) for name in (producer, consumer))
    row = _row_of(decided.rows, producer, consumer)
    between = _bitcasts_between(run, backend, ((producer, consumer), named)) if row is None else ()
    shown = row if decided.how != "core" else None
    ours: PairVerdict | None = None
    if between:
        row, ours = _through(decided.rows, (producer, *between, consumer), module, backend, device, notes)
        shown, tries = row, False
    elif backend != "tpu":
        try:
            ours = judge(module.clone(), producer, consumer, backend, device)
        except UsageError:
            names = {one.name for one in module.instructions()}
            if shown is None:
                made = {name for one in decided.rows for name in (one.producer, one.made, *one.consumers)}
                if {producer, consumer} <= names | made and not {producer, consumer} <= names:
                    raise UsageError(_no_pair(module, producer, consumer, named)) from None
                raise
            if {producer, consumer} <= names:
                raise
            seen = "was recorded" if decided.how == "recorded" else "the stages show"
            notes.append(f"one of the two was made by the fusion pass itself: only what {seen} is known")
    else:
        notes.append("the rules of XLA:TPU are not public: only what the stages show is known")
    if shown is None and ours is None:
        raise UsageError(f"nothing is known of {producer!r} and {consumer!r}", path=run.source.path)
    tried: list[Flip] = []
    if ours is not None and ours.verdict != "fused" and tries and (shown is None or shown.verdict != "fused"):
        tried, note = flips(module, producer, consumer, backend, device)
        if note is not None:
            notes.append(note)
        if prove:
            tried = _proven(tried, producer, consumer, backend, notes)
    place: dict[str, object] = {} if row is None else {"step": row.step, "bytes": row.bytes}
    return _facts(producer, consumer, shown, ours, tried, notes, place)


def _bitcasts_between(run: Run, backend: str, pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The bitcasts by which a consumer reads a producer, around the fusion pass or at the end; none where it reads the
    producer itself, or does not read it."""
    compile_ = RunCompile(run)
    stages = [len(run) - 1]
    try:
        pair = stages_around(compile_, FUSION_PASSES.get(backend, "fusion"))[0]
        stages = [pair.before.index, pair.after.index, *stages]
    except DumpError:
        pass
    for stage in dict.fromkeys(stages):
        index = run.stage_index(stage)
        for producer, consumer in pairs:
            first, last = index.find(producer), index.find(consumer)
            if first is None or last is None:
                continue
            paths: list[tuple[int, ...]] = [()]
            while paths:
                path = paths.pop()
                users = index.users(path[-1] if path else first)
                if last in users:
                    return tuple(index.name(i) for i in path)
                if len(path) < _MOST_BITCASTS:
                    paths += [(*path, i) for i in users if index.opcode(i) == "bitcast"]
    return ()


def _through(
    rows: Sequence[FusionRow],
    chain: tuple[str, ...],
    module: HloModule,
    backend: str,
    device: DeviceDescription | None,
    notes: list[str],
) -> tuple[FusionRow | None, PairVerdict | None]:
    """The verdict on a producer and a consumer with bitcasts between them: what was recorded, else the core's.

    A pass decides on direct uses, so each link of the chain is asked about.
    """
    producer, consumer = chain[0], chain[-1]
    notes.append(f"{consumer} reads {producer} through {', '.join(chain[1:-1])}, and fusion is decided for direct uses")
    links = list(pairwise(chain))
    found = [one for one in (_row_of(rows, *link) for link in links) if one is not None]
    row = next((one for one in found if one.verdict != "fused"), None)
    if row is None:
        about = [one for one in rows if one.producer == producer and one.verdict in ("refused", "ineligible")]
        row = max(about, key=lambda one: one.step, default=None)
    judged: PairVerdict | None = None
    for link in links if backend != "tpu" else ():
        with suppress(UsageError):
            ours = judge(module.clone(), *link, backend, device)
            if ours.verdict != "fused":
                judged = judged or ours
                notes.append(f"{link[0]} into {link[1]}: {ours.verdict}, {ours.reason or ours.code}")
    if row is None and len(found) == len(links):
        row = found[-1]
    return row, None if row is not None else judged


def _as_decided(run: Run, name: str, before: HloModule, known: set[str], notes: list[str]) -> str:
    """The name that an instruction had where fusion was decided, if a later pass renamed it; of a fusion that only
    later was put around one, the name of what it computes.

    Raises UsageError for what was not there then.
    """
    from hloscope.core.views.why import earlier_names

    if name in known or len(run) <= 1:
        return name
    try:
        names, made = earlier_names(run, name)
    except UsageError:
        return name
    old = next((one for one in names if one in known), None)
    if old is not None:
        notes.append(f"{name} is the later name of {old}")
        return old
    held = _held(before, RunCompile(run).module(len(run) - 1), name)
    if held is not None:
        notes.append(f"{name} was made later, around {held}")
        return held
    raise UsageError(f"{name!r} is not there where fusion is decided: {made}", path=run.source.path)


def _held(before: HloModule, after: HloModule, name: str) -> str | None:
    """The instruction of an earlier stage that a fusion of a later one was put around, as XLA does at the end without
    recording it: by what it computes, or by its name, opcode and shape."""
    old = {one.name: one for one in before.instructions() if not one.parent.is_fusion}
    groups = recover_groups(before, after)
    members = next((one.members for one in groups if one.fusion == name), ())
    for member in reversed(members):
        if member in old and old[member].opcode not in FREE:
            return member
    fusion = next((one for one in after.instructions() if one.name == name and one.opcode == "fusion"), None)
    if fusion is None:
        return None
    root = fusion.callee().root
    while root.opcode == "bitcast":
        root = root.operand(0)
    # A clone has the name of what it was made of, with another number at the end.
    stem = root.name.rpartition(".")[0] or root.name
    alike = [
        one.name
        for one in old.values()
        if one.opcode == root.opcode
        and one.name.startswith(stem)
        and (one.name == stem or one.name.removeprefix(f"{stem}.").isdigit())
        and one.shape.without_layout() == root.shape.without_layout()
    ]
    return alike[0] if len(alike) == 1 else None


def _facts(
    producer: str,
    consumer: str,
    shown: FusionRow | None,
    ours: PairVerdict | None,
    tried: list[Flip],
    notes: list[str],
    place: Mapping[str, object],
) -> PairFacts:
    numbers: dict[str, object] = {**(ours.numbers if ours is not None else {}), **place}
    if shown is None:
        assert ours is not None
        return PairFacts(
            producer, consumer, ours.verdict, ours.code, ours.reason, numbers, tuple(tried), "core", ours.change,
            ours.refused_by, None, tuple(notes),
        )  # fmt: skip
    same = ours is not None and (ours.verdict == "fused") == (shown.verdict == "fused")
    verdict, code, reason = shown.verdict, shown.code, shown.reason
    change, by = "", None
    if ours is not None and same:
        change, by = ours.change, ours.refused_by
        if reason is None:
            code, reason = ours.code, ours.reason
        elif verdict == "ineligible" and ours.verdict == "refused" and ours.reason == reason:
            verdict = "refused"
    if shown.us_unfused is not None and shown.us_fused is not None:
        numbers |= {"us_unfused": shown.us_unfused, "us_fused": shown.us_fused}
        numbers["us_saved"] = shown.us_unfused - shown.us_fused
    if ours is not None and not same:
        notes.append(f"the core would have said {ours.verdict}; what the compiler did counts")
        tried = []
    return PairFacts(
        producer, consumer, verdict, code, reason, numbers, tuple(tried), shown.origin, change, by,
        None if same else ours, tuple(notes),
    )  # fmt: skip


def _holders(rows: Sequence[FusionRow], name: str) -> set[str]:
    """An instruction, or all that a fusion holds."""
    held = {one for row in rows if row.made == name for one in (row.producer, *row.consumers)}
    return held or {name}


def _row_of(rows: Sequence[FusionRow], producer: str, consumer: str) -> FusionRow | None:
    """The decision of a report that settles a pair, also where either is part of a fusion by then."""
    holds: dict[str, set[str]] = {}
    last: FusionRow | None = None
    if any(row.made in (producer, consumer) for row in rows if row.origin == "inferred"):
        # Between the stages no fusion of the later one has edges of its own: those of what it holds.
        left, right = _holders(rows, producer), _holders(rows, consumer)
        edges = [row for row in rows if row.producer in left and right.intersection(row.consumers)]
        within = bool(left & right)
        return next((row for row in edges if (row.verdict == "fused") == within), None)
    for row in rows:
        asked = row.readers if row.verdict == "ineligible" and row.readers else row.consumers or row.readers
        readers = {name for one in asked for name in {one, *holds.get(one, ())}}
        given = {row.producer, *holds.get(row.producer, ())}
        if row.verdict == "fused":
            for one in row.consumers:
                made = row.made or one
                holds[made] = holds.get(one, {one}) | given | holds.get(made, set())
            if producer in given and consumer in readers:
                return row
        elif producer in given and consumer in readers:
            last = row
    if last is not None and last.verdict == "priority":
        return _without_benefit(last)
    return last


def _proven(tried: list[Flip], producer: str, consumer: str, backend: str, notes: list[str]) -> list[Flip]:
    """Ask the real compiler, deviceless, whether the first edits do what the core says."""
    from tempfile import TemporaryDirectory

    from hloscope.core.analysis.real_compile import DumpCompile
    from hloscope.core.dumps.directory import open_dump
    from hloscope.core.text import load_module
    from hloscope.core.xla.compile import compile_hlo_text

    made: list[Flip] = []
    for flip in tried[:PROVEN_FLIPS]:
        pair = load_module(flip.module).entry
        opcodes = {one.name: one.opcode for one in pair.instructions}
        try:
            with TemporaryDirectory(prefix="hloscope-prove-") as folder:
                compile_hlo_text(
                    flip.module, dump_to=folder, target="h100" if backend == "gpu" else "cpu", pass_re="fusion",
                    proto=False,
                )  # fmt: skip
                with open_dump(folder) as dump:
                    one, _ = dump.select(None)
                    compile_ = DumpCompile(one)
                    after = stages_around(compile_, FUSION_PASSES[backend])[-1].after
                    fused = _holds_edge(compile_.module(after.index), opcodes[producer], opcodes[consumer])
        except HloscopeError as error:
            notes.append(f"the real compiler was not asked: {error.message}")
            return tried
        if fused:
            made.append(replace(flip, proven_by=("core", "xla")))
        else:
            notes.append(f"the real compiler, given the pair with {flip.change!r}, has no fusion with both")
            made.append(flip)
    return [*made, *tried[PROVEN_FLIPS:]]


def _holds_edge(module: HloModule, producer: str, consumer: str) -> bool:
    """Whether some fusion computes an instruction of opcode `consumer` from one of opcode `producer`."""
    for computation in module.computations:
        if not computation.is_fusion:
            continue
        above: dict[str, bool] = {}
        for one in computation.post_order():
            from_producer = any(operand.opcode == producer or above[operand.name] for operand in one.operands)
            if one.opcode == consumer and from_producer:
                return True
            above[one.name] = from_producer
    return False


# ---------------------------------------------------------------- kernels
def kernel_report(run: Run, *, target: str | None = None) -> tuple[list[Kernel], str]:
    """The kernels of the stage after fusion (the last stage where there is none), and on which device.

    Raises UnsupportedError for a run of another backend, unless `target` names a GPU.
    """
    from hloscope.core.errors import UnsupportedError
    from hloscope.core.fusion.gpu.kernels import kernels

    if target is None and run.source.target not in (None, "gpu", "core"):
        raise UnsupportedError(f"kernels are estimated for GPUs only, not for {run.source.target}")
    device = _device(target, run.report(FileKind.TARGET_CONFIG))
    compile_ = RunCompile(run)
    try:
        index = stages_around(compile_, FUSION_PASSES["gpu"])[-1].after.index
    except DumpError:
        index = len(run) - 1
    return kernels(compile_.module(index), device), device.name


def kernel_times(run: Run) -> dict[str, float]:
    """Estimated microseconds of each kernel of the last stage, by the name of its instruction.

    Of what a library computes (custom calls) only the memory traffic is known: it gets the time of that, which is the
    least that it takes.

    Raises a HloscopeError where the stage or the device cannot be read.
    """
    from hloscope.core.fusion.gpu.kernels import kernels

    device = _device(None, run.report(FileKind.TARGET_CONFIG))
    module = RunCompile(run).module(len(run) - 1)
    times = {one.kernel: one.us for one in kernels(module, device)}
    for one in module.instructions():
        if one.opcode == "custom-call" and one.name not in times:
            moved = sum(shape_bytes(leaf) for leaf in _arrays(one.shape))
            moved += sum(shape_bytes(leaf) for operand in one.operands for leaf in _arrays(operand.shape))
            times[one.name] = 1e6 * moved / device.memory_bandwidth
    return times


def _arrays(shape: Shape) -> list[Shape]:
    return [leaf for one in shape.tuple_shapes for leaf in _arrays(one)] if shape.is_tuple else [shape]


def _int(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _names(value: object) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, list | tuple) else ()
