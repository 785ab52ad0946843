"""Replay: every stage of a compile evaluated on the same inputs and compared with the first one.

A pass may change how a result is computed, not what it is; the first stage whose result is out of bounds names the pass
that changed it. Stages with equal structural hash have one verdict; verdicts are kept by content, in a folder, so that
a second replay only reads them. Work is spread over processes.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import EvaluationError, HloscopeError
from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.runtime import elided
from hloscope.core.runtime.compare import rules_for
from hloscope.core.runtime.evaluator import bind, leaves
from hloscope.core.runtime.evaluator.values import TooLargeError
from hloscope.core.runtime.inputs import check_fit, moderate_inputs
from hloscope.core.runtime.stage import (
    Program,
    output_shardings,
    parameter_shardings,
    run_stage,
)
from hloscope.core.runtime.value_path import Step, trace
from hloscope.core.runtime.verdicts import (
    AGREES,
    DIFFERS,
    NOT_EVALUATED,
    REFERENCE,
    SAME,
    Reference,
    RegionTask,
    ReplayOptions,
    StageTask,
    StageVerdict,
    array_digest,
    check,
    evaluation,
    lost,
)
from hloscope.core.runtime.workers import Pool
from hloscope.core.text import load_module

__all__ = [
    "AGREES",
    "DIFFERS",
    "NOT_EVALUATED",
    "REFERENCE",
    "SAME",
    "Replay",
    "ReplayOptions",
    "StageVerdict",
    "replay",
]

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, Value

Progress = Callable[[int, int], None]


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
        self._program: Program | None = None

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
                self._notes.append(f"{error.message}: only what each stage changed is evaluated")
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
        if different is not None:
            out[different] = replace(
                out[different], path=self._path(first, index_of[digests[different]], out[different])
            )
        return Replay(tuple(out), different, tuple(dict.fromkeys(self._notes)))

    def _path(self, first: HloModule, number: int, verdict: StageVerdict) -> tuple[Step, ...]:
        """What fed the worst element."""
        if self._program is None or verdict.how != "whole" or verdict.output is None or verdict.worst_index is None:
            return ()
        module = _loaded(self._stages[number]())
        if module is None:
            return ()
        options = [evaluation(self._options, self._elided[one]) for one in (number, 0)]
        steps = trace(module, first, self._program, (options[0], options[1]), verdict.output, verdict.worst_index)
        return tuple(steps)

    def _settle(self, order: Sequence[int]) -> None:
        """Every stage has a row in the tables of elided constants, also where the work stopped early."""
        for number in order:
            self._elided.setdefault(number, {})
            self._drawn.setdefault(number, ())

    # ---------------------------------------------------------------- the first stage
    def _tasks(
        self, first: HloModule, text: str, inputs: Sequence[Array] | None, order: Sequence[int]
    ) -> Generator[tuple[int, StageTask | RegionTask | StageVerdict], None, None]:
        known = elided.resolve(first, None, {}, self._options.seed)
        self._say_drawn(0, known.drawn)
        program = Program(_inputs(first, inputs, self._options.seed), tuple(parameter_shardings(first)))
        started = time.perf_counter()
        run = run_stage(first, program, options=evaluation(self._options, known.values))
        seconds = time.perf_counter() - started
        shapes = tuple(x.shape for x in run.outputs)
        later = [self._stages[number] for number in order[1:]]
        program = replace(program, output_shapes=shapes, output_shardings=tuple(output_shardings(first, later)))
        self._program = program
        hashed = structural_hash(first)
        key = blake2b(digest_size=16)
        for part in (hashed, _code_digest(), repr(_lasting(self._options)), *map(array_digest, program.inputs)):
            key.update(part.encode())
        reference = Reference(
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
            earlier = self._before(order, number)
            yield (
                number,
                StageTask(
                    text, str(path), self._options, str(self._cache), self._elided[number], self._drawn[number],
                    self._stages[earlier](), self._elided[earlier],
                ),
            )  # fmt: skip

    def _texts(self, first: HloModule, order: Sequence[int]) -> Generator[tuple[int, str], None, None]:
        """The stages after the first, the values of their elided constants found on the way."""
        before: HloModule | None = first
        for number in order[1:]:
            text = self._stages[number]()
            earlier = self._before(order, number)
            self._elided[number], self._drawn[number] = {}, ()
            module: HloModule | None = None
            if elided.ELIDED_MARK in text:
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
    ) -> Generator[tuple[int, StageTask | RegionTask | StageVerdict], None, None]:
        """What was not evaluated whole."""
        for number in order[1:]:
            known = verdicts.get(digests[number])
            if known is not None and known.status != NOT_EVALUATED:
                continue
            earlier = self._before(order, number)
            texts = self._stages[earlier](), self._stages[number]()
            values = self._elided.get(earlier, {}), self._elided.get(number, {})
            self._why_not_whole[number] = "" if known is None else known.reason
            yield number, RegionTask(*texts, self._options, values)

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

    # ---------------------------------------------------------------- the others
    def _results(
        self, tasks: Generator[tuple[int, StageTask | RegionTask | StageVerdict], None, None]
    ) -> Generator[tuple[int, StageVerdict], None, None]:
        workers = self._options.workers or os.cpu_count() or 1
        if workers == 1 or self._total <= 3:
            for number, task in tasks:
                yield number, self._count(number, task if isinstance(task, StageVerdict) else check(task))
            return
        ready: list[tuple[int, StageVerdict]] = []

        def for_workers() -> Generator[tuple[int, StageTask | RegionTask], None, None]:
            for number, task in tasks:
                if isinstance(task, StageVerdict):
                    ready.append((number, task))
                else:
                    yield number, task

        with Pool(check, lost, workers) as pool:
            for number, verdict in pool.map(for_workers()):
                while ready:
                    place, known = ready.pop()
                    yield place, self._count(place, known)
                yield number, self._count(number, verdict)
        for place, known in ready:
            yield place, self._count(place, known)

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


def _inputs(first: HloModule, given: Sequence[Array] | None, seed: int) -> tuple[Array, ...]:
    parameters = first.entry.parameters
    check_fit([p.shape for p in parameters])
    values: list[Value] = moderate_inputs(first.entry, seed)
    if given is not None:
        values = bind([p.name for p in parameters], [p.shape for p in parameters], list(given))
    return tuple(x for value in values for x in leaves(value) if isinstance(x, np.ndarray))


def _loaded(text: str) -> HloModule | None:
    try:
        return load_module(text)
    except HloscopeError:
        return None


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _lasting(options: ReplayOptions) -> tuple[object, ...]:
    engines = (options.fast is not None, options.kernels is not None)
    return (options.seed, sorted(options.opaque), options.step_limit, options.factor, *engines)


def _code_digest() -> str:
    """Identity of the evaluator: a verdict of another version says nothing about this one."""
    state = blake2b(digest_size=16)
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        state.update(path.read_bytes())
    return state.hexdigest()
