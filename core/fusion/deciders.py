"""Running a backend's own fusion decider on a module and collecting what it decided.

A module is changed by it: give it one of your own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from hloscope.core.analysis.device import device_names
from hloscope.core.errors import UnsupportedError
from hloscope.core.ledger.events import FusionDecision
from hloscope.core.ledger.record import NullLedger
from hloscope.core.passes.context import PassContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.ledger.declare import Event
    from hloscope.core.passes.interface import HloPass

FUSION_PASSES: Mapping[str, str] = {"cpu": "fusion", "gpu": "priority-fusion", "tpu": "tpu_fusion"}
"""The pass that decides by backend."""
_CPU = "hloscope.core.fusion.cpu.instruction_fusion:CpuInstructionFusion"


class DecisionList(NullLedger):
    """A recorder that keeps fusion decisions in memory."""

    enabled = True

    def __init__(self) -> None:
        self.decisions: list[FusionDecision] = []

    def emit(self, event: Event) -> None:
        """Keep a fusion decision; drop anything else."""
        if isinstance(event, FusionDecision):
            self.decisions.append(event)


@dataclass(frozen=True, slots=True)
class Decided:
    """What a decider did."""

    backend: str
    module: HloModule
    """The module after it."""
    decisions: list[FusionDecision] = field(default_factory=list[FusionDecision])


def backend_of(target: str) -> str:
    """``cpu`` or ``gpu`` of a target's name; any name that is neither names a GPU or a file that describes one.

    Raises UnsupportedError for a TPU, whose fusion is not public.
    """
    if target == "cpu":
        return "cpu"
    if target in ("tpu", "v5e"):
        raise UnsupportedError("the fusion of XLA:TPU is not public", hint="--target cpu, h100 or another GPU")
    return "gpu"


def decide(module: HloModule, backend: str, device: DeviceDescription | None = None) -> Decided:
    """Run a backend's decider on a module, in place. Raises UnsupportedError for a backend without one."""
    ledger = DecisionList()
    ctx = PassContext(ledger, target=backend)
    if backend == "gpu":
        from hloscope.core.analysis.device import load_device
        from hloscope.core.fusion.gpu.priority_fusion import run_priority_fusion

        run_priority_fusion(module, ctx, device if device is not None else load_device())
    elif backend == "cpu":
        name, _, attribute = _CPU.partition(":")
        one: HloPass = getattr(import_module(name), attribute)()
        one.run(module, ctx)
    else:
        raise UnsupportedError(f"the fusion of XLA:{backend.upper()} is not public")
    return Decided(backend, module, ledger.decisions)


def targets() -> list[str]:
    """Names that ``--target`` takes beside files."""
    return ["cpu", *device_names()]
