"""reduce, reduce-window, select-and-scatter, map, scan.

A computation that is one commutative operation runs as numpy reductions (float sums in f64, rounded once, as XLA's own
evaluator does). Any other computation is applied to whole arrays of accumulators, one step along the reduced dimensions
at a time, in row-major order, initial value first. Source: ``openxla/xla:xla/hlo/evaluator/hlo_evaluator.cc``
(HandleReduce, HandleReduceWindow), ``hlo_evaluator_typed_visitor.h#HandleSelectAndScatter``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.attributes import PaddingDimension, Window
from hloscope.core.runtime.evaluator import monoids
from hloscope.core.runtime.evaluator.structural import pad
from hloscope.core.runtime.evaluator.values import (
    Array,
    InstructionUnsupported,
    Kernel,
    Machine,
    Prepare,
    Value,
    as_array,
    normal_axes,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.attributes import WindowDimension
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.runtime.evaluator.monoids import Monoid

SEQUENTIAL_LIMIT = 256
"""Folds longer than this are done as a tree of neighbouring pairs, which keeps the order and changes the association.

HLO leaves the association of a reduction open, so a computation that tells the two apart has no one right answer.
"""


def _parts(value: Value, count: int) -> tuple[Array, ...]:
    return tuple(as_array(v) for v in value) if isinstance(value, tuple) else (as_array(value),) * count


def _result(parts: Sequence[Array], as_tuple: bool) -> Value:
    return tuple(parts) if as_tuple else parts[0]


# ---------------------------------------------------------------- reduce
def _reduce(instruction: HloInstruction, machine: Machine) -> Kernel:
    axes = instruction.dimensions
    count = instruction.operand_count // 2
    computation = instruction.callee("to_apply")
    monoid = monoids.match(computation) if count == 1 else None
    as_tuple = instruction.shape.is_tuple
    if monoid is not None and monoid.element == instruction.operand(0).shape.type:
        simple = monoid

        def fast(x: Array, init: Array) -> Value:
            total = simple.combine(simple.enter(init), simple.reduce(simple.enter(x), axes))
            return _result([simple.leave(total)], as_tuple)

        return fast
    combine = machine.elementwise(computation)

    def kernel(*operands: Array) -> Value:
        return _result(fold(operands[:count], operands[count:], axes, combine), as_tuple)

    return kernel


def fold(inputs: Sequence[Array], inits: Sequence[Array], axes: Sequence[int], combine: Kernel) -> list[Array]:
    """Any computation folded over `axes`, several arrays side by side."""
    count = len(inputs)
    kept = normal_axes(axes, inputs[0].ndim)
    sizes = [inputs[0].shape[d] for d in kept]
    length = prod(inputs[0].shape[d] for d in axes)
    # The reduced dimensions in ascending order: row-major over them, whatever order the attribute lists them in.
    rows = [x.transpose(*sorted(axes), *kept).reshape(length, *sizes) for x in inputs]
    total = [np.broadcast_to(init, sizes) for init in inits]
    if length > SEQUENTIAL_LIMIT:
        rows = _tree(rows, combine)
    for i in range(rows[0].shape[0]):
        total = list(_parts(combine(*total, *(row[i] for row in rows)), count))
    return total


def _tree(rows: list[Array], combine: Kernel) -> list[Array]:
    while rows[0].shape[0] > 1:
        even = rows[0].shape[0] // 2 * 2
        halves = _parts(combine(*(r[0:even:2] for r in rows), *(r[1:even:2] for r in rows)), len(rows))
        if even != rows[0].shape[0]:
            halves = tuple(np.concatenate([h, r[even:]]) for h, r in zip(halves, rows, strict=True))
        rows = list(halves)
    return rows


# ---------------------------------------------------------------- reduce-window
def _reduce_window(instruction: HloInstruction, machine: Machine) -> Kernel:
    window: Window = instruction.attr("window") or Window(())
    dims = window.dimensions
    count = instruction.operand_count // 2
    computation = instruction.callee("to_apply")
    monoid = monoids.match(computation) if count == 1 else None
    shape = instruction.shape
    as_tuple = shape.is_tuple
    sizes = (shape.tuple_shapes[0] if as_tuple else shape).dimensions
    if any(d.window_reversal for d in dims):
        raise InstructionUnsupported(instruction, "with a reversed window")
    if monoid is not None and monoid.element == instruction.operand(0).shape.type:
        simple = monoid

        def fast(x: Array, init: Array) -> Value:
            total = simple.combine(simple.enter(init), slide(simple.enter(x), dims, sizes, simple))
            return _result([simple.leave(total)], as_tuple)

        return fast
    combine = machine.elementwise(computation)

    def kernel(*operands: Array) -> Value:
        inputs, inits = operands[:count], operands[count:]
        total = [np.broadcast_to(init, sizes) for init in inits]
        for place in itertools.product(*(range(d.size) for d in dims)):
            seen, values = _at(inputs, dims, place, sizes)
            new = _parts(combine(*total, *values), count)
            total = [np.where(seen, n, t) for n, t in zip(new, total, strict=True)]
        return _result(total, as_tuple)

    return kernel


def slide(x: Array, dims: Sequence[WindowDimension], sizes: Sequence[int], monoid: Monoid) -> Array:
    """Windows of partial results, one dimension after the other; padding and holes hold the identity.

    A window of w takes log w steps: runs of 1, 2, 4 … elements are combined and the window is put together from them.
    """
    padding = tuple(PaddingDimension(d.padding_low, d.padding_high, d.base_dilation - 1) for d in dims)
    if any(p != PaddingDimension(0, 0, 0) for p in padding):
        x = pad(x, monoid.identity, padding)
    for axis, dim in enumerate(dims):
        if dim.size == 1 and dim.stride == 1:
            continue
        length = max(0, x.shape[axis] - (dim.size - 1) * dim.window_dilation)
        run, width, start = x, 1, 0
        total: Array | None = None
        left = dim.size
        while left:
            if left & 1:
                part = _cut(run, axis, start * dim.window_dilation, length)
                total = part if total is None else monoid.combine(total, part)
                start += width
            left >>= 1
            if left:
                reach = run.shape[axis] - width * dim.window_dilation
                run = monoid.combine(_cut(run, axis, 0, reach), _cut(run, axis, width * dim.window_dilation, reach))
                width *= 2
        index: list[slice] = [slice(None)] * x.ndim
        index[axis] = slice(0, (sizes[axis] - 1) * dim.stride + 1 if sizes[axis] else 0, dim.stride)
        x = (x if total is None else total)[tuple(index)]
    return x


def _cut(x: Array, axis: int, start: int, length: int) -> Array:
    index: list[slice] = [slice(None)] * x.ndim
    index[axis] = slice(start, start + length)
    return x[tuple(index)]


def _at(
    inputs: Sequence[Array], dims: Sequence[WindowDimension], place: Sequence[int], sizes: Sequence[int]
) -> tuple[Array, list[Array]]:
    """What one window position holds for every output: whether that is an element at all, and the elements."""
    seen = np.ones((), bool)
    index: list[Array] = []
    for axis, (dim, k, size) in enumerate(zip(dims, place, sizes, strict=True)):
        at = np.arange(size) * dim.stride - dim.padding_low + k * dim.window_dilation
        bound = inputs[0].shape[axis]
        inside = (at >= 0) & (at % dim.base_dilation == 0) & (at // dim.base_dilation < bound)
        sides = [1] * len(sizes)
        sides[axis] = size
        seen = seen & inside.reshape(sides)
        index.append(np.where(inside, at // dim.base_dilation, 0))
    if any(n == 0 for n in inputs[0].shape):
        return np.zeros(tuple(sizes), bool), [np.zeros(tuple(sizes), x.dtype) for x in inputs]
    return np.broadcast_to(seen, tuple(sizes)), [x[np.ix_(*index)] if index else x for x in inputs]


# ---------------------------------------------------------------- select-and-scatter
def _select_and_scatter(instruction: HloInstruction, machine: Machine) -> Kernel:
    window: Window = instruction.attr("window") or Window(())
    dims = window.dimensions
    select = machine.elementwise(instruction.callee("select"))
    scatter_computation = instruction.callee("scatter")
    monoid = monoids.match(scatter_computation)
    scatter = machine.elementwise(scatter_computation)

    def kernel(x: Array, source: Array, init: Array) -> Array:
        sizes = source.shape
        numbers = np.arange(x.size).reshape(x.shape)
        best, where = np.broadcast_to(x.dtype.type(0), sizes), np.full(sizes, -1)
        for place in itertools.product(*(range(d.size) for d in dims)):
            seen, (values, at) = _at((x, numbers), dims, place, sizes)
            keep = as_array(select(best, values)).astype(bool)
            change = seen & ((where < 0) | ~keep)
            best, where = np.where(change, values, best), np.where(change, at, where)
        chosen = where.reshape(-1) >= 0
        targets, updates = where.reshape(-1)[chosen], source.reshape(-1)[chosen]
        flat = np.broadcast_to(init, x.shape).reshape(-1).copy()
        if monoid is not None and monoid.opcode == "add":
            # Sums are wide and rounded once, as for reduce.
            total = monoid.enter(flat).copy()
            np.add.at(total, targets, monoid.enter(updates))
            flat = monoid.leave(total)
        else:
            for chunk in rounds(targets):
                flat[targets[chunk]] = as_array(scatter(flat[targets[chunk]], updates[chunk]))
        return flat.reshape(x.shape)

    return kernel


def rounds(targets: Array) -> list[Array]:
    """Positions in `targets` split so that no round hits a target twice and each target sees its hits in order."""
    if not targets.size:
        return []
    order = np.argsort(targets, kind="stable")
    ordered = targets[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.concatenate([first, [ordered.size]]))
    rank = np.arange(ordered.size) - np.repeat(first, lengths)
    by_rank = np.argsort(rank, kind="stable")
    edges = np.cumsum(np.bincount(rank))[:-1]
    return np.split(order[by_rank], edges)


# ---------------------------------------------------------------- map, scan
def _map(instruction: HloInstruction, machine: Machine) -> Kernel:
    return machine.elementwise(instruction.callee("to_apply"))


def _scan(instruction: HloInstruction, machine: Machine) -> Kernel:
    """The computation along one dimension: (slices…, carries…) to (outputs…, carries…).

    Source: ``openxla/xla:xla/hlo/evaluator/hlo_evaluator.cc#HandleScan``.
    """
    body = machine.function(instruction.callee("to_apply"))
    carries = int(instruction.attr("num_carries") or 0)
    axis = int(instruction.attr("scan_dimension") or (instruction.dimensions or (0,))[0])
    backwards = instruction.attr("is_reverse") in (True, "true")
    if not instruction.shape.is_tuple:
        raise InstructionUnsupported(instruction, "with a result that is no tuple")
    stacked = [s.dimensions for s in instruction.shape.tuple_shapes[: len(instruction.shape.tuple_shapes) - carries]]
    dtypes = [s.type.dtype for s in instruction.shape.tuple_shapes[: len(stacked)]]
    inputs = instruction.operand_count - carries

    def kernel(*operands: Array) -> Value:
        state: tuple[Value, ...] = operands[inputs:]
        out = [np.empty(dims, dtype) for dims, dtype in zip(stacked, dtypes, strict=True)]
        length = operands[0].shape[axis] if inputs else stacked[0][axis]
        for step in range(length - 1, -1, -1) if backwards else range(length):
            result = body(*(x.take(step, axis) for x in operands[:inputs]), *state)
            parts = result if isinstance(result, tuple) else (result,)
            for target, part in zip(out, parts, strict=False):
                target[(slice(None),) * axis + (step,)] = as_array(part)
            state = parts[len(out) :]
        return (*out, *state)

    return kernel


TABLE: Mapping[str, Prepare] = MappingProxyType(
    {
        "map": _map,
        "reduce": _reduce,
        "reduce-window": _reduce_window,
        "scan": _scan,
        "select-and-scatter": _select_and_scatter,
    }
)
