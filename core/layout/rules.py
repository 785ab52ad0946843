"""Why a layout was asked for, in words: one sentence part for each rule that sets or carries a constraint."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

RULES: Mapping[str, str] = MappingProxyType(
    {
        # where layouts begin
        "entry-parameter": "the entry's layout says so",
        "entry-result": "the entry's result must have it",
        "computation-parameter": "the computation's callers pass it so",
        "computation-result": "the computation's callers expect it so",
        "infeed": "the host feeds it in this layout",
        "outfeed": "the host takes it in this layout",
        "constrained-collective": "the collective has constrain_layout=true",
        "channel": "the all-reduces of this channel first found it, and all modules must agree",
        "callee-result": "the called computation returns it so",
        "callee-parameter": "the called computation takes it so",
        "loop-body": "the loop's body takes and returns it so",
        "branch-parameter": "the branch takes it so",
        "branch-result": "the largest branch returns it so",
        "custom-call": "the custom call demands it",
        "default": "nothing asked for another layout, so it is row-major",
        "literal": "the constant is written down so",
        # XLA:CPU
        "cpu-row-major-operand": "XLA:CPU reads operands row-major",
        "cpu-batch-dot": "XLA:CPU computes batched dots row-major",
        "cpu-matrix-dot": "the matrix library of XLA:CPU works row-major",
        "cpu-library-convolution": "the convolution library of XLA:CPU works row-major",
        "cpu-top-k": "top-k works row-major",
        "cpu-column-major-constant": "a vector-matrix product reads a constant matrix faster column by column",
        "collective-dimension-slowest": "the collective needs its dimension as the slowest one",
        # XLA:GPU
        "gpu-dot-operand": "a matrix product needs batch, row and column dimensions in one piece each",
        "gpu-dot-contracting-fastest": "a product of this type needs the contracted dimensions as the fastest ones",
        "gpu-dot-result": "a product with batch or several free dimensions is written row-major",
        "gpu-dot-result-as-used": "the product can be written in the layout that its user wants",
        "gpu-transposed-dot": "written so, the product needs no transpose",
        "gpu-cudnn-nhwc": "cuDNN computes this convolution with the channels fastest (NHWC)",
        "gpu-cudnn-nchw": "cuDNN computes this convolution with the channels before the image (NCHW)",
        "gpu-cudnn-nchw_vect_c": "cuDNN computes this convolution on vectors of channels",
        "gpu-ragged-dot": "a ragged product works row-major",
        "gpu-fft": "cuFFT works row-major",
        "gpu-sort": "a sort needs all its operands and results row-major",
        "gpu-top-k": "top-k writes row-major",
        "gpu-bitcast-convert": "the dimension that comes or goes must be the fastest one",
        "gpu-triangular-solve": "cuBLAS solves column-major",
        "gpu-host-memory": "buffers in host memory are row-major",
        "gpu-send": "what is sent is row-major",
        "gpu-recv": "what is received is row-major",
        "gpu-host-computation": "the host's computation keeps its layouts",
        # how layouts travel
        "same-layout-to-operand": "the operation needs its operands in the layout of its result",
        "same-layout-to-result": "the operation needs its result in the layout of its operands",
        "same-layout-to-sibling": "the operation needs all its operands in one layout",
        "definition-to-use": "its definition has this layout",
        "use-to-definition": "a use wants it, which would save a copy",
        "transpose-to-operand": "with it the transpose moves no bytes",
        "transpose-to-result": "with it the transpose moves no bytes",
        "reshape-to-operand": "with it the reshape moves no bytes",
        "reshape-to-result": "with it the reshape moves no bytes",
        "broadcast-to-operand": "the broadcast's dimensions keep their order",
        "bitcast-convert-to-operand": "the conversion of bits keeps the order of dimensions",
        "row-reduction-to-operand": "with it the reduction runs along the fastest dimensions",
        "loop-without-copies": "the loop forbids copies, so its state takes the layout that a use wants",
        "loop-result-to-parameter": "the loop's next round gets it so",
        "aliased-operand": "the result lives in this operand's buffer",
        "aliased-result": "the result lives in that operand's buffer",
    }
)
"""Rule -> why, to be read after "… has this layout because"."""


def because(rule: str) -> str:
    """The words of a rule; the rule itself where there are none."""
    return RULES.get(rule, rule)
