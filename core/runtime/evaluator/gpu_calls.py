"""cuBLAS and cuDNN calls by the computation that they stand for; scratch results are zeros.

The dot's dimension numbers, scales and epilogue stand in the backend config; a convolution's window and labels are
those of the forward one, for its gradients too. Source: ``openxla/xla:xla/service/gpu/transforms/{gemm_rewriter,
conv_rewriter,cudnn_fused_conv_rewriter}.cc``, ``xla/service/gpu/backend_configs.proto``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hloscope.core.hlo.attributes import ConvolutionDimensionNumbers, Window, WindowDimension
from hloscope.core.hlo.element_types import lookup
from hloscope.core.runtime.evaluator import conversion, linear_algebra, numerics
from hloscope.core.runtime.evaluator.contraction import contract, working_type
from hloscope.core.runtime.evaluator.convolution import convolve
from hloscope.core.runtime.evaluator.values import (
    Array,
    InstructionUnsupported,
    Kernel,
    Machine,
    Prepare,
    Value,
    zeros,
)

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

Activation = Callable[[Array], Array]


def _config(instruction: HloInstruction, key: str) -> Mapping[str, Any]:
    """One part of the backend config; the whole of it in texts of before it had parts."""
    config: Any = instruction.attr("backend_config") or {}
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            config = {}
    if not isinstance(config, dict):
        return {}
    found = cast("dict[str, Any]", config)
    return cast("Mapping[str, Any]", found.get(key, found))


def _results(shape: Shape, first: Sequence[Array]) -> Value:
    """The results that mean something, then zeros for scratch."""
    if not shape.is_tuple:
        return first[0]
    return (*first, *(zeros(s) for s in shape.tuple_shapes[len(first) :]))


def _relu(x: Array) -> Array:
    return np.where(np.isnan(x), x, np.maximum(x, x.dtype.type(0)))


def _gelu(x: Array) -> Array:
    return (0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))).astype(x.dtype)


def _silu(x: Array) -> Array:
    return (x / (1 + np.exp(-x))).astype(x.dtype)


# ---------------------------------------------------------------- matrix products
def _integers(values: object) -> tuple[int, ...]:
    return tuple(int(v) for v in cast("Sequence[Any]", values or ()))


def _gemm(instruction: HloInstruction, machine: Machine) -> Kernel:
    """alpha·A·B + beta·C, plus a bias along the last dimension, through an activation."""
    config = _config(instruction, "gemm_backend_config")
    numbers = cast("Mapping[str, Any]", config.get("dot_dimension_numbers") or {})
    if not numbers:
        raise InstructionUnsupported(instruction, "without dot dimension numbers in its backend config")
    contracting = (
        _integers(numbers.get("lhs_contracting_dimensions")),
        _integers(numbers.get("rhs_contracting_dimensions")),
    )
    batch = (_integers(numbers.get("lhs_batch_dimensions")), _integers(numbers.get("rhs_batch_dimensions")))
    shape = instruction.shape.tuple_shapes[0] if instruction.shape.is_tuple else instruction.shape
    inner = working_type(shape.type)
    into = [conversion.converter(operand.shape.type, inner) for operand in instruction.operands]
    wide, out = numerics.widen(inner), numerics.narrow(shape.type)
    if shape.type.is_integral:
        wide, out = numerics.widen(shape.type), numerics.narrow(shape.type)
    alpha = complex(float(config.get("alpha_real", 1.0)), float(config.get("alpha_imag", 0.0)))
    beta = float(config.get("beta", 0.0))
    factor: complex | float = alpha if shape.type.kind == "complex" else alpha.real
    epilogue = str(config.get("epilogue", "DEFAULT"))
    words = set(epilogue.split("_"))
    if not words <= {"DEFAULT", "BIAS", "RELU", "GELU", "SILU", "AUX"}:
        raise InstructionUnsupported(instruction, f"with the epilogue {epilogue}")
    act: Activation | None = (
        _relu if "RELU" in words else _gelu if "GELU" in words else _silu if "SILU" in words else None
    )
    # Beside the two matrices: C where it counts, the scales of 8-bit floats, which are scalars, and the bias.
    scalars = [i for i in range(2, instruction.operand_count) if instruction.operand(i).shape.rank == 0]
    arrays = [i for i in range(2, instruction.operand_count) if i not in scalars]
    expected = (beta != 0.0) + ("BIAS" in words)
    if len(arrays) != expected or len(scalars) not in (0, 2):
        raise InstructionUnsupported(instruction, f"with {instruction.operand_count} operands")

    def kernel(*operands: Array) -> Value:
        values = [wide(change(x)) for change, x in zip(into, operands, strict=True)]
        rest = [values[i] for i in arrays]
        total = contract(values[0], values[1], inner, contracting, batch)
        for i in scalars:
            total = total * values[i]
        if factor != 1:
            total = (total * factor).astype(total.dtype)
        if beta:
            total = (total + beta * rest.pop(0)).astype(total.dtype)
        if "BIAS" in words:
            total = total + rest.pop(0)
        found = [total if act is None else act(total)]
        if "AUX" in words:
            found.append(total)
        narrowed = [out(np.asarray(x)) for x in found]
        return _results(instruction.shape, narrowed)

    return kernel


def _triangular_solve(instruction: HloInstruction, machine: Machine) -> Kernel:
    config = _config(instruction, "triangular_solve_options")
    transpose = str(config.get("transpose_a", "NO_TRANSPOSE"))

    def kernel(a: Array, b: Array, *_scratch: Array) -> Value:
        found = linear_algebra.solve_triangular(
            a,
            b,
            left=bool(config.get("left_side", False)),
            lower=bool(config.get("lower", False)),
            unit_diagonal=bool(config.get("unit_diagonal", False)),
            transpose=transpose,
        )
        return _results(instruction.shape, [found])

    return kernel


# ---------------------------------------------------------------- convolutions
def _orders(labels: ConvolutionDimensionNumbers) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """From written dimensions to [batch, feature, spatial…], [out, in, spatial…] and [batch, feature, spatial…]."""
    return (
        (labels.input_batch, labels.input_feature, *labels.input_spatial),
        (labels.kernel_output_feature, labels.kernel_input_feature, *labels.kernel_spatial),
        (labels.output_batch, labels.output_feature, *labels.output_spatial),
    )


def _convolution(kind: str) -> Prepare:
    def prepare(instruction: HloInstruction, machine: Machine) -> Kernel:
        labels = instruction.attr("dim_labels")
        if not isinstance(labels, ConvolutionDimensionNumbers):
            raise InstructionUnsupported(instruction, "without dim_labels")
        groups = int(instruction.attr("feature_group_count") or 1)
        if groups > 1 and kind != "forward":
            raise InstructionUnsupported(instruction, "in groups")
        dims: tuple[WindowDimension, ...] = (instruction.attr("window") or Window(())).dimensions
        shape = instruction.shape.tuple_shapes[0] if instruction.shape.is_tuple else instruction.shape
        inner = lookup("s32") if shape.type.is_integral else working_type(shape.type)
        into = [conversion.converter(operand.shape.type, inner) for operand in instruction.operands]
        out, wide = conversion.converter(inner, shape.type), numerics.widen(inner)
        image, weights, output = _orders(labels)
        config = _config(instruction, "cudnn_conv_backend_config")
        scale, side_scale = float(config.get("conv_result_scale", 1.0)), float(config.get("side_input_scale", 0.0))
        act = _conv_activation(instruction, config)

        def forward(x: Array, w: Array, *rest: Array) -> Array:
            sizes = tuple(shape.dimensions[d] for d in labels.output_spatial)
            total = convolve(x.transpose(image), w.transpose(weights), dims, sizes, inner, groups)
            total = total * total.dtype.type(scale)
            if rest:
                bias = rest[0].reshape(1, -1, *(1 for _ in sizes))
                total = total + bias
            if len(rest) > 1:
                total = total + total.dtype.type(side_scale) * rest[1].transpose(output)
            return act(np.asarray(total)).transpose(np.argsort(output))

        def backward_input(dy: Array, w: Array) -> Array:
            # Every output's gradient goes back through the kernel, seen from the other side.
            turned = [
                replace(
                    d,
                    stride=d.base_dilation,
                    base_dilation=d.stride,
                    padding_low=(d.size - 1) * d.window_dilation - d.padding_low,
                    window_reversal=not d.window_reversal,
                )
                for d in dims
            ]
            sizes = tuple(shape.dimensions[d] for d in labels.input_spatial)
            swapped = w.transpose(weights).swapaxes(0, 1)
            total = convolve(dy.transpose(output), swapped, turned, sizes, inner)
            return np.asarray(total).transpose(np.argsort(image))

        def backward_filter(x: Array, dy: Array) -> Array:
            # The gradient slides over the input: what was the batch is summed over.
            moved = dy.transpose(output)
            turned = [
                replace(d, size=n, stride=d.window_dilation, window_dilation=d.stride)
                for d, n in zip(dims, moved.shape[2:], strict=True)
            ]
            sizes = tuple(shape.dimensions[d] for d in labels.kernel_spatial)
            total = convolve(x.transpose(image).swapaxes(0, 1), moved.swapaxes(0, 1), turned, sizes, inner)
            return np.asarray(total.swapaxes(0, 1)).transpose(np.argsort(weights))

        function = {"forward": forward, "input": backward_input, "filter": backward_filter}[kind]

        def kernel(*operands: Array) -> Value:
            values = [wide(change(x)) for change, x in zip(into, operands, strict=True)]
            return _results(instruction.shape, [out(np.asarray(function(*values)).astype(inner.dtype))])

        return kernel

    return prepare


def _conv_activation(instruction: HloInstruction, config: Mapping[str, Any]) -> Activation:
    mode = str(config.get("activation_mode", "kNone"))
    if mode in ("kNone", "0", ""):
        return numerics.same
    if mode == "kRelu":
        return _relu
    if mode == "kRelu6":
        return lambda x: np.minimum(_relu(x), x.dtype.type(6))
    if mode == "kElu":
        return lambda x: np.where(x > 0, x, np.expm1(x)).astype(x.dtype)
    if mode == "kLeakyRelu":
        alpha = float(config.get("leakyrelu_alpha", 0.0))
        return lambda x: np.where(x > 0, x, x * x.dtype.type(alpha)).astype(x.dtype)
    raise InstructionUnsupported(instruction, f"with the activation {mode}")


TARGETS: Mapping[str, Prepare] = MappingProxyType(
    {
        "__cublas$gemm": _gemm,
        "__cublas$lt$matmul": _gemm,
        "__cublas$lt$matmul$f8": _gemm,
        "__cublas$triangularSolve": _triangular_solve,
        "__cudnn$convForward": _convolution("forward"),
        "__cudnn$convBiasActivationForward": _convolution("forward"),
        "__cudnn$convBackwardInput": _convolution("input"),
        "__cudnn$convBackwardFilter": _convolution("filter"),
    }
)
"""Target -> what prepares its kernel."""
