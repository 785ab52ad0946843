"""triton-gemm-rewriter: a dot, with what it pays to compute on its way in and out, becomes one Triton kernel.

From each operand of the dot the fusion grows towards what it is computed from, breadth first, then from the result
along its only users. Source: ``openxla/xla:xla/backends/gpu/transforms/gemm_fusion.cc``.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import shape_bytes
from hloscope.core.analysis.device import load_device
from hloscope.core.fusion.decision import ALLOWED, Decision
from hloscope.core.fusion.gpu.dim_order import NO_SPLIT, DimensionOrder, DotProperties, Orders, combine, propagate
from hloscope.core.fusion.gpu.gemm_worth import four_bit_refusal, into_input, into_output
from hloscope.core.fusion.gpu.priority_fusion import fusible_computations
from hloscope.core.fusion.gpu.triton_gemm_support import (
    ANY_MATMUL_ALGORITHMS,
    dot_algorithm,
    free_dimensions,
    gemm_supports,
)
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.ledger.events import FusionDecision

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

MAX_PARAMETERS = 4
"""Parameters that one operand of a dot may need."""
TRITON_GEMM = "__triton_gemm"
_PURE = frozenset(("bitcast", "dot", "parameter", "reshape"))
_TINY_TYPES = frozenset(("f16", "f32", "bf16"))
_TINY_ALGORITHMS = frozenset(("", "dot_bf16_bf16_f32", "dot_f32_f32_f32"))


@dataclass(frozen=True)
class GemmFusion:
    """The pass. `device` names a GPU or a file with a ``GpuTargetConfigProto``; empty for the context's target."""

    device: str = ""
    gemm_any: bool = True
    """``xla_gpu_triton_gemm_any``: dots with which nothing is fused become kernels of their own, too."""
    size_threshold: int = 100
    """``xla_gpu_gemm_rewrite_size_threshold``: smaller dots are left to the loop emitter."""

    @property
    def name(self) -> str:
        return "triton-gemm-rewriter"

    @property
    def is_pipeline(self) -> bool:
        return False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        device = load_device(self.device or (ctx.target if ctx.target not in ("cpu", "gpu", "tpu", "") else None))
        return run_gemm_fusion(module, ctx, device, self)


def run_gemm_fusion(
    module: HloModule, ctx: PassContext, device: DeviceDescription, options: GemmFusion | None = None
) -> bool:
    """Run the pass on a module, in place; returns whether anything was fused."""
    changed, step = False, 0
    for computation in fusible_computations(module):
        for dot in computation.post_order():
            if dot.opcode in ("dot", "scaled-dot") and dot.in_computation:
                one = _Dot(dot, ctx, device, GemmFusion() if options is None else options, step)
                changed |= one.run()
                step = one.step
    return changed


@dataclass(slots=True)
class _Node:
    """One way to walk one instruction."""

    hlo: HloInstruction
    order: DimensionOrder
    fuse: bool = False
    operands: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class _Verdict:
    producer: HloInstruction
    consumer: str
    decision: Decision


class _Dot:
    """The fusion around one dot."""

    def __init__(
        self, dot: HloInstruction, ctx: PassContext, device: DeviceDescription, options: GemmFusion, step: int
    ) -> None:
        self._dot = dot
        self._ctx = ctx
        self._device = device
        self._options = options
        self._body = HloComputation(f"gemm_fusion_{dot.name}_computation")
        self._inputs: list[HloInstruction] = []
        self._verdicts: list[_Verdict] = []
        lhs = dot.operand(0).shape.dimensions
        self._contracted = prod([lhs[dim] for dim in dot.attr("lhs_contracting_dims") or ()])
        self.step = step

    def run(self) -> bool:
        refused = self._refusal()
        if not refused:
            self._emit(self._dot, (), refused)
            return False
        output = self._grow()
        for refused in (four_bit_refusal(self._dot, self._inputs), self._pure_refusal()):
            if not refused:
                self._emit(self._dot, (), refused)
                return False
        step = self._ctx.gate("fuse", self._dot)
        if not step:
            return False
        name, size = self._dot.name, shape_bytes(self._dot.shape)
        fusion = self._make(output)
        step.done(fusion, detail=f"{len(self._body) - len(self._inputs)} instructions around {name}")
        fuel = step.question.ordinal if step.question is not None else None
        self._record(name, fusion, size, fuel)
        return True

    # ---------------------------------------------------------------- whether
    def _refusal(self) -> Decision:
        dot = self._dot
        if dot.opcode == "dot":
            size = (
                sum(
                    prod([dot.operand(side).shape.dimensions[dim] for dim in free_dimensions(dot, side)])
                    for side in (0, 1)
                )
                * self._contracted
            )
            tiny = size < self._options.size_threshold
            if tiny and dot.shape.element_type in _TINY_TYPES and dot_algorithm(dot) in _TINY_ALGORITHMS:
                return Decision.forbid(
                    "The dot is too small to be rewritten",
                    f"(free dimensions) x contracted of at least {self._options.size_threshold}",
                    size=size,
                )
            supported = gemm_supports(dot, self._device)
            if not supported:
                return supported
        for side in (0, 1):
            free = free_dimensions(dot, side)
            if len(free) != 1:
                return Decision.forbid("Not exactly one non-contracting dimension", operand=side, dimensions=len(free))
        return ALLOWED

    def _pure_refusal(self) -> Decision:
        if self._dot.opcode != "dot" or self._options.gemm_any or dot_algorithm(self._dot) in ANY_MATMUL_ALGORITHMS:
            return ALLOWED
        if all(one.opcode in _PURE for one in self._body):
            return Decision.forbid("Pure Matmul", "something to fuse with it, or xla_gpu_triton_gemm_any")
        return ALLOWED

    # ---------------------------------------------------------------- growing
    def _grow(self) -> HloInstruction:
        """Fill the body; the outermost user that it takes in is returned."""
        dot = self._dot
        made: list[HloInstruction] = []
        split = NO_SPLIT
        for number, operand in enumerate(dot.operands):
            side = number % 2
            free = free_dimensions(dot, side)[0]
            batch = dot.attr("lhs_batch_dims") or ()
            properties = DotProperties(free, free if number == 0 and not batch else -1, self._contracted)
            if not operand.shape.rank:
                inner, asked = self._parameter(operand), NO_SPLIT
            else:
                order = DimensionOrder.of(operand.shape)
                inner, asked = self._toward_operands(operand, order, MAX_PARAMETERS, properties, NO_SPLIT)
            made.append(inner)
            if number == 0:
                split = asked
        inner = self._body.add(dot.clone_with(operands=made))
        properties = DotProperties(-1, 0 if split > 1 else -1, self._contracted)
        output, root = self._toward_users(dot, inner, DimensionOrder.of(dot.shape), properties, split)
        self._body.set_root(root)
        return output

    def _toward_users(
        self, one: HloInstruction, inner: HloInstruction, order: DimensionOrder, properties: DotProperties, split: int
    ) -> tuple[HloInstruction, HloInstruction]:
        while one.user_count == 1:
            user = one.users[0]
            found = into_output(user, one, order, self._device, properties)
            combined = found if isinstance(found, Decision) else combine(split, found[1])
            orders: Orders = {}
            if not isinstance(combined, Decision) and user.operand_count > 1:
                assert not isinstance(found, Decision)
                back = propagate(user, found[0][user], properties, to_operands=True)
                if isinstance(back, Decision):
                    combined = back
                else:
                    orders = back[0]
                    combined = combine(combined, back[1])
            if isinstance(combined, Decision):
                self._verdicts.append(_Verdict(one, user.name, combined))
                break
            assert not isinstance(found, Decision)
            self._verdicts.append(_Verdict(one, user.name, ALLOWED))
            split = combined
            operands: list[HloInstruction] = []
            for operand in user.operands:
                if operand is one:
                    operands.append(inner)
                else:
                    made, split = self._toward_operands(operand, orders[operand], None, properties, split)
                    operands.append(made)
            inner = self._body.add(user.clone_with(operands=operands))
            one, order = user, found[0][user]
        return one, inner

    def _toward_operands(
        self,
        root: HloInstruction,
        order: DimensionOrder,
        limit: int | None,
        properties: DotProperties,
        split: int,
    ) -> tuple[HloInstruction, int]:
        nodes, split = self._plan(root, order, limit, properties, split)
        made: dict[int, HloInstruction] = {}
        stack = [0]
        while stack:
            number = stack[-1]
            node = nodes[number]
            if number in made:
                stack.pop()
            elif not node.fuse:
                made[number] = self._parameter(node.hlo)
            else:
                missing = next((one for one in node.operands if one not in made), None)
                if missing is not None:
                    stack.append(missing)
                    continue
                operands = [made[one] for one in node.operands]
                made[number] = self._body.add(node.hlo.clone_with(operands=operands))
        return made[0], split

    def _parameter(self, source: HloInstruction) -> HloInstruction:
        number = len(self._inputs)
        self._inputs.append(source)
        return self._body.add(
            HloInstruction("parameter", source.shape, name=f"parameter_{number}", payload=str(number))
        )

    def _plan(
        self, root: HloInstruction, order: DimensionOrder, limit: int | None, properties: DotProperties, split: int
    ) -> tuple[list[_Node], int]:
        nodes = [_Node(root, order)]
        known: dict[tuple[HloInstruction, Hashable], int] = {(root, order.iteration()): 0}
        edge = {0}
        queue = deque([0])
        requeued = 0
        while len(queue) > requeued:
            number = queue.popleft()
            node = nodes[number]
            if limit is not None and len(edge) + _added(node.hlo) > limit:
                queue.append(number)
                requeued += 1
                continue
            requeued = 0
            if node.hlo.opcode == "parameter":
                continue
            found: tuple[Orders, int] | Decision
            if node.hlo.opcode == "dynamic-slice":
                found = Decision.forbid("Dynamic slices are not fused.")
            else:
                found = into_input(node.hlo, node.order, self._device, properties)
            combined = found if isinstance(found, Decision) else combine(split, found[1])
            if isinstance(combined, Decision) or isinstance(found, Decision):
                assert isinstance(combined, Decision)
                self._verdicts.append(_Verdict(node.hlo, self._dot.name, combined))
                continue
            split = combined
            self._verdicts.append(_Verdict(node.hlo, self._dot.name, ALLOWED))
            edge.discard(number)
            node.fuse = True
            for operand in node.hlo.operands:
                # a scalar that is read as it is has no order of its own
                below = found[0].get(operand, DimensionOrder())
                key = (operand, below.iteration())
                place = known.get(key)
                if place is None:
                    place = known[key] = len(nodes)
                    nodes.append(_Node(operand, below))
                    edge.add(place)
                    queue.append(place)
                node.operands.append(place)
        for number in dict.fromkeys(queue):
            hlo = nodes[number].hlo
            if hlo.opcode != "parameter":
                refused = Decision.forbid(
                    "Too many parameters for one operand of the dot",
                    f"at most {MAX_PARAMETERS} parameters",
                    parameters=len(edge) + _added(hlo),
                    limit=MAX_PARAMETERS,
                )
                self._verdicts.append(_Verdict(hlo, self._dot.name, refused))
        return nodes, split

    # ---------------------------------------------------------------- making
    def _make(self, output: HloInstruction) -> HloInstruction:
        computation = self._dot.parent
        computation.module.add_computation(self._body, first=True)
        fusion = HloInstruction(
            "fusion",
            output.shape,
            self._inputs,
            name=f"gemm_fusion_{self._dot.name}",
            attrs={"kind": "kCustom"},
            called={"calls": self._body},
        )
        fusion.set_attr("backend_config", json.dumps({"fusion_backend_config": {"kind": TRITON_GEMM}}))
        metadata = self._dot.raw_attrs.get("metadata")
        if metadata is not None:
            fusion.set_attr("metadata", metadata)
        computation.add(fusion)
        computation.replace(output, fusion, relay_control=True)
        return fusion

    # ---------------------------------------------------------------- recording
    def _record(self, dot: str, fusion: HloInstruction, size: int, fuel: int | None) -> None:
        if not self._ctx.ledger.enabled:
            return
        self._send(FusionDecision(
            step=self.step, subject=dot, computation=fusion.parent.name, verdict="fused", made=fusion.name,
            bytes=size, fuel=fuel,
        ))  # fmt: skip
        for one in self._verdicts:
            self._emit(one.producer, (one.consumer,), one.decision, fusion.name)

    def _emit(
        self, subject: HloInstruction, consumers: tuple[str, ...], decision: Decision, made: str | None = None
    ) -> None:
        if not self._ctx.ledger.enabled:
            return
        self._send(
            FusionDecision(
                step=self.step,
                subject=subject.name,
                computation=self._dot.parent.name if self._dot.in_computation else None,
                verdict="fused" if decision else "refused",
                consumers=consumers,
                code=decision.code,
                reason=decision.reason,
                made=made if decision else None,
                bytes=shape_bytes(subject.shape),
            )
        )

    def _send(self, event: FusionDecision) -> None:
        self._ctx.ledger.emit(event)
        self.step += 1


def _added(one: HloInstruction) -> int:
    """Parameters that a fusion needs more once it holds an instruction that was one."""
    if one.opcode == "parameter" or (one.opcode == "constant" and not one.shape.is_scalar):
        return 0
    return one.operand_count - 1
