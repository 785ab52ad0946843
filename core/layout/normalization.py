"""``layout_normalization``: dimension orders become orders of dimensions, so that every layout is row-major.

After it an instruction in layout ``{0,1}`` works on the array with its dimensions swapped, in ``{1,0}``, between
bitcasts that move nothing; and a ``copy`` between two layouts has become the ``transpose`` that it is in memory.
Instructions whose result and operands are row-major stay as they are.

Every value that the walk has passed is row-major or a bitcast of a row-major one. An operation with a rule (see
`normalize.RULES`) moves below the bitcasts of its operands; any other one keeps its shape and gets a pair of bitcasts
behind it. A rule that is refused falls back to that pair, so that each rewrite can be switched off alone.
Source: ``openxla/xla:xla/service/layout_normalization.cc``, ``xla/service/gpu/conv_layout_normalization.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.errors import InternalError
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.literal import Literal
from hloscope.core.layout.malformed import told_by_the_verifier
from hloscope.core.layout.normalize import (
    RULES,
    Normal,
    is_library_convolution,
    is_row_major,
    major_first,
    normalized,
)
from hloscope.core.passes.gate import Refusal

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.passes.context import PassContext

MAIN_THREADS = ("", "main")
"""Names of the thread whose computations are looked at; those of others run elsewhere."""


@dataclass(frozen=True)
class LayoutNormalization:
    """The pass."""

    name = "layout_normalization"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Rewrite every computation of the main thread that is no fusion body."""
        with told_by_the_verifier(module):
            return self._run(module, ctx)

    def _run(self, module: HloModule, ctx: PassContext) -> bool:
        changed = False
        for computation in module.post_order():
            if computation.is_fusion or computation.execution_thread not in MAIN_THREADS or computation.synthetic:
                continue
            if all(_is_normal(one) for one in computation.instructions):
                continue
            walk = _Walk(computation, ctx)
            walk.run()
            changed |= walk.changed
        return changed


MAY_GIVE_TUPLES = ("scatter", "custom-call")
"""Opcodes whose rules take tuples of results."""

DERIVED = ("clamp", "concatenate", "convolution", "copy", "iota", "pad", "reverse", "scatter", "select", "transpose")
"""Opcodes whose normal form itself inherits sharding and frontend attributes, not only the bitcast behind it."""


def _hand_over(old: HloInstruction, new: HloInstruction, *, sharding: bool) -> None:
    """Attributes that say something of the value, where the new instruction has none."""
    for key in ("frontend_attributes", "sharding") if sharding else ("frontend_attributes",):
        text = old.raw_attrs.get(key)
        if text is not None and new.raw_attrs.get(key) is None:
            new.set_attr(key, text)


def _is_normal(one: HloInstruction) -> bool:
    return is_row_major(one.shape) and all(is_row_major(operand.shape) for operand in one.operands)


class _Walk:
    """The visit of one computation, operands first, in XLA's order: what a visit made is not visited itself."""

    def __init__(self, computation: HloComputation, ctx: PassContext) -> None:
        self.changed = False
        self._computation = computation
        self._ctx = ctx
        self._done: dict[HloInstruction, bool] = {}
        """False while operands are being visited, True afterwards."""

    def run(self) -> None:
        """Visit everything, the root last."""
        computation = self._computation
        for one in computation.instructions:
            if not one.user_count and not one.is_root and not one.control_successors:
                self._visit_from(one)
        self._visit_from(computation.root)

    def _visit_from(self, start: HloInstruction) -> None:
        stack = [start]
        while stack:
            one = stack[-1]
            done = self._done.get(one)
            if done is not None:
                stack.pop()
                if done is False and one.in_computation:
                    self._visit(one)
                self._done[one] = True
                continue
            self._done[one] = False
            for other in (*reversed(one.control_predecessors), *reversed(one.operands)):
                seen = self._done.get(other)
                if seen is False:
                    raise InternalError(f"computation {self._computation.name} has a cycle through %{other.name}")
                if seen is None:
                    stack.append(other)

    # ---------------------------------------------------------------- one instruction
    def _visit(self, one: HloInstruction) -> None:
        if _is_normal(one):
            return
        if one.opcode == "constant" and one.shape.is_array:
            self._constant(one)
            return
        rule = RULES.get(one.opcode)
        if rule is not None and (one.shape.is_array or one.opcode in MAY_GIVE_TUPLES):
            answer = rule(one)
            if isinstance(answer, Refusal):
                self._ctx.refuse(f"normalize-{one.opcode}", one, answer.code, answer.detail)
            elif answer is not None:
                step = self._ctx.gate(f"normalize-{one.opcode}", one)
                if step:
                    made = self._replace(one, answer)
                    step.done(*made, detail=answer.detail)
                    return
            elif is_library_convolution(one):
                self._leave_casts(one)
        self._wrap(one)

    def _leave_casts(self, call: HloInstruction) -> None:
        """XLA casts a convolution's operands before it finds it normal already; nobody uses the bitcasts it leaves."""
        step = self._ctx.gate("normalize-custom-call", call)
        if step:
            made: list[HloInstruction] = []
            for operand in call.operands:
                self._cast(operand, made)
            step.done(*made, detail="normal already; bitcasts that nobody uses")
            self.changed = True

    def _constant(self, constant: HloInstruction) -> None:
        """The same bytes, read as a row-major array."""
        shape = constant.shape
        if not shape.element_count:
            return
        step = self._ctx.gate("normalize-constant", constant)
        if not step:
            self._wrap(constant)
            return
        target = normalized(shape)
        values = constant.literal.values
        turned = Literal(target, None if values is None else values.transpose(major_first(shape)))
        new = HloInstruction("constant", target, literal=turned, metadata=constant.raw_attrs.get("metadata"))
        if values is None:
            new.load_payload(constant.payload or "")
        name = constant.name
        self._add(new)
        cast = self._bitcast(new, shape)
        self._computation.replace(constant, cast, relay_control=True)
        if not constant.in_computation:
            new.rename(name)
        step.done(new, cast, detail=f"{shape} as {target}")
        self.changed = True

    def _wrap(self, one: HloInstruction) -> None:
        """A bitcast to the row-major array and one back behind an operation that stays as it is."""
        shape = one.shape
        if not shape.is_array or is_row_major(shape) or not one.user_count:
            return
        step = self._ctx.gate("normalize-result", one)
        if not step:
            return
        users = one.users
        there = self._bitcast(one, normalized(shape))
        back = self._bitcast(there, shape)
        self._done[there] = True
        for user in users:
            one.replace_use_with(user, back)
        step.done(back, there, detail=f"{shape} as {there.shape}")
        self.changed = True

    def _replace(self, one: HloInstruction, normal: Normal) -> list[HloInstruction]:
        """Put the normal form of an instruction, turned back by bitcasts, in its place; what was made."""
        made: list[HloInstruction] = []
        take = self._input if one.opcode != "custom-call" else lambda operand: self._cast(operand, made)
        operands = [
            take(operand) if number in normal.turned else operand
            for number, operand in ((number, one.operand(number)) for number in normal.operands)
        ]
        if normal.opcode is None:
            new = operands[0]
        else:
            new = HloInstruction(
                normal.opcode, normal.shape, operands, attrs=normal.attrs, metadata=one.raw_attrs.get("metadata")
            )
            for key, group in one.called.items():
                new.set_called(key, group if key in one.calls_as_list else group[0])
            if one.opcode in DERIVED:
                _hand_over(one, new, sharding=new.opcode != "transpose")
            made.append(self._add(new))
            self._done[new] = True
        back = self._back(new, one.shape, made)
        _hand_over(one, back, sharding=True)
        name, opcode = one.name, one.opcode
        self._computation.replace(one, back, relay_control=True)
        if back.opcode == opcode and back in made and not one.in_computation:
            back.rename(name)
        self.changed = True
        return [back, *(other for other in made if other is not back)]

    def _back(self, new: HloInstruction, shape: Shape, made: list[HloInstruction]) -> HloInstruction:
        """`new` as an array (or tuple of arrays) of the old shape."""
        if new.shape == shape and new.opcode != "custom-call":
            return new
        if not shape.is_tuple:
            made.append(self._bitcast(new, shape))
            return made[-1]
        parts: list[HloInstruction] = []
        for index, (found, wanted) in enumerate(zip(new.shape.tuple_shapes, shape.tuple_shapes, strict=True)):
            part = self._add(HloInstruction("get-tuple-element", found, [new], attrs={"index": index}))
            made += [part, self._bitcast(part, wanted)]
            parts.append(made[-1])
        made.append(self._add(HloInstruction("tuple", shape, parts)))
        return made[-1]

    def _input(self, operand: HloInstruction) -> HloInstruction:
        """The row-major value that an operand is, or is a bitcast of."""
        if is_row_major(operand.shape):
            return operand
        target = normalized(operand.shape)
        if operand.opcode == "bitcast" and operand.operand(0).shape == target:
            return operand.operand(0)
        return self._bitcast(operand, target)

    def _cast(self, operand: HloInstruction, made: list[HloInstruction]) -> HloInstruction:
        """An operand of a library's convolution: always behind a bitcast of its own."""
        made.append(self._bitcast(operand, normalized(operand.shape)))
        return made[-1]

    def _bitcast(self, value: HloInstruction, shape: Shape) -> HloInstruction:
        return self._add(HloInstruction("bitcast", shape, [value]))

    def _add(self, one: HloInstruction) -> HloInstruction:
        return self._computation.add(one)
