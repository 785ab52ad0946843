"""Moves values into and out of loops.

``while-loop-invariant-code-motion`` computes before the loop what every trip would compute alike;
``while-loop-constant-sinking`` puts constants of the state where they are used. Source:
``openxla/xla:xla/service/while_loop_invariant_code_motion.cc``, ``while_loop_constant_sinking.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.passes.dce import HloDce
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.loops.state import add_elements, elements_of, loop_of, loops_in, take_apart
from hloscope.core.passes.loops.trip_count import trip_count
from hloscope.core.passes.tuple_simplifier import TupleSimplifier

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext
    from hloscope.core.passes.loops.state import Loop

_NOT_ALONE = frozenset("constant reshape bitcast broadcast iota reverse slice transpose tuple".split())
"""Opcodes that move only when something that uses them does: they are cheap, and their values are large."""
_STAY = frozenset({"SPMDFullToShardShape", "SPMDShardShapeToFull", "MoveToHost", "MoveToDevice"})


@dataclass(frozen=True)
class WhileLoopInvariantCodeMotion:
    """Invariant values computed once."""

    name = "while-loop-invariant-code-motion"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every loop, those in callees first."""
        changed = False
        for one in loops_in(module):
            loop = loop_of(one)
            if isinstance(loop, Refusal):
                ctx.refuse("hoist", one, loop.code, loop.detail)
                continue
            changed |= _hoist(loop, ctx)
        if changed:
            HloDce().run(module, ctx)
            TupleSimplifier().run(module, ctx)
        return changed


def _hoist(loop: Loop, ctx: PassContext) -> bool:
    one = loop.instruction
    if "_xla_disable_loop_instr_hoisting" in (one.attr("frontend_attributes") or {}):
        ctx.refuse("hoist", one, "disabled", "frontend attribute")
        return False
    state = loop.body.parameters[0]
    outside: dict[HloInstruction, int] = {}
    for i in range(loop.width):
        if loop.passes_through(i) and loop.instruction.shape.tuple_shapes[i].is_array:
            outside.update(dict.fromkeys(elements_of(state, i), i))
    if not outside:
        return False
    trips = trip_count(loop, 1)
    if trips is not None and trips.count is not None and trips.count <= 1:
        ctx.refuse("hoist", one, "few_trips", str(trips.count))
        return False
    if any(n.opcode == "domain" or n.attr("custom_call_target") in _STAY for n in loop.body):
        ctx.refuse("hoist", one, "domain")
        return False
    invariant: set[HloInstruction] = {*outside}
    chosen: list[HloInstruction] = []
    for node in loop.body.post_order():
        if node in invariant or node.opcode in ("parameter", "after-all", "constant") or not _movable(node):
            continue
        if any(o not in invariant and o.opcode != "constant" for o in node.operands):
            continue
        invariant.add(node)
        if node.opcode in _NOT_ALONE or node.attr("custom_call_target") == "Sharding":
            continue
        step = ctx.gate("hoist", node)
        if step:
            chosen.append(node)
            step.done(detail=f"out of %{one.name}")
        else:
            invariant.discard(node)
    if not chosen:
        return False
    home = one.parent
    moved: dict[HloInstruction, HloInstruction] = {}

    def copy(node: HloInstruction) -> HloInstruction:
        found = moved.get(node)
        if found is not None:
            return found
        if node in outside:
            start = loop.initial(outside[node])
            found = start if start is not None else home.add(node.clone_with(operands=[one.operand(0)]))
        else:
            found = home.add(node.clone_with(operands=[copy(operand) for operand in node.operands]))
            ctx.lineage.derive(found, f"{ctx.lineage.of(node)}@{ctx.lineage.of(one)}")
        moved[node] = found
        return found

    # Who takes the result as a whole, the computation's root among them, goes on seeing the elements it knows.
    take_apart(one)
    # Only what something that stays uses has to travel with the state.
    staying = set(chosen)
    live = [n for n in chosen if n.is_root or any(user not in staying for user in n.users)]
    values = add_elements(loop, [copy(node) for node in live])
    for node, value in zip(live, values, strict=True):
        node.replace_all_uses_with(value)
        loop.body.remove_with_dead_operands(node)
    return True


def _movable(node: HloInstruction) -> bool:
    return not (node.has_side_effect or node.control_predecessors or node.control_successors) and node.shape.is_array


@dataclass(frozen=True)
class WhileLoopConstantSinking:
    """Constants of the state inside the loop."""

    name = "while-loop-constant-sinking"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every loop, outermost first, so that constants sink through nests."""
        changed = False
        for one in reversed(loops_in(module)):
            loop = loop_of(one)
            if isinstance(loop, Refusal):
                ctx.refuse("sink-constant", one, loop.code, loop.detail)
                continue
            for i in range(loop.width):
                start = loop.initial(i)
                if start is not None and start.opcode == "constant" and loop.passes_through(i):
                    changed |= _sink(loop, ctx, i, start)
        return changed


def _sink(loop: Loop, ctx: PassContext, index: int, start: HloInstruction) -> bool:
    changed = False
    for value in loop.parameters:
        for element in elements_of(value, index):
            users = [user for user in element.users if user is not loop.body.root]
            if not users and not (element.is_root and value is not loop.body.parameters[0]):
                continue
            step = ctx.gate("sink-constant", element)
            if not step:
                continue
            twin = value.parent.add(start.clone_with(name=f"{start.name}.sunk"))
            for user in users:
                element.replace_use_with(user, twin)
            if element.is_root:
                value.parent.set_root(twin)
            if not element.user_count:
                value.parent.remove(element)
            step.done(twin)
            changed = True
    return changed
