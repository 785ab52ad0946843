"""Every rule of the passes that are made of rules, and has a guard, refuses where its pattern matches and the guard says no.

The rules of algsimp have a table of their own.
"""

# ruff: noqa: E501  (a table of texts)
from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import pytest
from tests.core.passes.test_expanders import module_of_case
from tests.core.recorded import Recorded

from hloscope.core.passes import expand, rules
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.registry import PASSES, Registry
from hloscope.core.passes.rules.base import Rule
from hloscope.core.text import print_module

SUM = "add: x = f32[] parameter(0); y = f32[] parameter(1); o = f32[] add(x, y) & "
FOUR = "a = f32[4]{0} parameter(0); "
GROUPS = "replica_groups={{0,1}}"

REFUSED = [
    ("gemv-rewriter", "matrix-vector", "layout", "a = f32[4,3]{0,1} parameter(0); b = f32[3]{0} parameter(1);"
     " r = f32[4]{0} dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    ("operand_upcaster", "upcast-operands", "not_wider", "a = f32[2,2]{1,0} parameter(0);"
     " r = bf16[2,2]{1,0} dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    ("operand_upcaster{except_library=true}", "upcast-operands", "library", "a = bf16[64,64]{1,0} parameter(0);"
     " r = f32[64,64]{1,0} dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    ("operand_upcaster{except_matrices=true}", "upcast-operands", "library", "a = bf16[4,4]{1,0} parameter(0);"
     " r = f32[4,4]{1,0} dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    ("transpose-folding{rows_and_columns_only=true}", "fold-matrix-transpose", "strategy", "a = s32[4,3]{1,0} parameter(0);"
     " t = s32[3,4]{1,0} transpose(a), dimensions={1,0}; r = s32[4,4]{1,0} dot(t, t), lhs_contracting_dims={0},"
     " rhs_contracting_dims={0}"),
    ("convolution-group-converter{convert_batch_groups_only=true}", "batch-groups", "sizes", "x = f32[3,4,1]{2,1,0} parameter(0);"
     " k = f32[1,1,2]{2,1,0} parameter(1); r = f32[1,4,2]{2,1,0} convolution(x, k), window={size=1}, dim_labels=b0f_0io->b0f,"
     " batch_group_count=2"),
    ("convolution-group-converter", "feature-groups", "element_type", "x = f32[1,4,2]{2,1,0} parameter(0);"
     " k = f32[1,1,2]{2,1,0} parameter(1); r = f32[1,4,2]{2,1,0} convolution(x, k), window={size=1}, dim_labels=b0f_0io->b0f,"
     " feature_group_count=2"),
    ("comparison-expander", "expand-comparison", "no_negative_zero", "a = f8e4m3fnuz[4]{0} parameter(0);"
     " r = pred[4]{0} compare(a, a), direction=LT, type=TOTALORDER"),
    ("comparison-expander", "expand-comparison", "width", "a = f4e2m1fn[4]{0} parameter(0);"
     " r = pred[4]{0} compare(a, a), direction=LT, type=TOTALORDER"),
    ("map-inline", "inline-map", "not_elementwise", "body: x = f32[] parameter(0); b = f32[2]{0} broadcast(x), dimensions={};"
     " s = f32[1]{0} slice(b), slice={[1:2]}; o = f32[] reshape(s) & " + FOUR + "r = f32[4]{0} map(a), dimensions={0}, to_apply=body"),
    ("qr_expander", "expand-householder-product", "shape", "a = f32[2,3]{1,0} parameter(0); t = f32[2]{0} parameter(1);"
     ' r = f32[2,3]{1,0} custom-call(a, t), custom_call_target="ProductOfElementaryHouseholderReflectors"'),
    ("qr_expander", "expand-qr", "element_type", "a = s32[3,2]{1,0} parameter(0);"
     ' r = (s32[3,2]{1,0}, s32[2]{0}) custom-call(a), custom_call_target="Qr"'),
    ("eigh_expander", "expand-eigh", "backend_config", "a = f32[2,2]{1,0} parameter(0);"
     ' r = (f32[2,2]{1,0}, f32[2]{0}) custom-call(a), custom_call_target="Eigh"'),
    ("bitcast_dtypes_expander", "expand-bitcast-convert", "element_type", "a = c64[2]{0} parameter(0);"
     " r = u32[2,2]{1,0} bitcast-convert(a)"),
    ("stochastic_convert_decomposer", "expand-stochastic-convert", "element_type", FOUR + "b = u32[4]{0} parameter(1);"
     " r = f16[4]{0} stochastic-convert(a, b)"),
    ("batched_gather_scatter_normalizer", "batched-gather", "batching_overlap", "a = f32[3,4]{1,0} parameter(0);"
     " i = s32[3,1]{1,0} parameter(1); r = f32[3,1]{1,0} gather(a, i), offset_dims={1}, collapsed_slice_dims={},"
     " start_index_map={0}, operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=1, slice_sizes={1,1}"),
    ("scatter_simplifier", "scatter-simple", "scalar_operand", SUM + "a = f32[] parameter(0); i = s32[2,0]{1,0} parameter(1);"
     " u = f32[2]{0} parameter(2); r = f32[] scatter(a, i, u), update_window_dims={}, inserted_window_dims={},"
     " scatter_dims_to_operand_dims={}, index_vector_dim=1, to_apply=add"),
    ("cholesky_expander", "expand-cholesky", "element_type", "a = bf16[2,2]{1,0} parameter(0); r = bf16[2,2]{1,0} cholesky(a), lower=true"),
    ("triangular_solve_expander", "expand-triangular-solve", "element_type", "a = bf16[2,2]{1,0} parameter(0);"
     " r = bf16[2,2]{1,0} triangular-solve(a, a), left_side=true, lower=true, transpose_a=NO_TRANSPOSE"),
    ("triangular_solve_expander", "expand-triangular-solve", "batch", "a = f32[3,2,2]{2,1,0} parameter(0);"
     " b = f32[1,2,2]{2,1,0} parameter(1);"
     " r = f32[1,2,2]{2,1,0} triangular-solve(a, b), left_side=true, lower=true, transpose_a=NO_TRANSPOSE"),
    ("rng-bit-generator-expander", "expand-bit-generator", "state", "s = u32[4]{0} parameter(0);"
     " r = (u32[4]{0}, u32[3]{0}) rng-bit-generator(s), algorithm=rng_default"),
    ("rng-bit-generator-expander", "expand-bit-generator", "shape", "s = u64[2]{0} parameter(0);"
     " r = (u64[2]{0}, f32[3]{0}) rng-bit-generator(s), algorithm=rng_default"),
    ("rng-bit-generator-expander", "expand-bit-generator", "algorithm", "s = u64[3]{0} parameter(0);"
     " r = (u64[3]{0}, u32[3]{0}) rng-bit-generator(s), algorithm=rng_three_fry"),
    ("rng-expander", "expand-rng", "distribution", "a = s32[] constant(0); b = s32[] constant(1);"
     " r = s32[4]{0} rng(a, b), distribution=rng_normal"),
    ("scan_expander", "expand-scan", "side_effects", "body: x = f32[] parameter(0); c = f32[] parameter(1);"
     " n = f32[] rng(x, c), distribution=rng_uniform; o = (f32[], f32[]) tuple(n, x) & " + FOUR + "z = f32[] constant(0);"
     " r = (f32[4]{0}, f32[]) scan(a, z), dimensions={0}, num_carries=1, to_apply=body"),
    ("topk-decomposer", "decompose-topk", "element_type", "a = pred[4]{0} parameter(0); r = (pred[2]{0}, s32[2]{0}) topk(a), k=2, largest=true"),
    ("tree_reduction_rewriter", "tree-reduction", "initial_value", SUM + "a = f32[400]{0} parameter(0); z = f32[] parameter(1);"
     " r = f32[] reduce(a, z), dimensions={0}, to_apply=add"),
    ("tree_reduction_rewriter{except_library=true}", "tree-reduction", "library", SUM + "a = f32[40000]{0} parameter(0);"
     " z = f32[] constant(0); r = f32[] reduce(a, z), dimensions={0}, to_apply=add"),
    ("reduce-window-rewriter", "tree-scan", "initial_value", SUM + "a = f32[40]{0} parameter(0); z = f32[] parameter(1);"
     " r = f32[40]{0} reduce-window(a, z), window={size=40 pad=39_0}, to_apply=add"),
    ("select_and_scatter_expander", "expand-select-and-scatter", "selector", SUM + "pick: x = f32[] parameter(0); y = f32[] parameter(1);"
     " b = f32[2]{0} broadcast(x), dimensions={}; s = f32[1]{0} slice(b), slice={[1:2]}; t = f32[] reshape(s);"
     " o = pred[] compare(t, y), direction=GE & " + FOUR + "s = f32[3]{0} parameter(1); z = f32[] constant(0);"
     " r = f32[4]{0} select-and-scatter(a, s, z), window={size=2}, select=pick, scatter=add"),
    ("all-reduce-simplifier", "collective-of-one", "group_size", SUM + FOUR + f"r = f32[4]{{0}} all-reduce(a), {GROUPS}, to_apply=add"),
    ("all-reduce-simplifier", "reduce-of-replicated", "replicated", SUM + FOUR + f"r = f32[4]{{0}} all-reduce(a), {GROUPS}, to_apply=add"),
    ("all-reduce-folder", "fold-all-reduces", "groups", SUM + FOUR + f"x = f32[4]{{0}} all-reduce(a), {GROUPS}, to_apply=add;"
     f" r = f32[4]{{0}} all-reduce(x), {GROUPS}, to_apply=add"),
    ("all-reduce-reassociate", "join-all-reduces", "groups", SUM + FOUR + f"b = f32[4]{{0}} parameter(1);"
     f" x = f32[4]{{0}} all-reduce(a), {GROUPS}, to_apply=add; y = f32[4]{{0}} all-reduce(b), replica_groups={{{{0}},{{1}}}}, to_apply=add;"
     " r = f32[4]{0} add(x, y)"),
    ("all_to_all_decomposer", "decompose-all-to-all", "group_size", f"a = f32[3]{{0}} parameter(0); r = f32[3]{{0}} all-to-all(a), {GROUPS}, dimensions={{0}}"),
    ("dot-strength-reduction", "weak-dot", "too_large", "a = f32[4000,3000]{1,0} parameter(0); b = f32[3000]{0} parameter(1);"
     " r = f32[4000]{0} dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
]  # fmt: skip
"""Pass, rule, code of the refusal, and a module in which the rule's pattern is met."""


@pytest.mark.parametrize(("name", "rule", "code", "text"), REFUSED, ids=lambda one: one if len(one) < 50 else "")
def test_it_refuses_and_says_why(name: str, rule: str, code: str, text: str) -> None:
    module, ledger = module_of_case(text), Recorded()
    before = print_module(module)
    Registry().make(name).run(module, PassContext(ledger))
    assert (rule, code) in {(one.rule, one.code) for one in ledger.decisions if one.verdict == "refused"}
    assert print_module(module) == before


def guarded() -> set[str]:
    """Names of the rules, algsimp's left out, whose function can answer with a refusal, itself or by a helper."""
    places = {where.partition(":")[0] for where, _ in PASSES.values() if where.startswith("hloscope.core.passes.")}
    places |= {f"{expand.__name__}.{one.name}" for one in pkgutil.iter_modules(expand.__path__)}
    found: set[str] = set()
    for place in places:
        for one in vars(import_module(place)).values():
            if isinstance(one, Rule) and not one.match.__module__.startswith(rules.__name__) and _refuses(one.match):
                found.add(one.name)
    return found


def _refuses(function: object, depth: int = 1) -> bool:
    assert inspect.isfunction(function)
    if "Refusal" in function.__code__.co_names:
        return True
    used = [function.__globals__.get(name) for name in function.__code__.co_names]
    helpers = [one for one in used if inspect.isfunction(one) and one.__module__ == function.__module__]
    return depth > 0 and any(_refuses(one, depth - 1) for one in helpers)


def test_every_guard_has_a_case() -> None:
    names = guarded()
    assert len(names) > 20
    assert names == {rule for _, rule, _, _ in REFUSED}
