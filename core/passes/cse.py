"""``cse``: of instructions that compute the same value in one computation, keeps the first in post order.

Constants are compared by literal; other instructions by opcode, attributes, called computations (by structure) and
operands, whose order does not count for commutative opcodes. Metadata is not compared, and the survivor keeps its own.
Left alone: instructions without operands (apart from constants, partition-id and replica-id), with side effects or
control edges. Source: ``openxla/xla:xla/service/hlo_cse.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.attributes import CONTROL
from hloscope.core.hlo.hashing import computation_hash

if TYPE_CHECKING:
    from collections.abc import Hashable

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_WITHOUT_OPERANDS = frozenset({"partition-id", "replica-id"})
_NOT_COMPARED = frozenset({"metadata", "origin", "original_value", CONTROL})


@dataclass(frozen=True)
class HloCse:
    """Common subexpression elimination."""

    name = "cse"
    is_pipeline = False
    is_layout_sensitive: bool = False
    """Whether values in different layouts differ."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation, fusion bodies too, callees first so that merged callees compare equal."""
        changed = False
        hashes: dict[HloComputation, bytes] = {}
        for computation in module.post_order():
            changed |= self._run_on(computation, ctx, hashes)
        return changed

    def _run_on(self, computation: HloComputation, ctx: PassContext, hashes: dict[HloComputation, bytes]) -> bool:
        changed = self._merge(
            ctx, "same-constant", [(one, self._constant_key(one)) for one in computation if one.opcode == "constant"]
        )
        known: dict[Hashable, _Equals] = {}
        iotas: dict[Hashable, int] = {}
        numbers: dict[HloInstruction, int] = {}
        order = computation.post_order()
        for number, one in enumerate(order):
            numbers[one] = number
        for one in order:
            if not one.in_computation:
                continue  # it was an operand of a merged one alone
            if one.opcode == "iota":
                # Equal iotas are not merged (each is cheap), but count as the same operand.
                key = (self._shape_text(one), one.raw_attrs.get("iota_dimension"))
                numbers[one] = iotas.setdefault(key, numbers[one])
            if not self._may_merge(one):
                continue
            equals = known.setdefault(self._key(one, numbers), _Equals(one))
            first = equals.first_like(one, hashes, layouts=self.is_layout_sensitive)
            if first is not one and self._replace(ctx, "same-value", one, first):
                changed = True
        return changed

    def _merge(self, ctx: PassContext, rule: str, keyed: list[tuple[HloInstruction, Hashable]]) -> bool:
        known: dict[Hashable, HloInstruction] = {}
        changed = False
        for one, key in keyed:
            if key is None:
                continue
            first = known.setdefault(key, one)
            if first is not one and not _has_control(one):
                changed |= self._replace(ctx, rule, one, first)
        return changed

    def _replace(self, ctx: PassContext, rule: str, old: HloInstruction, first: HloInstruction) -> bool:
        step = ctx.gate(rule, old, others=(first,))
        if not step:
            return False
        computation = old.parent
        old.replace_all_uses_with(first)
        computation.remove_with_dead_operands(old)
        step.done(detail=f"kept %{first.name}")
        return True

    def _may_merge(self, one: HloInstruction) -> bool:
        if not one.operand_count and one.opcode not in _WITHOUT_OPERANDS:
            return False
        return one.parent.is_removable(one)

    def _shape_text(self, one: HloInstruction) -> str:
        return one.shape.to_text(layout=self.is_layout_sensitive, index_comments=False)

    def _constant_key(self, one: HloInstruction) -> Hashable:
        """Shape and bits of the literal; None where its values are not in the text."""
        literal = one.literal
        if literal.values is None:
            return None
        return (self._shape_text(one), one.raw_attrs.get("sharding"), literal.values.tobytes())

    def _key(self, one: HloInstruction, numbers: dict[HloInstruction, int]) -> Hashable:
        """All that is compared but the called computations."""
        operands = [numbers[operand] for operand in one.operands]
        if one.info.commutative and len(operands) == 2:
            operands.sort()
        given = one.raw_attrs.items()
        attributes = tuple(sorted((k, text) for k, text in given if text is not None and k not in _NOT_COMPARED))
        return (one.opcode, self._shape_text(one), one.payload, tuple(operands), attributes)


class _Equals:
    """Instructions that differ at most in what they call; bodies are hashed only where there are two of them."""

    __slots__ = ("_by_called", "_first")

    def __init__(self, first: HloInstruction) -> None:
        self._first = first
        self._by_called: dict[Hashable, HloInstruction] | None = None

    def first_like(
        self, one: HloInstruction, hashes: dict[HloComputation, bytes], *, layouts: bool
    ) -> HloInstruction:
        """The first that calls computations of the same structure; the instruction itself where it is that."""
        if one is self._first or not (one.called or self._first.called):
            return self._first
        if self._by_called is None:
            self._by_called = {_called(self._first, hashes, layouts): self._first}
        return self._by_called.setdefault(_called(one, hashes, layouts), one)


def _called(one: HloInstruction, hashes: dict[HloComputation, bytes], layouts: bool) -> Hashable:
    return tuple(
        (name, tuple(computation_hash(callee, hashes, layouts=layouts) for callee in group))
        for name, group in sorted(one.called.items())
    )


def _has_control(one: HloInstruction) -> bool:
    return bool(one.control_predecessors or one.control_successors)
