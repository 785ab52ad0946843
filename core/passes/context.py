"""What a pass is given beside the module: the ledger, the gate, flags, target, and the counters of one compile.

One context lives for one compile of one module. Nothing of it is kept in modules or in passes, so two compiles never
see each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hloscope.core.ledger.events import FuelExhausted, RewriteDecision
from hloscope.core.ledger.record import NullLedger, Recorder
from hloscope.core.ledger.snapshots import TextParts
from hloscope.core.passes.flags import PassFlags
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.gate import GateHandler, Lineage, Question, Refusal, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hloscope.core.dumps.filenames import FileKind
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.dump_writer import DumpWriter
    from hloscope.core.text.printer import LineWriter

_END = ("",)
"""What makes the last line of a text end."""


@dataclass(slots=True)
class PassRun:
    """One run of one pass (a row of the pass timeline)."""

    pass_id: int
    """1-based, in the order in which runs start; ``pipeline-start`` rows are counted."""
    name: str
    pipeline: str
    occurrence: int
    """0-based run of this name in the module."""
    is_pipeline: bool = False
    changed: bool | None = None
    """None while it runs, and for ever where it failed."""
    skipped: str | None = None
    """The filter entry that skipped it."""
    asked: int = 0
    """Decisions that it asked the gate for."""
    applied: int = 0
    """Rewrites that the gate let pass."""
    ns: int = 0
    """Run time, only of passes that are no pipelines."""
    touched: bool = False
    """The module may differ although the run reports no change (a fixed point that gave up, a pass that says wrong)."""
    started_us: int = 0
    """Microseconds since 1970."""
    ended_us: int | None = None
    files: tuple[str, ...] = ()
    """Dump files written for it."""
    error: str | None = None


@dataclass(slots=True)
class PassStats:
    """Time and outcome of all runs of one pass."""

    runs: int = 0
    changed: int = 0
    ns: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Failed runs by error class."""


class PassContext:
    """The surroundings of one compile."""

    def __init__(
        self,
        ledger: Recorder | None = None,
        fuel: Fuel | None = None,
        flags: PassFlags | None = None,
        target: str = "cpu",
        *,
        handlers: Iterable[GateHandler] = (),
        dumps: DumpWriter | None = None,
    ) -> None:
        self.ledger: Recorder = NullLedger() if ledger is None else ledger
        self.fuel = Fuel() if fuel is None else fuel
        self.flags = PassFlags() if flags is None else flags
        self.target = target
        """Name of the target: ``cpu``, ``gpu`` and so on."""
        self.dumps = dumps
        """Where pass dumps go; None for nowhere."""
        self.reports: dict[FileKind, str] = {}
        """Texts that belong to the final module, by kind; they go into the dump and the ledger with it."""
        self.assignment: object | None = None
        """The last buffer assignment that a pass made, for whoever looks at the compile afterwards."""
        self.lineage = Lineage()
        self.runs: list[PassRun] = []
        """All runs so far, by pass id."""
        self.warnings: list[str] = []
        """Sentences for the user that are no errors."""
        self.stats: dict[str, PassStats] = {}
        self.started = not self.flags.xla_run_hlo_passes_starting_from
        """Whether ``xla_run_hlo_passes_starting_from`` has been met."""
        self.filters_used: set[str] = set()
        """Filter entries that matched a run."""
        self.shown: int | None = None
        """The ledger's number of the text that the last snapshot put there."""
        self.failure: BaseException | None = None
        """What ended the compile, once it has been recorded."""
        self._handlers: list[GateHandler] = [*handlers]
        if self.fuel:
            self._handlers.append(self.fuel)
        self._stack: list[PassRun] = []
        self._occurrences: Counter[str] = Counter()
        self._ordinals: Counter[str] = Counter()
        self._fuel_out: set[str] = set()
        self._printed: dict[HloComputation, tuple[int, list[str]]] = {}
        self._writer: LineWriter | None = None
        self._counted: int | None = None
        self._free = Step(self, None, None)
        self._outside = PassRun(0, "", "", 0)

    # ---------------------------------------------------------------- handlers
    def add_handler(self, handler: GateHandler) -> None:
        """Let a handler decide (or watch) from now on; it is asked after those that are there."""
        self._handlers.append(handler)

    def remove_handler(self, handler: GateHandler) -> None:
        """Take a handler away again."""
        self._handlers.remove(handler)

    # ---------------------------------------------------------------- the gate
    def gate(
        self,
        rule: str,
        instruction: HloInstruction | None = None,
        *,
        others: tuple[HloInstruction, ...] = (),
        computation: HloComputation | None = None,
    ) -> Step:
        """Ask whether an optional rewrite may happen; see `hloscope.core.passes.gate`.

        `rule` is the rewrite's name within the pass, `instruction` what it rewrites; `computation` is given only where
        there is no instruction.
        """
        run = self._stack[-1] if self._stack else self._outside
        ordinal = self._ordinals[run.name]
        self._ordinals[run.name] = ordinal + 1
        run.asked += 1
        if not self._handlers and not self.ledger.enabled:
            run.applied += 1
            return self._free
        if computation is None and instruction is not None:
            computation = instruction.parent_or_none
        question = Question(
            self.lineage, run.name, run.pipeline, run.pass_id, run.occurrence, ordinal, rule, instruction, others,
            computation,
        )  # fmt: skip
        refusal: Refusal | None = None
        for handler in self._handlers:
            refusal = handler.decide(question)
            if refusal is not None:
                break
        if refusal is None:
            run.applied += 1
        elif refusal.code == "fuel_exhausted" and run.name not in self._fuel_out:
            self._fuel_out.add(run.name)
            if self.ledger.enabled:
                self.ledger.emit(
                    FuelExhausted(subject=None, pass_name=run.name, limit=self.fuel.limits.get(run.name, ordinal))
                )
        return Step(self, question, refusal)

    def refuse(
        self, rule: str, instruction: HloInstruction, code: str, detail: str = "", *, numbers: str | None = None
    ) -> None:
        """Record that a pass itself refuses a rewrite because it would not be right; costs no ordinal and no fuel."""
        if not self.ledger.enabled:
            return
        run = self.current
        self.ledger.emit(
            RewriteDecision(
                subject=instruction.name,
                computation=instruction.parent.name,
                verdict="refused",
                code=code,
                pass_name=run.name,
                rule=rule,
                occurrence=run.occurrence,
                detail=numbers or detail or None,
            )
        )

    # ---------------------------------------------------------------- snapshots
    def instruction_count(self, module: HloModule, *, again: bool = False) -> int:
        """The module's instructions as they were last counted, or `again`, because something may have changed."""
        if again or self._counted is None:
            self._counted = module.instruction_count
        return self._counted

    def snapshot(self, module: HloModule) -> int | None:
        """Put the module's text into the ledger and return its number there; None without a ledger.

        Only computations that changed since the last snapshot are printed again, and in those only the instructions
        that were touched: the others show the line that they were read from.
        """
        if not self.ledger.enabled:
            return None
        from hloscope.core.text.printer import LineWriter, computation_lines, header_lines

        if self._writer is None:
            self._writer = LineWriter()
        parts: list[Sequence[str]] = [header_lines(module)]
        printed: dict[HloComputation, tuple[int, list[str]]] = {}
        for computation in module.computations:
            if computation.synthetic:
                continue
            known = self._printed.get(computation)
            if known is None or known[0] != computation.version:
                known = (computation.version, computation_lines(computation, writer=self._writer, as_read=True))
                known[1].append("")
            printed[computation] = known
            parts.append(known[1])
        parts.append(_END)
        self._printed = printed
        self.shown = self.ledger.add_snapshot_lines(TextParts(parts))
        return self.shown

    # ---------------------------------------------------------------- runs (for the pipeline)
    @property
    def is_running(self) -> bool:
        """Whether a pass is open."""
        return bool(self._stack)

    @property
    def current(self) -> PassRun:
        """The innermost running pass; an unnamed one outside any."""
        return self._stack[-1] if self._stack else self._outside

    def push_run(self, name: str, pipeline: str, *, is_pipeline: bool = False) -> PassRun:
        """Open the next run: number it and count its occurrence."""
        occurrence = self._occurrences[name]
        self._occurrences[name] = occurrence + 1
        run = PassRun(len(self.runs) + 1, name, pipeline, occurrence, is_pipeline)
        self.runs.append(run)
        self._stack.append(run)
        return run

    def pop_run(self, run: PassRun) -> None:
        """Close a run, with those inside it that an error left open (a ledger that could not be written, say)."""
        while self._stack.pop() is not run:
            pass

    def stats_of(self, name: str) -> PassStats:
        """The statistics of a pass, empty at first."""
        found = self.stats.get(name)
        if found is None:
            found = self.stats[name] = PassStats()
        return found

    def final_warnings(self) -> tuple[str, ...]:
        """What the user should know at the end: warnings so far, fuel and filters that met nothing."""
        entries = (*self.flags.xla_disable_hlo_passes, *self.flags.xla_enable_hlo_passes_only)
        unmet = [f"filter entry {entry!r} matched no pass" for entry in entries if entry not in self.filters_used]
        return (*self.warnings, *self.fuel.warnings(), *unmet)
