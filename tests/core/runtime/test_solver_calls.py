"""Calls of cuSOLVER and libtpu by what they promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.text import load_module

Array = np.ndarray[Any, np.dtype[Any]]


def called(target: str, shapes: str, result: str, *operands: Array) -> list[Array]:
    parameters = "".join(f"  p{i} = {shape} parameter({i})\n" for i, shape in enumerate(shapes.split("; ")))
    names = ", ".join(f"p{i}" for i in range(len(operands)))
    call = f'  ROOT r = {result} custom-call({names}), custom_call_target="{target}"\n'
    return [np.asarray(x) for x in evaluate(load_module(f"HloModule m\nENTRY e {{\n{parameters}{call}}}\n"), operands)]


@pytest.mark.parametrize(
    ("element", "half", "value"),
    [("s64", "u32", -(2**40) + 5), ("c64", "f32", 1.5 - 2j), ("f64", "f32", 0.1)],
)
def test_halves_of_wide_values_make_them_again(element: str, half: str, value: complex) -> None:
    x = np.asarray([value], {"s64": np.int64, "c64": np.complex64, "f64": np.float64}[element])
    low, high = (called(f"X64Split{w}", f"{element}[1]", f"{half}[1]", x)[0] for w in ("Low", "High"))
    (again,) = called("X64Combine", f"{half}[1]; {half}[1]", f"{element}[1]", low, high)
    assert again.dtype == x.dtype and abs(again[0] - x[0]) <= 1e-15
    assert element != "s64" or (low[0], high[0]) == (5, 2**32 - 2**8)


def test_factors_of_a_panel() -> None:
    a = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)
    factors, pivots, order = called("LuDecompositionBlock", "f32[4,4]", "(f32[4,4], s32[4], s32[4])", a)
    lower, upper = np.tril(factors, -1) + np.eye(4), np.triu(factors)
    assert np.allclose(lower @ upper, a[order], atol=1e-5)
    assert np.array_equal(called("cu_lu_pivots_to_permutation", "s32[4]", "s32[4]", pivots)[0], order)
    inverse = called("InvertDiagBlocksUpperTriangular", "f32[1,4,4]", "f32[1,4,4]", factors[np.newaxis])[0]
    assert np.allclose(inverse[0] @ upper, np.eye(4), atol=1e-4)


def test_eigenvalues_in_quarters() -> None:
    m = np.random.default_rng(2).standard_normal((4, 4)).astype(np.float32)
    a = m + m.T
    quarters = [np.ascontiguousarray(a[i, j]) for i in (slice(2), slice(2, 4)) for j in (slice(2), slice(2, 4))]
    part = "f32[2,2]"
    shapes, result = "; ".join([part] * 4), f"(f32[2], f32[2], {', '.join([part] * 4)})"
    first, second, *rest = called("EighTpu", shapes, result, *quarters)
    rows, values = np.block([rest[:2], rest[2:]]), np.concatenate([first, second])
    assert np.allclose(rows.T @ np.diag(values) @ rows, a, atol=1e-4)
