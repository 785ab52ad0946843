"""Passes that follow layout assignment and leave one form for the emitters: reductions whose result keeps the operand's
order of dimensions, and broadcasts whose dimensions ascend.

Source: ``openxla/xla:xla/hlo/transforms/expanders/reduce_decomposer.cc``,
``xla/hlo/transforms/simplifiers/broadcast_canonicalizer.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.layout import Layout
from hloscope.core.hlo.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class ReduceDecomposer:
    """Reductions write in the order of what they read, and a copy makes another order of it."""

    name = "reduce-decomposer"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Inputs of one reduction first get the same layout, then results theirs."""
        changed = False
        for computation in module.post_order():
            for reduce in computation.post_order():
                if reduce.opcode == "reduce" and _laid_out(reduce):
                    changed |= _equalize(reduce, ctx)
                    changed |= _decompose(reduce, ctx)
        return changed


def _laid_out(reduce: HloInstruction) -> bool:
    shapes = [one.shape for one in reduce.operands]
    shapes += [shape for _, shape in reduce.shape.leaves()]
    return all(shape.layout is not None or not shape.dimensions for shape in shapes)


def _inputs(reduce: HloInstruction) -> Sequence[HloInstruction]:
    return reduce.operands[: reduce.operand_count // 2]


def _order(shape: Shape) -> tuple[int, ...]:
    return shape.layout.minor_to_major if shape.layout is not None else Layout.descending(shape.rank).minor_to_major


def _equalize(reduce: HloInstruction, ctx: PassContext) -> bool:
    inputs = _inputs(reduce)
    wanted = _order(inputs[0].shape)
    if all(_order(one.shape) == wanted for one in inputs):
        return False
    step = ctx.gate("equal-layouts", reduce)
    if not step:
        return False
    made: list[HloInstruction] = []
    for place, one in enumerate(inputs):
        if _order(one.shape) != wanted:
            made.append(_copy(one, one.shape.with_layout(Layout(wanted))))
            reduce.replace_operand(place, made[-1])
    step.done(*made)
    return True


def _expected(shape: Shape, given: Shape, removed: frozenset[int]) -> Shape:
    """The shape of a result, in the order that is left of an operand's."""
    kept = [dim for dim in range(given.rank) if dim not in removed]
    place = {dim: number for number, dim in enumerate(kept)}
    return shape.with_layout(Layout(tuple(place[dim] for dim in _order(given) if dim in place)))


def _decompose(reduce: HloInstruction, ctx: PassContext) -> bool:
    removed = frozenset(reduce.dimensions)
    results = list(reduce.shape.tuple_shapes) if reduce.shape.is_tuple else [reduce.shape]
    given = [one.shape for one in _inputs(reduce)]
    expected = [_expected(shape, source, removed) for shape, source in zip(results, given, strict=True)]
    if all(_order(a) == _order(b) for a, b in zip(results, expected, strict=True)):
        return False
    step = ctx.gate("decompose-reduce", reduce)
    if not step:
        return False
    home = reduce.parent
    whole = Shape.tuple_(expected) if reduce.shape.is_tuple else expected[0]
    made = home.add(reduce.clone_with(shape=whole))
    if reduce.shape.is_tuple:
        parts = [
            _copy(home.add(HloInstruction("get-tuple-element", part, [made], attrs={"index": number})), shape)
            for number, (part, shape) in enumerate(zip(expected, results, strict=True))
        ]
        new = home.add(HloInstruction("tuple", reduce.shape, parts))
        home.replace(reduce, new)
    elif reduce.user_count == 1 and reduce.users[0].opcode == "convert" and not reduce.is_root:
        # a reduction and the conversion of its result stay side by side
        convert = reduce.users[0]
        inner = home.add(convert.clone_with(operands=[made], shape=whole.with_element_type(convert.shape.element_type)))
        new = _copy(inner, reduce.shape.with_element_type(convert.shape.element_type))
        home.replace(convert, new)
        home.remove(reduce)
    else:
        new = _copy(made, reduce.shape)
        home.replace(reduce, new)
    step.done(new, made)
    return True


def _copy(value: HloInstruction, shape: Shape) -> HloInstruction:
    made = value.parent.add(HloInstruction("copy", shape, [value]))
    metadata = value.raw_attrs.get("metadata")
    if metadata is not None:
        made.set_attr("metadata", metadata)
    return made


@dataclass(frozen=True)
class BroadcastCanonicalizer:
    """Broadcasts with ascending dimensions; what that changes is a transpose of the operand."""

    name = "broadcast_canonicalizer"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Everywhere but in fusions."""
        changed = False
        for computation in module.post_order():
            if computation.is_fusion:
                continue
            for one in computation.post_order():
                dims = one.dimensions if one.opcode == "broadcast" else ()
                ascending = tuple(sorted(dims))
                if dims == ascending:
                    continue
                step = ctx.gate("sort-dimensions", one)
                if not step:
                    continue
                operand = one.operand(0)
                permutation = tuple(dims.index(dim) for dim in ascending)
                shape = operand.shape.with_dimensions(
                    (operand.shape.dimensions[at] for at in permutation), operand.shape.layout
                )
                turned = computation.add(
                    HloInstruction("transpose", shape, [operand], attrs={"dimensions": permutation})
                )
                made = computation.add(one.clone_with(operands=[turned]))
                made.set_attr("dimensions", ascending)
                computation.replace(one, made)
                step.done(made, turned)
                changed = True
        return changed
