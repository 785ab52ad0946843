"""A TPU-like interpreter: devices with HBM, cores with VMEM and SMEM, copies that end early or late, semaphores.

Every core runs its share of the grid; blocks of inputs are fetched one step ahead and blocks of outputs are written
back behind, as the pipeline does with two buffers. Copies and cores are agents with vector clocks (``order.py``). What
the hardware leaves open is a choice: the order of parallel dimensions, which core runs next, and whether a copy ends
when it starts or as late as somebody waits for it. A run proves nothing about orders that it did not take, but a race
between accesses that it did make is reported whatever order they came in.

Sources: ``jax-ml/jax:jax/_src/pallas/mosaic/interpret/interpret_pallas_call.py`` (what a simulated TPU has),
``jax/_src/pallas/mosaic/pipeline.py#BufferedRef`` (when blocks move).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.accesses import selected_loads
from hloscope.core.pallas.blocks import Window, window
from hloscope.core.pallas.call import Operand, PallasCall, at_point, from_point
from hloscope.core.pallas.grid import UNCOPIED_SPACES, concrete_grid
from hloscope.core.pallas.interpret.faults import Fault, Faults, Observer, Outcome, Step
from hloscope.core.pallas.interpret.generic import block_index, scalar_ref
from hloscope.core.pallas.interpret.machine import Machine, Run, slot_value
from hloscope.core.pallas.interpret.memory import (
    Buffer,
    Cut,
    Index,
    Ref,
    Region,
    apply,
    clamp_range,
    keep_range,
    read,
    region,
    resolve,
    write,
)
from hloscope.core.pallas.interpret.order import Agents, Choices, Clock, Detector, Race, Semaphore, Signal, Touch, join
from hloscope.core.pallas.interpret.primitives import filled
from hloscope.core.pallas.jaxpr import Array, Aval, Equation, Jaxpr, Span, dtype_of

PROVES = (
    "for this input and these orders: no access out of range, no read of memory that nobody wrote, and no two "
    "accesses that were made are unordered"
)
CANNOT = "other inputs, accesses that no run made, what a compiler refuses, time, and the arithmetic of the hardware"
MOST_SWITCHES = 4
"""One in so many pauses of a core may hand over to another core."""


@dataclass(slots=True, eq=False)
class Core:
    """One core of one device: an agent, and where it is in the program."""

    device: int
    number: int
    agent: int
    clock: Clock
    points: list[tuple[int, ...]]
    point: tuple[int, ...] = ()
    place: Span | None = None
    waiting: tuple[Semaphore, int, Span | None] | None = None
    running: Generator[Any, None, Any] | None = None
    done: bool = False
    scopes: int = 0
    buffers: dict[tuple[Any, ...], Buffer] = field(default_factory=dict[tuple[Any, ...], Buffer])
    """Memory by what it is: the same key on another core is the same allocation there."""
    scalars: list[Ref] = field(default_factory=list[Ref])
    blocks: list[_Buffered] = field(default_factory=list["_Buffered"])
    scratch: list[Ref] = field(default_factory=list[Ref])

    @property
    def title(self) -> str:
        """How a report names it."""
        return f"core {self.number}" + (f" of device {self.device}" if self.device >= 0 else "")


@dataclass(slots=True, eq=False)
class Copy:
    """A copy that was started."""

    source: Ref
    target: Ref
    agent: int
    clock: Clock
    signals: tuple[tuple[Semaphore, int], ...]
    place: Span | None
    what: str
    add: bool = False
    done: bool = False


@dataclass(slots=True, eq=False)
class _Buffered:
    """The buffers of one blocked operand on one core."""

    operand: Operand
    position: int
    array: Ref
    slots: list[Buffer]
    turn: int = 0
    window: Window | None = None
    ahead: tuple[Window, Copy, Buffer] | None = None
    behind: Copy | None = None


class TpuMachine(Machine):
    """Runs one call on simulated devices."""

    def __init__(
        self,
        call: PallasCall,
        operands: Sequence[Sequence[Any]],
        choices: Choices,
        *,
        cores: int = 1,
        axes: Sequence[tuple[str, int]] = (),
        unused: frozenset[int] = frozenset(),
        observer: Observer | None = None,
    ) -> None:
        super().__init__()
        self.unused = unused
        """Outputs that the program drops: what races there hurts nobody."""
        self.call, self.operands, self.choices, self.observer = call, operands, choices, observer
        self.axes = tuple(axes)
        """Names and sizes of the mesh's axes, for kernels on several devices."""
        self.faults, self.detector, self.agents = Faults(), Detector(), Agents()
        self.late: list[Copy] = []
        self.semaphores: dict[tuple[int, int], Semaphore] = {}
        self.barriers: dict[tuple[int, int], Buffer] = {}
        slots = call.slots
        first = operands[0]
        self.grid = concrete_grid(call, [int(one) for one in first[: slots.dynamic]])
        self.bounds = tuple(bound for d, bound in enumerate(self.grid) if d not in call.vmapped)
        self.arrays: list[list[Buffer]] = []
        self.cores: list[Core] = []
        shares = self._shares(cores)
        for device, given in enumerate(operands):
            self.arrays.append(self._arrays(device, given))
            for number, points in enumerate(shares):
                clock = self.agents.fresh()
                agent = self.agents.count
                self.cores.append(Core(device if len(operands) > 1 else -1, number, agent, clock, points))
        self.current = self.cores[0]
        self.guarded = selected_loads(call.kernel)
        self.selected = False
        """Whether the running load only feeds a select, which may leave out what nobody wrote."""

    # -- the machine

    def run_call(self) -> Outcome:
        """Runs the kernel to its end, or to a deadlock."""
        for core in self.cores:
            self._prepare(core)
            core.running = self._core(core)
        with np.errstate(all="ignore"):
            finished = self._schedule()
            if finished:
                for copy in list(self.late):
                    self._finish(copy)
                self._leftovers()
                self._check_outputs()
        for race in self.detector.races:
            self.faults.add(_race_fault(race))
        outputs = [[np.array(buffer.data) for buffer in arrays[self.call.slots.inputs :]] for arrays in self.arrays]
        return Outcome(outputs, self.faults.found, self.choices.made, finished)

    def _schedule(self) -> bool:
        current = self.cores[0]
        while True:
            ready = [core for core in self.cores if not core.done and self._can_run(core)]
            if not ready:
                if all(core.done for core in self.cores):
                    return True
                if not self._help_waiting():
                    self._deadlock()
                    return False
                continue
            if current not in ready:
                current = ready[0]
            if len(ready) > 1 and self.choices.choose(MOST_SWITCHES, "which core runs next", current.place) == 1:
                others = [core for core in ready if core is not current]
                current = others[self.choices.choose(len(others), "the core that runs next", current.place)]
            self.current = current
            assert current.running is not None
            try:
                next(current.running)
            except StopIteration:
                current.done = True

    def _can_run(self, core: Core) -> bool:
        if core.waiting is None:
            return True
        semaphore, amount, _ = core.waiting
        return semaphore.count >= amount

    def _help_waiting(self) -> bool:
        """Ends the oldest late copy that signals a semaphore which somebody waits for."""
        wanted = [core.waiting[0] for core in self.cores if core.waiting is not None and not core.done]
        for copy in self.late:
            if any(semaphore in wanted for semaphore, _ in copy.signals):
                self._finish(copy)
                return True
        return False

    def _deadlock(self) -> None:
        blocked = [core for core in self.cores if not core.done and core.waiting is not None]
        for core in blocked:
            assert core.waiting is not None
            semaphore, amount, place = core.waiting
            others = [one for one in blocked if one is not core]
            also = f"; {len(others)} other cores wait too" if others else "; nothing else runs"
            self.faults.add(
                Fault(
                    "deadlock",
                    f"{core.title} waits for ever{at_point(core.point)}: {semaphore.name} is {semaphore.count} and"
                    f" it waits for {amount}{also}",
                    place,
                    tuple((one.waiting[2], f"{one.title} waits here") for one in others if one.waiting is not None),
                )
            )

    def _leftovers(self) -> None:
        for semaphore in self.semaphores.values():
            if semaphore.count:
                last = semaphore.signals[-1]
                self.faults.add(
                    Fault(
                        "semaphore-left",
                        f"{semaphore.name} is {semaphore.count} when the kernel ends: nobody waited for {last.what}",
                        last.place,
                    )
                )

    def _check_outputs(self) -> None:
        """Outputs that the kernel fills by itself; those that the pipeline writes are checked block by block."""
        for device, arrays in enumerate(self.arrays):
            for operand, buffer in zip(self.call.outputs, arrays[self.call.slots.inputs :], strict=True):
                if not _uncopied(operand) or buffer.written is None or buffer.written.all():
                    continue
                missing = int(buffer.written.size - np.count_nonzero(buffer.written))
                where = f" on device {device}" if len(self.arrays) > 1 else ""
                self.faults.add(
                    Fault(
                        "output-never-written",
                        f"{missing:,} of {buffer.written.size:,} elements of {operand.title} were never written{where}",
                        self.call.kernel_at or operand.place,
                    )
                )

    def _shares(self, cores: int) -> list[list[tuple[int, ...]]]:
        """Grid points of each core: parallel dimensions in a chosen order, groups of them dealt out in turn."""
        semantics = self.call.semantics
        parallel = [d for d, word in enumerate(semantics) if word in ("parallel", "core_parallel")]
        orders: list[list[int]] = []
        for d, bound in enumerate(self.grid):
            order = list(range(bound))
            if d in parallel:
                left, order = order, []
                while left:
                    label = f"the next index of parallel dimension {d}"
                    order.append(left.pop(self.choices.choose(len(left), label, self.call.at)))
            orders.append(order)
        points = list(itertools.product(*orders))
        if not parallel or cores <= 1:
            return [points]
        groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for point in points:
            groups.setdefault(tuple(point[d] for d in parallel), []).append(point)
        shares: list[list[tuple[int, ...]]] = [[] for _ in range(min(cores, max(1, len(groups))))]
        each = -(-len(groups) // len(shares))
        for number, group in enumerate(groups.values()):
            shares[number // each].extend(group)
        return [one for one in shares if one] or [[]]

    def _arrays(self, device: int, given: Sequence[Any]) -> list[Buffer]:
        slots = self.call.slots
        inputs = [np.asarray(one) for one in given[slots.dynamic + slots.prefetch :]]
        found: list[Buffer] = []
        for operand, value in zip(self.call.inputs, inputs, strict=True):
            data = np.array(value).reshape(operand.array.shape)
            found.append(Buffer(operand.name, operand.array, data, "hbm", owner=(device, -1)))
        for operand in self.call.outputs:
            source = self.call.alias_of_output(operand.number)
            if source is not None:
                found.append(found[source.number])  # one memory
                continue
            shape, dtype = operand.array.shape, dtype_of(operand.array.dtype)
            data = filled(shape, dtype)
            buffer = Buffer(operand.name, operand.array, data, "hbm", np.zeros(shape, bool), owner=(device, -1))
            buffer.ignored = operand.number in self.unused
            found.append(buffer)
        return found

    # -- a core

    def _prepare(self, core: Core) -> None:
        """Allocates what the kernel is given: other devices may write to it before this core begins."""
        call, slots = self.call, self.call.slots
        given = self.operands[max(core.device, 0)]
        for number, value in enumerate(given[slots.dynamic : slots.dynamic + slots.prefetch]):
            ref = scalar_ref(call, number, np.array(value))
            core.buffers["prefetch", number] = ref.buffer
            core.scalars.append(ref)
        core.blocks = [self._buffered(core, position, operand) for position, operand in enumerate(call.operands)]
        first = slots.prefetch + len(call.operands)
        for number, aval in enumerate(call.scratch):
            name = call.kernel.name_of(first + number)
            core.scratch.append(self._allocate(core, ("scratch", number), name, aval))

    def _core(self, core: Core) -> Generator[Any, None, None]:
        call = self.call
        scalars, blocks, scratch = core.scalars, core.blocks, core.scratch
        windows = self._windows(core, core.points[0], scalars) if core.points else []
        for step, point in enumerate(core.points):
            core.point = tuple(i for d, i in enumerate(point) if d not in call.vmapped)
            core.place = call.at
            self.note("step", f"step {step} of {core.title}")
            yield
            for block, seen in zip(blocks, windows, strict=True):
                self._enter(core, block, seen)
            following = core.points[step + 1] if step + 1 < len(core.points) else None
            next_windows = self._windows(core, following, scalars) if following is not None else None
            for number, block in enumerate(blocks):
                if next_windows is not None and block.operand.kind == "input" and len(block.slots) > 1:
                    self._prefetch(core, block, next_windows[number])
            refs = [self._ref(block) for block in blocks]
            yield from self.run(call.kernel, [*scalars, *refs, *scratch])
            core.place = call.at
            for number, block in enumerate(blocks):
                if block.operand.kind == "output":
                    changes = next_windows is None or next_windows[number] != block.window
                    self._leave(core, block, changes)
            if next_windows is not None:
                windows = next_windows
        for block in blocks:
            if block.behind is not None:
                self._await(core, block.behind)

    def _windows(self, core: Core, point: Sequence[int] | None, scalars: Sequence[Ref]) -> list[Window | None]:
        assert point is not None
        found: list[Window | None] = []
        for operand in self.call.operands:
            if _uncopied(operand):
                found.append(None)
                continue
            kept = core.place
            found.append(window(operand.dims, block_index(self, operand, point, scalars)))
            core.place = kept
        return found

    def _buffered(self, core: Core, position: int, operand: Operand) -> _Buffered:
        array = Ref(self.arrays[max(core.device, 0)][position])
        if _uncopied(operand):
            return _Buffered(operand, position, array, [])
        count = 1 if operand.is_trivial else max(1, min(2, operand.buffers or 2))
        slots: list[Buffer] = []
        for number in range(count):
            aval = operand.ref
            written = np.zeros(aval.shape, bool) if operand.kind == "output" else None
            data = filled(aval.shape, dtype_of(aval.dtype))
            slots.append(Buffer(operand.name, aval, data, operand.space, written, owner=(core.device, core.number)))
            core.buffers["block", position, number] = slots[-1]
        return _Buffered(operand, position, array, slots)

    def _ref(self, block: _Buffered) -> Ref:
        if not block.slots:
            return block.array
        return Ref(block.slots[block.turn])

    def _enter(self, core: Core, block: _Buffered, seen: Window | None) -> None:
        """Makes the block of this step current: an input's is there or is fetched, an output's begins unwritten."""
        if seen is None or seen == block.window:
            return
        if block.operand.kind == "input":
            if block.ahead is not None and block.ahead[0] == seen:
                _, copy, buffer = block.ahead
                self._await(core, copy)
                block.turn = block.slots.index(buffer)
            else:
                if block.window is not None:
                    block.turn = (block.turn + 1) % len(block.slots)
                copy = self._fetch(core, block, seen, block.slots[block.turn])
                self._await(core, copy)
            block.ahead = None
        else:
            if block.window is not None:
                block.turn = (block.turn + 1) % len(block.slots)
            buffer = block.slots[block.turn]
            buffer.data[...] = filled((), buffer.data.dtype)
            assert buffer.written is not None
            buffer.written[...] = False
        block.window = seen

    def _prefetch(self, core: Core, block: _Buffered, seen: Window | None) -> None:
        if seen is None or seen == block.window or block.ahead is not None:
            return
        buffer = block.slots[(block.turn + 1) % len(block.slots)]
        block.ahead = (seen, self._fetch(core, block, seen, buffer), buffer)

    def _fetch(self, core: Core, block: _Buffered, seen: Window, buffer: Buffer) -> Copy:
        inside = seen.inside(block.operand.array.shape)
        self._check_window(core, block.operand, seen)
        buffer.data[...] = filled((), buffer.data.dtype)
        self.note("fetch", f"{block.operand.name}{seen}")
        source, target = _block_refs(block, seen, inside, buffer)
        place = block.operand.place
        return self._start(core, source, target, (), place, f"the pipeline's fetch of {block.operand.name}{seen}")

    def _leave(self, core: Core, block: _Buffered, changes: bool) -> None:
        if block.window is None or not changes:
            return
        if block.behind is not None:
            self._await(core, block.behind)
            block.behind = None
        seen, buffer = block.window, block.slots[block.turn]
        inside = seen.inside(block.operand.array.shape)
        self._check_window(core, block.operand, seen)
        source, target = _block_refs(block, seen, inside, buffer)
        source, target = target, source
        self._check_written(block, seen, source)
        self.note("write_back", f"{block.operand.name}{seen}")
        place = block.operand.place
        copy = self._start(core, source, target, (), place, f"the pipeline's write of {block.operand.name}{seen}")
        if len(block.slots) > 1:
            block.behind = copy
        else:
            self._await(core, copy)

    def _check_window(self, core: Core, operand: Operand, seen: Window) -> None:
        shape = operand.padded_shape
        low = [-dim.padding[0] for dim in operand.dims]
        if all(a <= s and s + n <= b + a for s, n, b, a in zip(seen.starts, seen.sizes, shape, low, strict=True)):
            return
        verb = "reads" if operand.kind == "input" else "writes"
        self.faults.add(
            Fault(
                "index-map-out-of-range",
                f"{from_point(core.point)}the index map of {operand.title} {verb} {seen} of {operand.array}",
                operand.place,
            )
        )

    def _check_written(self, block: _Buffered, seen: Window, source: Ref) -> None:
        written = block.slots[block.turn].written
        assert written is not None
        part = apply(written, source.views)
        if part.size and not part.all():
            missing = int(part.size - np.count_nonzero(part))
            self.faults.add(
                Fault(
                    "output-never-written",
                    f"{missing:,} of {part.size:,} elements of the block {seen} of {block.operand.title} are written"
                    " back without having been stored to",
                    self.call.kernel_at or block.operand.place,
                    ((block.operand.place, "the block"),),
                )
            )

    # -- copies

    def _start(
        self, core: Core, source: Ref, target: Ref, signals: tuple[tuple[Semaphore, int], ...], place: Span | None,
        what: str, add: bool = False,
    ) -> Copy:  # fmt: skip
        agent, clock = self.agents.child(core.clock, core.agent)
        copy = Copy(source, target, agent, clock, signals, place, what, add)
        self.note("copy_start", what)
        if self.choices.choose(2, f"whether {what} ends at once or late", place) == 0:
            self._finish(copy)
        else:
            self.late.append(copy)
        return copy

    def _finish(self, copy: Copy) -> None:
        if copy.done:
            return
        copy.done = True
        if copy in self.late:
            self.late.remove(copy)
        self._touch(copy.source, False, copy.agent, copy.clock, copy.place, copy.what)
        value = read(copy.source)
        if copy.source.buffer.written is not None and copy.source.buffer.space != "hbm":
            self._copy_written(copy)
        self._touch(copy.target, True, copy.agent, copy.clock, copy.place, copy.what)
        if copy.add:
            value = read(copy.target) + value
        write(copy.target, value)
        self.note("copy_done", copy.what)
        for semaphore, amount in copy.signals:
            semaphore.add(Signal(amount, dict(copy.clock), copy.place, copy.what))
        self.agents.end(copy.agent, copy.clock)

    def _copy_written(self, copy: Copy) -> None:
        """A kernel's own copy of memory that nobody wrote; the pipeline's copies are checked where they start."""
        written = copy.source.buffer.written
        if written is None or not copy.signals:
            return
        part = apply(written, copy.source.views)
        if part.size and not part.all():
            self.faults.add(
                Fault(
                    "uninitialized-read",
                    f"{copy.what} copies memory of which {int(part.size - np.count_nonzero(part)):,} of {part.size:,}"
                    " elements were never written",
                    copy.place,
                )
            )

    def _await(self, core: Core, copy: Copy) -> None:
        """The core waits for a copy of the pipeline."""
        self._finish(copy)
        join(core.clock, copy.clock)

    # -- what a kernel does

    def note(self, kind: str, detail: str) -> None:
        """Tells the observer."""
        if self.observer is not None:
            core = self.current
            self.observer(Step(kind, detail, core.point, max(core.device, 0), core.number, core.place))

    def effect(self, equation: Equation, operands: Sequence[Any]) -> Run:
        core = self.current
        core.place = equation.place or core.place
        name = equation.primitive
        self.selected = id(equation) in self.guarded
        if name == "axis_index":
            return [np.int32(self._axis_index(core, equation.params["axis_name"]))]
        if name == "get_barrier_semaphore":
            return [self._barrier(core)]
        return (yield from super().effect(equation, operands))

    def grid_index(self, axis: int) -> int:
        return self.current.point[axis]

    def evaluate(self, jaxpr: Jaxpr, args: Sequence[Any], consts: Sequence[Any] | None = None) -> list[Any]:
        """Runs an index map to its end; pauses of its loads are no waits."""
        running = self.run(jaxpr, args, consts)
        while True:
            try:
                next(running)
            except StopIteration as done:
                return done.value

    def _axis_index(self, core: Core, name: Any) -> int:
        name = name[0] if isinstance(name, tuple) and len(name) == 1 else name
        device = max(core.device, 0)
        for axis, size in reversed(self.axes):
            if axis == name:
                return device % size
            device //= size
        raise UnsupportedError(f"the mesh axis {name} is not known to the interpreter")

    def _barrier(self, core: Core) -> Ref:
        key = (max(core.device, 0), core.number)
        if key not in self.barriers:
            aval = Aval("ref", (), "barrier_semaphore", "semaphore")
            self.barriers[key] = Buffer("the barrier semaphore", aval, np.zeros((), np.int64), "semaphore", owner=key)
            core.buffers["barrier",] = self.barriers[key]
        return Ref(self.barriers[key])

    def allocate(self, name: str, aval: Any) -> Ref:
        core = self.current
        core.scopes += 1
        return self._allocate(core, ("scoped", core.scopes), name, aval)

    def _allocate(self, core: Core, key: tuple[Any, ...], name: str, aval: Aval) -> Ref:
        dtype = dtype_of(aval.dtype)
        if aval.is_semaphore:
            buffer = Buffer(name, aval, np.zeros(aval.shape, dtype), "semaphore", owner=(core.device, core.number))
        else:
            buffer = Buffer(
                name, aval, filled(aval.shape, dtype), aval.space or "default", np.zeros(aval.shape, bool),
                owner=(core.device, core.number),
            )  # fmt: skip
        core.buffers[key] = buffer
        return Ref(buffer)

    def pause(self) -> Generator[Any, None, None]:
        if len(self.cores) > 1:
            yield

    def out_of_range(self, ref: Ref, dim: int, start: Any, size: int, extent: int) -> Any:
        core = self.current
        text = f"{int(start)}:{int(start) + size}" if np.ndim(start) == 0 else f"up to {int(np.max(start))}"
        self.faults.add(
            Fault(
                "out-of-bounds",
                f"{from_point(core.point)}the kernel accesses elements {text} of dimension {dim} of"
                f" {ref.buffer.name}, which has {extent}",
                core.place,
            )
        )
        return clamp_range(ref, dim, start, size, extent)

    def masked_range(self, mask: Any) -> Callable[[Ref, int, Any, int, int], Any]:
        return keep_range if mask is not None else self.out_of_range

    def load(self, ref: Ref, mask: Array | None = None) -> Array:
        core = self.current
        where = self._touch(ref, False, core.agent, core.clock, core.place, self._who(core), mask)
        if ref.buffer.written is not None and not ref.buffer.is_semaphore and not self.selected:
            self._check_read(core, ref, mask, where)
        if self.observer is not None:
            self.note("read", f"{ref.buffer.name}{where}")
        return read(ref)

    def store(self, ref: Ref, value: Any, mask: Array | None = None) -> None:
        core = self.current
        where = self._touch(ref, True, core.agent, core.clock, core.place, self._who(core), mask)
        if self.observer is not None:
            self.note("write", f"{ref.buffer.name}{where}")
        if mask is not None:
            written = ref.buffer.written
            kept = None if written is None else written.copy()
            write(ref, np.where(mask, value, read(ref)))
            if kept is not None and written is not None:
                part = apply(kept, ref.views) | np.broadcast_to(mask, apply(kept, ref.views).shape)
                written[...] = kept
                view = apply(written, ref.views)
                if np.shares_memory(view, written):
                    view[...] = part
            return
        write(ref, value)

    def _who(self, core: Core) -> str:
        return f"{core.title}{at_point(core.point)}"

    def _check_read(self, core: Core, ref: Ref, mask: Array | None, where: Region) -> None:
        assert ref.buffer.written is not None
        views = [one for one in ref.views if isinstance(one, Index)]
        part = apply(ref.buffer.written, views)
        if mask is not None and np.shape(mask) == part.shape:
            part = part | ~np.asarray(mask)
        if part.size and not part.all():
            self.faults.add(
                Fault(
                    "uninitialized-read",
                    f"{from_point(core.point)}the kernel reads {ref.buffer.name}{where}, of which"
                    f" {int(part.size - np.count_nonzero(part)):,} of {part.size:,} elements were never written",
                    core.place,
                )
            )

    def _touch(
        self, ref: Ref, writes: bool, agent: int, clock: Clock, place: Span | None, what: str,
        mask: Array | None = None,
    ) -> Region:  # fmt: skip
        where = region(ref, mask)
        if not ref.buffer.is_semaphore and not ref.buffer.ignored:
            by_kernel = agent == self.current.agent
            touch = Touch(agent, clock[agent], writes, where, place, what, by_kernel)
            self.detector.access(ref.buffer, touch, clock)
        return where

    # semaphores

    def _semaphore(self, ref: Ref) -> Semaphore:
        places = apply(np.arange(ref.buffer.data.size).reshape(ref.buffer.data.shape), ref.views)
        if np.size(places) != 1:
            raise UnsupportedError("an operation on several semaphores at once is not supported by the interpreters")
        position = int(np.reshape(places, ()))
        key = (ref.buffer.number, position)
        if key not in self.semaphores:
            name = ref.buffer.name
            if ref.buffer.data.ndim:
                where = np.unravel_index(position, ref.buffer.data.shape)
                name += f"[{', '.join(map(str, map(int, where)))}]"
            self.semaphores[key] = Semaphore(name, ref.buffer.owner)
        return self.semaphores[key]

    def _twin(self, ref: Ref, device: int | None, number: int | None) -> Ref:
        """The same allocation on another device or core."""
        core = self.current
        wanted_device = max(core.device, 0) if device is None else device
        wanted = core.number if number is None else number
        found = next((c for c in self.cores if max(c.device, 0) == wanted_device and c.number == wanted), None)
        if found is None:
            raise UnsupportedError(
                f"the kernel addresses core {wanted} of device {wanted_device}, which is not simulated"
            )
        arrays = self.arrays[max(core.device, 0)]
        if ref.buffer in arrays:
            return Ref(self.arrays[wanted_device][arrays.index(ref.buffer)], ref.views)
        key = next((key for key, buffer in core.buffers.items() if buffer is ref.buffer), None)
        if key == ("barrier",):
            return Ref(self._barrier(found).buffer, ref.views)
        if key is None or key not in found.buffers:
            raise UnsupportedError(f"{ref.buffer.name} is not allocated on device {wanted_device} yet")
        return Ref(found.buffers[key], ref.views)

    def _device(self, described: Any, operands: Sequence[Any]) -> int:
        """The number of a device: a logical id, mesh coordinates, or a mapping of axis names to coordinates."""
        if isinstance(described, dict):
            core = self.current
            found = {self._axis_name(key): int(slot_value(one, operands)) for key, one in described.items()}
            described = tuple(found.get(axis, self._axis_index(core, axis)) for axis, _ in self.axes)
        if isinstance(described, tuple):
            coordinates = [int(slot_value(one, operands)) for one in described]
            number = 0
            for coordinate, (_, size) in zip(coordinates, self.axes, strict=True):
                number = number * size + coordinate
            return number
        return int(slot_value(described, operands))

    def _axis_name(self, key: Any) -> Any:
        return key[0] if isinstance(key, tuple) and len(key) == 1 else key

    def do_dma_start(self, equation: Equation, operands: Sequence[Any]) -> Run:
        yield from self.pause()
        core = self.current
        source, target, sem, send, device = equation.params["tree"]
        from_ref, to_ref = self.view(source, operands), self.view(target, operands)
        counter = self.view(sem, operands)
        assert from_ref is not None and to_ref is not None and counter is not None
        size = int(read(from_ref).nbytes)
        signals: list[tuple[Semaphore, int]] = []
        where = ""
        if device is not None:
            number = self._device(device, operands)
            where = f" to device {number}"
            to_ref, counter = self._twin(to_ref, number, None), self._twin(counter, number, None)
            sending = self.view(send, operands)
            assert sending is not None
            signals.append((self._semaphore(sending), size))
        signals.append((self._semaphore(counter), size))
        what = f"the copy of {from_ref.buffer.name}{region(from_ref)} into {to_ref.buffer.name}{region(to_ref)}{where}"
        add = bool(equation.params.get("add"))
        self._start(core, from_ref, to_ref, tuple(signals), core.place, what, add)
        return []

    def do_dma_wait(self, equation: Equation, operands: Sequence[Any]) -> Run:
        _, target, sem, _, _ = equation.params["tree"]
        to_ref, counter = self.view(target, operands), self.view(sem, operands)
        assert to_ref is not None and counter is not None
        size = int(math.prod(apply(to_ref.buffer.data, to_ref.views).shape) * to_ref.buffer.data.dtype.itemsize)
        yield from self._wait(self._semaphore(counter), size, True)
        return []

    def _wait(self, semaphore: Semaphore, amount: int, subtract: bool) -> Generator[Any, None, None]:
        core = self.current
        place = core.place
        yield from self.pause()
        while semaphore.count < amount:
            # a late copy ends when somebody waits for what it signals
            copy = next((one for one in self.late if any(s is semaphore for s, _ in one.signals)), None)
            if copy is not None:
                self._finish(copy)
                continue
            core.waiting = (semaphore, amount, place)
            yield
        core.waiting, core.place = None, place
        if subtract:
            semaphore.take(amount, core.clock)
        else:
            semaphore.peek(amount, core.clock)
        self.note("wait", f"{semaphore.name} {amount}")

    def do_semaphore_signal(self, equation: Equation, operands: Sequence[Any]) -> Run:
        yield from self.pause()
        core = self.current
        ref, transforms, value, device, number = equation.params["args_tree"]
        counter = resolve(operands[ref.index], transforms, operands, 0, self.out_of_range)
        if device is not None or number is not None:
            where = None if device is None else self._device(device, operands)
            counter = self._twin(counter, where, None if number is None else int(slot_value(number, operands)))
        amount = int(slot_value(value, operands))
        semaphore = self._semaphore(counter)
        semaphore.add(Signal(amount, dict(core.clock), core.place, f"the signal of {core.title}"))
        core.clock[core.agent] += 1
        self.note("signal", f"{semaphore.name} {amount}")
        return []

    def do_semaphore_wait(self, equation: Equation, operands: Sequence[Any]) -> Run:
        ref, transforms, value, decrement = equation.params["args_tree"]
        counter = resolve(operands[ref.index], transforms, operands, 0, self.out_of_range)
        subtract = decrement is None or bool(slot_value(decrement, operands))
        yield from self._wait(self._semaphore(counter), int(slot_value(value, operands)), subtract)
        return []

    def do_semaphore_read(self, equation: Equation, operands: Sequence[Any]) -> Run:
        ref, transforms = equation.params["args_tree"]
        counter = resolve(operands[ref.index], transforms, operands, 0, self.out_of_range)
        yield from self.pause()
        return [np.int32(self._semaphore(counter).count)]


def _uncopied(operand: Operand) -> bool:
    return operand.space in UNCOPIED_SPACES


def _block_refs(block: _Buffered, seen: Window, inside: tuple[slice, ...] | None, buffer: Buffer) -> tuple[Ref, Ref]:
    """The part of a window that lies in the array, and the same part of the block's buffer."""
    if inside is None:
        inside = tuple(slice(0, 0) for _ in seen.starts)
    outer, inner = [], []
    for part, start, dim in zip(inside, seen.starts, block.operand.dims, strict=True):
        size = part.stop - part.start
        if dim.in_ref:
            outer.append(Cut(part.start, size))
            inner.append(Cut(part.start - start if size else 0, size))
        elif size:
            outer.append(part.start)
        else:
            outer.append(0)
            inner = [Cut(0, 0) for _ in inner]
    return block.array.seen([Index(tuple(outer))]), Ref(buffer).seen([Index(tuple(inner))])


def _race_fault(race: Race) -> Fault:
    first, second = race.first, race.second
    box = first.region if second.region.contains(first.region) else second.region
    # the kernel's own statement is the place to look at; a copy's start stands beside it
    main, other = sorted((first, second), key=_reporting_order)
    return Fault(
        "race",
        f"{main.what} {_verb(main)} {race.buffer.name}{box}, and nothing orders that with {other.what}, which"
        f" {_verb(other)} it",
        main.place,
        ((other.place, f"{other.what} {_verb(other)} it"),),
    )


def _reporting_order(touch: Touch) -> tuple[bool, int, int, bool]:
    place = touch.place
    return (not touch.by_kernel, place.line if place else 0, place.column if place else 0, touch.writes)


def _verb(touch: Touch) -> str:
    return "writes" if touch.writes else "reads"


def run_tpu(
    call: PallasCall,
    operands: Sequence[Sequence[Any]],
    choices: Choices,
    *,
    cores: int = 1,
    axes: Sequence[tuple[str, int]] = (),
    unused: frozenset[int] = frozenset(),
    observer: Callable[[Step], None] | None = None,
) -> Outcome:
    """Runs a call on as many devices as there are lists of operands.

    Raises ``UnsupportedError`` for what the interpreter does not have.
    """
    return TpuMachine(call, operands, choices, cores=cores, axes=axes, unused=unused, observer=observer).run_call()
