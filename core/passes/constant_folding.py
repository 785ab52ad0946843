"""``constant_folding``: evaluates instructions all of whose operands are constants.

An instruction is folded when at least one operand is a constant and every operand is a constant, a broadcast of one,
an iota, or a tuple of these; a tuple result becomes a tuple of constants. Not folded, and said so: what would only grow
the module (a pad of a broadcast), what is not the same each time or everywhere (random numbers, device ids,
collectives, custom calls, infeed), loops, what has side effects or control edges, anything whose called computations
hold one of these, and results or operands above 45,000,000 elements. Nothing is asked about broadcasts and iotas, which
stay what they are.
Source: ``openxla/xla:xla/hlo/transforms/simplifiers/hlo_constant_folding.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import EvaluationError, ParseError, UnsupportedError
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.literal import Literal
from hloscope.core.passes.gate import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.passes.context import PassContext
    from hloscope.core.runtime.evaluator import Value

_ELEMENTS = 45_000_000
_STAY = frozenset("parameter constant tuple broadcast iota".split())
"""Folded neither alone nor asked about: they are what folding makes, or cheaper than it."""
_NEVER = {
    **dict.fromkeys(("fft", "while"), "slow_to_evaluate"),
    **dict.fromkeys("rng rng-bit-generator rng-get-and-update-state".split(), "random"),
    **dict.fromkeys("partition-id replica-id".split(), "differs_by_device"),
    **dict.fromkeys("custom-call ragged-dot ragged-all-to-all get-dimension-size set-dimension-size".split(), "opaque"),
    **dict.fromkeys("domain opt-barrier".split(), "kept_apart"),
    **dict.fromkeys(
        "copy-start copy-done async-start async-update async-done after-all".split(),
        "asynchronous",
    ),
    **dict.fromkeys("infeed outfeed send send-done recv recv-done".split(), "side_effect"),
}
"""Opcode -> code of the refusal."""


@dataclass(frozen=True)
class HloConstantFolding:
    """The pass."""

    name = "constant_folding"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Callers first, so that constants reach the bodies that they are passed to."""
        changed = False
        callees: dict[HloComputation, Refusal | None] = {}
        for computation in reversed(module.post_order()):
            changed |= _pass_constants_in(computation, ctx)
            for one in computation.post_order():
                if not one.in_computation or not (one.user_count or one.is_root) or not _is_asked(one):
                    continue
                refusal = _refusal(one, callees)
                if refusal is None:
                    changed |= _fold(one, ctx)
                else:
                    ctx.refuse("fold", one, refusal.code, refusal.detail)
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


def _is_asked(one: HloInstruction) -> bool:
    """Whether the operands are all known, so that only the instruction itself can stand against folding it."""
    if not one.operand_count or one.opcode in _STAY or one.opcode == "get-tuple-element":
        return False
    return _has_constant(one) and all(map(_is_known, one.operands))


def _has_constant(one: HloInstruction) -> bool:
    return any(o.opcode == "constant" or (o.opcode == "tuple" and _has_constant(o)) for o in one.operands)


def _is_known(one: HloInstruction) -> bool:
    if one.opcode == "tuple":
        return all(map(_is_known, one.operands))
    if not one.shape.is_array:
        return False
    return one.opcode in ("constant", "iota") or (one.opcode == "broadcast" and one.operand(0).opcode == "constant")


def _refusal(one: HloInstruction, callees: dict[HloComputation, Refusal | None]) -> Refusal | None:
    """What stands against folding an instruction whose operands are known."""
    inside = (_callee_refusal(callee, callees) for callee in one.called_computations)
    known = _kind_refusal(one) or next(filter(None, inside), None)
    if known is not None:
        return known
    sources = list(_sources(one))
    if any(shape.is_dynamic or not shape.is_array for _, shape in one.shape.leaves()) or any(
        source.shape.is_dynamic for source in sources
    ):
        return Refusal("dynamic_or_opaque", f"{one.shape}")
    if one.opcode == "pad" and one.operand(0).opcode == "broadcast":
        return Refusal("grows_module", f"{one.shape.element_count} elements from a broadcast")
    if one.control_predecessors or one.control_successors:
        return Refusal("control_dependencies")
    if one.has_side_effect:
        return Refusal("side_effect")
    elided = [o for source in sources for o in (source, *source.operands) if o.opcode == "constant" and _is_elided(o)]
    if elided:
        return Refusal("elided_literal", f"the text leaves out the elements of %{elided[0].name}")
    count = sum(shape.element_count for _, shape in one.shape.leaves())
    taken = sum(source.shape.element_count for source in sources)
    if max(count, taken) > _ELEMENTS:
        return Refusal("too_large", f"{taken} elements give {count}, the limit is {_ELEMENTS}")
    return None


def _sources(one: HloInstruction) -> Iterator[HloInstruction]:
    """The arrays that an instruction reads, those in tuples among them."""
    for operand in one.operands:
        if operand.opcode == "tuple":
            yield from _sources(operand)
        else:
            yield operand


def _kind_refusal(one: HloInstruction) -> Refusal | None:
    code = _NEVER.get(one.opcode)
    if code is None and one.info.collective:
        code = "differs_by_device"
    if code is None and one.info.side_effect:
        code = "side_effect"
    if code is not None:
        return Refusal(code, one.opcode)
    if one.opcode in ("bitcast", "bitcast-convert"):
        to, given = one.shape.type.bits, one.operand(0).shape.type.bits
        if not to == given >= 8:
            return Refusal("packed_bits", f"{given} bits as {to}")
    return None


def _callee_refusal(computation: HloComputation, callees: dict[HloComputation, Refusal | None]) -> Refusal | None:
    """What a called computation holds that is not folded."""
    if computation not in callees:
        found: Refusal | None = None
        for one in computation:
            inner = None if one.opcode in _STAY else _kind_refusal(one)
            for callee in one.called_computations if inner is None else ():
                inner = inner or _callee_refusal(callee, callees)
            if inner is not None:
                found = Refusal(inner.code, f"%{one.name} in {computation.name}: {inner.detail}")
                break
        callees[computation] = found
    return callees[computation]


def _is_elided(one: HloInstruction) -> bool:
    return one.literal.values is None


def _value(one: HloInstruction) -> Value:
    """The value of a constant, a broadcast of one, an iota, or a tuple of these."""
    from hloscope.core.runtime.evaluator import evaluate_instruction

    if one.opcode == "constant":
        return one.literal.array()
    if one.opcode == "tuple":
        return tuple(_value(operand) for operand in one.operands)
    return evaluate_instruction(one, [_value(operand) for operand in one.operands])


def _literals(shape: Shape, value: Value) -> list[Literal] | str:
    """The elements of every array of a value, in order; else what does not fit."""
    if shape.is_tuple:
        found: list[Literal] = []
        assert isinstance(value, tuple)
        for part, inner in zip(shape.tuple_shapes, value, strict=True):
            literals = _literals(part, inner)
            if isinstance(literals, str):
                return literals
            found += literals
        return found
    array = np.asarray(value)
    if array.shape != shape.dimensions or array.dtype != shape.type.dtype:
        return f"the value is {array.dtype}{list(array.shape)}"
    return [Literal(shape, np.ascontiguousarray(array).reshape(shape.dimensions))]


def _constants(home: HloComputation, shape: Shape, literals: Iterator[Literal], made: list[HloInstruction]) -> None:
    """Constants for the arrays of a shape, and the tuples around them; the last one made is the whole."""
    if not shape.is_tuple:
        made.append(home.add(HloInstruction("constant", shape, literal=next(literals))))
        return
    parts: list[HloInstruction] = []
    for part in shape.tuple_shapes:
        _constants(home, part, literals, made)
        parts.append(made[-1])
    made.append(home.add(HloInstruction("tuple", shape, parts)))


def _fold(one: HloInstruction, ctx: PassContext) -> bool:
    from hloscope.core.runtime.evaluator import evaluate_instruction

    try:
        value = evaluate_instruction(one, [_value(operand) for operand in one.operands])
    except (EvaluationError, UnsupportedError, ParseError) as error:
        ctx.refuse("fold", one, "not_evaluated", error.message)
        return False
    literals = _literals(one.shape, value)
    if isinstance(literals, str):
        ctx.refuse("fold", one, "not_evaluated", literals)
        return False
    step = ctx.gate("fold", one)
    if not step:
        return False
    made: list[HloInstruction] = []
    _constants(one.parent, one.shape, iter(literals), made)
    one.parent.replace(one, made[-1])
    step.done(made[-1], *made[:-1])
    return True
