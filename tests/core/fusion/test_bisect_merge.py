"""A fusion that merges wrongly is found by bisection to the exact merge."""

from __future__ import annotations

import pytest

from hloscope.bisect.oracles import make_oracle
from hloscope.bisect.subjects.core import CoreSearch, CoreSubject
from hloscope.core.fusion.deciders import decide
from hloscope.core.fusion.gpu import fuse, priority_fusion
from hloscope.core.fusion.gpu.fuse import UserOrder
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.passes.flags import PassFlags
from hloscope.core.passes.pipelines import transforms_pipeline
from hloscope.core.passes.registry import Registry
from hloscope.core.text import load_module

TEXT = """HloModule m
ENTRY e {
  a = f32[64,8]{1,0} parameter(0)
  b = f32[8,8]{1,0} parameter(1)
  x = f32[64,8]{1,0} abs(a)
  y = f32[64,8]{1,0} cosine(a)
  s1 = f32[64,8]{1,0} subtract(x, y)
  e1 = f32[64,8]{1,0} exponential(s1)
  d = f32[64,8]{1,0} dot(e1, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s2 = f32[64,8]{1,0} subtract(d, a)
  n2 = f32[64,8]{1,0} tanh(s2)
  d2 = f32[64,8]{1,0} dot(n2, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s3 = f32[64,8]{1,0} subtract(d2, a)
  ROOT n3 = f32[64,8]{1,0} tanh(s3)
}
"""


@pytest.mark.parametrize("wrong", ["s1", "s2", "s3"])
def test_the_exact_merge_is_named(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    fuels = {one.subject: one.fuel for one in decide(load_module(TEXT), "gpu").decisions if one.verdict == "fused"}
    assert len(fuels) > 3

    def pull_in(fusion: HloInstruction, producer: HloInstruction, users: UserOrder | None = None) -> None:
        guilty = producer.name == wrong
        fuse.pull_in(fusion, producer, users)
        if guilty:
            (inner,) = [one for one in fusion.callee().instructions if one.opcode == "subtract"]
            left, right = inner.operands
            inner.parent.replace(inner, HloInstruction("subtract", inner.shape, (right, left)))

    monkeypatch.setattr(priority_fusion, "pull_in", pull_in)
    registry, module = Registry(), load_module(TEXT)
    subject = CoreSubject(
        module,
        "m.hlo",
        lambda: transforms_pipeline(registry.make_all("algsimp,priority-fusion,dce"), registry),
        registry,
        PassFlags(),
    )
    answer = CoreSearch(subject, make_oracle("reference", module, None, 0), None).run()
    assert answer.verdict == "wrong-stage"
    (culprit,) = answer.culprits
    assert culprit.pass_name == "priority-fusion"
    assert culprit.instruction == wrong
    assert culprit.fuel == (fuels[wrong] or 0) + 1, "the least budget that lets it happen"
