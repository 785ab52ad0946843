"""priority-fusion: fuse the producer that saves most time into all its users, score again what that touched, repeat.

Source: ``openxla/xla:xla/backends/gpu/transforms/priority_fusion.cc``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from hloscope.core.analysis.cost import shape_bytes
from hloscope.core.analysis.cost_units import microseconds
from hloscope.core.analysis.device import load_device
from hloscope.core.fusion.gpu.can_fuse import can_fuse_constant, is_fusible_bitcast
from hloscope.core.fusion.gpu.fuse import UserOrder, pull_in, wrap
from hloscope.core.fusion.gpu.fusion_analysis import FUSION_KIND, TRITON
from hloscope.core.fusion.gpu.model import GpuModel
from hloscope.core.fusion.gpu.priority_queue import INFINITE, PriorityQueue, Score
from hloscope.core.ledger.events import FusionDecision

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.fusion.cost_model.tiled import TiledRunTime
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

NO_BENEFIT = "fusing it into all its users would take longer than keeping it apart"
_STREAM = "_xla_stream_annotation"
_CONTROL_FLOW = frozenset(("while", "conditional", "fusion"))


@dataclass(frozen=True, slots=True)
class Step:
    """One step, as XLA's fusion process dump has them."""

    kind: Literal["priority", "ineligible", "fused"]
    producer: str
    consumers: tuple[str, ...] = ()
    reason: str | None = None
    us_unfused: float | None = None
    us_fused: float | None = None
    made: str | None = None
    """Name of the fusion that holds both afterwards."""


class Guide(Protocol):
    """Supplies what a text has lost: the order of users, and which of several equal producers goes first."""

    def first_order(self, name: str) -> list[str] | None:
        """Users of an instruction before anything was fused."""
        ...

    def before_batch(self, find: Callable[[str], HloInstruction | None], users: UserOrder) -> None:
        """Called before a batch of scores."""
        ...

    def pick(self, equal: list[HloInstruction]) -> HloInstruction | None:
        """Which of several producers of equal priority goes first."""
        ...

    def before_fusing(self, producer: HloInstruction, consumers: list[HloInstruction]) -> list[HloInstruction]:
        """The order in which a producer goes into its consumers."""
        ...

    def first_name(self) -> int | None:
        """Number of the first new fusion's name."""
        ...

    def order(self, computations: list[HloComputation]) -> list[HloComputation]:
        """The order in which computations are worked through."""
        ...

    def expected(self, producer: HloInstruction) -> str | None:
        """The reason with which a producer is about to be refused: of several users that refuse, the first counts."""
        ...


@dataclass(slots=True)
class Outcome:
    """What one run over a module did."""

    steps: list[Step] = field(default_factory=list[Step])
    changed: bool = False
    users: dict[str, tuple[str, ...]] = field(default_factory=dict[str, "tuple[str, ...]"])
    """Users of every instruction afterwards, in XLA's order; what runs next depends on it."""


@dataclass(frozen=True)
class PriorityFusion:
    """The pass. `device` names a GPU or a file with a ``GpuTargetConfigProto``; empty for the context's target."""

    device: str = ""
    heroless: bool = False
    """``xla_gpu_experimental_enable_triton_heroless_priority_fusion``"""

    @property
    def name(self) -> str:
        return "priority-fusion"

    @property
    def is_pipeline(self) -> bool:
        return False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        device = load_device(self.device or (ctx.target if ctx.target not in ("cpu", "gpu", "tpu", "") else None))
        return run_priority_fusion(module, ctx, device, heroless=self.heroless).changed


def run_priority_fusion(
    module: HloModule,
    ctx: PassContext,
    device: DeviceDescription,
    *,
    heroless: bool = False,
    guide: Guide | None = None,
) -> Outcome:
    """Run the pass on a module, in place, and return its steps."""
    run = _Run(module, ctx, GpuModel(device, heroless=heroless), guide)
    return run.run()


def fusible_computations(module: HloModule) -> list[HloComputation]:
    """Computations whose instructions are kernels: no fusion bodies, nothing that runs inside another instruction.

    The order is that of the text, which is a post order; once earlier passes have added bodies of their own, conditions
    of loops come first: the numbers in the names of real dumps show it.
    """
    inner: set[HloComputation] = set()
    conditions: set[HloComputation] = set()
    for computation in module.computations:
        for one in computation.instructions:
            if one.called_computations and one.opcode not in _CONTROL_FLOW and not _is_stream(one):
                inner.update(one.called_computations)
            elif one.opcode == "while":
                conditions.update(one.called["condition"])
    found = [one for one in module.post_order() if not one.is_fusion and one not in inner]
    if names_used_before(module):
        found.sort(key=lambda one: one not in conditions)
    return found


def _is_stream(instruction: HloInstruction) -> bool:
    return instruction.opcode == "call" and _STREAM in (instruction.attr("frontend_attributes") or {})


def names_used_before(module: HloModule) -> int:
    """How many times passes before this one have asked for the name ``fusion``: once for each Triton gemm, twice for
    each softmax. Observed on real modules."""
    gemms = softmaxes = 0
    for one in module.instructions():
        if one.opcode == "fusion":
            gemms += one.name.startswith("gemm_fusion")
            softmaxes += one.name.startswith("triton_softmax")
    return gemms + 2 * softmaxes


class _Run:
    def __init__(self, module: HloModule, ctx: PassContext, model: GpuModel, guide: Guide | None) -> None:
        self._module = module
        self._ctx = ctx
        self._model = model
        self._guide = guide
        self._outcome = Outcome()
        self._next_name = names_used_before(module)
        self._named = False

    def run(self) -> Outcome:
        self._model.number(self._module)
        computations = fusible_computations(self._module)
        for computation in computations if self._guide is None else self._guide.order(computations):
            self._computation(computation)
        return self._outcome

    def _computation(self, computation: HloComputation) -> None:
        guide = self._guide
        users = UserOrder(computation)
        if guide is not None:
            for one in computation.instructions:
                order = guide.first_order(one.name)
                if order is not None:
                    users.sort(one, order)
            self._before_batch(computation, users)
        queue = PriorityQueue(
            computation,
            self._model,
            users,
            self._on_score,
            tie=guide.pick if guide is not None else None,
            expected=guide.expected if guide is not None else None,
        )
        queue.start()
        while queue.take():
            self._fuse_all(computation, queue, users)
            if guide is not None:
                self._before_batch(computation, users)
            queue.update()
        self._constants(computation, users)
        for one in computation.instructions:
            self._outcome.users[one.name] = tuple(user.name for user in users.of(one))

    def _before_batch(self, computation: HloComputation, users: UserOrder) -> None:
        assert self._guide is not None
        by_name = {one.name: one for one in computation.instructions}
        self._guide.before_batch(by_name.get, users)

    def _fuse_all(self, computation: HloComputation, queue: PriorityQueue, users: UserOrder) -> None:
        producer = queue.producer
        assert producer is not None
        model = self._model
        if self._guide is not None:
            queue.consumers = self._guide.before_fusing(producer, queue.consumers)
        tilings = {one: model.known_tiling(producer, one) for one in queue.consumers}
        for consumer in queue.consumers:
            if is_fusible_bitcast(consumer):
                continue
            step = self._ctx.gate("fuse", producer, others=(consumer,))
            if not step:
                self._emit(producer, "refused", (consumer.name,), code=step.refusal.code if step.refusal else None)
                continue
            if not self._named and consumer.opcode != "fusion":
                self._named = True
                first = self._guide.first_name() if self._guide is not None else None
                self._next_name = self._next_name if first is None else first
            place, consumer_id, name = consumer.operands.index(producer), model.id_of(consumer), consumer.name
            saved = shape_bytes(producer.shape)
            fusion = self._fuse(producer, consumer, users)
            tiling = tilings.get(consumer)
            if tiling is not None:
                set_triton(fusion, tiling)
            model.made(fusion, producer, consumer_id, place)
            self._outcome.steps.append(Step("fused", producer.name, (name,), made=fusion.name))
            self._outcome.changed = True
            fuel = step.question.ordinal if step.question is not None else None
            self._emit(producer, "fused", (name,), made=fusion.name, saved=saved, fuel=fuel)
            queue.on_fused(fusion, producer, consumer)
            step.done(fusion)
        queue.note_removed_consumers()
        if not producer.user_count:
            queue.invalidate(producer)
            queue.remove(producer)
            operands = producer.operands
            users.forget(producer, operands)
            _remove(computation, producer)
        for consumer in queue.consumers:
            queue.invalidate(consumer)

    def _fuse(self, producer: HloInstruction, consumer: HloInstruction, users: UserOrder | None) -> HloInstruction:
        kind = FUSION_KIND[self._model.analysis(producer, consumer).kind]
        fusion = consumer
        if consumer.opcode != "fusion":
            fusion = wrap(consumer, kind, self._name(), users)
        elif consumer.attr("kind") != kind:
            consumer.set_attr("kind", kind)
        pull_in(fusion, producer, users)
        return fusion

    def _name(self) -> str:
        names = self._module.instruction_names
        while True:
            name = "fusion" if self._next_name == 0 else f"fusion.{self._next_name}"
            self._next_name += 1
            if name not in names:
                return name

    def _constants(self, computation: HloComputation, users: UserOrder) -> None:
        """Pull constants of one element into every user that can hold them.

        That is no part of the cost model and costs no fuel in XLA; here the gate is asked, after all merges of the
        computation, so that a bisection can name it.
        """
        for constant in computation.instructions:
            if constant.opcode != "constant" or not constant.shape.is_array or constant.shape.element_count > 1:
                continue
            for user in users.of(constant):
                if not can_fuse_constant(constant, user, self._model.device):
                    continue
                step = self._ctx.gate("fuse-constant", constant, others=(user,))
                if not step:
                    continue
                step.done(self._fuse(constant, user, users))
                self._outcome.changed = True
            if not constant.user_count and not constant.is_root:
                users.forget(constant, ())
                computation.remove(constant)

    # ---------------------------------------------------------------- recording
    def _on_score(self, score: Score) -> None:
        if not score.decision:
            self._outcome.steps.append(Step("ineligible", score.name, score.consumers, score.decision.reason))
            self._emit(score.producer, "ineligible", (), decision=score)
        elif abs(score.priority) < INFINITE:
            unfused, fused = microseconds(score.unfused), microseconds(score.fused)
            self._outcome.steps.append(
                Step("priority", score.name, score.consumers, us_unfused=unfused, us_fused=fused)
            )
            self._emit(score.producer, "priority", score.consumers, decision=score)

    def _emit(
        self,
        producer: HloInstruction,
        verdict: str,
        consumers: tuple[str, ...],
        *,
        code: str | None = None,
        made: str | None = None,
        saved: int | None = None,
        fuel: int | None = None,
        decision: Score | None = None,
    ) -> None:
        if not self._ctx.ledger.enabled:
            return
        reason, us_fused, us_unfused = None, None, None
        if decision is not None:
            code, reason = decision.decision.code, decision.decision.reason
            if decision.decision:
                us_fused, us_unfused = microseconds(decision.fused), microseconds(decision.unfused)
            saved = shape_bytes(producer.shape)
            if decision.refused_by is not None:
                consumers = (decision.refused_by,)
        self._ctx.ledger.emit(
            FusionDecision(
                step=len(self._outcome.steps) - 1,
                subject=producer.name,
                computation=producer.parent.name if producer.in_computation else None,
                verdict=verdict,
                code=code,
                consumers=consumers,
                reason=reason,
                us_fused=us_fused,
                us_unfused=us_unfused,
                bytes=saved,
                fuel=fuel,
                made=made,
            )
        )


def set_triton(fusion: HloInstruction, tiling: TiledRunTime) -> None:
    """Make a fusion one for the Triton emitter, with tiles and warps."""
    config = {
        "fusion_backend_config": {
            "kind": TRITON,
            "block_level_fusion_config": {
                "num_warps": str(tiling.warps),
                "output_tiles": [{"sizes": [str(size) for size in tiling.tiles]}],
                "num_ctas": 1,
                "num_stages": 1,
            },
        }
    }
    fusion.set_attr("backend_config", json.dumps(config, separators=(",", ":")))
    fusion.set_attr("kind", "kCustom")


def _remove(computation: HloComputation, instruction: HloInstruction) -> None:
    """Remove a dead instruction, with its body where it is a fusion."""
    bodies = instruction.called_computations if instruction.opcode == "fusion" else ()
    instruction.drop_all_control_dependencies()
    computation.remove(instruction)
    for body in bodies:
        if not body.callers:
            computation.module.remove_computation(body)
