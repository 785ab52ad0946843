"""Operations counted as XLA reports a program's; the totals are jaxlib's own (``lowered.cost_analysis()``)."""

from __future__ import annotations

import itertools

import pytest

from hloscope.core.analysis.cost import CostAnalysis, Counted
from hloscope.core.analysis.device import load_device
from hloscope.core.analysis.flop_counts import valid_positions
from hloscope.core.errors import VerifyError
from hloscope.core.hlo.attributes import WindowDimension
from hloscope.core.text import load_module

_CONVOLUTIONS = {
    "f32[8,16,11,4] convolution(%x, %k), window={size=3x5 stride=2x3 pad=1_1x2_0}, dim_labels=b01f_01io->b01f": 936192,
    "f32[8,45,55,4] convolution(%x, %k), window={size=3x5 stride=2x1 pad=1_1x2_0 lhs_dilate=3x2 rhs_dilate=2x3},"
    " dim_labels=b01f_01io->b01f": 2367360,
    "f32[4,31,33,4] convolution(%x, %k), window={size=3x5 pad=1_1x2_2}, dim_labels=b01f_01io->b01f,"
    " batch_group_count=2": 2778048,
}


def counted(text: str, what: Counted = "flops") -> int:
    root = load_module(text).entry.root
    assert root is not None
    return CostAnalysis(load_device(), what).flops(root)


def entry(line: str, *parameters: str) -> str:
    given = [f"  %{name} = {shape} parameter({k})" for k, (name, shape) in enumerate(p.split(": ") for p in parameters)]
    return "\n".join(["HloModule m", "", "ENTRY %main {", *given, f"  ROOT %r = {line}", "}", ""])


@pytest.mark.parametrize("line", _CONVOLUTIONS)
def test_padding_and_gaps_of_a_convolution_cost_nothing(line: str) -> None:
    text = entry(line, "x: f32[8,31,33,6]", "k: f32[3,5,6,4]")
    assert counted(text) == counted(text, "products") == counted(text, "cycles") == _CONVOLUTIONS[line]
    assert counted(text, "transcendentals") == 0


def test_a_product_that_a_tpu_writes_as_a_convolution_costs_what_the_dot_does() -> None:
    given = "a: bf16[64,256]", "b: f32[256,512]"
    convolution = entry("f32[64,512] convolution(%a, %b), dim_labels=bf_io->bf", *given)
    dot = entry("f32[64,512] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", *given)
    assert counted(convolution) == counted(dot) == 2 * 64 * 256 * 512


def test_a_library_s_products_cost_what_they_compute() -> None:
    config = '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
    call = f'custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={config}'
    gemm = entry(f"(f32[64,512], s8[4096]) {call}", "a: bf16[64,256]", "b: bf16[256,512]")
    assert counted(gemm) == 2 * 64 * 256 * 512
    given = {"x": "f32[8,31,33,6]", "k": "f32[3,5,6,4]", "y": "f32[8,16,11,4]"}
    for kind, operands, result in (("Forward", "xk", "y"), ("BackwardInput", "yk", "x"), ("BackwardFilter", "xy", "k")):
        line = (
            f"({given[result]}, u8[0]) custom-call(%{operands[0]}, %{operands[1]}), window={{size=3x5 stride=2x3"
            f' pad=1_1x2_0}}, dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$conv{kind}"'
        )
        text = entry(line, *(f"{name}: {given[name]}" for name in operands))
        assert counted(text) == 936192  # each is the same convolution, or one of its gradients


def test_labels_that_do_not_fit_are_said() -> None:
    module = load_module(
        entry("f32[64,512] convolution(%a, %b), dim_labels=bf_io->bf", "a: f32[64,8]", "b: f32[8,512]")
    )
    root = module.entry.root
    assert root is not None
    root.set_attr("dim_labels", None)
    with pytest.raises(VerifyError, match="without dim_labels"):
        CostAnalysis(load_device()).flops(root)


def test_valid_positions_are_those_of_the_whole_walk() -> None:
    for stride, low, base, dilation in itertools.product((1, 2, 3, 4), (-2, 0, 3), (1, 2, 3, 6), (1, 3)):
        window = WindowDimension(3, stride, low, 0, base, dilation)
        for source, kernel, result in ((7, 3, 5), (1, 4, 9), (5, 1, 0)):
            places = (o * stride - low + k * dilation for o in range(result) for k in range(kernel))
            walked = sum(at % base == 0 and 0 <= at // base < source for at in places)
            assert valid_positions(window, source, kernel, result) == walked


def test_transcendentals_count_by_themselves_and_cycles_are_another_unit() -> None:
    tanh = entry("f32[64,512] tanh(%x)", "x: f32[64,512]")
    assert (counted(tanh), counted(tanh, "transcendentals")) == (0, 64 * 512)
    assert counted(tanh, "cycles") > 100 * 64 * 512  # of an H100, by XLA's profile
    product = entry("f32[64,512] multiply(%x, %x)", "x: f32[64,512]")
    assert (counted(product), counted(product, "transcendentals")) == (64 * 512, 0)
    assert counted(product, "cycles") == 3 * 64 * 512


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        ("c64[16,64] fft(%z), fft_type=FFT, fft_length={64}", 49152),
        ("f32[64,16,16] cholesky(%s)", 16 * 64 * 16 * 16 // 3),
        ("f32[1024] sort(%v), dimensions={0}, to_apply=%less", 10 * 1024),
    ],
)
def test_solvers_transforms_and_sorts(line: str, flops: int) -> None:
    less = "%less (a: f32[], b: f32[]) -> pred[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n"
    less += "  ROOT %c = pred[] compare(%a, %b), direction=LT\n}\n"
    text = entry(line, "z: c64[16,64]", "s: f32[64,16,16]", "v: f32[1024]")
    assert counted(text.replace("ENTRY", f"{less}\nENTRY")) == flops
