"""Shapes of elementwise operations. Source: ``openxla/xla:xla/service/shape_inference.cc#InferUnaryOpShape,
#InferBinaryOpShape, #InferClampShape, #InferSelectShape, #InferConvertShape`` and their kin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hloscope.core.hlo.infer_shape.base import (
    InferenceError,
    compatible_ignoring_precision,
    compatible_ignoring_type,
    complex_type,
    component_type,
    expect_array,
    flags_of,
    higher_precision,
    human,
    invalid,
    is_complex,
    is_float,
    is_integral,
    is_signed,
    is_unbounded,
    make,
    retyped,
    row_of,
    same_type_ignoring_precision,
    type_word,
    word,
)
from hloscope.core.hlo.shape import UNBOUNDED, Shape

if TYPE_CHECKING:
    from hloscope.core.hlo.infer_shape.base import Request


# ---------------------------------------------------------------- unary
def same_as_operand(request: Request) -> Shape:
    """Copy and domain: the operand's shape, tuples too."""
    return request.operand(0)


def _unary(request: Request) -> Shape:
    shape = request.operand(0)
    expect_array(shape, "operand of unary operation")
    return shape


def floating(request: Request) -> Shape:
    """Real floating operands only."""
    shape = _unary(request)
    if not is_float(shape):
        invalid(f"Expected element type in shape to be floating for {request.opcode} operation; got {word(shape)}.")
    return shape


def floating_or_complex(request: Request) -> Shape:
    """Floating or complex operands."""
    shape = _unary(request)
    if not is_float(shape) and not is_complex(shape):
        _refuse_type(request, shape, "floating or complex")
    return shape


def _refuse_type(request: Request, shape: Shape, what: str) -> None:
    invalid(f"Expected element type in shape to be {what} for {request.opcode} operation; got {word(shape)}.")


def part(request: Request) -> Shape:
    """Real and imag: the component of a complex operand, a float as it is."""
    shape = _unary(request)
    if not is_float(shape) and not is_complex(shape):
        _refuse_type(request, shape, "floating or complex")
    return retyped(shape, component_type(shape.element_type))


def absolute(request: Request) -> Shape:
    """Magnitude: the component type of a complex operand; unsigned operands are refused."""
    shape = _unary(request)
    if is_complex(shape):
        return retyped(shape, component_type(shape.element_type))
    if not is_signed(shape):
        _refuse_type(request, shape, "floating or complex")
    return shape


def bit_count(request: Request) -> Shape:
    """Count-leading-zeros and population count: integers only."""
    shape = _unary(request)
    if not is_integral(shape):
        name = "Clz" if request.opcode == "count-leading-zeros" else "PopulationCount"
        invalid(f"Expected an integral element type in argument to {name} operation; got {word(shape)}.")
    return shape


def negate(request: Request) -> Shape:
    """Anything but pred."""
    shape = _unary(request)
    if not is_integral(shape) and not is_float(shape) and not is_complex(shape):
        _refuse_type(request, shape, "integral, floating or complex")
    return shape


def sign(request: Request) -> Shape:
    """Signed or complex operands."""
    shape = _unary(request)
    if not is_signed(shape) and not is_complex(shape):
        _refuse_type(request, shape, "signed or complex")
    return shape


def logical_not(request: Request) -> Shape:
    """Pred or integers."""
    shape = _unary(request)
    if shape.element_type != "pred" and not is_integral(shape):
        invalid(f"Expected pred or an integral element type in argument to Not operation; got {word(shape)}.")
    return shape


def is_finite(request: Request) -> Shape:
    """A pred for each float."""
    shape = _unary(request)
    if not is_float(shape):
        invalid(f"Expected element type in shape to be floating point for IsFinite operation; got {word(shape)}.")
    return retyped(shape, "pred")


def convert(request: Request) -> Shape:
    """The operand's dimensions under the type that the instruction says."""
    shape, target = request.operand(0), request.needs_shape().element_type
    if not shape.is_array or target in ("tuple", "token", "opaque", "buffer"):
        invalid(f"Convert does not allow non-arrays, so cannot convert from {human(shape)} to {type_word(target)}.")
    return retyped(shape, target)


def bitcast_convert(request: Request) -> Shape:
    """The same bits: a narrower type adds a minor dimension, a wider one takes it away."""
    shape, target = request.operand(0), request.needs_shape()
    if is_complex(shape) != is_complex(target):
        invalid(f"Conversion between complex and real type {human(shape)} => {word(target)}.")
    if not shape.is_array or not target.is_array:
        invalid(f"Cannot convert from or to tuple type; requested conversion: {human(shape)} => {word(target)}.")
    before, after = row_of(shape).bits, row_of(target).bits
    if not before or not after:
        return target  # a type that nobody knows yet has no width to compare
    wide, narrow = max(before, after), min(before, after)
    if wide % narrow:
        invalid(f"Cannot bitcast types with undivisible bit-widths: {word(shape)} => {word(target)}.")
    ratio = wide // narrow
    dims, flags = list(shape.dimensions), flags_of(shape)
    if before > after:
        dims.append(ratio)
        flags.append(False)
    elif before < after:
        if not dims or dims[-1] != ratio:
            invalid(
                f"Last dimension of input shape={dims[-1] if dims else 0} is not equal to ratio of bit-widths={ratio} "
                f"for bitcast-convert from {human(shape)} to {word(target)}"
            )
        dims.pop()
        flags.pop()
    return make(target.element_type, dims, flags)


def stochastic_convert(request: Request) -> Shape:
    """A float operand and unsigned random bits of the same width and shape."""
    shape, random = request.operand(0), request.operand(1)
    target = request.needs_shape().element_type
    expect_array(shape, "lhs of stochastic convert operation")
    expect_array(random, "rhs of stochastic convert operation")
    if row_of(random).kind != "uint":
        invalid(f"Random numbers for stochastic convert must be unsigned integers, but got: {random}")
    if not is_float(shape):
        invalid(f"Stochastic convert supports only floating point operand conversion, but got: {random}")
    if row_of(shape).bits != row_of(random).bits:
        invalid(
            "The random number is required to have same bits as the operand. But got random bits: "
            f"{row_of(random).bits}, operand bits: {row_of(shape).bits}"
        )
    if shape.dimensions != random.dimensions or flags_of(shape) != flags_of(random):
        invalid(f"Stochastic convert operand shape does not match random tensor shape: {shape} vs {random}.")
    return retyped(shape, target)


def reduce_precision(request: Request) -> Shape:
    """The operand's shape; at least one exponent bit."""
    shape = request.operand(0)
    exponent, mantissa = int(request.need("exponent_bits")), int(request.need("mantissa_bits"))
    if not is_float(shape):
        invalid(
            f"Expected element type in shape to be floating point for ReducePrecision operation; got {word(shape)}."
        )
    if exponent < 1:
        invalid(f"Expected exponent_bits >= 1; got {exponent}.")
    if mantissa < 0:
        invalid(f"Expected non-negative mantissa_bits; got {mantissa}.")
    return shape


# ---------------------------------------------------------------- binary
def binary(request: Request) -> Shape:
    """Arithmetic and comparisons of two arrays."""
    lhs, rhs, opcode = request.operand(0), request.operand(1), request.opcode
    expect_array(lhs, f"lhs of binary operation {opcode}")
    expect_array(rhs, f"rhs of binary operation {opcode}")
    if opcode in _ARITHMETIC:
        if lhs.element_type == "pred" or rhs.element_type == "pred":
            invalid(f"Expected element type in shape to be arithmetic type for operation {opcode}; got PRED.")
    elif opcode == "complex":
        return _complex(opcode, lhs, rhs)
    elif opcode in ("and", "or", "xor"):
        if lhs.element_type != "pred" and not is_integral(lhs):
            invalid(f"Expected pred or integral type in argument to and/or operation; got {word(lhs)}.")
    elif opcode == "compare":
        return retyped(merged(opcode, lhs, rhs), "pred")
    return merged(opcode, lhs, rhs)


_ARITHMETIC = frozenset(
    {"subtract", "atan2", "power", "divide", "remainder", "shift-left", "shift-right-arithmetic", "shift-right-logical"}
)


def _complex(opcode: str, lhs: Shape, rhs: Shape) -> Shape:
    if not is_float(lhs):
        invalid(f"Expected element type in shape to be floating for complex compose operation; got {word(lhs)}.")
    shape = merged(opcode, lhs, rhs)
    target = complex_type(lhs.element_type) if lhs.element_type == rhs.element_type else None
    if target is None:
        raise InferenceError("Complex component type is not implemented.", kind="unimplemented")
    return retyped(shape, target)


def merged(opcode: str, lhs: Shape, rhs: Shape) -> Shape:
    """The shape of two arrays taken together: sizes of 1 stretch, and a scalar fits any shape.

    Source: ``#InferElementwiseBinaryOpShape``. HLO has no implicit broadcast; the verifier refuses it afterwards.
    """
    if not same_type_ignoring_precision(lhs.element_type, rhs.element_type):
        invalid(f"Binary op {opcode} with different element types: {human(lhs)} and {human(rhs)}.")
    if opcode == "atan2" and not is_float(lhs) and not is_complex(lhs):
        invalid(f"Expected input element type to be floating or complex for {opcode} operation; got {word(lhs)}.")
    element_type = higher_precision(lhs.element_type, rhs.element_type)
    if compatible_ignoring_precision(lhs, rhs) and UNBOUNDED not in lhs.dimensions and UNBOUNDED not in rhs.dimensions:
        if not rhs.dynamic_dimensions:
            return retyped(lhs, element_type)
        return make(element_type, lhs.dimensions, [a or b for a, b in zip(flags_of(lhs), flags_of(rhs), strict=True)])
    if len(lhs.dimensions) == len(rhs.dimensions):
        return _stretched(lhs, rhs, element_type)
    larger, smaller = (lhs, rhs) if len(lhs.dimensions) > len(rhs.dimensions) else (rhs, lhs)
    if smaller.dimensions:
        invalid(f"Shapes must be equal rank, but are {human(smaller)} and {human(larger)}")
    return retyped(larger, element_type)


def _stretched(lhs: Shape, rhs: Shape, element_type: str) -> Shape:
    dims: list[int] = []
    flags: list[bool] = []
    for i, (a, b) in enumerate(zip(lhs.dimensions, rhs.dimensions, strict=True)):
        a_dynamic, b_dynamic = lhs.dimension_is_dynamic(i), rhs.dimension_is_dynamic(i)
        if a == 1 or b == 1:
            dims.append(b if a == 1 else a)
            flags.append(b_dynamic if a == 1 else a_dynamic)
        elif a == b:
            dims.append(a)
            flags.append(a_dynamic or b_dynamic)
        elif UNBOUNDED in (a, b):
            dims.append(b if a == UNBOUNDED else a)
            flags.append(b_dynamic if a == UNBOUNDED else a_dynamic)
        else:
            invalid(f"Binary op with incompatible shapes: {human(lhs)} and {human(rhs)}.")
    return make(element_type, dims, flags)


# ---------------------------------------------------------------- ternary
def clamp(request: Request) -> Shape:
    """The operand's shape; bounds are scalars or of that shape."""
    low, shape, high = request.operand(0), request.operand(1), request.operand(2)
    expect_array(low, "clamp min")
    expect_array(shape, "clamp operand")
    expect_array(high, "clamp max")
    types = (low.element_type, shape.element_type, high.element_type)
    if not all(same_type_ignoring_precision(a, b) for a in types for b in types):
        invalid(f"Clamp with incompatible element types: {human(low)}, {human(shape)}, {human(high)}.")
    bounds = [bound for bound in (low, high) if not bound.is_scalar]
    if not all(compatible_ignoring_precision(bound, shape) for bound in bounds) or (
        len(bounds) == 2 and not compatible_ignoring_precision(low, high)
    ):
        invalid(f"Clamp with incompatible shapes: {human(low)}, {human(shape)}, {human(high)}.")
    return shape


def _packed_as(one: Shape, result: Shape) -> Shape:
    """The result with the bits an element that another shape has."""
    bits = one.layout.element_size_in_bits if one.layout is not None else 0
    if result.layout is None or result.layout.element_size_in_bits == bits:
        return result
    return result.with_layout(replace(result.layout, element_size_in_bits=bits))


def select(request: Request) -> Shape:
    """The branches' shape; the pred is a scalar or of that shape."""
    pred, on_true, on_false = request.operand(0), request.operand(1), request.operand(2)
    expect_array(pred, "select pred")
    expect_array(on_true, "select on-true")
    expect_array(on_false, "select on-false")
    if not compatible_ignoring_precision(on_true, on_false):
        invalid(f"Operands to select must be the same shape; got {human(on_true)} and {human(on_false)}.")
    if pred.element_type != "pred":
        invalid(f"Select's pred operand must have PRED element type; got {human(pred)}.")
    if not pred.is_scalar and not (
        compatible_ignoring_type(pred, on_true) and compatible_ignoring_type(pred, on_false)
    ):
        invalid(
            f"Operands to select and predicate must be the same shape; got {human(on_true)} and {human(on_false)} "
            f"and {human(pred)}."
        )
    element_type = higher_precision(on_true.element_type, on_false.element_type)
    full = on_true if pred.is_scalar else pred
    if not (pred.dynamic_dimensions or on_true.dynamic_dimensions or on_false.dynamic_dimensions):
        return _packed_as(on_true, retyped(full, element_type))
    dims: list[int] = []
    flags: list[bool] = []
    for i, size in enumerate(full.dimensions):
        one, other = on_true.dimension_is_dynamic(i), on_false.dimension_is_dynamic(i)
        if is_unbounded(on_true, i) or is_unbounded(on_false, i):
            a, b = on_true.dimensions[i], on_false.dimensions[i]
            dims.append(b if a == UNBOUNDED else a)
            flags.append(one and other)
        else:
            dims.append(size)
            flags.append((not pred.is_scalar and pred.dimension_is_dynamic(i)) or one or other)
    return make(element_type, dims, flags)
