"""Loops and inlined bodies for expanders. Source: ``openxla/xla:xla/service/while_util.cc#MakeCountedLoop``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hloscope.core.passes.rules.base import Builder


def counted_loop(
    build: Builder,
    trips: int,
    state: Sequence[HloInstruction],
    body: Callable[[Builder, HloInstruction, list[HloInstruction]], list[HloInstruction]],
) -> list[HloInstruction]:
    """Final values of `state` after `trips` steps.

    `body` gets a builder inside the loop, the s32 number of the step and the state, and answers with the next state.
    A loop of one trip is written out without a loop.
    """
    if trips == 1:
        return body(build, build.scalar("s32", 0), list(state))
    counter = build.scalar("s32", 0)
    start = build.tuple([counter, *state])
    module = build.computation.module
    condition, loop = HloComputation("while_condition"), HloComputation("while_body")
    for computation in (condition, loop):
        module.add_computation(computation, first=True)
        computation.add(HloInstruction("parameter", start.shape, name="loop_state", payload="0"))
    inner = build.inside(condition)
    number = inner.element(condition.parameters[0], 0)
    condition.set_root(inner.compare(number, inner.scalar("s32", trips), "LT"))
    inner = build.inside(loop)
    number = inner.element(loop.parameters[0], 0)
    values = [inner.element(loop.parameters[0], i + 1) for i in range(len(state))]
    following = inner.binary("add", number, inner.scalar("s32", 1))
    loop.set_root(inner.tuple([following, *body(inner, number, values)]))
    whole = build.make("while", start.shape, [start], called={"condition": condition, "body": loop})
    return [build.element(whole, i + 1) for i in range(len(state))]


def while_loop(
    build: Builder,
    state: Sequence[HloInstruction],
    condition: Callable[[Builder, list[HloInstruction]], HloInstruction],
    body: Callable[[Builder, list[HloInstruction]], list[HloInstruction]],
) -> list[HloInstruction]:
    """Final values of `state`; both functions get a builder inside their computation and the state."""
    start = build.tuple(list(state))
    module = build.computation.module
    made = [HloComputation("while_condition"), HloComputation("while_body")]
    for computation in made:
        module.add_computation(computation, first=True)
        computation.add(HloInstruction("parameter", start.shape, name="loop_state", payload="0"))
    inner = [build.inside(computation) for computation in made]
    parts = [
        [one.element(computation.parameters[0], i) for i in range(len(state))]
        for one, computation in zip(inner, made, strict=True)
    ]
    made[0].set_root(condition(inner[0], parts[0]))
    made[1].set_root(inner[1].tuple(body(inner[1], parts[1])))
    whole = build.make("while", start.shape, [start], called={"condition": made[0], "body": made[1]})
    return [build.element(whole, i) for i in range(len(state))]


def inline_reducer(build: Builder, reducer: HloComputation, args: Sequence[HloInstruction]) -> list[HloInstruction]:
    """A computation on scalars applied to whole arrays of one shape, element by element; its results."""
    sizes = args[0].shape.dimensions
    values: dict[HloInstruction, HloInstruction] = {}
    for one in reducer.post_order():
        if one.opcode == "parameter":
            values[one] = args[one.parameter_number]
        elif one.opcode == "tuple":
            continue
        elif one.opcode == "constant":
            scalar = build.clone(one, [])
            values[one] = build.broadcast_scalar(scalar, build.shape(one.shape.element_type, sizes))
        else:
            shape = build.shape(one.shape.element_type, sizes)
            values[one] = build.clone(one, [values[operand] for operand in one.operands], shape)
    root = reducer.root
    return [values[operand] for operand in root.operands] if root.opcode == "tuple" else [values[root]]


def reducer_is_elementwise(reducer: HloComputation) -> bool:
    """Whether `inline_reducer` can apply it: scalars, elementwise operations, constants, a tuple at the root."""
    for one in reducer:
        if one.opcode == "tuple" and one.is_root:
            continue
        if not one.shape.is_scalar or one.has_side_effect:
            return False
        if one.opcode in ("parameter", "constant"):
            continue
        if not one.info.elementwise or one.opcode in ("map", "fusion"):
            return False
    return True
