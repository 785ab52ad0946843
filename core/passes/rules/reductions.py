"""Rules on reductions and windows.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc`` (HandleReduce, HandleReduceWindow).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hloscope.core.hlo.attributes import PaddingDimension, WindowDimension
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import (
    Answer,
    Builder,
    Rule,
    RuleOptions,
    is_all,
    is_constant,
    is_static_array,
    literal_values,
    rule,
    scalar_constant,
    type_of,
)
from hloscope.core.passes.rules.predicates import argument_extreme, is_scalar_value, reducer_opcode

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


def _plain(one: HloInstruction) -> bool:
    """One operand, fixed sizes, one element type."""
    if one.operand_count != 2 or not is_static_array(one.shape) or not is_static_array(one.operand(0).shape):
        return False
    return len({o.shape.element_type for o in (one, *one.operands)}) == 1


@rule("reduce-empty", "reduce", "reduce of arrays without elements → the initial values", insensitive=True)
def reduce_empty(one: HloInstruction, options: RuleOptions) -> Answer:
    half = one.operand_count // 2
    shapes = [leaf for _, leaf in one.shape.leaves()]
    if any(not is_static_array(o.shape) for o in one.operands) or any(s.is_dynamic for s in shapes):
        return None
    if one.operand(0).shape.element_count and (not one.shape.is_array or one.shape.element_count):
        return None
    initials = one.operands[half:]
    if one.shape.is_array:
        if one.shape.is_scalar:
            return initials[0]
        return lambda build: build.broadcast_scalar(initials[0], one.shape)
    return lambda build: build.tuple(
        [build.broadcast_scalar(i, s) for i, s in zip(initials, shapes, strict=True)]
    )


@rule("reduce-one-tuple", "reduce reduce-window", "a reduction of one array that gives a tuple → plain",
      insensitive=True)  # fmt: skip
def reduce_one_tuple(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand_count != 2 or not one.shape.is_tuple:
        return None
    reducer = one.callee("to_apply")
    if reducer.root.opcode != "tuple" or any(not n.shape.is_scalar for n in reducer if n is not reducer.root):
        return Refusal("reducer", "no tuple of scalars at the root")

    def make(build: Builder) -> HloInstruction:
        from hloscope.core.passes.flatten_call_graph import clone_computation

        plain = clone_computation(one.module, reducer)
        root = plain.root
        plain.set_root(root.operand(0))
        plain.remove_with_dead_operands(root)
        made = build.clone(one, one.operands, one.shape.tuple_shapes[0])
        made.set_called("to_apply", plain)
        return build.tuple([made])

    return make


@rule("reduce-nothing", "reduce", "reduce over sizes of 1 or over nothing → reshape of the operand", insensitive=True)
def reduce_nothing(one: HloInstruction, options: RuleOptions) -> Answer:
    if not _plain(one):
        return None
    x = one.operand(0)
    if x.shape.element_count != one.shape.element_count or not x.shape.element_count:
        return None
    if x.shape.element_type != one.shape.element_type:
        return None
    # The initial value is an identity of the reducer by the operation's definition, so it adds nothing.
    return x if options.same_shape(x.shape, one.shape) else lambda build: build.make("reshape", one.shape, [x])


@rule("reduce-negated", "reduce", "Σ -x → -Σ x, floats from 0", insensitive=True)
def reduce_negated(one: HloInstruction, options: RuleOptions) -> Answer:
    if not _plain(one) or one.operand(0).opcode != "negate" or type_of(one) != "float":
        return None
    if not is_all(one.operand(1), 0) or reducer_opcode(one.callee("to_apply")) != "add":
        return None
    return lambda build: build.unary("negate", build.clone(one, [one.operand(0).operand(0), one.operand(1)]))


@rule("arg-extreme-constant", "reduce", "argmax or argmin of equal values → the value and place 0", insensitive=True)
def arg_extreme_constant(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand_count != 4 or one.operand(1).opcode != "iota":
        return None
    value = scalar_constant(one.operand(0))
    if value is None or not one.operand(0).shape.rank or len(one.dimensions) != 1:
        return None
    if int(one.operand(1).attr("iota_dimension")) != one.dimensions[0]:
        return None
    kind = argument_extreme(one.callee("to_apply"))
    if kind is None or not is_all(one.operand(3), 0) or type_of(value) == "complex":
        return None
    bound = literal_values(one.operand(2))
    if bound is None or bool(np.isnan(float(value.literal.array()[()]))):
        return None
    worse = bound < value.literal.array() if kind == "max" else bound > value.literal.array()
    if not bool(worse.all()):
        return Refusal("initial_value", "it may win over the operand")
    shapes = one.shape.tuple_shapes
    return lambda build: build.tuple([build.broadcast_scalar(value, shapes[0]), build.scalar_like(shapes[1], 0)])


@rule("reduce-transpose", "reduce", "reduce(transpose(x)) → reduce(x), its kept dimensions in order", insensitive=True)
def reduce_transpose(one: HloInstruction, options: RuleOptions) -> Answer:
    moved = one.operand(0)
    if not _plain(one) or moved.opcode != "transpose":
        return None
    free = options.unconditionally_simplify_reduce_of_transpose_or_reshape
    if one.shape.rank >= 2 and not free and moved.user_count != 1 and any(u.opcode != "reduce" for u in moved.users):
        return Refusal("other_users", f"{moved.user_count} users of the transpose")
    order = moved.dimensions
    dims = tuple(sorted(order[d] for d in one.dimensions))
    kept = [order[d] for d in range(moved.shape.rank) if d not in one.dimensions]

    def make(build: Builder) -> HloInstruction:
        x = moved.operand(0)
        sizes = [s for d, s in enumerate(x.shape.dimensions) if d not in dims]
        inner = build.clone(one, [x, one.operand(1)], build.shape(one.shape.element_type, sizes))
        inner.set_attr("dimensions", dims)
        places = sorted(kept)
        return build.transpose(inner, [places.index(d) for d in kept])

    return make


@rule("reduce-of-reduce", "reduce", "reduce(reduce(x)) → one reduce, of the same function", insensitive=True)
def reduce_of_reduce(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if not _plain(one) or inner.opcode != "reduce" or inner.operand_count != 2 or inner.user_count != 1:
        return None
    same = one.operand(1) is inner.operand(1)
    if not same:
        a, b = (literal_values(o.operand(1)) for o in (one, inner))
        same = a is not None and b is not None and a.tobytes() == b.tobytes()
    outer_op, inner_op = (reducer_opcode(o.callee("to_apply")) for o in (one, inner))
    if not same or outer_op is None or outer_op != inner_op:
        return None
    x = inner.operand(0)
    kept = [d for d in range(x.shape.rank) if d not in inner.dimensions]
    dims = tuple(sorted([*inner.dimensions, *(kept[d] for d in one.dimensions)]))

    def make(build: Builder) -> HloInstruction:
        whole = build.clone(one, [x, one.operand(1)])
        whole.set_attr("dimensions", dims)
        return whole

    return make


@rule("reduce-reshape", "reduce", "reduce(reshape(x)) → reduce(x) where reduced dimensions are untouched by the others",
      insensitive=True)  # fmt: skip
def reduce_reshape(one: HloInstruction, options: RuleOptions) -> Answer:
    """Only dimensions that are all reduced, or all kept, may have been split and joined by the reshape."""
    flat = one.operand(0)
    if not _plain(one) or flat.opcode != "reshape" or not is_static_array(flat.operand(0).shape):
        return None
    x = flat.operand(0)
    groups = shape_groups(x.shape.dimensions, flat.shape.dimensions)
    if groups is None:
        return None
    reduced = set(one.dimensions)
    dims: list[int] = []
    kept_changes = False
    for before, after in groups:
        marks = {d in reduced for d in after}
        if len(marks) == 2:
            ones = [d for d in after if flat.shape.dimensions[d] == 1]
            marks = {d in reduced for d in after if d not in ones}
            if len(marks) == 2:
                return None
        if True in marks or (not marks and all(d in reduced for d in after)):
            dims.extend(before)
        else:
            kept_changes |= tuple(x.shape.dimensions[d] for d in before) != tuple(
                flat.shape.dimensions[d] for d in after if d not in reduced
            )
    free = options.unconditionally_simplify_reduce_of_transpose_or_reshape
    if kept_changes and not free and flat.user_count != 1:
        return Refusal("other_users", f"{flat.user_count} users of the reshape")
    if not dims and one.dimensions:
        return None
    places = tuple(sorted(dims))

    def make(build: Builder) -> HloInstruction:
        sizes = [s for d, s in enumerate(x.shape.dimensions) if d not in places]
        inner = build.clone(one, [x, one.operand(1)], build.shape(one.shape.element_type, sizes))
        inner.set_attr("dimensions", places)
        return build.reshape(inner, one.shape.dimensions)

    return make


def shape_groups(
    before: tuple[int, ...], after: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]] | None:
    """A reshape as runs of dimensions that become runs of dimensions; None for shapes without elements."""
    if not prod(before) or not prod(after):
        return None
    groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        first, second = i, j
        left = right = 1
        if i < len(before):
            left = before[i]
            i += 1
        if j < len(after):
            right = after[j]
            j += 1
        while left != right:
            if left < right:
                left *= before[i]
                i += 1
            else:
                right *= after[j]
                j += 1
        groups.append((tuple(range(first, i)), tuple(range(second, j))))
    return groups


@rule("reduce-concatenate", "reduce", "reduce(concatenate(a, b)) along a reduced dimension → op(reduce(a), reduce(b))",
      insensitive=True)  # fmt: skip
def reduce_concatenate(one: HloInstruction, options: RuleOptions) -> Answer:
    joined = one.operand(0)
    if not _plain(one) or joined.opcode != "concatenate" or joined.dimensions[0] not in one.dimensions:
        return None
    opcode = reducer_opcode(one.callee("to_apply"))
    if opcode is None:
        return Refusal("reducer", one.callee("to_apply").name)
    equal = len({o.shape.dimensions for o in joined.operands}) == 1
    if not options.enable_unconditional_reduce_of_concat_replacement and not equal and not one.shape.is_scalar:
        return Refusal("shapes", "operands of different sizes")
    combine = opcode

    def make(build: Builder) -> HloInstruction:
        parts = [build.clone(one, [part, one.operand(1)]) for part in joined.operands]
        whole = parts[0]
        for part in parts[1:]:
            whole = build.binary(combine, whole, part)
        return whole

    return make


@rule("reduce-scalar-broadcast", "reduce", "min, max, and, or over copies of a scalar → one operation with the start",
      insensitive=True)  # fmt: skip
def reduce_scalar_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    spread = one.operand(0)
    if not _plain(one) or not is_scalar_value(spread) or not spread.shape.element_count:
        return None
    opcode = reducer_opcode(one.callee("to_apply"))
    if opcode not in ("maximum", "minimum", "and", "or"):
        return None
    combine = opcode
    return lambda build: build.broadcast_scalar(
        build.binary(combine, spread.operand(0), one.operand(1)), one.shape
    )


@rule("reduce-broadcast", "reduce", "reduce(broadcast(x)) over x's own dimensions → broadcast(reduce(x))",
      insensitive=True)  # fmt: skip
def reduce_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    spread = one.operand(0)
    if not _plain(one) or spread.opcode != "broadcast" or is_scalar_value(spread):
        return None
    places, x = spread.dimensions, spread.operand(0)
    if not all(d in places for d in one.dimensions) or not is_static_array(x.shape):
        return None
    dims = tuple(sorted(places.index(d) for d in one.dimensions))
    kept = [d for d in range(spread.shape.rank) if d not in one.dimensions]

    def make(build: Builder) -> HloInstruction:
        sizes = [s for d, s in enumerate(x.shape.dimensions) if d not in dims]
        inner = build.clone(one, [x, one.operand(1)], build.shape(one.shape.element_type, sizes))
        inner.set_attr("dimensions", dims)
        new = tuple(kept.index(places[d]) for d in range(x.shape.rank) if d not in dims)
        return build.make("broadcast", one.shape, [inner], {"dimensions": new})

    return make


@rule("sum-broadcast", "reduce", "Σ over copies of x → x · n + start", insensitive=True)
def sum_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    spread = one.operand(0)
    if not _plain(one) or spread.opcode != "broadcast" or not spread.shape.element_count:
        return None
    if reducer_opcode(one.callee("to_apply")) != "add":
        return None
    if one.shape.type.kind not in ("int", "uint", "float", "complex"):
        return None
    places, x = spread.dimensions, spread.operand(0)
    if any(d in places for d in one.dimensions):
        return None
    count = prod(spread.shape.dimensions[d] for d in one.dimensions)
    with np.errstate(all="ignore"):
        held = np.asarray(count).astype(one.shape.type.dtype)
    if one.shape.type.kind == "float" and float(held) != count:
        return Refusal("count", f"{count} is no {one.shape.element_type}")
    kept = [d for d in range(spread.shape.rank) if d not in one.dimensions]
    new = tuple(kept.index(d) for d in places)

    def make(build: Builder) -> HloInstruction:
        scaled = build.binary("multiply", x, build.scalar_like(x.shape, held))
        start = build.broadcast_scalar(one.operand(1), x.shape)
        total = build.binary("add", scaled, start)
        if total.shape.dimensions == one.shape.dimensions and new == tuple(range(x.shape.rank)):
            return total
        return build.make("broadcast", one.shape, [total], {"dimensions": new})

    return make


@rule("reduce-beside-argument", "reduce", "max(x) beside an argmax of the same x → its element 0", insensitive=True)
def reduce_beside_argument(one: HloInstruction, options: RuleOptions) -> Answer:
    if not _plain(one):
        return None
    opcode = reducer_opcode(one.callee("to_apply"))
    wanted = {"maximum": "max", "minimum": "min"}.get(str(opcode))
    if wanted is None:
        return None
    for user in one.operand(0).users:
        if user is one or user.opcode != "reduce" or user.operand_count != 4 or user.operand(0) is not one.operand(0):
            continue
        if user.dimensions != one.dimensions or argument_extreme(user.callee("to_apply"), nan_wins=True) != wanted:
            continue
        a, b = literal_values(one.operand(1)), literal_values(user.operand(2))
        if a is None or b is None or a.tobytes() != b.tobytes() or user.parent is not one.parent:
            continue
        found = user
        return lambda build: build.element(found, 0)
    return None


# ---------------------------------------------------------------- windows
def window_dimensions(one: HloInstruction) -> tuple[WindowDimension, ...]:
    """The dimensions of a window."""
    window: Any = one.attr("window")
    return () if window is None else tuple(window.dimensions)


@rule("window-empty", "reduce-window", "windows over nothing → the initial value", insensitive=True)
def window_empty(one: HloInstruction, options: RuleOptions) -> Answer:
    if not _plain(one) or (one.operand(0).shape.element_count and one.shape.element_count):
        return None
    return lambda build: build.broadcast_scalar(one.operand(1), one.shape)


@rule("window-scalar", "reduce-window", "a window over a scalar → it", insensitive=True)
def window_scalar(one: HloInstruction, options: RuleOptions) -> Answer:
    if not _plain(one) or not one.operand(0).shape.is_scalar:
        return None
    return one.operand(0)


@rule("window-of-one", "reduce-window", "a window of one element → op(pad(x), start)", insensitive=True)
def window_of_one(one: HloInstruction, options: RuleOptions) -> Answer:
    window = window_dimensions(one)
    if not _plain(one) or any(w.size != 1 or w.stride != 1 or w.base_dilation != 1 for w in window):
        return None
    opcode = reducer_opcode(one.callee("to_apply"))
    if opcode not in ("add", "minimum", "maximum"):
        return None
    combine = opcode

    def make(build: Builder) -> HloInstruction:
        padding = [PaddingDimension(w.padding_low, w.padding_high) for w in window]
        padded = build.pad(one.operand(0), one.operand(1), padding)
        return build.binary(combine, padded, build.broadcast_scalar(one.operand(1), one.shape))

    return make


@rule("window-whole", "reduce-window", "windows that are each size 1 or whole → reshape(reduce)", insensitive=True)
def window_whole(one: HloInstruction, options: RuleOptions) -> Answer:
    window, x = window_dimensions(one), one.operand(0)
    if not _plain(one):
        return None
    for d, w in enumerate(window):
        plain = w.stride == 1 and w.base_dilation == 1 and w.window_dilation == 1 and not w.window_reversal
        if w.padding_low or w.padding_high or not plain or w.size not in (1, x.shape.dimensions[d]):
            return None
    dims = [d for d, w in enumerate(window) if w.size != 1]
    if not dims:
        return None
    return lambda build: build.make(
        "reshape", one.shape, [build.reduce(x, one.operand(1), dims, one.callee("to_apply"))]
    )


@rule("window-pad", "reduce-window", "reduce-window(pad(x, start)) → reduce-window with more padding", insensitive=True)
def window_pad(one: HloInstruction, options: RuleOptions) -> Answer:
    padded, window = one.operand(0), window_dimensions(one)
    if not _plain(one) or padded.opcode != "pad" or padded.user_count != 1:
        return None
    padding: Any = padded.attr("padding") or ()
    if any(p.interior or p.low < 0 or p.high < 0 for p in padding):
        return None
    if any(w.base_dilation != 1 for w in window):
        return None
    value, start = padded.operand(1), one.operand(1)
    if value is not start:
        a, b = literal_values(value), literal_values(start)
        if a is None or b is None or a.tobytes() != b.tobytes():
            return Refusal("padding_value", "it is not the initial value")
    x = padded.operand(0)
    from dataclasses import replace

    from hloscope.core.hlo.attributes import Window

    wider = Window(
        tuple(
            replace(w, padding_low=w.padding_low + p.low, padding_high=w.padding_high + p.high)
            for w, p in zip(window, padding, strict=True)
        )
    )

    def make(build: Builder) -> HloInstruction:
        made = build.clone(one, [x, start])
        made.set_attr("window", wider)
        return made

    return make


@rule("cumulative-constant", "reduce-window", "the running sum of copies of a constant → constant · (iota + 1)",
      insensitive=True)  # fmt: skip
def cumulative_constant(one: HloInstruction, options: RuleOptions) -> Answer:
    window, x = window_dimensions(one), one.operand(0)
    value = scalar_constant(x) if is_constant(x) else None
    if not _plain(one) or value is None or not x.shape.rank or not is_all(one.operand(1), 0):
        return None
    if reducer_opcode(one.callee("to_apply")) != "add" or one.shape.type.kind not in ("int", "uint"):
        return None
    moving = [d for d, w in enumerate(window) if not w.trivial]
    if len(moving) != 1:
        return None
    (d,) = moving
    w, n = window[d], x.shape.dimensions[d]
    if w != WindowDimension(n, 1, n - 1, 0):
        return None

    def make(build: Builder) -> HloInstruction:
        place = build.iota(one.shape.element_type, one.shape.dimensions, d)
        count = build.binary("add", place, build.scalar_like(one.shape, 1))
        return build.binary("multiply", count, build.broadcast_scalar(value, one.shape))

    return make


RULES: tuple[Rule, ...] = (
    reduce_empty, reduce_one_tuple, reduce_nothing, reduce_negated, arg_extreme_constant, reduce_transpose,
    reduce_of_reduce, reduce_reshape, reduce_concatenate, reduce_beside_argument, reduce_scalar_broadcast,
    sum_broadcast, reduce_broadcast, window_empty, window_scalar, cumulative_constant, window_of_one, window_whole,
    window_pad,
)  # fmt: skip
