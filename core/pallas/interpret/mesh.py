"""Evaluates a traced program whose kernels go to a runner, and ``shard_map`` with one value for every device.

Inside a ``shard_map`` every equation is computed once a device; a kernel there runs on all devices together, because
they may copy to each other. Collectives outside of kernels are not modelled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.call import PallasCall
from hloscope.core.pallas.index_map import INLINED
from hloscope.core.pallas.interpret.machine import Machine, Run
from hloscope.core.pallas.jaxpr import Array, Equation, Jaxpr, Literal

Axes: TypeAlias = Sequence[tuple[str, int]]
CallRunner: TypeAlias = Callable[[PallasCall, Sequence[Sequence[Any]], Axes, frozenset[int]], list[list[Array]]]
"""Runs one call on the operands of every device, told which outputs are dropped; gives the outputs of every device."""


class MeshMachine(Machine):
    """Evaluates whole programs."""

    def __init__(self, calls: Sequence[PallasCall], runner: CallRunner) -> None:
        super().__init__()
        self.calls, self.runner = calls, runner

    def do_pallas_call(self, equation: Equation, operands: Sequence[Any]) -> Run:
        return self.runner(self.calls[equation.params["call"]], [operands], (), _unused(equation))[0]
        yield

    def effect(self, equation: Equation, operands: Sequence[Any]) -> Run:
        if equation.primitive == "shard_map":
            return self._shard_map(equation, operands)
        return (yield from super().effect(equation, operands))

    def _shard_map(self, equation: Equation, operands: Sequence[Any]) -> list[Any]:
        params = equation.params
        axes = params["mesh"]
        if not isinstance(axes, tuple) or not all(isinstance(one, tuple) for one in cast("tuple[object, ...]", axes)):
            raise UnsupportedError("shard_map over a mesh that is not described is not supported")
        names = cast("Sequence[tuple[str, int]]", axes)
        places = list(itertools.product(*(range(size) for _, size in names)))
        each = [
            [_shard(value, spec, names, place) for value, spec in zip(operands, params["in_specs"], strict=True)]
            for place in places
        ]
        inner = cast("Jaxpr", params["jaxpr"])
        results = self._devices(inner, each, names, places)
        return [
            _gathered([one[number] for one in results], spec, names, places, aval.shape)
            for number, (spec, aval) in enumerate(zip(params["out_specs"], equation.out_avals, strict=True))
        ]

    def _devices(
        self, jaxpr: Jaxpr, given: Sequence[Sequence[Any]], names: Axes, places: Sequence[tuple[int, ...]]
    ) -> list[list[Any]]:
        known: list[dict[int, Any]] = []
        for values in given:
            one: dict[int, Any] = dict(zip(jaxpr.inputs, values, strict=True))
            one.update(zip(jaxpr.consts, jaxpr.const_values, strict=False))
            known.append(one)

        def read(atom: Any, device: int) -> Any:
            return atom.value if isinstance(atom, Literal) else known[device][atom]

        for equation in jaxpr.equations:
            self.place = equation.place or self.place
            operands = [[read(atom, device) for atom in equation.inputs] for device in range(len(places))]
            inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
            if equation.primitive == "pallas_call":
                results: Sequence[Sequence[Any]] = self.runner(
                    self.calls[equation.params["call"]], operands, names, _unused(equation)
                )
            elif equation.primitive in INLINED and isinstance(inner, Jaxpr):
                results = self._devices(inner, operands, names, places)
            elif equation.primitive == "axis_index":
                results = [[np.int32(_coordinate(equation.params["axis_name"], names, place))] for place in places]
            else:
                results = [self._one(equation, one) for one in operands]
            for device, values in enumerate(results):
                for variable, value in zip(equation.outputs, values, strict=True):
                    if variable is not None:
                        known[device][variable] = value
        return [[read(atom, device) for atom in jaxpr.outputs] for device in range(len(places))]

    def _one(self, equation: Equation, operands: Sequence[Any]) -> Sequence[Any]:
        count = len(equation.inputs)
        alone = Equation(
            equation.primitive, tuple(range(count)), tuple(range(count, count + len(equation.outputs))),
            equation.out_avals, equation.params, equation.at, equation.via,
        )  # fmt: skip
        outputs = tuple(range(count, count + len(equation.outputs)))
        function = Jaxpr((), (), tuple(range(count)), (alone,), outputs, {})
        return self.evaluate(function, operands)


def _unused(equation: Equation) -> frozenset[int]:
    return frozenset(number for number, variable in enumerate(equation.outputs) if variable is None)


def _coordinate(name: Any, names: Axes, place: Sequence[int]) -> int:
    wanted = name[0] if isinstance(name, tuple) and len(name) == 1 else name
    for (axis, _), coordinate in zip(names, place, strict=True):
        if axis == wanted:
            return coordinate
    raise UnsupportedError(f"the mesh axis {wanted} is not known to the interpreter")


def _key(spec: Any, names: Axes, place: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    """The part of a global array that a device has."""
    where = dict(zip((name for name, _ in names), place, strict=True))
    sizes = dict(names)
    key: list[slice] = []
    for d, extent in enumerate(shape):
        entry = spec[d] if d < len(spec) else None
        parts = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        number, count = 0, 1
        for name in parts:
            number, count = number * sizes[name] + where[name], count * sizes[name]
        key.append(slice(number * extent // count, (number + 1) * extent // count))
    return tuple(key)


def _shard(value: Any, spec: Any, names: Axes, place: Sequence[int]) -> Array:
    array = np.asarray(value)
    return np.array(array[_key(spec, names, place, array.shape)])


def _gathered(
    shards: Sequence[Any], spec: Any, names: Axes, places: Sequence[tuple[int, ...]], shape: Sequence[int]
) -> Array:
    whole = np.zeros(tuple(shape), np.asarray(shards[0]).dtype)
    for shard, place in zip(shards, places, strict=True):
        whole[_key(spec, names, place, shape)] = shard
    return whole
