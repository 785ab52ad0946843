"""Differences that a compile's own flags permit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hloscope.bisect.licence import licences, permitted
from hloscope.bisect.precision import moves
from hloscope.core.runtime.compare import rules_for
from hloscope.core.runtime.evaluator import Token, evaluate
from hloscope.core.text import load_module

ORDINARY = """HloModule m

ENTRY e {
  a = f32[4] parameter(0)
  b = f32[4] parameter(1)
  n = pred[4] compare(a, a), direction=NE
  ROOT r = f32[4] select(n, b, a)
}
"""
OVERFLOW = """HloModule m

ENTRY e {
  a = f32[4] parameter(0)
  b = f32[4] parameter(1)
  p = f32[4] multiply(a, b)
  ROOT r = f32[4] divide(p, b)
}
"""
FAST = ("--xla_cpu_enable_fast_math=true",)
NO_NANS = (*FAST, "--xla_cpu_fast_math_honor_nans=false")


@pytest.mark.parametrize(
    ("text", "a", "changed", "flags", "curing", "fine", "told"),
    [
        (ORDINARY, [1, np.nan, 2, 3], {1: 9}, NO_NANS, "--xla_cpu_fast_math_honor_nans=true", True,
         "the 1 of 4 elements that NaN reaches may have any value (1 do differ)"),
        (ORDINARY, [1, np.nan, 2, 3], {1: 9, 2: 7}, NO_NANS, "--xla_cpu_fast_math_honor_nans=true", False,
         "but elements that no NaN reaches are off: output 0: 1 of 4"),
        (ORDINARY, [1, 5, 2, 3], {1: 9}, NO_NANS, "--xla_cpu_fast_math_honor_nans=true", False, ""),
        (ORDINARY, [1, np.nan, 2, 3], {1: 9}, NO_NANS, "--xla_other", False, ""),
        (ORDINARY, [1, np.nan, 2, 3], {1: 9}, FAST, "--xla_cpu_fast_math_honor_nans=true", False, ""),
        (OVERFLOW, [1, 1e38, 2, 3], {1: 1e38}, FAST, "--xla_cpu_enable_fast_math=false", True,
         "NaN or infinity reaches may have any value (1 do differ)"),
        (OVERFLOW, [1, 1e38, 2, 3], {2: 4}, FAST, "--xla_cpu_enable_fast_math=false", False, "are off"),
    ],
)  # fmt: skip
def test_only_what_a_value_that_need_not_be_honoured_reaches_may_differ(
    text: str, a: list[float], changed: dict[int, float], flags: Sequence[str], curing: str, fine: bool, told: str
) -> None:
    module = load_module(text)
    args = [np.array(a, np.float32), np.full(4, 8, np.float32)]
    expected = [one for one in evaluate(module, args) if not isinstance(one, Token)]
    results = [one.copy() for one in expected]
    for at, value in changed.items():
        results[0][at] = value
    bounds = moves(module, args)
    got = permitted(flags, lambda more: curing in more, module, args, expected, results, rules_for(module), bounds)
    assert got[0] == fine, got
    assert told in got[1] if told else got[1] == ""


def test_the_later_flag_counts() -> None:
    assert [one.flag for one in licences([])] == ["--xla_cpu_enable_fast_min_max=true"]
    given = [*NO_NANS, "--xla_cpu_fast_math_honor_nans=1", "--xla_cpu_enable_fast_min_max=false"]
    assert [one.flag for one in licences(given)] == list(FAST)
