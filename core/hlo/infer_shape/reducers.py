"""Shapes of operations that apply a computation to elements: map, reduce, scan, sort, top-k.

Source: ``openxla/xla:xla/service/shape_inference.cc#VerifyReducerShape, #InferMapShape, #InferReduceShape,
#InferTopKShape, #InferVariadicOpShape``, ``xla/service/hlo_verifier.cc#HandleScan``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.infer_shape.base import (
    InferenceError,
    compatible,
    compatible_ignoring_precision,
    compatible_ignoring_type,
    expect_array,
    flags_of,
    human,
    invalid,
    make,
    same_dimensions,
    same_type_ignoring_precision,
    scalar,
)
from hloscope.core.hlo.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.hlo.infer_shape.base import ProgramShape, Request


def check_reducer(program: ProgramShape, inits: Sequence[Shape], element_types: Sequence[str], inputs: int) -> None:
    """Refuse a computation that cannot fold `inputs` arrays of those element types from those initial values."""
    parameters, result = program.parameters, program.result
    if len(parameters) != inputs * 2:
        invalid(f"Reduction function must take {inputs * 2} parameters, but takes {len(parameters)} parameter(s).")
    if result.is_array:
        if inputs != 1:
            invalid(f"Reduction function must produce a tuple with {inputs} elements, but produces a scalar")
        accumulators: tuple[Shape, ...] = (result,)
    elif result.is_tuple:
        if len(result.tuple_shapes) != inputs:
            invalid(
                f"Reduction function must produce a tuple with {inputs} elements, but has "
                f"{len(result.tuple_shapes)} elements"
            )
        accumulators = result.tuple_shapes
    else:
        invalid(f"Reduction function must produce a scalar or tuple of scalars, but has shape: {human(result)}")
    if any(not a.is_scalar for a in accumulators):
        invalid(f"Reduction function must return a scalar or tuple of scalars but returns shape: {human(result)}")
    for i, accumulator in enumerate(accumulators):
        if not compatible(accumulator, parameters[i]):
            invalid(
                f"Reduction function's {i}-th parameter shape differs from the result shape: "
                f"{human(parameters[i])} vs {human(accumulator)}"
            )
        if not compatible_ignoring_precision(accumulator, inits[i]):
            invalid(
                f"Reduction function's accumulator shape at index {i} differs from the init_value shape: "
                f"{human(accumulator)} vs {human(inits[i])}"
            )
        element, other = scalar(element_types[i]), parameters[inputs + i]
        if not compatible_ignoring_precision(element, other):
            invalid(
                f"Reduction function's {inputs + i}-th parameter shape differs from the input type element type: "
                f"{human(other)} vs {human(element)}"
            )
        if not compatible_ignoring_precision(accumulator, other):
            invalid(
                f"Reduction function's {inputs + i}-th parameter shape must match the result shape, but got "
                f"{human(other)} vs {human(accumulator)}."
            )


def reduce(request: Request) -> Shape:
    """The dimensions that are left, with the reducer's element types."""
    operands = request.operands
    if not operands:
        invalid("Reduce must have at least 2 arguments, has 0")
    if len(operands) % 2:
        invalid(f"Reduce must have an even number of arguments, has {len(operands)}")
    half = len(operands) // 2
    reduced, inits = operands[:half], operands[half:]
    for i, other in enumerate(reduced[1:], 1):
        if not same_dimensions(reduced[0], other):
            invalid(
                "All reduced tensors must have compatible dimension. Tensor at index 0 has shape "
                f"{human(reduced[0])}, and tensor at index {i} has shape {human(other)}."
            )
    arg = reduced[0]
    expect_array(arg, "operand of reduce")
    dimensions: tuple[int, ...] = tuple(request.attr("dimensions", ()))
    for dim in dimensions:
        if not 0 <= dim < arg.rank:
            invalid(f"Reducing out-of-bounds dimension {dim} in shape {human(arg)}.")
    program = request.program()
    check_reducer(program, inits, [s.element_type for s in reduced], half)
    seen: set[int] = set()
    for dim in dimensions:
        if dim in seen:
            invalid(f"Duplicate reduction dimension: {dim}")
        seen.add(dim)
    kept = [d for d in range(arg.rank) if d not in seen]
    sizes = [arg.dimensions[d] for d in kept]
    flags = [arg.dimension_is_dynamic(d) for d in kept] if arg.dynamic_dimensions else []
    if program.result.is_scalar:
        return make(program.result.element_type, sizes, flags)
    return Shape.tuple_(make(s.element_type, sizes, flags) for s in program.result.tuple_shapes)


def map_(request: Request) -> Shape:
    """The operands' dimensions with the computation's element type."""
    operands = request.operands
    if not operands:
        invalid("Map expects at least one argument.")
    arg = operands[0]
    for other in operands[1:]:
        expect_array(other, "operand of map")
        if compatible_ignoring_type(other, arg):
            continue
        if same_type_ignoring_precision(other.element_type, arg.element_type):
            if other.is_scalar:
                continue
            if arg.is_scalar:
                arg = other
                continue
        invalid(
            f"Map operation requires all operands to have the same shape; got: {', '.join(human(s) for s in operands)}."
        )
    dimensions = tuple(request.attr("dimensions", tuple(range(arg.rank))))
    if request.instruction is None and len(dimensions) != arg.rank:
        invalid(
            "Map applied to a subset of dimensions currently not supported: "
            f"arg_dimension_size: {arg.rank}, requested_map_dimensions_size: {len(dimensions)}."
        )
    program = request.program()
    if len(operands) != len(program.parameters):
        invalid(
            "Map applied function arity must match number of arguments; got: "
            f"arity: {len(program.parameters)}, arguments: {len(operands)}."
        )
    if not program.result.is_scalar:
        invalid(f"Mapped computation's result has to be a scalar; got: {human(program.result)}.")
    for i, (parameter, operand) in enumerate(zip(program.parameters, operands, strict=True)):
        if not parameter.is_scalar:
            invalid(f"Mapped computation's parameter has to be a scalar; got parameter {i} shape: {human(parameter)}.")
        if not same_type_ignoring_precision(parameter.element_type, operand.element_type):
            invalid(
                "Mapped computation's parameter type has to match argument element type; "
                f"got parameter {i} shape: {human(parameter)}, argument shape: {human(arg)}."
            )
    return make(program.result.element_type, arg.dimensions, arg.dynamic_dimensions)


def sort(request: Request) -> Shape:
    """The operands, one as it is, several as a tuple."""
    operands = request.operands
    if not operands:
        raise InferenceError("Expected at least 1 operand for sort instruction", kind="operand-count")
    for i, other in enumerate(operands[1:], 1):
        if not same_dimensions(operands[0], other):
            invalid(
                f"Sort keys and values dimensions must match. Keys shape is: {human(operands[0])}\n, Values shape "
                f"(operand index {i}) is: {human(other)}"
            )
    return operands[0] if len(operands) == 1 else Shape.tuple_(operands)


def top_k(request: Request) -> Shape:
    """Values and their s32 indices; the last dimension becomes k."""
    shape, k = request.operand(0), int(request.need("k"))
    expect_array(shape, "operand of top-k operation")
    if not shape.rank:
        invalid("top-k needs an operand of rank 1 or more")
    if shape.dimensions[-1] < k:
        invalid(f"k={k} is larger than the last dimension of size={shape.dimensions[-1]}")
    flags = [*flags_of(shape)[:-1], False]
    dims = (*shape.dimensions[:-1], k)
    return Shape.tuple_([make(shape.element_type, dims, flags), make("s32", dims, flags)])


def scan(request: Request) -> Shape:
    """Outputs of the computation stacked along the scanned dimension, then the carries."""
    program, carries = request.program(), int(request.need("num_carries"))
    dimensions = tuple(request.need("dimensions"))
    if len(dimensions) != 1:
        invalid(f"Scan instruction has {len(dimensions)} dimensions, expected exactly one.")
    roots = program.result.tuple_shapes if program.result.is_tuple else (program.result,)
    inputs = len(request.operands) - carries
    if inputs < 0:
        invalid(f"Scan instruction has {carries} carries, but only {len(request.operands)} operands.")
    if len(roots) < carries:
        invalid(f"Scan instruction has {carries} carries, but only {len(roots)} results.")
    if len(request.operands) != len(program.parameters):
        invalid(
            f"Scan instruction has {len(request.operands)} operands, but the to_apply computation has "
            f"{len(program.parameters)} parameters."
        )
    size = _scan_size(request, dimensions[0], inputs)
    shapes: list[Shape] = []
    for i, root in enumerate(roots):
        if i >= len(roots) - carries:
            shapes.append(root)
            continue
        dims, flags = list(root.dimensions), flags_of(root)
        if dimensions[0] > len(dims):
            invalid(f"Scan dimension {dimensions[0]} out of bounds for result {i}")
        dims.insert(dimensions[0], size)
        flags.insert(dimensions[0], False)
        shapes.append(make(root.element_type, dims, flags))
    return shapes[0] if len(shapes) == 1 and not program.result.is_tuple else Shape.tuple_(shapes)


def _scan_size(request: Request, dim: int, inputs: int) -> int:
    """Length of the scanned dimension: of the first input, else of the first output that the instruction says."""
    if inputs:
        first = request.operands[0]
        if not 0 <= dim < first.rank:
            invalid(f"Scan dimension {dim} out of bounds for operand 0")
        return first.dimensions[dim]
    given = request.needs_shape()
    first = given.tuple_shapes[0] if given.is_tuple else given
    if not 0 <= dim < first.rank:
        invalid(f"Scan dimension {dim} out of bounds for result 0")
    return first.dimensions[dim]
