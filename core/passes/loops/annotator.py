"""``while-loop-trip-count-annotator`` and ``while_loop_unroller``: what is known of a loop's trips, noted and used.

Source: ``openxla/xla:xla/hlo/transforms/while_loop_trip_count_annotator.cc``,
``xla/service/while_loop_unroller.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.passes.call_inliner import inline_call
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.loops.state import elements_of, loop_of, loops_in
from hloscope.core.passes.loops.trip_count import trip_count
from hloscope.core.passes.rules.base import Builder

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class WhileLoopTripCountAnnotator:
    """Backend configs with trip count, start and step of the counter; its final value as a constant."""

    name = "while-loop-trip-count-annotator"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every loop."""
        changed = False
        for one in loops_in(module):
            loop = loop_of(one)
            if isinstance(loop, Refusal):
                ctx.refuse("annotate", one, loop.code, loop.detail)
                continue
            found = trip_count(loop)
            if found is None:
                ctx.refuse("annotate", one, "no_counter")
                continue
            config: dict[str, Any] = {"known_induction_variable": {"tuple_index": str(found.index)}}
            if found.count is not None:
                config["known_trip_count"] = {"n": str(found.count)}
            if found.initial is not None and found.step is not None:
                config["known_init_step"] = {"init": str(found.initial), "step": str(found.step)}
            old = one.attr("backend_config")
            order = ("known_trip_count", "known_init_step", "known_induction_variable", "dynamic_variables")
            merged = {**(old if isinstance(old, dict) else {}), **config}
            merged.setdefault("dynamic_variables", [])
            merged = {**{key: merged[key] for key in order if key in merged}, **merged}
            if merged != old:
                step = ctx.gate("annotate", one)
                if step:
                    one.set_attr("backend_config", merged)
                    step.done(detail=f"{found.count} trips")
                    changed = True
            if found.count is not None and found.initial is not None and found.step is not None:
                last = found.initial + found.count * found.step
                for element in elements_of(one, found.index):
                    if element.user_count or element.is_root:
                        changed |= _final_value(element, last, ctx)
        return changed


def _final_value(element: HloInstruction, last: int, ctx: PassContext) -> bool:
    step = ctx.gate("final-counter", element)
    if not step:
        return False
    build = Builder(element)
    made = build.scalar_like(element.shape, last)
    home = element.parent
    element.replace_all_uses_with(made)
    if not (element.control_predecessors or element.control_successors):
        home.remove(element)
    step.done(*build.made, detail=str(last))
    return True


@dataclass(frozen=True)
class WhileLoopUnroller:
    """Loops of few known trips written out; XLA runs it only where a flag asks for it."""

    name = "while_loop_unroller"
    is_pipeline = False
    trips: int = 4
    """The most trips that a loop may have."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every loop, those in callees first."""
        changed = False
        for one in loops_in(module):
            loop = loop_of(one)
            if isinstance(loop, Refusal):
                ctx.refuse("unroll", one, loop.code, loop.detail)
                continue
            found = trip_count(loop)
            if found is None or found.count is None or found.count > self.trips:
                ctx.refuse("unroll", one, "trips", "not known" if found is None else f"{found.count} > {self.trips}")
                continue
            if one.control_predecessors or one.control_successors or one.has_side_effect:
                ctx.refuse("unroll", one, "control_dependencies" if not one.has_side_effect else "side_effect")
                continue
            step = ctx.gate("unroll", one)
            if not step:
                continue
            calls: list[HloInstruction] = []
            value = one.operand(0)
            for _ in range(found.count):
                call = HloInstruction("call", one.shape, [value], called={"to_apply": loop.body})
                value = one.parent.add(call)
                calls.append(value)
            one.replace_all_uses_with(value)
            one.parent.remove(one)
            step.done(*[n for call in calls for n in inline_call(call, ctx, update_metadata=False)])
            changed = True
        return changed
