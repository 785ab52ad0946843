"""Run-time indices: dynamic-slice, dynamic-update-slice, gather, scatter.

Slices are clamped into range as a whole; a scatter window that leaves the operand anywhere is dropped as a whole; the
updates of one element are applied in row-major order of the updates. Source:
``openxla/xla:xla/hlo/evaluator/hlo_evaluator.cc`` (HandleGather, HandleScatter, HandleDynamicSlice).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.runtime.evaluator import monoids
from hloscope.core.runtime.evaluator.reduction import rounds
from hloscope.core.runtime.evaluator.values import (
    Array,
    InstructionUnsupported,
    Kernel,
    Machine,
    Prepare,
    Value,
    as_array,
    normal_axes,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


# ---------------------------------------------------------------- dynamic slices
def _starts(indices: Sequence[Array], room: Sequence[int]) -> list[int]:
    """Start indices, from one scalar a dimension or one vector, held in 0..room."""
    values = [int(i) for i in indices[0]] if len(indices) == 1 and indices[0].ndim == 1 else [int(i) for i in indices]
    return [min(max(value, 0), most) for value, most in zip(values, room, strict=True)]


def _dynamic_slice(instruction: HloInstruction, machine: Machine) -> Kernel:
    sizes = instruction.shape.dimensions
    room = [n - s for n, s in zip(instruction.operand(0).shape.dimensions, sizes, strict=True)]

    def kernel(x: Array, *indices: Array) -> Array:
        starts = _starts(indices, room) if room else []
        return x[tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))]

    return kernel


def _dynamic_update_slice(instruction: HloInstruction, machine: Machine) -> Kernel:
    sizes = instruction.operand(1).shape.dimensions
    room = [n - s for n, s in zip(instruction.operand(0).shape.dimensions, sizes, strict=True)]

    def kernel(x: Array, update: Array, *indices: Array) -> Array:
        starts = _starts(indices, room) if room else []
        out = x.copy()
        out[tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))] = update
        return out

    return kernel


# ---------------------------------------------------------------- gather
def _ints(instruction: HloInstruction, name: str) -> tuple[int, ...]:
    return tuple(instruction.attr(name) or ())


def _index_vectors(indices: Array, vector_dim: int) -> Array:
    """The index vectors in the last dimension; an index array without that dimension holds vectors of length 1."""
    if vector_dim == indices.ndim:
        return indices[..., np.newaxis]
    return np.moveaxis(indices, vector_dim, -1)


def _clamped(vectors: Array, column: int, most: int) -> Array:
    """One column of the index vectors in 0..most, unsigned 64-bit indices included."""
    values = vectors[..., column]
    if values.dtype.kind == "u" and values.dtype.itemsize == 8:
        return np.minimum(values, np.uint64(max(most, 0))).astype(np.int64)
    return np.clip(values.astype(np.int64), 0, max(most, 0))


def _gather(instruction: HloInstruction, machine: Machine) -> Kernel:
    shape = instruction.operand(0).shape.dimensions
    sizes = _ints(instruction, "slice_sizes")
    offset_dims = _ints(instruction, "offset_dims")
    collapsed = _ints(instruction, "collapsed_slice_dims")
    index_map = _ints(instruction, "start_index_map")
    batching, index_batching = (
        _ints(instruction, "operand_batching_dims"),
        _ints(instruction, "start_indices_batching_dims"),
    )
    vector_dim = int(instruction.attr("index_vector_dim") or 0)
    rank = instruction.shape.rank
    window = normal_axes((*collapsed, *batching), len(shape))
    batch_places = normal_axes(offset_dims, rank)
    # Batching dimensions of the indices, counted without the dimension that holds the vectors.
    batch_axes = {o: i - (i > vector_dim) for o, i in zip(batching, index_batching, strict=True)}

    def kernel(x: Array, indices: Array) -> Array:
        vectors = _index_vectors(indices, vector_dim)
        batch_sizes = vectors.shape[:-1]
        batch_rank = len(batch_sizes)
        index: list[Array] = []
        for dim, size in enumerate(sizes):
            start = np.zeros((1,) * batch_rank, np.int64)
            if dim in index_map:
                start = _clamped(vectors, index_map.index(dim), shape[dim] - size)
            elif dim in batch_axes:
                sides = [1] * batch_rank
                sides[batch_axes[dim]] = batch_sizes[batch_axes[dim]]
                start = np.arange(batch_sizes[batch_axes[dim]]).reshape(sides)
            start = start.reshape((*start.shape, *((1,) * len(window))))
            if dim in window:
                sides = [1] * len(window)
                sides[window.index(dim)] = size
                start = start + np.arange(size).reshape(sides)
            index.append(start)
        full = (*batch_sizes, *(sizes[d] for d in window))
        if prod(full) == 0 or not index:
            picked = np.broadcast_to(x, full) if not index else np.zeros(full, x.dtype)
        else:
            picked = np.broadcast_to(x[tuple(np.broadcast_arrays(*index))], full)
        order = np.argsort([*batch_places, *offset_dims]) if full else np.zeros(0, np.int64)
        return picked.transpose(order)

    return kernel


# ---------------------------------------------------------------- scatter
def _scatter(instruction: HloInstruction, machine: Machine) -> Kernel:
    count = instruction.operand_count // 2
    shape = instruction.operand(0).shape.dimensions
    update_shape = instruction.operand(count + 1).shape.dimensions
    window_dims = _ints(instruction, "update_window_dims")
    inserted = _ints(instruction, "inserted_window_dims")
    index_map = _ints(instruction, "scatter_dims_to_operand_dims")
    batching = _ints(instruction, "input_batching_dims")
    index_batching = _ints(instruction, "scatter_indices_batching_dims")
    vector_dim = int(instruction.attr("index_vector_dim") or 0)
    window = normal_axes((*inserted, *batching), len(shape))
    scatter_places = normal_axes(window_dims, len(update_shape))
    batch_axes = {o: i - (i > vector_dim) for o, i in zip(batching, index_batching, strict=True)}
    if len(window) != len(window_dims):
        raise InstructionUnsupported(instruction, "whose window dimensions do not match the operand's rank")
    sizes = [update_shape[d] for d in window_dims]
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
    combine = _combiner(instruction, machine, count)
    as_tuple = instruction.shape.is_tuple

    def kernel(*operands: Array) -> Value:
        targets, indices, updates = operands[:count], operands[count], operands[count + 1 :]
        vectors = _index_vectors(indices, vector_dim)
        batch_sizes = vectors.shape[:-1]
        batch_rank = len(batch_sizes)
        place = np.zeros((1,) * (batch_rank + len(window)), np.int64)
        inside = np.ones(batch_sizes, bool)
        for dim in range(len(shape)):
            size = sizes[window.index(dim)] if dim in window else 1
            start = np.zeros((1,) * batch_rank, np.int64)
            if dim in index_map:
                column = vectors[..., index_map.index(dim)]
                start = _clamped(vectors, index_map.index(dim), shape[dim] - size)
                # In range exactly where clamping changes nothing; the comparison keeps the index's own signedness.
                inside = inside & (start.astype(column.dtype) == column) & (size <= shape[dim])
            elif dim in batch_axes:
                sides = [1] * batch_rank
                sides[batch_axes[dim]] = batch_sizes[batch_axes[dim]]
                start = np.arange(batch_sizes[batch_axes[dim]]).reshape(sides)
            start = start.reshape((*start.shape, *((1,) * len(window))))
            if dim in window:
                sides = [1] * len(window)
                sides[window.index(dim)] = size
                start = start + np.arange(size).reshape(sides)
            place = place + start * strides[dim]
        full = (*batch_sizes, *sizes)
        flat_place = np.broadcast_to(place, full).reshape(-1)
        keep = np.broadcast_to(inside.reshape((*batch_sizes, *((1,) * len(window)))), full).reshape(-1)
        order = (*scatter_places, *window_dims)
        rows = [u.transpose(order).reshape(-1) for u in updates]
        if not keep.all():
            flat_place, rows = flat_place[keep], [row[keep] for row in rows]
        flats = [x.reshape(-1).copy() for x in targets]
        combine(flats, flat_place, rows)
        parts = tuple(flat.reshape(shape) for flat in flats)
        return parts if as_tuple else parts[0]

    return kernel


def _combiner(instruction: HloInstruction, machine: Machine, count: int) -> Kernel:
    """A function that applies updates (flat positions, flat values) to flat arrays in place."""
    computation = instruction.callee("to_apply")
    if count == 1 and monoids.returns_update(computation):

        def assign(flats: list[Array], place: Array, rows: list[Array]) -> Value:
            flats[0][place] = rows[0]  # numpy keeps the last of several values for one position
            return ()

        return assign
    monoid = monoids.match(computation) if count == 1 else None
    element = instruction.operand(0).shape.type
    # Exactly what one-by-one updates give where the carrier is the type itself; narrow floats round at every step.
    if monoid is not None and monoid.opcode == "add" and element.name in ("f32", "f64", "s32", "s64", "u32", "u64"):

        def add(flats: list[Array], place: Array, rows: list[Array]) -> Value:
            np.add.at(flats[0], place, rows[0])
            return ()

        return add
    function = machine.elementwise(computation)

    def general(flats: list[Array], place: Array, rows: list[Array]) -> Value:
        for chunk in rounds(place):
            at = place[chunk]
            new = function(*(flat[at] for flat in flats), *(row[chunk] for row in rows))
            parts = new if isinstance(new, tuple) else (new,)
            for flat, part in zip(flats, parts, strict=True):
                flat[at] = as_array(part)
        return ()

    return general


TABLE: Mapping[str, Prepare] = MappingProxyType(
    {
        "dynamic-slice": _dynamic_slice,
        "dynamic-update-slice": _dynamic_update_slice,
        "gather": _gather,
        "scatter": _scatter,
    }
)
