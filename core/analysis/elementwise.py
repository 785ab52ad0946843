"""Which instructions compute each element of the result from the same element of each operand, and related predicates.

Source: ``openxla/xla:xla/hlo/ir/hlo_instruction.cc#IsElementwiseImpl, #IsFusible``,
``xla/hlo/ir/hlo_instructions.cc`` (constants, maps and rng override the first).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

ELEMENTWISE: frozenset[str] = frozenset(
    """abs acos acosh asin asinh atanh cbrt ceil count-leading-zeros convert bitcast-convert copy cosine cosh erf
    exponential exponential-minus-one floor imag is-finite log log-plus-one logistic negate not popcnt real
    reduce-precision round-nearest-afz round-nearest-even rsqrt sign sine sinh sqrt tan tanh add and atan2 compare
    complex divide maximum minimum mulhi multiply or power remainder shift-left shift-right-arithmetic
    shift-right-logical stochastic-convert subtract xor clamp select""".split()
)
"""Opcodes that are elementwise whatever their operands are."""

_NEVER_FUSED = frozenset(("domain", "parameter", "while", "conditional", "call"))
_ALWAYS_FUSED = frozenset(("fusion", "map", "reduce", "reduce-window"))


def is_elementwise(instruction: HloInstruction) -> bool:
    """Whether element i of the result depends on element i of each operand only.

    Constants and rng count; a fusion counts when everything in it but its parameters does.
    """
    opcode = instruction.opcode
    if opcode in ELEMENTWISE:
        return opcode != "bitcast-convert" or keeps_bit_width(instruction)
    if opcode == "fusion":
        return all(one.opcode == "parameter" or is_elementwise(one) for one in instruction.callee().instructions)
    if opcode == "map":
        dims = instruction.dimensions
        return not dims or dims == tuple(range(instruction.shape.rank))
    return opcode in ("constant", "rng")


def keeps_bit_width(instruction: HloInstruction) -> bool:
    """Whether the element type of the result is as wide as that of operand 0, in storage."""
    return storage_bits(instruction.shape) == storage_bits(instruction.operand(0).shape)


def storage_bits(shape: Shape) -> int:
    """Bits that one element takes in memory."""
    return shape.type.bits


def is_generally_fusible(instruction: HloInstruction) -> bool:
    """Whether an instruction may be part of a fusion at all (`HloInstruction::IsFusible`)."""
    opcode = instruction.opcode
    if opcode in _NEVER_FUSED:
        return False
    if opcode in _ALWAYS_FUSED:
        return True
    if opcode == "rng":
        return instruction.user_count <= 1
    return not instruction.has_side_effect


def elements(shape: Shape) -> int:
    """Elements of an array, or of all leaves of a tuple together."""
    if shape.tuple_shapes:
        return sum(elements(one) for one in shape.tuple_shapes)
    return prod(shape.dimensions) if shape.is_array else 0


def is_effective_scalar(shape: Shape) -> bool:
    """An array of one element."""
    return shape.is_array and all(size == 1 for size in shape.dimensions)


def minor_to_major(shape: Shape) -> tuple[int, ...]:
    """The layout's order, the descending one where none was assigned."""
    if shape.layout is not None:
        return shape.layout.minor_to_major
    return tuple(range(shape.rank - 1, -1, -1))


def same_layout_and_dimensions(a: Shape, b: Shape) -> bool:
    """Equal but for the element type (`ShapeUtil::EqualIgnoringElementType`)."""
    return a.is_array and b.is_array and a.dimensions == b.dimensions and minor_to_major(a) == minor_to_major(b)


def transpose_is_bitcast(operand: Shape, result: Shape, permutation: tuple[int, ...]) -> bool:
    """Whether a transpose leaves every element where it is in memory (dimensions of size 1 do not count)."""
    before = [dim for dim in reversed(minor_to_major(operand)) if operand.dimensions[dim] > 1]
    after = [permutation[dim] for dim in reversed(minor_to_major(result)) if result.dimensions[dim] > 1]
    return before == after


def reshape_is_bitcast(operand: Shape, result: Shape) -> bool:
    """Whether a reshape leaves every element where it is in memory."""
    return elements(operand) == elements(result) and _memory_order(operand) == _memory_order(result)


def _memory_order(shape: Shape) -> list[tuple[int, int]]:
    """How neighbours in memory lie in row-major order: (step, size) of every run, fastest first, as long as can be."""
    steps = [1] * shape.rank
    for dim in range(shape.rank - 2, -1, -1):
        steps[dim] = steps[dim + 1] * shape.dimensions[dim + 1]
    runs: list[tuple[int, int]] = []
    for dim in minor_to_major(shape):
        step, size = steps[dim], shape.dimensions[dim]
        if size == 1:
            continue
        if runs and runs[-1][0] * runs[-1][1] == step:
            runs[-1] = (runs[-1][0], runs[-1][1] * size)
        else:
            runs.append((step, size))
    return runs
