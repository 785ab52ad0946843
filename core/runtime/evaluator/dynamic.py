"""Dimensions whose size is known at run time only: arrays of the bound's size that remember how much of them counts.

Elements past the size are whatever was computed there. An opcode that mixes elements replaces them first, as XLA's
dynamic padder does: by the initial value in a reduction, by zero in a contraction. An opcode for which no rule is
written here is refused. Source: ``openxla/xla:xla/service/dynamic_padder.cc``,
``xla/service/dynamic_dimension_inference.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hloscope.core.runtime.evaluator.values import Array, InstructionUnsupported, Kernel, Value, normal_axes

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction

Sizes = dict[int, int]
"""Dimension -> its size at run time; dimensions that are not here are full."""


class Bounded(np.ndarray[Any, np.dtype[Any]]):
    """An array of which only a part counts."""

    sizes: Sizes

    def __array_finalize__(self, source: object) -> None:
        self.sizes = {}


def bounded(x: Array, sizes: Sizes) -> Array:
    """The array with its sizes; a plain one where every dimension is full."""
    short = {d: n for d, n in sizes.items() if n != x.shape[d]}
    if not short:
        return plain(x)
    out = plain(x).view(Bounded)
    out.sizes = short
    return out


def plain(x: Array) -> Array:
    """The array without its sizes."""
    return x.view(np.ndarray) if isinstance(x, Bounded) else x


def sizes_of(x: object) -> Sizes:
    """The sizes that an array carries."""
    return x.sizes if isinstance(x, Bounded) else {}


def _part(x: Array, sizes: Sizes) -> tuple[slice, ...]:
    return tuple(slice(0, max(0, min(n, sizes.get(d, n)))) for d, n in enumerate(x.shape))


def counted(x: Array) -> Array:
    """The part that counts."""
    return plain(x)[_part(x, sizes_of(x))]


def padded(x: Array, fill: Array) -> Array:
    """The array with everything that does not count replaced."""
    sizes = sizes_of(x)
    if not sizes:
        return plain(x)
    out = np.empty(x.shape, x.dtype)
    out[...] = fill
    part = _part(x, sizes)
    out[part] = plain(x)[part]
    return out


def settled(value: Value) -> Value:
    """A result as it leaves the program: what does not count is zero."""
    if isinstance(value, tuple):
        return tuple(settled(v) for v in value)
    return padded(value, np.zeros((), value.dtype)) if isinstance(value, Bounded) else value


# ---------------------------------------------------------------- rules
Rule = Callable[["HloInstruction", Kernel, Sequence[Value]], Value]


def _arrays(operands: Sequence[Value]) -> list[Array]:
    return [cast("Array", x) for x in operands]


def _run(kernel: Kernel, operands: Sequence[Value]) -> Array:
    return np.asarray(kernel(*(plain(x) if isinstance(x, np.ndarray) else x for x in operands)))


def _elementwise(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    sizes: Sizes = {}
    for x in operands:
        sizes.update(sizes_of(x))
    return bounded(_run(kernel, operands), sizes)


def _set_size(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    x, size = _arrays(operands)
    (dim,) = instruction.dimensions or (0,)
    return bounded(x, {**sizes_of(x), dim: int(size)})


def _get_size(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    (x,) = _arrays(operands)
    (dim,) = instruction.dimensions or (0,)
    return np.asarray(sizes_of(x).get(dim, x.shape[dim]), np.int32)


def _broadcast(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    dims = instruction.dimensions
    return bounded(_run(kernel, operands), {dims[d]: n for d, n in sizes_of(operands[0]).items()})


def _transpose(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    dims = instruction.dimensions
    sizes = sizes_of(operands[0])
    return bounded(_run(kernel, operands), {i: sizes[d] for i, d in enumerate(dims) if d in sizes})


def _reshape(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    """Only where a dynamic dimension stays one of its own."""
    (x,) = _arrays(operands)
    target = instruction.shape.dimensions
    sizes: Sizes = {}
    for dim, size in sizes_of(x).items():
        before = prod(x.shape[:dim])
        found = [d for d, n in enumerate(target) if n == x.shape[dim] and prod(target[:d]) == before]
        if not found:
            raise InstructionUnsupported(instruction, "that splits or merges a dynamic dimension")
        sizes[found[0]] = size
    return bounded(_run(kernel, operands), sizes)


def _dynamic_reshape(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    """What counts, in row-major order, in a shape of which the sizes are operands."""
    x, *given = _arrays(operands)
    values = counted(x).reshape(-1)
    wanted = [int(n) for n in given]
    if prod(wanted) != values.size:
        raise ValueError(f"{values.size} elements into {wanted}")
    out = np.zeros(instruction.shape.dimensions, x.dtype)
    out[tuple(slice(0, n) for n in wanted)] = values.reshape(wanted)
    return bounded(out, dict(enumerate(wanted)))


def _concatenate(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    """Along a dynamic dimension the parts that count follow each other without gaps."""
    (dim,) = instruction.dimensions or (0,)
    parts = _arrays(operands)
    sizes: Sizes = {}
    for x in parts:
        sizes.update({d: n for d, n in sizes_of(x).items() if d != dim})
    cut = [np.take(plain(x), range(max(0, min(sizes_of(x).get(dim, x.shape[dim]), x.shape[dim]))), dim) for x in parts]
    joined = np.concatenate(cut, axis=dim)
    out = np.zeros(instruction.shape.dimensions, joined.dtype)
    out[tuple(slice(0, n) for n in joined.shape)] = joined
    return bounded(out, {**sizes, dim: joined.shape[dim]})


def _slice(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    x = cast("Array", operands[0])
    sizes = sizes_of(x)
    bounds = instruction.attr("slice") or ()
    for dim in sizes:
        one = bounds[dim]
        if (one.start, one.limit, one.stride) != (0, x.shape[dim], 1):
            raise InstructionUnsupported(instruction, "of a part of a dynamic dimension")
    return bounded(_run(kernel, operands), dict(sizes))


def _reduce(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    half = len(operands) // 2
    values = _arrays(operands)
    filled = [padded(x, init) for x, init in zip(values[:half], values[half:], strict=True)]
    sizes: Sizes = {}
    for x in values[:half]:
        sizes.update(sizes_of(x))
    kept = normal_axes(instruction.dimensions, values[0].ndim)
    after = {i: sizes[d] for i, d in enumerate(kept) if d in sizes}
    found = kernel(*filled, *(plain(x) for x in values[half:]))
    if isinstance(found, tuple):
        return tuple(bounded(np.asarray(x), after) for x in found)
    return bounded(np.asarray(found), after)


def _dot(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    a, b = _arrays(operands)
    zero = [np.zeros((), x.dtype) for x in (a, b)]
    batch = tuple(instruction.attr("lhs_batch_dims") or ()), tuple(instruction.attr("rhs_batch_dims") or ())
    summed = (
        tuple(instruction.attr("lhs_contracting_dims") or ()),
        tuple(instruction.attr("rhs_contracting_dims") or ()),
    )
    places: list[tuple[Sizes, int]] = [(sizes_of(a), d) for d in batch[0]]
    for x, side in ((a, 0), (b, 1)):
        places += [(sizes_of(x), d) for d in normal_axes((*summed[side], *batch[side]), x.ndim)]
    sizes = {i: given[d] for i, (given, d) in enumerate(places) if d in given}
    return bounded(np.asarray(kernel(padded(a, zero[0]), padded(b, zero[1]))), sizes)


def _sort(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    """What counts is sorted; what does not stays behind it."""
    values = _arrays(operands)
    (dim,) = instruction.dimensions or (0,)
    sizes = sizes_of(values[0])
    if set(sizes) - {dim}:
        return _elementwise(instruction, kernel, operands) if not instruction.shape.is_tuple else _refuse(instruction)
    part = _part(values[0], sizes)
    found = kernel(*(plain(x)[part] for x in values))
    parts = found if isinstance(found, tuple) else (found,)
    out: list[Array] = []
    for x, piece in zip(values, parts, strict=True):
        whole = np.array(plain(x))
        whole[part] = piece
        out.append(bounded(whole, sizes))
    return tuple(out) if isinstance(found, tuple) else out[0]


def _refuse(instruction: HloInstruction) -> Value:
    raise InstructionUnsupported(instruction, "of arrays with dynamic dimensions")


def pad_to_static(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    """The bound-sized data, then the size of each dimension."""
    x = cast("Array", operands[0])
    sizes = [np.asarray(sizes_of(x).get(d, n), np.int32) for d, n in enumerate(x.shape)]
    return (padded(x, np.zeros((), x.dtype)), *sizes)


def slice_to_dynamic(instruction: HloInstruction, kernel: Kernel, operands: Sequence[Value]) -> Value:
    """Bound-sized data with the sizes that follow it."""
    x, *given = _arrays(operands)
    return bounded(x, {d: int(n) for d, n in enumerate(given)})


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "bitcast": _reshape,
        "broadcast": _broadcast,
        "concatenate": _concatenate,
        "dot": _dot,
        "dynamic-reshape": _dynamic_reshape,
        "get-dimension-size": _get_size,
        "map": _elementwise,
        "reduce": _reduce,
        "reshape": _reshape,
        "reverse": lambda instruction, kernel, operands: _refuse(instruction),
        "set-dimension-size": _set_size,
        "slice": _slice,
        "sort": _sort,
        "transpose": _transpose,
    }
)
_CALLS: Mapping[str, Rule] = MappingProxyType({"PadToStatic": pad_to_static, "SliceToDynamic": slice_to_dynamic})
_CARRIERS = frozenset(
    {
        "add-dependency", "after-all", "async-done", "async-start", "async-update", "call", "conditional", "copy",
        "copy-done", "copy-start", "domain", "fusion", "get-tuple-element", "opt-barrier", "optimization-barrier",
        "tuple", "while",
    }
)  # fmt: skip
"""Opcodes that hand values on as they are."""


def wrap(instruction: HloInstruction, kernel: Kernel, elementwise: frozenset[str]) -> Kernel:
    """A kernel that knows about sizes, for an instruction that has to do with dynamic dimensions; else the same."""
    opcode = instruction.opcode
    if opcode in _CARRIERS:
        return kernel
    target = instruction.attr("custom_call_target") if opcode == "custom-call" else None
    rule = _CALLS.get(str(target)) if target is not None else _RULES.get(opcode)
    always = opcode in ("set-dimension-size", "get-dimension-size", "dynamic-reshape") or (target in _CALLS)
    if not always and not any(o.shape.is_dynamic for o in instruction.operands):
        return kernel
    if rule is None and opcode in elementwise:
        rule = _elementwise
    if rule is None:
        known = kernel

        def unless_short(*operands: Value) -> Value:
            if any(sizes_of(x) for x in operands):
                return _refuse(instruction)
            return known(*operands)

        return unless_short
    found = rule
    return lambda *operands: found(instruction, kernel, operands)
