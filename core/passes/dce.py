"""``dce``: removes instructions whose value nobody uses, and computations that nobody calls.

Dead parameters stay (every computation's callers pass them), and so does what has a side effect or a control edge, but
a dead while whose condition and body have no effect goes. Fusions with several outputs lose the outputs that nobody
takes. Source: ``openxla/xla:xla/hlo/transforms/simplifiers/hlo_dce.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.shape import Shape

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class HloDce:
    """Dead code elimination."""

    name = "dce"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Remove the dead; callers before callees, because a removed call may free its callee."""
        changed = False
        for computation in reversed(module.post_order()):
            if computation.is_entry or computation.callers:
                changed |= _remove_dead(computation, ctx)
                changed |= _shrink_fusions(computation, ctx)
        return _remove_uncalled(module, ctx) or changed


def _remove_dead(computation: HloComputation, ctx: PassContext) -> bool:
    changed = False
    for instruction in computation:
        if not instruction.in_computation or not _is_dead(instruction):
            continue
        # What this leaves dead goes with it, under the same decision: it is dead for the same reason.
        step = ctx.gate("dead-instruction", instruction)
        if step:
            removed = computation.remove_with_dead_operands(instruction)
            step.done(detail=f"{removed} removed" if removed > 1 else "")
            changed = True
    return changed


def _is_dead(instruction: HloInstruction) -> bool:
    return not instruction.user_count and not instruction.is_root and instruction.parent.is_removable(instruction)


def _shrink_fusions(computation: HloComputation, ctx: PassContext) -> bool:
    """Drop the outputs of multi-output fusions that no get-tuple-element takes."""
    changed = False
    for fusion in computation:
        if fusion.opcode != "fusion" or not fusion.shape.is_tuple or fusion.is_root:
            continue
        body = fusion.callee("calls")
        users = fusion.users
        if body.root.opcode != "tuple" or len(body.callers) != 1 or not users:
            continue
        if any(user.opcode != "get-tuple-element" for user in users) or _has_control(fusion):
            continue
        used = sorted({int(user.attr("index")) for user in users})
        if len(used) == body.root.operand_count:
            continue
        step = ctx.gate("unused-fusion-output", fusion)
        if step:
            step.done(*_keep_outputs(fusion, body, used), detail=f"{body.root.operand_count} outputs stay")
            changed = True
    return changed


def _keep_outputs(fusion: HloInstruction, body: HloComputation, used: list[int]) -> list[HloInstruction]:
    """Rebuild a fusion with the outputs in `used` alone, without the tuple where one is left."""
    from hloscope.core.hlo.instruction import HloInstruction as Node

    computation, old_root, name = fusion.parent, body.root, fusion.name
    kept = [old_root.operand(i) for i in used]
    made: list[HloInstruction] = []
    if len(kept) == 1:
        body.set_root(kept[0])
        smaller = computation.add(fusion.clone_with(shape=fusion.shape.tuple_shapes[used[0]]))
        made.append(smaller)
    else:
        shapes = [fusion.shape.tuple_shapes[i] for i in used]
        body.set_root(body.add(Node("tuple", Shape.tuple_([one.shape for one in kept]), kept, name=old_root.name)))
        smaller = computation.add(fusion.clone_with(shape=Shape.tuple_(shapes)))
        made.append(smaller)
    for user in fusion.users:
        place = used.index(int(user.attr("index")))
        if len(used) == 1:
            computation.replace(user, smaller, relay_control=True)
        else:
            element = Node("get-tuple-element", user.shape, [smaller], attrs={"index": place}, name=user.name)
            made.append(computation.replace(user, computation.add(element), relay_control=True))
    if fusion.in_computation:
        computation.remove(fusion)
    smaller.rename(name)
    body.remove_with_dead_operands(old_root)
    return made


def _has_control(instruction: HloInstruction) -> bool:
    return bool(instruction.control_predecessors or instruction.control_successors)


def _remove_uncalled(module: HloModule, ctx: PassContext) -> bool:
    changed = False
    for computation in reversed(module.post_order()):
        if computation.is_entry or computation.callers:
            continue
        step = ctx.gate("uncalled-computation", computation=computation)
        if step:
            module.remove_computation(computation)
            step.done()
            changed = True
    return changed
