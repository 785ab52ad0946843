"""triton-softmax-rewriter: normalization diamonds become Triton kernels where the cost model finds that faster.

The time of the diamond in one kernel, at its best tiling, is compared with the time of what priority fusion and
multi-output fusion would make of it. Source: ``openxla/xla:xla/backends/gpu/transforms/softmax_rewriter_triton.cc``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import shape_bytes
from hloscope.core.analysis.cost_units import microseconds
from hloscope.core.analysis.device import load_device
from hloscope.core.fusion.cost_model.run_time import instruction_run_time
from hloscope.core.fusion.cost_model.tiled import TiledRunTime, best_tiling
from hloscope.core.fusion.decision import Decision
from hloscope.core.fusion.gpu.fusion_analysis import TRITON
from hloscope.core.fusion.gpu.fusion_view import FusionView
from hloscope.core.fusion.gpu.model import GpuModel
from hloscope.core.fusion.gpu.multi_output_fusion import run_multi_output_fusion
from hloscope.core.fusion.gpu.priority_fusion import run_priority_fusion, set_triton
from hloscope.core.fusion.gpu.softmax_diamonds import Diamond, match_diamond
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.module import HloModule
from hloscope.core.ledger.events import FusionDecision
from hloscope.core.passes.context import PassContext

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription

NAME = "triton_softmax"
_FREE = frozenset(("parameter", "constant", "get-tuple-element", "tuple"))


@dataclass(frozen=True)
class SoftmaxRewriterTriton:
    """The pass. `device` names a GPU or a file with a ``GpuTargetConfigProto``; empty for the context's target."""

    device: str = ""
    only_if_profitable: bool = True
    """Whether the cost model has a say; without it every diamond that can be tiled is fused."""

    @property
    def name(self) -> str:
        return "triton-softmax-rewriter"

    @property
    def is_pipeline(self) -> bool:
        return False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        device = load_device(self.device or (ctx.target if ctx.target not in ("cpu", "gpu", "tpu", "") else None))
        return run_softmax_rewriter(module, ctx, device, only_if_profitable=self.only_if_profitable)


def run_softmax_rewriter(
    module: HloModule, ctx: PassContext, device: DeviceDescription, *, only_if_profitable: bool = True
) -> bool:
    """Run the pass on a module, in place; returns whether anything was fused."""
    return _Run(module, ctx, device, only_if_profitable).run()


class _Run:
    def __init__(self, module: HloModule, ctx: PassContext, device: DeviceDescription, profitable: bool) -> None:
        self._module = module
        self._ctx = ctx
        self._device = device
        self._profitable = profitable
        self._steps = 0

    def run(self) -> bool:
        found: list[Diamond] = []
        for computation in self._module.post_order():
            if computation.is_fusion or any(one.opcode == "custom-call" for one in computation.callers):
                continue
            for one in computation.post_order():
                diamond = match_diamond(one, self._device)
                if isinstance(diamond, Diamond):
                    found.append(diamond)
                    self._name()  # XLA makes a fusion to see whether it can be tiled, and drops it
                elif diamond.code not in ("root_is_not_elementwise_binary",):
                    self._refuse(one, None, diamond)
        changed = False
        # a diamond may begin where the one before it ends, so the last goes first
        for diamond in reversed(found):
            if diamond.root.in_computation and diamond.producer.in_computation:
                changed |= self._fuse(diamond)
        return changed

    def _fuse(self, diamond: Diamond) -> bool:
        root = diamond.root
        body, operands = _body_of(diamond)
        fusion = HloInstruction(
            "fusion", root.shape, operands, name=self._name(), attrs={"kind": "kCustom"}, called={"calls": body}
        )
        fusion.set_attr("backend_config", json.dumps({"fusion_backend_config": {"kind": TRITON}}))
        self._module.add_computation(body, first=True)
        tiling = self._decide(fusion)
        step = None if isinstance(tiling, Decision) else self._ctx.gate("fuse", root, others=(diamond.producer,))
        if isinstance(tiling, Decision) or not step:
            if isinstance(tiling, Decision):
                self._refuse(root, diamond.producer, tiling)
            fusion.detach_operands()
            fusion.drop_called("calls")
            self._module.remove_computation(body)
            return False
        set_triton(fusion, tiling)
        name, home = root.name, root.parent
        home.add(fusion, keep_name=True)
        home.replace(root, fusion, relay_control=True)
        step.done(fusion, detail=f"{len(body) - len(operands)} instructions up to {name}")
        if self._ctx.ledger.enabled:
            self._send(FusionDecision(
                step=self._steps, subject=diamond.producer.name, computation=home.name, verdict="fused",
                consumers=(name,), made=fusion.name, bytes=shape_bytes(diamond.producer.shape),
                us_fused=microseconds(tiling.run_time.exec),
                fuel=step.question.ordinal if step.question is not None else None,
            ))  # fmt: skip
        return True

    def _name(self) -> str:
        return self._module.instruction_names.unique(NAME)

    def _decide(self, fusion: HloInstruction) -> TiledRunTime | Decision:
        tiling = best_tiling(self._device, FusionView(fusion))
        if isinstance(tiling, Decision) or not self._profitable:
            return tiling
        apart = self._time_apart(fusion.callee())
        if apart < tiling.run_time.exec:
            return Decision.forbid(
                "Run time estimate for without applying the custom normalization rewrite is faster.",
                "less to compute in one kernel",
                us_fused=microseconds(tiling.run_time.exec),
                us_unfused=microseconds(apart),
            )
        return tiling

    def _time_apart(self, body: HloComputation) -> int:
        """Ticks of what the other fusion passes make of the body, launches not counted."""
        module = _extract(body)
        quiet = PassContext(target="gpu")
        run_priority_fusion(module, quiet, self._device)
        run_multi_output_fusion(module, quiet, self._device)
        model = GpuModel(self._device)
        return sum(
            instruction_run_time(model.costs, model.analysis(one), one).exec
            for one in module.entry.instructions
            if one.opcode not in _FREE
        )

    def _refuse(self, root: HloInstruction, producer: HloInstruction | None, decision: Decision) -> None:
        if not self._ctx.ledger.enabled:
            return
        subject = root if producer is None else producer
        apart, fused = decision.numbers.get("us_unfused"), decision.numbers.get("us_fused")
        self._send(
            FusionDecision(
                step=self._steps,
                subject=subject.name,
                computation=root.parent.name,
                verdict="refused",
                consumers=() if producer is None else (root.name,),
                code=decision.code,
                reason=decision.reason,
                bytes=shape_bytes(subject.shape),
                us_fused=fused if isinstance(fused, float) else None,
                us_unfused=apart if isinstance(apart, float) else None,
            )
        )

    def _send(self, event: FusionDecision) -> None:
        self._ctx.ledger.emit(event)
        self._steps += 1


def _body_of(diamond: Diamond) -> tuple[HloComputation, list[HloInstruction]]:
    """The diamond as a computation, and what its parameters stand for; the producer stays outside."""
    body = HloComputation(f"{NAME}_computation")
    operands: list[HloInstruction] = []
    made: dict[HloInstruction, HloInstruction] = {}

    def parameter(one: HloInstruction) -> None:
        number = len(operands)
        operands.append(one)
        made[one] = body.add(HloInstruction("parameter", one.shape, name=f"parameter_{number}", payload=str(number)))

    parameter(diamond.producer)
    stack = [diamond.root]
    while stack:
        one = stack[-1]
        if one in made:
            stack.pop()
            continue
        missing = next((operand for operand in one.operands if operand not in made), None)
        if missing is not None:
            stack.append(missing)
        elif one.opcode == "parameter":
            parameter(one)
        else:
            made[one] = body.add(one.clone_with(operands=[made[operand] for operand in one.operands]))
    body.set_root(made[diamond.root])
    return body, operands


def _extract(body: HloComputation) -> HloModule:
    """A module of its own with the body as its entry."""
    module = HloModule("normalization")
    callees: dict[HloComputation, HloComputation] = {}
    for one in body.instructions:
        for callee in one.called_computations:
            if callee not in callees:
                twin = callees[callee] = HloComputation(callee.name)
                module.add_computation(twin, keep_name=True)
                callee.clone_into(twin, {})
    entry = HloComputation("entry")
    module.add_computation(entry, entry=True)
    body.clone_into(entry, callees)
    return module
