"""Kernels that custom calls carry as MLIR: read by the installed jaxlib, computed here, right to the sum.

The fixtures are what jax and libtpu lowered: a Pallas kernel with prefetched scalars, libtpu's kernel for a ragged dot,
a Triton kernel that reduces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloscope.core.errors import UnsupportedError
from hloscope.core.runtime.evaluator import EvaluationOptions, evaluate
from hloscope.core.runtime.replay import ReplayOptions, replay
from hloscope.core.text import load_module
from hloscope.core.xla.kernel_ir import read_kernel

Array = np.ndarray[Any, np.dtype[Any]]
FOLDER = Path(__file__).parents[3] / "fixtures" / "kernels"
READING = EvaluationOptions(kernels=read_kernel)


def computed(name: str, *operands: Array) -> list[Array]:
    module = load_module((FOLDER / name).read_text("utf-8"))
    return [np.asarray(x) for x in evaluate(module, operands, options=READING)]


def test_windows_at_prefetched_places() -> None:
    rng = np.random.default_rng(1)
    index, x = np.array([3, 0, 5, 3], np.int32), rng.standard_normal((48, 128)).astype(np.float32)
    (found,) = computed("mosaic_prefetch.hlo", index, x)
    expected = x.reshape(6, 8, 128)[index] * 2 + index[:, None, None].astype(np.float32)
    assert np.array_equal(found.reshape(4, 8, 128), expected)


def test_a_ragged_dot_over_a_grid_that_an_operand_bounds() -> None:
    # Groups of 20, 0, 12 and 16 rows in tiles of 16: two groups meet in the second tile.
    rng = np.random.default_rng(2)
    x = rng.integers(-3, 4, (48, 16)).astype(ml_dtypes.bfloat16)
    w = rng.integers(-3, 4, (4, 16, 32)).astype(ml_dtypes.bfloat16)
    ends = np.array([0, 20, 20, 32, 48], np.int32)
    group, tile = np.array([0, 0, 2, 3, 3, 3], np.int32), np.array([0, 1, 1, 2, 2, 2], np.int32)
    (found,) = computed("mosaic_ragged_dot.hlo", np.array([4], np.int32), ends, group, tile, x, w)
    rows = np.repeat(np.arange(4), np.diff(ends))
    expected = np.einsum("rk,rkn->rn", x.astype(np.float32), w[rows].astype(np.float32))
    assert np.array_equal(found.astype(np.float32), expected)


def test_triton_programs_that_reduce() -> None:
    x = np.random.default_rng(3).integers(-50, 50, (32, 64)).astype(np.float32)
    sums, places = computed("triton_reduce.hlo", x)
    assert np.array_equal(sums, x.sum(1)) and np.array_equal(places, x.argmax(1))


def wrapped(operations: list[dict[str, object]], arguments: list[list[object]]) -> dict[str, object]:
    ends = {"op": "func.return", "in": [], "types": [], "attrs": {}, "regions": [], "out": []}
    body = {"args": arguments, "ops": [*operations, ends]}
    return {"functions": {"main": {"attrs": {}, "body": body, "blocks": 1}}}


CALL = """HloModule m
ENTRY main {
  x = f32[4] parameter(0)
  ROOT k = f32[4] custom-call(x), custom_call_target="tpu_custom_call",
    backend_config={"custom_call_config": {"body": "TUw="}}
}
""".replace(",\n    ", ", ")


def test_what_is_not_computed_is_named() -> None:
    strange: dict[str, object] = {
        "op": "tpu.prng_random_bits",
        "in": [],
        "types": [],
        "attrs": {},
        "regions": [],
        "out": [],
    }
    memory: list[list[object]] = [[0, "memref<4xf32>"], [1, "memref<4xf32>"]]
    options = EvaluationOptions(kernels=lambda _dialect, _body: wrapped([strange], memory))
    with pytest.raises(UnsupportedError, match="whose kernel has the operation tpu.prng_random_bits"):
        evaluate(load_module(CALL), [np.ones(4, np.float32)], options=options)
    with pytest.raises(UnsupportedError, match="is not in the HLO"):
        evaluate(load_module(CALL), [np.ones(4, np.float32)])


def test_a_kernel_that_a_pass_makes_of_an_operation_is_no_difference() -> None:
    plain = CALL[: CALL.index("custom-call")] + "negate(x)\n}\n"
    right = CALL.replace("ROOT k", "k").replace("}}\n}", "}}\n  n = f32[4] negate(k)\n  ROOT y = f32[4] negate(n)\n}")
    found = replay([lambda: plain, lambda: CALL, lambda: right], ReplayOptions(workers=1))
    assert found.first_difference is None
    assert found.stages[1].status == "not-evaluated" and "tpu_custom_call" in found.stages[1].reason
    # What later stages do to it is checked by region.
    wrong = CALL.replace("ROOT k", "k").replace("}}\n}", "}}\n  ROOT y = f32[4] negate(k)\n}")
    assert replay([lambda: plain, lambda: CALL, lambda: wrong], ReplayOptions(workers=1)).first_difference == 2
