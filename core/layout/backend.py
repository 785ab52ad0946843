"""What a compiler backend adds to layout assignment: its own constraints, and how layouts pass through an operation.

The base class is XLA's default: no constraints of its own. Derivations answer with a layout, or None where nothing
follows from the other side. Source: ``openxla/xla:xla/service/layout_assignment.cc#ChooseOperandLayoutFromOutputLayout,
#ChooseOutputLayoutFromOperandLayout``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hloscope.core.hlo.layout import Layout
from hloscope.core.layout.bitcast import align
from hloscope.core.layout.opcode_table import ONE_LAYOUT_TARGETS, may_change_layout
from hloscope.core.layout.orders import inverse

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.layout.orders import Order
    from hloscope.core.layout.points_to import Buffer
    from hloscope.core.layout.state import LayoutState


@dataclass(frozen=True, slots=True)
class Derived:
    """A layout that follows from another one."""

    layout: Layout
    rule: str
    """The derivation, a stable key such as ``transpose-to-operand``."""


@dataclass(frozen=True)
class Backend:
    """The default backend."""

    spmd: bool = True
    """``use_spmd_partitioning`` of the module's configuration."""

    name: ClassVar[str] = "base"
    one_layout_targets: ClassVar[frozenset[str]] = ONE_LAYOUT_TARGETS
    """Custom calls that may not change layout."""

    def constrain(self, state: LayoutState, computation: HloComputation) -> None:
        """Set the backend's own constraints on a computation."""

    def unconstrained_layout(self, buffer: Buffer) -> Layout:
        """The layout of a definition that nobody asks anything of."""
        return Layout.descending(buffer.shape.rank)

    def may_change_layout(self, instruction: HloInstruction) -> bool:
        """Whether the result may have another layout than operands of its rank."""
        return may_change_layout(instruction, self.one_layout_targets)

    def reduction_reaches_operand(self, reduce: HloInstruction) -> bool:
        """Whether the layout of a reduction's result asks for one of its operand."""
        return False

    def align(self, source: Shape, order: Order, target: Shape) -> Order | None:
        """The order of a reshape's other side that makes it free; `target` carries the layout it has so far."""
        return align(source.dimensions, order, target.dimensions)

    # ---------------------------------------------------------------- derivations
    def operand_from_output(self, layout: Layout, instruction: HloInstruction, number: int) -> Derived | None:
        """The layout that an operand should have where the result has `layout`."""
        operand = instruction.operand(number).shape
        shape = instruction.shape
        opcode = instruction.opcode
        if operand.dimensions and operand.rank == shape.rank and not self.may_change_layout(instruction):
            return Derived(layout, "same-layout-to-operand")
        if opcode == "reshape":
            return self._across_reshape(shape, layout, operand, "reshape-to-operand")
        if opcode == "transpose":
            dims = instruction.dimensions
            return Derived(Layout(tuple(dims[d] for d in layout.minor_to_major)), "transpose-to-operand")
        if opcode == "reduce" and shape.is_array and self.reduction_reaches_operand(instruction):
            reduced = instruction.dimensions
            kept = [d for d in range(operand.rank) if d not in reduced]
            order = (*reversed(reduced), *(kept[d] for d in layout.minor_to_major))
            return Derived(Layout(order), "row-reduction-to-operand")
        return None

    def output_from_operand(self, layout: Layout, user: HloInstruction, number: int) -> Derived | None:
        """The layout that the result should have where operand `number` has `layout`."""
        operand = user.operand(number).shape
        opcode = user.opcode
        if not user.shape.is_array:
            return None
        if operand.dimensions and operand.rank == user.shape.rank and not self.may_change_layout(user):
            return Derived(layout, "same-layout-to-result")
        if opcode == "reshape":
            return self._across_reshape(operand, layout, user.shape, "reshape-to-result")
        if opcode == "transpose":
            place = inverse(user.dimensions)
            return Derived(Layout(tuple(place[d] for d in layout.minor_to_major)), "transpose-to-result")
        return None

    def _across_reshape(self, known: Shape, layout: Layout, other: Shape, rule: str) -> Derived | None:
        if _effective_rank(known) == 1 and _effective_rank(other) == 1:
            return None
        order = self.align(known, layout.minor_to_major, other)
        return None if order is None else Derived(Layout(order), rule)

    # ---------------------------------------------------------------- predicates
    def goes_forward(self, user: HloInstruction) -> bool:
        """Whether an operand's layout binds the result (`OperandLayoutAlwaysPropagateForward`)."""
        return user.opcode in ("reduce", "transpose") or not self.may_change_layout(user)

    def goes_to_operands(self, user: HloInstruction) -> bool:
        """Whether the result's layout binds the operands (`OutputLayoutAlwaysPropagateToOperands`)."""
        return user.opcode != "reshape" and not self.may_change_layout(user)

    def goes_to_siblings(self, user: HloInstruction) -> bool:
        """Whether an operand's layout binds the others (`OperandLayoutAlwaysPropagateToSiblings`)."""
        return user.opcode == "reduce" or not self.may_change_layout(user)


def _effective_rank(shape: Shape) -> int:
    return sum(1 for size in shape.dimensions if size != 1)
