"""``simplify-while-loops``: state that does nothing goes, loops that run never or once go, counters become one.

For each loop the steps below are taken until none applies; merging the counters comes last. Source:
``openxla/xla:xla/service/while_loop_simplifier.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.passes.call_inliner import inline_call
from hloscope.core.passes.dce import HloDce
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.loops.state import (
    Loop,
    add_elements,
    drop_elements,
    elements_of,
    loop_of,
    loops_in,
    take_apart,
)
from hloscope.core.passes.loops.trip_count import step_of, trip_count
from hloscope.core.passes.rules.base import Builder

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_RULE = "while-loop"
_COUNTERS = ("s8", "u8", "s32", "u32", "s64", "u64")


@dataclass(frozen=True)
class WhileLoopSimplifier:
    """The pass."""

    name = "simplify-while-loops"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every loop, those in callees first; again where dead code that went had kept elements alive."""
        changed = False
        while self._round(module, ctx):
            changed = True
            if not HloDce().run(module, ctx):
                break
        return changed

    @staticmethod
    def _round(module: HloModule, ctx: PassContext) -> bool:
        changed = False
        for one in loops_in(module):
            if not one.in_computation or one.module is not module:
                continue
            frontend = one.attr("frontend_attributes") or {}
            if "xla_disable_while_loop_dce" in frontend:
                ctx.refuse(_RULE, one, "disabled", "frontend attribute")
                continue
            changed |= _simplify(one, ctx)
        return changed


def _simplify(one: HloInstruction, ctx: PassContext) -> bool:
    changed = False
    while True:
        loop = loop_of(one)
        if isinstance(loop, Refusal):
            ctx.refuse(_RULE, one, loop.code, loop.detail)
            return changed
        step = next((step for step in _STEPS if step(loop, ctx)), None)
        if step is None:
            return changed
        changed = True
        if not one.in_computation:
            return True


# ---------------------------------------------------------------- state
def _repeated(loop: Loop, ctx: PassContext) -> bool:
    """Elements that start as the same value and are handed on are one."""
    first: dict[HloInstruction, int] = {}
    gone: dict[int, int | None] = {}
    for i in range(loop.width):
        start = loop.initial(i)
        if start is None or not loop.passes_through(i):
            continue
        known = first.setdefault(start, i)
        if known != i:
            gone[i] = known
    return bool(gone) and _drop(loop, ctx, "repeated-element", gone)


def _drop(loop: Loop, ctx: PassContext, rule: str, gone: dict[int, int | None]) -> bool:
    step = ctx.gate(rule, loop.instruction)
    if not step:
        return False
    made = take_apart(loop.instruction)
    drop_elements(loop, gone)
    step.done(*made, detail=f"elements {sorted(gone)} of {loop.width + len(gone)}")
    return True


def _dead(loop: Loop, ctx: PassContext) -> bool:
    """Elements that neither the condition, nor an effect, nor anything after the loop depends on."""
    one = loop.instruction
    if one.is_root or any(user.opcode != "get-tuple-element" for user in one.users):
        return False
    if not one.parent.is_removable(one) or not loop.width:
        return False
    state, tested = loop.parameters
    needed = {int(user.attr("index")) for value in (one, tested) for user in value.users}
    # What every effect in the body depends on is needed; then whatever a needed element is made of.
    reads = _elements_read(loop)
    for node in loop.body:
        if node.has_side_effect or node.control_predecessors or node.control_successors:
            needed |= reads[node]
    work = list(needed)
    while work:
        for index in reads[loop.following(work.pop())]:
            if index not in needed:
                needed.add(index)
                work.append(index)
    # An element that is handed on unchanged is, after the loop, what it was before.
    passed: dict[int, HloInstruction] = {}
    for i in sorted(needed):
        start, inside = loop.initial(i), elements_of(state, i)
        used_inside = any(user is not loop.body.root for e in inside for user in e.users)
        if start is not None and loop.passes_through(i) and not used_inside and not elements_of(tested, i):
            # Another element may be made of it, by the same instruction or by one that takes the same element.
            if sum(operand in inside for operand in loop.body.root.operands) == 1:
                passed[i] = start
    gone = [i for i in range(loop.width) if i not in needed or i in passed]
    if not gone or len(gone) == loop.width:
        gone = gone[1:] if gone and loop.width > 1 else []
    if not gone:
        return False
    step = ctx.gate("dead-element", one)
    if not step:
        return False
    width = loop.width
    for i, start in passed.items():
        if i in gone:
            for element in elements_of(one, i):
                element.replace_all_uses_with(start)
                one.parent.remove(element)
    drop_elements(loop, dict.fromkeys(gone))
    step.done(detail=f"elements {gone} of {width}")
    return True


def _elements_read(loop: Loop) -> dict[HloInstruction, frozenset[int]]:
    """For every instruction of the body the elements of the state that it depends on."""
    reads: dict[HloInstruction, frozenset[int]] = {}
    state, root = loop.body.parameters[0], loop.body.root
    empty: frozenset[int] = frozenset()
    for node in loop.body.post_order():
        if node is root:
            reads[node] = empty
        elif node.opcode == "get-tuple-element" and node.operand(0) is state:
            reads[node] = frozenset((int(node.attr("index")),))
        else:
            found = empty
            for operand in node.operands:
                if operand is not state and reads[operand] is not found:
                    found = found | reads[operand] if found else reads[operand]
            reads[node] = found
    return reads


def _constant(loop: Loop, ctx: PassContext) -> bool:
    """Elements that are the same constant before and after every trip."""
    for i in range(loop.width):
        start, following = loop.initial(i), loop.following(i)
        if start is None or start.opcode != "constant" or following.opcode != "constant" or loop.width == 1:
            continue
        if not start.literal.same(following.literal) or not start.shape.compatible(following.shape):
            continue
        step = ctx.gate("constant-element", loop.instruction, others=(start,))
        if not step:
            continue
        take_apart(loop.instruction)
        for value in (loop.instruction, *loop.parameters):
            for element in elements_of(value, i):
                twin = value.parent.add(start.clone_with()) if value is not loop.instruction else start
                element.replace_all_uses_with(twin)
                value.parent.remove(element)
        drop_elements(loop, {i: None})
        step.done(detail=f"element {i}")
        return True
    return False


def _propagate(loop: Loop, ctx: PassContext) -> bool:
    """Scalars that start as a constant and are handed on: the constant at each use."""
    done = False
    for i in range(loop.width):
        start = loop.initial(i)
        if start is None or start.opcode != "constant" or not start.shape.is_scalar or not loop.passes_through(i):
            continue
        uses = [
            (element, user)
            for value in loop.parameters
            for element in elements_of(value, i)
            for user in element.users
            if user is not loop.body.root
        ]
        roots = [e for e in elements_of(loop.condition.parameters[0], i) if e.is_root]
        if not uses and not roots:
            continue
        step = ctx.gate("propagate-constant", loop.instruction, others=(start,))
        if not step:
            continue
        made: dict[HloInstruction, HloInstruction] = {}
        for element, user in uses:
            if element not in made:
                made[element] = element.parent.add(start.clone_with())
            element.replace_use_with(user, made[element])
        for element in roots:
            loop.condition.set_root(made.get(element) or loop.condition.add(start.clone_with()))
        for element in made:
            if not element.user_count and not element.is_root:
                element.parent.remove(element)
        step.done(*made.values(), detail=f"element {i}")
        done = True
    return done


def _flatten(loop: Loop, ctx: PassContext) -> bool:
    """Tuples in the state: their leaves are elements of it."""
    nested = [i for i, shape in enumerate(loop.instruction.shape.tuple_shapes) if shape.is_tuple]
    if not nested:
        return False
    index = nested[0]
    step = ctx.gate("flatten-state", loop.instruction)
    if not step:
        return False
    made = take_apart(loop.instruction)
    shapes = loop.instruction.shape.tuple_shapes[index].tuple_shapes
    home = loop.instruction.parent
    start = loop.initial(index)
    if start is None:
        start = home.add(
            HloInstruction(
                "get-tuple-element", loop.instruction.shape.tuple_shapes[index], [loop.instruction.operand(0)],
                attrs={"index": index},
            )
        )  # fmt: skip
    first = loop.width
    following = loop.following(index)
    parts = [home.add(_element(start, i)) for i in range(len(shapes))]
    add_elements(loop, parts)
    root = loop.body.root
    for i in range(len(shapes)):
        root.replace_operand(first + i, loop.body.add(_element(following, i)))
    for value in (loop.instruction, *loop.parameters):
        users = elements_of(value, index)
        if not users:
            continue
        leaves = [value.parent.add(_element(value, first + i)) for i in range(len(shapes))]
        whole = value.parent.add(HloInstruction("tuple", users[0].shape, leaves))
        for user in users:
            user.replace_all_uses_with(whole)
            value.parent.remove(user)
        made.append(whole)
    drop_elements(loop, {index: None})
    step.done(*made, detail=f"element {index}")
    return True


def _element(value: HloInstruction, index: int) -> HloInstruction:
    return HloInstruction("get-tuple-element", value.shape.tuple_shapes[index], [value], attrs={"index": index})


# ---------------------------------------------------------------- trips
def _few_trips(loop: Loop, ctx: PassContext) -> bool:
    """A loop that never runs is its start; one that runs once is its body."""
    one = loop.instruction
    if one.control_predecessors or one.control_successors:
        ctx.refuse("remove-loop", one, "control_dependencies")
        return False
    found = trip_count(loop, 1)
    if found is None or found.count is None or found.count > 1:
        return False
    if found.count == 0:
        if not one.user_count and not one.is_root and not one.parent.is_removable(one):
            return False  # nobody reads it, and what is in it keeps it
        step = ctx.gate("loop-without-trips", one)
        if not step:
            return False
        start = one.operand(0)
        one.replace_all_uses_with(start)
        one.parent.remove(one) if not one.user_count and one.parent.is_removable(one) else None
        step.done(detail=f"replaced by %{start.name}")
        return True
    if any(node.has_side_effect for node in loop.body):
        ctx.refuse("loop-of-one-trip", one, "side_effect")
        return False
    step = ctx.gate("loop-of-one-trip", one)
    if not step:
        return False
    call = one.parent.add(
        HloInstruction(
            "call", one.shape, one.operands, called={"to_apply": loop.body},
            metadata=one.raw_attrs.get("metadata"),
        )
    )  # fmt: skip
    one.replace_all_uses_with(call)
    one.parent.remove(one)
    made = inline_call(call, ctx, update_metadata=False)
    step.done(*made, detail="one trip")
    return True


# ---------------------------------------------------------------- counters
def _merge_counters(loop: Loop, ctx: PassContext) -> bool:
    """Elements that grow by a constant become start + counter · constant of one counter."""
    return any([_merge_counters_of(loop, ctx, kind) for kind in _COUNTERS])


def _merge_counters_of(loop: Loop, ctx: PassContext, kind: str) -> bool:
    counter: int | None = None
    growing: dict[int, int] = {}
    for i in range(loop.width):
        shape = loop.instruction.shape.tuple_shapes[i]
        grows = step_of(loop, i) if shape.is_scalar and shape.element_type == kind else None
        if grows is None:
            continue
        start = loop.initial(i)
        if counter is None and grows == 1 and start is not None and start.is_constant_scalar(0):
            counter = i
        else:
            growing[i] = grows
    if len(growing) + (counter is not None) < 2:
        return False
    step = ctx.gate("merge-counters", loop.instruction)
    if not step:
        return False
    made = take_apart(loop.instruction)
    one = loop.instruction
    if counter is None:
        home = Builder(one)
        counter = loop.width
        (inside,) = add_elements(loop, [home.scalar(kind, 0)])
        inner = Builder(loop.body.root, loop.body)
        loop.body.root.replace_operand(counter, inner.binary("add", inside, inner.scalar(kind, 1)))
    for value in (one, *loop.parameters):
        build = Builder(value, value.parent)
        trips: HloInstruction | None = None
        for i, grows in growing.items():
            elements = [e for e in elements_of(value, i) if e.user_count or e.is_root]
            if not elements:
                continue
            if trips is None:
                trips = build.element(value, counter)
            first = build.element(value, i)
            grown = build.binary("multiply", trips, build.scalar(kind, grows))
            whole = build.binary("add", first, grown)
            for element in elements:
                element.replace_all_uses_with(whole)
                value.parent.remove(element)
        made.extend(build.made)
    for i in growing:
        old = loop.following(i)
        loop.body.root.replace_operand(i, loop.body.add(_element(loop.body.parameters[0], i)))
        if not old.user_count:
            loop.body.remove_with_dead_operands(old)
    step.done(*made, detail=f"elements {sorted(growing)} by the counter {counter}")
    return True


def _ends_at_effects(step: Callable[[Loop, PassContext], bool]) -> Callable[[Loop, PassContext], bool]:
    """A step that is not taken where the loop talks to another device or the host."""

    def guarded(loop: Loop, ctx: PassContext) -> bool:
        if any(n.opcode in ("send", "send-done", "recv", "recv-done") for n in (*loop.body, *loop.condition)):
            ctx.refuse(_RULE, loop.instruction, "send_or_recv")
            return False
        return step(loop, ctx)

    return guarded


_STEPS = (
    _repeated, _flatten, _dead, _constant, _ends_at_effects(_propagate), _ends_at_effects(_few_trips),
    _ends_at_effects(_merge_counters),
)  # fmt: skip
