"""The sugared forms of asynchronous instructions: ``slice-start``, ``call-update``, ``custom-call-done``.

XLA reads ``dot-start(a, b), lhs_contracting_dims={1}`` as an ``async-start`` that calls a computation with nothing but
parameters and that one ``dot``; the computation is not in the text. It is made here and marked `synthetic`, so that the
printer leaves it out again. Source: ``openxla/xla:xla/hlo/parser/hlo_parser.cc#CreateAsyncWrappedComputation``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.attributes import CALLED, unquote
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.text.opcode_syntax import NATIVE_ASYNC, syntax_of

if TYPE_CHECKING:
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.text.reading import Reading

COPIED = ("origin", "metadata", "backend_config", "frontend_attributes", "statistics")
"""Common attributes that stand on the start and on the wrapped instruction."""
_OWN = frozenset({"async_execution_thread", "sharding", "control-predecessors", *COPIED})

_ALIASING = "output_to_operand_aliasing"
"""The start has it unless the wrapped opcode takes it too."""


def async_parts(opcode: str) -> tuple[str, str] | None:
    """The wrapped opcode and the asynchronous one of a sugared word, None for any other word."""
    for suffix in ("start", "update", "done"):
        wrapped = opcode.removesuffix("-" + suffix)
        if wrapped != opcode:
            if wrapped in OPCODES and wrapped not in NATIVE_ASYNC and not wrapped.startswith("async-"):
                return wrapped, f"async-{suffix}"
            return None
    return None


def async_start_of(node: HloInstruction) -> HloInstruction | None:
    """The async-start of a chain of updates and a done, None where the chain does not lead to one."""
    seen = 0
    while node.opcode in ("async-update", "async-done") and node.operand_count and seen < 10_000:
        node = node.operand(0)
        seen += 1
    return node if node.opcode == "async-start" else None


def wrapped_computation(node: HloInstruction) -> HloComputation | None:
    """The computation that an asynchronous instruction runs, found along its chain; None where there is none."""
    start = async_start_of(node)
    group = start.called.get("calls") if start is not None else node.called.get("calls")
    return group[0] if group else None


def expandable(computation: HloComputation) -> bool:
    """Whether a computation holds nothing but parameters and its root (``CanExpandIntoSingleInstruction``)."""
    root = computation.root
    return all(node is root or node.opcode == "parameter" for node in computation)


def _bind(computation: HloComputation, shape: Shape) -> None:
    """Give a made computation what an update binds later: more parameters, and the result's shape that follows.

    Source: ``openxla/xla:xla/hlo/parser/hlo_parser.cc#UpdateAsyncWrappedComputation``; newer than 0.10.2.
    """
    if not shape.is_tuple or len(shape.tuple_shapes) < 2 or not shape.tuple_shapes[0].is_tuple:
        return
    root, bound = computation.root, len(computation.parameters)
    for i, one in enumerate(shape.tuple_shapes[0].tuple_shapes[bound:], bound):
        name = f"async_param.{i}" if i else "async_param"
        root.append_operand(computation.add(HloInstruction("parameter", one, name=name, payload=str(i))))
    _give_result(root, shape.tuple_shapes[1])


def _give_result(root: HloInstruction, shape: Shape) -> None:
    """Give a made root the result that the chain says; an empty tuple says nothing yet."""
    said = not shape.is_tuple or bool(shape.tuple_shapes)
    if said and not root.shape.compatible(shape):
        root.shape = shape


def make_async(
    reading: Reading, node: HloInstruction, sugar: tuple[str, str], at: int
) -> None:
    """Turn a node with a sugared opcode into the asynchronous instruction that it stands for.

    One that does not fit (no tuple of operands, a chain that leads nowhere) stays as it is, with an objection.
    """
    wrapped, opcode = sugar
    if opcode != "async-start":
        producer = node.operand(0) if node.operand_count else None
        many = node.operand_count != 1
        if many or producer is None or producer.opcode not in ("async-start", "async-update"):
            reading.object(f"{node.opcode} takes the asynchronous instruction before it as its one operand", at)
            # Newer than 0.10.2: more operands of an update bind more parameters.
            if producer is None or producer.opcode not in ("async-start", "async-update") or opcode == "async-done":
                return
        computation = wrapped_computation(producer)
        if computation is not None and computation.root.opcode != wrapped:
            reading.object(f"{node.opcode} ends a chain that began with {computation.root.opcode}", at)
            return
        if computation is not None and computation.synthetic and opcode == "async-update":
            _bind(computation, node.shape)
        if computation is not None and computation.synthetic and opcode == "async-done":
            unsaid = computation.root.shape
            if unsaid.is_tuple and not unsaid.tuple_shapes:
                _give_result(computation.root, node.shape)
        for key in list(node.called):
            node.drop_called(key)
        node.become(opcode)
        return
    if wrapped in ("constant", "parameter"):
        reading.object(f"{wrapped} is nothing that runs apart", at)
        return
    shapes = node.shape.tuple_shapes
    if not node.shape.is_tuple or len(shapes) < 2 or not shapes[0].is_tuple:
        reading.object(f"the shape of {node.opcode} is not ((operands), result, …)", at)
        return
    computation = HloComputation("async_wrapped")
    computation.synthetic = True
    wanted, result = list(shapes[0].tuple_shapes), shapes[1]
    whole = next((group[0] for group in node.called.values() if group), None) if wrapped in ("call", "fusion") else None
    if whole is not None and len(whole.parameters) > len(wanted):  # the others are bound by an update
        wanted += [parameter.shape for parameter in whole.parameters[len(wanted) :]]
        result = whole.root.shape
    parameters = [
        HloInstruction.loaded("async_param" + (f".{i}" if i else ""), "parameter", one, [], {}, str(i), computation)
        for i, one in enumerate(wanted)
    ]
    own = _OWN if _ALIASING in syntax_of(wrapped).rank else _OWN | {_ALIASING}
    inner: dict[str, str | None] = {
        key: text for key, text in node.raw_attrs.items() if key not in own and key not in CALLED and text is not None
    }
    for key in inner:
        del node.raw_attrs[key]
    for key in COPIED:
        text = node.raw_attrs.get(key)
        if text is not None:
            inner[key] = text
    root = HloInstruction.loaded("async_op", wrapped, result, list(parameters), inner, None, computation)
    for key, group in list(node.called.items()):
        listed = key in CALLED and CALLED[key]
        root.set_called(key, group if listed else group[0])
        node.drop_called(key)
    for key in [key for key in node.raw_attrs if key in CALLED]:  # named further down in the text
        del node.raw_attrs[key]
        root.raw_attrs[key] = None
    computation.load([*parameters, root])
    computation.set_root(root)
    computation.execution_thread = unquote(node.raw_attrs.get("async_execution_thread") or '""')
    if computation.execution_thread == "main":
        computation.execution_thread = ""
    node.become(opcode)
    node.set_called("calls", computation)
    reading.inline.append(computation)
    reading.module.add_computation(computation, keep_name=True)
    for i, (owner, key, value, place, name) in enumerate(reading.later):
        if owner is node:
            reading.later[i] = (root, key, value, place, name)
