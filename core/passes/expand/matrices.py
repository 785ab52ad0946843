"""Batched matrices for expanders: products, strips at run-time places, triangles.

The last two dimensions are rows and columns, those before them the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.passes.rules.base import Builder


def swap(build: Builder, x: HloInstruction, conjugate: bool = False) -> HloInstruction:
    """Matrices transposed, and conjugated where asked for."""
    rank = x.shape.rank
    moved = build.transpose(x, [*range(rank - 2), rank - 1, rank - 2])
    if not conjugate or x.shape.type.kind != "complex":
        return moved
    real, imag = parts(build, moved)
    return build.make("complex", moved.shape, [real, build.unary("negate", imag)])


def conjugate(build: Builder, x: HloInstruction) -> HloInstruction:
    """The conjugate of complex values; real ones as they are."""
    return swap(build, swap(build, x, conjugate=True)) if x.shape.type.kind == "complex" else x


def product(build: Builder, a: HloInstruction, b: HloInstruction) -> HloInstruction:
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


def strip(build: Builder, x: HloInstruction, dim: int, at: HloInstruction) -> HloInstruction:
    """One row or column of matrices at a run-time place, as matrices."""
    zero = build.scalar("s32", 0)
    sizes = [1 if d == dim else s for d, s in enumerate(x.shape.dimensions)]
    return build.dynamic_slice(x, [at if d == dim else zero for d in range(x.shape.rank)], sizes)


def put(
    build: Builder, x: HloInstruction, piece: HloInstruction, dim: int, at: HloInstruction
) -> HloInstruction:
    """`x` with a row or column at a run-time place overwritten."""
    zero = build.scalar("s32", 0)
    return build.dynamic_update_slice(x, piece, [at if d == dim else zero for d in range(x.shape.rank)])


def triangle(build: Builder, like: HloInstruction, direction: str) -> HloInstruction:
    """A pred that compares row and column numbers."""
    rank, sizes = like.shape.rank, like.shape.dimensions
    rows, columns = (build.iota("s32", sizes, d) for d in (rank - 2, rank - 1))
    return build.compare(rows, columns, direction)


def parts(build: Builder, x: HloInstruction) -> tuple[HloInstruction, HloInstruction]:
    """The real and the imaginary part of complex values."""
    part = x.shape.with_element_type("f32" if x.shape.type.bits == 64 else "f64")
    return build.make("real", part, [x]), build.make("imag", part, [x])


def real_part(build: Builder, x: HloInstruction) -> HloInstruction:
    """The real part; `x` itself where it is real."""
    return parts(build, x)[0] if x.shape.type.kind == "complex" else x


def like_type(build: Builder, x: HloInstruction, other: HloInstruction) -> HloInstruction:
    """Real values in the element type of another array."""
    return build.convert(x, other.shape.element_type)


def spread(build: Builder, x: HloInstruction, sizes: tuple[int, ...]) -> HloInstruction:
    """1x1 matrices broadcast to matrices of these sizes."""
    batch = x.shape.dimensions[:-2]
    return build.broadcast(build.reshape(x, batch), range(len(batch)), sizes)


def numbers(build: Builder, sizes: tuple[int, ...], dim: int) -> HloInstruction:
    """s32 numbers of the rows or columns."""
    return build.iota("s32", sizes, dim)


def identity(build: Builder, like: HloInstruction) -> HloInstruction:
    """Ones on the diagonal, in the shape and type of other matrices."""
    return build.select(triangle(build, like, "EQ"), build.scalar_like(like.shape, 1), build.scalar_like(like.shape, 0))
