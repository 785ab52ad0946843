"""What XLA:CPU's fusion asks of a single instruction.

Source: ``openxla/xla:xla/service/cpu/cpu_instruction_fusion.cc#CanBeLoopFused``,
``xla/service/instruction_fusion.cc#IsExpensive, #IsAlwaysDuplicable``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import is_elementwise

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction

_LOOP_FUSIBLE = frozenset(
    """bitcast broadcast concatenate dynamic-slice dynamic-update-slice gather iota pad reduce reshape reverse slice
    transpose""".split()
)
_CHEAP = frozenset(
    """add and bitcast bitcast-convert broadcast ceil clamp count-leading-zeros compare complex concatenate constant
    copy copy-start copy-done dynamic-reshape dynamic-slice dynamic-update-slice floor get-tuple-element imag infeed
    iota is-finite maximum minimum multiply mulhi negate not opt-barrier or outfeed pad partition-id popcnt
    real reduce-precision replica-id reshape reverse round-nearest-afz round-nearest-even select shift-left
    shift-right-arithmetic shift-right-logical slice stochastic-convert subtract transpose tuple xor""".split()
)
_COSTLY_WHEN_COMPLEX = frozenset("abs sign cosine sine tan".split())

CONCATENATE_OPERANDS = 8
"""More operands than this make a concatenate a chain of branches."""
CONCATENATE_MINOR_SIZE = 128
"""A concatenate along the fastest dimension of at least this size is not vectorised inside a fusion."""
DOT_VECTOR_BYTES = 16 * 1024
"""Below this a vector operand stays in cache while a dot's other operand is computed."""


def is_loop_fusible(instruction: HloInstruction) -> bool:
    """Whether XLA:CPU's element emitter can compute it inside a loop."""
    return instruction.opcode in _LOOP_FUSIBLE or is_elementwise(instruction)


def is_complex(instruction: HloInstruction) -> bool:
    """Whether the result is of complex numbers."""
    return instruction.shape.is_array and instruction.shape.type.kind == "complex"


def is_effective_scalar(instruction: HloInstruction) -> bool:
    """An array of one element, whatever its rank."""
    shape = instruction.shape
    return shape.is_array and all(size == 1 for size in shape.dimensions)


def is_expensive(instruction: HloInstruction) -> bool:
    """Whether computing an element of it twice costs more than reading it back."""
    opcode = instruction.opcode
    if opcode in _CHEAP:
        return False
    if opcode in _COSTLY_WHEN_COMPLEX:
        return is_complex(instruction)
    if opcode == "convert":
        return (
            instruction.operand(0).shape.element_type == "f32" and instruction.shape.element_type == "bf16"
        )  # rounding to bf16 is a sequence of integer operations
    if opcode in ("divide", "remainder") and instruction.shape.type.kind in ("int", "uint"):
        dividend = instruction.operand(0)
        if dividend.opcode == "broadcast":
            dividend = dividend.operand(0)
        return not (dividend.opcode == "constant" and is_effective_scalar(dividend))
    return True


def is_always_duplicable(instruction: HloInstruction) -> bool:
    """Broadcasts, and conversions that read fewer bytes than they write."""
    if instruction.opcode == "convert":
        return instruction.operand(0).shape.byte_size < instruction.shape.byte_size
    return instruction.opcode == "broadcast"


def is_matrix_vector_dot(instruction: HloInstruction) -> bool:
    """A dot without batch dimensions, of real numbers, with a result of rank 1 at most."""
    if instruction.opcode != "dot" or instruction.shape.rank > 1 or is_complex(instruction):
        return False
    return not (instruction.attr("lhs_batch_dims") or instruction.attr("rhs_batch_dims"))


def is_output_fusible(consumer: HloInstruction, producer: HloInstruction) -> bool:
    """Whether an add takes a matrix-vector dot into its own kernel."""
    if consumer.opcode != "add" or not is_matrix_vector_dot(producer):
        return False
    return producer.user_count == 1 and producer.use_count(consumer) == 1


def is_slow_concatenate(instruction: HloInstruction) -> bool:
    """A concatenate whose element emitter would be slow: many operands, or along the fastest dimension."""
    if instruction.opcode != "concatenate":
        return False
    if instruction.operand_count > CONCATENATE_OPERANDS:
        return True
    shape = instruction.shape
    if shape.rank < 2:
        return False
    (dim,) = instruction.dimensions
    layout = shape.layout
    minor = layout.minor_to_major[0] if layout is not None and layout.minor_to_major else shape.rank - 1
    return dim == minor and shape.dimensions[dim] >= CONCATENATE_MINOR_SIZE


def is_thin_dot_side(consumer: HloInstruction, producer: HloInstruction) -> bool:
    """Whether a matrix-vector dot takes the producer of its matrix side because the vector stays in cache."""
    if consumer.opcode != "dot" or consumer.shape.rank > 1:
        return False
    for vector, matrix in ((0, 1), (1, 0)):
        shape = consumer.operand(vector).shape
        if shape.rank == 1 and shape.byte_size < DOT_VECTOR_BYTES and consumer.operand(matrix) is producer:
            return True
    return False
