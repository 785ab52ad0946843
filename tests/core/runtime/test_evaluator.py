"""The evaluator by small modules: what a result is at the edges, and what is said where there is none."""

from __future__ import annotations

import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloscope.core.errors import EvaluationError, UnsupportedError
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.shape import Shape
from hloscope.core.runtime.evaluator import (
    TOKEN,
    EvaluationOptions,
    Value,
    evaluate,
    evaluate_computation,
    evaluate_instruction,
)
from hloscope.core.runtime.evaluator.layout import offsets
from hloscope.core.text import load_module

Array = np.ndarray[Any, np.dtype[Any]]


def array(dtype: str, values: Any) -> Array:
    """The values as an array of a numpy type."""
    return np.asarray(values, np.dtype(dtype))


def run(body: str, *args: Any, computations: str = "", options: EvaluationOptions | None = None) -> Any:
    """The one result of an entry computation, given its lines."""
    text = f"HloModule m\n{computations}\nENTRY e {{\n{body}\n}}\n"
    return evaluate(load_module(text), list(args), options=options)[0]


def scalar_op(opcode: str, element: str, attrs: str = "", result: str | None = None) -> str:
    return (
        f"  a = {element}[] parameter(0)\n  b = {element}[] parameter(1)\n"
        f"  ROOT r = {result or element}[] {opcode}(a, b){attrs}"
    )


def reduce_body(element: str, size: int, name: str) -> str:
    return (
        f"  x = {element}[{size}] parameter(0)\n  i = {element}[] parameter(1)\n"
        f"  ROOT r = {element}[] reduce(x, i), dimensions={{0}}, to_apply={name}"
    )


def number(value: float, dtype: Any) -> Array:
    return np.asarray(value).astype(dtype)


@pytest.mark.parametrize(
    ("opcode", "element", "a", "b", "expected"),
    [
        ("divide", "s32", 7, 0, -1),
        ("divide", "s8", -128, -1, -128),
        ("divide", "s32", -7, 2, -3),
        ("divide", "u8", 7, 0, 255),
        ("remainder", "s32", -7, 2, -1),
        ("remainder", "s32", 7, 0, 7),
        ("remainder", "s8", -128, -1, 0),
        ("add", "s8", 127, 1, -128),
        ("add", "s4", 7, 1, -8),
        ("multiply", "u4", 15, 15, 1),
        ("subtract", "u2", 0, 1, 3),
        ("power", "s32", 2, 5, 32),
        ("power", "s32", -1, -3, -1),
        ("power", "s32", 2, -1, 0),
        ("power", "s32", 0, 0, 1),
        ("shift-left", "s32", 1, 32, 0),
        ("shift-right-logical", "s8", -1, 7, 1),
        ("shift-right-logical", "s8", -1, -1, 0),
        ("shift-right-arithmetic", "s8", -128, 100, -1),
        ("shift-right-arithmetic", "u8", 255, 1, 255),
        ("shift-right-arithmetic", "u4", 8, 1, 12),
        ("maximum", "f32", float("nan"), 1.0, float("nan")),
        ("power", "f32", float("nan"), 0.0, 1.0),
        ("add", "f8e4m3fn", 448.0, 64.0, float("nan")),
        ("add", "bf16", 256.0, 1.0, 256.0),
        ("mulhi", "s32", 1 << 30, 8, 2),
        ("mulhi", "s64", -1, 1, -1),
        ("mulhi", "u64", (1 << 64) - 1, (1 << 64) - 1, (1 << 64) - 2),
    ],
)
def test_edges_of_arithmetic(opcode: str, element: str, a: float, b: float, expected: float) -> None:
    dtype = Shape.scalar(element).type.dtype
    result = run(scalar_op(opcode, element), number(a, dtype), number(b, dtype))
    assert result.dtype == dtype
    wide = np.float64 if isinstance(expected, float) else object
    assert np.array_equal(result.astype(wide), np.asarray(expected).astype(wide), equal_nan=wide is np.float64)


@pytest.mark.parametrize(("opcode", "sign"), [("maximum", False), ("minimum", True)])
@pytest.mark.parametrize("order", [(0.0, -0.0), (-0.0, 0.0)])
def test_zeros_are_ordered_by_sign(opcode: str, sign: bool, order: tuple[float, float]) -> None:
    a, b = (number(v, np.float32) for v in order)
    assert bool(np.signbit(run(scalar_op(opcode, "f32"), a, b))) is sign
    both = array("float32", order)
    fold = f"fold {{\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT r = f32[] {opcode}(x, y)\n}}"
    body = reduce_body("f32", 2, "fold")
    assert bool(np.signbit(run(body, both, a, computations=fold))) is sign


@pytest.mark.parametrize(
    ("source", "target", "value", "expected"),
    [
        ("f32", "s8", 300.0, 127),
        ("f32", "s8", float("nan"), 0),
        ("f32", "u8", -1.0, 0),
        ("f32", "s32", 3e9, 2**31 - 1),
        ("f64", "s64", 1e300, 2**63 - 1),
        ("f32", "u64", 2.0**64, 2**64 - 1),
        ("f32", "s4", 100.0, 7),
        ("s32", "s4", 9, -7),
        ("s32", "u2", -1, 3),
        ("s32", "pred", 2, 1),
    ],
)
def test_conversions_saturate_or_wrap(source: str, target: str, value: float, expected: int) -> None:
    body = f"  a = {source}[] parameter(0)\n  ROOT r = {target}[] convert(a)"
    assert int(run(body, number(value, Shape.scalar(source).type.dtype))) == expected


def test_narrow_floats_round_once_per_operation() -> None:
    x = np.asarray([1.0, 1.0], ml_dtypes.bfloat16)
    tiny = np.asarray([2**-9, 2**-8], ml_dtypes.bfloat16)
    body = (
        "  a = bf16[2] parameter(0)\n  b = bf16[2] parameter(1)\n  s = bf16[2] add(a, b)\n  ROOT r = bf16[2] add(s, b)"
    )
    assert run(body, x, tiny).astype(np.float32).tolist() == [1.0, 1.0]


def test_subnormals_are_kept_or_flushed() -> None:
    small = number(1e-40, np.float32)
    assert float(run(scalar_op("add", "f32"), small, number(0, np.float32))) > 0
    flushed = EvaluationOptions(flush_subnormals=True)
    assert float(run(scalar_op("add", "f32"), small, number(0, np.float32), options=flushed)) == 0
    compare = scalar_op("compare", "f32", ", direction=EQ", "pred")
    assert bool(run(compare, small, number(0, np.float32), options=flushed))
    assert not bool(run(compare, small, number(0, np.float32)))


def test_bitcast_convert_packs_nibbles_low_first() -> None:
    body = "  a = u8[1] parameter(0)\n  ROOT r = u4[1,2] bitcast-convert(a)"
    assert run(body, array("uint8", [0x21])).astype(int).tolist() == [[1, 2]]
    back = "  a = u4[1,2] parameter(0)\n  ROOT r = u8[1] bitcast-convert(a)"
    assert run(back, np.asarray([[1, 2]], ml_dtypes.uint4)).tolist() == [0x21]


def test_bitcast_follows_layouts() -> None:
    body = "  a = s32[2,3]{0,1} parameter(0)\n  ROOT r = s32[3,2]{1,0} bitcast(a)"
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert np.array_equal(run(body, x), x.T)


@pytest.mark.parametrize(
    ("shape", "at", "offset", "size"),
    [
        ("f32[3,5]{1,0:T(2,2)}", (2, 3), 17, 24),
        ("f32[10,130]{1,0:T(8,128)}", (9, 129), 3201, 4096),
        ("bf16[16,256]{1,0:T(8,128)(2,1)}", (1, 0), 1, 4096),
        ("bf16[16,256]{1,0:T(8,128)(2,1)}", (0, 1), 2, 4096),
        ("bf16[16,256]{1,0:T(8,128)(2,1)}", (8, 0), 2048, 4096),
        ("bf16[300]{0:T(256)(128)(2,1)}", (128,), 1, 512),
        ("s8[1024]{0:T(1024)(128)(4,1)}", (512,), 512, 1024),
    ],
)
def test_offsets_of_tiled_layouts(shape: str, at: tuple[int, ...], offset: int, size: int) -> None:
    places, allocated = offsets(Shape.parse(shape))
    assert int(places[at]) == offset
    assert allocated == size
    assert np.unique(places).size == places.size


def test_reduce_folds_any_computation_in_order() -> None:
    computation = "f {\n  a = f32[] parameter(0)\n  x = f32[] parameter(1)\n  ROOT r = f32[] subtract(a, x)\n}"
    body = (
        "  x = f32[3] parameter(0)\n  i = f32[] parameter(1)\n  ROOT r = f32[] reduce(x, i), dimensions={0}, to_apply=f"
    )
    assert float(run(body, array("float32", [1, 2, 3]), number(10, np.float32), computations=computation)) == 4


def test_reduce_applies_the_initial_value_once() -> None:
    computation = "f {\n  a = s32[] parameter(0)\n  x = s32[] parameter(1)\n  ROOT r = s32[] add(a, x)\n}"
    body = reduce_body("s32", 1000, "f")
    assert int(run(body, np.ones(1000, np.int32), number(7, np.int32), computations=computation)) == 1007


def test_scatter_applies_updates_in_order() -> None:
    computation = "f {\n  a = f32[] parameter(0)\n  u = f32[] parameter(1)\n  t = f32[] constant(2)\n"
    computation += "  d = f32[] multiply(a, t)\n  ROOT r = f32[] subtract(d, u)\n}"
    body = (
        "  x = f32[2] parameter(0)\n  i = s32[4,1] parameter(1)\n  u = f32[4] parameter(2)\n"
        "  ROOT r = f32[2] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0},"
        " scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=f"
    )
    index = array("int32", [[0], [0], [5], [0]])
    out = run(body, array("float32", [1, 1]), index, array("float32", [1, 2, 99, 3]), computations=computation)
    assert out.tolist() == [((1 * 2 - 1) * 2 - 2) * 2 - 3, 1]


LESS = "less {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = pred[] compare(a, b), direction=LT\n}"


def test_sort_without_an_order_still_permutes() -> None:
    rng = np.random.default_rng(1)
    x = np.where(rng.random(50) < 0.3, np.nan, rng.standard_normal(50)).astype(np.float32)
    body = "  x = f32[50] parameter(0)\n  ROOT r = f32[50] sort(x), dimensions={0}, to_apply=less"
    out = run(body, x, computations=LESS)
    assert np.array_equal(np.sort(out), np.sort(x), equal_nan=True)


def test_a_comparator_that_looks_at_bits_runs_on_whole_rows() -> None:
    """What XLA makes of a sort of floats, midway too: one comparison at a time would take minutes."""
    computations = (
        "c {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  nil = s32[] constant(0)\n"
        "  zero = s32[] broadcast(nil), dimensions={}\n  all = s32[] constant(2147483647)\n"
        "  most = s32[] reshape(all)\n  ia = s32[] bitcast(a)\n  ib = s32[] bitcast(b)\n"
        "  na = pred[] compare(ia, zero), direction=LT\n  nb = pred[] compare(ib, zero), direction=LT\n"
        "  xa = s32[] xor(most, ia)\n  xb = s32[] xor(most, ib)\n"
        "  ka = s32[] select(na, xa, ia)\n  kb = s32[] select(nb, xb, ib)\n"
        "  ROOT r = pred[] compare(ka, kb), direction=LT\n}"
    )
    x = np.random.default_rng(2).standard_normal((300, 200)).astype(np.float32)
    body = "  x = f32[300,200] parameter(0)\n  ROOT r = f32[300,200] sort(x), dimensions={1}, to_apply=c"
    started = time.process_time()
    out = run(body, x, computations=computations)
    assert np.array_equal(out, np.sort(x, axis=1))
    assert time.process_time() - started < 20


def test_while_runs_and_gives_up() -> None:
    computations = (
        "cond {\n  s = (s32[]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  n = s32[] constant(10)\n"
        "  ROOT r = pred[] compare(i, n), direction=LT\n}\n"
        "body {\n  s = (s32[]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  o = s32[] constant(STEP)\n"
        "  j = s32[] add(i, o)\n  ROOT r = (s32[]) tuple(j)\n}\n"
    )
    entry = "  z = s32[] constant(0)\n  t = (s32[]) tuple(z)\n  ROOT w = (s32[]) while(t), condition=cond, body=body"
    assert int(run(entry, computations=computations.replace("STEP", "3"))) == 12
    with pytest.raises(EvaluationError, match="%w .while.: gave up after 500 iterations"):
        run(entry, computations=computations.replace("STEP", "0"), options=EvaluationOptions(step_limit=500))


@pytest.mark.parametrize(("selector", "expected"), [(0, 1.0), (1, -1.0), (-1, -1.0), (9, -1.0)])
def test_conditional_out_of_range_takes_the_last_branch(selector: int, expected: float) -> None:
    branches = "f {\n  ROOT x = f32[] parameter(0)\n}\ng {\n  x = f32[] parameter(0)\n  ROOT r = f32[] negate(x)\n}"
    body = (
        "  s = s32[] parameter(0)\n  x = f32[] parameter(1)\n"
        "  ROOT r = f32[] conditional(s, x, x), branch_computations={f, g}"
    )
    assert float(run(body, number(selector, np.int32), number(1, np.float32), computations=branches)) == expected


def test_top_k_takes_lower_indices_first_and_nan_as_largest() -> None:
    body = "  x = f32[5] parameter(0)\n  ROOT r = (f32[3], s32[3]) topk(x), k=3, largest=true"
    module = load_module(f"HloModule m\nENTRY e {{\n{body}\n}}\n")
    values, places = evaluate(module, [array("float32", [1, 7, np.nan, 7, 0])])
    assert np.asarray(places).tolist() == [2, 1, 3]
    assert np.isnan(np.asarray(values)[0])


def test_batch_norm_training_uses_the_compiler_s_variance() -> None:
    body = (
        "  x = f32[4,1] parameter(0)\n  s = f32[1] parameter(1)\n  o = f32[1] parameter(2)\n"
        "  ROOT r = (f32[4,1], f32[1], f32[1]) batch-norm-training(x, s, o), epsilon=0.001, feature_index=1"
    )
    module = load_module(f"HloModule m\nENTRY e {{\n{body}\n}}\n")
    x = array("float32", [[1000], [1001], [1002], [1003]])
    _, mean, variance = evaluate(module, [x, array("float32", [1]), array("float32", [0])])
    assert float(np.asarray(mean)[0]) == 1001.5
    assert float(np.asarray(variance)[0]) == 1.25


def test_asynchronous_pair_and_copies_pass_values_on() -> None:
    body = (
        "  x = f32[2] parameter(0)\n  c = (f32[2], f32[2], u32[]) copy-start(x)\n  d = f32[2] copy-done(c)\n"
        "  t = token[] after-all()\n  ROOT r = f32[2] add-dependency(d, t)"
    )
    assert run(body, array("float32", [1, 2])).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "0 arguments for 1 parameters; the first one missing is x f32[2]"),
        ([np.zeros(3, np.float32)], "argument 0 for parameter x is f32[3], expected f32[2]"),
        ([np.zeros(2, np.float64)], "argument 0 for parameter x is f64[2], expected f32[2]"),
        ([(np.zeros(2, np.float32),)], "argument 0 for parameter x is (float32[2]), expected f32[2]"),
    ],
)
def test_arguments_that_do_not_fit_are_named(args: list[Value], message: str) -> None:
    module = load_module("HloModule m\nENTRY e {\n  ROOT x = f32[2] parameter(0)\n}\n")
    with pytest.raises(EvaluationError) as caught:
        evaluate(module, args)
    assert str(caught.value) == message


def test_unsupported_instruction_is_named_before_anything_runs() -> None:
    seen: list[str] = []
    body = (
        "  x = f32[2] parameter(0)\n  n = f32[2] negate(x)\n"
        '  ROOT k = f32[2] custom-call(n), custom_call_target="mystery"'
    )
    options = EvaluationOptions(observer=lambda node, value: seen.append(node.name))
    with pytest.raises(UnsupportedError, match="cannot evaluate %k: custom-call with the unknown target 'mystery'"):
        run(body, np.zeros(2, np.float32), options=options)
    assert seen == []
    drawn = run(body, np.zeros(2, np.float32), options=EvaluationOptions(opaque=frozenset({"mystery"})))
    assert drawn.shape == (2,)


def test_a_program_for_many_devices_is_refused() -> None:
    text = (
        "HloModule m, num_partitions=4\nf {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        "  ROOT r = f32[] add(a, b)\n}\nENTRY e {\n  x = f32[2] parameter(0)\n"
        "  ROOT r = f32[2] all-reduce(x), replica_groups={}, to_apply=f\n}\n"
    )
    with pytest.raises(UnsupportedError, match="%r: all-reduce between 4 devices"):
        evaluate(load_module(text), [np.zeros(2, np.float32)])
    (alone,) = evaluate(load_module(text.replace("num_partitions=4", "num_partitions=1")), [array("float32", [1, 2])])
    assert np.asarray(alone).tolist() == [1, 2]


def test_memory_is_estimated_before_it_is_taken() -> None:
    body = "  x = f32[] parameter(0)\n  b = f32[100000,100000] broadcast(x), dimensions={}\n"
    body += "  ROOT e = f32[100000,100000] exponential(b)"
    with pytest.raises(UnsupportedError, match=r"takes about 40\.0 GB .most of it at %e."):
        run(body, number(1, np.float32), options=EvaluationOptions(memory_limit=10**9))


def test_a_shape_that_is_not_what_is_computed_is_named() -> None:
    body = "  x = f32[2,3] parameter(0)\n  ROOT r = f32[2,4] transpose(x), dimensions={1,0}"
    with pytest.raises(EvaluationError, match=r"%r .transpose.: computes float32\[3,2\], its shape says f32\[2,4\]"):
        run(body, np.zeros((2, 3), np.float32))


def test_observer_sees_values_inside_called_computations() -> None:
    seen: dict[str, Value] = {}

    def observe(node: HloInstruction, value: Value) -> None:
        seen[node.name] = value

    fused = "fused {\n  p = f32[] parameter(0)\n  ROOT twice = f32[] add(p, p)\n}"
    body = "  x = f32[] parameter(0)\n  ROOT f = f32[] fusion(x), kind=kLoop, calls=fused"
    run(body, number(4, np.float32), computations=fused, options=EvaluationOptions(observer=observe))
    assert [name for name in seen] == ["twice", "f"]


def test_one_instruction_and_one_computation() -> None:
    text = "HloModule m\nENTRY e {\n  x = f32[2] parameter(0)\n  ROOT n = f32[2] negate(x)\n}\n"
    module = load_module(text)
    assert np.asarray(evaluate_instruction(module.entry.root, [array("float32", [1, 2])])).tolist() == [-1, -2]
    assert np.asarray(evaluate_computation(module.entry, [array("float32", [3, 4])])).tolist() == [-3, -4]


def test_tuple_parameters_take_tuples_or_leaves() -> None:
    text = (
        "HloModule m\nENTRY e {\n  t = (f32[], (s32[], token[])) parameter(0)\n"
        "  ROOT x = f32[] get-tuple-element(t), index=0\n}\n"
    )
    module = load_module(text)
    nested: Value = (number(2, np.float32), (number(3, np.int32), TOKEN))
    assert float(np.asarray(evaluate(module, [nested])[0])) == 2
    assert float(np.asarray(evaluate(module, [nested[0], nested[1][0], TOKEN])[0])) == 2  # type: ignore[index]
    body = "  t = (f32[2]) parameter(0)\n  ROOT g = f32[2] get-tuple-element(t), index=0"
    alone = load_module(f"HloModule m\nENTRY e {{\n{body}\n}}\n")
    for args in ([np.ones(2, np.float32)], [(np.ones(2, np.float32),)]):
        assert np.asarray(evaluate(alone, args)[0]).tolist() == [1, 1]


SUM_AND_NEGATION = """pair {
  p = f32[2] parameter(0)
  q = f32[2] parameter(1)
  s = f32[2] add(p, q)
  n = f32[2] negate(p)
  ROOT t = (f32[2], f32[2]) tuple(s, n)
}"""


@pytest.mark.parametrize(
    "steps",
    [
        "s = ((f32[2], f32[2]), (f32[2], f32[2]), s32[]) async-start(x, y), calls=pair\n"
        "  ROOT d = (f32[2], f32[2]) async-done(s)",
        "s = ((), (), s32[]) async-start(), calls=pair\n"
        "  u = ((f32[2]), (), s32[]) async-update(s, x)\n"
        "  v = ((f32[2], f32[2]), (f32[2], f32[2]), s32[]) async-update(u, y)\n"
        "  w = ((f32[2], f32[2]), (f32[2], f32[2]), s32[]) async-update(v)\n"
        "  ROOT d = (f32[2], f32[2]) async-done(w)",
        "s = ((f32[2]), (), s32[]) async-start(x), calls=pair\n  ROOT d = (f32[2], f32[2]) async-done(s, y)",
    ],
    ids=["at the start", "at updates", "at the end"],
)
def test_operands_of_asynchronous_computations_may_come_later(steps: str) -> None:
    entry = f"ENTRY e {{\n  x = f32[2] parameter(0)\n  y = f32[2] parameter(1)\n  {steps}\n}}\n"
    text = f"HloModule m\n{SUM_AND_NEGATION}\n{entry}"
    found = evaluate(load_module(text), [array("float32", [1, 2]), array("float32", [10, 20])])
    assert [np.asarray(x).tolist() for x in found] == [[11, 22], [-1, -2]]


def test_an_asynchronous_computation_that_misses_operands_is_refused() -> None:
    body = "  x = f32[2] parameter(0)\n  s = ((f32[2]), (), s32[]) async-start(x), calls=pair\n"
    body += "  ROOT d = (f32[2], f32[2]) async-done(s)"
    with pytest.raises(UnsupportedError, match="%d: async-done with 1 of 2 operands"):
        run(body, array("float32", [1, 2]), computations=SUM_AND_NEGATION)


def test_empty_results_need_no_memory_and_no_data() -> None:
    assert run("  ROOT r = f32[1000000000000,0] iota(), iota_dimension=0").shape == (1000000000000, 0)
    body = "  x = c64[1,1] parameter(0)\n  ROOT r = c64[1,1] fft(x), fft_type=FFT, fft_length={0}"
    assert run(body, array("complex64", [[5 + 2j]])).tolist() == [[0]]


def test_scalars_keep_their_rank() -> None:
    body = "  x = c64[] parameter(0)\n  ROOT r = f16[] convert(x)"
    assert run(body, array("complex64", 2 + 3j)).shape == ()
    body = (
        "  x = f32[3] parameter(0)\n  i = s32[0] parameter(1)\n  ROOT r = f32[] gather(x, i), offset_dims={},"
        " collapsed_slice_dims={0}, start_index_map={}, index_vector_dim=0, slice_sizes={1}"
    )
    assert run(body, array("float32", [4, 5, 6]), np.zeros(0, np.int32)) == 4


def test_epsilon_is_an_f32() -> None:
    body = (
        "  x = f64[1] parameter(0)\n  o = f64[1] parameter(1)\n  z = f64[1] parameter(2)\n"
        "  ROOT r = f64[1] batch-norm-inference(x, o, z, z, z), epsilon=0.01, feature_index=0"
    )
    found = run(body, array("float64", [1]), array("float64", [1]), array("float64", [0]))
    assert found[0] == pytest.approx(1 / np.sqrt(float(np.float32(0.01))), rel=1e-15)
