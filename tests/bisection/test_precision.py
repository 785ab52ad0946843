"""Results of wider intermediate values are told from wrong ones."""

from __future__ import annotations

import numpy as np

from hloscope.bisect.precision import excess_precision
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
