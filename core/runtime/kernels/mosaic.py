"""Mosaic kernels, as Pallas and libtpu put them into ``tpu_custom_call``: grid, windows, the ``tpu`` dialect.

The grid runs in order on one core. Blocks are fetched where their index changes and written back where it changes or
the grid ends; what a block holds beyond the array is zero. A copy is over when it starts, so that semaphores need not
count: what a race would do is not modelled. Source: ``jax/_src/pallas/mosaic/lowering.py``,
``jax/_src/tpu_custom_call.py``.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hloscope.core.hlo.element_types import lookup
from hloscope.core.runtime.evaluator import conversion, numerics
from hloscope.core.runtime.evaluator.contraction import contract, working_type
from hloscope.core.runtime.kernels import arithmetic, machine
from hloscope.core.runtime.kernels.ir import KernelUnsupported, functions
from hloscope.core.runtime.kernels.machine import DYNAMIC, Machine, Run, region, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.runtime.evaluator.values import Array
    from hloscope.core.runtime.kernels.ir import Function, Operation, Type


def body_of(instruction: HloInstruction) -> bytes:
    """The kernel's MLIR. Raises KernelUnsupported where the call has none."""
    config: Any = instruction.attr("backend_config")
    try:
        if isinstance(config, str):
            config = json.loads(config)
        return base64.b64decode(config["custom_call_config"]["body"])
    except (KeyError, TypeError, ValueError):
        raise KernelUnsupported("no text of the kernel in its backend config") from None


def kernel(
    data: Mapping[str, object], results: int, aliases: Mapping[int, int], step_limit: int
) -> Callable[[Sequence[Array], Sequence[Array]], None]:
    """A function of operands and results (filled in place). `aliases`: result -> the operand whose memory it has.

    Raises KernelUnsupported.
    """
    found = functions(data)
    main = next(iter(found.values()))
    table = {**machine.TABLE, **TABLE}
    machine.check(found, table)
    plan = _Plan.of(main, results)

    def run(operands: Sequence[Array], out: Sequence[Array]) -> None:
        runner = Machine(found, table, step_limit)
        plan.run(runner, operands, out, aliases)

    return run


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the arguments of a kernel's function are."""

    main: Function
    bounds: tuple[int, ...]
    prefetched: int
    windows: tuple[Mapping[str, Any], ...]
    """One for each operand and result that is not prefetched; empty ones are whole arrays."""
    arrays: int
    scratch: tuple[Type, ...]

    @staticmethod
    def of(main: Function, results: int) -> _Plan:
        attributes = main.attributes
        bounds = tuple(int(n) for n in attributes.get("iteration_bounds", []))
        prefetched = int(attributes.get("scalar_prefetch", 0))
        scratch = int(attributes.get("scratch_operands", 0))
        types = main.body.types
        arrays = len(types) - len(bounds) - prefetched - scratch
        windows = tuple(attributes.get("window_params", [{}] * arrays))
        if len(windows) != arrays or arrays < results:
            raise KernelUnsupported(f"{len(windows)} windows for {arrays} arrays")
        for window in windows:
            if "window_kind" in window and "element_window" in str(window["window_kind"]):
                raise KernelUnsupported("windows that start at any element")
        return _Plan(main, bounds, prefetched, windows, arrays, tuple(types[len(types) - scratch :]) if scratch else ())

    def run(self, runner: Machine, operands: Sequence[Array], out: Sequence[Array], aliases: Mapping[int, int]) -> None:
        late = sum(n == DYNAMIC for n in self.bounds)
        given = iter(int(np.asarray(x).reshape(-1)[0]) for x in operands[:late])
        grid = tuple(next(given) if n == DYNAMIC else n for n in self.bounds)
        memory = [np.array(x) for x in operands[late:]]
        scalars, inputs = memory[: self.prefetched], memory[self.prefetched :]
        if len(inputs) + len(out) != self.arrays:
            raise KernelUnsupported(f"{len(inputs)} operands and {len(out)} results for {self.arrays} arrays")
        for result, operand in aliases.items():
            out[result][...] = operands[operand]
            if 0 <= operand - late - self.prefetched < len(inputs):
                inputs[operand - late - self.prefetched] = out[result]
        arrays = [*inputs, *out]
        types = self.main.body.types[len(self.bounds) + self.prefetched :]
        scratch = [_fresh(kind) for kind in self.scratch]
        blocks: list[Any] = [None] * len(arrays)
        places: list[tuple[int, ...] | None] = [None] * len(arrays)
        runner.grid = grid
        for place in itertools.product(*(range(n) for n in grid)):
            runner.count()
            runner.place = place
            at = [np.asarray(i, np.int32) for i in place]
            for number, (array, window) in enumerate(zip(arrays, self.windows, strict=True)):
                if not window:
                    blocks[number] = array
                    continue
                function = runner.functions[str(window["transform_indices"])]
                where = tuple(int(i) for i in runner.call(function, [*at, *scalars]))
                if where != places[number]:
                    self._flush(number, inputs, arrays, blocks, places)
                    blocks[number], places[number] = _fetch(array, where, window["window_bounds"], types[number]), where
            runner.call(self.main, [*at, *scalars, *blocks, *scratch])
        for number in range(len(arrays)):
            self._flush(number, inputs, arrays, blocks, places)

    def _flush(
        self,
        number: int,
        inputs: Sequence[Array],
        arrays: Sequence[Array],
        blocks: list[Any],
        places: list[tuple[int, ...] | None],
    ) -> None:
        """Write a result's block back."""
        place = places[number]
        if number < len(inputs) or place is None:
            return
        bounds = self.windows[number]["window_bounds"]
        target = arrays[number][_slices(arrays[number], place, bounds)]
        block = np.asarray(blocks[number]).reshape(bounds)
        target[...] = block[tuple(slice(0, n) for n in target.shape)]


def _fresh(kind: Type) -> Array:
    return np.zeros(kind.sizes, np.int64 if kind.is_semaphore else kind.numbers.dtype)


def _slices(array: Array, place: Sequence[int], bounds: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(i * n, min((i + 1) * n, size)) for i, n, size in zip(place, bounds, array.shape, strict=True))


def _fetch(array: Array, place: Sequence[int], bounds: Sequence[int], kind: Type) -> Array:
    part = array[_slices(array, place, bounds)]
    out = np.zeros(tuple(bounds), array.dtype)
    out[tuple(slice(0, n) for n in part.shape)] = part
    return out.reshape(kind.sizes)


# ---------------------------------------------------------------- the dialect
def _vector_store(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    value, base, indices, mask = operation.segments()
    memory, starts = given[base[0]], [given[i] for i in indices]
    strides = [int(n) for n in operation.attributes.get("strides", [])]
    data = np.asarray(given[value[0]])
    if operation.attributes.get("add"):
        data = data + region(memory, starts, data.shape, strides)
    write(memory, starts, data, strides, given[mask[0]] if mask else None)


def _vector_load(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    strides = [int(n) for n in operation.attributes.get("strides", [])]
    segments = operation.segments()
    indices = [given[i] for i in segments[1]] if segments else given[1:]
    found = region(given[0], indices, operation.result_types[0].sizes, strides).copy()
    if len(segments) > 2 and segments[2]:
        return np.where(given[segments[2][0]], found, found.dtype.type(0))
    return found


def _strided_store(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    at = next(i for i, kind in enumerate(operation.types) if kind.kind == "memref")
    value = next(i for i, kind in enumerate(operation.types) if kind.kind == "vector")
    indices = [x for i, x in enumerate(given) if i not in (at, value)]
    write(given[at], indices, np.asarray(given[value]), [int(n) for n in operation.attributes["strides"]])


def _iota(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    kind = operation.result_types[0]
    total = np.zeros(kind.sizes, np.int64)
    for d in operation.attributes["dimensions"]:  # of several, the last is the fastest
        sides = [1] * len(kind.sizes)
        sides[d] = kind.sizes[d]
        total = total * kind.sizes[d] + np.arange(kind.sizes[d]).reshape(sides)
    return np.broadcast_to(total, kind.sizes).astype(kind.numbers.dtype)


_LISTS = re.compile(r"\[([0-9, ]*)\]")


def _matmul(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    attributes, target = operation.attributes, operation.result_types[0].numbers
    a, b = (np.asarray(x) for x in given[:2])
    named = [
        [int(n) for n in part.split(",") if n.strip()]
        for part in _LISTS.findall(str(attributes.get("dimension_numbers", "")))
    ]
    if not named:
        rows, columns = int(not attributes.get("transpose_lhs")), int(bool(attributes.get("transpose_rhs")))
        named = [[rows], [columns], [1 - rows], [1 - columns], [0, 1 - rows, 1, 1 - columns], [], []]
    inner = working_type(target)
    wide = [
        numerics.widen(inner)(conversion.converter(kind.numbers, inner)(x))
        for x, kind in zip((a, b), operation.types, strict=False)
    ]
    total = contract(wide[0], wide[1], inner, (named[0], named[1]), (named[5], named[6]))
    # Batch dimensions, those of the left side, those of the right side: where each stands in the result.
    made = [*((0, d) for d in named[5]), *((0, d) for d in named[2]), *((1, d) for d in named[3])]
    wanted = list(zip(named[4][::2], named[4][1::2], strict=True))
    total = total.transpose([made.index(pair) for pair in wanted])
    start = numerics.widen(inner)(conversion.converter(target, inner)(np.asarray(given[2])))
    return conversion.converter(inner, target)(numerics.narrow(inner)((total + start).astype(total.dtype)))


def _memref_slice(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    indices = operation.segments()[1] if operation.segments() else list(range(1, len(given)))
    return region(given[0], [given[i] for i in indices], operation.result_types[0].sizes)


def _memref_reshape(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    view = given[0].view()
    try:
        view.shape = operation.result_types[0].sizes  # never a copy: what is written must reach the memory
    except AttributeError:
        raise KernelUnsupported("a part of memory under other dimensions") from None
    return view


def _memref_bitcast(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    return arithmetic.bitcast(operation, given)


def _enqueue_dma(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    segments = operation.segments()
    if any(segments[4:]):
        raise KernelUnsupported("copies to other devices or cores")
    target = given[segments[2][0]]
    target[...] = np.asarray(given[segments[0][0]]).reshape(target.shape)


def _signal(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    if any(operation.segments()[2:]):
        raise KernelUnsupported("signals to other devices or cores")


def _concatenate(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    return np.concatenate(given, axis=int(operation.attributes["dimension"]))


def _repeat(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    return np.concatenate([given[0]] * int(operation.attributes["times"]), axis=int(operation.attributes["dimension"]))


def _rotate(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    if operation.attributes.get("stride"):
        raise KernelUnsupported("a rotation with a stride")
    amount = int(given[1]) if len(given) > 1 else int(operation.attributes["amount"])
    return np.roll(given[0], amount, axis=int(operation.attributes["dimension"]))


def _reciprocal(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    element = operation.result_types[0].numbers
    return numerics.narrow(element)(np.reciprocal(numerics.widen(element)(np.asarray(given[0]))))


def _reduce_index(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    kind = machine.word(operation.attributes["kind"])
    wide = numerics.widen(operation.types[0].numbers)(np.asarray(given[0]))
    found = (np.argmax if "max" in kind else np.argmin)(wide, axis=int(operation.attributes["axis"]))
    return np.asarray(found).reshape(operation.result_types[0].sizes).astype(np.int32)


def _all_reduce(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    axis = int(operation.attributes["dim"])
    kind = {"sum": "add", "max": "maximumf", "min": "minimumf"}.get(machine.word(operation.attributes["kind"]), "")
    total = machine.reduce(kind, given[0], [axis], operation.types[0])
    return np.broadcast_to(np.expand_dims(total, axis), operation.result_types[0].sizes)


def _gather(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    dims = operation.attributes.get("dimensions", operation.attributes.get("dimension"))
    axes = [int(d) for d in cast("list[int]", dims)] if isinstance(dims, list) else [int(cast("int", dims))]
    if len(axes) != 1:
        raise KernelUnsupported("a gather along several dimensions")
    return np.take_along_axis(np.asarray(given[0]), np.asarray(given[1]).astype(np.int64), axes[0])


def _bound(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    return np.asarray(runner.grid[int(operation.attributes["dim"])], np.int32)


def _zero(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    return np.zeros((), lookup("s32").dtype)


def _converted(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    return arithmetic.convert(operation, given)


def _bits(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    return arithmetic.bitcast(operation, given)


TABLE: Mapping[str, Run] = MappingProxyType(
    {
        "tpu.all_reduce": _all_reduce,
        "tpu.assume_multiple": machine.same,
        "tpu.bitcast": _bits,
        "tpu.concatenate": _concatenate,
        "tpu.delay": machine.nothing,
        "tpu.device_id": _zero,
        "tpu.dynamic_gather": _gather,
        "tpu.dynamic_rotate": _rotate,
        "tpu.enqueue_dma": _enqueue_dma,
        "tpu.erase_memref_layout": machine.same,
        "tpu.extf": _converted,
        "tpu.fptosi": _converted,
        "tpu.iota": _iota,
        "tpu.iteration_bound": _bound,
        "tpu.matmul": _matmul,
        "tpu.memref_bitcast": _memref_bitcast,
        "tpu.memref_reshape": _memref_reshape,
        "tpu.memref_slice": _memref_slice,
        "tpu.memref_squeeze": _memref_reshape,
        "tpu.reciprocal": _reciprocal,
        "tpu.reduce_index": _reduce_index,
        "tpu.relayout": machine.same,
        "tpu.repeat": _repeat,
        "tpu.rotate": _rotate,
        "tpu.sem_signal": _signal,
        "tpu.sem_wait": machine.nothing,
        "tpu.sitofp": _converted,
        "tpu.strided_load": _vector_load,
        "tpu.strided_store": _strided_store,
        "tpu.trace_start": machine.nothing,
        "tpu.trace_stop": machine.nothing,
        "tpu.transpose": machine.transpose,
        "tpu.truncf": _converted,
        "tpu.vector_load": _vector_load,
        "tpu.vector_store": _vector_store,
        "tpu.wait_dma": machine.nothing,
        "tpu.wait_dma2": machine.nothing,
    }
)
