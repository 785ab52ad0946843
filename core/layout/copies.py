"""Writing the chosen layouts into a module, and the copies that make them meet.

A copy stands on the edge just above a use whose layout differs from that of its definition. Every use gets its own.
Source: ``openxla/xla:xla/service/layout_assignment.cc#AssignLayouts, #CopyOperandIfLayoutsDiffer,
#CreateCopyWithNewLayout``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.shape import Shape
from hloscope.core.layout.constraints import Step
from hloscope.core.layout.mandatory import branches_of
from hloscope.core.layout.orders import (
    all_set,
    in_default_memory,
    map_leaves,
    order_of,
    same_orders,
    show_shape,
    with_order,
)
from hloscope.core.layout.prepare import inherit
from hloscope.core.layout.propagation import result_step
from hloscope.core.ledger.events import LayoutConstraint, LayoutCopy

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import ShapeIndex
    from hloscope.core.layout.constraints import BufferConstraint
    from hloscope.core.layout.state import LayoutState


@dataclass(frozen=True, slots=True)
class CopyMade:
    """A copy and the two constraints that did not agree."""

    copy: HloInstruction
    operand: HloInstruction
    """The value that is copied, as it was before tuples were taken apart."""
    index: ShapeIndex
    """The element of `operand` that is copied."""
    user: HloInstruction | None
    """The instruction whose operand it is; None for the result of a computation."""
    number: int | None
    wanted: Step
    """Why the use has the layout that it has."""
    given: tuple[BufferConstraint, ...]
    """The definitions, whose layout won."""


class Writer:
    """Writes layouts into the computations of a module."""

    def __init__(self, state: LayoutState) -> None:
        self._state = state
        self._without_copies = loops_without_copies(state.module)
        self.changed = False
        self.made: list[CopyMade] = []

    def write(self, computation: HloComputation) -> None:
        """Give every instruction its layout and add copies. Raises InternalError where no layout was found."""
        state = self._state
        for instruction in computation.post_order():
            self._set_shape(instruction, self._shape_of(instruction))
            for number in range(instruction.operand_count):
                constraint = state.operands.get((instruction, number))
                if constraint is not None and not same_orders(constraint.shape, instruction.operand(number).shape):
                    self._copy_operand(instruction, number, constraint.shape, constraint.step)
            if instruction.opcode == "fusion":
                self._fusion(instruction)
        self._result(computation)

    # ---------------------------------------------------------------- layouts
    def _shape_of(self, instruction: HloInstruction) -> Shape:
        state = self._state

        def leaf_of(index: ShapeIndex, leaf: Shape) -> Shape:
            layout = state.array_layout(instruction, index)
            if layout is None:
                raise InternalError(f"%{instruction.name} has no layout at {index}")
            return with_order(leaf, layout)

        return map_leaves(instruction.shape, leaf_of)

    def _set_shape(self, instruction: HloInstruction, shape: Shape) -> None:
        if shape != instruction.shape:
            instruction.shape = shape
            self.changed = True

    def _fusion(self, fusion: HloInstruction) -> None:
        """Inside a fusion only what crosses its border has a layout, unless the backend compiles it as it is."""
        body = fusion.callee("calls")
        custom = fusion.attr("kind") == "kCustom"
        for inner in body.post_order():
            if inner.opcode == "parameter":
                self._set_shape(inner, fusion.operand(inner.parameter_number).shape)
            elif inner is body.root:
                self._set_shape(inner, fusion.shape)
            elif inner.opcode == "get-tuple-element":
                self._set_shape(inner, inner.operand(0).shape.tuple_shapes[int(inner.attr("index"))])
            elif inner.opcode not in ("constant", "infeed") and not custom:
                self._set_shape(inner, inner.shape.without_layout())

    # ---------------------------------------------------------------- copies
    def _copy_operand(self, user: HloInstruction, number: int, wanted: Shape, why: Step) -> None:
        operand = user.operand(number)
        if user.parent in self._without_copies and self._turn_parameter(user, number, wanted, why):
            return
        if user.opcode == "conditional" and number > 0 and operand.user_count == 1:
            self._copy_in_branch(user, number, wanted, why)
            return
        copy = self._copy(operand, wanted, user, number, why, operand, ())
        user.replace_operand(number, copy)

    def _turn_parameter(self, user: HloInstruction, number: int, wanted: Shape, why: Step) -> bool:
        """Where a loop forbids copies, its state gets the layout that a use wants; whether the operand is of its state.

        Neither other readers of this element nor the value that enters the loop are told, as in XLA.
        """
        computation, value, index = user.parent, user.operand(number), ()
        while value.opcode == "get-tuple-element":
            index = (int(value.attr("index")), *index)
            value = value.operand(0)
        parameter = computation.parameters[0] if computation.parameters else None
        if value is not parameter:
            return False
        before = value.shape.sub(index)
        self._set_shape(value, _with_part(value.shape, index, _with_orders_of(wanted, before)))
        root = computation.root
        if root.shape.is_tuple and _has(root.shape, index) and root.shape.sub(index).compatible(before):
            self._set_shape(root, _with_part(root.shape, index, _with_orders_of(wanted, root.shape.sub(index))))
        operand = user.operand(number)
        if operand is not value:
            self._set_shape(operand, _with_orders_of(wanted, operand.shape))
        interface = self._state.interface(computation)
        interface.parameters = [one.shape for one in computation.parameters]
        interface.result = root.shape
        interface.reset(self._state.priority + 1)
        ledger = self._state.ctx.ledger
        if ledger.enabled:
            ledger.emit(
                LayoutConstraint(
                    subject=value.name,
                    computation=computation.name,
                    verdict="changed",
                    code="loop_forbids_copies",
                    place="buffer{" + ",".join(map(str, index)) + "}" if index else "buffer",
                    layout=show_shape(wanted),
                    rule="loop-without-copies",
                    priority=why.priority,
                    round=self._state.priority,
                    source=why.where,
                    old_layout=show_shape(before),
                )
            )
        return True

    def _copy_in_branch(self, user: HloInstruction, number: int, wanted: Shape, why: Step) -> None:
        """Only the branch that runs pays for it."""
        branch = branches_of(user)[number - 1]
        parameter = branch.parameters[0]
        operand = user.operand(number)
        self._set_shape(parameter, operand.shape)
        users = parameter.users
        copy = self._copy(parameter, wanted, user, number, why, operand, ())
        for one in users:
            parameter.replace_use_with(one, copy)
        if branch.root is parameter:
            branch.set_root(copy)
        interface = self._state.interface(branch)
        interface.parameters[0] = parameter.shape
        interface.result = branch.root.shape
        interface.reset(self._state.priority + 1, parameters_set=False, result_set=False)

    def _copy(
        self,
        value: HloInstruction,
        wanted: Shape,
        user: HloInstruction | None,
        number: int | None,
        why: Step,
        whole: HloInstruction,
        index: ShapeIndex,
    ) -> HloInstruction:
        computation = value.parent
        self.changed = True
        if value.shape.is_tuple:
            elements: list[HloInstruction] = []
            for i, (target, shape) in enumerate(zip(wanted.tuple_shapes, value.shape.tuple_shapes, strict=True)):
                element = computation.add(HloInstruction("get-tuple-element", shape, [value], attrs={"index": str(i)}))
                if not same_orders(target, shape):
                    inherit(value, element, i)
                    element = self._copy(element, target, user, number, why, whole, (*index, i))
                elements.append(element)
            shape = Shape.tuple_(
                [_with_orders_of(t, e.shape) for t, e in zip(wanted.tuple_shapes, elements, strict=True)]
            )
            made = computation.add(HloInstruction("tuple", shape, elements))
            inherit(value, made)
            return made
        if not value.shape.is_array:
            raise InternalError(f"%{value.name} of shape {value.shape} cannot be copied")
        made = computation.add(HloInstruction("copy", _with_orders_of(wanted, value.shape), [value]))
        inherit(value, made)
        self._note(CopyMade(made, whole, index, user, number, why, self._sources(whole, index)))
        return made

    def _sources(self, value: HloInstruction, index: ShapeIndex) -> tuple[BufferConstraint, ...]:
        state = self._state
        if not state.points_to.knows(value):
            return ()
        found = [state.buffers.get(buffer) for buffer in state.points_to.at(value, index)]
        return tuple(one for one in found if one is not None)

    def _note(self, made: CopyMade) -> None:
        self.made.append(made)
        ledger = self._state.ctx.ledger
        if ledger.enabled:
            given = made.given[0] if made.given else None
            ledger.emit(
                LayoutCopy(
                    subject=made.copy.name,
                    computation=made.copy.parent.name,
                    code=made.wanted.rule,
                    operand=made.copy.operand(0).name,
                    user=None if made.user is None else made.user.name,
                    from_layout=show_shape(made.copy.operand(0).shape),
                    to_layout=show_shape(made.copy.shape),
                    bytes=_bytes(made.copy.shape),
                    wanted=" <- ".join(f"{one.where} ({one.rule})" for one in made.wanted.chain()),
                    given=None if given is None else f"{given.step.where} ({given.step.rule})",
                    priorities=f"{made.wanted.priority} against {given.priority}" if given is not None else None,
                )
            )

    def note_prepared(self, copies: list[HloInstruction]) -> None:
        """Record the copies that were made before layouts were chosen, which have theirs now."""
        ledger = self._state.ctx.ledger
        for copy in copies if ledger.enabled else ():
            user = next(iter(copy.users), None)
            ledger.emit(
                LayoutCopy(
                    subject=copy.name,
                    computation=copy.parent.name,
                    code="sent-operand" if user is not None and user.opcode == "send" else "aliased-operand",
                    operand=copy.operand(0).name,
                    user=None if user is None else user.name,
                    from_layout=show_shape(copy.operand(0).shape),
                    to_layout=show_shape(copy.shape),
                    bytes=_bytes(copy.shape),
                    wanted="the user passes its operand on, so the copy was made before layouts were chosen",
                )
            )

    # ---------------------------------------------------------------- results
    def _result(self, computation: HloComputation) -> None:
        state = self._state
        visible = state.result_layout(computation)
        if visible is None or not all_set(visible):
            return
        wanted = in_default_memory(visible)
        root = computation.root
        if not same_orders(wanted, root.shape):
            if computation in self._without_copies:
                return
            rule = "entry-result" if computation.is_entry else "computation-result"
            step = result_step(state, computation, wanted, rule, state.interface(computation).priority)
            computation.set_root(self._copy(root, wanted, None, None, step, root, ()))
            return

        def finish(index: ShapeIndex, leaf: Shape) -> Shape:
            given = wanted.sub(index).layout
            if given is None or leaf.layout is None:
                return leaf
            layout = replace(
                leaf.layout,
                tiles=given.tiles or leaf.layout.tiles,
                element_size_in_bits=given.element_size_in_bits,
                tail_padding_alignment_in_elements=given.tail_padding_alignment_in_elements,
            )
            return leaf if layout == leaf.layout else leaf.with_layout(layout)

        self._set_shape(root, map_leaves(root.shape, finish))


_NO_COPIES = re.compile(r"""\bxla[._]disable_while_loop_copies["']?\s*[=:]\s*["']?true\b""")


def loops_without_copies(module: HloModule) -> frozenset[HloComputation]:
    """The computations of loops that forbid copies by attribute, with all that they call. Compilers before 2026 do not
    know the attribute. Source: ``openxla/xla:xla/service/while_util.cc#GetCopyDisabledWhileLoopComputations``."""
    found: set[HloComputation] = set()
    work = [
        callee
        for one in module.instructions()
        if one.opcode == "while" and _NO_COPIES.search(one.raw_attrs.get("frontend_attributes") or "")
        for callee in one.called_computations
    ]
    while work:
        computation = work.pop()
        if computation not in found:
            found.add(computation)
            work += [callee for one in computation.instructions for callee in one.called_computations]
    return frozenset(found)


def _has(shape: Shape, index: ShapeIndex) -> bool:
    for place in index:
        if not shape.is_tuple or place >= len(shape.tuple_shapes):
            return False
        shape = shape.tuple_shapes[place]
    return True


def _with_part(shape: Shape, index: ShapeIndex, part: Shape) -> Shape:
    """`shape` with another shape at `index`."""
    if not index:
        return part
    parts = list(shape.tuple_shapes)
    parts[index[0]] = _with_part(parts[index[0]], index[1:], part)
    return replace(shape, tuple_shapes=tuple(parts))


def _with_orders_of(wanted: Shape, shape: Shape) -> Shape:
    """`shape` with the layouts of `wanted`, which may be dynamic where it is static or the other way round."""

    def leaf_of(index: ShapeIndex, leaf: Shape) -> Shape:
        layout = wanted.sub(index).layout
        return leaf if layout is None or order_of(leaf) == () else leaf.with_layout(layout)

    return map_leaves(shape, leaf_of)


def _bytes(shape: Shape) -> int | None:
    try:
        return shape.byte_size
    except (ValueError, HloscopeError):
        return None
