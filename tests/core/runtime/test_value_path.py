"""What fed the worst element: the path from it back to where two stages part."""

from __future__ import annotations

import numpy as np

from hloscope.core.runtime.evaluator import EvaluationOptions, evaluate
from hloscope.core.runtime.replay import ReplayOptions, replay
from hloscope.core.runtime.stage import Program
from hloscope.core.runtime.value_path import Recorded, path_of
from hloscope.core.text import load_module

BEFORE = """HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

scaled {
  p = f32[3,4] parameter(0)
  q = f32[4] parameter(1)
  wide = f32[3,4] broadcast(q), dimensions={1}
  ROOT times = f32[3,4] multiply(p, wide)
}

ENTRY e {
  x = f32[3,4] parameter(0)
  y = f32[4] parameter(1)
  w = f32[4,2] parameter(2)
  n = f32[4] negate(y)
  f = f32[3,4] fusion(x, n), kind=kLoop, calls=scaled
  d = f32[3,2] dot(f, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[2,3] transpose(d), dimensions={1,0}
  r = f32[2,3] reverse(t), dimensions={1}
  zero = f32[] constant(0)
  total = f32[2] reduce(r, zero), dimensions={1}, to_apply=sum
  some = f32[1,3] slice(r), slice={[1:2], [0:3]}
  flat = f32[3] reshape(some)
  ROOT out = (f32[2], f32[3]) tuple(total, flat)
}
"""


def inputs() -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (4,), (4, 2))]


def test_a_path_leads_to_where_the_stages_part() -> None:
    stages = [BEFORE, BEFORE.replace("n = f32[4] negate(y)", "n = f32[4] cosine(y)")]
    found = replay([lambda text=text: text for text in stages], ReplayOptions(workers=1), inputs=inputs())
    assert found.first_difference == 1
    path = found.stages[1].path
    names = [step.name for step in path]
    assert names[-2:] == ["n", "y"]
    assert [name for name in names if name in ("times", "wide", "n", "y")] == ["times", "wide", "n", "y"]
    parting = path[names.index("n")]
    assert parting.other is not None and parting.other != parting.value
    assert path[-1].other is None or path[-1].other == path[-1].value
    assert found.stages[1].output is not None and path[0].index == found.stages[1].worst_index


def test_every_step_of_a_path_is_what_the_next_one_reads() -> None:
    module, arrays = load_module(BEFORE), inputs()
    run = Recorded.of(module, Program(tuple(arrays), (None, None, None)), EvaluationOptions())
    (total, flat) = (np.asarray(x) for x in evaluate(module, arrays))
    for place in range(3):
        path = path_of(run, 1, (place,), {})
        values = [float(step.value) for step in path]
        assert [step.name for step in path][:6] == ["flat", "some", "r", "t", "d", "times"] or path[5].name == "w"
        assert np.float32(values[0]) == flat[place] and len({*values[:5]}) == 1
        assert path[2].index == (1, place) and path[3].index == (1, 2 - place) and path[4].index == (2 - place, 1)
    path = path_of(run, 0, (0,), {})
    assert [step.name for step in path][:4] == ["total", "r", "t", "d"]
    assert np.float32(path[0].value) == total[0]
    r = run.named()["r"]
    assert np.float32(abs(float(path[1].value))) == np.abs(r[0]).max()
