"""Triton kernels, as Pallas puts them into ``__gpu$xla.gpu.triton``: programs over arrays, the ``tt`` dialect.

Programs run one after the other; a pointer is an array's memory and offsets into it. Source: Triton's documentation of
its dialect; ``jax/_src/pallas/triton/lowering.py``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from hloscope.core.errors import EvaluationError
from hloscope.core.hlo.element_types import lookup
from hloscope.core.runtime.evaluator import conversion, numerics
from hloscope.core.runtime.evaluator.contraction import multiply_matrices, working_type
from hloscope.core.runtime.kernels import arithmetic, machine
from hloscope.core.runtime.kernels.ir import KernelUnsupported, functions
from hloscope.core.runtime.kernels.machine import Machine, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.runtime.evaluator.values import Array
    from hloscope.core.runtime.kernels.ir import Operation

_IR = re.compile(r'\bir = "((?:[^"\\]|\\.)*)"', re.S)
_GRID = re.compile(r"\bgrid_([xyz]) = (\d+)")
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2}|.)", re.S)


def body_of(instruction: HloInstruction) -> bytes:
    """The kernel's MLIR, its escapes undone. Raises KernelUnsupported where the call has none."""
    found = _IR.search(str(instruction.raw_attrs.get("backend_config") or ""))
    if found is None:
        raise KernelUnsupported("no text of the kernel in its backend config")
    return _ESCAPE.sub(_unescaped, found[1].encode("utf-8", "surrogateescape"))


def _unescaped(found: re.Match[bytes]) -> bytes:
    text = found[1]
    return bytes([int(text, 16)]) if len(text) == 2 else {b"n": b"\n", b"t": b"\t"}.get(text, text)


def grid_of(instruction: HloInstruction) -> tuple[int, int, int]:
    """How many programs run along x, y, z."""
    said = dict(_GRID.findall(str(instruction.raw_attrs.get("backend_config") or "")))
    return int(said.get("x", 1)), int(said.get("y", 1)), int(said.get("z", 1))


def kernel(
    data: Mapping[str, object], grid: Sequence[int], aliases: Mapping[int, int], step_limit: int
) -> Callable[[Sequence[Array], Sequence[Array]], None]:
    """A function of operands and results (filled in place). `aliases`: result -> the operand whose memory it has.

    Raises KernelUnsupported.
    """
    found = functions(data)
    main = next((f for f in found.values() if f.attributes.get("sym_visibility") != "private"), None)
    if main is None:
        raise KernelUnsupported("no function that can be called")
    table = {**machine.TABLE, **TABLE}
    machine.check(found, table)

    def run(operands: Sequence[Array], out: Sequence[Array]) -> None:
        runner = Machine(found, table, step_limit)
        memory = [np.array(x) for x in operands]
        for result, operand in aliases.items():
            out[result][...] = memory[operand]
            memory[operand] = out[result]
        # A scalar operand is passed by value.
        arguments: list[Any] = [
            Pointer(x.reshape(-1), np.zeros((), np.int64)) if "ptr" in kind.element else x.reshape(())
            for x, kind in zip([*memory, *out], main.body.types, strict=True)
        ]
        runner.grid = tuple(grid)
        for z, y, x in itertools.product(*(range(n) for n in reversed(grid))):
            runner.count()
            runner.place = (x, y, z)
            runner.call(main, arguments)

    return run


@dataclass(frozen=True, slots=True)
class Pointer:
    """Places in an array."""

    memory: Array
    """One-dimensional."""
    at: Array
    """Elements from its start."""

    def shaped(self, at: Any) -> Pointer:
        """The same array, other places."""
        return Pointer(self.memory, np.asarray(at))


def _on_places(function: Callable[[Operation, Any], Any]) -> Run:
    """Something that moves elements, of pointers too."""

    def run(runner: Machine, operation: Operation, given: list[Any]) -> Any:
        x = given[0]
        return x.shaped(function(operation, x.at)) if isinstance(x, Pointer) else function(operation, np.asarray(x))

    return run


def _checked(pointer: Pointer, mask: Any) -> tuple[Array, Array]:
    at = np.asarray(pointer.at)
    active = np.broadcast_to(True if mask is None else mask, at.shape)
    outside = active & ((at < 0) | (at >= pointer.memory.size))
    if outside.any():
        raise EvaluationError(f"the kernel reads or writes element {int(at[outside][0])} of {pointer.memory.size}")
    return np.where(active, at, 0), active


def _load(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    _, mask, other = operation.segments() or [[0], [1] if len(given) > 1 else [], [2] if len(given) > 2 else []]
    at, active = _checked(given[0], given[mask[0]] if mask else None)
    kind = given[0].memory.dtype
    if not given[0].memory.size:
        return np.zeros(at.shape, kind)
    found = given[0].memory[at]
    return np.where(active, found, np.asarray(given[other[0]]) if other else kind.type(0)).astype(kind)


def _store(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    at, active = _checked(given[0], given[2] if len(given) > 2 else None)
    given[0].memory[at[active]] = np.broadcast_to(given[1], at.shape)[active]


_ATOMIC = {1: np.bitwise_and, 2: np.bitwise_or, 3: np.bitwise_xor, 4: np.add, 5: np.add, 6: np.maximum, 7: np.minimum}


def _atomic(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    at, active = _checked(given[0], given[2] if len(given) > 2 else None)
    code, memory = int(operation.attributes["atomic_rmw_op"]), given[0].memory
    old = memory[at]
    places, values = at[active], np.broadcast_to(given[1], at.shape)[active]
    if code == 10:
        memory[places] = values
    elif code in _ATOMIC and memory.dtype.kind in "iuf":
        _ATOMIC[code].at(memory, places, values)
    else:
        raise KernelUnsupported(f"the atomic operation {code}")
    return old


def _pieces(runner: Machine, operation: Operation, given: list[Any]) -> tuple[Callable[..., list[Any]], int, list[Any]]:
    values: dict[int, Any] = given[-1]
    block, axis = operation.regions[0], int(operation.attributes["axis"])

    def combine(a: list[Any], b: list[Any]) -> list[Any]:
        return runner.run(block, [*a, *b], values)

    return combine, axis, [np.moveaxis(np.asarray(x), axis, 0) for x in given[:-1]]


def _reduce(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    """Neighbouring pairs, again and again."""
    combine, _, rows = _pieces(runner, operation, given)
    while len(rows[0]) > 1:
        even = len(rows[0]) // 2 * 2
        halves = combine([r[0:even:2] for r in rows], [r[1:even:2] for r in rows])
        rows = [np.concatenate([h, r[even:]]) for h, r in zip(halves, rows, strict=True)]
    return [r[0] for r in rows]


def _scan(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    combine, axis, rows = _pieces(runner, operation, given)
    backwards = bool(operation.attributes.get("reverse"))
    rows = [r[::-1] for r in rows] if backwards else rows
    out = [[r[0] for r in rows]]
    for i in range(1, len(rows[0])):
        out.append(combine(out[-1], [r[i] for r in rows]))
    joined = [np.stack([step[k] for step in out]) for k in range(len(rows))]
    return [np.moveaxis(x[::-1] if backwards else x, 0, axis) for x in joined]


def _dot(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    target = operation.result_types[0].numbers
    inner = working_type(target)
    wide = [
        numerics.widen(inner)(conversion.converter(kind.numbers, inner)(np.asarray(x)))
        for x, kind in zip(given, operation.types, strict=True)
    ]
    total = (multiply_matrices(wide[0], wide[1], inner) + wide[2]).astype(wide[2].dtype)
    return conversion.converter(inner, target)(numerics.narrow(inner)(total))


_DEVICE = re.compile(r"__nv_(?:fast_)?(\w+?)f?\Z")
_DEVICE_NAMES = {"fabs": "absf", "pow": "powf", "rint": "roundeven", "fmod": "fmod"}


def _external(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    symbol = str(operation.attributes["symbol"])
    found = _DEVICE.match(symbol)
    name = "" if found is None else _DEVICE_NAMES.get(found[1], found[1])
    function = np.fmod if name == "fmod" else arithmetic.FLOAT_FUNCTIONS.get(name)
    if function is None:
        raise KernelUnsupported(f"the device function {symbol}")
    element = operation.result_types[0].numbers
    wide = [numerics.widen(element)(np.asarray(x)) for x in given]
    return numerics.narrow(element)(np.asarray(function(*wide)).astype(numerics.carrier(element)))


def _range(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    return np.arange(int(operation.attributes["start"]), int(operation.attributes["end"]), dtype=lookup("s32").dtype)


def _program(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    return np.asarray(runner.place[int(operation.attributes["axis"])], np.int32)


def _programs(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    return np.asarray(runner.grid[int(operation.attributes["axis"])], np.int32)


def _divide(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    return arithmetic.TABLE["arith.divf"](operation, given)


def _clamp(runner: Machine, operation: Operation, given: list[Any]) -> Any:
    x, low, high = given
    return np.fmin(np.fmax(x, low), high)


def _sizes(operation: Operation, x: Any) -> Any:
    return x.reshape(operation.result_types[0].sizes)


TABLE: Mapping[str, Run] = MappingProxyType(
    {
        "tt.addptr": lambda r, o, g: g[0].shaped(g[0].at + np.asarray(g[1]).astype(np.int64)),
        "tt.assert": machine.nothing,
        "tt.atomic_rmw": _atomic,
        "tt.bitcast": lambda r, o, g: g[0] if isinstance(g[0], Pointer) else arithmetic.bitcast(o, g),
        "tt.broadcast": _on_places(lambda o, x: np.broadcast_to(x, o.result_types[0].sizes)),
        "tt.call": machine.call,
        "tt.clampf": _clamp,
        "tt.dot": _dot,
        "tt.expand_dims": _on_places(lambda o, x: np.expand_dims(x, int(o.attributes["axis"]))),
        "tt.extern_elementwise": _external,
        "tt.fp_to_fp": lambda r, o, g: arithmetic.convert(o, g),
        "tt.gather": lambda r, o, g: np.take_along_axis(g[0], g[1].astype(np.int64), int(o.attributes["axis"])),
        "tt.get_num_programs": _programs,
        "tt.get_program_id": _program,
        "tt.join": lambda r, o, g: np.stack(g, axis=-1),
        "tt.load": _load,
        "tt.make_range": _range,
        "tt.precise_divf": _divide,
        "tt.precise_sqrt": lambda r, o, g: arithmetic.TABLE["math.sqrt"](o, g),
        "tt.print": machine.nothing,
        "tt.reduce": _reduce,
        "tt.reshape": _on_places(_sizes),
        "tt.scan": _scan,
        "tt.splat": _on_places(lambda o, x: np.broadcast_to(x, o.result_types[0].sizes)),
        "tt.split": lambda r, o, g: [g[0][..., 0], g[0][..., 1]],
        "tt.store": _store,
        "tt.trans": _on_places(lambda o, x: x.transpose(list(o.attributes["order"]))),
        "tt.unsplat": lambda r, o, g: np.asarray(g[0]).reshape(-1)[0],
    }
)
