"""Dataflow: which values each part of each instruction's result may hold, through calls, loops and branches.

In SSA form, as buffer assignment and copy insertion need it: a place where control flow joins holds one phi value. The
body of a fusion is closed; its values count in the numbering and are not kept.
Source: ``openxla/xla:xla/hlo/analysis/hlo_dataflow_analysis.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from hloscope.core.analysis.dataflow_phi import PhiGraph
from hloscope.core.analysis.dataflow_values import HloPosition, HloValue, has_index, sub_shapes
from hloscope.core.errors import UnsupportedError, VerifyError
from hloscope.core.text.async_sugar import async_start_of, wrapped_computation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape, ShapeIndex

ValueSet = tuple[HloValue, ...]
"""Values that a position may hold, by number; more than one only where tuples of loops are ambiguous."""
ValueSets = dict["ShapeIndex", ValueSet]
"""Value set of every part of one instruction's result."""

ASYNC = ("async-start", "async-update", "async-done")


def is_control_flow(computation: HloComputation) -> bool:
    """Whether it runs as part of the program's own order: the entry, and what call, while, conditional and
    asynchronous instructions run."""
    callers = computation.callers
    return not callers or any(one.info.calls == "control-flow" for one in callers)


def bound_operands(start: HloInstruction) -> list[HloInstruction]:
    """The operands of an asynchronous computation: those of the start, and those that its updates and done add."""
    found = list(start.operands)
    link: HloInstruction | None = start
    while link is not None:
        link = next((user for user in link.users if user.opcode in ASYNC[1:] and user.operand(0) is link), None)
        if link is not None:
            found.extend(link.operands[1:])
    return found


def creation_order(module: HloModule) -> list[HloComputation]:
    """Computations by their likely age, which is the order in which XLA numbers values and which no text holds.

    Reducers come with the program, their clones and the bodies of fusions are made later, and what loops and the entry
    hold has been made anew most often. A proto has the true order.
    """
    ranks = {one: _age(one) for one in module.computations}
    return sorted(module.computations, key=ranks.__getitem__)


def _age(computation: HloComputation) -> int:
    if computation.is_entry:
        return 4
    if computation.is_fusion:
        return 2
    if is_control_flow(computation):
        return 3
    return 1 if ".clone" in computation.name else 0


class DataflowAnalysis:
    """The values of a module as it was when this was made."""

    def __init__(self, module: HloModule, computation_order: Sequence[HloComputation] | None = None) -> None:
        self.module = module
        self.computation_order: Sequence[HloComputation] = computation_order or creation_order(module)
        """Decides the numbers of values and nothing else."""
        self._sets: dict[HloInstruction, ValueSets] = {}
        self._phis = PhiGraph()
        self._next = 0
        self._dropped: set[HloValue] = set()
        self._made: list[HloValue] = []
        self._callers = {one: one.callers for one in self.computation_order}
        self._fused = frozenset(
            one for one, callers in self._callers.items() if any(c.opcode == "fusion" for c in callers)
        )
        self._initialize()
        self._propagate()
        self._resolve_phis()
        self.values: list[HloValue] = [one for one in self._made if one not in self._dropped]
        """Every value by number."""
        self._collect_positions()

    # ---------------------------------------------------------------- asking
    def sets(self, instruction: HloInstruction) -> Mapping[ShapeIndex, ValueSet]:
        """The value set of every part of an instruction's result; empty inside fusions."""
        return self._sets.get(instruction, _NOTHING)

    def value_set(self, instruction: HloInstruction, index: ShapeIndex = ()) -> ValueSet:
        """The values that a position may hold."""
        return self.sets(instruction).get(index, ())

    def defined_at(self, instruction: HloInstruction, index: ShapeIndex = ()) -> HloValue | None:
        """The value that is made at a position, None where it only holds one that was made elsewhere."""
        for value in self.value_set(instruction, index):
            if value.instruction is instruction and value.index == index:
                return value
        return None

    def callers(self, computation: HloComputation) -> tuple[HloInstruction, ...]:
        """The instructions that call a computation."""
        return self._callers.get(computation, ())

    def is_fused(self, computation: HloComputation) -> bool:
        """Whether it is the body of a fusion."""
        return computation in self._fused

    # ---------------------------------------------------------------- first values
    def _initialize(self) -> None:
        for computation in self.computation_order:
            fused = computation in self._fused
            inflow = self._has_inflow(computation)
            for node in computation.post_order():
                parts = sub_shapes(node.shape)
                if fused:
                    self._next += sum(1 for index, part in parts if _defines(node, index, part, inflow=False))
                    continue
                self._sets[node] = {
                    index: (self._new(node, index),) if _defines(node, index, part, inflow=inflow) else ()
                    for index, part in parts
                }

    def _has_inflow(self, computation: HloComputation) -> bool:
        """Whether its parameters get their values from its callers."""
        callers = self._callers[computation]
        contexts = {one.info.calls for one in callers}
        if len(contexts - {"none"}) > 1:
            raise UnsupportedError(
                f"computation {computation.name} is called both as control flow and element by element",
                hint="the flatten-call-graph pass gives every caller its own copy",
            )
        # What a fusion's body calls is closed like the body itself, of which no values are kept.
        return "control-flow" in contexts and not any(one.parent in self._fused for one in callers)

    def _new(self, node: HloInstruction, index: ShapeIndex, *, phi: bool = False) -> HloValue:
        value = HloValue(self._next, node, index, is_phi=phi)
        self._next += 1
        self._made.append(value)
        return value

    # ---------------------------------------------------------------- propagation
    def _propagate(self) -> None:
        ordinals = self._ordinals()
        work: list[tuple[int, int, HloInstruction]] = []
        waiting: set[HloInstruction] = set()
        serial = 0

        def add(node: HloInstruction) -> None:
            nonlocal serial
            if node not in waiting and node in self._sets:
                waiting.add(node)
                serial += 1
                heappush(work, (ordinals.get(node, 0), serial, node))

        for computation in self.computation_order:
            if computation not in self._fused:
                for node in computation.post_order():
                    add(node)
        while work:
            node = heappop(work)[2]
            waiting.discard(node)
            update = self._UPDATES.get(node.opcode)
            if update is None or not update(self, node):
                continue
            for user in node.users:
                add(user)
                for parameter in _parameters_fed(user, node):
                    add(parameter)
            if node.is_root:
                self._feed_callers(node, add)

    def _feed_callers(self, root: HloInstruction, add: Callable[[HloInstruction], None]) -> None:
        for caller in self._callers.get(root.parent, ()):
            if caller.opcode == "while":
                add(caller)
                add(caller.callee("body").parameters[0])
                add(caller.callee("condition").parameters[0])
            elif caller.info.calls == "control-flow":
                add(caller)
                for link in _chain_after(caller):
                    add(link)

    def _ordinals(self) -> dict[HloInstruction, int]:
        """The order in which work is taken up: entry first to last, callees before their caller."""
        found: dict[HloInstruction, int] = {}
        stack: list[Iterator[HloInstruction]] = [_flat(self.module.entry)]
        entered = {self.module.entry}
        while stack:
            for node in stack[-1]:
                if node.opcode in ("while", "call", "conditional", "async-start"):
                    pending = [one for one in _callee_order(node) if one not in entered]
                    if pending:
                        entered.update(pending)
                        stack[-1] = _chained(node, stack[-1])
                        stack.extend(_flat(one) for one in reversed(pending))
                        break
                found.setdefault(node, len(found))
            else:
                stack.pop()
        return found

    def _assign(self, node: HloInstruction, index: ShapeIndex, values: ValueSet) -> bool:
        sets = self._sets[node]
        if index not in sets or sets[index] == values:
            return False
        sets[index] = values
        return True

    def _forward(self, node: HloInstruction) -> bool:
        """Holds what operand 0 holds."""
        source = self._sets[node.operand(0)]
        return _any(self._assign(node, index, source.get(index, ())) for index in self._sets[node])

    def _copy(self, node: HloInstruction) -> bool:
        source = self._sets[node.operand(0)]
        return _any(self._assign(node, index, source.get(index, ())) for index in self._sets[node] if index)

    def _tuple(self, node: HloInstruction) -> bool:
        changed = False
        for number, operand in enumerate(node.operands):
            for index, values in self._sets[operand].items():
                changed |= self._assign(node, (number, *index), values)
        return changed

    def _element(self, node: HloInstruction) -> bool:
        source, number = self._sets[node.operand(0)], int(node.attr("index"))
        return _any(self._assign(node, index, source.get((number, *index), ())) for index in self._sets[node])

    def _call(self, node: HloInstruction) -> bool:
        source = self._sets[node.callee("to_apply").root]
        return _any(self._assign(node, index, source.get(index, ())) for index in self._sets[node])

    def _while(self, node: HloInstruction) -> bool:
        return self._phi(node, [self._sets[node.callee("body").root], self._sets[node.operand(0)]])

    def _conditional(self, node: HloInstruction) -> bool:
        return self._phi(node, [self._sets[one.root] for one in _callee_order(node)])

    def _parameter(self, node: HloInstruction) -> bool:
        computation, number = node.parent, node.parameter_number
        if not self._has_inflow(computation):
            return False
        inputs: list[ValueSets] = []
        joins = False
        for caller in self._callers.get(computation, ()):
            if caller.opcode == "call":
                if number >= caller.operand_count:
                    raise VerifyError(f"{caller.name} gives {computation.name} no operand for parameter {number}")
                inputs.append(self._sets[caller.operand(number)])
            elif caller.opcode == "while":
                inputs.append(self._sets[caller.operand(0)])
                root = caller.callee("body").root
                if root is not node:
                    inputs.append(self._sets[root])
                joins = True
            elif caller.opcode == "conditional":
                place = _callee_order(caller).index(computation)
                inputs.append(self._sets[caller.operand(place + 1)])
                joins = True
            elif caller.opcode == "async-start":
                bound = bound_operands(caller)
                if number < len(bound):
                    inputs.append(self._sets[bound[number]])
        if not inputs:
            return False
        if joins:
            return self._phi(node, inputs)
        return _any(self._assign(node, index, _union([one.get(index, ()) for one in inputs]))
                    for index in self._sets[node])  # fmt: skip

    def _phi(self, node: HloInstruction, inputs: Sequence[ValueSets]) -> bool:
        changed = False
        sets = self._sets[node]
        for index, values in sets.items():
            current = values[0] if values else None
            here = current is not None and current.instruction is node and current.index == index
            incoming = [value for one in inputs for value in one.get(index, ())]
            if not incoming:
                continue
            if len(incoming) == 1:
                if current is incoming[0]:
                    continue
                if here and current is not None:
                    self._dropped.add(current)
                sets[index] = (incoming[0],)
                changed = True
            elif current is None or not here or not current.is_phi:
                made = self._new(node, index, phi=True)
                sets[index] = (made,)
                self._phis.register(made, incoming)
                changed = True
            elif not self._phis.has_inputs(current, incoming):
                self._phis.register(current, incoming)
                changed = True
        return changed

    # ---------------------------------------------------------------- asynchronous operations
    def _async_start(self, node: HloInstruction) -> bool:
        changed = False
        for number, operand in enumerate(node.operands):
            for index, part in sub_shapes(operand.shape):
                if not part.is_tuple:
                    changed |= self._assign(node, (0, number, *index), self._sets[operand][index])
        return self._async_output(node) or changed

    def _async_update(self, node: HloInstruction) -> bool:
        changed = False
        start = async_start_of(node)
        for number, operand in enumerate(bound_operands(start) if start is not None else ()):
            for index, part in sub_shapes(operand.shape):
                if not part.is_tuple:
                    changed |= self._assign(node, (0, number, *index), self._sets[operand][index])
        return self._async_output(node) or changed

    def _async_output(self, node: HloInstruction) -> bool:
        wrapped = wrapped_computation(node)
        if wrapped is None or wrapped not in self._callers:
            return False
        prefix: ShapeIndex = () if node.opcode == "async-done" else (1,)
        changed = False
        for index, part in sub_shapes(wrapped.root.shape):
            target = (*prefix, *index)
            if part.is_tuple or not has_index(node.shape, target) or node.shape.sub(target).is_tuple:
                continue
            changed |= self._assign(node, target, self._sets[wrapped.root][index])
        return changed

    def _start_with_operands(self, node: HloInstruction) -> bool:
        """all-gather-start, collective-permute-start: the operands stand under ``{0}``."""
        many = node.shape.tuple_shapes[0].is_tuple
        changed = False
        for number, operand in enumerate(node.operands):
            for index, values in self._sets[operand].items():
                target = (0, number, *index) if many else (0, *index)
                if has_index(node.shape, target):
                    changed |= self._assign(node, target, values)
            if not many:
                break
        return changed

    def _done_of_second(self, node: HloInstruction) -> bool:
        """all-gather-done, collective-permute-done: what the start holds under ``{1}``."""
        source = self._sets[node.operand(0)]
        whole = node.shape.is_tuple
        return _any(
            self._assign(node, index, source.get((1, *index), ())) for index in self._sets[node] if index or not whole
        )

    def _copy_start(self, node: HloInstruction) -> bool:
        return self._assign(node, (1,), self._sets[node.operand(0)].get((), ()))

    def _send(self, node: HloInstruction) -> bool:
        source = self._sets[node.operand(0)]
        return _any(self._assign(node, (0, *index), values) for index, values in source.items())

    def _first_of_operand(self, node: HloInstruction) -> bool:
        """copy-done: what the start holds under ``{0}``."""
        source = self._sets[node.operand(0)]
        return _any(self._assign(node, index, source.get((0, *index), ())) for index in self._sets[node])

    def _recv_done(self, node: HloInstruction) -> bool:
        source = self._sets[node.operand(0)]
        return _any(self._assign(node, index, source.get(index, ())) for index in self._sets[node] if index[:1] == (0,))

    # ---------------------------------------------------------------- end
    def _resolve_phis(self) -> None:
        self._phis.optimize()
        for sets in self._sets.values():
            for index, values in sets.items():
                if not any(one.is_phi for one in values):
                    continue
                kept = tuple(self._phis.replacement(one) if one.is_phi else one for one in values)
                if kept != values:
                    self._dropped.update(one for one in values if one not in kept)
                    sets[index] = _union([kept])

    def _collect_positions(self) -> None:
        for computation in self.module.computations:
            for node in computation:
                for index, values in self._sets.get(node, _NOTHING).items():
                    for value in values:
                        if value.instruction is not node:
                            value.positions.append(HloPosition(node, index))

    _UPDATES: ClassVar[Mapping[str, Callable[[DataflowAnalysis, HloInstruction], bool]]] = MappingProxyType(
        {
            "bitcast": _forward,
            "domain": _forward,
            "add-dependency": _forward,
            "opt-barrier": _forward,
            "all-reduce-done": _forward,
            "copy": _copy,
            "tuple": _tuple,
            "get-tuple-element": _element,
            "call": _call,
            "while": _while,
            "conditional": _conditional,
            "parameter": _parameter,
            "async-start": _async_start,
            "async-update": _async_update,
            "async-done": _async_output,
            "all-gather-start": _start_with_operands,
            "collective-permute-start": _start_with_operands,
            "all-gather-done": _done_of_second,
            "collective-permute-done": _done_of_second,
            "copy-start": _copy_start,
            "copy-done": _first_of_operand,
            "send": _send,
            "recv-done": _recv_done,
        }
    )
    """Opcode -> how its value sets follow from others."""


_NOTHING: Mapping[ShapeIndex, ValueSet] = MappingProxyType({})


def _any(changes: Iterator[bool]) -> bool:
    """Whether any change was made, after making all."""
    changed = False
    for one in changes:
        changed |= one
    return changed


def _union(sets: Sequence[ValueSet]) -> ValueSet:
    if len(sets) == 1 and len(sets[0]) < 2:
        return sets[0]
    return tuple(sorted({value for one in sets for value in one}, key=lambda value: value.id))


def _flat(computation: HloComputation) -> Iterator[HloInstruction]:
    return iter(computation.post_order())


def _chained(node: HloInstruction, rest: Iterator[HloInstruction]) -> Iterator[HloInstruction]:
    yield node
    yield from rest


def _callee_order(node: HloInstruction) -> tuple[HloComputation, ...]:
    """Called computations in XLA's order: a loop's condition before its body, branches by number."""
    if node.opcode == "while":
        return (node.callee("condition"), node.callee("body"))
    return node.called_computations if node.opcode != "conditional" else branches(node)


def branches(conditional: HloInstruction) -> tuple[HloComputation, ...]:
    """The branch computations of a conditional, by number; the true one first."""
    called = conditional.called
    if "branch_computations" in called:
        return called["branch_computations"]
    return (*called.get("true_computation", ()), *called.get("false_computation", ()))


def _parameters_fed(user: HloInstruction, node: HloInstruction) -> Iterator[HloInstruction]:
    """The parameters of called computations that get a new value when an operand's value changes."""
    if user.opcode == "conditional":
        for number, computation in enumerate(branches(user)):
            if user.operand(number + 1) is node:
                yield computation.parameters[0]
    elif user.opcode in ASYNC:
        wrapped = wrapped_computation(user)
        if wrapped is not None:
            yield from wrapped.parameters
    elif user.info.calls == "control-flow":
        for computation in user.called_computations:
            for place, operand in enumerate(user.operands):
                if operand is node:
                    yield computation.parameters[place]


def _chain_after(start: HloInstruction) -> Iterator[HloInstruction]:
    """The updates and the done of an asynchronous start."""
    link: HloInstruction | None = start if start.opcode in ASYNC else None
    while link is not None:
        link = next((user for user in link.users if user.opcode in ASYNC[1:]), None)
        if link is not None:
            yield link


_SILENT = frozenset(
    ("bitcast", "call", "while", "conditional", "get-tuple-element", "domain", "add-dependency", "opt-barrier",
     "copy-done", "all-reduce-done")
)  # fmt: skip
"""Opcodes that make no value."""


def _defines(node: HloInstruction, index: ShapeIndex, part: Shape, *, inflow: bool) -> bool:
    """Whether an instruction makes the value at a part of its result. Source: ``InitializeInstructionValueSets``."""
    opcode = node.opcode
    if opcode in _SILENT:
        return False
    if opcode == "parameter":
        return not inflow
    if opcode in ("copy", "tuple"):
        return not index
    rule = _PARTIAL.get(opcode)
    return True if rule is None else rule(node, index, part)


def _permute_start(node: HloInstruction, index: ShapeIndex, _part: Shape) -> bool:
    if len(index) < 2:
        return index != (0,)
    return index[0] == 1 and len(index) == 2 and node.operand_count > 1


_PARTIAL: Mapping[str, Callable[[HloInstruction, ShapeIndex, Shape], bool]] = MappingProxyType(
    {
        "async-start": lambda node, index, part: part.is_tuple or index[0] > 1,
        "async-update": lambda node, index, part: part.is_tuple or index[0] > 1,
        "async-done": lambda node, index, part: part.is_tuple,
        "all-gather-start": lambda node, index, part: part.is_tuple or index[0] == 1,
        "all-gather-done": lambda node, index, part: not index and part.is_tuple,
        "collective-permute-done": lambda node, index, part: not index and part.is_tuple,
        "collective-permute-start": _permute_start,
        "copy-start": lambda node, index, part: index in ((), (0,), (2,)),
        "send": lambda node, index, part: index in ((), (1,), (2,)),
        "recv-done": lambda node, index, part: index in ((), (1,)),
    }
)
"""Opcode -> whether a part is made there, for those that make some parts only."""
