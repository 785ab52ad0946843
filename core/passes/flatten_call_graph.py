"""``flatten-call-graph``: gives every call site its own copy of the computation that it calls.

All callers but the first get a deep clone (callees of the clone are cloned too), named ``<name>.clone``, so that later
passes may change one call without the others. Source: ``openxla/xla:xla/service/flatten_call_graph.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.computation import HloComputation

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class FlattenCallGraph:
    """The pass."""

    name = "flatten-call-graph"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Callers before callees, so that callees are met when all clones that call them exist."""
        changed = False
        for computation in reversed(module.post_order()):
            sites = [(caller, *at) for caller in computation.callers for at in _places(caller, computation)]
            for number, (caller, name, place) in enumerate(sites[1:], start=1):
                step = ctx.gate("clone-callee", caller)
                if not step:
                    continue
                clone = clone_computation(module, computation)
                for twin, original in zip(clone.instructions, computation.instructions, strict=True):
                    ctx.lineage.derive(twin, f"{ctx.lineage.of(original)}@{ctx.lineage.of(caller)}/{number}")
                group = list(caller.called[name])
                group[place] = clone
                caller.set_called(name, group if name in caller.calls_as_list else group[0])
                step.done(detail=f"{computation.name} cloned to {clone.name}")
                changed = True
        return changed


def _places(caller: HloInstruction, computation: HloComputation) -> list[tuple[str, int]]:
    return [
        (name, place)
        for name, group in caller.called.items()
        for place, callee in enumerate(group)
        if callee is computation
    ]


def clone_computation(module: HloModule, computation: HloComputation) -> HloComputation:
    """A copy of a computation in the same module; callees are shared, instructions keep their order and bare names."""
    clone = HloComputation(f"{computation.name}.clone")
    computation.clone_into(clone, {})
    for one in clone:
        one.touch()
    return module.add_computation(clone, first=True)
