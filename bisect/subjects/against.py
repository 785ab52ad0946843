"""Two compiles of one program: where their stages part, where their values part, and which of the two is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hloscope.bisect.licence import permitted
from hloscope.bisect.precision import moves
from hloscope.bisect.probing import Prober
from hloscope.bisect.result import Answer, Probe
from hloscope.bisect.search import NoFault, Outcome, Step, first_wrong
from hloscope.bisect.subjects.dump import DumpSearch, judge_of
from hloscope.bisect.subjects.xla_names import check_name, disabled_in
from hloscope.core.errors import CompileError, HloscopeError
from hloscope.core.runtime.compare import compare_all
from hloscope.core.runtime.verdicts import DIFFERS, NOT_EVALUATED, ReplayOptions
from hloscope.core.views.compare import compare_runs
from hloscope.core.views.run import load

if TYPE_CHECKING:
    from hloscope.bisect.result import Culprit
    from hloscope.bisect.subjects.xla import XlaTask
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, Value
    from hloscope.core.runtime.verdicts import StageVerdict
    from hloscope.core.views.compare import Compared
    from hloscope.core.views.run import Run


@dataclass(slots=True)
class AgainstSearch:
    """One comparison; both runs are of one program (two versions, two flag sets, two hosts)."""

    a: Run
    b: Run
    inputs: Sequence[Array] | None = None
    options: ReplayOptions = field(default_factory=ReplayOptions)
    watch: Callable[[Step], None] | None = None
    prober: Prober = field(default_factory=Prober)
    results: tuple[Sequence[Array] | None, Sequence[Array] | None] = (None, None)
    """What the executables of the two gave, where they were run."""
    _steps: list[Step] = field(default_factory=list[Step])

    def run(self) -> Answer:
        """Search both and answer for the pair. Raises a HloscopeError where neither can be evaluated."""
        compared = compare_runs(self.a, self.b)
        found: list[tuple[str, Run, Answer]] = []
        failed: list[str] = []
        for name, one, results in zip("AB", (self.a, self.b), self.results, strict=True):
            try:
                search = DumpSearch(one, self.inputs, results, self.options, self.watch, self.prober)
                found.append((name, one, search.run()))
            except HloscopeError as error:
                failed.append(f"{name} cannot be evaluated: {error}")
        answer = self._joined(found)
        said = self._values(compared, answer) if not failed else []
        answer.evidence[:0] = [*_parts(compared), *said, *failed]
        answer.probes.extend(
            Probe(s.level, s.low, s.high, s.tried, s.outcome.kind, s.outcome.detail) for s in self._steps
        )
        return answer

    def _joined(self, found: Sequence[tuple[str, Run, Answer]]) -> Answer:
        """The worse of two verdicts, with the culprits of both."""
        if not found:
            return Answer("cannot-tell")
        order = ("wrong-stage", "unsafe-buffers", "below-hlo", "compile-failure", "cannot-tell", "allowed-change")
        worst = min(found, key=lambda one: order.index(one[2].verdict) if one[2].verdict in order else len(order))
        answer = Answer(worst[2].verdict)
        for name, run, one in found:
            answer.evidence.extend(f"{name}: {said}" for said in one.evidence)
            answer.probes.extend(one.probes)
            answer.texts |= {f"{name.lower()}_{key}": text for key, text in one.texts.items()}
            answer.arrays |= {f"{name.lower()}_{key}": arrays for key, arrays in one.arrays.items()}
            answer.culprits.extend(_within(culprit, run) for culprit in one.culprits)
        if len(found) == 2 and all(one.verdict == "no-difference" for _, _, one in found):
            answer.evidence.append(
                "each compute what their own first stage does: where they differ, no pass is at fault"
            )
        return answer

    # ---------------------------------------------------------------- where the values part
    def _values(self, compared: Compared, answer: Answer) -> list[str]:
        """The first row that both have after which they compute other bits, by halving; both on A's inputs."""
        rows = [(row.a, row.b) for row in compared.stages if row.a is not None and row.b is not None]
        if not rows or rows[0] != (0, 0):
            rows.insert(0, (0, 0))
        with TemporaryDirectory(prefix="hloscope-bisect-") as one, TemporaryDirectory(prefix="hloscope-bisect-") as two:
            judge = judge_of(DumpSearch(self.a, self.inputs, None, self.options, None, self.prober), Path(one))
            other = judge_of(DumpSearch(self.b, self.inputs, None, self.options, None, self.prober), Path(two))
            known: dict[int, tuple[StageVerdict, StageVerdict]] = {}

            def probe(position: int) -> Outcome:
                a, b = rows[position]
                pair = known[position] = (judge.stage(a), judge.foreign(self.b.stage_text(b), other.constants(b)))
                missing = next((one.reason for one in pair if one.status == NOT_EVALUATED), None)
                if missing is not None:
                    return Outcome("unknown", missing)
                return Outcome("right" if _moved(pair[0]) == _moved(pair[1]) else "wrong", pair[1].reason)

            try:
                found = first_wrong(len(rows) - 1, probe, "values", self._saw)
            except NoFault as error:
                return self._no_part(error, known[0][1] if 0 in known else None, answer)
            a, b = rows[found.position]
            said = f"their values part at {self.a.outline[a].pass_name} (stage {a} of A, {b} of B)"
            far = [one for one in known[found.position] if one.status == DIFFERS]
            said += ": " + "; ".join(
                f"{name} {_far(one)}" for name, one in zip("AB", known[found.position], strict=True)
            )
            return [said if far else f"{said}: within what rounding allows"]

    def _no_part(self, error: NoFault, start: StageVerdict | None, answer: Answer) -> list[str]:
        if error.where == "absent":
            return ["their last common stages compute the same bits"]
        if error.where == "unknown":
            return [f"where their values part is not known: {error.outcome.detail}"]
        if start is not None and start.status == DIFFERS:
            if answer.verdict in ("no-difference", "allowed-change"):
                answer.verdict = "wrong-input"
            return [f"their first stages compute different things, before any pass: {start.reason}"]
        return ["their values part at the first stage, within what rounding allows"]

    def _saw(self, step: Step) -> None:
        self._steps.append(step)
        if self.watch is not None:
            self.watch(step)


def _moved(verdict: StageVerdict) -> tuple[object, ...]:
    """How far results are from those of A's first stage; equal for equal bits."""
    if not verdict.max_abs and not verdict.max_ulp and verdict.status != DIFFERS:
        return (0,)
    return verdict.max_abs, verdict.max_ulp, verdict.output, verdict.worst_index


def _far(verdict: StageVerdict) -> str:
    if _moved(verdict) == (0,):
        return "is where the first stage of A is"
    return f"is off by {verdict.reason or f'{verdict.max_abs:g} ({verdict.max_ulp} ulp)'}"


def _within(culprit: Culprit, run: Run) -> Culprit:
    return replace(culprit, file=f"{run.source.path}/{culprit.file}")


def _parts(compared: Compared) -> list[str]:
    first = compared.first
    if first is None:
        return [*compared.notes, "their stages are the same as far as both have them"]
    said = f"their stages part at {first.pass_name} (stage {first.a} of A, {first.b} of B)"
    if first.between:
        said += f", after {', '.join(first.between)}"
    return [*compared.notes, said]


# ---------------------------------------------------------------- compiled and run here
@dataclass(slots=True)
class FlagsSearch:
    """Two compiles by the installed XLA:CPU: of one module with two sets of flags, or of two modules."""

    a: XlaTask
    b: XlaTask
    module: HloModule
    """What A compiles."""
    other: HloModule
    """What B compiles."""
    args: Sequence[Value]
    options: ReplayOptions = field(default_factory=ReplayOptions)
    watch: Callable[[Step], None] | None = None
    prober: Prober = field(default_factory=Prober)

    def run(self) -> Answer:
        """Compile and run both, then compare their stages. Raises a HloscopeError where neither can be evaluated."""
        from hloscope.bisect.subjects.xla import dumped_run, failure

        steps: list[Step] = []
        runs: list[tuple[Outcome, list[Array] | None, str]] = []
        for name, task in (("a", self.a), ("b", self.b)):
            place = str(self.prober.journal.folder / f"whole-{name}")
            outcome, results = dumped_run(task, f"whole-{name}", self.prober.journal)
            runs.append((outcome, results, place))
            steps.append(Step(f"whole {name.upper()}", 0, 1, 1, outcome))
            if self.watch is not None:
                self.watch(steps[-1])
            for switched in disabled_in(task.flags, os.environ.get("XLA_FLAGS")):
                check_name(switched, place)
        if any(outcome.kind == "wrong" for outcome, _, _ in runs):
            for at, (task, module) in enumerate(((self.a, self.module), (self.b, self.other))):
                results = runs[at][1]
                if results is not None:
                    bounds = moves(module, self.args)
                    bounded = replace(task, moved=bounds)
                    outcome = bounded.compared(results)
                    if outcome.kind == "wrong":
                        outcome = self._permitted(bounded, module, outcome, results, steps)
                    runs[at] = (outcome, results, runs[at][2])
        told = [
            f"{name} ({' '.join(task.flags) or 'no flags'}): "
            + ("XLA:CPU gives what is expected" if outcome.kind == "right" and not outcome.detail else outcome.detail)
            for name, task, (outcome, _, _) in zip("AB", (self.a, self.b), runs, strict=True)
        ]
        broken = next((one for one in runs if one[0].kind == "failed"), None)
        if broken is not None:
            answer = failure("A" if broken is runs[0] else "B", broken[0], broken[2])
            answer.evidence[:1] = told
        else:
            answer = self._over_stages(runs)
            if answer.verdict == "no-difference" and any(one.detail for one, _, _ in runs):
                answer.verdict = "allowed-change"
            answer.evidence[:0] = [*told, self._between(runs[0][1] or [], runs[1][1] or [])]
        answer.probes[:0] = [Probe(s.level, s.low, s.high, s.tried, s.outcome.kind, s.outcome.detail) for s in steps]
        return answer

    def _permitted(
        self, task: XlaTask, module: HloModule, outcome: Outcome, results: Sequence[Array], steps: list[Step]
    ) -> Outcome:
        """The outcome as it is with what the flags permit: right where the difference is no more than that."""

        def right_with(flags: Sequence[str]) -> bool:
            steps.append(Step("permission", 0, 1, 1, self.prober.one(task.plus(flags))))
            if self.watch is not None:
                self.watch(steps[-1])
            return steps[-1].outcome.kind == "right"

        fine, said = permitted(
            task.flags, right_with, module, self.args, task.expected, results, task.rules, task.moved
        )
        detail = f"{outcome.detail}; {said}" if said else outcome.detail
        return replace(outcome, kind="right" if fine else outcome.kind, detail=detail)

    def _over_stages(self, runs: Sequence[tuple[Outcome, list[Array] | None, str]]) -> Answer:
        try:
            with load(runs[0][2]) as a, load(runs[1][2]) as b:
                # Results that rounding explains are no fault below the stages.
                results = tuple(None if outcome.kind == "right" else one for outcome, one, _ in runs)
                return AgainstSearch(
                    a, b, self.a.inputs, self.options, self.watch, self.prober, (results[0], results[1])
                ).run()
        except CompileError:
            raise
        except HloscopeError as error:
            return Answer("cannot-tell", evidence=[f"the stages of the compiles cannot be evaluated: {error}"])

    def _between(self, a: Sequence[Array], b: Sequence[Array]) -> str:
        """How far the two executables' results are from each other."""
        if [one.shape for one in a] != [one.shape for one in b]:
            return "the two executables give results of different shapes"
        if all(one.tobytes() == two.tobytes() for one, two in zip(a, b, strict=True)):
            return "the two executables give the same bits"
        every = compare_all(a, b, self.a.rules)
        number, worst = max(enumerate(every), key=lambda one: (not one[1].within, one[1].outside))
        return f"the two executables differ: output {number}: {worst}"
