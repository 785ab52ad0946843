"""Equality of shapes with parts of the layout ignored. Source: ``openxla/xla:xla/shape.cc#Shape::Equal``,
``xla/layout.cc#Layout::Equal``. A missing layout is the default one, as it is after XLA's parser."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.core.hlo.infer_shape.base import array_of, compatible, flags_of, same_type_ignoring_precision
from hloscope.core.hlo.layout import Layout
from hloscope.core.hlo.shape import UNBOUNDED, Shape


@dataclass(frozen=True, slots=True)
class ShapeEqual:
    """What counts as equal; everything does unless it is ignored."""

    layout: bool = True
    tiles: bool = True
    element_size: bool = True
    memory_space: bool = True
    tail_padding: bool = True
    splits: bool = True
    dynamic: bool = True
    precision: bool = True
    buffer: bool = True

    def __call__(self, a: Shape, b: Shape) -> bool:
        if a is b:
            return True
        if a.is_tuple:
            return (
                b.is_tuple
                and len(a.tuple_shapes) == len(b.tuple_shapes)
                and all(self(x, y) for x, y in zip(a.tuple_shapes, b.tuple_shapes, strict=True))
            )
        if a.element_type == "buffer" or b.element_type == "buffer":
            if self.buffer and a.element_type != b.element_type:
                return False
            return self(array_of(a), array_of(b))
        if not a.is_array or not b.is_array:
            return a.element_type == b.element_type
        if a.element_type != b.element_type and (
            self.precision or not same_type_ignoring_precision(a.element_type, b.element_type)
        ):
            return False
        if a.dimensions != b.dimensions and (self.dynamic or not _fits(a.dimensions, b.dimensions)):
            return False
        if self.layout and a.layout != b.layout and not self.layouts(layout_of(a), layout_of(b)):
            return False
        return not self.dynamic or a.dynamic_dimensions == b.dynamic_dimensions or flags_of(a) == flags_of(b)

    def layouts(self, a: Layout, b: Layout) -> bool:
        """Whether two layouts are equal as far as they count."""
        return (
            a.minor_to_major == b.minor_to_major
            and (not self.tiles or a.tiles == b.tiles)
            and (not self.element_size or a.element_size_in_bits == b.element_size_in_bits)
            and (not self.memory_space or a.memory_space == b.memory_space)
            and (not self.tail_padding or a.tail_padding_alignment_in_elements == b.tail_padding_alignment_in_elements)
            and (not self.splits or a.split_configs == b.split_configs)
            and a.index_primitive_type == b.index_primitive_type
            and a.pointer_primitive_type == b.pointer_primitive_type
            and a.physical_shape == b.physical_shape
        )


def _fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return len(a) == len(b) and all(x == y or UNBOUNDED in (x, y) for x, y in zip(a, b, strict=True))


def layout_of(shape: Shape) -> Layout:
    """The layout, the default one where the text gives none."""
    return shape.layout if shape.layout is not None else Layout.descending(shape.rank)


EXACT = ShapeEqual()
"""Everything counts."""
ORDER_ONLY = ShapeEqual(tiles=False, element_size=False, memory_space=False, tail_padding=False, splits=False)
"""Of the layout only the order of dimensions counts."""
NO_MEMORY_SPACE = ShapeEqual(memory_space=False)
LOOSE_ENTRY = ShapeEqual(tiles=False, tail_padding=False, memory_space=False)
"""How the entry layout is compared."""

__all__ = ["EXACT", "LOOSE_ENTRY", "NO_MEMORY_SPACE", "ORDER_ONLY", "ShapeEqual", "compatible", "layout_of"]
