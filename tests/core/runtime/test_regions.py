"""Stages compared where they differ."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hloscope.core.errors import EvaluationError
from hloscope.core.runtime.evaluator.values import TooLargeError
from hloscope.core.runtime.regions import changed_regions, check_regions
from hloscope.core.runtime.replay import DIFFERS, REFERENCE, ReplayOptions, replay
from hloscope.core.text import load_module
from hloscope.core.views.run import load

LONG = """HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY e {
  x = f32[8,8] parameter(0)
  y = f32[8,8] parameter(1)
  d = f32[8,8] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[8,8] tanh(d)
  n = f32[8,8] negate(t)
  m = f32[8,8] negate(n)
  z = f32[] constant(0)
  s = f32[8] reduce(m, z), dimensions={1}, to_apply=sum
  ROOT r = f32[8] cosine(s)
}
"""
SHORT = LONG.replace("  n = f32[8,8] negate(t)\n  m = f32[8,8] negate(n)\n", "").replace("reduce(m, z)", "reduce(t, z)")


def test_only_what_changed_is_evaluated() -> None:
    found = check_regions(load_module(LONG), load_module(SHORT))
    assert found.within and found.firm and found.widened == 0
    assert found.computed < 8, "tanh and dot are common ground"
    assert [name for name, _ in found.comparisons] == ["s"] or [name for name, _ in found.comparisons] == ["r"]


def test_a_wrong_change_is_found_and_equal_modules_have_no_regions() -> None:
    wrong = LONG.replace("m = f32[8,8] negate(n)", "m = f32[8,8] abs(n)")
    found = check_regions(load_module(LONG), load_module(wrong))
    assert not found.within
    assert changed_regions(load_module(LONG), load_module(LONG.replace(" d ", " d ").replace("sum", "plus"))) == []


def test_borders_that_are_really_equal_are_computed() -> None:
    """b and c are the same value; random ones are not, until they are computed."""
    before = """HloModule m

ENTRY e {
  x = f32[4] parameter(0)
  b = f32[4] negate(x)
  c = f32[4] negate(x)
  k = f32[4] add(b, c)
  u = f32[4] sine(b)
  ROOT r = (f32[4], f32[4]) tuple(k, u)
}
"""
    after = before.replace("add(b, c)", "add(b, b)")
    found = check_regions(load_module(before), load_module(after))
    assert found.within and found.widened == 1


def test_a_loop_body_is_compared_on_its_own() -> None:
    before = """HloModule m

cond {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(1000000000)
  ROOT c = pred[] compare(i, n), direction=LT
}

body {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  v = f32[4] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  w = f32[4] add(v, v)
  ROOT t = (s32[], f32[4]) tuple(j, w)
}

ENTRY e {
  x = (s32[], f32[4]) parameter(0)
  ROOT r = (s32[], f32[4]) while(x), condition=cond, body=body
}
"""
    doubled = before.replace(
        "  w = f32[4] add(v, v)",
        "  two = f32[] constant(2)\n  b = f32[4] broadcast(two), dimensions={}\n  w = f32[4] multiply(v, b)",
    )
    assert check_regions(load_module(before), load_module(doubled)).within
    assert not check_regions(load_module(before), load_module(doubled.replace("constant(2)", "constant(3)"))).within


def test_a_collective_in_a_region_runs_on_all_devices() -> None:
    before = """HloModule m, num_partitions=2

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY e {
  x = f32[4] parameter(0)
  g = f32[4] all-reduce(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=sum
  ROOT n = f32[4] negate(g)
}
"""
    after = before.replace("all-reduce(x)", "all-reduce(h)").replace("negate(g)", "copy(g)")
    after = after.replace("  g = ", "  h = f32[4] negate(x)\n  g = ")
    assert check_regions(load_module(before), load_module(after)).within
    assert not check_regions(load_module(before), load_module(after.replace("{{0,1}}", "{{0},{1}}"))).within


def test_what_cannot_be_compared_is_said() -> None:
    other = "HloModule m\n\nENTRY e {\n  x = f32[3] parameter(0)\n  ROOT r = f32[3] negate(x)\n}\n"
    with pytest.raises(EvaluationError, match="other parameters"):
        check_regions(load_module(LONG), load_module(other))
    huge = """HloModule m

ENTRY e {
  x = f32[4096,4096,4096,64] parameter(0)
  n = f32[4096,4096,4096,64] negate(x)
  ROOT r = f32[4096,4096,4096,64] abs(n)
}
"""
    with pytest.raises(TooLargeError, match="GB"):
        check_regions(load_module(huge), load_module(huge.replace("abs(n)", "copy(n)")))


def test_a_program_that_does_not_fit_is_replayed_by_region() -> None:
    huge = """HloModule m

ENTRY e {
  x = f32[65536,65536,64] parameter(0)
  i = s32[] parameter(1)
  big = f32[65536,65536,64] negate(x)
  s = f32[1,8,8] dynamic-slice(big, i, i, i), dynamic_slice_sizes={1,8,8}
  n = f32[1,8,8] negate(s)
  k = f32[1,8,8] negate(n)
  ROOT r = f32[1,8,8] tanh(k)
}
"""
    light = huge.replace("  n = f32[1,8,8] negate(s)\n  k = f32[1,8,8] negate(n)\n", "").replace("tanh(k)", "tanh(s)")
    wrong = light.replace("tanh(s)", "sine(s)")
    found = replay([lambda text=t: text for t in (huge, light, wrong, wrong)], ReplayOptions(workers=1))
    assert [stage.status for stage in found.stages][0] == REFERENCE
    assert found.first_difference == 2 and found.stages[2].status == DIFFERS
    assert [stage.how for stage in found.stages[1:3]] == ["region", "region"]
    assert any("only what each stage changed" in note for note in found.notes)


@pytest.mark.parametrize("name", ["gpu_narrow", "tpu"])
def test_real_dumps_by_region(fixtures: Path, name: str) -> None:
    with load(str(fixtures / "dumps" / name)) as run:
        texts = [run.stage_text(i) for i in range(len(run))]
    options = ReplayOptions(workers=1, regions=True)
    found = replay([lambda text=t: text for t in texts], options)
    assert found.first_difference is None and found.evaluated >= len(texts) - 1
    if name == "gpu_narrow":
        bad = [re.sub(r"\badd\(", "subtract(", t, count=1) if i >= 6 else t for i, t in enumerate(texts)]
        assert replay([lambda text=t: text for t in bad], options).first_difference == 6


def test_duplicates_that_become_one_are_equal_however_long_they_are() -> None:
    steps = ("negate", "tanh", "cosine", "negate", "sine", "tanh", "negate", "cosine")

    def chain(name: str) -> str:
        return "".join(f"  {name}{i} = f32[4] {op}({f'{name}{i - 1}' if i else 'x'})\n" for i, op in enumerate(steps))

    last = len(steps) - 1
    head = "HloModule m\n\nENTRY e {\n  x = f32[4] parameter(0)\n"
    before = f"{head}{chain('a')}{chain('b')}  ROOT r = f32[4] subtract(a{last}, b{last})\n}}\n"
    after = f"{head}{chain('a')}  ROOT r = f32[4] subtract(a{last}, a{last})\n}}\n"
    assert check_regions(load_module(before), load_module(after)).within
    wrong = after.replace("subtract(", "add(")
    assert not check_regions(load_module(before), load_module(wrong)).within
