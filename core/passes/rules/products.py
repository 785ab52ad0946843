"""Rules on dots and convolutions.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/algebraic_simplifier.cc`` (HandleDot, HandleConvolution).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hloscope.core.hlo.attributes import Window
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, Rule, RuleOptions, is_all, is_static_array, rule
from hloscope.core.passes.rules.dots import Side, make_dot, sides

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


def _static(one: HloInstruction) -> bool:
    return all(is_static_array(o.shape) for o in (one, *one.operands[:2]))


@rule("dot-empty", "dot convolution", "a product over nothing → 0", insensitive=True)
def dot_empty(one: HloInstruction, options: RuleOptions) -> Answer:
    if not _static(one) or all(o.shape.element_count for o in (one, *one.operands[:2])):
        return None
    return lambda build: build.scalar_like(one.shape, 0)


@rule("dot-outer", "dot", "a dot without contracting dimensions → multiply of broadcasts", insensitive=True)
def dot_outer(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = sides(one)
    if left.contracting or not _static(one) or one.attr("algorithm") not in (None, "dot_f32_f32_f32"):
        return None
    batch = len(left.batch)

    def spread(build: Builder, side: Side, offset: int) -> HloInstruction:
        x = build.transpose(build.convert(side.value, one.shape.element_type), (*side.batch, *side.free))
        places = [*range(batch), *range(offset, offset + len(side.free))]
        if len(places) == one.shape.rank:
            return x
        return build.make("broadcast", one.shape, [x], {"dimensions": tuple(places)})

    return lambda build: build.binary(
        "multiply", spread(build, left, batch), spread(build, right, batch + len(left.free))
    )


@rule("dot-strength", "dot", "a dot without free dimensions → reduce of a multiply, in f32 at least", insensitive=True)
def dot_strength(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = sides(one)
    if not options.enable_dot_strength_reduction or not _static(one) or not left.contracting:
        return None
    if left.free or right.free:
        if options.executing_on_cpu or (left.free and right.free):
            return None
    kind = one.shape.element_type
    if one.shape.type.kind not in ("float", "int", "uint", "complex") or one.shape.type.bits < 8:
        return None
    wide = "f32" if one.shape.type.kind == "float" and one.shape.type.bits < 32 else kind

    def make(build: Builder) -> HloInstruction:
        order = [(*s.batch, *s.contracting, *s.free) for s in (left, right)]
        a, b = (
            build.transpose(build.convert(s.value, wide), o) for s, o in zip((left, right), order, strict=True)
        )
        batch, inner = len(left.batch), len(left.contracting)
        full = a.shape.dimensions if left.free else b.shape.dimensions
        head = range(batch + inner)
        if len(a.shape.dimensions) != len(full):
            a = build.broadcast(a, head, full)
        if len(b.shape.dimensions) != len(full):
            b = build.broadcast(b, head, full)
        zero = build.scalar(wide, 0)
        dims = range(batch, batch + inner)
        total = build.reduce(build.binary("multiply", a, b), zero, dims, build.reducer("add", wide))
        return build.convert(total, kind)

    return make


@rule("dot-degenerate", "dot", "dimensions of size 1 dropped from both operands, a reshape after", insensitive=True)
def dot_degenerate(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = sides(one)
    if not _static(one) or not any(1 in s.value.shape.dimensions for s in (left, right)):
        return None

    def kept(side: Side) -> list[int]:
        return [d for d, size in enumerate(side.value.shape.dimensions) if size != 1]

    def smaller(build: Builder, side: Side) -> Side:
        dims = kept(side)
        value = build.reshape(side.value, [side.value.shape.dimensions[d] for d in dims])
        place = {d: i for i, d in enumerate(dims)}
        return Side(
            value,
            tuple(place[d] for d in side.batch if d in place),
            tuple(place[d] for d in side.contracting if d in place),
        )

    return lambda build: build.reshape(
        make_dot(build, one, smaller(build, left), smaller(build, right)), one.shape.dimensions
    )


@rule("transpose-dot", "transpose", "transpose(dot(a, b)) that swaps rows and columns → dot(b, a)", insensitive=True)
def transpose_dot(one: HloInstruction, options: RuleOptions) -> Answer:
    dot = one.operand(0)
    if dot.opcode != "dot" or dot.user_count != 1 or not _static(dot):
        return None
    left, right = sides(dot)
    batch = len(left.batch)
    if not (left.canonical and right.canonical) or len(left.free) != 1 or len(right.free) != 1:
        return None
    if one.dimensions != (*range(batch), batch + 1, batch):
        return None

    def make(build: Builder) -> HloInstruction:
        made = make_dot(build, dot, right, left)
        precision = dot.attr("operand_precision")
        if precision:
            made.set_attr("operand_precision", tuple(reversed(precision)))
        return made

    return make


@rule("dot-of-transposes", "dot", "dot(transpose(a), transpose(b)), rows and columns swapped → transpose(dot(b, a))",
      insensitive=True)  # fmt: skip
def dot_of_transposes(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = sides(one)
    a, b = one.operands
    if a.opcode != "transpose" or b.opcode != "transpose" or a.dimensions != b.dimensions or not _static(one):
        return None
    if not (left.canonical and right.canonical) or len(left.free) != 1 or len(right.free) != 1:
        return None
    batch, order = len(left.batch), a.dimensions
    if order != (*range(batch), batch + 1, batch):
        return None

    def make(build: Builder) -> HloInstruction:
        first, second = (
            Side(side.value.operand(0), side.batch, (order[side.contracting[0]],)) for side in (right, left)
        )
        inner = make_dot(build, one, first, second)
        precision = one.attr("operand_precision")
        if precision:
            inner.set_attr("operand_precision", tuple(reversed(precision)))
        return build.make("transpose", one.shape, [inner], {"dimensions": order})

    return make


@rule("dot-of-concatenate", "dot", "dot(concatenate(a, b), constant) along what is contracted → a sum of dots",
      insensitive=True)  # fmt: skip
def dot_of_concatenate(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = sides(one)
    if left.batch or len(left.contracting) != 1 or any(o.shape.rank != 2 for o in one.operands) or not _static(one):
        return None
    for joined, other in ((left, right), (right, left)):
        if joined.value.opcode != "concatenate" or other.value.opcode != "constant":
            continue
        if joined.value.dimensions != joined.contracting or other.value.shape.element_count == 0:
            continue
        parts, fixed, first = joined, other, joined is left

        def make(build: Builder) -> HloInstruction:
            total: HloInstruction | None = None
            start = 0
            (d,) = fixed.contracting
            for part in parts.value.operands:
                end = start + part.shape.dimensions[parts.contracting[0]]
                lows, highs = [0, 0], list(fixed.value.shape.dimensions)
                lows[d], highs[d] = start, end
                cut = Side(build.slice(fixed.value, lows, highs), (), fixed.contracting)
                piece = Side(part, (), parts.contracting)
                dot = make_dot(build, one, *((piece, cut) if first else (cut, piece)))
                total = dot if total is None else build.binary("add", total, dot)
                start = end
            assert total is not None
            return total

        return make
    return None


@rule("dot-of-row", "dot", "dot(dynamic-slice of a constant, constant) → dynamic-slice(dot(constant, constant))",
      insensitive=True)  # fmt: skip
def dot_of_row(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = sides(one)
    if left.batch or len(left.contracting) != 1 or any(o.shape.rank != 2 for o in one.operands) or not _static(one):
        return None
    for row, other in ((left, right), (right, left)):
        cut = row.value
        if cut.opcode != "dynamic-slice" or cut.operand(0).opcode != "constant" or other.value.opcode != "constant":
            continue
        if cut.shape.dimensions[row.contracting[0]] != cut.operand(0).shape.dimensions[row.contracting[0]]:
            continue
        sliced, fixed, first = row, other, row is left

        def make(build: Builder) -> HloInstruction:
            whole = Side(sliced.value.operand(0), (), sliced.contracting)
            dot = make_dot(build, one, *((whole, fixed) if first else (fixed, whole)))
            start = sliced.value.operand(1 + sliced.free[0])
            zero = build.constant(0, start.shape)
            starts = [start, zero] if first else [zero, start]
            return build.dynamic_slice(dot, starts, one.shape.dimensions)

        return make
    return None


# ---------------------------------------------------------------- convolutions
@rule("convolution-pad", "convolution", "convolution(pad(x, 0), k) → the padding in the window", insensitive=True)
def convolution_pad(one: HloInstruction, options: RuleOptions) -> Answer:
    padded = one.operand(0)
    if padded.opcode != "pad" or not is_all(padded.operand(1), 0) or not _static(one):
        return None
    labels: Any = one.attr("dim_labels")
    window: Any = one.attr("window")
    padding: Any = padded.attr("padding") or ()
    for d in (labels.input_batch, labels.input_feature):
        if padding[d].low or padding[d].high or padding[d].interior:
            return Refusal("not_spatial", f"dimension {d} is padded")
    if any(p.low < 0 or p.high < 0 for p in padding) or window is None:
        return None
    new = list(window.dimensions)
    for i, d in enumerate(labels.input_spatial):
        p, w = padding[d], new[i]
        if p.interior and (w.padding_low or w.padding_high or w.base_dilation != 1):
            return Refusal("dilated", f"window dimension {i} is padded or dilated already")
        if w.base_dilation != 1 and (p.low or p.high):
            low, high = p.low * w.base_dilation, p.high * w.base_dilation
        else:
            low, high = p.low, p.high
        new[i] = replace(
            w, padding_low=w.padding_low + low, padding_high=w.padding_high + high,
            base_dilation=p.interior + 1 if p.interior else w.base_dilation,
        )  # fmt: skip

    def make(build: Builder) -> HloInstruction:
        made = build.clone(one, [padded.operand(0), *one.operands[1:]])
        made.set_attr("window", Window(tuple(new)))
        return made

    return make


@rule("convolution-kernel-pad", "convolution", "convolution(x, pad(k, 0) between elements) → window dilation",
      insensitive=True)  # fmt: skip
def convolution_kernel_pad(one: HloInstruction, options: RuleOptions) -> Answer:
    padded = one.operand(1)
    if padded.opcode != "pad" or not is_all(padded.operand(1), 0) or not _static(one):
        return None
    labels: Any = one.attr("dim_labels")
    window: Any = one.attr("window")
    padding: Any = padded.attr("padding") or ()
    if window is None or any(p.low or p.high for p in padding):
        return None
    for d in (labels.kernel_input_feature, labels.kernel_output_feature):
        if padding[d].interior:
            return Refusal("not_spatial", f"dimension {d} of the kernel is padded")
    new = list(window.dimensions)
    kernel = padded.operand(0).shape
    for i, d in enumerate(labels.kernel_spatial):
        if padding[d].interior and new[i].window_dilation != 1:
            return Refusal("dilated", f"window dimension {i} is dilated already")
        if padding[d].interior:
            new[i] = replace(new[i], size=kernel.dimensions[d], window_dilation=padding[d].interior + 1)

    def make(build: Builder) -> HloInstruction:
        made = build.clone(one, [one.operand(0), padded.operand(0), *one.operands[2:]])
        made.set_attr("window", Window(tuple(new)))
        return made

    return make


RULES: tuple[Rule, ...] = (
    dot_empty, dot_outer, dot_strength, dot_of_concatenate, dot_of_row, dot_degenerate, dot_of_transposes,
    transpose_dot, convolution_pad, convolution_kernel_pad,
)  # fmt: skip
