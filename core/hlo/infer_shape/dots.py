"""Shapes of dot, ragged-dot and scaled-dot. Source: ``openxla/xla:xla/service/shape_inference.cc#InferDotOpShape,
#InferRaggedDotOpShape``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.infer_shape.base import expect_array, higher_precision, human, invalid, make, sizes_compatible

if TYPE_CHECKING:
    from hloscope.core.hlo.infer_shape.base import Request
    from hloscope.core.hlo.shape import Shape


@dataclass(frozen=True, slots=True)
class DotNumbers:
    """Contracting and batch dimensions of both sides."""

    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]

    @staticmethod
    def of(request: Request) -> DotNumbers:
        """From the instruction's attributes."""
        return DotNumbers(
            tuple(request.attr("lhs_contracting_dims", ())),
            tuple(request.attr("rhs_contracting_dims", ())),
            tuple(request.attr("lhs_batch_dims", ())),
            tuple(request.attr("rhs_batch_dims", ())),
        )

    def __str__(self) -> str:
        parts = [
            f"{name}: {list(value)}"
            for name, value in (
                ("lhs_contracting_dimensions", self.lhs_contracting),
                ("rhs_contracting_dimensions", self.rhs_contracting),
                ("lhs_batch_dimensions", self.lhs_batch),
                ("rhs_batch_dimensions", self.rhs_batch),
            )
            if value
        ]
        return " ".join(parts)


def check_numbers(lhs: Shape, rhs: Shape, numbers: DotNumbers) -> None:
    """Dimension numbers in range, unique and of matching sizes."""
    sides = ((lhs, numbers.lhs_contracting, numbers.lhs_batch), (rhs, numbers.rhs_contracting, numbers.rhs_batch))
    if not all(0 <= d < shape.rank for shape, contracting, batch in sides for d in (*contracting, *batch)):
        invalid(f"A dimension number is out of range in Dot: {numbers}. {lhs} {rhs}")
    for _, contracting, batch in sides:
        if len({*contracting, *batch}) != len(contracting) + len(batch):
            invalid(f"A dimension number is not unique in Dot: {numbers}.")
    start = f"Cannot infer shape for dot operation: {human(lhs)} <dot> {human(rhs)}."
    if len(numbers.lhs_contracting) != len(numbers.rhs_contracting):
        invalid(f"{start} Must specify the same number of contracting dimensions for lhs and rhs.")
    for a, b in zip(numbers.lhs_contracting, numbers.rhs_contracting, strict=True):
        if not sizes_compatible(lhs.dimensions[a], rhs.dimensions[b]):
            invalid(f"{start} Contracting dimension sizes are not compatible.")
    if len(numbers.lhs_batch) != len(numbers.rhs_batch):
        invalid(f"{start} Must the same number of batch dimensions for lhs and rhs.")
    for a, b in zip(numbers.lhs_batch, numbers.rhs_batch, strict=True):
        if not sizes_compatible(lhs.dimensions[a], rhs.dimensions[b]):
            invalid(f"{start} Batch dimension sizes are not compatible.")


def _result_dimensions(
    lhs: Shape, rhs: Shape, numbers: DotNumbers, groups: tuple[int, ...] = ()
) -> tuple[list[int], list[bool]]:
    kept = [(lhs, d) for d in numbers.lhs_batch]
    kept += [(lhs, d) for d in range(lhs.rank) if d not in numbers.lhs_contracting and d not in numbers.lhs_batch]
    kept += [
        (rhs, d)
        for d in range(rhs.rank)
        if d not in numbers.rhs_contracting and d not in numbers.rhs_batch and d not in groups
    ]
    return [shape.dimensions[d] for shape, d in kept], [shape.dimension_is_dynamic(d) for shape, d in kept]


def _element_type(request: Request, lhs: Shape, rhs: Shape) -> str:
    if request.given is not None and request.given.is_array:
        return request.given.element_type
    return higher_precision(lhs.element_type, rhs.element_type)


def dot(request: Request) -> Shape:
    """Batch dimensions, then the free ones of the left, then of the right. The element type is the instruction's."""
    lhs, rhs = request.operand(0), request.operand(1)
    expect_array(lhs, "lhs of dot")
    expect_array(rhs, "rhs of dot")
    numbers = DotNumbers.of(request)
    check_numbers(lhs, rhs, numbers)
    dims, flags = _result_dimensions(lhs, rhs, numbers)
    return make(_element_type(request, lhs, rhs), dims, flags)


def ragged_dot(request: Request) -> Shape:
    """A dot over groups of run-time size; which mode follows from what the ragged dimension of the left is."""
    lhs, rhs, sizes = request.operand(0), request.operand(1), request.operand(2)
    expect_array(lhs, "lhs of ragged dot")
    expect_array(rhs, "rhs of ragged dot")
    expect_array(sizes, "group_sizes of ragged dot")
    numbers = DotNumbers.of(request)
    check_numbers(lhs, rhs, numbers)
    start = f"Cannot infer shape for ragged dot operation: {human(lhs)} <ragged_dot> {human(rhs)}."
    ragged = tuple(request.attr("lhs_ragged_dims", ()))
    groups = tuple(request.attr("rhs_group_dims", ()))
    if len(ragged) != 1:
        invalid(f"{start} There must be exactly one ragged dimension in the lhs.")
    if not 0 <= ragged[0] < lhs.rank:
        invalid(f"{start} lhs ragged dimension {ragged[0]} is out of range [0, {lhs.rank})")
    if ragged[0] in numbers.lhs_batch:
        mode, prefix = "batch", list(numbers.lhs_batch[: numbers.lhs_batch.index(ragged[0])])
    elif ragged[0] in numbers.lhs_contracting:
        mode = "contracting"
        prefix = [*numbers.lhs_batch, *numbers.lhs_contracting[: numbers.lhs_contracting.index(ragged[0])]]
    else:
        mode = "free"
        free = [d for d in range(lhs.rank) if d not in numbers.lhs_contracting and d not in numbers.lhs_batch]
        prefix = [*numbers.lhs_batch, *free[: free.index(ragged[0])]]
    expected = [lhs.dimensions[d] for d in prefix]
    if sizes.rank != 1:
        if sizes.rank != len(expected) + 1:
            invalid(f"{start} expected group_sizes to have rank {len(expected) + 1}, got {sizes.rank}")
        if list(sizes.dimensions[:-1]) != expected:
            wanted = ", ".join(map(str, expected))
            invalid(
                f"{start} group_sizes is expected to have shape [{wanted}, {sizes.dimensions[-1]}], got "
                f"[{', '.join(map(str, sizes.dimensions))}]"
            )
    count = sizes.dimensions[-1]
    for group in groups:
        if not 0 <= group < rhs.rank:
            invalid(f"{start} rhs group dimension {group} is out of range [0, {rhs.rank})")
        if group in numbers.rhs_batch or group in numbers.rhs_contracting:
            invalid(f"{start} rhs group dimension cannot be a batch or contracting dimension")
    if mode != "free":
        if groups:
            invalid(
                f"{start} There must be zero group dimensions in the rhs when the ragged dimension is batch or "
                "contracting."
            )
    else:
        if len(groups) != 1:
            invalid(
                f"{start} There must be exactly one group dimension in the rhs when the lhs ragged dimension is "
                "non-contracting."
            )
        if not sizes_compatible(count, rhs.dimensions[groups[0]]):
            invalid(f"{start} rhs group dimension is expected to have size={count}, got {rhs.dimensions[groups[0]]}")
    dims, flags = _result_dimensions(lhs, rhs, numbers, groups)
    if mode == "contracting":
        dims.insert(0, count)
        flags.insert(0, sizes.dimension_is_dynamic(sizes.rank - 1))
    return make(_element_type(request, lhs, rhs), dims, flags)
