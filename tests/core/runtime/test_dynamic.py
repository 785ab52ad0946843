"""Dimensions whose size is known at run time only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hloscope.core.errors import EvaluationError, UnsupportedError
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.text import load_module

SUM = "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = f32[] add(a, b)\n}\n"
LESS = "less {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = pred[] compare(a, b), direction=LT\n}\n"
HEAD = """  x = f32[5] parameter(0)
  n = s32[] parameter(1)
  d = f32[<=5] set-dimension-size(x, n), dimensions={0}
"""


def run(body: str, size: int, values: Any = (5, 4, 3, 2, 1), head: str = HEAD) -> list[Any]:
    text = f"HloModule m\n\n{SUM}\n{LESS}\nENTRY e {{\n{head}{body}\n}}\n"
    results = evaluate(load_module(text), [np.asarray(values, np.float32), np.asarray(size, np.int32)])
    return [np.asarray(x).tolist() for x in results]


@pytest.mark.parametrize(("size", "said"), [(2, 2), (5, 5), (7, 7), (-1, -1)])
def test_the_size_is_remembered_as_it_was_given(size: int, said: int) -> None:
    assert run("  m = f32[<=5] negate(d)\n  ROOT r = s32[] get-dimension-size(m), dimensions={0}", size) == [said]


@pytest.mark.parametrize(("size", "total"), [(2, 9), (5, 15), (0, 0), (-1, 0), (9, 15)])
def test_a_sum_takes_what_counts(size: int, total: int) -> None:
    body = "  z = f32[] constant(0)\n  ROOT r = f32[] reduce(d, z), dimensions={0}, to_apply=sum"
    assert run(body, size) == [total]


def test_padding_takes_the_initial_value() -> None:
    body = "  z = f32[] constant(1000)\n  ROOT r = f32[] reduce(d, z), dimensions={0}, to_apply=sum"
    assert run(body, 2) == [1000 + 9 + 3 * 1000]


def test_only_what_counts_is_sorted() -> None:
    body = """  s = f32[<=5] sort(d), dimensions={0}, to_apply=less
  f = s32[] constant(5)
  ROOT r = f32[5] set-dimension-size(s, f), dimensions={0}"""
    assert run(body, 3) == [[3, 4, 5, 2, 1]]


def test_a_dot_sees_zeros() -> None:
    body = "  ROOT r = f32[] dot(d, d), lhs_contracting_dims={0}, rhs_contracting_dims={0}"
    assert run(body, 2) == [25 + 16]


def test_to_static_and_back() -> None:
    body = """  p = (f32[5], s32[]) custom-call(d), custom_call_target="PadToStatic"
  v = f32[5] get-tuple-element(p), index=0
  k = s32[] get-tuple-element(p), index=1
  w = f32[5] negate(v)
  b = f32[<=5] custom-call(w, k), custom_call_target="SliceToDynamic"
  c = f32[<=10] concatenate(b, d), dimensions={0}
  g = s32[] get-dimension-size(c), dimensions={0}
  ROOT t = (f32[<=10], s32[]) tuple(c, g)"""
    assert run(body, 2) == [[-5, -4, 5, 4, 0, 0, 0, 0, 0, 0], 4]


def test_a_reshape_by_run_time_sizes() -> None:
    head = """  x = f32[2,3] parameter(0)
  n = s32[] parameter(1)
  d = f32[2,<=3] set-dimension-size(x, n), dimensions={1}
  two = s32[] constant(2)
  one = s32[] constant(1)
  four = s32[] multiply(n, two)
"""
    body = "  ROOT r = f32[<=6,<=6] dynamic-reshape(d, four, one)"
    (found,) = run(body, 2, [[1, 2, 3], [4, 5, 6]], head)
    assert [row[0] for row in found] == [1, 2, 4, 5, 0, 0]
    with pytest.raises(EvaluationError, match="4 elements into"):
        run("  ROOT r = f32[<=6,<=6] dynamic-reshape(d, four, two)", 2, [[1, 2, 3], [4, 5, 6]], head)


def test_sizes_travel_with_shapes() -> None:
    body = """  b = f32[3,<=5] broadcast(d), dimensions={1}
  t = f32[<=5,3] transpose(b), dimensions={1,0}
  q = f32[<=5,3,1] reshape(t)
  z = f32[] constant(0)
  s = f32[3,1] reduce(q, z), dimensions={0}, to_apply=sum
  g = s32[] get-dimension-size(q), dimensions={0}
  ROOT r = (f32[3,1], s32[]) tuple(s, g)"""
    assert run(body, 2) == [[[9], [9], [9]], 2]


def test_what_has_no_rule_is_refused_only_where_something_is_missing() -> None:
    body = "  z = f32[] constant(0)\n  ROOT r = f32[<=7] pad(d, z), padding=1_1"
    assert run(body, 5) == [[0, 5, 4, 3, 2, 1, 0]]
    with pytest.raises(UnsupportedError, match="pad of arrays with dynamic dimensions"):
        run(body, 4)
