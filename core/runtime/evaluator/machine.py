"""Computations planned once and run many times.

A plan is a list of steps: a kernel, the slots of its operands, the slot of its value, and the slots that nobody reads
afterwards, which are emptied. Planning a computation plans what it calls, so that an instruction that cannot be
evaluated is found before anything has been computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import EvaluationError
from hloscope.core.runtime.evaluator import conversion, dynamic
from hloscope.core.runtime.evaluator.memory import CUT_POINTS, available_memory, in_words
from hloscope.core.runtime.evaluator.noise import disturbance
from hloscope.core.runtime.evaluator.random_bits import generator
from hloscope.core.runtime.evaluator.table import KERNELS, SHAPELESS
from hloscope.core.runtime.evaluator.values import (
    TOKEN,
    Array,
    EvaluationOptions,
    InstructionFailed,
    InstructionUnsupported,
    Kernel,
    TooLargeError,
    Value,
    describe,
    elided_error,
    pack,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.literal import Literal
    from hloscope.core.hlo.shape import Shape

# Opcodes whose values are views of an operand, or of nothing much: they take no memory of their own.
_VIEWS = frozenset(
    {
        "add-dependency",
        "after-all",
        "bitcast",
        "broadcast",
        "constant",
        "copy",
        "get-tuple-element",
        "iota",
        "opt-barrier",
        "parameter",
        "reshape",
        "reverse",
        "slice",
        "transpose",
        "tuple",
    }
)


@dataclass(slots=True)
class Step:
    """One instruction, ready to run."""

    instruction: HloInstruction
    kernel: Kernel
    operands: tuple[int, ...]
    slot: int
    dead: tuple[int, ...]
    """Slots that are not read after this step."""
    dimensions: tuple[int, ...] | None
    """What the text says of the result's dimensions; None for tuples and tokens."""
    dtype: np.dtype[np.generic] | None = None
    """The element type's dtype; None for tuples and tokens."""
    disturb: Kernel | None = None
    """Moves the result by a rounding error, where the run asks for that."""


@dataclass(slots=True)
class Plan:
    """A computation, ready to run."""

    steps: list[Step]
    template: list[Value | None]
    """Values at the start: constants in their slots, None elsewhere."""
    parameters: list[int | None]
    """Slot of each parameter; None where nobody reads it."""
    root: int
    peak_bytes: int
    """Most bytes alive at one time in this computation and what it calls, arguments not counted."""
    peak_at: str = ""
    """Name of the instruction at which that is."""


@dataclass(slots=True)
class _Needs:
    """Operands of steps in order and when each value is read last."""

    order: list[HloInstruction]
    last: dict[HloInstruction, HloInstruction] = field(default_factory=dict)


class Evaluator:
    """One run: options, plans and counters. Plans are kept as long as their computations do not change."""

    def __init__(self, options: EvaluationOptions | None = None) -> None:
        self._options = options or EvaluationOptions()
        self._plans: dict[HloComputation, tuple[int, Plan]] = {}
        self._steps = 0
        self._planning: set[HloComputation] = set()
        noise = self._options.noise
        self._noise = None if noise is None else np.random.default_rng(noise)

    @property
    def options(self) -> EvaluationOptions:
        """The options of the run."""
        return self._options

    def count_step(self, instruction: HloInstruction) -> None:
        """Count one loop iteration. Raises EvaluationError past the limit."""
        self._steps += 1
        if self._steps > self._options.step_limit:
            raise InstructionFailed(
                instruction, f"gave up after {self._options.step_limit:,} iterations (the step limit, --step-limit)"
            )

    # ---------------------------------------------------------------- planning
    def plan(self, computation: HloComputation) -> Plan:
        """The plan of a computation, made on first use. Raises UnsupportedError, EvaluationError."""
        known = self._plans.get(computation)
        if known is not None and known[0] == computation.version:
            return known[1]
        if computation in self._planning:
            raise EvaluationError(f"computation {computation.name} calls itself")
        self._planning.add(computation)
        try:
            plan = self._make(computation)
        finally:
            self._planning.discard(computation)
        self._plans[computation] = (computation.version, plan)
        return plan

    def _make(self, computation: HloComputation) -> Plan:
        needs = _needed(computation)
        slots = {node: i for i, node in enumerate(needs.order)}
        template: list[Value | None] = [None] * len(slots)
        parameters: list[int | None] = [slots.get(p) for p in computation.parameters]
        dead: dict[HloInstruction, list[int]] = {}
        for node, reader in needs.last.items():
            if node.opcode != "constant":
                dead.setdefault(reader, []).append(slots[node])
        steps: list[Step] = []
        alive = peak = 0
        peak_at = ""
        sizes: dict[int, int] = {}
        for node in needs.order:
            slot = slots[node]
            if node.opcode == "parameter":
                continue
            if node.opcode == "constant":
                template[slot] = self._constant(node, node.literal, node.shape)
                continue
            step = Step(
                node,
                self.prepare(node),
                tuple(slots[o] for o in node.operands),
                slot,
                tuple(dead.get(node, ())),
                node.shape.dimensions if node.shape.is_array else None,
                node.shape.type.dtype if node.shape.is_array else None,
                None if self._noise is None else disturbance(node.opcode, node.shape, self._noise),
            )
            steps.append(step)
            own = 0 if node.opcode in _VIEWS else _bytes(node.shape)
            sizes[slot] = own
            alive += own
            inner = max((self._plans[c][1].peak_bytes for c in node.called_computations if c in self._plans), default=0)
            if alive + inner > peak:
                peak, peak_at = alive + inner, node.name
            alive -= sum(sizes.get(s, 0) for s in step.dead)
        return Plan(steps, template, parameters, slots[computation.root], peak, peak_at)

    def prepare(self, instruction: HloInstruction) -> Kernel:
        """The kernel of one instruction. Raises UnsupportedError, EvaluationError."""
        prepare = KERNELS.get(instruction.opcode)
        if prepare is None:
            raise InstructionUnsupported(instruction)
        for operand in (instruction, *instruction.operands):
            for _, leaf in operand.shape.leaves():
                if leaf.is_array and leaf.type.numpy_name is None:
                    raise InstructionUnsupported(instruction, f"of element type {leaf.element_type}")
                if leaf.is_array and leaf.is_unbounded:
                    raise InstructionUnsupported(instruction, f"of the unbounded shape {leaf.to_text(layout=False)}")
        return dynamic.wrap(instruction, prepare(instruction, self), SHAPELESS)

    def _constant(self, node: HloInstruction, literal: Literal, shape: Shape) -> Value:
        if shape.is_tuple:
            parts = zip(literal.elements, shape.tuple_shapes, strict=True)
            return tuple(self._constant(node, part, sub) for part, sub in parts)
        if not shape.is_array:
            return TOKEN
        if literal.values is not None:
            return literal.values
        elided = self._options.elided
        if callable(elided):
            return np.asarray(elided(node))
        if elided == "random":
            from hloscope.core.runtime.inputs import random_array

            return random_array(shape, generator(node, self))
        raise elided_error(node)

    # ---------------------------------------------------------------- running
    def run(self, plan: Plan, arguments: Sequence[Value]) -> Value:
        """The root's value for the parameters' values."""
        values = plan.template.copy()
        for slot, argument in zip(plan.parameters, arguments, strict=True):
            if slot is not None:
                values[slot] = argument
        observer, substitute = self._options.observer, self._options.substitute
        for step in plan.steps:
            try:
                value = step.kernel(*[values[i] for i in step.operands])
            except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError) as error:
                raise InstructionFailed(step.instruction, _one_line(error)) from error
            except MemoryError as error:
                raise InstructionUnsupported(step.instruction, "ran out of memory") from error
            if step.dimensions is not None:
                if not isinstance(value, np.ndarray):
                    value = np.asarray(value)
                if value.dtype != step.dtype:
                    # Precision passes leave a text in which a type changes without a convert: the border converts.
                    value = _as_type(value, step.instruction.shape)
                if value.shape != step.dimensions:
                    said = step.instruction.shape.to_text(layout=False)
                    raise InstructionFailed(step.instruction, f"computes {describe(value)}, its shape says {said}")
            if step.disturb is not None:
                value = step.disturb(value)
            if substitute is not None:
                value = substitute(step.instruction, value)
            values[step.slot] = value
            if observer is not None:
                observer(step.instruction, value)
            for slot in step.dead:
                values[slot] = None
        result = values[plan.root]
        if result is None:
            raise EvaluationError("the computation has no value")
        return result

    def function(self, computation: HloComputation) -> Kernel:
        """The computation as a function of its parameters' values."""
        plan = self.plan(computation)
        return lambda *arguments: self.run(plan, arguments)

    def elementwise(self, computation: HloComputation) -> Kernel:
        """A computation on scalars as a function of arrays that broadcast together; result leaves have their shape."""
        if not _runs_on_arrays(computation):
            return self._one_by_one(computation)
        plan = self.plan(computation)
        # Scalars in the text; any common shape here.
        free = Plan(
            [
                Step(s.instruction, _free_kernel(s), s.operands, s.slot, s.dead, None, None, s.disturb)
                for s in plan.steps
            ],
            plan.template,
            plan.parameters,
            plan.root,
            plan.peak_bytes,
        )

        def kernel(*arguments: Array) -> Value:
            shape = np.broadcast_shapes(*(a.shape for a in arguments))
            value = self.run(free, arguments)
            if isinstance(value, tuple):
                return tuple(np.broadcast_to(np.asarray(v), shape) for v in value)
            return np.broadcast_to(np.asarray(value), shape)

        return kernel

    def _one_by_one(self, computation: HloComputation) -> Kernel:
        function = self.function(computation)
        shape = computation.root.shape
        outputs = [leaf for _, leaf in shape.leaves()]

        def kernel(*arguments: Array) -> Value:
            together = np.broadcast_shapes(*(a.shape for a in arguments))
            spread = [np.broadcast_to(a, together) for a in arguments]
            out = [np.empty(together, leaf.type.dtype) for leaf in outputs]
            for index in np.ndindex(*together):
                value = function(*(np.asarray(a[index]) for a in spread))
                for target, part in zip(out, value if isinstance(value, tuple) else (value,), strict=True):
                    target[index] = part
            parts: Iterator[Value] = iter(out)
            return pack(shape, parts)

        return kernel

    def check_memory(self, plan: Plan, arguments: int) -> None:
        """Compare the estimate with the limit. Raises UnsupportedError with both figures."""
        limit = self._options.memory_limit
        if limit is None:
            limit = available_memory() * 4 // 5
        needed = plan.peak_bytes + arguments
        if needed > limit:
            where = f"most of it at %{plan.peak_at}"
            raise TooLargeError(
                f"evaluating this takes about {in_words(needed)} ({where}), {in_words(limit)} are free", hint=CUT_POINTS
            )


def _as_type(value: Array, shape: Shape) -> Array:
    from hloscope.core.hlo.element_types import from_dtype

    return conversion.converter(from_dtype(value.dtype), shape.type)(value)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _needed(computation: HloComputation) -> _Needs:
    """What the root needs and what the world outside sees, operands first, and the last reader of each value."""
    wanted: set[HloInstruction] = set()
    stack = [computation.root, *(node for node in computation if _has_effect(node))]
    while stack:
        node = stack.pop()
        if node not in wanted:
            wanted.add(node)
            stack.extend(node.operands)
    needs = _Needs([node for node in _in_order(computation) if node in wanted])
    for node in needs.order:
        for operand in node.operands:
            needs.last[operand] = node
    needs.last.pop(computation.root, None)
    return needs


_EFFECTS = frozenset({"outfeed", "send"})
_CONTROL = frozenset({"async-start", "call", "conditional", "while"})


def _has_effect(node: HloInstruction) -> bool:
    """Whether it sends something away, itself or in what it calls."""
    if node.opcode in _CONTROL:
        return any(_has_effect(inner) for computation in node.called_computations for inner in computation)
    return node.opcode in _EFFECTS


def _in_order(computation: HloComputation) -> Sequence[HloInstruction]:
    """The list order where it has operands before users (every text does), else a post order."""
    seen: set[HloInstruction] = set()
    for node in computation:
        if any(operand not in seen for operand in node.operands):
            return computation.post_order()
        seen.add(node)
    return computation.instructions


_IDENTITIES = frozenset({"broadcast", "reshape", "transpose"})
"""Opcodes that leave a scalar as it is; passes leave them in comparators."""


def _free_kernel(step: Step) -> Kernel:
    """The kernel of a step on scalars, for arrays of any shape."""
    return (lambda value: value) if step.instruction.opcode in _IDENTITIES else step.kernel


def _runs_on_arrays(computation: HloComputation) -> bool:
    for node in computation:
        if any(not leaf.is_scalar for _, leaf in node.shape.leaves()):
            return False
        if node.opcode not in SHAPELESS and node.opcode not in ("parameter", "constant", "bitcast", *_IDENTITIES):
            return False
        if node.opcode in ("bitcast", "bitcast-convert") and node.shape.type.bits != node.operand(0).shape.type.bits:
            return False
    return True


def _bytes(shape: Shape) -> int:
    return sum(leaf.element_count * leaf.type.dtype.itemsize for _, leaf in shape.leaves() if leaf.is_array)
