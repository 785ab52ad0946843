"""Replay: every stage of a compile evaluated on the same inputs and compared with the first one.

A pass may change how a result is computed, not what it is; the first stage whose result is out of bounds names the pass
that changed it. Stages with equal structural hash have one verdict; verdicts are kept by content, in a folder, so that
a second replay only reads them. Work is spread over processes.
"""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from hloscope.core.errors import EvaluationError, HloscopeError
from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.runtime import elided
from hloscope.core.runtime.compare import Comparison, Rules, Sensitivity, compare, join_rules, rules_for
from hloscope.core.runtime.evaluator import EvaluationOptions, bind, leaves
from hloscope.core.runtime.evaluator.machine import available_memory
from hloscope.core.runtime.evaluator.sharding import Sharding
from hloscope.core.runtime.evaluator.values import TooLargeError
from hloscope.core.runtime.inputs import moderate_inputs
from hloscope.core.runtime.regions import check_regions
from hloscope.core.runtime.stage import (
    Program,
    StageRun,
    check_outputs,
    parameter_shardings,
    result_shardings,
    run_stage,
)
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from concurrent.futures import Future

    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, Value

Progress = Callable[[int, int], None]
ELIDED_MARK = "{...}"

REFERENCE, SAME, AGREES, DIFFERS, NOT_EVALUATED = "reference", "same-bits", "agrees", "differs", "not-evaluated"
"""What is said of a stage."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to replay."""

    seed: int = 0
    """Seed of inputs that are not given, of opaque kernels' results and of constants that no stage has."""
    opaque: frozenset[str] = frozenset()
    """Further custom-call targets that are not computed: their results are drawn, their operands compared."""
    workers: int = 0
    """Processes; 0 is one for each core, 1 works in this one."""
    step_limit: int = 10_000_000
    """Loop iterations of one stage."""
    factor: float = 1.0
    """Multiplies the bounds."""
    cache: str | None = None
    """Folder of verdicts; None keeps them for this replay only."""
    regions: bool = False
    """Evaluate nothing whole: only what each stage changed. Done anyway where a stage cannot be evaluated whole."""


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """How one stage compares with the first."""

    index: int
    status: str
    """``reference``, ``same-bits``, ``agrees``, ``differs`` or ``not-evaluated``."""
    max_abs: float | None = None
    """Largest difference of any element; None where nothing was compared."""
    max_ulp: int | None = None
    """The same in values of the element type."""
    worst_index: tuple[int, ...] | None = None
    """Where a difference is largest against its bound."""
    output: int | None = None
    """The flattened result that it is in; None for an opaque kernel's operand."""
    reason: str = ""
    """Why it was not evaluated, or the worst difference in words."""
    same_as: int | None = None
    """The earlier stage of equal structural hash whose verdict this is."""
    notes: tuple[str, ...] = ()
    """What was assumed, one sentence each."""
    widened: bool = False
    """Whether it agrees only because rounding errors were seen to move the results as far: a weaker verdict."""
    how: str = "whole"
    """``whole``; ``region``, where only what changed since the stage before was evaluated; or ``not-checked``."""
    devices: int = 1
    """Simulated devices that it ran on."""
    seconds: float = 0.0
    """Time of evaluation; 0 for a verdict from the cache."""
    hash: str = ""
    """Structural hash."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay found."""

    stages: tuple[StageVerdict, ...]
    first_difference: int | None
    """The first stage that differs from the first one; None where none does."""
    notes: tuple[str, ...] = ()

    @property
    def first_widened(self) -> int | None:
        """The first stage that agrees only within what rounding errors were seen to do; None where none does."""
        return next((stage.index for stage in self.stages if stage.widened), None)

    @property
    def evaluated(self) -> int:
        """Stages that were compared, the reference included."""
        return sum(stage.status != NOT_EVALUATED for stage in self.stages)


@dataclass(frozen=True)
class _Reference:
    """What a worker compares with; written once, read by every worker."""

    program: Program
    outputs: list[Array]
    kernels: dict[str, list[Array]]
    rules: Rules
    key: str
    text: str
    """The first stage, for whoever has to find out what rounding errors do to it."""
    values: Mapping[str, Array]
    """Its elided constants."""


@dataclass(frozen=True)
class _Task:
    text: str
    reference: str
    options: ReplayOptions
    cache: str
    values: Mapping[str, Array] = field(default_factory=dict)
    drawn: tuple[str, ...] = ()


@dataclass(frozen=True)
class _RegionTask:
    before: str
    after: str
    options: ReplayOptions
    elided: tuple[Mapping[str, Array], Mapping[str, Array]]


def replay(
    stages: Sequence[Callable[[], str]],
    options: ReplayOptions | None = None,
    *,
    inputs: Sequence[Array] | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Evaluate all stages on the same inputs; `stages` give the texts in order.

    Raises ParseError for a first stage that cannot be read, EvaluationError or UnsupportedError where it cannot be
    evaluated. A later stage that cannot be is said so in its verdict.
    """
    options = options or ReplayOptions()
    if not stages:
        raise EvaluationError("there is no stage to replay")
    with TemporaryDirectory(prefix="hloscope-replay-") as folder:
        return _Work(list(stages), options, Path(folder), progress).run(inputs)


class _Work:
    def __init__(
        self, stages: list[Callable[[], str]], options: ReplayOptions, folder: Path, progress: Progress | None
    ) -> None:
        self._stages = stages
        self._options = options
        self._folder = folder
        self._cache = Path(options.cache) if options.cache else folder / "verdicts"
        self._cache.mkdir(parents=True, exist_ok=True)
        self._progress = progress
        self._done = 0
        self._total = 1
        self._notes: list[str] = []
        self._elided: dict[int, Mapping[str, Array]] = {}
        self._drawn: dict[int, tuple[str, ...]] = {}
        self._why_not_whole: dict[int, str] = {}

    def run(self, inputs: Sequence[Array] | None) -> Replay:
        first_text = self._stages[0]()
        digests = [_digest(first_text)]
        index_of = {digests[0]: 0}
        for number in range(1, len(self._stages)):
            digest = _digest(self._stages[number]())
            digests.append(digest)
            index_of.setdefault(digest, number)
        order = sorted(index_of.values())
        self._total = len(order)
        first = load_module(first_text)
        verdicts: dict[str, StageVerdict] = {}
        by_hash: dict[str, int] = {}
        whole = not self._options.regions
        if whole:
            try:
                for number, verdict in self._results(self._tasks(first, first_text, inputs, order)):
                    verdicts[digests[number]] = replace(verdict, index=number)
            except TooLargeError as error:
                self._notes.append(f"{error}: only what each stage changed is evaluated")
                whole = False
        if not whole:
            verdicts[digests[0]] = StageVerdict(0, REFERENCE, how="region", hash=structural_hash(first))
            self._elided[0] = elided.resolve(first, None, {}, self._options.seed).values
            for number, text in self._texts(first, order):
                del number, text
        self._settle(order)
        for number, verdict in self._results(self._region_tasks(order, digests, verdicts)):
            verdicts[digests[number]] = replace(verdict, index=number)
        out: list[StageVerdict] = []
        for number, digest in enumerate(digests):
            verdict = verdicts[digest]
            earlier = by_hash.setdefault(verdict.hash or digest, number)
            same_as = earlier if earlier != number else None
            seconds = 0.0 if same_as is not None else verdict.seconds
            out.append(replace(verdict, index=number, same_as=same_as, seconds=seconds))
            if number and verdict.status == REFERENCE:
                out[-1] = replace(out[-1], status=SAME)
        different = next((v.index for v in out if v.status == DIFFERS), None)
        return Replay(tuple(out), different, tuple(dict.fromkeys(self._notes)))

    def _settle(self, order: Sequence[int]) -> None:
        """Every stage has a row in the tables of elided constants, also where the work stopped early."""
        for number in order:
            self._elided.setdefault(number, {})
            self._drawn.setdefault(number, ())

    # ---------------------------------------------------------------- the first stage
    def _tasks(
        self, first: HloModule, text: str, inputs: Sequence[Array] | None, order: Sequence[int]
    ) -> Generator[tuple[int, _Task | _RegionTask | StageVerdict], None, None]:
        known = elided.resolve(first, None, {}, self._options.seed)
        self._say_drawn(0, known.drawn)
        program = Program(_inputs(first, inputs, self._options.seed), tuple(parameter_shardings(first)))
        started = time.perf_counter()
        run = run_stage(first, program, options=_evaluation(self._options, known.values))
        seconds = time.perf_counter() - started
        shapes = tuple(x.shape for x in run.outputs)
        program = replace(
            program, output_shapes=shapes, output_shardings=tuple(self._output_shardings(first, order, len(shapes)))
        )
        hashed = structural_hash(first)
        key = blake2b(digest_size=16)
        for part in (hashed, _code_digest(), repr(_lasting(self._options)), *map(_array_digest, program.inputs)):
            key.update(part.encode())
        reference = _Reference(
            program, run.outputs, run.kernels, rules_for(first, self._options.factor), key.hexdigest(),
            text, known.values,
        )  # fmt: skip
        path = self._folder / "reference"
        path.write_bytes(pickle.dumps(reference, protocol=pickle.HIGHEST_PROTOCOL))
        yield (
            0,
            StageVerdict(
                0, REFERENCE, 0.0, 0, notes=tuple(run.notes), devices=run.devices, seconds=seconds, hash=hashed
            ),
        )
        self._elided[0] = known.values
        for number, text in self._texts(first, order):
            yield (
                number,
                _Task(text, str(path), self._options, str(self._cache), self._elided[number], self._drawn[number]),
            )

    def _texts(self, first: HloModule, order: Sequence[int]) -> Generator[tuple[int, str], None, None]:
        """The stages after the first, the values of their elided constants found on the way."""
        before: HloModule | None = first
        for number in order[1:]:
            text = self._stages[number]()
            earlier = self._before(order, number)
            self._elided[number], self._drawn[number] = {}, ()
            module: HloModule | None = None
            if ELIDED_MARK in text:
                module = _loaded(text)
                if module is not None and elided.elided_constants(module):
                    before = before if before is not None else _loaded(self._stages[earlier]())
                    found = elided.resolve(module, before, self._elided[earlier], self._options.seed)
                    self._say_drawn(number, found.drawn)
                    self._say_guessed(number, found.guessed)
                    self._elided[number], self._drawn[number] = found.values, tuple(found.drawn)
            before = module
            yield number, text

    def _region_tasks(
        self, order: Sequence[int], digests: Sequence[str], verdicts: Mapping[str, StageVerdict]
    ) -> Generator[tuple[int, _Task | _RegionTask | StageVerdict], None, None]:
        """What was not evaluated whole."""
        for number in order[1:]:
            known = verdicts.get(digests[number])
            if known is not None and known.status != NOT_EVALUATED:
                continue
            earlier = self._before(order, number)
            texts = self._stages[earlier](), self._stages[number]()
            values = self._elided.get(earlier, {}), self._elided.get(number, {})
            self._why_not_whole[number] = "" if known is None else known.reason
            yield number, _RegionTask(*texts, self._options, values)

    @staticmethod
    def _before(order: Sequence[int], number: int) -> int:
        return order[order.index(number) - 1]

    def _say_drawn(self, number: int, names: Sequence[str]) -> None:
        if names:
            shown = ", ".join(f"%{name}" for name in names[:4])
            self._notes.append(f"no stage has the values of {shown} of stage {number}: they are random")

    def _say_guessed(self, number: int, names: Sequence[str]) -> None:
        if names:
            shown = ", ".join(f"%{name}" for name in names[:4])
            self._notes.append(
                f"the values of {shown} of stage {number} are those of the only expression like it in the stage before"
            )

    def _output_shardings(self, first: HloModule, order: Sequence[int], count: int) -> list[Sharding | None]:
        """What the last unpartitioned stage says of its results: that is where propagation has been."""
        if first.num_partitions == 1:
            return [None] * count
        found = result_shardings(first)
        layout = [p.shape.dimensions for p in first.entry.parameters if p.shape.is_array]
        for number in order[1:]:
            text = self._stages[number]()
            if "sharding=" not in text:
                continue
            try:
                module = load_module(text)
            except HloscopeError:
                continue
            if [p.shape.dimensions for p in module.entry.parameters if p.shape.is_array] != layout:
                break
            said = result_shardings(module)
            if len(said) == count and all(said):
                found = said
        return found if len(found) == count else [None] * count

    # ---------------------------------------------------------------- the others
    def _results(
        self, tasks: Generator[tuple[int, _Task | _RegionTask | StageVerdict], None, None]
    ) -> Generator[tuple[int, StageVerdict], None, None]:
        workers = self._options.workers or os.cpu_count() or 1
        if workers == 1 or self._total <= 3:
            for number, task in tasks:
                yield number, self._count(number, task if isinstance(task, StageVerdict) else check(task))
            return
        from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
        from multiprocessing import get_context

        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            running: dict[Future[StageVerdict], int] = {}
            for number, task in tasks:
                if isinstance(task, StageVerdict):
                    yield number, self._count(number, task)
                    continue
                running[pool.submit(check, task)] = number
                while len(running) >= workers + 2:
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for one in done:
                        stage = running.pop(one)
                        yield stage, self._count(stage, one.result())
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    stage = running.pop(one)
                    yield stage, self._count(stage, one.result())

    def _count(self, number: int, verdict: StageVerdict) -> StageVerdict:
        why = self._why_not_whole.get(number)
        if why and verdict.status == NOT_EVALUATED:
            verdict = replace(verdict, reason=why, notes=(*verdict.notes, f"by region: {verdict.reason}"))
        elif why:
            verdict = replace(verdict, notes=(*verdict.notes, f"not evaluated whole: {why}"))
        self._done = min(self._done + 1, self._total)
        if self._progress is not None:
            self._progress(self._done, self._total)
        return verdict


# ---------------------------------------------------------------- one stage, in a worker
def check(task: _Task | _RegionTask) -> StageVerdict:
    """The verdict on one stage. Runs in a worker process."""
    return check_stage(task) if isinstance(task, _Task) else check_region(task)


def check_region(task: _RegionTask) -> StageVerdict:
    """The verdict on what one stage changed since the one before."""
    started = time.perf_counter()
    try:
        before, after = load_module(task.before), load_module(task.after)
        hashed = structural_hash(after)
        options = task.options
        found = check_regions(
            before,
            after,
            seed=options.seed,
            factor=options.factor,
            opaque=options.opaque,
            elided=task.elided,
        )
    except HloscopeError as error:
        return StageVerdict(0, NOT_EVALUATED, reason=str(error), how="not-checked")
    seconds = time.perf_counter() - started
    note = f"{found.computed} changed instructions were evaluated on {found.borders} shared values"
    notes = (note, f"{found.widened} levels of them were computed, too") if found.widened else (note,)
    notes += tuple(found.notes)
    worst = max(found.comparisons, key=lambda item: (not item[1].within, _excess(item[1])), default=None)
    if worst is None:
        return StageVerdict(0, SAME, 0.0, 0, how="region", notes=notes, seconds=seconds, hash=hashed)
    same = all(one.same_bits for _, one in found.comparisons)
    status = SAME if same else AGREES if found.within else DIFFERS
    return StageVerdict(
        0,
        status,
        max_abs=max(one.max_abs for _, one in found.comparisons),
        max_ulp=max(one.max_ulp for _, one in found.comparisons),
        worst_index=worst[1].worst_index,
        reason="" if same else f"%{worst[0]}: {worst[1]}",
        widened=status == AGREES and not found.firm,
        how="region",
        notes=notes,
        seconds=seconds,
        hash=hashed,
    )


def check_stage(task: _Task) -> StageVerdict:
    """The verdict on one stage, from the cache where it is known. Runs in a worker process."""
    reference = _read_reference(task.reference)
    try:
        module = load_module(task.text)
    except HloscopeError as error:
        return StageVerdict(0, NOT_EVALUATED, reason=str(error), how="not-checked")
    hashed = structural_hash(module)
    key = blake2b(digest_size=16)
    for part in (reference.key, hashed, *(_array_digest(task.values[name]) for name in sorted(task.values))):
        key.update(part.encode())
    file = Path(task.cache) / f"{key.hexdigest()}.json"
    known = _read_verdict(file)
    if known is not None:
        return replace(known, hash=hashed, seconds=0.0)
    notes = [f"%{name} is random: no stage has its values" for name in task.drawn]
    started = time.perf_counter()
    try:
        run = run_stage(
            module,
            reference.program,
            options=_evaluation(task.options, task.values),
            reference=reference.outputs,
        )
        check_outputs(reference.outputs, run)
    except HloscopeError as error:
        verdict = StageVerdict(0, NOT_EVALUATED, reason=str(error), how="not-checked", notes=tuple(notes))
    else:
        rules = join_rules(reference.rules, rules_for(module, task.options.factor))
        verdict = _judge(reference, run, rules, notes, None)
        if verdict.status == DIFFERS:
            # Only then is it worth more runs to see how firm the result is.
            moved = _sensitivities(task, reference)
            verdict = _judge(reference, run, rules, notes, moved)
            if verdict.status == DIFFERS and rules.narrowest != reference.rules.narrowest:
                # The compiler went down to a narrower type here and there: what that costs only this stage shows.
                own = _moves(module, run, reference, _evaluation(task.options, task.values))
                verdict = _judge(reference, run, rules, notes, _both(moved, own))
    verdict = replace(verdict, hash=hashed, seconds=time.perf_counter() - started)
    _write_verdict(file, verdict)
    return verdict


NOISY_RUNS = 2
"""Runs with rounding errors that show how firm a result is."""


Sensitivities = tuple[list[Sensitivity], dict[str, list[Sensitivity]]]


def _sensitivities(task: _Task, reference: _Reference) -> Sensitivities:
    """How far rounding errors move the first stage's results and what its kernels are given; found once, and kept."""
    path = Path(task.reference + ".sensitivity")
    if path.exists():
        with open(path, "rb") as file:
            found: Sensitivities = pickle.load(file)
        return found
    first = StageRun(reference.outputs, reference.kernels)
    outputs, kernels = _moves(
        load_module(reference.text), first, reference, _evaluation(task.options, reference.values)
    )
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(pickle.dumps((outputs, kernels), protocol=pickle.HIGHEST_PROTOCOL))
    temporary.replace(path)
    return outputs, kernels


def _moves(module: HloModule, exact: StageRun, reference: _Reference, options: EvaluationOptions) -> Sensitivities:
    runs = [
        run_stage(module, reference.program, options=replace(options, noise=number), reference=reference.outputs)
        for number in range(NOISY_RUNS)
    ]
    outputs = [Sensitivity.of(x, [run.outputs[i] for run in runs]) for i, x in enumerate(exact.outputs)]
    kernels = {
        name: [Sensitivity.of(x, [run.kernels[name][i] for run in runs]) for i, x in enumerate(operands)]
        for name, operands in exact.kernels.items()
        if all(name in run.kernels for run in runs)
    }
    return outputs, kernels


def _both(a: Sensitivities, b: Sensitivities) -> Sensitivities:
    """The larger moves of two programs with the same results."""
    outputs = [x.joined(y) for x, y in zip(a[0], b[0], strict=True)]
    kernels = dict(a[1])
    for name, moves in b[1].items():
        if name in kernels and [x.moved.shape for x in kernels[name]] == [y.moved.shape for y in moves]:
            kernels[name] = [x.joined(y) for x, y in zip(kernels[name], moves, strict=True)]
    return outputs, kernels


def _judge(
    reference: _Reference, run: StageRun, rules: Rules, notes: list[str], moved: Sensitivities | None
) -> StageVerdict:
    found: list[tuple[int | None, str, Comparison]] = []
    notes = list(notes)
    for number, (expected, actual) in enumerate(zip(reference.outputs, run.outputs, strict=True)):
        firm = None if moved is None else moved[0][number]
        found.append((number, f"result {number}", compare(expected, actual, rules, firm)))
    for name, operands in reference.kernels.items():
        given = run.kernels.get(name)
        if given is None or [x.shape for x in given] != [x.shape for x in operands]:
            notes.append(f"what {name} is given has another form than in the first stage: not compared")
            continue
        for number, (expected, actual) in enumerate(zip(operands, given, strict=True)):
            firm = moved[1][name][number] if moved is not None and name in moved[1] else None
            found.append((None, f"operand {number} of {name}", compare(expected, actual, rules, firm)))
    notes += run.notes
    if moved is not None:
        notes.append("bounds are widened to what rounding errors alone were seen to do")
    if not found:
        return StageVerdict(0, SAME, 0.0, 0, reason="it has no results", notes=tuple(notes), devices=run.devices)
    worst = max(found, key=lambda item: (not item[2].within, _excess(item[2])))
    status = SAME if all(c.same_bits for _, _, c in found) else AGREES if worst[2].within else DIFFERS
    return StageVerdict(
        0,
        status,
        max_abs=max(c.max_abs for _, _, c in found),
        max_ulp=max(c.max_ulp for _, _, c in found),
        worst_index=worst[2].worst_index,
        output=worst[0],
        reason="" if status == SAME else f"{worst[1]}: {worst[2]}",
        notes=tuple(notes),
        devices=run.devices,
        widened=moved is not None and status == AGREES,
    )


def _excess(one: Comparison) -> float:
    return one.max_abs / one.bound if one.bound else one.max_abs


def _evaluation(options: ReplayOptions, values: Mapping[str, Array]) -> EvaluationOptions:
    return EvaluationOptions(
        seed=options.seed,
        step_limit=options.step_limit,
        opaque=options.opaque,
        elided=lambda node: values[node.name],
    )


def _inputs(first: HloModule, given: Sequence[Array] | None, seed: int) -> tuple[Array, ...]:
    parameters = first.entry.parameters
    shapes = [leaf for p in parameters for _, leaf in p.shape.leaves() if leaf.is_array]
    needed, limit = sum(s.element_count * s.type.dtype.itemsize for s in shapes), available_memory() // 4
    if needed > limit:
        raise TooLargeError(f"the inputs take about {needed / 1e9:.1f} GB, {limit / 1e9:.1f} GB are to spare")
    values: list[Value] = moderate_inputs(first.entry, seed)
    if given is not None:
        values = bind([p.name for p in parameters], [p.shape for p in parameters], list(given))
    return tuple(x for value in values for x in leaves(value) if isinstance(x, np.ndarray))


def _loaded(text: str) -> HloModule | None:
    try:
        return load_module(text)
    except HloscopeError:
        return None


# ---------------------------------------------------------------- keys and files
def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _array_digest(array: Array) -> str:
    state = blake2b(f"{array.dtype.name}{array.shape}".encode(), digest_size=16)
    state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def _lasting(options: ReplayOptions) -> tuple[object, ...]:
    return (options.seed, sorted(options.opaque), options.step_limit, options.factor)


def _code_digest() -> str:
    """Identity of the evaluator: a verdict of another version says nothing about this one."""
    state = blake2b(digest_size=16)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        state.update(path.read_bytes())
    return state.hexdigest()


@contextmanager
def _quiet() -> Generator[None, None, None]:
    """A cache that cannot be written is no reason to stop."""
    try:
        yield
    except OSError:
        pass


def _read_reference(path: str) -> _Reference:
    with open(path, "rb") as file:
        found = pickle.load(file)
    if not isinstance(found, _Reference):
        raise EvaluationError("the reference of the replay is damaged", path=path)
    return found


def _read_verdict(path: Path) -> StageVerdict | None:
    try:
        stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
        stored["notes"] = tuple(stored["notes"])
        stored["worst_index"] = None if stored["worst_index"] is None else tuple(stored["worst_index"])
        return StageVerdict(**stored)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write_verdict(path: Path, verdict: StageVerdict) -> None:
    with _quiet():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(verdict)), "utf-8")
        temporary.replace(path)
