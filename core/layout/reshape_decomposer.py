"""``reshape-decomposer``: after layout assignment, each reshape becomes a bitcast, with copies where bytes must move.

A reshape between layouts that agree is free. Where they do not, one side is copied into a layout that makes the reshape
free: the operand if its side can be aligned, else the result, else both. Source:
``openxla/xla:xla/hlo/transforms/expanders/reshape_decomposer.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.layout import Layout
from hloscope.core.layout.bitcast import align, reshape_is_bitcast
from hloscope.core.layout.malformed import told_by_the_verifier
from hloscope.core.layout.orders import layout_of

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class ReshapeDecomposer:
    """The pass."""

    name = "reshape-decomposer"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Rewrite every reshape whose shapes have layouts; inside fusions they may have none and stay."""
        with told_by_the_verifier(module):
            return self._run(module, ctx)

    def _run(self, module: HloModule, ctx: PassContext) -> bool:
        changed = False
        for computation in module.post_order():
            for reshape in computation.post_order():
                if reshape.opcode != "reshape" or not _laid_out(reshape):
                    continue
                step = ctx.gate("decompose-reshape", reshape)
                if step:
                    made = decompose(reshape)
                    step.done(*made, detail=f"{len(made) - 1} copies")
                    changed = True
        return changed


def _laid_out(reshape: HloInstruction) -> bool:
    shapes = (reshape.shape, reshape.operand(0).shape)
    return all(one.layout is not None or not one.dimensions for one in shapes)


def decompose(reshape: HloInstruction) -> list[HloInstruction]:
    """Replace a reshape; what was made is returned, the replacement first."""
    operand, shape = reshape.operand(0), reshape.shape
    source = operand.shape
    out, given = layout_of(shape).minor_to_major, layout_of(source).minor_to_major
    made: list[HloInstruction] = []
    if reshape_is_bitcast(source.dimensions, given, shape.dimensions, out):
        made.append(_bitcast(operand, shape))
    elif (order := align(shape.dimensions, out, source.dimensions)) is not None:
        copied = _copy(operand, source.with_layout(Layout(order)))
        made += [_bitcast(copied, shape), copied]
    elif (order := align(source.dimensions, given, shape.dimensions)) is not None:
        cast = _bitcast(operand, shape.with_layout(Layout(order)))
        made += [_copy(cast, shape), cast]
    else:
        copied = _copy(operand, source.with_layout(Layout.descending(source.rank)))
        cast = _bitcast(copied, shape.with_layout(Layout.descending(shape.rank)))
        made += [_copy(cast, shape), cast, copied]
    reshape.parent.replace(reshape, made[0])
    return made


def _bitcast(value: HloInstruction, shape: Shape) -> HloInstruction:
    made = value.parent.add(HloInstruction("bitcast", shape, [value]))
    metadata = value.raw_attrs.get("metadata")
    if metadata is not None:
        made.set_attr("metadata", metadata)
    return made


def _copy(value: HloInstruction, shape: Shape) -> HloInstruction:
    made = value.parent.add(HloInstruction("copy", shape, [value]))
    for key in ("metadata", "frontend_attributes", "sharding"):
        text = value.raw_attrs.get(key)
        if text is not None:
            made.set_attr(key, text)
    return made
