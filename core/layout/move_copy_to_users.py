"""``move_copy_to_users``: copies go below what reads them, to meet other copies or the transpose of a reduction.

An operation that keeps layouts gives the same elements whether it is done before or after a copy to another layout.
Afterwards the copy often reads less, or two of them became one. Source:
``openxla/xla:xla/backends/gpu/transforms/move_copy_to_users.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.layout.malformed import told_by_the_verifier
from hloscope.core.layout.orders import layout_of, show_shape
from hloscope.core.passes.gate import Refusal

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.passes.context import PassContext

_FIRST_OPERAND = ("dynamic-slice", "pad", "reduce-window", "reverse", "slice")
"""Operations that keep the layout of their first operand."""

_STAY = ("bitcast-convert", "copy", "reduce-precision")
"""Elementwise operations that copies stay above."""


@dataclass(frozen=True)
class MoveCopyToUsers:
    """The pass, one walk; XLA:GPU repeats it until nothing changes."""

    name = "move_copy_to_users"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Move every copy that can move by one operation."""
        changed = False
        with told_by_the_verifier(module):
            for computation in module.post_order():
                if computation.is_fusion or computation.synthetic:
                    continue
                for one in computation.post_order():
                    if one.in_computation and one.shape.is_array and any(_is_copy(x) for x in one.operands):
                        changed |= _visit(one, ctx)
        return changed


def _is_copy(one: HloInstruction) -> bool:
    return one.opcode == "copy" and one.shape.is_array


def _visit(one: HloInstruction, ctx: PassContext) -> bool:
    moved = _moved(one)
    rule = f"move-copy-below-{one.opcode}"
    if isinstance(moved, Refusal):
        ctx.refuse(rule, one, moved.code, moved.detail)
        return False
    if not moved:
        return False
    step = ctx.gate(rule, one)
    if not step:
        return False
    operands = [*moved, *one.operands[len(moved) :]]
    if one.opcode == "reduce":
        new = one.clone_with(operands=operands)
        one.parent.replace(one, new, relay_control=True)
        step.done(new, detail=f"reads {operands[0].shape} without the copy")
        return True
    shape = one.shape.with_layout(layout_of(operands[0].shape))
    new = _same_operation(one, shape, operands)
    copy = one.parent.add(HloInstruction("copy", one.shape, [new], metadata=one.raw_attrs.get("metadata")))
    one.parent.replace(one, copy, relay_control=True)
    step.done(
        copy, new, detail=f"{one.opcode} in {show_shape(shape)}, the copy of {one.shape.byte_size} bytes below it"
    )
    return True


def _moved(one: HloInstruction) -> list[HloInstruction] | Refusal:
    """What the first operands become without their copies; empty where the operation does not take part."""
    opcode = one.opcode
    first = one.operand(0)
    if opcode in _FIRST_OPERAND or opcode == "reduce":
        fits = _is_copy(first) and (opcode not in ("reduce", "reduce-window") or one.operand_count == 2)
        return [first.operand(0)] if fits else []
    if opcode == "concatenate":
        return _all_copies(one)
    if not one.info.elementwise or opcode in _STAY or one.info.arity not in (1, 2):
        return []
    if one.info.arity == 1:
        if opcode == "convert" and [user.opcode for user in one.users] == ["convolution"]:
            return Refusal("convert_feeds_convolution", "the library may convert while it reads")
        return [first.operand(0)] if _is_copy(first) else []
    second = one.operand(1)
    if not (_is_copy(first) and _is_copy(second)):
        return Refusal("one_copied_operand", "the other operand would need a copy")
    a, b = first.operand(0), second.operand(0)
    return [a, b] if _same(a.shape, b.shape) else Refusal("layouts_differ", f"{a.shape} against {b.shape}")


def _all_copies(one: HloInstruction) -> list[HloInstruction] | Refusal:
    if not all(_is_copy(operand) for operand in one.operands):
        return Refusal("one_copied_operand", "every part would have to be copied")
    sources = [operand.operand(0) for operand in one.operands]
    layouts = {layout_of(source.shape) for source in sources}
    return sources if len(layouts) == 1 else Refusal("layouts_differ", ", ".join(sorted(map(str, layouts))))


def _same(a: Shape, b: Shape) -> bool:
    return a == b or (a.with_layout(layout_of(a)) == b.with_layout(layout_of(b)))


def _same_operation(one: HloInstruction, shape: Shape, operands: list[HloInstruction]) -> HloInstruction:
    """The operation on other operands; notes on the value go to the copy that takes its place."""
    skipped = ("metadata", "sharding", "frontend_attributes")
    attrs = {key: text for key, text in one.raw_attrs.items() if text is not None and key not in skipped}
    new = HloInstruction(one.opcode, shape, operands, attrs=attrs, metadata=one.raw_attrs.get("metadata"))
    for key, group in one.called.items():
        new.set_called(key, group if key in one.calls_as_list else group[0])
    return one.parent.add(new)
