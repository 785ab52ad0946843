"""Loops whose state grows."""

from __future__ import annotations

from hloscope.core.passes.context import PassContext
from hloscope.core.passes.invariants import findings
from hloscope.core.passes.registry import Registry
from hloscope.core.text import load_module

# The loop is the entry's root, and its result goes to a user as a whole.
WHOLE = """HloModule m, entry_computation_layout={(f32[4]{0})->(s32[], f32[4]{0}, f32[4]{0})}

body {
  s = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  w = f32[4] get-tuple-element(s), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  v = f32[4] exponential(w)
  y = f32[4] add(x, v)
  ROOT t = (s32[], f32[4], f32[4]) tuple(j, y, w)
}

condition {
  s = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT
}

ENTRY e {
  a = f32[4] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[4], f32[4]) tuple(z, a, a)
  ROOT l = (s32[], f32[4], f32[4]) while(t), condition=condition, body=body
}
"""


def test_a_loop_that_is_the_root_keeps_the_result_of_the_module() -> None:
    module = load_module(WHOLE)
    before = module.entry.root.shape
    assert Registry().make("while-loop-invariant-code-motion").run(module, PassContext())
    assert module.entry.root.shape == before
    assert list(findings(module)) == []
    loop = next(one for one in module.entry if one.opcode == "while")
    assert len(loop.shape.tuple_shapes) == 4
    body = loop.called["body"][0]
    assert [one.opcode for one in body if one.opcode == "exponential"] == []
