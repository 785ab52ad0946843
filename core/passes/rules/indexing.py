"""Rules on gathers and scatters, and on collectives, maps, barriers and conditionals that do little.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc`` (HandleGather, HandleScatter,
HandleAllGather, HandleAllToAll, HandleAllReduce, HandleReduceScatter, HandleMap, HandleOptimizationBarrier,
HandleConditional).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import (
    Answer,
    Builder,
    Rule,
    RuleOptions,
    is_static_array,
    like,
    rule,
    type_of,
)
from hloscope.core.passes.rules.predicates import is_scalar_constant_broadcast, reducer_opcode

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


# ---------------------------------------------------------------- gathers
@rule("gather-empty", "gather", "gather from nothing → 0, from one element → broadcast", insensitive=True)
def gather_empty(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if not is_static_array(one.shape) or not is_static_array(x.shape):
        return None
    if not x.shape.element_count:
        return lambda build: build.scalar_like(one.shape, 0)
    if x.shape.element_count == 1 and one.shape.element_count:
        return lambda build: build.broadcast_scalar(build.reshape(x, ()), one.shape)
    return None


@rule("gather-few", "gather", "gather from a vector of at most 4 elements → selects", insensitive=True)
def gather_few(one: HloInstruction, options: RuleOptions) -> Answer:
    x, indices = one.operands
    if x.shape.rank != 1 or not is_static_array(x.shape) or not is_static_array(one.shape):
        return None
    size = x.shape.dimensions[0]
    vector = int(one.attr("index_vector_dim"))
    plain = tuple(one.attr("slice_sizes") or ()) == (1,) and not (one.attr("offset_dims") or ())
    if not 1 < size <= options.very_small_gather_size or not plain or one.attr("operand_batching_dims"):
        return None
    if tuple(one.attr("start_index_map") or ()) != (0,) or not one.shape.element_count:
        return None
    if vector != indices.shape.rank and indices.shape.dimensions[vector] != 1:
        return None

    def make(build: Builder) -> HloInstruction:
        flat = build.reshape(indices, one.shape.dimensions)

        def element(i: int) -> HloInstruction:
            return build.broadcast_scalar(build.reshape(build.slice(x, [i], [i + 1]), ()), one.shape)

        # An index below 1 is clamped to 0, one past the end to the last element.
        found = element(0)
        for i in range(1, size):
            bound = build.scalar_like(flat.shape, i)
            found = build.select(build.compare(flat, bound, "GE"), element(i), found)
        return found

    return make


# ---------------------------------------------------------------- scatters
def _is_sum(one: HloInstruction) -> bool:
    return one.opcode == "scatter" and one.operand_count == 3 and reducer_opcode(one.callee("to_apply")) == "add"


@rule("scatter-empty", "scatter", "scatter of nothing → operands", insensitive=True)
def scatter_empty(one: HloInstruction, options: RuleOptions) -> Answer:
    count = one.operand_count // 2
    updates = one.operands[count + 1 :]
    if any(not is_static_array(u.shape) or u.shape.element_count for u in updates):
        return None
    return one.operand(0) if count == 1 else lambda build: build.tuple(one.operands[:count])


@rule("add-scatter", "add", "x + scatter-add(o, i, u) → scatter-add(x + o, i, u)", insensitive=True)
def add_scatter(one: HloInstruction, options: RuleOptions) -> Answer:
    for x, scatter in (one.operands, one.operands[::-1]):
        if not _is_sum(scatter) or scatter.user_count != 1 or x is scatter:
            continue
        other, found = x, scatter
        return lambda build: build.clone(
            found, [build.binary("add", other, found.operand(0)), *found.operands[1:]]
        )
    return None


@rule("transpose-scatter", "transpose", "transpose(scatter(x, i, u)) → scatter(transpose(x), i, transpose(u)), on GPU",
      insensitive=True)  # fmt: skip
def transpose_scatter(one: HloInstruction, options: RuleOptions) -> Answer:
    scatter = one.operand(0)
    if not options.enable_fold_transpose_into_scatter or scatter.opcode != "scatter" or scatter.user_count != 1:
        return None
    if scatter.operand_count != 3 or scatter.attr("input_batching_dims") or scatter.attr("inserted_window_dims"):
        return None
    x, indices, updates = scatter.operands
    window = tuple(scatter.attr("update_window_dims") or ())
    if window != tuple(range(1, x.shape.rank + 1)) or updates.shape.rank != x.shape.rank + 1:
        return None
    order = one.dimensions
    starts = tuple(order.index(d) for d in scatter.attr("scatter_dims_to_operand_dims") or ())

    def make(build: Builder) -> HloInstruction:
        moved = build.transpose(updates, (0, *(d + 1 for d in order)))
        made = build.clone(scatter, [build.transpose(x, order), indices, moved], one.shape)
        made.set_attr("scatter_dims_to_operand_dims", starts)
        return made

    return make


# ---------------------------------------------------------------- collectives
@rule("collective-of-broadcast", "all-gather all-to-all", "every device's copy of a constant → broadcast",
      insensitive=True)  # fmt: skip
def collective_of_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand_count != 1 or not is_static_array(one.shape):
        return None
    x = one.operand(0)
    if not is_scalar_constant_broadcast(x):
        return None
    return lambda build: build.broadcast_scalar(x.operand(0), one.shape)


@rule("reduce-of-equal", "all-reduce reduce-scatter", "min or max of a constant → it, sum → it times the devices",
      insensitive=True)  # fmt: skip
def reduce_of_equal(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand_count != 1 or not is_static_array(one.shape) or one.attr("constrain_layout"):
        return None
    x = one.operand(0)
    if not is_scalar_constant_broadcast(x):
        return None
    opcode = reducer_opcode(one.callee("to_apply"))
    if opcode in ("minimum", "maximum"):
        return lambda build: build.broadcast_scalar(x.operand(0), one.shape)
    groups: Any = one.attr("replica_groups") or ()
    sizes = {len(group) for group in groups}
    if opcode != "add" or len(sizes) != 1 or 0 in sizes:
        return Refusal("group_size", f"groups of {sorted(sizes)}")
    (size,) = sizes
    if one.shape.type.kind not in ("int", "uint", "float"):
        return None

    def make(build: Builder) -> HloInstruction:
        scalar = x.operand(0)
        return build.broadcast_scalar(
            build.binary("multiply", scalar, build.constant(size, like(scalar.shape, ()))), one.shape
        )

    return make


# ---------------------------------------------------------------- maps, barriers, conditionals
@rule("map-trivial", "map", "map of a parameter or a constant → operand, broadcast", insensitive=True)
def map_trivial(one: HloInstruction, options: RuleOptions) -> Answer:
    root = one.callee("to_apply").root
    if root.opcode == "parameter":
        return one.operand(root.parameter_number)
    if root.opcode == "constant" and root.shape.is_scalar:
        return lambda build: build.broadcast_scalar(build.clone(root, []), one.shape)
    return None


@rule("map-elementwise", "map", "map of one operation on parameters → the operation", insensitive=True)
def map_elementwise(one: HloInstruction, options: RuleOptions) -> Answer:
    root = one.callee("to_apply").root
    if not root.info.elementwise or root.opcode in ("map", "fusion", "constant", "parameter"):
        return None
    if not root.operand_count or any(o.opcode != "parameter" for o in root.operands):
        return None
    return lambda build: build.clone(root, [one.operand(o.parameter_number) for o in root.operands], one.shape)


@rule("barrier-unused", "opt-barrier", "elements of a barrier that nobody takes are not passed", insensitive=True)
def barrier_unused(one: HloInstruction, options: RuleOptions) -> Answer:
    source = one.operand(0)
    if not one.shape.is_tuple or one.is_root or source.opcode != "tuple":
        return None
    if any(user.opcode != "get-tuple-element" for user in one.users):
        return None
    used = {int(user.attr("index")) for user in one.users}
    for i, part in enumerate(source.operands):
        if part.user_count > 1 or part.is_root or part.has_side_effect:
            used.add(i)
    kept = sorted(used)
    if len(kept) == source.operand_count or not kept:
        return None

    def make(build: Builder) -> HloInstruction:
        smaller = build.tuple([source.operand(i) for i in kept])
        held = build.clone(one, [smaller], smaller.shape)
        # The old tuple shape is rebuilt around what is kept; whoever takes an element finds it there.
        parts: list[HloInstruction] = []
        for i, part in enumerate(source.operands):
            parts.append(build.element(held, kept.index(i)) if i in used else part)
        return build.make("tuple", one.shape, parts)

    return make


@rule("conditional-on-pred", "conditional", "a conditional on convert(pred) of two branches → on the pred, on GPU")
def conditional_on_pred(one: HloInstruction, options: RuleOptions) -> Answer:
    chooser = one.operand(0)
    if not options.enable_conditional_simplification or "branch_computations" not in one.called:
        return None
    branches = one.called["branch_computations"]
    if len(branches) != 2 or chooser.opcode != "convert" or type_of(chooser.operand(0)) != "pred":
        return None
    if chooser.shape.element_type != "s32":
        return None

    def make(build: Builder) -> HloInstruction:
        made = build.clone(one, [chooser.operand(0), one.operand(2), one.operand(1)])
        made.drop_called("branch_computations")
        made.set_called("true_computation", branches[1])
        made.set_called("false_computation", branches[0])
        return made

    return make


RULES: tuple[Rule, ...] = (
    gather_empty, gather_few, scatter_empty, add_scatter, transpose_scatter, collective_of_broadcast, reduce_of_equal,
    map_trivial, map_elementwise, barrier_unused, conditional_on_pred,
)  # fmt: skip
