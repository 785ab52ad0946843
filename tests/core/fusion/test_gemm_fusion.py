"""triton-gemm-rewriter and triton-softmax-rewriter: what they take in and refuse, values, fuel, real compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.fusion.deciders import DecisionList
from hloscope.core.fusion.gpu.audit import fusion_agreement
from hloscope.core.hlo.instruction import HloInstruction
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

GEMM, SOFTMAX = "triton-gemm-rewriter", "triton-softmax-rewriter"
HEAD = """HloModule m
sum { s.a = f32[] parameter(0)
 s.b = f32[] parameter(1)
 ROOT s.r = f32[] add(s.a, s.b) }
largest { l.a = f32[] parameter(0)
 l.b = f32[] parameter(1)
 ROOT l.r = f32[] maximum(l.a, l.b) }
"""


def run(body: str, name: str = GEMM, fuel: int | None = None) -> tuple[HloModule, list[FusionDecision]]:
    text = f"{HEAD}ENTRY e {{\n{body}\n}}\n"
    before, module = load_module(text), load_module(text)
    ledger, registry = DecisionList(), Registry()
    pipeline = transforms_pipeline([registry.make(name)], registry)
    compile_module(
        module, pipeline, PassContext(ledger, None if fuel is None else Fuel({name: fuel}), target="gpu"), registry
    )
    assert verify(module) == []
    given = inputs_for(before.entry, seed=5)
    found, wanted = ([x for x in evaluate(one, given) if not isinstance(x, Token)] for one in (module, before))
    assert all(one.within for one in compare_all(wanted, found, rules_for(before)))
    return module, ledger.decisions


def kernels(module: HloModule) -> list[HloInstruction]:
    return [one for one in module.entry.post_order() if one.opcode == "fusion"]


def inside(fusion: HloInstruction) -> list[str]:
    return sorted(one.opcode for one in fusion.callee().instructions if one.opcode != "parameter")


def reasons(decisions: list[FusionDecision], subject: str) -> list[str | None]:
    return [one.reason for one in decisions if one.subject == subject]


DENSE = """x = bf16[64,32]{1,0} parameter(0)
  w = s8[32,16]{1,0} parameter(1)
  wide = bf16[32,16]{1,0} convert(w)
  d = bf16[64,16]{1,0} dot(x, wide), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = bf16[16]{0} parameter(2)
  row = bf16[64,16]{1,0} broadcast(b), dimensions={1}
  ROOT sum.1 = bf16[64,16]{1,0} add(d, row)"""


def test_a_dot_takes_the_conversion_before_it_and_the_bias_after_it() -> None:
    module, decisions = run(DENSE)
    (kernel,) = kernels(module)
    assert kernel.name == "gemm_fusion_d"
    assert kernel.is_root
    assert inside(kernel) == ["add", "broadcast", "convert", "dot"]
    assert [one.name for one in kernel.operands] == ["x", "w", "b"]
    assert '"__triton_gemm"' in (kernel.raw_attrs["backend_config"] or "")
    assert {one.subject for one in decisions if one.verdict == "fused"} == {"d", "wide", "row"}


def test_no_fuel_leaves_the_dot_alone() -> None:
    module, decisions = run(DENSE, fuel=0)
    assert kernels(module) == []
    assert not any(one.verdict == "fused" for one in decisions)


def test_what_would_be_read_twice_stays_outside() -> None:
    module, decisions = run("""x = f32[64,32]{1,0} parameter(0)
      y = f32[64,32]{1,0} parameter(1)
      w = f32[32,16]{1,0} parameter(2)
      s = f32[64,32]{1,0} add(x, y)
      d = f32[64,16]{1,0} dot(s, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      ROOT t = (f32[64,16]{1,0}, f32[64,32]{1,0}) tuple(d, s)""")
    assert inside(kernels(module)[0]) == ["dot"]
    assert reasons(decisions, "s") == ["Not obviously profitable to fuse as input."]


def test_a_split_dimension_and_a_reduction_are_refused() -> None:
    module, decisions = run("""x = f32[4,16,8]{2,1,0} parameter(0)
      w = f32[32,16]{1,0} parameter(1)
      t = f32[4,8,16]{2,1,0} transpose(x), dimensions={0,2,1}
      r = f32[32,16]{1,0} bitcast(t)
      d = f32[32,32]{1,0} dot(r, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
      z = f32[] constant(0)
      ROOT s = f32[32]{0} reduce(d, z), dimensions={1}, to_apply=sum""")
    assert inside(kernels(module)[0]) == ["bitcast", "dot", "transpose"], "the free dimension of the left may be split"
    assert "Reductions are not fused yet." in reasons(decisions, "d")
    _, decisions = run("""x = f32[4,8,32]{2,1,0} parameter(0)
      w = f32[8,64]{1,0} parameter(1)
      t = f32[4,32,8]{2,1,0} transpose(x), dimensions={0,2,1}
      r = f32[128,8]{1,0} bitcast(t)
      d = f32[64,128]{1,0} dot(w, r), lhs_contracting_dims={0}, rhs_contracting_dims={1}
      ROOT n = f32[64,128]{1,0} negate(d)""")
    assert reasons(decisions, "t") == ["Unsupported split of a dimension."]


@pytest.mark.parametrize(
    ("dot", "reason"),
    [
        ("f32[4,4]{1,0} dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={1}", "The dot is too small"),
        ("f64[64,64]{1,0} dot(y, y), lhs_contracting_dims={1}, rhs_contracting_dims={1}", "Unsupported output data"),
        (
            "f32[64,64]{1,0} dot(z, z), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
            "operand_precision={highest,highest}",
            "Having non-default operand precisions",
        ),
        (
            "f32[64]{0} dot(z, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
            "No non-contracting dimensions.",
        ),
    ],
)
def test_dots_that_are_no_triton_kernels(dot: str, reason: str) -> None:
    module, decisions = run(f"""x = f32[4,4]{{1,0}} parameter(0)
      y = f64[64,32]{{1,0}} parameter(1)
      z = f32[64,32]{{1,0}} parameter(2)
      v = f32[32]{{0}} parameter(3)
      ROOT d = {dot}""")
    assert kernels(module) == []
    (said,) = reasons(decisions, "d")
    assert said is not None
    assert said.startswith(reason)


ROWS = """p = f32[256,512]{1,0} parameter(0)
  low = f32[] constant(-inf)
  top = f32[256]{0} reduce(p, low), dimensions={1}, to_apply=largest
  tops = f32[256,512]{1,0} broadcast(top), dimensions={0}
  s = f32[256,512]{1,0} subtract(p, tops)
  e = f32[256,512]{1,0} exponential(s)
  zero = f32[] constant(0)
  all = f32[256]{0} reduce(e, zero), dimensions={1}, to_apply=sum
  alls = f32[256,512]{1,0} broadcast(all), dimensions={0}
  ROOT r = f32[256,512]{1,0} divide(e, alls)"""


def test_softmax_is_two_diamonds() -> None:
    module, decisions = run(ROWS, SOFTMAX)
    first, second = kernels(module)
    assert inside(first) == ["broadcast", "constant", "reduce", "subtract"]
    assert inside(second) == ["broadcast", "constant", "divide", "reduce"]
    assert [(one.subject, one.made) for one in decisions if one.verdict == "fused"] == [
        ("e", second.name), ("p", first.name),
    ]  # fmt: skip
    assert all((one.us_fused or 0) > 0 for one in decisions if one.verdict == "fused")


def test_fuel_stops_after_the_last_diamond() -> None:
    module, _ = run(ROWS, SOFTMAX, fuel=1)
    assert [inside(one)[-2:] for one in kernels(module)] == [["divide", "reduce"]]


def test_a_reduction_that_others_read_is_no_diamond() -> None:
    body = ROWS.replace("ROOT r =", "r =") + "\n  ROOT t = (f32[256,512]{1,0}, f32[256]{0}) tuple(r, all)"
    module, decisions = run(body, SOFTMAX)
    assert len(kernels(module)) == 1
    assert reasons(decisions, "r") == ["More than one use of broadcast or reduce."]


@pytest.mark.parametrize(
    ("case", "name", "after"),
    [
        ("layout_heavy", GEMM, "after_triton-gemm-rewriter"),
        ("quant_int8", GEMM, "after_triton-gemm-rewriter"),
        ("dp_train", GEMM, "after_triton-gemm-rewriter"),
        ("softmax_layernorm", SOFTMAX, "after_triton-softmax-rewriter"),
        ("quant_int8", SOFTMAX, "after_triton-softmax-rewriter"),
    ],
)
def test_a_real_stage(corpus: Path, case: str, name: str, after: str) -> None:
    files = sorted((corpus / "gpu" / case / "dump").glob("*.txt"))
    place = next(number for number, one in enumerate(files) if f".{after}." in one.name)
    module, real = (load_module(files[number].read_text()) for number in (place - 1, place))
    registry = Registry()
    compile_module(
        module,
        transforms_pipeline([registry.make(name)], registry),
        PassContext(DecisionList(), None, target="gpu"),
        registry,
    )
    found = fusion_agreement(module, real)
    assert found["groups"].agree == found["groups"].total
    assert found["kinds"].agree == found["kinds"].total
    assert {one.name for one in kernels(real)} == {one.name for one in kernels(module)}


SORT = """x = f32[16,8]{1,0} parameter(0)
  i = s32[16,8]{1,0} iota(), iota_dimension=1
  ROOT s = (f32[16,8]{1,0}, s32[16,8]{1,0}) sort(x, i), dimensions={1}, is_stable=true, to_apply=less"""
LESS = """less { e.a = f32[] parameter(0)
 e.b = f32[] parameter(1)
 e.i = s32[] parameter(2)
 e.j = s32[] parameter(3)
 ROOT e.r = pred[] compare(e.a, e.b), direction=LT }
"""


def test_a_sort_takes_in_its_iota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "HEAD", HEAD + LESS)
    module, decisions = run(SORT, "sort-iota-fusion")
    (kernel,) = kernels(module)
    assert (inside(kernel), [one.name for one in kernel.operands]) == (["iota", "sort"], ["x"])
    assert [(one.subject, one.verdict, one.made) for one in decisions] == [("i", "fused", kernel.name)]
    module, decisions = run(SORT, "sort-iota-fusion", fuel=0)
    assert kernels(module) == []
