"""Index maps over a whole grid: affine ones in closed form, the others by evaluating every step at once.

An index map is a small traced function of the grid indices (and of prefetched scalars). ``affine`` finds for each
result ``c0 + c1·i + c2·j …`` where that is what it computes, and then its range over any grid is exact without a walk.
``evaluate`` runs the traced function once on arrays that hold a value for every grid step; what cannot be computed that
way is ``UnsupportedError``, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.interpret.primitives import compute
from hloscope.core.pallas.jaxpr import Array, Atom, Equation, Indexer, Jaxpr, Literal, Slot, dtype_of

MOST_STEPS = 4_000_000
"""Largest grid that is walked step by step."""

INLINED = frozenset("jit pjit closed_call core_call custom_jvp_call custom_vjp_call remat remat2 checkpoint".split())
"""Primitives that only call a function."""
ELEMENTWISE = frozenset(
    "neg sin cos tan exp exp2 log sqrt rsqrt abs sign floor ceil round square integer_pow not population_count clz "
    "add sub mul div rem max min pow and or xor shift_left shift_right_logical shift_right_arithmetic eq ne lt le gt "
    "ge select_n clamp convert_element_type multiple_of stop_gradient copy is_finite logistic tanh".split()
)
"""Primitives of scalars that compute every step of an array at once."""
RESHAPES = frozenset({"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "broadcast_to"})


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant + Σ coefficients[d] · index[d]`` over the grid's indices."""

    constant: int
    coefficients: tuple[int, ...]

    def range(self, grid: Sequence[int]) -> tuple[int, int]:
        """Least and greatest value over a grid without empty dimensions."""
        low = high = self.constant
        for coefficient, bound in zip(self.coefficients, grid, strict=True):
            reach = coefficient * (bound - 1)
            low, high = low + min(0, reach), high + max(0, reach)
        return low, high

    def at(self, point: Sequence[int]) -> int:
        """Its value at a grid point."""
        return self.constant + sum(c * i for c, i in zip(self.coefficients, point, strict=True))

    def corner(self, grid: Sequence[int], greatest: bool) -> tuple[int, ...]:
        """A grid point where it is greatest, or least."""
        return tuple(
            bound - 1 if (c > 0) == greatest and c != 0 else 0 for c, bound in zip(self.coefficients, grid, strict=True)
        )

    @property
    def is_constant(self) -> bool:
        """Whether no grid index moves it."""
        return not any(self.coefficients)

    def __add__(self, other: Affine) -> Affine:
        pairs = zip(self.coefficients, other.coefficients, strict=True)
        return Affine(self.constant + other.constant, tuple(a + b for a, b in pairs))

    def scaled(self, factor: int) -> Affine:
        """The product with a number."""
        return Affine(self.constant * factor, tuple(c * factor for c in self.coefficients))

    def __str__(self) -> str:
        terms = [f"{c}*i{d}" if c != 1 else f"i{d}" for d, c in enumerate(self.coefficients) if c]
        if self.constant or not terms:
            terms.append(str(self.constant))
        return " + ".join(terms)


def affine(jaxpr: Jaxpr, rank: int, inputs: Sequence[Affine | None] | None = None) -> tuple[Affine | None, ...]:
    """What each result is as a function of ``rank`` grid indices; None where it is not affine.

    ``inputs`` are the operands; by default the first ``rank`` are the grid indices and the others unknown.
    """
    known: dict[int, Affine | None] = {}
    if inputs is None:
        given = [unit(d, rank) if d < rank else None for d in range(len(jaxpr.inputs))]
    else:
        given = list(inputs)
    known.update(zip(jaxpr.inputs, given, strict=True))
    for variable, value in zip(jaxpr.consts, jaxpr.const_values, strict=False):
        known[variable] = _number(value, rank)
    for equation in jaxpr.equations:
        operands = [_affine_atom(atom, known, rank) for atom in equation.inputs]
        for variable, value in zip(equation.outputs, affine_results(equation, operands, rank), strict=True):
            if variable is not None:
                known[variable] = value
    return tuple(_affine_atom(atom, known, rank) for atom in jaxpr.outputs)


def unit(dimension: int, rank: int) -> Affine:
    """The grid index of one dimension."""
    return Affine(0, tuple(int(d == dimension) for d in range(rank)))


def constant(value: int, rank: int) -> Affine:
    """A number."""
    return Affine(value, (0,) * rank)


def _number(value: Array | None, rank: int) -> Affine | None:
    if value is None or value.ndim or value.dtype.kind not in "iub":
        return None
    return constant(int(value), rank)


def _affine_atom(atom: Atom, known: Mapping[int, Affine | None], rank: int) -> Affine | None:
    return _number(atom.value, rank) if isinstance(atom, Literal) else known.get(atom)


def affine_results(equation: Equation, operands: Sequence[Affine | None], rank: int) -> Sequence[Affine | None]:
    """What an equation's results are where its operands are affine."""
    unknown: list[Affine | None] = [None] * len(equation.outputs)
    if equation.primitive in INLINED:
        inner = _called(equation)
        return unknown if inner is None or len(inner.inputs) != len(operands) else affine(inner, rank, operands)
    if any(aval.shape for aval in equation.out_avals):
        return unknown
    if equation.primitive in ("convert_element_type", "multiple_of", "copy", "stop_gradient") or (
        equation.primitive in RESHAPES
    ):
        kind = equation.out_avals[0].dtype
        return [operands[0]] if kind.startswith(("int", "uint")) else unknown
    value = _affine_arithmetic(equation.primitive, operands)
    return [value] if value is not None else unknown


def _affine_arithmetic(primitive: str, operands: Sequence[Affine | None]) -> Affine | None:
    if any(one is None for one in operands):
        return None
    values = cast("Sequence[Affine]", operands)
    if primitive == "neg":
        return values[0].scaled(-1)
    if len(values) != 2:
        return None
    a, b = values
    if primitive == "add":
        return a + b
    if primitive == "sub":
        return a + b.scaled(-1)
    if primitive == "mul" and a.is_constant:
        return b.scaled(a.constant)
    if primitive == "mul" and b.is_constant:
        return a.scaled(b.constant)
    if a.is_constant and b.is_constant:
        if primitive in ("max", "min"):
            return Affine((max if primitive == "max" else min)(a.constant, b.constant), a.coefficients)
        if primitive in ("div", "rem") and b.constant:
            quotient = int(math.copysign(1, a.constant) * math.copysign(1, b.constant)) * (
                abs(a.constant) // abs(b.constant)
            )
            return Affine(quotient if primitive == "div" else a.constant - b.constant * quotient, a.coefficients)
    return None


def _called(equation: Equation) -> Jaxpr | None:
    for name in ("jaxpr", "call_jaxpr"):
        inner = equation.params.get(name)
        if isinstance(inner, Jaxpr):
            return inner
    return None


# -- every step at once


def grid_points(grid: Sequence[int]) -> Array:
    """All grid points in the interpreter's order, last axis fastest: an array of (steps, dimensions).

    An empty grid has one step, one with a bound of 0 or less none.
    Raises ``UnsupportedError`` for a grid with more than ``MOST_STEPS`` steps.
    """
    grid = [max(bound, 0) for bound in grid]
    steps = math.prod(grid)
    if steps > MOST_STEPS:
        raise UnsupportedError(f"a grid of {steps:,} steps is not walked (the limit is {MOST_STEPS:,})")
    if not grid:
        return np.zeros((1, 0), np.int32)
    return np.indices(grid, np.int32).reshape(len(grid), -1).T


def evaluate(jaxpr: Jaxpr, points: Array, prefetch: Sequence[Array | None] = ()) -> list[Array]:
    """An index map's results at every grid point: arrays of one value a step.

    ``prefetch`` holds the scalar prefetch operands, None for one whose value is not known. Raises ``UnsupportedError``
    where the map needs such a value or computes what is not supported for all steps at once.
    """
    steps = points.shape[0]
    values: list[Any] = [np.ascontiguousarray(points[:, d]) for d in range(points.shape[1])]
    values.extend(_Prefetch(number, value) for number, value in enumerate(prefetch))
    missing = len(jaxpr.inputs) - len(values)
    values.extend(_Prefetch(len(prefetch) + number, None) for number in range(missing))
    results = _run(jaxpr, values)
    return [np.broadcast_to(np.asarray(one), (steps,)) for one in results]


@dataclass(frozen=True, slots=True, eq=False)
class _Prefetch:
    """A scalar prefetch operand."""

    number: int
    value: Array | None


def _run(jaxpr: Jaxpr, values: Sequence[Any]) -> list[Any]:
    known: dict[int, Any] = dict(zip(jaxpr.inputs, values, strict=True))
    for variable, value in zip(jaxpr.consts, jaxpr.const_values, strict=False):
        known[variable] = value
    for equation in jaxpr.equations:
        operands = [atom.value if isinstance(atom, Literal) else known[atom] for atom in equation.inputs]
        results = _step(equation, operands)
        for variable, value in zip(equation.outputs, results, strict=True):
            if variable is not None:
                known[variable] = value
    return [atom.value if isinstance(atom, Literal) else known[atom] for atom in jaxpr.outputs]


def _step(equation: Equation, operands: Sequence[Any]) -> Sequence[Any]:
    name = equation.primitive
    if name == "get":
        return [_get(equation, operands)]
    if name in INLINED:
        inner = _called(equation)
        if inner is not None:
            return _run(inner, operands)
    if any(isinstance(one, _Prefetch) for one in operands):
        raise UnsupportedError(f"an index map that passes a prefetched reference to {name} is not evaluated")
    if name in RESHAPES and not equation.out_avals[0].shape:
        return [operands[0]]
    if name == "cond":
        return _cond(equation, operands)
    if name in ELEMENTWISE and not equation.out_avals[0].shape:
        return compute(name, equation.params, operands, [dtype_of(aval.dtype) for aval in equation.out_avals])
    raise UnsupportedError(f"an index map with the primitive {name} is not evaluated over the grid")


def _cond(equation: Equation, operands: Sequence[Any]) -> Sequence[Any]:
    branches = cast("Sequence[Jaxpr]", equation.params["branches"])
    which = np.clip(np.asarray(operands[0]).astype(np.int64), 0, len(branches) - 1)
    each = [_run(branch, operands[1:]) for branch in branches]
    return [np.choose(which, [np.asarray(results[k]) for results in each]) for k in range(len(equation.outputs))]


def _get(equation: Equation, operands: Sequence[Any]) -> Any:
    source = operands[0]
    if not isinstance(source, _Prefetch):
        raise UnsupportedError("an index map that reads a reference of its own is not evaluated")
    if source.value is None:
        raise UnsupportedError(
            f"the index map reads scalar prefetch operand {source.number}, whose value is not known without running"
        )
    transforms = cast("Sequence[object]", equation.params["tree"])
    if not transforms:
        if source.value.ndim:
            raise UnsupportedError("an index map that reads a whole prefetched array is not evaluated over the grid")
        return source.value
    if len(transforms) != 1 or not isinstance(transforms[0], Indexer):
        raise UnsupportedError("an index map that reinterprets a prefetched reference is not evaluated")
    where: list[Any] = []
    for entry, extent in zip(transforms[0].indices, source.value.shape, strict=True):
        value = operands[1 + entry.index] if isinstance(entry, Slot) else entry
        if not isinstance(value, int | np.ndarray | np.generic):
            raise UnsupportedError("an index map that reads a slice of a prefetched array is not evaluated")
        wrapped = np.where(np.asarray(value) < 0, np.asarray(value) + extent, value)
        where.append(np.clip(wrapped, 0, extent - 1))
    return source.value[tuple(where)]
