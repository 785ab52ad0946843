"""Runs a kernel's blocks: control flow, and what moves vectors to and from memory.

Memory is a numpy array that is written in place; a slice of it is a view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hloscope.core.errors import EvaluationError
from hloscope.core.runtime.evaluator import monoids
from hloscope.core.runtime.kernels import arithmetic
from hloscope.core.runtime.kernels.ir import KernelUnsupported

if TYPE_CHECKING:
    from hloscope.core.runtime.evaluator.values import Array
    from hloscope.core.runtime.kernels.ir import Block, Function, Operation, Type

Run = Callable[["Machine", "Operation", "list[Any]"], Any]
"""An operation's value: one, a list of several, or None."""
DYNAMIC = -(2**63)
"""MLIR's mark of a number that an operand gives."""
_ENDS = frozenset({"func.return", "scf.yield", "scf.condition", "tpu.yield", "tt.return", "tt.reduce.return",
                   "tt.scan.return"})  # fmt: skip


class Machine:
    """One run of a kernel."""

    def __init__(self, functions: Mapping[str, Function], table: Mapping[str, Run], step_limit: int) -> None:
        self.functions = functions
        self.grid: tuple[int, ...] = ()
        """Steps along each dimension of the grid."""
        self.place: tuple[int, ...] = ()
        """The step that runs."""
        self._table = table
        self._left = step_limit

    def call(self, function: Function, arguments: Sequence[Any]) -> list[Any]:
        """A function's results."""
        return self.run(function.body, arguments, {})

    def run(self, block: Block, arguments: Sequence[Any], values: dict[int, Any]) -> list[Any]:
        """What a block yields; `values` are those of the blocks around it, and get its own."""
        values.update(zip(block.arguments, arguments, strict=True))
        for operation in block.operations:
            given = [values[number] for number in operation.operands]
            if operation.name in _ENDS:
                return given
            if operation.regions:
                found = self._nested(operation, given, values)
            elif (compute := arithmetic.TABLE.get(operation.name)) is not None:
                found = compute(operation, given)
            else:
                found = self._table[operation.name](self, operation, given)
            results = found if isinstance(found, list) else [found]
            for number, value in zip(operation.results, cast("list[Any]", results), strict=False):
                values[number] = value
        return []

    def _nested(self, operation: Operation, given: list[Any], values: dict[int, Any]) -> Any:
        if operation.name == "scf.if":
            chosen = 0 if bool(given[0]) else 1
            return self.run(operation.regions[chosen], [], values) if chosen < len(operation.regions) else []
        if operation.name == "scf.for":
            low, high, step = (int(x) for x in given[:3])
            state, kind = given[3:], operation.regions[0].types[0].numbers.dtype
            for i in range(low, high, step):
                self.count()
                state = self.run(operation.regions[0], [np.asarray(i, kind), *state], values)
            return state
        if operation.name == "scf.while":
            state = given
            while True:
                going, *state = self.run(operation.regions[0], state, values)
                if not bool(going):
                    return state
                self.count()
                state = self.run(operation.regions[1], state, values)
        if operation.name in ("tpu.region", "tpu.trace"):
            return self.run(operation.regions[0], [], values)
        return self._table[operation.name](self, operation, [*given, values])

    def count(self) -> None:
        """Count one iteration. Raises EvaluationError past the limit."""
        self._left -= 1
        if self._left < 0:
            raise EvaluationError("the kernel's loops passed the step limit (--step-limit)")


NESTED = frozenset({"scf.if", "scf.for", "scf.while", "tpu.region", "tpu.trace"})


def check(functions: Mapping[str, Function], table: Mapping[str, Run]) -> None:
    """Raises KernelUnsupported naming the first operation that nobody computes."""
    for function in functions.values():
        for operation in function.body.every():
            name = operation.name
            if name not in table and name not in arithmetic.TABLE and name not in NESTED and name not in _ENDS:
                raise KernelUnsupported(f"the operation {name}")


# ---------------------------------------------------------------- vectors
def _broadcast(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    return np.broadcast_to(given[0], operation.result_types[0].sizes)


def _shape_cast(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    return np.asarray(given[0]).reshape(operation.result_types[0].sizes)


def transpose(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    """Dimensions in another order."""
    return np.asarray(given[0]).transpose([int(d) for d in operation.attributes["permutation"]])


def region(memory: Array, starts: Sequence[Any], sizes: Sequence[int], strides: Sequence[int] = ()) -> Any:
    """A view of memory. Raises EvaluationError where it leaves it."""
    lead = memory.ndim - len(sizes)
    full = [*([1] * lead), *sizes]
    steps = list(strides) or [1] * memory.ndim
    index: list[slice] = []
    for d, (start, size, step) in enumerate(zip(starts, full, steps, strict=True)):
        begin = int(start)
        end = begin + (size - 1) * step + 1 if size else begin
        if begin < 0 or end > memory.shape[d]:
            raise EvaluationError(f"the kernel reads or writes {begin}:{end} of {memory.shape[d]} in dimension {d}")
        index.append(slice(begin, end, step))
    return memory[tuple(index)].reshape(sizes) if lead else memory[tuple(index)]


def write(memory: Array, starts: Sequence[Any], value: Array, strides: Sequence[int] = (), mask: Any = None) -> None:
    """Writes a value into memory."""
    lead = memory.ndim - np.ndim(value)
    full = np.asarray(value).reshape(*([1] * lead), *np.shape(value))
    target = region(memory, starts, full.shape, strides)
    target[...] = full if mask is None else np.where(np.asarray(mask).reshape(full.shape), full, target)


def _load(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    return region(given[0], given[1:], operation.result_types[0].sizes).copy()


def _store(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    write(given[1], given[2:], given[0])


def _load_scalar(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    return region(given[0], given[1:], [1] * given[0].ndim).reshape(()).copy()


def _store_scalar(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    write(given[1], given[2:], np.asarray(given[0]).reshape([1] * given[1].ndim))


def _extract(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    late = iter(given[1:])
    at = [int(next(late)) if n == DYNAMIC else int(n) for n in operation.attributes.get("static_position", [])]
    return np.asarray(given[0])[tuple(at)]


def _strided_slice(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    named = [operation.attributes[key] for key in ("offsets", "sizes", "strides")]
    index = tuple(slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(*named, strict=True))
    return np.asarray(given[0])[index]


_KINDS = {
    "add": "add", "mul": "multiply", "maximumf": "maximum", "minimumf": "minimum", "maxnumf": "maximum",
    "minnumf": "minimum", "maxsi": "maximum", "minsi": "minimum", "and": "and", "or": "or", "xor": "xor",
}  # fmt: skip


def word(attribute: object) -> str:
    """``add`` of ``#vector.kind<add>``."""
    return str(attribute).partition("<")[2].rstrip(">")


def reduce(kind: str, x: Array, axes: Sequence[int], element: Type, start: Any = None) -> Any:
    """One operation folded over dimensions, sums wide and rounded once. Raises KernelUnsupported."""
    if kind not in _KINDS:
        raise KernelUnsupported(f"a reduction by {kind}")
    monoid = monoids.Monoid(_KINDS[kind], element.numbers)
    total = monoid.reduce(monoid.enter(np.asarray(x)), tuple(int(d) for d in axes))
    if start is not None:
        total = monoid.combine(total, monoid.enter(np.asarray(start)))
    return monoid.leave(total)


def _multi_reduction(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    attributes = operation.attributes
    return reduce(word(attributes["kind"]), given[0], attributes["reduction_dims"], operation.types[0], given[1])


def same(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    """The operand."""
    return given[0]


def nothing(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    """No value and no effect."""
    return []


def call(machine: Machine, operation: Operation, given: list[Any]) -> Any:
    """Another function of the kernel."""
    return machine.call(machine.functions[str(operation.attributes["callee"])], given)


TABLE: Mapping[str, Run] = MappingProxyType(
    {
        "cf.assert": nothing,
        "func.call": call,
        "memref.cast": same,
        "memref.load": _load_scalar,
        "memref.store": _store_scalar,
        "vector.broadcast": _broadcast,
        "vector.extract": _extract,
        "vector.extract_strided_slice": _strided_slice,
        "vector.load": _load,
        "vector.multi_reduction": _multi_reduction,
        "vector.shape_cast": _shape_cast,
        "vector.splat": _broadcast,
        "vector.store": _store,
        "vector.transpose": transpose,
    }
)
"""What the dialects of kernels share."""
