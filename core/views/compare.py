"""Two compiles of one program side by side: which passes both have, and the first state at which they part.

Rows are lined up by pipeline, round of a pipeline that is repeated, and pass name. Two states are the same when they
compute the same in the same way: names, metadata, the tables behind it and the order of what is not scheduled do not
count. Headers are told apart from the instructions: two targets lay out one program's arguments differently.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError
from hloscope.core.views.run import diff_runs
from hloscope.core.views.stages import Cancelled, Progress, check
from hloscope.core.views.why import part_changes

if TYPE_CHECKING:
    from hloscope.core.views.data import InstructionChange, StageDiff
    from hloscope.core.views.run import Run
    from hloscope.core.views.stages import StageRow

_NO_CHANGE = frozenset({"metadata", "name"})
_START = "pipeline-start"
_PARTITIONER = (
    "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output",
)
"""Header flags that only a partitioner reads; compilers differ in whether they write them."""
_SHARDY = re.compile(r'xla\.sdy\.\w+=(?:"(?:[^"\\]|\\.)*"|[^,}]*),?\s*')
_SHARDINGS = "shardings of a program for one device"
LATER_BYTES = 1 << 20
"""After the runs part, states up to this size are compared by what they compute, larger ones to the letter."""
_OURS_ALONE = {
    "scheduling": "XLA orders a module after its passes, which no dump shows as a pass",
    "buffer_assignment": "XLA assigns buffers after its passes, which no dump shows as a pass",
}


@dataclass(frozen=True, slots=True)
class ComparedStage:
    """One row of the two timelines."""

    a: int | None
    """Row of the first run; None where only the second has it."""
    b: int | None
    pipeline: str
    pass_name: str
    same: bool | None
    """Whether both are in the same state after it; None for a row that one side lacks or whose text is not readable."""
    exact: bool = False
    """Whether the texts are equal to the letter."""
    why: str | None = None
    """Why one side lacks the row, where that is known, or which text is not readable."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the runs part."""

    a: int
    b: int
    pipeline: str
    pass_name: str
    between: tuple[str, ...]
    """Passes since the last common state that only one side shows, each with ``A:`` or ``B:`` before it."""
    diff: StageDiff
    """From the first run's state to the second's."""
    last_same: tuple[int, int] | None
    """The rows after which both were last the same; None where they start apart."""

    def real(self) -> list[InstructionChange]:
        """The changes that count."""
        found = [one for one in self.diff.modified if set(one.what) - _NO_CHANGE]
        return [*self.diff.removed, *self.diff.added, *found]


@dataclass(frozen=True, slots=True)
class HeaderDifference:
    """Where the headers of two states part whose instructions are the same."""

    a: int
    b: int
    pass_name: str
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """The answer of ``hloscope compare``."""

    stages: tuple[ComparedStage, ...]
    first: Divergence | None
    """None where every common row is in the same state."""
    only_a: int = 0
    """Rows that the second run lacks."""
    only_b: int = 0
    header: HeaderDifference | None = None
    """The first common row whose headers differ in more than names, before the instructions do."""
    notes: tuple[str, ...] = field(default=())


def compare_runs(a: Run, b: Run, *, cancelled: Cancelled | None = None, progress: Progress | None = None) -> Compared:
    """Line two runs up and find the first common row after which they differ.

    After that row large states are compared to the letter alone, since they were made from different ones. Raises
    CancelledError.
    """
    keys = (_keys(a.outline), _keys(b.outline))
    rows = _lined_up(*keys)
    reasons = _Reasons(a, b, keys)
    states = _States(a, b)
    stages: list[ComparedStage] = []
    first: Divergence | None = None
    header: HeaderDifference | None = None
    last_same: tuple[int, int] | None = None
    between: list[str] = []
    for number, (at, bt) in enumerate(rows):
        check(cancelled)
        if progress is not None:
            progress(number + 1, len(rows))
        row = a.outline[at] if at is not None else b.outline[bt or 0]
        if at is None or bt is None:
            why = reasons.of(at, bt, quiet=row.changed is False)
            stages.append(ComparedStage(at, bt, row.pipeline, row.pass_name, None, why=why))
            between.append(f"{'A' if bt is None else 'B'}: {row.pass_name}")
            continue
        sides = [side for side, run, index in (("A", a, at), ("B", b, bt)) if not _readable(run, index)]
        if sides:
            why = f"the text of {' and '.join(sides)} is not readable"
            stages.append(ComparedStage(at, bt, row.pipeline, row.pass_name, None, why=why))
            between += [f"{side}: {row.pass_name}, after which no text is readable" for side in sides]
            continue
        exact = a.stage_digest(at) == b.stage_digest(bt)
        same = exact or states.same(at, bt, later=first is not None)
        if same and not exact and header is None and first is None and (lines := states.header(at, bt)):
            header = HeaderDifference(at, bt, row.pass_name, lines)
        if not same and first is None:
            diff = states.counting(at, bt, diff_runs(a, at, b, bt))
            first = Divergence(at, bt, row.pipeline, row.pass_name, tuple(between), diff, last_same)
        stages.append(ComparedStage(at, bt, row.pipeline, row.pass_name, same, exact))
        if same:
            last_same = (at, bt)
            between.clear()
    only_a = sum(one.b is None for one in stages)
    only_b = sum(one.a is None for one in stages)
    notes = [*_notes(a, b), *states.notes()]
    if header is not None:
        notes.append(
            f"the headers differ from {header.pass_name} on (stage {header.a} of A, {header.b} of B): "
            f"{', '.join(header.attributes)}"
        )
    if first is not None and first.last_same is None and a.source.by_core != b.source.by_core:
        other = "B" if a.source.by_core else "A"
        notes.append(
            f"they start from different programs: hloscope compile {(b if a.source.by_core else a).source.path} "
            f"--engine core starts from the first stage of {other}"
        )
    return Compared(tuple(stages), first, only_a, only_b, header, tuple(notes))


def _readable(run: Run, index: int) -> bool:
    """Whether the state after a row is known: rows without a text have that of the row before."""
    while index and not run.outline[index].own_snapshot:
        index -= 1
    return run.fault(index) is None


def _notes(a: Run, b: Run) -> list[str]:
    notes: list[str] = []
    if a.source.module != b.source.module:
        notes.append(f"the modules have different names: {a.source.module} and {b.source.module}")
    if a.source.target != b.source.target and a.source.target and b.source.target:
        notes.append(f"the targets differ: {a.source.target} and {b.source.target}")
    if a.source.xla_build != b.source.xla_build and a.source.xla_build and b.source.xla_build:
        notes.append(f"the compilers differ: {a.source.xla_build} and {b.source.xla_build}")
    return notes


class _States:
    """Whether two states are the same, each pair of texts asked for once."""

    def __init__(self, a: Run, b: Run) -> None:
        self._a, self._b = a, b
        self._known: dict[tuple[bytes, bytes], bool] = {}
        self._hashes: dict[bytes, bytes | None] = {}
        self._aside: dict[str, None] = {}
        self._headers: dict[tuple[bytes, bytes], tuple[str, ...]] = {}

    def header(self, at: int, bt: int) -> tuple[str, ...]:
        """What differs in the headers of two states that were compared, but for what is left aside."""
        return self._headers.get((self._a.stage_digest(at), self._b.stage_digest(bt)), ())

    def same(self, at: int, bt: int, *, later: bool) -> bool:
        """Of rows whose texts differ; `later` is for rows after the first that differs."""
        a, b = self._a, self._b
        if later and max(len(a.stage_bytes(at)), len(b.stage_bytes(bt))) > LATER_BYTES:
            return False
        key = (a.stage_digest(at), b.stage_digest(bt))
        if key not in self._known:
            self._known[key] = self._compare(at, bt, later)
        return self._known[key]

    def _compare(self, at: int, bt: int, later: bool) -> bool:
        a, b = self._a, self._b
        diff = None
        if not later:
            diff = self.counting(at, bt, diff_runs(a, at, b, bt))
            self._headers[a.stage_digest(at), b.stage_digest(bt)] = self._read_header(at, bt, diff.header)
            if not any(set(one.what) - _NO_CHANGE for one in diff.modified) and not diff.added and not diff.removed:
                return True
        # Of equal instructions (two zeros, say) the diff may pair the wrong ones; what the whole computes decides.
        left, right = self._hash(a, at), self._hash(b, bt)
        return left is not None and left == right

    def counting(self, at: int, bt: int, diff: StageDiff) -> StageDiff:
        """A difference without the shardings that only a partitioner reads, where none is at work."""
        if _partitioned(self._a, at, self._b, bt):
            return diff
        kept = tuple(one for one in diff.modified if not _sharding_alone(one))
        if len(kept) < len(diff.modified):
            self._aside[_SHARDINGS] = None
        return replace(diff, modified=kept)

    def _read_header(self, at: int, bt: int, lines: Sequence[str]) -> tuple[str, ...]:
        """What differs in the headers beside the name and what only a partitioner reads."""
        aside = _left_aside(self._a, at, self._b, bt)
        self._aside.update((line, None) for line in lines if line in aside)
        return tuple(line for line in lines if not line.startswith(("name", "HloModule")) and line not in aside)

    def _hash(self, run: Run, index: int) -> bytes | None:
        """What a state computes; None where its text cannot be read."""
        from hloscope.core.hlo.hashing import computation_hash
        from hloscope.core.text import load_module

        digest = run.stage_digest(index)
        if digest not in self._hashes:
            try:
                self._hashes[digest] = computation_hash(load_module(run.stage_text(index)).entry, {})
            except HloscopeError:
                self._hashes[digest] = None
        return self._hashes[digest]

    def notes(self) -> list[str]:
        """What was left aside."""
        if not self._aside:
            return []
        return [f"left aside, since only a partitioner reads them: {', '.join(self._aside)}"]


def stage_difference(a: Run, at: int, b: Run, bt: int) -> StageDiff:
    """The difference of two states as a comparison of compiles sees it: of the header without what is left aside."""
    diff = diff_runs(a, at, b, bt)
    aside = _left_aside(a, at, b, bt)
    return replace(diff, header=tuple(line for line in diff.header if line not in aside))


def _left_aside(a: Run, at: int, b: Run, bt: int) -> tuple[str, ...]:
    return () if _partitioned(a, at, b, bt) else _PARTITIONER


def _partitioned(a: Run, at: int, b: Run, bt: int) -> bool:
    sides = (a.stage_index(at), b.stage_index(bt))
    return any(one.header_attributes.get("num_partitions", "1") != "1" for one in sides)


def _sharding_alone(change: InstructionChange) -> bool:
    """Whether two instructions differ in nothing but their shardings, XLA's own or Shardy's."""
    if change.before is None or change.after is None or set(change.what) - _NO_CHANGE != {"attributes"}:
        return False
    return all(
        part == "sharding" or (part == "frontend_attributes" and _without_shardy(before) == _without_shardy(after))
        for part, before, after in part_changes(change.before, change.after)
    )


def _without_shardy(attributes: str) -> str:
    return _SHARDY.sub("", attributes).strip("{}, ")


_Key = tuple[str, int, str]
"""Pipeline, its round (1-based), pass."""


class _Reasons:
    """Why one side lacks a row."""

    def __init__(self, a: Run, b: Run, keys: tuple[list[_Key], list[_Key]]) -> None:
        self._keys = keys
        self._ours = (a.source.by_core, b.source.by_core)
        self._pipelines = [{key[0] for key in one} for one in keys]
        self._rounds = [_last_rounds(one) for one in keys]

    def of(self, at: int | None, bt: int | None, *, quiet: bool) -> str | None:
        """Of a row that only one side has, `quiet` where it changed nothing; None where nothing is known."""
        side = 0 if bt is None else 1
        pipeline, turn, name = self._keys[side][(at if bt is None else bt) or 0]
        reached = self._rounds[1 - side].get(pipeline, 0)
        if reached and turn > reached:
            return f"round {turn} of {pipeline}; the other side was done after {reached}"
        if self._ours[0] == self._ours[1]:
            return None
        return self._of_ours(pipeline, quiet) if self._ours[side] else self._of_theirs(side, pipeline, name)

    def _of_ours(self, pipeline: str, quiet: bool) -> str:
        if pipeline in _OURS_ALONE:
            return _OURS_ALONE[pipeline]
        if quiet:
            return "it changed nothing, and a dump may show only what changed something"
        return "the other compiler did not run it here, or wrote no row for it"

    def _of_theirs(self, side: int, pipeline: str, name: str) -> str:
        from hloscope.core.passes.left_out import WHY
        from hloscope.core.passes.registry import PASSES

        if name in WHY or pipeline in WHY:
            return f"left out: {WHY.get(name) or WHY[pipeline]}".replace("`", "")
        if pipeline in PASSES:
            return f"a step inside {pipeline} that XLA writes down, not a pass"
        if pipeline not in self._pipelines[1 - side]:
            held = {key[2] for key in self._keys[side] if key[0] == pipeline}
            if held == {_START}:
                return "our compile has no such pipeline, and of this one no pass is shown"
            inside = sorted(held & set(WHY))
            return "our compile has no such pipeline" + (f": it is for {', '.join(inside)}, left out" if inside else "")
        if name in self._pipelines[side]:
            return "the row of a pipeline" + ("" if name in self._pipelines[1 - side] else " that our compile lacks")
        if name in PASSES:
            return f"our {pipeline} does not run it here"
        return "not written"


def _last_rounds(keys: Sequence[_Key]) -> dict[str, int]:
    found: dict[str, int] = {}
    for pipeline, turn, _ in keys:
        found[pipeline] = max(turn, found.get(pipeline, 0))
    return found


def _keys(rows: Sequence[StageRow]) -> list[_Key]:
    """What rows are lined up by. A pipeline that starts again right after itself is in its next round."""
    found: list[_Key] = []
    last, turn = "", 0
    for row in rows:
        # Dumps write the blanks of a name as underscores, a ledger of our own compile keeps them.
        pipeline, name = row.pipeline.replace(" ", "_"), row.pass_name.replace(" ", "_")
        if pipeline != last:
            last, turn = pipeline, 1
        elif name == _START:
            turn += 1
        found.append((pipeline, turn, name))
    return found


def _lined_up(a: Sequence[_Key], b: Sequence[_Key]) -> list[tuple[int | None, int | None]]:
    """Pairs of row numbers in order; None on the side that lacks a row."""
    matcher: SequenceMatcher[_Key] = SequenceMatcher(None, a, b, autojunk=False)
    found: list[tuple[int | None, int | None]] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            found.extend(zip(range(i1, i2), range(j1, j2), strict=True))
        else:
            found.extend((at, None) for at in range(i1, i2))
            found.extend((None, bt) for bt in range(j1, j2))
    return found
