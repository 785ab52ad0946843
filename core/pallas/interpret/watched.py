"""Memory under watch: every access and copy of a simulated core, with the clocks that tell whether it races.

The half of the TPU-like interpreter that knows memory. A core and a copy in flight are agents (``order.py``); loads and
stores are checked for elements that nobody wrote, for indices out of range, and against accesses that nothing orders
with them. A copy ends when it starts or as late as somebody waits for it: that is a choice of the run.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from hloscope.core.pallas.accesses import kernel_facts
from hloscope.core.pallas.call import PallasCall, at_point, from_point
from hloscope.core.pallas.interpret.faults import Fault, Faults, Observer, Step
from hloscope.core.pallas.interpret.machine import Machine, Run
from hloscope.core.pallas.interpret.memory import (
    Buffer,
    Index,
    Ref,
    Region,
    apply,
    clamp_range,
    keep_range,
    reach_text,
    read,
    region,
    resolve,
    write,
    write_masked,
)
from hloscope.core.pallas.interpret.order import Agents, Choices, Clock, Detector, Race, Semaphore, Signal, Touch, join
from hloscope.core.pallas.interpret.primitives import filled
from hloscope.core.pallas.jaxpr import NO_JOINTS, Array, Aval, Equation, Jaxpr, Joint, Span, dtype_of, joint_at


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
    filled: Buffer | None = None
    """What the copy that it waits for was to fill."""
    polling: tuple[int, Span | None] | None = None
    """In a loop that only somebody else can end: how much had changed by then, and where the loop is."""
    running: Generator[Any, None, Any] | None = None
    done: bool = False
    scopes: dict[int, int] = field(default_factory=dict[int, int])
    """How often it has entered each ``run_scoped``."""
    buffers: dict[tuple[Any, ...], Buffer] = field(default_factory=dict[tuple[Any, ...], Buffer])
    """Memory by what it is: the same key on another core is the same allocation there."""
    scalars: list[Ref] = field(default_factory=list[Ref])
    blocks: list[Any] = field(default_factory=list[Any])
    """The pipeline's buffers of every operand."""
    scratch: list[Ref] = field(default_factory=list[Ref])

    @property
    def title(self) -> str:
        """How a report names it."""
        return f"core {self.number}" + (f" of device {self.device}" if self.device >= 0 else "")


DISTANT = frozenset({"any", "hbm"})
"""Memory that the cores of a device share."""
SIDES = 2
"""Semaphores of a copy to another device: the sender's, then the receiver's."""


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
    operand: str = ""
    """The operand of which it is a block; empty for a copy of the kernel."""
    stray: bool = False
    """Whether an end lies out of range: that is told, and where it then goes races with nothing."""
    done: bool = False
    value: Any = None
    """What was read, once the source has been."""
    sent: bool = False

    @property
    def is_remote(self) -> bool:
        """Whether it tells the sender and the receiver apart: the first may go on before the second has anything."""
        return len(self.signals) == SIDES

    @property
    def joints(self) -> frozenset[Joint]:
        """What ties its races to one fault: it is not waited for, or the pipeline's blocks meet."""
        place = self.place.spot if self.place is not None else ()
        if not self.signals:
            return frozenset({("fetched" if self.fetches else "blocks", self.operand)})
        return frozenset({("copy", place), *(("semaphore", one.name) for one, _ in self.signals)})

    @property
    def fetches(self) -> bool:
        """Whether the pipeline fetches a block by it; False for a write-back."""
        return self.source.buffer.space == "hbm"

    def awaited(self, semaphore: Semaphore) -> bool:
        """Whether it has yet to signal that semaphore."""
        pending = self.signals[1:] if self.is_remote and self.sent else self.signals
        return any(one is semaphore for one, _ in pending)


class WatchedMachine(Machine):
    """A machine whose memory is watched; subclasses make the cores and set ``current``."""

    current: Core
    """The core that runs."""

    def __init__(self, call: PallasCall, choices: Choices, observer: Observer | None) -> None:
        super().__init__()
        self.call, self.choices, self.observer = call, choices, observer
        self.faults, self.detector, self.agents = Faults(), Detector(), Agents()
        self.late: list[Copy] = []
        """Copies that are in flight."""
        self.cores: list[Core] = []
        self.strays = 0
        """Accesses out of range so far."""
        self.loading: Equation | None = None
        """The statement that runs."""
        self.matters: dict[tuple[int, ...], dict[int, bool | None]] = {}
        """Step -> load -> whether its value gets anywhere then; None: data decides whether a select leaves it out."""

    def note(self, kind: str, detail: str) -> None:
        """Tells the observer."""
        if self.observer is not None:
            core = self.current
            self.observer(Step(kind, detail, core.point, max(core.device, 0), core.number, core.place))

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

    # copies

    def _start(
        self, core: Core, source: Ref, target: Ref, signals: tuple[tuple[Semaphore, int], ...], place: Span | None,
        what: str, add: bool = False, operand: str = "", stray: bool = False,
    ) -> Copy:  # fmt: skip
        agent, clock = self.agents.child(core.clock, core.agent)
        copy = Copy(source, target, agent, clock, signals, place, what, add, operand, stray)
        self.note("copy_start", what)
        if self.choices.choose(2, f"whether {what} ends at once or late", place) == 0:
            self._finish(copy)
        else:
            self.late.append(copy)
        return copy

    def _finish(self, copy: Copy) -> None:
        if copy.done:
            return
        self.changes += 1
        self._send(copy)
        copy.done = True
        if copy in self.late:
            self.late.remove(copy)
        value = copy.value
        if not copy.stray:
            late = frozenset({("late", copy.target.buffer.name)}) if copy.signals else NO_JOINTS
            self._touch(copy.target, True, copy.agent, copy.clock, copy.place, copy.what, joints=copy.joints | late)
        if copy.add:
            value = read(copy.target) + value
        write(copy.target, value)
        if not copy.signals:
            self._carry_unwritten(copy)
        self.note("copy_done", copy.what)
        for semaphore, amount in copy.signals[-1:]:
            semaphore.add(Signal(amount, dict(copy.clock), copy.place, copy.what, by_copy=True))
        self.agents.end(copy.agent, copy.clock)

    def _send(self, copy: Copy) -> None:
        """Reads the source. The sender of a remote copy may go on then; that it arrives is another moment."""
        if copy.sent:
            return
        copy.sent = True
        self.changes += 1
        if not copy.stray:
            self._touch(copy.source, False, copy.agent, copy.clock, copy.place, copy.what, joints=copy.joints)
        copy.value = read(copy.source)
        if copy.source.buffer.written is not None and copy.source.buffer.space != "hbm":
            self._copy_written(copy)
        if copy.is_remote:
            semaphore, amount = copy.signals[0]
            semaphore.add(Signal(amount, dict(copy.clock), copy.place, copy.what, by_copy=True))
            copy.clock[copy.agent] += 1

    def _advance(self, semaphore: Semaphore, place: Span | None) -> bool:
        """One late copy does what signals a semaphore; False where none would. Copies end in any order."""
        late = [one for one in self.late if one.awaited(semaphore)]
        if not late:
            return False
        copy = late[self.choices.choose(len(late), "which of the copies in flight ends first", place)]
        if copy.signals[-1][0] is semaphore:
            self._finish(copy)
        else:
            self._send(copy)
        return True

    def _carry_unwritten(self, copy: Copy) -> None:
        """What nobody wrote in a block is not written in the array either, once the pipeline has copied it there."""
        source, target = copy.source.buffer.written, copy.target.buffer.written
        if source is not None and target is not None:
            views = [one for one in copy.target.views if isinstance(one, Index)]
            apply(target, views)[...] = apply(source, copy.source.views)

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
                    about=copy.source.buffer.name,
                )
            )

    def _await(self, core: Core, copy: Copy) -> None:
        """The core waits for a copy of the pipeline."""
        self._finish(copy)
        join(core.clock, copy.clock)

    # -- what a kernel does
    # accesses

    def do_run_scoped(self, equation: Equation, operands: Sequence[Any]) -> Run:
        body, core = cast("Jaxpr", equation.params["jaxpr"]), self.current
        turn = core.scopes[id(equation)] = core.scopes.get(id(equation), 0) + 1
        made = [
            self._allocate(core, ("scoped", id(equation), turn, number), body.name_of(number), body.avals[variable])
            for number, variable in enumerate(body.inputs)
        ]
        return (yield from self.run(body, made, operands))

    def _allocate(self, core: Core, key: tuple[Any, ...], name: str, aval: Aval) -> Ref:
        """Memory of a core, which another one may have reached for before; HBM of a mesh's cores is one memory."""
        if key in core.buffers:
            return Ref(core.buffers[key])
        if self.call.mesh is not None and aval.space in DISTANT:
            for other in self.cores:
                if other.device == core.device and key in other.buffers:
                    core.buffers[key] = other.buffers[key]
                    return Ref(core.buffers[key])
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
        self.strays += 1
        self.faults.add(
            Fault(
                "out-of-bounds",
                f"{from_point(core.point)}the kernel accesses {reach_text(start, size, extent)} of dimension {dim} of"
                f" {ref.buffer.name}, which has {extent}",
                core.place,
            )
        )
        return clamp_range(ref, dim, start, size, extent)

    def masked_target(self, ref: Ref, transforms: Sequence[Any], operands: Sequence[Any], mask: Any) -> tuple[Ref, Any]:
        if mask is None:
            return resolve(ref, transforms, operands, 0, self.out_of_range), mask
        stray = self.stray_lanes(ref, transforms, operands, mask)
        if stray is not None and stray[1].any():
            core, count = self.current, np.count_nonzero(stray[1])
            self.faults.add(
                Fault(
                    "out-of-bounds",
                    f"{from_point(core.point)}{count:,} of the lanes that the mask selects lie outside of"
                    f" {ref.buffer.name}",
                    core.place,
                )
            )
        return resolve(ref, transforms, operands, 0, keep_range), mask

    def _check_space(self, ref: Ref, verb: str) -> None:
        """Source: ``jax-ml/jax:jax/_src/pallas/mosaic/lowering.py``: loads and stores reach VMEM and SMEM only."""
        if ref.buffer.space in DISTANT:
            self.faults.add(
                Fault(
                    "memory-space",
                    f"the kernel {verb} {ref.buffer.name} directly, which lies in HBM: only copies reach it",
                    self.current.place,
                )
            )

    def load(self, ref: Ref, mask: Array | None = None) -> Array:
        core = self.current
        self._check_space(ref, "reads")
        where = self._touch(ref, False, core.agent, core.clock, core.place, self._who(core), mask)
        loose = None
        if ref.buffer.written is not None and not ref.buffer.is_semaphore:
            loose = self._check_read(core, ref, mask, where)
        if self.observer is not None:
            self.note("read", f"{ref.buffer.name}{where}")
        found = read(ref)
        return found if loose is None or loose.shape != found.shape else self._varied(ref, found, loose)

    def store(self, ref: Ref, value: Any, mask: Array | None = None) -> None:
        core = self.current
        self._check_space(ref, "writes")
        where = self._touch(ref, True, core.agent, core.clock, core.place, self._who(core), mask)
        if self.observer is not None:
            self.note("write", f"{ref.buffer.name}{where}")
        if mask is not None:
            write_masked(ref, value, mask)
            return
        write(ref, value)

    def _who(self, core: Core) -> str:
        return f"{core.title}{at_point(core.point)}"

    def _check_read(self, core: Core, ref: Ref, mask: Array | None, where: Region) -> Array | None:
        """Tells of memory that nobody wrote; gives where it is if only data says whether its content matters."""
        assert ref.buffer.written is not None
        views = [one for one in ref.views if isinstance(one, Index)]
        part = apply(ref.buffer.written, views)
        if mask is not None and np.shape(mask) == part.shape:
            part = part | ~np.asarray(mask)
        if not part.size or part.all():
            return None
        self.note("read_unwritten", f"{ref.buffer.name}{where}")
        matters = self._matters(core)
        if matters:
            self.faults.add(
                Fault(
                    "uninitialized-read",
                    f"{from_point(core.point)}the kernel reads {ref.buffer.name}{where}, of which"
                    f" {int(part.size - np.count_nonzero(part)):,} of {part.size:,} elements were never written",
                    core.place,
                    about=ref.buffer.name,
                    joints=joint_at(core.place, ref.buffer.name) | ref.buffer.begun,
                )
            )
        return ~part if matters is None else None

    def _matters(self, core: Core) -> bool | None:
        """Whether what the running statement loads gets anywhere at this step; None where data decides."""
        if core.point not in self.matters:
            own = iter(core.point)
            point = [0 if d in self.call.vmapped else next(own) for d in range(len(self.call.grid))]
            found: dict[int, bool | None] = {}
            for one in kernel_facts(self.call, np.array([point], np.int32)).accesses:
                sure = one.needed is None or bool(one.needed.any())
                maybe = one.wanted is None or bool(one.wanted.any())
                before = found.get(id(one.equation), False)
                found[id(one.equation)] = True if sure or before else None if maybe or before is None else False
            self.matters[core.point] = found
        return self.matters[core.point].get(id(self.loading), True)

    def _varied(self, ref: Ref, found: Array, loose: Array) -> Array:
        """Other content of memory that nobody wrote: whether the result depends on it is seen by running it so."""
        name, begun = ref.buffer.name, ref.buffer.begun
        when = " when its block comes back" if ("again", name) in begun else ""
        label = f"what the memory of {name} holds that nobody wrote{when}"
        if not self.choices.vary(2, label, self.current.place, name, begun):
            return found
        return np.where(loose, np.ones((), found.dtype), found)

    def _touch(
        self, ref: Ref, writes: bool, agent: int, clock: Clock, place: Span | None, what: str,
        mask: Array | None = None, joints: frozenset[Joint] = NO_JOINTS,
    ) -> Region:  # fmt: skip
        where = region(ref, mask)
        if not ref.buffer.is_semaphore:
            by_kernel = agent == self.current.agent
            joints = joints or joint_at(place, ref.buffer.name)
            touch = Touch(agent, clock[agent], writes, where, place, what, by_kernel, joints)
            self.detector.access(ref.buffer, touch, clock)
        return where

    # semaphores


def race_fault(race: Race) -> Fault:
    """What is told about two accesses that nothing orders."""
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
        about=race.buffer.name,
        joints=first.joints | second.joints,
    )


def _reporting_order(touch: Touch) -> tuple[bool, int, int, bool]:
    place = touch.place
    return (not touch.by_kernel, place.line if place else 0, place.column if place else 0, touch.writes)


def _verb(touch: Touch) -> str:
    return "writes" if touch.writes else "reads"
