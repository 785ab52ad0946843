"""Rules on slices, concatenations, pads and their dynamic forms.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc`` (HandleSlice, HandleConcatenate,
HandlePad, HandleDynamicSlice, HandleDynamicUpdateSlice).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from hloscope.core.hlo.attributes import PaddingDimension, SliceDimension
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, Rule, RuleOptions, is_static_array, like, rule
from hloscope.core.passes.rules.shapes import is_scalar_broadcast, same_but_ones

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


def bounds_of(one: HloInstruction) -> tuple[SliceDimension, ...]:
    found: Any = one.attr("slice")
    return tuple(found)


@rule("slice-full", "slice", "slice of everything → operand")
def slice_full(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    return x if is_static_array(one.shape) and options.same_shape(x.shape, one.shape) else None


@rule("slice-slice", "slice", "slice(slice(x)) → one slice, without strides", insensitive=True)
def slice_slice(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "slice":
        return None
    outer_bounds, inner_bounds = bounds_of(one), bounds_of(inner)
    if any(b.stride != 1 for b in (*outer_bounds, *inner_bounds)):
        return None
    bounds = tuple(
        SliceDimension(i.start + o.start, i.start + o.limit) for o, i in zip(outer_bounds, inner_bounds, strict=True)
    )
    return lambda build: build.make("slice", one.shape, [inner.operand(0)], {"slice": bounds})


@rule("slice-broadcast", "slice", "slice(broadcast(scalar)) → broadcast", insensitive=True)
def slice_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if not is_scalar_broadcast(inner) or not is_static_array(one.shape):
        return None
    return lambda build: build.broadcast_scalar(inner.operand(0), one.shape)


@rule("slice-concatenate", "slice", "slice(concatenate) inside one operand → it or a slice of it", insensitive=True)
def slice_concatenate(one: HloInstruction, options: RuleOptions) -> Answer:
    joined = one.operand(0)
    bounds = bounds_of(one)
    if joined.opcode != "concatenate" or any(b.stride != 1 for b in bounds) or not one.shape.element_count:
        return None
    along = joined.dimensions[0]
    start = 0
    for part in joined.operands:
        end = start + part.shape.dimensions[along]
        if start <= bounds[along].start and bounds[along].limit <= end:
            moved = SliceDimension(bounds[along].start - start, bounds[along].limit - start)
            inside = tuple(moved if d == along else b for d, b in enumerate(bounds))
            if options.same_shape(part.shape, one.shape):
                return part
            source = part
            return lambda build: build.make("slice", one.shape, [source], {"slice": inside})
        start = end
    return None


@rule("concatenate-one", "concatenate", "concatenate of one operand → it; operands without elements are dropped")
def concatenate_one(one: HloInstruction, options: RuleOptions) -> Answer:
    filled = [o for o in one.operands if not is_static_array(o.shape) or o.shape.element_count]
    if len(filled) == 1 and options.same_shape(filled[0].shape, one.shape):
        return filled[0]
    if len(filled) == one.operand_count or not filled:
        return one.operand(0) if one.operand_count == 1 else None
    return lambda build: build.clone(one, filled)


@rule("concatenate-nested", "concatenate", "concatenate of concatenate along one dimension → flat", insensitive=True)
def concatenate_nested(one: HloInstruction, options: RuleOptions) -> Answer:
    if not any(_is_nested(one, o) for o in one.operands):
        return None
    flat: list[HloInstruction] = []
    for operand in one.operands:
        flat.extend(operand.operands if _is_nested(one, operand) else (operand,))
    return lambda build: build.clone(one, flat)


def _is_nested(outer: HloInstruction, operand: HloInstruction) -> bool:
    return (
        operand.opcode == "concatenate" and operand.dimensions == outer.dimensions and operand.user_count == 1
    )


@rule("pad-nothing", "pad", "pad that adds and cuts nothing → operand")
def pad_nothing(one: HloInstruction, options: RuleOptions) -> Answer:
    padding: Any = one.attr("padding") or ()
    if any(p.low or p.high or p.interior for p in padding):
        return None
    return one.operand(0) if options.same_shape(one.operand(0).shape, one.shape) else None


@rule("pad-empty", "pad", "pad of an array without elements → broadcast of the padding value", insensitive=True)
def pad_empty(one: HloInstruction, options: RuleOptions) -> Answer:
    x, value = one.operands
    if not is_static_array(x.shape) or not is_static_array(one.shape) or x.shape.element_count:
        return None
    return lambda build: build.broadcast_scalar(value, one.shape)


@rule("dynamic-slice-full", "dynamic-slice", "dynamic-slice of everything → operand")
def dynamic_slice_full(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    # Starts are clamped so that the slice fits, and a slice of full size fits only at 0.
    return x if is_static_array(one.shape) and options.same_shape(x.shape, one.shape) else None


@rule("dynamic-slice-constant", "dynamic-slice", "dynamic-slice at constant starts → slice", insensitive=True)
def dynamic_slice_constant(one: HloInstruction, options: RuleOptions) -> Answer:
    x, starts = one.operand(0), one.operands[1:]
    if x.opcode == "constant" or not is_static_array(x.shape) or not is_static_array(one.shape):
        return None
    if len(starts) != x.shape.rank or not all(s.is_constant_scalar() for s in starts):
        return None
    bounds: list[SliceDimension] = []
    for start, size, whole in zip(starts, one.shape.dimensions, x.shape.dimensions, strict=True):
        at = max(0, min(int(start.literal.array()[()]), whole - size))
        bounds.append(SliceDimension(at, at + size))
    return lambda build: build.make("slice", one.shape, [x], {"slice": tuple(bounds)})


@rule("dynamic-slice-broadcast", "dynamic-slice", "dynamic-slice(broadcast(scalar)) → broadcast", insensitive=True)
def dynamic_slice_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if not is_scalar_broadcast(inner) or not is_static_array(one.shape):
        return None
    return lambda build: build.broadcast_scalar(inner.operand(0), one.shape)


@rule("dynamic-index-zero", "dynamic-slice dynamic-update-slice", "a start along a dimension taken whole → 0")
def dynamic_index_zero(one: HloInstruction, options: RuleOptions) -> Answer:
    first = 1 if one.opcode == "dynamic-slice" else 2
    x, sliced = one.operand(0), one.shape if first == 1 else one.operand(1).shape
    starts = one.operands[first:]
    if len(starts) != x.shape.rank or not is_static_array(x.shape) or not is_static_array(sliced):
        return None
    pairs = zip(starts, sliced.dimensions, x.shape.dimensions, strict=True)
    whole = [size == all_of_it and not start.is_constant_scalar(0) for start, size, all_of_it in pairs]
    if not any(whole):
        return None

    def make(build: Builder) -> HloInstruction:
        zeros: dict[str, HloInstruction] = {}
        indices: list[HloInstruction] = []
        for start, replaced in zip(starts, whole, strict=True):
            kind = start.shape.element_type
            if replaced and kind not in zeros:
                zeros[kind] = build.constant(0, like(start.shape, ()))
            indices.append(zeros[kind] if replaced else start)
        return build.clone(one, [*one.operands[:first], *indices])

    return make


@rule("dynamic-update-slice-full", "dynamic-update-slice", "dynamic-update-slice of everything → the update")
def update_full(one: HloInstruction, options: RuleOptions) -> Answer:
    update = one.operand(1)
    return update if is_static_array(one.shape) and options.same_shape(update.shape, one.shape) else None


@rule("dynamic-update-slice-empty", "dynamic-update-slice", "dynamic-update-slice of nothing → operand")
def update_empty(one: HloInstruction, options: RuleOptions) -> Answer:
    update = one.operand(1).shape
    return one.operand(0) if is_static_array(update) and not update.element_count else None


# ---------------------------------------------------------------- slices of rearranged values
@rule("slice-pad", "slice", "slice(pad(x)): only padding → its value; all of x → x; inside x → slice(x)",
      insensitive=True)  # fmt: skip
def slice_pad(one: HloInstruction, options: RuleOptions) -> Answer:
    padded = one.operand(0)
    if padded.opcode != "pad" or not is_static_array(one.shape) or not one.shape.element_count:
        return None
    x, value = padded.operands
    padding: Any = padded.attr("padding") or ()
    bounds = bounds_of(one)
    if any(p.interior for p in padding) or any(b.stride != 1 for b in bounds):
        return None
    outside = inside = False
    for b, p, size in zip(bounds, padding, x.shape.dimensions, strict=True):
        outside |= b.limit <= p.low or b.start >= p.low + size
    inside = all(
        b.start >= p.low and b.limit <= p.low + size
        for b, p, size in zip(bounds, padding, x.shape.dimensions, strict=True)
    )
    if outside:
        return lambda build: build.broadcast_scalar(value, one.shape)
    if not inside:
        return None
    if x.shape.dimensions == one.shape.dimensions:
        return x
    starts = [b.start - p.low for b, p in zip(bounds, padding, strict=True)]
    limits = [b.limit - p.low for b, p in zip(bounds, padding, strict=True)]
    return lambda build: build.slice(x, starts, limits)


@rule("slice-of-broadcast", "slice", "slice(broadcast(x)) → broadcast(slice(x)), or of x where x is whole",
      insensitive=True)  # fmt: skip
def slice_of_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    spread = one.operand(0)
    if spread.opcode != "broadcast" or is_scalar_broadcast(spread) or not is_static_array(one.shape):
        return None
    x, places, bounds = spread.operand(0), spread.dimensions, bounds_of(one)
    inner = [bounds[d] for d in places]

    def make(build: Builder) -> HloInstruction:
        cut = build.slice(x, [b.start for b in inner], [b.limit for b in inner], [b.stride for b in inner])
        return build.make("broadcast", one.shape, [cut], {"dimensions": places})

    return make


@rule("slice-reshape", "slice", "slice(reshape(x)) of whole rows of x → reshape(slice(x))", insensitive=True)
def slice_reshape(one: HloInstruction, options: RuleOptions) -> Answer:
    flat, bounds = one.operand(0), bounds_of(one)
    if flat.opcode != "reshape" or not is_static_array(flat.shape) or not is_static_array(one.shape):
        return None
    x = flat.operand(0)
    if not x.shape.rank or not flat.shape.rank or not one.shape.element_count or any(b.stride != 1 for b in bounds):
        return None
    if any(b.start or b.limit != s for b, s in zip(bounds[1:], flat.shape.dimensions[1:], strict=True)):
        return None
    row = prod(flat.shape.dimensions[1:])
    unit = prod(x.shape.dimensions[1:])
    start, limit = bounds[0].start * row, bounds[0].limit * row
    if not unit or start % unit or limit % unit:
        return None
    starts = [start // unit, *[0] * (x.shape.rank - 1)]
    limits = [limit // unit, *x.shape.dimensions[1:]]
    return lambda build: build.make("reshape", one.shape, [build.slice(x, starts, limits)])


@rule("slice-reverse", "slice", "slice(reverse(x)) → reverse(slice(x))", insensitive=True)
def slice_reverse(one: HloInstruction, options: RuleOptions) -> Answer:
    turned, bounds = one.operand(0), bounds_of(one)
    if turned.opcode != "reverse" or not is_static_array(one.shape) or not one.shape.element_count:
        return None
    x = turned.operand(0)
    starts, limits, strides = [], [], []
    for d, b in enumerate(bounds):
        if d in turned.dimensions:
            count = one.shape.dimensions[d]
            last = x.shape.dimensions[d] - 1 - b.start
            starts.append(last - (count - 1) * b.stride)
            limits.append(last + 1)
        else:
            starts.append(b.start)
            limits.append(b.limit)
        strides.append(b.stride)
    return lambda build: build.clone(turned, [build.slice(x, starts, limits, strides)], one.shape)


@rule("slice-one-step", "slice", "a stride that never takes a second step → 1", insensitive=True)
def slice_one_step(one: HloInstruction, options: RuleOptions) -> Answer:
    bounds = bounds_of(one)
    if not is_static_array(one.shape) or not any(
        b.stride > 1 and s == 1 for b, s in zip(bounds, one.shape.dimensions, strict=True)
    ):
        return None
    new = tuple(
        SliceDimension(b.start, b.start + 1) if s == 1 else b for b, s in zip(bounds, one.shape.dimensions, strict=True)
    )
    return lambda build: build.make("slice", one.shape, [one.operand(0)], {"slice": new})


@rule("slice-some-operands", "slice", "slice(concatenate) that misses operands → slice of fewer", insensitive=True)
def slice_some_operands(one: HloInstruction, options: RuleOptions) -> Answer:
    joined, bounds = one.operand(0), bounds_of(one)
    if joined.opcode != "concatenate" or any(b.stride != 1 for b in bounds) or not one.shape.element_count:
        return None
    along = joined.dimensions[0]
    start = before = 0
    kept: list[HloInstruction] = []
    for part in joined.operands:
        end = start + part.shape.dimensions[along]
        if end <= bounds[along].start:
            before = end
        elif start < bounds[along].limit:
            kept.append(part)
        start = end
    if len(kept) == joined.operand_count or len(kept) < 2:
        return None

    def make(build: Builder) -> HloInstruction:
        shorter = build.concatenate(kept, along)
        moved = [b.start - (before if d == along else 0) for d, b in enumerate(bounds)]
        limits = [b.limit - (before if d == along else 0) for d, b in enumerate(bounds)]
        return build.slice(shorter, moved, limits)

    return make


@rule("slice-last-window", "slice", "the last element of a running reduction → reshape(reduce)", insensitive=True)
def slice_last_window(one: HloInstruction, options: RuleOptions) -> Answer:
    scan, bounds = one.operand(0), bounds_of(one)
    if scan.opcode != "reduce-window" or scan.operand_count != 2 or scan.user_count != 1:
        return None
    window: Any = scan.attr("window")
    moving = [d for d, w in enumerate(window.dimensions) if not w.trivial]
    if len(moving) != 1 or not is_static_array(scan.shape) or not is_static_array(scan.operand(0).shape):
        return None
    (d,) = moving
    w, n = window.dimensions[d], scan.operand(0).shape.dimensions[d]
    if (w.size, w.stride, w.padding_low, w.padding_high) != (n, 1, n - 1, 0):
        return None
    if w.base_dilation != 1 or w.window_dilation != 1 or w.window_reversal:
        return None
    whole = scan.shape.dimensions
    if any(b.stride != 1 for b in bounds) or (bounds[d].start, bounds[d].limit) != (n - 1, n):
        return None
    if any((b.start, b.limit) != (0, whole[i]) for i, b in enumerate(bounds) if i != d):
        return None
    return lambda build: build.make(
        "reshape", one.shape, [build.reduce(scan.operand(0), scan.operand(1), [d], scan.callee("to_apply"))]
    )


# ---------------------------------------------------------------- concatenations
@rule("concatenate-slices", "concatenate", "concatenate of slices of one value that lie side by side → one slice",
      insensitive=True)  # fmt: skip
def concatenate_slices(one: HloInstruction, options: RuleOptions) -> Answer:
    along = one.dimensions[0]
    runs: list[list[HloInstruction]] = []
    for part in one.operands:
        previous = runs[-1][-1] if runs else None
        if previous is not None and _side_by_side(previous, part, along):
            runs[-1].append(part)
        else:
            runs.append([part])
    if len(runs) == one.operand_count:
        return None

    def make(build: Builder) -> HloInstruction:
        parts: list[HloInstruction] = []
        for run in runs:
            if len(run) == 1:
                parts.append(run[0])
                continue
            first, last = bounds_of(run[0]), bounds_of(run[-1])
            limits = [last[d].limit if d == along else b.limit for d, b in enumerate(first)]
            parts.append(build.slice(run[0].operand(0), [b.start for b in first], limits))
        return parts[0] if len(parts) == 1 else build.clone(one, parts)

    return make


def _side_by_side(a: HloInstruction, b: HloInstruction, along: int) -> bool:
    if a.opcode != "slice" or b.opcode != "slice" or a.operand(0) is not b.operand(0):
        return False
    for d, (x, y) in enumerate(zip(bounds_of(a), bounds_of(b), strict=True)):
        if x.stride != 1 or y.stride != 1:
            return False
        if (x.limit != y.start) if d == along else ((x.start, x.limit) != (y.start, y.limit)):
            return False
    return True


@rule("concatenate-scalar-broadcast", "concatenate", "concatenate(x, broadcast(scalar)) → pad(x)", insensitive=True)
def concatenate_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand_count != 2 or not all(is_static_array(o.shape) for o in one.operands):
        return None
    spread = [is_scalar_broadcast(o) for o in one.operands]
    if spread[0] == spread[1]:
        return None
    place, along = spread.index(True), one.dimensions[0]
    x, value = one.operand(1 - place), one.operand(place)
    size = value.shape.dimensions[along]
    around = (size, 0) if place == 0 else (0, size)
    padding = [PaddingDimension(*(around if d == along else (0, 0))) for d in range(one.shape.rank)]
    return lambda build: build.pad(x, value.operand(0), padding)


@rule("concatenate-same", "concatenate", "concatenate of one value again and again, size 1 there → broadcast",
      insensitive=True)  # fmt: skip
def concatenate_same(one: HloInstruction, options: RuleOptions) -> Answer:
    x, along = one.operand(0), one.dimensions[0]
    if one.operand_count < 2 or any(o is not x for o in one.operands) or x.shape.dimensions[along] != 1:
        return None
    if not is_static_array(x.shape):
        return None
    others = [d for d in range(one.shape.rank) if d != along]
    sizes = [x.shape.dimensions[d] for d in others]
    return lambda build: build.make(
        "broadcast", one.shape, [build.reshape(x, sizes)], {"dimensions": tuple(others)}
    )


# ---------------------------------------------------------------- pads
@rule("pad-interior-one", "pad", "interior padding of a size of 1 → none")
def pad_interior_one(one: HloInstruction, options: RuleOptions) -> Answer:
    padding: Any = one.attr("padding") or ()
    sizes = one.operand(0).shape.dimensions
    if not any(p.interior and size == 1 for p, size in zip(padding, sizes, strict=True)):
        return None
    new = tuple(
        PaddingDimension(p.low, p.high, 0 if size == 1 else p.interior) for p, size in zip(padding, sizes, strict=True)
    )

    def make(build: Builder) -> HloInstruction:
        made = build.clone(one, one.operands)
        made.set_attr("padding", new)
        return made

    return make


@rule("pad-broadcast", "pad", "pad(broadcast(x)) that pads x's dimensions alone → broadcast(pad(x))", insensitive=True)
def pad_of_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    spread, value = one.operands
    padding: Any = one.attr("padding") or ()
    if spread.opcode != "broadcast" or spread.user_count != 1 or not is_static_array(one.shape):
        return None
    padded = [d for d, p in enumerate(padding) if p.low or p.high or p.interior]
    if not padded or len(padded) == len(padding) or not all(d in padded for d in spread.dimensions):
        return None
    sizes = [spread.shape.dimensions[d] for d in padded]
    places = tuple(padded.index(d) for d in spread.dimensions)

    def make(build: Builder) -> HloInstruction:
        x = spread.operand(0)
        small = build.broadcast(x, places, sizes) if list(places) != list(range(len(sizes))) else x
        inner = build.pad(small, value, [padding[d] for d in padded])
        return build.make("broadcast", one.shape, [inner], {"dimensions": tuple(padded)})

    return make


@rule("pad-negative", "pad", "negative padding → slice(pad)", insensitive=True)
def pad_negative(one: HloInstruction, options: RuleOptions) -> Answer:
    padding: Any = one.attr("padding") or ()
    if not any(p.low < 0 or p.high < 0 for p in padding) or not is_static_array(one.shape):
        return None
    grown = [PaddingDimension(max(0, p.low), max(0, p.high), p.interior) for p in padding]

    def make(build: Builder) -> HloInstruction:
        whole = build.pad(one.operand(0), one.operand(1), grown)
        starts = [max(0, -p.low) for p in padding]
        limits = [s - max(0, -p.high) for s, p in zip(whole.shape.dimensions, padding, strict=True)]
        return build.slice(whole, starts, limits)

    return make


# ---------------------------------------------------------------- dynamic slices of rearranged values
@rule("dynamic-slice-of-broadcast", "dynamic-slice", "ds(broadcast(x)) → broadcast(ds(x))", insensitive=True)
def dynamic_slice_of_broadcast(one: HloInstruction, options: RuleOptions) -> Answer:
    spread, starts = one.operand(0), one.operands[1:]
    if spread.opcode != "broadcast" or is_scalar_broadcast(spread) or not is_static_array(one.shape):
        return None
    if len(starts) != spread.shape.rank:
        return None
    x, places = spread.operand(0), spread.dimensions
    sizes = [one.shape.dimensions[d] for d in places]

    def make(build: Builder) -> HloInstruction:
        whole = tuple(sizes) == x.shape.dimensions
        inner = x if whole else build.dynamic_slice(x, [starts[d] for d in places], sizes)
        return build.make("broadcast", one.shape, [inner], {"dimensions": places})

    return make


@rule("dynamic-slice-reshape", "dynamic-slice", "ds(reshape by sizes of 1) → reshape(ds)", insensitive=True)
def dynamic_slice_reshape(one: HloInstruction, options: RuleOptions) -> Answer:
    flat, starts = one.operand(0), one.operands[1:]
    if flat.opcode != "reshape" or not is_static_array(flat.shape) or len(starts) != flat.shape.rank:
        return None
    x = flat.operand(0)
    places = same_but_ones(flat.shape.dimensions, x.shape.dimensions)
    if places is None or not is_static_array(x.shape) or not starts:
        return None

    def make(build: Builder) -> HloInstruction:
        zero = build.constant(0, starts[0].shape) if None in places else starts[0]
        inner = build.dynamic_slice(
            x,
            [zero if p is None else starts[p] for p in places],
            [1 if p is None else one.shape.dimensions[p] for p in places],
        )
        return build.make("reshape", one.shape, [inner])

    return make


@rule("dynamic-slice-transpose", "dynamic-slice", "ds(transpose(x)) → transpose(ds(x))", insensitive=True)
def dynamic_slice_transpose(one: HloInstruction, options: RuleOptions) -> Answer:
    moved, starts = one.operand(0), one.operands[1:]
    if moved.opcode != "transpose" or len(starts) != moved.shape.rank or not is_static_array(one.shape):
        return None
    order = moved.dimensions
    inverse = [order.index(d) for d in range(len(order))]

    def make(build: Builder) -> HloInstruction:
        inner = build.dynamic_slice(
            moved.operand(0), [starts[d] for d in inverse], [one.shape.dimensions[d] for d in inverse]
        )
        return build.make("transpose", one.shape, [inner], {"dimensions": order})

    return make


@rule("dynamic-slice-iota", "dynamic-slice", "one element of an iota (or iota · k) → the clamped index (· k)",
      insensitive=True)  # fmt: skip
def dynamic_slice_iota(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if one.shape.dimensions != (1,) or one.operand_count != 2 or one.shape.element_type not in ("s32", "u32"):
        return None
    factor: HloInstruction | None = None
    iota = x
    if x.opcode == "multiply":
        sides = [(a, b) for a, b in (x.operands, x.operands[::-1]) if a.opcode == "iota" and is_scalar_broadcast(b)]
        if not sides:
            return None
        iota, factor = sides[0][0], sides[0][1].operand(0)
    start = one.operand(1)
    if iota.opcode != "iota" or start.shape.element_type != one.shape.element_type or not start.shape.is_scalar:
        return None
    last = x.shape.dimensions[0] - 1

    def make(build: Builder) -> HloInstruction:
        low, high = (build.constant(v, start.shape) for v in (0, last))
        index = build.make("clamp", start.shape, [low, start, high])
        if factor is not None:
            index = build.binary("multiply", index, factor)
        return build.make("reshape", one.shape, [index])

    return make


@rule("dynamic-slice-twice", "dynamic-slice", "ds(ds(x, i), j) → ds(x, clamp(i) + clamp(j))", insensitive=True)
def dynamic_slice_twice(one: HloInstruction, options: RuleOptions) -> Answer:
    inner = one.operand(0)
    if inner.opcode != "dynamic-slice" or not is_static_array(one.shape):
        return None
    first, second = inner.operands[1:], one.operands[1:]
    x = inner.operand(0)
    if len(first) != x.shape.rank or len(second) != x.shape.rank:
        return None
    if any(a.shape.element_type != b.shape.element_type for a, b in zip(first, second, strict=True)):
        return Refusal("index_types", "starts of two types")

    def make(build: Builder) -> HloInstruction:
        def held(start: HloInstruction, most: int) -> HloInstruction:
            if start.is_constant_scalar(0):
                return start
            low, high = (build.constant(v, start.shape) for v in (0, most))
            return build.make("clamp", start.shape, [low, start, high])

        starts: list[HloInstruction] = []
        for d, (a, b) in enumerate(zip(first, second, strict=True)):
            a = held(a, x.shape.dimensions[d] - inner.shape.dimensions[d])
            b = held(b, inner.shape.dimensions[d] - one.shape.dimensions[d])
            starts.append(b if a.is_constant_scalar(0) else a if b.is_constant_scalar(0) else build.binary("add", a, b))
        return build.dynamic_slice(x, starts, one.shape.dimensions)

    return make


@rule("update-to-pad", "dynamic-update-slice", "dus(broadcast(scalar), u, constant starts) → pad(u)", insensitive=True)
def update_to_pad(one: HloInstruction, options: RuleOptions) -> Answer:
    x, update, starts = one.operand(0), one.operand(1), one.operands[2:]
    if not is_scalar_broadcast(x) or not all(s.is_constant_scalar() for s in starts) or len(starts) != x.shape.rank:
        return None
    if not is_static_array(one.shape):
        return None
    padding: list[PaddingDimension] = []
    for start, size, whole in zip(starts, update.shape.dimensions, x.shape.dimensions, strict=True):
        at = max(0, min(int(start.literal.array()[()]), whole - size))
        padding.append(PaddingDimension(at, whole - size - at))
    return lambda build: build.pad(update, x.operand(0), padding)


@rule("update-twice", "dynamic-update-slice", "dus(a, dus(ds(a, i), c, j), i) → dus(a, c, i + j)", insensitive=True)
def update_twice(one: HloInstruction, options: RuleOptions) -> Answer:
    a, inner, starts = one.operand(0), one.operand(1), one.operands[2:]
    if inner.opcode != "dynamic-update-slice" or inner.operand(0).opcode != "dynamic-slice":
        return None
    old = inner.operand(0)
    if old.operand(0) is not a or old.operands[1:] != starts or len(starts) != a.shape.rank:
        return None
    c, offsets = inner.operand(1), inner.operands[2:]
    if any(s.shape.element_type != o.shape.element_type for s, o in zip(starts, offsets, strict=True)):
        return Refusal("index_types", "starts of two types")

    def make(build: Builder) -> HloInstruction:
        new: list[HloInstruction] = []
        for d, (start, offset) in enumerate(zip(starts, offsets, strict=True)):
            room = a.shape.dimensions[d] - old.shape.dimensions[d]
            inside = old.shape.dimensions[d] - c.shape.dimensions[d]
            zero = build.constant(0, start.shape)
            base = build.make("clamp", start.shape, [zero, start, build.constant(room, start.shape)])
            step = build.make("clamp", offset.shape, [zero, offset, build.constant(inside, offset.shape)])
            new.append(build.binary("add", base, step))
        return build.dynamic_update_slice(a, c, new)

    return make


RULES: tuple[Rule, ...] = (
    slice_full, slice_pad, slice_slice, slice_broadcast, slice_of_broadcast, slice_concatenate, slice_some_operands,
    slice_last_window, slice_reshape, slice_reverse, slice_one_step, concatenate_one, concatenate_nested,
    concatenate_slices, concatenate_broadcast, concatenate_same, pad_empty, pad_interior_one, pad_nothing,
    pad_of_broadcast, pad_negative, dynamic_slice_full, dynamic_index_zero, dynamic_slice_broadcast,
    dynamic_slice_of_broadcast, dynamic_slice_reshape, dynamic_slice_transpose, dynamic_slice_constant,
    dynamic_slice_iota, dynamic_slice_twice, update_to_pad, update_full, update_empty, update_twice,
)  # fmt: skip
