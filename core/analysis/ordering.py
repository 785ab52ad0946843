"""What runs before what, across computations: by dependences, or by a schedule where there is one.

Phi values have no instruction of their own: a loop's parameter counts as defined before everything in the loop, the
loop itself after. Source: ``openxla/xla:xla/hlo/analysis/hlo_ordering.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from hloscope.core.analysis.alias_sharing import can_share
from hloscope.core.analysis.dataflow import ASYNC, branches
from hloscope.core.analysis.reachability import Reachability
from hloscope.core.text.async_sugar import wrapped_computation

if TYPE_CHECKING:
    from hloscope.core.analysis.alias import AliasAnalysis
    from hloscope.core.analysis.dataflow_values import HloUse, HloValue
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction

Constraint = Literal[
    "same", "before", "before-end", "exclusive-before", "exclusive-after", "after", "unordered"
]  # fmt: skip
"""How one instruction runs relative to another. ``before-end``: before the other ends, not before it starts."""


class HloOrdering:
    """The order of a module's instructions as it was when first asked."""

    def __init__(
        self,
        analysis: AliasAnalysis,
        schedule: Mapping[HloComputation, Sequence[HloInstruction]] | None = None,
    ) -> None:
        self._analysis = analysis
        self._entry = analysis.module.entry
        self._place: dict[HloInstruction, int] | None = None
        if schedule is not None:
            self._place = {node: number for order in schedule.values() for number, node in enumerate(order)}
        self._reach: dict[HloComputation, Reachability] = {}
        self._chains: dict[HloComputation, dict[HloComputation, HloInstruction | None]] = {}

    @property
    def by_dependence(self) -> bool:
        """Whether it is told by dependences; a schedule cannot be added to."""
        return self._place is None

    def add_dependence(self, first: HloInstruction, second: HloInstruction) -> None:
        """Note a control edge that was added to the graph."""
        self._reachability(first.parent).add(first, second)

    # ---------------------------------------------------------------- instructions
    def constraint(self, a: HloInstruction, b: HloInstruction) -> Constraint:
        """How `a` runs relative to `b`."""
        if a is b or _wraps(a, b) or _wraps(b, a):
            return "same"
        pair = self._common(a, b)
        if pair is None:
            return "unordered"
        first, second = pair
        if first is second:
            if first.opcode == "while":
                inside = self.is_in(a, first.callee("condition")) and self.is_in(b, first.callee("body"))
                if inside:
                    return "before-end"
            elif first.opcode == "conditional":
                return self._branch_constraint(a, b, first)
        if self._before(first, second):
            return "before"
        return "after" if self._before(second, first) else "unordered"

    def _branch_constraint(self, a: HloInstruction, b: HloInstruction, node: HloInstruction) -> Constraint:
        inside = [
            next((number for number, one in enumerate(branches(node)) if self.is_in(each, one)), -1) for each in (a, b)
        ]
        if inside[1] < 0:
            return "before-end" if inside[0] >= 0 else "same"
        if inside[0] < 0:
            return "after"
        if inside[0] != inside[1]:
            return "exclusive-before" if inside[0] < inside[1] else "exclusive-after"
        return "unordered"

    def runs_before(self, a: HloInstruction, b: HloInstruction) -> bool:
        """Whether `a` certainly runs before `b`."""
        return self.constraint(a, b) in ("before", "before-end", "exclusive-before")

    def is_in(self, node: HloInstruction, computation: HloComputation) -> bool:
        """Whether an instruction is in a computation or in what that calls."""
        return computation in self._chain(node.parent)

    def _before(self, a: HloInstruction, b: HloInstruction) -> bool:
        if self._place is not None:
            if a.parent.root is a or a is b:
                return False
            return self._place.get(a, -1) < self._place.get(b, -1)
        reach = self._reachability(a.parent)
        return a is not b and a in reach and b in reach and reach.reaches(a, b)

    def _reachability(self, computation: HloComputation) -> Reachability:
        found = self._reach.get(computation)
        if found is None:
            found = self._reach[computation] = Reachability(computation)
        return found

    def _chain(self, computation: HloComputation) -> Mapping[HloComputation, HloInstruction | None]:
        """The computations around one, itself first, each with the instruction in it that leads down to the inner one.

        It ends where a computation has no caller or more than one.
        """
        known = self._chains.get(computation)
        if known is not None:
            return known
        found: dict[HloComputation, HloInstruction | None] = {computation: None}
        here = computation
        while len(callers := self._analysis.dataflow.callers(here)) == 1 and callers[0].parent not in found:
            found[callers[0].parent] = callers[0]
            here = callers[0].parent
        self._chains[computation] = found
        return found

    def _common(self, a: HloInstruction, b: HloInstruction) -> tuple[HloInstruction, HloInstruction] | None:
        """The instructions of one computation that hold (or are) `a` and `b`, the innermost such."""
        chain = self._chain(b.parent)
        for computation, caller in self._chain(a.parent).items():
            if computation in chain:
                return caller or a, chain[computation] or b
        return None

    # ---------------------------------------------------------------- values
    def defined_before(self, a: HloValue, b: HloValue) -> bool:
        """Whether `a` is certainly made before `b`."""
        if self._is_entry_parameter(b):
            return False
        if self._is_entry_parameter(a):
            return True
        loop_a, loop_b = _is_parameter_phi(a), _is_parameter_phi(b)
        if loop_a and not loop_b and self.is_in(b.instruction, a.instruction.parent):
            return True
        if loop_b and self.is_in(a.instruction, b.instruction.parent):
            return False
        if b.is_phi and b.instruction.opcode in ("while", "conditional"):
            inside = branches(b.instruction) if b.instruction.opcode == "conditional" else _loop(b.instruction)
            if any(self.is_in(a.instruction, one) for one in inside):
                return True
        return self.runs_before(a.instruction, b.instruction)

    def uses_before_definition(self, uses: Sequence[HloUse], value: HloValue) -> bool:
        """Whether every read in `uses` certainly comes before `value` is made, or may be at the same instruction.

        The rules for conditionals are those of jaxlib 0.10.2.
        """
        excluded = False
        for use in uses:
            answer = self._use_is_before(use, value, excluded)
            if answer is None:
                return False
            excluded |= answer == "exclusive"
        return True

    def _use_is_before(self, use: HloUse, value: HloValue, excluded: bool) -> str | None:
        reader, maker = use.instruction, value.instruction
        order = self.constraint(reader, maker)
        if order in ("before", "before-end", "exclusive-before"):
            return "before"
        if order == "same" and self._shares_at(use, value):
            return "shared"
        if order == "exclusive-after":
            return "exclusive"
        if reader.opcode == "while":
            if self.is_in(maker, reader.callee("body")):
                return "before"
            if self.is_in(maker, reader.callee("condition")):
                return "before" if maker is reader.callee("condition").parameters[0] else None
        if maker.opcode == "while" and any(self.is_in(reader, one) for one in _loop(maker)):
            return "before"
        if reader.opcode == "call" and self.is_in(maker, reader.callee("to_apply")):
            return "before"
        if reader.opcode in ASYNC:
            wrapped = wrapped_computation(reader)
            if wrapped is not None and self.is_in(maker, wrapped):
                return "before"
        if reader.opcode == "conditional":
            if any(self.is_in(maker, one) for one in branches(reader)):
                return "before" if not excluded else None
            if maker is reader:
                return "before"
        return None

    def _shares_at(self, use: HloUse, value: HloValue) -> bool:
        """Whether the instruction that reads and makes may do both in one place; the operand is the one of now."""
        reader, maker = use.instruction, value.instruction
        if reader is not maker:
            return False
        operand = reader.operand(use.operand)
        # Not the analysis' kept answer: which operand stands where has changed since.
        found = can_share(self._analysis.dataflow, self._analysis.info, operand, use.operand_index, maker, value.index)
        return found.allowed

    def _is_entry_parameter(self, value: HloValue) -> bool:
        return value.instruction.opcode == "parameter" and value.instruction.parent is self._entry


def _is_parameter_phi(value: HloValue) -> bool:
    return value.is_phi and value.instruction.opcode == "parameter"


def _loop(node: HloInstruction) -> tuple[HloComputation, HloComputation]:
    return node.callee("condition"), node.callee("body")


def _wraps(a: HloInstruction, b: HloInstruction) -> bool:
    """Whether `b` is the one instruction that the asynchronous `a` runs."""
    if a.opcode not in ASYNC:
        return False
    wrapped = wrapped_computation(a)
    return wrapped is not None and wrapped.root is b
