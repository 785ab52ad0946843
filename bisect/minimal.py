"""The guilty computation of a stage alone: what it computes, and what the stage before computed there.

Both are cut at the same values: what the two stages have in common below the culprit becomes the parameters, with the
values of the run that showed the fault. The two texts are modules of a few instructions, without layouts, so that any
back end runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hloscope.bisect.narrow import Pairs, differing_turn
from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.module import HloModule
from hloscope.core.runtime.compare import compare, rules_for
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.text import load_module, print_module

if TYPE_CHECKING:
    from hloscope.bisect.putback import Border
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.runtime.evaluator import Array

MOST_NODES = 64
"""Instructions of one of the two; of more they are not minimal."""
MOST_ELEMENTS = 1 << 22
"""Elements of all parameters together."""
_REPEATED = frozenset({"constant", "iota"})
"""Cheap to compute again: no parameter stands for them."""
_NO_TEXT = ("metadata", "frontend_attributes", "sharding", "backend_config", "origin", "statistics")


@dataclass(frozen=True, slots=True)
class Minimal:
    """Two small modules, and what they are run on and give."""

    before: str
    after: str
    inputs: list[Array]
    expected: list[Array]
    """What the one of the stage before gives."""
    actual: list[Array]
    instructions: int
    """Of the later one, with its parameters."""


def minimal_pair(pairs: Pairs, border: Border) -> Minimal | None:
    """The two computations of a border; None where they cannot be cut out, or do not differ alone."""
    turn = differing_turn(pairs, border)
    if turn is None:
        return None
    try:
        return _Cutter(pairs, border, turn).run()
    except (HloscopeError, InternalError):
        return None


class _Cutter:
    def __init__(self, pairs: Pairs, border: Border, turn: int) -> None:
        self._pairs = pairs
        self._border = border
        self._turn = turn
        self._values: list[Array] = []
        """Of the parameters, by number."""
        self._known: dict[tuple[object, ...], int] = {}

    def run(self) -> Minimal | None:
        mates = self._pairs.found.same
        fresh = self._pairs.fresh
        now = self._collect(self._border.after, lambda one: one in fresh, self._pairs.ours.of)
        was = self._collect(self._border.before, lambda one: one not in mates, self._pairs.theirs.of)
        if now is None or was is None or sum(one.size for one in self._values) > MOST_ELEMENTS:
            return None
        before, after = self._module(self._border.before, *was), self._module(self._border.after, *now)
        modules = [load_module(text) for text in (before, after)]
        expected, actual = ([_array(one) for one in evaluate(module, self._values)] for module in modules)
        if compare(expected[0], actual[0], rules_for(modules[0])).within:
            return None
        return Minimal(before, after, self._values, expected, actual, modules[1].instruction_count)

    def _collect(
        self,
        root: HloInstruction,
        inside: Callable[[HloInstruction], bool],
        values: Callable[[HloInstruction], Sequence[object]],
    ) -> tuple[list[HloInstruction], dict[HloInstruction, int]] | None:
        """The instructions of one side, operands first, and the numbers of the parameters that it is cut at."""
        order: list[HloInstruction] = []
        cut: dict[HloInstruction, int] = {}
        seen: set[HloInstruction] = set()
        stack = [(root, False)]
        while stack:
            one, ready = stack.pop()
            if ready:
                order.append(one)
                continue
            if one in seen:
                continue
            seen.add(one)
            again = one.opcode in _REPEATED and not (one.opcode == "constant" and one.literal.is_elided)
            whole = all(operand.shape.is_array for operand in one.operands)
            if one is not root and not again and (one.opcode == "parameter" or not whole or not inside(one)):
                number = self._parameter(values(one))
                if number is None:
                    return None
                cut[one] = number
                continue
            stack.append((one, True))
            stack.extend((operand, False) for operand in reversed(one.operands))
        return (order, cut) if len(order) <= MOST_NODES else None

    def _parameter(self, values: Sequence[object]) -> int | None:
        """The number of the parameter that has a value; None where it is no array."""
        value = values[self._turn if self._turn < len(values) else 0] if values else None
        if not isinstance(value, np.ndarray):
            return None
        key = (value.dtype.name, value.shape, value.tobytes())
        if key not in self._known:
            self._known[key] = len(self._values)
            self._values.append(value)
        return self._known[key]

    def _module(self, root: HloInstruction, order: Sequence[HloInstruction], cut: dict[HloInstruction, int]) -> str:
        module = HloModule("module")
        main = HloComputation("main")
        made: dict[HloInstruction, HloInstruction] = {}
        callees = _copied(module, order)
        module.add_computation(main, entry=True)
        shapes = {number: one.shape for one, number in cut.items()}
        parameters: list[HloInstruction] = []
        for number, value in enumerate(self._values):
            shape = shapes.get(number) or self._shape_of(value)
            one = HloInstruction("parameter", shape.without_layout(), name=f"p{number}", payload=str(number))
            parameters.append(main.add(one))
        made.update({one: parameters[number] for one, number in cut.items()})
        for one in order:
            if one.opcode == "bitcast":
                raise InternalError("what a bitcast does hangs on layouts")
            operands = [made[operand] for operand in one.operands]
            copy = one.clone_with(shape=one.shape.without_layout(), operands=operands)
            for key, group in one.called.items():
                copy.set_called(key, tuple(callees[callee] for callee in group))
            for key in _NO_TEXT:
                if key in copy.raw_attrs:
                    copy.set_attr(key, None)
            made[one] = main.add(copy)
        main.set_root(made[root])
        return print_module(module)

    def _shape_of(self, value: Array) -> Shape:
        """The shape of a parameter that only the other side reads."""
        for one in (*self._pairs.found.after.instructions(), *self._pairs.found.before.instructions()):
            if one.shape.is_array and one.shape.dimensions == value.shape and one.shape.type.dtype == value.dtype:
                return one.shape
        raise InternalError("no shape fits")


def _copied(module: HloModule, order: Iterable[HloInstruction]) -> dict[HloComputation, HloComputation]:
    """The computations that instructions call, copied into a module."""
    wanted = {callee for one in order for callee in one.called_computations}
    copies: dict[HloComputation, HloComputation] = {}
    if not wanted:
        return copies
    for one in next(iter(wanted)).module.post_order():
        if any(one is callee or callee.reaches(one) for callee in wanted):
            twin = HloComputation(one.name)
            module.add_computation(twin)
            one.clone_into(twin, copies)
            for node in twin:
                node.shape = node.shape.without_layout()
            copies[one] = twin
    return copies


def _array(value: object) -> Array:
    if not isinstance(value, np.ndarray):
        raise InternalError("a result that is no array")
    return value
