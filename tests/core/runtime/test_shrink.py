"""Smaller dimensions for what does not fit into memory."""

from __future__ import annotations

import pytest

from hloscope.core.runtime.replay import DIFFERS, NOT_EVALUATED, REFERENCE, ReplayOptions, replay
from hloscope.core.runtime.shrink import shrink, smaller_sizes

HUGE = """HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY e {
  x = bf16[4096,8192] parameter(0)
  w = bf16[8192,28672] parameter(1)
  d = bf16[4096,28672] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  h = bf16[4096,8,3584] reshape(d)
  f = f32[4096,8,3584] convert(h)
  n = f32[4096,8,3584] negate(f)
  m = f32[4096,8,3584] negate(n)
  part = f32[4096,8,1] slice(m), slice={[0:4096], [0:8], [3583:3584]}
  t = f32[4096,8,3584] tanh(m)
  z = f32[] constant(0)
  s = f32[4096] reduce(t, z), dimensions={1,2}, to_apply=sum
  ROOT r = (f32[4096], f32[4096,8,1]) tuple(s, part)
}
"""
SIMPLER = HUGE.replace("  n = f32[4096,8,3584] negate(f)\n  m = f32[4096,8,3584] negate(n)\n", "").replace("(m)", "(f)")


def replayed(*stages: str) -> list[str]:
    found = replay([lambda text=text: text for text in stages], ReplayOptions(workers=1))
    return [stage.status for stage in found.stages]


def test_sizes_that_are_products_stay_products() -> None:
    new = smaller_sizes({2, 8, 3584, 28672, 4096, 8192, 200000})
    assert new[28672] == 8 * new[3584] and new[8192] == 2 * new[4096]
    assert all(small < large for large, small in new.items()) and 8 not in new
    assert smaller_sizes({1, 5, 63}) == {}


def test_both_sides_get_the_same_sizes() -> None:
    text = HUGE.replace("[3583:3584]", "[0:1]")
    found = shrink(text, text)
    assert found is not None
    assert [p.shape.dimensions for p in found.before.entry.parameters] == [
        p.shape.dimensions for p in found.after.entry.parameters
    ]
    assert found.before.entry.parameters[0].shape.dimensions[0] < 64


def test_what_does_not_fit_is_compared_with_smaller_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloscope.core.runtime.inputs.available_memory", lambda: 1 << 24)
    monkeypatch.setattr("hloscope.core.runtime.regions.available_memory", lambda: 1 << 24)
    huge, simpler = (text.replace("[3583:3584]", "[0:1]") for text in (HUGE, SIMPLER))
    assert replayed(huge, simpler)[0] == REFERENCE and replayed(huge, simpler)[1] not in (DIFFERS, NOT_EVALUATED)
    wrong = simpler.replace("tanh(f)", "sine(f)")
    assert replayed(huge, simpler, wrong)[2] == DIFFERS
    found = replay([lambda: huge, lambda: simpler], ReplayOptions(workers=1))
    assert any("smaller dimensions (" in note for note in found.stages[1].notes)


def test_what_cannot_be_made_smaller_is_said_to_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice near the end of a dimension has no place in a smaller one."""
    monkeypatch.setattr("hloscope.core.runtime.inputs.available_memory", lambda: 1 << 24)
    monkeypatch.setattr("hloscope.core.runtime.regions.available_memory", lambda: 1 << 24)
    assert shrink(HUGE, SIMPLER) is None
    found = replay([lambda: HUGE, lambda: SIMPLER], ReplayOptions(workers=1))
    assert found.stages[1].status == NOT_EVALUATED and "GB" in found.stages[1].reason
