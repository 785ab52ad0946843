"""``hlo-verifier``: the invariants of the module in memory that every pass must keep.

It checks that both ends of every edge agree, that names, parents, parameters and roots are in order, that callees are
in the module and fit their call, and that shapes of simple operations follow from their operands. It is made to run
after every pass that changed something: one walk over the module. Source: ``openxla/xla:xla/service/hlo_verifier.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from hloscope.core.errors import HloscopeError, InternalError, VerifyError
from hloscope.core.hlo.opcodes import OPCODES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.passes.context import PassContext


Callers: TypeAlias = "dict[HloComputation, set[HloInstruction] | None]"
"""The computations of a module, and who calls them once that was asked."""
_FEW = 4
"""Operands that are looked through one by one."""


@dataclass(frozen=True)
class HloVerifier:
    """Invariant checker: never changes the module, and raises VerifyError for the first thing that is wrong."""

    name = "hlo-verifier"
    is_pipeline = False

    def run(self, module: HloModule, ctx: PassContext) -> bool:
        """Check everything."""
        for finding in findings(module):
            raise VerifyError(finding)
        return False


def findings(module: HloModule) -> Iterator[str]:
    """Everything that is wrong, one sentence each, found one by one."""
    if not module.has_entry:
        yield f"module {module.name} has no entry computation"
        return
    members: Callers = dict.fromkeys(module.computations)
    if module.entry not in members:
        yield f"the entry computation %{module.entry.name} is not in the module"
    for computation in module.computations:
        if computation.module_or_none is not module:
            yield f"computation %{computation.name} belongs to another module"
        yield from _of_computation(computation, members)
    try:
        module.post_order()
    except InternalError as error:
        yield str(error)
    yield from _entry_layout(module)


def _of_computation(computation: HloComputation, members: Callers) -> Iterator[str]:
    where = f"in %{computation.name}"
    if not computation.has_root:
        yield f"computation %{computation.name} has no root"
    elif computation.root not in computation:
        yield f"the root %{computation.root.name} is not {where}"
    seen: set[str] = set()
    edges = _Edges(computation, members)
    for one in computation:
        if one.name in seen:
            yield f"two instructions {where} are called %{one.name}"
        seen.add(one.name)
        if not one.in_computation or one.parent is not computation:
            yield f"%{one.name} is listed {where} but belongs elsewhere"
            continue
        if not edges.agree(one):
            yield from _edges(one, computation, members)
        known = OPCODES.get(one.opcode)
        if known is not None and known.arity is not None and one.operand_count != known.arity:
            yield f"%{one.name} {where} has {one.operand_count} operands, {one.opcode} takes {known.arity}"
        check = _SHAPE_CHECKS.get(one.opcode)
        if check is None and one.info.elementwise:
            check = _elementwise
        if check is not None:
            try:
                fault = check(one)
            except HloscopeError as error:
                fault = error.message
            except IndexError:
                fault = "its dimensions do not exist"
            if fault:
                yield f"%{one.name} {where} ({one.opcode} {one.shape.to_text(layout=False)}): {fault}"
    parameters = [one for one in computation if one.opcode == "parameter"]
    numbers = sorted(one.parameter_number for one in parameters)
    if numbers != list(range(len(numbers))):
        yield f"parameters of %{computation.name} are numbered {numbers}"
    if list(computation.parameters) != sorted(parameters, key=lambda one: one.parameter_number):
        yield f"the parameter list of %{computation.name} does not hold its parameters"
    try:
        computation.post_order()
    except InternalError as error:
        yield str(error)


class _Edges:
    """Whether both ends of all edges agree, in time linear in their number: what `_edges` says in words."""

    def __init__(self, computation: HloComputation, members: Callers) -> None:
        self._inside = set(computation)
        self._members = members
        self._reads: dict[HloInstruction, set[HloInstruction]] = {}

    def agree(self, one: HloInstruction) -> bool:
        """Nothing is wrong at this instruction; one with control edges is always looked at closely."""
        operands, users = one.operands, one.users
        if not self._inside.issuperset(operands) or not self._inside.issuperset(users):
            return False
        if one.control_predecessors or one.control_successors:
            return False
        if len(operands) == 1:
            if operands[0].use_count(one) != 1:
                return False
        elif operands:
            counts: dict[HloInstruction, int] = {}
            for operand in operands:
                counts[operand] = counts.get(operand, 0) + 1
            if any(operand.use_count(one) != count for operand, count in counts.items()):
                return False
        if any(one not in self._read_by(user) for user in users):
            return False
        return all(self._knows(callee, one) for callee in one.called_computations)

    def _read_by(self, user: HloInstruction) -> Collection[HloInstruction]:
        if user.operand_count <= _FEW:
            return user.operands
        found = self._reads.get(user)
        if found is None:
            found = self._reads[user] = set(user.operands)
        return found

    def _knows(self, callee: HloComputation, caller: HloInstruction) -> bool:
        callers = self._members.get(callee, ())
        if callers is None:
            callers = self._members[callee] = set(callee.callers)
        return caller in callers


def _edges(one: HloInstruction, computation: HloComputation, members: Callers) -> Iterator[str]:
    where = f"in %{computation.name}"
    counts: dict[HloInstruction, int] = {}
    for operand in one.operands:
        counts[operand] = counts.get(operand, 0) + 1
        if operand not in computation:
            yield f"%{one.name} {where} uses %{operand.name}, which is not there"
    for operand, count in counts.items():
        if operand.use_count(one) != count:
            yield f"%{operand.name} counts {operand.use_count(one)} uses by %{one.name} {where}, which has {count}"
    for user in one.users:
        if user not in computation:
            yield f"%{one.name} {where} has the user %{user.name}, which is not there"
        elif all(operand is not one for operand in user.operands):
            yield f"%{one.name} {where} has the user %{user.name}, which does not use it"
    for before in one.control_predecessors:
        if before not in computation or one not in before.control_successors:
            yield f"%{one.name} {where} waits for %{before.name}, which does not know it"
    for after in one.control_successors:
        if after not in computation or one not in after.control_predecessors:
            yield f"%{after.name} should wait for %{one.name} {where} but does not"
    for callee in one.called_computations:
        if callee not in members:
            yield f"%{one.name} {where} calls %{callee.name}, which is not in the module"
        elif one not in callee.callers:
            yield f"%{callee.name} does not know its caller %{one.name} {where}"


def _entry_layout(module: HloModule) -> Iterator[str]:
    try:
        layout = module.entry_layout()
    except (HloscopeError, InternalError) as error:
        yield f"entry_computation_layout cannot be read: {error}"
        return
    if layout is None or not module.entry.has_root:
        return
    shapes, result = layout
    parameters = module.entry.parameters
    if len(shapes) != len(parameters):
        yield f"entry_computation_layout has {len(shapes)} parameters, the entry computation {len(parameters)}"
        return
    for parameter, shape in zip(parameters, shapes, strict=True):
        if not parameter.shape.compatible(shape):
            yield f"entry_computation_layout gives {shape} for %{parameter.name} of {parameter.shape}"
    if not module.entry.root.shape.compatible(result):
        yield f"entry_computation_layout gives {result} for the root of {module.entry.root.shape}"


# ---------------------------------------------------------------- shapes; each returns what is wrong, or the empty text
_SAME_TYPE = frozenset(
    {"add", "and", "atan2", "divide", "maximum", "minimum", "multiply", "mulhi", "or", "power", "remainder",
     "shift-left", "shift-right-arithmetic", "shift-right-logical", "subtract", "xor"}
)  # fmt: skip


def _elementwise(one: HloInstruction) -> str:
    if one.opcode in ("bitcast-convert", "map", "stochastic-convert", "fusion"):
        return ""
    free = {"select": (0,), "clamp": (0, 2)}.get(one.opcode, ())
    for place, operand in enumerate(one.operands):
        if operand.shape.is_array != one.shape.is_array:
            return f"operand {place} is {operand.shape.to_text(layout=False)}"
        if not one.shape.is_array or (place in free and operand.shape.is_scalar):
            continue
        if operand.shape.dimensions != one.shape.dimensions:
            return f"operand {place} has dimensions {list(operand.shape.dimensions)}"
    if one.opcode in _SAME_TYPE:
        types = {operand.shape.element_type for operand in one.operands} | {one.shape.element_type}
        if len(types) > 1:
            return f"mixes {' and '.join(sorted(types))}"
    if one.opcode == "select" and one.operand_count == 3:
        if one.operand(0).shape.element_type != "pred":
            return f"chooses by {one.operand(0).shape.element_type}"
        if any(o.shape.element_type != one.shape.element_type for o in one.operands[1:]):
            return "chooses between other element types than its own"
    if one.opcode == "compare" and one.shape.element_type != "pred":
        return "is no pred"
    return ""


def _reshape(one: HloInstruction) -> str:
    before, after = one.operand(0).shape, one.shape
    if before.element_type != after.element_type:
        return f"changes the element type of {before.to_text(layout=False)}"
    if not before.is_dynamic and not after.is_dynamic and prod(before.dimensions) != prod(after.dimensions):
        return f"has another number of elements than {before.to_text(layout=False)}"
    return ""


def _broadcast(one: HloInstruction) -> str:
    x, dims = one.operand(0).shape, one.dimensions
    if len(dims) != x.rank:
        return f"gives {len(dims)} dimensions for an operand of rank {x.rank}"
    for size, dim in zip(x.dimensions, dims, strict=True):
        if one.shape.dimensions[dim] != size:
            return f"dimension {dim} does not have the operand's size {size}"
    return "" if x.element_type == one.shape.element_type else "changes the element type"


def _transpose(one: HloInstruction) -> str:
    x, dims = one.operand(0).shape, one.dimensions
    if sorted(dims) != list(range(x.rank)):
        return f"dimensions {list(dims)} are no permutation of rank {x.rank}"
    if tuple(x.dimensions[d] for d in dims) != one.shape.dimensions or x.element_type != one.shape.element_type:
        return f"does not permute {x.to_text(layout=False)}"
    return ""


def _tuple(one: HloInstruction) -> str:
    shapes = one.shape.tuple_shapes
    if len(shapes) != one.operand_count:
        return f"has {one.operand_count} operands"
    for place, (operand, shape) in enumerate(zip(one.operands, shapes, strict=True)):
        if not operand.shape.compatible(shape):
            return f"element {place} is {operand.shape.to_text(layout=False)}"
    return ""


def _element(one: HloInstruction) -> str:
    shapes, index = one.operand(0).shape.tuple_shapes, one.attr("index")
    if index is None or not 0 <= int(index) < len(shapes):
        return f"takes element {index} of {len(shapes)}"
    return "" if shapes[int(index)].compatible(one.shape) else f"element {index} is {shapes[int(index)]}"


def _call(one: HloInstruction) -> str:
    callee = one.callee("calls" if one.opcode == "fusion" else "to_apply")
    if len(callee.parameters) != one.operand_count:
        return f"passes {one.operand_count} operands to %{callee.name}, which takes {len(callee.parameters)}"
    for parameter, operand in zip(callee.parameters, one.operands, strict=True):
        if not parameter.shape.compatible(operand.shape):
            return f"passes {operand.shape} for %{parameter.name} of {parameter.shape}"
    return "" if callee.root.shape.compatible(one.shape) else f"%{callee.name} returns {callee.root.shape}"


def _while(one: HloInstruction) -> str:
    condition, body = one.callee("condition"), one.callee("body")
    state = one.operand(0).shape
    for callee in (condition, body):
        if len(callee.parameters) != 1 or not callee.parameters[0].shape.compatible(state):
            return f"%{callee.name} does not take the state {state.to_text(layout=False)}"
    if not body.root.shape.compatible(state) or not one.shape.compatible(state):
        return "the state changes its shape"
    return "" if condition.root.shape.element_type == "pred" else f"%{condition.name} does not return a pred"


_SHAPE_CHECKS: Mapping[str, Callable[[HloInstruction], str]] = {
    "reshape": _reshape,
    "broadcast": _broadcast,
    "transpose": _transpose,
    "tuple": _tuple,
    "get-tuple-element": _element,
    "call": _call,
    "fusion": _call,
    "while": _while,
}
