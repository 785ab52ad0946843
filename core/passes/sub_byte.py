"""``sub-byte-size-setter``: arrays of 4-bit and narrower numbers are stored packed, and their layouts say so.

Only layouts that exist are written to; a pred stays one byte. Source:
``openxla/xla:xla/hlo/transforms/simplifiers/sub_byte_normalization.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hloscope.core.hlo.shape import Shape

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class SubByteSizeSetter:
    """Element sizes of all layouts, the entry's too."""

    name = "sub-byte-size-setter"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every instruction of every computation; not optional, so nothing is asked."""
        changed = False
        for one in module.instructions():
            shape = _packed(one.shape)
            if shape is not one.shape:
                one.shape = shape
                changed = True
        entry = module.entry_layout()
        if entry is not None:
            parameters, result = entry
            new = [_packed(one) for one in parameters]
            if any(a is not b for a, b in zip(new, parameters, strict=True)) or _packed(result) is not result:
                given = ", ".join(one.to_text() for one in new)
                text = f"{{({given})->{_packed(result).to_text()}}}"
                module.attrs = {**module.attrs, "entry_computation_layout": text}
                changed = True
        return changed


def _packed(shape: Shape) -> Shape:
    """The shape with its element sizes; itself where they are right."""
    if shape.is_tuple:
        parts = [_packed(part) for part in shape.tuple_shapes]
        same = all(a is b for a, b in zip(parts, shape.tuple_shapes, strict=True))
        return shape if same else Shape.tuple_(parts)
    if not shape.is_array or shape.layout is None:
        return shape
    bits = shape.type.bits if shape.type.bits < 8 and shape.type.name != "pred" else 0
    if shape.layout.element_size_in_bits == bits:
        return shape
    return shape.with_layout(replace(shape.layout, element_size_in_bits=bits))
