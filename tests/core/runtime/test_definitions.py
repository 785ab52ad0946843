"""Windows, conversions and ragged dots by their definitions, element by element, on programs that Hypothesis finds.

The definitions are written out here with Python's own numbers, so that they share nothing with the evaluator.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hloscope.core.hlo.element_types import lookup
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.text import load_module

Array = np.ndarray[Any, np.dtype[Any]]
Window = list[dict[str, int]]
QUICK = settings(max_examples=40, deadline=None)


def run(text: str, *inputs: Array) -> Array:
    """The only result of a module."""
    (out,) = evaluate(load_module("HloModule m\n" + text), list(inputs))
    assert isinstance(out, np.ndarray)
    return out


@st.composite
def windows(draw: st.DrawFn, rank: int, reversal: bool = True) -> tuple[Window, tuple[int, ...], tuple[int, ...]]:
    """A window, the sizes that it slides over and the sizes of the result; edges may be negative."""
    dims: Window = []
    sizes: list[int] = []
    result: list[int] = []
    for _ in range(rank):
        size = draw(st.integers(1, 5))
        dim = {
            "size": draw(st.integers(1, 3)),
            "stride": draw(st.integers(1, 3)),
            "low": draw(st.integers(-2, 3)),
            "high": draw(st.integers(-2, 3)),
            "base": draw(st.integers(1, 3)),
            "window": draw(st.integers(1, 2)),
            "reversal": int(reversal and draw(st.booleans())),
        }
        room = (size - 1) * dim["base"] + 1 + dim["low"] + dim["high"] - (dim["size"] - 1) * dim["window"] - 1
        assume(room >= 0 and (size - 1) * dim["base"] + 1 + min(dim["low"], 0) + min(dim["high"], 0) > 0)
        dims.append(dim)
        sizes.append(size)
        result.append(room // dim["stride"] + 1)
    return dims, tuple(sizes), tuple(result)


def written(dims: Window) -> str:
    keys = {
        "size": "size",
        "stride": "stride",
        "base": "lhs_dilate",
        "window": "rhs_dilate",
        "reversal": "rhs_reversal",
    }
    parts = [f"{name}={'x'.join(str(d[key]) for d in dims)}" for key, name in keys.items()]
    return f"window={{{' '.join(parts)} pad={'x'.join('{}_{}'.format(d['low'], d['high']) for d in dims)}}}"


def seen(dims: Window, sizes: tuple[int, ...], at: tuple[int, ...], tap: tuple[int, ...]) -> tuple[int, ...] | None:
    """The element that a position of the window lies on; None on padding and in holes."""
    out: list[int] = []
    for dim, size, o, k in zip(dims, sizes, at, tap, strict=True):
        place = o * dim["stride"] - dim["low"] + k * dim["window"]
        if place < 0 or place % dim["base"] or place // dim["base"] >= size:
            return None
        out.append(place // dim["base"])
    return tuple(out)


def whole_numbers(seed: int, shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.int32)


@QUICK
@given(st.data())
def test_convolutions_are_sums_over_windows(data: st.DataObject) -> None:
    dims, sizes, result = data.draw(windows(data.draw(st.integers(1, 2))))
    seed = data.draw(st.integers(0, 99))
    taps = tuple(d["size"] for d in dims)
    x, w = whole_numbers(seed, (2, 3, *sizes)), whole_numbers(seed + 1, (2, 3, *taps))
    spatial = "01"[: len(dims)]
    shapes = [f"s32[{','.join(map(str, s))}]" for s in (x.shape, w.shape, (2, 2, *result))]
    text = (
        f"ENTRY e {{\n x = {shapes[0]} parameter(0)\n w = {shapes[1]} parameter(1)\n ROOT r = {shapes[2]} "
        f"convolution(x, w), {written(dims)}, dim_labels=bf{spatial}_oi{spatial}->bf{spatial}\n}}"
    )
    expected = np.zeros((2, 2, *result), np.int32)
    for at in np.ndindex(*result):
        for tap in np.ndindex(*taps):
            place = seen(dims, sizes, at, tap)
            if place is None:
                continue
            # A reversed window meets the kernel's elements from the end.
            k = tuple(d["size"] - 1 - t if d["reversal"] else t for d, t in zip(dims, tap, strict=True))
            expected[(..., *at)] += x[(..., *place)] @ w[(..., *k)].T
    np.testing.assert_array_equal(run(text, x, w), expected)


@QUICK
@given(st.data())
def test_any_computation_is_folded_over_windows_in_order(data: st.DataObject) -> None:
    dims, sizes, result = data.draw(windows(data.draw(st.integers(1, 2)), reversal=False))
    opcode = data.draw(st.sampled_from(["subtract", "add", "maximum"]))
    x = whole_numbers(data.draw(st.integers(0, 99)), sizes)
    shapes = [f"s32[{','.join(map(str, s))}]" for s in (sizes, result)]
    text = (
        f"f {{\n a = s32[] parameter(0)\n b = s32[] parameter(1)\n ROOT r = s32[] {opcode}(a, b)\n}}\n"
        f"ENTRY e {{\n x = {shapes[0]} parameter(0)\n i = s32[] constant(5)\n"
        f" ROOT r = {shapes[1]} reduce-window(x, i), {written(dims)}, to_apply=f\n}}"
    )
    step = {"subtract": lambda a, b: a - b, "add": lambda a, b: a + b, "maximum": max}[opcode]
    expected = np.zeros(result, np.int32)
    for at in np.ndindex(*result):
        total = 5
        for tap in itertools.product(*(range(d["size"]) for d in dims)):
            place = seen(dims, sizes, at, tap)
            total = total if place is None else step(total, int(x[place]))
        expected[at] = total
    np.testing.assert_array_equal(run(text, x), expected)


FLOATS = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
INTEGERS = ("s2", "u2", "s4", "u4", "s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


@QUICK
@given(
    st.sampled_from(sorted(FLOATS)),
    st.sampled_from(INTEGERS),
    st.lists(st.floats() | st.floats(-300, 300) | st.sampled_from([2.0**31, 2.0**32, -(2.0**63), 2.0**64]), min_size=1),
)
def test_floats_become_integers_towards_zero_and_saturate(source: str, target: str, values: list[float]) -> None:
    with np.errstate(over="ignore"):
        x = np.asarray(values).astype(FLOATS[source])
    count, element = len(values), lookup(target)
    low = -(1 << (element.bits - 1)) if element.kind == "int" else 0
    high = (1 << (element.bits - (element.kind == "int"))) - 1
    text = f"ENTRY e {{\n x = {source}[{count}] parameter(0)\n ROOT r = {target}[{count}] convert(x)\n}}"
    for value, got in zip(x.astype(np.float64).tolist(), run(text, x), strict=True):
        if math.isnan(value):
            expected = 0
        elif math.isinf(value):
            expected = high if value > 0 else low
        else:
            expected = min(high, max(low, int(value)))
        assert int(got) == expected, (source, target, value)


RAGGED = {
    "rows of one operand": ("lhs_contracting_dims={2}, rhs_contracting_dims={1}, lhs_ragged_dims={1}, "
                            "rhs_group_dims={0}", (2, 4, 1), (2, 1, 3), [[2, 2], [3, 1]], 1,
                            [[[1, 2, 3], [2, 4, 6], [12, 15, 18], [16, 20, 24]],
                             [[5, 10, 15], [6, 12, 18], [7, 14, 21], [32, 40, 48]]]),
    "rows per batch": ("lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}, "
                       "lhs_ragged_dims={1}, rhs_group_dims={1}", (3, 4, 1), (3, 2, 1, 2),
                       [[2, 2], [1, 3], [4, 0]], 0,
                       [[[0, 1], [0, 2], [6, 9], [8, 12]], [[20, 25], [36, 42], [42, 49], [48, 56]],
                        [[72, 81], [80, 90], [88, 99], [96, 108]]]),
    "contracted per batch": ("lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
                             "rhs_contracting_dims={1}, lhs_ragged_dims={2}", (2, 2, 5), (2, 5, 3),
                             [[2, 2], [5, 0]], 1,
                             [[[[9, 12, 15], [34, 47, 60]], [[1460, 1525, 1590], [2010, 2100, 2190]]],
                              [[[61, 68, 75], [146, 163, 180]], [[0, 0, 0], [0, 0, 0]]]]),
    "batches per batch": ("lhs_batch_dims={0,1}, rhs_batch_dims={0,1}, lhs_contracting_dims={3}, "
                          "rhs_contracting_dims={2}, lhs_ragged_dims={1}", (2, 2, 2, 2), (2, 2, 2, 2),
                          [[0, 1, 0], [0, 1, 1]], 0,
                          [[[[4, 7], [8, 15]], [[0, 0], [0, 0]]],
                           [[[172, 191], [208, 231]], [[352, 379], [404, 435]]]]),
}  # fmt: skip
"""Attributes, shapes of the operands (which count from 1, and from the number after the sizes), sizes and results.

The values are those of ``openxla/xla:xla/hlo/evaluator/hlo_evaluator_test.cc``.
"""


@pytest.mark.parametrize("case", RAGGED)
def test_group_sizes_may_be_given_per_batch(case: str) -> None:
    attrs, left, right, sizes, start, result = RAGGED[case]
    a = np.arange(1, 1 + math.prod(left), dtype=np.float32).reshape(left)
    b = np.arange(start, start + math.prod(right), dtype=np.float32).reshape(right)
    g, expected = np.asarray(sizes, np.int64), np.asarray(result, np.float32)
    shapes = [",".join(map(str, x.shape)) for x in (a, b, g, expected)]
    text = (
        f"ENTRY e {{\n a = f32[{shapes[0]}] parameter(0)\n b = f32[{shapes[1]}] parameter(1)\n"
        f" g = s64[{shapes[2]}] parameter(2)\n ROOT r = f32[{shapes[3]}] ragged-dot(a, b, g), {attrs}\n}}"
    )
    np.testing.assert_array_equal(run(text, a, b, g), expected)


def test_a_scalar_scale_counts_as_one() -> None:
    a, b = np.ones((2, 4), np.float32), np.ones((4, 3), np.float32)
    scale = np.asarray([[2, 3], [4, 5]], np.float32)
    text = """ENTRY e {
  a = f32[2,4] parameter(0)
  b = f32[4,3] parameter(1)
  s = f32[2,2] parameter(2)
  t = f32[] constant(7)
  ROOT r = f32[2,3] scaled-dot(a, b, s, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""
    np.testing.assert_array_equal(run(text, a, b, scale), [[10] * 3, [18] * 3])


def test_the_imaginary_zero_s_sign_does_not_choose_the_square_root() -> None:
    z = np.asarray([complex(-4, 0.0), complex(-4, -0.0), complex(3, 4)], np.complex64)
    found = run("ENTRY e {\n z = c64[3] parameter(0)\n ROOT r = c64[3] sqrt(z)\n}", z)
    np.testing.assert_allclose(found, [2j, 2j, 2 + 1j], rtol=1e-6)
    endless = np.asarray([complex(np.inf, np.inf), complex(0, np.inf), complex(4, 0)], np.complex64)
    found = run("ENTRY e {\n z = c64[3] parameter(0)\n ROOT r = c64[3] rsqrt(z)\n}", endless)
    np.testing.assert_array_equal(np.abs(found), [0, 0, 0.5])
