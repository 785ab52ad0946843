"""copy_fusion: copies of what a fusion computes become further results of that fusion.

It runs right after copy insertion, on the entry alone: elsewhere a copy may share memory with what the fusion reads.
Source: ``openxla/xla:xla/backends/gpu/transforms/copy_fusion.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.cost import shape_bytes
from hloscope.core.analysis.device import load_device
from hloscope.core.analysis.elementwise import is_elementwise
from hloscope.core.fusion.decision import ALLOWED, Decision
from hloscope.core.fusion.gpu.can_fuse import MAX_PARAMETERS, budget_refusal
from hloscope.core.fusion.gpu.shapes import is_unnested_reduction
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.shape import Shape
from hloscope.core.ledger.events import FusionDecision

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


@dataclass(frozen=True)
class CopyFusion:
    """The pass. `device` names a GPU or a file with a ``GpuTargetConfigProto``; empty for the context's target."""

    device: str = ""
    name = "copy_fusion"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Take copies into the fusions that they copy from; returns whether there were any."""
        device = load_device(self.device or (ctx.target if ctx.target not in ("cpu", "gpu", "tpu", "") else None))
        changed = False
        step = 0
        for one in module.entry.post_order():
            if one.opcode != "fusion" or one.attr("kind") == "kCustom":
                continue
            copies = list(_copies(one))
            if not copies:
                continue
            refusal = fusion_refusal(one, device)
            taken: list[HloInstruction] = []
            for copy in copies:
                verdict = refusal if not refusal else copy_refusal(one, copy, device)
                if verdict and _results(one) + len(copies) > MAX_PARAMETERS:
                    verdict = Decision.forbid(
                        "the fusion would exceed the operands and outputs per fusion",
                        f"at most {MAX_PARAMETERS} results",
                        outputs=_results(one) + len(copies),
                        limit=MAX_PARAMETERS,
                    )
                gate = ctx.gate("fuse", copy, others=(one,)) if verdict else None
                if gate:
                    gate.done(one, detail=f"{copy.name} beside {one.name}, which it copies")
                    taken.append(copy)
                if ctx.ledger.enabled and (gate or not verdict):
                    fuel = gate.question.ordinal if gate is not None and gate.question is not None else None
                    ctx.ledger.emit(
                        FusionDecision(
                            step=step, subject=copy.name, computation=module.entry.name,
                            verdict="fused" if gate else "refused", consumers=(one.name,),
                            made=one.name if gate else None, bytes=shape_bytes(copy.shape), fuel=fuel,
                            code=None if gate else verdict.code, reason=None if gate else verdict.reason,
                        )
                    )  # fmt: skip
                    step += 1
            if taken:
                _take(one, taken)
                changed = True
        return changed


def _results(fusion: HloInstruction) -> int:
    return len(fusion.shape.tuple_shapes) if fusion.shape.is_tuple else 1


def _copies(fusion: HloInstruction) -> Iterator[HloInstruction]:
    """Copies that read the fusion, at most one element and one bitcast away from it."""
    for user in fusion.users:
        one = user
        for between in ("get-tuple-element", "bitcast"):
            if one.opcode == between and one.user_count == 1:
                one = one.users[0]
        if one.opcode == "copy" and not one.shape.is_tuple:
            yield one


def fusion_refusal(fusion: HloInstruction, device: DeviceDescription) -> Decision:
    """Why a fusion takes no copies."""
    body = fusion.callee()
    mover = next(_moves(body), None)
    if mover is not None:
        return Decision.forbid(
            "the fusion moves elements of what it reads", "only elementwise operations after parameters",
            opcode=mover.opcode,
        )  # fmt: skip
    root = body.root
    if is_unnested_reduction(root, device) or root.opcode == "scatter":
        return Decision.forbid(
            "the fusion's root has an emitter of its own", "another root than a reduction or a scatter",
            opcode=root.opcode,
        )  # fmt: skip
    parts: Sequence[HloInstruction] = root.operands if root.opcode == "tuple" else (root,)
    if root.opcode == "tuple" and all(one.opcode == "slice" for one in parts):
        return Decision.forbid("all results are slices", "a result that is no slice", opcode="slice")
    sources = [one.operand(0) if one.opcode == "bitcast" else one for one in parts]
    if all(one.opcode == "dynamic-update-slice" for one in sources):
        return Decision.forbid(
            "the fusion may update its operand in place", "a result that is no dynamic-update-slice",
            opcode="dynamic-update-slice",
        )  # fmt: skip
    return ALLOWED


def _moves(body: HloComputation) -> Iterator[HloInstruction]:
    """What depends on a parameter and is not elementwise."""
    seen: set[HloInstruction] = set(body.parameters)
    work = list(body.parameters)
    while work:
        for user in work.pop().users:
            if user.opcode not in ("bitcast", "tuple") and (user.opcode == "copy" or not is_elementwise(user)):
                yield user
            if user not in seen:
                seen.add(user)
                work.append(user)


def copy_refusal(fusion: HloInstruction, copy: HloInstruction, device: DeviceDescription) -> Decision:
    """Why a fusion does not take this copy."""
    element = next((one for one in _way(fusion, copy) if one.opcode == "get-tuple-element"), None)
    if element is not None and is_unnested_reduction(fusion.callee().root.operand(element.attr("index")), device):
        return Decision.forbid("it copies a reduction's result", "another result of the fusion", opcode="reduce")
    if copy.shape != copy.operand(0).shape:
        return Decision.forbid("the copy changes the layout", "a copy to the same layout", shape=str(copy.shape))
    if copy.control_predecessors or copy.control_successors:
        return Decision.forbid("the copy has control edges", "a copy without control edges", opcode="copy")
    return budget_refusal(fusion, copy, device, consumes=False)


def _way(fusion: HloInstruction, copy: HloInstruction) -> list[HloInstruction]:
    """From the copy up to the fusion, which is left out."""
    found = [copy]
    while found[-1].operand(0) is not fusion:
        found.append(found[-1].operand(0))
    return found


def _take(fusion: HloInstruction, copies: Sequence[HloInstruction]) -> None:
    computation, body = fusion.parent, fusion.callee()
    root = body.root
    single = root.opcode != "tuple"
    results = [root] if single else list(root.operands)
    first = len(results)
    paths = [_way(fusion, copy) for copy in copies]
    for path in paths:
        source = root
        if not single:
            source = root.operand(path.pop().attr("index"))
        for one in reversed(path):
            source = body.add(HloInstruction(one.opcode, one.shape, (source,), name=one.opcode))
        results.append(source)
    made = body.add(HloInstruction("tuple", Shape.tuple_([one.shape for one in results]), results, name="tuple"))
    body.set_root(made)
    others = [user for user in fusion.users if all(user not in path for path in paths)] if single else []
    was_root, old_shape = fusion.is_root, fusion.shape
    fusion.shape = made.shape
    if not single:
        body.remove(root)
    elif others or was_root:
        part = computation.add(_element(fusion, old_shape, 0))
        for user in others:
            fusion.replace_use_with(user, part)
        if was_root:
            computation.set_root(part)
    for number, copy in enumerate(copies, first):
        part = computation.add(_element(fusion, copy.shape, number))
        copy.replace_all_uses_with(part)
        if copy.is_root:
            computation.set_root(part)
        computation.remove_with_dead_operands(copy)


def _element(fusion: HloInstruction, shape: Shape, index: int) -> HloInstruction:
    return HloInstruction("get-tuple-element", shape, (fusion,), name="get-tuple-element", attrs={"index": str(index)})
