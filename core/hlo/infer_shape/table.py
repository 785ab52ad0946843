"""The table of inference rules: one for every opcode, and `infer_shape` that picks one."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hloscope.core.hlo.infer_shape import (
    collectives,
    control,
    dots,
    elementwise,
    gather_scatter,
    linalg,
    rearrange,
    reducers,
    windows,
)
from hloscope.core.hlo.infer_shape.base import InferenceError, ProgramShape, Request
from hloscope.core.hlo.opcodes import OPCODES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

    Rule = Callable[[Request], Shape]


def _rules() -> dict[str, Rule]:
    table: dict[str, Rule] = {}

    def add(names: str, rule: Rule) -> None:
        for name in names.split():
            table[name] = rule

    add("copy domain", elementwise.same_as_operand)
    add("floor cbrt ceil erf round-nearest-afz round-nearest-even", elementwise.floating)
    add(
        "asin asinh acos acosh atanh cosh cosine sinh sine exponential exponential-minus-one log log-plus-one logistic "
        "rsqrt sqrt tan tanh",
        elementwise.floating_or_complex,
    )
    add("real imag", elementwise.part)
    add("abs", elementwise.absolute)
    add("count-leading-zeros popcnt", elementwise.bit_count)
    add("negate", elementwise.negate)
    add("sign", elementwise.sign)
    add("not", elementwise.logical_not)
    add("is-finite", elementwise.is_finite)
    add("convert", elementwise.convert)
    add("bitcast-convert", elementwise.bitcast_convert)
    add("stochastic-convert", elementwise.stochastic_convert)
    add("reduce-precision", elementwise.reduce_precision)
    add(
        "add maximum minimum multiply mulhi subtract atan2 power divide remainder shift-left shift-right-arithmetic "
        "shift-right-logical complex and or xor compare",
        elementwise.binary,
    )
    add("clamp", elementwise.clamp)
    add("select", elementwise.select)
    add("dot scaled-dot", dots.dot)
    add("ragged-dot", dots.ragged_dot)
    add("convolution", windows.convolution)
    add("reduce-window", windows.reduce_window)
    add("select-and-scatter", windows.select_and_scatter)
    add("reduce", reducers.reduce)
    add("map", reducers.map_)
    add("sort", reducers.sort)
    add("topk", reducers.top_k)
    add("scan", reducers.scan)
    add("gather", gather_scatter.gather)
    add("scatter", gather_scatter.scatter)
    add("fft", linalg.fft)
    add("cholesky", linalg.cholesky)
    add("triangular-solve", linalg.triangular_solve)
    add("batch-norm-training", linalg.batch_norm_training)
    add("batch-norm-inference", linalg.batch_norm_inference)
    add("batch-norm-grad", linalg.batch_norm_grad)
    add("concatenate", rearrange.concatenate)
    add("pad", rearrange.pad)
    add("slice", rearrange.slice_)
    add("dynamic-slice", rearrange.dynamic_slice)
    add("dynamic-update-slice", rearrange.dynamic_update_slice)
    add("reverse", rearrange.reverse)
    add("transpose", rearrange.transpose)
    add("broadcast", rearrange.broadcast)
    add("reshape", rearrange.reshape)
    add("dynamic-reshape", rearrange.dynamic_reshape)
    add("iota", rearrange.iota)
    add("get-dimension-size", rearrange.get_dimension_size)
    add("set-dimension-size", rearrange.set_dimension_size)
    add("all-gather", collectives.all_gather)
    add("all-gather-start", collectives.all_gather_start)
    add("all-gather-done collective-permute-done", collectives.second_of_start)
    add("all-reduce all-reduce-start", collectives.all_reduce)
    add("all-reduce-done", collectives.done_of_same)
    add("reduce-scatter", collectives.reduce_scatter)
    add("all-to-all", collectives.all_to_all)
    add("ragged-all-to-all", collectives.ragged_all_to_all)
    add("collective-broadcast", collectives.collective_broadcast)
    add("collective-permute", collectives.collective_permute)
    add("collective-permute-start", collectives.collective_permute_start)
    add("partition-id replica-id", collectives.device_number)
    add("bitcast constant custom-call parameter", control.given)
    add("tuple", control.tuple_)
    add("get-tuple-element", control.get_tuple_element)
    add("opt-barrier", control.first_operand)
    add("add-dependency", control.add_dependency)
    add("after-all send-done", control.token)
    add("while", control.while_)
    add("conditional", control.conditional)
    add("call", control.call)
    add("fusion", control.fusion)
    add("async-start", control.async_start)
    add("async-update", control.async_update)
    add("async-done", control.async_done)
    add("copy-start", control.copy_start)
    add("copy-done", control.copy_done)
    add("send", control.send)
    add("recv", control.recv)
    add("recv-done", control.recv_done)
    add("infeed", control.infeed)
    add("outfeed", control.outfeed)
    add("rng", control.rng)
    add("rng-bit-generator", control.rng_bit_generator)
    add("rng-get-and-update-state", control.rng_state)
    return table


RULES: Mapping[str, Rule] = MappingProxyType(_rules())
"""Inference rule by opcode."""


NEEDS_SHAPE = frozenset(
    "async-start async-update async-done all-gather all-gather-start all-gather-done all-reduce all-reduce-start "
    "all-reduce-done all-to-all collective-broadcast collective-permute collective-permute-start "
    "collective-permute-done copy-done copy-start dynamic-reshape dynamic-slice dynamic-update-slice "
    "ragged-all-to-all recv recv-done reduce-scatter send send-done slice bitcast bitcast-convert constant convert "
    "custom-call fusion infeed iota outfeed parameter reduce-precision reshape rng rng-bit-generator "
    "rng-get-and-update-state stochastic-convert".split()
)
"""Opcodes whose shape the text must give, whether or not it follows: XLA's parser infers none for them.

Source: ``openxla/xla:xla/hlo/parser/hlo_parser.cc#CanInferShape``.
"""


def infer(request: Request) -> Shape:
    """Answer a request. Raises InferenceError (with the opcode set) where no shape follows."""
    rule = RULES.get(request.opcode)
    if rule is None:
        return request.needs_shape()
    row = OPCODES[request.opcode]
    if row.arity is not None and len(request.operands) != row.arity:
        raise InferenceError(
            f"Expected {row.arity} operands for {request.opcode} instruction, got {len(request.operands)}",
            opcode=request.opcode,
            kind="operand-count",
        )
    try:
        return rule(request)
    except InferenceError as error:
        error.opcode = request.opcode
        raise


def infer_shape(
    opcode: str,
    operands: Sequence[Shape],
    attributes: Mapping[str, Any] | None = None,
    programs: Mapping[str, Sequence[ProgramShape]] | None = None,
    given: Shape | None = None,
    *,
    replicas: int = 1,
    partitions: int = 1,
) -> Shape:
    """Shape of the result of `opcode`, by XLA's rules; layouts are not part of the answer.

    `attributes` are typed values or texts by name, `programs` signatures of called computations by attribute name.
    `given` is the shape that the instruction says: opcodes such as ``convert`` or ``constant`` have no other source,
    and dots take their element type from it. Raises InferenceError where no shape follows, ParseError where an
    attribute's text cannot be read.
    """
    return infer(Request(opcode, operands, attributes, programs, given, replicas=replicas, partitions=partitions))


def infer_instruction_shape(instruction: HloInstruction) -> Shape:
    """The shape that an instruction of a graph ought to have. Raises as `infer_shape` does."""
    return infer(request_of(instruction))


def request_of(instruction: HloInstruction) -> Request:
    """The request that an instruction poses, with its module's replica and partition counts where they matter."""
    request = Request.of(instruction)
    if instruction.info.collective and instruction.in_computation:
        module = instruction.parent.module_or_none
        if module is not None:
            request.replicas, request.partitions = module.replica_count, module.num_partitions
    return request
