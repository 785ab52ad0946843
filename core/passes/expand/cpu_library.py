"""What XLA:CPU's libraries compute: decisions of passes before layout assignment depend on it.

Source: ``openxla/xla:xla/service/cpu/dot_op_emitter.cc#GetDotImplementationStrategy``, ``xla/service/cpu/
ir_emission_utils.cc#PotentiallyImplementedAsEigenConvolution``, ``xla/backends/cpu/ynn_support.cc``.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Literal

from hloscope.core.hlo.attributes import WindowDimension
from hloscope.core.passes.rules.dots import sides
from hloscope.core.passes.rules.predicates import reducer_opcode

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

Strategy = Literal["vector", "library", "loop"]

_LARGE = 4096
"""Elements from which on a reduction is worth a library call."""
_SUMS = {("f64", "f64"), ("f32", "f32"), ("f16", "f32"), ("bf16", "f32"), ("s8", "s32"), ("u8", "s32")}
_EXTREMES = {"u8", "s8", "bf16", "f16", "f32", "f64"}
_DOTS = {
    ("f64", "f64", "f64"), ("f32", "f32", "f32"), ("bf16", "bf16", "f32"), ("s8", "s8", "s32"), ("u8", "s8", "s32"),
}  # fmt: skip
_MATRIX_TYPES = {"bf16", "f16", "f32", "f64", "c64", "c128", "s32"}


def _row_major(shape: Shape) -> bool:
    return shape.layout is None or shape.layout.minor_to_major == tuple(reversed(range(shape.rank)))


def dot_strategy(dot: HloInstruction) -> Strategy:
    """How a canonical dot is computed: as matrix times vector, by the matrix library, or as a plain loop."""
    left, right = sides(dot)
    batch = len(left.batch)
    sizes = dot.shape.dimensions[batch:]
    kind = dot.shape.type.kind
    arithmetic = kind in ("float", "int", "uint")
    if arithmetic and (len(sizes) <= 1 or 1 in sizes[:2]):
        return "vector"
    inner = [tuple(s.value.shape.dimensions[d] for d in range(batch, s.value.shape.rank)) for s in (left, right)]
    if arithmetic and all(len(s) <= 1 or min(s[:2]) <= 3 for s in inner):
        return "loop"
    if any(not prod(s) for s in inner) or dot.shape.element_type not in _MATRIX_TYPES:
        return "loop"
    return "library" if len(sizes) == 2 and all(len(s) == 2 for s in inner) else "loop"


def library_takes_dot(dot: HloInstruction) -> bool:
    """Whether the library computes a dot in its own element types."""
    if dot.opcode != "dot" or dot_strategy(dot) != "library":
        return False
    types = (*(o.shape.element_type for o in dot.operands[:2]), dot.shape.element_type)
    if types not in _DOTS or not all(_row_major(o.shape) for o in (dot, *dot.operands)):
        return False
    left, right = sides(dot)
    if len(left.free) != 1 or len(right.free) != 1 or len(left.contracting) != 1:
        return False
    m, n = (s.value.shape.dimensions[s.free[0]] for s in (left, right))
    k = left.value.shape.dimensions[left.contracting[0]]
    if m == 1 or n == 1 or max(m, k, n) < 8:
        return False
    # The left matrix has its contracted dimension last, the right one in front of its free one.
    return left.contracting[0] > left.free[0]


def library_takes_reduction(one: HloInstruction) -> bool:
    """Whether the library computes a reduction or a reduction of disjoint windows."""
    if one.operand_count != 2 or not one.shape.is_array:
        return False
    x, start = one.operands
    if one.shape.element_count < _LARGE and x.shape.element_count < _LARGE:
        return False
    if not _row_major(one.shape) or not _row_major(x.shape) or start.shape.element_type != one.shape.element_type:
        return False
    if one.opcode == "reduce" and not one.dimensions:
        return False
    if one.opcode == "reduce-window":
        window: Any = one.attr("window")
        moving: list[WindowDimension] = [w for w in window.dimensions if w.size > 1 or w.stride > 1]
        plain = all(w.base_dilation == 1 and w.window_dilation == 1 and not w.window_reversal for w in moving)
        if not moving or not plain or any(w.size > 1 and w.stride != w.size for w in moving):
            return False
    opcode = reducer_opcode(one.callee("to_apply"))
    types = (x.shape.element_type, one.shape.element_type)
    if opcode == "add":
        return types in _SUMS
    return opcode in ("maximum", "minimum") and types[0] == types[1] and types[0] in _EXTREMES


def eigen_takes_convolution(one: HloInstruction) -> bool:
    """Whether a convolution has the order of dimensions (NHWC and HWIO) and the types that the library takes."""
    x, kernel = one.operand(0).shape, one.operand(1).shape
    if not x.element_count or not kernel.element_count or x.element_type not in ("f16", "f32"):
        return False
    window: Any = one.attr("window")
    labels: Any = one.attr("dim_labels")
    if window is not None and any(w.window_reversal for w in window.dimensions):
        return False
    spatial = len(labels.output_spatial)
    if not 1 <= spatial <= 3:
        return False
    places = tuple(range(1, spatial + 1))
    return bool(
        labels.input_spatial == places
        and labels.kernel_spatial == tuple(range(spatial))
        and labels.output_spatial == places
        and labels.input_batch == labels.output_batch == 0
        and labels.input_feature == labels.output_feature == spatial + 1
        and labels.kernel_input_feature == spatial
        and labels.kernel_output_feature == spatial + 1
    )
