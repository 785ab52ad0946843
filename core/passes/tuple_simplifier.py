"""``tuple-simplifier``: takes values past tuples that are built only to be taken apart, or taken apart to be rebuilt.

``tuple(gte(x, 0), gte(x, 1), …)`` of all elements in order is ``x``; an element of a tuple is its operand, also through
several levels. Source: ``openxla/xla:xla/hlo/transforms/simplifiers/tuple_simplifier.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class TupleSimplifier:
    """The pass."""

    name = "tuple-simplifier"
    is_pipeline = False
    exclude_entry_computation: bool = False
    """Leave the entry computation as it is."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation in post order."""
        changed = False
        for computation in module.computations:
            if self.exclude_entry_computation and computation.is_entry:
                continue
            for one in computation.post_order():
                if not one.in_computation:
                    continue
                if one.opcode == "tuple":
                    changed |= _replace(ctx, "tuple-of-elements", one, whole_tuple(one))
                elif one.opcode == "get-tuple-element":
                    changed |= _replace(ctx, "element-of-tuple", one, element_source(one))
        return changed


def whole_tuple(one: HloInstruction) -> HloInstruction | None:
    """The tuple that `one` rebuilds element by element, None where it does not."""
    if not one.operand_count:
        return None
    whole: HloInstruction | None = None
    for number, element in enumerate(one.operands):
        if element.opcode != "get-tuple-element" or int(element.attr("index")) != number:
            return None
        if whole is None:
            whole = element.operand(0)
        elif element.operand(0) is not whole:
            return None
    return whole if whole is not None and whole.shape.compatible(one.shape) else None


def element_source(one: HloInstruction) -> HloInstruction | None:
    """What a chain of get-tuple-elements takes out of a chain of tuples, None where it meets no tuple."""
    path: list[int] = []
    source = one
    while source.opcode == "get-tuple-element":
        path.append(int(source.attr("index")))
        source = source.operand(0)
    while path and source.opcode == "tuple":
        source = source.operand(path.pop())
    return source if not path and source.shape.compatible(one.shape) else None


def _replace(ctx: PassContext, rule: str, old: HloInstruction, new: HloInstruction | None) -> bool:
    if new is None or new is old:
        return False
    if old.control_predecessors or old.control_successors:
        ctx.refuse(rule, old, "control_dependencies")
        return False
    sharding = old.raw_attrs.get("sharding")
    if sharding is not None and sharding != new.raw_attrs.get("sharding"):
        ctx.refuse(rule, old, "sharding_conflict", f"{sharding} against {new.raw_attrs.get('sharding')}")
        return False
    step = ctx.gate(rule, old)
    if not step:
        return False
    old.parent.replace(old, new)
    step.done(detail=f"replaced by %{new.name}")
    return True
