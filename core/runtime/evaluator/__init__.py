"""The reference evaluator: HLO computed with numpy, one instruction after the other.

Slow and plain on purpose: it is the arbiter of what a module means. Semantics as XLA documents and implements them;
where XLA's CPU backend and its own evaluator part, the docstring of the opcode says which one is followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import EvaluationError
from hloscope.core.runtime.evaluator.dynamic import settled
from hloscope.core.runtime.evaluator.machine import Evaluator
from hloscope.core.runtime.evaluator.values import (
    TOKEN,
    Array,
    EvaluationOptions,
    InstructionFailed,
    InstructionUnsupported,
    Token,
    Value,
    describe,
    leaves,
    pack,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape

__all__ = [
    "bind",
    "leaves",
    "TOKEN",
    "Array",
    "EvaluationOptions",
    "Evaluator",
    "InstructionFailed",
    "InstructionUnsupported",
    "Token",
    "Value",
    "evaluate",
    "evaluate_computation",
    "evaluate_instruction",
]


def evaluate(
    module: HloModule, args: Sequence[Value], *, options: EvaluationOptions | None = None
) -> list[Array | Token]:
    """The entry computation's result, its tuples flattened.

    `args` are the parameters' values, or all their leaves in order where some parameter is a tuple. Raises
    EvaluationError for arguments that do not fit, elided constants and endless loops, UnsupportedError for an
    instruction that cannot be evaluated or a module that does not fit into memory.
    """
    return list(leaves(evaluate_computation(module.entry, args, options=options)))


def evaluate_computation(
    computation: HloComputation, args: Sequence[Value], *, options: EvaluationOptions | None = None
) -> Value:
    """A computation's value for its parameters' values; errors as for `evaluate`."""
    evaluator = Evaluator(options)
    shapes = [p.shape for p in computation.parameters]
    names = [p.name for p in computation.parameters]
    values = bind(names, shapes, args)
    # Overflow, invalid operations and the like have defined results here; numpy's warnings about them do not help.
    with np.errstate(all="ignore"):
        plan = evaluator.plan(computation)
        evaluator.check_memory(plan, sum(a.nbytes for v in values for a in leaves(v) if isinstance(a, np.ndarray)))
        return settled(evaluator.run(plan, values))


def evaluate_instruction(
    instruction: HloInstruction, operands: Sequence[Value], *, options: EvaluationOptions | None = None
) -> Value:
    """The value of one instruction for its operands' values; what a constant folder needs.

    Raises UnsupportedError and EvaluationError as `evaluate` does.
    """
    evaluator = Evaluator(options)
    with np.errstate(all="ignore"):
        kernel = evaluator.prepare(instruction)
        try:
            value = kernel(*operands)
        except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError) as error:
            raise InstructionFailed(instruction, " ".join(str(error).split())) from error
    return np.asarray(value) if instruction.shape.is_array else value


def bind(names: Sequence[str], shapes: Sequence[Shape], args: Sequence[Value]) -> list[Value]:
    """Arguments checked against parameters. Raises EvaluationError naming the first parameter that does not fit."""
    flat = [leaf for shape in shapes for _, leaf in shape.leaves()]
    given: list[Value] = list(args)
    # Leaf by leaf; as many leaves as parameters say nothing where a tuple has one alone.
    packed = any(isinstance(one, tuple) for one in given) or not any(shape.is_tuple for shape in shapes)
    if len(given) == len(flat) and (len(given) != len(shapes) or not packed):
        source: Iterator[Value] = iter(given)
        given = [pack(shape, source) for shape in shapes]
    if len(given) != len(shapes):
        missing = ""
        if len(given) < len(shapes):
            missing = f"; the first one missing is {names[len(given)]} {shapes[len(given)].to_text(layout=False)}"
        raise EvaluationError(f"{len(given)} arguments for {len(shapes)} parameters{missing}")
    out: list[Value] = []
    for number, (name, shape, value) in enumerate(zip(names, shapes, given, strict=True)):
        out.append(_fit(f"argument {number} for parameter {name}", shape, value))
    return out


def _fit(what: str, shape: Shape, value: Value) -> Value:
    if shape.is_tuple:
        if not isinstance(value, tuple) or len(value) != len(shape.tuple_shapes):
            raise EvaluationError(f"{what} is {_describe(value)}, expected {shape.to_text(layout=False)}")
        return tuple(_fit(what, s, v) for s, v in zip(shape.tuple_shapes, value, strict=True))
    if not shape.is_array:
        return TOKEN
    if isinstance(value, (tuple, Token)):
        raise EvaluationError(f"{what} is {_describe(value)}, expected {shape.to_text(layout=False)}")
    array = np.asarray(value)
    if array.shape != shape.dimensions or array.dtype != shape.type.dtype:
        raise EvaluationError(f"{what} is {_describe(array)}, expected {shape.to_text(layout=False)}")
    return array


def _describe(value: Value) -> str:
    from hloscope.core.hlo.element_types import from_dtype

    if isinstance(value, np.ndarray):
        try:
            return f"{from_dtype(value.dtype).name}[{','.join(map(str, value.shape))}]"
        except TypeError:
            pass
    return describe(value)
