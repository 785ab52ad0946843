"""``copy-insertion``: copies that make the must-alias buffers of a module legal, as few as can be.

Three steps: copies wherever values would meet in one buffer; then those go whose two sides can share memory after all;
then copies for what may never be written over or given back twice.
Source: ``openxla/xla:xla/service/copy_insertion.cc``. The rules for conditionals are those of jaxlib 0.10.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.analysis.alias import AliasAnalysis, input_output_aliases
from hloscope.core.analysis.alias_info import AliasInfo, GpuAliasInfo, InPlacePair
from hloscope.core.analysis.alias_sharing import can_share
from hloscope.core.analysis.dataflow import branches
from hloscope.core.analysis.ordering import HloOrdering
from hloscope.core.buffers.copy_removal import CopyRemover, Interference, remove_copies
from hloscope.core.buffers.deep_copy import Copies, clean_up, deep_copy, order_copies, redirect
from hloscope.core.errors import UnsupportedError
from hloscope.core.ledger.events import CopyAdded, CopyInterference

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import ShapeIndex
    from hloscope.core.passes.context import PassContext

_NO_LOOP_COPIES = "xla_disable_while_loop_copies"
_Want = Callable[["HloInstruction", "ShapeIndex", str], None]
_TRANSFERS = ("send", "recv", "copy-start")
"""Starts whose result is in use until their done, and must not be copied."""
_DISJOINT = "xla_disjoint_read_write_regions"


@dataclass(frozen=True)
class CopyInsertion:
    """The pass."""

    name = "copy-insertion"
    is_pipeline = False
    region_analysis_limit: int = 0
    """Region analysis runs where reads and writes of both sides, multiplied, stay within it; 0 is never, -1 always."""

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """All three steps; it reports a change always, as XLA's does. Raises UnsupportedError for a call graph that is
        not flat."""
        info = GpuAliasInfo() if ctx.target not in ("cpu", "core") else AliasInfo()
        add_copies(module, info, ctx)
        self._dump(module, ctx, "after adding copies to resolve interference")
        remove_unnecessary_copies(module, info, ctx, self.region_analysis_limit)
        self._dump(module, ctx, "after removing unnecessary copies")
        add_special_case_copies(module, info, ctx)
        self._dump(module, ctx, "after adding special-case copies")
        clean_up(module)
        return True

    def _dump(self, module: HloModule, ctx: PassContext, step: str) -> None:
        if ctx.dumps is not None:
            ctx.dumps.write_inside(module, self.name, step)


# ---------------------------------------------------------------- step 1
def add_copies(module: HloModule, info: AliasInfo, ctx: PassContext | None = None) -> None:
    """Copies for all that could interfere: loop state, results of branches, operands written in place, donations."""
    check_flat(module)
    analysis = AliasAnalysis(module, info)
    for computation in module.post_order():
        if analysis.dataflow.is_fused(computation) or _is_async(analysis, computation):
            continue
        for node in computation.post_order():
            if node.opcode == "while":
                _copy_loop_state(analysis, node, ctx)
            elif node.opcode == "conditional":
                _copy_branch_results(analysis, node, ctx)
            elif node.opcode in _TRANSFERS:
                _copy_transition(node)
            else:
                _copy_in_place_operands(info, node, ctx)
    copy_donated(module, ctx)
    clean_up(module)


def check_flat(module: HloModule) -> None:
    """Raises UnsupportedError where two instructions run one computation as control flow."""
    for computation in module.computations:
        callers = [one for one in computation.callers if one.info.calls == "control-flow"]
        starts = [one for one in callers if one.opcode not in ("async-update", "async-done")]
        if len(starts) > 1:
            raise UnsupportedError(
                f"{computation.name} is run by {starts[0].name} and {starts[1].name}",
                hint="the flatten-call-graph pass gives each its own copy",
            )


def _is_async(analysis: AliasAnalysis, computation: HloComputation) -> bool:
    return any(one.opcode == "async-start" for one in analysis.dataflow.callers(computation))


def _copy_loop_state(analysis: AliasAnalysis, loop: HloInstruction, ctx: PassContext | None) -> None:
    if _NO_LOOP_COPIES in (loop.raw_attrs.get("frontend_attributes") or ""):
        return
    flow = analysis.dataflow
    init = loop.operand(0)
    marked: list[ShapeIndex] = []
    for index, values in flow.sets(loop).items():
        first = flow.value_set(init, index)
        if len(first) != 1 or len(values) != 1 or first != values:
            if index and init.opcode == "tuple" and init.operand(index[0]).opcode in _TRANSFERS:
                continue
            marked.append(index)
    if not marked:
        return
    copied, copies = deep_copy(init, marked)
    loop.replace_operand(0, copied)
    body = loop.callee("body")
    parameter, root = body.parameters[0], body.root
    users = parameter.users
    inner, inner_copies = deep_copy(parameter, marked)
    outer, outer_copies = deep_copy(root, marked)
    order_copies(inner_copies, outer_copies)
    redirect(parameter, users, inner)
    body.set_root(outer)
    for made, why in ((copies, "loop_init"), (inner_copies, "loop_parameter"), (outer_copies, "loop_result")):
        _tell(ctx, made, why, loop)


def _copy_branch_results(analysis: AliasAnalysis, node: HloInstruction, ctx: PassContext | None) -> None:
    flow = analysis.dataflow
    marked = [
        index
        for index, values in flow.sets(node).items()
        if any(one.is_phi and one.instruction is node and one.index == index for one in values)
    ]
    if not marked:
        return
    for branch in branches(node):
        root = branch.root
        users = root.users
        copied, copies = deep_copy(root, marked)
        redirect(root, users, copied)
        branch.set_root(copied)
        _tell(ctx, copies, "branch_result", node)


def _copy_in_place_operands(info: AliasInfo, node: HloInstruction, ctx: PassContext | None) -> None:
    done: set[int] = set()
    for pair in _pairs(info, node):
        if pair.operand in done or pair.operand >= node.operand_count:
            continue
        if node.opcode in ("async-update", "async-done") and pair.operand == 0:
            continue
        operand = node.operand(pair.operand)
        if _is_disjoint(node) and all(user is node or _is_disjoint(user) for user in operand.users):
            continue
        done.add(pair.operand)
        copied, copies = deep_copy(operand, None)
        node.replace_operand(pair.operand, copied)
        _tell(ctx, copies, "in_place", node)


def _pairs(info: AliasInfo, node: HloInstruction) -> Iterable[InPlacePair]:
    if node.opcode == "async-start" and not node.attr("output_to_operand_aliasing"):
        wrapped = node.called.get("calls")
        return info.in_place_pairs(wrapped[0].root) if wrapped else ()
    return info.in_place_pairs(node)


def _is_disjoint(node: HloInstruction) -> bool:
    return _DISJOINT in (node.raw_attrs.get("frontend_attributes") or "")


def _copy_transition(start: HloInstruction) -> None:
    """A transfer that crosses a loop's border: what it sends must not be the loop's own state.

    Source: ``openxla/xla:xla/service/copy_insertion.cc#AddCopiesForNonCopyableTransitions``.
    """
    user = start.users[0] if start.user_count == 1 else None
    if user is None or user.opcode != "tuple" or not start.operand_count:
        return
    if user.user_count == 1 and user.users[0].opcode == "while":
        copied, _ = deep_copy(start.operand(0), None)
        start.replace_operand(0, copied)
        return
    _copy_rotated(start, user)


def _copy_rotated(start: HloInstruction, root: HloInstruction) -> None:
    """The start of the next turn's transfer, whose done stands at the head of the loop's body."""
    body = start.parent
    if not root.is_root or not any(one.opcode == "while" for one in body.callers):
        return
    place = root.operands.index(start)
    element = next(
        (one for one in body.parameters[0].users if one.opcode == "get-tuple-element" and one.attr("index") == place),
        None,
    )
    done = next((one for one in element.users if one.opcode.endswith("-done")), None) if element is not None else None
    if done is None:
        return
    copied, copies = deep_copy(start.operand(0), None)
    start.replace_operand(0, copied)
    for copy in copies.values():
        done.add_control_dependency(copy)
    done.add_control_dependency(start)
    users = done.users
    result, copies = deep_copy(done, None)
    redirect(done, users, result)
    for copy in copies.values():
        copy.add_control_dependency(start)


def copy_donated(module: HloModule, ctx: PassContext | None = None) -> None:
    """Copies of all donated parameters and of the outputs that get their memory, the first before the second."""
    aliases = input_output_aliases(module)
    if not aliases:
        return
    entry = module.entry
    inputs: dict[int, Copies] = {}
    for parameter in entry.parameters:
        marked = [one.parameter_index for one in aliases if one.parameter == parameter.parameter_number]
        if not marked:
            continue
        users = parameter.users
        copied, copies = deep_copy(parameter, marked)
        if parameter.is_root:
            entry.set_root(copied)
        redirect(parameter, users, copied)
        inputs[parameter.parameter_number] = copies
        _tell(ctx, copies, "donated_parameter", parameter)
    root = entry.root
    copied, outputs = deep_copy(root, [one.output_index for one in aliases])
    _tell(ctx, outputs, "donated_output", root)
    for one in sorted(aliases, key=lambda alias: alias.output_index):
        copy = inputs.get(one.parameter, {}).get(one.parameter_index)
        if copy is not None and one.output_index in outputs:
            copy.add_control_dependency(outputs[one.output_index])
    entry.set_root(copied)


# ---------------------------------------------------------------- step 2
def remove_unnecessary_copies(
    module: HloModule, info: AliasInfo, ctx: PassContext | None = None, region_limit: int = 0
) -> int:
    """Elide the copies whose sides can share memory; dead ones stay in the module. Returns how many."""
    analysis = AliasAnalysis(module, info)
    schedule = None
    if module.is_scheduled:
        schedule = {one: one.instructions for one in module.computations if not analysis.dataflow.is_fused(one)}
    ordering = HloOrdering(analysis, schedule)
    remover = CopyRemover(module, analysis, ordering, schedule, region_limit=region_limit)
    if ctx is None:
        return remove_copies(module, remover)

    def ask(copy: HloInstruction) -> bool:
        step = ctx.gate("remove-copy", copy)
        if step:
            step.done(detail="" if _size(copy) is None else f"{_size(copy)} bytes")
        return bool(step)

    def told(copy: HloInstruction, reason: Interference | None) -> None:
        if reason is not None and ctx.ledger.enabled:
            ctx.ledger.emit(_interference(copy, reason))

    return remove_copies(module, remover, ask, told)


def _size(copy: HloInstruction) -> int | None:
    """Bytes of a copy; None where a dimension has no bound."""
    return None if copy.shape.is_unbounded else copy.shape.byte_size


def _interference(copy: HloInstruction, reason: Interference) -> CopyInterference:
    return CopyInterference(
        subject=copy.name,
        computation=copy.parent.name,
        verdict="refused",
        code=reason.code,
        bytes=_size(copy),
        value=reason.first.short() if reason.first is not None else None,
        read_by=reason.use.instruction.name if reason.use is not None else None,
        overwritten_by=reason.second.short() if reason.second is not None else None,
    )


# ---------------------------------------------------------------- step 3
def add_special_case_copies(module: HloModule, info: AliasInfo, ctx: PassContext | None = None) -> None:
    """Copies of read-only values in shared buffers, of forbidden sharing, and of what the root may not give back."""
    analysis = AliasAnalysis(module, info)
    wanted: dict[HloInstruction, dict[ShapeIndex, str]] = {}

    def want(node: HloInstruction, index: ShapeIndex, why: str) -> None:
        if node.shape.sub(index).element_type == "buffer" or _is_async(analysis, node.parent):
            return
        if not _loop_copies_disabled(analysis, node):
            wanted.setdefault(node, {}).setdefault(index, why)

    for value in analysis.dataflow.values:
        together = analysis.buffer_of(value).values
        if len(together) < 2:
            continue
        if analysis.is_read_only(value):
            want(value.instruction, value.index, "read_only")
        makers = {other.instruction: other for other in together if other is not value}
        for use in value.uses:
            for other in together:
                reader = use.instruction
                if other is value or reader is not other.instruction or reader not in makers:
                    continue
                if reader.opcode in ("async-update", "async-done") and use.operand == 0:
                    continue
                operand = reader.operand(use.operand)
                if not can_share(analysis.dataflow, info, operand, use.operand_index, reader, other.index).allowed:
                    want(operand, use.operand_index, "cannot_share")
    for computation in module.computations:
        if computation.callers and all(one.info.calls != "control-flow" for one in computation.callers):
            continue
        _want_root_copies(analysis, computation, want)
    order = {node: number for number, node in enumerate(module.instructions())}
    for node in sorted(wanted, key=lambda one: order[one]):
        users = node.users
        copied, copies = deep_copy(node, wanted[node])
        redirect(node, users, copied)
        if node.is_root:
            node.parent.set_root(copied)
        for index, copy in copies.items():
            _tell(ctx, {index: copy}, wanted[node][index], node)


def _want_root_copies(analysis: AliasAnalysis, computation: HloComputation, want: _Want) -> None:
    root = computation.root
    is_entry = computation.is_entry
    seen: dict[object, ShapeIndex] = {}
    donated = {one.output_index for one in analysis.aliases}
    for index in analysis.dataflow.sets(root):
        buffers = analysis.buffers_at(root, index)
        again = False
        for buffer in buffers:
            again |= buffer in seen
            seen.setdefault(buffer, index)
        if again and is_entry and index in donated and len(buffers) == 1:
            want(root, seen[buffers[0]], "given_back_twice")
        elif len(buffers) > 1:
            want(root, index, "ambiguous")
        elif again and is_entry:
            want(root, index, "given_back_twice")
    if is_entry:
        for index, values in analysis.dataflow.sets(root).items():
            if any(analysis.is_read_only(value) for value in values):
                want(root, index, "read_only_output")


def _loop_copies_disabled(analysis: AliasAnalysis, node: HloInstruction) -> bool:
    work, seen = [node.parent], set[object]()
    while work:
        computation = work.pop()
        if computation in seen:
            continue
        seen.add(computation)
        for caller in analysis.dataflow.callers(computation):
            if caller.opcode == "while" and _NO_LOOP_COPIES in (caller.raw_attrs.get("frontend_attributes") or ""):
                return True
            work.append(caller.parent)
    return False


def _tell(ctx: PassContext | None, copies: Copies, why: str, cause: HloInstruction) -> None:
    if ctx is None or not ctx.ledger.enabled:
        return
    for index, copy in copies.items():
        ctx.ledger.emit(
            CopyAdded(
                subject=copy.name,
                computation=copy.parent.name,
                verdict="added",
                code=why,
                cause=cause.name,
                index="{" + ",".join(map(str, index)) + "}",
                bytes=_size(copy),
            )
        )
