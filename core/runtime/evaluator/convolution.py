"""convolution, in every form: strides, padding of either sign, dilations, reversal, feature and batch groups.

Padding takes no part in the sums (a NaN of the kernel that only meets padding is not seen), so the terms of each kernel
position are gathered and not padded with zeros. Source:
``openxla/xla:xla/hlo/evaluator/hlo_evaluator_typed_visitor.h#HandleConvolutionWithLiterals``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.attributes import ConvolutionDimensionNumbers, Window
from hloscope.core.runtime.evaluator import conversion, numerics
from hloscope.core.runtime.evaluator.contraction import multiply_matrices, working_type
from hloscope.core.runtime.evaluator.values import Array, InstructionUnsupported, Kernel, Machine, Prepare

if TYPE_CHECKING:
    from hloscope.core.hlo.attributes import WindowDimension
    from hloscope.core.hlo.element_types import ElementType
    from hloscope.core.hlo.instruction import HloInstruction


def _convolution(instruction: HloInstruction, machine: Machine) -> Kernel:
    labels = instruction.attr("dim_labels")
    if not isinstance(labels, ConvolutionDimensionNumbers):
        raise InstructionUnsupported(instruction, "without dim_labels")
    window = instruction.attr("window") or Window(())
    target = instruction.shape.type
    inner = working_type(target)
    to_left, to_right = (conversion.converter(instruction.operand(i).shape.type, inner) for i in (0, 1))
    out = conversion.converter(inner, target)
    wide, cut = numerics.widen(inner), numerics.narrow(inner)
    features = int(instruction.attr("feature_group_count") or 1)
    batches = int(instruction.attr("batch_group_count") or 1)
    result = instruction.shape.dimensions
    spatial = tuple(result[d] for d in labels.output_spatial)
    back = np.argsort([labels.output_batch, labels.output_feature, *labels.output_spatial])

    def kernel(x: Array, w: Array) -> Array:
        left = wide(to_left(x)).transpose(labels.input_batch, labels.input_feature, *labels.input_spatial)
        right = wide(to_right(w)).transpose(
            labels.kernel_output_feature, labels.kernel_input_feature, *labels.kernel_spatial
        )
        total = convolve(left, right, window.dimensions, spatial, inner, features, batches)
        return out(cut(total)).transpose(back)

    return kernel


def convolve(
    x: Array,
    w: Array,
    window: Sequence[WindowDimension],
    spatial: tuple[int, ...],
    element: ElementType,
    feature_groups: int = 1,
    batch_groups: int = 1,
) -> Array:
    """``x`` [batch, feature, spatial…] with ``w`` [out feature, in feature of a group, spatial…].

    The result is [batch, out feature, spatial…] in the carrier of `element`.
    """
    groups = feature_groups * batch_groups
    batch, channels = x.shape[0] // batch_groups, x.shape[1] // feature_groups
    outputs = w.shape[0] // groups
    # One group per leading index, whichever kind it is: output feature o belongs to group o // outputs.
    if batch_groups > 1:
        x = x.reshape(batch_groups, batch, channels, *x.shape[2:])
    else:
        x = np.moveaxis(x.reshape(batch, feature_groups, channels, *x.shape[2:]), 1, 0)
    w = w.reshape(groups, outputs, channels, *w.shape[2:])
    total = np.zeros((groups, batch, prod(spatial), outputs), x.dtype).reshape(groups, batch, *spatial, outputs)
    taps = [_taps(dim, n, size) for dim, n, size in zip(window, x.shape[3:], spatial, strict=True)]
    kernel_sizes = [dim.size for dim in window]
    for place in itertools.product(*(range(n) for n in kernel_sizes)):
        picked = [taps[d][k] for d, k in enumerate(place)]
        if any(outs.size == 0 for outs, _ in picked):
            continue
        source = x[(slice(None), slice(None), slice(None), *_grid([ins for _, ins in picked]))]
        sizes = source.shape[3:]
        rows = np.moveaxis(source, 2, -1).reshape(groups, -1, channels)
        weights = w[(slice(None), slice(None), slice(None), *place)]
        part = multiply_matrices(rows, weights.transpose(0, 2, 1), element)
        where = (slice(None), slice(None), *_grid([outs for outs, _ in picked]))
        part = part.reshape(groups, batch, *sizes, outputs)
        total[where] = (total[where] | part) if element.kind == "pred" else (total[where] + part)
    # [groups, batch, spatial…, outputs] -> [batch, groups * outputs, spatial…]
    order = (1, 0, total.ndim - 1, *range(2, total.ndim - 1))
    return total.transpose(order).reshape(batch, groups * outputs, *spatial)


def _taps(dim: WindowDimension, size: int, outputs: int) -> list[tuple[Array, Array]]:
    """For each kernel position: the outputs that it reaches an input element for, and those elements."""
    place = np.arange(outputs) * dim.stride - dim.padding_low
    out: list[tuple[Array, Array]] = []
    for k in range(dim.size):
        step = (dim.size - 1 - k) if dim.window_reversal else k
        at = place + step * dim.window_dilation
        inside = (at >= 0) & (at % dim.base_dilation == 0) & (at // dim.base_dilation < size)
        # Indexed by the kernel's own position: a reversed window meets its positions from the end.
        out.append((np.nonzero(inside)[0], at[inside] // dim.base_dilation))
    return out


def _grid(indices: Sequence[Array]) -> tuple[Array | slice, ...]:
    """Index arrays that select a rectangle; slices where every array is evenly spaced, which numpy takes as a view."""
    slices = [_as_slice(index) for index in indices]
    if all(s is not None for s in slices):
        return tuple(s for s in slices if s is not None)
    return tuple(np.ix_(*indices))


def _as_slice(index: Array) -> slice | None:
    if index.size == 1:
        return slice(int(index[0]), int(index[0]) + 1)
    steps = np.diff(index)
    if (steps == steps[0]).all() and steps[0] > 0:
        return slice(int(index[0]), int(index[-1]) + 1, int(steps[0]))
    return None


TABLE: Mapping[str, Prepare] = MappingProxyType({"convolution": _convolution})
