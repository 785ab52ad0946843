"""multi_output_fusion: siblings and producers that become one kernel, refusals, values, and real compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.analysis.device import load_device
from hloscope.core.fusion.deciders import DecisionList
from hloscope.core.fusion.gpu.multi_output_fusion import run_multi_output_fusion
from hloscope.core.fusion.gpu.user_orders import after_cse
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

HEAD = """HloModule m
sum { s.a = f32[] parameter(0)
 s.b = f32[] parameter(1)
 ROOT s.r = f32[] add(s.a, s.b) }
c.neg { n.p = f32[64,32]{1,0} parameter(0)
 n.a = f32[64,32]{1,0} abs(n.p)
 ROOT n.r = f32[64,32]{1,0} negate(n.a) }
c.exp { e.p = f32[64,32]{1,0} parameter(0)
 e.q = f32[64,32]{1,0} parameter(1)
 ROOT e.r = f32[64,32]{1,0} add(e.p, e.q) }
c.row { w.p = f32[64,32]{1,0} parameter(0)
 w.z = f32[] constant(0)
 ROOT w.r = f32[64]{0} reduce(w.p, w.z), dimensions={1}, to_apply=sum }
c.column { k.p = f32[64,32]{1,0} parameter(0)
 k.z = f32[] constant(0)
 ROOT k.r = f32[32]{0} reduce(k.p, k.z), dimensions={0}, to_apply=sum }
c.scaled { x.p = f32[64,32]{1,0} parameter(0)
 x.s = f32[] parameter(1)
 x.b = f32[64,32]{1,0} broadcast(x.s), dimensions={}
 ROOT x.r = f32[64,32]{1,0} multiply(x.p, x.b) }
c.scaled2 { y.p = f32[64,32]{1,0} parameter(0)
 y.s = f32[] parameter(1)
 y.b = f32[64,32]{1,0} broadcast(y.s), dimensions={}
 ROOT y.r = f32[64,32]{1,0} multiply(y.p, y.b) }
"""


def run(body: str, fuel: int | None = None) -> tuple[HloModule, list[FusionDecision]]:
    text = f"{HEAD}ENTRY e {{\n{body}\n}}\n"
    before, module = load_module(text), load_module(text)
    ledger, registry = DecisionList(), Registry()
    limits = None if fuel is None else Fuel({"multi_output_fusion": fuel})
    pipeline = transforms_pipeline([registry.make("multi_output_fusion")], registry)
    compile_module(module, pipeline, PassContext(ledger, limits, target="gpu"), registry)
    assert verify(module) == []
    given = inputs_for(before.entry, seed=3)
    found, wanted = ([x for x in evaluate(one, given) if not isinstance(x, Token)] for one in (module, before))
    assert all(one.within for one in compare_all(wanted, found, rules_for(before)))
    return module, ledger.decisions


def several(module: HloModule) -> list[list[str]]:
    """The opcodes of the results of every fusion with several."""
    return [
        [result.opcode for result in one.callee().root.operands]
        for one in module.entry.post_order()
        if one.opcode == "fusion" and one.callee().root.opcode == "tuple"
    ]


SIBLINGS = """p = f32[64,32]{1,0} parameter(0)
  q = f32[64,32]{1,0} parameter(1)
  a = f32[64,32]{1,0} fusion(p), kind=kLoop, calls=c.neg
  b = f32[64,32]{1,0} fusion(p, q), kind=kLoop, calls=c.exp
  ROOT t = (f32[64,32]{1,0}, f32[64,32]{1,0}) tuple(a, b)"""


def test_siblings_become_one_kernel() -> None:
    module, decisions = run(SIBLINGS)
    assert several(module) == [["negate", "add"]]
    assert [one.verdict for one in decisions] == ["fused"]
    assert [one.operand_count for one in module.entry.instructions if one.opcode == "fusion"] == [2]


def test_the_order_of_users_decides_who_takes_whom() -> None:
    text = f"{HEAD}ENTRY e {{\n{SIBLINGS}\n}}\n"
    found: list[list[str]] = []
    for order in (["a", "b"], ["b", "a"]):
        module = load_module(text)
        run_multi_output_fusion(module, PassContext(target="gpu"), load_device(), {"p": order})
        (kernel,) = [one for one in module.entry.instructions if one.opcode == "fusion"]
        found.append([kernel.name, *(one.opcode for one in kernel.callee().root.operands)])
    assert found == [["a", "negate", "add"], ["b", "add", "negate"]]


def test_merging_cse_twins_appends_their_users() -> None:
    module = load_module("""HloModule m
      ENTRY e { p = f32[8]{0} parameter(0)
        a = f32[8]{0} abs(p)
        b = f32[8]{0} abs(p)
        x = f32[8]{0} exponential(a)
        y = f32[8]{0} negate(b)
        z = f32[8]{0} cosine(p)
        ROOT t = (f32[8]{0}, f32[8]{0}, f32[8]{0}) tuple(x, y, z) }""")
    users = {"p": ["b", "a", "z"], "a": ["x"], "b": ["y"]}
    assert after_cse(module, users) == {"p": ["z", "a"], "a": ["x", "y"], "b": []}


def test_fuel_stops_before_the_merge() -> None:
    module, decisions = run(SIBLINGS, fuel=0)
    assert several(module) == []
    assert not any(one.verdict == "fused" for one in decisions)


def test_reductions_over_different_dimensions_stay_apart() -> None:
    module, decisions = run("""p = f32[64,32]{1,0} parameter(0)
      a = f32[64]{0} fusion(p), kind=kInput, calls=c.row
      b = f32[32]{0} fusion(p), kind=kInput, calls=c.column
      ROOT t = (f32[64]{0}, f32[32]{0}) tuple(a, b)""")
    assert several(module) == []
    assert "tiled reductions with different shapes" in [one.reason for one in decisions]


def test_siblings_that_depend_on_each_other_stay_apart() -> None:
    module, decisions = run("""p = f32[64,32]{1,0} parameter(0)
      a = f32[64]{0} fusion(p), kind=kInput, calls=c.row
      s = f32[64,32]{1,0} broadcast(a), dimensions={0}
      d = f32[64,32]{1,0} dot(s, m), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      m = f32[32,32]{1,0} parameter(1)
      b = f32[64,32]{1,0} fusion(p, d), kind=kLoop, calls=c.exp
      ROOT t = (f32[64]{0}, f32[64,32]{1,0}) tuple(a, b)""")
    assert several(module) == []
    assert any("connected" in (one.reason or "") for one in decisions)


def test_a_producer_is_computed_with_its_reader_and_still_written() -> None:
    module, _ = run("""p = f32[64,32]{1,0} parameter(0)
      a = f32[64,32]{1,0} fusion(p), kind=kLoop, calls=c.neg
      b = f32[64]{0} fusion(a), kind=kInput, calls=c.row
      d = f32[64,64]{1,0} dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={1}
      ROOT t = (f32[64]{0}, f32[64,64]{1,0}) tuple(b, d)""")
    assert several(module) == [["reduce", "negate"]]


def _kernels(module: HloModule) -> list[tuple[str, str, list[str]]]:
    return sorted(
        (computation.name, one.attr("kind"), sorted(f"{x.opcode} {x.shape}" for x in one.callee().instructions))
        for computation in module.computations
        if not computation.is_fusion
        for one in computation.instructions
        if one.opcode == "fusion" and one.shape.is_tuple
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp_train__narrow", "lstm_scan__narrow", "kv_cache_decode__narrow"])
def test_a_real_compile(corpus: Path, name: str) -> None:
    files = sorted((corpus / "gpu" / name / "dump").glob("*.txt"))
    (after,) = [one for one in files if "after_multi_output_fusion" in one.name]
    number = int(after.name.split(".after_")[0].rsplit(".", 2)[-2])
    (before,) = [one for one in files if f".{number - 1:04d}." in one.name]
    module = load_module(before.read_text())
    registry = Registry()
    pipeline = transforms_pipeline([registry.make("multi_output_fusion")], registry)
    compile_module(module, pipeline, PassContext(DecisionList(), None, target="gpu"), registry)
    assert _kernels(module) == _kernels(load_module(after.read_text()))


def test_readers_of_one_number_stay_apart() -> None:
    module, _ = run("""p = f32[64,32]{1,0} parameter(0)
      q = f32[64,32]{1,0} parameter(1)
      s = f32[] parameter(2)
      a = f32[64,32]{1,0} fusion(p, s), kind=kLoop, calls=c.scaled
      b = f32[64,32]{1,0} fusion(q, s), kind=kLoop, calls=c.scaled2
      ROOT t = (f32[64,32]{1,0}, f32[64,32]{1,0}) tuple(a, b)""")
    assert several(module) == []
