"""Two compiles of one program side by side: which passes both have, and the first state at which they part.

Rows are lined up by pipeline and pass name. Two states are the same when no instruction differs by more than its name,
its metadata or the tables behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from hloscope.core.views.run import diff_runs
from hloscope.core.views.stages import Cancelled, Progress, check

if TYPE_CHECKING:
    from hloscope.core.views.data import InstructionChange, StageDiff
    from hloscope.core.views.run import Run
    from hloscope.core.views.stages import StageRow

_NO_CHANGE = frozenset({"metadata", "name"})


@dataclass(frozen=True, slots=True)
class ComparedStage:
    """One row of the two timelines."""

    a: int | None
    """Row of the first run; None where only the second has it."""
    b: int | None
    pipeline: str
    pass_name: str
    same: bool | None
    """Whether both are in the same state after it; None for a row that one side lacks."""
    exact: bool = False
    """Whether the texts are equal to the letter."""


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
class Compared:
    """The answer of ``hloscope compare``."""

    stages: tuple[ComparedStage, ...]
    first: Divergence | None
    """None where every common row is in the same state."""
    only_a: int = 0
    """Rows that the second run lacks."""
    only_b: int = 0
    notes: tuple[str, ...] = field(default=())


def compare_runs(a: Run, b: Run, *, cancelled: Cancelled | None = None, progress: Progress | None = None) -> Compared:
    """Line two runs up and find the first common row after which they differ.

    After that row states are compared to the letter alone, since they were made from different ones. Raises
    CancelledError.
    """
    rows = _lined_up(a.outline, b.outline)
    stages: list[ComparedStage] = []
    first: Divergence | None = None
    last_same: tuple[int, int] | None = None
    between: list[str] = []
    for number, (at, bt) in enumerate(rows):
        check(cancelled)
        if progress is not None:
            progress(number + 1, len(rows))
        row = a.outline[at] if at is not None else b.outline[bt or 0]
        if at is None or bt is None:
            stages.append(ComparedStage(at, bt, row.pipeline, row.pass_name, None))
            between.append(f"{'A' if bt is None else 'B'}: {row.pass_name}")
            continue
        exact = a.stage_digest(at) == b.stage_digest(bt)
        same = exact
        if not exact and first is None:
            diff = diff_runs(a, at, b, bt)
            divergence = Divergence(at, bt, row.pipeline, row.pass_name, tuple(between), diff, last_same)
            same = not divergence.real() and not _header_differs(diff)
            if not same:
                first = divergence
        stages.append(ComparedStage(at, bt, row.pipeline, row.pass_name, same, exact))
        if same:
            last_same = (at, bt)
            between.clear()
    only_a = sum(one.b is None for one in stages)
    only_b = sum(one.a is None for one in stages)
    notes: list[str] = []
    if a.source.module != b.source.module:
        notes.append(f"the modules have different names: {a.source.module} and {b.source.module}")
    if a.source.target != b.source.target and a.source.target and b.source.target:
        notes.append(f"the targets differ: {a.source.target} and {b.source.target}")
    if a.source.xla_build != b.source.xla_build and a.source.xla_build and b.source.xla_build:
        notes.append(f"the compilers differ: {a.source.xla_build} and {b.source.xla_build}")
    return Compared(tuple(stages), first, only_a, only_b, tuple(notes))


def _header_differs(diff: StageDiff) -> bool:
    """Whether the module's header differs in more than its name and tables."""
    return any(not line.startswith(("name", "HloModule")) for line in diff.header)


def _lined_up(a: Sequence[StageRow], b: Sequence[StageRow]) -> list[tuple[int | None, int | None]]:
    """Pairs of row numbers in order; None on the side that lacks a row."""
    # Dumps write the blanks of a pipeline's name as underscores, a ledger of our own compile keeps them.
    keys = [[(row.pipeline.replace(" ", "_"), row.pass_name) for row in rows] for rows in (a, b)]
    matcher: SequenceMatcher[tuple[str, str]] = SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    found: list[tuple[int | None, int | None]] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            found.extend(zip(range(i1, i2), range(j1, j2), strict=True))
        else:
            found.extend((at, None) for at in range(i1, i2))
            found.extend((None, bt) for bt in range(j1, j2))
    return found
