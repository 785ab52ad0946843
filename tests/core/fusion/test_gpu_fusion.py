"""Priority fusion of XLA:GPU: every refusal on a small module, values kept, fuel, and agreement with real compiles."""

from __future__ import annotations

from itertools import product
from math import prod
from pathlib import Path

import pytest

from hloscope.core.analysis.device import load_device
from hloscope.core.analysis.real_compile import DumpCompile
from hloscope.core.dumps.directory import open_dump
from hloscope.core.fusion.cost_model import tiled
from hloscope.core.fusion.deciders import DecisionList
from hloscope.core.fusion.gpu.audit import audit_gpu
from hloscope.core.fusion.gpu.fusion_view import FusionView
from hloscope.core.fusion.gpu.kernels import kernels
from hloscope.core.fusion.gpu.priority_fusion import PriorityFusion
from hloscope.core.hlo.module import HloModule
from hloscope.core.hlo.verifier.verify import verify
from hloscope.core.ledger.events import FusionDecision
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.pipelines import compile_module, transforms_pipeline
from hloscope.core.passes.registry import Registry
from hloscope.core.runtime.compare import compare_all, rules_for
from hloscope.core.runtime.evaluator import Token, evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module

SUM = "sum { s.a = f32[] parameter(0)\n s.b = f32[] parameter(1)\n ROOT s.r = f32[] add(s.a, s.b) }\n"


def fused(body: str, *, fuel: int | None = None, evaluated: bool = True) -> tuple[HloModule, list[FusionDecision]]:
    """The module after the pass, values and invariants checked, and the decisions in order."""
    text = f"HloModule m\n{SUM}ENTRY e {{\n{body}\n}}\n"
    before, module = load_module(text), load_module(text)
    ledger = DecisionList()
    registry = Registry()
    pipeline = transforms_pipeline([registry.make("priority-fusion")], registry)
    limits = None if fuel is None else Fuel({"priority-fusion": fuel})
    compile_module(module, pipeline, PassContext(ledger, limits, target="gpu"), registry)
    assert verify(module) == []
    if evaluated:
        given = inputs_for(before.entry, seed=3)
        found, wanted = ([x for x in evaluate(one, given) if not isinstance(x, Token)] for one in (module, before))
        assert all(one.within for one in compare_all(wanted, found, rules_for(before)))
    return module, ledger.decisions


def fusions(module: HloModule) -> list[tuple[str, list[str]]]:
    """Kind and opcodes of every fusion of the entry."""
    return [
        (one.attr("kind"), [inner.opcode for inner in one.callee().post_order() if inner.opcode != "parameter"])
        for one in module.entry.post_order()
        if one.opcode == "fusion"
    ]


REFUSED = {
    "the producer is not fusible": (
        "d",
        """p = f32[64,64]{1,0} parameter(0)
        d = f32[64,64]{1,0} dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ROOT r = f32[64,64]{1,0} negate(d)""",
    ),
    "the consumer is not fusible": (
        "n",
        """p = f32[64]{0} parameter(0)
        n = f32[64]{0} negate(p)
        ROOT t = (f32[64]{0}) tuple(n)""",
    ),
    "not fusing because there are only bitcast users": (
        "n",
        """p = f32[64]{0} parameter(0)
        n = f32[64]{0} negate(p)
        b = f32[8,8]{1,0} bitcast(n)
        ROOT t = (f32[8,8]{1,0}) tuple(b)""",
    ),
    "both the producer and the consumer contain a reduce": (
        "r1",
        """p = f32[64,64,64]{2,1,0} parameter(0)
        z = f32[] constant(0)
        r1 = f32[64,64]{1,0} reduce(p, z), dimensions={2}, to_apply=sum
        r2 = f32[64]{0} reduce(r1, z), dimensions={1}, to_apply=sum
        ROOT n = f32[64]{0} negate(r2)""",
    ),
    "fusion into output of a reduce fusion would create a loop fusion": (
        "r",
        """p = f32[64,256]{1,0} parameter(0)
        q = f32[64]{0} parameter(1)
        z = f32[] constant(0)
        r = f32[64]{0} reduce(p, z), dimensions={1}, to_apply=sum
        ROOT m = f32[64]{0} multiply(r, q)""",
    ),
    "do not fuse into the in-place operand of scatter": (
        "n",
        """p = f32[64,8]{1,0} parameter(0)
        i = s32[4,1]{1,0} parameter(1)
        u = f32[4,1,8]{2,1,0} parameter(2)
        n = f32[64,8]{1,0} negate(p)
        ROOT s = f32[64,8]{1,0} scatter(n, i, u), update_window_dims={1,2}, inserted_window_dims={},
          scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum""",
    ),
    "do not fuse into the output of scatter": (
        "s",
        """p = f32[64,8]{1,0} parameter(0)
        i = s32[4,1]{1,0} parameter(1)
        u = f32[4,1,8]{2,1,0} parameter(2)
        s = f32[64,8]{1,0} scatter(p, i, u), update_window_dims={1,2}, inserted_window_dims={},
          scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum
        ROOT n = f32[64,8]{1,0} negate(s)""",
    ),
    "unrecognized inplace update non-elementwise output pair": (
        "t",
        """p = f32[8,8]{1,0} parameter(0)
        c = s32[] parameter(1)
        t = f32[8,8]{1,0} transpose(p), dimensions={1,0}
        ROOT d = f32[8,8]{1,0} dynamic-update-slice(p, t, c, c)""",
    ),
    "DUS and DS index mismatch": (
        "s",
        """p = f32[64,8]{1,0} parameter(0)
        c = s32[] parameter(1)
        e = s32[] parameter(2)
        s = f32[4,8]{1,0} dynamic-slice(p, c, c), dynamic_slice_sizes={4,8}
        ROOT d = f32[64,8]{1,0} dynamic-update-slice(p, s, e, c)""",
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_each_refusal_has_the_compilers_words(reason: str) -> None:
    producer, body = REFUSED[reason]
    _, decisions = fused(body)
    found = [one for one in decisions if one.subject == producer and one.verdict == "ineligible"]
    assert found and found[0].reason == reason
    assert found[0].code
    assert not any(one.subject == producer and one.verdict == "fused" for one in decisions)


def test_a_budget_of_parameters_is_kept() -> None:
    count = 120
    lines = [f"p{n} = f32[1024]{{0}} parameter({n})" for n in range(count)]
    lines.append("s1 = f32[1024]{0} add(p0, p1)")
    lines += [f"s{n} = f32[1024]{{0}} add(s{n - 1}, p{n})" for n in range(2, count)]
    lines[-1] = "ROOT " + lines[-1]
    module, decisions = fused("\n".join(lines))
    assert any("larger than allowed budget" in (one.reason or "") for one in decisions)
    assert all(one.operand_count < 96 for one in module.entry.instructions if one.opcode == "fusion")


@pytest.mark.parametrize(
    ("fuel", "body"), [(None, ["constant", "broadcast", "multiply"]), (1, ["broadcast", "multiply"])]
)
def test_small_constants_go_into_every_user_after_the_merges(fuel: int | None, body: list[str]) -> None:
    module, decisions = fused(
        """p = f32[64]{0} parameter(0)
        f = f32[] constant(2)
        b = f32[64]{0} broadcast(f), dimensions={}
        ROOT m = f32[64]{0} multiply(p, b)
        """,
        fuel=fuel,
    )
    assert fusions(module) == [("kLoop", body)]
    assert [one.subject for one in decisions if one.verdict == "fused"] == ["b"]


CHAIN = """p = f32[4096,256]{1,0} parameter(0)
    a = f32[4096,256]{1,0} negate(p)
    b = f32[4096,256]{1,0} exponential(a)
    c = f32[4096,256]{1,0} abs(b)
    z = f32[] constant(0)
    ROOT r = f32[4096]{0} reduce(c, z), dimensions={1}, to_apply=sum"""


@pytest.mark.parametrize("fuel", [0, 1, 2, 3])
def test_fuel_stops_at_the_exact_merge(fuel: int) -> None:
    _, decisions = fused(CHAIN, fuel=fuel)
    assert sum(one.verdict == "fused" for one in decisions) == fuel
    assert [one.fuel for one in decisions if one.verdict == "fused"] == list(range(fuel))


def test_a_reduction_takes_its_prologue_and_is_an_input_fusion() -> None:
    module, _ = fused(CHAIN)
    assert fusions(module) == [("kInput", ["negate", "exponential", "abs", "constant", "reduce"])]


def test_shared_producers_are_copied_into_all_users_or_none() -> None:
    module, decisions = fused("""p = f32[4096,256]{1,0} parameter(0)
        q = f32[4096,256]{1,0} parameter(1)
        a = f32[4096,256]{1,0} negate(p)
        b = f32[4096,256]{1,0} add(a, q)
        c = f32[4096,256]{1,0} multiply(a, q)
        ROOT t = (f32[4096,256]{1,0}, f32[4096,256]{1,0}) tuple(b, c)""")
    assert [kind for kind, _ in fusions(module)] == ["kLoop", "kLoop"]
    assert [one.consumers for one in decisions if one.verdict == "fused"] == [("b",), ("c",)]


def test_what_costs_more_fused_stays_apart() -> None:
    _, decisions = fused(
        """p = f32[1024]{0} parameter(0)
        a = f32[1024]{0} exponential(p)
        w = f32[1024]{0} sine(a)
        b = f32[1024,8192]{1,0} broadcast(w), dimensions={0}
        ROOT n = f32[1024,8192]{1,0} negate(b)""",
        evaluated=False,
    )
    scores = [one for one in decisions if one.subject == "w" and one.verdict == "priority"]
    assert scores and all((one.us_fused or 0) > (one.us_unfused or 0) for one in scores[-1:])
    assert not any(one.subject == "w" and one.verdict == "fused" for one in decisions)


def test_the_step_by_step_times_are_those_that_the_compiler_printed() -> None:
    # from the dump of softmax_layernorm on an H100: mul.14.0 into mul.15.0
    _, decisions = fused(
        """p = bf16[1000]{0} parameter(0)
        q = bf16[512,1000]{1,0} parameter(1)
        b = bf16[512,1000]{1,0} broadcast(p), dimensions={1}
        ROOT m = bf16[512,1000]{1,0} multiply(b, q)""",
        evaluated=False,
    )
    score = next(one for one in decisions if one.subject == "b" and one.verdict == "priority")
    assert (score.us_fused, score.us_unfused) == (1.629, 3.24)


def test_the_search_of_tilings_finds_what_trying_them_one_by_one_finds() -> None:
    module = load_module("""HloModule m
        sum { a = f32[] parameter(0)
         b = f32[] parameter(1)
         ROOT s = f32[] add(a, b) }
        body { p = f32[20,24,200]{2,1,0} parameter(0)
         q = pred[24,200]{1,0} parameter(1)
         v = f32[4,5,24,200]{3,2,1,0} bitcast(p)
         w = pred[4,5,24,200]{3,2,1,0} broadcast(q), dimensions={2,3}
         c = f32[4,5,24,200]{3,2,1,0} convert(w)
         m = f32[4,5,24,200]{3,2,1,0} multiply(v, c)
         z = f32[] constant(0)
         r = f32[4,5,24]{2,1,0} reduce(m, z), dimensions={3}, to_apply=sum
         d = f32[4,5,24,200]{3,2,1,0} broadcast(r), dimensions={0,1,2}
         ROOT s = f32[4,5,24,200]{3,2,1,0} subtract(m, d) }
        ENTRY e { a = f32[20,24,200]{2,1,0} parameter(0)
         b = pred[24,200]{1,0} parameter(1)
         ROOT f = f32[4,5,24,200]{3,2,1,0} fusion(a, b), kind=kCustom, calls=body }""")
    device = load_device("h100")
    view = FusionView(module.entry.root)
    best = tiled.best_tiling(device, view)
    assert isinstance(best, tiled.TiledRunTime)
    tried = []
    for tiles in product((1, 2, 4), (1, 2, 4, 5), (1, 2, 4, 8, 16, 24), (1, 2, 4, 8, 16, 32, 64, 128, 200)):
        # the root's tile is the largest here, and decides the warps
        padded = prod(1 << (size - 1).bit_length() for size in tiles)
        warps = 1 if padded <= 256 else 2 if padded <= 1024 else 4 if padded <= 4096 else 8
        time = tiled.tiled_run_time(device, view, tiles, warps)
        if time is not None and not time.infinite:
            tried.append((time.exec, tiles))
    assert best.run_time.exec == min(tried)[0]
    # one dimension of size 20 may be cut with a stride: two blocks of five that lie apart
    assert tiled.tiled_run_time(device, view, (2, 1, 8, 200), 4) is not None
    assert tiled.tiled_run_time(device, view, (2, 4, 8, 200), 4) is None


@pytest.mark.parametrize(("device", "blocks"), [("h100", (4096, 128)), ("b200", (4096, 128)), ("mi300", (2048, 256))])
def test_kernels_say_what_bounds_them_and_what_fusion_saved(device: str, blocks: tuple[int, int]) -> None:
    module, _ = fused(
        """p = f32[2048,1024]{1,0} parameter(0)
        a = f32[2048,1024]{1,0} negate(p)
        ROOT b = f32[2048,1024]{1,0} abs(a)""",
        evaluated=False,
    )
    (kernel,) = kernels(module, load_device(device))
    size = 2048 * 1024 * 4
    assert (kernel.bytes_read, kernel.bytes_written, kernel.bytes_apart) == (size, size, 4 * size)
    assert kernel.bytes_saved == 2 * size
    assert kernel.bound_by in ("read", "write")
    assert (kernel.blocks, kernel.threads) == blocks


def test_options_name_the_device() -> None:
    one = Registry().make("priority-fusion{device=a100}")
    assert isinstance(one, PriorityFusion)
    assert one.device == "a100"


# ---------------------------------------------------------------- real compiles
def _figures(folder: Path) -> dict[str, tuple[int, int]]:
    with open_dump(str(folder)) as dump:
        module, _ = dump.select(None)
        section = audit_gpu(DumpCompile(module))
    return {name: (one.agree, one.total) for name, one in section.figures.items()}


@pytest.mark.parametrize("name", ["gpu", "gpu_narrow"])
def test_every_step_of_recorded_dumps(fixtures: Path, name: str) -> None:
    figures = _figures(fixtures / "dumps" / name)
    assert figures["steps"][1] > 0
    assert all(agree == total for agree, total in figures.values()), figures


@pytest.mark.parametrize(
    "case",
    [
        "softmax_layernorm",
        "quant_int8",
        "dp_train",
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in (
                "kv_cache_decode__narrow", "lstm_scan__narrow", "mlp_train__narrow", "shard_map_ppermute__narrow",
                "tp_mlp__narrow", "transformer_block__narrow", "pallas_triton_softmax", "layout_heavy",
            )
        ),
    ],
)  # fmt: skip
def test_every_step_of_the_corpus(corpus: Path, case: str) -> None:
    figures = _figures(corpus / "gpu" / case / "dump")
    for name in ("verdicts", "reasons", "pairs", "precision", "steps", "groups", "kinds"):
        assert figures[name][0] == figures[name][1], (name, figures[name])
    assert figures["times"][0] >= 0.99 * figures["times"][1]
