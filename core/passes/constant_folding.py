"""``constant_folding``: evaluates instructions all of whose operands are constants.

An instruction is folded when at least one operand is a constant and every operand is a constant, a broadcast of one,
or an iota. Not folded: what would only grow the module (broadcast, iota, a pad of a broadcast), what is not the same
each time or everywhere (random numbers, device ids, collectives, custom calls, infeed), loops, what has side effects or
control edges, anything whose called computations hold one of these, and results or operands above 45,000,000 elements.
Source: ``openxla/xla:xla/hlo/transforms/simplifiers/hlo_constant_folding.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import EvaluationError, ParseError, UnsupportedError
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.literal import Literal

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_ELEMENTS = 45_000_000
_NEVER = frozenset(
    """parameter constant tuple broadcast iota fft while after-all rng rng-bit-generator rng-get-and-update-state
    custom-call partition-id replica-id domain copy-start copy-done opt-barrier ragged-dot ragged-all-to-all
    get-dimension-size set-dimension-size infeed outfeed send send-done recv recv-done async-start async-update
    async-done""".split()
)


@dataclass(frozen=True)
class HloConstantFolding:
    """The pass."""

    name = "constant_folding"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Callers first, so that constants reach the bodies that they are passed to."""
        changed = False
        foldable: dict[HloComputation, bool] = {}
        for computation in reversed(module.post_order()):
            changed |= _pass_constants_in(computation, ctx)
            for one in computation.post_order():
                if one.in_computation and (one.user_count or one.is_root) and _may_fold(one, foldable):
                    changed |= _fold(one, ctx)
        return changed


def _pass_constants_in(computation: HloComputation, ctx: PassContext) -> bool:
    """Put constants in place of parameters that get the same one at every call (unless all parameters do)."""
    callers = computation.callers
    if computation.is_entry or not callers or any(caller.opcode != "call" for caller in callers):
        return False
    same = [parameter for parameter in computation.parameters if _same_constant(parameter, callers)]
    if len(same) == len(computation.parameters):
        return False
    changed = False
    for parameter in same:
        if not parameter.user_count and not parameter.is_root:
            continue
        step = ctx.gate("constant-parameter", parameter)
        if step:
            constant = computation.add(callers[0].operand(parameter.parameter_number).clone_with())
            parameter.replace_all_uses_with(constant)
            step.done(constant)
            changed = True
    return changed


def _same_constant(parameter: HloInstruction, callers: tuple[HloInstruction, ...]) -> bool:
    number = parameter.parameter_number
    given = [caller.operand(number) for caller in callers]
    if any(one.opcode != "constant" or not one.shape.is_array or one.literal.values is None for one in given):
        return False
    return all(given[0].literal.same(one.literal) for one in given[1:])


def _may_fold(one: HloInstruction, foldable: dict[HloComputation, bool]) -> bool:
    if not one.operand_count or not one.shape.is_array or one.shape.is_dynamic or not _kind_folds(one):
        return False
    if not all(map(_is_known, one.operands)) or all(operand.opcode != "constant" for operand in one.operands):
        return False
    if one.opcode == "pad" and one.operand(0).opcode == "broadcast":
        return False
    if one.control_predecessors or one.control_successors or one.has_side_effect:
        return False
    if any(operand.opcode == "constant" and _is_elided(operand) for operand in one.operands):
        return False
    if max(one.shape.element_count, sum(operand.shape.element_count for operand in one.operands)) > _ELEMENTS:
        return False
    return all(_callee_folds(callee, foldable) for callee in one.called_computations)


def _kind_folds(one: HloInstruction) -> bool:
    if one.opcode in _NEVER or one.info.collective or one.info.side_effect:
        return False
    if one.opcode in ("bitcast", "bitcast-convert"):
        return one.shape.type.bits == one.operand(0).shape.type.bits >= 8
    return True


def _callee_folds(computation: HloComputation, foldable: dict[HloComputation, bool]) -> bool:
    known = foldable.get(computation)
    if known is None:
        known = all(
            one.opcode in ("parameter", "constant", "tuple", "broadcast", "iota")
            or (_kind_folds(one) and all(_callee_folds(callee, foldable) for callee in one.called_computations))
            for one in computation
        )
        foldable[computation] = known
    return known


def _is_known(one: HloInstruction) -> bool:
    if not one.shape.is_array or one.shape.is_dynamic:
        return False
    if one.opcode == "broadcast":
        return one.operand(0).opcode == "constant" and not _is_elided(one.operand(0))
    return one.opcode in ("constant", "iota")


def _is_elided(one: HloInstruction) -> bool:
    return one.literal.values is None


def _value(one: HloInstruction) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """The value of a constant, a broadcast of one, or an iota."""
    from hloscope.core.runtime.evaluator import evaluate_instruction

    if one.opcode == "constant":
        return one.literal.array()
    value = evaluate_instruction(one, [_value(operand) for operand in one.operands])
    return np.asarray(value)


def _fold(one: HloInstruction, ctx: PassContext) -> bool:
    from hloscope.core.runtime.evaluator import evaluate_instruction

    try:
        found = np.asarray(evaluate_instruction(one, [_value(operand) for operand in one.operands]))
    except (EvaluationError, UnsupportedError, ParseError) as error:
        ctx.refuse("fold", one, "not_evaluated", error.message)
        return False
    if found.shape != one.shape.dimensions or found.dtype != one.shape.type.dtype:
        ctx.refuse("fold", one, "not_evaluated", f"the value is {found.dtype}{list(found.shape)}")
        return False
    step = ctx.gate("fold", one)
    if not step:
        return False
    literal = Literal(one.shape, np.ascontiguousarray(found).reshape(one.shape.dimensions))
    constant = one.parent.add(HloInstruction("constant", one.shape, literal=literal))
    one.parent.replace(one, constant)
    step.done(constant)
    return True
