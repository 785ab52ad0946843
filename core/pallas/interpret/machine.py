"""Evaluates traced programs with numpy, one equation after another: the common half of all interpreters.

Equations without effects are computed from the table in ``primitives``. Control flow, references, semaphores and
copies are methods that an interpreter overrides. Whatever may have to wait is a generator that yields while it waits,
so that a scheduler can run several cores and copies; functions without such effects run straight through.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.index_map import INLINED
from hloscope.core.pallas.interpret.faults import Halted
from hloscope.core.pallas.interpret.loops import (
    LONG,
    MOST_ROUNDS,
    SIGNALS,
    EndlessLoop,
    Stopped,
    changes,
    deciding,
    same_values,
)
from hloscope.core.pallas.interpret.lowering import Lowering
from hloscope.core.pallas.interpret.memory import (
    Buffer,
    Ref,
    clamp_range,
    cropped,
    keep_as_told,
    keep_range,
    lanes_outside,
    read,
    resolve,
    write,
    write_masked,
)
from hloscope.core.pallas.interpret.primitives import RULES, filled
from hloscope.core.pallas.jaxpr import Array, Equation, Jaxpr, Literal, RefView, Slot, Span, dtype_of

Run: TypeAlias = Generator[Any, None, list[Any]]
"""Yields while it waits; returns the results."""

EFFECTS = frozenset(
    "get swap addupdate masked_load masked_swap atomic_rmw atomic_cas dma_start dma_wait semaphore_signal "
    "semaphore_wait semaphore_read run_scoped delay debug_callback debug_print debug_barrier_p "
    "get_barrier_semaphore pallas_call trace_value add_dependency".split()
)
"""Primitives that are methods of the machine because they touch memory or time."""
CONTROL = frozenset({"cond", "scan", "while"}) | INLINED


@dataclass(slots=True, eq=False)
class _Step:
    equation: Equation
    inputs: tuple[Any, ...]
    """Variable numbers, or (None, value) pairs of literals."""
    outputs: tuple[int | None, ...]
    rule: Callable[..., Any] | None
    dtypes: tuple[np.dtype[Any], ...]
    control: bool
    dead: tuple[int, ...]
    """Variables whose last use this is."""


@dataclass(slots=True, eq=False)
class _Plan:
    jaxpr: Jaxpr
    steps: list[_Step]
    pure: bool


class Machine:
    """Evaluates functions; memory behaves as under ``interpret=True``: indices out of range are clamped."""

    def __init__(self) -> None:
        self.point: tuple[int, ...] = ()
        """Grid indices of the running step, without those that ``vmap`` added."""
        self.bounds: tuple[int, ...] = ()
        """Grid bounds that ``num_programs`` gives."""
        self.axis_names: tuple[str, ...] = ()
        """Names of the same dimensions, where the call has some."""
        self.place: Span | None = None
        """Where the equation being run is in the user's code."""
        self.lowering: Lowering | None = None
        """What lowering may choose, where that is varied."""
        self.changes = 0
        """How often memory or a semaphore was changed."""
        self.long_loops = 0
        """How many of the running loops have gone round often: whether a store changes anything is looked at then."""
        self.deadline: float | None = None
        """When the run is given up, by ``time.monotonic``."""
        self._plans: dict[int, _Plan] = {}

    # -- functions

    def evaluate(self, jaxpr: Jaxpr, args: Sequence[Any], consts: Sequence[Any] | None = None) -> list[Any]:
        """Runs a function to its end. Raises ``UnsupportedError`` where it has to wait."""
        running = self.run(jaxpr, args, consts)
        try:
            next(running)
        except StopIteration as done:
            return done.value
        raise UnsupportedError("the program waits for something where nothing else runs")

    def run(self, jaxpr: Jaxpr, args: Sequence[Any], consts: Sequence[Any] | None = None) -> Run:
        """Runs a function."""
        plan = self._plan(jaxpr)
        known = self._begin(jaxpr, args, consts)
        if plan.pure:
            self._run_pure(plan, known)
            return _results(jaxpr, known)
        for step in plan.steps:
            operands = [known[one] if type(one) is int else one[1] for one in step.inputs]
            try:
                if step.rule is not None:
                    results = _computed(step, operands)
                else:
                    self.place = step.equation.place or self.place
                    results = yield from self.effect(step.equation, operands)
            except UnsupportedError as error:
                raise self._stopped(error, step.equation) from None
            for variable, value in zip(step.outputs, results, strict=True):
                if variable is not None:
                    known[variable] = value
            for variable in step.dead:
                known.pop(variable, None)
        return _results(jaxpr, known)

    def _run_pure(self, plan: _Plan, known: dict[int, Any]) -> None:
        for step in plan.steps:
            operands = [known[one] if type(one) is int else one[1] for one in step.inputs]
            try:
                if step.rule is not None:
                    results = _computed(step, operands)
                else:
                    results = self._pure_effect(step.equation, operands)
            except UnsupportedError as error:
                raise self._stopped(error, step.equation) from None
            for variable, value in zip(step.outputs, results, strict=True):
                if variable is not None:
                    known[variable] = value
            for variable in step.dead:
                known.pop(variable, None)

    def _stopped(self, error: UnsupportedError, equation: Equation) -> UnsupportedError:
        return error if isinstance(error, Stopped | Halted) else Stopped(error.message, equation.place or self.place)

    def _pure_effect(self, equation: Equation, operands: Sequence[Any]) -> Sequence[Any]:
        name = equation.primitive
        if name == "program_id":
            return [np.int32(self.grid_index(equation.params["axis"]))]
        if name == "num_programs":
            return [np.int32(self.bounds[equation.params["axis"]])]
        running = self.effect(equation, operands)
        try:
            next(running)
        except StopIteration as done:
            return done.value
        raise UnsupportedError(f"{name} waits inside a function that has no effects")

    def _begin(self, jaxpr: Jaxpr, args: Sequence[Any], consts: Sequence[Any] | None) -> dict[int, Any]:
        known: dict[int, Any] = dict(zip(jaxpr.inputs, args, strict=True))
        for variable, value in zip(jaxpr.consts, jaxpr.const_values if consts is None else consts, strict=True):
            if value is None:
                raise UnsupportedError("a constant of the traced program is too large to be written down")
            known[variable] = value
        return known

    def axis_index(self, name: Any) -> int:
        """``lax.axis_index``: a named dimension of the grid, or of a mesh where the machine has one."""
        wanted = name[0] if isinstance(name, tuple) and len(name) == 1 else name
        if wanted in self.axis_names:
            return self.grid_index(self.axis_names.index(str(wanted)))
        raise UnsupportedError(f"the axis {wanted} is not known to the interpreter")

    def grid_index(self, axis: int) -> int:
        """``program_id`` of the running step."""
        return self.point[axis]

    def is_pure(self, jaxpr: Jaxpr) -> bool:
        """Whether a function has no effects, so that it never waits."""
        return self._plan(jaxpr).pure

    def _plan(self, jaxpr: Jaxpr) -> _Plan:
        found = self._plans.get(id(jaxpr))
        if found is None:
            found = self._plans[id(jaxpr)] = self._make_plan(jaxpr)
        return found

    def _make_plan(self, jaxpr: Jaxpr) -> _Plan:
        last: dict[int, int] = {}
        for number, equation in enumerate(jaxpr.equations):
            for atom in equation.inputs:
                if isinstance(atom, int):
                    last[atom] = number
        kept = {atom for atom in jaxpr.outputs if isinstance(atom, int)}
        dead: list[list[int]] = [[] for _ in jaxpr.equations]
        for variable, number in last.items():
            if variable not in kept:
                dead[number].append(variable)
        steps: list[_Step] = []
        pure = True
        for number, equation in enumerate(jaxpr.equations):
            name = equation.primitive
            if name in EFFECTS:
                pure = False
            for inner in _functions(equation):
                pure = pure and self._plan(inner).pure
            rule = RULES.get(name) if name not in EFFECTS and name not in CONTROL else None
            if rule is not None and self.lowering is not None:
                rule = self.lowering.rule(equation, rule)
            dtypes = tuple(dtype_of(aval.dtype) for aval in equation.out_avals) if rule is not None else ()
            inputs = tuple((None, one.value) if isinstance(one, Literal) else one for one in equation.inputs)
            steps.append(_Step(equation, inputs, equation.outputs, rule, dtypes, name in CONTROL, tuple(dead[number])))
        return _Plan(jaxpr, steps, pure)

    # -- effects; each is a generator that returns the results

    def effect(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """Runs one equation that is not in the table."""
        name = equation.primitive
        if name in SIGNALS:
            self.changes += 1
        if name == "program_id":
            return [np.int32(self.grid_index(equation.params["axis"]))]
        if name == "num_programs":
            return [np.int32(self.bounds[equation.params["axis"]])]
        if name == "axis_index":
            return [np.int32(self.axis_index(equation.params["axis_name"]))]
        method = _METHODS.get(name)
        if method is None and name in INLINED:
            method = Machine.do_call
        if method is None:
            raise UnsupportedError(f"the primitive {name} is not supported by the interpreters")
        return (yield from getattr(self, method.__name__)(equation, operands))

    def do_call(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """A call of a function."""
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if not isinstance(inner, Jaxpr):
            raise UnsupportedError(
                f"{equation.primitive} without a traced function is not supported by the interpreters"
            )
        consts = None if len(inner.const_values) == len(inner.consts) else ()
        return (yield from self.run(inner, operands, consts))

    def do_cond(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """One branch."""
        branches = cast("Sequence[Jaxpr]", equation.params["branches"])
        which = max(0, min(int(operands[0]), len(branches) - 1))
        return (yield from self.run(branches[which], operands[1:]))

    def do_scan(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """A loop over leading elements."""
        params = equation.params
        body = cast("Jaxpr", params["jaxpr"])
        consts, carried, length = int(params["num_consts"]), int(params["num_carry"]), int(params["length"])
        fixed, carry = list(operands[:consts]), list(operands[consts : consts + carried])
        elements = operands[consts + carried :]
        stacked: list[list[Any]] = [[] for _ in equation.outputs[carried:]]
        order = range(length - 1, -1, -1) if params.get("reverse") else range(length)
        for position in order:
            self.check_time(0, equation.place or self.place)
            results = yield from self.run(body, [*fixed, *carry, *(one[position] for one in elements)])
            carry = results[:carried]
            for column, value in zip(stacked, results[carried:], strict=True):
                column.append(value)
        if params.get("reverse"):
            stacked = [column[::-1] for column in stacked]
        arrays = [
            np.stack(column) if column else np.zeros(aval.shape, dtype_of(aval.dtype))
            for column, aval in zip(stacked, equation.out_avals[carried:], strict=True)
        ]
        return [*carry, *arrays]

    def do_while(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """A loop until its condition fails."""
        params = equation.params
        first, second = int(params["cond_nconsts"]), int(params["body_nconsts"])
        test, body = cast("Jaxpr", params["cond_jaxpr"]), cast("Jaxpr", params["body_jaxpr"])
        carry = list(operands[first + second :])
        outer = equation.place or self.place
        pure = self.is_pure(test) and self.is_pure(body)
        decides: frozenset[int] | None = None
        for number in itertools.count():
            before, seen = carry, self.changes
            (goes_on,) = yield from self.run(test, [*operands[:first], *carry])
            if not bool(goes_on):
                self.long_loops -= number > LONG
                return carry
            self.check_time(number, outer)
            self.long_loops += number == LONG
            carry = yield from self.run(body, [*operands[first : first + second], *carry])
            if seen == self.changes and number:
                decides = deciding(equation) if decides is None else decides
                if same_values(before, carry, decides):
                    self.place = outer
                    if pure:
                        raise EndlessLoop("the loop never ends: a round changes nothing that it depends on", outer)
                    yield from self.idle(outer)
        return carry

    def check_time(self, rounds: int, place: Span | None) -> None:
        """Raises ``UnsupportedError`` where a loop goes on too long, or the run does."""
        if rounds >= MOST_ROUNDS:
            self.place = place
            raise Stopped(f"the loop at {place} goes on after {MOST_ROUNDS:,} rounds: it is given up", place)
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.place = place
            raise Stopped(f"the time is up in the loop at {place}: --timeout gives more", place)

    def idle(self, place: Span | None) -> Generator[Any, None, None]:
        """A round of a loop was as the one before, and its condition reads memory or a semaphore."""
        raise Stopped(
            f"the loop at {place} waits for memory or a semaphore to change, and here nothing else runs", place
        )
        yield

    def do_run_scoped(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """Memory for as long as a function runs."""
        body = cast("Jaxpr", equation.params["jaxpr"])
        made = [
            self.allocate(body.name_of(number), body.avals[variable]) for number, variable in enumerate(body.inputs)
        ]
        return (yield from self.run(body, made, operands))

    def allocate(self, name: str, aval: Any) -> Ref:
        """A reference to memory that nobody has written."""
        dtype = dtype_of(aval.dtype)
        data = np.zeros(aval.shape, dtype) if aval.is_semaphore else filled(aval.shape, dtype)
        return Ref(Buffer(name, aval, data, aval.space or "default"))

    def do_pallas_call(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """A kernel inside the program."""
        raise UnsupportedError("a pallas_call inside a kernel is not supported by the interpreters")
        yield

    # references

    def out_of_range(self, ref: Ref, dim: int, start: Any, size: int, extent: int) -> Any:
        """What an index out of range becomes."""
        return clamp_range(ref, dim, start, size, extent)

    def load(self, ref: Ref, mask: Array | None = None) -> Array:
        """Reads a reference."""
        del mask
        return read(ref)

    def store(self, ref: Ref, value: Any, mask: Array | None = None) -> None:
        """Writes a reference; where there is a mask, only the elements that it selects."""
        if mask is None:
            write(ref, value)
        else:
            write_masked(ref, value, mask)

    def target(self, equation: Equation, operands: Sequence[Any], base: int) -> Ref:
        """The reference of ``get``, ``swap`` or ``addupdate``."""
        transforms = equation.params["tree"]
        return resolve(operands[0], transforms, operands, base, self.out_of_range) if transforms else operands[0]

    def do_get(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """``ref[…]``."""
        yield from self.pause()
        return [self.load(self.target(equation, operands, 1))]

    def do_swap(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """``ref[…] = value``, giving the old value."""
        yield from self.pause()
        target = self.target(equation, operands, 2)
        old = self.load(target) if equation.outputs[0] is not None else None
        self._put_watched(target, operands[1], None)
        return [old]

    def do_addupdate(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """``ref[…] += value``."""
        yield from self.pause()
        target = self.target(equation, operands, 2)
        self._put_watched(target, self.load(target) + operands[1], None)
        return []

    def _put_watched(self, target: Ref, value: Any, mask: Array | None) -> None:
        """A store; in a long loop one that leaves the memory as it was changes nothing."""
        before = read(target) if self.long_loops else None
        self.store(target, value, mask)
        self.changes += 1 if before is None else changes(before, read(target), None)

    def do_masked_load(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """A load of the elements that a mask selects; others come from ``other``."""
        yield from self.pause()
        ref, transforms, mask, other = equation.params["args_tree"]
        given = slot_value(mask, operands)
        target, chosen = self.masked_target(operands[ref.index], transforms, operands, given)
        shape, dtype = equation.out_avals[0].shape, dtype_of(equation.out_avals[0].dtype)
        found = self.load(target, cropped(chosen, target))
        if found.shape != shape:  # what lies past the end is nobody's
            whole = filled(shape, dtype)
            whole[tuple(slice(0, n) for n in found.shape)] = found
            found = whole
        if chosen is not None:
            if other is not None:
                found = np.where(chosen, found, slot_value(other, operands))
            elif not np.all(given):
                found = self.undefined_lanes(target, found, given)
        return [np.asarray(found, dtype)]

    def do_masked_swap(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """A store of the elements that a mask selects."""
        yield from self.pause()
        ref, transforms, value, mask = equation.params["args_tree"]
        target, chosen = self.masked_target(operands[ref.index], transforms, operands, slot_value(mask, operands))
        chosen = cropped(chosen, target)
        new = cropped(slot_value(value, operands), target)
        old = self.load(target, chosen) if equation.outputs[0] is not None else None
        self._put_watched(target, new, chosen)
        return [old]

    def masked_target(self, ref: Ref, transforms: Sequence[Any], operands: Sequence[Any], mask: Any) -> tuple[Ref, Any]:
        """What a masked access sees, and its mask: slices out of range are cut off, as ``interpret=True`` does."""
        return resolve(ref, transforms, operands, 0, keep_range), mask

    def stray_lanes(
        self, ref: Ref, transforms: Sequence[Any], operands: Sequence[Any], mask: Any
    ) -> tuple[Ref, Array] | None:
        """An access by the indices that the kernel gave, and which lanes that the mask selects lie outside.

        None where no lane does, selected or not.
        """
        strays = False

        def note(ref: Ref, dim: int, start: Any, size: int, extent: int) -> Any:
            nonlocal strays
            strays = True
            return keep_as_told(ref, dim, start, size, extent)

        raw = resolve(ref, transforms, operands, 0, note)
        if not strays:
            return None
        outside = lanes_outside(ref, raw.views[len(ref.views) :])
        return raw, outside & np.broadcast_to(mask, outside.shape)

    def undefined_lanes(self, target: Ref, found: Array, mask: Array) -> Array:
        """What a masked load without ``other`` gives in the lanes that are switched off."""
        del target, mask
        return found

    def do_atomic_rmw(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """An atomic update, giving the old value."""
        yield from self.pause()
        ref, transforms, value, mask = equation.params["args_tree"]
        target, chosen = self.masked_target(operands[ref.index], transforms, operands, slot_value(mask, operands))
        combine = ATOMICS.get(str(equation.params["atomic_type"]).lower())
        if combine is None:
            raise UnsupportedError(f"atomic_{equation.params['atomic_type']} is not supported by the interpreters")
        return [self.atomic(target, combine, (slot_value(value, operands),), chosen)]

    def do_atomic_cas(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """An atomic compare and swap, giving the old value."""
        yield from self.pause()
        target, expected, new = operands[:3]
        return [self.atomic(target, _swapped_if_equal, (expected, new), None)]

    def atomic(self, target: Ref, combine: Callable[..., Any], values: Sequence[Any], mask: Array | None) -> Array:
        """Reads, combines and writes as one access: lanes that share an element count once, as ``interpret=True``."""
        old = self.load(target)
        new = combine(old, *values).astype(old.dtype)
        self.store(target, new, mask)
        self.changes += changes(old, new, mask)
        return old

    def pause(self) -> Generator[Any, None, None]:
        """A point at which others may run."""
        return
        yield

    # copies and semaphores: as under ``interpret=True``, a copy is done when it starts

    def view(self, described: Any, operands: Sequence[Any]) -> Ref | None:
        """A reference of a copy or semaphore operation."""
        if described is None:
            return None
        if isinstance(described, Slot):
            return operands[described.index]
        assert isinstance(described, RefView)
        return resolve(operands[described.ref.index], described.transforms, operands, 0, self.out_of_range)

    def do_dma_start(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """Starts a copy."""
        source, target, sem, _, device = equation.params["tree"]
        if device is not None:
            raise UnsupportedError("copies between devices are not supported by this interpreter")
        from_ref, to_ref, counter = (self.view(one, operands) for one in (source, target, sem))
        assert from_ref is not None and to_ref is not None and counter is not None
        value = self.load(from_ref)
        if value.shape != read(to_ref).shape:
            raise UnsupportedError(f"a copy of shape {list(value.shape)} into {list(read(to_ref).shape)}")
        if equation.params.get("add"):
            value = self.load(to_ref) + value
        self.store(to_ref, value)
        write(counter, read(counter) + value.size)
        return []
        yield

    def do_dma_wait(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """Waits for a copy."""
        _, target, sem, _, _ = equation.params["tree"]
        to_ref, counter = self.view(target, operands), self.view(sem, operands)
        assert to_ref is not None and counter is not None
        write(counter, read(counter) - read(to_ref).size)
        return []
        yield

    def do_semaphore_signal(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """Adds to a semaphore."""
        ref, transforms, value, device, core = equation.params["args_tree"]
        if device is not None or core is not None:
            raise UnsupportedError("signals to other devices or cores are not supported by this interpreter")
        counter = resolve(operands[ref.index], transforms, operands, 0, self.out_of_range)
        write(counter, read(counter) + int(slot_value(value, operands)))
        return []
        yield

    def do_semaphore_wait(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """Waits for a semaphore; here it only subtracts, as ``interpret=True`` does."""
        ref, transforms, value, decrement = equation.params["args_tree"]
        counter = resolve(operands[ref.index], transforms, operands, 0, self.out_of_range)
        if decrement is None or bool(slot_value(decrement, operands)):
            write(counter, read(counter) - int(slot_value(value, operands)))
        return []
        yield

    def do_semaphore_read(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """A semaphore's count."""
        ref, transforms = equation.params["args_tree"]
        counter = resolve(operands[ref.index], transforms, operands, 0, self.out_of_range)
        return [np.int32(read(counter))]
        yield

    def do_nothing(self, equation: Equation, operands: Sequence[Any]) -> Run:
        """What has no effect on values: delays, prints, barriers between the threads of one program."""
        del operands
        return [None] * len(equation.outputs)
        yield


def _swapped_if_equal(old: Any, expected: Any, new: Any) -> Any:
    return np.where(old == expected, new, old)


ATOMICS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "xchg": lambda old, new: np.broadcast_to(new, np.shape(old)),
}  # fmt: skip
"""Atomic operation -> what it makes of the old value and the operand."""

_METHODS: dict[str, Callable[..., Any]] = {
    "cond": Machine.do_cond, "scan": Machine.do_scan, "while": Machine.do_while,
    "run_scoped": Machine.do_run_scoped, "pallas_call": Machine.do_pallas_call, "get": Machine.do_get,
    "swap": Machine.do_swap, "addupdate": Machine.do_addupdate, "masked_load": Machine.do_masked_load,
    "masked_swap": Machine.do_masked_swap, "atomic_rmw": Machine.do_atomic_rmw, "atomic_cas": Machine.do_atomic_cas,
    "dma_start": Machine.do_dma_start, "dma_wait": Machine.do_dma_wait,
    "semaphore_signal": Machine.do_semaphore_signal, "semaphore_wait": Machine.do_semaphore_wait,
    "semaphore_read": Machine.do_semaphore_read, "delay": Machine.do_nothing, "debug_callback": Machine.do_nothing,
    "debug_print": Machine.do_nothing, "debug_barrier_p": Machine.do_nothing, "trace_value": Machine.do_nothing,
    "add_dependency": Machine.do_nothing,
}  # fmt: skip


def _functions(equation: Equation) -> Sequence[Jaxpr]:
    if equation.primitive in ("custom_vjp_call", "custom_jvp_call"):
        inner = equation.params.get("call_jaxpr") or equation.params.get("jaxpr")
        return [inner] if isinstance(inner, Jaxpr) else []
    found: list[Jaxpr] = []
    for value in equation.params.values():
        if isinstance(value, Jaxpr):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(one for one in cast("tuple[object, ...]", value) if isinstance(one, Jaxpr))
    return found


def slot_value(described: Any, operands: Sequence[Any]) -> Any:
    """A dynamic leaf, or a number that the tree holds itself."""
    return operands[described.index] if isinstance(described, Slot) else described


def _results(jaxpr: Jaxpr, known: dict[int, Any]) -> list[Any]:
    return [one.value if isinstance(one, Literal) else known[one] for one in jaxpr.outputs]


def _computed(step: _Step, operands: Sequence[Any]) -> Sequence[Any]:
    assert step.rule is not None
    found = step.rule(step.equation.params, *operands)
    if not isinstance(found, tuple):
        dtype = step.dtypes[0]
        return (found if found.dtype == dtype else np.asarray(found).astype(dtype),)
    return [
        one if one.dtype == dtype else np.asarray(one).astype(dtype)
        for one, dtype in zip(cast("tuple[Any, ...]", found), step.dtypes, strict=True)
    ]
