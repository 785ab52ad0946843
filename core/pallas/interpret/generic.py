"""The generic interpreter: what ``interpret=True`` computes. It models arithmetic and no memory.

The grid is a loop, last axis fastest; every array is padded to whole blocks with values that nobody wrote (NaN),
blocks are slices whose starts are clamped, and outputs and scratch begin as NaN. It proves that the arithmetic of the
kernel is right for this input in this order. It cannot see races, indices out of range (they are clamped), or that
memory is reused. Source: ``jax-ml/jax:jax/_src/pallas/hlo_interpreter.py``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.blocks import GENERIC_KINDS
from hloscope.core.pallas.call import Operand, PallasCall
from hloscope.core.pallas.grid import concrete_grid
from hloscope.core.pallas.interpret.machine import Machine, Run
from hloscope.core.pallas.interpret.memory import Buffer, Ref
from hloscope.core.pallas.interpret.primitives import clamped, filled
from hloscope.core.pallas.jaxpr import Array, Equation, Jaxpr, Slot, dtype_of

CallRunner: TypeAlias = Callable[[PallasCall, Sequence[Any]], list[Any]]
"""Runs one call on its operands and gives its outputs."""
PROVES = "the arithmetic of the kernel on this input, steps in order"
CANNOT = "races, indices out of range (clamped), reuse of memory, what a compiler refuses"


def run_call(
    call: PallasCall, operands: Sequence[Any], machine: Machine | None = None, *, deadline: float | None = None
) -> list[Array]:
    """A call's outputs as ``interpret=True`` computes them.

    ``operands`` are the primitive's: dynamic grid bounds, scalar prefetch, inputs. Raises ``UnsupportedError`` for
    what the interpreter does not have, block kinds that jax's refuses among it.
    """
    machine = machine or Machine()
    machine.deadline = deadline
    slots = call.slots
    grid = concrete_grid(call, [int(one) for one in operands[: slots.dynamic]])
    prefetch = [np.array(one) for one in operands[slots.dynamic : slots.dynamic + slots.prefetch]]
    inputs = [np.asarray(one) for one in operands[slots.dynamic + slots.prefetch :]]
    arrays = [_padded(array, operand) for array, operand in zip(inputs, call.inputs, strict=True)]
    for operand in call.outputs:
        source = call.alias_of_output(operand.number)
        if source is not None:
            start = np.array(inputs[source.number])
        else:
            start = filled(operand.array.shape, dtype_of(operand.array.dtype))
        arrays.append(_padded(start, operand))
    scratch = [machine.allocate("scratch", aval) for aval in call.scratch]

    def scalars() -> list[Ref]:
        """As before the call: what a step or an index map writes there is forgotten after it."""
        return [scalar_ref(call, number, np.array(value)) for number, value in enumerate(prefetch)]

    machine.bounds = tuple(bound for d, bound in enumerate(grid) if d not in call.vmapped)
    machine.axis_names = call.grid_names
    with np.errstate(all="ignore"):
        for point in itertools.product(*map(range, grid)):
            machine.point = call.own_point(point)
            blocks = [
                _block(machine, operand, array, point, scalars())
                for operand, array in zip(call.operands, arrays, strict=True)
            ]
            machine.evaluate(call.kernel, [*scalars(), *blocks, *scratch])
    return [_unpadded(array, operand) for array, operand in zip(arrays[slots.inputs :], call.outputs, strict=True)]


def scalar_ref(call: PallasCall, number: int, value: Array) -> Ref:
    """A scalar prefetch operand as the kernel and the index maps see it."""
    aval = call.kernel.avals[call.kernel.inputs[number]]
    return Ref(Buffer(call.kernel.name_of(number), aval, value.reshape(aval.shape), aval.space or "smem"))


def block_index(machine: Machine, operand: Operand, point: Sequence[int], scalars: Sequence[Ref]) -> list[Any]:
    """What an index map returns at a grid point: a number a dimension, or (start, size)."""
    results = machine.evaluate(operand.index_map, [*map(np.int32, point), *scalars])
    found: list[Any] = []
    for entry in operand.index_tree:
        if isinstance(entry, Slot):
            found.append(int(results[entry.index]) if not np.ndim(results[entry.index]) else results[entry.index])
        elif hasattr(entry, "start"):
            start, size = (results[one.index] if isinstance(one, Slot) else one for one in (entry.start, entry.size))
            found.append((int(start), int(size)))
        else:
            found.append(int(entry))
    return found


def _padded(array: Array, operand: Operand) -> Array:
    bad = next((dim for dim in operand.dims if dim.kind not in GENERIC_KINDS), None)
    if bad is not None:
        raise UnsupportedError(
            f"unsupported block dimension type {bad} of {operand.title}: the generic mode refuses it"
        )
    array = array.reshape(operand.array.shape)
    low = [dim.padding[0] for dim in operand.dims]
    shape = operand.padded_shape
    if shape == array.shape:
        return np.array(array)
    whole = filled(shape, array.dtype)
    whole[tuple(slice(a, a + n) for a, n in zip(low, array.shape, strict=True))] = array
    return whole


def _unpadded(array: Array, operand: Operand) -> Array:
    inside = tuple(
        slice(dim.padding[0], dim.padding[0] + n) for dim, n in zip(operand.dims, operand.array.shape, strict=True)
    )
    return np.array(array[inside])


def _block(machine: Machine, operand: Operand, array: Array, point: Sequence[int], scalars: Sequence[Ref]) -> Ref:
    """The block of a step: a view, so that what the kernel stores is in the array at once."""
    key: list[Any] = []
    for dim, index, extent in zip(
        operand.dims, block_index(machine, operand, point, scalars), array.shape, strict=True
    ):
        start = clamped(index * dim.size if dim.kind == "blocked" else index, dim.size, extent)
        key.append(slice(start, start + dim.size) if dim.in_ref else start)
    view = array[(*key, ...)]
    return Ref(Buffer(operand.name, operand.ref, view, operand.space))


class ProgramMachine(Machine):
    """Evaluates a whole traced program; its calls go to a runner."""

    def __init__(self, calls: Sequence[PallasCall], runner: CallRunner) -> None:
        super().__init__()
        self.calls, self.runner = calls, runner

    def do_pallas_call(self, equation: Equation, operands: Sequence[Any]) -> Run:
        return self.runner(self.calls[equation.params["call"]], operands)
        yield


def known_operands(
    jaxpr: Jaxpr, arguments: Sequence[Array | None], calls: Sequence[PallasCall]
) -> dict[int, list[Array | None]]:
    """What is known of each call's operands before anything runs: constants, and values that follow from arguments.

    Equations whose operands are all known are computed; a call's own results are not known.
    """
    found: dict[int, list[Array | None]] = {}
    _partial(jaxpr, list(arguments), calls, found)
    return found


MOST_ELEMENTS = 1 << 16
"""Largest result that is computed ahead; scalar operands are small."""


def _partial(
    jaxpr: Jaxpr, values: Sequence[Array | None], calls: Sequence[PallasCall], found: dict[int, list[Array | None]]
) -> list[Array | None]:
    machine = Machine()
    known: dict[int, Array | None] = dict(zip(jaxpr.inputs, values, strict=True))
    for variable, value in zip(jaxpr.consts, jaxpr.const_values, strict=False):
        known[variable] = value
    for equation in jaxpr.equations:
        operands = [one.value if not isinstance(one, int) else known.get(one) for one in equation.inputs]
        results: Sequence[Array | None] = [None] * len(equation.outputs)
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if equation.primitive == "pallas_call":
            found[equation.params["call"]] = list(operands)
        elif equation.primitive in ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call") and inner:
            results = _partial(inner, operands, calls, found)
        elif (
            all(one is not None for one in operands)
            and sum(math.prod(a.shape) for a in equation.out_avals) <= MOST_ELEMENTS
        ):
            try:
                results = machine.evaluate(
                    Jaxpr((), (), tuple(range(len(operands))), (_renumbered(equation),), tuple(_outputs(equation)), {}),
                    operands,
                )
            except UnsupportedError:
                pass
        for variable, value in zip(equation.outputs, results, strict=True):
            if variable is not None:
                known[variable] = value
    return [one.value if not isinstance(one, int) else known.get(one) for one in jaxpr.outputs]


def _outputs(equation: Equation) -> list[int]:
    return [len(equation.inputs) + number for number in range(len(equation.outputs))]


def _renumbered(equation: Equation) -> Equation:
    return Equation(
        equation.primitive, tuple(range(len(equation.inputs))), tuple(_outputs(equation)), equation.out_avals,
        equation.params, equation.at, equation.via,
    )  # fmt: skip
