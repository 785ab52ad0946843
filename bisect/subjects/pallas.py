"""A Pallas kernel as what is searched: the choices that hardware leaves open are its fuel.

A position says how many of the choices of a run that gives another result are taken as there; after them the plain
choice is taken everywhere. So position 0 is the plain run and the last one is the run that differs. The search ends at
the first choice that flips the result, and the two runs on its sides are walked in step to the first statement at which
they do not see the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hloscope.bisect.journal import Journal, digest
from hloscope.bisect.result import Answer, Culprit, Probe
from hloscope.bisect.search import Found, NoFault, Step, first_wrong
from hloscope.bisect.search import Outcome as Seen
from hloscope.core.errors import UnsupportedError, UsageError
from hloscope.core.pallas.checks.outputs import check_parallel
from hloscope.core.pallas.chips import find_chip
from hloscope.core.pallas.interpret import generic, gpu, tpu
from hloscope.core.pallas.interpret.faults import Observer, Outcome
from hloscope.core.pallas.interpret.faults import Step as KernelStep
from hloscope.core.pallas.interpret.lowering import ROUNDINGS, Lowering
from hloscope.core.pallas.interpret.mesh import MeshMachine
from hloscope.core.pallas.interpret.order import Choices, Decision
from hloscope.core.pallas.interpret.session import (
    CORES,
    FAILURES,
    Runner,
    check_arguments,
    make_arguments,
    replay,
    same_outputs,
)
from hloscope.core.pallas.report import backend_of, calls_of, subject_of

if TYPE_CHECKING:
    from hloscope.core.pallas.call import PallasCall
    from hloscope.core.pallas.checks.finding import Finding
    from hloscope.core.pallas.jaxpr import Array, Span
    from hloscope.core.pallas.tracing import Trace


MOST_PLACES = 8
"""Dots whose own part in a difference is measured."""


class LoweredRunner(Protocol):
    """Runs one call with those choices of the hardware, and of lowering where some are given."""

    def __call__(self, choices: Choices, observer: Observer | None, lowering: Lowering | None = None) -> Outcome: ...


@dataclass(slots=True)
class PallasSearch:
    """One function of a file, traced."""

    trace: Trace
    target: str | None = None
    seed: int = 0
    runs: int = 8
    """Seeds that are tried for a run that differs."""
    watch: Callable[[Step], None] | None = None
    journal: Journal = field(default_factory=Journal.for_once)
    """What a killed run of the same search has seen."""
    _key: str = ""
    """Names the call that is searched."""
    _steps: list[Step] = field(default_factory=list[Step])
    _answer: Answer = field(default_factory=lambda: Answer("no-difference"))

    def run(self) -> Answer:
        """Search and answer. Raises UsageError where the function has no kernel."""
        answer = self._answer
        if not self.trace.calls:
            raise UsageError("calls no Pallas kernel", path=self.trace.path)
        for program in self.trace.programs:
            if program.jaxpr is None:
                answer.verdict = "cannot-tell"
                answer.evidence.append(f"{program.function} cannot be traced: {program.refused}")
                continue
            machine = MeshMachine(self.trace.calls, self._call)
            try:
                check_arguments(program)
                with np.errstate(all="ignore"):
                    machine.evaluate(program.jaxpr, make_arguments(program, self.seed))
            except UnsupportedError as error:
                if answer.verdict == "no-difference":
                    answer.verdict = "cannot-tell"
                answer.evidence.append(f"{program.function} is not run to its end: {error.message}")
        if answer.verdict == "no-difference" and not answer.evidence:
            answer.evidence.append(f"the result is the same with the choices of {self.runs} seeds")
        answer.probes = [Probe(s.level, s.low, s.high, s.tried, s.outcome.kind, s.outcome.detail) for s in self._steps]
        return answer

    # ---------------------------------------------------------------- one call
    def _call(
        self,
        call: PallasCall,
        operands: Sequence[Sequence[Any]],
        axes: Sequence[tuple[str, int]],
        unused: frozenset[int],
    ) -> list[list[Array]]:
        runner = self._runner(call, operands, axes, unused)
        raced = self._raced(call)
        try:
            plain = runner(Choices(), None)
            shared: Outcome | None = None
            if (raced is not None or plain.faults) and not _may_be_right(call, plain, operands):
                # Two cores go wrong at once, in every order: on one core the plain order is right, and others are not.
                alone = self._runner(call, operands, axes, unused, cores=1)
                on_one = alone(Choices(), None)
                if raced is not None or (on_one.finished and _may_be_right(call, on_one, operands)):
                    shared, runner, plain = plain, alone, on_one
        except FAILURES as error:
            raise UnsupportedError(f"the interpreter stops in {call.name}: {type(error).__name__}: {error}") from None
        if not self._answer.culprits:
            arrays = [one for device in operands for one in device if isinstance(one, np.ndarray)]
            self._key = digest(self._key, call.name, repr(self.target), *(_bytes(one) for one in arrays))
            self._search(call, runner, plain, operands, raced, shared)
        if not plain.finished:
            raise UnsupportedError(f"{call.name} waits for what never comes: what follows it is not run")
        return plain.outputs

    def _runner(
        self,
        call: PallasCall,
        operands: Sequence[Sequence[Any]],
        axes: Sequence[tuple[str, int]],
        unused: frozenset[int],
        cores: int = CORES,
    ) -> LoweredRunner:
        backend = backend_of(call, find_chip(self.target) if self.target else None)
        if backend == "mosaic_gpu":
            raise UnsupportedError("Mosaic GPU's memories and barriers are not modelled")
        if backend == "triton":
            return lambda choices, observer, lowering=None: gpu.run_gpu(
                call, operands[0], choices, observer=observer, lowering=lowering
            )
        cores = cores if "parallel" in call.semantics and len(operands) == 1 else 1
        return lambda choices, observer, lowering=None: tpu.run_tpu(
            call, operands, choices, cores=cores, axes=axes, unused=unused, observer=observer, lowering=lowering
        )

    def _raced(self, call: PallasCall) -> Finding | None:
        """That steps which run in any order or at once write the same, as the checks of the traced call find it."""
        chip = find_chip(self.target) if self.target else None
        for program, one, operands in calls_of(self.trace):
            if one.number == call.number:
                found = check_parallel(subject_of(self.trace, program, call, chip, operands))
                return next((f for f in found if (f.code, f.severity) == ("parallel-write-race", "error")), None)
        return None

    def _search(
        self,
        call: PallasCall,
        runner: LoweredRunner,
        plain: Outcome,
        operands: Sequence[Sequence[Any]],
        raced: Finding | None,
        shared: Outcome | None,
    ) -> None:
        """Search one call. `shared` is its run on several cores where that is wrong and `plain`, on one, is not."""
        answer = self._answer
        faults = {one.key: one for one in plain.faults}
        if not plain.finished:
            place = plain.faults[0].place if plain.faults else call.at
            self._accuse(call, "wrong-input", "deadlock: it waits for what never comes", None, place)
        elif not self._plain_is_right(call, plain, operands):
            return
        found: tuple[int, Outcome] | None = None
        for seed in range(self.seed, self.seed + self.runs if plain.decisions and plain.finished else self.seed):
            if self.journal.get(self._named("seed", seed)) is not None:
                continue  # seen to be no different, and to tell nothing new
            other = runner(Choices(seed=seed), None)
            known = len(faults)
            faults |= {one.key: one for one in other.faults if one.key not in faults}
            if not other.finished or not same_outputs(plain.outputs, other.outputs):
                found = seed, other
                break
            if len(faults) == known:
                self.journal.put(self._named("seed", seed), Seen("right"))
        if found is not None:
            self._halve(call, runner, plain, *found)
        if shared is not None and raced is None:
            self._tell_cores(call, shared)
            faults = {key: one for key, one in faults.items() if one.code not in _UNORDERED}
        if raced is not None:
            self._tell_race(call, raced)
            # Where in another order a read comes before its write, the race says so.
            plainly = {one.key for one in plain.faults if one.code != "race"}
            faults = {key: one for key, one in faults.items() if key in plainly or one.code not in _UNORDERED}
        for fault in faults.values():
            where = f" ({fault.place.file}:{fault.place.line})" if fault.place is not None else ""
            answer.evidence.append(f"{call.name}: {fault.code}: {fault.message}{where}")
            if not answer.culprits:
                # Wrong whatever the choices are: seen in the plain run or in every one.
                answer.verdict = "not-deterministic" if fault.code == "race" else "wrong-input"
                self._accuse(call, answer.verdict, f"{fault.code}: {fault.message}", None, fault.place)
        if not answer.culprits and plain.finished:
            self._lower(call, runner, plain)

    def _tell_race(self, call: PallasCall, raced: Finding) -> None:
        """Accuse the write that steps share, with the choice that flips the result where one was found."""
        answer = self._answer
        at = raced.file, raced.line
        if answer.culprits:
            (one,) = answer.culprits
            answer.culprits = [replace(one, file=at[0], line=at[1], sentence=f"{raced.message}; {one.sentence}")]
        else:
            self._accuse(call, "not-deterministic", raced.message, None, None)
            answer.culprits = [replace(one, file=at[0], line=at[1]) for one in answer.culprits]
            answer.evidence.append(
                f"{call.name}: none of the orders that were tried changes the result on these values"
            )
        answer.evidence.append(f"{call.name}: {raced.code}: {raced.message} ({raced.file}:{raced.line})")
        answer.evidence += [f"{said} ({place.file}:{place.line})" for place, said in raced.related]
        if raced.fix:
            answer.cures.append(raced.fix)

    def _tell_cores(self, call: PallasCall, shared: Outcome) -> None:
        """What goes on from step to step along a parallel dimension, whose steps come in any order or on two cores."""
        answer = self._answer
        dimensions = [number for number, one in enumerate(call.semantics) if one == "parallel"]
        named = f"dimension{'s' * (len(dimensions) > 1)} {' and '.join(map(str, dimensions))} of the grid"
        said = f"{named} may run in any order or on several cores, each with a scratch of its own, and the result needs"
        said += " the plain order on one core"
        fault = shared.faults[0]
        if not answer.culprits:
            self._accuse(call, "not-deterministic", said, None, fault.place)
        else:
            (one,) = answer.culprits
            at = fault.place or call.at
            place = {} if at is None else {"file": at.file, "line": at.line}
            answer.culprits = [replace(one, sentence=f"{said}; {one.sentence}", **place)]
        where = f" ({fault.place.file}:{fault.place.line})" if fault.place is not None else ""
        answer.evidence.append(f"{call.name}: on {CORES} cores: {fault.code}: {fault.message}{where}")
        answer.cures.append(f'dimension_semantics with "arbitrary" for {named}')

    def _lower(self, call: PallasCall, runner: LoweredRunner, plain: Outcome) -> None:
        """The first choice of the kernel's lowering that flips the result, where the hardware's do not."""
        backend = backend_of(call, find_chip(self.target) if self.target else None) or "tpu"
        if backend not in ROUNDINGS:
            return
        runs: dict[int, tuple[Outcome, Choices]] = {}

        def lowered(position: int) -> Outcome:
            choices = Choices(forced=(1,) * position)
            outcome = runner(Choices(), None, Lowering(backend, choices))
            runs[position] = outcome, choices
            return outcome

        count = len(_made(runner, backend))
        if not count or same_outputs(plain.outputs, lowered(count).outputs):
            return

        def look(position: int) -> Seen:
            same = same_outputs(plain.outputs, (runs[position][0] if position in runs else lowered(position)).outputs)
            return Seen("right") if same else Seen("wrong", "another result")

        def probe(position: int) -> Seen:
            return self._once(("lowering", position), look)

        try:
            found = first_wrong(count, probe, "choice of lowering", self._saw)
        except NoFault:
            return
        kind, _, error = ROUNDINGS[backend]
        if found.position not in runs:
            lowered(found.position)
        decision = runs[found.position][1].made[found.position - 1]
        whole = furthest(plain.outputs, runs[count][0].outputs)
        answer = self._answer
        said = (
            f"choice {found.position} of {count} of lowering flips the result: {decision.label}; with all of them it"
            f" differs by up to {whole:.2g} of its largest value, where one rounding to {kind} is {error:.2g}"
        )
        self._accuse(call, "allowed-change", said, found.position, decision.place, rule=decision.label)
        answer.evidence.append(
            f"{call.name}: the choices of the hardware leave the result as it is; those of lowering do not"
        )
        made = runs[count][1].made
        for place in list(dict.fromkeys(one.place for one in made))[:MOST_PLACES]:
            alone = Choices(forced=tuple(int(one.place == place) for one in made))
            gap = furthest(plain.outputs, runner(Choices(), None, Lowering(backend, alone)).outputs)
            where = f"{place.file}:{place.line}" if place is not None else call.name
            answer.evidence.append(f"{where}: rounding in this dot alone makes a difference of {gap:.2g}")
        answer.cures.append("precision=jax.lax.Precision.HIGHEST at the dot")

    def _plain_is_right(self, call: PallasCall, plain: Outcome, operands: Sequence[Sequence[Any]]) -> bool:
        """Whether the plain run computes what the plain arithmetic of the kernel computes."""
        try:
            if _like_arithmetic(call, plain, operands):
                return True
        except (*FAILURES, UnsupportedError) as error:
            self._answer.evidence.append(f"{call.name}: there is no reference: {error}")
            return True
        place = plain.faults[0].place if plain.faults else call.at
        said = "the memory of the backend gives another result than the arithmetic alone, whatever the choices"
        if plain.faults:
            said = f"{plain.faults[0].code}: {plain.faults[0].message}"
        self._accuse(call, "wrong-input", said, None, place)
        return False

    def _halve(self, call: PallasCall, runner: Runner, plain: Outcome, seed: int, other: Outcome) -> None:
        answer = self._answer
        taken = tuple(one.chosen for one in other.decisions)
        runs: dict[int, Outcome] = {}

        def look(position: int) -> Seen:
            outcome = runs[position] = replay(runner, taken[:position])
            if outcome.finished and same_outputs(plain.outputs, outcome.outputs):
                return Seen("right")
            return Seen("wrong", "another result" if outcome.finished else "it never ends")

        def probe(position: int) -> Seen:
            return self._once((f"choices of {seed}", position), look)

        try:
            found: Found = first_wrong(len(taken), probe, "choice", self._saw)
        except NoFault as error:
            answer.verdict = "cannot-tell"
            answer.evidence.append(f"seed {seed} gave another result, and its choices again did not: {error.where}")
            return
        if found.position not in runs:
            runs[found.position] = replay(runner, taken[: found.position])
        decision = runs[found.position].decisions[found.position - 1]
        parted = _first_difference(runner, taken, found.position)
        place = parted.place if parted is not None and parted.place is not None else decision.place
        if parted is None:
            # Both runs touch the same; what is there differs where nothing orders a read with what writes it.
            told = sorted(runs[found.position].faults, key=lambda one: one.code != "uninitialized-read")
            place = next((one.place for one in told if one.code in _UNORDERED and one.place is not None), place)
        said = f"choice {found.position} of {len(taken)} flips the result: {decision.label}, option {decision.chosen} "
        said += f"of {decision.options} in place of option 0"
        if decision.place is not None:
            said += f" ({decision.place.file}:{decision.place.line})"
        if parted is not None:
            said += f"; the runs part at: {parted.kind} {parted.detail}"
            said += f" ({parted.place.file}:{parted.place.line})" if parted.place is not None else ""
        self._accuse(call, "not-deterministic", said, found.position, place, rule=decision.label)
        answer.evidence.append(
            f"{call.name}: with seed {seed} the result is not that of the plain order; the same seed gives the same run"
        )
        before = found.position - 1
        answer.cures.append(
            f"the first {before} choices of seed {seed}, then plain ones" if before else "plain choices"
        )

    def _accuse(
        self, call: PallasCall, verdict: Any, sentence: str, fuel: int | None, place: Span | None, rule: str = ""
    ) -> None:
        self._answer.verdict = verdict
        at = place or call.at
        self._answer.culprits.append(
            Culprit(
                file=at.file if at is not None else self.trace.path,
                pass_name=call.name,
                pipeline="pallas",
                occurrence=0,
                fuel=fuel,
                rule=rule or None,
                line=at.line if at is not None else None,
                sentence=sentence,
            )
        )

    def _named(self, what: str, number: int) -> str:
        return digest(self._key, what, str(number))

    def _once(self, asked: tuple[str, int], look: Callable[[int], Seen]) -> Seen:
        """A probe, unless the journal has its outcome."""
        key = self._named(*asked)
        outcome = self.journal.get(key)
        if outcome is None:
            outcome = look(asked[1])
            self.journal.put(key, outcome)
        return outcome

    def _saw(self, step: Step) -> None:
        self._steps.append(step)
        if self.watch is not None:
            self.watch(step)


def _like_arithmetic(call: PallasCall, plain: Outcome, operands: Sequence[Sequence[Any]]) -> bool:
    """Whether a run gives what the arithmetic of the kernel gives. Raises what the generic interpreter raises."""
    return len(operands) > 1 or same_outputs([generic.run_call(call, operands[0])], plain.outputs)


def _may_be_right(call: PallasCall, plain: Outcome, operands: Sequence[Sequence[Any]]) -> bool:
    """Whether the arithmetic of the kernel gives the same, as far as it can be had."""
    try:
        return _like_arithmetic(call, plain, operands)
    except (*FAILURES, UnsupportedError):
        return True


def _bytes(array: Array) -> bytes:
    return f"{array.dtype.name}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()


def _made(runner: LoweredRunner, backend: str) -> Sequence[Decision]:
    """The choices of lowering that a plain run meets."""
    choices = Choices()
    runner(Choices(), None, Lowering(backend, choices))
    return choices.made


def furthest(first: Sequence[Sequence[Array]], second: Sequence[Sequence[Array]]) -> float:
    """The largest difference of two runs' outputs, each output's as a part of its largest value."""
    worst = 0.0
    for a, b in ((a, b) for mine, other in zip(first, second, strict=True) for a, b in zip(mine, other, strict=True)):
        if a.dtype.kind in "iub" or not a.size:
            continue
        wide, other = a.astype(np.float64), b.astype(np.float64)
        scale = np.nanmax(np.abs(np.where(np.isfinite(wide), wide, 0)), initial=0.0) or 1.0
        gap = np.abs(np.where(np.isfinite(wide - other), wide - other, 0))
        worst = max(worst, float(gap.max() / scale))
    return worst


_UNORDERED = ("uninitialized-read", "race")


def _first_difference(runner: Runner, taken: Sequence[int], position: int) -> KernelStep | None:
    """The first read or write of the kernel that the run with a choice makes and the one without does not."""
    with_it = _accesses(runner, taken[:position])
    without = _accesses(runner, taken[: position - 1])
    for one, other in zip(with_it, without, strict=False):
        if (one.kind, one.detail, one.point, one.place) != (other.kind, other.detail, other.point, other.place):
            return one
    return None


def _accesses(runner: Runner, choices: Sequence[int]) -> list[KernelStep]:
    found: list[KernelStep] = []

    def see(step: KernelStep) -> None:
        if step.kind in ("read", "write") and step.place is not None:
            found.append(step)

    observer: Observer = see
    runner(Choices(forced=tuple(choices)), observer)
    return found
