"""``reshape-mover``: reshapes and transposes go below the elementwise operations that use them.

All users of a rearranged value move together, else the rearrangement would only be copied. Source:
``openxla/xla:xla/hlo/transforms/simplifiers/reshape_mover.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.passes.rules.base import Builder, is_static_array
from hloscope.core.passes.rules.shapes import untouched

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


_SWEEPS = 64
"""Sweeps over a computation; each moves a rearrangement one operation down."""


@dataclass(frozen=True)
class ReshapeMover:
    """The pass."""

    name = "reshape-mover"
    is_pipeline = False
    reshape_of_1d_broadcast_is_cheap: bool = False
    """A broadcast of a vector may be rearranged at no cost."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation that is no fusion body, again and again until nothing moves."""
        changed = False
        for computation in module.post_order():
            if computation.is_fusion:
                continue
            for _ in range(_SWEEPS):
                if not self._run_on(computation, ctx):
                    break
                changed = True
        return changed

    def _run_on(self, computation: HloComputation, ctx: PassContext) -> bool:
        candidates = {one: None for one in computation.post_order() if self._may_move(one)}
        _prune(candidates)
        changed = False
        # A refused move leaves a user of its operands where it is, so whatever shares them stays as well.
        while candidates:
            refused = None
            for one in candidates:
                if one.control_predecessors or one.control_successors:
                    ctx.refuse("sink-rearrangement", one, "control_dependencies")
                    refused = one
                    break
            if refused is None:
                break
            del candidates[refused]
            _prune(candidates)
        for one in list(candidates):
            step = ctx.gate("sink-rearrangement", one)
            if step:
                step.done(*self._sink(one))
                changed = True
        return changed

    def _may_move(self, one: HloInstruction) -> bool:
        if not one.info.elementwise or not one.operand_count or one.opcode in ("map", "copy"):
            return False
        rearrangement = self._first(one)
        if rearrangement is None or not is_static_array(one.shape):
            return False
        return all(
            _equivalent(operand, rearrangement)
            if _rearranges(operand)
            else self._is_trivial(operand, rearrangement)
            for operand in one.operands
        )

    def _first(self, one: HloInstruction) -> HloInstruction | None:
        """The first operand that is a rearrangement worth moving."""
        for operand in one.operands:
            if _rearranges(operand) and not self._is_trivial(operand.operand(0), operand):
                return operand
        return None

    def _is_trivial(self, one: HloInstruction, rearrangement: HloInstruction) -> bool:
        """Whether a value takes the inverse of a rearrangement for nothing."""
        source = rearrangement.operand(0)
        if rearrangement.opcode == "reshape":
            if rearrangement.shape.dimensions == source.shape.dimensions:
                return True
        elif list(rearrangement.dimensions) == sorted(rearrangement.dimensions):
            return True
        if one.opcode == "constant" or (one.opcode == "rng" and one.user_count == 1):
            return True
        if one.opcode != "broadcast" or list(one.dimensions) != sorted(one.dimensions):
            return False
        x = one.operand(0).shape
        if rearrangement.opcode == "transpose":
            moved = [rearrangement.dimensions[d] for d in one.dimensions]
            return moved == sorted(moved)
        if x.is_scalar:
            return True
        if not self.reshape_of_1d_broadcast_is_cheap:
            return False
        if sum(size != 1 for size in x.dimensions) <= 1:
            return True
        return untouched(rearrangement.shape.dimensions, source.shape.dimensions, one.dimensions) is not None

    def _sink(self, one: HloInstruction) -> list[HloInstruction]:
        rearrangement = self._first(one)
        assert rearrangement is not None
        source = rearrangement.operand(0)
        build = Builder(one)
        order = rearrangement.dimensions
        operands = [
            _undone(build, operand, rearrangement, source.shape.dimensions) for operand in one.operands
        ]
        sizes = source.shape.dimensions
        inner = build.clone(one, operands, build.shape(one.shape.element_type, sizes))
        inner.set_attr("sharding", None)
        attrs = {"dimensions": order} if rearrangement.opcode == "transpose" else {}
        outer = build.make(rearrangement.opcode, one.shape, [inner], attrs)
        name = one.name
        one.parent.replace(one, outer)
        if not one.in_computation:
            inner.rename(name)
        return [outer, *(n for n in build.made if n is not outer)]


def _undone(
    build: Builder, one: HloInstruction, rearrangement: HloInstruction, sizes: tuple[int, ...]
) -> HloInstruction:
    """An operand with the inverse of the rearrangement; the scalar bounds of a clamp fit any arrangement."""
    if one.shape.dimensions != rearrangement.shape.dimensions:
        return one
    if rearrangement.opcode == "reshape":
        if one.opcode == "reshape" and one.operand(0).shape.dimensions == sizes:
            return one.operand(0)
        return build.reshape(one, sizes)
    order = rearrangement.dimensions
    inverse = [order.index(d) for d in range(len(order))]
    if one.opcode == "transpose" and one.dimensions == order:
        return one.operand(0)
    return build.transpose(one, inverse)


def _rearranges(one: HloInstruction) -> bool:
    if one.opcode not in ("reshape", "transpose"):
        return False
    return is_static_array(one.shape) and is_static_array(one.operand(0).shape)


def _equivalent(a: HloInstruction, b: HloInstruction) -> bool:
    if a.opcode != b.opcode or a.shape.dimensions != b.shape.dimensions:
        return False
    if a.opcode == "transpose":
        return a.dimensions == b.dimensions
    return a.operand(0).shape.dimensions == b.operand(0).shape.dimensions


def _prune(candidates: dict[HloInstruction, None]) -> None:
    """Leave only candidates whose rearranged operands have no user that stays."""
    work = list(candidates)
    while work:
        one = work.pop()
        if one not in candidates:
            continue
        for operand in one.operands:
            if not _rearranges(operand) or all(user in candidates for user in operand.users):
                continue
            for user in operand.users:
                if user in candidates:
                    del candidates[user]
                    # Whatever shares another operand with it has to be looked at again.
                    work.extend(o for other in user.operands if _rearranges(other) for o in other.users)
            break
