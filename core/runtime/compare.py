"""Comparing results of two evaluations: where they differ and by how much, and whether a compiler may do that.

Compilers reassociate sums, contract multiply-adds and flush subnormals, so bits differ where nothing is wrong. The
bound for an element grows with the precision of the narrowest float in the program and with the number of terms of its
longest sum; it is relative to the element or, because cancellation makes small elements out of large ones, to the root
mean square of its array, whichever is larger. NaNs must stand in the same places; their bits do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.element_types import from_dtype, lookup
from hloscope.core.runtime.evaluator.numerics import total_order_key
from hloscope.core.runtime.evaluator.values import Array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.hlo.element_types import ElementType
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule


@dataclass(frozen=True, slots=True)
class Rules:
    """What a program's results may differ by."""

    terms: int = 1
    """Terms of the longest sum: contracted sizes, reduced sizes, window sizes."""
    narrowest: str = "f64"
    """The narrowest float type that values pass through; never wider than the array compared."""
    integer_slack: int = 0
    """Steps that an integer may be off, where floats are rounded to integers."""
    factor: float = 1.0
    """Multiplies the bound."""

    def relative(self, element: ElementType) -> float:
        """The bound for elements of a float (or complex) type, relative to their size."""
        own = _epsilon(element)
        narrow = max(own, _epsilon(lookup(self.narrowest)))
        # Sums are carried in f32 at least: their length costs f32's precision, not a narrower type's.
        summing = min(narrow, _epsilon(lookup("f32"))) if own > 1e-10 else own
        return self.factor * (8 * narrow + 2 * summing * sqrt(self.terms))


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two arrays differ."""

    within: bool
    """Whether every element is inside its bound and NaNs stand in the same places."""
    same_bits: bool
    """Whether both hold the same bits."""
    elements: int
    outside: int
    """Elements outside their bound, those with a NaN on one side only included."""
    nan_mismatches: int
    """Elements that are NaN on one side only."""
    max_abs: float
    """Largest absolute difference; infinite where one side is and the other is not."""
    max_ulp: int
    """Largest difference counted in values of the type between the two (in steps, for integers)."""
    worst_index: tuple[int, ...] | None
    """Where the difference is largest against its bound; None where there is none."""
    expected: str = ""
    """The element there, on the one side."""
    actual: str = ""
    """And on the other."""
    bound: float = 0.0
    """What its difference could have been."""
    mismatch: str = ""
    """Why nothing was compared: other shapes or types; empty where it was."""

    def __str__(self) -> str:
        if self.mismatch:
            return self.mismatch
        if self.same_bits:
            return f"same bits, {self.elements} elements"
        where = (
            "" if self.worst_index is None else f" at {list(self.worst_index)}: {self.expected} against {self.actual}"
        )
        verdict = "within bounds" if self.within else f"{self.outside} of {self.elements} elements out of bounds"
        nans = f", {self.nan_mismatches} NaN on one side only" if self.nan_mismatches else ""
        return f"{verdict}, at most {self.max_abs:g} ({self.max_ulp} ulp){where}{nans}"


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How far rounding errors moved one result."""

    moved: Array
    """Largest move of each element, in f64; infinite where it became or ceased to be finite. Parts of a complex number
    stand in a last dimension of their own."""
    outliers: int
    """Elements that moved much farther than the others: comparisons and roundings that fell the other way."""

    @staticmethod
    def of(result: Array, disturbed: Sequence[Array]) -> Sensitivity:
        """From a result and the same result of runs with rounding errors."""
        first = _wide(result)
        moved = np.zeros(first.shape)
        with np.errstate(all="ignore"):
            for other in disturbed:
                second = _wide(other)
                one_sided = np.isnan(first) != np.isnan(second)
                far = np.where(np.isnan(first) | (first == second), 0.0, np.abs(first - second))
                moved = np.maximum(moved, np.where(one_sided | np.isnan(far), np.inf, far))
        usual = _usual(moved)
        return Sensitivity(moved, int(np.count_nonzero(moved > 8 * usual)))

    def joined(self, other: Sensitivity) -> Sensitivity:
        """The larger move of two programs, element by element. Raises ValueError where their results differ in form."""
        return Sensitivity(np.maximum(self.moved, other.moved), max(self.outliers, other.outliers))

    def widened(self, bound: Array) -> Array:
        """A bound, where rounding moves an element farther than that."""
        return np.maximum(bound, np.maximum(4 * self.moved, 8 * _usual(self.moved)))

    @property
    def farthest(self) -> float:
        """The largest move of any element."""
        return float(self.moved.max(initial=0.0))


def _wide(x: Array) -> Array:
    """In f64, the parts of complex numbers as a last dimension."""
    if x.dtype.kind == "c":
        half = np.dtype(np.float32 if x.dtype.itemsize == 8 else np.float64)
        x = np.ascontiguousarray(x).reshape(x.shape + (1,)).view(half)
    return x.astype(np.float64)


def _usual(moved: Array) -> float:
    """The size of a usual move: nineteen in twenty are no larger. A few that fell the other way do not count."""
    finite = moved[np.isfinite(moved)]
    return float(np.quantile(finite, 0.95)) if finite.size else 0.0


def compare(
    expected: Array, actual: Array, rules: Rules | None = None, sensitivity: Sensitivity | None = None
) -> Comparison:
    """Compare two arrays element by element; `sensitivity` widens bounds to what rounding errors were seen to do."""
    rules = rules or Rules()
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        sides = [f"{a.dtype.name}{list(a.shape)}" for a in (expected, actual)]
        return Comparison(
            False, False, expected.size, expected.size, 0, float("inf"), 0, None, mismatch=" is not ".join(sides)
        )
    if np.ascontiguousarray(expected).tobytes() == np.ascontiguousarray(actual).tobytes():
        return Comparison(True, True, expected.size, 0, 0, 0.0, 0, None)
    element = from_dtype(expected.dtype)
    if element.kind in ("float", "complex"):
        return _compare_floats(expected, actual, element, rules, sensitivity)
    return _compare_integers(expected, actual, element, rules, sensitivity)


def compare_all(expected: Sequence[Array], actual: Sequence[Array], rules: Rules | None = None) -> list[Comparison]:
    """Compare results leaf by leaf. Raises ValueError where their numbers differ."""
    return [compare(a, b, rules) for a, b in zip(expected, actual, strict=True)]


def _compare_integers(
    expected: Array, actual: Array, element: ElementType, rules: Rules, sensitivity: Sensitivity | None
) -> Comparison:
    slack = rules.integer_slack if element.kind != "pred" else 0
    wide = np.dtype(np.int64) if element.name != "u64" else np.dtype(np.uint64)
    a, b = expected.astype(wide), actual.astype(wide)
    distance = np.where(a > b, a - b, b - a).astype(np.uint64)  # wraps to the right number even for far ends of s64
    worst = np.unravel_index(int(np.argmax(distance)), distance.shape)
    bad = distance > slack
    if sensitivity is not None:
        bad &= distance > sensitivity.widened(np.zeros(distance.shape))
        bad &= not _excused(bad, distance, sensitivity)
    outside = int(np.count_nonzero(bad))
    largest = int(distance[worst])
    return Comparison(
        within=outside == 0,
        same_bits=largest == 0,
        elements=expected.size,
        outside=outside,
        nan_mismatches=0,
        max_abs=float(largest),
        max_ulp=largest,
        worst_index=tuple(int(i) for i in worst),
        expected=str(expected[worst]),
        actual=str(actual[worst]),
        bound=float(slack),
    )


def _excused(bad: Array, distance: Array, sensitivity: Sensitivity) -> bool:
    """Whether so few are off, and so little, that rounding errors were seen to do as much elsewhere in the array."""
    count = int(np.count_nonzero(bad))
    return count <= 4 * sensitivity.outliers and float(distance[bad].max(initial=0)) <= 4 * sensitivity.farthest


def _compare_floats(
    expected: Array, actual: Array, element: ElementType, rules: Rules, sensitivity: Sensitivity | None
) -> Comparison:
    # The parts of a complex number are compared on their own.
    if element.kind == "complex":
        half = np.dtype(np.float32 if element.bits == 64 else np.float64)
        expected, actual = (np.ascontiguousarray(x).reshape(x.shape + (1,)).view(half) for x in (expected, actual))
        element = from_dtype(half)
    with np.errstate(all="ignore"):
        a, b = _flushed(expected, element), _flushed(actual, element)
        nan_a, nan_b = np.isnan(a), np.isnan(b)
        one_sided = nan_a != nan_b
        skip = nan_a | nan_b | (a == b)
        distance = np.where(skip, 0.0, np.abs(a - b))
        finite = a[np.isfinite(a)]
        scale = sqrt(float(np.mean(np.square(finite)))) if finite.size else 0.0
        size = np.where(np.isfinite(a), np.maximum(np.abs(a), scale), scale)
        bound = rules.relative(element) * size + float(_smallest(element))
        if sensitivity is not None:
            bound = sensitivity.widened(bound)
        bad = (distance > bound) | (one_sided & ~np.isinf(bound))
        if sensitivity is not None and _excused(bad, np.where(one_sided, np.inf, distance), sensitivity):
            bad = np.zeros_like(bad)
        excess = np.where(one_sided, np.inf, distance / bound)
        excess = np.where(np.isnan(excess), np.inf, excess)
    worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
    where = tuple(int(i) for i in worst)
    outside = int(np.count_nonzero(bad))
    return Comparison(
        within=outside == 0,
        same_bits=False,
        elements=expected.size,
        outside=outside,
        nan_mismatches=int(np.count_nonzero(one_sided)),
        max_abs=float(distance.max()),
        max_ulp=_max_ulp(expected, actual, nan_a | nan_b, element),
        worst_index=where,
        expected=str(expected[worst]),
        actual=str(actual[worst]),
        bound=float(bound[worst]),
    )


def _flushed(x: Array, element: ElementType) -> Array:
    wide = x.astype(np.float64)
    return np.where(np.abs(wide) < _smallest(element), 0.0, wide)


def _smallest(element: ElementType) -> float:
    """Below this, results count as zero: XLA:CPU flushes subnormals, and no compiler keeps them apart from zero."""
    return float(np.finfo(np.float64).tiny) if element.name == "f64" else float(np.finfo(np.float32).tiny)


def _max_ulp(expected: Array, actual: Array, skip: Array, element: ElementType) -> int:
    """Values of the type between the two, at most; both zeros are one value."""
    keys: list[Array] = []
    for side in (expected, actual):
        key = total_order_key(side, element).astype(np.int64)
        keys.append(np.where(key < 0, key + 1, key))
    a, b = keys
    distance = np.where(a > b, a - b, b - a).astype(np.uint64)
    return int(np.where(skip, np.uint64(0), distance).max())


def _epsilon(element: ElementType) -> float:
    """Spacing of the type just above 1."""
    if element.kind == "complex":
        element = lookup("f32" if element.bits == 64 else "f64")
    if element.kind != "float":
        return 0.0
    if element.name in ("f16", "f32", "f64"):
        return float(np.finfo(element.dtype).eps)
    import ml_dtypes

    return float(ml_dtypes.finfo(element.dtype).eps)


# ---------------------------------------------------------------- what a module's results may differ by
def rules_for(module: HloModule, factor: float = 1.0) -> Rules:
    """The rules that follow from a module: its longest sum, its narrowest float, whether it rounds to integers."""
    terms, slack = 1, 0
    narrowest = lookup("f64")
    for node in module.instructions():
        if node.shape.is_array and node.shape.type.kind == "float":
            if _epsilon(node.shape.type) > _epsilon(narrowest):
                narrowest = node.shape.type
        terms = max(terms, _terms(node))
        if node.opcode == "convert" and node.shape.type.is_integral and node.operand(0).shape.type.kind == "float":
            slack = 1
    return Rules(terms, narrowest.name, slack, factor)


def join_rules(a: Rules, b: Rules) -> Rules:
    """The rules for results of two programs that compute the same thing: the laxer of each."""
    narrowest = max(a.narrowest, b.narrowest, key=lambda name: _epsilon(lookup(name)))
    return Rules(max(a.terms, b.terms), narrowest, max(a.integer_slack, b.integer_slack), max(a.factor, b.factor))


def _terms(node: HloInstruction) -> int:
    """Terms that one element of the result is summed from."""
    if node.opcode == "dot":
        sizes = node.operand(0).shape.dimensions
        return prod(sizes[d] for d in node.attr("lhs_contracting_dims") or ())
    if node.opcode == "reduce":
        sizes = node.operand(0).shape.dimensions
        return prod(sizes[d] for d in node.dimensions)
    if node.opcode in ("reduce-window", "convolution", "select-and-scatter"):
        window = node.attr("window")
        size = prod(d.size for d in window.dimensions) if window is not None else 1
        labels = node.attr("dim_labels")
        return size * (node.operand(1).shape.dimensions[labels.kernel_input_feature] if labels is not None else 1)
    if node.opcode == "fft":
        return prod(node.attr("fft_length") or ())
    if node.opcode in ("cholesky", "triangular-solve"):
        return node.operand(0).shape.dimensions[-1]
    return 1
