"""A dot as two sides with their batch, contracting and free dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.instruction import HloInstruction

if TYPE_CHECKING:
    from hloscope.core.passes.rules.base import Builder


@dataclass(frozen=True, slots=True)
class Side:
    """One operand of a dot."""

    value: HloInstruction
    batch: tuple[int, ...]
    contracting: tuple[int, ...]

    @property
    def free(self) -> tuple[int, ...]:
        """Dimensions that are neither batch nor contracting."""
        return tuple(d for d in range(self.value.shape.rank) if d not in self.batch and d not in self.contracting)

    @property
    def canonical(self) -> bool:
        """One contracting dimension, at most one free one, batch dimensions in front and in order."""
        if len(self.contracting) != 1 or len(self.batch) + 2 < self.value.shape.rank:
            return False
        return self.batch == tuple(range(len(self.batch)))


def sides(dot: HloInstruction) -> tuple[Side, Side]:
    """Left and right of a dot."""

    def side(place: int, name: str) -> Side:
        batch, contracting = dot.attr(f"{name}_batch_dims") or (), dot.attr(f"{name}_contracting_dims") or ()
        return Side(dot.operand(place), tuple(batch), tuple(contracting))

    return side(0, "lhs"), side(1, "rhs")


def make_dot(
    build: Builder,
    like: HloInstruction,
    left: Side,
    right: Side,
    element_type: str | None = None,
) -> HloInstruction:
    """A dot of other operands with the precision of `like`; its dimensions follow from the sides."""
    sizes = [left.value.shape.dimensions[d] for d in (*left.batch, *left.free)]
    sizes += [right.value.shape.dimensions[d] for d in right.free]
    shape = build.shape(element_type or like.shape.element_type, sizes)
    made = build.clone(like, [left.value, right.value], shape)
    for name, side in (("lhs", left), ("rhs", right)):
        made.set_attr(f"{name}_batch_dims", side.batch or None)
        made.set_attr(f"{name}_contracting_dims", side.contracting)
    made.set_attr("sharding", None)
    return made
