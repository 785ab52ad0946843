"""``fusion-wrapper``: gives every instruction that has a loop emitter, and is in no fusion, a fusion of its own.

After it the CPU back end compiles fusions only. Source: ``openxla/xla:xla/service/cpu/fusion_wrapper.cc``,
``xla/codegen/emitters/fusion_wrapper_base.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import ELEMENTWISE
from hloscope.core.fusion.cpu.build import wrap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_WRAPPED = (ELEMENTWISE - {"copy"}) | frozenset(
    "broadcast dynamic-slice gather iota map pad reduce reduce-window reshape reverse rng slice scatter".split()
)
_WRAPPED_SINCE_JULY_2026 = frozenset(("transpose", "dynamic-update-slice"))
_ENTERED = frozenset(("while", "conditional", "call", "async-start"))


@dataclass(frozen=True)
class CpuFusionWrapper:
    """The pass."""

    name = "fusion-wrapper"
    is_pipeline = False
    wrap_data_movement: bool = False
    """Wrap transpose and dynamic-update-slice too, as XLA does since 25 July 2026."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Wrap in every computation that runs on its own; whether anything was wrapped."""
        changed = False
        for computation in _running(module.entry):
            for one in computation.post_order():
                if not self._is_wrapped(one):
                    continue
                step = ctx.gate("wrap", one)
                if step:
                    name = f"wrapped_{one.opcode}"
                    step.done(wrap(one, name=name, body_name=f"{name}_computation"))
                    changed = True
        return changed

    def _is_wrapped(self, one: HloInstruction) -> bool:
        if one.opcode == "copy":
            return _changes_layout(one)
        return one.opcode in _WRAPPED or (self.wrap_data_movement and one.opcode in _WRAPPED_SINCE_JULY_2026)


def _changes_layout(copy: HloInstruction) -> bool:
    shape = copy.shape
    if not shape.is_array or shape == copy.operand(0).shape:
        return False
    kind = shape.type
    return kind.kind == "pred" or (kind.bits >= 8 and not kind.name.startswith(("f8", "f6")))


def _running(entry: HloComputation) -> Iterator[HloComputation]:
    seen = {entry}
    work = [entry]
    while work:
        computation = work.pop()
        yield computation
        for one in computation.post_order():
            if one.opcode in _ENTERED:
                for callee in one.called_computations:
                    if callee not in seen:
                        seen.add(callee)
                        work.append(callee)
