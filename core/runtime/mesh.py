"""One program on several simulated devices: a thread for each, of which one runs at a time.

A device keeps the turn until it has to wait for others, in a collective or a receive. So the run is the same every
time, and a circle of waiting devices is seen and reported instead of hanging.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import EvaluationError, UnsupportedError
from hloscope.core.runtime.evaluator import Evaluator, bind, leaves
from hloscope.core.runtime.evaluator.collectives import TABLE as COLLECTIVES
from hloscope.core.runtime.evaluator.custom_calls import MANUAL
from hloscope.core.runtime.evaluator.dynamic import settled
from hloscope.core.runtime.evaluator.memory import CUT_POINTS, available_memory, in_words
from hloscope.core.runtime.evaluator.values import EvaluationOptions, TooLargeError, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.runtime.evaluator import Array

MOST_DEVICES = 1024
"""Devices that are simulated; a thread each."""


def needs_mesh(module: HloModule) -> bool:
    """Whether some instruction asks which device it is on, or for the others' data."""
    return any(node.opcode in COLLECTIVES or is_border(node) for node in module.instructions())


def is_border(node: HloInstruction) -> bool:
    """Whether it is at the border of a region that each device runs for itself."""
    return node.opcode == "custom-call" and node.attr("custom_call_target") in MANUAL


def evaluate_on_mesh(
    module: HloModule,
    arguments: Sequence[Sequence[Value]],
    *,
    options: EvaluationOptions | None = None,
) -> list[list[Value]]:
    """The entry computation's flattened results on every device, for the arguments of every device.

    Devices are ordered replica by replica, the partitions of one replica together. Raises as `evaluate` does, and
    EvaluationError where the devices end up waiting for each other.
    """
    mesh = SimulatedMesh(module.replica_count, module.num_partitions)
    if len(arguments) != mesh.size:
        raise EvaluationError(f"arguments for {len(arguments)} devices, the module is for {mesh.size}")
    if mesh.size > MOST_DEVICES:
        raise UnsupportedError(f"the module is for {mesh.size} devices, at most {MOST_DEVICES} are simulated")
    evaluator = Evaluator(replace(options or EvaluationOptions(), mesh=mesh))
    entry = module.entry
    names, shapes = [p.name for p in entry.parameters], [p.shape for p in entry.parameters]
    bound = [bind(names, shapes, given) for given in arguments]
    with np.errstate(all="ignore"):
        plan = evaluator.plan(entry)
    limit = evaluator.options.memory_limit or available_memory() * 4 // 5
    needed = plan.peak_bytes * mesh.size
    if needed > limit:
        raise TooLargeError(
            f"evaluating this on {mesh.size} devices takes about {in_words(needed)}, {in_words(limit)} are free",
            hint=CUT_POINTS,
        )
    return mesh.run(lambda device: list(leaves(settled(evaluator.run(plan, bound[device])))))


@dataclass(slots=True)
class _Meeting:
    """One exchange under way."""

    values: dict[int, Value] = field(default_factory=dict)
    """By device."""
    left: int = 0
    """Members that have taken the values."""


class _StoppedError(Exception):
    """Another device failed: this one ends quietly."""


class SimulatedMesh:
    """The devices of one run; see `Mesh` of the evaluator for what instructions ask of it."""

    def __init__(self, replicas: int, partitions: int) -> None:
        self.replicas = replicas
        self.partitions = partitions
        self.size = replicas * partitions
        self._local = threading.local()
        self._turn = threading.Condition()
        self._rounds: dict[tuple[object, ...], int] = {}
        self._meetings: dict[tuple[object, ...], _Meeting] = {}
        self._mail: dict[tuple[object, ...], list[Value]] = {}
        self._waiting: dict[int, tuple[HloInstruction, Callable[[], bool]]] = {}
        self._finished = 0
        self._failure: BaseException | None = None

    @property
    def device(self) -> int:
        """The device whose thread is asking."""
        return int(self._local.device)

    def run(self, function: Callable[[int], list[Value]]) -> list[list[Value]]:
        """The function's result on every device. Raises the first failure of any of them."""
        results: list[list[Value] | None] = [None] * self.size

        def body(device: int) -> None:
            self._local.device = device
            with self._turn:
                try:
                    if self._failure is None:
                        with np.errstate(all="ignore"):
                            results[device] = function(device)
                except _StoppedError:
                    pass
                except BaseException as error:  # handed to the caller's thread
                    self._failure = self._failure or error
                finally:
                    self._finished += 1
                    self._look_for_circle()
                    self._turn.notify_all()

        threads = [threading.Thread(target=body, args=(device,), daemon=True) for device in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return [result if result is not None else [] for result in results]

    def exchange(self, instruction: HloInstruction, members: tuple[int, ...], value: Value) -> list[Value]:
        """Everybody's value in the order of `members`."""
        device = self.device
        if members == (device,):
            return [value]
        key = (instruction, members)
        turn = self._rounds.get((*key, device), 0)
        self._rounds[(*key, device)] = turn + 1
        meeting = self._meetings.setdefault((*key, turn), _Meeting())
        meeting.values[device] = value
        if len(meeting.values) == len(members):
            self._turn.notify_all()
        else:
            self._wait(instruction, lambda: len(meeting.values) == len(members))
        meeting.left += 1
        if meeting.left == len(members):
            del self._meetings[(*key, turn)]
        return [meeting.values[member] for member in members]

    def post(self, key: tuple[object, ...], target: int, value: Value) -> None:
        """Leave a message for a device."""
        self._mail.setdefault((*key, target), []).append(value)
        self._turn.notify_all()

    def fetch(self, instruction: HloInstruction, key: tuple[object, ...]) -> Value:
        """Take the oldest message."""
        box = self._mail.setdefault((*key, self.device), [])
        self._wait(instruction, lambda: bool(box))
        return box.pop(0)

    def _wait(self, instruction: HloInstruction, ready: Callable[[], bool]) -> None:
        if ready():
            return
        self._waiting[self.device] = (instruction, ready)
        self._look_for_circle()
        while not ready():
            if self._failure is not None:
                raise _StoppedError
            self._turn.wait()
        self._waiting.pop(self.device, None)

    def _look_for_circle(self) -> None:
        """With every device waiting for something that has not come, nothing will come any more."""
        if self._failure is not None or not self._waiting or len(self._waiting) + self._finished < self.size:
            return
        if any(ready() for _, ready in self._waiting.values()):
            return
        where = ", ".join(f"{d} at %{node.name}" for d, (node, _) in sorted(self._waiting.items())[:4])
        self._failure = EvaluationError(f"the devices wait for each other, or for one that has finished: {where}")
        self._turn.notify_all()


def on_every_device(arguments: Sequence[Value], devices: int) -> list[list[Value]]:
    """The same arguments for each of so many devices."""
    return [list(arguments) for _ in range(devices)]


def results_of(values: Sequence[Sequence[Value]], output: int) -> list[Array]:
    """One output's array on every device."""
    return [np.asarray(device[output]) for device in values]
