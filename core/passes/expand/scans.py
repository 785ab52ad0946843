"""Scans as loops over the steps. Source: ``openxla/xla:xla/service/scan_expander.cc``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.expand.counted_loop import counted_loop
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction


def _applied(build: Builder, body: HloComputation, args: list[HloInstruction]) -> list[HloInstruction]:
    """The results of a computation, its instructions written out."""
    values: dict[HloInstruction, HloInstruction] = {}
    for one in body.post_order():
        if one.opcode == "parameter":
            values[one] = args[one.parameter_number]
        elif one is body.root and one.opcode == "tuple":
            return [values[operand] for operand in one.operands]
        else:
            values[one] = build.clone(one, [values[operand] for operand in one.operands])
    return [values[body.root]]


@rule("expand-scan", "scan", "a scan → a loop that applies its computation to one slice after the other")
def expand_scan(one: HloInstruction, options: RuleOptions) -> Answer:
    carries = int(one.attr("num_carries") or 0)
    axis = int(one.attr("scan_dimension") or (one.dimensions or (0,))[0])
    backwards = one.attr("is_reverse") in (True, "true")
    body = one.callee("to_apply")
    inputs = one.operands[: one.operand_count - carries]
    shapes = one.shape.tuple_shapes if one.shape.is_tuple else (one.shape,)
    stacked = shapes[: len(shapes) - carries]
    if not all(is_static_array(shape) for shape in (*shapes, *(x.shape for x in inputs))):
        return Refusal("shape", str(one.shape))
    if any(one.has_side_effect for one in body):
        return Refusal("side_effects", body.name)
    like = inputs[0].shape if inputs else stacked[0] if stacked else None
    if like is None:
        return Refusal("length", "neither inputs nor outputs say how many steps there are")
    length = like.dimensions[axis]

    def step(build: Builder, i: HloInstruction, state: list[HloInstruction]) -> list[HloInstruction]:
        held, given, out = state[:carries], state[carries : carries + len(inputs)], state[carries + len(inputs) :]
        at = build.binary("subtract", build.scalar("s32", length - 1), i) if backwards else i
        zero = build.scalar("s32", 0)

        def starts(rank: int) -> list[HloInstruction]:
            return [at if d == axis else zero for d in range(rank)]

        slices: list[HloInstruction] = []
        for x in given:
            sizes = x.shape.dimensions
            piece = build.dynamic_slice(
                x, starts(len(sizes)), [1 if d == axis else s for d, s in enumerate(sizes)]
            )
            slices.append(build.reshape(piece, [s for d, s in enumerate(sizes) if d != axis]))
        results = _applied(build, body, [*slices, *held])
        written: list[HloInstruction] = []
        for x, piece in zip(out, results[: len(out)], strict=True):
            sizes = x.shape.dimensions
            flat = build.reshape(piece, [1 if d == axis else s for d, s in enumerate(sizes)])
            written.append(build.dynamic_update_slice(x, flat, starts(len(sizes))))
        return [*results[len(out) :], *given, *written]

    def make(build: Builder) -> HloInstruction:
        empty = [build.scalar_like(shape, 0) for shape in stacked]
        state = [*one.operands[len(inputs) :], *inputs, *empty]
        final = counted_loop(build, length, state, step) if length else state
        results = [*final[carries + len(inputs) :], *final[:carries]]
        return build.tuple(results) if one.shape.is_tuple else results[0]

    return make


@dataclass(frozen=True)
class ScanExpander(RulePass):
    """Scans by loops."""

    name = "scan_expander"
    rules = (expand_scan,)
