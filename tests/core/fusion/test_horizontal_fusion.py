"""horizontal_loop_fusion and horizontal_input_fusion: what is joined, what is refused, values, fuel."""

from __future__ import annotations

from hloscope.core.fusion.deciders import DecisionList
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
from hloscope.core.text import load_module, print_module

LOOP, INPUT = "horizontal_loop_fusion", "horizontal_input_fusion"
HEAD = """HloModule m
sum { s.a = f32[] parameter(0)
 s.b = f32[] parameter(1)
 ROOT s.r = f32[] add(s.a, s.b) }
c.mul { m.p = f32[8,4]{1,0} parameter(0)
 m.q = f32[8,4]{1,0} parameter(1)
 ROOT m.r = f32[8,4]{1,0} multiply(m.p, m.q) }
c.neg { n.p = f32[6]{0} parameter(0)
 n.a = f32[6]{0} abs(n.p)
 ROOT n.r = f32[6]{0} negate(n.a) }
"""


def run(body: str, name: str = LOOP, fuel: int | None = None) -> tuple[HloModule, list[FusionDecision]]:
    text = f"{HEAD}ENTRY e {{\n{body}\n}}\n"
    before, module = load_module(text), load_module(text)
    ledger, registry = DecisionList(), Registry()
    limits = None if fuel is None else Fuel({name: fuel})
    pipeline = transforms_pipeline([registry.make(name)], registry)
    compile_module(module, pipeline, PassContext(ledger, limits, target="gpu"), registry)
    assert verify(module) == []
    assert verify(load_module(print_module(module))) == []
    given = inputs_for(before.entry, seed=3)
    found, wanted = ([x for x in evaluate(one, given) if not isinstance(x, Token)] for one in (module, before))
    assert all(one.within for one in compare_all(wanted, found, rules_for(before)))
    return module, ledger.decisions


def kernels(module: HloModule) -> list[tuple[str, list[str]]]:
    return [
        (one.attr("kind"), [result.opcode for result in one.callee().root.operands])
        for one in module.entry.post_order()
        if one.opcode == "fusion"
    ]


ALIKE = """p = f32[8,4]{1,0} parameter(0)
  q = f32[8,4]{1,0} parameter(1)
  a = f32[8,4]{1,0} fusion(p, q), kind=kLoop, calls=c.mul
  b = f32[8,4]{1,0} add(q, q)
  ROOT t = (f32[8,4]{1,0}, f32[8,4]{1,0}) tuple(a, b)"""
DIFFERENT = """p = f32[8,4]{1,0} parameter(0)
  q = f32[6]{0} parameter(1)
  a = f32[8,4]{1,0} fusion(p, p), kind=kLoop, calls=c.mul
  b = f32[6]{0} fusion(q), kind=kLoop, calls=c.neg
  ROOT t = (f32[8,4]{1,0}, f32[6]{0}) tuple(a, b)"""


def test_loops_of_one_shape_become_one_loop() -> None:
    module, decisions = run(ALIKE)
    assert kernels(module) == [("kLoop", ["add", "multiply"])]
    assert [one.verdict for one in decisions] == ["fused", "fused"]
    (kernel,) = [one for one in module.entry.instructions if one.opcode == "fusion"]
    assert sorted(one.name for one in kernel.operands) == ["p", "q"]


def test_loops_of_different_shapes_are_joined_and_cut_apart() -> None:
    module, decisions = run(DIFFERENT)
    assert kernels(module) == [("kInput", ["slice", "slice"])]
    assert "different output shape" in [one.reason for one in decisions] or len(decisions) > 2


def test_no_fuel_joins_nothing() -> None:
    assert kernels(run(ALIKE, fuel=0)[0]) == kernels(load_and_keep(ALIKE))


def load_and_keep(body: str) -> HloModule:
    return load_module(f"{HEAD}ENTRY e {{\n{body}\n}}\n")


def test_what_others_read_stays_apart() -> None:
    module, decisions = run("""p = f32[8,4]{1,0} parameter(0)
      a = f32[8,4]{1,0} abs(p)
      b = f32[8,4]{1,0} negate(p)
      d = f32[8,8]{1,0} dot(a, p), lhs_contracting_dims={1}, rhs_contracting_dims={1}
      e = f32[8,4]{1,0} multiply(a, b)
      ROOT r = (f32[8,4]{1,0}, f32[8,8]{1,0}, f32[8,8]{1,0}) tuple(e, d, d)""")
    assert kernels(module) == []
    assert ("a", "including it may create cycles in HLO") in [(one.subject, one.reason) for one in decisions]


def test_reductions_of_one_shape_become_siblings() -> None:
    rows = """p = f32[64,512]{1,0} parameter(0)
      q = f32[64,512]{1,0} parameter(1)
      z = f32[] constant(0)
      a = f32[64]{0} reduce(p, z), dimensions={1}, to_apply=sum
      b = f32[64]{0} reduce(q, z), dimensions={1}, to_apply=sum
      ROOT r = f32[64]{0} add(a, b)"""
    module, decisions = run(rows, INPUT)
    assert kernels(module) == [("kInput", ["reduce", "reduce"])]
    assert [one.verdict for one in decisions] == ["fused"]
    apart = rows.replace("b = f32[64]{0} reduce(q, z), dimensions={1}", "c = f32[512]{0} reduce(q, z), dimensions={0}")
    apart = apart.replace("ROOT r = f32[64]{0} add(a, b)", "ROOT r = (f32[64]{0}, f32[512]{0}) tuple(a, c)")
    module, decisions = run(apart, INPUT)
    assert kernels(module) == []
    assert [one.reason for one in decisions] == ["tiled reductions with different shapes"]
