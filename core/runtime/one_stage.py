"""One stage of a compile, evaluated by itself on the inputs of the whole program.

Inputs and results are whole arrays also where the stage works on blocks, on several devices: the first stage says
what the whole arrays are, the stages up to partitioning how they are cut, as in a replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import HloscopeError
from hloscope.core.runtime import elided
from hloscope.core.runtime.evaluator import EvaluationOptions, bind, leaves
from hloscope.core.runtime.inputs import check_fit, random_inputs
from hloscope.core.runtime.stage import (
    Program,
    StageRun,
    holds_whole_arrays,
    output_shardings,
    parameter_shardings,
    parameters_for,
    run_stage,
    runs_on_mesh,
    whole_parameters,
    whole_results,
)
from hloscope.core.text import load_module

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.runtime.evaluator import Array, Value

Stages = Sequence[Callable[[], str]]
"""What reads the text of each stage, in order."""


@dataclass(frozen=True, slots=True)
class OneStage:
    """A stage and what the others of its compile say about it."""

    module: HloModule
    first: HloModule
    """The first stage; the stage itself where there is no other."""
    stages: Stages
    number: int

    @staticmethod
    def of(stages: Stages, number: int, path: str = "") -> OneStage:
        """Read it. Raises ParseError."""
        module = load_module(stages[number](), path=path)
        first = module
        if number and module.num_partitions * module.replica_count > 1:
            try:
                first = load_module(stages[0](), path=path)
            except HloscopeError:
                first = module
        return OneStage(module, first, stages, number)

    def inputs(self, given: Sequence[Array] | None, seed: int) -> tuple[Array, ...]:
        """The whole inputs, leaf by leaf: the given ones, or random ones by seed.

        Raises EvaluationError naming the first parameter that a given array does not fit.
        """
        if given is None:
            shapes = [shape.static() for shape in self._parameters(())]
            check_fit(shapes)
            values = random_inputs(shapes, seed)
        else:
            arrays: list[Value] = list(given)
            values = bind([p.name for p in self.first.entry.parameters], self._parameters(given), arrays)
        return tuple(leaf for value in values for leaf in leaves(value) if isinstance(leaf, np.ndarray))

    def _parameters(self, given: Sequence[Array]) -> list[Shape]:
        if self.first is not self.module:
            return whole_parameters(self.first)
        return parameters_for(self.module, given)

    def evaluate(self, inputs: Sequence[Array], options: EvaluationOptions) -> StageRun:
        """Its whole results. Elided constants are what earlier stages have for them; `options.elided` says what is done
        about the others. Raises whatever `run_stage` raises."""
        options = replace(options, elided=self._constants(options))
        shardings = tuple(parameter_shardings(self.first))
        program = Program(tuple(inputs), shardings)
        if self.first is self.module or not runs_on_mesh(self.module):
            return run_stage(self.module, program, options=options, kernels=frozenset())
        reference: list[Array] | None = None
        if holds_whole_arrays(self.first) or not runs_on_mesh(self.first):
            spread = tuple(output_shardings(self.first, self.stages[1 : self.number]))
            program = replace(program, output_shapes=whole_results(self.first), output_shardings=spread)
            if not all(spread) and not holds_whole_arrays(self.module):
                # Nobody says how results are spread: they are compared with those of the first stage.
                first = run_stage(self.first, program, options=replace(options, elided="random"), kernels=frozenset())
                reference = first.outputs
        return run_stage(self.module, program, options=options, reference=reference, kernels=frozenset())

    def _constants(self, options: EvaluationOptions) -> str | elided.Source:
        if self.number == 0 or not elided.elided_constants(self.module):
            return options.elided
        return elided.source(elided.known_in(self.stages, self.number, options.seed), options)
