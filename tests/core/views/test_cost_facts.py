"""The cost of one line: what a kernel on blocks keeps it does once, and memory gives an operand once."""

from __future__ import annotations

import pytest

from hloscope.core.text.module_index import ModuleIndex
from hloscope.core.views.cost_facts import CostFacts, cost_facts

NORM = """HloModule m

largest {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] maximum(a, b)
}

body {
  x = f32[512,1000]{1,0} parameter(0)
  low = f32[] constant(-inf)
  top = f32[512]{0} reduce(x, low), dimensions={1}, to_apply=largest
  tops = f32[512,1000]{1,0} broadcast(top), dimensions={0}
  less = f32[512,1000]{1,0} subtract(x, tops)
  again = f32[512]{0} reduce(less, low), dimensions={1}, to_apply=largest
  agains = f32[512,1000]{1,0} broadcast(again), dimensions={0}
  ROOT out = f32[512,1000]{1,0} subtract(less, agains)
}

spread {
  s = f32[] parameter(0)
  ROOT w = f32[512,1000]{1,0} broadcast(s), dimensions={}
}

ENTRY e {
  p = f32[512,1000]{1,0} parameter(0)
  one = f32[] parameter(1)
  f = f32[512,1000]{1,0} fusion(p), kind=KIND, calls=body
  g = f32[512,1000]{1,0} fusion(one), kind=kLoop, calls=spread
  ROOT r = f32[512,1000]{1,0} add(f, g)
}
"""


def cost(name: str, kind: str) -> CostFacts:
    index = ModuleIndex.from_text(NORM.replace("KIND", kind))
    at = index.find(name)
    found = None if at is None else cost_facts(index, at)
    assert found is not None
    return found


def test_a_kernel_on_blocks_computes_each_value_once() -> None:
    # Two reductions of 512 rows by 999 steps and two subtractions of every element.
    assert cost("f", "kCustom").flops == pytest.approx(2 * 512 * 999 + 2 * 512_000, abs=2 * 512)
    # Element by element, each of a row's 1,000 results reduces the row again.
    assert cost("f", "kLoop").flops > 1000 * cost("f", "kCustom").flops


def test_memory_gives_an_operand_once() -> None:
    assert (cost("g", "kCustom").bytes_read, cost("g", "kCustom").bytes_written) == (4, 2_048_000)
    for kind in ("kCustom", "kLoop"):
        assert cost("f", kind).bytes_read == 2_048_000
