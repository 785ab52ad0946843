"""Recognising reduction computations: most are one commutative operation, for which numpy has a whole-array form.

Everything else goes the general way (`folding`), which gives the same numbers and takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hloscope.core.hlo.element_types import lookup
from hloscope.core.runtime.evaluator import elementwise, numerics
from hloscope.core.runtime.evaluator.values import Array

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.element_types import ElementType
    from hloscope.core.hlo.instruction import HloInstruction

Combine: TypeAlias = Callable[[Array, Array], Array]

_OPCODES = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})
_PRED: Mapping[str, str] = MappingProxyType({"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"})


@dataclass(frozen=True)
class Monoid:
    """A commutative, associative operation on one element type, with its identity."""

    opcode: str
    """The operation; for preds always ``and``, ``or`` or ``xor``."""
    element: ElementType

    @property
    def accumulator(self) -> np.dtype[np.generic]:
        """The numpy type of partial results: wide for sums of floats, the carrier otherwise."""
        if self.opcode == "add" and self.element.kind == "float":
            return np.dtype(np.float64)
        if self.opcode == "add" and self.element.kind == "complex":
            return np.dtype(np.complex128)
        return numerics.carrier(self.element)

    @property
    def identity(self) -> Array:
        """The value that changes nothing, in the accumulator's type."""
        element, kind = self.element, self.accumulator.type
        if self.opcode == "maximum":
            return numerics.lowest(element)
        if self.opcode == "minimum":
            return numerics.highest(element)
        if self.opcode == "and":
            return np.asarray(True) if element.kind == "pred" else np.asarray(np.invert(np.zeros((), self.accumulator)))
        if self.opcode == "multiply":
            return np.asarray(kind(1))
        if self.opcode == "add" and element.kind == "float":
            return np.asarray(-0.0, self.accumulator)  # +0 would turn a sum of -0 into +0
        return np.asarray(kind(0))

    def enter(self, x: Array) -> Array:
        """Elements as partial results."""
        return numerics.widen(self.element)(x).astype(self.accumulator, copy=False)

    def leave(self, x: Array) -> Array:
        """Partial results as elements, rounded once."""
        return numerics.narrow(self.element)(np.asarray(x).astype(numerics.carrier(self.element), copy=False))

    def combine(self, x: Array, y: Array) -> Array:
        """The operation on partial results."""
        return _COMBINE[self.opcode, self.element.kind == "pred"](x, y)

    def reduce(self, x: Array, axes: tuple[int, ...]) -> Array:
        """Partial results folded over `axes`; the identity where there is nothing to fold."""
        if not axes:
            return x
        function = _UFUNC[self.opcode, self.element.kind == "pred"]
        out = function.reduce(x, axis=axes, dtype=self.accumulator, initial=self.identity[()])
        if self.element.kind == "float" and self.opcode in ("maximum", "minimum"):
            return self._signed_zero(np.asarray(out), x, axes)
        return np.asarray(out)

    def _signed_zero(self, out: Array, x: Array, axes: tuple[int, ...]) -> Array:
        """numpy's min and max give whichever zero comes first; XLA's max has +0 above -0."""
        zero = out == 0
        if not zero.any():
            return out
        positive = self.opcode == "maximum"
        wanted = (x == 0) & (np.signbit(x) != positive)
        found = wanted.any(axis=axes)
        kind = out.dtype.type
        return np.where(zero & found, kind(0.0) if positive else kind(-0.0), out)


_UFUNC: Mapping[tuple[str, bool], np.ufunc] = MappingProxyType(
    {
        ("add", False): np.add,
        ("multiply", False): np.multiply,
        ("maximum", False): np.maximum,
        ("minimum", False): np.minimum,
        ("and", False): np.bitwise_and,
        ("or", False): np.bitwise_or,
        ("xor", False): np.bitwise_xor,
        ("and", True): np.logical_and,
        ("or", True): np.logical_or,
        ("xor", True): np.logical_xor,
    }
)

_COMBINE: Mapping[tuple[str, bool], Combine] = MappingProxyType(
    {**_UFUNC, ("maximum", False): elementwise.maximum, ("minimum", False): elementwise.minimum}
)


def match(computation: HloComputation) -> Monoid | None:
    """The monoid that a computation of two scalars is, or None."""
    root = computation.root
    if root.opcode not in _OPCODES or root.operand_count != 2 or len(computation.parameters) != 2:
        return None
    element = root.shape.type
    if not root.shape.is_scalar or any(not _is_parameter(o, element) for o in root.operands):
        return None
    if root.operand(0) is root.operand(1) or element.kind == "unknown":
        return None
    if element.kind == "pred":
        return Monoid(_PRED.get(root.opcode, root.opcode), element)
    if element.kind in ("float", "complex") and root.opcode in ("and", "or", "xor"):
        return None
    if element.kind == "complex" and root.opcode in ("maximum", "minimum"):
        return None
    return Monoid(root.opcode, element)


def _is_parameter(node: HloInstruction, element: ElementType) -> bool:
    return node.opcode == "parameter" and node.shape.is_scalar and lookup(node.shape.element_type) == element


def returns_update(computation: HloComputation) -> bool:
    """Whether a computation of (old, new) is just its second parameter."""
    root = computation.root
    return root.opcode == "parameter" and root.parameter_number == 1 and len(computation.parameters) == 2
