"""Must-alias analysis: values that have to share memory form one buffer.

A loop's state stays in place from the initial value through every iteration, the branches of a conditional write one
result, an in-place instruction writes over its operand, and a donated parameter is the output's memory.
Source: ``openxla/xla:xla/hlo/analysis/hlo_alias_analysis.cc``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hloscope.core.analysis.alias_info import AliasInfo, Hint
from hloscope.core.analysis.alias_sharing import can_share
from hloscope.core.analysis.dataflow import DataflowAnalysis
from hloscope.core.errors import VerifyError
from hloscope.core.hlo.verifier.module_rules import EntryAlias, entry_aliases

if TYPE_CHECKING:
    from hloscope.core.analysis.dataflow_values import HloValue
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import ShapeIndex


@dataclass(eq=False, slots=True)
class HloBuffer:
    """Values that share memory."""

    id: int
    values: list[HloValue]
    """By number."""

    def __str__(self) -> str:
        return " ".join(value.short() for value in self.values)


def input_output_aliases(module: HloModule) -> Sequence[EntryAlias]:
    """The header's donations that the compiler took. Raises VerifyError where the header cannot be read."""
    text = module.attrs.get("input_output_alias")
    if text is None:
        return ()
    found = entry_aliases(text)
    if found is None:
        raise VerifyError(f"module {module.name}: input_output_alias cannot be read")
    count = len(module.entry.parameters)
    for one in found:
        if not 0 <= one.parameter < count:
            raise VerifyError(f"module {module.name} donates parameter {one.parameter}; its entry has {count}")
    return found


class AliasAnalysis:
    """The buffers of a module as it was when this was made."""

    def __init__(
        self,
        module: HloModule,
        info: AliasInfo | None = None,
        computation_order: Sequence[HloComputation] | None = None,
    ) -> None:
        self.module = module
        self.info = AliasInfo() if info is None else info
        self.dataflow = DataflowAnalysis(module, computation_order)
        self.aliases = input_output_aliases(module)
        self._aliased_parameters = {(one.parameter, one.parameter_index) for one in self.aliases}
        self._shares: dict[tuple[HloInstruction, ShapeIndex, HloInstruction, ShapeIndex], Hint] = {}
        self.buffers = self._merge()
        """Every buffer by number."""
        self._buffer_of = {value: buffer for buffer in self.buffers for value in buffer.values}

    def buffer_of(self, value: HloValue) -> HloBuffer:
        """The buffer that holds a value."""
        return self._buffer_of[value]

    def buffers_at(self, instruction: HloInstruction, index: ShapeIndex = ()) -> list[HloBuffer]:
        """The buffers that a position may be in, by number, each once."""
        found = {self._buffer_of[value] for value in self.dataflow.value_set(instruction, index)}
        return sorted(found, key=lambda one: one.id)

    def is_aliased_parameter(self, number: int, index: ShapeIndex) -> bool:
        """Whether an entry parameter's part is donated to an output."""
        return (number, index) in self._aliased_parameters

    def is_entry_parameter(self, value: HloValue) -> bool:
        """Whether a value comes in through the entry computation."""
        return value.instruction.opcode == "parameter" and value.instruction.parent is self.module.entry

    def is_read_only(self, value: HloValue) -> bool:
        """Whether nothing may be written over a value: a constant, or an entry parameter that is not donated."""
        if value.instruction.opcode == "constant":
            return True
        number = value.instruction.parameter_number if self.is_entry_parameter(value) else None
        return number is not None and not self.is_aliased_parameter(number, value.index)

    @cached_property
    def live_out(self) -> frozenset[HloBuffer]:
        """The buffers that the program gives back."""
        root = self.module.entry.root
        sets = self.dataflow.sets(root)
        return frozenset(self._buffer_of[value] for values in sets.values() for value in values)

    def sharing(
        self, operand: HloInstruction, operand_index: ShapeIndex, user: HloInstruction, user_index: ShapeIndex
    ) -> Hint:
        """Whether `user` may write a part of its result over a part of its operand; kept until this is dropped."""
        key = (operand, operand_index, user, user_index)
        found = self._shares.get(key)
        if found is None:
            found = self._shares[key] = can_share(self.dataflow, self.info, operand, operand_index, user, user_index)
        return found

    # ---------------------------------------------------------------- merging
    def _merge(self) -> list[HloBuffer]:
        owner = {value: place for place, value in enumerate(self.dataflow.values)}
        groups: list[list[HloValue]] = [[value] for value in self.dataflow.values]
        for value in self.dataflow.values:
            together = {value, *self._must_alias(value)}
            if len(together) < 2:
                continue
            places = sorted({owner[one] for one in together})
            # XLA keeps the largest set, and among equals the one found through the lowest-numbered value.
            lowest = {place: min(one.id for one in together if owner[one] == place) for place in places}
            target = max(places, key=lambda place: (len(groups[place]), -lowest[place]))
            for place in places:
                if place != target:
                    for one in groups[place]:
                        owner[one] = target
                    groups[target].extend(groups[place])
                    groups[place] = []
        kept = [sorted(group, key=lambda value: value.id) for group in groups if group]
        return [HloBuffer(number, group) for number, group in enumerate(kept)]

    def _must_alias(self, value: HloValue) -> Iterator[HloValue]:
        flow = self.dataflow
        for node, index in value.positions:
            for pair in self.info.in_place_pairs(node):
                if pair.output_index == index:
                    yield from flow.value_set(node.operand(pair.operand), pair.operand_index)
            if not node.is_root:
                continue
            if node.parent is self.module.entry:
                yield from self._donated(index)
            for caller in flow.callers(node.parent):
                if caller.opcode == "conditional":
                    yield from flow.value_set(caller, index)
                elif caller.opcode == "while" and caller.callee("body") is node.parent:
                    yield from flow.value_set(caller, index)
        for use in value.uses:
            if use.instruction.opcode == "while":
                yield from flow.value_set(use.instruction, use.operand_index)
            for pair in self.info.in_place_pairs(use.instruction):
                if (pair.operand, pair.operand_index) == (use.operand, use.operand_index):
                    yield from flow.value_set(use.instruction, pair.output_index)
        if value.instruction.opcode == "parameter":
            for caller in flow.callers(value.instruction.parent):
                if caller.opcode == "while":
                    yield from flow.value_set(caller, value.index)

    def _donated(self, index: ShapeIndex) -> Iterator[HloValue]:
        for one in self.aliases:
            if one.output_index == index:
                parameter = self.module.entry.parameters[one.parameter]
                yield from self.dataflow.value_set(parameter, one.parameter_index)
