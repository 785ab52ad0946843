"""A GPU-like interpreter for Triton-style kernels: every grid point is a program, and programs have no order.

Blocks are windows onto the arrays themselves, as pointers are: nothing is copied, what one program stores another one
sees, and a block that reaches past the end reaches foreign memory unless a mask keeps it inside. Accesses of different
programs to one element race if one of them writes, unless both are atomic. Programs run in an order of choice, each to
its end; races are told from what each program touched, whatever the order was.

Source of what a Triton kernel may do: ``jax-ml/jax:jax/_src/pallas/triton/lowering.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.blocks import window
from hloscope.core.pallas.call import PallasCall
from hloscope.core.pallas.grid import concrete_grid
from hloscope.core.pallas.interpret.faults import Fault, Faults, Observer, Outcome, Step
from hloscope.core.pallas.interpret.generic import block_index
from hloscope.core.pallas.interpret.gpu_memory import (
    NOBODY,
    GlobalMemory,
    chosen_part,
    global_memory,
    is_bitcast,
    lanes_by_element,
    own_lanes,
    plain_views,
    pointing,
)
from hloscope.core.pallas.interpret.loops import EndlessLoop, Stopped, changes
from hloscope.core.pallas.interpret.lowering import Lowering
from hloscope.core.pallas.interpret.machine import Machine, Run
from hloscope.core.pallas.interpret.memory import (
    Buffer,
    Cut,
    Index,
    Ref,
    apply,
    clamp_range,
    keep_as_told,
    lanes_outside,
    reach_text,
    read,
    region,
    resolve,
    write,
    write_masked,
)
from hloscope.core.pallas.interpret.order import ORDER_OF_STEPS, Choices
from hloscope.core.pallas.interpret.primitives import filled, uninitialised
from hloscope.core.pallas.jaxpr import Array, Equation, Span, dtype_of, joint_at

PROVES = (
    "for this input: no unmasked access past the end of an array, no read of memory that nobody wrote, and no two"
    " programs that touch one element while one writes it without an atomic"
)
CANNOT = "other inputs, races inside one program's threads, what the compiler refuses, and time"


class GpuMachine(Machine):
    """Runs one call as programs of a GPU."""

    def __init__(
        self, call: PallasCall, operands: Sequence[Any], choices: Choices, *, observer: Observer | None = None
    ) -> None:
        super().__init__()
        self.call, self.choices, self.observer = call, choices, observer
        self.faults = Faults()
        self.program = 0
        self.moment = 0
        self.known: dict[int, int] = {}
        """Program -> moment up to which what it did comes before what the running one does: a lock was handed over."""
        slots = call.slots
        if slots.prefetch:
            raise UnsupportedError("scalar prefetch is a TPU's: the GPU backends do not have it")
        self.grid = concrete_grid(call, [int(one) for one in operands[: slots.dynamic]])
        self.bounds = tuple(bound for d, bound in enumerate(self.grid) if d not in call.vmapped)
        self.axis_names = call.grid_names
        self.points = list(itertools.product(*map(range, self.grid)))
        windows = [
            [window(operand.dims, block_index(self, operand, point, ())) for point in self.points]
            for operand in call.operands
        ]
        inputs = [np.asarray(one) for one in operands[slots.dynamic :]]
        self.memories: list[GlobalMemory] = []
        for position, operand in enumerate(call.operands):
            source = None if operand.kind == "input" else call.alias_of_output(operand.number)
            if source is not None:
                self.memories.append(self.memories[source.number])
                continue
            value = inputs[position] if operand.kind == "input" else None
            self.memories.append(global_memory(operand.name, operand.array, operand.kind, value, windows[position]))
        self.windows = windows

    def run_call(self) -> Outcome:
        """Runs every program once."""
        left = list(range(len(self.points)))
        with np.errstate(all="ignore"):
            while left:
                label = "the program that runs next"
                chosen = self.choices.choose(len(left), label, self.call.at, ORDER_OF_STEPS)
                try:
                    self._run_program(left.pop(chosen))
                except EndlessLoop as error:
                    self.faults.add(Fault("livelock", f"program {self.point}: {error.message}", error.place))
                    return Outcome([], self.faults.found, self.choices.made, finished=False)
        outputs = [np.array(memory.data) for memory in self.memories[self.call.slots.inputs :]]
        for operand, memory in zip(self.call.outputs, self.memories[self.call.slots.inputs :], strict=True):
            written = memory.buffer.written
            if written is not None and not written[memory.inside].all():
                missing = int(np.count_nonzero(memory.inside & ~written))
                self.faults.add(
                    Fault(
                        "output-never-written",
                        f"{missing:,} of {memory.data.size:,} elements of {operand.title} were never written",
                        self.call.kernel_at or operand.place,
                        about=operand.name,
                        joints=frozenset({("unwritten", operand.name)}),
                    )
                )
        return Outcome([outputs], self.faults.found, self.choices.made)

    def _run_program(self, number: int) -> None:
        point = self.points[number]
        self.program = number
        self.known = {}
        self.point = self.call.own_point(point)
        self._note("step", f"program {number}")
        refs: list[Ref] = []
        for operand, memory, windows in zip(self.call.operands, self.memories, self.windows, strict=True):
            seen = windows[number]
            entries: list[Any] = []
            for dim, start, size, low in zip(operand.dims, seen.starts, seen.sizes, memory.low, strict=True):
                entries.append(Cut(start + low, size) if dim.in_ref else start + low)
            named = memory.buffer if memory.buffer.name == operand.name else replace(memory.buffer, name=operand.name)
            refs.append(Ref(named, (Index(tuple(entries)),)))
        scratch = [self.allocate("scratch", aval) for aval in self.call.scratch]
        self.evaluate(self.call.kernel, [*refs, *scratch])

    def _note(self, kind: str, detail: str) -> None:
        if self.observer is not None:
            self.observer(Step(kind, detail, self.point, 0, self.program, self.place))

    def _note_access(self, kind: str, ref: Ref, mask: Array | None) -> None:
        if self.observer is None:
            return
        memory = self._global(ref)
        low = memory.low if memory is not None else (0,) * ref.buffer.data.ndim
        where = region(ref, mask)
        box = tuple((a - by, b - by) for (a, b), by in zip(where.box, low, strict=True))
        self._note(kind, f"{ref.buffer.name}{replace(where, box=box)}")

    def _memory_name(self, ref: Ref) -> str:
        """One name for memory that may have two: an aliased output's is that of its input."""
        memory = self._global(ref)
        return ref.buffer.name if memory is None else memory.buffer.name

    def _global(self, ref: Ref) -> GlobalMemory | None:
        data = ref.buffer.data  # an aliased output has its input's memory under a name of its own
        return next((memory for memory in self.memories if memory.buffer.data is data), None)

    def allocate(self, name: str, aval: Any) -> Ref:
        dtype = dtype_of(aval.dtype)
        return Ref(Buffer(name, aval, filled(aval.shape, dtype), aval.space or "", np.zeros(aval.shape, bool)))

    def idle(self, place: Span | None) -> Generator[Any, None, None]:
        if len(self.points) == 1:
            raise EndlessLoop("the loop never ends: it reads memory that nothing else changes", place)
        raise Stopped(
            f"the loop at {place} waits for another program, and here each one runs to its end before the next begins",
            place,
        )
        yield

    # accesses

    def out_of_range(self, ref: Ref, dim: int, start: Any, size: int, extent: int) -> Any:
        """A pointer goes where it is told: inside the array another block's elements, past its end foreign memory."""
        memory = self._global(ref)
        if memory is None:
            self._outside(ref, f"{reach_text(start, size, extent)} of dimension {dim}", extent)
            return clamp_range(ref, dim, start, size, extent)
        view = ref.views[0]
        assert isinstance(view, Index)
        cuts = [one for one in view.entries if isinstance(one, Cut)]
        base = cuts[dim].start if dim < len(cuts) else 0
        bound = memory.buffer.data.shape[[d for d, one in enumerate(view.entries) if isinstance(one, Cut)][dim]]
        reach = int(np.max(start)) + base + size
        what = f"{reach_text(start, size, extent)} of dimension {dim}"
        if int(np.min(start)) + base < 0 or reach > bound:
            self._outside(ref, what, extent)
            return clamp_range(ref, dim, start, size, extent)
        self._outside(ref, f"{what} of its block", extent)
        return clamp_range(ref, dim, start, size, extent)

    def masked_target(self, ref: Ref, transforms: Sequence[Any], operands: Sequence[Any], mask: Any) -> tuple[Ref, Any]:
        """Every lane has its own pointer: those that the mask switches off may point anywhere."""
        if mask is None:
            return self._unmasked(ref, transforms, operands, 0), mask
        stray = self.stray_lanes(ref, transforms, operands, mask)
        if stray is None:
            return resolve(ref, transforms, operands, 0, self.out_of_range), mask
        raw, outside = stray
        if outside.any():
            extents, count = list(apply(ref.buffer.data, ref.views).shape), np.count_nonzero(outside)
            self.faults.add(
                Fault(
                    "out-of-bounds",
                    f"program {self.point}: {count:,} of the lanes that the mask selects lie outside of"
                    f" {ref.buffer.name} {extents}",
                    self.place,
                )
            )
        return pointing(ref, raw), np.asarray(mask) & ~outside

    def target(self, equation: Equation, operands: Sequence[Any], base: int) -> Ref:
        return self._unmasked(operands[0], equation.params["tree"] or (), operands, base)

    def _unmasked(self, ref: Ref, transforms: Sequence[Any], operands: Sequence[Any], base: int) -> Ref:
        """What an access without a mask sees; lanes out of range are reported, and are ``stray`` from then on."""
        strays = False

        def note(*told: Any) -> Any:
            nonlocal strays
            strays = True
            return self.out_of_range(*told)

        clamped = resolve(ref, transforms, operands, base, note)
        if not strays:
            return clamped
        raw = resolve(ref, transforms, operands, base, keep_as_told)
        try:
            return replace(pointing(ref, raw), stray=lanes_outside(ref, raw.views[len(ref.views) :]))
        except UnsupportedError:  # which lanes they are is not known: none of them counts
            return replace(clamped, stray=np.ones(apply(ref.buffer.data, clamped.views).shape, bool))

    def undefined_lanes(self, target: Ref, found: Array, mask: Array) -> Array:
        label = f"what the lanes hold without `other` that the mask of the load of {target.buffer.name} switches off"
        whole = found.dtype.kind in "iub"  # a NaN shows in whatever is made of it; of whole numbers both ends are tried
        chosen = self.choices.vary(3 if whole else 2, label, self.place)
        if not chosen:
            return found
        if whole:
            least, most = (False, True) if found.dtype.kind == "b" else _ends(found.dtype)
            return np.where(mask, found, np.asarray(least if chosen == 1 else most, found.dtype))
        other = np.where(found == found, uninitialised(found.dtype), np.ones((), found.dtype))
        return np.where(mask, found, other.astype(found.dtype))

    def _outside(self, ref: Ref, what: str, extent: int) -> None:
        self.faults.add(
            Fault(
                "out-of-bounds",
                f"program {self.point} accesses {what} of {ref.buffer.name}, which has {extent}, without a mask",
                self.place,
            )
        )

    def load(self, ref: Ref, mask: Array | None = None) -> Array:
        memory = self._global(ref)
        if memory is not None:
            self._access(memory, ref, "read", mask)
        mask = own_lanes(ref, mask)
        written = ref.buffer.written
        if written is not None:
            views = plain_views(ref)
            part = chosen_part(apply(written, views), mask)
            own = part if memory is None else chosen_part(apply(written | ~memory.inside, views), mask)
            if not own.all():
                self._note_access("read_unwritten", ref, mask)
                self.faults.add(
                    Fault(
                        "uninitialized-read",
                        f"program {self.point} reads {int(np.count_nonzero(~part)):,} elements of {ref.buffer.name}"
                        " that nobody wrote",
                        self.place,
                        joints=joint_at(self.place, self._memory_name(ref)),
                    )
                )
        self._note_access("read", ref, mask)
        found = read(ref)
        return found if ref.stray is None else np.where(ref.stray, uninitialised(found.dtype), found)

    def store(self, ref: Ref, value: Any, mask: Array | None = None) -> None:
        memory = self._global(ref)
        if memory is not None:
            self._access(memory, ref, "write", mask)
        mask = own_lanes(ref, mask)
        self._note_access("write", ref, mask)
        shared = None if any(map(is_bitcast, ref.views)) else lanes_by_element(ref, mask)
        if shared is None:
            self._put(ref, value, mask)
            return
        places, chosen = shared
        label = f"which lane of one store comes last to an element of {ref.buffer.name}"
        if self.choices.choose(2, label, self.place):
            chosen = chosen[::-1]
        flat, given = places.reshape(-1)[chosen], np.broadcast_to(np.asarray(value), places.shape).reshape(-1)[chosen]
        data = ref.buffer.data.reshape(-1)
        for place, one in zip(flat, given, strict=True):
            data[place] = one
        if ref.buffer.written is not None:
            ref.buffer.written.reshape(-1)[flat] = True

    def _put(self, ref: Ref, value: Any, mask: Array | None) -> None:
        if mask is None:
            write(ref, value)
        else:
            write_masked(ref, value, mask)

    def atomic(self, target: Ref, combine: Callable[..., Any], values: Sequence[Any], mask: Array | None) -> Array:
        memory = self._global(target)
        if memory is not None:
            self._access(memory, target, "atomic", mask)
        mask = own_lanes(target, mask)
        written = target.buffer.written
        if written is not None and not chosen_part(apply(written, plain_views(target)), mask).all():
            self.faults.add(
                Fault(
                    "uninitialized-read",
                    f"program {self.point} updates elements of {target.buffer.name} that nobody wrote",
                    self.place,
                    joints=joint_at(self.place, self._memory_name(target)),
                )
            )
        self._note_access("atomic", target, mask)
        shared = lanes_by_element(target, mask)
        if shared is not None:
            return self._atomic_lanes(target, combine, values, shared)
        old = read(target)
        new = combine(old, *values).astype(old.dtype)
        self._put(target, new, mask)
        self.changes += changes(old, new, mask)
        return old

    def _atomic_lanes(
        self, target: Ref, combine: Callable[..., Any], values: Sequence[Any], lanes: tuple[Array, Array]
    ) -> Array:
        """Lanes that share elements update them one after the other; in which order is a choice of the run."""
        places, chosen = lanes
        buffer = target.buffer
        label = f"the order in which the lanes of one atomic update an element of {buffer.name}"
        if self.choices.choose(2, label, self.place):
            chosen = chosen[::-1]
        flat = buffer.data.reshape(-1)  # a view: buffers are whole arrays
        given = [np.broadcast_to(np.asarray(one), places.shape).reshape(-1) for one in values]
        old = np.array(flat[places.reshape(-1)])
        before = np.array(flat[places.reshape(-1)])
        for lane in chosen:
            place = places.flat[lane]
            old[lane] = flat[place]
            flat[place] = combine(old[lane], *(one[lane] for one in given))
        if buffer.written is not None:
            buffer.written.reshape(-1)[places.reshape(-1)[chosen]] = True
        self.changes += changes(before, flat[places.reshape(-1)], None)
        return old.reshape(places.shape)

    def _access(self, memory: GlobalMemory, ref: Ref, kind: str, mask: Array | None) -> None:
        me, views = self.program, plain_views(ref)
        places = apply(memory.index, views)
        chosen = np.reshape(chosen_part(places, own_lanes(ref, mask)), -1)
        if not memory.inside.reshape(-1)[chosen].all():
            outside = int(np.count_nonzero(~memory.inside.reshape(-1)[chosen]))
            verb = {"read": "reads", "write": "writes", "atomic": "updates"}[kind]
            self.faults.add(
                Fault(
                    "out-of-bounds",
                    f"program {self.point} {verb} {outside:,} elements outside of {ref.buffer.name}"
                    f" {list(memory.shape)} {'without a mask' if mask is None else 'that its mask selects'}",
                    self.place,
                )
            )
            chosen = chosen[memory.inside.reshape(-1)[chosen]]  # what lies outside is told, and races with nothing
        memory.places[me, kind] = self.place
        others = {"read": ("writer", "atomic"), "write": ("writer", "reader", "atomic"), "atomic": ("writer", "reader")}
        for name in others[kind]:
            table, when = getattr(memory, name).reshape(-1)[chosen], memory.when[name][chosen]
            hit = np.flatnonzero((table != NOBODY) & (table != me))
            if self.known:
                hit = np.array([k for k in hit if when[k] > self.known.get(int(table[k]), 0)], np.int64)
            if len(hit):
                other = int(table[hit[0]])
                self._race(memory, ref, kind, name, other, int(chosen[hit[0]]))
                break
        column = {"read": "reader", "write": "writer", "atomic": "atomic"}[kind]
        self.moment += 1
        getattr(memory, column).reshape(-1)[chosen] = me
        memory.when[column][chosen] = self.moment
        if kind == "atomic" and len(chosen) == 1:  # it acquires and releases, as atomics of Triton do by default
            known = memory.released.get(int(chosen[0]), {})
            self.known = {q: max(self.known.get(q, 0), known.get(q, 0)) for q in {*self.known, *known}}
            memory.released[int(chosen[0])] = {**self.known, me: self.moment}

    def _race(self, memory: GlobalMemory, ref: Ref, kind: str, table: str, other: int, position: int) -> None:
        verbs = {"read": "reads", "write": "writes", "atomic": "updates", "reader": "reads", "writer": "writes"}
        where = [
            int(i) - low for i, low in zip(np.unravel_index(position, memory.inside.shape), memory.low, strict=True)
        ]
        earlier = {"writer": "write", "reader": "read", "atomic": "atomic"}[table]
        before, name = memory.places.get((other, earlier)), memory.buffer.name
        self.faults.add(
            Fault(
                "race",
                f"program {self.point} {verbs[kind]} element {where} of {ref.buffer.name}, which program"
                f" {self.points[other]} {verbs[table]}: programs run in any order, or at once",
                self.place,
                ((before, f"program {self.points[other]} {verbs[table]} it here"),),
                joints=joint_at(self.place, name) | joint_at(before, name),
            )
        )

    def do_dma_start(self, equation: Equation, operands: Sequence[Any]) -> Run:
        raise UnsupportedError("copies with semaphores are a TPU's: Triton kernels do not have them")
        yield


def _ends(dtype: np.dtype[Any]) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def run_gpu(
    call: PallasCall,
    operands: Sequence[Any],
    choices: Choices,
    *,
    observer: Observer | None = None,
    lowering: Lowering | None = None,
    deadline: float | None = None,
) -> Outcome:
    """Runs a call's programs; ``lowering`` varies the arithmetic, too.

    Raises ``UnsupportedError`` for what the interpreter does not have.
    """
    machine = GpuMachine(call, operands, choices, observer=observer)
    machine.lowering, machine.deadline = lowering, deadline
    return machine.run_call()
