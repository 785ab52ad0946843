"""Cholesky factors and triangular systems as loops over columns and rows.

Source: ``openxla/xla:xla/hlo/transforms/expanders/cholesky_expander.cc``, ``triangular_solve_expander.cc``; those work
in blocks, these loops take one column (or row) at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.expand.counted_loop import counted_loop
from hloscope.core.passes.expand.matrices import conjugate, product, put, real_part, strip, swap, triangle
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction

_TYPES = ("f32", "f64", "c64", "c128")


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

    def step(build: Builder, j: HloInstruction, state: list[HloInstruction]) -> list[HloInstruction]:
        a, factor, bad = state
        known = swap(build, strip(build, factor, row, j), conjugate=True)
        left = build.binary("subtract", strip(build, a, column, j), product(build, factor, known))
        pivot = real_part(build, strip(build, left, row, j))
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
        return [a, put(build, factor, kept, column, j), build.binary("or", bad, build.unary("not", good))]

    def make(build: Builder) -> HloInstruction:
        a = x if lower else swap(build, x, conjugate=True)
        nothing = build.scalar_like(a.shape, 0)
        fine = build.scalar_like(build.shape("pred", [*x.shape.dimensions[:-2], 1, 1]), False)
        _, factor, bad = counted_loop(build, n, [a, nothing, fine], step)
        flat = build.reshape(bad, x.shape.dimensions[:-2])
        everywhere = build.broadcast(flat, range(rank - 2), x.shape.dimensions)
        result = build.select(everywhere, build.scalar_like(factor.shape, float("nan")), factor)
        return result if lower else swap(build, result, conjugate=True)

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
            matrix = conjugate(build, matrix)
        if not left:
            flipped, right = not flipped, swap(build, right)
        if flipped:
            matrix, below = swap(build, matrix), not below
        strict = build.select(
            triangle(build, matrix, "GT" if below else "LT"), matrix, build.scalar_like(matrix.shape, 0)
        )

        def step(inner: Builder, i: HloInstruction, state: list[HloInstruction]) -> list[HloInstruction]:
            whole, side, given, x = state
            at = i if below else inner.binary("subtract", inner.scalar("s32", n - 1), i)
            value = inner.binary(
                "subtract", strip(inner, given, row, at), product(inner, strip(inner, side, row, at), x)
            )
            if not unit:
                pivot = strip(inner, strip(inner, whole, row, at), column, at)
                flat = inner.reshape(pivot, pivot.shape.dimensions[:-2])
                value = inner.binary(
                    "divide", value, inner.broadcast(flat, range(rank - 2), value.shape.dimensions)
                )
            return [whole, side, given, put(inner, x, value, row, at)]

        start = build.scalar_like(right.shape, 0)
        x = counted_loop(build, n, [matrix, strict, right, start], step)[3]
        return x if left else swap(build, x)

    return make


@dataclass(frozen=True)
class TriangularSolveExpander(RulePass):
    """Triangular systems by rows."""

    name = "triangular_solve_expander"
    rules = (expand_triangular_solve,)
