"""Where one element of a result comes from: the values that fed it, step by step back towards the inputs.

At every step the operand's element is followed that differs most from the instruction of the same name in another
stage; where none is known to differ, the largest one. Elements that are only moved are found by moving their positions
instead of their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import EvaluationError, HloscopeError
from hloscope.core.runtime.evaluator import EvaluationOptions, Evaluator, conversion, elementwise, layout
from hloscope.core.runtime.evaluator.memory import available_memory
from hloscope.core.runtime.evaluator.values import Array, Value
from hloscope.core.runtime.stage import Program, arguments_of, run_stage

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule

MOST_STEPS = 24
"""Steps of a path; longer ones are cut."""
Index = tuple[int, ...]

# Opcodes that only move elements, and which of their operands hold them.
_MOVED: Mapping[str, tuple[int, ...] | None] = {
    "broadcast": (0,), "concatenate": None, "copy": (0,), "dynamic-slice": (0,), "dynamic-update-slice": (0, 1),
    "gather": (0,), "pad": (0, 1), "reshape": (0,), "reverse": (0,), "slice": (0,), "transpose": (0,),
}  # fmt: skip
_SAME_PLACE = frozenset({*elementwise.TABLE, *conversion.TABLE}) - {"bitcast-convert"}
_CALLS = frozenset({"fusion", "call"})


@dataclass(frozen=True, slots=True)
class Step:
    """One element on the way."""

    name: str
    opcode: str
    index: Index
    value: str
    other: str | None = None
    """The element of the instruction of the same name and shape in the other stage; None where there is none."""


@dataclass(slots=True)
class Recorded:
    """The values of one run of a stage."""

    module: HloModule
    arguments: Sequence[Value]
    values: dict[HloInstruction, Value] = field(default_factory=dict)

    @staticmethod
    def of(module: HloModule, program: Program, options: EvaluationOptions) -> Recorded:
        """Run a stage and keep what its instructions compute. Raises as `run_stage` does, EvaluationError where the
        values do not fit into memory."""
        found = Recorded(module, arguments_of(module, program))
        limit, taken = available_memory() // 4, 0

        def observe(node: HloInstruction, value: Value) -> None:
            nonlocal taken
            if isinstance(value, np.ndarray):
                taken += value.nbytes
            if taken > limit:
                raise EvaluationError("the values of this stage do not fit into memory together")
            found.values[node] = value

        run_stage(module, program, options=replace(options, observer=observe))
        return found

    def named(self) -> dict[str, Array]:
        """The arrays of the instructions by name."""
        return {node.name: value for node, value in self.values.items() if isinstance(value, np.ndarray)}


def path_of(run: Recorded, output: int, index: Index, other: Mapping[str, Array]) -> list[Step]:
    """The elements that fed one element of a flattened result, from it backwards."""
    return _Walk(run, other).path(output, index)


class _Walk:
    def __init__(self, run: Recorded, other: Mapping[str, Array]) -> None:
        self._run = run
        self._other = other
        self._callers: list[HloInstruction] = []
        self._evaluator = Evaluator(EvaluationOptions())

    def path(self, output: int, index: Index) -> list[Step]:
        root = self._run.module.entry.root
        node = root.operand(output) if root.opcode == "tuple" and output < root.operand_count else root
        out: list[Step] = []
        here: tuple[HloInstruction, Index] | None = (node, index)
        while here is not None and len(out) < MOST_STEPS:
            here = self._through_calls(*here)
            if here is None:
                break
            node, index = here
            out.append(self._step(node, index))
            here = self._next(node, index)
        return out

    def _through_calls(self, node: HloInstruction, index: Index) -> tuple[HloInstruction, Index] | None:
        """The instruction that makes an element: inside of a fusion, its root; of its parameter, the operand."""
        while True:
            if node.opcode in _CALLS and node.shape.is_array:
                self._callers.append(node)
                node = node.callee().root
            elif node.opcode == "get-tuple-element":
                place, source = int(node.attr("index") or 0), node.operand(0)
                if source.opcode in _CALLS:
                    self._callers.append(source)
                    source = source.callee().root
                if source.opcode != "tuple":
                    return node, index
                node = source.operand(place)
            elif node.opcode == "parameter" and self._callers:
                node = self._callers.pop().operand(node.parameter_number)
            else:
                return node, index

    def _value(self, node: HloInstruction) -> Value | None:
        if node.opcode == "parameter" and not self._callers:
            return self._run.arguments[node.parameter_number]
        if node.opcode == "parameter":
            caller = self._callers.pop()
            try:
                return self._value(caller.operand(node.parameter_number))
            finally:
                self._callers.append(caller)
        if node.opcode == "constant" and node.shape.is_array and not node.literal.is_elided:
            return node.literal.array()
        return self._run.values.get(node)

    def _step(self, node: HloInstruction, index: Index) -> Step:
        value, other = self._value(node), self._other.get(node.name)
        shown = str(value[index]) if isinstance(value, np.ndarray) and value.ndim == len(index) else "?"
        fits = other is not None and isinstance(value, np.ndarray) and other.shape == value.shape
        return Step(node.name, node.opcode, index, shown, str(other[index]) if fits and other is not None else None)

    def _next(self, node: HloInstruction, index: Index) -> tuple[HloInstruction, Index] | None:
        best: tuple[tuple[float, float], HloInstruction, Index] | None = None
        for operand, place in self._sources(node, index):
            value = self._value(operand)
            if not isinstance(value, np.ndarray) or operand.opcode in ("constant", "iota"):
                continue
            weight = self._weight(operand, value, place)
            if best is None or weight > best[0]:
                best = (weight, operand, place)
        return None if best is None else (best[1], best[2])

    def _weight(self, node: HloInstruction, value: Array, index: Index) -> tuple[float, float]:
        """How far an element is from the other stage's, relative to its size, and its size."""
        mine = complex(value[index])
        other = self._other.get(node.name)
        if other is None or other.shape != value.shape:
            return (0.0, abs(mine))
        theirs = complex(other[index])
        if mine == theirs or (mine != mine and theirs != theirs):
            return (0.0, abs(mine))
        size = max(abs(mine), abs(theirs))
        far = abs(mine - theirs) / size if size else 0.0
        return (far if far == far else float("inf"), abs(mine))

    # ---------------------------------------------------------------- from one element to those that it is made of
    def _sources(self, node: HloInstruction, index: Index) -> list[tuple[HloInstruction, Index]]:
        if node.opcode == "select":
            chosen = self._value(node.operand(0))
            if isinstance(chosen, np.ndarray):
                taken = bool(chosen[index] if chosen.ndim else chosen[()])
                return [(node.operand(1 if taken else 2), index)]
        if node.opcode in _SAME_PLACE:
            return [(o, index if o.shape.rank == node.shape.rank else ()) for o in node.operands]
        if node.opcode in _MOVED:
            return self._moved(node, index)
        if node.opcode == "bitcast" and node.shape.type == node.operand(0).shape.type:
            source = node.operand(0)
            ids = np.arange(source.shape.element_count).reshape(source.shape.dimensions)
            moved = layout.from_physical(layout.to_physical(ids, source.shape), node.shape)
            return [(source, _unravelled(int(moved[index]), source))]
        if node.opcode == "reduce" and node.operand_count == 2:
            return self._reduced(node, index)
        if node.opcode == "dot":
            return self._multiplied(node, index)
        return []

    def _moved(self, node: HloInstruction, index: Index) -> list[tuple[HloInstruction, Index]]:
        which = _MOVED[node.opcode]
        holders = range(node.operand_count) if which is None else which
        start: dict[int, int] = {}
        total = 0
        operands: list[Value] = []
        for number, operand in enumerate(node.operands):
            if number in holders:
                count = operand.shape.element_count
                operands.append(np.arange(total, total + count).reshape(operand.shape.dimensions))
                start[number] = total
                total += count
                continue
            value = self._value(operand)
            if value is None:
                return []
            operands.append(value)
        found = np.asarray(self._evaluator.prepare(node)(*operands))[index]
        number = max((n for n in start if start[n] <= int(found)), key=lambda n: start[n])
        source = node.operand(number)
        return [(source, _unravelled(int(found) - start[number], source))]

    def _reduced(self, node: HloInstruction, index: Index) -> list[tuple[HloInstruction, Index]]:
        source = node.operand(0)
        value = self._value(source)
        if not isinstance(value, np.ndarray) or not value.size:
            return []
        kept = iter(index)
        place = [slice(None) if d in node.dimensions else next(kept) for d in range(value.ndim)]
        part, other = value[tuple(place)], self._other.get(source.name)
        far = np.zeros(part.shape)
        if other is not None and other.shape == value.shape:
            far = np.abs(part.astype(np.complex128) - other[tuple(place)].astype(np.complex128))
        if not np.nan_to_num(far).any():
            far = np.abs(part.astype(np.complex128))
        most = iter(np.unravel_index(int(np.argmax(np.nan_to_num(far, nan=np.inf))), part.shape))
        return [(source, tuple(int(next(most)) if isinstance(p, slice) else p for p in place))]

    def _multiplied(self, node: HloInstruction, index: Index) -> list[tuple[HloInstruction, Index]]:
        """The largest product of a dot's sum, by both factors."""
        sides: list[tuple[HloInstruction, Array, list[int]]] = []
        at = len(node.attr("lhs_batch_dims") or ())
        for number, side in enumerate(("lhs", "rhs")):
            operand = node.operand(number)
            value = self._value(operand)
            if not isinstance(value, np.ndarray):
                return []
            batch: list[int] = list(node.attr(f"{side}_batch_dims") or ())
            contracted: list[int] = list(node.attr(f"{side}_contracting_dims") or ())
            place: list[int | slice] = [slice(None)] * value.ndim
            for number_of_batch, dim in enumerate(batch):
                place[dim] = index[number_of_batch]
            for dim in range(value.ndim):
                if dim not in batch and dim not in contracted:
                    place[dim] = index[at]
                    at += 1
            part = value[tuple(place)].astype(np.complex128)
            order = np.argsort(np.argsort(contracted)) if contracted else []
            sides.append(
                (operand, part.transpose([int(d) for d in order]), [-1 if isinstance(p, slice) else p for p in place])
            )
        product = np.nan_to_num(np.abs(sides[0][1] * sides[1][1]), nan=np.inf)
        if not product.size:
            return []
        most = [int(d) for d in np.unravel_index(int(np.argmax(product)), product.shape)]
        out: list[tuple[HloInstruction, Index]] = []
        for side, (operand, _, found) in zip(("lhs", "rhs"), sides, strict=True):
            for number, dim in enumerate(node.attr(f"{side}_contracting_dims") or ()):
                found[dim] = most[number]
            out.append((operand, tuple(found)))
        return out


def _unravelled(flat: int, node: HloInstruction) -> Index:
    return tuple(int(d) for d in np.unravel_index(flat, node.shape.dimensions)) if node.shape.rank else ()


def trace(
    stage: HloModule, first: HloModule, program: Program, options: tuple[EvaluationOptions, EvaluationOptions],
    output: int, index: Index,
) -> list[Step]:  # fmt: skip
    """The path of one element of a stage's result, beside the values of the first stage. Empty where it cannot be
    followed: on several devices, or where the values do not fit into memory."""
    if any(module.num_partitions * module.replica_count > 1 for module in (stage, first)):
        return []
    try:
        run = Recorded.of(stage, program, options[0])
        other = Recorded.of(first, program, options[1])
        return path_of(run, output, index, other.named())
    except HloscopeError:
        return []
