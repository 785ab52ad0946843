"""Shapes of tuples, control flow, asynchronous pairs, transfers, random numbers and everything given.

Source: ``openxla/xla:xla/service/shape_inference.cc#InferWhileShape, #InferConditionalShape, #InferCallShape``,
``xla/service/hlo_verifier.cc#HandleRng…, #HandleSend, #HandleCopyStart, #HandleInfeed``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.infer_shape.base import (
    InferenceError,
    ProgramShape,
    compatible,
    flags_of,
    human,
    invalid,
    is_float,
    is_integral,
    is_scalar_of,
    make,
    same_type_ignoring_precision,
    scalar,
)
from hloscope.core.hlo.shape import Shape

if TYPE_CHECKING:
    from hloscope.core.hlo.infer_shape.base import Request

_CONTEXT = scalar("u32")


def given(request: Request) -> Shape:
    """What the instruction says: nothing else decides it."""
    return request.needs_shape()


def tuple_(request: Request) -> Shape:
    """The operands."""
    return Shape.tuple_(request.operands)


def get_tuple_element(request: Request) -> Shape:
    """One element of the operand."""
    shape, index = request.operand(0), int(request.need("index"))
    if not shape.is_tuple:
        invalid(f"Cannot infer shape: attempting to index into non-tuple: {human(shape)}.")
    if not 0 <= index < len(shape.tuple_shapes):
        invalid(
            f"Cannot infer shape: attempt to index out of tuple bounds: {index} >= {len(shape.tuple_shapes)} in shape "
            f"{human(shape)}."
        )
    return shape.tuple_shapes[index]


def first_operand(request: Request) -> Shape:
    """Opt-barrier and add-dependency: operand 0."""
    return request.operand(0)


def add_dependency(request: Request) -> Shape:
    """Operand 0; operand 1 is a token."""
    if not request.operand(1).is_token:
        invalid(f"Expected operand 1 to be token-shaped, actual shape is {human(request.operand(1))}")
    return request.operand(0)


def token(request: Request) -> Shape:
    """A token."""
    return Shape.token()


# ---------------------------------------------------------------- called computations
def _while_programs(request: Request) -> tuple[ProgramShape, ProgramShape]:
    condition, body = request.program("condition"), request.program("body")
    if len(condition.parameters) != 1:
        invalid(f"Condition must take 1 arguments; got {len(condition.parameters)}.")
    if len(body.parameters) != 1:
        invalid(f"Body must take 1 arguments; got {len(body.parameters)}.")
    return condition, body


def while_(request: Request) -> Shape:
    """The state, the same everywhere."""
    condition, body = _while_programs(request)
    init = request.operand(0)
    told = f"Condition: {condition}; body: {body}; init: {human(init)}."
    if not is_scalar_of(condition.result, "pred"):
        invalid(f"Condition must return a boolean; got {told}.")
    if not all(compatible(body.result, other) for other in (condition.parameters[0], body.parameters[0], init)):
        invalid(
            "The parameter of condition and body, the result of the body, and init must all have the same shape; "
            f"got {told}."
        )
    return init


def branches_of(request: Request) -> tuple[ProgramShape, ...]:
    """Signatures of a conditional's branches, true before false."""
    both = (*request.programs("true_computation"), *request.programs("false_computation"))
    return both or request.programs("branch_computations")


def conditional(request: Request) -> Shape:
    """The branches' result, dynamic where any branch's is."""
    index, branches = request.operand(0), branches_of(request)
    if not is_scalar_of(index, "pred") and not is_scalar_of(index, "s32"):
        invalid(f"branch_index must be bool or int32_t; got {human(index)}.")
    if index.element_type == "pred" and len(branches) != 2:
        invalid("2 == branch_computations.size() failed")
    if not branches:
        invalid("!branch_computations.empty() failed")
    operands = request.operands[1:]
    if len(operands) != len(branches):
        raise InferenceError(
            f"branch_computations.size() == branch_operands.size() failed: {len(branches)} branches, "
            f"{len(operands)} operands",
            kind="operand-count",
        )
    result = branches[0].result
    for j, (branch, operand) in enumerate(zip(branches, operands, strict=True)):
        if len(branch.parameters) != 1:
            invalid(f"branch computation {j} must take 1 argument; got {len(branch.parameters)}.")
        if not compatible(branch.parameters[0], operand):
            invalid(
                f"branch operand {j} must match the shape of the only parameter of branch computation {j}: got "
                f"operand: {human(operand)}; computation: {branch}."
            )
        if not compatible(result, branch.result):
            invalid(
                f"the result of branch 0 computation and branch {j} computation must have the same shape: got branch 0 "
                f"computation result: {human(result)}; branch {j} computation result: {human(branch.result)}."
            )
    for branch in branches[1:]:
        if branch.result.is_dynamic:
            result = _dynamic_union(result, branch.result)
    return result


def _dynamic_union(a: Shape, b: Shape) -> Shape:
    if a.is_tuple:
        return Shape.tuple_(_dynamic_union(x, y) for x, y in zip(a.tuple_shapes, b.tuple_shapes, strict=True))
    if not a.is_array or not b.dynamic_dimensions:
        return a
    flags = [x or y for x, y in zip(flags_of(a), flags_of(b), strict=True)]
    return make(a.element_type, a.dimensions, flags).with_layout(a.layout)


def call(request: Request) -> Shape:
    """The computation's result; operands are its parameters."""
    program = request.program()
    if len(request.operands) != len(program.parameters):
        raise InferenceError(
            "Call applied function arity must match number of arguments; got: "
            f"arity: {len(program.parameters)}, arguments: {len(request.operands)}; computation signature: {program}; "
            f"argument shapes: [{', '.join(human(s) for s in request.operands)}].",
            kind="operand-count",
        )
    for i, (parameter, operand) in enumerate(zip(program.parameters, request.operands, strict=True)):
        if not compatible(operand, parameter):
            invalid(
                f"Call parameter must match argument; got parameter {i} shape: {human(parameter)}, "
                f"argument shape: {human(operand)}."
            )
    return program.result


def fusion(request: Request) -> Shape:
    """The fused computation's result."""
    return request.program("calls").result


def async_start(request: Request) -> Shape:
    """Operands, the wrapped computation's result, and the contexts that the instruction says."""
    program = request.programs("calls") or request.programs("called_computations")
    if len(program) != 1:
        return request.needs_shape()
    told = request.given
    contexts = told.tuple_shapes[2:] if told is not None and told.is_tuple else (_CONTEXT,)
    return Shape.tuple_([Shape.tuple_(request.operands), program[0].result, *contexts])


def async_update(request: Request) -> Shape:
    """What the instruction says, else the shape of the operation before it."""
    return request.given if request.given is not None else request.operand(0)


def async_done(request: Request) -> Shape:
    """The result inside the start's tuple."""
    program = request.programs("calls") or request.programs("called_computations")
    if len(program) == 1:
        return program[0].result
    shape = request.operand(0)
    if shape.is_tuple and len(shape.tuple_shapes) >= 2:
        return shape.tuple_shapes[1]
    return request.needs_shape()


# ---------------------------------------------------------------- transfers
def copy_start(request: Request) -> Shape:
    """Destination, source and context."""
    shape = request.operand(0)
    return Shape.tuple_([shape, shape, _CONTEXT])


def copy_done(request: Request) -> Shape:
    """The destination."""
    return _element(request, 0)


def _element(request: Request, number: int) -> Shape:
    shape = request.operand(0)
    if not shape.is_tuple or len(shape.tuple_shapes) <= number:
        invalid(f"{request.opcode} needs the tuple of a start, got {human(shape)}")
    return shape.tuple_shapes[number]


def send(request: Request) -> Shape:
    """Data, context and token."""
    return Shape.tuple_([request.operand(0), _CONTEXT, Shape.token()])


def recv(request: Request) -> Shape:
    """Data as the instruction says, context and token."""
    shape = request.needs_shape()
    if not shape.is_tuple or not shape.tuple_shapes:
        invalid(f"recv gives a tuple of data, context and token, got {human(shape)}")
    return Shape.tuple_([shape.tuple_shapes[0], _CONTEXT, Shape.token()])


def recv_done(request: Request) -> Shape:
    """Data and token."""
    return Shape.tuple_([_element(request, 0), Shape.token()])


def infeed(request: Request) -> Shape:
    """Data as the instruction says, and a token."""
    if not request.operand(0).is_token:
        invalid(f"Expected operand 0 to be token-shaped, actual shape is {human(request.operand(0))}")
    shape = request.needs_shape()
    if not shape.is_tuple or len(shape.tuple_shapes) != 2:
        invalid(f"infeed gives a tuple of data and token, got {human(shape)}")
    return Shape.tuple_([shape.tuple_shapes[0], Shape.token()])


def outfeed(request: Request) -> Shape:
    """A token; the data is of the shape that the attribute says."""
    if not request.operand(1).is_token:
        invalid(f"Expected operand 1 to be token-shaped, actual shape is {human(request.operand(1))}")
    told = request.attr("outfeed_shape")
    if told is not None and not compatible(told, request.operand(0)):
        invalid(
            f"Expected outfeed shape to be equal to operand's shape {human(request.operand(0))}, actual shape is "
            f"{human(told)}"
        )
    return Shape.token()


# ---------------------------------------------------------------- random numbers
def rng(request: Request) -> Shape:
    """What the instruction says; two scalar parameters of its type."""
    if len(request.operands) != 2:
        raise InferenceError(
            f"Expected 2 operands for rng instruction, got {len(request.operands)}", kind="operand-count"
        )
    a, b = request.operands
    shape = request.needs_shape()
    if not a.is_scalar or not b.is_scalar:
        invalid(f"Expected scalar types for the two operands of Rng instruction: {human(a)}, {human(b)}")
    if a.element_type != b.element_type or not same_type_ignoring_precision(a.element_type, shape.element_type):
        invalid(
            "Expected compatible element types for the result and the two operands of Rng instruction: "
            f"{human(shape)} of {human(a)}, {human(b)}"
        )
    distribution = str(request.need("distribution"))
    if distribution == "rng_uniform":
        if not is_float(a) and not is_integral(a) and a.element_type != "pred":
            invalid(
                "Element type not supported. Expected element to be of floating point type, integral type or predicate "
                f"type for RngUniform: {human(a)}"
            )
    elif distribution == "rng_normal":
        if not is_float(a):
            invalid(f"Element type not supported. Expected element to be FloatingPointType for RngNormal: {human(a)}")
    else:
        invalid(f"Invalid Rng distribution {distribution}")
    return shape


def rng_bit_generator(request: Request) -> Shape:
    """What the instruction says; a tuple begins with the state."""
    shape = request.needs_shape()
    if not shape.is_tuple:
        return shape
    if len(shape.tuple_shapes) != 2:
        invalid(f"Expected tuple shape with 2 elements for RngBitGenerator. Got: {shape}")
    if not compatible(request.operand(0), shape.tuple_shapes[0]):
        invalid(
            "Expected state shape to match between input and output for RngBitGenerator. Got "
            f"{request.operand(0)} vs. {shape.tuple_shapes[0]}"
        )
    return shape


def rng_state(request: Request) -> Shape:
    """Two u64."""
    return make("u64", (2,))
