"""Random inputs: the same for the same seed, place and shape, on every machine.

Ranges are moderate on purpose. Huge or tiny floats make legitimate rewrites (reassociation, reciprocals) look like
faults, and large integers overflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.runtime.evaluator.memory import CUT_POINTS, available_memory, in_words
from hloscope.core.runtime.evaluator.numerics import carrier, narrow
from hloscope.core.runtime.evaluator.values import TOKEN, Array, TooLargeError, Value, pack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.shape import Shape


def random_array(shape: Shape, source: np.random.Generator) -> Array:
    """An array of the shape: normal floats, integers from 0 (unsigned: u64 seeds too) or -4 up to 8, fair preds."""
    element, dims = shape.type, shape.dimensions
    if element.kind == "pred":
        return source.integers(0, 2, dims).astype(bool)
    if element.is_integral:
        low = max(-4, -(1 << (element.bits - 1))) if element.kind == "int" else 0
        high = min(8, (1 << (element.bits - (element.kind == "int"))) - 1)
        return narrow(element)(np.asarray(source.integers(low, high + 1, dims)).astype(carrier(element)))
    if element.kind == "complex":
        parts = source.standard_normal(dims) + 1j * source.standard_normal(dims)
        return np.asarray(parts).astype(element.dtype)
    if element.kind != "float":
        raise ValueError(f"no random values of {element.name}")
    if element.name == "f8e8m0fnu":  # powers of two, no sign and no zero
        return np.asarray(2.0 ** source.integers(-3, 4, dims)).astype(np.float32).astype(element.dtype)
    return narrow(element)(np.asarray(source.standard_normal(dims)).astype(carrier(element)))


def check_fit(shapes: Sequence[Shape], limit: int | None = None) -> None:
    """Raises TooLargeError, with both figures, where values of the shapes take more than a quarter of free memory."""
    needed = sum(
        leaf.element_count * leaf.type.dtype.itemsize
        for shape in shapes
        for _, leaf in shape.leaves()
        if leaf.is_array and leaf.type.numpy_name is not None
    )
    limit = available_memory() // 4 if limit is None else limit
    if needed > limit:
        raise TooLargeError(
            f"the inputs take about {in_words(needed)}, {in_words(limit)} are to spare", hint=CUT_POINTS
        )


def random_inputs(shapes: Sequence[Shape], seed: int = 0) -> list[Value]:
    """A value for each shape; the draw for one place does not depend on the shapes before it."""
    out: list[Value] = []
    for number, shape in enumerate(shapes):
        source = np.random.default_rng([seed, number])
        drawn: Iterator[Value] = iter(
            [random_array(leaf, source) if leaf.is_array else TOKEN for _, leaf in shape.leaves()]
        )
        out.append(pack(shape, drawn))
    return out


def moderate_inputs(computation: HloComputation, seed: int = 0) -> list[Value]:
    """Random values for a computation's parameters, floats of two and more dimensions scaled down like weights.

    A matrix product of them stays of the size of its factors: with normal values a chain of layers saturates or
    overflows, and every difference in rounding becomes a difference in the result.
    """

    def scaled(shape: Shape, value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(scaled(s, v) for s, v in zip(shape.tuple_shapes, value, strict=True))
        if not isinstance(value, np.ndarray) or shape.rank < 2 or shape.type.kind not in ("float", "complex"):
            return value
        if shape.element_type == "f8e8m0fnu":
            return value
        wide = value.astype(np.complex128 if shape.type.kind == "complex" else np.float64)
        return (wide / np.sqrt(max(1, min(shape.dimensions[-2:])))).astype(value.dtype)

    parameters = computation.parameters
    return [scaled(p.shape, v) for p, v in zip(parameters, inputs_for(computation, seed), strict=True)]


def inputs_for(computation: HloComputation, seed: int = 0) -> list[Value]:
    """Random values for a computation's parameters."""
    return random_inputs([p.shape for p in computation.parameters], seed)
