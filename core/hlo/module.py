"""HloModule: computations, an entry, header attributes, source tables and, once scheduled, an order.

Source: ``openxla/xla:xla/hlo/ir/hlo_module.h``, ``hlo_schedule.h``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.errors import InternalError, ParseError
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.names import NameUniquer
from hloscope.core.hlo.shape import Shape, scan_shape
from hloscope.core.hlo.stack_frames import StackFrames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.hlo.instruction import HloInstruction


class HloModule:
    """A module. Computations keep the order of the text: callees before callers."""

    def __init__(self, name: str) -> None:
        self.name = name
        """Module name."""
        self.attrs: dict[str, str] = {}
        """Header attributes as text, in order (``entry_computation_layout`` and so on)."""
        self.stack_frames = StackFrames()
        """Source tables; empty where the text has none."""
        self.tables_present = False
        """Whether the text has the tables, even empty ones."""
        self._instruction_names = NameUniquer()
        self._to_reserve: list[HloComputation] = []
        """Computations as they were read, whose names nobody has needed yet."""
        self.computation_names = NameUniquer()
        """Names in use by computations."""
        self._computations: dict[HloComputation, None] = {}
        self._entry: HloComputation | None = None

    def __repr__(self) -> str:
        return f"<module {self.name}, {len(self._computations)} computations>"

    # ---------------------------------------------------------------- facts
    @property
    def computations(self) -> tuple[HloComputation, ...]:
        """Computations in text order."""
        return tuple(self._computations)

    @property
    def entry(self) -> HloComputation:
        """The entry computation. Raises InternalError while none is set."""
        if self._entry is None:
            raise InternalError(f"module {self.name} has no entry computation")
        return self._entry

    @property
    def has_entry(self) -> bool:
        """Whether an entry is set."""
        return self._entry is not None

    @property
    def is_scheduled(self) -> bool:
        """Whether the order of instructions in each computation is a schedule."""
        return self.attrs.get("is_scheduled") == "true"

    def schedule(self) -> dict[str, tuple[HloInstruction, ...]]:
        """Order of instructions by computation name: the list order. Raises InternalError when not scheduled."""
        if not self.is_scheduled:
            raise InternalError(f"module {self.name} is not scheduled")
        return {c.name: c.instructions for c in self._computations if not c.is_fusion}

    def set_schedule(self, order: dict[HloComputation, list[HloInstruction]] | None) -> None:
        """Reorder computations and mark the module scheduled; None drops the mark."""
        if order is None:
            self.attrs.pop("is_scheduled", None)
            return
        for computation, instructions in order.items():
            computation.reorder(instructions)
        self.attrs = {"is_scheduled": "true", **self.attrs}

    @property
    def instruction_count(self) -> int:
        """Instructions of all computations."""
        return sum(len(c) for c in self._computations)

    @property
    def num_partitions(self) -> int:
        """Partitions (SPMD), 1 where the header does not say. Raises ParseError where that is no number."""
        return self._count("num_partitions")

    @property
    def replica_count(self) -> int:
        """Replicas of the program, 1 where the header does not say. Raises ParseError where that is no number."""
        return self._count("replica_count")

    def _count(self, key: str) -> int:
        text = self.attrs.get(key, "1")
        try:
            return int(text)
        except ValueError:
            raise ParseError(f"expected a number as {key}, got {text[:40]!r}") from None

    def instructions(self) -> Iterator[HloInstruction]:
        """All instructions, computation by computation."""
        for computation in self._computations:
            yield from computation

    def find_computation(self, name: str) -> HloComputation | None:
        """The computation of that name, None where there is none."""
        return next((c for c in self._computations if c.name == name), None)

    def find_instruction(self, name: str) -> HloInstruction | None:
        """The first instruction of that name, entry computation first; None where there is none."""
        ordered = [self._entry, *self._computations] if self._entry is not None else list(self._computations)
        for computation in ordered:
            for instruction in computation:
                if instruction.name == name:
                    return instruction
        return None

    def entry_layout(self) -> tuple[tuple[Shape, ...], Shape] | None:
        """Parameter and result shapes of ``entry_computation_layout``, None where the header lacks it."""
        text = self.attrs.get("entry_computation_layout")
        if text is None:
            return None
        body = text.strip().removeprefix("{").removesuffix("}")
        parameters, pos = scan_shape(body, 0)
        found = re.match(r"\s*->", body[pos:])
        if found is None:
            raise InternalError(f"malformed entry_computation_layout {text[:60]!r}")
        result, _ = scan_shape(body, pos + found.end())
        return parameters.tuple_shapes, result

    # ---------------------------------------------------------------- edits
    @property
    def instruction_names(self) -> NameUniquer:
        """Names that instructions have or had; to be asked before an instruction comes or goes, not after."""
        for computation in self._to_reserve:
            self._instruction_names.reserve_all(computation.instruction_names())
        self._to_reserve.clear()
        return self._instruction_names

    def add_computation(
        self, computation: HloComputation, *, entry: bool = False, keep_name: bool = False, first: bool = False
    ) -> HloComputation:
        """Add a computation (at the end, or in front of all with `first`) and return it.

        Its name and the names of its instructions are made unique unless `keep_name`.
        """
        computation.attach(self)
        if keep_name:
            self.computation_names.reserve(computation.name)
            self._to_reserve.append(computation)
        else:
            computation.set_name_unchecked(self.computation_names.unique(computation.name))
            names = self.instruction_names
            for instruction in computation:
                instruction.set_name_unchecked(names.unique(instruction.name))
        if first:
            self._computations = {computation: None, **self._computations}
        else:
            self._computations[computation] = None
        if entry:
            self._entry = computation
        return computation

    def set_entry(self, computation: HloComputation) -> None:
        """Make a computation of this module its entry."""
        if computation not in self._computations:
            raise InternalError(f"{computation!r} is not in module {self.name}")
        self._entry = computation

    def remove_computation(self, computation: HloComputation) -> None:
        """Remove a computation that nobody calls. Raises InternalError for the entry or a called one."""
        if computation is self._entry:
            raise InternalError("the entry computation cannot be removed")
        if computation.callers:
            raise InternalError(f"{computation!r} is still called by %{computation.callers[0].name}")
        for instruction in computation:
            for callee in instruction.called_computations:
                callee.drop_caller(instruction)
            self.instruction_names.release(instruction.name)
        del self._computations[computation]
        self.computation_names.release(computation.name)
        computation.attach(None)

    def post_order(self) -> list[HloComputation]:
        """Computations, callees before callers, else in text order. Raises InternalError on recursion."""
        order: list[HloComputation] = []
        state: dict[HloComputation, bool] = {}

        def visit(start: HloComputation) -> None:
            stack: list[tuple[HloComputation, Iterator[HloComputation]]] = [(start, _callees(start))]
            state[start] = False
            while stack:
                node, rest = stack[-1]
                for callee in rest:
                    if state.get(callee) is False:
                        raise InternalError(f"computation {callee.name} calls itself")
                    if callee not in state:
                        state[callee] = False
                        stack.append((callee, _callees(callee)))
                        break
                else:
                    stack.pop()
                    state[node] = True
                    order.append(node)

        for computation in self._computations:
            if computation not in state:
                visit(computation)
        return order

    def sort_computations(self) -> None:
        """Put callees before callers, as the text needs them, where that is not so."""
        place = {one: number for number, one in enumerate(self._computations)}
        if any(place[caller.parent] < number for one, number in place.items() for caller in one.callers):
            self._computations = dict.fromkeys(self.post_order())

    def reorder(self, order: list[HloComputation]) -> None:
        """Set the order of computations; `order` must hold exactly them."""
        if len(order) != len(self._computations) or any(one not in self._computations for one in order):
            raise InternalError(f"the new order of {self.name} is not a permutation")
        self._computations = dict.fromkeys(order)

    def clone(self, name: str | None = None) -> HloModule:
        """A deep copy with the same names; printing both gives the same text."""
        copy = HloModule(self.name if name is None else name)
        copy.attrs = dict(self.attrs)
        copy.stack_frames = self.stack_frames.copy()
        copy.tables_present = self.tables_present
        callees: dict[HloComputation, HloComputation] = {}
        for computation in self._computations:
            twin = HloComputation(computation.name)
            callees[computation] = twin
            copy.add_computation(twin, keep_name=True, entry=computation is self._entry)
        for computation in self.post_order():
            computation.clone_into(callees[computation], callees)
        return copy


def _callees(computation: HloComputation) -> Iterator[HloComputation]:
    return iter(dict.fromkeys(c for i in computation for c in i.called_computations))
