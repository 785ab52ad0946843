"""Our own compiler as what is searched: first over the runs of passes, then over the decisions of the guilty run.

A position at the first level says how many of the passes that changed something are on: every run after them is
skipped by the pipeline's own filter (``@ID``). A position at the second says how many decisions of one run the gate
lets pass; later runs stay off. Both ways nothing but the filter and the gate is used, so what is found can be shown
again with ``hloscope opt --fuel``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hloscope.bisect.result import Answer, Culprit, Probe, Verdict
from hloscope.bisect.search import NoFault, Outcome, Step, first_wrong
from hloscope.core.errors import HloscopeError
from hloscope.core.ledger import BisectProbe, LedgerReader, LedgerWriter, RewriteDecision, RunInfo
from hloscope.core.passes.context import PassContext, PassRun
from hloscope.core.passes.flags import PassFlags
from hloscope.core.passes.gate import DecisionFilter, GateHandler, Question, Refusal
from hloscope.core.passes.pipeline import PIPELINE_START
from hloscope.core.passes.pipelines import compile_module
from hloscope.core.version import version

if TYPE_CHECKING:
    from hloscope.bisect.oracles import Oracle
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.interface import HloPass
    from hloscope.core.passes.registry import Registry

_MANY = 1 << 62


@dataclass(frozen=True)
class CoreSubject:
    """One module, the passes to run on it, and how they are set."""

    module: HloModule
    """Left as it is: every compile works on a copy."""
    path: str
    """The file it was read from."""
    pipeline: Callable[[], list[HloPass]]
    """Makes the passes anew; a pipeline runs once."""
    registry: Registry
    flags: PassFlags
    target: str = "cpu"

    def compile(
        self,
        *,
        skip: Iterable[int] = (),
        handlers: Iterable[GateHandler] = (),
        ledger: LedgerWriter | None = None,
    ) -> tuple[HloModule, PassContext, Outcome | None]:
        """Compile a copy with some pass runs skipped and some decisions refused.

        Returns the module, the context with its runs, and a failed outcome where a pass or a checker raised.
        """
        module = self.module.clone()
        entries = tuple(f"@{number}" for number in skip)
        flags = replace(self.flags, xla_disable_hlo_passes=(*self.flags.xla_disable_hlo_passes, *entries))
        context = PassContext(ledger, None, flags, self.target, handlers=handlers)
        try:
            compile_module(module, self.pipeline(), context, self.registry)
        except HloscopeError as error:
            return module, context, Outcome("failed", str(error))
        except (Exception, SystemExit) as error:
            # A pass that crashes is an outcome of the probe, not an end of the search.
            return module, context, Outcome("failed", f"{_where(context)}{type(error).__name__}: {error}")
        return module, context, None


def _where(context: PassContext) -> str:
    failed = [run for run in context.runs if run.error is not None and not run.is_pipeline]
    return f"{failed[-1].name} raised " if failed else ""


@dataclass(slots=True)
class CoreSearch:
    """One bisection of our own compiler."""

    subject: CoreSubject
    oracle: Oracle
    ledger: str | None = None
    """Where the ledger of the guilty compile goes; None keeps it only while the answer is made."""
    force: bool = False
    watch: Callable[[Step], None] | None = None

    def run(self) -> Answer:
        """Search and answer. Raises a HloscopeError only for what makes any search impossible."""
        steps: list[Step] = []
        _, context, failed = self.subject.compile()
        runs = _candidates(context)
        last_id = len(context.runs)
        if not runs:
            return Answer("no-difference", evidence=["no pass changed the module"])

        def over_runs(position: int) -> Outcome:
            off = range((runs[position - 1].pass_id if position else 0) + 1, last_id + 1)
            return self._probe(skip=off)

        try:
            found = first_wrong(len(runs), over_runs, "pass", self._watcher(steps))
        except NoFault as error:
            return self._no_fault(error, steps, failed)
        guilty = runs[found.position - 1]
        answer = Answer("compile-failure" if found.outcome.kind == "failed" else "wrong-stage", probes=_report(steps))
        answer.evidence.append(f"with every run up to {_name(guilty)} the result is {_said(found.outcome)}")
        if not found.exact:
            first = runs[found.low]
            answer.evidence.append(
                f"probes between gave no answer: the culprit is one of {_name(first)} … {_name(guilty)}"
            )
        skip = range(guilty.pass_id + 1, last_id + 1)
        asked = self._asked(guilty, skip)
        if asked == 0 or not found.exact:
            answer.evidence.append(f"{guilty.name} asked the gate for nothing: the whole pass is the smallest unit")
            answer.culprits.append(Culprit(self.subject.path, guilty.name, guilty.pipeline, guilty.occurrence))
            return self._finish(answer, skip, (), guilty, None, steps)
        return self._over_decisions(answer, guilty, skip, asked, steps)

    def _over_decisions(self, answer: Answer, guilty: PassRun, skip: range, asked: int, steps: list[Step]) -> Answer:
        start = sum(run.asked for run in self._runs_before(guilty))

        def refusing(position: int) -> DecisionFilter:
            return DecisionFilter("refuse", guilty.name, range(start + position, _MANY))

        try:
            found = first_wrong(
                asked, lambda n: self._probe(skip=skip, handlers=(refusing(n),)), "fuel", self._watcher(steps)
            )
        except NoFault as error:
            where = (
                f"{guilty.name} is wrong even with all of its {asked} decisions refused: it goes past the gate"
                if error.where == "everywhere"
                else f"refusing decisions of {guilty.name} gave no answer: {error.outcome.detail}"
            )
            answer.evidence.append(where)
            answer.culprits.append(Culprit(self.subject.path, guilty.name, guilty.pipeline, guilty.occurrence))
            return self._finish(answer, skip, (), guilty, None, steps)
        handlers = (refusing(found.position),)
        again = self._probe(skip=skip, handlers=handlers)
        if again != found.outcome:
            answer.verdict = "not-deterministic"
            answer.evidence.append(
                f"the same compile gave {_said(found.outcome)} and then {_said(again)}: the search proves nothing"
            )
        fuel = start + found.position
        answer.evidence.append(
            f"decision {fuel - 1} of {guilty.name} makes it: {_said(found.outcome)} with it, not without it"
        )
        answer.cures.append(f"--fuel {guilty.name}={fuel - 1}")
        answer.cures.append(f"--disable-passes {guilty.name}:{guilty.occurrence}")
        return self._finish(answer, skip, handlers, guilty, fuel, steps)

    # ---------------------------------------------------------------- probes
    def _probe(self, *, skip: Iterable[int] = (), handlers: Iterable[GateHandler] = ()) -> Outcome:
        module, _, failed = self.subject.compile(skip=skip, handlers=handlers)
        return failed if failed is not None else self.oracle.judge(module)

    def _watcher(self, steps: list[Step]) -> Callable[[Step], None]:
        def watch(step: Step) -> None:
            steps.append(step)
            if self.watch is not None:
                self.watch(step)

        return watch

    def _asked(self, guilty: PassRun, skip: range) -> int:
        _, context, _ = self.subject.compile(skip=skip)
        return next((run.asked for run in context.runs if run.pass_id == guilty.pass_id), 0)

    def _runs_before(self, guilty: PassRun) -> list[PassRun]:
        _, context, _ = self.subject.compile(skip=range(guilty.pass_id, guilty.pass_id + 1))
        return [run for run in context.runs if run.name == guilty.name and run.pass_id < guilty.pass_id]

    def _no_fault(self, error: NoFault, steps: list[Step], failed: Outcome | None) -> Answer:
        if error.where == "absent":
            verdict: Verdict = "no-difference"
            said = "the whole compile gives the right result"
        elif error.where == "everywhere":
            verdict = "wrong-input"
            said = f"the module is {_said(error.outcome)} before any pass has run"
        else:
            verdict = "cannot-tell"
            said = f"the oracle gave no answer: {error.outcome.detail}"
        answer = Answer(verdict, evidence=[said], probes=_report(steps))
        if failed is not None:
            answer.evidence.append(failed.detail)
        return answer

    # ---------------------------------------------------------------- the ledger of the guilty compile
    def _finish(
        self,
        answer: Answer,
        skip: range,
        handlers: tuple[GateHandler, ...],
        guilty: PassRun,
        fuel: int | None,
        steps: list[Step],
    ) -> Answer:
        """Compile once more with the ledger on, and read the culprit's event from it."""
        answer.probes = _report(steps)
        with tempfile.TemporaryDirectory(prefix="hloscope-") as folder:
            path = self.ledger or os.path.join(folder, "bisect.ledger")
            info = RunInfo("core", version(), None, self.subject.target, None, self.subject.path)
            witness = _Witness(guilty.name, -1 if fuel is None else fuel - 1)
            with LedgerWriter(path, info, force=self.force) as writer:
                writer.begin_module(self.subject.module.name)
                self.subject.compile(skip=skip, handlers=(witness, *handlers), ledger=writer)
                for step in steps:
                    writer.emit(
                        BisectProbe(
                            verdict=step.outcome.kind, level=step.level, low=step.low, high=step.high, tried=step.tried
                        )
                    )
            with LedgerReader(path) as reader:
                stage = next((row.stage for row in reader.passes(1) if row.xla_pass_id == guilty.pass_id), None)
                event = None
                for stored in reader.events(type_name=RewriteDecision.spec.name):
                    one = stored.event
                    if (
                        isinstance(one, RewriteDecision)
                        and one.pass_name == guilty.name
                        and one.fuel == witness.ordinal
                    ):
                        event = one
        if fuel is not None:
            answer.culprits.append(
                Culprit(
                    file=self.subject.path,
                    pass_name=guilty.name,
                    pipeline=guilty.pipeline,
                    occurrence=guilty.occurrence,
                    stage=stage,
                    fuel=fuel,
                    decision=witness.identity,
                    rule=witness.rule,
                    instruction=witness.instruction,
                    # A pass that crashes leaves the decision open, so it has no event.
                    produced=event.produced if event is not None else (),
                    sentence=event.sentence() if event is not None else f"{witness.rule} on {witness.instruction}",
                )
            )
        else:
            answer.culprits = [replace(one, stage=stage) for one in answer.culprits]
        return answer


class _Witness:
    """A handler that refuses nothing and remembers one decision of a pass."""

    def __init__(self, pass_name: str, ordinal: int) -> None:
        self._pass_name = pass_name
        self.ordinal = ordinal
        self.identity: str | None = None
        self.rule: str | None = None
        self.instruction: str | None = None

    def decide(self, question: Question) -> Refusal | None:
        """Look, and let it pass."""
        if question.pass_name == self._pass_name and question.ordinal == self.ordinal:
            self.identity, self.rule = question.identity, question.rule
            self.instruction = None if question.instruction is None else question.instruction.name
        return None


def _candidates(context: PassContext) -> list[PassRun]:
    """Runs that could have broken something: single passes that changed the module or failed."""
    return [
        run
        for run in context.runs
        if not run.is_pipeline and run.name != PIPELINE_START and (run.changed or run.error is not None or run.touched)
    ]


def _report(steps: list[Step]) -> list[Probe]:
    return [Probe(s.level, s.low, s.high, s.tried, s.outcome.kind, s.outcome.detail) for s in steps]


def _name(run: PassRun) -> str:
    where = f"{run.pipeline}/" if run.pipeline else ""
    return f"{where}{run.name}:{run.occurrence}"


def _said(outcome: Outcome) -> str:
    return f"{outcome.kind} ({outcome.detail})" if outcome.detail else outcome.kind
