"""``fusion`` as XLA:CPU runs it: every consumer is grown to completion, producer by producer.

Source: ``openxla/xla:xla/service/instruction_fusion.cc#Run``, ``xla/service/cpu/cpu_instruction_fusion.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.alias_info import AliasInfo
from hloscope.core.analysis.elementwise import is_generally_fusible
from hloscope.core.fusion.cpu.ban import ban_duplication
from hloscope.core.fusion.cpu.build import move_in, wrap
from hloscope.core.fusion.cpu.gates import STAYS, Ladder
from hloscope.core.fusion.cpu.predicates import is_output_fusible
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.ledger.events import FusionDecision

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.fusion.cpu.gates import Refusal
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_EMBEDDING = frozenset(
    """all-reduce all-reduce-start reduce-scatter map reduce reduce-window scan scatter select-and-scatter sort fusion
    custom-call""".split()
)
"""Callers whose computations are emitted inside them, so that fusing in there is pointless."""


@dataclass(frozen=True)
class CpuInstructionFusion:
    """The pass."""

    order: tuple[str, ...] = ()
    """Computations to start with, by name: XLA's order depends on how the module was built, which text has lost. Only
    the numbers in names depend on it."""

    name = "fusion"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Fuse in every computation that runs on its own; whether anything was fused."""
        alias = AliasInfo()
        skip = _library_fusions(module)
        changed = False
        steps = _Steps()
        first = {name: at for at, name in enumerate(self.order)}
        for computation in sorted(fused_computations(module), key=lambda one: first.get(one.name, len(first))):
            changed |= _Computation(computation, Ladder(alias, skip), ctx, steps).run()
        return changed


def fused_computations(module: HloModule) -> Iterator[HloComputation]:
    """Computations in which instructions are fused, callees first, those that nothing reaches just before the entry."""
    for computation in _callees_first(module):
        callers = computation.callers
        if computation.is_fusion or (callers and callers[0].opcode in _EMBEDDING):
            continue
        yield computation


def _callees_first(module: HloModule) -> list[HloComputation]:
    order: dict[HloComputation, None] = {}

    def visit(start: HloComputation) -> None:
        stack: list[tuple[HloComputation, Iterator[HloComputation]]] = [(start, _callees(start))]
        seen = {start}
        while stack:
            one, rest = stack[-1]
            for callee in rest:
                if callee not in order and callee not in seen:
                    seen.add(callee)
                    stack.append((callee, _callees(callee)))
                    break
            else:
                stack.pop()
                order[one] = None

    visit(module.entry)
    del order[module.entry]
    for computation in module.computations:
        if computation not in order and computation is not module.entry:
            visit(computation)
    return [*order, module.entry]


def _callees(computation: HloComputation) -> Iterator[HloComputation]:
    for one in computation.post_order():
        if one.opcode == "while":  # the condition first, whatever order the text has
            yield from one.called.get("condition", ())
        yield from one.called_computations


def _library_fusions(module: HloModule) -> set[HloInstruction]:
    """Fusions that stand for a library call, and what is inside custom calls and scatters."""
    found: set[HloInstruction] = set()
    for one in module.instructions():
        if one.opcode == "fusion" and one.attr("kind") == "kCustom":
            found.add(one)
        if one.opcode == "custom-call" or one.opcode == "scatter" or _emits_its_callees(one.opcode):
            for computation in one.called_computations:
                found.update(computation)
    return found


_NOT_ELEMENT_EMITTED = frozenset(
    """add-dependency after-all async-start async-update async-done batch-norm-grad batch-norm-inference
    batch-norm-training cholesky copy-start copy-done custom-call domain dynamic-reshape fft fusion get-dimension-size
    set-dimension-size opt-barrier infeed outfeed partition-id replica-id send send-done recv recv-done rng
    rng-bit-generator rng-get-and-update-state scatter select-and-scatter sort topk triangular-solve while conditional
    stochastic-convert call""".split()
)


def _emits_its_callees(opcode: str) -> bool:
    info = OPCODES.get(opcode)
    return info is not None and not info.collective and opcode not in _NOT_ELEMENT_EMITTED


class _Steps:
    """Numbers of the decisions of one run of the pass."""

    def __init__(self) -> None:
        self._next = 0

    def take(self) -> int:
        self._next += 1
        return self._next - 1


class _Computation:
    """The fusion queue of one computation."""

    def __init__(self, computation: HloComputation, ladder: Ladder, ctx: PassContext, steps: _Steps) -> None:
        self._computation = computation
        self._ladder = ladder
        self._ctx = ctx
        self._steps = steps
        self._queue: list[HloInstruction | None] = list(computation.post_order())
        self._place: dict[HloInstruction, int] = {}
        self._grown: HloInstruction | None = None
        self._settled: set[HloInstruction] = set()
        """Producers that the fusion that grows now has refused for good."""

    def run(self) -> bool:
        """Take consumers from the back until none is left; whether anything was fused."""
        order = [one for one in self._queue if one is not None]
        self._place = {one: at for at, one in enumerate(order)}
        ban_duplication(order, self._ladder)
        changed = False
        while self._queue:
            consumer = self._queue.pop()
            if consumer is None:
                continue
            del self._place[consumer]
            if not is_generally_fusible(consumer) and consumer.opcode != "fusion":
                continue
            if consumer is not self._grown:
                self._settled.clear()
            for position in self._positions(consumer):
                if self._try(consumer, position):
                    changed = True
                    break
        return changed

    def _positions(self, consumer: HloInstruction) -> list[int]:
        """Operand positions whose producer is still waiting and not refused for good, the latest producer first."""
        place, settled, operands = self._place, self._settled, consumer.operands
        count = len(operands)
        keys = sorted(
            [at - place[one] * count for at, one in enumerate(operands) if one not in settled and one in place]
        )
        return [key % count for key in keys]

    def _try(self, consumer: HloInstruction, position: int) -> bool:
        producer = consumer.operand(position)
        if not is_generally_fusible(producer):
            self._settled.add(producer)
            return False
        refusal = self._ladder.refusal(consumer, position)
        if refusal is not None:
            if refusal.code in STAYS and consumer.opcode == "fusion":
                self._settled.add(producer)
            self._record(producer, consumer, position, refusal)
            return False
        step = self._ctx.gate("fuse", producer, others=(consumer,))
        if not step:
            return False
        names = (producer.name, producer.shape.byte_size, consumer.name)
        fusion = self._fuse(producer, consumer)
        self._grown = fusion
        if self._ctx.ledger.enabled:
            self._emit(names, position, fusion.name, step.question.ordinal if step.question is not None else None)
        step.done(fusion, detail=f"{names[0]} into {names[2]}")
        return True

    def _fuse(self, producer: HloInstruction, consumer: HloInstruction) -> HloInstruction:
        kind = "kOutput" if is_output_fusible(consumer, producer) else "kLoop"
        ladder = self._ladder
        if consumer.opcode == "fusion":
            fusion = consumer
            fusion.set_attr("kind", kind)
        else:
            name = f"{producer.opcode}_{consumer.opcode}_fusion"
            fusion = wrap(consumer, name=name, body_name="fused_computation", kind=kind)
        ladder.reused.fused(producer, fusion)
        estimate = ladder.estimate(fusion)
        users = estimate.leave(producer)
        clone = move_in(producer, fusion)
        estimate.enter(clone, users)
        if not producer.in_computation:
            at = self._place.pop(producer, None)
            if at is not None:
                self._queue[at] = None
        self._place[fusion] = len(self._queue)
        self._queue.append(fusion)
        return fusion

    # ---------------------------------------------------------------- events
    def _record(self, producer: HloInstruction, consumer: HloInstruction, position: int, refusal: Refusal) -> None:
        step = self._steps.take()
        if not self._ctx.ledger.enabled:
            return
        reason = refusal.reason + (f" ({refusal.numbers})" if refusal.numbers else "")
        self._ctx.ledger.emit_values(
            FusionDecision,
            "refused",
            refusal.code,
            (
                producer.name, self._computation.name, None, step, (consumer.name,), reason, None, None,
                _bytes(producer), None, position,
            ),
        )  # fmt: skip

    def _emit(self, names: tuple[str, int, str], position: int, fusion: str, fuel: int | None) -> None:
        producer, size, consumer = names
        self._ctx.ledger.emit_values(
            FusionDecision,
            "fused",
            None,
            (
                producer, self._computation.name, fuel, self._steps.take(), (consumer,), None, None, None, size, fusion,
                position,
            ),
        )  # fmt: skip


def _bytes(producer: HloInstruction) -> int | None:
    shape = producer.shape
    return shape.byte_size if shape.is_array else None
