"""Rules on broadcasts, reshapes, transposes and reverses. They run before layout assignment, where a reshape is free.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc`` (HandleBroadcast, HandleReshape,
HandleTranspose, HandleReverse, TryToSinkBroadcastAfterOpWithUniqueNonScalarOperand).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.passes.rules.base import (
    Answer,
    Builder,
    Rule,
    RuleOptions,
    is_static_array,
    like,
    rule,
)

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
    if not one.operand_count or not is_static_array(one.shape):
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


RULES: tuple[Rule, ...] = (
    broadcast_nothing, broadcast_broadcast, broadcast_iota, broadcast_reshape, sink_broadcast, reshape_same,
    reshape_reshape, reshape_broadcast, transpose_same, transpose_transpose, transpose_broadcast, transpose_degenerate,
    reverse_degenerate, reverse_reverse,
)  # fmt: skip
