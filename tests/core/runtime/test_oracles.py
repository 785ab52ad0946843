"""Whole programs: results of the real XLA:CPU are kept beside each and met within the bound that follows from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hloscope.core.errors import EvaluationError
from hloscope.core.hlo.module import HloModule
from hloscope.core.runtime import npz
from hloscope.core.runtime.compare import compare_all, rules_for
from hloscope.core.runtime.evaluator import EvaluationOptions, evaluate, leaves
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module

PROGRAMS = (
    "deep_transformer__layout_only",
    "dp_train",
    "fft_cholesky",
    "kv_cache_decode",
    "layout_heavy",
    "layout_heavy__disable_algsimp",
    "lstm_scan",
    "mlp_train",
    "quant_int8",
    "rng_dropout__narrow",
    "softmax_layernorm",
    "softmax_layernorm__disable_algsimp",
    "softmax_layernorm__disable_fusion",
    "tp_mlp",
    "transformer_block",
)
"""Programs of the corpus with an oracle. Those for eight devices run before partitioning, on global arrays."""

SINGLE = tuple(name for name in PROGRAMS if name not in ("deep_transformer__layout_only", "dp_train", "tp_mlp"))
"""Those for one device; the deep one, with its 29,718 optimized instructions, is left to the benchmark."""


def check(module: HloModule, oracle: Path, options: EvaluationOptions | None = None) -> None:
    data = npz.read(oracle)
    results = evaluate(module, data.inputs, options=options)
    arrays = [result for result in results if isinstance(result, np.ndarray)]
    found = compare_all(data.outputs, arrays, rules_for(module))
    assert found
    assert all(one.within for one in found), "\n".join(f"output {i}: {one}" for i, one in enumerate(found))


@pytest.mark.parametrize("name", ["softmax_layernorm", "fft_cholesky"])
@pytest.mark.parametrize("stage", ["before_optimizations", "after_optimizations"])
def test_fixture_program(fixtures: Path, name: str, stage: str) -> None:
    folder = fixtures / "programs" / name
    path = folder / f"{stage}.txt"
    check(load_module(path.read_text(), path=str(path)), folder / "oracle.npz")


@pytest.mark.corpus
@pytest.mark.parametrize("name", PROGRAMS)
def test_corpus_program(corpus: Path, name: str) -> None:
    folder = corpus / "cpu" / name
    (path,) = (folder / "dump").glob("*.before_optimizations.txt")
    check(load_module(path.read_text(), path=str(path)), folder / "oracle.npz")


@pytest.mark.corpus
@pytest.mark.parametrize("name", SINGLE)
def test_corpus_program_after_optimization(corpus: Path, name: str) -> None:
    folder = corpus / "cpu" / name
    (path,) = (folder / "dump").glob("*.cpu_after_optimizations.txt")
    module = load_module(path.read_text(), path=str(path))
    check(module, folder / "oracle.npz")


def test_a_small_fault_is_out_of_bounds(fixtures: Path) -> None:
    folder = fixtures / "programs" / "softmax_layernorm"
    text = (folder / "before_optimizations.txt").read_text()
    assert "rsqrt(" in text
    module = load_module(text.replace("rsqrt(", "sqrt("))
    with pytest.raises(AssertionError, match="out of bounds"):
        check(module, folder / "oracle.npz")


def test_stages_agree_on_random_inputs(fixtures: Path) -> None:
    folder = fixtures / "programs" / "softmax_layernorm"
    before, after = (load_module((folder / f"{s}_optimizations.txt").read_text()) for s in ("before", "after"))
    inputs = [leaf for value in inputs_for(before.entry, seed=7) for leaf in leaves(value)]
    results = [[r for r in evaluate(m, inputs) if isinstance(r, np.ndarray)] for m in (before, after)]
    assert all(one.within for one in compare_all(results[0], results[1], rules_for(before)))


def test_elided_constant_is_named() -> None:
    text = "HloModule m\nENTRY e {\n  big = f32[3,2] constant({...})\n  ROOT r = f32[3,2] negate(big)\n}\n"
    module = load_module(text)
    with pytest.raises(EvaluationError, match=r"constant %big f32\[3,2\] are elided"):
        evaluate(module, [])
    (drawn,) = evaluate(module, [], options=EvaluationOptions(elided="random", seed=3))
    (again,) = evaluate(module, [], options=EvaluationOptions(elided="random", seed=3))
    assert isinstance(drawn, np.ndarray) and isinstance(again, np.ndarray)
    assert np.array_equal(drawn, again)
    (given,) = evaluate(module, [], options=EvaluationOptions(elided=lambda node: np.ones((3, 2), np.float32)))
    assert np.array_equal(np.asarray(given), -np.ones((3, 2)))
