"""Floating point operations of single instructions that no other one is computed from: products, solvers, transforms.

A multiply-add counts as two. Source: ``openxla/xla:xla/service/hlo_cost_analysis.cc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hloscope.core.analysis.elementwise import elements
from hloscope.core.errors import VerifyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloscope.core.hlo.attributes import ConvolutionDimensionNumbers, Window, WindowDimension
    from hloscope.core.hlo.instruction import HloInstruction

FMA = 2
"""Operations of a multiply-add."""
_COMPLEX_FMAS = 4
GEMMS = frozenset({"__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8"})
"""Calls of a library that multiply two matrices."""
CONVOLUTIONS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "__cudnn$convForward": (0, 1, 2),
        "__cudnn$convForwardGraph": (0, 1, 2),
        "__cudnn$convBiasActivationForward": (0, 1, 2),
        "__cudnn$convBackwardInput": (2, 1, 0),
        "__cudnn$convBackwardFilter": (0, 2, 1),
    }
)
"""Where input, kernel and output of the forward convolution are: 0 and 1 are operands, 2 the result."""
TRANSCENDENTAL: frozenset[str] = frozenset(
    """acos acosh asin asinh atan2 atanh cbrt cosine cosh erf exponential exponential-minus-one log log-plus-one
    logistic power rsqrt sine sinh sqrt tan tanh""".split()
)
"""Opcodes whose elements are counted apart from flops: each takes several."""


def dot_flops(instruction: HloInstruction) -> int:
    """Of a dot, or a dot with scales."""
    lhs = instruction.operand(0).shape
    contracted = prod(lhs.dimensions[dim] for dim in instruction.attr("lhs_contracting_dims") or ())
    return FMA * elements(instruction.shape) * contracted


def ragged_dot_flops(instruction: HloInstruction) -> int:
    """Each row belongs to one group; groups of what is summed share its length, however many results there are.

    (XLA leaves the rows out of the first.)
    """
    lhs, result = instruction.operand(0).shape, instruction.shape
    summed: tuple[int, ...] = instruction.attr("lhs_contracting_dims") or ()
    ragged: tuple[int, ...] = instruction.attr("lhs_ragged_dims") or ()
    shared = 1 if set(ragged).isdisjoint(summed) else max(1, result.dimensions[0])
    return FMA * elements(result) // shared * prod(lhs.dimensions[dim] for dim in summed)


def convolution_flops(instruction: HloInstruction) -> int:
    """Of the taps that meet an element of the input: padding and the gaps of a dilated input cost nothing.

    Raises VerifyError where the labels are missing or name dimensions that are not there.
    """
    source, kernel = (instruction.operand(place).shape.dimensions for place in (0, 1))
    return _convolution(instruction, source, kernel, instruction.shape.dimensions)


def library_flops(call: HloInstruction) -> int | None:
    """Of a matrix product or a convolution that a library computes; None for another call. What is fused into it, and
    what its algorithm saves, is not counted. Source: ``xla/service/gpu/model/gpu_hlo_cost_analysis.cc``."""
    target = str(call.attr("custom_call_target") or "")
    parts = [one.shape for one in call.operands[:2]]
    parts.append(call.shape.tuple_shapes[0] if call.shape.is_tuple and call.shape.tuple_shapes else call.shape)
    if len(parts) < 3:
        return None
    if target in GEMMS:
        config: Any = call.attr("backend_config")
        dims = config.get("gemm_backend_config", {}).get("dot_dimension_numbers") if isinstance(config, dict) else None
        if not isinstance(dims, dict):
            return None
        summed = prod(parts[0].dimensions[int(dim)] for dim in dims.get("lhs_contracting_dimensions", ()))
        return FMA * elements(parts[2]) * summed
    places = CONVOLUTIONS.get(target)
    if places is None:
        return None
    source, kernel, result = (parts[place].dimensions for place in places)
    return _convolution(call, source, kernel, result)


def _convolution(
    instruction: HloInstruction, source: Sequence[int], kernel: Sequence[int], result: Sequence[int]
) -> int:
    labels: ConvolutionDimensionNumbers | None = instruction.attr("dim_labels")
    if labels is None:
        raise VerifyError(f"%{instruction.name} is a convolution without dim_labels")
    window: Window | None = instruction.attr("window")
    try:
        valid = prod(
            valid_positions(one, source[into], kernel[by], result[out])
            for one, into, by, out in zip(
                () if window is None else window.dimensions, labels.input_spatial, labels.kernel_spatial,
                labels.output_spatial, strict=False,
            )
        )  # fmt: skip
        features = source[labels.input_feature] // (instruction.attr("feature_group_count") or 1)
        batch = source[labels.input_batch] // (instruction.attr("batch_group_count") or 1)
        return FMA * features * result[labels.output_feature] * batch * valid
    except IndexError:
        raise VerifyError(f"the dim_labels of %{instruction.name} do not fit its operands") from None


def valid_positions(window: WindowDimension, source: int, kernel: int, result: int) -> int:
    """Pairs of a place of the result and a tap of the kernel that meet an element of the input, of one dimension.

    Place o and tap k meet the input, spread out by the base dilation, at ``o stride - low + k dilation``. For each tap
    the places that hit an element are every n-th between two ends, so they are counted and not walked.
    """
    if source <= 0 or result <= 0:
        return 0
    stride, base = window.stride, window.base_dilation
    common = gcd(stride, base)
    every = base // common
    inverse = pow(stride // common, -1, every) if every > 1 else 0
    last = (source - 1) * base
    count = 0
    for tap in range(kernel):
        offset = window.padding_low - tap * window.window_dilation
        if offset % common:
            continue
        low, high = max(0, -(-offset // stride)), min(result - 1, (last + offset) // stride)
        if low > high:
            continue
        first = offset // common * inverse % every
        count += (high - first) // every - (low - 1 - first) // every
    return count


def fft_flops(instruction: HloInstruction) -> int:
    """Four multiply-adds an element for each halving of each transformed dimension."""
    lengths: tuple[int, ...] = instruction.attr("fft_length") or ()
    halvings = prod(length.bit_length() - 1 for length in lengths)
    return FMA * _COMPLEX_FMAS * halvings * elements(instruction.operand(0).shape)


def triangular_solve_flops(instruction: HloInstruction) -> int:
    """A multiply-add for each row of the matrix and element of the right side."""
    return FMA * instruction.operand(0).shape.dimensions[-1] * elements(instruction.operand(1).shape)


def cholesky_flops(instruction: HloInstruction) -> int:
    """A third of the cube of the rows, for each matrix."""
    shape = instruction.operand(0).shape
    return shape.dimensions[-1] * elements(shape) // 3
