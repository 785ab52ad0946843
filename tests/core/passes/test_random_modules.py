"""Random valid modules: every pass and both pipelines keep what they compute, say truly whether they changed them,
leave them in order, and have nothing left to do in a second run."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.passes.random_modules import NOT_MADE, RARE, module_text, modules

from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.hlo.module import HloModule
from hloscope.core.hlo.opcodes import OPCODES
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.flags import PassFlags
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.invariants import findings
from hloscope.core.passes.pipelines import compile_module, cut_before, named_pipeline, transforms_pipeline
from hloscope.core.passes.registry import PASSES, Registry
from hloscope.core.runtime.compare import compare_all, join_rules, rules_for
from hloscope.core.runtime.evaluator import Array, Token, Value, evaluate
from hloscope.core.runtime.inputs import moderate_inputs
from hloscope.core.runtime.mesh import evaluate_on_mesh, needs_mesh
from hloscope.core.text import load_module, print_module

OWN = {name for name, (where, _) in PASSES.items() if where.startswith("hloscope.core.passes.")}
SIMPLE = sorted(OWN - {"hlo-verifier"})
"""Passes before layout assignment."""


def _values(module: HloModule, args: list[list[Value]]) -> list[list[Array]]:
    """Results on every device."""
    found = evaluate_on_mesh(module, args) if needs_mesh(module) else [evaluate(module, one) for one in args]
    return [[np.asarray(one) for one in values if not isinstance(one, Token)] for values in found]


def _plain(values: list[list[Array]]) -> bool:
    """Whether all floats are finite and of moderate size."""
    floats = [one for device in values for one in device if one.dtype.kind == "f"]
    return all(np.isfinite(one).all() and (np.abs(one) < 1e6).all() for one in floats)


def check(text: str, name: str, fuel: int | None = None) -> None:
    """Run one pass (or a pipeline) with every check."""
    original = load_module(text)
    args = [moderate_inputs(original.entry, seed + 1) for seed in range(original.replica_count)]
    expected = _values(original, args)
    if not _plain(expected):
        return
    module, registry = load_module(text), Registry()
    flags = PassFlags(
        xla_unsupported_crash_on_hlo_pass_silent_hlo_change=True, xla_unsupported_crash_on_hlo_pass_noop_change=True
    )
    alone = name in PASSES
    passes = (
        transforms_pipeline([registry.make(name)], registry)
        if alone
        else cut_before(named_pipeline(name, registry), "layout-assignment")
    )
    ctx = PassContext(fuel=None if fuel is None else Fuel({name: fuel}), flags=flags)
    compile_module(module, passes, ctx, registry)
    assert not ctx.warnings
    assert list(findings(module)) == []
    again = load_module(print_module(module))
    rules = join_rules(rules_for(original, 64.0), rules_for(module, 64.0))
    for before, after in zip(expected, _values(again, args), strict=True):
        pairs = compare_all(before, after, rules)
        assert all(pair.within for pair in pairs), (name, [str(pair) for pair in pairs])
    if alone and fuel is None:
        before_again = structural_hash(module)
        assert not registry.make(name).run(module, PassContext()), f"{name} has more to do"
        assert structural_hash(module) == before_again


_QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@settings(_QUIET, max_examples=15)
@given(modules(), st.lists(st.sampled_from(SIMPLE), min_size=2, max_size=2), st.integers(0, 6))
def test_passes_keep_what_a_random_module_computes(text: str, names: list[str], fuel: int) -> None:
    check(text, names[0])
    check(text, names[1], fuel)
    check(text, "algsimp")


@settings(_QUIET, max_examples=12)
@given(modules(), st.sampled_from(["cpu", "gpu"]))
def test_pipelines_keep_what_a_random_module_computes(text: str, pipeline: str) -> None:
    check(text, pipeline)


@pytest.mark.slow
@settings(_QUIET, max_examples=8)
@given(modules(), st.integers(0, 9))
def test_many_passes_on_each_module(text: str, first: int) -> None:
    for name in SIMPLE[first::10]:
        check(text, name)


def test_every_opcode_is_made_or_left_out_for_a_reason() -> None:
    seen: set[str] = set()
    often = "bits integers floats choose unary move selected largest".split()
    for seed in range(32):
        source = random.Random(seed)
        module = load_module(module_text(source.randint, RARE * 2 + often * 4))
        assert list(findings(module)) == []
        seen |= {one.opcode for one in module.instructions()}
    assert set(OPCODES) - seen == set(NOT_MADE)


ONE_ELEMENT_TWICE = """HloModule m

condition {
  p5 = (s32[], f32[], f32[], f32[]) parameter(0)
  v6 = s32[] get-tuple-element(p5), index=0
  v10 = s32[] constant(0)
  ROOT o11 = pred[] compare(v6, v10), direction=LT
}

body {
  p12 = (s32[], f32[], f32[], f32[]) parameter(0)
  v13 = s32[] get-tuple-element(p12), index=0
  v14 = f32[] get-tuple-element(p12), index=1
  v15 = f32[] get-tuple-element(p12), index=2
  v16 = f32[] get-tuple-element(p12), index=2
  v18 = s32[] constant(1)
  v19 = s32[] add(v13, v18)
  ROOT t20 = (s32[], f32[], f32[], f32[]) tuple(v19, v14, v15, v16)
}

ENTRY main {
  v1 = f32[] parameter(0)
  v2 = f32[] parameter(1)
  v4 = s32[] parameter(2)
  s22 = (s32[], f32[], f32[], f32[]) tuple(v4, v2, v1, v2)
  w22 = (s32[], f32[], f32[], f32[]) while(s22), condition=condition, body=body
  v23 = f32[] get-tuple-element(w22), index=3
  v24 = f32[] get-tuple-element(w22), index=2
  ROOT result = (f32[], f32[]) tuple(v23, v24)
}
"""

NO_TRIPS_WITH_AN_EFFECT = """HloModule m, replica_count=2

condition {
  p5 = (s32[], f32[1]) parameter(0)
  v6 = s32[] get-tuple-element(p5), index=0
  v8 = s32[] constant(0)
  ROOT o9 = pred[] compare(v6, v8), direction=LT
}

add_f32 {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT o = f32[] add(x, y)
}

body {
  p10 = (s32[], f32[1]) parameter(0)
  v11 = s32[] get-tuple-element(p10), index=0
  v12 = f32[1] get-tuple-element(p10), index=1
  v13 = f32[1] all-reduce-start(v12), replica_groups={{0,1}}, to_apply=add_f32
  v14 = f32[1] all-reduce-done(v13)
  v15 = s32[] constant(1)
  v16 = s32[] add(v11, v15)
  ROOT t17 = (s32[], f32[1]) tuple(v16, v12)
}

ENTRY main {
  v1 = f32[1] parameter(0)
  v4 = s32[] constant(0)
  s19 = (s32[], f32[1]) tuple(v4, v1)
  w19 = (s32[], f32[1]) while(s19), condition=condition, body=body
  ROOT v20 = f32[1] get-tuple-element(w19), index=1
}
"""


@pytest.mark.parametrize("text", [ONE_ELEMENT_TWICE, NO_TRIPS_WITH_AN_EFFECT], ids=["twice", "no-trips"])
def test_loops_that_random_modules_found(text: str) -> None:
    check(text, "simplify-while-loops")
    check(text, "cpu")
