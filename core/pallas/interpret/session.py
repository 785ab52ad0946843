"""Runs the kernels of a trace under instruments: the plain arithmetic first, then the memory of the backend, in
several orders, and where an order changes the result the one choice that does it.

The run with plain choices is the reference. Runs with other seeds make other choices; each fault is told once, and a
seed gives the same run again. ``replay`` and ``first_breaking_choice`` are what a bisection of orders is made of.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from hloscope.core.errors import UnsupportedError, UsageError
from hloscope.core.ledger import LedgerWriter
from hloscope.core.ledger.events import PallasStep
from hloscope.core.pallas.call import Argument, PallasCall, Program
from hloscope.core.pallas.checks.finding import Finding, Subject
from hloscope.core.pallas.chips import find_chip
from hloscope.core.pallas.grid import concrete_grid
from hloscope.core.pallas.interpret import generic, gpu, tpu
from hloscope.core.pallas.interpret.faults import Fault, Observer, Outcome, Step
from hloscope.core.pallas.interpret.loops import EndlessLoop, Stopped
from hloscope.core.pallas.interpret.mesh import MeshMachine
from hloscope.core.pallas.interpret.order import ORDER_OF_CORES, ORDERS, Choices, Decision
from hloscope.core.pallas.jaxpr import Array, Span, dtype_of, itemsize_bits, joint_at
from hloscope.core.pallas.report import Ran, Rung, backend_of
from hloscope.core.pallas.tracing import Trace

CORES = 2
"""Cores that a call with parallel dimensions is run on: on one, its steps cannot race."""
MOST_SECONDS = 20.0
"""After so long no further order of a call is begun."""
MOST_SECONDS_A_CALL = 60.0
"""Seconds for each interpreter of a call, unless the user says otherwise."""
MOST_PROBES = 40
MOST_LOOSE = 8
"""Statements with undefined values that are reported of one call."""
MOST_STEPS = 20_000
"""Largest grid that is interpreted."""
MOST_BYTES = 1 << 28
"""Most bytes of arguments, and of a call's arrays, that are made to run a program."""

WHY_MEMORY_MATTERS = frozenset({"uninitialized-read", "index-map-out-of-range"})
"""Codes that say why the result depends on what memory held before: that it does, and the choice that shows it, stands
beside them."""

FAILURES = (ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""What numpy and Python raise where an interpreter meets a form that it was not written for."""

Runner: TypeAlias = Callable[[Choices, Observer | None], Outcome]
"""Runs one call with those choices, and tells an observer its steps."""


@dataclass(slots=True, eq=False)
class _Session:
    trace: Trace
    target: str | None
    seed: int
    runs: int
    recorder: LedgerWriter | None
    timeout: float
    ran: list[Ran]
    turns: dict[int, int] = field(default_factory=dict[int, int])
    """Call -> how often the program has made it."""
    told: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]])
    """Call and fault of what was told in an earlier run."""
    function: str | None = None
    """The function whose program runs."""
    stopped: UnsupportedError | None = None
    """What stopped the plain arithmetic: told unless the memory's run says that the call never ends."""
    endless: Fault | None = None
    """What the plain arithmetic of the running call met: it is told unless the memory's run tells it, too."""
    findings: list[Finding] = field(default_factory=list[Finding])
    rungs: list[Rung] = field(default_factory=list[Rung])

    def finding(self, call: PallasCall, fault: Fault) -> None:
        key = (call.number, fault.code, fault.place, fault.message)
        if key in self.told:
            return
        self.told.add(key)
        turn = self.turns.get(call.number, 1)
        where = f"in run {turn} of the call: " if turn > 1 else ""
        backend = backend_of(call, find_chip(self.target) if self.target else None)
        subject = Subject(self.trace.path, call, backend, None, None, None, function=self.function)
        self.findings.append(
            subject.finding(
                fault.code, where + fault.message, fault.place, fix=fault.fix, related=list(fault.related),
                about=fault.about, joints=fault.joints,
            )
        )  # fmt: skip

    def failed(self, call: PallasCall, error: Exception) -> None:
        """numpy refused something: the interpreter's fault, which must not hide what else was found."""
        self.finding(
            call, Fault("interpreter-failed", f"the interpreter stops: {type(error).__name__}: {error}", call.at)
        )

    def unsupported(self, call: PallasCall, rung: str, error: UnsupportedError) -> None:
        """At the statement that stops an interpreter, where it is one."""
        place = error.place if isinstance(error, Stopped) else None
        self.finding(call, Fault("unsupported", f"the {rung} interpreter stops: {error.message}", place or call.at))

    def rung(self, call: PallasCall, name: str, outcome: str, seeds: Sequence[int] = ()) -> None:
        """What an interpreter gave for a call."""
        line = call.at.line if call.at is not None else None
        turn = self.turns[call.number]
        self.rungs.append(Rung(name, *RUNGS[name], tuple(seeds), call.name, outcome, self.function, line, turn))

    def run_call(
        self,
        call: PallasCall,
        operands: Sequence[Sequence[Any]],
        axes: Sequence[tuple[str, int]],
        unused: frozenset[int],
    ) -> list[list[Array]]:
        self._check_size(call, operands)
        self.endless = self.stopped = None
        self.turns[call.number] = self.turns.get(call.number, 0) + 1
        plain = self._generic(call, operands)
        deadline, told = time.monotonic() + self.timeout, len(self.findings)
        backend = backend_of(call, find_chip(self.target) if self.target else None)
        outputs: list[list[Array]] | None = None
        if backend == "mosaic_gpu":
            self.unsupported(call, "GPU-like", UnsupportedError("Mosaic GPU's memories and barriers are not modelled"))
        elif backend == "triton":

            def on_gpu(choices: Choices, observer: Observer | None) -> Outcome:
                return gpu.run_gpu(call, operands[0], choices, observer=observer, deadline=deadline)

            outputs = self._orders(call, "gpu", on_gpu)
        else:
            cores = CORES if "parallel" in call.semantics and len(operands) == 1 else 1

            def on_tpu(choices: Choices, observer: Observer | None) -> Outcome:
                return tpu.run_tpu(
                    call, operands, choices, cores=cores, axes=axes, unused=unused, observer=observer, deadline=deadline
                )

            outputs = self._orders(call, "tpu", on_tpu)
        slots = call.slots
        each = [tuple(np.asarray(one) for one in given[: slots.dynamic + slots.prefetch]) for given in operands]
        given = each[0]
        turn = self.turns[call.number]
        if all(np.array_equal(a, b) for other in each[1:] for a, b in zip(given, other, strict=True)):
            self.ran.append(Ran(call.number, self.function, turn, given, outputs is not None))
        else:
            for device, own in enumerate(each):
                self.ran.append(Ran(call.number, self.function, turn, own, outputs is not None, device))
        endless = [one for one in self.findings[told:] if one.code in ("livelock", "deadlock")]
        if self.endless is not None and not endless:
            self.finding(call, self.endless)
        if (stopped := self._stopped_by()) is not None and not (endless and isinstance(stopped, Stopped)):
            self.unsupported(call, "generic", stopped)
        # lanes that share an element of an atomic count each, and once under interpret=True
        found = outputs if backend == "triton" and outputs is not None else plain if plain is not None else outputs
        if found is None:
            why = (
                f"{call.name} does not end"
                if endless or self.endless is not None
                else f"no interpreter runs {call.name} to its end"
            )
            raise UnsupportedError(f"{why}: what comes after it is not run either")
        return found

    def _stopped_by(self) -> UnsupportedError | None:
        return self.stopped

    def _observer(self, call: PallasCall) -> Observer | None:
        recorder = self.recorder
        if recorder is None or not recorder.enabled:
            return None
        recorder.begin_module(call.name)

        def tell(step: Step) -> None:
            place = step.place
            recorder.emit(
                PallasStep(
                    kernel=call.name, step=step.kind, detail=step.detail, point=", ".join(map(str, step.point)),
                    core=step.core, device=step.device, file=place.file if place else None,
                    line=place.line if place else None,
                )
            )  # fmt: skip

        return tell

    def _check_size(self, call: PallasCall, operands: Sequence[Sequence[Any]]) -> None:
        bounds = [int(one) for one in operands[0][: call.slots.dynamic]]
        steps = math.prod(concrete_grid(call, bounds))
        held = sum(operand.array_bytes for operand in call.operands) * len(operands)
        if steps > MOST_STEPS or held > MOST_BYTES:
            raise UnsupportedError(
                f"{call.name} has {steps:,} steps and {held:,} bytes of arrays, and at most {MOST_STEPS:,} and"
                f" {MOST_BYTES:,} are interpreted: give smaller shapes with --arg"
            )

    def _generic(self, call: PallasCall, operands: Sequence[Sequence[Any]]) -> list[list[Array]] | None:
        outcome = "done"
        found: list[list[Array]] | None = None
        if len(operands) > 1:
            return None  # copies between devices have no meaning there
        try:
            found = [generic.run_call(call, operands[0], deadline=time.monotonic() + self.timeout)]
        except EndlessLoop as error:
            outcome = "fault"
            self.endless = Fault("livelock", error.message, error.place)
        except UnsupportedError as error:
            outcome = "unsupported"
            self.stopped = error
        except FAILURES as error:
            outcome = "unsupported"
            self.failed(call, error)
        self.rung(call, "generic", outcome)
        return found

    def _orders(self, call: PallasCall, name: str, runner: Runner) -> list[list[Array]] | None:
        started = time.monotonic()
        seeds: list[int] = []
        faults: dict[tuple[object, ...], Fault] = {}
        try:
            reference = runner(Choices(), self._observer(call))
            faults |= {one.key: one for one in reference.faults}
            dependent = False
            faults |= {one.key: one for one in undefined_faults(call, runner, reference)}
            for number in range(self.runs if any(one.seeded for one in reference.decisions) else 0):
                if time.monotonic() - started > MOST_SECONDS:
                    break
                choices = Choices(seed=self.seed + number)
                outcome = runner(choices, None)
                seeds.append(self.seed + number)
                faults |= {one.key: in_some_order(one) for one in outcome.faults if one.key not in faults}
                if not dependent and (outcome.finished, reference.finished) == (True, True):
                    if not same_outputs(reference.outputs, outcome.outputs):
                        dependent = True
                        fault = order_fault(call, runner, reference, choices, self.seed + number)
                        faults[fault.key] = fault
        except UnsupportedError as error:
            self.unsupported(call, "TPU-like" if name == "tpu" else "GPU-like", error)
            self.rung(call, name, "unsupported", seeds)
            return None
        except FAILURES as error:
            self.failed(call, error)
            self.rung(call, name, "unsupported", seeds)
            return None
        faults = told_once(faults)
        for fault in faults.values():
            self.finding(call, fault)
        self.rung(call, name, "fault" if faults else "done", seeds)
        return reference.outputs if reference.finished else None


def interpret_trace(
    trace: Trace,
    target: str | None = None,
    *,
    seed: int = 0,
    runs: int = 4,
    recorder: LedgerWriter | None = None,
    timeout: float = MOST_SECONDS_A_CALL,
    ran: list[Ran] | None = None,
) -> tuple[list[Finding], list[Rung]]:
    """Runs every program of a trace, its kernels instrumented.

    ``timeout`` is how many seconds each interpreter of a call may take. ``recorder`` is told every step of the plain
    run of each call, ``ran`` gets what each run was given. What cannot be run is a finding ``unsupported`` that says
    why.
    """
    session = _Session(trace, target, seed, runs, recorder, timeout, [] if ran is None else ran)
    for program in trace.programs:
        if program.jaxpr is None:
            continue
        session.function = program.function
        machine = MeshMachine(trace.calls, session.run_call)
        try:
            check_arguments(program)
            with np.errstate(all="ignore"):
                machine.evaluate(program.jaxpr, make_arguments(program))
        except UnsupportedError as error:
            at = machine.place
            where = (at.file, at.line, at.column, at.end_line, at.end_column) if at else (trace.path, 1, 1, 1, 1)
            session.findings.append(
                Finding(
                    "unsupported",
                    "information",
                    f"{program.function} is not run to its end: {error.message}",
                    *where,
                    function=program.function,
                )
            )
    return session.findings, session.rungs


def check_arguments(program: Program) -> None:
    """Raises ``UnsupportedError`` where a program's arguments are too large to be made."""
    size = sum(math.prod(one.shape) * itemsize_bits(one.dtype) // 8 for one in program.arguments if one.value is None)
    if size > MOST_BYTES:
        raise UnsupportedError(
            f"its arguments take {size:,} bytes, and at most {MOST_BYTES:,} are made: give smaller shapes with --arg"
        )


def make_arguments(program: Program, seed: int = 0) -> list[Array]:
    """Values for a program's arguments: the defaults', else random ones (floats normal, integers 0 or 1)."""
    return [
        _value(argument, np.random.default_rng([seed, number])) for number, argument in enumerate(program.arguments)
    ]


def _value(argument: Argument, random: np.random.Generator) -> Array:
    if argument.value is not None:
        return argument.value
    dtype = dtype_of(argument.dtype)
    if dtype.kind in "iub":
        return random.integers(0, 2, argument.shape).astype(dtype)
    return random.standard_normal(argument.shape).astype(dtype)


def replay(runner: Runner, choices: Sequence[int]) -> Outcome:
    """The run that made those choices, and plain ones after them."""
    return runner(Choices(forced=tuple(choices)), None)


def in_some_order(fault: Fault) -> Fault:
    """A fault that the plain order does not have: memory that a late copy was to fill is that copy's fault."""
    if fault.code not in ("output-never-written", "uninitialized-read"):
        return fault
    return replace(fault, joints=fault.joints | {("late", fault.about)})


def told_once(faults: Mapping[tuple[object, ...], Fault]) -> dict[tuple[object, ...], Fault]:
    """Faults of a call, one fault once: in one order of a race the read came first, or the copy ended late.

    What an order or memory's content does to the result, and which choice it is, stands beside the fault that explains
    it: a race, or memory that nobody wrote.
    """
    kept = dict(faults)
    for key, fault in faults.items():
        if fault.code == "order-dependent" and (cause := _cause_of(fault, kept)) is not None:
            kept[cause] = replace(kept[cause], related=(*kept[cause].related, (fault.place, fault.message)))
            del kept[key]
    return kept


def _cause_of(fault: Fault, faults: Mapping[tuple[object, ...], Fault]) -> tuple[object, ...] | None:
    """The key of the fault that says why a result depends on a choice."""
    for key, one in faults.items():
        if one.code == "race":
            places = (one.place, *(place for place, _ in one.related))
            if fault.place in places or fault.about == ORDER_OF_CORES:
                return key
        elif one.code in WHY_MEMORY_MATTERS and fault.about and one.about == fault.about:
            return key
    if fault.about in ORDERS:  # of programs, or of steps that run on any core
        return next((key for key, one in faults.items() if one.code in ("race", "uninitialized-read")), None)
    return None


def same_outputs(first: Sequence[Sequence[Array]], second: Sequence[Sequence[Array]]) -> bool:
    """Whether two runs gave the same, NaN for NaN; sums in another order may differ in the last digits."""
    for mine, other in zip(first, second, strict=True):
        for a, b in zip(mine, other, strict=True):
            if a.dtype.kind in "iub":
                if not np.array_equal(a, b):
                    return False
                continue
            wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
            scale = np.nanmax(np.abs(np.where(np.isfinite(wide_a), wide_a, 0)), initial=0.0)
            tolerance = 1e-5 if a.dtype.itemsize >= 4 else 1e-2
            if not np.allclose(wide_a, wide_b, rtol=tolerance, atol=tolerance * float(scale), equal_nan=True):
                return False
    return True


def first_breaking_choice(runner: Runner, reference: Outcome, choices: Sequence[int]) -> tuple[int, Outcome] | None:
    """The first choice after which the result is another, however plainly the run goes on, and the run that shows it.

    Halves the choices: those before it give the reference's result. None where the result does not come again.
    """
    low, high = 0, len(choices)
    shown = replay(runner, choices)
    if same_outputs(reference.outputs, shown.outputs):
        return None
    for _ in range(MOST_PROBES):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        outcome = replay(runner, choices[:middle])
        if outcome.finished and same_outputs(reference.outputs, outcome.outputs):
            low = middle
        else:
            high, shown = middle, outcome
    return high - 1, shown


def order_fault(call: PallasCall, runner: Runner, reference: Outcome, choices: Choices, seed: int) -> Fault:
    """The finding about a seed whose order changed the result, with the choice that did it."""
    found = first_breaking_choice(runner, reference, choices.taken)
    changed = "the result"
    decision: Decision | None = None
    if found is not None:
        position, outcome = found
        decision = outcome.decisions[position] if position < len(outcome.decisions) else None
        changed = _difference(call, reference, outcome)
    why = f"; the choice that does it is {decision.label} (option {decision.chosen})" if decision is not None else ""
    place = decision.place if decision is not None else call.at
    verb = "differ" if " and " in changed else "differs"
    message = f"with seed {seed} {changed} {verb} from the plain order's{why}"
    return Fault("order-dependent", message, place, about=decision.about if decision is not None else "")


def undefined_faults(call: PallasCall, runner: Runner, reference: Outcome) -> list[Fault]:
    """Values that nobody defined and that change the result: each statement that made some has a run of its own."""
    found: list[Fault] = []
    loose = [one for one in reference.decisions if not one.seeded]
    told: set[tuple[Span | None, str]] = set()
    tries = dict.fromkeys((one.place, one.label, option) for one in loose for option in range(1, one.options))
    for place, label, option in tries:
        if len(found) >= MOST_LOOSE or not reference.finished:
            break
        if (place, label) in told:
            continue
        mine = [(one.seeded, one.place, one.label) == (False, place, label) for one in reference.decisions]
        forced = [option if wanted else one.chosen for wanted, one in zip(mine, reference.decisions, strict=True)]
        outcome = replay(runner, forced)
        if outcome.finished and same_outputs(reference.outputs, outcome.outputs):
            continue
        told.add((place, label))
        changed = _difference(call, reference, outcome) if outcome.finished else "whether the kernel ends"
        varied = next(one for one, wanted in zip(reference.decisions, mine, strict=True) if wanted)
        verb = "depend" if " and " in changed else "depends"
        message = f"{label} is not defined, and {changed} {verb} on it"
        joints = joint_at(place, varied.about) | varied.joints
        found.append(Fault("uninitialized-read", message, place, about=varied.about, joints=joints))
    return found


def _difference(call: PallasCall, reference: Outcome, outcome: Outcome) -> str:
    """Every output that differs, and on how many elements: those of the device where most do."""
    most: dict[int, tuple[int, str]] = {}
    for mine, other in zip(reference.outputs, outcome.outputs, strict=True):
        for operand, a, b in zip(call.outputs, mine, other, strict=True):
            if not same_outputs([[a]], [[b]]):
                count = int(np.count_nonzero(~((a == b) | ((a != a) & (b != b)))))
                told = (count, f"{operand.title} ({count:,} of {a.size:,} elements)")
                most[operand.number] = max(most.get(operand.number, told), told)
    return " and ".join(text for _, text in most.values()) or "the result"


def observe_call(
    trace: Trace, number: int, operands: Sequence[Sequence[Any]], observer: Observer, *,
    seed: int | None = None, forced: Sequence[int] | None = None, cores: int = 1,
    axes: Sequence[tuple[str, int]] = (), backend: str = "tpu",
) -> Outcome:  # fmt: skip
    """Runs one call and tells every step of it to an observer: what a debugger shows.

    ``backend`` is a key of ``MACHINES``. Raises ``UsageError`` for another word, ``UnsupportedError`` for a call that
    the machine does not have.
    """
    if backend not in MACHINES:
        raise UsageError(f"no machine {backend!r}: one of {', '.join(MACHINES)}")
    call = trace.calls[number]
    choices = Choices(seed=seed, forced=None if forced is None else tuple(forced))
    if MACHINES[backend] == "gpu":
        return gpu.run_gpu(call, operands[0], choices, observer=observer)
    return tpu.run_tpu(call, operands, choices, cores=cores, axes=axes, observer=observer)


MACHINES: Mapping[str, str] = {"tpu": "tpu", "triton": "gpu", "gpu": "gpu"}
"""What ``observe_call`` takes for a backend -> the interpreter that runs it."""

RUNGS: Mapping[str, tuple[str, str]] = {
    "generic": (generic.PROVES, generic.CANNOT),
    "tpu": (tpu.PROVES, tpu.CANNOT),
    "gpu": (gpu.PROVES, gpu.CANNOT),
}
"""Interpreter -> what passing it shows, and what it cannot show."""
