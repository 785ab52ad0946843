"""Linear algebra of XLA:GPU (cuSOLVER) and libtpu, and libtpu's halves of 64-bit values, call by call.

The cuSOLVER calls are LAPACK's with other options. libtpu takes the building blocks of XLA's expanders out of its
compiler: a panel's factors, inverted diagonal blocks, the triangular factor of a product of reflectors. Source:
``jaxlib/gpu/solver_kernels_ffi.cc``, ``openxla/xla:xla/hlo/transforms/expanders/{qr,triangular_solve}_expander.cc``;
for libtpu what surrounds the calls in its dumps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.runtime.evaluator import lapack, linear_algebra
from hloscope.core.runtime.evaluator.lapack import Options, each_matrix
from hloscope.core.runtime.evaluator.values import Array, InstructionUnsupported, Kernel, Machine, Prepare, Value

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


# ---------------------------------------------------------------- cuSOLVER
def _triangle(options: Options) -> Options:
    return {**options, "uplo": ord("L") if options.get("lower", 1) else ord("U"), "mode": ord("V")}


def _syevd(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    lapack.syevd(_triangle(options), given, out)


def _sytrd(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    if not options.get("lower", 1):
        raise np.linalg.LinAlgError("of the upper triangle")
    lapack.sytrd(_triangle(options), given, out)


def _gesvd(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """Singular values, left vectors, right vectors (transposed, as LAPACK has them); a transposed matrix comes so."""
    _, values, left, right = out[:4]
    if not options.get("compute_uv", 1):
        values[...] = np.linalg.svd(given[0], compute_uv=False)
        return
    left[...], values[...], right[...] = np.linalg.svd(given[0], full_matrices=bool(options.get("full_matrices", 0)))


def _gesvdj(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """As `_gesvd`, with the right vectors as columns; without vectors only the values mean something."""
    _, values, left, right = out[:4]
    if not options.get("compute_uv", 1):
        values[...] = np.linalg.svd(given[0], compute_uv=False)
        return
    u, values[...], vh = np.linalg.svd(given[0], full_matrices=bool(options.get("full_matrices", 0)))
    left[...], right[...] = u, np.conj(vh.T)


def _potrf(instruction: HloInstruction, machine: Machine) -> Kernel:
    lower = bool(lapack.attributes(instruction).get("lower", 1))

    def kernel(a: Array) -> Value:
        factor, bad = linear_algebra.cholesky(a, lower)
        rows, columns = np.indices(a.shape[-2:])
        return (np.where(rows >= columns if lower else rows <= columns, factor, a), bad)

    return kernel


def _permutation(pivots: Array, size: int) -> Array:
    """What the swaps of rows i and pivots[i] (0-based), one after the other, make of 0, 1, 2 …"""
    out = np.arange(size, dtype=pivots.dtype)
    for i, pivot in enumerate(pivots):
        out[[i, pivot]] = out[[pivot, i]]
    return out


def _pivots_to_permutation(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    out[0][...] = _permutation(given[0], out[0].shape[-1])


# ---------------------------------------------------------------- libtpu
def _lu(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """LU with partial pivoting: factors, 0-based swaps, and the permutation that they make."""
    factors, pivots, permutation = out
    info = np.zeros((), np.int32)
    lapack.getrf(options, given, [factors, pivots, info])
    pivots -= 1
    permutation[...] = _permutation(pivots, len(permutation))


def _cholesky(instruction: HloInstruction, machine: Machine) -> Kernel:
    """The lower factor of the lower triangle, zeros above."""
    return lambda a: linear_algebra.cholesky(a, True)[0]


def _inverted(lower: bool) -> Prepare:
    def prepare(instruction: HloInstruction, machine: Machine) -> Kernel:
        def kernel(blocks: Array) -> Array:
            unit = np.broadcast_to(np.eye(blocks.shape[-1], dtype=blocks.dtype), blocks.shape)
            return linear_algebra.solve_triangular(
                blocks, unit, left=True, lower=lower, unit_diagonal=False, transpose="NO_TRANSPOSE"
            )

        return kernel

    return prepare


def _compact_wy(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """T of a product of reflectors ``1 + V T V^H``: column j of the identity becomes T times that of the operand."""
    total = np.eye(len(given[0]), dtype=given[0].dtype)
    for j in range(len(total)):
        total[:, j] = total @ given[0][:, j]
    out[0][...] = total


def _eigh(instruction: HloInstruction, machine: Machine) -> Kernel:
    """Of a symmetric matrix in quarters: the eigenvalues in two halves, the eigenvectors as rows in quarters.

    In which order is not said, and what follows sorts; here they ascend.
    """

    def kernel(top_left: Array, top_right: Array, bottom_left: Array, bottom_right: Array) -> Value:
        half = top_left.shape[-1]
        values, vectors = np.linalg.eigh(np.block([[top_left, top_right], [bottom_left, bottom_right]]))
        rows = np.conj(vectors.swapaxes(-1, -2))
        quarters = [rows[..., i, j] for i in (slice(half), slice(half, None)) for j in (slice(half), slice(half, None))]
        return (values[..., :half], values[..., half:], *quarters)

    return kernel


def _half(high: bool) -> Prepare:
    """The real or imaginary part, the low or high word, or what of an f64 an f32 holds and what is left of it."""

    def prepare(instruction: HloInstruction, machine: Machine) -> Kernel:
        element, dtype = instruction.operand(0).shape.type, instruction.shape.type.dtype
        if element.kind == "complex":
            return lambda x: np.asarray(np.imag(x) if high else np.real(x)).astype(dtype)
        if element.is_integral:
            shift = np.uint64(32 if high else 0)
            return lambda x: (x.view(np.uint64) >> shift).astype(np.uint32).view(dtype)
        if element.name != "f64":
            raise InstructionUnsupported(instruction, f"of {element.name}")
        if high:
            return lambda x: x.astype(dtype)
        return lambda x: (x - x.astype(np.float32).astype(np.float64)).astype(dtype)

    return prepare


def _combine(instruction: HloInstruction, machine: Machine) -> Kernel:
    """The reverse of the halves: (low, high) to one value."""
    element = instruction.shape.type

    def kernel(low: Array, high: Array) -> Array:
        if element.kind == "complex":
            out = np.empty(low.shape, element.dtype)
            np.real(out)[...], np.imag(out)[...] = low, high
            return out
        if element.is_integral:
            words = [np.ascontiguousarray(x).reshape(low.shape).view(np.uint32).astype(np.uint64) for x in (low, high)]
            return (words[0] | (words[1] << np.uint64(32))).view(element.dtype)
        return high.astype(element.dtype) + low.astype(element.dtype)

    return kernel


TARGETS: Mapping[str, Prepare] = MappingProxyType(
    {
        "cu_lu_pivots_to_permutation": each_matrix(_pivots_to_permutation, (1,)),
        "cublas_geqrf_batched_ffi": each_matrix(lapack.geqrf),
        "cublas_getrf_batched_ffi": each_matrix(lapack.getrf),
        "cusolver_geqrf_ffi": each_matrix(lapack.geqrf),
        "cusolver_gesvd_ffi": each_matrix(_gesvd),
        "cusolver_gesvdj_ffi": each_matrix(_gesvdj),
        "cusolver_getrf_ffi": each_matrix(lapack.getrf),
        "cusolver_orgqr_ffi": each_matrix(lapack.orgqr, (2, 1)),
        "cusolver_ormqr_ffi": each_matrix(lapack.ormqr, (2, 1, 2)),
        "cusolver_potrf_ffi": _potrf,
        "cusolver_syevd_ffi": each_matrix(_syevd),
        "cusolver_sytrd_ffi": each_matrix(_sytrd),
        "Cholesky": _cholesky,
        "CompactWyHelper": each_matrix(_compact_wy),
        "EighTpu": _eigh,
        "InvertDiagBlocksLowerTriangular": _inverted(True),
        "InvertDiagBlocksUpperTriangular": _inverted(False),
        "LuDecomposition": each_matrix(_lu),
        "LuDecompositionBlock": each_matrix(_lu),
        "QrDecompositionBlock": each_matrix(lapack.geqrf),
        "X64Combine": _combine,
        "X64SplitHigh": _half(True),
        "X64SplitLow": _half(False),
    }
)
"""Target -> what prepares its kernel."""
