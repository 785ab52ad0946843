"""Shapes of transforms, factorizations and batch normalization. Source: ``openxla/xla:xla/service/
shape_inference.cc#InferFftShape, #InferCholeskyShape, #InferTriangularSolveShape, #InferBatchNorm…Shape``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.infer_shape.base import (
    complex_type,
    component_type,
    expect_array,
    flags_of,
    invalid,
    is_complex,
    is_float,
    make,
    same_type_ignoring_precision,
    sizes_compatible,
    word,
)
from hloscope.core.hlo.shape import UNBOUNDED, Shape

if TYPE_CHECKING:
    from hloscope.core.hlo.infer_shape.base import Request


def fft(request: Request) -> Shape:
    """Complex to complex keeps the shape; real transforms halve (or restore) the last dimension."""
    shape = request.operand(0)
    kind, length = str(request.attr("fft_type", "FFT")), tuple(request.need("fft_length"))
    rank = len(length)
    if not 1 <= rank <= 3:
        invalid(f"FFT only supports ranks 1-3; got {rank}.")
    if kind in ("FFT", "IFFT"):
        if not is_complex(shape):
            invalid(f"{kind} requires complex input type, found {word(shape)}.")
        _check_fft_rank(shape, rank)
        return shape
    dims, flags = list(shape.dimensions), flags_of(shape)
    first = len(dims) - rank
    if kind == "RFFT":
        target = complex_type(shape.element_type)
        if target is None:
            invalid(f"RFFT requires F32 or F64 input type, found {word(shape)}.")
        _check_fft_rank(shape, rank)
        for i, wanted in enumerate(length):
            if dims[first + i] not in (UNBOUNDED, wanted):
                invalid(
                    "RFFT requires innermost dimensions match fft_length but dimension "
                    f"{first + i} is {dims[first + i]} and should be {wanted}."
                )
        if length[-1]:
            flags[-1] = flags[-1] and dims[-1] != UNBOUNDED
            dims[-1] = length[-1] // 2 + 1
        return make(target, dims, flags)
    if kind != "IRFFT":
        invalid(f"unknown fft_type {kind}")
    if not is_complex(shape):
        invalid(f"IRFFT requires complex input type, found {word(shape)}.")
    _check_fft_rank(shape, rank)
    for i, wanted in enumerate(length[:-1]):
        if dims[first + i] != wanted:
            invalid(
                "IRFFT requires all but one innermost dimensions match fft_length, but dimension "
                f"{first + i} is {dims[first + i]} and should be {wanted}."
            )
    if (dims[-1] or length[-1]) and dims[-1] not in (UNBOUNDED, length[-1] // 2 + 1):
        invalid(
            f"IRFFT requires innermost dimension matches fft_length/2+1, but dimension {len(dims) - 1} is {dims[-1]} "
            f"and should be {length[-1] // 2 + 1}."
        )
    flags[-1] = flags[-1] and dims[-1] != UNBOUNDED
    dims[-1] = length[-1]
    return make(component_type(shape.element_type), dims, flags)


def _check_fft_rank(shape: Shape, rank: int) -> None:
    if shape.rank < rank:
        invalid(f"FFT of rank {rank} requires input of at least same rank; got input of rank {shape.rank}")


def cholesky(request: Request) -> Shape:
    """Batches of square matrices."""
    a = request.operand(0)
    if not is_float(a) and not is_complex(a):
        invalid(f"Expected element type in shape to be floating or complex for Cholesky; got {word(a)}.")
    if a.rank < 2:
        invalid(f"The 'a' argument to Cholesky must have rank >= 2, got shape {a}")
    if not sizes_compatible(a.dimensions[-2], a.dimensions[-1]):
        invalid(f"The two minor dimensions of 'a' must have compatible size, got {a}.")
    return a


def triangular_solve(request: Request) -> Shape:
    """The right-hand side's shape."""
    a, b = request.operand(0), request.operand(1)
    if (not is_float(a) and not is_complex(a)) or a.element_type != b.element_type:
        invalid(
            "Expected element types in shape to be floating or complex and identical for TriangularSolve; got "
            f"{word(a)} and {word(b)}."
        )
    if a.rank < 2:
        invalid(f"The 'a' argument to TriangularSolve must have rank >= 2, got shape {a}")
    if b.rank != a.rank:
        invalid(f"Arguments to triangular solve must have equal rank; got {b} and {a}.")
    if not sizes_compatible(a.dimensions[-2], a.dimensions[-1]):
        invalid(f"The two minor dimensions of 'a' must have equal size, got {a}.")
    if not sizes_compatible(a.dimensions[-1], b.dimensions[-2 if request.attr("left_side", False) else -1]):
        invalid(f"The shared dimension of 'a' and 'b' does not match, got shapes {a} and {b}")
    if a.dimensions[:-2] != b.dimensions[:-2]:
        invalid(f"The leading batch dimensions of the arguments to triangular solve must be equal; got {b} and {a}.")
    transpose = str(request.attr("transpose_a", "TRANSPOSE_INVALID"))
    if transpose not in ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"):
        invalid(f"Invalid transpose option value for triangular solve ({transpose}).\n")
    return b


# ---------------------------------------------------------------- batch normalization
def batch_norm_training(request: Request) -> Shape:
    """The normalized operand, mean and variance."""
    return _batch_norm(request, "batch-norm-training", ("scale", "offset"))


def batch_norm_inference(request: Request) -> Shape:
    """The normalized operand."""
    return _batch_norm(request, "batch-norm-inference", ("scale", "offset", "mean", "variance"))


def batch_norm_grad(request: Request) -> Shape:
    """Gradients of operand, scale and offset."""
    return _batch_norm(request, "batch-norm-grad", ("scale", "mean", "variance"))


def _batch_norm(request: Request, name: str, vectors: tuple[str, ...]) -> Shape:
    operand, index = request.operand(0), int(request.need("feature_index"))
    expect_array(operand, f"operand of {name.replace('-', ' ')}")
    shapes = [request.operand(i) for i in range(1, 1 + len(vectors))]
    for shape, what in zip(shapes, vectors, strict=True):
        expect_array(shape, f"{what} input of {name.replace('-', ' ')}")
    if index >= operand.rank:
        invalid(
            f"Expected feature_index of {name} to be smaller than the rank of operand_shape; "
            f"got feature_index {index}, and rank {operand.rank}."
        )
    if index < 0:
        invalid(f"Expected feature_index of {name} to be a non-negative number, got {index}.")
    gradient = request.operand(4) if name == "batch-norm-grad" else None
    if gradient is not None:
        expect_array(gradient, "output_grad input of batch norm grad")
        if gradient.rank != operand.rank:
            invalid(
                "Expected operand_shape of batch-norm-grad to have the same rank as output_grad_shape; got "
                f"rank(oprand_shape) {operand.rank}, and rank(output_grad_shape) {gradient.rank}."
            )
    for shape, what in zip(shapes, vectors, strict=True):
        if shape.rank != 1:
            invalid(f"{what.capitalize()} input of {name} must have rank 1, but has rank {shape.rank}.")
    if not is_float(operand):
        invalid(f"The operand to {name} must have a floating point element type, but the shape is {word(operand)}.")
    if gradient is not None and not is_float(gradient):
        invalid(
            f"The output_grad to {name} must have a floating point element type, but the shape is {word(gradient)}."
        )
    for shape, what in zip(shapes, vectors, strict=True):
        if not same_type_ignoring_precision(shape.element_type, operand.element_type):
            invalid(
                f"The inputs should have the same element type for {name}, but the shape of {what} is {word(shape)} "
                f"and the shape of operand is {word(operand)}."
            )
    count = operand.dimensions[index]
    for shape, what in zip(shapes, vectors, strict=True):
        if not sizes_compatible(shape.dimensions[0], count):
            invalid(
                f"The size of {what} should be compatible with feature count, but the size of {what} is "
                f"{shape.dimensions[0]} and the feature count is {count}."
            )
    if gradient is not None:
        for i, (a, b) in enumerate(zip(operand.dimensions, gradient.dimensions, strict=True)):
            if not sizes_compatible(a, b):
                invalid(
                    "The bounds of operand shape should be compatible with output_grad's, but the bound of "
                    f"operand_shape at dimension {i} is {a} and the bound of output_grad_shape is {b}."
                )
    if name == "batch-norm-inference":
        return operand
    feature = make(operand.element_type, (count,), (operand.dimension_is_dynamic(index),))
    return Shape.tuple_([operand, feature, feature])
