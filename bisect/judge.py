"""Evaluates the stages of a dump, and modules made of two of them, on the program's inputs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hloscope.bisect.journal import digest
from hloscope.bisect.narrow import Seen
from hloscope.bisect.putback import Alignment, Border, Flat, Hybrid, Line, put_back, take_back
from hloscope.bisect.search import Outcome
from hloscope.bisect.subjects.stage_probe import StageProbe, verdict_of
from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.runtime import elided
from hloscope.core.runtime.compare import compare, rules_for
from hloscope.core.runtime.evaluator import bind, leaves
from hloscope.core.runtime.evaluator.values import Token
from hloscope.core.runtime.inputs import moderate_inputs
from hloscope.core.runtime.stage import Program, output_shardings, parameter_shardings, run_stage
from hloscope.core.runtime.verdicts import (
    DIFFERS,
    NOT_EVALUATED,
    Reference,
    ReplayOptions,
    StageTask,
    StageVerdict,
    evaluation,
)
from hloscope.core.text import load_module, print_module

if TYPE_CHECKING:
    from hloscope.bisect.probing import Prober
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array, Value


class StageJudge:
    """Tells of stages, and of modules made of two, whether they compute what the base does."""

    def __init__(
        self,
        texts: Sequence[Callable[[], str]],
        folder: Path,
        inputs: Sequence[Array] | None,
        options: ReplayOptions,
        prober: Prober,
        base: int = 0,
    ) -> None:
        """Evaluates stage `base`, which the others are held against; keeps its files in a folder.

        `inputs` are whole arrays in the order of its parameters, random ones by the seed where they are None. Raises
        what reading and evaluating that stage raises.
        """
        self._texts = texts
        self._before = ""
        self._before_values: dict[str, Array] = {}
        self._options = options
        self._constants: dict[int, Mapping[str, Array]] = {}
        text = texts[base]()
        first = load_module(text)
        values = self._values(base)
        parameters = first.entry.parameters
        given = (
            moderate_inputs(first.entry, self._options.seed)
            if inputs is None
            else bind([p.name for p in parameters], [p.shape for p in parameters], list(inputs))
        )
        arrays = tuple(leaf for value in given for leaf in leaves(value) if not isinstance(leaf, Token))
        program = Program(arrays, tuple(parameter_shardings(first)))
        run = run_stage(first, program, options=evaluation(self._options, values))
        program = replace(
            program,
            output_shapes=tuple(x.shape for x in run.outputs),
            output_shardings=tuple(output_shardings(first, texts[base + 1 :])),
        )
        rules = rules_for(first, self._options.factor)
        self._prober = prober
        self._key = digest(text, *(one.tobytes() for one in arrays), repr(self._options))
        self._rules, self.outputs, self.inputs = rules, run.outputs, arrays
        self._program = program
        reference = Reference(program, run.outputs, run.kernels, rules, structural_hash(first), text, values)
        self._reference = str(folder / "reference")
        Path(self._reference).write_bytes(pickle.dumps(reference, protocol=pickle.HIGHEST_PROTOCOL))
        self._cache = folder / "verdicts"
        self._cache.mkdir()

    def against_recorded(self, expected: Sequence[Array]) -> str | None:
        """How the first stage's results differ from recorded ones; None where they agree."""
        if len(expected) != len(self.outputs):
            return f"{len(expected)} results are recorded, the program has {len(self.outputs)}"
        for number, (want, have) in enumerate(zip(expected, self.outputs, strict=True)):
            if want.shape != have.shape:
                return f"result {number} is recorded as {list(want.shape)}, the program gives {list(have.shape)}"
            one = compare(want, have, self._rules)
            if not one.within:
                return f"result {number}: {one}"
        return None

    def stage(self, number: int) -> StageVerdict:
        """The verdict on one stage."""
        return self.stages([number])[0]

    def stages(self, numbers: Sequence[int]) -> list[StageVerdict]:
        """The verdicts on several stages."""
        tasks: list[tuple[str, Mapping[str, Array]]] = []
        for number in numbers:
            text = self._texts[number]()
            tasks.append((text, self._values(number) if elided.ELIDED_MARK in text else {}))
        return self._check_all(tasks)

    def foreign(self, text: str, values: Mapping[str, Array]) -> StageVerdict:
        """The verdict on a stage of another compile; `values` are those of its elided constants by name."""
        return self._check(text, values if elided.ELIDED_MARK in text else {})

    def alone(self, number: int, earlier: int) -> StageVerdict:
        """The verdict on what a stage changed, on the values that the stage before it computes."""
        self.relative_to(earlier)
        try:
            return self._check(self._texts[number](), self._values(number))
        finally:
            self._before, self._before_values = "", {}

    def relative_to(self, earlier: int) -> None:
        """From now on, where bounds have to be wide, look at what is changed since a stage, on that stage's values."""
        self._before, self._before_values = self._texts[earlier](), dict(self._values(earlier))

    def hybrid(self, found: Alignment, chosen: Sequence[Border], earlier: int, number: int) -> Outcome:
        """What the later stage computes with some of its changes put back."""
        return self.mixed(lambda: put_back(found, chosen), self._of_both(earlier, number))

    def lines(self, found: Alignment, chosen: Sequence[Line], earlier: int, number: int) -> Outcome:
        """What the later stage computes with some of its lines as they were."""
        return self.mixed(lambda: take_back(found, chosen), self._of_both(earlier, number))

    def mixed(self, make: Callable[[], Hybrid], values: Mapping[str, Array]) -> Outcome:
        """What a module made of two stages computes; `values` are those of elided constants by name."""
        try:
            mixed = make()
            text = print_module(mixed.module)
        except InternalError as error:
            return Outcome("unknown", f"cannot be put back: {error}")
        taken = {name: values[old] for name, old in mixed.borrowed.items() if old in values}
        verdict = self._check(text, {**values, **taken})
        if verdict.status == NOT_EVALUATED:
            return Outcome("unknown", verdict.reason)
        return Outcome("wrong", verdict.reason) if verdict.status == DIFFERS else Outcome("right")

    def seen(self, module: HloModule, values: Mapping[str, Array]) -> Seen | None:
        """The values of a module's instructions in one run; None where it runs on several devices, or not at all."""
        if module.num_partitions * module.replica_count > 1:
            return None
        seen = Seen()
        if len(module.entry.parameters) == len(self.inputs):
            seen.parameters = dict(zip(module.entry.parameters, self.inputs, strict=True))
        if not self.watch(module, values, self.inputs, seen.observe):
            return None
        return seen

    def watch(
        self,
        module: HloModule,
        values: Mapping[str, Array],
        inputs: Sequence[Array],
        observer: Callable[[HloInstruction, Value], None],
    ) -> bool:
        """Run a module on inputs with an observer; False where it cannot be evaluated."""
        options = replace(evaluation(self._options, values), observer=observer)
        try:
            run_stage(module, replace(self._program, inputs=tuple(inputs)), options=options)
        except HloscopeError:
            return False
        return True

    def seen_of(self, number: int, flat: Flat) -> Seen | None:
        """The values of a stage that was laid open."""
        return self.seen(flat.module, self.moved(number, flat))

    def moved(self, number: int, flat: Flat) -> dict[str, Array]:
        """Values of a stage's elided constants, by their names where it was laid open, too."""
        known = self.constants(number)
        return {**known, **{new: known[old] for new, old in flat.names.items() if old in known}}

    def constants(self, number: int) -> Mapping[str, Array]:
        """Values of a stage's elided constants by name."""
        return self._values(number)

    def _of_both(self, earlier: int, number: int) -> Mapping[str, Array]:
        return {**self._values(earlier), **self._values(number)}

    def _check(self, text: str, values: Mapping[str, Array]) -> StageVerdict:
        return self._check_all([(text, values)])[0]

    def _check_all(self, asked: Sequence[tuple[str, Mapping[str, Array]]]) -> list[StageVerdict]:
        reference = Path(self._reference).read_bytes() if self._prober.cluster else None
        cache, before, known = str(self._cache), self._before, self._before_values
        tasks = [
            StageProbe(
                StageTask(
                    text, self._reference, self._options, cache, dict(values), before=before, before_values=known
                ),
                self._key,
                reference,
            )
            for text, values in asked
        ]
        return [verdict_of(one) for one in self._prober.ask(tasks)]

    def _values(self, number: int) -> Mapping[str, Array]:
        """Values of a stage's elided constants; what no stage tells is drawn by the seed."""
        known = self._constants.get(number)
        if known is None:
            told = elided.known_in(self._texts, number, self._options.seed)
            parsed = load_module(self._texts[number]())
            drawn = elided.resolve(parsed, None, {}, self._options.seed).values
            known = self._constants[number] = {**drawn, **told}
        return known
