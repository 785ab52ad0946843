"""The shape verifier: every result's shape follows from its operands, attributes and called computations.

Source: ``openxla/xla:xla/service/hlo_verifier.cc#ShapeVerifier``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from hloscope.core.errors import HloscopeError
from hloscope.core.hlo.attributes import CALLED
from hloscope.core.hlo.infer_shape import InferenceError, infer
from hloscope.core.hlo.infer_shape.base import compatible, compatible_ignoring_precision, human, is_float
from hloscope.core.hlo.literal import parse_literal
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.hlo.shape import Shape
from hloscope.core.hlo.verifier import async_rules, call_rules, collective_rules, scan_rules
from hloscope.core.hlo.verifier.equality import EXACT, NO_MEMORY_SPACE, ORDER_ONLY, ShapeEqual, layout_of
from hloscope.core.hlo.verifier.findings import Broken, broken, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hloscope.core.hlo.infer_shape import Request
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.verifier.context import Context

    Check = Callable[[Context, HloInstruction, Request], None]

HOST = 5
"""Memory space of the host."""

CALLERS = frozenset(
    "while conditional fusion async-start async-update async-done all-reduce all-reduce-start call map reduce "
    "reduce-scatter reduce-window scatter select-and-scatter sort scan custom-call topk".split()
)
"""Opcodes that may have called computations (top-k had one in older text)."""

REQUIRED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        row.split(":")[0]: tuple(row.split(":")[1].split())
        for row in (
            "all-gather:dimensions", "all-gather-start:dimensions", "all-reduce:to_apply", "all-reduce-start:to_apply",
            "batch-norm-grad:epsilon feature_index", "batch-norm-inference:epsilon feature_index",
            "batch-norm-training:epsilon feature_index", "collective-permute:source_target_pairs",
            "collective-permute-start:source_target_pairs", "compare:direction", "concatenate:dimensions",
            "convolution:dim_labels", "custom-call:custom_call_target", "domain:domain",
            "dynamic-slice:dynamic_slice_sizes", "fft:fft_type fft_length", "fusion:kind calls",
            "gather:offset_dims collapsed_slice_dims start_index_map index_vector_dim slice_sizes",
            "get-dimension-size:dimensions", "get-tuple-element:index", "iota:iota_dimension", "map:to_apply",
            "pad:padding", "reduce:dimensions to_apply", "reduce-precision:exponent_bits mantissa_bits",
            "reduce-scatter:dimensions to_apply", "reduce-window:to_apply", "reverse:dimensions", "rng:distribution",
            "rng-bit-generator:algorithm", "rng-get-and-update-state:delta", "scan:dimensions num_carries to_apply",
            "scatter:update_window_dims inserted_window_dims scatter_dims_to_operand_dims index_vector_dim to_apply",
            "select-and-scatter:select scatter", "set-dimension-size:dimensions", "slice:slice", "sort:to_apply",
            "topk:k", "transpose:dimensions", "while:condition body",
        )
    }
)  # fmt: skip
"""Attributes that XLA's parser demands of an opcode. Source: ``openxla/xla:xla/hlo/parser/hlo_parser.cc``."""

_MIXED = frozenset(
    "call conditional constant convolution dot ragged-dot scaled-dot all-reduce all-reduce-start all-reduce-done "
    "all-gather all-gather-start all-gather-done async-done async-update async-start collective-permute "
    "collective-permute-start collective-permute-done copy-done copy-start custom-call domain fusion "
    "get-tuple-element opt-barrier infeed outfeed parameter recv recv-done reduce-precision reduce-window send "
    "send-done sort tuple while".split()
)
"""Opcodes whose operands may differ in floating precision."""

_EXACT = frozenset(
    "bitcast call conditional constant copy-done copy-start custom-call get-tuple-element infeed outfeed opt-barrier "
    "parameter recv recv-done send send-done tuple while".split()
)
"""Opcodes that can neither change a layout nor a precision."""

_ORDER_ONLY = frozenset({"copy-start", "send", "recv", "infeed", "constant"})
_DUS_IN_FUSION = ShapeEqual(memory_space=False, tiles=False)


def check(context: Context, instruction: HloInstruction) -> None:
    """Everything about one instruction's shape; raises Broken for the first thing that is wrong."""
    opcode = instruction.opcode
    row = OPCODES.get(opcode)
    if row is None:
        return  # an opcode that nobody knows yet, or a short form of an asynchronous operation
    _preprocess(context, instruction, row.arity)
    special = HANDLERS.get(opcode)
    request = context.request(instruction)
    try:
        if special is not None:
            special(context, instruction, request)
        else:
            check_shape(context, instruction, infer(request))
    except InferenceError as error:
        raise Broken(_code_of(error, opcode), f"{error.message}, for instruction {describe(instruction)}") from None
    except HloscopeError as error:
        raise Broken("unreadable-attribute", f"{error.message}, for instruction {describe(instruction)}") from None
    except (ValueError, TypeError) as error:
        raise Broken("unreadable-attribute", f"{error}, for instruction {describe(instruction)}") from None


def _code_of(error: InferenceError, opcode: str) -> str:
    return {
        "operand-count": "operand-count",
        "missing-attribute": "missing-attribute",
        "missing-program": "missing-computation",
    }.get(error.kind, f"shape-of-{opcode}")


def _preprocess(context: Context, instruction: HloInstruction, arity: int | None) -> None:
    if instruction.called and instruction.opcode not in CALLERS:
        broken("caller", f"Called computations specified for non-caller instruction {describe(instruction)}")
    if arity is not None and instruction.operand_count != arity:
        broken(
            "operand-count",
            f"Expected {arity} operands for {instruction.opcode} instruction: {describe(instruction)}",
        )
    for name in REQUIRED.get(instruction.opcode, ()):
        if name not in instruction.raw_attrs:
            broken(
                "missing-computation" if name in CALLED else "missing-attribute",
                f"attribute {name} is expected but not seen, for instruction {describe(instruction)}",
            )
    shape = instruction.shape
    if not context.options.allow_unbounded_dynamism and context.is_unbounded(shape):
        broken("unbounded-dynamism", f"Unbounded dynamism is disabled for instruction: {describe(instruction)}")
    if shape.layout is not None and len(shape.layout.minor_to_major) != shape.rank:
        broken(
            "layout-rank",
            f"Instruction has mismatched minor-to-major size and dimension size: {describe(instruction)}",
        )
    fault = context.layout_fault(shape)
    if fault is not None:
        broken("layout-invalid", f"{fault}: {describe(instruction)}")


# ---------------------------------------------------------------- comparing
def check_shape(context: Context, instruction: HloInstruction, inferred: Shape) -> None:
    """`ShapeVerifier::CheckShape`."""
    options, actual = context.options, instruction.shape
    if not options.allow_mixed_precision and instruction.opcode not in _MIXED:
        _check_precision(instruction)
    if not _equal(context, instruction, actual, inferred):
        broken(
            "shape-mismatch",
            f"Expected instruction to have shape equal to {context.text(inferred)}, actual shape is "
            f"{context.text(actual)}: {describe(instruction)}",
        )


def _equal(context: Context, instruction: HloInstruction, actual: Shape, inferred: Shape) -> bool:
    options, opcode = context.options, instruction.opcode
    if opcode in _EXACT:
        return context.same(actual, inferred, ORDER_ONLY if opcode in _ORDER_ONLY else EXACT)
    if opcode == "dynamic-update-slice":
        return context.same(actual, inferred, _DUS_IN_FUSION if instruction.parent.is_fusion else EXACT)
    if opcode == "copy" and options.layout_sensitive and actual.is_array and inferred.is_array:
        to, come = layout_of(actual).memory_space, layout_of(inferred).memory_space
        if to != come and HOST in (to, come):
            if to == HOST:
                # It may still be a copy from host to host, before memory spaces are propagated.
                return actual.element_type == inferred.element_type
            return NO_MEMORY_SPACE(actual, inferred)
    if options.allow_mixed_precision:
        return compatible_ignoring_precision(actual, inferred)
    return compatible(actual, inferred)


def _check_precision(instruction: HloInstruction) -> None:
    seen: str | None = None
    for operand in instruction.operands:
        for _, leaf in operand.shape.leaves():
            if not is_float(leaf):
                continue
            if seen is None:
                seen = leaf.element_type
            elif seen != leaf.element_type:
                broken(
                    "mixed-precision",
                    f"Seen floating point types of different precisions in {describe(instruction)}, but mixed "
                    "precision is disallowed.",
                )


# ---------------------------------------------------------------- what inference alone does not say
def _inferred_only(context: Context, instruction: HloInstruction, request: Request) -> None:
    infer(request)


def _broadcast(context: Context, instruction: HloInstruction, request: Request) -> None:
    shape = instruction.shape
    if context.options.allow_mixed_precision and is_float(shape) and request.operands and is_float(request.operand(0)):
        # Backends that mix precisions widen in the broadcast itself, though XLA's own check demands one type.
        request.given = shape.with_element_type(request.operand(0).element_type)
    infer(request)


def _given(context: Context, instruction: HloInstruction, request: Request) -> None:
    """Parameters, constants: the text has one shape for instruction and value."""


def _same_element_types(context: Context, instruction: HloInstruction, request: Request) -> None:
    check_shape(context, instruction, infer(request))
    if context.options.allow_mixed_precision:
        return
    parameters = request.program().parameters
    for i, (parameter, operand) in enumerate(zip(parameters, request.operands, strict=False)):
        if parameter.element_type != operand.element_type:
            broken(
                "element-types",
                f"Shape mismatch between to_apply computation parameter and operand {i} in {describe(instruction)}.",
            )


def _sort(context: Context, instruction: HloInstruction, request: Request) -> None:
    program = request.program()
    if not compatible(program.result, Shape("pred")):
        broken(
            "comparator",
            "The Sort compare computation shape does not lead to a scalar predicate shape: "
            f"{context.text(program.result)}",
        )
    context.parameter_count(instruction, instruction.called["to_apply"][0], instruction.operand_count * 2)
    for i, parameter in enumerate(program.parameters):
        expected = Shape(request.operands[i // 2].element_type)
        if not compatible_ignoring_precision(expected, parameter):
            broken(
                "comparator",
                f"Expected the {i}-th parameter of the compare computation of sort to have shape "
                f"{context.text(expected)}, but got {context.text(parameter)}",
            )
    inferred = infer(request)
    dimensions = tuple(request.need("dimensions"))
    rank = request.operand(0).rank
    if len(dimensions) != 1 or dimensions[0] >= rank or dimensions[0] < 0:
        broken(
            "sort-dimension",
            f"Expected the sort_dimension {', '.join(map(str, dimensions))} of sort to be smaller than the rank {rank} "
            "of the operand(s).",
        )
    check_shape(context, instruction, inferred)


def _bitcast(context: Context, instruction: HloInstruction, request: Request) -> None:
    if not context.options.layout_sensitive:
        return
    before, after = request.operand(0), instruction.shape
    size = context.options.shape_size
    if size(before) != size(after):
        same_data = before.is_array and after.is_array and before.byte_size == after.byte_size
        if not (context.options.allow_bitcast_to_have_different_size and (same_data or _is_tiled(before, after))):
            broken(
                "bitcast-size",
                f"{describe(instruction)}: Bitcast cannot have different shape sizes of output ({size(after)}) and "
                f"operand ({size(before)}) ({after}) ({before})",
            )
    if not before.is_array or not after.is_array or _is_constant(instruction.operand(0)):
        return
    spaces = (layout_of(before).memory_space, layout_of(after).memory_space)
    if (spaces[0] == HOST) != (spaces[1] == HOST):
        broken(
            "bitcast-memory-space",
            f"{describe(instruction)}: Bitcast cannot have different memory spaces of output ({spaces[1]}) and operand "
            f"({spaces[0]}) ({after}) ({before})",
        )


def _is_tiled(*shapes: Shape) -> bool:
    # Padding to tiles is the backend's to know: their sizes are not compared.
    return any(shape.layout is not None and bool(shape.layout.tiles) for shape in shapes)


def _is_constant(node: HloInstruction) -> bool:
    while node.opcode == "copy" and node.operand_count:
        node = node.operand(0)
    return node.opcode == "constant"


def _copy_done(context: Context, instruction: HloInstruction, request: Request) -> None:
    inferred = infer(request)
    buffers = request.operand(0).tuple_shapes
    if len(buffers) < 2:
        broken("copy-done", f"copy-done needs the tuple of a copy-start: {describe(instruction)}")
    if not context.same(buffers[0], buffers[1], ShapeEqual(memory_space=False, splits=False)):
        broken(
            "copy-done",
            "Source and destination buffers in CopyDone arguments need to be the same shape found "
            f"{context.text(buffers[0])} and {context.text(buffers[1])}: {describe(instruction)}",
        )
    check_shape(context, instruction, inferred)


def _token_operand(number: int) -> Check:
    def run(context: Context, instruction: HloInstruction, request: Request) -> None:
        shape = request.operand(number)
        if not shape.is_token:
            broken(
                "token",
                f"Expected operand {number} to be token-shaped, actual shape is {context.text(shape)}: "
                f"{describe(instruction)}",
            )
        if instruction.opcode == "outfeed":
            told = request.attr("outfeed_shape")
            if told is not None and not context.same(told, request.operand(0)):
                broken(
                    "outfeed-shape",
                    f"Expected outfeed shape to be equal to operand's shape {context.text(request.operand(0))}, actual "
                    f"shape is {context.text(told)}: {describe(instruction)}",
                )
            check_shape(context, instruction, Shape.token())
            return
        check_shape(context, instruction, infer(request))

    return run


def _scaled_dot(context: Context, instruction: HloInstruction, request: Request) -> None:
    contracting = (request.attr("lhs_contracting_dims", ()), request.attr("rhs_contracting_dims", ()))
    for number in (0, 1):
        operand, scale = request.operand(number), request.operand(number + 2)
        no_scale = scale.element_type == operand.element_type == "bf16" and all(d == 1 for d in scale.dimensions)
        if no_scale and any(d != 1 for d in operand.dimensions):
            continue
        names = instruction.operand(number + 2).name, instruction.operand(number).name
        if scale.rank != operand.rank:
            broken(
                "scales",
                f"Scale operand {names[0]} has a different number of dimensions than operand {names[1]} in "
                f"{describe(instruction)}",
            )
        if len(contracting[number]) != 1:
            broken(
                "scales",
                f"Contracting dimensions must have exactly one dimension in instruction {describe(instruction)}",
            )
        for i, (size, step) in enumerate(zip(operand.dimensions, scale.dimensions, strict=True)):
            if step == 0 or size % step:
                broken(
                    "scales",
                    f"Dimension {i} of operand {human(operand)} should be a multiple of dimension {i} of scale operand "
                    f"{human(scale)} in {describe(instruction)}",
                )
    if request.operand(2).is_scalar and request.operand(3).is_scalar:
        broken("scales", f"At least one of the scales should be not a scalar in {describe(instruction)}")
    check_shape(context, instruction, infer(request))


_LITERALS = 1 << 22
"""Longest text of a constant that is read only to see whether it fits."""


def _constant(context: Context, instruction: HloInstruction, request: Request) -> None:
    payload = instruction.payload
    if payload is not None and len(payload) <= _LITERALS:
        try:
            parse_literal(payload, instruction.shape)
        except (HloscopeError, ValueError) as error:
            why = getattr(error, "message", str(error))
            broken("literal", f"{why}, for instruction {describe(instruction)}")
    _given(context, instruction, request)


def _rng(context: Context, instruction: HloInstruction, request: Request) -> None:
    _inferred_only(context, instruction, request)
    if request.operand(0).element_type != instruction.shape.element_type and not context.options.allow_mixed_precision:
        broken(
            "shape-of-rng",
            "Expected compatible element types for the result and the two operands of Rng instruction: "
            f"{describe(instruction)}",
        )


def _handlers() -> dict[str, Check]:
    table: dict[str, Check] = {
        "parameter": _given,
        "constant": _constant,
        "sort": _sort,
        "bitcast": _bitcast,
        "copy-done": _copy_done,
        "outfeed": _token_operand(1),
        "infeed": _token_operand(0),
        "add-dependency": _token_operand(1),
        "scaled-dot": _scaled_dot,
        "scan": scan_rules.check,
        "broadcast": _broadcast,
    }
    # Their handlers compare no shape: inference on the given shape is the whole check.
    for opcode in ("reshape", "dynamic-reshape", "iota", "rng-bit-generator"):
        table[opcode] = _inferred_only
    table["rng"] = _rng
    for opcode in ("reduce", "map", "reduce-window"):
        table[opcode] = _same_element_types
    for opcode in ("fusion", "call", "custom-call", "while", "conditional"):
        table[opcode] = _with_compare(call_rules.HANDLERS[opcode])
    for opcode in ("async-start", "async-update", "async-done"):
        table[opcode] = async_rules.check
    for opcode, before in collective_rules.HANDLERS.items():
        table[opcode] = _after(before)
    return table


def _after(before: Check) -> Check:
    """Run a check, then compare the inferred shape."""

    def run(context: Context, instruction: HloInstruction, request: Request) -> None:
        before(context, instruction, request)
        check_shape(context, instruction, infer(request))

    return run


def _with_compare(rule: Callable[[Context, HloInstruction], Shape | None]) -> Check:
    """Run a check of called computations that names the shape to compare with."""

    def run(context: Context, instruction: HloInstruction, request: Request) -> None:
        expected = rule(context, instruction)
        if expected is not None:
            check_shape(context, instruction, expected)

    return run


HANDLERS: Mapping[str, Check] = MappingProxyType(_handlers())
"""Checks of opcodes that inference alone does not cover; every other opcode is inferred and compared."""
