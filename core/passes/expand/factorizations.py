"""QR factors and eigenvalues of Hermitian matrices as loops: what ``Qr``, ``ProductOfElementaryHouseholderReflectors``
and ``Eigh`` calls become on a target without a library for them.

Source: ``openxla/xla:xla/hlo/transforms/expanders/qr_expander.cc#House, #QrBlock``, ``eigh_expander.cc``. XLA's QR
works in blocks of 128 columns, this one column by column; XLA's Jacobi rotates half of the pairs at once, this one pair
after pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.shape import Shape
from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.expand.counted_loop import counted_loop, while_loop
from hloscope.core.passes.expand.matrices import (
    conjugate,
    identity,
    like_type,
    numbers,
    parts,
    product,
    put,
    real_part,
    spread,
    strip,
    swap,
    triangle,
)
from hloscope.core.passes.expand.topk import comparator
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction

_TYPES = ("f32", "f64", "c64", "c128")


def _target(one: HloInstruction) -> str:
    return str(one.attr("custom_call_target") or "").strip('"')


def _unfit(x: HloInstruction) -> Refusal | None:
    """Why matrices cannot be factored here."""
    if not is_static_array(x.shape) or x.shape.rank < 2 or not x.shape.element_count:
        return Refusal("shape", str(x.shape))
    if x.shape.element_type not in _TYPES:
        return Refusal("element_type", x.shape.element_type)
    return None


# ---------------------------------------------------------------- Householder
def _norm(build: Builder, values: list[HloInstruction]) -> HloInstruction:
    """sqrt(a² + b² + …) without overflow."""
    sizes = [build.unary("abs", value) for value in values]
    largest = sizes[0]
    for size in sizes[1:]:
        largest = build.binary("maximum", largest, size)
    total: HloInstruction | None = None
    for size in sizes:
        share = build.binary("divide", size, largest)
        square = build.binary("multiply", share, share)
        total = square if total is None else build.binary("add", total, square)
    assert total is not None
    zero = build.scalar_like(largest.shape, 0)
    norm = build.binary("multiply", largest, build.unary("sqrt", total))
    return build.select(build.compare(largest, zero, "EQ"), zero, norm)


def _reflector(
    build: Builder, x: HloInstruction, at: HloInstruction
) -> tuple[HloInstruction, HloInstruction, HloInstruction]:
    """v, tau and beta of the reflector that zeroes a column below a row; tau and beta as 1x1 matrices."""
    row = x.shape.rank - 2
    places = numbers(build, x.shape.dimensions, row)
    here = build.broadcast_scalar(at, places.shape)
    after = build.select(build.compare(places, here, "GT"), x, build.scalar_like(x.shape, 0))
    alpha = strip(build, x, row, at)
    sigma = real_part(build, product(build, swap(build, after, conjugate=True), after))
    zero, one = build.scalar_like(sigma.shape, 0), build.scalar_like(sigma.shape, 1)
    is_zero = build.compare(sigma, zero, "EQ")
    length = build.unary("sqrt", sigma)
    if x.shape.type.kind == "complex":
        real, imag = parts(build, alpha)
        is_zero = build.binary("and", is_zero, build.compare(imag, zero, "EQ"))
        size = _norm(build, [real, imag, length])
    else:
        real, imag, size = alpha, None, _norm(build, [alpha, length])
    sign = build.select(build.compare(real, zero, "LT"), one, build.unary("negate", one))
    beta = build.select(is_zero, real, build.binary("multiply", sign, size))
    tau = build.binary("divide", build.binary("subtract", beta, real), beta)
    if imag is not None:
        low = build.unary("negate", build.binary("divide", imag, beta))
        tau = build.make("complex", alpha.shape, [tau, low])
    tau = build.select(is_zero, build.scalar_like(alpha.shape, 0), tau)
    wide_beta = like_type(build, beta, x)
    divisor = build.select(
        is_zero, build.scalar_like(alpha.shape, 1), build.binary("subtract", alpha, wide_beta)
    )
    v = build.binary("divide", after, spread(build, divisor, x.shape.dimensions))
    v = build.select(build.compare(places, here, "EQ"), build.scalar_like(x.shape, 1), v)
    return v, tau, wide_beta


def _reflected(build: Builder, a: HloInstruction, v: HloInstruction, tau: HloInstruction) -> HloInstruction:
    """(1 - tau v v^H) a."""
    inner = product(build, swap(build, v, conjugate=True), a)
    outer = product(build, v, inner)
    return build.binary("subtract", a, build.binary("multiply", spread(build, tau, a.shape.dimensions), outer))


@rule("expand-qr", "custom-call", "Qr(a) → a loop that zeroes one column after the other by a reflector")
def expand_qr(one: HloInstruction, options: RuleOptions) -> Answer:
    if _target(one) != "Qr" or one.operand_count != 1:
        return None
    a = one.operand(0)
    unfit = _unfit(a)
    if unfit is not None:
        return unfit
    row, column = a.shape.rank - 2, a.shape.rank - 1
    m, n = a.shape.dimensions[-2:]
    k = min(m, n)

    def step(build: Builder, j: HloInstruction, state: list[HloInstruction]) -> list[HloInstruction]:
        matrix, taus = state
        x = strip(build, matrix, column, j)
        v, tau, beta = _reflector(build, x, j)
        columns = numbers(build, matrix.shape.dimensions, column)
        later = build.compare(columns, build.broadcast_scalar(j, columns.shape), "GT")
        moved = _reflected(build, matrix, v, conjugate(build, tau))
        matrix = build.select(later, moved, matrix)
        places = numbers(build, x.shape.dimensions, row)
        here = build.broadcast_scalar(j, places.shape)
        fresh = build.select(build.compare(places, here, "LT"), x, v)
        fresh = build.select(build.compare(places, here, "EQ"), spread(build, beta, x.shape.dimensions), fresh)
        return [put(build, matrix, fresh, column, j), put(build, taus, tau, row, j)]

    def make(build: Builder) -> HloInstruction:
        taus = build.scalar_like(build.shape(a.shape.element_type, [*a.shape.dimensions[:-2], k, 1]), 0)
        matrix, taus = counted_loop(build, k, [a, taus], step)
        return build.tuple([matrix, build.reshape(taus, [*a.shape.dimensions[:-2], k])])

    return make


@rule(
    "expand-householder-product", "custom-call",
    "ProductOfElementaryHouseholderReflectors(a, taus) → a loop that applies the last reflector first",
)  # fmt: skip
def expand_householder_product(one: HloInstruction, options: RuleOptions) -> Answer:
    if _target(one) != "ProductOfElementaryHouseholderReflectors" or one.operand_count != 2:
        return None
    a, taus = one.operands
    unfit = _unfit(a) or (None if is_static_array(taus.shape) else Refusal("shape", str(taus.shape)))
    if unfit is not None:
        return unfit
    row, column = a.shape.rank - 2, a.shape.rank - 1
    m, n = a.shape.dimensions[-2:]
    if m < n:
        return Refusal("shape", f"{m} rows are fewer than {n} columns")
    k = taus.shape.dimensions[-1]
    if not k:
        return _identity_of(a)

    def step(build: Builder, i: HloInstruction, state: list[HloInstruction]) -> list[HloInstruction]:
        q, given, weights = state
        at = build.binary("subtract", build.scalar("s32", k - 1), i)
        x = strip(build, given, column, at)
        places = numbers(build, x.shape.dimensions, row)
        here = build.broadcast_scalar(at, places.shape)
        v = build.select(build.compare(places, here, "GT"), x, build.scalar_like(x.shape, 0))
        v = build.select(build.compare(places, here, "EQ"), build.scalar_like(x.shape, 1), v)
        return [_reflected(build, q, v, strip(build, weights, row, at)), given, weights]

    def make(build: Builder) -> HloInstruction:
        tall = build.reshape(taus, [*taus.shape.dimensions, 1])
        return counted_loop(build, k, [identity(build, a), a, tall], step)[0]

    return make


def _identity_of(a: HloInstruction) -> Answer:
    """No reflector at all."""
    return lambda build: identity(build, a)


@dataclass(frozen=True)
class QrExpander(RulePass):
    """QR by Householder reflectors."""

    name = "qr_expander"
    rules = (expand_qr, expand_householder_product)


# ---------------------------------------------------------------- Jacobi
def _off_diagonal(build: Builder, w: HloInstruction) -> tuple[HloInstruction, HloInstruction]:
    """Sums of squares off the diagonal and of everything, one for each matrix."""
    size = real_part(build, build.binary("multiply", w, conjugate(build, w)))
    rank = w.shape.rank
    zero = build.scalar(size.shape.element_type, 0)
    add = build.reducer("add", size.shape.element_type)
    outside = build.select(triangle(build, size, "EQ"), build.scalar_like(size.shape, 0), size)
    dims = (rank - 2, rank - 1)
    return build.reduce(outside, zero, dims, add), build.reduce(size, zero, dims, add)


def _rotation(
    build: Builder, pp: HloInstruction, pq: HloInstruction, qq: HloInstruction
) -> tuple[HloInstruction, HloInstruction]:
    """Cosine and sine (with its phase) that make [[pp, pq], [pq*, qq]] diagonal, as 1x1 matrices."""
    left, right = real_part(build, pp), real_part(build, qq)
    zero, one = build.scalar_like(left.shape, 0), build.scalar_like(left.shape, 1)
    phase: HloInstruction | None = None
    middle = pq
    if pq.shape.type.kind == "complex":
        middle = build.make("abs", left.shape, [pq])
        turned = build.binary("divide", conjugate(build, pq), like_type(build, middle, pq))
        phase = build.select(build.compare(middle, zero, "EQ"), build.scalar_like(pq.shape, 1), turned)
    twice = build.binary("multiply", build.scalar_like(left.shape, 2), middle)
    tau = build.binary("divide", build.binary("subtract", right, left), twice)
    root = build.unary("sqrt", build.binary("add", one, build.binary("multiply", tau, tau)))
    root = build.select(build.compare(tau, zero, "GE"), root, build.unary("negate", root))
    t = build.binary("divide", one, build.binary("add", tau, root))
    smaller = build.binary("minimum", build.unary("abs", left), build.unary("abs", right))
    tiny = build.scalar_like(left.shape, 0.1 * float(np.finfo(np.float32).eps))
    negligible = build.compare(build.unary("abs", middle), build.binary("multiply", tiny, smaller), "LE")
    t = build.select(negligible, zero, t)
    cosine = build.unary("rsqrt", build.binary("add", one, build.binary("multiply", t, t)))
    sine = build.binary("multiply", t, cosine)
    if phase is None:
        return cosine, sine
    return like_type(build, cosine, pq), build.binary("multiply", like_type(build, sine, pq), phase)


def _turn(
    build: Builder, x: HloInstruction, dim: int, places: tuple[HloInstruction, HloInstruction],
    factors: tuple[HloInstruction, HloInstruction, HloInstruction],
) -> HloInstruction:  # fmt: skip
    """Two rows (or columns) p and q become c·p - left·q and right·p + c·q."""
    first, second = (strip(build, x, dim, at) for at in places)
    cosine, left, right = (spread(build, f, first.shape.dimensions) for f in factors)
    fresh = build.binary(
        "subtract", build.binary("multiply", cosine, first), build.binary("multiply", left, second)
    )
    other = build.binary("add", build.binary("multiply", right, first), build.binary("multiply", cosine, second))
    return put(build, put(build, x, fresh, dim, places[0]), other, dim, places[1])


def _settings(one: HloInstruction) -> tuple[bool, bool, int, float] | None:
    """Lower triangle, sorted, sweeps at most, tolerance: the call's ``backend_config="1,1,100,1e-6"``."""
    words = str(one.attr("backend_config") or "").strip('"').split(",")
    try:
        lower, in_order, sweeps, tolerance = words
        return bool(int(lower)), bool(int(in_order)), int(sweeps), float(tolerance)
    except ValueError:
        return None


@rule("expand-eigh", "custom-call", "Eigh(a) → sweeps of Jacobi rotations until nothing is left off the diagonal")
def expand_eigh(one: HloInstruction, options: RuleOptions) -> Answer:
    if _target(one) != "Eigh" or one.operand_count != 1:
        return None
    a = one.operand(0)
    unfit = _unfit(a)
    if unfit is not None:
        return unfit
    settings = _settings(one)
    if settings is None:
        return Refusal("backend_config", str(one.attr("backend_config")))
    lower, in_order, sweeps, tolerance = settings
    rank, n = a.shape.rank, a.shape.dimensions[-1]
    if a.shape.dimensions[-2] != n:
        return Refusal("shape", f"{a.shape} is not square")
    row, column = rank - 2, rank - 1
    pairs = list(combinations(range(n), 2))

    def rotate(build: Builder, t: HloInstruction, state: list[HloInstruction]) -> list[HloInstruction]:
        w, v, table = state
        p, q = (
            build.reshape(build.dynamic_slice(table, [t, build.scalar("s32", side)], [1, 1]), ()) for side in (0, 1)
        )
        top, bottom = strip(build, w, row, p), strip(build, w, row, q)
        cosine, sine = _rotation(
            build, strip(build, top, column, p), strip(build, top, column, q), strip(build, bottom, column, q)
        )
        turned = conjugate(build, sine)
        w = _turn(build, w, row, (p, q), (cosine, turned, sine))
        w = _turn(build, w, column, (p, q), (cosine, sine, turned))
        return [w, _turn(build, v, row, (p, q), (cosine, turned, sine)), table]

    def make(build: Builder) -> HloInstruction:
        diagonal = build.compare(
            numbers(build, a.shape.dimensions, row), numbers(build, a.shape.dimensions, column), "EQ"
        )
        kept = build.select(triangle(build, a, "GE" if lower else "LE"), a, build.scalar_like(a.shape, 0))
        mirrored = swap(build, kept, conjugate=True)
        w = build.select(
            diagonal, like_type(build, real_part(build, kept), a), build.binary("add", kept, mirrored)
        )
        v = identity(build, a)
        if pairs:
            table = build.constant(pairs, build.shape("s32", [len(pairs), 2]))

            def more(inner: Builder, state: list[HloInstruction]) -> HloInstruction:
                off, whole = _off_diagonal(inner, state[1])
                limit = inner.binary("multiply", whole, inner.scalar_like(whole.shape, tolerance * tolerance))
                open_ = inner.compare(limit, off, "LT")
                if open_.shape.rank:
                    open_ = inner.reduce(
                        open_, inner.scalar("pred", False), range(open_.shape.rank), inner.reducer("or", "pred")
                    )
                return inner.binary("and", inner.compare(state[0], inner.scalar("s32", sweeps), "LT"), open_)

            def sweep(inner: Builder, state: list[HloInstruction]) -> list[HloInstruction]:
                count = inner.binary("add", state[0], inner.scalar("s32", 1))
                return [count, *counted_loop(inner, len(pairs), state[1:], rotate)]

            _, w, v, _ = while_loop(build, [build.scalar("s32", 0), w, v, table], more, sweep)
        vectors = swap(build, v, conjugate=True)
        return _eigen_result(build, w, vectors, in_order)

    return make


def _eigen_result(
    build: Builder, w: HloInstruction, vectors: HloInstruction, in_order: bool
) -> HloInstruction:
    """(vectors, values), sorted by value where asked for."""
    rank = w.shape.rank
    real = real_part(build, w)
    kind = real.shape.element_type
    on = build.select(triangle(build, real, "EQ"), real, build.scalar_like(real.shape, 0))
    values = build.reduce(on, build.scalar(kind, 0), (rank - 2,), build.reducer("add", kind))
    if not in_order:
        return build.tuple([vectors, values])
    wide = build.broadcast(values, [*range(rank - 2), rank - 1], real.shape.dimensions)
    both = Shape.tuple_([wide.shape, vectors.shape])
    less = comparator(build, [kind, vectors.shape.element_type], "LT")
    ordered = build.make(
        "sort", both, [wide, vectors], {"dimensions": (rank - 1,), "is_stable": "true"}, called={"to_apply": less}
    )
    first = build.slice(
        build.element(ordered, 0), [0] * rank, [*w.shape.dimensions[:-2], 1, w.shape.dimensions[-1]]
    )
    return build.tuple([build.element(ordered, 1), build.reshape(first, values.shape.dimensions)])


@dataclass(frozen=True)
class EighExpander(RulePass):
    """Eigenvalues of Hermitian matrices by Jacobi's rotations."""

    name = "eigh_expander"
    rules = (expand_eigh,)

