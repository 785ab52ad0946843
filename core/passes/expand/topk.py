"""``topk-decomposer`` and ``topk-rewriter``: the k largest by a sort, and the sort as the library's call.

Source: ``openxla/xla:xla/service/topk_rewriter.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.shape import Shape
from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.flatten_call_graph import clone_computation
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule
from hloscope.core.passes.rules.slices import bounds_of

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@rule("decompose-topk", "topk", "topk → a stable sort of values and places, and slices of the first k")
def decompose_topk(one: HloInstruction, options: RuleOptions) -> Answer:
    x = one.operand(0)
    if not is_static_array(x.shape):
        return None
    if x.shape.type.kind not in ("float", "int", "uint"):
        return Refusal("element_type", x.shape.element_type)
    direction = "GT" if str(one.attr("largest")).lower() == "true" else "LT"
    values, places = one.shape.tuple_shapes
    last = x.shape.rank - 1

    def make(build: Builder) -> HloInstruction:
        iota = build.iota(places.element_type, x.shape.dimensions, last)
        shape = Shape.tuple_([x.shape, iota.shape])
        less = comparator(build, [x.shape.element_type, places.element_type], direction)
        attrs = {"dimensions": (last,), "is_stable": "true"}
        whole = build.make("sort", shape, [x, iota], attrs, called={"to_apply": less})
        starts = [0] * x.shape.rank
        return build.tuple(
            [build.slice(build.element(whole, i), starts, s.dimensions) for i, s in enumerate((values, places))]
        )

    return make


def comparator(build: Builder, types: list[str], direction: str) -> HloComputation:
    """A comparison of the first of several pairs of scalars, in the total order for floats."""
    name = "compare-greater-than" if direction == "GT" else "compare-less-than"
    made = build.computation.module.add_computation(HloComputation(name), first=True)
    for i, kind in enumerate(types):
        for side, word in enumerate(("lhs", "rhs")):
            made.add(
                HloInstruction("parameter", build.shape(kind, ()), name=f"p.{i}.{word}", payload=str(2 * i + side))
            )
    attrs = {"direction": direction}
    if made.parameters[0].shape.type.kind == "float":
        attrs["type"] = "TOTALORDER"
    root = HloInstruction("compare", build.shape("pred", ()), made.parameters[:2], attrs=attrs)
    made.set_root(made.add(root))
    return made


@dataclass(frozen=True)
class TopkDecomposer(RulePass):
    """topk by sorting."""

    name = "topk-decomposer"
    rules = (decompose_topk,)


# ---------------------------------------------------------------- topk-rewriter
@dataclass(frozen=True)
class TopkRewriter:
    """Slices of a descending sort of f32 as a call of ``TopK``; the sort stays until the next dce, as in XLA."""

    name = "topk-rewriter"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every sort."""
        changed = False
        for computation in module.post_order():
            for one in computation.post_order():
                if one.opcode == "sort" and one.user_count:
                    changed |= _rewrite(one, ctx)
        return changed


def _rewrite(one: HloInstruction, ctx: PassContext) -> bool:
    x = one.operand(0)
    if x.shape.element_type != "f32" or not is_static_array(x.shape) or one.operand_count > 2:
        return False
    (along,) = one.dimensions
    if one.operand_count == 2:
        iota = one.operand(1)
        while iota.opcode == "broadcast":
            iota = iota.operand(0)
        if iota.opcode != "iota" or iota.shape.element_type != "s32":
            return False
    slices = _slices(one, along)
    if slices is None or not _is_descending(one.callee("to_apply")):
        return False
    if along not in (0, x.shape.rank - 1) or one.is_root:
        ctx.refuse("sort-to-topk", one, "sort_dimension", str(along))
        return False
    step = ctx.gate("sort-to-topk", one)
    if not step:
        return False
    k = bounds_of(slices[0][1])[along].limit
    build = Builder(one)
    batch = prod(s for d, s in enumerate(x.shape.dimensions) if d != along)
    order = [*(d for d in range(x.shape.rank) if d != along), along]
    moved = build.transpose(x, order)
    plain = x.shape.rank <= 2
    flat = moved if plain else build.reshape(moved, [batch, x.shape.dimensions[along]])
    sizes = [k] if x.shape.rank == 1 else [batch, k]
    shape = Shape.tuple_([build.shape(kind, sizes) for kind in ("f32", "s32")])
    call = build.make(
        "custom-call", shape, [flat], {"custom_call_target": '"TopK"'},
        called={"called_computations": [clone_computation(one.module, one.callee("to_apply"))]},
    )  # fmt: skip
    for number, cut in slices:
        found = build.element(call, number)
        if not plain:
            found = build.reshape(found, [*(s for d, s in enumerate(x.shape.dimensions) if d != along), k])
        found = build.transpose(found, [order.index(d) for d in range(x.shape.rank)])
        cut.replace_all_uses_with(found)
    step.done(*build.made, detail=f"k = {k}")
    return True


def _slices(one: HloInstruction, along: int) -> list[tuple[int, HloInstruction]] | None:
    """(operand, slice) for every use of a sort, where all uses are slices of the same first elements."""
    found: list[tuple[int, HloInstruction]] = []
    for user in one.users:
        number, cut = 0, user
        if one.operand_count == 2:
            if user.opcode != "get-tuple-element" or user.user_count != 1:
                return None
            number, cut = int(user.attr("index")), user.users[0]
        if cut.opcode != "slice" or cut.control_predecessors or cut.control_successors:
            return None
        if not cut.user_count and not cut.is_root:
            return None
        for d, b in enumerate(bounds_of(cut)):
            if b.start or b.stride != 1 or (d != along and b.limit != cut.operand(0).shape.dimensions[d]):
                return None
        found.append((number, cut))
    limits = {bounds_of(cut)[along].limit for _, cut in found}
    return found if len(limits) == 1 else None


def _is_descending(comparator: HloComputation) -> bool:
    """Whether a comparator is a > b of its first pair, in total order or on bits turned into ordered integers."""
    root = comparator.root
    if root.opcode != "compare" or root.attr("direction") != "GT":
        return False
    return all(_is_ordered(root.operand(i), comparator.parameters[i]) for i in range(2))


def _is_ordered(one: HloInstruction, parameter: HloInstruction) -> bool:
    """``parameter``, or select(bits < 0, bits ^ max, bits) of it."""
    if one is parameter:
        return True
    if one.opcode != "select":
        return False
    bits = one.operand(2)
    if bits.opcode != "bitcast-convert" or bits.operand(0) is not parameter:
        return False
    test, flipped = one.operand(0), one.operand(1)
    if test.opcode != "compare" or test.attr("direction") != "LT" or test.operand(0) is not bits:
        return False
    if not test.operand(1).is_constant_scalar(0) or flipped.opcode not in ("xor", "subtract"):
        return False
    return bits in flipped.operands and any(o.is_constant_scalar(0x7FFFFFFF) for o in flipped.operands)
