"""Every copy of a run and its cause: what ``hloscope copies`` shows, ``Run.copies``, and the layout chain of ``why``.

A copy belongs to the pass after which it first appears. Those of layout assignment are replayed: our pass runs on the
stage before it, its copies are paired with the real ones, and the constraints on both sides are told, with the change
that would remove the copy where one is known and proven. On a single HLO file our pass is run on it first.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from hloscope.core.analysis.real_compile import stages_around
from hloscope.core.dumps.filenames import FileKind
from hloscope.core.errors import DumpError, HloscopeError, InternalError, UnsupportedError, UsageError
from hloscope.core.hlo.shape import Shape
from hloscope.core.layout.assignment import assign_layouts, backend_of, is_past_layouts
from hloscope.core.layout.conditions import of_compile
from hloscope.core.layout.explain import (
    Conflict,
    LayoutChain,
    Link,
    LostRequest,
    PlaceChain,
    explain_copy,
    explain_instruction,
)
from hloscope.core.layout.gpu import GpuBackend
from hloscope.core.layout.match import pairs
from hloscope.core.layout.orders import show_shape
from hloscope.core.layout.remedies import Remedy, RemedyFinder
from hloscope.core.layout.replay import PASS, backend_of_target, restore_list_order
from hloscope.core.layout.times import RunCounts
from hloscope.core.passes.context import PassContext
from hloscope.core.views.copies_words import HOST, copied_shape, is_aliasing, memory_space, told
from hloscope.core.views.data import SourceFrame
from hloscope.core.views.narrowed import dumped_passes, told_range, unread_passes, unread_range
from hloscope.core.views.real_compile import RunCompile
from hloscope.core.views.real_target import real_target
from hloscope.core.views.stages import Cancelled, Progress, check
from hloscope.core.views.taken import copies_only, taken_into
from hloscope.core.views.why import read_line

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.stack_frames import Frame
    from hloscope.core.layout.assignment import Assignment
    from hloscope.core.layout.copies import CopyMade
    from hloscope.core.layout.prove import Copied
    from hloscope.core.layout.remedies import Change
    from hloscope.core.views.run import Run

__all__ = [
    "Conflict", "CopiesAnswer", "CopyCause", "CopyRow", "LayoutChain", "Link", "LostRequest", "PlaceChain", "Remedy",
    "copies", "layout_chain",
]  # fmt: skip

REMEDY_SECONDS = 20.0
"""Time after which no further remedies are looked for, compiles of proofs not counted."""

PROOF_SECONDS = 300.0
"""Time after which the real compiler is asked of no further remedy."""

CauseKind = Literal[
    "layout", "aliasing", "program", "copy-insertion", "spmd", "host-transfer", "memory-space", "tiling", "reshape",
    "layout-normalization", "fusion", "other",
]  # fmt: skip

# Pass (with its pipeline) in which a copy first appears -> kind and what that means. The first match counts.
_KINDS: tuple[tuple[str, CauseKind, str], ...] = (
    (r"before_tiling_rewriter$|(^|/)layout-assignment$", "layout", "layout assignment: two layouts meet here"),
    (r"tiling", "tiling", "the tiles of two layouts differ"),
    (r"copy.?insertion|adding_copies|special-case_copies|unnecessary_copies", "copy-insertion",
     "copy insertion: the value is still needed while its buffer is overwritten, or two results share it"),
    (r"spmd|shard|partition|collective", "spmd", "partitioning: data moves between shards"),
    (r"host[-_]?(offload|memory|transfer|compute)", "host-transfer", "the value moves between host and device"),
    (r"memory.?space|prefetch|vmem", "memory-space", "the value moves to or from fast memory"),
    (r"reshape-decomposer|layout_fixup", "reshape", "a reshape that moves bytes became a copy and a free reshape"),
    (r"layout_?-?normalization", "layout-normalization", "layouts were made row-major; transposes and copies stay"),
    (r"fusion", "fusion", "the fusion pass made it"),
)  # fmt: skip
_KIND_PATTERNS: tuple[tuple[re.Pattern[str], CauseKind, str], ...] = tuple(
    (re.compile(pattern, re.I), kind, words) for pattern, kind, words in _KINDS
)

_COPY = re.compile(
    rb"^[ \t]+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>\([^=\n]*?\)|\S+) (?:copy|copy-start)\("
    rb"[^\n]*?(?:metadata=(?P<metadata>\{[^\n]*))?$",
    re.M,
)


@dataclass(frozen=True, slots=True)
class CopyCause:
    """Why a copy is there."""

    kind: CauseKind
    instruction: str | None
    """The instruction that wants the other layout (or reads the copy); None where it is a computation's result."""
    sentence: str
    stage: int
    """Row after which the copy is first seen."""
    pass_name: str
    chain: tuple[Link, ...] = ()
    """Why the use has its layout, nearest first; for copies of layout assignment that were replayed."""
    given: tuple[Link, ...] = ()
    """Why the definition has its layout, nearest first."""
    lost: LostRequest | None = None
    """The attempt to spare the copy and why it failed, with both priorities."""


@dataclass(frozen=True, slots=True)
class CopyRow:
    """One copy."""

    copy: str
    computation: str
    operand: str
    from_layout: str
    to_layout: str
    bytes: int | None
    """Size of the copied value; it is read and written once each."""
    times: int | None
    """How often it runs in one run of the program (at most, in a conditional); None in a loop of unknown length."""
    cause: CopyCause
    source: tuple[SourceFrame, ...]
    """Python frames, innermost first."""
    remedy: Remedy | None
    """A change that removes it, with the proof; None where none is known."""
    free: bool
    """It moves no bytes: the layouts differ only in dimensions of size 1."""
    last_stage: int
    """Last row that still shows it, under this name or another."""
    gone: str | None
    """The pass after which it is no longer there (fused away, folded, removed); None where the last stage has it."""
    also: tuple[str, ...] = ()
    """Names under which it goes on after passes that cloned it, such as into a fusion."""
    inside: str | None = None
    """The fusion of the last stage that computes it on the way: it is no kernel of its own there, and what it copies
    need not be in memory; None where it stands by itself, too in a fusion that only moves what it is given, or is
    gone."""


@dataclass(frozen=True, slots=True)
class CopiesAnswer:
    """The copies of a run."""

    rows: tuple[CopyRow, ...]
    notes: tuple[str, ...] = ()
    """What could not be told, and where our own pass was run, one sentence each."""

    def __repr__(self) -> str:
        kinds = Counter(row.cause.kind for row in self.rows)
        told = "".join(f", {count:,} {kind}" for kind, count in kinds.most_common())
        return f"<copies: {len(self.rows):,}, {sum(row.bytes or 0 for row in self.rows):,} bytes{told}>"


def cause_of_copy(run: Run, name: str) -> CopyRow | None:
    """The copy of that name, or that goes on under it, with its cause; None where none is told of."""
    rows = copies(run, remedies=False, every=True).rows
    own = next((row for row in rows if row.copy == name), None)
    return own or next((row for row in rows if name in row.also), None)


def copies(
    run: Run,
    *,
    remedies: bool = True,
    prove: bool = False,
    every: bool = False,
    target: str | None = None,
    cancelled: Cancelled | None = None,
    progress: Progress | None = None,
) -> CopiesAnswer:
    """The copies that layout assignment made and those that the last stage has; with `every`, all of any stage.

    `target` is the backend whose rules are used on a single HLO file. With `prove` the real compiler is asked whether a
    remedy removes its copy. Raises CancelledError, and UnsupportedError or CompileError from `prove`.
    """
    return _Answer(run, remedies, prove, every, target, cancelled, progress).answer()


@dataclass(slots=True)
class _Found:
    """One copy by its name."""

    name: str
    first: int
    last: int
    signature: tuple[bytes, bytes]
    """Its shape and metadata, by which its clone is known."""
    also: list[str] = field(default_factory=list[str])
    clone_of: str | None = None
    """An older copy of the same shape and origin that is there as well."""


@dataclass(slots=True)
class _Replayed:
    """One layout assignment with ours beside it."""

    first_row: int
    real: HloModule
    ours: HloModule
    assignment: Assignment
    pairs: dict[str, HloInstruction]
    finder: RemedyFinder | None
    before: Callable[[], HloModule]
    compiled: dict[str, Copied] = field(default_factory=dict[str, "Copied"])
    """What the real compiler made of it without a change, for `--prove`."""


class _Answer:
    def __init__(
        self,
        run: Run,
        remedies: bool,
        prove: bool,
        every: bool,
        target: str | None,
        cancelled: Cancelled | None,
        progress: Progress | None,
    ) -> None:
        self._run = run
        self._compile = RunCompile(run)
        self._remedies = remedies
        self._prove = prove
        self._every = every
        self._target = target
        self._cancelled = cancelled
        self._progress = progress
        self._notes: list[str] = []
        self._until = time.monotonic() + REMEDY_SECONDS
        self._out_of_time = False
        self._proven: dict[Change, tuple[str, ...]] = {}
        self._proving = 0.0
        self._no_more_proofs = False

    def answer(self) -> CopiesAnswer:
        found = self._find()
        replayed = self._replay()
        if replayed is None and self._is_single_text():
            return self._own_pass()
        by_row: dict[int, list[_Found]] = {}
        last = len(self._run) - 1
        for one in found:
            made_by_layout = self._kind(one.first)[0] == "layout" or PASS in unread_passes(self._run, one.first)
            if self._every or made_by_layout or one.last == last:
                by_row.setdefault(one.first, []).append(one)
        rows: list[CopyRow] = []
        for row, names in sorted(by_row.items()):
            check(self._cancelled)
            rows += self._rows(row, names, replayed.get(row) if replayed else None)
        return CopiesAnswer(tuple(self._counted(rows)), tuple(self._notes))

    def _counted(self, rows: list[CopyRow]) -> list[CopyRow]:
        """Runs of those whose own stage does not tell, as the last stage has it: a trip count may be known by then."""
        names = {row.also[-1] if row.also else row.copy for row in rows if row.times is None and row.gone is None}
        if not names:
            return rows
        module = self._compile.module(self._run.whole_before(len(self._run)))
        counts = RunCounts(module)
        times = {one.name: counts.of(one.parent) for one in module.instructions() if one.name in names}
        return [
            replace(row, times=times.get(row.also[-1] if row.also else row.copy))
            if row.times is None and row.gone is None
            else row
            for row in rows
        ]

    # ---------------------------------------------------------------- finding
    def _find(self) -> list[_Found]:
        """All copies, a clone that takes a copy's place counting as the same one."""
        done: list[_Found] = []
        alive: dict[str, _Found] = {}
        snapshot: int | None = None
        for index, row in enumerate(self._run.outline):
            check(self._cancelled)
            if (row.own_snapshot or snapshot is None) and self._run.fault(index) is None:
                snapshot = row.snapshot
                here = {
                    one["name"].decode("utf-8", "replace"): (one["shape"], one["metadata"] or b"")
                    for one in _COPY.finditer(self._run.stage_bytes(index))
                }
                gone = {name: alive.pop(name) for name in list(alive) if name not in here}
                taken = self._taken(index, gone)
                told = set(taken.values())
                for name, signature in here.items():
                    known = alive.get(name)
                    if known is None:
                        same = [(key, one) for key, one in gone.items() if one.signature == signature]
                        known = gone.get(taken.get(name, "")) or next(
                            (one for key, one in same if key not in told), None
                        )
                        if known is not None:
                            known.also.append(name)
                            gone = {key: one for key, one in gone.items() if one is not known}
                        else:
                            known = _Found(name, index, index, signature)
                            known.clone_of = _twin(known, alive.values()) if signature[1] else None
                        alive[name] = known
                done += gone.values()
            for one in alive.values():
                one.last = index
            if self._progress is not None:
                self._progress(index + 1, len(self._run.outline))
        return [*done, *alive.values()]

    def _taken(self, index: int, gone: Mapping[str, _Found]) -> dict[str, str]:
        """By the name of a copy inside a fusion, that of the copy outside whose place it took, where several that are
        alike went together."""
        counts = Counter(one.signature for one in gone.values())
        found: dict[str, str] = {}
        for name, one in gone.items():
            place = self._run.definition(self._run.whole_before(index), name) if counts[one.signature] > 1 else None
            took = taken_into(self._run, index, place) if place is not None else None
            if took is not None:
                found[took[0]] = name
        return found

    def _is_single_text(self) -> bool:
        return len(self._run) == 1

    def _kind(self, row: int) -> tuple[CauseKind, str]:
        if row == 0:
            return "program", "the program has it"
        stage = self._run.outline[row]
        if (among := unread_range(self._run, row, dumped_passes(self._run))) is not None:
            return "other", f"{told_range(among, unread_passes(self._run, row))} made it"
        where = f"{stage.pipeline}/{stage.pass_name}"
        for pattern, kind, words in _KIND_PATTERNS:
            if pattern.search(where):
                return kind, words
        if stage.pass_name.startswith(("after_optimizations", "pipeline-start")):
            before = self._run.outline[row - 1]
            return "other", f"some pass after {before.pass_name} made it, which the dump leaves out"
        return "other", f"{stage.pass_name} made it"

    # ---------------------------------------------------------------- layout assignment
    def _replay(self) -> dict[int, _Replayed] | None:
        """By row; None where the run does not show the pass."""
        try:
            around = stages_around(self._compile, PASS)
        except DumpError:
            if not self._is_single_text():
                self._notes.append("no stage around layout-assignment was dumped, so causes are told by the pass alone")
            return None
        answers: dict[int, _Replayed] = {}
        for pair in around:
            check(self._cancelled)
            try:
                one = self._run.layout_replay(pair)
            except (UnsupportedError, UsageError) as error:
                self._notes.append(f"causes are told by the pass alone: {error.message}")
                return answers
            except (HloscopeError, InternalError) as error:
                self._notes.append(f"layout assignment could not be replayed: {error}")
                return answers
            self._notes += one.notes

            def before(pair: object = pair) -> HloModule:
                module = self._compile.module(one.pair.before.index)
                restore_list_order(self._compile, one.pair, module)
                return module

            finder = RemedyFinder(before, one.assignment) if self._remedies else None
            answers[pair.after.index] = _Replayed(
                pair.after.index, one.real, one.ours, one.assignment,
                pairs(one.real, one.ours, one.shapes_before), finder, before,
            )  # fmt: skip
        return answers

    def _own_pass(self) -> CopiesAnswer:
        """A single text: our pass is run on it."""
        target = self._target or _own_backend(self._run.source.target)
        backend = of_compile(self._compile).on(backend_of(target))
        module = self._compile.module(0)
        if is_past_layouts(module):
            self._notes.append(
                "the module has its layouts already: only a dump of its compile tells why copies are there"
            )
            counts = RunCounts(module)
            rows = [
                self._row(
                    one, 0, _Found(one.name, 0, 0, (b"", b"")), "program", "the module has it", None, None, counts
                )
                for one in module.instructions()
                if one.opcode in ("copy", "copy-start") and one.operand_count
            ]
            return CopiesAnswer(tuple(rows), tuple(self._notes))
        assignment = assign_layouts(module, backend, PassContext(target=backend.name), remember=True)
        self._notes.append(
            f"{self._run.source.path} is a single module: hloscope ran its own layout-assignment for {target} on it"
        )

        def before() -> HloModule:
            return self._compile.module(0)

        finder = RemedyFinder(before, assignment) if self._remedies else None
        one = _Replayed(0, module, module, assignment, {}, finder, before)
        counts = RunCounts(module)
        made = {one.copy: one for one in assignment.copies}
        rows: list[CopyRow] = []
        for instruction in module.instructions():
            if instruction.opcode == "copy" and instruction.operand_count:
                copied = made.get(instruction)
                kind, words = ("layout", "") if copied is not None else ("program", "the program has it")
                if instruction in assignment.prepared:
                    kind, words = "aliasing", _ALIASING
                found = _Found(instruction.name, 0, 0, (b"", b""))
                rows.append(self._row(instruction, 0, found, kind, words, copied, one, counts))
        return CopiesAnswer(tuple(rows), tuple(self._notes))

    # ---------------------------------------------------------------- rows
    def _rows(self, row: int, names: list[_Found], replayed: _Replayed | None) -> Iterator[CopyRow]:
        module = replayed.real if replayed is not None else self._compile.module(row)
        counts = RunCounts(module)
        kind, words = self._kind(row)
        wanted = {one.name: one for one in names}
        made = {one.copy: one for one in replayed.assignment.copies} if replayed is not None else {}
        for instruction in module.instructions():
            one = wanted.get(instruction.name)
            if one is None or instruction.opcode not in ("copy", "copy-start") or not instruction.operand_count:
                continue
            twin = replayed.pairs.get(instruction.name) if replayed is not None else None
            copied = made.get(twin) if twin is not None else None
            own_kind: CauseKind = kind
            own_words = words
            if replayed is not None and twin is None and kind == "layout":
                own_words = "layout assignment made it, but hloscope's own pass does not, so the cause is not known"
            if replayed is not None and twin is not None and twin in replayed.assignment.prepared:
                own_kind, own_words = "aliasing", _ALIASING
            if one.clone_of is not None and own_kind == "fusion":
                own_words = f"the fusion pass computes {one.clone_of} once more in another fusion"
            if own_kind == "layout" and twin is None and is_aliasing(instruction):
                own_kind, own_words = "aliasing", _ALIASING
            spaces = {memory_space(copied_shape(instruction)), memory_space(instruction.operand(0).shape)}
            if len(spaces) > 1:
                own_kind = "host-transfer" if HOST in spaces else "memory-space"
                own_words = _WORDS_OF[own_kind]
            yield self._row(instruction, row, one, own_kind, own_words, copied, replayed, counts)

    def _row(
        self,
        copy: HloInstruction,
        row: int,
        found: _Found,
        kind: CauseKind,
        words: str,
        made: CopyMade | None,
        replayed: _Replayed | None,
        counts: RunCounts,
    ) -> CopyRow:
        stage = self._run.outline[row]
        operand = copy.operand(0)
        user = next(iter(copy.users), None)
        conflict: Conflict | None = None
        remedy: Remedy | None = None
        if made is not None and replayed is not None:
            conflict = explain_copy(made, replayed.assignment)
            words = _sentence(made, conflict)
            remedy = None if conflict.free else self._remedy(made, replayed)
        else:
            words = told(kind, words, copy, stage.pipeline if row else "", stage.pass_name if row else "")
        cause = CopyCause(
            kind=kind,
            instruction=_reader(made, user),
            sentence=words,
            stage=row,
            pass_name=stage.pass_name,
            chain=conflict.wanted if conflict is not None else (),
            given=conflict.given if conflict is not None else (),
            lost=conflict.lost if conflict is not None else None,
        )
        target_shape = copied_shape(copy)
        last = found.last
        after = self._run.outline[last + 1] if last + 1 < len(self._run.outline) else None
        origin = _origin(operand)
        frames = copy.source_frames or operand.source_frames or origin.source_frames
        frames = frames or (_destination(user).source_frames if user else ()) or _next_frames(copy)
        return CopyRow(
            copy=copy.name,
            computation=copy.parent.name,
            operand=operand.name,
            from_layout=_layout_text(operand.shape),
            to_layout=_layout_text(target_shape),
            bytes=_bytes(target_shape),
            times=counts.of(copy.parent),
            cause=cause,
            source=tuple(SourceFrame(one.file, one.line, one.column, one.function) for one in frames),
            remedy=remedy,
            free=conflict.free if conflict is not None else False,
            last_stage=last,
            gone=None if after is None else f"{after.pipeline}/{after.pass_name}".lstrip("/"),
            also=tuple(found.also),
            inside=self._inside(found) if after is None else None,
        )

    def _inside(self, found: _Found) -> str | None:
        """The fusion whose body computes a copy on the way in the last stage; None where it stands by itself, too in a
        fusion that does nothing but copy."""
        index = self._run.stage_index(self._run.whole_before(len(self._run)))
        at = index.find(found.also[-1] if found.also else found.name)
        if at is None:
            return None
        callers = index.callers(index.computation_of(at))
        fusion = next((index.name(one) for one in callers if index.opcode(one) == "fusion"), None)
        return None if fusion is None or copies_only(index, at) else fusion

    def _remedy(self, made: CopyMade, replayed: _Replayed) -> Remedy | None:
        if replayed.finder is None:
            return None
        if time.monotonic() > self._until:
            if not self._out_of_time:
                self._notes.append(f"after {REMEDY_SECONDS:.0f} s no further remedies were looked for")
                self._out_of_time = True
            return None
        check(self._cancelled)
        found = replayed.finder.find(made)
        if found is None:
            return None
        remedy, change = found
        return replace(remedy, proven_by=self._by_compiler(change, made, replayed)) if self._prove else remedy

    def _by_compiler(self, change: Change, made: CopyMade, replayed: _Replayed) -> tuple[str, ...]:
        if change not in self._proven:
            from hloscope.core.layout.prove import prove

            if self._proving > PROOF_SECONDS:
                if not self._no_more_proofs:
                    self._notes.append(f"after {PROOF_SECONDS:.0f} s the compiler was not asked of further remedies")
                    self._no_more_proofs = True
                return ("core",)
            began = time.monotonic()
            backend = replayed.assignment.state.backend
            name = "gpu" if isinstance(backend, GpuBackend) else "cpu"
            config = self._compile.report(FileKind.TARGET_CONFIG)
            with real_target(name, config, self._target) as target:
                holds, note = prove(
                    replayed.before, change, made, target, lambda: self._compile.module(0), replayed.compiled
                )
            spent = time.monotonic() - began
            self._proving += spent
            self._until += spent
            if note:
                self._notes.append(note)
            self._proven[change] = ("core", "xla") if holds else ("core",)
        return self._proven[change]


_ALIASING = "the result lives in the operand's buffer, so the operand is copied before layouts are chosen"
_WORDS_OF: Mapping[CauseKind, str] = {kind: words for _, kind, words in _KINDS}


def _twin(new: _Found, others: Iterable[_Found]) -> str | None:
    return next((one.name for one in others if one.signature == new.signature and one.first < new.first), None)


def _origin(value: HloInstruction) -> HloInstruction:
    """What makes a value that is only passed on: through tuples that were put together here, bitcasts and copies."""
    while value.operand_count:
        inner = value.operand(0)
        if value.opcode == "get-tuple-element" and inner.opcode == "tuple":
            place = value.attr("index")
            if place is None or not 0 <= place < inner.operand_count:
                return value
            value = inner.operand(place)
        elif value.opcode in ("bitcast", "copy", "reshape", "get-tuple-element"):
            value = inner
        else:
            return value
    return value


def _destination(user: HloInstruction) -> HloInstruction:
    """What a reader reads for: through tuples, bitcasts and copies that only pass the value on."""
    while user.opcode in ("tuple", "bitcast", "copy", "copy-done") and not user.source_frames and len(user.users) == 1:
        user = user.users[0]
    return user


_FAR = 32
"""Instructions that are looked at for a line behind a copy."""


def _next_frames(copy: HloInstruction) -> tuple[Frame, ...]:
    """The source of the nearest instruction that comes of a copy and has one: parameters and moves have none."""
    seen = {copy}
    work = deque(copy.users)
    while work and len(seen) < _FAR:
        one = work.popleft()
        if one in seen:
            continue
        if one.source_frames:
            return tuple(one.source_frames)
        seen.add(one)
        work.extend(one.users)
    return ()


def _reader(made: CopyMade | None, user: HloInstruction | None) -> str | None:
    """Who wants the copy; None where it is the result of a computation."""
    if made is not None:
        return None if made.user is None else made.user.name
    return None if user is None else user.name


def _sentence(made: CopyMade, conflict: Conflict) -> str:
    """The cause in one sentence."""
    text = _side(conflict.wanted)
    if conflict.given:
        text += f", but {_side(conflict.given)}"
    lost = conflict.lost
    if lost is not None:
        asked = "the use did ask for its layout" if lost.by == "use" else "the use was offered the definition's layout"
        text += f"; {asked}, but {lost.because}"
    return text


def _side(chain: tuple[Link, ...]) -> str:
    near, origin = chain[0], chain[-1]
    text = f"the {near.where} is {near.layout} because {near.because}"
    return text if origin is near else f"{text} (it begins at the {origin.where}: {origin.because})"


def _layout_text(shape: Shape) -> str:
    layout = shape.layout
    return str(layout) if shape.is_array and layout is not None else show_shape(shape)


def _bytes(shape: Shape) -> int | None:
    try:
        return shape.byte_size
    except (ValueError, KeyError, HloscopeError):
        return None


# ---------------------------------------------------------------- the chain of one instruction
MAX_CHAIN_BYTES = 8 << 20
"""Text of a stage up to which the pass is replayed for the chain of one instruction: some 60,000 instructions, 15 s."""


def layout_chain(run: Run, *names: str) -> LayoutChain | None:
    """Where the layouts at an instruction come from, as layout assignment found them; `names` are those it had.

    None where the run does not show the pass (and is no single module before it), where its target is not known, or
    where the pass did not see the instruction; empty, with a note, for a module so large that it would take long.
    """
    names = tuple(name.removeprefix("%") for name in names)
    compile_ = RunCompile(run)
    try:
        around = stages_around(compile_, PASS)
    except DumpError:
        if len(run) != 1 or run.definition(0, names[0]) is None:
            return None
        size = len(run.stage_bytes(0))
        return _own_chain(run, names) if size <= MAX_CHAIN_BYTES else _too_large(names[0], size)
    for pair in reversed(around):
        found = next((place for name in names if (place := run.definition(pair.after.index, name)) is not None), None)
        if found is None:
            continue
        size = len(run.stage_bytes(pair.before.index))
        if size > MAX_CHAIN_BYTES:
            return _too_large(found.name, size)
        try:
            one = run.layout_replay(pair)
        except (HloscopeError, InternalError):
            return None
        twin = pairs(one.real, one.ours, one.shapes_before).get(found.name)
        instruction = twin if twin is not None else one.ours.find_instruction(found.name)
        if instruction is None:
            return None
        chain = explain_instruction(instruction, one.assignment)
        notes = (*one.notes, *chain.notes)
        real = _shape(read_line(found.text).shape)
        if twin is None and real is not None and show_shape(real) != show_shape(instruction.shape):
            notes = (*notes, f"the compiler itself chose {show_shape(real)}, so this chain is not the real one")
        return replace(chain, name=found.name, notes=notes)
    return None


def _too_large(name: str, size: int) -> LayoutChain:
    note = (
        f"layout assignment is not replayed for one instruction where its stage has {size / 2**20:.0f} MiB of text"
        f" (up to {MAX_CHAIN_BYTES >> 20} MiB it is); hloscope copies replays it and has the chains of every copy"
    )
    return LayoutChain(name, "", (), (), (note,))


def _own_chain(run: Run, names: tuple[str, ...]) -> LayoutChain | None:
    target = _own_backend(run.source.target)
    compile_ = RunCompile(run)
    try:
        module = compile_.module(0)
        if is_past_layouts(module):
            return None
        backend = of_compile(compile_).on(backend_of(target))
        assignment = assign_layouts(module, backend, PassContext(target=target), remember=True)
    except (HloscopeError, InternalError):
        return None
    instruction = next((one for name in names if (one := module.find_instruction(name)) is not None), None)
    if instruction is None:
        return None
    chain = explain_instruction(instruction, assignment)
    return replace(chain, notes=(*chain.notes, f"hloscope ran its own layout-assignment for {target} on this module"))


def _own_backend(target: str | None) -> str:
    """Whose rules are used where our own pass is run: the CPU's where the target is not known or has none."""
    try:
        return backend_of_target(target)
    except UnsupportedError:
        return "cpu"


def _shape(text: str) -> Shape | None:
    try:
        return Shape.parse(text)
    except (HloscopeError, ValueError):
        return None
