"""Our own compiler as what is searched: first over the runs of passes, then over the decisions of the guilty run.

A position at the first level says how many of the passes that changed something are on: every run after them is
skipped by the pipeline's own filter (``@ID``). A position at the second says how many decisions of one run the gate
lets pass; later runs stay off. Both ways nothing but the filter and the gate is used, so what is found can be shown
again with ``hloscope opt --fuel``. Then the run is tried without the ones before it (does it need another one?) and
the compile without the run (is another one wrong as well?).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hloscope.bisect.probing import Prober
from hloscope.bisect.result import Answer, Culprit, Probe, Verdict
from hloscope.bisect.safety import shares_wrongly
from hloscope.bisect.search import Found, NoFault, Outcome, Step, confidence, first_wrong, needed, smallest_cure
from hloscope.bisect.subjects.core_child import Heard
from hloscope.bisect.subjects.core_probe import Choice, CoreJudge, CoreSubject, CoreTask
from hloscope.core.ledger import BisectProbe, LedgerReader, LedgerWriter, RewriteDecision, RunInfo
from hloscope.core.passes.gate import DecisionFilter, GateHandler, Question, Refusal
from hloscope.core.passes.pipeline import PIPELINE_START
from hloscope.core.version import version

if TYPE_CHECKING:
    from hloscope.bisect.oracles import Oracle
    from hloscope.core.passes.context import PassContext, PassRun

__all__ = ["CoreSearch", "CoreSubject"]

_MANY = 1 << 62
MOST_CULPRITS = 3
"""Faults of different passes that are looked for in one compile."""
REPEATS = 3
"""How often the two probes that decide are made again where the oracle may be flaky."""
COMPILES = 8
"""How often a compile with passes of a plugin is made to see whether it makes the same every time."""
COMPILE_SECONDS = 2.0
"""After as many seconds no further one is made."""
NEEDED = frozenset(("flatten-call-graph", "layout-assignment", "copy-insertion", "hlo-memory-scheduler"))
"""Passes that a legal module needs: with one of them off, nothing can be said of the others."""


@dataclass(slots=True)
class CoreSearch:
    """One bisection of our own compiler."""

    subject: CoreSubject
    oracle: Oracle
    ledger: str | None = None
    """Where the ledger of the guilty compile goes; None keeps it only while the answer is made."""
    force: bool = False
    watch: Callable[[Step], None] | None = None
    prober: Prober = field(default_factory=Prober)
    _judge: CoreJudge = field(init=False)
    _steps: list[Step] = field(default_factory=list[Step])
    _so_far: str = ""
    _offers: list[_Offer] = field(default_factory=list["_Offer"])
    """What may cure: tried on the whole compile at the end."""

    def __post_init__(self) -> None:
        values_only = not self.oracle.evaluates
        known = () if values_only else tuple(shares_wrongly(self.subject.module, self.subject.target))
        self._judge = CoreJudge(self.oracle, values_only, known)

    def run(self) -> Answer:
        """Search and answer. Raises a HloscopeError only for what makes any search impossible."""
        subject = self.subject
        varies = self._varies()
        if varies is not None:
            return varies
        answer = self._search(subject, "")
        names = [one.pass_name for one in answer.culprits]
        while answer.verdict != "not-deterministic" and names and len(answer.culprits) < MOST_CULPRITS:
            if names[-1] in NEEDED:
                break  # a compile without it is wrong anyway
            # The same pass may do it again and again; another one that is wrong as well must not hide behind it.
            subject = subject.without(names[-1])
            if self._ask(subject, Choice()).kind == "right":
                break
            self._so_far = ""
            more = self._search(subject, f" without {names[-1]}")
            if not more.culprits or more.culprits[0].pass_name in names:
                break
            answer.culprits.extend(more.culprits)
            answer.evidence.append(f"with all runs of {names[-1]} off it is still wrong:")
            answer.evidence.extend(more.evidence)
            answer.pair = answer.pair or more.pair
            names.append(more.culprits[0].pass_name)
        if answer.verdict != "not-deterministic":
            self._cures(answer)
        answer.probes = _report(self._steps)
        return answer

    def _varies(self) -> Answer | None:
        """The answer where a plugin's passes make other modules of the same one."""
        subject = self.subject
        if subject.recipe is None or not subject.recipe.plugins:
            return None  # our own passes are the same every time
        began, trails = time.monotonic(), list[list[tuple[str, str]]]()
        while len(trails) < COMPILES and (len(trails) < 2 or time.monotonic() - began < COMPILE_SECONDS):
            trail: list[tuple[str, str]] = []
            _, _, failed = subject.compile(trail=trail)
            trails.append([*trail, ("the end", failed.detail if failed is not None else "")])
            if failed is not None and len(trails) > 1:
                break
        unlike = [one for one in trails[1:] if one != trails[0]]
        if not unlike:
            return None
        parted = next(
            (at for at, made in enumerate(zip(*trails, strict=False)) if len(set(made)) > 1),
            min(len(one) for one in trails) - 1,
        )
        name = trails[0][parted][0]
        said = (
            f"the same compile, made {len(trails)} times, left {len({one[parted] for one in trails})} different modules"
            f" after {name}: nobody is accused of the values; a pass must make the same of the same module"
        )
        return Answer("not-deterministic", evidence=[said])

    def _search(self, subject: CoreSubject, suffix: str) -> Answer:
        _, context, failed = subject.compile()
        runs = _candidates(context)
        last_id = len(context.runs)
        if not runs:
            return Answer("no-difference", evidence=["no pass changed the module"])

        def up_to(position: int) -> Choice:
            return Choice(tuple(range((runs[position - 1].pass_id if position else 0) + 1, last_id + 1)))

        try:
            found = self._first_wrong(subject, len(runs), up_to, f"pass{suffix}")
        except NoFault as error:
            return self._no_fault(error, failed)
        guilty = runs[found.position - 1]
        answer = Answer(_verdict(found.outcome))
        self._so_far = f"{answer.verdict} by {_name(guilty)}"
        answer.evidence.append(f"with every run up to {_name(guilty)} the result is {_said(found.outcome)}")
        if not self._steady(subject, (up_to(found.low), up_to(found.position)), answer):
            return answer
        if not found.exact:
            first = runs[found.low]
            answer.evidence.append(
                f"probes between gave no answer: the culprit is one of {_name(first)} … {_name(guilty)}"
            )
        skip = tuple(range(guilty.pass_id + 1, last_id + 1))
        asked, heard = _asked(subject, guilty, skip)
        fuel = None
        if asked == 0 or not found.exact:
            answer.evidence.append(f"{guilty.name} asked the gate for nothing: the whole pass is the smallest unit")
            self._offers.append(_Offer((_run(guilty),)))
        else:
            fuel = self._over_decisions(subject, answer, guilty, skip, asked, suffix)
        if answer.verdict != "not-deterministic":
            self._partners(subject, answer, runs[: found.position], skip, suffix)
        return self._finish(subject, answer, skip, guilty, fuel, heard)

    def _first_wrong(self, subject: CoreSubject, count: int, choice: Callable[[int], Choice], level: str) -> Found:
        return first_wrong(
            count,
            lambda position: self._ask(subject, choice(position)),
            level,
            self._saw,
            lambda positions: self._ask_all(subject, [choice(one) for one in positions]),
            self.prober.ways,
        )

    # ---------------------------------------------------------------- decisions
    def _over_decisions(
        self, subject: CoreSubject, answer: Answer, guilty: PassRun, skip: tuple[int, ...], asked: int, suffix: str
    ) -> int | None:
        """The fuel with which the fault begins; None where the gate does not decide it."""
        start = sum(run.asked for run in _runs_before(subject, guilty))

        def refusing(position: int) -> Choice:
            return Choice(skip, (guilty.name, start + position))

        try:
            found = self._first_wrong(subject, asked, refusing, f"fuel{suffix}")
        except NoFault as error:
            answer.evidence.append(
                f"{guilty.name} is wrong even with all of its {asked} decisions refused: it goes past the gate"
                if error.where == "everywhere"
                else f"refusing decisions of {guilty.name} gave no answer: {error.outcome.detail}"
            )
            return None
        again = self._ask(subject, replace(refusing(found.position), again=1))
        if again != found.outcome:
            answer.verdict = "not-deterministic"
            answer.evidence.append(
                f"the same compile gave {_said(found.outcome)} and then {_said(again)}: the search proves nothing"
            )
            return None
        fuel = start + found.position
        answer.evidence.append(
            f"decision {fuel - 1} of {guilty.name} makes it: {_said(found.outcome)} with it, not without it"
        )
        self._offers += [_Offer(fuel=(guilty.name, fuel - 1)), _Offer((_run(guilty),))]
        return fuel

    def _partners(
        self, subject: CoreSubject, answer: Answer, runs: Sequence[PassRun], skip: tuple[int, ...], suffix: str
    ) -> None:
        """Earlier runs without which the guilty one does no harm."""
        guilty, earlier = runs[-1], [one for one in runs[:-1] if one.name not in NEEDED]
        if not earlier:
            return

        def cured(members: frozenset[int]) -> Choice:
            off = tuple(earlier[at].pass_id for at in sorted(members))
            return Choice((*off, *skip), is_there=(guilty.pass_id, guilty.name))

        def ask(members: frozenset[int]) -> Outcome:
            return self._ask(subject, cured(members))

        def many(sets: Sequence[frozenset[int]]) -> list[Outcome]:
            return self._ask_all(subject, [cured(one) for one in sets])

        members, _ = smallest_cure(len(earlier), ask, f"partner{suffix}", self._saw, many, self.prober.ways)
        if not members:
            return
        # Each of several that cure only together is enough by itself: the first is told, the others beside it.
        partner = earlier[min(members)]
        answer.pair = (_name(partner), _name(guilty))
        others = " and ".join(_name(earlier[at]) for at in sorted(members))
        answer.evidence.append(f"{_name(guilty)} does it only after {others}: with that off, the result is right")
        self._offers.append(_Offer(tuple(_run(earlier[at]) for at in sorted(members))))

    def _cures(self, answer: Answer) -> None:
        """List what makes the whole compile right, asked for as a user would; what does so only together, as one."""

        def helps(entries: tuple[str, ...]) -> bool:
            return self._ask(self.subject.without(*entries), Choice()).kind == "right"

        for offer in dict.fromkeys(self._offers):
            right = (
                self._ask(self.subject, Choice(refuse=offer.fuel)).kind == "right"
                if offer.fuel is not None
                else helps(offer.off)
            )
            if right:
                answer.cures.append(offer.option)
        if answer.cures or not answer.culprits:
            return
        runs = tuple(f"{one.pass_name}:{one.occurrence}" for one in answer.culprits)
        for together in (runs, tuple(one.pass_name for one in answer.culprits)):
            if helps(together):
                answer.cures.append(_Offer(needed(together, helps)).option)
                return

    # ---------------------------------------------------------------- probes
    def _ask(self, subject: CoreSubject, choice: Choice) -> Outcome:
        return self._ask_all(subject, [choice])[0]

    def _ask_all(self, subject: CoreSubject, choices: Sequence[Choice]) -> list[Outcome]:
        source = subject.recipe if self.prober.ways > 1 and subject.recipe is not None else subject
        return self.prober.ask([CoreTask(source, choice, self._judge) for choice in choices])

    def _steady(self, subject: CoreSubject, choices: Sequence[Choice], answer: Answer) -> bool:
        """Whether the probes on both sides of the turning point come out the same again."""
        if self.oracle.evaluates and (subject.recipe is None or not subject.recipe.plugins):
            return True  # the same computation in the same process
        for choice in choices:
            if "did not end within" in self._ask(subject, choice).detail:
                continue  # every repeat would take as long
            kinds = [self._ask(subject, replace(choice, again=number)).kind for number in range(REPEATS + 1)]
            if len(set(kinds)) > 1:
                answer.verdict = "not-deterministic"
                told = ", ".join(f"{kinds.count(kind)} times {kind}" for kind in dict.fromkeys(kinds))
                answer.evidence.append(f"the same compile was judged {told}, in {len(kinds)} runs: nobody is accused")
                return False
        answer.evidence.append(
            f"both probes at the turning point gave the same in {REPEATS + 1} runs: {confidence(REPEATS + 1)}"
        )
        return True

    def _saw(self, step: Step) -> None:
        step = replace(step, so_far=self._so_far)
        self._steps.append(step)
        if self.watch is not None:
            self.watch(step)

    def _no_fault(self, error: NoFault, failed: Outcome | None) -> Answer:
        if error.where == "absent":
            verdict: Verdict = "no-difference"
            said = "the whole compile gives the right result"
        elif error.where == "everywhere":
            verdict = "wrong-input"
            said = f"the module is {_said(error.outcome)} before any pass has run"
        else:
            verdict = "cannot-tell"
            said = f"the oracle gave no answer: {error.outcome.detail}"
        answer = Answer(verdict, evidence=[said])
        if failed is not None:
            answer.evidence.append(failed.detail)
        return answer

    # ---------------------------------------------------------------- the ledger of the guilty compile
    def _finish(
        self,
        subject: CoreSubject,
        answer: Answer,
        skip: tuple[int, ...],
        guilty: PassRun,
        fuel: int | None,
        heard: Sequence[Heard],
    ) -> Answer:
        """Compile once more with the ledger on, and read the culprit's event from it."""
        witness = _Witness(guilty.name, -1 if fuel is None else fuel - 1)
        handlers: list[GateHandler] = [witness]
        if fuel is not None:
            handlers.append(DecisionFilter("refuse", guilty.name, range(fuel, _MANY)))
        with tempfile.TemporaryDirectory(prefix="hloscope-") as folder:
            first = self.ledger is not None and not os.path.exists(self.ledger)
            path = self.ledger if self.ledger and (first or self.force) else os.path.join(folder, "bisect.ledger")
            info = RunInfo("core", version(), None, subject.target, None, subject.path)
            with LedgerWriter(path, info, force=self.force) as writer:
                writer.begin_module(subject.module.name)
                made, _, _ = subject.compile(skip=skip, handlers=handlers, ledger=writer)
                for step in self._steps:
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
        for one in heard:
            if one.ordinal == witness.ordinal:
                witness.identity, witness.rule, witness.instruction = one.identity, one.rule, one.instruction
        culprit = Culprit(subject.path, guilty.name, guilty.pipeline, guilty.occurrence, stage)
        if fuel is not None:
            culprit = replace(
                culprit,
                fuel=fuel,
                decision=witness.identity,
                rule=witness.rule,
                instruction=witness.instruction,
                # A pass that crashes leaves the decision open, so it has no event.
                produced=event.produced if event is not None else (),
                sentence=event.sentence() if event is not None else f"{witness.rule} on {witness.instruction}",
            )
        if answer.verdict != "not-deterministic":
            answer.culprits.append(culprit)
        self._texts(subject, answer, skip, guilty, fuel, made)
        return answer

    def _texts(
        self,
        subject: CoreSubject,
        answer: Answer,
        skip: tuple[int, ...],
        guilty: PassRun,
        fuel: int | None,
        made: object,
    ) -> None:
        """Files for the bundle: the module before and after the one decision."""
        from hloscope.core.text import print_module

        if fuel is None:
            before, _, _ = subject.compile(skip=(guilty.pass_id, *skip))
        else:
            handler = DecisionFilter("refuse", guilty.name, range(fuel - 1, _MANY))
            before, _, _ = subject.compile(skip=skip, handlers=(handler,))
        answer.texts.setdefault("module.hlo", print_module(subject.module))
        answer.texts.setdefault("before.hlo", print_module(before))
        if type(made) is type(before):
            answer.texts.setdefault("after.hlo", print_module(made))
        self.oracle.add_arrays(answer.arrays)


@dataclass(frozen=True)
class _Offer:
    """A switch that may cure: runs of passes that are off, or the fuel of one."""

    off: tuple[str, ...] = ()
    fuel: tuple[str, int] | None = None

    @property
    def option(self) -> str:
        """As ``hloscope opt`` takes it."""
        if self.fuel is not None:
            return f"--fuel {self.fuel[0]}={self.fuel[1]}"
        return f"--disable-passes {','.join(self.off)}"


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
        if not run.is_pipeline
        and run.name != PIPELINE_START
        and (run.changed or run.error is not None or run.touched or run.name in PLACES)
    ]


PLACES = frozenset({"buffer-assignment"})
"""Passes whose work shows beside the module."""


def _asked(subject: CoreSubject, guilty: PassRun, skip: tuple[int, ...]) -> tuple[int, Sequence[Heard]]:
    """How many decisions a run asks for; and which, where it has to be ended in a process of its own."""
    _, context, _ = subject.compile(skip=skip)
    run = next((run for run in context.runs if run.pass_id == guilty.pass_id), None)
    if run is None:
        return 0, ()
    heard = subject.heard(skip, run) if run.asked == 0 else ()
    return run.asked or len(heard), heard


def _runs_before(subject: CoreSubject, guilty: PassRun) -> list[PassRun]:
    _, context, _ = subject.compile(skip=range(guilty.pass_id, guilty.pass_id + 1))
    return [run for run in context.runs if run.name == guilty.name and run.pass_id < guilty.pass_id]


def _verdict(outcome: Outcome) -> Verdict:
    if outcome.kind == "failed":
        return "compile-failure"
    return "unsafe-buffers" if outcome.aspect == "buffers" else "wrong-stage"


def _report(steps: list[Step]) -> list[Probe]:
    return [Probe(s.level, s.low, s.high, s.tried, s.outcome.kind, s.outcome.detail) for s in steps]


def _name(run: PassRun) -> str:
    where = f"{run.pipeline}/" if run.pipeline else ""
    return f"{where}{run.name}:{run.occurrence}"


def _run(run: PassRun) -> str:
    return f"{run.name}:{run.occurrence}"


def _said(outcome: Outcome) -> str:
    return f"{outcome.kind} ({outcome.detail})" if outcome.detail else outcome.kind
