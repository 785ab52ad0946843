"""Shapes of gather and scatter. Source: ``openxla/xla:xla/service/shape_inference.cc#InferGatherShape,
#InferScatterShape, #ValidateGatherDimensionNumbers, #ValidateScatterDimensionNumbers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.infer_shape.base import (
    InferenceError,
    expect_array,
    flags_of,
    human,
    invalid,
    is_integral,
    is_unbounded,
    make,
    scalar,
    sizes_compatible,
)
from hloscope.core.hlo.infer_shape.reducers import check_reducer
from hloscope.core.hlo.shape import UNBOUNDED, Shape

if TYPE_CHECKING:
    from hloscope.core.hlo.infer_shape.base import Request

Dims = tuple[int, ...]


def _joined(dims: Dims) -> str:
    return ", ".join(map(str, dims))


def _sorted_in_range(name: str, op: str, dims: Dims, rank: int, comma: str = ",") -> None:
    """Refuse dimension lists that are not ascending, repeat, or leave ``[0, rank)``."""
    for dim in dims:
        if not 0 <= dim < rank:
            invalid(f"Invalid {name} set in {op} op; valid range is [0, {rank}){comma} got: {dim}.")
    if list(dims) != sorted(dims):
        invalid(f"{name} in {op} op must be sorted; got: {_joined(dims)}")
    if len(set(dims)) != len(dims):
        if op == "gather":
            invalid(f"Repeated dimensions not allowed in {name} in gather op; got: {_joined(dims)}.")
        invalid(f"{name} in {op} op must not repeat; got: {_joined(dims)}.")


def _indices(request: Request, shape: Shape, op: str, what: str) -> tuple[list[int], list[bool], int]:
    """Sizes of the indices with the index vector's dimension made explicit, their dynamic flags, and its number."""
    expect_array(shape, f"{what} of {op} op")
    if not is_integral(shape):
        invalid(f"{op.capitalize()} indices parameter must be an integral tensor; got {human(shape)}.")
    vector = int(request.need("index_vector_dim"))
    if not 0 <= vector <= shape.rank:
        name = "start_indices" if op == "gather" else "scatter_indices"
        invalid(
            f"{op.capitalize()} index leaf dimension must be within [0, rank({name}) + 1). rank({name}) is "
            f"{shape.rank} and {op} index leaf dimension is {vector}."
        )
    sizes, flags = list(shape.dimensions), flags_of(shape)
    if len(sizes) == vector:
        sizes.append(1)
        flags.append(False)
    return sizes, flags, vector


def gather(request: Request) -> Shape:
    """One slice for each index vector: batch dimensions from the indices, offset dimensions from the slices."""
    shape, starts = request.operand(0), request.operand(1)
    expect_array(shape, "input tensor operand of gather op")
    sizes, flags, vector = _indices(request, starts, "gather", "gather indices operand")
    offsets: Dims = tuple(request.attr("offset_dims", ()))
    collapsed: Dims = tuple(request.attr("collapsed_slice_dims", ()))
    batching: Dims = tuple(request.attr("operand_batching_dims", ()))
    slices: Dims = tuple(request.need("slice_sizes"))
    _check_gather(request, shape, sizes, vector, offsets, collapsed, batching)
    if len(slices) != shape.rank:
        invalid(
            "Gather op must have one slice size for every input dimension; got: "
            f"len(slice_sizes)={len(slices)}, input_shape.rank={shape.rank}."
        )
    if len(slices) != len(offsets) + len(collapsed) + len(batching):
        invalid(
            "All components of the offset index in a gather op must either be a offset dimension or explicitly "
            f"collapsed or explicitly batched; got len(slice_sizes)={len(slices)}, output_slice_sizes="
            f"{','.join(map(str, offsets))}, collapsed_slice_dims={','.join(map(str, collapsed))}, "
            f"operand_batching_dims={','.join(map(str, batching))}."
        )
    for i, size in enumerate(slices):
        if not is_unbounded(shape, i) and not 0 <= size <= shape.dimensions[i]:
            invalid(
                f"Slice size at index {i} in gather op is out of range, must be within [0, "
                f"{shape.dimensions[i] + 1}), got {size}."
            )
    for i, dim in enumerate(collapsed):
        if slices[dim] > 1:
            invalid(
                f"Gather op can only collapse slice dims with bound 1 or 0, but bound is {slices[dim]} for index {dim} "
                f"at position {i}."
            )
    for i, dim in enumerate(batching):
        if slices[dim] > 1:
            invalid(
                "Gather op can only have operand_batching_dims with bound 1 or 0, but bound is "
                f"{slices[dim]} for index {dim} at position {i}."
            )
    window = [d for d in range(shape.rank) if d not in collapsed and d not in batching]
    rest = [d for d in range(len(sizes)) if d != vector]
    dims: list[int] = []
    dynamic: list[bool] = []
    for i in range(len(offsets) + len(sizes) - 1):
        if i in offsets:
            dim = window.pop(0)
            dims.append(slices[dim])
            dynamic.append(slices[dim] == shape.dimensions[dim] and shape.dimension_is_dynamic(dim))
        else:
            dim = rest.pop(0)
            dims.append(sizes[dim])
            dynamic.append(flags[dim])
    return make(shape.element_type, dims, dynamic)


def _check_gather(
    request: Request, shape: Shape, sizes: list[int], vector: int, offsets: Dims, collapsed: Dims, batching: Dims
) -> None:
    if list(offsets) != sorted(offsets):
        invalid(f"Output window dimensions in gather op must be ascending; got: {_joined(offsets)}.")
    if len(set(offsets)) != len(offsets):
        invalid(f"Output window dimensions in gather op must not repeat; got: {_joined(offsets)}.")
    rank = len(offsets) + len(sizes) - 1
    for i, dim in enumerate(offsets):
        if not 0 <= dim < rank:
            invalid(
                f"Offset dimension {i} in gather op is out of bounds; got {dim}, but should have been in [0,{rank})."
            )
    start_map: Dims = tuple(request.attr("start_index_map", ()))
    if sizes[vector] not in (UNBOUNDED, len(start_map)):
        invalid(
            f"Gather op has {len(start_map)} elements in start_index_map and the bound of dimension "
            f"index_vector_dim={vector} of start_indices is {sizes[vector]}. These two numbers must be equal."
        )
    for i, dim in enumerate(start_map):
        if not 0 <= dim < shape.rank:
            invalid(f"Invalid start_index_map; domain is [0, {shape.rank}), got: {i}->{dim}.")
    if len(set(start_map)) != len(start_map):
        invalid(f"Repeated dimensions are not allowed in start_index_map; got: {_joined(start_map)}.")
    _sorted_in_range("collapsed_slice_dims", "gather", collapsed, shape.rank)
    start_batching: Dims = tuple(request.attr("start_indices_batching_dims", ()))
    if len(batching) != len(start_batching):
        invalid(
            "operand_batching_dims and start_indices_batching_dims in gather op must be of the same size; "
            f"got: {len(batching)} and {len(start_batching)}."
        )
    _sorted_in_range("operand_batching_dims", "gather", batching, shape.rank)
    for i, dim in enumerate(start_batching):
        if not 0 <= dim < len(sizes):
            invalid(f"Invalid start_indices_batching_dims; domain is [0, {len(sizes)}), got: {i}->{dim}.")
    if len(set(start_batching)) != len(start_batching):
        invalid(f"Repeated dimensions are not allowed in start_indices_batching_dims; got: {_joined(start_batching)}.")


def scatter(request: Request) -> Shape:
    """The operands' shapes; updates hold one window for each index vector."""
    count = len(request.operands) // 2
    if count * 2 + 1 != len(request.operands) or not count:
        raise InferenceError(
            f"Invalid argument count of scatter op: Expected {count * 2 + 1}, saw {len(request.operands)}",
            kind="operand-count",
        )
    sizes, _, vector = _indices(request, request.operands[count], "scatter", "scatter indices")
    operands, updates = request.operands[:count], request.operands[count + 1 :]
    window: Dims = tuple(request.attr("update_window_dims", ()))
    inserted: Dims = tuple(request.attr("inserted_window_dims", ()))
    batching: Dims = tuple(request.attr("input_batching_dims", ()))
    for number, (operand, update) in enumerate(zip(operands, updates, strict=True)):
        expect_array(operand, f"operand {number} of scatter op")
        expect_array(update, f"updates {number} of scatter op")
        expected = len(sizes) - 1 + len(window)
        if update.rank != expected:
            invalid(f"Updates tensor must be of rank {expected}; got {update.rank}.")
        _check_scatter(request, operand, update, sizes, vector, window, inserted, batching)
        largest = [s for d, s in enumerate(operand.dimensions) if d not in inserted and d not in batching]
        for bound, dim in zip(largest, window, strict=True):
            if update.dimensions[dim] > bound and bound != UNBOUNDED:
                invalid(
                    "Bounds of the window dimensions of updates must not exceed the bounds of the corresponding "
                    f"dimensions of operand. For dimension {dim}, updates bound is {update.dimensions[dim]}, operand "
                    f"bound is {bound}."
                )
        rest = [d for d in range(len(sizes)) if d != vector]
        places = [d for d in range(update.rank) if d not in window]
        for place, dim in zip(places, rest, strict=True):
            if not sizes_compatible(update.dimensions[place], sizes[dim]):
                invalid(
                    "Bounds of the scatter dimensions of updates must be same as the bounds of the corresponding "
                    f"dimensions of scatter indices. For scatter dimension {place}, updates bound is "
                    f"{update.dimensions[place]}, scatter_indices bound is {sizes[dim]}."
                )
    inits = [scalar(s.element_type) for s in operands]
    check_reducer(request.program(), inits, [s.element_type for s in updates], count)
    return operands[0] if count == 1 else Shape.tuple_(operands)


def _check_scatter(
    request: Request,
    operand: Shape,
    update: Shape,
    sizes: list[int],
    vector: int,
    window: Dims,
    inserted: Dims,
    batching: Dims,
) -> None:
    rank = operand.rank
    _sorted_in_range("update_window_dims", "scatter", window, update.rank, ".")
    _sorted_in_range("inserted_window_dims", "scatter", inserted, rank)
    whole = len(window) + len(inserted) + len(batching)
    if whole != rank:
        invalid(f"Scatter op has window of size {whole}; doesn't match operand of rank {rank}.")
    mapping: Dims = tuple(request.attr("scatter_dims_to_operand_dims", ()))
    if not sizes_compatible(len(mapping), sizes[vector]):
        invalid(
            f"Scatter op has {len(mapping)} elements in scatter_dims_to_operand_dims and the bound of dimension "
            f"index_vector_dim={vector} of scatter_indices is {sizes[vector]}. These two numbers must be equal."
        )
    for i, dim in enumerate(mapping):
        if not 0 <= dim < rank:
            invalid(f"Invalid scatter_dims_to_operand_dims mapping; domain is [0, {rank}), got: {i}->{dim}.")
    if len(set(mapping)) != len(mapping):
        invalid(f"Repeated dimensions not allowed in scatter_dims_to_operand_dims; got: {_joined(mapping)}.")
    indices: Dims = tuple(request.attr("scatter_indices_batching_dims", ()))
    if len(batching) != len(indices):
        invalid(
            "input_batching_dims and scatter_indices_batching_dims in scatter op must be of the same size; "
            f"got: {len(batching)} and {len(indices)}."
        )
    _sorted_in_range("input_batching_dims", "scatter", batching, rank)
    for dim in indices:
        if not 0 <= dim < len(sizes):
            invalid(
                "Invalid scatter_indices_batching_dims set in scatter op; valid range is [0, "
                f"{len(sizes)}), got: {dim}."
            )
    if len(set(indices)) != len(indices):
        invalid(f"scatter_indices_batching_dims in scatter op must not repeat; got: {_joined(indices)}.")
