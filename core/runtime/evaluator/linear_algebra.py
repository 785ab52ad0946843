"""fft, cholesky, triangular-solve, and the batch normalizations.

Source: ``openxla/xla:xla/hlo/evaluator/hlo_evaluator.cc`` (HandleFft, HandleTriangularSolve),
``xla/hlo/transforms/expanders/cholesky_expander.cc``, ``xla/service/batchnorm_expander.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hloscope.core.runtime.evaluator import numerics
from hloscope.core.runtime.evaluator.values import (
    Array,
    InstructionUnsupported,
    Kernel,
    Machine,
    Prepare,
    Value,
    normal_axes,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.element_types import ElementType
    from hloscope.core.hlo.instruction import HloInstruction

Transform: TypeAlias = Callable[[Array, list[int], list[int]], Array]


# ---------------------------------------------------------------- fft
def _real_forward(x: Array, lengths: list[int], axes: list[int]) -> Array:
    return np.fft.rfftn(x.astype(np.float64), lengths, axes)


def _real_backward(x: Array, lengths: list[int], axes: list[int]) -> Array:
    return np.fft.irfftn(x.astype(np.complex128), lengths, axes)


def _forward(x: Array, lengths: list[int], axes: list[int]) -> Array:
    return np.fft.fftn(x.astype(np.complex128), lengths, axes)


def _backward(x: Array, lengths: list[int], axes: list[int]) -> Array:
    return np.fft.ifftn(x.astype(np.complex128), lengths, axes)


_TRANSFORMS: Mapping[str, Transform] = MappingProxyType(
    {"FFT": _forward, "IFFT": _backward, "RFFT": _real_forward, "IRFFT": _real_backward}
)


def _fft(instruction: HloInstruction, machine: Machine) -> Kernel:
    transform = _TRANSFORMS.get(instruction.attr("fft_type") or "")
    if transform is None:
        raise InstructionUnsupported(instruction, f"with fft_type={instruction.attr('fft_type')}")
    lengths: list[int] = list(instruction.attr("fft_length") or ())
    rank = instruction.shape.rank
    axes = list(range(rank - len(lengths), rank))
    shape, dtype = instruction.shape.dimensions, instruction.shape.type.dtype

    def kernel(x: Array) -> Array:
        if 0 in shape or 0 in lengths or x.size == 0:
            return np.zeros(shape, dtype)
        return transform(x, lengths, axes).astype(dtype)

    return kernel


# ---------------------------------------------------------------- factorizations and solves
def cholesky(x: Array, lower: bool) -> tuple[Array, Array]:
    """The factor of each matrix, read from the named triangle alone and zero in the other, and the first bad minor.

    The second array is 0 where the matrix is positive definite, else 1 plus the pivot at which it turned out not to be;
    from that column on the factor is NaN.
    """
    a = x if lower else np.conj(np.swapaxes(x, -1, -2))
    n = a.shape[-1]
    factor = np.zeros_like(a)
    bad = np.zeros(a.shape[:-2], np.int32)
    for j in range(n):
        row = factor[..., j, :j]
        pivot = np.real(a[..., j, j]) - np.sum(np.real(row * np.conj(row)), axis=-1)
        bad = np.where((bad == 0) & ~(pivot > 0), j + 1, bad).astype(np.int32)
        root = np.sqrt(np.where(pivot > 0, pivot, np.nan))
        factor[..., j, j] = root
        if j + 1 < n:
            below = a[..., j + 1 :, j] - np.einsum("...ik,...k->...i", factor[..., j + 1 :, :j], np.conj(row))
            factor[..., j + 1 :, j] = below / root[..., np.newaxis]
    return (factor if lower else np.conj(np.swapaxes(factor, -1, -2))), bad


def _cholesky(instruction: HloInstruction, machine: Machine) -> Kernel:
    lower = instruction.attr("lower") is True
    element = instruction.shape.type
    wide, out = numerics.widen(element), numerics.narrow(element)

    def kernel(x: Array) -> Array:
        factor, bad = cholesky(wide(x), lower)
        return out(np.where((bad != 0)[..., np.newaxis, np.newaxis], factor.dtype.type(np.nan), factor))

    return kernel


def solve_triangular(
    a: Array, b: Array, *, left: bool, lower: bool, unit_diagonal: bool, transpose: str = "NO_TRANSPOSE"
) -> Array:
    """X with op(a) X = b (or X op(a) = b), by substitution; only the named triangle of `a` is read."""
    if transpose == "ADJOINT":
        a = np.conj(a)
    flipped = transpose in ("TRANSPOSE", "ADJOINT")
    if not left:  # X op(a) = b is op(a)^T X^T = b^T
        flipped = not flipped
        b = np.swapaxes(b, -1, -2)
    if flipped:
        a, lower = np.swapaxes(a, -1, -2), not lower
    n = a.shape[-1]
    x = np.array(np.broadcast_to(b, (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])))
    for i in range(n) if lower else range(n - 1, -1, -1):
        known = slice(0, i) if lower else slice(i + 1, n)
        row = x[..., i, :] - np.einsum("...k,...kj->...j", a[..., i, known], x[..., known, :])
        x[..., i, :] = row if unit_diagonal else row / a[..., i, i, np.newaxis]
    return x if left else np.swapaxes(x, -1, -2)


def _triangular_solve(instruction: HloInstruction, machine: Machine) -> Kernel:
    left, lower = instruction.attr("left_side") is True, instruction.attr("lower") is True
    unit = instruction.attr("unit_diagonal") is True
    transpose = instruction.attr("transpose_a") or "NO_TRANSPOSE"
    element = instruction.shape.type
    wide, out = numerics.widen(element), numerics.narrow(element)
    return lambda a, b: out(
        solve_triangular(wide(a), wide(b), left=left, lower=lower, unit_diagonal=unit, transpose=transpose)
    )


# ---------------------------------------------------------------- batch normalization
def _along(x: Array, feature: int, rank: int) -> Array:
    sides = [1] * rank
    sides[feature] = x.shape[0]
    return x.reshape(sides)


def _batch_norm(
    instruction: HloInstruction,
) -> tuple[ElementType, int, float, tuple[int, ...], Callable[[Array], Array], Callable[[Array], Array]]:
    shape = instruction.operand(0).shape
    feature = int(instruction.attr("feature_index") or 0)
    # The attribute is an f32 also where the data are wider.
    epsilon = float(np.float32(instruction.attr("epsilon") or 0.0))
    if shape.type.kind != "float":
        raise InstructionUnsupported(instruction, f"of {shape.type.name}")
    axes = normal_axes((feature,), shape.rank)
    return shape.type, feature, epsilon, axes, numerics.widen(shape.type), numerics.narrow(shape.type)


def _training(instruction: HloInstruction, machine: Machine) -> Kernel:
    """(normalized, mean, variance); the variance is E[x²] - E[x]² in the element's precision, as compiled."""
    _, feature, epsilon, axes, wide, out = _batch_norm(instruction)

    def kernel(x: Array, scale: Array, offset: Array) -> Value:
        value = wide(x)
        kind = value.dtype.type
        mean = np.mean(value, axis=axes, dtype=value.dtype)
        variance = np.mean(value * value, axis=axes, dtype=value.dtype) - mean * mean
        rank = value.ndim
        factor = np.reciprocal(np.sqrt(_along(variance, feature, rank) + kind(epsilon)))
        normal = (value - _along(mean, feature, rank)) * factor
        result = normal * _along(wide(scale), feature, rank) + _along(wide(offset), feature, rank)
        return (out(result), out(mean), out(variance))

    return kernel


def _inference(instruction: HloInstruction, machine: Machine) -> Kernel:
    _, feature, epsilon, _axes, wide, out = _batch_norm(instruction)

    def kernel(x: Array, scale: Array, offset: Array, mean: Array, variance: Array) -> Value:
        value = wide(x)
        along = [_along(wide(part), feature, value.ndim) for part in (scale, offset, mean, variance)]
        factor = np.reciprocal(np.sqrt(along[3] + value.dtype.type(epsilon)))
        return out((value - along[2]) * factor * along[0] + along[1])

    return kernel


def _gradient(instruction: HloInstruction, machine: Machine) -> Kernel:
    _, feature, epsilon, axes, wide, out = _batch_norm(instruction)

    def kernel(x: Array, scale: Array, mean: Array, variance: Array, gradient: Array) -> Value:
        value, grad = wide(x), wide(gradient)
        rank = value.ndim
        count = value.dtype.type(value.size // max(1, value.shape[feature]))
        along = [_along(wide(part), feature, rank) for part in (scale, mean, variance)]
        factor = np.reciprocal(np.sqrt(along[2] + value.dtype.type(epsilon)))
        centered = value - along[1]
        grad_offset = np.sum(grad, axis=axes, dtype=value.dtype)
        weighted = np.sum(grad * centered, axis=axes, dtype=value.dtype)
        grad_scale = weighted * factor.reshape(-1)
        inner = count * grad - _along(grad_offset, feature, rank)
        inner = inner - centered * _along(weighted, feature, rank) * factor * factor
        return (out(along[0] * factor / count * inner), out(grad_scale), out(grad_offset))

    return kernel


TABLE: Mapping[str, Prepare] = MappingProxyType(
    {
        "batch-norm-grad": _gradient,
        "batch-norm-inference": _inference,
        "batch-norm-training": _training,
        "cholesky": _cholesky,
        "fft": _fft,
        "triangular-solve": _triangular_solve,
    }
)
