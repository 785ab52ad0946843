"""XLA:CPU's own constraints: nearly every use is row-major, so that a layout that is not costs a copy at its next use.

Set in list order, and the last one set is followed first. Source:
``openxla/xla:xla/service/cpu/cpu_layout_assignment.cc``, ``dot_op_emitter.cc#GetNonBatchDotImplementationStrategy``,
``ir_emission_utils.cc#PotentiallyImplementedAsEigenConvolution``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hloscope.core.hlo.layout import Layout
from hloscope.core.layout.backend import Backend
from hloscope.core.layout.orders import layout_of, moved_to_major, row_major

if TYPE_CHECKING:
    from hloscope.core.hlo.attributes import ConvolutionDimensionNumbers
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.layout.state import LayoutState

GEMM_TYPES = frozenset({"bf16", "f16", "f32", "f64", "c64", "c128", "s32"})
"""Result types of a dot that a library or a tiled kernel computes."""

COLUMN_MAJOR_BYTES = 32
"""A vector shorter than this does not make its matrix column-major."""

SMALL_DIMENSION = 3
"""A matrix with a dimension up to this size is multiplied by a plain loop."""


class CpuBackend(Backend):
    """XLA:CPU."""

    name: ClassVar[str] = "cpu"

    def constrain(self, state: LayoutState, computation: HloComputation) -> None:
        profitable: dict[HloInstruction, bool] = {}
        for instruction in computation.instructions:
            rule = must_be_row_major(instruction)
            if rule is not None:
                request = state.request(rule)
                state.set_instruction(instruction, row_major(instruction.shape), request)
                for number, operand in enumerate(instruction.operands):
                    state.set_operand(instruction, number, row_major(operand.shape), request)
                continue
            column = _column_major_operand(instruction, profitable)
            if column is not None:
                shape = instruction.operand(column).shape
                order = Layout(tuple(range(shape.rank)))
                state.set_array_operand(instruction, column, order, state.request("cpu-column-major-constant"))
            elif instruction.opcode in ("reduce-scatter", "all-gather") and instruction.shape.is_array:
                moved = special_dimension_to_major(instruction.shape, instruction.dimensions[0])
                state.set_instruction(instruction, moved, state.request("collective-dimension-slowest"))
            else:
                _row_major_operands(state, instruction)


def special_dimension_to_major(shape: Shape, dim: int) -> Shape:
    """The shape with the layout it has so far, one dimension made the slowest."""
    return shape.with_layout(Layout(moved_to_major(layout_of(shape).minor_to_major, dim)))


def _row_major_operands(state: LayoutState, instruction: HloInstruction) -> None:
    request = state.request("cpu-row-major-operand")
    for number, operand in enumerate(instruction.operands):
        if (instruction, number) in state.operands or not operand.shape.is_array:
            continue
        if not state.forwards(instruction, number):
            state.set_operand(instruction, number, row_major(operand.shape), request)


# ---------------------------------------------------------------- what must be row-major
def must_be_row_major(instruction: HloInstruction) -> str | None:
    """Why result and operands must be row-major, None where they need not be."""
    opcode = instruction.opcode
    if opcode == "dot":
        if instruction.attr("lhs_batch_dims"):
            return "cpu-batch-dot"
        return "cpu-matrix-dot" if _is_library_dot(instruction) else None
    if opcode == "convolution":
        return "cpu-library-convolution" if _is_library_convolution(instruction) else None
    if opcode == "custom-call" and instruction.attr("custom_call_target") == "TopK":
        return "cpu-top-k"
    return None


def _is_library_dot(dot: HloInstruction) -> bool:
    lhs, rhs, result = dot.operand(0).shape, dot.operand(1).shape, dot.shape
    real = result.type.is_floating or result.type.is_integral
    if real and (result.rank <= 1 or (result.rank == 2 and 1 in result.dimensions)):
        return False
    if real and _is_small(lhs) and _is_small(rhs):
        return False
    if 0 in lhs.dimensions or 0 in rhs.dimensions or result.element_type not in GEMM_TYPES:
        return False
    return lhs.rank == rhs.rank == result.rank == 2


def _is_small(shape: Shape) -> bool:
    return shape.rank <= 1 or (shape.rank == 2 and min(shape.dimensions) <= SMALL_DIMENSION)


def _is_library_convolution(convolution: HloInstruction) -> bool:
    image, kernel, result = (convolution.operand(0).shape, convolution.operand(1).shape, convolution.shape)
    if 0 in image.dimensions or 0 in kernel.dimensions or image.element_type not in ("f16", "f32"):
        return False
    window = convolution.attr("window")
    if window is not None and any(one.window_reversal for one in window.dimensions):
        return False
    dims: ConvolutionDimensionNumbers = convolution.attr("dim_labels")
    spatial = len(dims.output_spatial)
    if not 1 <= spatial <= 3:
        return False
    along = tuple(range(spatial))
    return (
        dims.input_spatial == dims.output_spatial == tuple(i + 1 for i in along)
        and dims.kernel_spatial == along
        and dims.input_batch == dims.output_batch == 0
        and dims.input_feature == image.rank - 1
        and dims.output_feature == result.rank - 1
        and dims.kernel_input_feature == kernel.rank - 2
        and dims.kernel_output_feature == kernel.rank - 1
    )


# ---------------------------------------------------------------- constants of vector-matrix products
def _column_major_operand(instruction: HloInstruction, known: dict[HloInstruction, bool]) -> int | None:
    number = _profits_from_column_major(instruction)
    if number is None:
        return None
    operand = instruction.operand(number)
    if operand.opcode != "constant":
        return None
    if operand not in known:
        known[operand] = all(_is_only_profitable_use(operand, user) for user in operand.users)
    return number if known[operand] else None


def _is_only_profitable_use(constant: HloInstruction, user: HloInstruction) -> bool:
    number = _profits_from_column_major(user)
    return number is not None and user.operand(number) is constant and constant.use_count(user) == 1


def _profits_from_column_major(instruction: HloInstruction) -> int | None:
    """The operand of a vector-matrix product that is read faster column by column, also inside an output fusion."""
    if instruction.opcode == "dot" and instruction.shape.rank <= 1:
        lhs = instruction.operand(0).shape
        if lhs.rank != 1 or instruction.attr("rhs_contracting_dims")[0] != 0:
            return None
        size = instruction.shape.type.byte_size * lhs.element_count
        return None if size < COLUMN_MAJOR_BYTES else 1
    if instruction.opcode == "fusion" and instruction.attr("kind") == "kOutput":
        root = instruction.callee("calls").root
        for inner in root.operands if root.opcode == "add" else ():
            number = _profits_from_column_major(inner) if inner.opcode == "dot" else None
            if number is not None:
                operand = inner.operand(number)
                if operand.opcode == "parameter" and operand.user_count == 1:
                    return operand.parameter_number
    return None
