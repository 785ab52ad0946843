"""Library calls against the HLO that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hloscope.core.errors import UnsupportedError
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module


def both(parameters: str, call: str, plain: str, results: int = 1) -> None:
    """The first results of a call and of plain HLO agree on random inputs."""
    outcomes: list[list[Any]] = []
    for body in (call, plain):
        module = load_module(f"HloModule m\n\nENTRY e {{\n{parameters}\n{body}\n}}\n")
        outcomes.append(evaluate(module, inputs_for(module.entry, 3))[:results])
    for given, wanted in zip(*outcomes, strict=True):
        assert given.shape == wanted.shape and given.dtype == wanted.dtype
        np.testing.assert_allclose(given.astype(np.float64), wanted.astype(np.float64), rtol=1e-5, atol=1e-5)
        assert np.count_nonzero(given), "nothing was compared"


def gemm(epilogue: str = "DEFAULT", alpha: float = 1.0, beta: float = 0.0, batch: str = "") -> str:
    first, second = ('["2"]', '["1"]') if batch else ('["1"]', '["0"]')
    dims = (
        f'"lhs_contracting_dimensions":{first},"rhs_contracting_dimensions":{second},'
        f'"lhs_batch_dimensions":[{batch}],"rhs_batch_dimensions":[{batch}]'
    )
    return (
        f'backend_config={{"gemm_backend_config":{{"alpha_real":{alpha},"alpha_imag":0,"beta":{beta},'
        f'"dot_dimension_numbers":{{{dims}}},"epilogue":"{epilogue}"}}}}'
    )


MATRICES = "  a = f32[4,3] parameter(0)\n  b = f32[3,5] parameter(1)"
DOT = "  d = f32[4,5] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"


def test_gemm_with_its_workspace() -> None:
    call = f'  ROOT r = (f32[4,5], s8[64]) custom-call(a, b), custom_call_target="__cublas$gemm", {gemm()}'
    both(MATRICES, call, DOT.replace("  d", "  ROOT d"))


def test_gemm_in_batches_adds_a_scaled_matrix() -> None:
    parameters = "  a = f32[2,4,3] parameter(0)\n  b = f32[2,3,5] parameter(1)\n  c = f32[2,4,5] parameter(2)"
    config = gemm(alpha=2.0, beta=0.5, batch='"0"')
    call = f'  ROOT r = f32[2,4,5] custom-call(a, b, c), custom_call_target="__cublas$gemm", {config}'
    dims = "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
    plain = f"""  d = f32[2,4,5] dot(a, b), {dims}
  k = f32[] constant(2)
  h = f32[] constant(0.5)
  kb = f32[2,4,5] broadcast(k), dimensions={{}}
  hb = f32[2,4,5] broadcast(h), dimensions={{}}
  x = f32[2,4,5] multiply(d, kb)
  y = f32[2,4,5] multiply(c, hb)
  ROOT r = f32[2,4,5] add(x, y)"""
    both(parameters, call, plain)


def test_a_bias_and_an_activation_with_what_went_into_it() -> None:
    parameters = MATRICES + "\n  v = f32[5] parameter(2)"
    call = (
        '  ROOT r = (f32[4,5], f32[4,5], s8[8]) custom-call(a, b, v), custom_call_target="__cublas$lt$matmul", '
        + gemm("BIAS_RELU_AUX")
    )
    plain = (
        DOT
        + """  w = f32[4,5] broadcast(v), dimensions={1}
  s = f32[4,5] add(d, w)
  z = f32[] constant(0)
  zb = f32[4,5] broadcast(z), dimensions={}
  m = f32[4,5] maximum(s, zb)
  ROOT r = (f32[4,5], f32[4,5]) tuple(m, s)"""
    )
    both(parameters, call, plain, results=2)


def test_what_a_gemm_is_not_known_to_do_is_refused() -> None:
    for config, name in ((gemm("DGELU"), "epilogue"), (gemm(beta=1.0), "2 operands")):
        call = f'  ROOT r = f32[4,5] custom-call(a, b), custom_call_target="__cublas$gemm", {config}'
        module = load_module(f"HloModule m\n\nENTRY e {{\n{MATRICES}\n{call}\n}}\n")
        with pytest.raises(UnsupportedError, match=name):
            evaluate(module, inputs_for(module.entry))


FORWARD = "window={size=3x2 stride=2x1 pad=1_1x0_1 rhs_dilate=1x2}, dim_labels=b01f_01io->b01f"
X, W, Y = "f32[2,6,5,3]", "f32[3,2,3,4]", "f32[2,3,4,4]"


def test_convolution_with_bias_side_input_and_activation() -> None:
    parameters = f"  x = {X} parameter(0)\n  w = {W} parameter(1)\n  b = f32[4] parameter(2)\n  s = {Y} parameter(3)"
    config = (
        'backend_config={"cudnn_conv_backend_config":{"activation_mode":"kRelu","conv_result_scale":1,'
        '"side_input_scale":0.5}}'
    )
    target = 'custom_call_target="__cudnn$convBiasActivationForward"'
    call = f"  ROOT r = ({Y}, u8[0]) custom-call(x, w, b, s), {FORWARD}, {target}, {config}"
    plain = f"""  c = {Y} convolution(x, w), {FORWARD}
  v = {Y} broadcast(b), dimensions={{3}}
  d = {Y} add(c, v)
  h = f32[] constant(0.5)
  hb = {Y} broadcast(h), dimensions={{}}
  t = {Y} multiply(s, hb)
  e = {Y} add(d, t)
  z = f32[] constant(0)
  zb = {Y} broadcast(z), dimensions={{}}
  ROOT r = {Y} maximum(e, zb)"""
    both(parameters, call, plain)


@pytest.mark.parametrize("side", ["Input", "Filter"])
def test_gradients_of_a_convolution(side: str) -> None:
    """sum(dy * conv(x, w)) is linear in x and in w: its gradient times x (or w) gives it back."""
    random = np.random.default_rng(1)
    shapes = {"x": (2, 6, 5, 3), "w": (3, 2, 3, 4), "dy": (2, 3, 4, 4)}
    x, w, dy = (random.standard_normal(shape).astype(np.float32) for shape in shapes.values())
    text = f"HloModule m\n\nENTRY e {{\n  x = {X} parameter(0)\n  w = {W} parameter(1)\n"
    forward = load_module(text + f"  ROOT r = {Y} convolution(x, w), {FORWARD}\n}}\n")
    (y,) = evaluate(forward, [x, w])
    expected = float(np.sum(np.asarray(y) * dy))
    result, operands, given, factor = (X, "d, w", [dy, w], x) if side == "Input" else (W, "x, d", [x, dy], w)
    declared = {"d": Y, "w": W, "x": X}
    lines = [f"  {name} = {declared[name]} parameter({i})\n" for i, name in enumerate(operands.split(", "))]
    call = f'custom-call({operands}), {FORWARD}, custom_call_target="__cudnn$convBackward{side}"'
    module = load_module(f"HloModule m\n\nENTRY e {{\n{''.join(lines)}  ROOT r = ({result}, u8[0]) {call}\n}}\n")
    gradient = np.asarray(evaluate(module, list(given))[0])
    assert gradient.shape == factor.shape
    np.testing.assert_allclose(float(np.sum(gradient * factor)), expected, rtol=1e-4)
    # One element by a finite difference, so that a gradient of the right length alone does not pass.
    bumped = factor.copy()
    bumped[1, 1, 1, 2] += 1
    (moved,) = evaluate(forward, [bumped, w] if side == "Input" else [x, bumped])
    np.testing.assert_allclose(gradient[1, 1, 1, 2], float(np.sum((np.asarray(moved) - np.asarray(y)) * dy)), rtol=1e-3)


def test_buffers_and_pieces() -> None:
    parameters = "  p = f32[2,3] parameter(0)\n  q = f32[2,3] parameter(1)"
    call = '  ROOT r = f32[4,3] custom-call(p, q), custom_call_target="ConcatBitcast"'
    both(parameters, call, "  ROOT r = f32[4,3] concatenate(p, q), dimensions={0}")
    module = load_module(
        'HloModule m\n\nENTRY e {\n  ROOT r = f32[2] custom-call(), custom_call_target="AllocateBuffer"\n}\n'
    )
    assert np.asarray(evaluate(module, [])[0]).shape == (2,)
