"""Wrong sharing is found where it is, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.analysis.heap_placement import Chunk
from hloscope.core.analysis.live_range import HloLiveRange
from hloscope.core.buffers.assignment import assign_buffers
from hloscope.core.buffers.hazards import (
    Hazard,
    control_edges,
    find_hazards,
    lost_donations,
    order_hazards,
    places_of,
)
from hloscope.core.hlo.module import HloModule
from hloscope.core.text import load_module
from hloscope.core.views.run import load

TWO_UPDATES = """HloModule twodus, is_scheduled=true
fc {
  p = f32[8]{0} parameter(0)
  u = f32[2]{0} parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  d1 = f32[8]{0} dynamic-update-slice(p, u, i)
  d2 = f32[8]{0} dynamic-update-slice(p, u, j)
  ROOT t = (f32[8]{0}, f32[8]{0}) tuple(d1, d2)
}
ENTRY q {
  b = f32[8]{0} parameter(0)
  u = f32[2]{0} parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  c = f32[8]{0} copy(b)
  ROOT m = (f32[8]{0}, f32[8]{0}) fusion(c, u, i, j), kind=kLoop, calls=fc
}
"""
UPDATE = """HloModule u, is_scheduled=true
fc {{
  p = f32[8]{{0}} parameter(0)
  s = f32[4]{{0}} {read}
  n = f32[4]{{0}} negate(s)
  k = s32[] constant({at})
  ROOT d = f32[8]{{0}} dynamic-update-slice(p, n, k)
}}
ENTRY q {{
  b = f32[8]{{0}} parameter(0)
  c = f32[8]{{0}} copy(b)
  ROOT m = f32[8]{{0}} fusion(c), kind=kLoop, calls=fc
}}
"""
DONATED = """HloModule d, is_scheduled=true, input_output_alias={ {0}: (0, {}, must-alias) }
ENTRY q {
  a = f32[8]{0} parameter(0)
  n = f32[8]{0} negate(a)
  s = f32[8]{0} sine(a)
  ROOT t = (f32[8]{0}, f32[8]{0}) tuple(n, s)
}
"""


def hazards(module: HloModule) -> list[Hazard]:
    assignment = assign_buffers(module)
    return find_hazards(assignment.analysis, HloLiveRange(assignment.analysis), places_of(assignment))


def test_two_results_in_one_place() -> None:
    found = [one for one in hazards(load_module(TWO_UPDATES)) if one.code == "outputs_share_storage"]
    assert [one.instruction for one in found] == ["m"]
    assert found[0].values == ("m{0}", "m{1}")


@pytest.mark.parametrize(
    ("read", "at", "wrong"),
    [
        ("slice(p), slice={[0:4]}", 1, True),  # reads one before what it writes
        ("slice(p), slice={[1:5]}", 1, False),  # reads what it writes
        ("slice(p), slice={[0:4]}", 4, False),  # reads what it never writes
        ("slice(p), slice={[2:6]}", 0, True),
    ],
)
def test_reads_of_what_is_written(read: str, at: int, wrong: bool) -> None:
    found = hazards(load_module(UPDATE.format(read=read, at=at)))
    assert [one.code for one in found] == (["reads_other_positions"] if wrong else [])


def test_a_donated_parameter_read_too_late() -> None:
    found = hazards(load_module(DONATED))
    assert [(one.code, one.instruction, one.other_instruction) for one in found] == [("donated_overwritten", "s", "n")]


def test_a_value_moved_onto_a_live_one_is_found() -> None:
    module = load_module(
        """HloModule m, is_scheduled=true
ENTRY q {
  a = f32[8]{0} parameter(0)
  n = f32[8]{0} reverse(a), dimensions={0}
  s = f32[8]{0} reverse(n), dimensions={0}
  c = f32[8]{0} concatenate(s), dimensions={0}
  d = f32[8]{0} add(n, c)
  e = f32[4]{0} slice(d), slice={[0:4]}
  ROOT r = f32[4]{0} reverse(e), dimensions={0}
}
"""
    )
    assignment = assign_buffers(module)
    ranges = HloLiveRange(assignment.analysis)
    assert not find_hazards(assignment.analysis, ranges, places_of(assignment))
    temp = next(one for one in assignment.allocations if one.is_temp)
    for value in temp.assigned:
        temp.assigned[value] = Chunk(0, temp.assigned[value].size)
    found = find_hazards(assignment.analysis, ranges, places_of(assignment))
    assert found and {one.code for one in found} == {"alive_together"}


def test_the_real_wrong_program_is_found_and_the_right_ones_are_clean(fixtures: Path) -> None:
    for folder in sorted((fixtures / "buffers").iterdir()):
        if folder.is_dir():
            with load(str(folder)) as run:
                codes = [(one.code, one.instruction) for one in run.buffers.hazards() if one.severity == "error"]
            wrong = [("reads_other_positions", "bitcast_dynamic-update-slice_fusion")]
            assert codes == (wrong if folder.name == "cpu_shifted_update" else []), folder.name


def test_a_lost_donation_says_why() -> None:
    first = load_module(
        "HloModule f, buffer_donor={ (0, {}) }\nENTRY e {\n  a = f32[8]{0} parameter(0)\n"
        "  ROOT r = f32[4]{0} slice(a), slice={[0:4]}\n}\n"
    )
    found = list(lost_donations(first, first))
    assert [(one.code, one.severity, one.instruction) for one in found] == [("donation_lost", "note", "a")]
    assert "no output has its size, 32 bytes" in found[0].message


EDGE = """HloModule m
ENTRY e {
  p = f32[8]{0} parameter(0)
  b = f32[8]{0} negate(p)
  a = f32[8]{0} abs(p), control-predecessors={b}
  ROOT t = (f32[8]{0}, f32[8]{0}) tuple(a, b)
}
"""


def test_a_schedule_against_a_control_edge() -> None:
    before = load_module(EDGE)
    swapped = EDGE.replace("HloModule m", "HloModule m, is_scheduled=true").split("\n")
    swapped[3], swapped[4] = swapped[4], swapped[3]
    kept = load_module("\n".join(swapped))
    assert [(one.code, one.instruction) for one in order_hazards(kept)] == [("order_lost", "a")]
    dropped = load_module("\n".join(swapped).replace(", control-predecessors={b}", ""))
    assert not list(order_hazards(dropped))
    (found,) = order_hazards(dropped, control_edges(before))
    assert (found.instruction, found.other_instruction, found.severity) == ("a", "b", "error")
    right = load_module(EDGE.replace("HloModule m", "HloModule m, is_scheduled=true"))
    assert not list(order_hazards(right, control_edges(before)))
