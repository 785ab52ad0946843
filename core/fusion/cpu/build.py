"""Making a fusion around a consumer and moving producers into it.

Source: ``openxla/xla:xla/hlo/ir/hlo_instructions.cc#HloFusionInstruction``,
``xla/service/instruction_fusion.cc#AddFusionInstruction``.
"""

from __future__ import annotations

from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction


def wrap(instruction: HloInstruction, *, name: str, body_name: str, kind: str = "kLoop") -> HloInstruction:
    """Put one instruction into a fusion of its own, which takes its place; the fusion is returned.

    The fusion's operands are the distinct operands in order. It keeps metadata and frontend attributes and takes over
    control edges.
    """
    home = instruction.parent
    module = home.module
    body = module.add_computation(HloComputation(body_name))
    operands = tuple(dict.fromkeys(instruction.operands))
    parameters = [_parameter(number, one) for number, one in enumerate(operands)]
    inside = dict(zip(operands, parameters, strict=True))
    clone = instruction.clone_with(operands=[inside[one] for one in instruction.operands])
    body.add(clone)  # before its parameters: names are asked for in this order
    for one in parameters:
        body.add(one)
    body.set_root(clone)
    body.reorder([*parameters, clone])
    fusion = HloInstruction(
        "fusion", instruction.shape, operands, name=name, attrs={"kind": kind}, called={"calls": body}
    )
    for key in ("metadata", "frontend_attributes"):
        text = instruction.raw_attrs.get(key)
        if text is not None:
            fusion.set_attr(key, text)
    home.add(fusion)
    _move_control(instruction, fusion)
    instruction.replace_all_uses_with(fusion)
    home.remove(instruction)
    return fusion


def move_in(producer: HloInstruction, fusion: HloInstruction) -> HloInstruction:
    """Clone a producer, an operand of the fusion, into its body; the clone is returned.

    The operand goes, later ones close up, and the producer's own operands come at the end where they are new. The
    producer stays for its other users, and is removed where it has none.
    """
    body = fusion.callee("calls")
    operands = list(fusion.operands)
    at = operands.index(producer)
    parameters = list(body.parameters)
    gone = parameters[at]
    operands.pop(at)
    kept = parameters[:at] + parameters[at + 1 :]
    inside = dict(zip(operands, kept, strict=True))
    clone = body.add(producer.clone_with(operands=()))
    for number, one in enumerate(parameters[at + 1 :], at):
        one.set_parameter_number(number)
        one.rename(f"param_{number}")
    fusion.remove_operand(at)
    for one in producer.operands:
        if one not in inside:
            inside[one] = body.add(_parameter(fusion.operand_count, one))
            fusion.append_operand(one)
        clone.append_operand(inside[one])
    gone.replace_all_uses_with(clone)
    body.remove(gone)
    if not producer.user_count and not producer.is_root:
        _move_control(producer, fusion)
        producer.parent.remove(producer)
    return clone


def _parameter(number: int, of: HloInstruction) -> HloInstruction:
    return HloInstruction("parameter", of.shape, name=f"param_{number}", payload=str(number))


def _move_control(old: HloInstruction, new: HloInstruction) -> None:
    before, after = old.control_predecessors, old.control_successors
    old.drop_all_control_dependencies()
    for one in before:
        if one is not new:
            one.add_control_dependency(new)
    for one in after:
        if one is not new:
            new.add_control_dependency(one)
