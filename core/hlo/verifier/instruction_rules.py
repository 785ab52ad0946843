"""The instruction verifier: what holds of one instruction beside its shape.

Source: ``openxla/xla:xla/service/hlo_verifier.cc#InstructionVerifier, #CheckFusionInstruction,
#CheckElementwiseInstruction``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.infer_shape.base import compatible_ignoring_type, human, is_array, is_float
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.hlo.verifier import sharding
from hloscope.core.hlo.verifier.call_rules import branches_of
from hloscope.core.hlo.verifier.context import target_of, thread_of
from hloscope.core.hlo.verifier.equality import ShapeEqual, layout_of
from hloscope.core.hlo.verifier.findings import Broken, broken, describe
from hloscope.core.hlo.verifier.options import KEEPS_LAYOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.layout import Layout
    from hloscope.core.hlo.verifier.context import Context

    Check = Callable[[Context, HloInstruction], None]

FAST, DEFAULT, HOST = 1, 0, 5
"""Memory spaces: generic fast, default, host."""

_ACCURATE = frozenset(
    "acos acosh asin asinh atanh cbrt cosine cosh erf exponential exponential-minus-one log log-plus-one logistic "
    "rsqrt sine sinh sqrt tan tanh".split()
)
_LOOSE_LAYOUT = ShapeEqual(tiles=False, memory_space=False)
_LOOSER_LAYOUT = ShapeEqual(tiles=False, memory_space=False, element_size=False)


def check(context: Context, instruction: HloInstruction, names: dict[str, HloInstruction]) -> None:
    """Everything about one instruction but its shape; raises Broken for the first thing that is wrong.

    `names` holds the instructions seen so far, by name.
    """
    first = names.setdefault(instruction.name, instruction)
    if first is not instruction and context.options.verify_unique_names:
        broken(
            "duplicate-name",
            f"HLO has name that is not unique within module: {describe(instruction)} in computation: "
            f"{instruction.parent.name} Previous HLO with same name: {describe(first)} in computation: "
            f"{first.parent.name}",
        )
    text = instruction.raw_attrs.get("sharding")
    if text is not None:
        _check_sharding(context, instruction, text)
    if context.options.verify_call_nested_computation_thread_name and "to_apply" in instruction.called:
        thread = thread_of(instruction.called["to_apply"][0])
        if thread != thread_of(instruction.parent):
            broken(
                "thread",
                f"{instruction.name} to_apply computation execution thread does not match ({thread} vs "
                f"{thread_of(instruction.parent)})",
            )
    handler = HANDLERS.get(instruction.opcode)
    try:
        if handler is not None:
            handler(context, instruction)
        _postprocess(context, instruction)
    except HloscopeError as error:
        raise Broken("unreadable-attribute", f"{error.message}, for instruction {describe(instruction)}") from None


def _check_sharding(context: Context, instruction: HloInstruction, text: str) -> None:
    partitions = context.counts[1]
    known = context.options.verify_sharding_device_numbers and partitions > 1
    wrong = sharding.fault(text, instruction.shape, partitions if known else None)
    if wrong is not None:
        broken("sharding", f"Invalid sharding for instruction: {describe(instruction)}: {wrong}")


# ---------------------------------------------------------------- callers
def _check_threads(instruction: HloInstruction) -> None:
    mine = thread_of(instruction.parent)
    for callee in instruction.called_computations:
        if thread_of(callee) != mine:
            broken(
                "thread",
                f"Callable instruction {describe(instruction)} expects parent computation thread name same as called "
                f"computation's thread name ({mine} vs {thread_of(callee)}).",
            )


def _fusion(context: Context, fusion: HloInstruction) -> None:
    _check_threads(fusion)
    if not fusion.called_computations:
        return
    fused = fusion.called_computations[0]
    text = describe(fusion)
    owners = [caller for caller in fused.callers if caller.opcode == "fusion"]
    if owners and owners[0] is not fusion:
        broken("fusion-body", f"Instruction of fused computation does not match expected instruction {text}.")
    root = fused.root
    if root.user_count:
        broken("fusion-body", f"Root of {text} may not have users.")
    for node in fused.instructions:
        if node is not root and not node.user_count and not _side_effect(node):
            broken("fusion-body", f"Non-root instruction {describe(node)} in {text} must have users.")
        for user in node.users:
            if user not in fused:
                broken("fusion-body", f"Non-root instruction {describe(node)} in {text} may not have external users.")
    count, seen = len(fused.parameters), set[int]()
    for parameter in fused.parameters:
        number = parameter.parameter_number
        if number >= count:
            broken(
                "fusion-body",
                f"Unexpected parameter number {number} in {text}: higher then number of parameters {count}.",
            )
        if number in seen:
            broken("fusion-body", f"Did not expect parameter number {number} more than once in {text}.")
        seen.add(number)


def _side_effect(node: HloInstruction) -> bool:
    """`HasSideEffectNoRecurse`."""
    if node.info.side_effect:
        return True
    if node.opcode in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        return bool(node.attr("constrain_layout")) or node.attr("channel_id") is not None
    if node.opcode == "collective-permute":
        return node.attr("channel_id") is not None
    return node.opcode == "custom-call" and bool(node.attr("custom_call_has_side_effect"))


def _while(context: Context, loop: HloInstruction) -> None:
    if not loop.called.get("body") or not loop.called.get("condition"):
        return  # reported with the shape
    _check_threads(loop)
    body, condition = loop.called["body"][0], loop.called["condition"][0]
    if len(body.parameters) == 1 and len(condition.parameters) == 1:
        _check_shardings(loop, [loop, body.root, body.parameters[0], condition.parameters[0]])


def _conditional(context: Context, conditional: HloInstruction) -> None:
    _check_threads(conditional)
    _check_shardings(conditional, [conditional, *(branch.root for branch in branches_of(conditional))])


def _check_shardings(parent: HloInstruction, nodes: Sequence[HloInstruction]) -> None:
    common: HloInstruction | None = None
    for node in nodes:
        text = node.raw_attrs.get("sharding")
        if text is None:
            continue
        if common is None:
            common = node
        elif "".join(text.split()) != "".join((common.raw_attrs.get("sharding") or "").split()):
            broken(
                "sharding-agrees",
                f"Inconsistent {parent.opcode} sharding among instructions: {describe(common)} {describe(node)}",
            )


def _call(context: Context, call: HloInstruction) -> None:
    if context.options.verify_call_nested_computation_thread_name:
        _check_threads(call)
    elif call.attr("output_to_operand_aliasing"):
        broken("call-aliasing", f"Call instruction {describe(call)} may not have an output-to-operand aliasing set.")


def _custom_call(context: Context, call: HloInstruction) -> None:
    if target_of(call) == "GetRngSeed":
        start = "GetRngSeed custom call must"
        if call.operand_count:
            broken("get-rng-seed", f"{start} have 0 operands, but has {call.operand_count}")
        if call.shape.element_type != "u64":
            broken("get-rng-seed", f"{start} return U64 type, but got {human(call.shape)}")
        if not call.shape.is_scalar:
            broken("get-rng-seed", f"{start} return a scalar, but got {human(call.shape)}")
    if context.options.verify_call_nested_computation_thread_name:
        _check_threads(call)


# ---------------------------------------------------------------- elementwise
def _elementwise(context: Context, instruction: HloInstruction) -> None:
    if "result_accuracy" in instruction.raw_attrs and instruction.opcode not in _ACCURATE and _is_unary(instruction):
        broken("result-accuracy", f"Unary op with result accuracy is not supported for {instruction.opcode}")
    for operand in instruction.operands:
        if not compatible_ignoring_type(operand.shape, instruction.shape):
            broken(
                "implicit-broadcast",
                "Implicit broadcast is not allowed in HLO.Found different shapes for instruction "
                f"{instruction.opcode}. output: {human(instruction.shape)} operand: {human(operand.shape)}",
            )


def _is_unary(instruction: HloInstruction) -> bool:
    return instruction.operand_count == 1


def _compare(context: Context, comparison: HloInstruction) -> None:
    _elementwise(context, comparison)
    told = comparison.attr("type")
    if told is None or comparison.operand_count < 2:
        return
    shape = comparison.operand(1).shape
    if is_float(shape):
        if told not in ("FLOAT", "TOTALORDER"):
            broken(
                "comparison-type",
                f"Expected comparison type FLOAT or TOTALORDER. actual: {told} operand: {human(shape)}",
            )
        return
    kind = shape.type.kind
    expected = "SIGNED" if kind == "int" else "FLOAT" if kind == "complex" else "UNSIGNED"
    if told != expected and kind != "unknown":
        broken("comparison-type", f"Expected comparison type {expected}. actual: {told} operand: {human(shape)}")


def _broadcast(context: Context, broadcast: HloInstruction) -> None:
    dimensions = broadcast.dimensions
    if context.options.verify_broadcast_dimensions_order and list(dimensions) != sorted(dimensions):
        broken("broadcast-order", f"Broadcast dimensions should be ordered, got: {describe(broadcast)}")


def _reshape(context: Context, reshape: HloInstruction) -> None:
    if not context.options.verify_reshape_is_bitcast or reshape.parent.is_fusion or not reshape.operand_count:
        return
    before, after = reshape.operand(0).shape, reshape.shape
    if (
        is_array(before)
        and is_array(after)
        and not _moves_nothing(before.dimensions, before.layout, after.dimensions, after.layout)
    ):
        broken("reshape-is-bitcast", f"Reshape should be a physical bitcast, got: {describe(reshape)}")


def _moves_nothing(
    before: tuple[int, ...], before_layout: Layout | None, after: tuple[int, ...], after_layout: Layout | None
) -> bool:
    """Whether both shapes list the elements in one physical order: sizes of 1 aside, strides factor alike."""

    def strides(dims: tuple[int, ...], layout: Layout | None) -> list[tuple[int, int]]:
        order = layout.minor_to_major if layout is not None else tuple(range(len(dims) - 1, -1, -1))
        out, stride = {}, 1
        for dim in order:
            out[dim] = stride
            stride *= dims[dim]
        # Split every logical dimension, major first, into its size and stride.
        return [(dims[d], out[d]) for d in range(len(dims)) if dims[d] != 1]

    a, b = strides(before, before_layout), strides(after, after_layout)
    i = j = 0
    while i < len(a) and j < len(b):
        (n, s), (m, t) = a[i], b[j]
        if n == m:
            if s != t:
                return False
            i, j = i + 1, j + 1
        elif n > m:
            # The larger one's major part must be the other: what is left keeps the stride.
            if n % m or t != s * (n // m):
                return False
            a[i], j = (n // m, s), j + 1
        else:
            if m % n or s != t * (m // n):
                return False
            b[j], i = (m // n, t), i + 1
    return True


def _all_reduce(context: Context, reduction: HloInstruction) -> None:
    channel = reduction.attr("channel_id")
    if channel is not None and channel <= 0:
        broken("channel-id", f"All reduce channel id must be greater than 0 for {describe(reduction)}")


# ---------------------------------------------------------------- layouts
def _postprocess(context: Context, instruction: HloInstruction) -> None:
    options = context.options
    if options.verify_no_host_memory_space:
        for _, leaf in instruction.shape.leaves():
            if leaf.layout is not None and leaf.layout.memory_space == HOST:
                broken(
                    "host-memory-space",
                    f"Instruction shouldn't have the layout of host memory space: {describe(instruction)}",
                )
    opcode = instruction.opcode
    moves = opcode in ("dynamic-slice", "dynamic-update-slice", "copy")
    if not options.restrict_layout_changes or opcode not in KEEPS_LAYOUT or not is_array(instruction.shape):
        return
    result = instruction.shape
    for operand in instruction.operands:
        shape = operand.shape
        if not is_array(shape) or shape.rank != result.rank or shape.layout == result.layout:
            continue
        come, to = layout_of(shape), layout_of(result)
        equal = _LOOSE_LAYOUT
        if opcode in ("convert", "compare", "is-finite", "scatter") or (
            opcode == "select" and shape.element_type == "pred"
        ):
            equal = _LOOSER_LAYOUT
        elif moves:
            _check_memory_space(instruction, come.memory_space, to.memory_space)
        if not equal.layouts(to, come):
            broken(
                "layout-change",
                f"Instruction shouldn't change layouts {describe(instruction)} From {result} To {shape}",
            )


def _check_memory_space(instruction: HloInstruction, come: int, to: int) -> None:
    # As in XLA, entering fast memory passes though the sentence speaks of both directions.
    if come == FAST and to != FAST:
        broken(
            "memory-space-change",
            "Instruction shouldn't change layout memory space between generic fast memory space and others for "
            f"instruction: {describe(instruction)}",
        )
    if instruction.opcode == "dynamic-slice" and come == DEFAULT and to == HOST:
        broken(
            "memory-space-change",
            "DynamicSlice instruction shouldn't change layout memory space from device to host: "
            f"{describe(instruction)}",
        )
    if instruction.opcode == "dynamic-update-slice" and come == HOST and to == DEFAULT:
        broken(
            "memory-space-change",
            "DynamicUpdateSlice instruction shouldn't change layout memory space from host to device: "
            f"{describe(instruction)}",
        )


def _handlers() -> dict[str, Check]:
    # Clamp and select take scalars where the rest is an array; a bitcast-convert may change the rank.
    other = {"clamp", "select", "bitcast-convert", "map", "compare"}
    table: dict[str, Check] = {
        name: _elementwise for name, row in OPCODES.items() if row.elementwise and name not in other
    }
    table.update(
        {
            "compare": _compare,
            "fusion": _fusion,
            "while": _while,
            "conditional": _conditional,
            "call": _call,
            "custom-call": _custom_call,
            "broadcast": _broadcast,
            "reshape": _reshape,
            "all-reduce": _all_reduce,
        }
    )
    return table


HANDLERS: Mapping[str, Check] = MappingProxyType(_handlers())
"""Checks by opcode; the rest has none of its own."""
