"""Run times of instructions and pairs with the caches of XLA's pass, whose life time shows in its numbers.

Tiling results are shared between pairs that look alike: an instruction of the input has one id with all that are
identical when operands are compared by shape; a new fusion's id is that of the triple it came from. Source:
``openxla/xla:xla/service/gpu/model/combined_gpu_performance_model.cc``,
``xla/service/gpu/fusion_deduplication_cache.cc``.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import CostAnalysis
from hloscope.core.fusion.cost_model.run_time import LAUNCH_OVERHEAD, RunTime, fused_run_time, instruction_run_time
from hloscope.core.fusion.cost_model.tiled import TiledRunTime, best_tiling, tiled_run_time
from hloscope.core.fusion.decision import ALLOWED, Decision
from hloscope.core.fusion.gpu.fusion_analysis import FusionAnalysis, analyze, is_triton_fusion
from hloscope.core.fusion.gpu.fusion_view import FusionView
from hloscope.core.fusion.gpu.launch import triton_tiles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule


class GpuModel:
    """Cost model and analysis caches of one run over a module."""

    def __init__(self, device: DeviceDescription, *, heroless: bool = False) -> None:
        self.device = device
        self.heroless = heroless
        """The flag ``xla_gpu_experimental_enable_triton_heroless_priority_fusion``."""
        self.costs = CostAnalysis(device)
        self._analyses: dict[HloInstruction, dict[HloInstruction | None, tuple[int, FusionAnalysis]]] = {}
        self._run_times: dict[HloInstruction, RunTime] = {}
        self._pairs: dict[HloInstruction, dict[HloInstruction, RunTime]] = {}
        self._tilings: dict[Hashable, TiledRunTime | Decision] = {}
        self._ids: dict[HloInstruction, int] = {}
        self._numbers: dict[Hashable, int] = {}

    # ---------------------------------------------------------------- emitters
    def analysis(self, producer: HloInstruction, consumer: HloInstruction | None = None) -> FusionAnalysis:
        """The emitter of an instruction or of a pair."""
        known = self._analyses.setdefault(producer, {})
        version = _version(producer) + (_version(consumer) if consumer is not None else 0)
        found = known.get(consumer)
        if found is None or found[0] != version:
            parts = (producer,) if consumer is None else (producer, consumer)
            found = known[consumer] = (version, analyze(self.device, *parts))
        return found[1]

    # ---------------------------------------------------------------- run times
    def run_time(self, instruction: HloInstruction) -> RunTime:
        """The run time of an instruction as a kernel of its own."""
        found = self._run_times.get(instruction)
        if found is None:
            found = self._run_times[instruction] = self._estimate(instruction)
        return found

    def _estimate(self, instruction: HloInstruction) -> RunTime:
        if is_triton_fusion(instruction):
            known = triton_tiles(instruction)
            if known is not None:
                found = tiled_run_time(self.device, FusionView(instruction), *known)
                if found is not None:
                    return found
        return instruction_run_time(self.costs, self.analysis(instruction), instruction)

    def pair(self, producer: HloInstruction, consumer: HloInstruction) -> RunTime:
        """The run time of a pair as one kernel."""
        known = self._pairs.setdefault(producer, {})
        found = known.get(consumer)
        if found is None:
            found = known[consumer] = fused_run_time(
                self.costs,
                self.analysis(producer, consumer),
                producer,
                consumer,
                self.run_time(producer),
                self.run_time(consumer),
            )
        return found

    def known_pairs(self, producer: HloInstruction) -> dict[HloInstruction, RunTime] | None:
        """The pairs with this producer that have been estimated; None where none ever was."""
        return self._pairs.get(producer)

    def estimate(self, producer: HloInstruction, consumers: Iterable[HloInstruction]) -> tuple[int, int]:
        """Ticks apart and fused, launches counted."""
        producer_time = self.run_time(producer)
        unfused = LAUNCH_OVERHEAD + producer_time.exec
        fused = 0
        for consumer in consumers:
            unfused += LAUNCH_OVERHEAD + self.run_time(consumer).exec
            fused += LAUNCH_OVERHEAD + self.pair(producer, consumer).exec
        return unfused, fused

    def invalidate(self, instruction: HloInstruction) -> None:
        """Forget what was known of an instruction and of its pairs."""
        self._run_times.pop(instruction, None)
        self._pairs.pop(instruction, None)
        self._analyses.pop(instruction, None)
        for operand in instruction.operands:
            if operand.opcode == "get-tuple-element":
                operand = operand.operand(0)  # noqa: PLW2901 - as the cache is keyed
            known = self._pairs.get(operand)
            if known is not None:
                known.pop(instruction, None)

    # ---------------------------------------------------------------- tilings
    def tile(self, producer: HloInstruction, consumer: HloInstruction) -> Decision:
        """Whether the pair can be tiled; on success its run time is that of the best tiling."""
        found = self.tiling(producer, consumer)
        if isinstance(found, Decision):
            return found
        self._pairs.setdefault(producer, {})[consumer] = found.run_time
        return ALLOWED

    def tiling(self, producer: HloInstruction, consumer: HloInstruction) -> TiledRunTime | Decision:
        """The best tiling of a pair, shared with pairs that look alike."""
        key = self._triple(producer, consumer, consumer.operands.index(producer))
        found = self._tilings.get(key)
        if found is None:
            found = self._tilings[key] = best_tiling(self.device, FusionView(producer, consumer))
        return found

    def known_tiling(self, producer: HloInstruction, consumer: HloInstruction) -> TiledRunTime | None:
        """The tiling of a pair where one was looked for and found."""
        if producer not in self._ids or consumer not in self._ids:
            return None
        found = self._tilings.get(self._triple(producer, consumer, consumer.operands.index(producer)))
        return found if isinstance(found, TiledRunTime) else None

    def _triple(self, producer: HloInstruction, consumer: HloInstruction, place: int) -> int:
        return self._intern((self.id_of(producer), self.id_of(consumer), place))

    def _intern(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def number(self, module: HloModule) -> None:
        """Give every instruction of the input its id."""
        bodies: dict[HloComputation, int] = {}
        for computation in module.post_order():
            order = computation.post_order()
            for one in order:
                self._ids[one] = self._intern(_look(one, bodies))
            place = {one: number for number, one in enumerate(order)}
            structure = tuple((self._ids[one], tuple(place[operand] for operand in one.operands)) for one in order)
            bodies[computation] = self._intern(structure)

    def id_of(self, instruction: HloInstruction) -> int:
        """The id under which tilings are shared."""
        found = self._ids.get(instruction)
        return self._intern(instruction) if found is None else found

    def made(self, fusion: HloInstruction, producer: HloInstruction, consumer_id: int, place: int) -> None:
        """Give a new (or grown) fusion the id of what it came from."""
        self._ids[fusion] = self._intern((self.id_of(producer), consumer_id, place))


_NO_LOOK = frozenset(("metadata", "frontend_attributes", "control-predecessors"))


def _look(one: HloInstruction, bodies: dict[HloComputation, int]) -> Hashable:
    """What makes two instructions identical when operands are compared by shape."""
    attrs = tuple(
        sorted((key, text) for key, text in one.raw_attrs.items() if text is not None and key not in _NO_LOOK)
    )
    called = tuple(bodies.get(computation) for computation in one.called_computations)
    payload = one.payload if one.opcode in ("constant", "parameter") else None
    return (one.opcode, one.shape, payload, attrs, called, tuple(operand.shape for operand in one.operands))


def _version(instruction: HloInstruction) -> int:
    """Grows with every change of a fusion's body."""
    return instruction.callee().version if instruction.opcode == "fusion" else 0
