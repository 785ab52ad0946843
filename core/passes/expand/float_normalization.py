"""``float-normalization-…``: operations that a backend lacks in a narrow type, in a wider one between conversions.

Also ``all-reduce-promotion``. Source: ``openxla/xla:xla/hlo/transforms/simplifiers/float_normalization.cc``,
``xla/service/float_support.cc``, ``xla/hlo/transforms/collectives/all_reduce_promotion.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hloscope.core.hlo.shape import Shape
from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.expand.cpu_library import library_takes_dot, library_takes_reduction
from hloscope.core.passes.flatten_call_graph import clone_computation
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, rule

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext

_LEFT = frozenset(
    """tuple get-tuple-element constant domain parameter fusion convert call custom-call while conditional
    bitcast-convert bitcast async-start async-update async-done opt-barrier count-leading-zeros shift-right-logical
    shift-right-arithmetic after-all""".split()
)
"""Opcodes that only pass values on, or whose result depends on the bits."""

WIDER = {
    "bf16": "f32", "f8e5m2": "f16", "f8e4m3": "f16", "f8e4m3fn": "f16", "f8e4m3b11fnuz": "f16", "f8e5m2fnuz": "f16",
    "f8e4m3fnuz": "f16", "f8e3m4": "f16", "s4": "s8", "u4": "u8", "f4e2m1fn": "f16", "f8e8m0fnu": "f32",
}  # fmt: skip
"""The types that XLA:CPU computes in another, with that."""


def _pass_name(narrow: str) -> str:
    return f"float-normalization-{narrow}"


@dataclass(frozen=True)
class FloatNormalization:
    """The pass for one type."""

    narrow: str
    is_pipeline = False

    @property
    def name(self) -> str:
        """``float-normalization-bf16`` and so on."""
        return _pass_name(self.narrow)

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Every computation, callees first."""
        return _Normalizer(self.narrow, WIDER[self.narrow], ctx).run(module)


class _Normalizer:
    def __init__(self, narrow: str, wide: str, ctx: PassContext) -> None:
        self._narrow, self._wide, self._ctx = narrow, wide, ctx

    def run(self, module: HloModule) -> bool:
        changed = False
        narrow = self._narrow
        if not any(one.shape.element_type == narrow or one.shape.tuple_shapes for one in module.instructions()):
            return False
        for computation in module.post_order():
            if computation.is_fusion or not any(self._has(one.shape) for one in computation):
                continue
            for one in computation.post_order():
                if one.in_computation and self._is_concerned(one):
                    changed |= self._normalize(one)
        return changed

    def _has(self, shape: Shape) -> bool:
        return any(leaf.element_type == self._narrow for _, leaf in shape.leaves())

    def _is_concerned(self, one: HloInstruction) -> bool:
        if one.opcode in _LEFT or one.info.side_effect or one.info.asynchronous:
            return False
        return self._has(one.shape) or any(self._has(o.shape) for o in one.operands)

    def _normalize(self, one: HloInstruction) -> bool:
        if one.opcode == "dot" and library_takes_dot(one):
            self._ctx.refuse("widen", one, "library", f"{self._narrow} is multiplied as it is")
            return False
        if one.opcode in ("reduce", "reduce-window") and library_takes_reduction(one):
            self._ctx.refuse("widen", one, "library", f"{self._narrow} is reduced as it is")
            return False
        if any(o.shape.is_tuple for o in one.operands) or one.info.collective:
            self._ctx.refuse("widen", one, "form", one.opcode)
            return False
        step = self._ctx.gate("widen", one)
        if not step:
            return False
        build = Builder(one)
        for place, operand in enumerate(one.operands):
            if operand.shape.element_type == self._narrow:
                one.replace_operand(place, self._widened(build, operand))
        for name, group in dict(one.called).items():
            new = [self._widen_callee(c) for c in group]
            if new != list(group):
                one.set_called(name, new if name in one.calls_as_list else new[0])
        if self._has(one.shape):
            self._narrow_result(build, one)
        step.done(*build.made, detail=f"{self._narrow} in {self._wide}")
        return True

    def _widened(self, build: Builder, x: HloInstruction) -> HloInstruction:
        """A value in the wide type; what was narrowed without a loss is taken as it was."""
        return build.convert(x, self._wide)

    def _narrow_result(self, build: Builder, one: HloInstruction) -> None:
        """Let the operation give the wide type, and its users a conversion back."""
        users, root, shape = one.users, one.is_root, one.shape
        one.shape = self._wide_shape(shape)
        if shape.is_tuple:
            parts = [
                build.convert(build.element(one, i), s.element_type) for i, s in enumerate(shape.tuple_shapes)
            ]
            back = build.make("tuple", shape, parts)
        else:
            back = build.convert(one, self._narrow)
        for user in users:
            # A user that widens takes the wide value: what it would have rounded is kept.
            if user.opcode == "convert" and user.shape.element_type == self._wide and not shape.is_tuple:
                continue
            one.replace_use_with(user, back)
        for user in users:
            if user.opcode == "convert" and user.operand(0) is one:
                if user.control_predecessors or user.control_successors:
                    one.replace_use_with(user, back)
                    continue
                user.replace_all_uses_with(one)
                user.parent.remove(user)
        if root:
            one.parent.set_root(back)
        elif not back.user_count:
            back.parent.remove_with_dead_operands(back)

    def _wide_shape(self, shape: Shape) -> Shape:
        if shape.is_tuple:
            return Shape.tuple_([self._wide_shape(s) for s in shape.tuple_shapes])
        return shape.with_element_type(self._wide) if shape.element_type == self._narrow else shape

    def _widen_callee(self, callee: HloComputation) -> HloComputation:
        """A copy of a reducer that takes and gives the wide type."""
        if not any(self._has(n.shape) for n in (*callee.parameters, callee.root)):
            return callee
        made = clone_computation(callee.module, callee)
        for parameter in made.parameters:
            if parameter.shape.element_type == self._narrow:
                users, root = parameter.users, parameter.is_root
                parameter.shape = parameter.shape.with_element_type(self._wide)
                back = Builder(parameter, made).convert(parameter, self._narrow)
                for user in users:
                    parameter.replace_use_with(user, back)
                if root:
                    made.set_root(back)
        root = made.root
        build = Builder(root, made)
        if root.shape.is_tuple:
            parts = [
                build.convert(root.operand(i) if root.opcode == "tuple" else build.element(root, i), self._wide)
                if s.element_type == self._narrow
                else (root.operand(i) if root.opcode == "tuple" else build.element(root, i))
                for i, s in enumerate(root.shape.tuple_shapes)
            ]
            made.set_root(build.tuple(parts))
        elif root.shape.element_type == self._narrow:
            made.set_root(build.convert(root, self._wide))
        # The operations inside are widened as those of any computation.
        for node in made.post_order():
            if node.in_computation and self._is_concerned(node):
                self._normalize(node)
        return made


# ---------------------------------------------------------------- all-reduce-promotion
@rule("promote-all-reduce", "all-reduce reduce-scatter", "a reduction over devices in bf16 → in f32, rounded once")
def promote_all_reduce(one: HloInstruction, options: RuleOptions) -> Answer:
    if one.operand_count != 1 or one.shape.element_type != "bf16":
        return None
    root = one.callee("to_apply").root
    if root.operand_count != 2 or any(o.opcode != "parameter" for o in root.operands):
        return None

    def make(build: Builder) -> HloInstruction:
        reducer = build.reducer(root.opcode, "f32")
        wide = build.clone(one, [build.convert(one.operand(0), "f32")], one.shape.with_element_type("f32"))
        wide.set_called("to_apply", reducer)
        return build.make("convert", one.shape, [wide])

    return make


@dataclass(frozen=True)
class AllReducePromotion(RulePass):
    """Reductions over devices in f32."""

    name = "all-reduce-promotion"
    rules = (promote_all_reduce,)


# ---------------------------------------------------------------- one factory for each type
def bf16() -> FloatNormalization:
    """``float-normalization-bf16``."""
    return FloatNormalization("bf16")


def f8e5m2() -> FloatNormalization:
    """``float-normalization-f8e5m2``."""
    return FloatNormalization("f8e5m2")


def f8e4m3() -> FloatNormalization:
    """``float-normalization-f8e4m3``."""
    return FloatNormalization("f8e4m3")


def f8e4m3fn() -> FloatNormalization:
    """``float-normalization-f8e4m3fn``."""
    return FloatNormalization("f8e4m3fn")


def f8e4m3b11fnuz() -> FloatNormalization:
    """``float-normalization-f8e4m3b11fnuz``."""
    return FloatNormalization("f8e4m3b11fnuz")


def f8e5m2fnuz() -> FloatNormalization:
    """``float-normalization-f8e5m2fnuz``."""
    return FloatNormalization("f8e5m2fnuz")


def f8e4m3fnuz() -> FloatNormalization:
    """``float-normalization-f8e4m3fnuz``."""
    return FloatNormalization("f8e4m3fnuz")


def f8e3m4() -> FloatNormalization:
    """``float-normalization-f8e3m4``."""
    return FloatNormalization("f8e3m4")


def s4() -> FloatNormalization:
    """``float-normalization-s4``."""
    return FloatNormalization("s4")


def u4() -> FloatNormalization:
    """``float-normalization-u4``."""
    return FloatNormalization("u4")


def f4e2m1fn() -> FloatNormalization:
    """``float-normalization-f4e2m1fn``."""
    return FloatNormalization("f4e2m1fn")


def f8e8m0fnu() -> FloatNormalization:
    """``float-normalization-f8e8m0fnu``."""
    return FloatNormalization("f8e8m0fnu")
