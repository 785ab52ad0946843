"""Rules on slices, concatenations, pads and their dynamic forms.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc`` (HandleSlice, HandleConcatenate,
HandlePad, HandleDynamicSlice, HandleDynamicUpdateSlice).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hloscope.core.hlo.attributes import SliceDimension
from hloscope.core.passes.rules.base import Answer, Builder, Rule, RuleOptions, is_static_array, like, rule
from hloscope.core.passes.rules.shapes import is_scalar_broadcast

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


RULES: tuple[Rule, ...] = (
    slice_full, slice_slice, slice_broadcast, slice_concatenate, concatenate_one, concatenate_nested, pad_nothing,
    pad_empty, dynamic_slice_full, dynamic_slice_broadcast, dynamic_slice_constant, dynamic_index_zero, update_full,
    update_empty,
)  # fmt: skip
