"""Custom calls that stand for something else: an annotation of a value, or an edge.

``sharding-remover`` and ``strip-memory-placement-annotations`` put the annotated value in place of the annotation,
``control-dep-rewriter`` a control edge in place of a call. Source:
``openxla/xla:xla/service/sharding_remover.cc``, ``xla/hlo/transforms/strip_memory_placement_annotations.cc``,
``xla/service/control_dep_rewriter.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_SHARDINGS = frozenset(("Sharding", "SPMDShardToFullShape", "SPMDFullToShardShape"))
_PLACEMENTS = frozenset(("annotate_device_placement", "MoveToHost", "MoveToDevice"))


def _calls(module: HloModule, targets: frozenset[str]) -> Iterator[HloInstruction]:
    for one in list(module.instructions()):
        if one.opcode == "custom-call" and one.attr("custom_call_target") in targets:
            yield one


def _take_out(one: HloInstruction, rule: str, ctx: PassContext) -> bool:
    """Put the operand in place of an annotation."""
    x = one.operand(0) if one.operand_count == 1 else None
    if x is None or not one.shape.compatible(x.shape):
        ctx.refuse(rule, one, "shape", f"{one.shape} of {one.operand_count} operands")
        return False
    if one.control_predecessors or one.control_successors:
        ctx.refuse(rule, one, "control_dependencies")
        return False
    step = ctx.gate(rule, one)
    if not step:
        return False
    one.replace_all_uses_with(x)
    one.parent.remove(one)
    step.done(detail=f"replaced by %{x.name}")
    return True


@dataclass(frozen=True)
class ShardingRemover:
    """Annotations of shardings, on one device."""

    name = "sharding-remover"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every annotation."""
        changed = False
        for one in _calls(module, _SHARDINGS):
            changed |= _take_out(one, "remove-sharding", ctx)
        return changed


@dataclass(frozen=True)
class StripMemoryPlacementAnnotations:
    """Annotations of the memory that holds a value, where there is only one; the value takes over their sharding."""

    name = "strip-memory-placement-annotations"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every annotation."""
        changed = False
        for one in _calls(module, _PLACEMENTS):
            x, sharding = one.operands[:1], one.raw_attrs.get("sharding")
            if _take_out(one, "strip-placement", ctx):
                changed = True
                if sharding is not None and x[0].raw_attrs.get("sharding") is None:
                    x[0].set_attr("sharding", sharding)
        return changed


def _comes_after(one: HloInstruction, other: HloInstruction) -> bool:
    """Whether `one` is `other` or waits for it."""
    work, seen = [one], {one}
    while work:
        now = work.pop()
        if now is other:
            return True
        fresh = {*now.operands, *now.control_predecessors} - seen
        seen |= fresh
        work.extend(fresh)
    return False


@dataclass(frozen=True)
class ControlDepRewriter:
    """``control_dep(a, b)`` as a control edge from a to b."""

    name = "control-dep-rewriter"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every such call."""
        changed = False
        for one in _calls(module, frozenset(("control_dep",))):
            if one.operand_count != 2 or one.user_count or one.is_root:
                ctx.refuse("control-edge", one, "shape", f"{one.operand_count} operands, {one.user_count} users")
                continue
            before, after = one.operands
            if _comes_after(before, after):
                ctx.refuse("control-edge", one, "cycle", f"%{before.name} needs %{after.name}")
                continue
            step = ctx.gate("control-edge", one)
            if step:
                before.add_control_dependency(after)
                one.parent.remove(one)
                step.done(detail=f"%{after.name} waits for %{before.name}")
                changed = True
        return changed
