"""sort-iota-fusion: a sort takes in the iotas that it sorts along, so that nobody writes and reads them.

Source: ``openxla/xla:xla/backends/gpu/transforms/sort_iota_fusion.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import shape_bytes
from hloscope.core.fusion.gpu.fuse import pull_in, wrap
from hloscope.core.ledger.events import FusionDecision

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class SortIotaFusion:
    """The pass."""

    @property
    def name(self) -> str:
        return "sort-iota-fusion"

    @property
    def is_pipeline(self) -> bool:
        return False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        changed = False
        for computation in module.post_order():
            if computation.is_fusion:
                continue
            for sort in computation.post_order():
                iotas = list(dict.fromkeys(one for one in sort.operands if one.opcode == "iota"))
                if sort.opcode != "sort" or not iotas:
                    continue
                step = ctx.gate("fuse", sort, others=tuple(iotas))
                if not step:
                    continue
                name = sort.name
                fusion = wrap(sort, "kCustom", "fusion")
                for number, iota in enumerate(iotas):
                    pull_in(fusion, iota)
                    if ctx.ledger.enabled:
                        ctx.ledger.emit(FusionDecision(
                            step=number, subject=iota.name, computation=computation.name, verdict="fused",
                            consumers=(name,), made=fusion.name, bytes=shape_bytes(iota.shape),
                            fuel=step.question.ordinal if step.question is not None else None,
                        ))  # fmt: skip
                    if computation.is_removable(iota) and not iota.user_count and not iota.is_root:
                        computation.remove(iota)
                step.done(fusion)
                changed = True
        return changed
