"""At which grid steps the value of a statement gets anywhere: a select whose predicate is known at each step leaves it
out at the others, whatever arithmetic lies between.

The walk of a kernel keeps a ``Frame`` of every function that it went through; ``loads_needed`` goes through one
backwards, from its results and effects to its loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from hloscope.core.pallas.jaxpr import Array, Jaxpr
from hloscope.core.pallas.taint import PURE_ELEMENTWISE, REDUCTIONS, SCANS

COMPUTES = (
    PURE_ELEMENTWISE
    | REDUCTIONS
    | SCANS
    | frozenset(
        "broadcast_in_dim reshape squeeze expand_dims transpose rev slice pad concatenate dot_general "
        "bitcast_convert_type split".split()
    )
)
"""Primitives whose operands matter only as far as their results do."""

Demand: TypeAlias = tuple[Array, Array]
"""(rows,) booleans, or one for all rows: where a value surely gets somewhere, and where it may: data decides between
them."""

_TRUE, _FALSE = np.ones((), bool), np.zeros((), bool)
ALWAYS: Demand = (_TRUE, _TRUE)
NEVER: Demand = (_FALSE, _FALSE)


@dataclass(slots=True, eq=False)
class Frame:
    """One function of a kernel as the walk went through it."""

    jaxpr: Jaxpr
    predicates: dict[int, Array] = field(default_factory=dict[int, Array])
    """Equation that is a select or a branch -> the number of the case that it takes, one a row or one for all; known
    ones only."""
    loads: dict[int, int] = field(default_factory=dict[int, int])
    """Equation that is a load -> number of its access."""
    called: dict[int, Frame] = field(default_factory=dict[int, "Frame"])
    """Equation that only calls a function -> that function's."""
    branches: dict[int, list[Frame]] = field(default_factory=dict[int, "list[Frame]"])
    """Equation that is a branch -> those of its cases."""


def loads_needed(frame: Frame) -> dict[int, Demand]:
    """Access -> where what it loads matters. The function's own results matter everywhere."""
    found: dict[int, Demand] = {}
    _backward(frame, [ALWAYS] * len(frame.jaxpr.outputs), found)
    return found


def _backward(frame: Frame, results: list[Demand], found: dict[int, Demand], unused: Demand = ALWAYS) -> list[Demand]:
    """What is wanted of a function's inputs, given what is wanted of its results; of one that it ignores `unused`."""
    jaxpr = frame.jaxpr
    wanted: dict[int, Demand] = {}

    def want(atom: object, demand: Demand) -> None:
        if isinstance(atom, int):
            wanted[atom] = _either(wanted.get(atom, NEVER), demand)

    for atom, demand in zip(jaxpr.outputs, results, strict=True):
        want(atom, demand)
    for number in range(len(jaxpr.equations) - 1, -1, -1):
        equation = jaxpr.equations[number]
        # What nobody uses counts as used: a load is a fault by itself where no select stands for leaving it out.
        outs = [_of(wanted, one) for one in equation.outputs]
        total = NEVER
        for one in outs:
            total = _either(total, one)
        if number in frame.loads:
            found[frame.loads[number]] = total
        if number in frame.called:
            inner = _backward(frame.called[number], outs, found)
            for atom, demand in zip(equation.inputs, inner, strict=True):
                want(atom, demand)
        elif equation.primitive == "select_n":
            want(equation.inputs[0], total)
            which = frame.predicates.get(number)
            for case, atom in enumerate(equation.inputs[1:]):
                want(atom, _taken(total, which, case))
        elif number in frame.branches:
            want(equation.inputs[0], ALWAYS)  # a case may do more than give a result
            which = frame.predicates.get(number)
            inputs = [NEVER] * (len(equation.inputs) - 1)
            for case, branch in enumerate(frame.branches[number]):
                inner = _backward(branch, outs, {}, NEVER)
                inputs = [_either(a, _taken(b, which, case)) for a, b in zip(inputs, inner, strict=True)]
            for atom, demand in zip(equation.inputs[1:], inputs, strict=True):
                want(atom, demand)
        else:
            for atom in equation.inputs:
                want(atom, total if equation.primitive in COMPUTES else ALWAYS)
    return [_of(wanted, one, unused) for one in jaxpr.inputs]


def _taken(demand: Demand, which: Array | None, case: int) -> Demand:
    """What is wanted of one case, of which data decides whether it is taken where `which` is None."""
    if which is None:
        return _FALSE, demand[1]
    taken = np.asarray(which == case)
    return demand[0] & taken, demand[1] & taken


def _of(wanted: Mapping[int, Demand], variable: int | None, unused: Demand = ALWAYS) -> Demand:
    return ALWAYS if variable is None else wanted.get(variable, unused)


def _either(a: Demand, b: Demand) -> Demand:
    return a[0] | b[0], a[1] | b[1]
