"""Rules on broadcasts, reshapes, transposes and reverses. They run before layout assignment, where a reshape is free.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc`` (HandleBroadcast, HandleReshape,
HandleTranspose, HandleReverse, TryToSinkBroadcastAfterOpWithUniqueNonScalarOperand).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.passes.rules.base import (
    Answer,
    Builder,
    Rule,
    RuleOptions,
    is_static_array,
    like,
    rule,
)
from hloscope.core.passes.rules.reductions import shape_groups

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


def is_scalar_broadcast(one: HloInstruction) -> bool:
    """A broadcast of a rank-0 value."""
    return one.opcode == "broadcast" and one.operand(0).shape.is_scalar


@rule("broadcast-nothing", "broadcast", "broadcast that adds nothing → operand, reshape, transpose", insensitive=True)
def broadcast_nothing(one: HloInstruction, options: RuleOptions) -> Answer:
    x, dims = one.operand(0), one.dimensions
    if not is_static_array(one.shape) or not is_static_array(x.shape):
        return None
    if x.shape.element_count != one.shape.element_count or not one.shape.element_count:
        return None
    if list(dims) == sorted(dims):
        return x if options.same_shape(x.shape, one.shape) else lambda build: build.make("reshape", one.shape, [x])
    if x.shape.rank != one.shape.rank:
        return None
    order = tuple(dims.index(d) for d in range(one.shape.rank))
    return lambda build: build.make("transpose", one.shape, [x], {"dimensions": order})


@rule("broadcast-broadcast", "broadcast", "broadcast(broadcast(x)) → one broadcast", insensitive=True)
def broadcast_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "broadcast":
        return None
    dims = tuple(one.dimensions[d] for d in inner.dimensions)
    return lambda build: build.make("broadcast", one.shape, [inner.operand(0)], {"dimensions": dims})


@rule("broadcast-iota", "broadcast", "broadcast(iota) → iota", insensitive=True)
def broadcast_iota(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "iota" or not is_static_array(one.shape):
        return None
    along = one.dimensions[int(inner.attr("iota_dimension"))]
    return lambda build: build.make("iota", one.shape, [], {"iota_dimension": along})


@rule("broadcast-reshape", "broadcast", "broadcast(reshape that inserts sizes of 1) → broadcast", insensitive=True)
def broadcast_reshape(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "reshape":
        return None
    x = inner.operand(0)
    kept = inserted_ones(x.shape.dimensions, inner.shape.dimensions)
    if kept is None or not is_static_array(x.shape):
        return None
    dims = tuple(one.dimensions[d] for d in kept)
    return lambda build: build.make("broadcast", one.shape, [x], {"dimensions": dims})


def inserted_ones(before: tuple[int, ...], after: tuple[int, ...]) -> list[int] | None:
    """Where the dimensions of `before` lie in `after` if only sizes of 1 were inserted, else None."""
    kept: list[int] = []
    for place, size in enumerate(after):
        if len(kept) < len(before) and before[len(kept)] == size:
            kept.append(place)
        elif size != 1:
            return None
    return kept if len(kept) == len(before) else None


_ELEMENTWISE = (
    "abs acos acosh add and asin asinh atan2 atanh cbrt ceil compare complex convert cosine cosh count-leading-zeros"
    " divide erf exponential exponential-minus-one floor imag is-finite log log-plus-one logistic maximum minimum mulhi"
    " multiply negate not or popcnt power real reduce-precision remainder round-nearest-afz round-nearest-even rsqrt"
    " select shift-left shift-right-arithmetic shift-right-logical sign sine sinh sqrt subtract tan tanh xor"
)


@rule("sink-broadcast", _ELEMENTWISE, "f(broadcast(a), broadcast(b)) → broadcast(f(a, b))", insensitive=True)
def sink_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    if not options.enable_sink_broadcast or not one.operand_count or not is_static_array(one.shape):
        return None
    pattern: HloInstruction | None = None
    for operand in one.operands:
        if operand.opcode != "broadcast" or operand.shape.dimensions != one.shape.dimensions:
            return None
        if is_scalar_broadcast(operand):
            continue
        if pattern is None:
            pattern = operand
        elif pattern.dimensions != operand.dimensions or not pattern.operand(0).shape.same_dimensions(
            operand.operand(0).shape
        ):
            return None
    source = (pattern or one.operand(0)).operand(0).shape
    if not is_static_array(source) or source.element_count >= one.shape.element_count:
        return None
    dims = () if pattern is None else pattern.dimensions

    def make(build: Builder) -> HloInstruction:
        operands: list[HloInstruction] = []
        for operand in one.operands:
            inner = operand.operand(0)
            if is_scalar_broadcast(operand):
                inner = build.broadcast_scalar(inner, like(operand.shape, source.dimensions))
            operands.append(inner)
        small = build.clone(one, operands, like(one.shape, source.dimensions))
        return build.make("broadcast", one.shape, [small], {"dimensions": dims})

    return make


@rule("reshape-same", "reshape", "reshape to the shape that it has → operand")
def reshape_same(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    return x if is_static_array(one.shape) and options.same_shape(x.shape, one.shape) else None


@rule("reshape-reshape", "reshape", "reshape(reshape(x)) → reshape(x)", insensitive=True)
def reshape_reshape(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "reshape" or not is_static_array(one.shape) or not is_static_array(inner.shape):
        return None
    return lambda build: build.clone(one, [inner.operand(0)])


@rule("reshape-broadcast", "reshape", "reshape(broadcast(scalar)) → broadcast", insensitive=True)
def reshape_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if not is_scalar_broadcast(inner) or not is_static_array(one.shape):
        return None
    return lambda build: build.broadcast_scalar(inner.operand(0), one.shape) if one.shape.rank else inner.operand(0)


@rule("transpose-same", "transpose", "transpose that moves nothing → operand")
def transpose_same(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if list(one.dimensions) != list(range(one.shape.rank)):
        return None
    return x if options.same_shape(x.shape, one.shape) else None


@rule("transpose-transpose", "transpose", "transpose(transpose(x)) → one transpose", insensitive=True)
def transpose_transpose(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "transpose":
        return None
    dims = tuple(inner.dimensions[d] for d in one.dimensions)
    return lambda build: build.make("transpose", one.shape, [inner.operand(0)], {"dimensions": dims})


@rule("transpose-broadcast", "transpose", "transpose(broadcast(scalar)) → broadcast", insensitive=True)
def transpose_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if not is_scalar_broadcast(inner) or not is_static_array(one.shape):
        return None
    return lambda build: build.broadcast_scalar(inner.operand(0), one.shape)


@rule("transpose-degenerate", "transpose", "transpose that moves sizes of 1 alone → reshape", insensitive=True)
def transpose_degenerate(one: HloInstruction, options: RuleOptions) -> Answer:
    sizes = one.operand(0).shape.dimensions
    moved = [d for d in one.dimensions if sizes[d] != 1]
    if moved != sorted(moved) or not is_static_array(one.shape):
        return None
    return lambda build: build.make("reshape", one.shape, [one.operand(0)])


@rule("broadcast-degenerate", "broadcast", "broadcast of sizes of 1 → broadcast of the rest, reshaped",
      insensitive=True)  # fmt: skip
def broadcast_degenerate(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if not is_static_array(x.shape) or not is_static_array(one.shape) or 1 not in x.shape.dimensions:
        return None
    kept = [d for d, size in enumerate(x.shape.dimensions) if size != 1]
    dims = tuple(one.dimensions[d] for d in kept)
    return lambda build: build.make(
        "broadcast", one.shape, [build.reshape(x, [x.shape.dimensions[d] for d in kept])], {"dimensions": dims}
    )


@rule("reshape-empty", "reshape", "reshape of nothing → an empty constant")
def reshape_empty(one: HloInstruction, options: RuleOptions) -> Answer:
    if not is_static_array(one.shape) or one.shape.element_count:
        return None
    return lambda build: build.constant(np.zeros(one.shape.dimensions), one.shape)


@rule("reshape-of-broadcast", "reshape", "reshape(broadcast(x)) that leaves x's dimensions alone → broadcast",
      insensitive=True)  # fmt: skip
def reshape_of_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "broadcast" or is_scalar_broadcast(inner) or not is_static_array(one.shape):
        return None
    places = untouched(inner.shape.dimensions, one.shape.dimensions, inner.dimensions)
    if places is None:
        return None
    return lambda build: build.make("broadcast", one.shape, [inner.operand(0)], {"dimensions": places})


def untouched(before: tuple[int, ...], after: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...] | None:
    """Where a reshape leaves dimensions as they are; None where it touches one of them."""
    groups = shape_groups(before, after)
    if groups is None:
        return None
    found = {a[0]: b[0] for a, b in groups if len(a) == len(b) == 1}
    places = [found.get(d) for d in dims]
    return None if None in places else tuple(p for p in places if p is not None)


@rule("reshape-iota", "reshape", "reshape(iota) → a mixed-radix sum of iotas", insensitive=True)
def reshape_iota(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "iota" or not is_static_array(one.shape) or not one.shape.type.is_integral:
        return None
    along = int(inner.attr("iota_dimension"))
    groups = shape_groups(inner.shape.dimensions, one.shape.dimensions)
    sizes = inner.shape.dimensions
    after = next((b for a, b in groups or () if along in a and all(sizes[d] == 1 for d in a if d != along)), None)
    if not after:
        return None

    def make(build: Builder) -> HloInstruction:
        total: HloInstruction | None = None
        factor = 1
        for d in reversed(after):
            if one.shape.dimensions[d] == 1 and len(after) > 1:
                continue
            digit = build.make("iota", one.shape, [], {"iota_dimension": d})
            if factor != 1:
                digit = build.binary("multiply", digit, build.scalar_like(one.shape, factor))
            total = digit if total is None else build.binary("add", digit, total)
            factor *= one.shape.dimensions[d]
        return total if total is not None else build.scalar_like(one.shape, 0)

    return make


@rule("reshape-update", "reshape", "reshape(dus(x, u, i)) by sizes of 1 → dus(reshape(x), reshape(u), i')",
      insensitive=True)  # fmt: skip
def reshape_update(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "dynamic-update-slice" or inner.user_count != 1 or not is_static_array(one.shape):
        return None
    if one.raw_attrs.get("sharding") is not None or inner.raw_attrs.get("sharding") is not None:
        return None
    x, update, starts = inner.operand(0), inner.operand(1), inner.operands[2:]
    places = same_but_ones(x.shape.dimensions, one.shape.dimensions)
    if places is None or any(not start.shape.is_scalar for start in starts):
        return None

    def make(build: Builder) -> HloInstruction:
        zero = build.constant(0, starts[0].shape) if starts else build.scalar("s32", 0)
        sizes = [1 if p is None else update.shape.dimensions[p] for p in places]
        new = [zero if p is None else starts[p] for p in places]
        return build.dynamic_update_slice(
            build.reshape(x, one.shape.dimensions), build.reshape(update, sizes), new
        )

    return make


def same_but_ones(before: tuple[int, ...], after: tuple[int, ...]) -> list[int | None] | None:
    """For each dimension of `after` the one of `before` that it is, None for an inserted 1; None for other reshapes."""
    kept = [d for d, size in enumerate(before) if size != 1]
    places: list[int | None] = []
    for size in after:
        if size == 1:
            places.append(None)
        elif kept and before[kept[0]] == size:
            places.append(kept.pop(0))
        else:
            return None
    return None if kept else places


@rule("rearrangement-chain", "reshape transpose",
      "transposes and reshapes by sizes of 1 that undo each other → the start",
      insensitive=True)  # fmt: skip
def rearrangement_chain(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand(0).opcode not in ("reshape", "transpose") or not is_static_array(one.shape):
        return None
    # Follow every dimension but those of size 1 from the end of the chain to its start.
    x, order = one, [d for d, size in enumerate(one.shape.dimensions) if size != 1]
    for _ in range(16):
        if x.opcode not in ("reshape", "transpose"):
            return None
        source = x.operand(0)
        if x.opcode == "transpose":
            order = [x.dimensions[d] for d in order]
        elif is_static_array(source.shape):
            places = same_but_ones(source.shape.dimensions, x.shape.dimensions)
            if places is None:
                return None
            found = [places[d] for d in order]
            if None in found:
                return None
            order = [p for p in found if p is not None]
        else:
            return None
        x = source
        if x.shape.dimensions == one.shape.dimensions and order == [
            d for d, size in enumerate(x.shape.dimensions) if size != 1
        ]:
            return x if x is not one.operand(0) or options.same_shape(x.shape, one.shape) else None
    return None


@rule("hoist-transpose", "reshape",
      "reshape(transpose(reshape(x))) that joins what stayed together → transpose(reshape)",
      insensitive=True)  # fmt: skip
def hoist_transpose(one: HloInstruction, options: RuleOptions) -> Answer:
    moved = one.operand(0)
    if not options.enable_hoist_transpose_of_reshape or moved.opcode != "transpose" or not is_static_array(one.shape):
        return None
    if moved.operand(0).opcode != "reshape":
        return None
    groups = shape_groups(moved.shape.dimensions, one.shape.dimensions)
    if groups is None or any(len(after) != 1 for _, after in groups):
        return None
    runs = [[moved.dimensions[d] for d in before] for before, _ in groups]
    if any(run != list(range(run[0], run[0] + len(run))) for run in runs):
        return None
    if all(len(run) == 1 for run in runs):
        return None
    places = sorted(range(len(runs)), key=lambda i: runs[i][0])
    sizes = [one.shape.dimensions[i] for i in places]
    return lambda build: build.make(
        "transpose", one.shape, [build.reshape(moved.operand(0), sizes)],
        {"dimensions": tuple(places.index(i) for i in range(len(runs)))},
    )  # fmt: skip


@rule("transpose-sorted-broadcast", "transpose", "transpose(broadcast(x)) that keeps the order of x → broadcast",
      insensitive=True)  # fmt: skip
def transpose_sorted_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "broadcast" or is_scalar_broadcast(inner) or not is_static_array(one.shape):
        return None
    if list(inner.dimensions) != sorted(inner.dimensions):
        return None
    places = tuple(one.dimensions.index(d) for d in inner.dimensions)
    if list(places) != sorted(places):
        return None
    return lambda build: build.make("broadcast", one.shape, [inner.operand(0)], {"dimensions": places})


@rule("depth-to-space", "reshape", "reshape(transpose(reshape(x))) that moves part of one dimension left → concatenate",
      insensitive=True)  # fmt: skip
def depth_to_space(one: HloInstruction, options: RuleOptions) -> Answer:
    """One dimension is split in two, the outer part (at most 5) goes left and joins another dimension there."""
    moved = one.operand(0)
    if not options.rewrite_reshape_transpose_as_slice_concatenate or moved.opcode != "transpose":
        return None
    split = moved.operand(0)
    if split.opcode != "reshape" or not is_static_array(one.shape) or one.shape.rank != split.operand(0).shape.rank:
        return None
    x = split.operand(0)
    first = shape_groups(x.shape.dimensions, split.shape.dimensions)
    last = shape_groups(moved.shape.dimensions, one.shape.dimensions)
    if first is None or last is None:
        return None
    splits = [(a[0], b) for a, b in first if len(b) == 2 and len(a) == 1]
    joins = [(a, b[0]) for a, b in last if len(a) == 2 and len(b) == 1]
    if len(splits) != 1 or len(joins) != 1 or any(len(a) != 1 or len(b) > 2 for a, b in first):
        return None
    source, (outer, inner) = splits[0]
    (left, right), target = joins[0]
    if moved.dimensions[left] != outer and moved.dimensions[right] != outer:
        return None
    front = moved.dimensions[left] == outer
    order = [d for d in moved.dimensions if d != outer]
    count = split.shape.dimensions[outer]
    if order != sorted(order) or count > 5 or target >= source or inner not in order or not front:
        return None

    def make(build: Builder) -> HloInstruction:
        size = split.shape.dimensions[inner]
        parts: list[HloInstruction] = []
        for i in range(count):
            starts = [i * size if d == source else 0 for d in range(x.shape.rank)]
            limits = [(i + 1) * size if d == source else s for d, s in enumerate(x.shape.dimensions)]
            parts.append(build.slice(x, starts, limits))
        return build.concatenate(parts, target)

    return make


@rule("reverse-degenerate", "reverse", "reverse along sizes of at most 1 → operand")
def reverse_degenerate(one: HloInstruction, options: RuleOptions) -> Answer:
    if not is_static_array(one.shape) or any(one.shape.dimensions[d] > 1 for d in one.dimensions):
        return None
    return one.operand(0)


@rule("reverse-reverse", "reverse", "reverse(reverse(x)) → reverse along what only one of them turns", insensitive=True)
def reverse_reverse(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "reverse":
        return None
    dims = tuple(sorted(set(one.dimensions) ^ set(inner.dimensions)))
    if not dims:
        return inner.operand(0)
    return lambda build: build.make("reverse", one.shape, [inner.operand(0)], {"dimensions": dims})


@rule("reverse-binary", "reverse", "reverse(op(x, broadcast(scalar))) → op(reverse(x), broadcast)", insensitive=True)
def reverse_binary(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.operand_count != 2 or not inner.info.elementwise or inner.user_count != 1:
        return None
    if inner.opcode in ("compare", "map", "rng", "stochastic-convert"):
        return None
    spread = [is_scalar_broadcast(o) for o in inner.operands]
    if spread[0] == spread[1]:
        return None

    def make(build: Builder) -> HloInstruction:
        turned = [o if s else build.clone(one, [o], o.shape) for o, s in zip(inner.operands, spread, strict=True)]
        return build.clone(inner, turned)

    return make


@rule("reverse-reshape", "reverse", "reverse(reshape that adds sizes of 1) → reshape(reverse)", insensitive=True)
def reverse_reshape(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "reshape" or inner.user_count != 1 or not is_static_array(one.shape):
        return None
    x = inner.operand(0)
    kept = inserted_ones(x.shape.dimensions, inner.shape.dimensions)
    if kept is None or not is_static_array(x.shape) or not one.shape.element_count:
        return None
    dims = tuple(kept.index(d) for d in one.dimensions if d in kept)
    if not dims:
        return inner
    return lambda build: build.make(
        "reshape", one.shape, [build.make("reverse", x.shape, [x], {"dimensions": dims})]
    )


@rule("reverse-scalar-broadcast", "reverse", "reverse(broadcast(scalar)) → it")
def reverse_scalar_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    return one.operand(0) if is_scalar_broadcast(one.operand(0)) else None


RULES: tuple[Rule, ...] = (
    broadcast_nothing, broadcast_broadcast, broadcast_iota, broadcast_reshape, broadcast_degenerate, sink_broadcast,
    reshape_empty, reshape_same, reshape_reshape, rearrangement_chain, hoist_transpose, reshape_broadcast,
    reshape_of_broadcast, reshape_iota, reshape_update, depth_to_space, transpose_same, transpose_transpose,
    transpose_broadcast, transpose_degenerate, transpose_sorted_broadcast, reverse_degenerate,
    reverse_scalar_broadcast, reverse_reverse, reverse_binary, reverse_reshape,
)  # fmt: skip
