"""Results of wider intermediate values are told from wrong ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hloscope.bisect.precision import difference, excess_precision, fused_products, moves
from hloscope.core.runtime.compare import rules_for
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.text import load_module

TEXT = """HloModule tail

ENTRY q {
  a = f16[64] parameter(0)
  e = f16[64] exponential(a)
  l = f16[64] log(e)
  s = f16[64] subtract(l, a)
  ROOT r = f16[64] multiply(s, s)
}
"""


def test_only_what_wider_values_explain_is_excused() -> None:
    given = np.random.default_rng(0).normal(size=64).astype(np.float16)
    expected = [np.asarray(one) for one in evaluate(load_module(TEXT), [given])]
    assert float(expected[0].max()) > 0, "rounding to f16 moves it"
    nothing = np.zeros(64, np.float16)
    said = excess_precision(TEXT, [given], expected, [nothing])
    assert said is not None and "within twice that" in said
    wrong = nothing.copy()
    wrong[3] = 1
    assert excess_precision(TEXT, [given], expected, [wrong]) is None
    assert excess_precision(TEXT.replace("f16", "f32"), [given.astype(np.float32)], expected, [nothing]) is None


def test_rounding_is_an_excuse_while_digits_agree() -> None:
    text = """HloModule m

ENTRY e {
  p = f32[4] parameter(0)
  r = f32[4] parameter(1)
  a = f32[4] multiply(p, p)
  b = f32[4] multiply(r, p)
  s = f32[4] add(a, b)
  ROOT x = f32[4] exponential(s)
}
"""
    module = load_module(text)
    p = np.array([3, 2, 1, 0.5], np.float32)
    want = [np.asarray(one) for one in evaluate(module, [p, p / 2])]
    rules, moved = rules_for(module), moves(module, [p, p / 2])
    assert difference(want, want, rules, moved) == (True, "")
    near = [want[0] * np.float32(1 + 6e-6)]
    assert not difference(want, near, rules)[0], "more than one rounding"
    right, said = difference(want, near, rules, moved)
    assert right and "rounding errors were seen to move it" in said
    assert not difference(want, [want[0] * np.float32(1.01)], rules, moved)[0]
    cancelled = evaluate(module, [p, -p])
    assert difference([np.asarray(cancelled[0])], [np.asarray(cancelled[0])], rules, moved) == (True, "")
    # a*x - a*x: a fused multiply-add leaves the error of one product, and no digit of the result.
    text = text.replace("exponential(s)", "copy(s)")
    module = load_module(text)
    zero = [np.asarray(one) for one in evaluate(module, [p * 1e9, -p * 1e9])]
    right, said = difference(zero, [np.full(4, 2e10, np.float32)], rules, moves(module, [p * 1e9, -p * 1e9]))
    assert not right and "no digit is left" in said


def test_products_that_feed_sums_are_seen_in_llvm_code(tmp_path: Path) -> None:
    code = "define void @f() {\n  %1 = fmul float %0, %0\n  %2 = fadd float %1, %0\n  %3 = fadd float %0, %0\n}\n"
    (tmp_path / "m.k.ir-with-opt.ll").write_text("; m\n" + code)
    assert (fused_products(str(tmp_path)) or "").startswith("in m.k.ir-with-opt.ll 1 sum of a product")
    (tmp_path / "m.k.ir-with-opt.ll").write_text("; m\n" + code.replace("fmul", "fadd"))
    assert fused_products(str(tmp_path)) is None
