"""What the generic Triton emitter can hold, one answer for each instruction.

Source: ``openxla/xla:xla/backends/gpu/codegen/triton/support.cc#IsTritonSupportedInstruction``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import elements, is_effective_scalar, is_elementwise
from hloscope.core.fusion.decision import ALLOWED, Decision
from hloscope.core.fusion.gpu.fusion_analysis import is_triton_fusion

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.hlo.instruction import HloInstruction

_UNSUPPORTED = frozenset(
    """dynamic-reshape dynamic-slice dynamic-update-slice gather mulhi ragged-dot reduce-window scatter
    select-and-scatter set-dimension-size""".split()
)
_TYPES = frozenset("pred s4 u4 s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64 bf16 f8e5m2 f8e4m3fn".split())
_FLOATS = frozenset(("bf16", "f16", "f32", "f64"))
_INTEGERS = frozenset("s8 s16 s32 s64 u8 u16 u32 u64".split())
_FP8 = frozenset(("f8e5m2", "f8e4m3fn"))
_FOUR_BIT = frozenset(("s4", "u4"))

_FLOAT_UNARY = frozenset(
    """acos acosh asin asinh atanh cbrt ceil cosine cosh erf exponential exponential-minus-one floor log log-plus-one
    round-nearest-even rsqrt sine sinh sqrt tan tanh""".split()
)
_ORDER = frozenset("add compare maximum minimum multiply".split())
_LOGIC = frozenset(("and", "or", "xor"))
_FLOAT_BINARY = frozenset(("atan2", "divide", "remainder", "power"))
_TERNARY = frozenset(("select", "clamp"))


def _elementwise_opcodes(element_type: str) -> frozenset[str]:
    """Elementwise opcodes by the type of the last operand."""
    if element_type in _FOUR_BIT or element_type.startswith("c"):
        return frozenset()
    if element_type == "pred":
        return frozenset(("not", "copy")) | _ORDER | _LOGIC | _TERNARY
    if element_type in _FP8:
        return frozenset(("abs", "copy", "reduce-precision", "select"))
    common = frozenset(("abs", "copy", "negate", "subtract")) | _ORDER | _TERNARY
    if element_type in _INTEGERS:
        return common | _LOGIC | frozenset(("not", "divide", "remainder"))
    if element_type in _FLOATS:
        return common | _FLOAT_UNARY | _FLOAT_BINARY | frozenset(("reduce-precision",))
    return common


def triton_supports(instruction: HloInstruction, device: DeviceDescription) -> Decision:
    """Whether an instruction, or everything in a fusion, may be part of a Triton fusion."""
    if is_triton_fusion(instruction):
        return ALLOWED
    if instruction.opcode != "fusion":
        return _supports(instruction, device)
    for one in instruction.callee().instructions:
        decision = _supports(one, device)
        if not decision:
            return decision
    return ALLOWED


def _supports(one: HloInstruction, device: DeviceDescription) -> Decision:
    opcode = one.opcode
    if opcode in _UNSUPPORTED:
        return Decision.forbid(f"Unsupported opcode {opcode}", opcode=opcode)
    kind = one.shape.element_type
    if opcode == "convert":
        return _conversion(one.operand(0).shape.element_type, kind, device)
    if one.shape.is_array and kind not in _TYPES:
        return Decision.forbid(f"Unsupported output data type: Unsupported data type: {kind}", type=kind)
    for operand in one.operands:
        if operand.shape.element_type not in _TYPES:
            return Decision.forbid("Unsupported input data type: ", type=operand.shape.element_type)
    special = _SPECIAL.get(opcode)
    if special is not None:
        return special(one, device)
    if opcode in ("parameter", "broadcast", "reshape", "slice", "transpose"):
        return _four_bit(one)
    if opcode == "fusion":
        return Decision.forbid("Nested fusions are not supported.")
    if is_elementwise(one):
        if opcode not in _elementwise_opcodes(one.operands[-1].shape.element_type):
            return Decision.forbid("Unsupported elementwise operation.", opcode=opcode)
        return ALLOWED
    return Decision.forbid(f"Unsupported instruction opcode {opcode}", opcode=opcode)


def _four_bit(one: HloInstruction) -> Decision:
    if one.opcode != "parameter" and one.shape.element_type == "s4":
        return Decision.forbid("S4 is not supported.")
    return ALLOWED


def _conversion(source: str, target: str, device: DeviceDescription) -> Decision:
    def no(message: str) -> Decision:
        text = f"Unsupported conversion in Triton: {source} to {target} with message:\n{message}"
        return Decision.forbid(text, source=source, target=target)

    fp8 = (source in _FP8, target in _FP8)
    if source != target and "f8e4m3fn" in (source, target) and device.compute_capability < (8, 9):
        if device.platform == "cuda":
            return no("F8E4M3FN is not supported before Ada.")
    if source != target and any(fp8) and not all(fp8) and not {source, target} & {"f16", "bf16", "f32"}:
        return no("Unsupported F8 conversion.")
    if source in _FOUR_BIT and target not in ("s8", "u8", "f16", "bf16", "f32", "f64"):
        return no("Unsupported 4-bit integer conversion.")
    if target in _FOUR_BIT:
        return no("Unsupported 4-bit integer output type.")
    if source == "pred" and target == "u8":
        return no("Unsupported PRED to U8 conversion.")
    for role, kind in (("input", source), ("output", target)):
        if kind not in _TYPES:
            return Decision.forbid(f"Unsupported {role} type for conversion: {kind}", type=kind)
    return ALLOWED


def _concatenate(one: HloInstruction, _: DeviceDescription) -> Decision:
    dim = one.dimensions[0]
    for operand in one.operands[:-1]:
        if operand.shape.dimensions[dim] % 64:
            size = operand.shape.dimensions[dim]
            return Decision.forbid(
                "Concatenate operand is not aligned for tiling.",
                "all operands but the last a multiple of 64",
                size=size,
            )
    return _four_bit(one)


def _pad(one: HloInstruction, _: DeviceDescription) -> Decision:
    dims = one.attr("padding")
    if any(dim.low or dim.interior for dim in dims):
        return Decision.forbid("Only high padding is supported.")
    if not any(dim.high for dim in dims):
        return Decision.forbid("No-op pad ops are not allowed.")
    return _four_bit(one)


def _constant(one: HloInstruction, _: DeviceDescription) -> Decision:
    if not is_effective_scalar(one.shape):
        return Decision.forbid("Only scalar constants are supported in Triton.", elements=elements(one.shape))
    return _four_bit(one)


def _iota(one: HloInstruction, _: DeviceDescription) -> Decision:
    if one.shape.element_type in (*_FP8, "s4"):
        return Decision.forbid("F8E4M3FN, F8E5M2 and S4 are not supported for iota.")
    return ALLOWED


def _reduce(one: HloInstruction, device: DeviceDescription) -> Decision:
    if one.shape.element_type in _FP8:
        return Decision.forbid("F8E4M3FN and F8E5M2 are not supported for reductions.")
    if not all(_supports(inner, device) for inner in one.callee("to_apply").instructions):
        return Decision.forbid("Unsupported reduction computation by Triton.")
    if one.operand_count != 2:
        return Decision.forbid("Reduction is not a reduction of a single operand.", operands=one.operand_count)
    if len(one.dimensions) != 1:
        return Decision.forbid(
            "Multi-dimension reductions are only supported when experimental tiling propagation is enabled.",
            "one reduced dimension",
            dimensions=len(one.dimensions),
        )
    return ALLOWED


def _bitcast(one: HloInstruction, _: DeviceDescription) -> Decision:
    if elements(one.operand(0).shape) != elements(one.shape):
        return Decision.forbid("only bitcasts with the same number of elements are supported")
    kinds = {one.operand(0).shape.element_type, one.shape.element_type}
    if len(kinds) > 1 and "pred" in kinds:
        return Decision.forbid("bitcasts with different element types are not supported if PRED is involved")
    return _four_bit(one)


def _dot(one: HloInstruction, _: DeviceDescription) -> Decision:
    if one.operand(0).shape.element_type != one.operand(1).shape.element_type:
        return Decision.forbid("Dot operation only supports same types for lhs and rhs.")
    return ALLOWED


_SPECIAL = {
    "bitcast": _bitcast,
    "concatenate": _concatenate,
    "constant": _constant,
    "dot": _dot,
    "iota": _iota,
    "pad": _pad,
    "reduce": _reduce,
}
