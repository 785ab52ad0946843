"""Sharing and what-if, and the map of the peak."""

from __future__ import annotations

import pytest

from hloscope.core.buffers.assignment import CPU, assign_buffers
from hloscope.core.buffers.memory_map import map_of_assignment
from hloscope.core.buffers.questions import can_share, what_if
from hloscope.core.buffers.recompute import recomputable
from hloscope.core.errors import UsageError
from hloscope.core.text import load_module

TEXT = """HloModule q, is_scheduled=true
ENTRY e {
  a = f32[256]{0} parameter(0)
  k = f32[256]{0} constant({...})
  n = f32[256]{0} reverse(a), dimensions={0}
  m = f32[256]{0} reverse(n), dimensions={0}
  s = f32[256]{0} add(n, m)
  t = f32[256]{0} reverse(s), dimensions={0}
  u = f32[256]{0} copy(t)
  ROOT r = f32[256]{0} add(u, k)
}
"""


@pytest.mark.parametrize(
    ("pair", "could", "code"),
    [
        (("n", "m"), False, "live_ranges_overlap"),
        (("n", "t"), True, "disjoint"),
        (("n", "s"), True, None),
        (("s", "t"), False, "live_ranges_touch"),
        (("t", "u"), False, "live_ranges_touch"),
        (("a", "n"), False, "read_only"),
        (("k", "n"), False, "read_only"),
        (("n", "n"), True, "same_value"),
    ],
)
def test_why_two_values_cannot_share(pair: tuple[str, str], could: bool, code: str | None) -> None:
    answer = can_share(assign_buffers(load_module(TEXT)), *pair)
    assert answer.could is could, answer
    if code is not None:
        assert answer.code == code
    assert answer.reason


def test_the_peak_is_what_is_alive_then() -> None:
    memory = map_of_assignment(assign_buffers(load_module(TEXT)))
    step, peak = memory.peak
    alive = memory.at(step)
    assert peak == sum(value.size for value in alive)
    assert {row.code for row in memory.largest_at_peak()} <= {
        "parameter", "constant", "making", "waiting", "output", "loop_state", "donated",
    }  # fmt: skip


def test_a_donated_parameter_counts_while_nothing_lives_in_it() -> None:
    text = """HloModule d, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }

ENTRY e {
  p = f32[64]{0} parameter(0)
  t = f32[1]{0} slice(p), slice={[0:1]}
  s = f32[] bitcast(t)
  a = f32[1024]{0} broadcast(s), dimensions={}
  c = f32[1024]{0} reverse(a), dimensions={0}
  ROOT r = f32[64]{0} slice(c), slice={[0:64]}
}
"""
    memory = map_of_assignment(assign_buffers(load_module(text)))
    step, peak = memory.peak
    assert peak == sum(value.size for value in memory.at(step))
    (held,) = [row for row in memory.largest_at_peak() if row.code == "donated"]
    assert held.value.name == "p" and "nothing lives in it" in held.reason


def test_what_if() -> None:
    module = load_module(TEXT)
    before = assign_buffers(module)
    donated = what_if(module, CPU, before, "donate:0")
    assert donated.total_after == donated.total_before - 1024
    assert "output {}" in donated.note


def test_what_if_a_value_were_smaller_or_not_kept() -> None:
    module = load_module(
        """HloModule w, is_scheduled=true
ENTRY e {
  a = f32[64]{0} parameter(0)
  b = f32[64,64]{1,0} broadcast(a), dimensions={0}
  c = f32[64,64]{0,1} reverse(b), dimensions={0}
  ROOT r = f32[64]{0} slice(a), slice={[0:64]}
}
"""
    )
    before = assign_buffers(module)
    dropped = what_if(module, CPU, before, "drop:b")
    narrow = what_if(module, CPU, before, "dtype:b=bf16")
    assert dropped.peak_before - dropped.peak_after == 64 * 64 * 4
    assert narrow.peak_before - narrow.peak_after == 64 * 64 * 2


@pytest.mark.parametrize("change", ["", "drop:", "drop:nobody", "donate:7", "donate:x", "dtype:m=f33", "grow:m"])
def test_a_bad_change_is_told(change: str) -> None:
    module = load_module(TEXT)
    with pytest.raises(UsageError):
        what_if(module, CPU, assign_buffers(module), change)


def test_what_could_be_computed_again() -> None:
    module = load_module(
        """HloModule w, is_scheduled=true
ENTRY e {
  a = f32[64]{0} parameter(0)
  b = f32[64,64]{1,0} broadcast(a), dimensions={0}
  n = f32[64]{0} negate(a)
  k = f32[64,64]{1,0} broadcast(n), dimensions={0}
  c = f32[64,64]{1,0} reverse(b), dimensions={0}
  d = f32[64,64]{1,0} reverse(c), dimensions={0}
  m = f32[64,64]{1,0} add(d, k)
  ROOT r = f32[64,64]{1,0} add(m, b)
}
"""
    )
    found = recomputable(assign_buffers(module))
    # b comes from the parameter, which is there; k comes from n, which is not.
    assert [(one.name, one.before, one.size) for one in found] == [("b", "r", 64 * 64 * 4)]


def test_a_donation_that_nothing_orders_costs_a_copy() -> None:
    """As XLA:CPU does it: the reader comes before the output by the schedule, but no dependency says so."""
    module = load_module(
        """HloModule m, is_scheduled=true
ENTRY e {
  a = f32[64]{0} parameter(0)
  b = f32[64]{0} parameter(1)
  r = f32[64]{0} reverse(a), dimensions={0}
  n = f32[64]{0} negate(b)
  ROOT t = (f32[64]{0}, f32[64]{0}) tuple(n, r)
}
"""
    )
    before = assign_buffers(module)
    found = what_if(module, CPU, before, "donate:0")
    assert found.note.startswith("taken by output {0}; the compiler would copy 256 bytes more, since no dependency")
    assert "copy" not in [one.opcode for one in module.instructions()]
    free = what_if(module, CPU, before, "donate:1")
    assert free.note == "taken by output {0}" and free.total_after == before.total_bytes - 256
