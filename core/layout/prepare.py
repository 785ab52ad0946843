"""What is done before layouts are chosen: copies of aliased operands, and for each caller a branch of its own.

An operation that passes an operand on cannot have a copy put before it later, because the analysis of buffers would be
wrong then; the copy is made now, without a layout, and takes part in the propagation. Source:
``openxla/xla:xla/service/layout_assignment.cc#PrepareHloForLayoutAssignment, #AddCopyForOperand,
#SetupCopiedInstruction``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hloscope.core.hlo.attributes import braced, split_top
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.layout.mandatory import is_layout_constrained
from hloscope.core.layout.user_order import set_users

if TYPE_CHECKING:
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape

_ONE_DEVICE = re.compile(r"\{\s*maximal device=\d+")


def prepare(module: HloModule) -> list[HloInstruction]:
    """Make the copies and clones; the copies are returned."""
    copies: list[HloInstruction] = []
    for computation in module.computations:
        wanted: list[tuple[HloInstruction, int]] = []
        for instruction in computation.instructions:
            if instruction.opcode == "send":
                wanted.append((instruction, 0))
            elif is_layout_constrained(instruction):
                aliases = instruction.attr("output_to_operand_aliasing") or ()
                wanted += [(instruction, number) for number in dict.fromkeys(one.operand for one in aliases)]
        for instruction, number in wanted:
            operand = instruction.operand(number)
            if operand.opcode != "copy" or operand.user_count > 1:
                copy = computation.add(HloInstruction("copy", operand.shape, [operand]))
                inherit(operand, copy)
                users = [one for one in operand.users if one is not copy]
                instruction.replace_operand(number, copy)
                if not any(one is operand for one in instruction.operands):
                    # Where a user goes, the last one takes its place.
                    set_users(operand, [copy if one is instruction else one for one in users])
                copies.append(copy)
    _own_branches(module)
    return copies


def _own_branches(module: HloModule) -> None:
    requests: list[tuple[HloInstruction, HloComputation]] = []
    for computation in module.computations:
        callers = computation.callers
        conditionals = [one for one in callers if one.opcode == "conditional"]
        if len(callers) > 1 and conditionals:
            keeps_one = len(callers) == len(conditionals)
            requests += [(one, computation) for one in conditionals[: len(conditionals) - keeps_one]]
    for caller, computation in requests:
        clone = HloComputation(f"{computation.name}.clone")
        computation.clone_into(clone, {})
        for one in clone:
            one.touch()
        module.add_computation(clone, first=True)
        for name, group in dict(caller.called).items():
            if computation in group:
                new = [clone if one is computation else one for one in group]
                caller.set_called(name, new if name in caller.calls_as_list else new[0])


def inherit(source: HloInstruction, made: HloInstruction, index: int | None = None) -> None:
    """Give a new instruction what it takes over from the value it copies (or from one element of it)."""
    for key in ("metadata", "frontend_attributes"):
        text = source.raw_attrs.get(key)
        if text is not None:
            made.set_attr(key, text)
    sharding = source.raw_attrs.get("sharding")
    if sharding is not None and index is not None:
        sharding = _element_sharding(sharding, source.shape, index)
    if sharding is not None and not _ONE_DEVICE.match(sharding):
        made.set_attr("sharding", sharding)


def _element_sharding(text: str, shape: Shape, index: int) -> str:
    """The part of a tuple's sharding that belongs to one element; one sharding for all stays as it is."""
    inner = braced(text)
    if not inner.startswith("{"):
        return text
    parts = split_top(inner)

    def leaves(one: Shape) -> int:
        return sum(1 for _ in one.leaves())

    first = sum(leaves(one) for one in shape.tuple_shapes[:index])
    element = shape.tuple_shapes[index]
    own = parts[first : first + leaves(element)]
    return "{" + ", ".join(own) + "}" if element.is_tuple else own[0]
