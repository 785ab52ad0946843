"""Passes on conditionals: ``simplify-conditional``, ``conditional-to-select``, ``conditional-canonicalizer``.

They work in place on branches that only one conditional calls. Source: ``openxla/xla:xla/service/
conditional_simplifier.cc``, ``conditional_to_select.cc``,
``xla/hlo/transforms/simplifiers/conditional_canonicalizer.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.shape import Shape
from hloscope.core.passes.call_inliner import inline_call
from hloscope.core.passes.dce import HloDce
from hloscope.core.passes.rules.base import Builder

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_CHEAP = frozenset(
    "broadcast concatenate dynamic-slice get-tuple-element reduce reshape pad slice tuple parameter constant".split()
)
_EMPTY = frozenset({"parameter", "tuple", "get-tuple-element"})


def branches(one: HloInstruction) -> list[HloComputation]:
    """The branches in operand order: true before false, or by number."""
    called = one.called
    if "branch_computations" in called:
        return list(called["branch_computations"])
    return [called["true_computation"][0], called["false_computation"][0]]


def _conditionals(module: HloModule) -> list[HloInstruction]:
    return [one for c in module.post_order() for one in c if one.opcode == "conditional"]


# ---------------------------------------------------------------- simplify-conditional
@dataclass(frozen=True)
class ConditionalSimplifier:
    """Conditionals whose branch is known, or cheap enough to take both, and what nobody uses of them."""

    name = "simplify-conditional"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every conditional, those in callees first."""
        changed = False
        for one in _conditionals(module):
            if not one.in_computation:
                continue
            if one.control_predecessors or one.control_successors:
                ctx.refuse("simplify-conditional", one, "control_dependencies")
                continue
            if _take_known(one, ctx) or _take_both(one, ctx):
                changed = True
                continue
            shared = [b for b in branches(one) if len(b.callers) != 1 or branches(one).count(b) != 1]
            if shared:
                ctx.refuse("simplify-conditional", one, "shared", f"{shared[0].name} has other callers")
                continue
            changed |= _unused_results(one, ctx)
            changed |= _duplicate_results(one, ctx)
            changed |= _unused_operands(one, ctx)
        if changed:
            HloDce().run(module, ctx)
        return changed


def _call(one: HloInstruction, place: int, build: Builder) -> HloInstruction:
    return build.make("call", one.shape, [one.operand(place + 1)], called={"to_apply": branches(one)[place]})


def _take_known(one: HloInstruction, ctx: PassContext) -> bool:
    """One branch alone, or a constant in front: a call, inlined."""
    chooser, many = one.operand(0), len(branches(one))
    if many == 1:
        place = 0
    elif chooser.opcode == "constant" and chooser.literal.values is not None:
        value = chooser.literal.array()[()]
        if chooser.shape.element_type == "pred":
            place = 0 if bool(value) else 1
        else:
            place = int(value) if 0 <= int(value) < many else many - 1
    else:
        return False
    step = ctx.gate("known-branch", one)
    if not step:
        return False
    build = Builder(one)
    call = _call(one, place, build)
    one.replace_all_uses_with(call)
    one.parent.remove(one)
    step.done(*inline_call(call, ctx, update_metadata=False), detail=f"branch {place}")
    return True


def _is_cheap(branch: HloComputation) -> bool:
    return all(n.opcode in _CHEAP or (n.info.elementwise and n.opcode != "map") for n in branch)


def _take_both(one: HloInstruction, ctx: PassContext) -> bool:
    """Two cheap branches: both, and selects of their results."""
    if one.operand(0).shape.element_type != "pred" or not one.operand(0).shape.is_scalar:
        return False
    both = branches(one)
    leaves = [leaf for _, leaf in one.shape.leaves()]
    if any(not leaf.is_array or leaf.is_dynamic for leaf in leaves) or any(s.is_tuple for s in one.shape.tuple_shapes):
        return False
    if any(n.has_side_effect for b in both for n in b):
        ctx.refuse("cheap-branches", one, "side_effect")
        return False
    if any(not _is_cheap(b) for b in both) or (all(n.opcode in _EMPTY for b in both for n in b) and leaves):
        return False
    if any(all(n.opcode in _EMPTY for n in b) for b in both):
        ctx.refuse("cheap-branches", one, "empty_branch")
        return False
    step = ctx.gate("cheap-branches", one)
    if not step:
        return False
    build = Builder(one)
    calls = [_call(one, place, build) for place in range(2)]
    predicate = one.operand(0)
    if one.shape.is_tuple:
        parts = [
            build.select(predicate, build.element(calls[0], i), build.element(calls[1], i))
            for i in range(len(one.shape.tuple_shapes))
        ]
        whole = build.make("tuple", one.shape, parts)
    else:
        whole = build.select(predicate, *calls)
    one.replace_all_uses_with(whole)
    one.parent.remove(one)
    made = [n for call in calls for n in inline_call(call, ctx, update_metadata=False)]
    step.done(whole, *[n for n in build.made if n.in_computation and n is not whole], *made)
    return True


def _keep_results(one: HloInstruction, kept: list[int], stands: dict[int, int]) -> None:
    places = {old: new for new, old in enumerate(kept)}
    shape = Shape.tuple_([one.shape.tuple_shapes[i] for i in kept])
    for branch in branches(one):
        root = branch.root
        inner = Builder(root, branch)
        parts = [root.operand(i) if root.opcode == "tuple" else inner.element(root, i) for i in kept]
        branch.set_root(inner.make("tuple", shape, parts))
        if not root.user_count and branch.is_removable(root):
            branch.remove_with_dead_operands(root)
    for user in one.users:
        index = int(user.attr("index"))
        user.set_attr("index", places[stands.get(index, index)])
    one.shape = shape


def _only_elements_used(one: HloInstruction) -> bool:
    return one.shape.is_tuple and not one.is_root and all(u.opcode == "get-tuple-element" for u in one.users)


def _unused_results(one: HloInstruction, ctx: PassContext) -> bool:
    if not _only_elements_used(one) or "sharding" in one.raw_attrs:
        return False
    used = sorted({int(user.attr("index")) for user in one.users})
    if len(used) == len(one.shape.tuple_shapes):
        return False
    step = ctx.gate("unused-results", one)
    if not step:
        return False
    before = len(one.shape.tuple_shapes)
    _keep_results(one, used, {})
    step.done(detail=f"{len(used)} of {before} stay")
    return True


def _duplicate_results(one: HloInstruction, ctx: PassContext) -> bool:
    roots = [branch.root for branch in branches(one)]
    if not _only_elements_used(one) or any(r.opcode != "tuple" for r in roots) or "sharding" in one.raw_attrs:
        return False
    first: dict[tuple[HloInstruction, ...], int] = {}
    stands: dict[int, int] = {}
    for i in range(len(one.shape.tuple_shapes)):
        known = first.setdefault(tuple(root.operand(i) for root in roots), i)
        if known != i:
            stands[i] = known
    if not stands:
        return False
    step = ctx.gate("duplicate-results", one)
    if not step:
        return False
    before = len(one.shape.tuple_shapes)
    _keep_results(one, [i for i in range(before) if i not in stands], stands)
    step.done(detail=f"{before - len(stands)} of {before} stay")
    return True


def _unused_operands(one: HloInstruction, ctx: PassContext) -> bool:
    if "sharding" in one.raw_attrs:
        return False
    changed = False
    for place, branch in enumerate(branches(one)):
        parameter = branch.parameters[0]
        if not parameter.shape.is_tuple or parameter.is_root:
            continue
        if any(user.opcode != "get-tuple-element" for user in parameter.users):
            continue
        used = sorted({int(user.attr("index")) for user in parameter.users})
        before = len(parameter.shape.tuple_shapes)
        if len(used) == before:
            continue
        step = ctx.gate("unused-operands", one, others=(parameter,))
        if not step:
            continue
        build = Builder(one)
        given = one.operand(place + 1)
        parts = [given.operand(i) if given.opcode == "tuple" else build.element(given, i) for i in used]
        smaller = build.make("tuple", Shape.tuple_([part.shape for part in parts]), parts)
        for user in parameter.users:
            user.set_attr("index", used.index(int(user.attr("index"))))
        parameter.shape = smaller.shape
        one.replace_operand(place + 1, smaller)
        if not given.user_count and not given.is_root:
            given.parent.remove_with_dead_operands(given)
        step.done(*build.made, detail=f"branch {place}: {len(used)} of {before} stay")
        changed = True
    return changed


# ---------------------------------------------------------------- conditional-to-select
@dataclass(frozen=True)
class ConditionalToSelect:
    """Conditionals inside computations that run once per element, which cannot branch."""

    name = "conditional-to-select"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every conditional in a computation that is called per element."""
        changed = False
        for one in _conditionals(module):
            callers = one.parent.callers
            if not any(caller.info.calls == "embedded" for caller in callers):
                continue
            if any(n.has_side_effect for b in branches(one) for n in b):
                ctx.refuse("to-select", one, "side_effect")
                continue
            if one.operand(0).shape.element_type != "pred" or not one.shape.is_array or len(branches(one)) != 2:
                ctx.refuse("to-select", one, "form", f"{len(branches(one))} branches of {one.shape}")
                continue
            if one.control_predecessors or one.control_successors:
                ctx.refuse("to-select", one, "control_dependencies")
                continue
            step = ctx.gate("to-select", one)
            if not step:
                continue
            build = Builder(one)
            calls = [_call(one, place, build) for place in range(2)]
            whole = build.select(one.operand(0), *calls)
            one.replace_all_uses_with(whole)
            one.parent.remove(one)
            made = [n for call in calls for n in inline_call(call, ctx, update_metadata=False)]
            step.done(whole, *made)
            changed = True
        if changed:
            HloDce().run(module, ctx)
        return changed


# ---------------------------------------------------------------- conditional-canonicalizer
@dataclass(frozen=True)
class ConditionalCanonicalizer:
    """Branches take a tuple and give a tuple."""

    name = "conditional-canonicalizer"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every conditional."""
        changed = False
        for one in _conditionals(module):
            plain = [i for i, b in enumerate(branches(one)) if not b.parameters[0].shape.is_tuple]
            if one.shape.is_tuple and not plain:
                continue
            if any(len(b.callers) != 1 or branches(one).count(b) != 1 for b in branches(one)):
                ctx.refuse("tuple-results", one, "shared", "a branch has other callers")
                continue
            if one.control_predecessors or one.control_successors:
                ctx.refuse("tuple-results", one, "control_dependencies")
                continue
            step = ctx.gate("tuple-results", one)
            if not step:
                continue
            step.done(*_as_tuples(one, plain))
            changed = True
        return changed


def _as_tuples(one: HloInstruction, plain: list[int]) -> list[HloInstruction]:
    build = Builder(one)
    for place in plain:
        parameter = branches(one)[place].parameters[0]
        users, inner = parameter.users, Builder(parameter, parameter.parent)
        shape = parameter.shape
        element = inner.make("get-tuple-element", shape, [parameter], {"index": 0})
        for user in users:
            parameter.replace_use_with(user, element)
        if parameter.is_root:
            parameter.parent.set_root(element)
        parameter.shape = Shape.tuple_([shape])
        one.replace_operand(place + 1, build.tuple([one.operand(place + 1)]))
    if not one.shape.is_tuple:
        users, root, shape = one.users, one.is_root, one.shape
        for branch in branches(one):
            branch.set_root(Builder(branch.root, branch).tuple([branch.root]))
        one.shape = Shape.tuple_([shape])
        element = build.element(one, 0)
        for user in users:
            one.replace_use_with(user, element)
        if root:
            one.parent.set_root(element)
    return build.made
