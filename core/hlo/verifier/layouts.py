"""Whether a layout is valid for its shape. Source: ``openxla/xla:xla/layout_util.cc#ValidateLayoutForShape``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.layout import COMBINE

if TYPE_CHECKING:
    from hloscope.core.hlo.shape import Shape


def layout_fault(shape: Shape) -> str | None:
    """Why a layout is not valid for its shape, None where it is."""
    if shape.element_type in ("token", "opaque") and shape.dimensions:
        return f"a {shape.element_type} has no dimensions: {shape.to_text(layout=False)}"
    layout = shape.layout
    if layout is None or not (shape.is_array or shape.element_type == "buffer"):
        return None
    order = layout.minor_to_major
    listed = ", ".join(map(str, order))
    if len(order) != shape.rank:
        return (
            f"layout minor_to_major field contains {len(order)} elements, but shape has {shape.rank} dimensions: "
            f"{{{listed}}}; shape: {shape.to_text(layout=False)}"
        )
    seen: set[int] = set()
    for dim in order:
        if not 0 <= dim < shape.rank:
            return f"layout minor_to_major field has out-of-bounds value: {{{listed}}}; shape: {shape}"
        if dim in seen:
            return f"layout minor_to_major field has duplicate values: {{{listed}}}; shape: {shape}"
        seen.add(dim)
    if layout.tail_padding_alignment_in_elements <= 0:
        return (
            f"layout tail_padding_alignment_in_elements field is <= 0: {{{layout.tail_padding_alignment_in_elements}}}"
        )
    for name in ("index_primitive_type", "pointer_primitive_type", "physical_shape"):
        if getattr(layout, name) is not None:
            return f"layout has a {name}, but is not a sparse array: {shape}"
    if any(not tile or any(d <= 0 and d != COMBINE for d in tile) for tile in layout.tiles):
        return f"layout has invalid tiles: {shape}"
    if layout.element_size_in_bits < 0:
        return f"layout element_size_in_bits field is negative: {layout.element_size_in_bits}"
    return _split_fault(shape)


def _split_fault(shape: Shape) -> str | None:
    seen: set[int] = set()
    for dim, points in shape.layout.split_configs if shape.layout is not None else ():
        if not 0 <= dim < shape.rank or dim in seen:
            return f"layout split config has dimension {dim} out of range or twice: {shape}"
        seen.add(dim)
        last = 0
        for point in points:
            if point <= last or point >= shape.dimensions[dim]:
                return f"layout split config has split indices that do not rise inside the dimension: {shape}"
            last = point
    return None
