"""The opcode table: every opcode that XLA has, with arity and the properties that passes and readers ask for.

Source: ``openxla/xla:xla/hlo/ir/hlo_opcode.h``, ``hlo_instruction.cc#HasSideEffectNoRecurse, #IsElementwiseImpl``,
``hlo_computation.cc`` (call contexts). An opcode that the table does not know is kept by name by the reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

CallContext = Literal["none", "control-flow", "embedded"]


@dataclass(frozen=True, slots=True)
class Opcode:
    """One opcode."""

    name: str
    """The word in HLO text."""
    arity: int | None
    """Fixed number of operands; None where it varies."""
    meaning: str
    """What it computes, in one line."""
    elementwise: bool = False
    """Output element i depends on element i of each operand only."""
    commutative: bool = False
    side_effect: bool = False
    """Always has an effect beyond its value (collectives with a channel and custom calls are asked per instruction)."""
    calls: CallContext = "none"
    """How called computations run: as control flow (they own buffers) or embedded (once per element)."""
    collective: bool = False
    asynchronous: Literal["", "start", "update", "done"] = ""
    """Which end of an asynchronous pair this is."""


def _row(
    name: str,
    arity: int | None,
    meaning: str,
    flags: str = "",
    calls: CallContext = "none",
) -> Opcode:
    words = flags.split()
    end: Literal["", "start", "update", "done"] = ""
    for candidate in ("start", "update", "done"):
        if candidate in words:
            end = candidate
    return Opcode(
        name,
        arity,
        meaning,
        elementwise="elementwise" in words,
        commutative="commutative" in words,
        side_effect="effect" in words,
        calls=calls,
        collective="collective" in words,
        asynchronous=end,
    )


_E = "elementwise"
_EC = "elementwise commutative"
_C = "collective"

_ROWS = (
    _row("abs", 1, "absolute value; magnitude of a complex number", _E),
    _row("acos", 1, "arc cosine", _E),
    _row("acosh", 1, "inverse hyperbolic cosine", _E),
    _row("add", 2, "sum; logical or for pred", _EC),
    _row("add-dependency", 2, "operand 0, ordered after the token in operand 1"),
    _row("after-all", None, "a token that joins tokens"),
    _row("all-gather", None, "concatenation of every device's operand along a dimension", _C),
    _row("all-gather-done", 1, "wait for an all-gather-start", f"{_C} effect done"),
    _row("all-gather-start", None, "begin an all-gather", f"{_C} effect start"),
    _row("all-reduce", None, "reduction of every device's operand, on every device", _C, "embedded"),
    _row("all-reduce-done", 1, "wait for an all-reduce-start", f"{_C} effect done"),
    _row("all-reduce-start", None, "begin an all-reduce", f"{_C} effect start", "embedded"),
    _row("all-to-all", None, "block i of device j goes to block j of device i", _C),
    _row("and", 2, "bitwise and; logical and for pred", _EC),
    _row("asin", 1, "arc sine", _E),
    _row("asinh", 1, "inverse hyperbolic sine", _E),
    _row("async-done", 1, "result of an asynchronous computation", "done", "control-flow"),
    _row("async-start", None, "begin an asynchronous computation", "start", "control-flow"),
    _row("async-update", None, "a point of synchronisation of an asynchronous computation", "update", "control-flow"),
    _row("atan2", 2, "angle of the point (operand 1, operand 0)", _E),
    _row("atanh", 1, "inverse hyperbolic tangent", _E),
    _row("batch-norm-grad", 5, "gradients of batch normalization"),
    _row("batch-norm-inference", 5, "batch normalization with given mean and variance"),
    _row("batch-norm-training", 3, "batch normalization with the batch's mean and variance"),
    _row("bitcast", 1, "the same bytes under another shape and layout; free"),
    _row("bitcast-convert", 1, "the same bits under another element type", _E),
    _row("broadcast", 1, "copies along new dimensions; `dimensions` says where the old ones go"),
    _row("call", None, "the called computation's result", "", "control-flow"),
    _row("cbrt", 1, "cube root", _E),
    _row("ceil", 1, "round up", _E),
    _row("cholesky", 1, "Cholesky factor of symmetric positive definite matrices"),
    _row("clamp", 3, "operand 1 held between operand 0 and operand 2", _E),
    _row("collective-broadcast", None, "the first device of each group sends its operand to the rest", f"{_C} effect"),
    _row("collective-permute", None, "send the operand along source-target pairs; zeros where nobody sends", _C),
    _row("collective-permute-done", 1, "wait for a collective-permute-start", f"{_C} effect done"),
    _row("collective-permute-start", None, "begin a collective-permute", f"{_C} effect start"),
    _row("compare", 2, "pred of a comparison in `direction`", _E),
    _row("complex", 2, "complex number of real and imaginary part", _E),
    _row("concatenate", None, "operands one after the other along a dimension"),
    _row("conditional", None, "the branch that operand 0 picks, applied to its own operand", "", "control-flow"),
    _row("constant", 0, "a literal"),
    _row("convert", 1, "the same values under another element type, rounded", _E),
    _row("convolution", None, "convolution of operand 0 with the kernel in operand 1"),
    _row("copy", 1, "the same values in a new buffer, often in another layout", _E),
    _row("copy-done", 1, "wait for a copy-start", "done"),
    _row("copy-start", 1, "begin an asynchronous copy, often to another memory space", "start"),
    _row("cosine", 1, "cosine", _E),
    _row("cosh", 1, "hyperbolic cosine", _E),
    _row("count-leading-zeros", 1, "number of leading zero bits", _E),
    _row("custom-call", None, "a target outside HLO: a library, a kernel or an annotation", "", "embedded"),
    _row("divide", 2, "quotient; integers truncate", _E),
    _row("domain", 1, "marks a border between sharding domains; the value passes through"),
    _row("dot", 2, "contraction over the contracting dimensions, batched over the batch ones"),
    _row("dynamic-reshape", None, "reshape to sizes given at run time"),
    _row("dynamic-slice", None, "a slice at start indices given at run time, clamped into range"),
    _row("dynamic-update-slice", None, "operand 0 with a slice overwritten at run-time indices, clamped into range"),
    _row("erf", 1, "error function", _E),
    _row("exponential", 1, "e to the operand", _E),
    _row("exponential-minus-one", 1, "e to the operand, minus 1", _E),
    _row("fft", 1, "Fourier transform along the last dimensions"),
    _row("floor", 1, "round down", _E),
    _row("fusion", None, "one kernel that computes the fused computation", "", "embedded"),
    _row("gather", 2, "slices of operand 0 at the indices in operand 1"),
    _row("get-dimension-size", 1, "the run-time size of a dimension"),
    _row("get-tuple-element", 1, "one element of a tuple; free"),
    _row("imag", 1, "imaginary part", _E),
    _row("infeed", 1, "data from the host", "effect"),
    _row("iota", 0, "0, 1, 2, … along one dimension"),
    _row("is-finite", 1, "pred: neither infinite nor NaN", _E),
    _row("log", 1, "natural logarithm", _E),
    _row("log-plus-one", 1, "natural logarithm of 1 plus the operand", _E),
    _row("logistic", 1, "1 / (1 + e^-x)", _E),
    _row("map", None, "a computation applied to each element", _E, "embedded"),
    _row("maximum", 2, "the larger; NaN wins; logical or for pred", _EC),
    _row("minimum", 2, "the smaller; NaN wins; logical and for pred", _EC),
    _row("mulhi", 2, "high half of the integer product", _EC),
    _row("multiply", 2, "product; logical and for pred", _EC),
    _row("negate", 1, "minus", _E),
    _row("not", 1, "bitwise not; logical not for pred", _E),
    _row("opt-barrier", 1, "the operand; the optimizer moves nothing across"),
    _row("or", 2, "bitwise or; logical or for pred", _EC),
    _row("outfeed", 2, "data to the host", "effect"),
    _row("pad", 2, "operand 0 with operand 1 around and between; negative padding cuts"),
    _row("parameter", 0, "an argument of the computation"),
    _row("partition-id", 0, "this device's partition number"),
    _row("popcnt", 1, "number of one bits", _E),
    _row("power", 2, "operand 0 to the power of operand 1", _E),
    _row("ragged-all-to-all", 6, "all-to-all of slices of run-time sizes", _C),
    _row("ragged-dot", 3, "dot over groups of rows of run-time sizes"),
    _row("real", 1, "real part", _E),
    _row("recv", 1, "begin to receive from a channel", "effect start"),
    _row("recv-done", 1, "wait for a recv", "effect done"),
    _row("reduce", None, "a computation folded over the reduced dimensions", "", "embedded"),
    _row("reduce-precision", 1, "rounded to fewer exponent and mantissa bits, same type", _E),
    _row("reduce-scatter", None, "an all-reduce of which each device keeps one shard", _C, "embedded"),
    _row("reduce-window", None, "a computation folded over each window", "", "embedded"),
    _row("remainder", 2, "remainder with the sign of operand 0", _E),
    _row("replica-id", 0, "this device's replica number"),
    _row("reshape", 1, "the same elements in row-major order under other dimensions"),
    _row("reverse", 1, "the order of elements turned round along dimensions"),
    _row("rng", None, "random numbers of a distribution", "effect"),
    _row("rng-bit-generator", 1, "random bits and the next state"),
    _row("rng-get-and-update-state", 0, "the generator's state, then advanced", "effect"),
    _row("round-nearest-afz", 1, "round to nearest, ties away from zero", _E),
    _row("round-nearest-even", 1, "round to nearest, ties to even", _E),
    _row("rsqrt", 1, "1 over the square root", _E),
    _row("scaled-dot", 4, "dot of block-scaled operands"),
    _row("scan", None, "a computation carried along a dimension", "", "embedded"),
    _row("scatter", None, "operand 0 with updates combined in at indices", "", "embedded"),
    _row("select", 3, "operand 1 where the pred is true, else operand 2", _E),
    _row("select-and-scatter", 3, "each source value added where its window's pick lies", "", "embedded"),
    _row("send", 2, "begin to send to a channel", "effect start"),
    _row("send-done", 1, "wait for a send", "effect done"),
    _row("set-dimension-size", 2, "the operand with a dimension's run-time size set"),
    _row("shift-left", 2, "bits shifted left; 0 past the width", _E),
    _row("shift-right-arithmetic", 2, "bits shifted right, the sign copied in", _E),
    _row("shift-right-logical", 2, "bits shifted right, zeros in; 0 past the width", _E),
    _row("sign", 1, "-1, 0 or 1; NaN stays", _E),
    _row("sine", 1, "sine", _E),
    _row("sinh", 1, "hyperbolic sine", _E),
    _row("slice", 1, "a strided rectangle at fixed indices"),
    _row("sort", None, "operands sorted together along a dimension by a comparator", "", "embedded"),
    _row("sqrt", 1, "square root", _E),
    _row("stochastic-convert", 2, "convert with random rounding, driven by operand 1", _E),
    _row("subtract", 2, "difference", _E),
    _row("tan", 1, "tangent", _E),
    _row("tanh", 1, "hyperbolic tangent", _E),
    _row("topk", 1, "the k largest (or smallest) along the last dimension, with their indices", "", "embedded"),
    _row("transpose", 1, "dimensions permuted"),
    _row("triangular-solve", 2, "solution of a triangular system"),
    _row("tuple", None, "operands as one tuple; free"),
    _row("while", 1, "the body repeated while the condition holds", "", "control-flow"),
    _row("xor", 2, "bitwise exclusive or", _EC),
)

OPCODES: Mapping[str, Opcode] = MappingProxyType({row.name: row for row in _ROWS})
"""Every opcode, by its word in HLO text."""

ALIASES: Mapping[str, str] = MappingProxyType({"optimization-barrier": "opt-barrier"})
"""Words that users type and XLA does not print."""


def lookup(name: str) -> Opcode:
    """The row of `name`; a variadic row without properties for a word that the table does not have."""
    found = OPCODES.get(name)
    return found if found is not None else Opcode(name, None, "an opcode that this version does not know")
