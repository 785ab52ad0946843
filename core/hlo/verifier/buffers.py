"""Buffer-typed values: who may touch them, and who writes. Source: ``openxla/xla:xla/service/
hlo_verifier.cc#VerifyBuffers, #CountWriters, #VerifyPin, #VerifyCreateBuffer, #VerifyUnpin``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hloscope.core.hlo.infer_shape.base import is_array
from hloscope.core.hlo.verifier.context import ASYNC, index_text, is_async_computation, target_of
from hloscope.core.hlo.verifier.equality import ShapeEqual
from hloscope.core.hlo.verifier.findings import Broken, broken, describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape, ShapeIndex
    from hloscope.core.hlo.verifier.context import Context

_CALLABLE = frozenset({"fusion", "call", "custom-call", "while", "conditional", "dynamic-update-slice", *ASYNC})
"""Users that are taken to write a buffer passed to them."""


def buffer_faults(context: Context) -> Iterator[Broken]:
    """All faults, computation by computation; a module without buffers is done at once."""
    if not any(_has_buffer(node.shape) for node in context.module.instructions()) and not any(
        target_of(node) in ("Pin", "Unpin", "CreateBuffer") for node in context.module.instructions()
    ):
        return
    for computation in context.module.computations:
        nodes = computation.instructions
        if is_async_computation(computation):
            nodes = (computation.root,) if computation.root.opcode == "custom-call" else ()
        for node in nodes:
            try:
                _check(context, computation, node)
            except Broken as fault:
                fault.instruction = node
                yield fault


def _has_buffer(shape: Shape) -> bool:
    return shape.element_type == "buffer" or any(_has_buffer(s) for s in shape.tuple_shapes)


def _buffers(shape: Shape) -> Iterator[ShapeIndex]:
    return (index for index, leaf in shape.leaves() if leaf.element_type == "buffer")


def _check(context: Context, computation: HloComputation, node: HloInstruction) -> None:
    opcode = node.opcode
    if opcode in ASYNC or (opcode == "call" and "_xla_stream_annotation" in (node.attr("frontend_attributes") or {})):
        return  # consistent with the wrapped computation, which is checked itself
    if opcode == "custom-call":
        _check_custom_call(context, node)
    elif opcode == "while":
        _check_writers(node)
    elif opcode == "parameter":
        if computation.is_entry:
            _refuse_buffers(node)
        _check_writers(node)
    elif opcode == "dynamic-update-slice" and node.operand(0).shape.element_type == "buffer":
        _check_writers(node)
        if any(_has_buffer(operand.shape) for operand in node.operands[1:]):
            _refuse(node)
        if node.shape.element_type != "buffer":
            broken("buffers-not-allowed", "DynamicUpdateSlice result must be a buffer if operand 0 is a buffer")
    elif opcode not in ("get-tuple-element", "tuple"):
        _refuse_buffers(node)


def _refuse_buffers(node: HloInstruction) -> None:
    if _has_buffer(node.shape) or any(_has_buffer(operand.shape) for operand in node.operands):
        _refuse(node)


def _refuse(node: HloInstruction) -> None:
    broken("buffers-not-allowed", f"Seen buffers while buffers aren't allowed in this context: {describe(node)}")


# ---------------------------------------------------------------- writers
def _writers(node: HloInstruction, index: ShapeIndex) -> int:
    return sum(_writers_in(node, index, user) for user in node.users)


def _writers_in(node: HloInstruction, index: ShapeIndex, user: HloInstruction) -> int:
    if user.opcode in _CALLABLE:
        return 1
    if user.opcode == "get-tuple-element" and index and user.attr("index") == index[0]:
        return _writers(user, index[1:])
    if user.opcode == "tuple":
        if user.is_root:
            return int(any(caller.opcode == "while" for caller in node.parent.callers))
        return _writers(user, (user.operands.index(node), *index))
    return 0


def _check_writers(node: HloInstruction) -> None:
    for index in _buffers(node.shape):
        if _writers(node, index) > 1:
            broken(
                "buffer-writers",
                f"an HLO buffer value has more than one writers (or unpins): '{describe(node)}' '{index_text(index)}'",
            )


# ---------------------------------------------------------------- custom calls
def _check_custom_call(context: Context, call: HloInstruction) -> None:
    target = target_of(call)
    if target in ("Pin", "Unpin"):
        _check_pin(context, call, target)
        return
    if target == "CreateBuffer":
        if call.operand_count:
            broken("pin", "custom-call to CreateBuffer can't have an operand")
        if call.shape.element_type != "buffer":
            broken("pin", "custom-call to CreateBuffer must have one buffer result")
        _check_writers(call)
        return
    aliases = call.attr("output_to_operand_aliasing") or ()
    inputs = Counter((alias.operand, alias.operand_index) for alias in aliases)
    for number, operand in enumerate(call.operands):
        for index in _buffers(operand.shape):
            where = f"operand {number} ShapeIndex {index_text(index)}"
            if not inputs[number, index]:
                broken("buffer-aliasing", f"buffer is used in operands but not in results: {where}")
            if inputs[number, index] > 1:
                broken("buffer-aliasing", f"buffer is used in results multiple times: {where}")
    outputs = Counter(alias.output_index for alias in aliases)
    for index in _buffers(call.shape):
        if not outputs[index]:
            broken("buffer-aliasing", f"buffer is used in results but not in operands: {index_text(index)}")
        if outputs[index] > 1:
            broken("buffer-aliasing", f"buffer is used in operands multiple times: {index_text(index)}")
    _check_writers(call)


def _check_pin(context: Context, call: HloInstruction, target: str) -> None:
    pins = target == "Pin"
    kinds = ("array non-buffer", "buffer") if pins else ("buffer", "array non-buffer")

    def fits(shape: Shape, kind: str) -> bool:
        return shape.element_type == "buffer" if kind == "buffer" else shape.is_array

    start = f"custom-call to {target} must have"
    if call.operand_count != 1 or not fits(call.operand(0).shape, kinds[0]):
        broken("pin", f"{start} one {kinds[0]} operand")
    if not fits(call.shape, kinds[1]) or not is_array(call.shape):
        broken("pin", f"{start} one {kinds[1]} result")
    if not ShapeEqual(layout=context.options.layout_sensitive, buffer=False)(call.operand(0).shape, call.shape):
        broken("pin", f"{start} the same shape as the operand")
    if len(call.attr("output_to_operand_aliasing") or ()) != 1:
        broken("pin", f"{start} one output-to-operand aliasing")
    if pins:
        _check_writers(call)
