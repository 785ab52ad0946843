"""Cholesky factors and triangular systems as loops over columns and rows.

Source: ``openxla/xla:xla/hlo/transforms/expanders/cholesky_expander.cc``, ``triangular_solve_expander.cc``; those work
in blocks, these loops take one column (or row) at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.expand.counted_loop import counted_loop
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction

_TYPES = ("f32", "f64", "c64", "c128")


def _swap(build: Builder, x: HloInstruction, conjugate: bool = False) -> HloInstruction:
    """Matrices transposed, and conjugated where asked for."""
    rank = x.shape.rank
    moved = build.transpose(x, [*range(rank - 2), rank - 1, rank - 2])
    if not conjugate or x.shape.type.kind != "complex":
        return moved
    part = moved.shape.with_element_type("f32" if x.shape.type.bits == 64 else "f64")
    real, imag = build.make("real", part, [moved]), build.make("imag", part, [moved])
    return build.make("complex", moved.shape, [real, build.unary("negate", imag)])


def _conjugate(build: Builder, x: HloInstruction) -> HloInstruction:
    return _swap(build, _swap(build, x, conjugate=True)) if x.shape.type.kind == "complex" else x


def _product(build: Builder, a: HloInstruction, b: HloInstruction) -> HloInstruction:
    """Batched matrix products."""
    rank = a.shape.rank
    batch = tuple(range(rank - 2))
    shape = build.shape(a.shape.element_type, [*a.shape.dimensions[:-1], b.shape.dimensions[-1]])
    attrs = {
        "lhs_batch_dims": batch or None,
        "lhs_contracting_dims": (rank - 1,),
        "rhs_batch_dims": batch or None,
        "rhs_contracting_dims": (rank - 2,),
        "operand_precision": ("highest", "highest"),
    }
    return build.make("dot", shape, [a, b], attrs)


def _strip(build: Builder, x: HloInstruction, dim: int, at: HloInstruction) -> HloInstruction:
    """One row or column of matrices at a run-time place, as matrices."""
    zero = build.scalar("s32", 0)
    sizes = [1 if d == dim else s for d, s in enumerate(x.shape.dimensions)]
    return build.dynamic_slice(x, [at if d == dim else zero for d in range(x.shape.rank)], sizes)


def _put(
    build: Builder, x: HloInstruction, piece: HloInstruction, dim: int, at: HloInstruction
) -> HloInstruction:
    zero = build.scalar("s32", 0)
    return build.dynamic_update_slice(x, piece, [at if d == dim else zero for d in range(x.shape.rank)])


def _triangle(build: Builder, like: HloInstruction, direction: str) -> HloInstruction:
    """A pred that compares row and column numbers."""
    rank, sizes = like.shape.rank, like.shape.dimensions
    rows, columns = (build.iota("s32", sizes, d) for d in (rank - 2, rank - 1))
    return build.compare(rows, columns, direction)


@rule("expand-cholesky", "cholesky", "a Cholesky factor → a loop over its columns")
def expand_cholesky(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if not is_static_array(x.shape) or x.shape.rank < 2 or not x.shape.element_count:
        return None
    if x.shape.element_type not in _TYPES:
        return Refusal("element_type", x.shape.element_type)
    lower = one.attr("lower") is True
    rank = x.shape.rank
    n = x.shape.dimensions[-1]
    row, column = rank - 2, rank - 1

    def real(build: Builder, v: HloInstruction) -> HloInstruction:
        if v.shape.type.kind != "complex":
            return v
        return build.make("real", v.shape.with_element_type("f32" if v.shape.type.bits == 64 else "f64"), [v])

    def step(build: Builder, j: HloInstruction, state: list[HloInstruction]) -> list[HloInstruction]:
        a, factor, bad = state
        known = _swap(build, _strip(build, factor, row, j), conjugate=True)
        left = build.binary("subtract", _strip(build, a, column, j), _product(build, factor, known))
        pivot = real(build, _strip(build, left, row, j))
        good = build.compare(pivot, build.scalar_like(pivot.shape, 0), "GT")
        root = build.unary("sqrt", pivot)
        spread = build.broadcast(
            build.reshape(root, x.shape.dimensions[:-2]), range(rank - 2), left.shape.dimensions
        ) if rank > 2 else build.broadcast_scalar(build.reshape(root, ()), left.shape.with_element_type(
            root.shape.element_type))  # fmt: skip
        divisor = build.convert(spread, left.shape.element_type)
        scaled = build.binary("divide", left, divisor)
        places = build.iota("s32", left.shape.dimensions, row)
        here = build.broadcast_scalar(j, places.shape)
        kept = build.select(build.compare(places, here, "GE"), scaled, build.scalar_like(left.shape, 0))
        kept = build.select(build.compare(places, here, "EQ"), divisor, kept)
        return [a, _put(build, factor, kept, column, j), build.binary("or", bad, build.unary("not", good))]

    def make(build: Builder) -> HloInstruction:
        a = x if lower else _swap(build, x, conjugate=True)
        nothing = build.scalar_like(a.shape, 0)
        fine = build.scalar_like(build.shape("pred", [*x.shape.dimensions[:-2], 1, 1]), False)
        _, factor, bad = counted_loop(build, n, [a, nothing, fine], step)
        flat = build.reshape(bad, x.shape.dimensions[:-2])
        everywhere = build.broadcast(flat, range(rank - 2), x.shape.dimensions)
        result = build.select(everywhere, build.scalar_like(factor.shape, float("nan")), factor)
        return result if lower else _swap(build, result, conjugate=True)

    return make


@dataclass(frozen=True)
class CholeskyExpander(RulePass):
    """Cholesky factors by columns."""

    name = "cholesky_expander"
    rules = (expand_cholesky,)


@rule("expand-triangular-solve", "triangular-solve", "a triangular system → a loop over the unknowns' rows")
def expand_triangular_solve(one: HloInstruction, options: RuleOptions) -> Answer:
    a, b = one.operands
    if not is_static_array(a.shape) or not is_static_array(b.shape) or not one.shape.element_count:
        return None
    if a.shape.element_type not in _TYPES:
        return Refusal("element_type", a.shape.element_type)
    if a.shape.dimensions[:-2] != b.shape.dimensions[:-2]:
        return Refusal("batch", f"{a.shape} and {b.shape}")
    left, unit = one.attr("left_side") is True, one.attr("unit_diagonal") is True
    lower = one.attr("lower") is True
    transpose = str(one.attr("transpose_a") or "NO_TRANSPOSE")
    rank, n = a.shape.rank, a.shape.dimensions[-1]
    row, column = rank - 2, rank - 1

    def make(build: Builder) -> HloInstruction:
        matrix, right, below = a, b, lower
        flipped = transpose in ("TRANSPOSE", "ADJOINT")
        if transpose == "ADJOINT":
            matrix = _conjugate(build, matrix)
        if not left:
            flipped, right = not flipped, _swap(build, right)
        if flipped:
            matrix, below = _swap(build, matrix), not below
        strict = build.select(
            _triangle(build, matrix, "GT" if below else "LT"), matrix, build.scalar_like(matrix.shape, 0)
        )

        def step(inner: Builder, i: HloInstruction, state: list[HloInstruction]) -> list[HloInstruction]:
            whole, side, given, x = state
            at = i if below else inner.binary("subtract", inner.scalar("s32", n - 1), i)
            value = inner.binary(
                "subtract", _strip(inner, given, row, at), _product(inner, _strip(inner, side, row, at), x)
            )
            if not unit:
                pivot = _strip(inner, _strip(inner, whole, row, at), column, at)
                flat = inner.reshape(pivot, pivot.shape.dimensions[:-2])
                value = inner.binary(
                    "divide", value, inner.broadcast(flat, range(rank - 2), value.shape.dimensions)
                )
            return [whole, side, given, _put(inner, x, value, row, at)]

        start = build.scalar_like(right.shape, 0)
        x = counted_loop(build, n, [matrix, strict, right, start], step)[3]
        return x if left else _swap(build, x)

    return make


@dataclass(frozen=True)
class TriangularSolveExpander(RulePass):
    """Triangular systems by rows."""

    name = "triangular_solve_expander"
    rules = (expand_triangular_solve,)
