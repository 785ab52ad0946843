"""multi_output_fusion: kernels that read the same value, or one that reads the other's result, become one with several.

It runs after priority fusion, from the last use to the first definition. Source:
``openxla/xla:xla/backends/gpu/transforms/multi_output_fusion.cc``,
``xla/hlo/ir/hlo_instructions.cc#MergeFusionInstructionIntoMultiOutput``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import shape_bytes
from hloscope.core.analysis.device import load_device
from hloscope.core.analysis.elementwise import is_effective_scalar
from hloscope.core.fusion.gpu.fuse import UserOrder, set_operands, wrap
from hloscope.core.fusion.gpu.model import GpuModel
from hloscope.core.fusion.gpu.multi_output import (
    consumer_refusal,
    is_multi_output,
    is_sibling_candidate,
    priority,
    producer_refusal,
    siblings_refusal,
)
from hloscope.core.fusion.gpu.priority_fusion import fusible_computations
from hloscope.core.hlo.dependence import depends_on
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.shape import Shape
from hloscope.core.ledger.events import FusionDecision

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.fusion.decision import Decision
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class MultiOutputFusion:
    """The pass. `device` names a GPU or a file with a ``GpuTargetConfigProto``; empty for the context's target."""

    device: str = ""

    @property
    def name(self) -> str:
        return "multi_output_fusion"

    @property
    def is_pipeline(self) -> bool:
        return False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        device = load_device(self.device or (ctx.target if ctx.target not in ("cpu", "gpu", "tpu", "") else None))
        return run_multi_output_fusion(module, ctx, device)


def run_multi_output_fusion(
    module: HloModule,
    ctx: PassContext,
    device: DeviceDescription,
    users: Mapping[str, Sequence[str]] | None = None,
) -> bool:
    """Run the pass on a module, in place; returns whether anything was fused.

    `users` are the users of instructions in XLA's order, where they are known better than from the text.
    """
    changed = False
    for computation in fusible_computations(module):
        changed |= _Computation(computation, ctx, GpuModel(device), UserOrder(computation, users)).run()
    return changed


class _Computation:
    def __init__(self, computation: HloComputation, ctx: PassContext, model: GpuModel, users: UserOrder) -> None:
        self._computation = computation
        self._users = users
        self._ctx = ctx
        self._model = model
        self._changed = False
        self._steps = 0

    def run(self) -> bool:
        for one in reversed(self._computation.post_order()):
            if not one.in_computation or one.opcode == "constant":
                continue
            if one.opcode == "fusion" and one.attr("kind") == "kCustom":
                continue
            self._siblings(one)
            self._with_consumer(one)
        return self._changed

    # ---------------------------------------------------------------- siblings
    def _siblings(self, parent: HloInstruction) -> None:
        if parent.user_count < 2 or is_effective_scalar(parent.shape):
            return
        device = self._model.device
        readers = sorted(
            (user for user in self._users.of(parent) if is_sibling_candidate(user, device)), key=priority, reverse=True
        )
        at = 0
        while at < len(readers):
            first = readers[at]
            at += 1
            if first.opcode != "fusion":
                continue
            place = at
            while place < len(readers):
                second = readers[place]
                connected = depends_on(second, first) or depends_on(first, second)
                refusal = siblings_refusal(first, second, parent, connected, device)
                if not refusal or not self._fuse(first, second, parent.name, refusal):
                    if not refusal:
                        self._record(second, first.name, refusal)
                    place += 1
                    continue
                readers.pop(place)

    # ---------------------------------------------------------------- producer and consumer
    def _with_consumer(self, producer: HloInstruction) -> None:
        if not producer_refusal(producer):
            return
        users = self._users.of(producer)
        if len(users) == 1 and not is_multi_output(users[0]):
            return
        best: HloInstruction | None = None
        for user in users:
            cycle = any(operand is not producer and depends_on(operand, producer) for operand in user.operands)
            refusal = consumer_refusal(producer, user, cycle, self._model)
            if not refusal:
                self._record(producer, user.name, refusal)
            elif best is None or priority(user) > priority(best):
                best = user
        if best is not None:
            self._fuse(best, producer, producer.name, None)

    # ---------------------------------------------------------------- fusing
    def _fuse(self, fusion: HloInstruction, other: HloInstruction, shared: str, refusal: Decision | None) -> bool:
        del refusal
        step = self._ctx.gate("fuse", other, others=(fusion,))
        if not step:
            return False
        name, size = other.name, shape_bytes(other.shape) if other.shape.is_array else None
        target = fusion.name
        for one in (fusion, other):
            self._model.invalidate(one)
        if fusion.opcode != "fusion":
            kind = "kInput" if self._model.analysis(other, fusion).kind in ("reduction", "transpose") else "kLoop"
            fusion = wrap(fusion, kind, "fusion", self._users)
        was_input = other.opcode == "fusion" and other.attr("kind") == "kInput"
        self._users.merge(fusion, other)
        add_results(fusion, other)
        if was_input:
            fusion.set_attr("kind", "kInput")
        self._model.costs.revisit(fusion)
        self._changed = True
        step.done(fusion, detail=f"{name} beside {target}, which read {shared}")
        if self._ctx.ledger.enabled:
            fuel = step.question.ordinal if step.question is not None else None
            self._ctx.ledger.emit(
                FusionDecision(
                    step=self._next(), subject=name, computation=self._computation.name, verdict="fused",
                    consumers=(target,), made=fusion.name, bytes=size, fuel=fuel,
                )
            )  # fmt: skip
        return True

    def _record(self, subject: HloInstruction, beside: str, refusal: Decision) -> None:
        if self._ctx.ledger.enabled:
            self._ctx.ledger.emit(
                FusionDecision(
                    step=self._next(), subject=subject.name, computation=self._computation.name, verdict="refused",
                    consumers=(beside,), code=refusal.code, reason=refusal.reason,
                )
            )  # fmt: skip

    def _next(self) -> int:
        self._steps += 1
        return self._steps - 1


def add_results(fusion: HloInstruction, other: HloInstruction) -> None:
    """Compute `other` in the fusion too and give its results out beside the fusion's; `other` goes.

    `other` may be an operand of the fusion or read by nobody in it.
    """
    computation = fusion.parent
    body = fusion.callee()
    bound = {operand: body.parameters[number] for number, operand in enumerate(fusion.operands)}
    produced = bound.get(other)
    operands = list(fusion.operands)

    def parameter(operand: HloInstruction) -> HloInstruction:
        known = bound.get(operand)
        if known is None:
            number = len(operands)
            known = body.add(HloInstruction("parameter", operand.shape, name=f"param_{number}", payload=str(number)))
            bound[operand] = known
            operands.append(operand)
        return known

    results = _inline(other, body, parameter)
    if produced is not None:
        produced.replace_all_uses_with(results[0])
        place = operands.index(other)
        operands.pop(place)
        body.remove(produced)
        for number, one in enumerate(body.parameters):
            if one.parameter_number != number:
                one.set_parameter_number(number)
    old_root = body.root
    first = list(old_root.operands) if old_root.opcode == "tuple" else [old_root]
    set_operands(fusion, operands)
    read = [one for one in _readers(other) if one[1].user_count or one[1].is_root]
    added = [results[index] for index, _ in read]
    if added:
        tuple_root = body.add(
            HloInstruction("tuple", Shape.tuple_([one.shape for one in (*first, *added)]), (*first, *added))
        )
        body.set_root(tuple_root)
        if old_root.opcode == "tuple":
            body.remove(old_root)
        single = old_root.opcode != "tuple"
        old_users = fusion.users if single else ()
        was_root = fusion.is_root
        old_shape = fusion.shape
        fusion.shape = tuple_root.shape
        if single and (old_users or was_root):
            part = computation.add(_element(fusion, old_shape, 0))
            for user in old_users:
                fusion.replace_use_with(user, part)
            if was_root:
                computation.set_root(part)
        for number, (_, source) in enumerate(read, len(first)):
            part = computation.add(_element(fusion, source.shape, number))
            source.replace_all_uses_with(part)
    _drop(computation, other)


def _element(fusion: HloInstruction, shape: Shape, index: int) -> HloInstruction:
    return HloInstruction("get-tuple-element", shape, (fusion,), name="get-tuple-element", attrs={"index": str(index)})


def _readers(other: HloInstruction) -> list[tuple[int, HloInstruction]]:
    """(result number, instruction whose uses move) of what is to be replaced."""
    if not is_multi_output(other):
        return [(0, other)]
    return [(user.attr("index"), user) for user in other.users if user.opcode == "get-tuple-element"]


def _inline(
    other: HloInstruction, body: HloComputation, parameter: Callable[[HloInstruction], HloInstruction]
) -> list[HloInstruction]:
    if other.opcode != "fusion":
        return [body.add(other.clone_with(operands=[parameter(one) for one in other.operands]))]
    inner = other.callee()
    order = inner.post_order()
    made: dict[HloInstruction, HloInstruction] = {}
    for one in reversed(order):
        for operand in one.operands:
            if operand.opcode == "parameter" and operand not in made:
                made[operand] = parameter(other.operand(operand.parameter_number))
    for one in order:
        if one.opcode == "parameter":
            made.setdefault(one, parameter(other.operand(one.parameter_number)))
        elif not (one.opcode == "tuple" and one is inner.root):
            made[one] = body.add(one.clone_with(operands=[made[operand] for operand in one.operands]))
    root = inner.root
    return [made[one] for one in (root.operands if root.opcode == "tuple" else (root,))]


def _drop(computation: HloComputation, other: HloInstruction) -> None:
    for user in other.users:
        if user.opcode == "get-tuple-element" and not user.user_count and not user.is_root:
            computation.remove(user)
    bodies = other.called_computations if other.opcode == "fusion" else ()
    other.drop_all_control_dependencies()
    computation.remove(other)
    for body in bodies:
        if not body.callers:
            computation.module.remove_computation(body)
