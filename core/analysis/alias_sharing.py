"""Whether an instruction may write its result over the buffer of an operand, and which rule said so.

Source: ``openxla/xla:xla/hlo/analysis/hlo_dataflow_analysis.cc#CanShareOperandBufferWithUser``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hloscope.core.analysis.alias_info import Hint, is_elementwise_on
from hloscope.core.analysis.dataflow_values import HloUse

if TYPE_CHECKING:
    from hloscope.core.analysis.alias_info import AliasInfo
    from hloscope.core.analysis.dataflow import DataflowAnalysis
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import ShapeIndex


_Rule = Callable[["DataflowAnalysis", "HloInstruction", "ShapeIndex", "HloInstruction", "ShapeIndex"], Hint]


def can_share(
    dataflow: DataflowAnalysis,
    info: AliasInfo,
    operand: HloInstruction,
    operand_index: ShapeIndex,
    user: HloInstruction,
    user_index: ShapeIndex,
) -> Hint:
    """The first rule that decides, with its code."""
    if operand.opcode == "constant":
        return Hint(False, "constant")
    if _changes_tiling(user) or _changes_tiling(operand):
        return Hint(True, "tiling_change")
    equal = operand.shape.sub(operand_index) == user.shape.sub(user_index)
    if equal and _is_written_in_place(dataflow, info, operand, operand_index, user, user_index):
        return Hint(True, "in_place")
    hint = info.may_alias(operand, operand_index, user, user_index)
    if hint is not None:
        return hint
    if not equal:
        return Hint(False, "shape_or_layout")
    if user.opcode == "fusion":
        decided = _fusion(operand, user)
        if decided is not None:
            return decided
    rule = _BY_OPCODE.get(user.opcode)
    if rule is not None:
        return rule(dataflow, operand, operand_index, user, user_index)
    if is_elementwise_on(user, user.operands.index(operand)):
        return Hint(True, "elementwise")
    return Hint(False, "not_elementwise")


def _changes_tiling(node: HloInstruction) -> bool:
    """A fusion that is nothing but a copy between two tilings. Source: ``hlo_query::IsChangeTilingCopyFusion``."""
    if node.opcode != "fusion" or '"is_change_tiling_copy_fusion"' not in (node.raw_attrs.get("backend_config") or ""):
        return False
    return node.callee("calls").root.opcode == "copy"


def _is_written_in_place(
    dataflow: DataflowAnalysis,
    info: AliasInfo,
    operand: HloInstruction,
    operand_index: ShapeIndex,
    user: HloInstruction,
    user_index: ShapeIndex,
) -> bool:
    """Whether an in-place pair of the user writes this result over a use of one of the operand's values.

    The uses are those of the values as the analysis saw the graph, not as the graph is now.
    """
    for pair in info.in_place_pairs(user):
        if pair.output_index == user_index:
            wanted = HloUse(user, pair.operand, pair.operand_index)
            if any(wanted in value.uses for value in dataflow.value_set(operand, operand_index)):
                return True
    return False


def _fusion(operand: HloInstruction, fusion: HloInstruction) -> Hint | None:
    body = fusion.callee("calls")
    parameter = body.parameters[fusion.operands.index(operand)]
    kind = fusion.raw_attrs.get("kind")
    if kind in ("kLoop", "kInput"):
        stop = _first_reordering_user(parameter)
        return Hint(True, "elementwise") if stop is None else Hint(False, f"fused_{stop.opcode.replace('-', '_')}")
    if kind == "kOutput" and body.root.opcode == "add":
        add = body.root
        for place, one in enumerate(add.operands):
            if one.opcode in ("convolution", "dot"):
                other = 1 if one is add.operand(0) else 0
                alone = parameter.users == (add,) and parameter.use_count(add) == 1
                fits = alone and add.operand(other) is parameter and place != other
                return Hint(fits, "added_to_dot" if fits else "not_only_added")
        return Hint(False, "no_dot")
    return None


def _first_reordering_user(parameter: HloInstruction) -> HloInstruction | None:
    """The first transitive user that is neither elementwise on what reaches it nor a tuple."""
    work, seen = [parameter], {parameter}
    while work:
        node = work.pop()
        for user in node.users:
            if user.opcode != "tuple" and any(
                one is node and not is_elementwise_on(user, place) for place, one in enumerate(user.operands)
            ):
                return user
            if user not in seen:
                seen.add(user)
                work.append(user)
    return None


def _control(_d: DataflowAnalysis, _o: HloInstruction, _oi: ShapeIndex, user: HloInstruction, _ui: ShapeIndex) -> Hint:
    return Hint(True, user.opcode)


def _only_at(place: int) -> _Rule:
    def rule(
        _d: DataflowAnalysis, operand: HloInstruction, _oi: ShapeIndex, user: HloInstruction, _ui: ShapeIndex
    ) -> Hint:
        fits = operand.use_count(user) == 1 and user.operand(place) is operand
        return Hint(fits, "updated_operand" if fits else "other_operand")

    return rule


def _sort(
    _d: DataflowAnalysis, operand: HloInstruction, _oi: ShapeIndex, user: HloInstruction, index: ShapeIndex
) -> Hint:
    if operand.user_count != 1:
        return Hint(False, "other_users")
    if user.operand_count == 1:
        return Hint(True, "sorted")
    fits = bool(index) and operand.use_count(user) == 1 and user.operands.index(operand) == index[0]
    return Hint(fits, "sorted" if fits else "other_output")


def _call(
    dataflow: DataflowAnalysis, operand: HloInstruction, index: ShapeIndex, user: HloInstruction, _ui: ShapeIndex
) -> Hint:
    uses = [use for value in dataflow.value_set(operand, index) for use in value.uses]
    root = user.callee("to_apply").root
    fits = (
        len(uses) == 2
        and any(use.instruction is user for use in uses)
        and any(use.instruction is root and is_elementwise_on(root, use.operand) for use in uses)
    )
    return Hint(fits, "elementwise_callee" if fits else "not_elementwise_callee")


_BY_OPCODE: Mapping[str, _Rule] = {
    "while": _control,
    "conditional": _control,
    "dynamic-update-slice": _only_at(0),
    "scatter": _only_at(0),
    "set-dimension-size": _only_at(0),
    "triangular-solve": _only_at(1),
    "sort": _sort,
    "call": _call,
}
