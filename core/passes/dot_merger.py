"""``dot-merger``: dots that share an operand as one wider dot, and ``dot-strength-reduction`` of the GPU loop.

Source: ``openxla/xla:xla/hlo/transforms/simplifiers/dot_merger.cc``, ``xla/backends/gpu/transforms/
dot_strength_reduction.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from hloscope.core.hlo.dependence import depends_on
from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule
from hloscope.core.passes.rules.dots import Side, make_dot, sides
from hloscope.core.passes.rules.products import dot_strength

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_FLOPS = 10_000_000
"""A dot without free dimensions on one side that does less becomes multiply and reduce."""


@dataclass(frozen=True)
class DotMerger:
    """Dots over one operand merged."""

    name = "dot-merger"
    is_pipeline = False
    max_size_mb: int = 64
    """Bytes that both dots may have together, in MiB."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation, again and again until nothing is merged."""
        changed = False
        for computation in module.post_order():
            if not computation.is_fusion:
                while self._merge_one(computation, ctx):
                    changed = True
        return changed

    def _merge_one(self, computation: HloComputation, ctx: PassContext) -> bool:
        dots = [one for one in computation.post_order() if one.opcode == "dot" and _mergeable(one)]
        groups: dict[tuple[object, ...], list[HloInstruction]] = {}
        for one in dots:
            left, right = sides(one)
            for place, side in enumerate((left, right)):
                groups.setdefault((place, side.value, side.batch, side.contracting), []).append(one)
        for key, members in groups.items():
            place = key[0]
            for number, first in enumerate(members):
                for second in members[number + 1 :]:
                    if not first.in_computation or not second.in_computation:
                        continue
                    if self._merge(first, second, 0 if place == 0 else 1, ctx):
                        return True
        return False

    def _merge(self, first: HloInstruction, second: HloInstruction, shared: int, ctx: PassContext) -> bool:
        a, b = sides(first)[1 - shared], sides(second)[1 - shared]
        alike = all(
            first.raw_attrs.get(k) == second.raw_attrs.get(k) for k in ("operand_precision", "algorithm", "sharding")
        )
        if a.value is b.value or first.shape.element_type != second.shape.element_type or not alike:
            return False
        if a.value.shape.element_type != b.value.shape.element_type or len(a.batch) != len(b.batch):
            return False
        if (a.batch, a.contracting) != (b.batch, b.contracting):
            return False
        size = sum(o.shape.byte_size for o in (first, second, *first.operands, *second.operands))
        if size > self.max_size_mb << 20:
            ctx.refuse("merge-dots", first, "too_large", f"{size} bytes with %{second.name}")
            return False
        if depends_on(second, first) or depends_on(first, second):
            return False
        step = ctx.gate("merge-dots", first, others=(second,))
        if not step:
            return False
        build = Builder(first)
        joined = build.concatenate([a.value, b.value], a.free[0])
        common, other = sides(first)[shared], Side(joined, a.batch, a.contracting)
        merged = make_dot(build, first, *((common, other) if shared == 0 else (other, common)))
        along = len(a.batch) + (1 if shared == 0 else 0) * len(common.free)
        start = 0
        for one in (first, second):
            width = one.shape.dimensions[along]
            lows = [start if d == along else 0 for d in range(one.shape.rank)]
            highs = [start + width if d == along else s for d, s in enumerate(one.shape.dimensions)]
            start += width
            cut = build.slice(merged, lows, highs)
            one.replace_all_uses_with(cut)
            one.parent.remove(one)
        step.done(*build.made, detail=f"merged %{first.name} and %{second.name}")
        return True


def _mergeable(one: HloInstruction) -> bool:
    left, right = sides(one)
    plain = not (one.control_predecessors or one.control_successors)
    canonical = left.canonical and right.canonical and len(left.free) == 1 == len(right.free)
    return canonical and plain and all(is_static_array(o.shape) for o in (one, *one.operands))


# ---------------------------------------------------------------- dot-strength-reduction
@rule("weak-dot", "dot", "a small dot with a side without free dimensions → reduce of a multiply", insensitive=True)
def weak_dot(one: HloInstruction, options: RuleOptions) -> Answer:
    left, right = sides(one)
    if left.free and right.free:
        return None
    wide = prod(one.shape.dimensions) * prod(left.value.shape.dimensions[d] for d in left.contracting)
    if (left.free or right.free) and 2 * wide >= _FLOPS:
        return Refusal("too_large", f"{2 * wide} flops")
    return dot_strength.match(one, RuleOptions())


@dataclass(frozen=True)
class DotStrengthReduction(RulePass):
    """Dots that are no matrix products as reductions."""

    name = "dot-strength-reduction"
    rules = (weak_dot,)
