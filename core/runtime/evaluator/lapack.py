"""LAPACK custom calls of XLA:CPU: what each target computes, matrix by matrix, by LAPACK's own conventions.

Results that LAPACK leaves undefined (what it worked in, vectors that nobody asked for) are zeros. Where signs are free
(singular vectors, eigenvectors) they are those of numpy's LAPACK, which need not be those of another build. Source:
``jaxlib/cpu/lapack_kernels.cc``; LAPACK Users' Guide. Arrays arrive in logical order: column-major layouts do not show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from hloscope.core.runtime.evaluator import linear_algebra
from hloscope.core.runtime.evaluator.values import (
    Array,
    InstructionUnsupported,
    Kernel,
    Machine,
    Prepare,
    Value,
    leaves,
    pack,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction

Options: TypeAlias = Mapping[str, int]
Routine: TypeAlias = "Callable[[Options, Sequence[Array], list[Array]], None]"
"""Works on one matrix: options, operands, and results that it fills (zeros before)."""


def attributes(instruction: HloInstruction) -> dict[str, int]:
    """The integers and flags of an FFI call's ``{name = 76 : ui8, …}`` or JSON dictionary."""
    config = instruction.attr("backend_config")
    if isinstance(config, dict):
        return {k: int(v) for k, v in cast("dict[str, Any]", config).items() if isinstance(v, int)}
    out: dict[str, int] = {}
    for part in str(config or "").strip("{} ").split(","):
        key, _, value = part.partition("=")
        number = value.partition(":")[0].strip()
        if number in ("true", "false"):
            out[key.strip()] = int(number == "true")
        elif number.lstrip("-").isdigit():
            out[key.strip()] = int(number)
    return out


# ---------------------------------------------------------------- solved for all matrices at once
def _potrf(instruction: HloInstruction, machine: Machine) -> Kernel:
    """Cholesky in place, the other triangle keeping the input; then the first bad minor, 1-based, 0 for none."""
    lower = attributes(instruction).get("uplo", ord("L")) == ord("L")

    def kernel(a: Array) -> Value:
        factor, bad = linear_algebra.cholesky(a, lower)
        rows, columns = np.indices(a.shape[-2:])
        named = rows >= columns if lower else rows <= columns
        return (np.where(named, factor, a), bad)

    return kernel


def _trsm(instruction: HloInstruction, machine: Machine) -> Kernel:
    """Triangular solve: op(A) X = B or X op(A) = B."""
    given = attributes(instruction)
    transpose = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}.get(chr(given.get("trans_x", ord("N"))))
    if transpose is None:
        raise InstructionUnsupported(instruction, f"with trans_x={given.get('trans_x')}")
    left = given.get("side", ord("L")) == ord("L")
    lower = given.get("uplo", ord("L")) == ord("L")
    unit = given.get("diag", ord("N")) == ord("U")
    return lambda a, b, *_alpha: linear_algebra.solve_triangular(
        a, b, left=left, lower=lower, unit_diagonal=unit, transpose=transpose
    )


# ---------------------------------------------------------------- reflectors
def _reflector(x: Array) -> tuple[Array, Any, Any]:
    """v, tau and beta with (1 - conj(tau) v v^H) x = beta e1, v[0] = 1: LAPACK's ``larfg``."""
    alpha, rest = x[0], x[1:]
    v = np.zeros_like(x)
    v[0] = 1
    norm = np.linalg.norm(rest)
    if norm == 0 and np.imag(alpha) == 0:
        return v, x.dtype.type(0), alpha
    beta = -np.copysign(np.hypot(np.abs(alpha), norm), np.real(alpha))
    v[1:] = rest / (alpha - beta)
    tau = (beta - np.real(alpha)) / beta
    if np.iscomplexobj(x):
        tau = tau - 1j * np.imag(alpha) / beta
    return v, tau, beta


def _reflected(a: Array, v: Array, tau: Any) -> Array:
    """(1 - tau v v^H) a."""
    return a - tau * np.outer(v, np.conj(v) @ a)


def _eliminate(a: Array, column: int, row: int) -> Any:
    """Zero a column below a row by a reflector, which stays there; the columns to its right follow. Returns tau."""
    v, tau, beta = _reflector(a[row:, column])
    a[row:, column + 1 :] = _reflected(a[row:, column + 1 :], v, np.conj(tau))
    a[row, column] = beta
    a[row + 1 :, column] = v[1:]
    return tau


def geqrf(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    a = _wide(given[0])
    for j in range(min(a.shape)):
        out[1][j] = _eliminate(a, j, j)
    out[0][...] = a


def _geqp3(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """QR with column pivoting; columns whose place is given as nonzero come first. Places are 1-based."""
    a = _wide(given[0])
    first = [c for c in range(a.shape[1]) if given[1][c]]
    order = [*first, *(c for c in range(a.shape[1]) if c not in first)]
    a = a[:, order]
    for j in range(min(a.shape)):
        if j >= len(first):
            best = j + int(np.argmax(np.linalg.norm(a[j:, j:], axis=0)))
            a[:, [j, best]] = a[:, [best, j]]
            order[j], order[best] = order[best], order[j]
        out[2][j] = _eliminate(a, j, j)
    out[0][...] = a
    out[1][...] = np.asarray(order) + 1


def orgqr(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    a, taus = _wide(given[0]), given[1]
    q = np.eye(*a.shape, dtype=a.dtype)
    for i in range(len(taus) - 1, -1, -1):
        q[i:] = _reflected(q[i:], _vector(a, i), taus[i])
    out[0][...] = q


def ormqr(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """op(Q) C or C op(Q), Q the product of the reflectors."""
    a, taus, c = _wide(given[0]), given[1], _wide(given[2])
    adjoint, left = bool(options.get("transpose", 0)), bool(options.get("left", 1))
    if not left:  # C op(Q) is (op(Q)^H C^H)^H
        c, adjoint = np.conj(c.T), not adjoint
    order = range(len(taus)) if adjoint else range(len(taus) - 1, -1, -1)
    for i in order:
        c[i:] = _reflected(c[i:], _vector(a, i), np.conj(taus[i]) if adjoint else taus[i])
    out[0][...] = c if left else np.conj(c.T)


def _vector(a: Array, column: int) -> Array:
    v = a[column:, column].copy()
    v[0] = 1
    return v


def _gehrd(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """Hessenberg form, reflectors below the subdiagonal."""
    a = _wide(given[0])
    low, high = options.get("low", 1) - 1, options.get("high", a.shape[0])
    for i in range(low, high - 1):
        v, tau, beta = _reflector(a[i + 1 : high, i])
        a[:high, i + 1 : high] -= tau * np.outer(a[:high, i + 1 : high] @ v, np.conj(v))
        a[i + 1 : high, i + 1 :] = _reflected(a[i + 1 : high, i + 1 :], v, np.conj(tau))
        a[i + 1, i], a[i + 2 : high, i] = beta, v[1:]
        out[1][i] = tau
    out[0][...] = a


def sytrd(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """Tridiagonal form of the lower triangle: the matrix, its diagonal, its subdiagonal, tau."""
    kept = _wide(given[0])
    a = np.tril(kept) + np.conj(np.tril(kept, -1).T)
    for i in range(a.shape[0] - 1):
        v, tau, beta = _reflector(a[i + 1 :, i])
        inner = _reflected(a[i + 1 :, i + 1 :], v, np.conj(tau))
        a[i + 1 :, i + 1 :] = inner - tau * np.outer(inner @ v, np.conj(v))
        kept[i + 1, i], kept[i + 2 :, i] = beta, v[1:]
        out[2][i], out[3][i] = np.real(beta), tau
    np.fill_diagonal(kept, np.diagonal(a))
    out[0][...], out[1][...] = kept, np.real(np.diagonal(a))


# ---------------------------------------------------------------- factorizations
def getrf(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """LU with partial pivoting; rows swapped, 1-based; the first zero pivot, 1-based."""
    a = given[0].copy()
    for j in range(min(a.shape)):
        column = a[j:, j]
        best = j + int(np.argmax(np.abs(np.real(column)) + np.abs(np.imag(column))))
        out[1][j] = best + 1
        if a[best, j] == 0:
            out[2][...] = out[2] if out[2] else j + 1
            continue
        a[[j, best]] = a[[best, j]]
        a[j + 1 :, j] /= a[j, j]
        a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], a[j, j + 1 :])
    out[0][...] = a


def syevd(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """Eigenvectors in place and eigenvalues, ascending."""
    values, vectors = np.linalg.eigh(given[0], "L" if options.get("uplo", ord("L")) == ord("L") else "U")
    out[1][...] = values
    if options.get("mode", ord("V")) == ord("V"):
        out[0][...] = vectors


def _gesdd(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """Singular values, left vectors, right vectors (transposed)."""
    mode = chr(options.get("mode", ord("A")))
    if mode == "N":
        out[1][...] = np.linalg.svd(given[0], compute_uv=False)
        return
    out[2][...], out[1][...], out[3][...] = np.linalg.svd(given[0], full_matrices=mode == "A")


def _geev(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """Eigenvalues (real and imaginary parts apart for a real matrix), left and right vectors of length 1."""
    values, right = np.linalg.eig(given[0])
    rest = out[1:]
    if np.iscomplexobj(given[0]):
        out[0][...] = values
    else:
        out[0][...], out[1][...] = np.real(values), np.imag(values)
        rest = out[2:]
    if options.get("compute_left") == ord("V"):
        left = np.conj(np.linalg.inv(right)).T
        left = left / np.linalg.norm(left, axis=0)
        largest = left[np.argmax(np.abs(left), axis=0), np.arange(left.shape[1])]
        rest[0][...] = left * (np.conj(largest) / np.abs(largest))
    if options.get("compute_right") == ord("V"):
        rest[1][...] = right


def _gtsv(options: Options, given: Sequence[Array], out: list[Array]) -> None:
    """A tridiagonal system; the first element of the lower diagonal and the last of the upper one are not read."""
    lower, middle, upper, b = given
    matrix = np.diag(middle) + np.diag(lower[1:], -1) + np.diag(upper[:-1], 1)
    try:
        out[3][...] = np.linalg.solve(matrix, b)
    except np.linalg.LinAlgError:
        out[3][...] = np.nan
        out[4][...] = 1


def _wide(x: Array) -> Array:
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


# ---------------------------------------------------------------- preparing
_RANKS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"gtsv": (1, 1, 1, 2), "geqp3": (2, 1), "orgqr": (2, 1), "ormqr": (2, 1, 2)}
)
"""Dimensions of one matrix's operands, where they are not one matrix."""
_ROUTINES: Mapping[str, Routine] = MappingProxyType(
    {
        "geev": _geev,
        "gehrd": _gehrd,
        "geqp3": _geqp3,
        "geqrf": geqrf,
        "gesdd": _gesdd,
        "gesvd": _gesdd,
        "getrf": getrf,
        "gtsv": _gtsv,
        "orgqr": orgqr,
        "ormqr": ormqr,
        "syevd": syevd,
        "sytrd": sytrd,
    }
)
_COMPLEX_NAMES: Mapping[str, str] = MappingProxyType(
    {"orgqr": "ungqr", "ormqr": "unmqr", "syevd": "heevd", "sytrd": "hetrd"}
)


def each_matrix(routine: Routine, ranks: Sequence[int] = (2,)) -> Prepare:
    """The routine on every matrix of a batch; `ranks` are the dimensions of one matrix's operands."""

    def prepare(instruction: HloInstruction, machine: Machine) -> Kernel:
        options = attributes(instruction)
        if routine is sytrd and options.get("uplo", ord("L")) != ord("L"):
            raise InstructionUnsupported(instruction, "of the upper triangle")
        lead = instruction.operand(0).shape.rank - ranks[0]
        shapes = [leaf for _, leaf in instruction.shape.leaves()]

        def kernel(*operands: Array) -> Value:
            results = [np.zeros(shape.dimensions, shape.type.dtype) for shape in shapes]
            for place in np.ndindex(*operands[0].shape[:lead]):
                one = [np.asarray(x[place]) for x in results]
                try:
                    routine(options, [np.asarray(x[place]) for x in operands], one)
                except np.linalg.LinAlgError:
                    # It did not converge: LAPACK says so in its info, the last result.
                    one[-1][...] = 1
                for target, value in zip(results, one, strict=True):
                    target[place] = value
            return pack(instruction.shape, iter(leaves(tuple(results))))

        return kernel

    return prepare


def _eigh(instruction: HloInstruction, machine: Machine) -> Kernel:
    """XLA's own ``Eigh``: (vectors, values); options are ``lower,sorted,sweeps,tolerance``.

    Values ascend; where sorting is not asked for, any order is right, this one too.
    """
    words = str(instruction.attr("backend_config") or "").strip('"').split(",")
    if len(words) != 4:
        raise InstructionUnsupported(instruction, f"with options {','.join(words)}")
    triangle = "L" if words[0] == "1" else "U"

    def kernel(a: Array) -> Value:
        values, vectors = np.linalg.eigh(a, triangle)
        return (vectors, values)

    return kernel


def _table() -> dict[str, Prepare]:
    # XLA's own calls, which its expanders take away on targets without LAPACK.
    out: dict[str, Prepare] = {
        "Qr": each_matrix(geqrf),
        "ProductOfElementaryHouseholderReflectors": each_matrix(orgqr, (2, 1)),
        "Eigh": _eigh,
    }
    for letter in "sdcz":
        out[f"lapack_{letter}potrf_ffi"] = _potrf
        out[f"lapack_{letter}trsm_ffi"] = _trsm
        for name in _ROUTINES:
            known = _COMPLEX_NAMES.get(name, name) if letter in "cz" else name
            out[f"lapack_{letter}{known}_ffi"] = each_matrix(_ROUTINES[name], _RANKS.get(name, (2,)))
    return out


TARGETS: Mapping[str, Prepare] = MappingProxyType(_table())
"""Target -> what prepares its kernel."""
