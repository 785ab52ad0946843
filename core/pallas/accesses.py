"""What a kernel does to its references, told from the traced kernel alone: which, where, and at which grid steps.

The kernel is walked once with every scalar that depends only on program ids (and known prefetched scalars) held as an
array of one value a grid step. A store under ``pl.when(pl.program_id(0) == 0)`` so gets the exact set of steps at which
it happens, and ``ref[pl.ds(8 * i, 8)]`` the exact rows, also where ``i`` counts a loop of known length. What depends on
data is None: not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.call import PallasCall
from hloscope.core.pallas.demand import Demand, Frame, loads_needed
from hloscope.core.pallas.index_map import ELEMENTWISE, INLINED, RESHAPES, affine, unit
from hloscope.core.pallas.interpret.primitives import compute
from hloscope.core.pallas.jaxpr import (
    Array,
    Aval,
    Equation,
    Indexer,
    Jaxpr,
    Literal,
    RefView,
    Reinterpret,
    Slice,
    Slot,
    Span,
    dtype_of,
)

READS = frozenset({"get", "masked_load"})
WRITES = frozenset({"swap", "masked_swap"})
"""They return the old value too; whether anybody uses it decides if they read."""
ATOMICS = frozenset({"atomic_rmw", "atomic_cas"})
LOOPS = frozenset({"scan", "while"})
MOST_ROWS = 1 << 20
"""Most (step, iteration) pairs that a loop is unrolled to."""


@dataclass(frozen=True, slots=True, eq=False)
class RefId:
    """A reference of the kernel: an operand by its position, or one that ``run_scoped`` made."""

    position: int | None
    """Among the kernel's inputs; None for a scoped one."""
    name: str
    aval: Aval
    scope: int = 0
    """Which scoped reference; 0 for an operand."""

    @property
    def key(self) -> tuple[int | None, int]:
        """Its identity."""
        return self.position, self.scope


@dataclass(frozen=True, slots=True)
class Range:
    """The elements that an access touches in one dimension of its reference."""

    start: Array | int | None
    """One value a step, one for all, or None where it is not known."""
    size: int | None
    """Elements; None where it is not known."""
    stride: int = 1
    spread: tuple[Array, Array] | None = None
    """Least and greatest start of each step, where a loop moves it; ``start`` is None then."""


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One statement that reads or writes a reference."""

    kind: str
    """``read``, ``write``, ``update`` (reads and writes), ``atomic``, ``dma_read``, ``dma_write``, or ``remote_write``:
    to the same memory of another device."""
    ref: RefId
    ranges: tuple[Range, ...] | None
    """One a dimension; None where the reference is reinterpreted, so that dimensions no longer correspond."""
    equation: Equation
    place: Span | None
    steps: Array | None
    """(steps,) booleans: where it happens; None where data decides."""
    loops: int
    """Loops around it."""
    masked: bool
    order: int
    """Position in program order."""
    reads_old: bool = False
    needed: Array | None = None
    """(steps,) booleans: where what it loads surely gets somewhere; None: wherever it happens."""
    wanted: Array | None = None
    """The same, and where data decides whether a select leaves it out."""

    @property
    def is_whole(self) -> bool:
        """Whether it touches every element of the reference at every step where it happens."""
        if self.masked or self.ranges is None:
            return False
        return all(
            isinstance(one.start, int) and one.start == 0 and one.stride == 1 and one.size == extent
            for one, extent in zip(self.ranges, self.ref.aval.shape, strict=True)
        )

    @property
    def writes(self) -> bool:
        """Whether it changes memory."""
        return self.kind in ("write", "update", "atomic", "dma_write", "remote_write")

    @property
    def reads(self) -> bool:
        """Whether what memory held before matters."""
        return self.kind in ("read", "update", "atomic", "dma_read") or self.reads_old


@dataclass(frozen=True, slots=True, eq=False)
class KernelFacts:
    """What the walk of a kernel found."""

    accesses: tuple[Access, ...]
    primitives: tuple[tuple[Equation, Span | None], ...]
    """Every statement with its place, nested ones too."""

    def of(self, position: int) -> tuple[Access, ...]:
        """Accesses of one operand of the kernel."""
        return tuple(one for one in self.accesses if one.ref.position == position)


_UNKNOWN = None


@dataclass(slots=True)
class _Walker:
    call: PallasCall
    points: Array
    prefetch: Sequence[Array | None]
    accesses: list[Access] = field(default_factory=list[Access])
    primitives: list[tuple[Equation, Span | None]] = field(default_factory=list[tuple[Equation, Span | None]])
    scopes: int = 0
    repeat: int = 1
    """Loop iterations that stand beside each other for every step: ``points`` has that many rows a step."""
    needs: dict[int, Demand] = field(default_factory=dict[int, Demand])
    """Number of a load -> at which steps its value matters."""
    called: Frame | None = None
    """The function that was walked last."""
    cases: list[Frame] = field(default_factory=list[Frame])
    """Those of the branch that was walked last."""

    @property
    def counted(self) -> list[int]:
        """Grid dimensions that ``program_id`` counts."""
        return [d for d in range(self.points.shape[1]) if d not in self.call.vmapped]

    def walk(
        self, jaxpr: Jaxpr, values: Sequence[Any], active: Array | None, loops: int, outer: Span | None
    ) -> list[Any]:
        """Walks a function whose results matter wherever it runs."""
        found = self.inline(jaxpr, values, active, loops, outer)
        assert self.called is not None
        for number, each in loads_needed(self.called).items():
            sure, maybe = self.by_step(each[0], active), self.by_step(each[1], active)
            if self.repeat > 1:  # iterations before one that needs it may have written it
                sure = sure & ~self.by_step(~each[0], active)
            self.needs[number] = sure, maybe
        return found

    def by_step(self, rows: Array, active: Array | None) -> Array:
        """Of booleans by row those by step: whether it is so in some iteration that happens."""
        happens = rows if active is None else rows & active
        full = np.broadcast_to(happens, self.points.shape[:1])
        return full if self.repeat == 1 else np.asarray(full.reshape(-1, self.repeat).any(axis=1))

    def inline(
        self, jaxpr: Jaxpr, values: Sequence[Any], active: Array | None, loops: int, outer: Span | None
    ) -> list[Any]:
        frame = Frame(jaxpr)
        uniform: dict[int, Any] = {}  # arrays all of whose elements are one known scalar
        known: dict[int, Any] = dict(zip(jaxpr.inputs, values, strict=True))
        for variable, value in zip(jaxpr.consts, jaxpr.const_values, strict=False):
            known[variable] = value if value is None or not value.ndim else _UNKNOWN

        def read(atom: Any) -> Any:
            if isinstance(atom, Literal):
                return atom.value if not atom.value.ndim else _UNKNOWN
            return known.get(atom)

        for number, equation in enumerate(jaxpr.equations):
            place = equation.place or outer
            self.primitives.append((equation, place))
            operands = [read(atom) for atom in equation.inputs]
            before, self.called = len(self.accesses), None
            results = self.step(equation, operands, active, loops, place)
            spread = operands[0] if operands else None
            if spread is None and equation.inputs and isinstance(equation.inputs[0], int):
                spread = uniform.get(equation.inputs[0])
            if equation.primitive in INLINED and self.called is not None:
                frame.called[number] = self.called
            elif equation.primitive == "cond":
                frame.branches[number] = self.cases
                if operands[0] is not None:
                    last = len(self.cases) - 1
                    frame.predicates[number] = np.clip(np.asarray(operands[0]).astype(np.int64), 0, last)
            elif equation.primitive in READS and len(self.accesses) > before:
                frame.loads[number] = before
            elif equation.primitive == "select_n" and spread is not None:
                frame.predicates[number] = np.asarray(spread).astype(np.int64)
            elif equation.primitive in RESHAPES and spread is not None and equation.outputs[0] is not None:
                uniform[equation.outputs[0]] = spread
            for variable, value in zip(equation.outputs, results, strict=True):
                if variable is not None:
                    known[variable] = value
        self.called = frame
        return [read(atom) for atom in jaxpr.outputs]

    def step(
        self, equation: Equation, operands: Sequence[Any], active: Array | None, loops: int, place: Span | None
    ) -> Sequence[Any]:
        name = equation.primitive
        nothing: list[Any] = [_UNKNOWN] * len(equation.outputs)
        if name == "program_id":
            return [self.points[:, self.counted[equation.params["axis"]]]]
        if name == "num_programs":
            bound = self.call.grid[self.counted[equation.params["axis"]]]
            return [_UNKNOWN if bound is None else np.asarray(bound, np.int32)]
        if name == "axis_index":
            axis = equation.params["axis_name"]
            axis = axis[0] if isinstance(axis, tuple | list) and len(axis) == 1 else axis
            if axis not in self.call.grid_names:
                return nothing
            return [self.points[:, self.counted[self.call.grid_names.index(str(axis))]]]
        if name == "cond":
            return self.cond(equation, operands, active, loops, place)
        if name in INLINED:
            inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
            if isinstance(inner, Jaxpr) and len(inner.inputs) == len(operands):
                return self.inline(inner, operands, active, loops, place)
        if name == "run_scoped":
            return self.scoped(equation, operands, active, loops, place)
        if name in LOOPS:
            self.loop(equation, operands, active, loops, place)
            return nothing
        if any(isinstance(one, RefId) for one in operands):
            return self.touch(equation, operands, active, loops, place)
        if name in RESHAPES and not equation.out_avals[0].shape and operands[0] is not None:
            return [operands[0]]
        if name in ELEMENTWISE and not equation.out_avals[0].shape and all(one is not None for one in operands):
            dtypes = [dtype_of(aval.dtype) for aval in equation.out_avals]
            try:
                return compute(name, equation.params, operands, dtypes)
            except UnsupportedError:
                return nothing
        return nothing

    def cond(
        self, equation: Equation, operands: Sequence[Any], active: Array | None, loops: int, place: Span | None
    ) -> Sequence[Any]:
        branches = cast("Sequence[Jaxpr]", equation.params["branches"])
        which = operands[0]
        each: list[list[Any]] = []
        cases: list[Frame] = []
        for number, branch in enumerate(branches):
            taken: Array | None = None
            if which is not None and active is not None:
                index = np.clip(np.asarray(which).astype(np.int64), 0, len(branches) - 1)
                taken = active & np.broadcast_to(index == number, active.shape)
            each.append(self.walk(branch, operands[1:], taken, loops, place))
            assert self.called is not None
            cases.append(self.called)
        self.cases = cases
        results: list[Any] = []
        for column in zip(*each, strict=True):
            if which is None or any(one is None or isinstance(one, RefId) for one in column):
                results.append(_UNKNOWN)
            else:
                index = np.clip(np.asarray(which).astype(np.int64), 0, len(branches) - 1)
                results.append(np.choose(index, [np.asarray(one) for one in column]))
        return results

    def scoped(
        self, equation: Equation, operands: Sequence[Any], active: Array | None, loops: int, place: Span | None
    ) -> Sequence[Any]:
        inner = cast("Jaxpr", equation.params["jaxpr"])
        made: list[Any] = []
        for number, variable in enumerate(inner.inputs):
            self.scopes += 1
            made.append(RefId(None, inner.name_of(number), inner.avals[variable], self.scopes))
        closed = Jaxpr(
            (), (), (*inner.consts, *inner.inputs), inner.equations, inner.outputs, inner.avals, inner.function
        )
        return self.walk(closed, [*operands, *made], active, loops, place)

    def loop(
        self, equation: Equation, operands: Sequence[Any], active: Array | None, loops: int, place: Span | None
    ) -> None:
        """A ``while`` body is walked once: what it carries is not known, nor how often it runs."""
        if equation.primitive == "scan":
            self.counted_loop(equation, operands, active, loops, place)
            return
        first, second = int(equation.params["cond_nconsts"]), int(equation.params["body_nconsts"])
        carried = [_keep_refs(one) for one in operands[first + second :]]
        for name, consts in (
            ("cond_jaxpr", operands[:first]),
            ("body_jaxpr", operands[first : first + second]),
        ):
            self.walk(cast("Jaxpr", equation.params[name]), [*consts, *carried], None, loops + 1, place)

    def counted_loop(
        self, equation: Equation, operands: Sequence[Any], active: Array | None, loops: int, place: Span | None
    ) -> None:
        """A ``scan`` (``fori_loop`` of a known length): counters among what it carries take all their values."""
        body = cast("Jaxpr", equation.params["jaxpr"])
        length, consts = int(equation.params["length"]), int(equation.params["num_consts"])
        carried = int(equation.params["num_carry"])
        if length <= 0:
            return
        rows = self.points.shape[0]
        if rows * length > MOST_ROWS:
            values = [*operands[:consts], *[_keep_refs(one) for one in operands[consts:]]]
            self.walk(body, values, active, loops + 1, place)
            return

        def spread(value: Any) -> Any:
            return np.repeat(value, length) if isinstance(value, np.ndarray) and value.ndim else value

        steps = counters(body, consts, carried)
        iteration = np.tile(np.arange(length), rows)
        if equation.params.get("reverse"):
            steps = [None] * carried
        values: list[Any] = [spread(one) for one in operands[:consts]]
        for start, delta in zip(operands[consts : consts + carried], steps, strict=True):
            if isinstance(start, RefId):
                values.append(start)
            elif start is None or delta is None:
                values.append(_UNKNOWN)
            else:
                values.append(np.broadcast_to(spread(np.asarray(start)), iteration.shape) + iteration * delta)
        values.extend(_UNKNOWN for _ in operands[consts + carried :])
        kept = self.points, self.repeat
        self.points, self.repeat = np.repeat(self.points, length, axis=0), self.repeat * length
        self.walk(body, values, spread(active), loops + 1, place)
        self.points, self.repeat = kept

    def touch(
        self, equation: Equation, operands: Sequence[Any], active: Array | None, loops: int, place: Span | None
    ) -> Sequence[Any]:
        for kind, ref, transforms, masked, base in _touched(equation, operands):
            reads_old = kind == "write" and equation.primitive in WRITES and equation.outputs[0] is not None
            ranges = _ranges(transforms, operands, base, ref.aval.shape)
            if self.repeat > 1:
                ranges = None if ranges is None else tuple(_collapsed(one, self.repeat, active) for one in ranges)
            steps = active
            if active is not None and self.repeat > 1:
                steps = np.asarray(active.reshape(-1, self.repeat).any(axis=1))
            self.accesses.append(
                Access(kind, ref, ranges, equation, place, steps, loops, masked, len(self.accesses), reads_old)
            )
        if equation.primitive == "get" and isinstance(operands[0], RefId):
            return [self._prefetched(equation, operands)]
        return [_UNKNOWN] * len(equation.outputs)

    def _prefetched(self, equation: Equation, operands: Sequence[Any]) -> Any:
        position = operands[0].position
        if position is None or position >= len(self.prefetch) or equation.out_avals[0].shape:
            return _UNKNOWN
        source = self.prefetch[position]
        transforms = cast("Sequence[object]", equation.params["tree"])
        if source is None or len(transforms) != 1 or not isinstance(transforms[0], Indexer):
            return _UNKNOWN
        where: list[Any] = []
        for entry, extent in zip(transforms[0].indices, source.shape, strict=True):
            value = operands[1 + entry.index] if isinstance(entry, Slot) else entry
            if value is None or isinstance(value, Slice):
                return _UNKNOWN
            where.append(np.clip(np.asarray(value), 0, extent - 1))
        return source[tuple(where)]


def _collapsed(one: Range, repeat: int, active: Array | None) -> Range:
    """A range of loop iterations as one of grid steps; iterations at which the access does not happen do not count."""
    if not isinstance(one.start, np.ndarray) or not one.start.ndim:
        return one
    rows = one.start.reshape(-1, repeat)
    happens = np.ones(rows.shape, bool) if active is None else active.reshape(-1, repeat)
    never = ~happens.any(axis=1)
    low = np.where(happens, rows, np.iinfo(np.int64).max).min(axis=1)
    high = np.where(happens, rows, np.iinfo(np.int64).min).max(axis=1)
    low[never] = high[never] = 0
    return Range(low, one.size, one.stride) if (low == high).all() else Range(None, one.size, one.stride, (low, high))


def counters(body: Jaxpr, consts: int, carried: int) -> list[int | None]:
    """How much a loop's body adds to each carried integer, in every iteration; None where it does something else."""
    inputs = body.inputs[consts : consts + carried]
    given = [None] * consts + [unit(k, carried) for k in range(carried)]
    given += [None] * (len(body.inputs) - len(given))
    results = affine(body, carried, given)[:carried]
    found: list[int | None] = []
    for k, value in enumerate(results):
        aval = body.avals[inputs[k]]
        same = value is not None and value.coefficients == unit(k, carried).coefficients
        found.append(value.constant if value is not None and same and aval.dtype.startswith("int") else None)
    return found


def _keep_refs(value: Any) -> Any:
    return value if isinstance(value, RefId) else _UNKNOWN


def _touched(equation: Equation, operands: Sequence[Any]) -> Iterator[tuple[str, RefId, Sequence[Any], bool, int]]:
    """(kind, reference, transforms, whether masked, offset of the tree's slots) of each memory access."""
    name = equation.primitive
    if name in ("get", "swap", "addupdate"):
        base = 1 if name == "get" else 2
        kind = {"get": "read", "swap": "write", "addupdate": "update"}[name]
        if isinstance(operands[0], RefId):
            yield kind, operands[0], equation.params["tree"], False, base
        return
    if name in ("masked_load", "masked_swap", "atomic_rmw"):
        ref, transforms, *rest = equation.params["args_tree"]
        mask = rest[0] if name == "masked_load" else rest[1]
        kind = {"masked_load": "read", "masked_swap": "write", "atomic_rmw": "atomic"}[name]
        target = operands[ref.index]
        if isinstance(target, RefId):
            yield kind, target, transforms, mask is not None, 0
        return
    if name == "atomic_cas" and isinstance(operands[0], RefId):
        yield "atomic", operands[0], (), False, 0
        return
    if name == "dma_start":
        source, target, *_ = equation.params["tree"]
        remote = equation.params["tree"][4] is not None
        for kind, view in (("dma_read", source), ("remote_write" if remote else "dma_write", target)):
            ref, transforms = (view.ref, view.transforms) if isinstance(view, RefView) else (view, ())
            if isinstance(operands[ref.index], RefId):
                yield kind, operands[ref.index], transforms, False, 0


def _ranges(
    transforms: Sequence[Any], operands: Sequence[Any], base: int, shape: Sequence[int]
) -> tuple[Range, ...] | None:
    """What a chain of indexers leaves, in dimensions of the whole reference."""
    ranges = [Range(0, extent) for extent in shape]
    open_dims = list(range(len(shape)))
    for one in transforms:
        if isinstance(one, Reinterpret):
            return None
        kept: list[int] = []
        for dim, entry in zip(open_dims, one.indices, strict=True):
            if isinstance(entry, Slice):
                start = _value(entry.start, operands, base)
                size = entry.size if isinstance(entry.size, int) else None
                ranges[dim] = Range(_shift(ranges[dim], start), size, ranges[dim].stride * entry.stride)
                kept.append(dim)
            else:
                value = _value(entry, operands, base)
                if one.int_shape:
                    ranges[dim] = Range(None, None)
                else:
                    ranges[dim] = Range(_shift(ranges[dim], value), 1)
        open_dims = kept
    return tuple(ranges)


def _value(entry: Any, operands: Sequence[Any], base: int) -> Any:
    if isinstance(entry, Slot):
        value = operands[base + entry.index]
        if value is None or isinstance(value, RefId):
            return None
        return int(value) if not np.ndim(value) else np.asarray(value).astype(np.int64)
    return entry


def _shift(outer: Range, start: Any) -> Any:
    return None if start is None or outer.start is None else outer.start + start * outer.stride


def kernel_facts(call: PallasCall, points: Array, prefetch: Sequence[Array | None] = ()) -> KernelFacts:
    """Walks a call's kernel over the grid points (``index_map.grid_points``)."""
    walker = _Walker(call, points, prefetch)
    kernel = call.kernel
    refs = [
        RefId(position, kernel.name_of(position), kernel.avals[variable])
        for position, variable in enumerate(kernel.inputs)
    ]
    with np.errstate(all="ignore"):
        walker.walk(kernel, refs, np.ones(points.shape[0], bool), 0, call.kernel_at or call.at)
    accesses = [
        replace(one, needed=walker.needs[number][0], wanted=walker.needs[number][1]) if number in walker.needs else one
        for number, one in enumerate(walker.accesses)
    ]
    return KernelFacts(tuple(accesses), tuple(walker.primitives))


SPACES: Mapping[str, str] = {
    "default": "what the backend picks: VMEM on a TPU",
    "any": "left where the array is; the kernel copies for itself",
    "hbm": "the chip's main memory",
    "vmem": "a TPU core's vector memory",
    "smem": "scalar memory on a TPU, shared memory on a GPU",
    "cmem": "a TPU's common memory",
    "semaphore": "counters of a TPU core",
    "gmem": "a GPU's global memory",
    "tmem": "a Blackwell GPU's tensor memory",
}
"""Memory spaces by name, lower case."""
