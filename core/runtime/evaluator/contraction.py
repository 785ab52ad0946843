"""dot and its relatives.

Accumulation is wide: f32 for the 16- and 8-bit floats, rounded once at the end; integers are exact and then cut to the
result's width. Source: ``openxla/xla:xla/hlo/evaluator/hlo_evaluator_typed_visitor.h#HandleDot``; XLA:CPU runs bf16 and
f16 dots the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.element_types import lookup
from hloscope.core.runtime.evaluator import conversion, numerics
from hloscope.core.runtime.evaluator.values import Array, InstructionUnsupported, Kernel, Machine, Prepare, normal_axes

if TYPE_CHECKING:
    from hloscope.core.hlo.element_types import ElementType
    from hloscope.core.hlo.instruction import HloInstruction


def working_type(element: ElementType) -> ElementType:
    """The element type in which products of `element` are summed."""
    return lookup("f32") if element.kind == "float" and element.bits < 32 else element


def multiply_matrices(a: Array, b: Array, element: ElementType) -> Array:
    """``a @ b`` over the last two dimensions, both in the carrier of `element`; integers wrap to the carrier."""
    if element.kind == "pred":
        return np.matmul(a.astype(np.float32), b.astype(np.float32)) > 0
    if element.is_integral and element.bits <= 32:
        # Exact in f64, and on BLAS, as long as no sum of products can pass 2**53.
        reach = float(_largest(a)) * float(_largest(b)) * a.shape[-1]
        if reach < 2.0**53:
            wide = np.matmul(a.astype(np.float64), b.astype(np.float64))
            return wide.astype(np.int64).astype(a.dtype)
    return np.matmul(a, b)


def _largest(x: Array) -> int:
    return max(abs(int(x.max())), abs(int(x.min()))) if x.size else 0


def contract(
    a: Array,
    b: Array,
    element: ElementType,
    contracting: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> Array:
    """General dot: batch dimensions, then the free ones of `a`, then those of `b`."""
    free_a = normal_axes((*contracting[0], *batch[0]), a.ndim)
    free_b = normal_axes((*contracting[1], *batch[1]), b.ndim)
    batch_sizes = [a.shape[d] for d in batch[0]]
    sizes_a, sizes_b = [a.shape[d] for d in free_a], [b.shape[d] for d in free_b]
    depth = prod(a.shape[d] for d in contracting[0])
    left = a.transpose(*batch[0], *free_a, *contracting[0]).reshape(*batch_sizes, prod(sizes_a), depth)
    right = b.transpose(*batch[1], *contracting[1], *free_b).reshape(*batch_sizes, depth, prod(sizes_b))
    return multiply_matrices(left, right, element).reshape((*batch_sizes, *sizes_a, *sizes_b))


def _dimensions(instruction: HloInstruction, name: str) -> tuple[int, ...]:
    return tuple(instruction.attr(name) or ())


def _dot(instruction: HloInstruction, machine: Machine) -> Kernel:
    target = instruction.shape.type
    if instruction.operand_count != 2:
        raise InstructionUnsupported(instruction, "with sparse operands")
    inner = working_type(target)
    into = [conversion.converter(operand.shape.type, inner) for operand in instruction.operands]
    out = conversion.converter(inner, target)
    wide, cut = numerics.widen(inner), numerics.narrow(inner)
    contracting = (
        _dimensions(instruction, "lhs_contracting_dims"),
        _dimensions(instruction, "rhs_contracting_dims"),
    )
    batch = (_dimensions(instruction, "lhs_batch_dims"), _dimensions(instruction, "rhs_batch_dims"))
    first, second = into

    def kernel(a: Array, b: Array) -> Array:
        return out(cut(contract(wide(first(a)), wide(second(b)), inner, contracting, batch)))

    return kernel


def _ragged_dot(instruction: HloInstruction, machine: Machine) -> Kernel:
    """Rows of the left operand (or the contracted or batch dimension) belong to groups of run-time sizes.

    Source: ``openxla/xla:xla/hlo/evaluator/hlo_evaluator.cc#HandleRaggedDot``.
    """
    target = instruction.shape.type
    inner = working_type(target)
    to_left, to_right = (conversion.converter(instruction.operand(i).shape.type, inner) for i in (0, 1))
    out = conversion.converter(inner, target)
    wide, cut = numerics.widen(inner), numerics.narrow(inner)
    contracting = (
        _dimensions(instruction, "lhs_contracting_dims"),
        _dimensions(instruction, "rhs_contracting_dims"),
    )
    batch = (_dimensions(instruction, "lhs_batch_dims"), _dimensions(instruction, "rhs_batch_dims"))
    (ragged,) = _dimensions(instruction, "lhs_ragged_dims") or (0,)
    groups = _dimensions(instruction, "rhs_group_dims")
    free = normal_axes((*contracting[0], *batch[0]), instruction.operand(0).shape.rank)
    # Leading dimensions of the sizes: each of their elements has groups of its own. They are dimensions of the left
    # operand, the batch ones first.
    others = contracting[0] if ragged in contracting[0] else free
    outer = [d for d in (*batch[0], *others) if d != ragged][: instruction.operand(2).shape.rank - 1]
    if ragged in batch[0]:
        outer = [d for d in batch[0][: batch[0].index(ragged)] if d in outer]
    if len(outer) != instruction.operand(2).shape.rank - 1:
        raise InstructionUnsupported(instruction, "with more leading dimensions of the group sizes than there can be")
    result = instruction.shape.dimensions
    leading = int(ragged in contracting[0])
    """Whether the result has a dimension of groups, in front."""

    def block(left: Array, right: Array, sizes: Array, total: Array) -> None:
        """Adds the product by one row of sizes."""
        ends = np.minimum(np.cumsum(sizes.astype(np.int64)), left.shape[ragged])
        start = 0
        for group, end in enumerate(int(e) for e in ends):
            rows = np.arange(start, end)
            start = max(start, end)
            if leading:
                other = contracting[1][contracting[0].index(ragged)]
                total[group] += contract(left.take(rows, ragged), right.take(rows, other), inner, contracting, batch)
                continue
            if not rows.size:
                continue
            if ragged in batch[0]:
                place = batch[0].index(ragged)
                part = contract(left.take(rows, ragged), right.take(rows, batch[1][place]), inner, contracting, batch)
                _rows(total, place, rows)[...] = part
                continue
            (where,) = groups
            matrix = right.take(group, where)
            shifted = tuple(tuple(d - (d > where) for d in dims) for dims in (contracting[1], batch[1]))
            part = contract(
                left.take(rows, ragged), matrix, inner, (contracting[0], shifted[0]), (batch[0], shifted[1])
            )
            _rows(total, len(batch[0]) + free.index(ragged), rows)[...] = part

    def kernel(a: Array, b: Array, sizes: Array) -> Array:
        left, right = wide(to_left(a)), wide(to_right(b))
        total = np.zeros(result, left.dtype)
        for index in np.ndindex(*sizes.shape[:-1]):
            x, y, out_part = left, right, total
            for dim, i in zip(outer, index, strict=True):
                at = np.asarray([i])
                x = _rows(x, dim, at)
                if dim in batch[0]:
                    place = batch[0].index(dim)
                    y, out_part = _rows(y, batch[1][place], at), _rows(out_part, leading + place, at)
                elif dim in contracting[0]:
                    y = _rows(y, contracting[1][contracting[0].index(dim)], at)
                else:
                    out_part = _rows(out_part, leading + len(batch[0]) + free.index(dim), at)
            block(x, y, sizes[index], out_part)
        return out(cut(total))

    return kernel


def _rows(x: Array, axis: int, rows: Array) -> Array:
    index = [slice(None)] * x.ndim
    index[axis] = slice(int(rows[0]), int(rows[-1]) + 1)
    return x[tuple(index)]


def _scaled_dot(instruction: HloInstruction, machine: Machine) -> Kernel:
    """Each operand is multiplied by its scale, every scale element covering a block, then contracted.

    A scalar stands for no scale at all and counts as 1, whatever its value.
    Source: ``openxla/xla:xla/hlo/evaluator/hlo_evaluator_typed_visitor.h#HandleScaledDot``.
    """
    target = instruction.shape.type
    inner = lookup("f32") if target.bits < 64 else target
    into = [conversion.converter(operand.shape.type, inner) for operand in instruction.operands]
    out = conversion.converter(inner, target)
    contracting = (
        _dimensions(instruction, "lhs_contracting_dims"),
        _dimensions(instruction, "rhs_contracting_dims"),
    )
    batch = (_dimensions(instruction, "lhs_batch_dims"), _dimensions(instruction, "rhs_batch_dims"))

    def scaled(x: Array, scale: Array) -> Array:
        if not scale.ndim:
            return x
        for axis in range(scale.ndim):
            if scale.shape[axis] != x.shape[axis]:
                scale = np.repeat(scale, x.shape[axis] // scale.shape[axis], axis)
        return x * scale

    def kernel(a: Array, b: Array, scale_a: Array, scale_b: Array) -> Array:
        values = [step(x) for step, x in zip(into, (a, b, scale_a, scale_b), strict=True)]
        left, right = scaled(values[0], values[2]), scaled(values[1], values[3])
        return out(contract(left, right, inner, contracting, batch))

    return kernel


TABLE: Mapping[str, Prepare] = MappingProxyType({"dot": _dot, "ragged-dot": _ragged_dot, "scaled-dot": _scaled_dot})
