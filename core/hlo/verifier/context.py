"""What the rules of one run share, and small questions about the graph that several of them ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError, InternalError
from hloscope.core.hlo.infer_shape import Request, compatible
from hloscope.core.hlo.verifier.equality import EXACT, ShapeEqual
from hloscope.core.hlo.verifier.findings import broken, describe
from hloscope.core.hlo.verifier.layouts import layout_fault

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.module import HloModule
    from hloscope.core.hlo.shape import Shape, ShapeIndex
    from hloscope.core.hlo.verifier.options import VerifierOptions

ASYNC = frozenset({"async-start", "async-update", "async-done"})
ASYNC_PRODUCERS = frozenset({"async-start", "async-update"})

_ANNOTATIONS = frozenset(
    {
        "Sharding", "LocalToGlobalShape", "GlobalToLocalShape", "xla.sdy.LocalToGlobalShape",
        "xla.sdy.GlobalToLocalShape", "xla.sdy.FuncResultSharding",
    }
)  # fmt: skip


class Context:
    """One run of the verifier over one module."""

    __slots__ = ("_entry_layout", "_layout_faults", "_unbounded", "counts", "module", "options")

    def __init__(self, module: HloModule, options: VerifierOptions) -> None:
        self.module = module
        self.options = options
        self.counts = (module.replica_count, module.num_partitions)
        """Replicas and partitions of the module."""
        self._entry_layout: tuple[tuple[Shape, ...], Shape] | str | None = None
        self._unbounded: dict[int, bool] = {}
        self._layout_faults: dict[int, str | None] = {}

    def entry_layout(self) -> tuple[tuple[Shape, ...], Shape] | str:
        """Parameter and result shapes that the header gives for the entry, else those of the entry itself; a text that
        says what is wrong where the header's cannot be read."""
        if self._entry_layout is None:
            entry = self.module.entry
            try:
                told = self.module.entry_layout()
                self._entry_layout = told or (tuple(p.shape for p in entry.parameters), entry.root.shape)
            except (HloscopeError, InternalError, ValueError) as error:
                self._entry_layout = str(error)
        return self._entry_layout

    def is_unbounded(self, shape: Shape) -> bool:
        """Whether some size has no bound; asked once of each shape object, which the module keeps alive."""
        known = self._unbounded.get(id(shape))
        if known is None:
            known = self._unbounded[id(shape)] = shape.is_unbounded
        return known

    def layout_fault(self, shape: Shape) -> str | None:
        """What is wrong with some layout of a shape; asked once of each shape object."""
        key = id(shape)
        if key not in self._layout_faults:
            faults = (layout_fault(leaf) for _, leaf in shape.leaves())
            self._layout_faults[key] = next((fault for fault in faults if fault is not None), None)
        return self._layout_faults[key]

    def request(self, instruction: HloInstruction) -> Request:
        """The inference request of an instruction."""
        request = Request.of(instruction)
        request.replicas, request.partitions = self.counts
        return request

    def same(self, a: Shape, b: Shape, equal: ShapeEqual = EXACT) -> bool:
        """`ShapeVerifier::ShapesSame`: compatible, or equal where layouts count."""
        if not self.options.layout_sensitive:
            return compatible(a, b)
        return equal(a, b)

    def text(self, shape: Shape) -> str:
        """A shape as messages show it: with its layout where layouts count."""
        return shape.to_text(layout=self.options.layout_sensitive, index_comments=False)

    def parameter_count(self, caller: HloInstruction, callee: HloComputation, expected: int) -> None:
        """Refuse a callee with another number of parameters."""
        if len(callee.parameters) != expected:
            broken(
                "parameter-count",
                f"Expected computation {callee.name} called from {caller.name} to have {expected} parameters, has "
                f"{len(callee.parameters)}",
            )

    def operand_and_parameter(self, caller: HloInstruction, operand: int, callee: HloComputation, number: int) -> None:
        """Refuse an operand whose shape is not the parameter's."""
        given, parameter = caller.operand(operand), callee.parameters[number]
        if not self.same(given.shape, parameter.shape):
            broken(
                "operand-parameter",
                f"Operand {describe(given)} shape does not match parameter's {describe(parameter)} in "
                f"{describe(caller)}",
            )


def one_callee(instruction: HloInstruction, *names: str) -> HloComputation:
    """The computation under the first of several attributes that has exactly one; reports where none has."""
    for name in names:
        group = instruction.called.get(name, ())
        if len(group) == 1:
            return group[0]
    broken("missing-computation", f"{instruction.opcode} needs one computation under {names[0]}")


def target_of(instruction: HloInstruction) -> str:
    """Target of a custom call, empty for other opcodes."""
    return str(instruction.attr("custom_call_target") or "") if instruction.opcode == "custom-call" else ""


def is_async_intermediary(instruction: HloInstruction) -> bool:
    """Whether asynchronous values may pass through (`IsAllowedAsyncIntermediary`)."""
    if instruction.opcode in ("tuple", "get-tuple-element", "opt-barrier", "copy", "parameter", "while"):
        return True
    return target_of(instruction) in _ANNOTATIONS


def is_async_computation(computation: HloComputation) -> bool:
    """Whether an asynchronous operation wraps it."""
    return any(caller.opcode in ASYNC for caller in computation.callers)


def thread_of(computation: HloComputation) -> str:
    """The execution thread's name."""
    return computation.execution_thread or "main"


def find_async_producer(instruction: HloInstruction) -> HloInstruction | None:
    """The async-start or -update whose value an instruction passes on, None where there is none.

    Source: ``openxla/xla:xla/hlo/ir/hlo_instruction_utils.h#TraceAsyncDataflowImpl``.
    """
    return _trace(instruction, [], set())


def _trace(node: HloInstruction, index: list[int], visited: set[HloInstruction]) -> HloInstruction | None:
    if node.opcode in ASYNC_PRODUCERS:
        return node
    if node in visited:
        return None
    visited.add(node)
    operands = node.operands
    if node.opcode == "get-tuple-element" and operands:
        return _trace(operands[0], [*index, int(node.attr("index") or 0)], visited)
    if node.opcode == "tuple" or (node.opcode == "opt-barrier" and len(operands) > 1):
        if not index:
            return next((found for o in operands if (found := _trace(o, [], visited)) is not None), None)
        place = index[-1]
        return _trace(operands[place], index[:-1], visited) if place < len(operands) else None
    if node.opcode in ("opt-barrier", "copy") or target_of(node) in _ANNOTATIONS:
        return _trace(operands[0], index, visited) if operands else None
    if node.opcode == "parameter" and node.in_computation:
        loops = [c for c in node.parent.callers if c.opcode == "while"]
        if len(loops) == 1 and node.parent in loops[0].called.get("body", ()):
            return _trace(loops[0].operand(0), index, visited) or _trace(node.parent.root, index, visited)
        return None
    if node.opcode == "while":
        for body in node.called.get("body", ()):
            found = _trace(body.root, index, visited)
            if found is not None:
                return found
        return _trace(operands[0], index, visited) if operands else None
    return None


def wrapped_computation(instruction: HloInstruction) -> HloComputation | None:
    """The computation that an asynchronous operation wraps, found upstream where it names none itself."""
    node: HloInstruction | None = instruction
    seen: set[HloInstruction] = set()
    while node is not None and node not in seen:
        seen.add(node)
        if node.called_computations:
            return node.called_computations[0]
        node = find_async_producer(node.operand(0)) if node.operand_count else None
    return None


def chain_start(instruction: HloInstruction) -> HloInstruction | None:
    """The async-start of an asynchronous operation's chain."""
    node: HloInstruction | None = instruction
    seen: set[HloInstruction] = set()
    while node is not None and node.opcode != "async-start":
        if node in seen or not node.operand_count:
            return None
        seen.add(node)
        node = find_async_producer(node.operand(0))
    return node


def sub_shape(shape: Shape, index: ShapeIndex) -> Shape | None:
    """The shape at an index, None where there is none (`ShapeUtil::IndexIsValid`)."""
    for i in index:
        if not shape.is_tuple or not 0 <= i < len(shape.tuple_shapes):
            return None
        shape = shape.tuple_shapes[i]
    return shape


def index_text(index: ShapeIndex) -> str:
    """An index as XLA prints it."""
    return "{" + ",".join(map(str, index)) + "}"


__all__ = [
    "ASYNC", "ASYNC_PRODUCERS", "Context", "chain_start", "find_async_producer", "index_text", "is_async_computation",
    "is_async_intermediary", "one_callee", "sub_shape", "target_of", "thread_of", "wrapped_computation",
]  # fmt: skip
