"""Shapes of operations that move elements: concatenate, pad, slices, reshape, transpose, broadcast and their kin.

Source: ``openxla/xla:xla/service/shape_inference.cc``, ``xla/service/hlo_verifier.cc#HandleBroadcast, #HandleReshape,
#HandleDynamicReshape``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.infer_shape.base import (
    InferenceError,
    array_of,
    compatible,
    elements_in,
    expect_array,
    flags_of,
    higher_precision,
    human,
    invalid,
    is_array,
    is_integral,
    is_unbounded,
    make,
    same_type_ignoring_precision,
    scalar,
    sizes_compatible,
    word,
)
from hloscope.core.hlo.shape import UNBOUNDED, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.hlo.attributes import PaddingDimension, SliceDimension
    from hloscope.core.hlo.infer_shape.base import Request

_INT_MAX = 2**31 - 1


# ---------------------------------------------------------------- concatenate and pad
def concatenate(request: Request) -> Shape:
    """Sizes add up along one dimension and agree along the others."""
    operands = request.operands
    if not operands:
        invalid("Concatenate expects at least one argument.")
    dimensions = tuple(request.need("dimensions"))
    if len(dimensions) != 1:
        invalid(f"Concatenate needs one dimension, got {len(dimensions)}.")
    dim = dimensions[0]
    first = operands[0]
    if not 0 <= dim < first.rank:
        invalid(f"Concatenate dimension out of bounds: {dim}.")
    element_type = first.element_type
    for other in operands:
        expect_array(other, "operand of concatenation")
        if other is first:
            continue
        if other.rank != first.rank:
            invalid(
                f"Cannot concatenate arrays with different ranks: {first.rank} ({human(first)}) vs {other.rank} "
                f"({human(other)})."
            )
        if not same_type_ignoring_precision(first.element_type, other.element_type):
            invalid(f"Cannot concatenate arrays with different element types: {word(first)} vs {word(other)}.")
        for i, (a, b) in enumerate(zip(first.dimensions, other.dimensions, strict=True)):
            if i != dim and not sizes_compatible(a, b):
                invalid(
                    "Cannot concatenate arrays that differ in dimensions other than the one being concatenated. "
                    f"Dimension {i} in both shapes must be equal (or compatible): {human(first)} vs {human(other)}."
                )
        element_type = higher_precision(other.element_type, first.element_type)
    if not any(s.dynamic_dimensions for s in operands):
        sizes = list(first.dimensions)
        sizes[dim] = sum(s.dimensions[dim] for s in operands)
        return make(element_type, sizes)
    return _concatenate_dynamic(operands, dim, element_type)


def _concatenate_dynamic(operands: Sequence[Shape], dim: int, element_type: str) -> Shape:
    """Sizes with bounds: ``<=B`` prints B, and ``?`` has neither. Source: ``#InferConcatenatedDimAndBound``."""
    rank = operands[0].rank
    sizes, bounds = [UNBOUNDED] * rank, [UNBOUNDED] * rank
    sizes[dim] = 0
    for shape in operands:
        for i, size in enumerate(shape.dimensions):
            bound = size if shape.dimension_is_dynamic(i) else UNBOUNDED
            if i == dim:
                left, right = sizes[i], size
                whole = UNBOUNDED if UNBOUNDED in (left, right) else left + right
                if UNBOUNDED not in (bounds[i], bound) or bounds[i] != bound:
                    a = bounds[i] if bounds[i] != UNBOUNDED else left
                    b = bound if bound != UNBOUNDED else right
                    bounds[i] = UNBOUNDED if UNBOUNDED in (a, b) else a + b
                sizes[i] = whole
            else:
                sizes[i], bounds[i] = _most_specific(i, sizes[i], size, bounds[i], bound)
    flags = [b != UNBOUNDED or s == UNBOUNDED for s, b in zip(sizes, bounds, strict=True)]
    return make(element_type, sizes, flags)


def _most_specific(dim: int, left: int, right: int, left_bound: int, right_bound: int) -> tuple[int, int]:
    size = bound = UNBOUNDED
    if left_bound != UNBOUNDED or right_bound != UNBOUNDED:
        if UNBOUNDED not in (left_bound, right_bound) and left_bound != right_bound:
            invalid(f"Mismatched bound sizes {left_bound} and {right_bound} in dimension {dim}")
        bound = left_bound if left_bound != UNBOUNDED else right_bound
    if left != UNBOUNDED or right != UNBOUNDED:
        if UNBOUNDED not in (left, right) and left != right:
            invalid(f"Mismatched dimension sizes {left} and {right} in dimension {dim}")
        size = left if left != UNBOUNDED else right
        if bound not in (UNBOUNDED, size):
            invalid(f"Mismatched dimension size {size} and bound {bound} in dimension {dim}")
    return size, bound


def pad(request: Request) -> Shape:
    """Low, high and interior padding; negative edges cut."""
    shape, value = request.operand(0), request.operand(1)
    padding: tuple[PaddingDimension, ...] = tuple(request.need("padding"))
    if not shape.is_array:
        invalid("Pad operation does not support tuple-shape operands.")
    if not value.is_scalar:
        invalid("Pad operation does not support non-scalar padding values.")
    if shape.rank != len(padding):
        invalid(
            "The rank of the operand and the padding configuration do not match: "
            f"{human(shape)} vs {'x'.join(f'{d.low}_{d.high}_{d.interior}' for d in padding)}."
        )
    if not same_type_ignoring_precision(shape.element_type, value.element_type):
        invalid("The element types of the operands to Pad do not match.")
    if any(d.interior < 0 for d in padding):
        invalid(f"Interior padding cannot be negative: {[d.interior for d in padding]}")
    dims: list[int] = []
    for i, (size, d) in enumerate(zip(shape.dimensions, padding, strict=True)):
        if size == UNBOUNDED:
            dims.append(UNBOUNDED)
            continue
        dims.append(size + d.low + d.high + max(size - 1, 0) * d.interior)
        if dims[-1] < 0:
            invalid(f"Padding result in negative size for dimension {i}")
    return make(higher_precision(shape.element_type, value.element_type), dims, shape.dynamic_dimensions)


# ---------------------------------------------------------------- slices
def slice_(request: Request) -> Shape:
    """A strided rectangle at fixed places."""
    arg = request.operand(0)
    bounds: tuple[SliceDimension, ...] = tuple(request.need("slice"))
    expect_array(arg, "operand of slice")

    def error(message: str) -> None:
        starts, limits, strides = (
            ",".join(str(getattr(b, key)) for b in bounds) for key in ("start", "limit", "stride")
        )
        invalid(
            f"{message} in slice operation; argument shape: {human(arg)}; starts: {{{starts}}}; limits: "
            f"{{{limits}}}; strides: {{{strides}}}."
        )

    if len(bounds) != arg.rank:
        invalid(f"Slice index count does not match argument rank: {len(bounds)} vs {arg.rank}.")
    sizes: list[int] = []
    for size, b in zip(arg.dimensions, bounds, strict=True):
        if b.start < 0:
            invalid(f"Negative start index to slice: {b.start}.")
        if size != UNBOUNDED and b.limit > size:
            error(f"limit index ({b.limit}) must be less than or equal to dimension size ({size})")
        if b.start > b.limit:
            error(
                f"limit index ({b.limit}) must be greater or equal to start index ({b.start}) in slice with positive "
                "stride"
            )
        if b.stride <= 0:
            invalid(f"Stride ({b.stride}) must be positive.")
        sizes.append((b.limit - b.start + b.stride - 1) // b.stride)
    flags = [arg.dimension_is_dynamic(i) and not is_unbounded(arg, i) and size != 1 for i, size in enumerate(sizes)]
    return make(arg.element_type, sizes, flags)


def _check_start_indices(name: str, shape: Shape, starts: Sequence[Shape]) -> None:
    """Start indices: one integer scalar a dimension, or (an older form) one integer vector for all."""
    if starts and starts[0].rank == 1:
        if len(starts) != 1:
            invalid(f"{name} should have exactly 1 index operand, has {len(starts)}.")
        vector = starts[0]
        expect_array(vector, f"start indices of {name.lower()}")
        if not is_integral(vector):
            invalid(f"{name} start indices must be of integral type.")
        if shape.rank != vector.dimensions[0]:
            invalid(
                f"{name} start number of dimensions {vector.dimensions[0]} ({human(vector)}) must match rank "
                f"{shape.rank} of slice input ({human(shape)})."
            )
        return
    if shape.rank != len(starts):
        invalid(
            f"{name} start number of dimensions {len(starts)} must match rank {shape.rank} of slice input "
            f"({human(shape)})."
        )
    if not starts:
        return
    first = starts[0]
    if not first.is_scalar:
        invalid(f"{name} indices must be scalar, not {human(first)}.")
    if not is_integral(first):
        invalid(f"{name} start indices must be of integral type.")
    for other in starts:
        if not compatible(first, other):
            invalid(
                f"{name} start indices must all have the same shape, got mismatching indices with shapes "
                f"{human(first)} and {human(other)}."
            )


def dynamic_slice(request: Request) -> Shape:
    """A rectangle of fixed size at run-time indices."""
    shape, starts = request.operand(0), request.operands[1:]
    sizes: tuple[int, ...] = tuple(request.need("dynamic_slice_sizes"))
    expect_array(shape, "operand of dynamic slice")
    _check_start_indices("Dynamic slice", shape, starts)
    if len(sizes) != shape.rank:
        invalid(f"Dynamic slice index count does not match argument rank: {len(sizes)} vs {shape.rank}.")
    for whole, size in zip(shape.dimensions, sizes, strict=True):
        if size < 0:
            invalid(f"Negative size index to dynamic slice: {size}.")
        if whole != UNBOUNDED and size > whole:
            invalid(f"Slice dim size {size} greater than dynamic slice dimension: {whole}.")
    flags = [shape.dimension_is_dynamic(i) and size > 1 and size == shape.dimensions[i] for i, size in enumerate(sizes)]
    return make(shape.element_type, sizes, flags)


def dynamic_update_slice(request: Request) -> Shape:
    """Operand 0's shape (a buffer stays one)."""
    whole, update, starts = request.operand(0), request.operand(1), request.operands[2:]
    if not is_array(whole):
        invalid(f"Expected array or buffer argument for operand of dynamic update slice, but got {human(whole)}.")
    expect_array(update, "update of dynamic update slice")
    shape = array_of(whole)
    _check_start_indices("Dynamic update slice", shape, starts)
    if update.rank != shape.rank:
        invalid(f"Dynamic update slice update rank does not match argument rank: {update.rank} vs {shape.rank}.")
    if not same_type_ignoring_precision(shape.element_type, update.element_type):
        invalid(
            "Dynamic update slice update element type does not match argument. operand.element_type: "
            f"{word(shape)} vs update.element_type: {word(update)}."
        )
    for size, new in zip(shape.dimensions, update.dimensions, strict=True):
        if new < 0 and new != UNBOUNDED:
            invalid(f"Size index {new} to dynamic update slice must be >= 0.")
        if size != UNBOUNDED and new > size:
            invalid(f"Update dim size {new} greater than dynamic slice dimension: {size}.")
    if not update.dynamic_dimensions or whole is not shape:
        return whole
    flags = flags_of(shape)
    for i, size in enumerate(update.dimensions):
        flags[i] = flags[i] or (update.dimension_is_dynamic(i) and size == shape.dimensions[i])
    return make(shape.element_type, shape.dimensions, flags).with_layout(shape.layout)


# ---------------------------------------------------------------- order and rank
def reverse(request: Request) -> Shape:
    """The operand's shape."""
    shape, dimensions = request.operand(0), tuple(request.attr("dimensions", ()))
    expect_array(shape, "operand of reverse")
    if len(set(dimensions)) != len(dimensions):
        invalid("a dimension number is duplicated in reverse")
    for dim in dimensions:
        if not 0 <= dim < shape.rank:
            invalid(f"One of the reverse dimensions ({dim}) is out-of-bounds in shape {human(shape)}.")
    return shape


def transpose(request: Request) -> Shape:
    """The operand's dimensions permuted."""
    shape, dimensions = request.operand(0), tuple(request.attr("dimensions", ()))
    expect_array(shape, "transpose")
    if sorted(dimensions) != list(range(shape.rank)):
        invalid(
            f"Transpose dimensions [{','.join(map(str, dimensions))}] are not a permutation of the operand dimensions "
            f"(operand shape is {human(shape)})."
        )
    flags = [shape.dimension_is_dynamic(d) for d in dimensions] if shape.dynamic_dimensions else ()
    layout = shape.layout
    if layout is not None and len(layout.minor_to_major) == shape.rank:
        # The result lies in memory as the operand does.
        layout = layout.with_minor_to_major(tuple(dimensions.index(d) for d in layout.minor_to_major))
    return make(shape.element_type, [shape.dimensions[d] for d in dimensions], flags).with_layout(layout)


def broadcast(request: Request) -> Shape:
    """What the instruction says, where each operand dimension has the size of its place.

    Without a given shape only a scalar operand without dimensions has an answer: itself.
    """
    shape, dimensions = request.operand(0), tuple(request.attr("dimensions", ()))
    if request.given is None:
        if shape.is_scalar and not dimensions:
            return shape
        return request.needs_shape()
    result = request.given
    if not shape.is_array or not result.is_array or shape.element_type != result.element_type:
        invalid(f"SameElementType(broadcast->shape(), operand_shape) failed: {human(result)} of {human(shape)}")
    if len(dimensions) != shape.rank:
        invalid(f"operand_shape.dimensions().size() == broadcast->dimensions().size() failed: {human(shape)}")
    for size, dim in zip(shape.dimensions, dimensions, strict=True):
        if not (0 <= dim < result.rank and result.dimensions[dim] == size):
            invalid(f"broadcast of {human(shape)} to {human(result)}: dimension {dim} does not have size {size}")
    return result


def reshape(request: Request) -> Shape:
    """What the instruction says, of the same element type and count."""
    shape, result = request.operand(0), request.needs_shape()
    if not is_array(shape) or not is_array(result) or shape.element_type != result.element_type:
        invalid(f"SameElementType(reshape->shape(), operand_shape) failed: {human(result)} of {human(shape)}")
    if UNBOUNDED in shape.dimensions or UNBOUNDED in result.dimensions:
        return result
    if elements_in(shape) != elements_in(result):
        invalid(
            f"Reshape operation has mismatched element counts: from={elements_in(shape)} ({human(shape)}) "
            f"to={elements_in(result)} ({human(result)})."
        )
    return result


def dynamic_reshape(request: Request) -> Shape:
    """As reshape, with one s32 operand for each dimension."""
    result = reshape(request)
    if result.rank + 1 != len(request.operands):
        invalid(
            f"DynamicReshape has to have one size for each dimension of {human(result)}, got "
            f"{len(request.operands) - 1}"
        )
    for size in request.operands[1:]:
        if size.element_type != "s32":
            invalid(f"DynamicReshape's dim size has to be scalar S32, got ({size}): ")
    return result


def iota(request: Request) -> Shape:
    """What the instruction says: an array of numbers with that dimension."""
    shape, dim = request.needs_shape(), int(request.need("iota_dimension"))
    if not shape.is_array:
        invalid("Iota does not support non-array result.")
    if not shape.rank:
        invalid("Iota does not support scalars.")
    if not 0 <= dim < shape.rank:
        invalid("The iota dimension cannot go beyond the operation rank or be negative.")
    if shape.type.kind not in ("int", "uint", "float", "complex", "unknown"):
        invalid("Only support iota of integral, floating point or complex primitive types, got " + word(shape))
    return shape


# ---------------------------------------------------------------- run-time sizes
def get_dimension_size(request: Request) -> Shape:
    """An s32 scalar."""
    _sized(request, "GetDimensionSize")
    return scalar("s32")


def set_dimension_size(request: Request) -> Shape:
    """The operand with that dimension dynamic."""
    shape, dim = _sized(request, "SetDimensionSize")
    value = request.operand(1)
    if value.rank or value.element_type != "s32":
        invalid(f"SetDimensionSize's value has to be S32 scalar, got {value}")
    flags = flags_of(shape)
    flags[dim] = True
    return make(shape.element_type, shape.dimensions, flags).with_layout(shape.layout)


def _sized(request: Request, name: str) -> tuple[Shape, int]:
    shape, dimensions = request.operand(0), tuple(request.need("dimensions"))
    if len(dimensions) != 1:
        raise InferenceError(f"{name} needs one dimension, got {len(dimensions)}.")
    dim = dimensions[0]
    if not 0 <= dim < shape.rank:
        invalid(f"{name} dimension out of bounds: {dim}.")
    if shape.dimensions[dim] > _INT_MAX:
        invalid(f"{name}'s input shape is {human(shape)}, the {dim}th dimension exceeds the INT_MAX limit.")
    return shape, dim
