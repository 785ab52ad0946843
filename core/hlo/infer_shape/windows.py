"""Shapes of windowed operations: convolution, reduce-window, select-and-scatter.

Source: ``openxla/xla:xla/service/shape_inference.cc#InferWindowOutputShape, #InferConvolveShape,
#InferReduceWindowShape, #InferSelectAndScatterShape``, ``xla/window_util.cc``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.hlo.attributes import Window, WindowDimension
from hloscope.core.hlo.infer_shape.base import (
    InferenceError,
    compatible,
    compatible_ignoring_precision,
    expect_array,
    higher_precision,
    human,
    invalid,
    make,
    same_dimensions,
    scalar,
)
from hloscope.core.hlo.infer_shape.reducers import check_reducer
from hloscope.core.hlo.shape import UNBOUNDED, Shape

if TYPE_CHECKING:
    from hloscope.core.hlo.attributes import ConvolutionDimensionNumbers
    from hloscope.core.hlo.infer_shape.base import Request


def dilated(bound: int, dilation: int) -> int:
    """Size after `dilation` - 1 holes between neighbours."""
    return 0 if bound == 0 else (bound - 1) * dilation + 1


def strided(bound: int, window: int, stride: int) -> int:
    """How many places a window of that size has when it moves by `stride`."""
    return 0 if bound <= 0 or window > bound else (bound - window) // stride + 1


def window_output(base: Shape, window: Window, element_type: str) -> Shape:
    """One element for each place of the window."""
    if len(window.dimensions) != base.rank:
        invalid(f"Window has dimension {len(window.dimensions)} but base shape has dimension {base.rank}.")
    dims: list[int] = []
    for size, dim in zip(base.dimensions, window.dimensions, strict=True):
        for value, what in ((dim.size, "dimension"), (dim.stride, "stride")):
            if value <= 0:
                invalid(f"Window {window} has a non-positive {what}.")
        for value, what in ((dim.base_dilation, "base area"), (dim.window_dilation, "window")):
            if value < 1:
                invalid(f"Window {window} has a non-positive {what} dilation factor.")
        if size == UNBOUNDED:
            dims.append(UNBOUNDED)
            continue
        padded = dim.padding_low + dilated(size, dim.base_dilation) + dim.padding_high
        if padded < 0:
            invalid(f"Window {window} pads dimension {len(dims)} of {human(base)} to a negative size.")
        dims.append(strided(padded, dilated(dim.size, dim.window_dilation), dim.stride))
    return make(element_type, dims, base.dynamic_dimensions)


# ---------------------------------------------------------------- convolution
def convolution(request: Request) -> Shape:
    """Batch, output feature and spatial sizes, at the places that the output labels say."""
    lhs, rhs = request.operand(0), request.operand(1)
    expect_array(lhs, "lhs of convolution")
    expect_array(rhs, "rhs of convolution")
    groups, batches = int(request.attr("feature_group_count", 1)), int(request.attr("batch_group_count", 1))
    numbers: ConvolutionDimensionNumbers = request.need("dim_labels")
    window: Window = request.attr("window") or Window(())
    if groups <= 0:
        invalid(f"feature_group_count must be a positive number, got {groups}")
    if batches <= 0:
        invalid(f"batch_group_count must be a positive number, got {batches}")
    if batches > 1 and groups > 1:
        invalid(f"both batch_group_count {batches} and feature_group_count {groups} cannot be greater than 1")
    rank = len(numbers.input_spatial)
    if rank != len(numbers.kernel_spatial):
        invalid(f"Both arguments to convolution must have same number of dimensions.\nNumbers: {numbers}")
    if rank != len(numbers.output_spatial):
        invalid(f"Both input and output of convolution must have same number of dimensions.\nNumbers: {numbers}")
    if not window.dimensions and rank:
        window = Window((WindowDimension(1),) * rank)
    if len(window.dimensions) != rank:
        invalid(
            "Window must have same number of dimensions as dimension numbers.\n"
            f"Window: {window}\nDimension numbers: {numbers}."
        )
    for shape, side in ((lhs, "LHS"), (rhs, "RHS")):
        if shape.rank != rank + 2:
            invalid(
                f"The {side} argument to a convolution should have rank {rank + 2}; {side.lower()}: {human(shape)}."
            )
    _check_permutations(numbers, rank + 2)
    return _convolved(request, lhs, rhs, groups, batches, numbers, window)


def _check_permutations(numbers: ConvolutionDimensionNumbers, rank: int) -> None:
    parts = (
        ("Input", (numbers.input_batch, numbers.input_feature, *numbers.input_spatial)),
        ("Window", (numbers.kernel_input_feature, numbers.kernel_output_feature, *numbers.kernel_spatial)),
        ("Output", (numbers.output_batch, numbers.output_feature, *numbers.output_spatial)),
    )
    if not all(0 <= d < rank for _, dims in parts for d in dims):
        invalid(f"A dimension number is out of range in convolution: {numbers}.")
    for name, dims in parts:
        if sorted(dims) != list(range(rank)):
            invalid(f"{name} dimensions of convolution must contain each dimension exactly once: {numbers}.")


_SPARSE = re.compile(r"(lhs|rhs)=\s*\{([^{}]*)\}")


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else invalid(f"expected a number in sparsity_config, got {text!r}")


def _sparse_operands(request: Request) -> dict[str, dict[str, str]]:
    """What ``sparsity_config`` says of each side, with the indices of the extra operands in range and apart."""
    sides = {
        side: dict(word.split("=", 1) for word in body.replace(",", " ").split() if "=" in word)
        for side, body in _SPARSE.findall(str(request.attr("sparsity_config") or ""))
    }
    for side, told in sides.items():
        index = _number(told.get("idx", "0"))
        if not 2 <= index < len(request.operands):
            invalid(f"Sparsity idx {index} out of bounds for {side}")
        if not request.operands[index].is_array:
            got = human(request.operands[index])
            invalid(f"Expected array argument for {side} sparsity at index {index}, but got {got}")
    if len({told.get("idx", "0") for told in sides.values()}) < len(sides):
        invalid(f"LHS and RHS sparsity idx cannot be the same ({sides['lhs']['idx']})")
    return sides


def _convolved(
    request: Request,
    lhs: Shape,
    rhs: Shape,
    groups: int,
    batches: int,
    numbers: ConvolutionDimensionNumbers,
    window: Window,
) -> Shape:
    spatial = [lhs.dimensions[d] for d in numbers.input_spatial]
    kernel = [rhs.dimensions[d] for d in numbers.kernel_spatial]
    features, batch = lhs.dimensions[numbers.input_feature], lhs.dimensions[numbers.input_batch]
    kernel_in = rhs.dimensions[numbers.kernel_input_feature]
    kernel_out = rhs.dimensions[numbers.kernel_output_feature]
    end = f"got <conv>({human(lhs)}, {human(rhs)})\nDimension numbers: {{{numbers}}}."
    if kernel_out % batches:
        invalid(
            f"Expected output feature dimension size (value {kernel_out}) to be a multiple of batch group count "
            f"{batches}; {end}"
        )
    if kernel_out % groups:
        invalid(
            f"Expected output feature dimension (value {kernel_out}) to be divisible by feature_group_count "
            f"(value {groups}); {end}"
        )
    if batch % batches:
        invalid(
            f"Expected input batch dimension (value {batch}) to be divisible by batch_group_count (value {batches}); "
            f"{end}"
        )
    if str(request.attr("convolution_kind", "fprop")) != "fprop":
        # Gradient kinds exist between two passes of one backend; the shape is taken as given.
        return request.needs_shape()
    sparse = _sparse_operands(request).get("rhs")
    if sparse is not None:
        kept, _, block = sparse.get("sparsity", "0x0").partition("x")
        if kept != "1":
            invalid("Only 1:N sparsity is currently supported.")
        kernel_in *= _number(block)
    if features % groups or features // groups != kernel_in:
        invalid(
            f"Expected LHS feature dimension (value {features}) to be a multiple of feature_group_count (value "
            f"{groups}), and LHS feature dimension / feature_group_count = RHS feature dimension (value {kernel_in}); "
            f"{end}"
        )
    if kernel != [d.size for d in window.dimensions]:
        invalid(
            f"Window dimensions do not match RHS shape:\n\tRHS shape: {human(rhs)}\n\tWindow: {{{window}}}\n\t"
            f"Dimension numbers: {{{numbers}}}."
        )
    base = make(lhs.element_type, spatial, [size == UNBOUNDED for size in spatial])
    moved = window_output(base, window, lhs.element_type)
    dims = [0] * (len(spatial) + 2)
    flags = [False] * len(dims)
    dims[numbers.output_batch] = UNBOUNDED if batch == UNBOUNDED else batch // batches
    dims[numbers.output_feature] = kernel_out
    for place, size in zip(numbers.output_spatial, moved.dimensions, strict=True):
        dims[place] = size
    if lhs.dynamic_dimensions:
        flags[numbers.output_batch] = lhs.dimension_is_dynamic(numbers.input_batch)
        for here, there in zip(numbers.input_spatial, numbers.output_spatial, strict=True):
            flags[there] = flags[there] or lhs.dimension_is_dynamic(here)
    if rhs.dynamic_dimensions:
        if rhs.dimension_is_dynamic(numbers.kernel_output_feature):
            invalid(f"Dynamic output feature dim on convolution kernel is not supported: rhs shape is {rhs} ")
        for here, there in zip(numbers.kernel_spatial, numbers.output_spatial, strict=True):
            flags[there] = flags[there] or rhs.dimension_is_dynamic(here)
    preferred = request.given.element_type if request.given is not None else None
    return make(preferred or higher_precision(lhs.element_type, rhs.element_type), dims, flags)


# ---------------------------------------------------------------- reductions over windows
def reduce_window(request: Request) -> Shape:
    """Each place of the window folded, for one or several operands at once."""
    if not request.operands or len(request.operands) % 2:
        raise InferenceError(
            f"reduce-window has {len(request.operands)} operands, an even number is needed", kind="operand-count"
        )
    half = len(request.operands) // 2
    operands, inits = request.operands[:half], request.operands[half:]
    for i, other in enumerate(operands[1:], 1):
        if not same_dimensions(operands[0], other):
            invalid(
                "All reduced tensors must have the same dimension. Tensor 0 has "
                f"shape {human(operands[0])}, Tensor {i} has shape {human(other)}"
            )
    program = request.program()
    check_reducer(program, inits, [s.element_type for s in operands], half)
    window: Window = request.attr("window") or Window(())
    shapes: list[Shape] = []
    for operand, init in zip(operands, inits, strict=True):
        expect_array(operand, "operand of reduce-window")
        whole = window if window.dimensions or not operand.rank else Window((WindowDimension(1),) * operand.rank)
        shapes.append(window_output(operand, whole, init.element_type))
    return shapes[0] if program.result.is_scalar else Shape.tuple_(shapes)


def select_and_scatter(request: Request) -> Shape:
    """The operand's shape; the source has one element for each place of the window."""
    operand, source, init = request.operand(0), request.operand(1), request.operand(2)
    expect_array(operand, "operand of select-and-scatter")
    select, scatter = request.program("select"), request.program("scatter")
    if len(select.parameters) != 2:
        invalid(f"Select function must take 2 parameters, but takes {len(select.parameters)} parameter(s).")
    if not compatible(select.result, scalar("pred")):
        invalid("Select function must have rank-0 PRED result.")
    element = scalar(operand.element_type)
    for parameter, which in zip(select.parameters, ("first", "second"), strict=True):
        if not compatible_ignoring_precision(element, parameter):
            invalid(
                f"Select function's {which} parameter shape currently must match the operand element shape, but got "
                f"{human(parameter)} vs {human(element)}."
            )
    check_reducer(scatter, [init], [source.element_type], 1)
    window: Window = request.attr("window") or Window((WindowDimension(1),) * operand.rank)
    moved = window_output(operand, window, operand.element_type)
    if not compatible_ignoring_precision(source, moved):
        invalid(
            "Source shape does not match the shape of window-reduced operand: "
            f"source({human(source)}), window-reduced operand({human(moved)})."
        )
    return operand
