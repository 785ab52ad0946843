"""Instruction fusion of XLA:CPU: each gate on a small module, and agreement with real compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.analysis.real_compile import DumpCompile
from hloscope.core.dumps.directory import open_dump
from hloscope.core.fusion.cpu.audit import audit_cpu
from hloscope.core.fusion.cpu.gates import GATES, MEANING
from hloscope.core.fusion.cpu.wrapper import CpuFusionWrapper
from hloscope.core.hlo.module import HloModule
from hloscope.core.ledger.declare import Event
from hloscope.core.ledger.events import FusionDecision
from hloscope.core.ledger.record import NullLedger
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.invariants import findings
from hloscope.core.passes.pipelines import compile_module, transforms_pipeline
from hloscope.core.passes.registry import Registry
from hloscope.core.runtime.compare import compare_all, rules_for
from hloscope.core.runtime.evaluator import Token, evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module

SUM = "sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(a, b) }\n"


class Recorded(NullLedger):
    """Keeps fusion decisions."""

    enabled = True

    def __init__(self) -> None:
        self.decisions: list[FusionDecision] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, FusionDecision):
            self.decisions.append(event)


def fused(body: str, *, fuel: int | None = None) -> tuple[HloModule, list[FusionDecision]]:
    """The entry of `body` after the pass, values and invariants checked, and its decisions in order."""
    text = f"HloModule m\n{SUM}ENTRY e {{\n{body}\n}}\n"
    before, module = load_module(text), load_module(text)
    ledger = Recorded()
    registry = Registry()
    pipeline = transforms_pipeline([registry.make("fusion")], registry)
    compile_module(module, pipeline, PassContext(ledger, None if fuel is None else Fuel({"fusion": fuel})), registry)
    assert list(findings(module)) == []
    given = inputs_for(before.entry, seed=3)
    found, wanted = (
        [one for one in evaluate(either, given) if not isinstance(one, Token)] for either in (module, before)
    )
    assert all(one.within for one in compare_all(wanted, found, rules_for(before)))
    return module, ledger.decisions


REFUSED = {
    "banned": """p = f32[8]{0} parameter(0)
      q = f32[8]{0} parameter(1)
      d = f32[8]{0} add(p, q)
      s = f32[8]{0} negate(d)
      ROOT t = (f32[8]{0}, f32[8]{0}) tuple(s, d)""",
    "constant": """p = f32[4]{0} parameter(0)
      c = f32[4]{0} constant({1, 2, 3, 4})
      n = f32[4]{0} negate(p)
      ROOT a = f32[4]{0} add(n, c)""",
    "not_loop_fusible": """p = f32[4]{0} parameter(0)
      s = f32[4]{0} sort(p), dimensions={0}, to_apply={
        a = f32[] parameter(0)
        b = f32[] parameter(1)
        ROOT l = pred[] compare(a, b), direction=LT
      }
      ROOT n = f32[4]{0} negate(s)""",
    "not_profitable": """p = f32[4]{0} parameter(0)
      e = f32[4]{0} exponential(p)
      ROOT b = f32[8,4]{1,0} broadcast(e), dimensions={1}""",
    "expensive_duplicated": """p = f32[4]{0} parameter(0)
      e = f32[4]{0} exponential(p)
      n = f32[4]{0} negate(e)
      a = f32[4]{0} abs(e)
      ROOT t = (f32[4]{0}, f32[4]{0}) tuple(n, a)""",
    "lone_constant": """p = f32[] parameter(0)
      c = f32[] constant(2)
      ROOT m = f32[] multiply(p, c)""",
    "no_case": """p = f32[4,4]{1,0} parameter(0)
      n = f32[4,4]{1,0} negate(p)
      ROOT d = f32[4,4]{1,0} dot(n, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}""",
    "concatenate": """p = f32[2,64]{1,0} parameter(0)
      n = f32[2,64]{1,0} negate(p)
      c = f32[2,128]{1,0} concatenate(p, n), dimensions={1}
      ROOT a = f32[2,128]{1,0} abs(c)""",
    "in_place_unrecognized": """p = f32[4,4]{1,0} parameter(0)
      z = s32[] constant(0)
      t = f32[4,4]{1,0} transpose(p), dimensions={1,0}
      ROOT u = f32[4,4]{1,0} dynamic-update-slice(p, t, z, z)""",
    "in_place_slice_index": """p = f32[8]{0} parameter(0)
      z = s32[] constant(0)
      s = f32[4]{0} slice(p), slice={[2:6]}
      ROOT u = f32[8]{0} dynamic-update-slice(p, s, z)""",
}


@pytest.mark.parametrize("code", REFUSED)
def test_every_refusal_names_its_gate(code: str) -> None:
    _, decisions = fused(REFUSED[code])
    codes = [one.code for one in decisions if one.verdict == "refused"]
    assert code in codes
    assert all(one.reason for one in decisions if one.verdict == "refused")


def test_plain_words_exist_for_every_refusing_gate() -> None:
    assert {code for code, words in GATES if words} == set(MEANING)


def test_a_chain_becomes_one_fusion_named_after_its_first_edge() -> None:
    module, decisions = fused(
        """p = f32[64]{0} parameter(0)
        q = f32[64]{0} parameter(1)
        a = f32[64]{0} add(p, q)
        n = f32[64]{0} negate(a)
        ROOT m = f32[64]{0} multiply(n, p)"""
    )
    root = module.entry.root
    assert (root.opcode, root.name, root.attr("kind")) == ("fusion", "negate_multiply_fusion", "kLoop")
    assert [one.name for one in root.operands] == ["p", "q"]
    assert {one.opcode for one in root.callee("calls")} == {"parameter", "add", "negate", "multiply"}
    assert [(one.subject, one.verdict, one.made) for one in decisions] == [
        ("n", "fused", root.name), ("a", "fused", root.name),
    ]  # fmt: skip
    assert decisions[0].bytes == 256


def test_a_slice_at_the_updated_place_moves_in() -> None:
    module, _ = fused(
        """p = f32[8]{0} parameter(0)
        z = s32[] constant(2)
        s = f32[4]{0} slice(p), slice={[2:6]}
        n = f32[4]{0} negate(s)
        ROOT u = f32[8]{0} dynamic-update-slice(p, n, z)"""
    )
    assert {"slice", "negate"} < {one.opcode for one in module.entry.root.callee("calls")}


def test_fuel_stops_at_the_exact_edge() -> None:
    body = """p = f32[64]{0} parameter(0)
        a = f32[64]{0} abs(p)
        n = f32[64]{0} negate(a)
        ROOT m = f32[64]{0} ceil(n)"""
    sizes = []
    for fuel in range(4):
        module, _ = fused(body, fuel=fuel)
        root = module.entry.root
        sizes.append(len(root.callee("calls")) - 1 if root.opcode == "fusion" else 1)
    assert sizes == [1, 2, 3, 3]


def test_the_wrapper_leaves_no_loop_instruction_alone() -> None:
    text = f"""HloModule m\n{SUM}ENTRY e {{
      p = f32[4,4]{{1,0}} parameter(0)
      z = f32[] constant(0)
      n = f32[4,4]{{1,0}} negate(p)
      c = f32[4,4]{{0,1}} copy(n)
      k = f32[4,4]{{0,1}} copy(c)
      ROOT r = f32[4]{{0}} reduce(k, z), dimensions={{0}}, to_apply=sum
    }}"""
    module = load_module(text)
    assert CpuFusionWrapper().run(module, PassContext())
    assert [one.name for one in module.entry if one.opcode == "fusion"] == [
        "wrapped_negate", "wrapped_copy", "wrapped_reduce",
    ]  # fmt: skip
    assert module.find_instruction("k") is not None, "a copy that keeps the layout is a memcpy"
    assert not CpuFusionWrapper().run(module, PassContext())


@pytest.mark.parametrize("case", ["mlp_train", "kv_cache_decode", "rng_dropout__narrow", "tp_mlp"])
def test_fusions_of_real_compiles_are_reproduced(corpus: Path, case: str) -> None:
    with open_dump(str(corpus / "cpu" / case)) as dump:
        section = audit_cpu(DumpCompile(dump.modules[0]))
    for name, figure in section.figures.items():
        assert figure.total and figure.agree == figure.total, (name, figure.first_disagreements)
