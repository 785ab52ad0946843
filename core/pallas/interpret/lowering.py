"""What lowering may choose in the arithmetic of a kernel, each choice numbered like those that hardware leaves open.

A dot of f32 operands whose precision is left to the backend may round them first: to bf16 for the matrix unit of a
TPU (jax's default precision there), to TF32 for that of an NVIDIA GPU (Triton's ``input_precision``). Option 0 is the
full precision of the reference. Sources: ``jax-ml/jax:jax/_src/lax/lax.py#Precision``,
``jax/_src/pallas/triton/lowering.py#_dot_general_lowering``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from hloscope.core.pallas.interpret.order import Choices
from hloscope.core.pallas.jaxpr import Array, Equation

Rule = Callable[..., Any]
_TF32_DROPPED = 13
"""Mantissa bits of an f32 that TF32 lacks."""


def _to_bf16(value: Array) -> Array:
    return value.astype(ml_dtypes.bfloat16).astype(np.float32)


def _to_tf32(value: Array) -> Array:
    bits = np.ascontiguousarray(value).view(np.uint32).astype(np.uint64)
    half = np.uint64(1 << (_TF32_DROPPED - 1)) - np.uint64(1) + ((bits >> np.uint64(_TF32_DROPPED)) & np.uint64(1))
    rounded = ((bits + half) >> np.uint64(_TF32_DROPPED) << np.uint64(_TF32_DROPPED)).astype(np.uint32)
    return np.where(np.isfinite(value), rounded.view(np.float32), value)


ROUNDINGS: dict[str, tuple[str, Callable[[Array], Array], float]] = {
    "tpu": ("bf16", _to_bf16, 2.0**-8),
    "triton": ("TF32", _to_tf32, 2.0**-11),
}
"""Backend -> what a dot of default precision may round its f32 operands to, how, and the relative error of one."""


def is_default(precision: Any) -> bool:
    """Whether a dot's precision is left to the backend."""
    if precision is None:
        return True
    if isinstance(precision, list | tuple):
        return all(map(is_default, precision))
    return str(getattr(precision, "name", precision)).rpartition(".")[2].upper() == "DEFAULT"


class Lowering:
    """Decides, each time that a kernel computes such a dot, whether its operands are rounded."""

    def __init__(self, backend: str, choices: Choices) -> None:
        self.choices = choices
        self._kind, self._round, _ = ROUNDINGS[backend]

    def rule(self, equation: Equation, rule: Rule) -> Rule:
        """The rule of an equation with its choice in front."""
        if equation.primitive != "dot_general" or not is_default(equation.params.get("precision")):
            return rule
        label = f"whether the f32 operands of the dot are rounded to {self._kind}, as default precision permits"

        def rounded(params: Any, x: Any, y: Any) -> Any:
            if "float32" not in (np.asarray(x).dtype.name, np.asarray(y).dtype.name):
                return rule(params, x, y)
            if self.choices.choose(2, label, equation.place) == 0:
                return rule(params, x, y)
            return rule(params, *(self._round(np.asarray(one, np.float32)) for one in (x, y)))

        return rounded
