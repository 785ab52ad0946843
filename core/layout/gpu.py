"""XLA:GPU's own constraints: matrix products, cuDNN convolutions, transforms, sorts and collectives.

Set in reverse post order, users before definitions; nothing else is pinned, so parameters, the entry result and
propagation decide the rest. Source: ``openxla/xla:xla/backends/gpu/transforms/layout_assignment.cc``,
``xla/service/gpu/matmul_utils.cc#MatrixLayout::For``,
``stream_executor_util.cc#StreamExecutorConvLayoutsToXlaLayouts``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from hloscope.core.errors import VerifyError
from hloscope.core.hlo.layout import Layout
from hloscope.core.layout.backend import Backend
from hloscope.core.layout.bitcast import align_like
from hloscope.core.layout.cpu import special_dimension_to_major
from hloscope.core.layout.gpu_dots import constrain_dot, result_layout_fits
from hloscope.core.layout.opcode_table import ONE_LAYOUT_TARGETS
from hloscope.core.layout.orders import (
    from_major_to_minor,
    layout_of,
    moved_to_minor,
    row_major,
    without_dimension,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hloscope.core.hlo.attributes import ConvolutionDimensionNumbers
    from hloscope.core.hlo.computation import HloComputation
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape
    from hloscope.core.layout.orders import Order
    from hloscope.core.layout.state import LayoutState

TOP_K = "__gpu$TopK"
RADIX_SORT = frozenset({"xla.gpu.ext.cub_sort_unassigned_scratch_size"})
MEMORY_PLACEMENT = frozenset({"MoveToDevice", "MoveToHost"})

ROW_REDUCTION_SIZE = 32
"""Elements that a reduction must fold for its operand to be laid out for it."""

HOPPER = (9, 0)
VOLTA = (7, 0)

ConvolutionForm = Literal["NCHW", "NHWC", "NCHW_VECT_C"]

# Target -> which of (operand 0, operand 1, result) is input, filter and output.
_CONVOLUTIONS: Mapping[str, tuple[str, tuple[int, int, int]]] = {
    "__cudnn$convForward": ("forward", (0, 1, 2)),
    "__cudnn$convForwardGraph": ("graph", (0, 1, 2)),
    "__cudnn$convBiasActivationForward": ("activation", (0, 1, 2)),
    "__cudnn$convBackwardInput": ("backward-input", (2, 1, 0)),
    "__cudnn$convBackwardFilter": ("backward-filter", (0, 2, 1)),
}


@dataclass(frozen=True)
class GpuBackend(Backend):
    """XLA:GPU for one generation of devices."""

    capability: tuple[int, int] = HOPPER
    """Compute capability; 9.0 is Hopper."""
    rocm: bool = False
    """An AMD GPU, which has no compute capability."""
    force_conv_nchw: bool = False
    """``xla_gpu_force_conv_nchw``"""
    force_conv_nhwc: bool = False
    """``xla_gpu_force_conv_nhwc``"""
    conv_fusion: bool = False
    """``xla_gpu_experimental_enable_conv_fusion``: plain convolutions are constrained as well. Text does not hold what
    kind of gradient a convolution is, so each counts as a forward one."""
    pack_along_contracting: bool = True
    """``xla_gpu_experimental_pack_dot_operands_along_k_dimension``"""

    name: ClassVar[str] = "gpu"
    one_layout_targets: ClassVar[frozenset[str]] = ONE_LAYOUT_TARGETS | {TOP_K}

    def constrain(self, state: LayoutState, computation: HloComputation) -> None:
        for instruction in reversed(computation.post_order()):
            opcode = instruction.opcode
            if opcode == "dot":
                constrain_dot(self, state, instruction)
            elif opcode == "custom-call":
                self._custom_call(state, instruction)
            elif opcode == "convolution":
                if self.conv_fusion:
                    self._convolution(state, instruction)
            else:
                rule = _RULES.get(opcode)
                if rule is not None:
                    rule(state, instruction)

    def reduction_reaches_operand(self, reduce: HloInstruction) -> bool:
        sizes = reduce.operand(0).shape.dimensions
        return prod(sizes[d] for d in reduce.dimensions) >= ROW_REDUCTION_SIZE

    def align(self, source: Shape, order: Order, target: Shape) -> Order | None:
        found = align_like(source.dimensions, order, target.dimensions, layout_of(target).minor_to_major)
        return super().align(source, order, target) if found is None else found

    # ---------------------------------------------------------------- custom calls
    def _custom_call(self, state: LayoutState, call: HloInstruction) -> None:
        target = call.attr("custom_call_target")
        if target in _CONVOLUTIONS:
            self._cudnn(state, call, *_CONVOLUTIONS[target])
        elif target in RADIX_SORT:
            _takes(call, operands=1, results=0 if call.shape.is_array else call.operand_count)
            _sort(state, call)
        elif target == TOP_K:
            _takes(call, operands=1, results=2)
            layout = Layout.descending(call.operand(0).shape.rank)
            for place in (0, 1):
                state.set_buffer(state.points_to.only(call, (place,)), layout, state.request("gpu-top-k"))
        elif target in MEMORY_PLACEMENT:
            _takes(call, operands=1, results=0)
            shape = row_major(call.operand(0).shape)
            request = state.request("gpu-host-memory")
            state.set_operand(call, 0, shape, request)
            state.set_instruction(call, shape, request)

    def _cudnn(self, state: LayoutState, call: HloInstruction, kind: str, parts: tuple[int, int, int]) -> None:
        _takes(call, operands=2, results=1)
        if call.attr("dim_labels") is None:
            raise VerifyError(f"%{call.name} calls a library's convolution without dim_labels")
        shapes = [call.operand(0).shape, call.operand(1).shape, call.shape.tuple_shapes[0]]
        form = self._form(call.operand(0).shape, shapes[2], call.attr("dim_labels"))
        layouts = dict(zip(parts, _convolution_layouts(call.attr("dim_labels"), form), strict=True))
        for place, shape in enumerate(shapes):
            if not shape.is_array or shape.rank != len(layouts[place].minor_to_major):
                raise VerifyError(f"%{call.name} is a convolution in {form}, which does not fit {shape}")
        request = state.request(f"gpu-cudnn-{form.lower()}")
        state.set_array_operand(call, 0, layouts[0], request)
        state.set_array_operand(call, 1, layouts[1], request)
        state.set_buffer(state.points_to.only(call, (0,)), layouts[2], request)
        output = layouts[parts[2]]
        if kind == "activation" and call.operand_count == 4:
            state.set_array_operand(call, 3, output, request)
        elif kind == "graph":
            for number in range(2, call.operand_count):
                if call.operand(number).shape.dimensions:
                    state.set_array_operand(call, number, output, request)
        elif kind != "activation" and call.operand_count > 2:
            raise VerifyError(f"%{call.name} has a side input but is no fused convolution")

    def _convolution(self, state: LayoutState, convolution: HloInstruction) -> None:
        dims = convolution.attr("dim_labels")
        form = self._form(convolution.operand(0).shape, convolution.shape, dims)
        image, kernel, output = _convolution_layouts(dims, form)
        request = state.request(f"gpu-cudnn-{form.lower()}")
        state.set_array_operand(convolution, 0, image, request)
        state.set_array_operand(convolution, 1, kernel, request)
        state.set_instruction(convolution, convolution.shape.with_layout(output), request)

    def _form(self, image: Shape, result: Shape, dims: ConvolutionDimensionNumbers) -> ConvolutionForm:
        """Where the channels of a convolution go. Source: ``#HeuristicLayoutAssignment``."""
        spatial = len(dims.input_spatial)
        kind = image.type
        if kind.is_integral:
            return "NCHW_VECT_C" if (image.element_type, spatial, image.rank) == ("s8", 2, 5) else "NHWC"
        if image.element_type.startswith("f8"):
            return "NHWC"
        if self.force_conv_nchw or self.force_conv_nhwc:
            return "NCHW" if self.force_conv_nchw else "NHWC"
        if self.rocm:
            return "NCHW"  # NHWC is behind the environment variable TF_USE_ROCM_NHWC there
        if self.capability >= HOPPER:
            return "NCHW" if image.element_type == "f64" or spatial > 2 else "NHWC"
        half = image.element_type in ("f16", "bf16")
        return "NHWC" if half and self.capability >= VOLTA and result.rank == 4 else "NCHW"


def _takes(call: HloInstruction, *, operands: int, results: int) -> None:
    """Raises VerifyError for a library call that has fewer operands or results than the library takes and gives."""
    given = len(call.shape.tuple_shapes)
    if call.operand_count < operands or given < results:
        raise VerifyError(
            f"%{call.name} calls {call.attr('custom_call_target')} with {call.operand_count} operands and {given}"
            f" results; there are at least {operands} and {results}"
        )


def _convolution_layouts(dims: ConvolutionDimensionNumbers, form: ConvolutionForm) -> tuple[Layout, Layout, Layout]:
    """Layouts of input, filter and output."""

    def place(first: int, channel: int, spatial: tuple[int, ...]) -> Layout:
        if form == "NHWC":
            return from_major_to_minor([first, *spatial, channel])
        major = [first, channel, *spatial]
        if form == "NCHW_VECT_C":
            major.append(next(d for d in range(len(major) + 1) if d not in major))
        return from_major_to_minor(major)

    return (
        place(dims.input_batch, dims.input_feature, dims.input_spatial),
        place(dims.kernel_output_feature, dims.kernel_input_feature, dims.kernel_spatial),
        place(dims.output_batch, dims.output_feature, dims.output_spatial),
    )


# ---------------------------------------------------------------- opcodes
def _all_row_major(rule: str) -> Callable[[LayoutState, HloInstruction], None]:
    def set_all(state: LayoutState, instruction: HloInstruction) -> None:
        request = state.request(rule)
        for number, operand in enumerate(instruction.operands[:2]):
            state.set_operand(instruction, number, row_major(operand.shape), request)
        state.set_instruction(instruction, row_major(instruction.shape), request)

    return set_all


def _transpose(state: LayoutState, transpose: HloInstruction) -> None:
    """A product that is only transposed is computed in the order that makes the transpose free and row-major."""
    dot = transpose.operand(0)
    if dot.opcode != "dot" or dot.user_count > 1:
        return
    layout = from_major_to_minor(transpose.dimensions)
    if result_layout_fits(dot, layout.minor_to_major):
        state.set_array_operand(transpose, 0, layout, state.request("gpu-transposed-dot"))


def _sort(state: LayoutState, sort: HloInstruction) -> None:
    rank = sort.operand(0).shape.rank
    if rank <= 1:
        return
    layout = Layout.descending(rank)
    request = state.request("gpu-sort")
    for number in range(sort.operand_count):
        state.set_array_operand(sort, number, layout, request)
        index = () if sort.shape.is_array else (number,)
        state.set_buffer(state.points_to.only(sort, index), layout, request)


def _bitcast_convert(state: LayoutState, convert: HloInstruction) -> None:
    """The dimension that comes or goes is the fastest one."""
    operand, result = convert.operand(0).shape, convert.shape
    if operand.rank == result.rank:
        return
    larger = operand if operand.rank > result.rank else result
    changed = larger.rank - 1
    wide = Layout(moved_to_minor(layout_of(larger).minor_to_major, changed))
    narrow = Layout(without_dimension(wide.minor_to_major, changed))
    request = state.request("gpu-bitcast-convert")
    state.set_array_operand(convert, 0, wide if larger is operand else narrow, request)
    state.set_instruction(convert, result.with_layout(wide if larger is result else narrow), request)


def _triangular_solve(state: LayoutState, solve: HloInstruction) -> None:
    request = state.request("gpu-triangular-solve")

    def fortran(shape: Shape) -> Layout:
        order = Layout.descending(shape.rank).minor_to_major
        return Layout((order[1], order[0], *order[2:]))

    for number in (0, 1):
        state.set_array_operand(solve, number, fortran(solve.operand(number).shape), request)
    state.set_instruction(solve, solve.shape.with_layout(fortran(solve.shape)), request)


def _dimension_slowest(state: LayoutState, collective: HloInstruction) -> None:
    """The dimension that is split or joined must be the slowest."""
    if not collective.shape.is_array:
        return
    dims = collective.dimensions
    dim = 0 if collective.opcode == "ragged-all-to-all" else dims[0] if dims else None
    if dim is not None:
        moved = special_dimension_to_major(collective.shape, dim)
        state.set_instruction(collective, moved, state.request("collective-dimension-slowest"))


def _send(state: LayoutState, send: HloInstruction) -> None:
    operand = send.operand(0)
    shape = row_major(operand.shape)
    request = state.request("gpu-send")
    state.set_instruction(operand, shape, request)
    state.set_array_operand(operand, 0, layout_of(shape), request)


def _recv(state: LayoutState, recv: HloInstruction) -> None:
    state.set_instruction(recv, row_major(recv.shape), state.request("gpu-recv"))


def _host_async(state: LayoutState, instruction: HloInstruction) -> None:
    """What runs on the host's thread keeps the layouts that its computation has."""
    callees = instruction.called_computations
    if not callees or callees[0].execution_thread != "host":
        return
    callee, shape = callees[0], instruction.shape
    if instruction.opcode == "async-start":
        from dataclasses import replace

        from hloscope.core.hlo.shape import Shape

        inputs = Shape.tuple_([one.shape for one in callee.parameters])
        shape = replace(shape, tuple_shapes=(inputs, callee.root.shape, *shape.tuple_shapes[2:]))
    else:
        shape = callee.root.shape
    state.set_instruction(instruction, shape, state.request("gpu-host-computation"), alias_allowed=True)


_RULES: Mapping[str, Callable[[LayoutState, HloInstruction], None]] = {
    "ragged-dot": _all_row_major("gpu-ragged-dot"),
    "fft": _all_row_major("gpu-fft"),
    "transpose": _transpose,
    "sort": _sort,
    "bitcast-convert": _bitcast_convert,
    "triangular-solve": _triangular_solve,
    "reduce-scatter": _dimension_slowest,
    "all-gather": _dimension_slowest,
    "all-to-all": _dimension_slowest,
    "ragged-all-to-all": _dimension_slowest,
    "send": _send,
    "recv": _recv,
    "async-start": _host_async,
    "async-done": _host_async,
}
