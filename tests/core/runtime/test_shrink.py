"""Smaller dimensions for what does not fit into memory."""

from __future__ import annotations

import pytest

from hloscope.core.runtime.replay import DIFFERS, NOT_EVALUATED, REFERENCE, ReplayOptions, replay
from hloscope.core.runtime.shrink import shrink

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


def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("inputs", "regions"):
        monkeypatch.setattr(f"hloscope.core.runtime.{module}.available_memory", lambda: 1 << 24)


def test_sizes_that_are_products_stay_products() -> None:
    found = shrink(HUGE, SIMPLER)
    assert found is not None and not found.moved
    new = found.sizes
    assert new[28672] == 8 * new[3584] and new[3584] == new[3583] + 1
    assert all(small < large for large, small in new.items()) and 8 not in new
    small = "HloModule m\n\nENTRY e {\n  ROOT x = f32[5,63] parameter(0)\n}\n"
    assert shrink(small, small) is None


def test_both_sides_get_the_same_sizes() -> None:
    found = shrink(HUGE, HUGE)
    assert found is not None
    assert [p.shape.dimensions for p in found.before.entry.parameters] == [
        p.shape.dimensions for p in found.after.entry.parameters
    ]
    assert found.before.entry.parameters[0].shape.dimensions[0] < 64


def test_what_does_not_fit_is_compared_with_smaller_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    little_memory(monkeypatch)
    wrong = SIMPLER.replace("tanh(f)", "sine(f)")
    statuses = replayed(HUGE, SIMPLER, wrong)
    assert statuses[0] == REFERENCE and statuses[1] not in (DIFFERS, NOT_EVALUATED) and statuses[2] == DIFFERS
    found = replay([lambda: HUGE, lambda: SIMPLER], ReplayOptions(workers=1))
    assert any("smaller dimensions (" in note for note in found.stages[1].notes)


WINDOWS = """HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY e {
  x = f32[2,224,224,96] parameter(0)
  w = f32[5,5,96,192] parameter(1)
  z = f32[] constant(0)
  p = f32[2,228,228,96] pad(x, z), padding=0_0x2_2x2_2x0_0
  c = f32[2,224,224,192] convolution(p, w), window={size=5x5}, dim_labels=b01f_01io->b01f
  m = f32[2,112,112,192] reduce-window(c, z), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=sum
  d = f32[3,3,1,192] parameter(2)
  g = f32[2,112,112,192] convolution(m, d), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f,
    feature_group_count=192
  o = f32[2,110,110,192] slice(g), slice={[0:2], [2:112], [0:110], [0:192]}
  t = f32[2,110,21120] reshape(o)
  ROOT s = f32[2,110,21120] reduce-window(t, z), window={size=1x110x1 pad=0_0x109_0x0_0}, to_apply=sum
}
"""


def test_windows_pads_and_groups_become_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = WINDOWS.replace("convolution(p, w), window={size=5x5}", "convolution(x, w), window={size=5x5 pad=2_2x2_2}")
    merged = merged.replace("  p = f32[4096,228,228,96] pad(x, z), padding=0_0x2_2x2_2x0_0\n", "")
    found = shrink(WINDOWS, merged)
    assert found is not None and not found.moved
    new = found.sizes
    assert new[228] == new[224] + 4 and new[224] == 2 * new[112] and new[112] == new[110] + 2
    assert new[109] == new[110] - 1 and new[21120] == new[110] * new[192]
    little_memory(monkeypatch)
    wrong = merged.replace("pad=2_2x2_2", "pad=3_1x2_2")
    statuses = replayed(WINDOWS, merged, wrong)
    assert statuses[1] not in (DIFFERS, NOT_EVALUATED) and statuses[2] == DIFFERS


def test_positions_that_nothing_fixes_do_not_raise_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 + 80 = 180 stands nowhere in the program, so the smaller slices may start elsewhere."""
    twice = """HloModule m

ENTRY e {
  x = f32[1000000000] parameter(0)
  a = f32[500000000] slice(x), slice={[100:500000100]}
  b = f32[600] slice(a), slice={[80:680]}
  ROOT t = f32[600] negate(b)
}
"""
    once = twice.replace("  a = f32[500000000] slice(x), slice={[100:500000100]}\n", "")
    once = once.replace("slice(a), slice={[80:680]}", "slice(x), slice={[180:780]}")
    found = shrink(twice, once)
    assert found is not None and found.moved
    little_memory(monkeypatch)
    (_, stage) = replay([lambda: twice, lambda: once], ReplayOptions(workers=1)).stages
    assert stage.status == NOT_EVALUATED and "positions" in stage.reason


def test_what_cannot_be_made_smaller_is_said_to_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of values is as long as it is."""
    little_memory(monkeypatch)
    values = ", ".join("1" for _ in range(3584))
    fixed = [
        text.replace("  t = ", f"  v = f32[3584] constant({{{values}}})\n  u = f32[4096,8,3584] broadcast(v), "
                     "dimensions={2}\n  t = ")
        for text in (HUGE, SIMPLER)
    ]  # fmt: skip
    assert shrink(*fixed) is None
    found = replay([lambda: fixed[0], lambda: fixed[1]], ReplayOptions(workers=1))
    assert found.stages[1].status == NOT_EVALUATED and "GB" in found.stages[1].reason


def test_constants_that_are_positions_become_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    head = "HloModule m\n\nENTRY e {\n  x = f32[4096,3000] parameter(0)\n  z = f32[] constant(0)\n"
    padded = head + "  ROOT p = f32[4096,6000] pad(x, z), padding=0_0x3000_0\n}\n"
    chosen = f"""{head}  p = f32[4096,6000] pad(x, z), padding=0_0x3000_0
  i = s32[4096,6000] iota(), iota_dimension=1
  c = s32[] constant(3000)
  b = s32[4096,6000] broadcast(c), dimensions={{}}
  m = pred[4096,6000] compare(i, b), direction=GE
  y = f32[4096,6000] broadcast(z), dimensions={{}}
  ROOT s = f32[4096,6000] select(m, p, y)
}}
"""
    little_memory(monkeypatch)
    statuses = replayed(padded, chosen, chosen.replace("direction=GE", "direction=LT"))
    assert statuses[1] not in (DIFFERS, NOT_EVALUATED) and statuses[2] == DIFFERS
    unknown = chosen.replace("constant(3000)", "constant(2999)").replace("GE", "GT")
    assert replayed(padded, unknown)[1] != DIFFERS
