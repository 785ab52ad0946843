"""A TPU-like interpreter: devices with HBM, cores with VMEM and SMEM, copies that end early or late, semaphores.

Every core runs its share of the grid; blocks of inputs are fetched one step ahead and blocks of outputs are written
back behind, as the pipeline does with two buffers. Copies and cores are agents with vector clocks (``order.py``). What
the hardware leaves open is a choice: the order of parallel dimensions, which core runs next, whether a copy ends when
it starts or as late as somebody waits for it, and what the padding of a block and a new block of an output hold. A run
proves nothing about orders that it did not take, but a race between accesses that it did make is reported whatever
order they came in.

Sources: ``jax-ml/jax:jax/_src/pallas/mosaic/interpret/interpret_pallas_call.py`` (what a simulated TPU has),
``jax/_src/pallas/mosaic/pipeline.py#BufferedRef`` (when blocks move).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.call import PallasCall, at_point
from hloscope.core.pallas.grid import concrete_grid
from hloscope.core.pallas.interpret.faults import Fault, Halted, Observer, Outcome, Step
from hloscope.core.pallas.interpret.generic import scalar_ref
from hloscope.core.pallas.interpret.loops import EndlessLoop
from hloscope.core.pallas.interpret.lowering import Lowering
from hloscope.core.pallas.interpret.machine import Run, slot_value
from hloscope.core.pallas.interpret.memory import Buffer, Ref, apply, read, region, resolve, write
from hloscope.core.pallas.interpret.order import ORDER_OF_CORES, ORDER_OF_STEPS, Choices, Semaphore, Signal
from hloscope.core.pallas.interpret.pipeline import PipelinedMachine, uncopied
from hloscope.core.pallas.interpret.primitives import filled
from hloscope.core.pallas.interpret.watched import Core, race_fault
from hloscope.core.pallas.jaxpr import NO_JOINTS, Array, Aval, Equation, Joint, Span, dtype_of

PROVES = (
    "for this input and these orders: no access out of range, no read of memory that nobody wrote, and no two "
    "accesses that were made are unordered"
)
CANNOT = "other inputs, accesses that no run made, what a compiler refuses, time, and the arithmetic of the hardware"
MOST_SWITCHES = 4
"""One in so many pauses of a core may hand over to another core."""


class TpuMachine(PipelinedMachine):
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
        super().__init__(call, choices, observer)
        self.unused = unused
        """Outputs that the program drops: what races there hurts nobody."""
        self.operands = operands
        self.axes = tuple(axes)
        """Names and sizes of the mesh's axes, for kernels on several devices."""
        self.semaphores: dict[tuple[int, int], Semaphore] = {}
        self.barriers: dict[tuple[int, int], Buffer] = {}
        slots = call.slots
        first = operands[0]
        self.grid = concrete_grid(call, [int(one) for one in first[: slots.dynamic]])
        self.bounds = tuple(bound for d, bound in enumerate(self.grid) if d not in call.vmapped)
        self.axis_names = call.grid_names
        self.arrays = []
        shares = self._shares(cores)
        for device, given in enumerate(operands):
            self.arrays.append(self._arrays(device, given))
            for number, points in enumerate(shares):
                clock = self.agents.fresh()
                agent = self.agents.count
                self.cores.append(Core(device if len(operands) > 1 else -1, number, agent, clock, points))
        self.current = self.cores[0]

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
                for fault in self.unwritten.values():
                    self.faults.add(fault)
        for race in self.detector.races:
            self.faults.add(race_fault(race))
        outputs = [[_seen(buffer) for buffer in arrays[self.call.slots.inputs :]] for arrays in self.arrays]
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
            if len(ready) > 1 and self._switches(current):
                others = [core for core in ready if core is not current]
                chosen = self.choices.choose(len(others), "the core that runs next", current.place, ORDER_OF_CORES)
                current = others[chosen]
            self.current = current
            assert current.running is not None
            try:
                next(current.running)
            except StopIteration:
                current.done = True
            except Halted as error:
                self.faults.add(error.fault)
                return False
            except EndlessLoop as error:
                self.faults.add(
                    Fault("livelock", f"{current.title}{at_point(current.point)}: {error.message}", error.place)
                )
                return False

    def _switches(self, current: Core) -> bool:
        return self.choices.choose(MOST_SWITCHES, "which core runs next", current.place, ORDER_OF_CORES) == 1

    def _can_run(self, core: Core) -> bool:
        if core.polling is not None:
            return self.changes != core.polling[0]
        if core.waiting is None:
            return True
        semaphore, amount, _ = core.waiting
        return semaphore.count >= amount

    def _help_waiting(self) -> bool:
        """Ends a late copy that signals a semaphore which somebody waits for."""
        waiting = [core.waiting for core in self.cores if core.waiting is not None and not core.done]
        return any(self._advance(semaphore, place) for semaphore, _, place in waiting)

    def idle(self, place: Span | None) -> Generator[Any, None, None]:
        """The core goes round until something changes; a copy in flight ends then, if nothing else does anything."""
        core = self.current
        core.place = place
        seen = self.changes
        core.polling = (seen, place)
        while self.changes == seen:
            if self.late and all(one.done or one is core or not self._can_run(one) for one in self.cores):
                late = self.choices.choose(len(self.late), "which of the copies in flight ends first", place)
                self._finish(self.late[late])
                break
            yield
        core.polling = None

    def _deadlock(self) -> None:
        for core in self.cores:
            if not core.done and core.polling is not None:
                place = core.polling[1]
                self.faults.add(
                    Fault(
                        "livelock",
                        f"{core.title} goes round for ever{at_point(core.point)}: the loop reads memory or a semaphore"
                        " that nothing can change any more",
                        place,
                    )
                )
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
                    joints=_never_filled(core.filled),
                )
            )

    def _leftovers(self) -> None:
        for semaphore in self.semaphores.values():
            if semaphore.count:
                last = semaphore.signals[-1]
                why = f"nobody waited for {last.what}"
                if not last.by_copy:
                    why = f"more was signalled than anybody waited for, last by {last.what}"
                self.faults.add(
                    Fault(
                        "semaphore-left",
                        f"{semaphore.name} is {semaphore.count} when the kernel ends: {why}",
                        last.place,
                        fix=None if last.by_copy else "signal as much as is waited for, or wait for all of it",
                        joints=_of_signal(semaphore.name, last),
                    )
                )

    def _check_outputs(self) -> None:
        """Outputs that the kernel fills by itself; those that the pipeline writes are checked block by block."""
        for device, arrays in enumerate(self.arrays):
            for operand, buffer in zip(self.call.outputs, arrays[self.call.slots.inputs :], strict=True):
                if not uncopied(operand) or buffer.written is None or buffer.written.all():
                    continue
                missing = int(buffer.written.size - np.count_nonzero(buffer.written))
                where = f" on device {device}" if len(self.arrays) > 1 else ""
                self.faults.add(
                    Fault(
                        "output-never-written",
                        f"{missing:,} of {buffer.written.size:,} elements of {operand.title} were never written{where}",
                        self.call.kernel_at or operand.place,
                        about=operand.name,
                        joints=frozenset({("unwritten", operand.name)}),
                    )
                )

    def _shares(self, cores: int) -> list[list[tuple[int, ...]]]:
        """Grid points of each core: parallel dimensions in a chosen order, groups of them dealt out in turn."""
        if self.call.mesh is not None:
            return [[point] for point in itertools.product(*map(range, self.grid))]  # the grid is the cores
        semantics = self.call.semantics
        parallel = [d for d, word in enumerate(semantics) if word in ("parallel", "core_parallel")]
        orders: list[list[int]] = []
        for d, bound in enumerate(self.grid):
            order = list(range(bound))
            if d in parallel:
                left, order = order, []
                while left:
                    label = f"the next index of parallel dimension {d}"
                    order.append(left.pop(self.choices.choose(len(left), label, self.call.at, ORDER_OF_STEPS)))
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
                shared = found[source.number]  # one memory, by the name that the kernel has for the output
                found.append(replace(shared, name=operand.name))
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
            core.point = call.own_point(point)
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
            refs = [self._ref(core, block, point, scalars) for block in blocks]
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

    # -- what a kernel does

    def effect(self, equation: Equation, operands: Sequence[Any]) -> Run:
        core = self.current
        core.place = equation.place or core.place
        name = equation.primitive
        self.loading = equation
        if name == "get_barrier_semaphore":
            return [self._barrier(core)]
        return (yield from super().effect(equation, operands))

    def axis_index(self, name: Any) -> int:
        wanted = self._axis_name(name)
        if wanted in self.axis_names:
            return super().axis_index(name)
        device = max(self.current.device, 0)
        for axis, size in reversed(self.axes):
            if axis == wanted:
                return device % size
            device //= size
        raise UnsupportedError(f"the mesh axis {wanted} is not known to the interpreter")

    def _barrier(self, core: Core) -> Ref:
        key = (max(core.device, 0), core.number)
        if key not in self.barriers:
            aval = Aval("ref", (), "barrier_semaphore", "semaphore")
            self.barriers[key] = Buffer("the barrier semaphore", aval, np.zeros((), np.int64), "semaphore", owner=key)
            core.buffers["barrier",] = self.barriers[key]
        return Ref(self.barriers[key])

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
        if key is None:
            raise UnsupportedError(f"{ref.buffer.name} is not allocated on device {wanted_device}")
        if key not in found.buffers:  # of a scope that it has yet to enter
            self._allocate(found, key, ref.buffer.name, ref.buffer.aval)
        return Ref(found.buffers[key], ref.views)

    def _device(self, described: Any, operands: Sequence[Any]) -> int:
        """The number of a device: a logical id, mesh coordinates, or a mapping of axis names to coordinates."""
        if isinstance(described, dict):
            found = {self._axis_name(key): int(slot_value(one, operands)) for key, one in described.items()}
            described = tuple(found.get(axis, self.axis_index(axis)) for axis, _ in self.axes)
        if isinstance(described, tuple):
            coordinates = [int(slot_value(one, operands)) for one in described]
            number = 0
            for coordinate, (axis, size) in zip(coordinates, self.axes, strict=True):
                if not 0 <= coordinate < size:
                    self._no_device(f"index {coordinate} of the mesh axis {axis}, which has {size}")
                number = number * size + coordinate
            return number
        number, count = int(slot_value(described, operands)), len(self.operands)
        if not 0 <= number < count:
            self._no_device(f"device {number} of {count}")
        return number

    def _no_device(self, what: str) -> NoReturn:
        core = self.current
        raise Halted(Fault("out-of-bounds", f"{core.title} copies or signals to {what}", core.place))

    def _axis_name(self, key: Any) -> Any:
        return key[0] if isinstance(key, tuple) and len(key) == 1 else key

    def do_dma_start(self, equation: Equation, operands: Sequence[Any]) -> Run:
        yield from self.pause()
        core = self.current
        source, target, sem, send, device = equation.params["tree"]
        strays = self.strays
        from_ref, to_ref = self.view(source, operands), self.view(target, operands)
        stray = self.strays > strays
        counter = self.view(sem, operands)
        assert from_ref is not None and to_ref is not None and counter is not None
        size = int(read(from_ref).nbytes)
        signals: list[tuple[Semaphore, int]] = []
        where = ""
        if device is not None:
            number = self._device(device, operands)
            where = f" from device {max(core.device, 0)} to device {number}"
            to_ref, counter = self._twin(to_ref, number, None), self._twin(counter, number, None)
            sending = self.view(send, operands)
            assert sending is not None
            signals.append((self._semaphore(sending), size))
        signals.append((self._semaphore(counter), size))
        what = f"the copy of {from_ref.buffer.name}{region(from_ref)} into {to_ref.buffer.name}{region(to_ref)}{where}"
        sizes = [list(apply(one.buffer.data, one.views).shape) for one in (from_ref, to_ref)]
        if sizes[0] != sizes[1]:
            self.faults.add(Fault("copy-shape", f"{what} is of shape {sizes[0]} into {sizes[1]}", core.place))
            filled_size = math.prod(sizes[1]) * to_ref.buffer.data.dtype.itemsize
            write(to_ref, np.zeros(sizes[1], to_ref.buffer.data.dtype))  # what comes of it is not told as well
            for semaphore, _ in signals:  # whoever waits goes on
                semaphore.add(Signal(filled_size, dict(core.clock), core.place, what))
            return []
        if device is None and _overlap(from_ref, to_ref):
            message = f"{what} reads elements that it writes: what is read first is not defined"
            self.faults.add(Fault("race", message, core.place, about=to_ref.buffer.name))
        add = bool(equation.params.get("add"))
        self._start(core, from_ref, to_ref, tuple(signals), core.place, what, add, stray=stray)
        return []

    def do_dma_wait(self, equation: Equation, operands: Sequence[Any]) -> Run:
        _, target, sem, _, _ = equation.params["tree"]
        to_ref, counter = self.view(target, operands), self.view(sem, operands)
        assert to_ref is not None and counter is not None
        size = int(math.prod(apply(to_ref.buffer.data, to_ref.views).shape) * to_ref.buffer.data.dtype.itemsize)
        yield from self._wait(self._semaphore(counter), size, True, to_ref.buffer)
        return []

    def _wait(
        self, semaphore: Semaphore, amount: int, subtract: bool, filled: Buffer | None = None
    ) -> Generator[Any, None, None]:
        """Until a semaphore has an amount; ``filled`` is what a copy was to fill by then."""
        core = self.current
        core.filled = filled
        place = core.place
        yield from self.pause()
        while semaphore.count < amount:
            # a late copy ends when somebody waits for what it signals
            if self._advance(semaphore, place):
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


def _of_signal(name: str, last: Signal) -> frozenset[Joint]:
    """What ties an amount that is left to races of the copy that nobody waited for."""
    copy = {("copy", last.place.spot)} if last.by_copy and last.place is not None else set[Joint]()
    return frozenset({("semaphore", name), *copy})


def _never_filled(buffer: Buffer | None) -> frozenset[Joint]:
    """What ties a wait for a copy into memory that holds nothing to what is said of that memory."""
    if buffer is None or buffer.written is None or buffer.written.any():
        return NO_JOINTS
    return frozenset({("empty", buffer.name)})


def _overlap(source: Ref, target: Ref) -> bool:
    """Whether a copy's ends share elements."""
    if source.buffer.number != target.buffer.number:
        return False
    return region(source).overlaps(region(target), source.buffer.data.shape)


def _seen(buffer: Buffer) -> Array:
    """What an output holds; elements that nobody wrote as such, since what lay there before is another in every run."""
    data = np.array(buffer.data)
    if buffer.written is not None:
        data[~buffer.written] = filled((), data.dtype)
    return data


def run_tpu(
    call: PallasCall,
    operands: Sequence[Sequence[Any]],
    choices: Choices,
    *,
    cores: int = 1,
    axes: Sequence[tuple[str, int]] = (),
    unused: frozenset[int] = frozenset(),
    observer: Callable[[Step], None] | None = None,
    lowering: Lowering | None = None,
    deadline: float | None = None,
) -> Outcome:
    """Runs a call on as many devices as there are lists of operands; ``lowering`` varies the arithmetic, too.

    Raises ``UnsupportedError`` for what the interpreter does not have.
    """
    machine = TpuMachine(call, operands, choices, cores=cores, axes=axes, unused=unused, observer=observer)
    machine.lowering, machine.deadline = lowering, deadline
    return machine.run_call()
