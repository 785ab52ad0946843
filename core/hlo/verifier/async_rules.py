"""Shapes, threads and aliasing of asynchronous operations. Source: ``openxla/xla:xla/service/
hlo_verifier.cc#CheckAsyncOp`` and the functions that it calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.hlo.hashing import computation_hash
from hloscope.core.hlo.shape import Shape
from hloscope.core.hlo.verifier.context import (
    ASYNC_PRODUCERS,
    chain_start,
    find_async_producer,
    sub_shape,
    thread_of,
    wrapped_computation,
)
from hloscope.core.hlo.verifier.equality import ShapeEqual
from hloscope.core.hlo.verifier.findings import broken

if TYPE_CHECKING:
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.infer_shape import Request
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.verifier.context import Context


def check(context: Context, op: HloInstruction, request: Request) -> None:
    """Result, wrapped computation, thread, operands, aliasing: in this order."""
    name = f"{op.name} (opcode: {op.opcode})"
    if op.opcode != "async-done":
        parts = op.shape.tuple_shapes
        if not op.shape.is_tuple or len(parts) < 2 or not parts[0].is_tuple:
            broken(
                "async-shape",
                f"{name} expects the async shape to be in the form of ((op0_shape, op1_shape, ...), output_shape, "
                f"...), found {op.shape}.",
            )
    _check_computation(context, op, name)
    _check_thread(op)
    if op.opcode == "async-start":
        _check_start_operands(context, op, name)
        _check_start_aliasing(context, op)
    elif op.opcode == "async-update":
        _check_update_operands(context, op, name)
        _check_update_aliasing(context, op)
    else:
        _check_done_operand(op, name)


def _is_prefix(context: Context, short: Shape, whole: Shape) -> bool:
    """`ShapeUtil::IsPrefix`: the same shape, a tuple of the first elements, or an empty tuple."""
    if short.is_tuple and not short.tuple_shapes:
        return True
    if short.is_tuple and whole.is_tuple:
        return len(short.tuple_shapes) <= len(whole.tuple_shapes) and all(
            _is_prefix(context, a, b) for a, b in zip(short.tuple_shapes, whole.tuple_shapes, strict=False)
        )
    return context.same(short, whole)


def _check_computation(context: Context, op: HloInstruction, name: str) -> None:
    wrapped = wrapped_computation(op)
    if wrapped is None:
        return
    result = wrapped.root.shape
    if op.opcode == "async-done":
        if not context.same(op.shape, result):
            broken(
                "async-shape",
                f"{name} expects its shape to match the async computation result shape ({op.shape} vs {result}).",
            )
        return
    parameters = Shape.tuple_(p.shape for p in wrapped.parameters)
    if not _is_prefix(context, op.shape.tuple_shapes[0], parameters):
        broken(
            "async-shape",
            f"{name} expects the async shape at index {{0}} to be a tuple with shapes that match the prefix of the "
            f"async computation parameter shape: `{op.shape.tuple_shapes[0]}` vs `{parameters}`.",
        )
    if not _is_prefix(context, op.shape.tuple_shapes[1], result):
        broken(
            "async-shape",
            f"{name} expects the async shape at index {{1}} to be a tuple with shapes that match the prefix of the "
            f"async computation result shape ({op.shape.tuple_shapes[1]} vs {result}).",
        )


def _check_thread(op: HloInstruction) -> None:
    wrapped = wrapped_computation(op)
    if wrapped is None:
        return
    start = chain_start(op)
    told = start.attr("async_execution_thread") if start is not None else None
    thread = str(told) if told else "main" if start is not None else thread_of(wrapped)
    if thread != thread_of(wrapped):
        broken(
            "async-thread",
            f"{op.opcode} expects same async thread name as wrapped computation's thread name ({thread} vs "
            f"{thread_of(wrapped)}).",
        )


def _check_start_operands(context: Context, op: HloInstruction, name: str) -> None:
    expected = op.shape.tuple_shapes[0].tuple_shapes
    if op.operand_count != len(expected):
        broken("async-shape", f"{name} expects {len(expected)} operands, found {op.operand_count}.")
    for i, (operand, shape) in enumerate(zip(op.operands, expected, strict=True)):
        if not context.same(shape, operand.shape):
            broken(
                "async-shape",
                f"{name} expects the shape of operand {i} to match the async shape at index {{0, {i}}} "
                f"({operand.shape} vs {shape}).",
            )


def _producer(op: HloInstruction, name: str) -> HloInstruction:
    producer = find_async_producer(op.operand(0))
    if producer is None or producer.opcode not in ASYNC_PRODUCERS:
        broken(
            "async-shape",
            f"{name} expects operand to trace to async-start or async-update, found {op.operand(0).opcode}.",
        )
    mine, other = wrapped_computation(op), wrapped_computation(producer)
    if mine is None or other is None or not _identical(mine, other):
        broken(
            "async-shape",
            f"The {op.opcode} expects its wrapped async computation to be identical to its operand's wrapped async "
            f"computation ({mine.name if mine else 'null'} vs {other.name if other else 'null'}).",
        )
    return producer


def _identical(a: HloComputation, b: HloComputation) -> bool:
    """Whether two computations do the same in the same way, whatever their instructions are called."""
    if a is b:
        return True
    if thread_of(a) != thread_of(b) or len(a) != len(b):
        return False
    return computation_hash(a, {}) == computation_hash(b, {})


def _check_update_operands(context: Context, op: HloInstruction, name: str) -> None:
    if not op.operand_count:
        broken("operand-count", f"{name} expects at least one operand, found 0.")
    _producer(op, name)
    before, after = op.operand(0).shape, op.shape
    for part, what in ((0, "parameter"), (1, "result")):
        old, new = sub_shape(before, (part,)), after.tuple_shapes[part]
        if old is None or not _is_prefix(context, old, new):
            broken(
                "async-shape",
                f"{name} expects the {what} shape of operand to be a prefix of the output {what} shape ({old} vs "
                f"{new}).",
            )
    bound = len(before.tuple_shapes[0].tuple_shapes)
    added = after.tuple_shapes[0].tuple_shapes[bound:]
    if op.operand_count - 1 != len(added):
        broken(
            "async-shape",
            f"{name} has {op.operand_count - 1} new operands, but the shape indicates {len(added)} new bound "
            "parameters.",
        )
    for i, (operand, shape) in enumerate(zip(op.operands[1:], added, strict=True), 1):
        if not context.same(shape, operand.shape):
            broken(
                "async-shape",
                f"{name} expects the shape of operand {i} to match the async shape at index {{0, {bound + i - 1}}} "
                f"({operand.shape} vs {shape}).",
            )


def _check_done_operand(op: HloInstruction, name: str) -> None:
    if op.operand_count != 1:
        broken("operand-count", f"{name} expects a single operand, found {op.operand_count}.")
    producer = _producer(op, name)
    wrapped = wrapped_computation(producer)
    bound = sub_shape(producer.shape, (0,))
    if wrapped is None or bound is None or len(bound.tuple_shapes) != len(wrapped.parameters):
        broken("async-shape", f"{name} expects the operands of the previous async instruction to be fully bound.")


# ---------------------------------------------------------------- aliasing
def _same_alias(context: Context, a: Shape, b: Shape) -> bool:
    if context.options.layout_sensitive:
        return ShapeEqual(buffer=False)(a, b)
    return ShapeEqual(dynamic=False, layout=False, buffer=False)(b, a)


def _check_start_aliasing(context: Context, op: HloInstruction) -> None:
    wrapped = wrapped_computation(op)
    aliases = op.attr("output_to_operand_aliasing") or ()
    if wrapped is None or not aliases:
        return
    parameters = tuple(p.shape for p in wrapped.parameters)
    whole = Shape.tuple_([Shape.tuple_(parameters), wrapped.root.shape, *op.shape.tuple_shapes[2:]])
    for alias in aliases:
        if alias.operand < 0:
            broken("operand-aliasing", "Negative operand number in aliasing config.")
        if alias.operand >= len(parameters):
            broken("operand-aliasing", f"Operand number {alias.operand} in aliasing config is out of bounds.")
        inside = sub_shape(parameters[alias.operand], alias.operand_index)
        if inside is None:
            broken("operand-aliasing", "Invalid aliasing operand shape index.")
        if not alias.output_index:
            broken("operand-aliasing", "Output index should not be empty.")
        outside = sub_shape(whole, alias.output_index)
        if outside is None:
            broken("operand-aliasing", "Invalid aliasing output shape index.")
        if not _same_alias(context, inside, outside):
            broken("operand-aliasing", f"Different aliasing shapes: {inside} vs {outside}")


def _check_update_aliasing(context: Context, op: HloInstruction) -> None:
    before = op.operand(0).shape
    for alias in op.attr("output_to_operand_aliasing") or ():
        if alias.operand:
            broken(
                "operand-aliasing",
                "Invalid operand number in async-update aliasing config, can only alias to operand 0 (previous async "
                "op).",
            )
        inside = sub_shape(before, alias.operand_index)
        if not alias.operand_index or alias.operand_index[0] != 2 or inside is None:
            broken(
                "operand-aliasing",
                "Invalid operand shape index in async-update aliasing config, can only alias context of previous "
                "async op.",
            )
        if not alias.output_index or alias.output_index[0] != 2:
            broken(
                "operand-aliasing",
                "Invalid output shape index in async-update aliasing config, can only alias to context.",
            )
        outside = sub_shape(op.shape, alias.output_index)
        if outside is None:
            broken("operand-aliasing", "Out of bounds output index in async-update aliasing config.")
        if not _same_alias(context, inside, outside):
            broken("operand-aliasing", f"Different aliasing shapes: {inside} vs {outside}")
