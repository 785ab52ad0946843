"""What the Triton matrix multiplication emitter can hold, as ``triton-gemm-rewriter`` asks it.

The list is older and shorter than that of the generic emitter (`hloscope.core.fusion.gpu.triton`). Source:
``openxla/xla:xla/backends/gpu/codegen/triton/support_legacy.cc#IsTritonSupportedInstruction``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import is_elementwise, minor_to_major
from hloscope.core.fusion.decision import ALLOWED, Decision

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.hlo.instruction import HloInstruction

_FLOATS = frozenset(("f32", "bf16", "f16", "f64"))
_FLOAT_UNARY = frozenset(
    """acos acosh asin asinh atanh cbrt ceil cosine cosh erf exponential exponential-minus-one floor log log-plus-one
    round-nearest-even rsqrt sine sinh sqrt tan tanh""".split()
)
_SHAPES = frozenset("transpose slice reshape pad concatenate parameter broadcast".split())
_ALGORITHMS = frozenset(
    """dot_tf32_tf32_f32 dot_tf32_tf32_f32_x3 dot_f32_f32_f32 dot_bf16_bf16_f32 dot_bf16_bf16_f32_x3
    dot_bf16_bf16_f32_x6 dot_bf16_bf16_f32_x9""".split()
)
ANY_MATMUL_ALGORITHMS = _ALGORITHMS
"""Algorithms for which a dot goes to Triton even when nothing is fused with it."""


@cache
def gemm_elementwise(opcode: str, element_type: str) -> bool:
    """Whether an elementwise opcode on this operand type can be part of a matrix multiplication."""
    if opcode in ("convert", "select", "clamp", "compare"):
        return True
    if element_type == "pred":
        return opcode in ("not", "and", "or", "xor")
    if opcode in ("abs", "negate", "add", "maximum", "minimum", "multiply", "subtract"):
        return True
    if element_type not in _FLOATS:
        return False
    if opcode == "divide":
        return element_type != "f16"
    return opcode in _FLOAT_UNARY or opcode in ("atan2", "power")


def _output_type(kind: str, device: DeviceDescription) -> bool:
    if kind in ("f16", "f32", "bf16"):
        return True
    if device.platform != "cuda":
        return kind in ("f8e5m2fnuz", "f8e4m3fnuz")
    if kind in ("f8e5m2", "s32"):
        return device.compute_capability >= (8, 0)
    return kind == "f8e4m3fn" and device.compute_capability >= (9, 0)


def _data_type(kind: str, device: DeviceDescription) -> bool:
    return _output_type(kind, device) or kind in ("pred", "s8", "s16", "s32")


def gemm_supports(one: HloInstruction, device: DeviceDescription) -> Decision:
    """Whether an instruction may be part of a Triton matrix multiplication."""
    opcode = one.opcode
    if is_elementwise(one) and opcode != "fusion":
        return _elementwise(one, device)
    if opcode == "dot":
        return _dot(one, device)
    if opcode == "dynamic-slice":
        return dynamic_slice_support(one)
    if opcode == "bitcast":
        if one.shape.element_type != one.operand(0).shape.element_type:
            return Decision.forbid("Bitcast-convert is not supported")
        return ALLOWED
    if opcode in _SHAPES:
        return ALLOWED
    return Decision.forbid("Unsupported opcode.", opcode=opcode)


def _elementwise(one: HloInstruction, device: DeviceDescription) -> Decision:
    if not _data_type(one.shape.element_type, device):
        return Decision.forbid("Unsupported output data type.", type=one.shape.element_type)
    for operand in one.operands:
        kind = operand.shape.element_type
        if not _data_type(kind, device) and not (one.opcode == "convert" and kind == "s4"):
            return Decision.forbid("Unsupported input data type.", type=kind)
    if one.opcode == "constant":
        return ALLOWED
    if not one.operand_count or not gemm_elementwise(one.opcode, one.operand(0).shape.element_type):
        return Decision.forbid("Unsupported elementwise operation.", opcode=one.opcode)
    return ALLOWED


def dynamic_slice_support(one: HloInstruction) -> Decision:
    """Whether a dynamic-slice cuts the slowest dimension only, by indices of up to 32 bits."""
    for index in one.operands[1:]:
        if index.shape.element_type not in ("s8", "s16", "s32"):
            return Decision.forbid(
                "Dynamic slice is only supported with S8, S16, or S32 indices.", type=index.shape.element_type
            )
    source = one.operand(0).shape
    slowest = minor_to_major(source)[-1] if source.rank else -1
    for dim, size in enumerate(source.dimensions):
        if dim != slowest and size != one.shape.dimensions[dim]:
            return Decision.forbid("Unsupported dynamic slice on non-major-most dimension.", dimension=dim)
    return ALLOWED


# ---------------------------------------------------------------- dots
def dot_algorithm(dot: HloInstruction) -> str:
    """The algorithm that a dot asks for, empty where it leaves the choice."""
    text = dot.raw_attrs.get("algorithm")
    return "" if text in (None, "unset", "ALG_UNSET") else str(text).lower().removeprefix("alg_")


def free_dimensions(dot: HloInstruction, side: int) -> list[int]:
    """Dimensions of operand 0 or 1 that are neither batch nor contracted."""
    name = ("lhs", "rhs")[side]
    taken = {*(dot.attr(f"{name}_batch_dims") or ()), *(dot.attr(f"{name}_contracting_dims") or ())}
    return [dim for dim in range(dot.operand(side).shape.rank) if dim not in taken]


def _dot(dot: HloInstruction, device: DeviceDescription) -> Decision:
    for side in (0, 1):
        if not free_dimensions(dot, side):
            return Decision.forbid("No non-contracting dimensions.", operand=side)
    algorithm = dot_algorithm(dot)
    if algorithm:
        allowed = _ALGORITHMS if device.platform == "cuda" else _ALGORITHMS - {
            "dot_bf16_bf16_f32_x6", "dot_bf16_bf16_f32_x9"
        } | {"dot_f16_f16_f32"}  # fmt: skip
        if algorithm not in allowed:
            return Decision.forbid(
                f"Unsupported algorithm on the current device(s): ALG_{algorithm.upper()}", algorithm=algorithm
            )
    elif any(one != "default" for one in (dot.attr("operand_precision") or ())):
        return Decision.forbid("Having non-default operand precisions for Dot op with unset algorithm.")
    return _dot_types(dot, device)


def _dot_types(dot: HloInstruction, device: DeviceDescription) -> Decision:
    result = dot.shape.element_type
    lhs, rhs = (dot.operand(side).shape.element_type for side in (0, 1))
    if not _output_type(result, device):
        return Decision.forbid("Unsupported output data type for Dot op.", type=result)
    if lhs != rhs and not (lhs.startswith("f8") and rhs.startswith("f8")):
        return Decision.forbid("Non-fp8 input types must be the same.", lhs=lhs, rhs=rhs)
    if not (_data_type(lhs, device) and _data_type(rhs, device)):
        return Decision.forbid("Unsupported input data type for Dot op.", lhs=lhs, rhs=rhs)
    if result == "s32" and not {lhs, rhs} <= {"s8", "u8"}:
        return Decision.forbid("Currently, S32 output is only supported for 8-bit integral inputs.", lhs=lhs, rhs=rhs)
    if (lhs[0] in "su") != (result[0] in "su"):
        return Decision.forbid(
            "Dots between integer and floating-point types are not supported.", lhs=lhs, result=result
        )
    return ALLOWED
