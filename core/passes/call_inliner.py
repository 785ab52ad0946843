"""``call-inliner``: puts the body of a called computation in place of the call.

Left alone: calls with a backend config, calls inside asynchronous computations, and calls whose frontend attributes
say ``inlineable`` is false or ``xla_late``. Metadata of inlined instructions gets the call's op_name in front.
Source: ``openxla/xla:xla/service/call_inliner.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class CallInliner:
    """The pass."""

    name = "call-inliner"
    is_pipeline = False
    single_call_site: bool = False
    """Inline only computations with exactly one caller."""
    update_metadata: bool = True
    """Prefix the op_names of inlined instructions with the call's."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Callees first, so that each body is inlined once it holds no calls itself; uncalled bodies go."""
        changed = False
        asynchronous = _inside_async(module)
        for computation in module.post_order():
            if computation in asynchronous:
                continue
            for one in computation.post_order():
                if one.opcode != "call" or not one.in_computation:
                    continue
                reason = self._refusal(one)
                if reason is not None:
                    ctx.refuse("inline-call", one, *reason)
                    continue
                step = ctx.gate("inline-call", one)
                if step:
                    name = one.callee("to_apply").name
                    made = inline_call(one, ctx, update_metadata=self.update_metadata)
                    step.done(*made, detail=f"{len(made)} instructions of {name}")
                    changed = True
        if changed:
            _drop_uncalled(module)
        return changed

    def _refusal(self, call: HloInstruction) -> tuple[str, str] | None:
        if call.raw_attrs.get("backend_config") is not None:
            return "backend_config", ""
        frontend = call.attr("frontend_attributes") or {}
        wish = str(frontend.get("inlineable", ""))
        if wish in ("false", "xla_late"):
            return "not_inlineable", f"inlineable={wish}"
        callers = len(call.callee("to_apply").callers)
        if self.single_call_site and callers != 1 and wish not in ("true", "xla_early"):
            return "several_call_sites", f"{callers} callers"
        return None


def inline_call(call: HloInstruction, ctx: PassContext, *, update_metadata: bool) -> list[HloInstruction]:
    """Clone the callee's instructions in front of a call and put the root's clone in its place; the clones."""
    body, target = call.callee("to_apply"), call.parent
    prefix = call.metadata.op_name
    origin = ctx.lineage.of(call)
    mapped: dict[HloInstruction, HloInstruction] = {}
    made: list[HloInstruction] = []
    for one in body.post_order():
        if one.opcode == "parameter":
            mapped[one] = call.operand(one.parameter_number)
            continue
        twin = target.add(one.clone_with(operands=[mapped[operand] for operand in one.operands]))
        for before in one.control_predecessors:
            mapped[before].add_control_dependency(twin)
        metadata = twin.metadata
        if update_metadata and prefix and metadata.op_name:
            twin.set_attr("metadata", replace(metadata, op_name=f"{prefix}/{metadata.op_name}"))
        mapped[one] = twin
        ctx.lineage.derive(twin, f"{ctx.lineage.of(one)}@{origin}")
        made.append(twin)
    target.replace(call, mapped[body.root], relay_control=True)
    if call.in_computation:
        # It stayed because its body has side effects; those happen in the clones now.
        target.remove(call)
    return made


def _inside_async(module: HloModule) -> set[HloComputation]:
    """Computations that asynchronous instructions wrap."""
    return {
        callee
        for one in module.instructions()
        if one.opcode in ("async-start", "async-update", "async-done")
        for callee in one.called_computations
    }


def _drop_uncalled(module: HloModule) -> None:
    for computation in reversed(module.post_order()):
        if not computation.is_entry and not computation.callers:
            module.remove_computation(computation)
