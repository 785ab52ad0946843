"""What XLA:GPU does around its fusions: a fusion for every lone instruction that has an emitter, and names that say
what a fusion is built around.

Source: ``openxla/xla:xla/backends/gpu/transforms/fusion_wrapper.cc``, ``rename_fusions.cc``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.device import load_device
from hloscope.core.fusion.gpu.fuse import wrap
from hloscope.core.fusion.gpu.fusion_analysis import analyze, non_trivial_hero
from hloscope.core.fusion.gpu.fusion_view import FusionView

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_WRAPPED = frozenset(
    """abs acos acosh asin asinh add and atan2 atanh bitcast-convert broadcast ceil cbrt clamp count-leading-zeros
    compare complex concatenate convolution convert cosine cosh divide dot dynamic-slice dynamic-update-slice erf
    exponential exponential-minus-one floor gather imag iota is-finite log log-plus-one map maximum minimum multiply
    mulhi negate not or pad popcnt power real reshape reduce reduce-precision reduce-window remainder reverse
    round-nearest-afz round-nearest-even rsqrt scatter select shift-left shift-right-logical shift-right-arithmetic
    sign sine sinh slice sqrt subtract stochastic-convert tan tanh transpose xor""".split()
)
_ENTERED = frozenset(("while", "conditional", "call", "async-start"))


@dataclass(frozen=True)
class GpuFusionWrapper:
    """The pass."""

    name = "fusion-wrapper"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Wrap in every computation that runs on its own; whether anything was wrapped."""
        device = load_device(ctx.target if ctx.target not in ("cpu", "core", "gpu", "tpu", "") else None)
        changed = False
        for one in list(_reached(module.entry, set())):
            if one.opcode not in _WRAPPED:
                continue
            step = ctx.gate("wrap", one)
            if not step:
                continue
            opcode = one.opcode
            kind = "kInput" if analyze(device, one).kind in ("reduction", "transpose") else "kLoop"
            fusion = wrap(one, kind, f"wrapped_{opcode}")
            fusion.callee().rename(f"wrapped_{opcode}_computation")
            step.done(fusion)
            changed = True
        return changed


def _reached(computation: HloComputation, seen: set[HloComputation]) -> Iterator[HloInstruction]:
    seen.add(computation)
    for one in computation.post_order():
        if one.opcode in _ENTERED:
            for callee in one.called_computations:
                if callee not in seen:
                    yield from _reached(callee, seen)
        else:
            yield one


@dataclass(frozen=True)
class RenameFusions:
    """Fusions and their bodies by kind and heroes: ``loop_multiply_fusion``, ``fused_multiply``."""

    name = "rename_fusions"
    is_pipeline = False
    text_only = True

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every fusion that is not custom; it reports a change always, as XLA's does."""
        changed = False
        for computation in module.post_order():
            if computation.is_fusion:
                continue
            for one in computation.instructions:
                kind = str(one.attr("kind"))[1:].lower() if one.opcode == "fusion" else "custom"
                if kind == "custom":
                    continue
                step = ctx.gate("rename", one)
                if not step:
                    continue
                # Later decisions name the fusion as it came, whether or not this one was refused.
                ctx.lineage.derive(one, one.name)
                view = FusionView(one)
                heroes = sorted({non_trivial_hero(root, view).opcode for root in view.roots()})
                names = "_".join(heroes).replace("-", "_")
                one.rename(f"{kind}_{names}_fusion")
                one.callee().rename(f"fused_{names}")
                step.done(one)
                changed = True
        return changed
