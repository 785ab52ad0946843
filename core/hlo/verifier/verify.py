"""`verify`: every rule over a module, in XLA's order. Source: ``openxla/xla:xla/service/
hlo_verifier.cc#HloVerifier::RunImpl``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.verifier import deadlock, instruction_rules, module_rules, shape_rules, structure
from hloscope.core.hlo.verifier.buffers import buffer_faults
from hloscope.core.hlo.verifier.context import Context, is_async_computation, thread_of
from hloscope.core.hlo.verifier.findings import Broken, Finding
from hloscope.core.hlo.verifier.options import options_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.verifier.options import VerifierOptions

    LineOf = Callable[[str, str], int | None]


def verify(
    module: HloModule,
    options: VerifierOptions | None = None,
    *,
    first_only: bool = False,
    line_of: LineOf | None = None,
) -> list[Finding]:
    """Everything that is wrong with a module, in XLA's order; an empty list where nothing is.

    Without `options` those that fit the module are taken (`options_for`). XLA stops at the first fault; this goes on
    behind it with the next instruction, unless `first_only`. A module whose edges are wrong is not looked into
    further. `line_of` maps a computation's and an instruction's name to a 1-based line of the text; it is asked for two
    empty names where the module's header is at fault.
    """
    findings: list[Finding] = []
    asynchronous: set[HloInstruction] = set()
    try:
        context = Context(module, options if options is not None else options_for(module))
    except HloscopeError as error:
        line = line_of("", "") if line_of is not None else None
        return [Finding("unreadable-attribute", error.message, line=line)]
    for fault, computation in _faults(context):
        node = fault.instruction
        if node is not None and fault.code.startswith("async-"):
            if node in asynchronous:
                continue  # the same fault, seen by a later step
            asynchronous.add(node)
        where = node.parent if node is not None and node.in_computation else fault.computation or computation
        name = node.name if node is not None else None
        line = line_of(where.name if where is not None else "", name or "") if line_of is not None else None
        findings.append(Finding(fault.code, fault.message, where.name if where is not None else None, name, line))
        if first_only:
            break
    return findings


def _faults(context: Context) -> Iterator[tuple[Broken, HloComputation | None]]:
    serious = False
    for fault in (*structure.module_faults(context), *structure.structure_faults(context)):
        serious = serious or fault.code != "module-name"
        yield fault, None
    if serious:
        return  # what follows walks the graph
    for step in (structure.async_faults, structure.channel_faults, structure.name_faults):
        for fault in step(context):
            yield fault, None
    names: dict[str, HloInstruction] = {}
    for computation in context.module.computations:
        for fault in _computation_faults(context, computation, names):
            yield fault, computation
    entry = context.module.entry
    for step in (buffer_faults, module_rules.entry_layout_faults, module_rules.schedule_faults):
        for fault in step(context):
            yield fault, entry if step is module_rules.entry_layout_faults else None
    if context.module.is_scheduled and context.options.verify_no_collective_deadlocks:
        try:
            deadlock.check(entry)
        except Broken as fault:
            yield fault, entry
    for step in (module_rules.alias_faults, module_rules.late_faults):
        for fault in step(context):
            yield fault, None


def _computation_faults(
    context: Context, computation: HloComputation, names: dict[str, HloInstruction]
) -> Iterator[Broken]:
    order = computation.post_order()
    check_shape, check_instruction = shape_rules.check, instruction_rules.check
    for node in order:
        try:
            check_shape(context, node)
        except Broken as fault:
            fault.instruction = fault.instruction or node
            yield fault
    for node in order:
        try:
            check_instruction(context, node, names)
        except Broken as fault:
            fault.instruction = fault.instruction or node
            yield fault
    if not is_async_computation(computation) or thread_of(computation) != "main":
        return
    root = computation.root
    inside = {node.opcode for node in order if node is not root} - {"parameter"}
    if inside and not _is_collectives_group(computation) and inside != {"get-tuple-element"}:
        yield Broken(
            "async-computation",
            f"Asynchronous computation {computation.name} expected to contain only the root and parameter "
            "instructions.",
        )


def _is_collectives_group(computation: HloComputation) -> bool:
    starts = [caller for caller in computation.callers if caller.opcode == "async-start"]
    return len(starts) == 1 and "_collectives_group" in (starts[0].attr("frontend_attributes") or {})
