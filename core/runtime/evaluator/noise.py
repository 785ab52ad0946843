"""Rounding errors on purpose: every arithmetic result is off by up to one spacing of its type.

Two compiles of a program round at different places. How far that can move the outcome is seen by moving every result at
random and looking at what comes out: a sum that cancels, a product that overflows and a comparison on the edge show
themselves, and nothing has to be known about the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.element_types import lookup
from hloscope.core.runtime.evaluator import numerics
from hloscope.core.runtime.evaluator.values import Array, Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.hlo.element_types import ElementType
    from hloscope.core.hlo.shape import Shape

EXACT = frozenset(
    {
        "abs", "add-dependency", "after-all", "all-gather", "all-gather-done", "all-gather-start", "all-reduce-done",
        "all-to-all", "async-done", "async-start", "async-update", "bitcast", "bitcast-convert", "broadcast", "call",
        "ceil", "clamp", "collective-broadcast", "collective-permute", "collective-permute-done",
        "collective-permute-start", "compare", "complex", "concatenate", "conditional", "copy", "copy-done",
        "copy-start", "custom-call", "domain", "dynamic-reshape", "dynamic-slice", "dynamic-update-slice", "floor",
        "fusion", "gather", "get-dimension-size", "get-tuple-element", "imag", "infeed", "iota", "is-finite",
        "maximum", "minimum", "negate", "not", "opt-barrier", "optimization-barrier", "outfeed", "pad", "real",
        "recv", "recv-done", "reduce-precision", "reshape", "reverse", "rng", "round-nearest-afz",
        "round-nearest-even", "select", "send", "send-done", "set-dimension-size", "sign", "slice", "sort", "topk",
        "transpose", "tuple", "while",
    }
)  # fmt: skip
"""Opcodes that do not round, and those whose bodies do."""


def spacing(element: ElementType) -> float:
    """Spacing of the type just above 1; that of the parts of a complex type."""
    if element.kind == "complex":
        element = lookup("f32" if element.bits == 64 else "f64")
    if element.name in ("f16", "f32", "f64"):
        return float(np.finfo(element.dtype).eps)
    import ml_dtypes

    return float(ml_dtypes.finfo(element.dtype).eps)


def disturbance(opcode: str, shape: Shape, source: np.random.Generator) -> Callable[[Value], Value] | None:
    """What to do to an instruction's results; None for one that does not round."""
    if opcode in EXACT or not shape.is_array or shape.type.kind not in ("float", "complex"):
        return None
    element = shape.type
    step = spacing(element)
    if element.kind == "complex":
        return lambda x: _complex(x, step, source)
    into, out = numerics.widen(element), numerics.narrow(element)

    def disturbed(x: Value) -> Value:
        wide = into(np.asarray(x))
        errors = source.random(wide.shape, np.float32) * np.float32(2) - np.float32(1)
        return np.asarray(out(np.asarray(wide * (1 + step * errors.astype(wide.dtype))).astype(wide.dtype)))

    return disturbed


def _complex(x: Value, step: float, source: np.random.Generator) -> Array:
    array = np.asarray(x)
    return np.asarray(array * (1 + step * source.uniform(-1, 1, array.shape))).astype(array.dtype)
