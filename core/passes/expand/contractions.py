"""Dots in the forms that the backends take.

Source: ``openxla/xla:xla/hlo/transforms/expanders/dot_decomposer.cc``, ``xla/hlo/transforms/simplifiers/
batch_dot_simplification.cc``, ``gemv_rewriter.cc``, ``result_caster.cc``, ``xla/hlo/transforms/operand_upcaster.cc``,
``xla/service/transpose_folding.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from hloscope.core.passes.engine import RulePass, run_rules
from hloscope.core.passes.expand.cpu_library import dot_strategy, library_takes_dot
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule
from hloscope.core.passes.rules.dots import Side, make_dot, sides
from hloscope.core.passes.rules.values import preserves_values

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@rule("decompose-dot", "dot", "dot → dot with one contracting and at most one free dimension a side, batch in front")
def decompose_dot(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = sides(one)
    if left.canonical and right.canonical:
        return None
    if any(not is_static_array(operand.shape) for operand in one.operands):
        return None

    def canonical(build: Builder, side: Side, contracting_last: bool) -> Side:
        x = side.value
        free, contracting = side.free, side.contracting
        order = (*side.batch, *free, *contracting) if contracting_last else (*side.batch, *contracting, *free)
        moved = build.transpose(x, order)
        sizes = x.shape.dimensions
        batch = [sizes[d] for d in side.batch]
        outer, inner = prod(sizes[d] for d in free), prod(sizes[d] for d in contracting)
        outers = [outer] if outer != 1 else []
        flat = build.reshape(moved, [*batch, *outers, inner] if contracting_last else [*batch, inner, *outers])
        return Side(flat, tuple(range(len(batch))), (len(batch) + (len(outers) if contracting_last else 0),))

    def make(build: Builder) -> HloInstruction:
        dot = make_dot(build, one, canonical(build, left, True), canonical(build, right, False))
        return build.make("reshape", one.shape, [dot]) if dot.shape.dimensions != one.shape.dimensions else dot

    return make


@dataclass(frozen=True)
class DotDecomposer(RulePass):
    """Dots in canonical form."""

    name = "dot_decomposer"
    rules = (decompose_dot,)


@rule("batch-of-one", "dot", "a dot with batch dimensions of size 1 → one without, reshaped")
def batch_of_one(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = sides(one)
    if left.batch != right.batch or left.batch != tuple(range(len(left.batch))) or len(left.contracting) != 1:
        return None
    ones = [d for d in left.batch if left.value.shape.dimensions[d] == 1]
    if not ones or not is_static_array(one.shape):
        return None

    def without(build: Builder, side: Side) -> Side:
        sizes = [size for d, size in enumerate(side.value.shape.dimensions) if d not in ones]
        batch = tuple(range(len(side.batch) - len(ones)))
        return Side(build.reshape(side.value, sizes), batch, (side.contracting[0] - len(ones),))

    return lambda build: build.make(
        "reshape", one.shape, [make_dot(build, one, without(build, left), without(build, right))]
    )


@dataclass(frozen=True)
class BatchDotSimplification(RulePass):
    """Batch dimensions of size 1 dropped."""

    name = "batch-dot-simplification"
    rules = (batch_of_one,)


@rule("matrix-vector", "dot", "matrix · vector → matrix · matrix of one column, reshaped", insensitive=True)
def matrix_vector(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = sides(one)
    bare = (not left.free, not right.free)
    if bare[0] == bare[1] or not is_static_array(one.shape):
        return None
    shapes = [o.shape for o in (one, *one.operands)]
    if any(s.layout is not None and s.layout.minor_to_major != tuple(reversed(range(s.rank))) for s in shapes):
        return Refusal("layout", "not row-major")

    def widened(build: Builder, side: Side, wanted: bool) -> Side:
        if not wanted:
            return side
        return Side(build.reshape(side.value, [*side.value.shape.dimensions, 1]), side.batch, side.contracting)

    return lambda build: build.make(
        "reshape", one.shape, [make_dot(build, one, widened(build, left, bare[0]), widened(build, right, bare[1]))]
    )


@dataclass(frozen=True)
class GemvRewriter(RulePass):
    """Matrix-vector products as matrix products."""

    name = "gemv-rewriter"
    rules = (matrix_vector,)


# ---------------------------------------------------------------- element types
def _natural_type(one: HloInstruction) -> str:
    """The wider of the operands' types, which is the result's unless one was asked for."""
    a, b = (operand.shape.type for operand in one.operands[:2])
    return b.name if preserves_values(a, b) else a.name


@rule("cast-result", "dot convolution", "a result narrower than the operands → the operands' type, then a conversion")
def cast_result(one: HloInstruction, options: RuleOptions) -> Answer:
    natural = _natural_type(one)
    if natural == one.shape.element_type:
        return None
    wide, narrow = one.operand(0).shape.with_element_type(natural).type, one.shape.type
    if not preserves_values(narrow, wide):
        return None
    return lambda build: build.make(
        "convert", one.shape, [build.clone(one, one.operands, one.shape.with_element_type(natural))]
    )


@dataclass(frozen=True)
class ResultCaster(RulePass):
    """Products narrower than their operands computed in the operands' type."""

    name = "result_caster"
    rules = (cast_result,)


@rule("upcast-operands", "dot convolution", "operands narrower than the result → converted to its type")
def upcast_operands(one: HloInstruction, options: RuleOptions) -> Answer:
    kind = one.shape.type
    types = [operand.shape.type for operand in one.operands[:2]]
    if all(t.name == kind.name for t in types):
        return None
    if any(not preserves_values(t, kind) for t in types):
        return Refusal("not_wider", f"{types[0].name} and {types[1].name} to {kind.name}")
    return lambda build: build.clone(
        one, [*(build.convert(o, kind.name) for o in one.operands[:2]), *one.operands[2:]]
    )


@rule("upcast-operands", "dot convolution", "as above, but not where XLA:CPU's library multiplies the narrow types")
def upcast_without_library(one: HloInstruction, options: RuleOptions) -> Answer:
    answer = upcast_operands.match(one, options)
    if callable(answer) and library_takes_dot(one):
        return Refusal("library", f"{one.operand(0).shape.element_type} is multiplied as it is")
    return answer


@rule("upcast-operands", "dot convolution", "as above, but no matrix products, which the GPU's library does")
def upcast_without_matrices(one: HloInstruction, options: RuleOptions) -> Answer:
    answer = upcast_operands.match(one, options)
    if callable(answer) and one.opcode == "dot" and all(side.free for side in sides(one)):
        return Refusal("library", f"{one.operand(0).shape.element_type} is multiplied as it is")
    return answer


@dataclass(frozen=True)
class OperandUpcaster:
    """Operands in the type of the result."""

    name = "operand_upcaster"
    is_pipeline = False
    except_library: bool = False
    """Leave what XLA:CPU's library computes."""
    except_matrices: bool = False
    """Leave matrix products, as XLA:GPU does."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation."""
        chosen = upcast_without_library if self.except_library else upcast_operands
        chosen = upcast_without_matrices if self.except_matrices else chosen
        return run_rules((chosen,), RuleOptions(), module, ctx)


@rule("half-product", "dot convolution", "a product in f16 → in f32, rounded once")
def half_product(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.shape.element_type != "f16" or any(o.shape.element_type != "f16" for o in one.operands[:2]):
        return None
    return lambda build: build.make(
        "convert",
        one.shape,
        [build.clone(one, [build.convert(o, "f32") for o in one.operands], one.shape.with_element_type("f32"))],
    )


@dataclass(frozen=True)
class ChangeOpDataType(RulePass):
    """Products of halves computed in f32, for libraries that have no f16."""

    name = "change-op-data-type"
    rules = (half_product,)


# ---------------------------------------------------------------- transposes into dots
@rule("fold-transpose", "dot", "dot(transpose(a), b) → dot(a, b) with other dimension numbers")
def fold_transpose(one: HloInstruction, options: RuleOptions) -> Answer:
    return _fold(one, rows_and_columns_only=False)


@rule("fold-matrix-transpose", "dot", "dot(transpose(a), b) → dot(a, b) where rows and columns alone change places")
def fold_matrix_transpose(one: HloInstruction, options: RuleOptions) -> Answer:
    answer = _fold(one, rows_and_columns_only=True)
    if answer is not None and dot_strategy(one) == "loop":
        return Refusal("strategy", "a plain loop reads its operands as they lie")
    return answer


def _fold(one: HloInstruction, *, rows_and_columns_only: bool) -> Answer:
    if any(operand.shape.rank < 2 for operand in one.operands):
        return None
    found = [_source(side, rows_and_columns_only) for side in sides(one)]
    if found[0] is None and found[1] is None:
        return None
    left, right = (new or old for new, old in zip(found, sides(one), strict=True))

    def make(build: Builder) -> HloInstruction:
        made = build.clone(one, [left.value, right.value])
        for name, side in (("lhs", left), ("rhs", right)):
            made.set_attr(f"{name}_batch_dims", side.batch or None)
            made.set_attr(f"{name}_contracting_dims", side.contracting)
        return made

    return make


def _source(side: Side, rows_and_columns_only: bool) -> Side | None:
    """The side read through its transpose; None where there is none that can be folded."""
    moved = side.value
    if moved.opcode != "transpose" or list(moved.dimensions) == list(range(moved.shape.rank)):
        return None
    order = moved.dimensions
    if rows_and_columns_only and (len(side.free) != 1 or len(side.contracting) != 1):
        return None
    if rows_and_columns_only:
        if any(order[d] != d for d in side.batch):
            return None
        if order[side.free[0]] != side.contracting[0] or order[side.contracting[0]] != side.free[0]:
            return None
    free = [order[d] for d in side.free]
    if free != sorted(free):
        return None
    return Side(moved.operand(0), tuple(order[d] for d in side.batch), tuple(order[d] for d in side.contracting))


@dataclass(frozen=True)
class TransposeFolding:
    """Transposes of operands folded into dots."""

    name = "transpose-folding"
    is_pipeline = False
    rows_and_columns_only: bool = False
    """Only swaps of the two matrix dimensions, batch dimensions staying in place."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation."""
        chosen = fold_matrix_transpose if self.rows_and_columns_only else fold_transpose
        return run_rules((chosen,), RuleOptions(), module, ctx)
