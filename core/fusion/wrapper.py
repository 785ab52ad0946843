"""``fusion-wrapper``: the pass of the target that is compiled for; XLA has one of this name for CPU and one for GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.fusion.cpu.wrapper import CpuFusionWrapper

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class FusionWrapper:
    """The pass."""

    name = "fusion-wrapper"
    is_pipeline = False
    wrap_data_movement: bool = False
    """CPU: wrap transpose and dynamic-update-slice too, as XLA does since 25 July 2026."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Wrap; whether anything was wrapped."""
        if ctx.target in ("cpu", "core", ""):
            return CpuFusionWrapper(self.wrap_data_movement).run(module, ctx)
        from hloscope.core.fusion.gpu.wrapper import GpuFusionWrapper

        return GpuFusionWrapper().run(module, ctx)
