"""Passes on collectives, barriers and shardings that take away what does nothing on the devices there are.

Source: ``openxla/xla:xla/service/all_reduce_simplifier.cc``, ``all_gather_simplifier.cc``, ``xla/hlo/transforms/
collectives/all_reduce_folder.cc``, ``all_reduce_reassociate.cc``, ``all_to_all_decomposer.cc``,
``xla/service/sharding_remover.cc``, ``xla/hlo/transforms/expanders/optimization_barrier_expander.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hloscope.core.hlo.shape import Shape
from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule
from hloscope.core.passes.rules.predicates import reducer_opcode

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


def group_size(one: HloInstruction) -> int | None:
    """Devices of each group; None where groups differ or are not listed and the header does not say."""
    groups: Any = one.attr("replica_groups") or ()
    sizes = {len(group) for group in groups}
    if len(sizes) == 1:
        return int(sizes.pop())
    if sizes:
        return None
    module = one.module
    if one.attr("channel_id") is None:
        return module.replica_count
    return module.num_partitions if one.attr("use_global_device_ids") is None else None


# ---------------------------------------------------------------- all-reduce-simplifier
@rule("collective-of-one", "all-reduce reduce-scatter", "a reduction among one device → operand")
def collective_of_one(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand_count != 1 or one.attr("constrain_layout"):
        return None
    size = group_size(one)
    if size != 1:
        return Refusal("group_size", str(size))
    return one.operand(0) if options.same_shape(one.shape, one.operand(0).shape) else None


def is_replicated(one: HloInstruction, depth: int = 8) -> bool:
    """Whether every device of a run holds the same value, as far as the instructions tell."""
    if not depth or one.opcode in ("partition-id", "replica-id", "rng", "infeed", "recv", "recv-done", "custom-call"):
        return False
    if one.opcode in ("constant", "iota"):
        return True
    if one.opcode == "all-reduce":
        return not (one.attr("replica_groups") or ())
    if one.opcode == "parameter":
        return False
    if one.has_side_effect or one.called_computations or not one.operand_count:
        return False
    return all(is_replicated(operand, depth - 1) for operand in one.operands)


@rule("reduce-of-replicated", "all-reduce", "min or max of equal values → it, a sum → it times the devices")
def reduce_of_replicated(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand_count != 1 or one.attr("constrain_layout") or not is_static_array(one.shape):
        return None
    x, size = one.operand(0), group_size(one)
    opcode = reducer_opcode(one.callee("to_apply"))
    if not is_replicated(x) or size is None:
        return Refusal("replicated", "not known to be the same everywhere")
    if opcode in ("minimum", "maximum", "and", "or"):
        return x
    if opcode != "add" or one.shape.type.kind not in ("int", "uint", "float"):
        return None
    count = size
    return lambda build: build.binary("multiply", x, build.scalar_like(one.shape, count))


@dataclass(frozen=True)
class AllReduceSimplifier(RulePass):
    """Reductions among one device, or of what is equal everywhere."""

    name = "all-reduce-simplifier"
    rules = (collective_of_one, reduce_of_replicated)


@rule("gather-of-one", "all-gather", "an all-gather among one device → operand")
def gather_of_one(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand_count != 1 or not options.same_shape(one.shape, one.operand(0).shape):
        return None
    return one.operand(0)


@dataclass(frozen=True)
class AllGatherSimplifier(RulePass):
    """All-gathers that gather nothing."""

    name = "all-gather-simplifier"
    rules = (gather_of_one,)


# ---------------------------------------------------------------- all-reduce-folder
@rule("fold-all-reduces", "all-reduce",
      "an all-reduce of an all-reduce whose groups cross → one over the joined groups")  # fmt: skip
def fold_all_reduces(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if one.operand_count != 1 or inner.opcode != "all-reduce" or inner.operand_count != 1 or inner.user_count != 1:
        return None
    opcode = reducer_opcode(one.callee("to_apply"))
    if opcode is None or opcode != reducer_opcode(inner.callee("to_apply")):
        return None
    outer_groups: Any = one.attr("replica_groups") or ()
    inner_groups: Any = inner.attr("replica_groups") or ()
    same = one.attr("use_global_device_ids") == inner.attr("use_global_device_ids")
    if not outer_groups or not inner_groups or not same or (one.attr("channel_id") is None) != (
        inner.attr("channel_id") is None
    ):
        return None
    joined = _crossing(outer_groups, inner_groups)
    if joined is None:
        return Refusal("groups", "a device would be counted twice")

    def make(build: Builder) -> HloInstruction:
        made = build.clone(one, [inner.operand(0)])
        made.set_attr("replica_groups", joined)
        return made

    return make


def _crossing(outer: Any, inner: Any) -> tuple[tuple[int, ...], ...] | None:
    """Groups joined through the inner ones; None unless each outer group takes one device of each inner one."""
    home = {device: group for group in inner for device in group}
    found: dict[frozenset[int], None] = {}
    for group in outer:
        members: list[int] = []
        for device in group:
            members.extend(home.get(device, ()))
        if len(set(members)) != len(members) or not members:
            return None
        found[frozenset(members)] = None
    seen: set[int] = set()
    for joined in found:
        if joined & seen:
            return None
        seen |= joined
    return tuple(tuple(sorted(joined)) for joined in found)


@dataclass(frozen=True)
class AllReduceFolder(RulePass):
    """Nested all-reduces in one."""

    name = "all-reduce-folder"
    rules = (fold_all_reduces,)


# ---------------------------------------------------------------- all-reduce-reassociate
@rule("join-all-reduces", "add maximum minimum multiply and or",
      "op(all-reduce(a), all-reduce(b)) → all-reduce(op(a, b))")  # fmt: skip
def join_all_reduces(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = one.operands
    if left is right:
        return None
    if any(o.opcode != "all-reduce" or o.operand_count != 1 or o.user_count != 1 for o in (left, right)):
        return None
    if any(reducer_opcode(o.callee("to_apply")) != one.opcode for o in (left, right)):
        return None
    keys = ("replica_groups", "use_global_device_ids", "constrain_layout")
    if any(left.raw_attrs.get(k) != right.raw_attrs.get(k) for k in keys):
        return Refusal("groups", "the all-reduces go over other groups")
    if (left.attr("channel_id") is None) != (right.attr("channel_id") is None):
        return None
    return lambda build: build.clone(left, [build.clone(one, [left.operand(0), right.operand(0)])])


@dataclass(frozen=True)
class AllReduceReassociate(RulePass):
    """One all-reduce for the sum of two."""

    name = "all-reduce-reassociate"
    rules = (join_all_reduces,)


# ---------------------------------------------------------------- all_to_all_decomposer
@rule("decompose-all-to-all", "all-to-all", "an all-to-all of one array → of its slices")
def decompose_all_to_all(one: HloInstruction, options: RuleOptions) -> Answer:
    dims = one.dimensions
    if one.operand_count != 1 or len(dims) != 1 or not is_static_array(one.shape):
        return None
    size = group_size(one)
    x = one.operand(0)
    if size is None or size < 1 or x.shape.dimensions[dims[0]] % size:
        return Refusal("group_size", str(size))
    count, along = size, dims[0]

    def make(build: Builder) -> HloInstruction:
        width = x.shape.dimensions[along] // count
        parts: list[HloInstruction] = []
        for i in range(count):
            starts = [i * width if d == along else 0 for d in range(x.shape.rank)]
            limits = [(i + 1) * width if d == along else s for d, s in enumerate(x.shape.dimensions)]
            parts.append(build.slice(x, starts, limits))
        whole = build.clone(one, parts, Shape.tuple_([part.shape for part in parts]))
        whole.set_attr("dimensions", None)
        return build.concatenate([build.element(whole, i) for i in range(count)], along)

    return make


@dataclass(frozen=True)
class AllToAllDecomposer(RulePass):
    """All-to-alls of slices."""

    name = "all_to_all_decomposer"
    rules = (decompose_all_to_all,)


# ---------------------------------------------------------------- barriers
@rule("expand-barrier", "opt-barrier", "a barrier → operand")
def expand_barrier(one: HloInstruction, options: RuleOptions) -> Answer:
    return one.operand(0)


@dataclass(frozen=True)
class OptimizationBarrierExpander(RulePass):
    """Barriers gone, once nothing more is merged or moved across them."""

    name = "cse_barrier_expander"
    rules = (expand_barrier,)
