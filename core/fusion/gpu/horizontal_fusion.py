"""horizontal_loop_fusion and horizontal_input_fusion: small kernels that one instruction reads are launched as one.

XLA has neither any more (removed in July 2025); they explain dumps of older compilers and can be tried with
``hloscope opt``. Loops of one shape become a kLoop fusion with several results; loops of different shapes a kInput one
whose outputs are flattened, joined and cut apart; reductions of one shape become siblings. Source: see
`hloscope.core.fusion.gpu.horizontal_candidates`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import shape_bytes
from hloscope.core.analysis.device import load_device
from hloscope.core.analysis.elementwise import elements, minor_to_major
from hloscope.core.fusion.cost_model.coalescing import is_input_fusible_reduction
from hloscope.core.fusion.gpu.can_fuse import budget_refusal
from hloscope.core.fusion.gpu.fuse import wrap
from hloscope.core.fusion.gpu.horizontal_candidates import (
    loop_candidates,
    next_span,
    only_read_by,
    outputs_of,
    size_of,
    source_of,
)
from hloscope.core.fusion.gpu.multi_output import real_hero, shapes_refusal
from hloscope.core.fusion.gpu.multi_output_fusion import add_results
from hloscope.core.fusion.gpu.priority_fusion import fusible_computations
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.layout import Layout
from hloscope.core.hlo.shape import Shape
from hloscope.core.ledger.events import FusionDecision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.fusion.decision import Decision
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class HorizontalLoopFusion:
    """Loops that one instruction reads become one kernel."""

    @property
    def name(self) -> str:
        return "horizontal_loop_fusion"

    @property
    def is_pipeline(self) -> bool:
        return False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        recorder = _Recorder(ctx)
        changed = False
        for computation in fusible_computations(module):
            stack = computation.post_order()
            while stack:
                consumer = stack.pop()
                dead = not consumer.in_computation or not (consumer.user_count or consumer.is_root)
                if dead or consumer.operand_count < 2:
                    continue
                for sliced in (False, True):
                    made = _join_operands(consumer, ctx, recorder, sliced=sliced)
                    stack.extend(made)
                    changed |= bool(made)
        return changed


@dataclass(frozen=True)
class HorizontalInputFusion:
    """Reductions that one instruction reads become one kernel. `device` as for ``priority-fusion``."""

    device: str = ""

    @property
    def name(self) -> str:
        return "horizontal_input_fusion"

    @property
    def is_pipeline(self) -> bool:
        return False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        device = load_device(self.device or (ctx.target if ctx.target not in ("cpu", "gpu", "tpu", "") else None))
        recorder = _Recorder(ctx)
        changed = False
        for computation in fusible_computations(module):
            for consumer in computation.post_order():
                if not consumer.in_computation:
                    continue
                found = [
                    one
                    for one in dict.fromkeys(map(source_of, consumer.operands))
                    if not (one.opcode == "fusion" and one.attr("kind") == "kCustom")
                    and is_input_fusible_reduction(one, device)
                    and only_read_by(one, consumer)
                ]
                place = {one: number for number, one in enumerate(computation.instructions)}

                def key(
                    one: HloInstruction, place: dict[HloInstruction, int] = place
                ) -> tuple[int, tuple[int, ...], int, int]:
                    shape = real_hero(one, device)[0].operand(0).shape
                    return (shape.rank, shape.dimensions, size_of(one), place[one])

                found.sort(key=key)
                anchor: HloInstruction | None = None
                for one in found:
                    if anchor is None:
                        anchor = one
                        continue
                    refused = shapes_refusal(anchor, one, device)
                    refused = refused and budget_refusal(anchor, one, device, consumes=False)
                    if not refused:
                        recorder.refuse(one, anchor, refused)
                        anchor = one
                        continue
                    step = ctx.gate("fuse", one, others=(anchor,))
                    if not step:
                        continue
                    name, beside, size = one.name, anchor.name, shape_bytes(one.shape)
                    if anchor.opcode != "fusion":
                        anchor = wrap(anchor, "kInput", "fusion")
                    add_results(anchor, one)
                    step.done(anchor)
                    recorder.fused(name, beside, anchor, size)
                    changed = True
        return changed


class _Recorder:
    """Decisions as events."""

    def __init__(self, ctx: PassContext) -> None:
        self._ledger = ctx.ledger
        self._steps = 0

    def refuse(self, one: HloInstruction, beside: HloInstruction, decision: Decision) -> None:
        if self._ledger.enabled:
            self._emit(FusionDecision(
                step=self._steps, subject=one.name, computation=one.parent.name, verdict="refused",
                consumers=(beside.name,), code=decision.code, reason=decision.reason, bytes=shape_bytes(one.shape),
            ))  # fmt: skip

    def fused(self, name: str, beside: str, made: HloInstruction, size: int | None) -> None:
        if self._ledger.enabled:
            self._emit(FusionDecision(
                step=self._steps, subject=name, computation=made.parent.name, verdict="fused", consumers=(beside,),
                made=made.name, bytes=size,
            ))  # fmt: skip

    def _emit(self, event: FusionDecision) -> None:
        self._ledger.emit(event)
        self._steps += 1


def _join_operands(
    consumer: HloInstruction, ctx: PassContext, recorder: _Recorder, *, sliced: bool
) -> list[HloInstruction]:
    found, refused = loop_candidates(consumer, sliced=sliced)
    for one, decision in refused:
        recorder.refuse(one, consumer, decision)
    made: list[HloInstruction] = []
    start = 0
    while start < len(found):
        end, why = next_span(found, start, sliced=sliced)
        span, start = found[start:end], end
        if len(span) < 2:
            if not why:
                recorder.refuse(span[0], consumer, why)
            continue
        step = ctx.gate("fuse", span[0], others=tuple(span[1:]))
        if not step:
            continue
        names = [(one.name, shape_bytes(one.shape)) for one in span]
        fusion = _join(span, sliced=sliced)
        made.append(fusion)
        step.done(fusion, detail=f"{len(names)} kernels that %{consumer.name} reads")
        for name, size in names:
            recorder.fused(name, consumer.name, fusion, size)
    return made


def _join(span: Sequence[HloInstruction], *, sliced: bool) -> HloInstruction:
    """One fusion in place of several kernels; it is returned."""
    home = span[0].parent
    body = HloComputation("horizontally_fused_computation")
    home.module.add_computation(body, first=True)
    operands: dict[HloInstruction, HloInstruction] = {}

    def bound(operand: HloInstruction) -> HloInstruction:
        known = operands.get(operand)
        if known is None:
            number = str(len(operands))
            parameter = HloInstruction("parameter", operand.shape, name=f"param_{number}", payload=number)
            known = operands[operand] = body.add(parameter)
        return known

    results: list[list[HloInstruction]] = []
    for one in span:
        made: dict[HloInstruction, HloInstruction] = {}
        if one.opcode != "fusion":
            made[one] = body.add(one.clone_with(operands=[bound(operand) for operand in one.operands]))
        else:
            root = one.callee().root
            for inner in one.callee().post_order():
                if inner.opcode == "parameter":
                    made[inner] = bound(one.operand(inner.parameter_number))
                elif not (inner.opcode == "tuple" and inner is root):
                    made[inner] = body.add(inner.clone_with(operands=[made[operand] for operand in inner.operands]))
        results.append([made[output] for output in outputs_of(one)])
    flat = _sliced(body, results) if sliced else [one for each in results for one in each]
    body.set_root(body.add(HloInstruction("tuple", Shape.tuple_([one.shape for one in flat]), flat)))
    fusion = home.add(
        HloInstruction(
            "fusion",
            body.root.shape,
            list(operands),
            name="horizontal_fusion",
            attrs={"kind": "kInput" if sliced else "kLoop"},
            called={"calls": body},
        )
    )
    number = 0
    for one in span:
        parts: list[HloInstruction] = []
        for output in outputs_of(one):
            element = HloInstruction(
                "get-tuple-element", flat[number].shape, (fusion,), name="get-tuple-element",
                attrs={"index": str(number)},
            )  # fmt: skip
            part = home.add(element)
            if output.shape.rank != 1:
                part = home.add(HloInstruction("bitcast", output.shape, (part,), name="bitcast"))
            parts.append(part)
            number += 1
        new = parts[0]
        if one.shape.is_tuple:
            new = home.add(HloInstruction("tuple", Shape.tuple_([part.shape for part in parts]), parts))
        old_bodies = one.called_computations if one.opcode == "fusion" else ()
        home.replace(one, new)
        for old in old_bodies:
            if not old.callers:
                home.module.remove_computation(old)
    return fusion


def _sliced(body: HloComputation, results: Sequence[Sequence[HloInstruction]]) -> list[HloInstruction]:
    """Outputs flattened, joined and cut apart again: every thread writes one element whatever the shapes are."""
    cut: dict[tuple[int, int], HloInstruction] = {}
    for place in range(len(results[0])):
        parts = [_flat(body, each[place]) for each in results]
        kind = parts[0].shape.element_type
        total = sum(part.shape.dimensions[0] for part in parts)
        joined = body.add(HloInstruction("concatenate", _vector(kind, total), parts, attrs={"dimensions": (0,)}))
        start = 0
        for number, part in enumerate(parts):
            end = start + part.shape.dimensions[0]
            attrs = {"slice": f"{{[{start}:{end}]}}"}
            shape = _vector(kind, end - start)
            cut[number, place] = body.add(HloInstruction("slice", shape, (joined,), attrs=attrs))
            start = end
    return [cut[number, place] for number in range(len(results)) for place in range(len(results[0]))]


def _vector(kind: str, size: int) -> Shape:
    return Shape.array(kind, (size,), Layout.descending(1))


def _flat(body: HloComputation, one: HloInstruction) -> HloInstruction:
    shape = one.shape
    if shape.rank == 1:
        return one
    order = minor_to_major(shape)
    if order != tuple(range(shape.rank - 1, -1, -1)):
        sizes = [shape.dimensions[dim] for dim in reversed(order)]
        straight = Shape.array(shape.element_type, sizes, Layout.descending(shape.rank))
        one = body.add(HloInstruction("bitcast", straight, (one,)))
    return body.add(HloInstruction("reshape", _vector(shape.element_type, elements(shape)), (one,)))
