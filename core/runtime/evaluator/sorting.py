"""sort and topk.

Sorting is stable whatever ``is_stable`` says, as in XLA's evaluator. One comparison of integers or in total order runs
as numpy's argsort; any other comparator as a merge sort that compares whole arrays at a time; one that cannot run on
arrays, or is no order (NaN under a plain less-than), goes element by element. Source:
``openxla/xla:xla/hlo/evaluator/hlo_evaluator.cc#HandleSort``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cmp_to_key
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.element_types import lookup
from hloscope.core.runtime.evaluator import numerics
from hloscope.core.runtime.evaluator.values import (
    Array,
    InstructionUnsupported,
    Kernel,
    Machine,
    Prepare,
    Value,
    as_array,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.element_types import ElementType
    from hloscope.core.hlo.instruction import HloInstruction


def _sort(instruction: HloInstruction, machine: Machine) -> Kernel:
    (axis,) = instruction.dimensions or (instruction.operand(0).shape.rank - 1,)
    comparator = instruction.callee("to_apply")
    simple = _single_comparison(comparator)
    less = machine.elementwise(comparator)
    as_tuple = instruction.shape.is_tuple
    types = [operand.shape.type for operand in instruction.operands]

    def kernel(*operands: Array) -> Value:
        shape = operands[0].shape
        length = shape[axis]
        # Rows to sort, one per line.
        rows = [np.moveaxis(x, axis, -1).reshape(-1, length) for x in operands]
        order = _order(rows, simple, less, types)
        moved = (*shape[:axis], *shape[axis + 1 :], length)
        out = tuple(np.moveaxis(np.take_along_axis(row, order, axis=1).reshape(moved), -1, axis) for row in rows)
        return out if as_tuple else out[0]

    return kernel


def _single_comparison(computation: HloComputation) -> tuple[int, bool, bool] | None:
    """(operand, descending, total order) where the comparator is one strict comparison of a pair, else None."""
    root = computation.root
    if root.opcode != "compare" or root.attr("direction") not in ("LT", "GT"):
        return None
    a, b = root.operands
    if a.opcode != "parameter" or b.opcode != "parameter" or a.parameter_number // 2 != b.parameter_number // 2:
        return None
    if a.parameter_number == b.parameter_number:
        return None
    swapped = a.parameter_number > b.parameter_number
    descending = (root.attr("direction") == "GT") != swapped
    return a.parameter_number // 2, descending, root.attr("type") == "TOTALORDER"


def _order(
    rows: Sequence[Array], simple: tuple[int, bool, bool] | None, less: Kernel, types: Sequence[ElementType]
) -> Array:
    if simple is not None:
        which, descending, total = simple
        element = types[which]
        key = rows[which]
        if total or element.kind != "float":
            return ordered(numerics.total_order_key(key, element), descending)
        value = numerics.widen(element)(key)
        if not np.isnan(value).any():
            # Adding +0 makes the zeros one; they compare equal and keep their order.
            return ordered(value + value.dtype.type(0), descending)
    found = _merge_sort(rows, less)
    return found if found is not None else _one_by_one(rows, less)


def ordered(key: Array, descending: bool) -> Array:
    """Stable order of each row of keys; for descending ones equal keys keep their order as well."""
    if not descending:
        return np.argsort(key, axis=-1, kind="stable")
    backwards = np.argsort(key[..., ::-1], axis=-1, kind="stable")
    return (key.shape[-1] - 1 - backwards)[..., ::-1]


def _merge_sort(rows: Sequence[Array], less: Kernel) -> Array | None:
    """Bottom-up merge sort on all rows at once: the place of an element is its own plus how many of the other run
    stand before it, found by binary search with the comparator. None where the comparator is no strict weak order."""
    lines, length = rows[0].shape
    order = np.broadcast_to(np.arange(length), (lines, length)).copy()
    width = 1
    position = np.arange(length)
    while width < length:
        values = [np.take_along_axis(row, order, axis=1) for row in rows]
        run = position // width
        first = run % 2 == 0
        other_start = np.minimum(np.where(first, (run + 1) * width, (run - 1) * width), length)
        other_end = np.minimum(other_start + width, length)
        low = np.broadcast_to(other_start, (lines, length)).copy()
        high = np.broadcast_to(other_end, (lines, length)).copy()
        while (low < high).any():
            middle = (low + high) // 2
            probe = np.minimum(middle, length - 1)
            pairs: list[Array] = []
            swapped: list[Array] = []
            for value in values:
                there = np.take_along_axis(value, probe, axis=1)
                pairs += [there, value]
                swapped += [value, there]
            # Elements of the first run stand after those that are less; of the second after all that are not greater.
            before = np.where(first, as_array(less(*pairs)), ~as_array(less(*swapped)).astype(bool)).astype(bool)
            active = low < high
            low = np.where(active & before, middle + 1, low)
            high = np.where(active & ~before, middle, high)
        own = position - run * width
        start = np.where(first, run, run - 1) * width
        place = start + own + (low - other_start)
        merged = np.full((lines, length), -1)
        np.put_along_axis(merged, place, order, axis=1)
        if (merged < 0).any():
            return None
        order = merged
        width *= 2
    values = [np.take_along_axis(row, order, axis=1) for row in rows]
    wrong = [part for value in values for part in (value[:, 1:], value[:, :-1])]
    if length > 1 and as_array(less(*wrong)).any():
        return None
    return order


def _one_by_one(rows: Sequence[Array], less: Kernel) -> Array:
    out: list[list[int]] = []
    for line in range(rows[0].shape[0]):

        def compare(a: int, b: int, line: int = line) -> int:
            pairs = [np.asarray(row[line, i]) for row in rows for i in (a, b)]
            if bool(as_array(less(*pairs))):
                return -1
            swapped = [np.asarray(row[line, i]) for row in rows for i in (b, a)]
            return 1 if bool(as_array(less(*swapped))) else 0

        out.append(sorted(range(rows[0].shape[1]), key=cmp_to_key(compare)))
    return np.asarray(out, np.int64).reshape(rows[0].shape)


# ---------------------------------------------------------------- topk
def top_k(x: Array, element: ElementType, k: int, largest: bool) -> tuple[Array, Array]:
    """The k first of the last dimension in total order, equal values by lower index, and their s32 indices."""
    order = ordered(numerics.total_order_key(x, element), largest)[..., :k]
    return np.take_along_axis(x, order, axis=-1), order.astype(lookup("s32").dtype)


def _topk(instruction: HloInstruction, machine: Machine) -> Kernel:
    shape = instruction.shape
    if not shape.is_tuple:
        raise InstructionUnsupported(instruction, "with a result that is no tuple")
    k = int(instruction.attr("k") or shape.tuple_shapes[0].dimensions[-1])
    largest = instruction.attr("largest") is not False
    element = instruction.operand(0).shape.type
    return lambda x: top_k(x, element, k, largest)


TABLE: Mapping[str, Prepare] = MappingProxyType({"sort": _sort, "topk": _topk})
