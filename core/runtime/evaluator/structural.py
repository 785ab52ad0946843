"""Opcodes that move elements or only rename them: shapes, tuples, tokens, copies.

Results are views where numpy can make one; values are never written to, so a view is as good as a copy.
Source: ``openxla/xla:xla/hlo/evaluator/hlo_evaluator.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.runtime.evaluator import conversion, layout, numerics
from hloscope.core.runtime.evaluator.values import (
    TOKEN,
    Array,
    InstructionFailed,
    InstructionUnsupported,
    Kernel,
    Machine,
    Prepare,
    Value,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.attributes import PaddingDimension, SliceDimension
    from hloscope.core.hlo.instruction import HloInstruction


def _identity(instruction: HloInstruction, machine: Machine) -> Kernel:
    def kernel(x: Value, *_others: Value) -> Value:
        return x

    return kernel


def _tuple(instruction: HloInstruction, machine: Machine) -> Kernel:
    def kernel(*parts: Value) -> Value:
        return parts

    return kernel


def _get_tuple_element(instruction: HloInstruction, machine: Machine) -> Kernel:
    index = instruction.attr("index")
    if index is None:
        raise InstructionUnsupported(instruction, "without an index")
    place = int(index)

    def kernel(x: tuple[Value, ...]) -> Value:
        return x[place]

    return kernel


def _token(instruction: HloInstruction, machine: Machine) -> Kernel:
    def kernel(*_operands: Value) -> Value:
        return TOKEN

    return kernel


def _copy_start(instruction: HloInstruction, machine: Machine) -> Kernel:
    def kernel(x: Value) -> Value:
        return (x, x, np.zeros((), np.uint32))

    return kernel


def _first(instruction: HloInstruction, machine: Machine) -> Kernel:
    def kernel(x: tuple[Value, ...]) -> Value:
        return x[0]

    return kernel


def _iota(instruction: HloInstruction, machine: Machine) -> Kernel:
    shape = instruction.shape
    dim = int(instruction.attr("iota_dimension") or 0)
    if not shape.dimensions:
        return lambda: np.zeros((), shape.type.dtype)
    if not shape.element_count:  # another dimension may be longer than memory
        return lambda: np.zeros(shape.dimensions, shape.type.dtype)
    from hloscope.core.hlo.element_types import lookup

    # Counted as integers and then converted, so that narrow types wrap or overflow as a convert would.
    row = conversion.converter(lookup("s64"), shape.type)(np.arange(shape.dimensions[dim], dtype=np.int64))
    sides = [1] * shape.rank
    sides[dim] = shape.dimensions[dim]
    value = np.broadcast_to(row.reshape(sides), shape.dimensions)
    return lambda: value


def _broadcast(instruction: HloInstruction, machine: Machine) -> Kernel:
    dims, target = instruction.dimensions, instruction.shape.dimensions
    source = instruction.operand(0).shape.dimensions
    if not source:
        return lambda x: np.broadcast_to(x, target)
    if len(dims) != len(source):
        raise InstructionFailed(instruction, f"{len(dims)} dimensions for an operand of rank {len(source)}")
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    sides = [1] * len(target)
    for i, dim in enumerate(dims):
        sides[dim] = source[i]
    if order == list(range(len(dims))):
        return lambda x: np.broadcast_to(x.reshape(sides), target)
    return lambda x: np.broadcast_to(x.transpose(order).reshape(sides), target)


def _reshape(instruction: HloInstruction, machine: Machine) -> Kernel:
    target = instruction.shape.dimensions
    return lambda x: x.reshape(target)


def _transpose(instruction: HloInstruction, machine: Machine) -> Kernel:
    dims = instruction.dimensions
    return lambda x: x.transpose(dims)


def _reverse(instruction: HloInstruction, machine: Machine) -> Kernel:
    dims = instruction.dimensions
    return lambda x: np.flip(x, dims)


def _concatenate(instruction: HloInstruction, machine: Machine) -> Kernel:
    (dim,) = instruction.dimensions or (0,)

    def kernel(*parts: Array) -> Array:
        return np.concatenate(parts, axis=dim)

    return kernel


def _slice(instruction: HloInstruction, machine: Machine) -> Kernel:
    bounds: tuple[SliceDimension, ...] = instruction.attr("slice") or ()
    index = tuple(slice(d.start, d.limit, d.stride) for d in bounds)
    return lambda x: x[index]


def pad(x: Array, fill: Array, padding: tuple[PaddingDimension, ...]) -> Array:
    """Interior padding first, then the edges; a negative edge cuts off what is there by then."""
    shape: list[int] = []
    into: list[slice] = []
    source: list[slice] = []
    for size, dim in zip(x.shape, padding, strict=True):
        step = dim.interior + 1
        shape.append(max(0, (size - 1) * step + 1 if size else 0) + dim.low + dim.high)
        first = max(0, -(dim.low // step)) if dim.low < 0 else 0
        # Element i lies at low + i * step; keep those inside.
        last = size
        if size:
            last = min(size, (shape[-1] - 1 - dim.low) // step + 1)
        if last <= first:
            into.append(slice(0, 0))
            source.append(slice(0, 0))
            continue
        start = dim.low + first * step
        into.append(slice(start, dim.low + (last - 1) * step + 1, step))
        source.append(slice(first, last))
    out = np.empty(shape, x.dtype)
    out[...] = fill
    out[tuple(into)] = x[tuple(source)]
    return out


def _pad(instruction: HloInstruction, machine: Machine) -> Kernel:
    padding: tuple[PaddingDimension, ...] = instruction.attr("padding") or ()
    return lambda x, fill: pad(x, fill, padding)


def _bitcast(instruction: HloInstruction, machine: Machine) -> Kernel:
    """Same bytes: through the operand's physical order into the result's."""
    source, target = instruction.operand(0).shape, instruction.shape
    if not source.is_array or not target.is_array:
        return _identity(instruction, machine)
    if source.type == target.type:
        if source.dimensions == target.dimensions and _same_layout(source.layout, target.layout):
            return numerics.same
        if layout.same_bytes_order(source, target):
            return lambda x: x.reshape(target.dimensions)
        return lambda x: layout.from_physical(layout.to_physical(x, source), target)
    if source.type.bits < 8 or target.type.bits < 8 or "complex" in (source.type.kind, target.type.kind):
        raise InstructionUnsupported(instruction, f"from {source.type.name} to {target.type.name}")
    if source.is_scalar and target.is_scalar and source.type.bits == target.type.bits:
        # On arrays, too: comparators run on whole rows.
        return lambda x: x.view(target.type.dtype)

    def kernel(x: Array) -> Array:
        octets = np.ascontiguousarray(layout.to_physical(x, source)).view(np.uint8)
        return layout.from_physical(octets.view(target.type.dtype), target)

    return kernel


def _same_layout(a: object, b: object) -> bool:
    return a == b


def _by_sizes(instruction: HloInstruction, machine: Machine) -> Kernel:
    """What `dynamic` has a rule for, which needs no kernel."""

    def kernel(*_operands: Value) -> Value:
        raise InstructionUnsupported(instruction, "without its rule for dynamic sizes")

    return kernel


TABLE: Mapping[str, Prepare] = MappingProxyType(
    {
        "add-dependency": _identity,
        "after-all": _token,
        "bitcast": _bitcast,
        "broadcast": _broadcast,
        "concatenate": _concatenate,
        "copy": _identity,
        "copy-done": _first,
        "copy-start": _copy_start,
        "domain": _identity,
        "dynamic-reshape": _by_sizes,
        "get-dimension-size": _by_sizes,
        "get-tuple-element": _get_tuple_element,
        "iota": _iota,
        "opt-barrier": _identity,
        "optimization-barrier": _identity,
        "pad": _pad,
        "reshape": _reshape,
        "reverse": _reverse,
        "set-dimension-size": _by_sizes,
        "slice": _slice,
        "transpose": _transpose,
        "tuple": _tuple,
    }
)
