"""Shapes of operations that call computations as a whole: fusion, call, custom-call, while, conditional.

Each rule returns the shape that the instruction must have, None where nothing is left to compare. Source:
``openxla/xla:xla/service/hlo_verifier.cc#HandleFusion, #HandleCall, #HandleCustomCall, #HandleWhile,
#HandleConditional``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.hlo.infer_shape.base import compatible, human, word
from hloscope.core.hlo.shape import Shape
from hloscope.core.hlo.verifier.context import one_callee, sub_shape, target_of
from hloscope.core.hlo.verifier.equality import EXACT, ShapeEqual, layout_of
from hloscope.core.hlo.verifier.findings import broken, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.verifier.context import Context


def _fusion(context: Context, fusion: HloInstruction) -> Shape | None:
    if len(fusion.called_computations) != 1:
        broken("fusion-shape", f"Fusion has a non-unary number of called computations ({describe(fusion)})")
    fused = fusion.called_computations[0]
    if not context.same(fusion.shape, fused.root.shape):
        broken(
            "fusion-shape",
            f"Fused computation shape ({fused.root.shape}) is not equal to the fusion shape ({fusion.shape})",
        )
    if len(fused.parameters) > fusion.operand_count:
        broken(
            "fusion-shape",
            f"Fused parameter count ({len(fused.parameters)}) is greater than the number of operands "
            f"({fusion.operand_count}) passed to the fusion instruction in: {describe(fusion)}.",
        )
    for parameter in fused.parameters:
        number = parameter.parameter_number
        if number >= fusion.operand_count:
            continue  # numbering is another rule's
        operand = fusion.operand(number)
        if not context.same(parameter.shape, operand.shape):
            broken(
                "fusion-shape",
                f"Shape mismatch between parameter number {number} and its operand in {describe(fusion)}. "
                f"({parameter.shape} != {operand.shape})",
            )
    equal = EXACT
    if fusion.parent.is_fusion or (not fusion.parent.is_entry and not fusion.parent.callers):
        # Inside a fusion, and in code that nobody calls, tiles and memory spaces are not propagated.
        equal = ShapeEqual(tiles=False, memory_space=False)
    _check_aliasing(context, fusion, equal, None)
    return None


def _check_aliasing(context: Context, instruction: HloInstruction, exact: ShapeEqual, loose: ShapeEqual | None) -> None:
    """Every aliased pair exists; its shapes are `exact`-ly equal with layouts, `loose`-ly (or compatible) without."""
    for alias in instruction.attr("output_to_operand_aliasing") or ():
        if not 0 <= alias.operand < instruction.operand_count:
            broken("operand-aliasing", f"Invalid aliasing operand index. {describe(instruction)}")
        inside = sub_shape(instruction.operand(alias.operand).shape, alias.operand_index)
        if inside is None:
            broken("operand-aliasing", f"Invalid aliasing operand shape index. {describe(instruction)}")
        outside = sub_shape(instruction.shape, alias.output_index)
        if outside is None:
            broken("operand-aliasing", f"Invalid aliasing output shape index. {describe(instruction)}")
        if "xla_skip_custom_call_alias_shape_check" in (instruction.attr("frontend_attributes") or {}):
            return
        if context.options.layout_sensitive:
            scalar = instruction.opcode == "custom-call" and all(d == 1 for d in inside.dimensions)
            same = (ShapeEqual(memory_space=False, buffer=exact.buffer) if scalar else exact)(inside, outside)
        else:
            same = loose(outside, inside) if loose is not None else compatible(outside, inside)
        if not same:
            broken("operand-aliasing", f"Different aliasing shapes: {inside} vs {outside}")


def _call(context: Context, call: HloInstruction) -> Shape | None:
    callee = one_callee(call, "to_apply", "calls")
    context.parameter_count(call, callee, call.operand_count)
    for i in range(len(callee.parameters)):
        context.operand_and_parameter(call, i, callee, i)
    if call.attr("is_composite"):
        _check_composite(call)
    return callee.root.shape


def _check_composite(call: HloInstruction) -> None:
    attributes = call.attr("frontend_attributes")
    if not attributes:
        broken("composite", "A composite call op must have frontend attributes")
    start = "A composite call op must have frontend attributes with"
    if not attributes.get("composite.name"):
        broken("composite", f"{start} key composite.name whose value is non-empty")
    if attributes.get("composite.attributes") == "":
        broken("composite", f"{start} key composite.attributes whose value is default: {{}} or non-empty")
    version = attributes.get("composite.version")
    if version is not None and not str(version).strip().isdigit():
        broken("composite", f"{start} a composite.version whose value is a non-negative integer but got: {version}")


def _custom_call(context: Context, call: HloInstruction) -> Shape | None:
    target = target_of(call)
    constraints = call.attr("operand_layout_constraints")
    if constraints is not None and target not in ("LayoutConstraint", "control_dep"):
        if len(constraints) != call.operand_count:
            broken(
                "layout-constraint",
                "custom_call->operand_count() == custom_call->operand_shapes_with_layout().size() failed: "
                f"{call.operand_count} operands, {len(constraints)} constraints",
            )
        for operand, constraint in zip(call.operands, constraints, strict=True):
            if not compatible(operand.shape, constraint):
                broken("layout-constraint", f"{operand.shape} operand {human(constraint)}")
            for _, leaf in constraint.leaves():
                if leaf.is_array and len(layout_of(leaf).minor_to_major) != leaf.rank:
                    broken("layout-constraint", f"the constraint {leaf} has no layout of its rank")
    buffer = target not in ("Pin", "Unpin")
    loose = ShapeEqual(dynamic=False, layout=False, buffer=buffer)
    _check_aliasing(context, call, ShapeEqual(buffer=buffer), loose)
    return None


def _while(context: Context, loop: HloInstruction) -> Shape | None:
    body, condition = one_callee(loop, "body"), one_callee(loop, "condition")
    context.parameter_count(loop, body, 1)
    context.parameter_count(loop, condition, 1)
    context.operand_and_parameter(loop, 0, body, 0)
    context.operand_and_parameter(loop, 0, condition, 0)
    if not compatible(condition.root.shape, Shape("pred")):
        broken(
            "while-condition",
            "Conditional computation shape does not lead to a scalar predicate shape: "
            f"{context.text(condition.root.shape)}",
        )
    return body.root.shape


def branches_of(conditional: HloInstruction) -> tuple[HloComputation, ...]:
    """Branch computations, true before false."""
    called = conditional.called
    both = (*called.get("true_computation", ()), *called.get("false_computation", ()))
    return both or called.get("branch_computations", ())


def _conditional(context: Context, conditional: HloInstruction) -> Shape | None:
    if not conditional.operand_count:
        broken("operand-count", f"conditional needs an operand: {describe(conditional)}")
    index = conditional.operand(0).shape
    if not index.is_scalar:
        broken("conditional-index", f"The first operand of conditional must be a scalar. Got {human(index)}")
    branches = branches_of(conditional)
    if index.element_type == "pred":
        if len(branches) != 2:
            broken("conditional-index", f"num_branches == 2 failed: a pred picks of {len(branches)} branches")
    elif index.element_type != "s32":
        broken(
            "conditional-index",
            f"The first operand of indexed conditional must be a scalar of S32. Got type {word(index)}.",
        )
    elif not branches:
        broken("conditional-index", "num_branches >= 1 failed")
    if conditional.operand_count != len(branches) + 1:
        broken(
            "operand-count",
            f"Expected {len(branches) + 1} operands for conditional instruction: {describe(conditional)}",
        )
    expected: Shape | None = None
    for j, branch in enumerate(branches):
        context.parameter_count(conditional, branch, 1)
        context.operand_and_parameter(conditional, j + 1, branch, 0)
        expected = branch.root.shape
        if j + 1 < len(branches) and not context.same(conditional.shape, expected):
            return expected
    return expected


HANDLERS: Mapping[str, Callable[[Context, HloInstruction], Shape | None]] = MappingProxyType(
    {
        "fusion": _fusion,
        "call": _call,
        "custom-call": _custom_call,
        "while": _while,
        "conditional": _conditional,
    }
)
"""Rule by opcode."""
