"""Expanders and small passes: a module that each changes (values kept, nothing left to do), and one that it leaves."""

# ruff: noqa: E501  (a table of texts)
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from hloscope.core.hlo.hashing import structural_hash
from hloscope.core.hlo.module import HloModule
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.flags import PassFlags
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.gate import Question
from hloscope.core.passes.invariants import findings
from hloscope.core.passes.pipelines import compile_module, transforms_pipeline
from hloscope.core.passes.registry import PASSES, Registry
from hloscope.core.runtime.compare import compare_all, join_rules, rules_for
from hloscope.core.runtime.evaluator import Array, Token, Value, evaluate
from hloscope.core.runtime.inputs import moderate_inputs
from hloscope.core.text import load_module, print_module


@dataclass(frozen=True)
class Case:
    name: str
    """The pass, as it is written."""
    changes: str
    """Computations before the entry's instructions (between ``&``), then those; `module_of_case` reads it."""
    gone: str
    """An opcode that the pass takes away; the empty text where it only changes form."""
    leaves: str
    """The same form, with nothing for the pass to do."""
    same: bool = True
    """Whether values can be compared: random numbers cannot."""


ADD = "add: x = f32[] parameter(0); y = f32[] parameter(1); o = f32[] add(x, y) & "
PLAIN = "a = f32[4]{0} parameter(0); r = f32[4]{0} negate(a)"
STATE = "s = u64[2]{0} parameter(0); "
LOOP = (
    "condition: s = (s32[], f32[4], f32[4]) parameter(0); i = s32[] get-tuple-element(s), index=0;"
    " n = s32[] constant(TRIPS); o = pred[] compare(i, n), direction=LT & "
    "body: s = (s32[], f32[4], f32[4]) parameter(0); i = s32[] get-tuple-element(s), index=0;"
    " x = f32[4] get-tuple-element(s), index=1; w = f32[4] get-tuple-element(s), index=2;"
    " c = s32[] constant(1); j = s32[] add(i, c); STEP; o = (s32[], f32[4], f32[4]) tuple(j, y, w) & "
    "a = f32[4] parameter(0); b = f32[4] parameter(1); z = s32[] constant(0);"
    " t = (s32[], f32[4], f32[4]) tuple(z, a, b);"
    " l = (s32[], f32[4], f32[4]) while(t), condition=condition, body=body;"
    " r = f32[4] get-tuple-element(l), index=1"
)


def loop(trips: int, step: str) -> str:
    return LOOP.replace("TRIPS", str(trips)).replace("STEP", step)


COND = (
    "one: x = (f32[4]) parameter(0); e = f32[4] get-tuple-element(x), index=0; BODY; o = (f32[4]) tuple(f) & "
    "two: x = (f32[4]) parameter(0); e = f32[4] get-tuple-element(x), index=0; f = f32[4] abs(e);"
    " o = (f32[4]) tuple(f) & p = pred[] PRED; a = f32[4] parameter(1); t = (f32[4]) tuple(a);"
    " c = (f32[4]) conditional(p, t, t), true_computation=one, false_computation=two;"
    " r = f32[4] get-tuple-element(c), index=0"
)
CHEAP, LOOPING = "f = f32[4] negate(e)", "f = f32[4] sort(e), dimensions={0}, to_apply=less"
LESS = "less: x = f32[] parameter(0); y = f32[] parameter(1); o = pred[] compare(x, y), direction=LT & "

CASES = [
    Case("rng-bit-generator-expander", STATE + "r = (u64[2]{0}, u32[5,3]{1,0}) rng-bit-generator(s),"
         " algorithm=rng_three_fry", "rng-bit-generator", PLAIN),
    Case("rng-bit-generator-expander", "s = u64[3]{0} parameter(0); r = (u64[3]{0}, s64[7]{0}) rng-bit-generator(s),"
         " algorithm=rng_philox", "rng-bit-generator", PLAIN),
    Case("rng-bit-generator-expander", STATE + "r = (u64[2]{0}, u8[9]{0}) rng-bit-generator(s), algorithm=rng_default",
         "rng-bit-generator", PLAIN),
    Case("rng-bit-generator-expander", STATE + "r = (u64[2]{0}, u64[4]{0}) rng-bit-generator(s),"
         " algorithm=rng_three_fry", "rng-bit-generator", PLAIN),
    Case("rng-expander", "a = f32[] constant(1); b = f32[] constant(3); r = f32[9]{0} rng(a, b),"
         " distribution=rng_uniform", "rng", PLAIN, same=False),
    Case("rng-expander", "a = f64[] constant(1); b = f64[] constant(3); r = f64[9]{0} rng(a, b),"
         " distribution=rng_normal", "rng", PLAIN, same=False),
    Case("rng-expander", "a = s32[] constant(-1); b = s32[] constant(3); r = s32[9]{0} rng(a, b),"
         " distribution=rng_uniform", "rng", PLAIN, same=False),
    Case("cholesky_expander", "a = f32[2,3,3]{2,1,0} parameter(0); i = f32[3,3]{1,0} constant({{9,0,0},{0,9,0},{0,0,9}});"
         " d = f32[2,3,3]{2,1,0} broadcast(i), dimensions={1,2}; t = f32[2,3,3]{2,1,0} transpose(a),"
         " dimensions={0,2,1}; u = f32[2,3,3]{2,1,0} add(a, t); x = f32[2,3,3]{2,1,0} add(u, d);"
         " r = f32[2,3,3]{2,1,0} cholesky(x), lower=true", "cholesky", PLAIN),
    Case("cholesky_expander", "a = f32[3,3]{1,0} constant({{1,2,3},{2,1,4},{3,4,1}});"
         " r = f32[3,3]{1,0} cholesky(a), lower=false", "cholesky", PLAIN),
    Case("triangular_solve_expander", "i = f32[3,3]{1,0} constant({{9,0,0},{0,9,0},{0,0,9}}); a = f32[3,3]{1,0}"
         " parameter(0); x = f32[3,3]{1,0} add(a, i); b = f32[3,2]{1,0} parameter(1); r = f32[3,2]{1,0}"
         " triangular-solve(x, b), left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE",
         "triangular-solve", PLAIN),
    Case("triangular_solve_expander", "i = f32[3,3]{1,0} constant({{9,0,0},{0,9,0},{0,0,9}}); a = f32[3,3]{1,0}"
         " parameter(0); x = f32[3,3]{1,0} add(a, i); b = f32[2,3]{1,0} parameter(1); r = f32[2,3]{1,0}"
         " triangular-solve(x, b), left_side=false, lower=true, unit_diagonal=true, transpose_a=TRANSPOSE",
         "triangular-solve", PLAIN),
    Case("qr_expander", "a = f32[2,4,3]{2,1,0} parameter(0); r = (f32[2,4,3]{2,1,0}, f32[2,3]{1,0}) custom-call(a),"
         ' custom_call_target="Qr"', "custom-call", PLAIN),
    Case("qr_expander", "a = f32[3,4]{1,0} parameter(0); b = f32[3,4]{1,0} parameter(1); x = c64[3,4]{1,0} complex(a, b);"
         ' r = (c64[3,4]{1,0}, c64[3]{0}) custom-call(x), custom_call_target="Qr"', "custom-call", PLAIN),
    Case("qr_expander", "a = f32[2,4,3]{2,1,0} parameter(0); q = (f32[2,4,3]{2,1,0}, f32[2,3]{1,0}) custom-call(a),"
         ' custom_call_target="Qr"; v = f32[2,4,3]{2,1,0} get-tuple-element(q), index=0; t = f32[2,3]{1,0}'
         " get-tuple-element(q), index=1; r = f32[2,4,3]{2,1,0} custom-call(v, t),"
         ' custom_call_target="ProductOfElementaryHouseholderReflectors"', "custom-call",
         ' a = f32[3]{0} parameter(0); r = f32[3]{0} custom-call(a), custom_call_target="Other"'),
    Case("eigh_expander", "a = f32[2,5,5]{2,1,0} parameter(0); e = (f32[2,5,5]{2,1,0}, f32[2,5]{1,0}) custom-call(a),"
         ' custom_call_target="Eigh", backend_config="1,1,100,1e-6"; v = f32[2,5,5]{2,1,0} get-tuple-element(e), index=0;'
         " w = f32[2,5]{1,0} get-tuple-element(e), index=1; s = f32[2,5,5]{2,1,0} broadcast(w), dimensions={0,2};"
         " m = f32[2,5,5]{2,1,0} multiply(v, s); x = f32[2,5,5]{2,1,0} dot(m, v), lhs_batch_dims={0}, rhs_batch_dims={0},"
         " lhs_contracting_dims={2}, rhs_contracting_dims={2}; r = (f32[2,5,5]{2,1,0}, f32[2,5]{1,0}) tuple(x, w)",
         "custom-call", PLAIN),
    Case("eigh_expander", "a = f32[4,4]{1,0} parameter(0); b = f32[4,4]{1,0} parameter(1); c = c64[4,4]{1,0}"
         ' complex(a, b); e = (c64[4,4]{1,0}, f32[4]{0}) custom-call(c), custom_call_target="Eigh",'
         ' backend_config="0,1,100,1e-6"; r = f32[4]{0} get-tuple-element(e), index=1', "custom-call", PLAIN),
    Case("bitcast_dtypes_expander", "a = f32[3,2]{1,0} parameter(0); r = bf16[3,2,2]{2,1,0} bitcast-convert(a)", "",
         "a = f32[3]{0} parameter(0); r = s32[3]{0} bitcast-convert(a)"),
    Case("bitcast_dtypes_expander", "a = s8[3,4]{1,0} parameter(0); r = f32[3]{0} bitcast-convert(a)", "", PLAIN),
    Case("bitcast_dtypes_expander", "a = u8[4]{0} parameter(0); r = u32[] bitcast-convert(a)", "", PLAIN),
    Case("stochastic_convert_decomposer", "a = f32[9]{0} constant({1.25, -1.25, 2.5, -2.5, 200, -200, nan, 0.999, -0.001});"
         " b = u32[9]{0} constant({1073741823, 1073741824, 2147483647, 2147483648, 1, 2, 3, 4, 4294967295});"
         " r = s8[9]{0} stochastic-convert(a, b)", "stochastic-convert", PLAIN),
    Case("stochastic_convert_decomposer", "a = f16[3]{0} constant({1.25, -7.5, 3.75}); b = u16[3]{0} parameter(0);"
         " r = s16[3]{0} stochastic-convert(a, b)", "stochastic-convert", PLAIN),
    Case("dynamic_padder", ADD + "a = f32[4,3]{1,0} parameter(0); n = s32[] constant(2); d = f32[<=4,3]{1,0}"
         " set-dimension-size(a, n), dimensions={0}; m = f32[<=4,3]{1,0} multiply(d, d); i = f32[] constant(0);"
         " s = f32[3]{0} reduce(m, i), dimensions={0}, to_apply=add; t = f32[3,<=4]{1,0} transpose(m), dimensions={1,0};"
         " p = f32[3,3]{1,0} dot(t, m), lhs_contracting_dims={1}, rhs_contracting_dims={0};"
         " g = s32[] get-dimension-size(m), dimensions={0}; e = f32[<=4,3]{1,0} negate(m);"
         " r = (f32[3]{0}, f32[3,3]{1,0}, s32[], f32[<=4,3]{1,0}) tuple(s, p, g, e)", "set-dimension-size", PLAIN),
    Case("dynamic_padder", "a = f32[4]{0} parameter(0); n = s32[] constant(3); d = f32[<=4]{0} set-dimension-size(a, n),"
         " dimensions={0}; b = f32[2,<=4]{1,0} broadcast(d), dimensions={1}; r = f32[2,<=4]{1,0} exponential(b)",
         "set-dimension-size", "a = f32[4]{0} parameter(0); n = s32[] constant(3); d = f32[<=4]{0}"
         " set-dimension-size(a, n), dimensions={0}; r = f32[<=4]{0} reverse(d), dimensions={0}"),
    Case("dynamic_padder", "a = f32[<=4]{0} parameter(0); b = f32[<=4]{0} add(a, a); g = s32[] get-dimension-size(b),"
         " dimensions={0}; h = s32[] negate(g); r = (f32[<=4]{0}, s32[]) tuple(b, h)", "get-dimension-size", PLAIN),
    Case("dynamic_padder", ADD + "a = f32[4,3]{1,0} parameter(0); n = s32[] constant(2); d = f32[<=4,3]{1,0}"
         " set-dimension-size(a, n), dimensions={0}; i = f32[] constant(0); s = f32[3]{0} reduce(d, i), dimensions={0},"
         " to_apply=add; r = (f32[3]{0}) tuple(s)", "set-dimension-size", PLAIN),
    Case("scan_expander", "body: x = f32[3]{0} parameter(0); c = f32[3]{0} parameter(1); s = f32[3]{0} add(x, c);"
         " m = f32[3]{0} multiply(s, x); o = (f32[3]{0}, f32[3]{0}) tuple(m, s) & a = f32[4,3]{1,0} parameter(0);"
         " b = f32[3]{0} parameter(1); r = (f32[4,3]{1,0}, f32[3]{0}) scan(a, b), dimensions={0}, is_reverse=true,"
         " num_carries=1, to_apply=body", "scan", PLAIN),
    Case("scan_expander", "body: x = f32[3]{0} parameter(0); c = f32[3]{0} parameter(1); s = f32[3]{0} add(x, c);"
         " o = (f32[3]{0}, f32[3]{0}) tuple(s, s) & a = f32[3,1]{1,0} parameter(0); b = f32[3]{0} parameter(1);"
         " r = (f32[3,1]{1,0}, f32[3]{0}) scan(a, b), dimensions={1}, num_carries=1, to_apply=body", "scan", PLAIN),
    Case("logistic-expander", "a = f32[4]{0} parameter(0); r = f32[4]{0} logistic(a)", "logistic", PLAIN),
    Case("comparison-expander", "a = f32[4]{0} constant({nan, -0, 0, -1}); b = f32[4]{0} constant({1, 0, -0, nan});"
         " r = pred[4]{0} compare(a, b), direction=LT, type=TOTALORDER", "",
         "a = f32[4]{0} parameter(0); r = pred[4]{0} compare(a, a), direction=LT"),
    Case("batchnorm_expander", "x = f32[4,3]{1,0} parameter(0); s = f32[3]{0} parameter(1); o = f32[3]{0} parameter(2);"
         " r = (f32[4,3]{1,0}, f32[3]{0}, f32[3]{0}) batch-norm-training(x, s, o), epsilon=0.01, feature_index=1",
         "batch-norm-training", PLAIN),
    Case("batchnorm_expander", "x = f32[4,3]{1,0} parameter(0); s = f32[3]{0} parameter(1); m = f32[3]{0} parameter(2);"
         " v = f32[3]{0} parameter(3); w = f32[3]{0} abs(v); r = f32[4,3]{1,0} batch-norm-inference(x, s, m, m, w),"
         " epsilon=0.01, feature_index=1", "batch-norm-inference", PLAIN),
    Case("batchnorm_expander", "x = f32[4,3]{1,0} parameter(0); s = f32[3]{0} parameter(1); m = f32[3]{0} parameter(2);"
         " v = f32[3]{0} parameter(3); w = f32[3]{0} abs(v); g = f32[4,3]{1,0} parameter(4);"
         " r = (f32[4,3]{1,0}, f32[3]{0}, f32[3]{0}) batch-norm-grad(x, s, m, w, g), epsilon=0.01, feature_index=1",
         "batch-norm-grad", PLAIN),
    Case("map-inline", ADD + "a = f32[4]{0} parameter(0); r = f32[4]{0} map(a, a), dimensions={0}, to_apply=add", "map",
         PLAIN),
    Case("topk-decomposer", "a = f32[3,8]{1,0} parameter(0); r = (f32[3,2]{1,0}, s32[3,2]{1,0}) topk(a), k=2,"
         " largest=true", "topk", PLAIN),
    Case("topk-rewriter", "gt: a = f32[] parameter(0); b = f32[] parameter(1); i = s32[] parameter(2);"
         " j = s32[] parameter(3); o = pred[] compare(a, b), direction=GT, type=TOTALORDER & x = f32[3,8]{1,0}"
         " parameter(0); n = s32[3,8]{1,0} iota(), iota_dimension=1; s = (f32[3,8]{1,0}, s32[3,8]{1,0}) sort(x, n),"
         " dimensions={1}, is_stable=true, to_apply=gt; v = f32[3,8]{1,0} get-tuple-element(s), index=0;"
         " w = s32[3,8]{1,0} get-tuple-element(s), index=1; c = f32[3,2]{1,0} slice(v), slice={[0:3], [0:2]};"
         " d = s32[3,2]{1,0} slice(w), slice={[0:3], [0:2]}; r = (f32[3,2]{1,0}, s32[3,2]{1,0}) tuple(c, d)", "",
         LESS + "x = f32[8]{0} parameter(0); s = f32[8]{0} sort(x), dimensions={0}, to_apply=less;"
         " r = f32[2]{0} slice(s), slice={[0:2]}"),
    Case("dot_decomposer", "a = f32[2,3,4]{2,1,0} parameter(0); b = f32[4,3,5]{2,1,0} parameter(1);"
         " r = f32[2,5]{1,0} dot(a, b), lhs_contracting_dims={1,2}, rhs_contracting_dims={1,0}", "",
         "a = f32[2,3]{1,0} parameter(0); b = f32[3,5]{1,0} parameter(1); r = f32[2,5]{1,0} dot(a, b),"
         " lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    Case("batch-dot-simplification", "a = f32[1,2,3]{2,1,0} parameter(0); b = f32[1,3,5]{2,1,0} parameter(1);"
         " r = f32[1,2,5]{2,1,0} dot(a, b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0},"
         " rhs_contracting_dims={1}", "", PLAIN),
    Case("gemv-rewriter", "a = f32[2,3]{1,0} parameter(0); b = f32[3]{0} parameter(1); r = f32[2]{0} dot(a, b),"
         " lhs_contracting_dims={1}, rhs_contracting_dims={0}", "", PLAIN),
    Case("result_caster", "a = f32[2,3]{1,0} parameter(0); b = f32[3,2]{1,0} parameter(1); r = f16[2,2]{1,0} dot(a, b),"
         " lhs_contracting_dims={1}, rhs_contracting_dims={0}", "", PLAIN),
    Case("operand_upcaster", "a = s8[2,3]{1,0} parameter(0); b = s8[3,2]{1,0} parameter(1); r = s32[2,2]{1,0} dot(a, b),"
         " lhs_contracting_dims={1}, rhs_contracting_dims={0}", "", PLAIN),
    Case("change-op-data-type", "a = f16[2,3]{1,0} parameter(0); b = f16[3,2]{1,0} parameter(1); r = f16[2,2]{1,0}"
         " dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", "", PLAIN),
    Case("transpose-folding", "a = f32[3,2]{1,0} parameter(0); b = f32[3,5]{1,0} parameter(1); t = f32[2,3]{1,0}"
         " transpose(a), dimensions={1,0}; r = f32[2,5]{1,0} dot(t, b), lhs_contracting_dims={1},"
         " rhs_contracting_dims={0}", "transpose", PLAIN),
    Case("dot-merger", "a = f32[2,3]{1,0} parameter(0); b = f32[3,5]{1,0} parameter(1); c = f32[3,4]{1,0} parameter(2);"
         " x = f32[2,5]{1,0} dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}; y = f32[2,4]{1,0} dot(a, c),"
         " lhs_contracting_dims={1}, rhs_contracting_dims={0}; r = (f32[2,5]{1,0}, f32[2,4]{1,0}) tuple(x, y)", "",
         "a = f32[3,3]{1,0} parameter(0); x = f32[3,3]{1,0} dot(a, a), lhs_contracting_dims={1},"
         " rhs_contracting_dims={0}; r = f32[3,3]{1,0} dot(x, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
    Case("dot-strength-reduction", "a = f32[2,3]{1,0} parameter(0); b = f32[3]{0} parameter(1); r = f32[2]{0} dot(a, b),"
         " lhs_contracting_dims={1}, rhs_contracting_dims={0}", "dot", PLAIN),
    Case("gather_simplifier", "a = f32[5,4]{1,0} parameter(0); i = s32[2,3]{1,0} constant({{0,1,9},{4,-1,2}});"
         " r = f32[2,4,3]{2,1,0} gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},"
         " index_vector_dim=2, slice_sizes={1,4}", "", PLAIN),
    Case("gather_expander", "a = f32[5,4]{1,0} parameter(0); i = s32[1,2]{1,0} constant({{3,1}}); r = f32[1,2]{1,0}"
         " gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0,1}, index_vector_dim=1,"
         " slice_sizes={1,2}", "gather",
         "a = f32[5,4]{1,0} parameter(0); i = s32[2,1]{1,0} constant({{3},{1}}); r = f32[2,4]{1,0} gather(a, i),"
         " offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}"),
    Case("gather_expander{all=true}", "a = f32[5,4]{1,0} parameter(0); i = s32[2,3]{1,0} constant({{0,1,9},{4,-1,2}});"
         " r = f32[2,4,3]{2,1,0} gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},"
         " index_vector_dim=2, slice_sizes={1,4}", "gather", PLAIN),
    Case("scatter_simplifier", ADD + "a = f32[5,4]{1,0} parameter(0); i = s32[2,3]{1,0} constant({{0,1,9},{4,-1,2}});"
         " u = f32[2,4,3]{2,1,0} parameter(1); r = f32[5,4]{1,0} scatter(a, i, u), update_window_dims={1},"
         " inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=2, to_apply=add", "", PLAIN),
    Case("scatter_expander", ADD + "a = f32[5,4]{1,0} parameter(0); i = s32[1]{0} constant({2}); u = f32[4]{0}"
         " parameter(1); r = f32[5,4]{1,0} scatter(a, i, u), update_window_dims={0}, inserted_window_dims={0},"
         " scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=add", "scatter", PLAIN),
    Case("scatter_expander{all=true}", ADD + "a = f32[5,4]{1,0} parameter(0); i = s32[2,3]{1,0}"
         " constant({{0,1,9},{4,-1,2}}); u = f32[2,4,3]{2,1,0} parameter(1); r = f32[5,4]{1,0} scatter(a, i, u),"
         " update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=2,"
         " to_apply=add", "scatter", PLAIN),
    Case("batched_gather_scatter_normalizer", "a = f32[2,5]{1,0} parameter(0); i = s32[2,3,1]{2,1,0}"
         " constant({{{0},{9},{1}},{{4},{-1},{2}}}); r = f32[2,3]{1,0} gather(a, i), offset_dims={},"
         " collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0}, start_indices_batching_dims={0},"
         " index_vector_dim=2, slice_sizes={1,1}", "", PLAIN),
    Case("dynamic-index-splitter", "a = f32[5,4]{1,0} parameter(0); i = s32[2]{0} constant({3, 1}); r = f32[2,2]{1,0}"
         " dynamic-slice(a, i), dynamic_slice_sizes={2,2}", "", PLAIN),
    Case("tree_reduction_rewriter", ADD + "a = f32[3,70]{1,0} parameter(0); z = f32[] constant(0); r = f32[3]{0}"
         " reduce(a, z), dimensions={1}, to_apply=add", "",
         ADD + "a = f32[3,70]{1,0} parameter(0); z = f32[] constant(1); r = f32[3]{0} reduce(a, z), dimensions={1},"
         " to_apply=add"),
    Case("reduce-window-rewriter", ADD + "a = f32[40,3]{1,0} parameter(0); z = f32[] constant(0); r = f32[40,3]{1,0}"
         " reduce-window(a, z), window={size=40x1 pad=39_0x0_0}, to_apply=add", "",
         ADD + "a = f32[16]{0} parameter(0); z = f32[] constant(0); r = f32[16]{0} reduce-window(a, z),"
         " window={size=16 pad=15_0}, to_apply=add"),
    Case("reduce-window-rewriter", ADD + "a = f32[40]{0} parameter(0); z = f32[] constant(0); r = f32[41]{0}"
         " reduce-window(a, z), window={size=40 pad=0_40}, to_apply=add", "", PLAIN),
    Case("reduce-window-resizer", ADD + "a = f32[16]{0} parameter(0); z = f32[] constant(0); r = f32[15]{0}"
         " reduce-window(a, z), window={size=2}, to_apply=add", "", PLAIN),
    Case("select_and_scatter_expander", ADD + "ge: x = f32[] parameter(0); y = f32[] parameter(1); o = pred[]"
         " compare(x, y), direction=GE & a = f32[4,6]{1,0} parameter(0); s = f32[2,3]{1,0} parameter(1); z = f32[]"
         " constant(0); r = f32[4,6]{1,0} select-and-scatter(a, s, z), window={size=2x2 stride=2x2}, select=ge,"
         " scatter=add", "select-and-scatter", PLAIN),
    Case("convolution-canonicalization", "x = f32[1,2,5]{2,1,0} parameter(0); k = f32[4,2,3]{2,1,0} parameter(1);"
         " r = f32[1,4,3]{2,1,0} convolution(x, k), window={size=3}, dim_labels=bf0_oi0->bf0", "", PLAIN),
    Case("convolution-group-converter", "x = f64[1,5,4]{2,1,0} parameter(0); k = f64[3,2,6]{2,1,0} parameter(1);"
         " r = f64[1,3,6]{2,1,0} convolution(x, k), window={size=3}, dim_labels=b0f_0io->b0f, feature_group_count=2", "",
         "x = f32[1,5,4]{2,1,0} parameter(0); k = f32[3,2,6]{2,1,0} parameter(1); r = f32[1,3,6]{2,1,0} convolution(x, k),"
         " window={size=3}, dim_labels=b0f_0io->b0f, feature_group_count=2"),
    Case("convolution-group-converter", "x = f32[4,5,3]{2,1,0} parameter(0); k = f32[3,3,6]{2,1,0} parameter(1);"
         " r = f32[2,3,6]{2,1,0} convolution(x, k), window={size=3}, dim_labels=b0f_0io->b0f, batch_group_count=2", "",
         PLAIN),
    Case("float-normalization-bf16", "a = bf16[4]{0} parameter(0); x = bf16[4]{0} exponential(a);"
         " r = bf16[4]{0} add(x, a)", "", PLAIN),
    Case("float-normalization-bf16", "add: x = bf16[] parameter(0); y = bf16[] parameter(1); o = bf16[] add(x, y) &"
         " a = bf16[4,3]{1,0} parameter(0); z = bf16[] constant(0); r = bf16[4]{0} reduce(a, z), dimensions={1},"
         " to_apply=add", "", PLAIN),
    Case("float-normalization-f8e5m2", "a = f8e5m2[4]{0} parameter(0); r = f8e5m2[4]{0} multiply(a, a)", "", PLAIN),
    Case("zero_sized_hlo_elimination", "a = f32[0,3]{1,0} parameter(0); r = f32[0,3]{1,0} negate(a)", "negate", PLAIN),
    Case("simplify-sorts", "lt: a = f32[] parameter(0); b = f32[] parameter(1); i = s32[] parameter(2);"
         " j = s32[] parameter(3); o = pred[] compare(a, b), direction=LT & x = f32[8]{0} parameter(0); n = s32[8]{0}"
         " iota(), iota_dimension=0; s = (f32[8]{0}, s32[8]{0}) sort(x, n), dimensions={0}, to_apply=lt;"
         " r = f32[8]{0} get-tuple-element(s), index=0", "", PLAIN),
    Case("dynamic-dimension-simplifier", "s = f32[] parameter(0); x = f32[1]{0} broadcast(s), dimensions={};"
         " r = f32[] reshape(x)", "broadcast", PLAIN),
    Case("computation-deduplicator", ADD + "plus: x = f32[] parameter(0); y = f32[] parameter(1); o = f32[] add(x, y) &"
         " a = f32[4,3]{1,0} parameter(0); z = f32[] constant(0); v = f32[4]{0} reduce(a, z), dimensions={1},"
         " to_apply=add; w = f32[4]{0} reduce(a, z), dimensions={1}, to_apply=plus; r = f32[4]{0} add(v, w)", "",
         PLAIN),
    Case("convert-mover", "a = f16[4]{0} parameter(0); b = f16[4]{0} parameter(1); x = f32[4]{0} convert(a);"
         " y = f32[4]{0} convert(b); r = f32[8]{0} concatenate(x, y), dimensions={0}", "",
         "a = f32[4]{0} parameter(0); x = f64[4]{0} convert(a); n = f64[4]{0} negate(x); r = f64[4]{0} add(x, n)"),
    Case("simplify-fp-conversions", "a = f16[4]{0} parameter(0); x = f32[4]{0} convert(a); r = f64[4]{0} convert(x)", "",
         "a = f64[4]{0} parameter(0); x = f16[4]{0} convert(a); r = f32[4]{0} convert(x)"),
    Case("slice-sinker", "a = f32[4]{0} parameter(0); b = f32[4]{0} parameter(1); c = f32[2]{0} slice(a), slice={[0:2]};"
         " d = f32[2]{0} slice(b), slice={[0:2]}; e = f32[2]{0} slice(a), slice={[2:4]}; f = f32[2]{0} slice(b),"
         " slice={[2:4]}; x = f32[2]{0} add(c, d); y = f32[2]{0} add(e, f); r = (f32[2]{0}, f32[2]{0}) tuple(x, y)", "",
         "a = f32[4]{0} parameter(0); b = f32[4]{0} parameter(1); c = f32[2]{0} slice(a), slice={[0:2]};"
         " d = f32[2]{0} slice(b), slice={[0:2]}; r = f32[2]{0} add(c, d)"),
    Case("reshape-mover", "a = f32[4]{0} parameter(0); b = f32[4]{0} parameter(1); x = f32[2,2]{1,0} reshape(a);"
         " y = f32[2,2]{1,0} reshape(b); r = f32[2,2]{1,0} add(x, y)", "",
         "a = f32[4]{0} parameter(0); b = f32[2,2]{1,0} parameter(1); x = f32[2,2]{1,0} reshape(a);"
         " r = f32[2,2]{1,0} add(x, b)"),
    Case("simplify-while-loops", loop(1, "y = f32[4] add(x, w)"), "while", loop(3, "y = f32[4] add(x, w)")),
    Case("simplify-while-loops", loop(0, "y = f32[4] add(x, w)"), "while", loop(3, "y = f32[4] add(x, w)")),
    Case("simplify-while-loops", loop(0, "y = f32[4] add(x, w)").replace("condition: s = (s32[], f32[4], f32[4]) parameter(0);",
         "condition: s = (s32[], f32[4], f32[4]) parameter(0); q = f32[4] get-tuple-element(s), index=1;"), "while", PLAIN),
    Case("simplify-while-loops", loop(3, "y = f32[4] negate(x)"), "", loop(3, "y = f32[4] add(x, w)")),
    Case("simplify-while-loops", loop(3, "d = f32[4] negate(x)").replace("tuple(j, y, w)", "tuple(j, x, w)").replace("tuple(z, a, b)", "tuple(z, a, a)"),
         "while", loop(3, "y = f32[4] add(x, w)")),
    Case("while_loop_unroller", loop(3, "y = f32[4] add(x, w)"), "while", loop(9, "y = f32[4] add(x, w)")),
    Case("while-loop-invariant-code-motion", loop(3, "v = f32[4] exponential(w); y = f32[4] add(x, v)"), "",
         loop(3, "v = f32[4] exponential(x); y = f32[4] add(v, w)")),
    Case("while-loop-trip-count-annotator", loop(3, "y = f32[4] add(x, w)"), "", PLAIN),
    Case("while-loop-constant-sinking", loop(3, "y = f32[4] add(x, w)").replace(
         "b = f32[4] parameter(1)", "b = f32[4] constant({1, 2, 3, 4})"), "", loop(3, "y = f32[4] add(x, w)")),
    Case("simplify-conditional", COND.replace("BODY", CHEAP).replace("PRED", "parameter(0)"), "conditional", PLAIN),
    Case("simplify-conditional", LESS + COND.replace("BODY", LOOPING).replace("PRED", "constant(false)").replace(
         "a = f32[4] parameter(1)", "a = f32[4] parameter(0)"), "conditional",
         LESS + COND.replace("BODY", LOOPING).replace("PRED", "parameter(0)")),
    Case("conditional-canonicalizer", "one: x = f32[4] parameter(0); o = f32[4] negate(x) & two: x = f32[4] parameter(0);"
         " o = f32[4] abs(x) & p = pred[] parameter(0); a = f32[4] parameter(1); r = f32[4] conditional(p, a, a),"
         " true_computation=one, false_computation=two", "", COND.replace("BODY", CHEAP).replace("PRED", "parameter(0)")),
    Case("conditional-to-select", "one: x = f32[] parameter(0); o = f32[] negate(x) & two: x = f32[] parameter(0);"
         " o = f32[] abs(x) & each: x = f32[] parameter(0); z = f32[] constant(0); p = pred[] compare(x, z),"
         " direction=GT; o = f32[] conditional(p, x, x), true_computation=one, false_computation=two & a = f32[4]"
         " parameter(0); r = f32[4] map(a), dimensions={0}, to_apply=each", "conditional",
         COND.replace("BODY", CHEAP).replace("PRED", "parameter(0)")),
    Case("all-reduce-simplifier", ADD + "a = s32[4]{0} constant({1, 2, 3, 4}); r = s32[4]{0} all-reduce(a),"
         " replica_groups={{0,1}}, to_apply=add", "all-reduce", ADD + "a = s32[4]{0} parameter(0); r = s32[4]{0}"
         " all-reduce(a), replica_groups={{0,1}}, to_apply=add", same=False),
    Case("strip-memory-placement-annotations", "a = f32[4]{0} parameter(0); x = f32[4]{0} custom-call(a),"
         ' custom_call_target="MoveToHost"; y = f32[4]{0} negate(x); r = f32[4]{0} custom-call(y),'
         ' custom_call_target="annotate_device_placement"', "custom-call", "a = f32[4]{0} parameter(0);"
         ' r = f32[4]{0} custom-call(a), custom_call_target="Other"'),
    Case("control-dep-rewriter", "a = f32[4]{0} parameter(0); x = f32[4]{0} exponential(a); y = f32[4]{0} cosine(a);"
         ' c = () custom-call(x, y), custom_call_target="control_dep"; r = f32[4]{0} add(x, y)', "custom-call",
         "a = f32[4]{0} parameter(0); x = f32[4]{0} exponential(a); y = f32[4]{0} cosine(x);"
         ' c = () custom-call(y, x), custom_call_target="control_dep"; r = f32[4]{0} add(x, y)'),
    Case("reshape-mover", "a = f32[6]{0} parameter(0); x = f32[2,3]{1,0} reshape(a); l = f32[] constant(-1);"
         " h = f32[] constant(1); r = f32[2,3]{1,0} clamp(l, x, h)", "", "a = f32[2,3]{1,0} parameter(0);"
         " l = f32[] constant(-1); h = f32[] constant(1); r = f32[2,3]{1,0} clamp(l, a, h)"),
    Case("all-reduce-folder", ADD + "a = f32[4]{0} parameter(0); x = f32[4]{0} all-reduce(a), replica_groups={{0,1},{2,3}},"
         " to_apply=add; r = f32[4]{0} all-reduce(x), replica_groups={{0,2},{1,3}}, to_apply=add", "",
         ADD + "a = f32[4]{0} parameter(0); x = f32[4]{0} all-reduce(a), replica_groups={{0,1},{2,3}}, to_apply=add;"
         " r = f32[4]{0} all-reduce(x), replica_groups={{0,1},{2,3}}, to_apply=add", same=False),
    Case("all_to_all_decomposer", "a = f32[4,2]{1,0} parameter(0); r = f32[4,2]{1,0} all-to-all(a), dimensions={0},"
         " replica_groups={{0,1}}", "", "a = f32[4]{0} parameter(0); b = f32[4]{0} parameter(1);"
         " r = (f32[4]{0}, f32[4]{0}) all-to-all(a, b), replica_groups={{0,1}}", same=False),
    Case("transpose-folding{rows_and_columns_only=true}", "a = f32[64,64]{1,0} parameter(0); b = f32[64,64]{1,0}"
         " parameter(1); t = f32[64,64]{1,0} transpose(a), dimensions={1,0}; r = f32[64,64]{1,0} dot(t, b),"
         " lhs_contracting_dims={1}, rhs_contracting_dims={0}", "transpose",
         "a = f32[2,3,4]{2,1,0} parameter(0); b = f32[4,2,3]{2,1,0} parameter(1); t = f32[4,2,3]{2,1,0} transpose(a),"
         " dimensions={2,0,1}; r = f32[2]{0} dot(t, b), lhs_batch_dims={1}, rhs_batch_dims={1},"
         " lhs_contracting_dims={0,2}, rhs_contracting_dims={0,2}"),
    Case("batched_gather_scatter_normalizer", ADD + "a = f32[2,5]{1,0} parameter(0); i = s32[2,3,1]{2,1,0} parameter(1);"
         " u = f32[2,3]{1,0} parameter(2); r = f32[2,5]{1,0} scatter(a, i, u), update_window_dims={},"
         " inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, input_batching_dims={0},"
         " scatter_indices_batching_dims={0}, index_vector_dim=2, to_apply=add", "",
         ADD + "a = f32[5]{0} parameter(0); i = s32[3,1]{1,0} parameter(1); u = f32[3]{0} parameter(2); r = f32[5]{0}"
         " scatter(a, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0},"
         " index_vector_dim=1, to_apply=add"),
    Case("dynamic-dimension-simplifier", "a = s32[1]{0} parameter(0); b = s32[1]{0} parameter(1); x = s32[2]{0}"
         " concatenate(a, b), dimensions={0}; y = s32[3]{0} concatenate(x, a), dimensions={0}; z = s32[1]{0} slice(y),"
         " slice={[1:2]}; m = s32[1,1]{1,0} reshape(z); n = s32[1]{0} reshape(m); v = s32[1]{0} convert(n);"
         " r = (s32[1]{0}, s32[3]{0}) tuple(v, y)", "slice",
         "a = s32[2]{0} parameter(0); b = s32[1]{0} parameter(1); x = s32[3]{0} concatenate(a, b), dimensions={0};"
         " y = s32[2]{0} slice(x), slice={[1:3]}; m = s32[1,2]{1,0} reshape(y); r = f32[1,2]{1,0} convert(m)"),
    Case("convert-mover", "a = f32[2,3]{1,0} parameter(0); t = f32[3,2]{1,0} transpose(a), dimensions={1,0};"
         " r = f16[3,2]{1,0} convert(t)", "", "a = f16[2,3]{1,0} parameter(0); t = f16[3,2]{1,0} transpose(a),"
         " dimensions={1,0}; r = f32[3,2]{1,0} convert(t)"),
    Case("all-reduce-simplifier", ADD + "a = f32[4]{0} parameter(0); r = f32[4]{0} all-reduce(a), replica_groups={{0}},"
         " to_apply=add", "all-reduce", PLAIN),
    Case("all-gather-simplifier", "a = f32[4]{0} parameter(0); r = f32[4]{0} all-gather(a), replica_groups={{0}},"
         " dimensions={0}", "all-gather", PLAIN),
    Case("all-reduce-reassociate", ADD + "a = f32[4]{0} parameter(0); b = f32[4]{0} parameter(1); x = f32[4]{0}"
         " all-reduce(a), replica_groups={{0}}, to_apply=add; y = f32[4]{0} all-reduce(b), replica_groups={{0}},"
         " to_apply=add; r = f32[4]{0} add(x, y)", "", PLAIN),
    Case("all-reduce-promotion", "add: x = bf16[] parameter(0); y = bf16[] parameter(1); o = bf16[] add(x, y) &"
         " a = bf16[4]{0} parameter(0); r = bf16[4]{0} all-reduce(a), replica_groups={{0}}, to_apply=add", "", PLAIN),
    Case("cse_barrier_expander", "a = f32[4]{0} parameter(0); b = f32[4]{0} opt-barrier(a); r = f32[4]{0} negate(b)",
         "opt-barrier", PLAIN),
    Case("sharding-remover", 'a = f32[4]{0} parameter(0); r = f32[4]{0} custom-call(a), custom_call_target="Sharding",'
         " sharding={replicated}", "custom-call", PLAIN),
]  # fmt: skip


def _computation(prefix: str, name: str, text: str) -> str:
    lines = [line.strip() for line in text.split(";")]
    lines[-1] = f"ROOT {lines[-1]}"
    return f"{prefix}{name} {{\n  " + "\n  ".join(lines) + "\n}\n\n"


def module_of_case(text: str) -> HloModule:
    """A module from a case's text."""
    *others, entry = text.split(" & ")
    parts = [_computation("", *(word.strip() for word in one.split(":", 1))) for one in others]
    read = load_module("HloModule m\n\n" + "".join(parts) + _computation("ENTRY ", "main", entry))
    return load_module(print_module(read))


def _run(name: str, module: HloModule, fuel: int | None = None) -> bool:
    registry = Registry()
    flags = PassFlags(
        xla_unsupported_crash_on_hlo_pass_silent_hlo_change=True, xla_unsupported_crash_on_hlo_pass_noop_change=True
    )
    ctx = PassContext(fuel=None if fuel is None else Fuel({name.partition("{")[0]: fuel}), flags=flags)
    changed = compile_module(module, transforms_pipeline([registry.make(name)], registry), ctx, registry).changed
    assert list(findings(module)) == []
    return changed


def _arrays(module: HloModule, args: list[Value]) -> list[Array]:
    return [np.asarray(one) for one in evaluate(module, args) if not isinstance(one, Token)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_changes_and_keeps_the_value(case: Case) -> None:
    before, module = module_of_case(case.changes), module_of_case(case.changes)
    assert _run(case.name, module)
    if case.gone:
        assert case.gone not in {one.opcode for one in module.instructions()}
    again = load_module(print_module(module))
    assert structural_hash(again) == structural_hash(module)
    if case.same:
        args = moderate_inputs(before.entry, 5)
        pairs = compare_all(
            _arrays(before, args), _arrays(module, args), join_rules(rules_for(before), rules_for(module))
        )
        assert all(pair.within for pair in pairs), [str(pair) for pair in pairs]
    assert not _run(case.name, module), "a second run has nothing to do"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_leaves_the_rest(case: Case) -> None:
    module = module_of_case(case.leaves)
    text = print_module(module)
    assert not _run(case.name, module)
    assert print_module(module) == text


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_fuel_nothing_happens(case: Case) -> None:
    module = module_of_case(case.changes)
    text = print_module(module)
    assert not _run(case.name, module, fuel=0)
    assert print_module(module) == text


class _Fired:
    """A handler that only watches."""

    def __init__(self) -> None:
        self.rules: set[str] = set()

    def decide(self, question: Question) -> None:
        """Notes the rule."""
        self.rules.add(question.rule)


def test_every_rule_of_every_pass_fires_in_a_case() -> None:
    # algsimp's rules have a table of their own.
    registry, watched = Registry(), _Fired()
    passes = [registry.make(name) for name in PASSES]
    missing = {one.name for made in passes if isinstance(made, RulePass) for one in made.rules}
    for case in CASES:
        made = registry.make(case.name)
        if isinstance(made, RulePass) and missing.intersection(one.name for one in made.rules):
            made.run(module_of_case(case.changes), PassContext(handlers=[watched]))
            missing -= watched.rules
    assert sorted(missing) == []
