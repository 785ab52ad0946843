"""Copies of the array leaves of a value, and the clean-up of the tuples that taking it apart leaves behind.

Source: ``openxla/xla:xla/hlo/ir/hlo_computation.cc#DeepCopyInstruction``, ``#RemoveInstructionAndUnusedOperands``,
``xla/hlo/transforms/simplifiers/tuple_simplifier.cc``, ``hlo_dce.cc``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.shape import Shape

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import ShapeIndex

Copies = dict["ShapeIndex", HloInstruction]
"""The copy of each leaf that has one."""


def deep_copy(node: HloInstruction, indices: Collection[ShapeIndex] | None) -> tuple[HloInstruction, Copies]:
    """`node` rebuilt with a copy of each array leaf in `indices` (of each leaf, where None).

    A tuple is taken apart and put together again even where nothing below is copied.
    """
    copies: Copies = {}
    return _copy(node, (), indices, copies), copies


def _copy(
    node: HloInstruction, index: ShapeIndex, indices: Collection[ShapeIndex] | None, copies: Copies
) -> HloInstruction:
    computation = node.parent
    if node.shape.is_tuple:
        parts: list[HloInstruction] = []
        for number, shape in enumerate(node.shape.tuple_shapes):
            element = HloInstruction("get-tuple-element", shape, [node], attrs={"index": str(number)})
            parts.append(_copy(computation.add(element), (*index, number), indices, copies))
        made = HloInstruction("tuple", Shape.tuple_([one.shape for one in parts]), parts)
        return computation.add(made)
    if not node.shape.is_array or (indices is not None and index not in indices):
        return node
    copies[index] = computation.add(HloInstruction("copy", node.shape, [node]))
    return copies[index]


def redirect(node: HloInstruction, users: Collection[HloInstruction], new: HloInstruction) -> None:
    """Let the users that `node` had read `new`."""
    for user in users:
        node.replace_use_with(user, new)


def order_copies(first: Mapping[ShapeIndex, HloInstruction], second: Mapping[ShapeIndex, HloInstruction]) -> None:
    """Let every copy in `first` run before the copy of the same leaf in `second`."""
    for index, copy in first.items():
        if index in second:
            copy.add_control_dependency(second[index])


# ---------------------------------------------------------------- clean-up
def clean_up(module: HloModule) -> None:
    """Take values past needless tuples, then remove what nobody uses."""
    simplify_tuples(module)
    remove_dead(module)


def simplify_tuples(module: HloModule) -> None:
    """As the tuple simplifier does within copy insertion: control edges are passed on, names are taken over."""
    for computation in module.computations:
        for node in computation.post_order():
            if not node.in_computation:
                continue
            if node.opcode == "tuple":
                new = _whole(node)
            elif node.opcode == "get-tuple-element":
                new = _source(node)
            else:
                continue
            if new is not None and new is not node:
                _replace(computation, node, new)


def _whole(node: HloInstruction) -> HloInstruction | None:
    if not node.operand_count:
        return None
    source: HloInstruction | None = None
    for number, element in enumerate(node.operands):
        if element.opcode != "get-tuple-element" or int(element.attr("index")) != number:
            return None
        if source is None:
            source = element.operand(0)
        elif source is not element.operand(0):
            return None
    return source if source is not None and source.shape.compatible(node.shape) else None


def _source(node: HloInstruction) -> HloInstruction | None:
    path: list[int] = []
    source = node
    while source.opcode == "get-tuple-element":
        path.append(int(source.attr("index")))
        source = source.operand(0)
    while path:
        if source.opcode != "tuple":
            return None
        source = source.operand(path.pop())
    return source


def _replace(computation: HloComputation, old: HloInstruction, new: HloInstruction) -> None:
    name = old.name
    old.replace_all_uses_with(new)
    work = deque([old])
    while work:
        node = work.popleft()
        if not node.in_computation or node.user_count or node.is_root or node.opcode == "parameter":
            continue
        if node.has_side_effect:
            continue
        for before in node.control_predecessors:
            for after in node.control_successors:
                before.add_control_dependency(after)
        node.drop_all_control_dependencies()
        operands = dict.fromkeys(node.operands)
        computation.remove(node)
        work.extend(operands)
    if new.opcode == old.opcode and not old.in_computation:
        new.rename(name)


def remove_dead(module: HloModule) -> None:
    """Remove instructions without users, effects and control edges, and what that leaves dead."""
    for computation in module.computations:
        for node in computation:
            if node.in_computation and not node.user_count and not node.is_root and computation.is_removable(node):
                computation.remove_with_dead_operands(node)
