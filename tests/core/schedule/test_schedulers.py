"""Every scheduler gives a legal order; the chooser takes the smallest peak."""

from __future__ import annotations

import pytest

from hloscope.core.analysis.alias import AliasAnalysis
from hloscope.core.errors import UsageError
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.passes.context import PassContext
from hloscope.core.schedule.async_placement import place_asynchronous
from hloscope.core.schedule.memory_scheduler import HloMemoryScheduler, choose_schedule
from hloscope.core.schedule.possible_orders import first_impossible_step
from hloscope.core.schedule.schedulers import SCHEDULERS
from hloscope.core.text import load_module

WIDE = """HloModule wide
ENTRY e {
  a = f32[1024]{0} parameter(0)
  b1 = f32[1024]{0} reverse(a), dimensions={0}
  b2 = f32[1024]{0} cosine(a)
  b3 = f32[1024]{0} sine(a)
  i = f32[] constant(0)
  s1 = f32[16]{0} slice(b1), slice={[0:16]}
  s2 = f32[16]{0} slice(b2), slice={[0:16]}
  s3 = f32[16]{0} slice(b3), slice={[0:16]}
  t = f32[16]{0} add(s1, s2)
  ROOT r = f32[16]{0} add(t, s3), control-predecessors={b1}
}
"""


def legal(order: list[str], computation: HloComputation) -> bool:
    place = {name: number for number, name in enumerate(order)}
    return len(order) == len(computation) and all(
        place[before.name] < place[node.name]
        for node in computation
        for before in (*node.operands, *node.control_predecessors)
    )


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_the_order_is_legal(name: str) -> None:
    module = load_module(WIDE)
    order = SCHEDULERS[name](module.entry, AliasAnalysis(module))
    assert legal([node.name for node in order], module.entry)


def test_breadth_first_takes_what_is_ready_in_turn() -> None:
    module = load_module(WIDE)
    order = [node.name for node in SCHEDULERS["bfs"](module.entry, AliasAnalysis(module))]
    assert order == ["a", "i", "b1", "b2", "b3", "s1", "s2", "s3", "t", "r"]


def test_memory_orders_finish_one_branch_before_the_next() -> None:
    module = load_module(WIDE)
    analysis = AliasAnalysis(module)
    wide = choose_schedule(analysis, "bfs")[1]["bfs"]
    _, peaks = choose_schedule(analysis, "best")
    assert set(peaks) == {"list", "dfs", "post-order"}
    # Breadth-first keeps three arrays of 4 KiB beside the parameter; one branch at a time keeps one.
    assert min(peaks.values()) < wide and wide >= 4 * 4096


def test_the_pass_marks_the_module_scheduled_once() -> None:
    module = load_module(WIDE)
    assert HloMemoryScheduler().run(module, PassContext(target="cpu"))
    assert module.is_scheduled and not HloMemoryScheduler().run(module, PassContext())


def test_an_unknown_algorithm_is_told() -> None:
    with pytest.raises(UsageError, match="no scheduler 'fast'"):
        HloMemoryScheduler("fast").run(load_module(WIDE), PassContext())


def test_asynchronous_operations_start_early_and_end_late() -> None:
    module = load_module(
        """HloModule a
sum { x = f32[] parameter(0) y = f32[] parameter(1) ROOT s = f32[] add(x, y) }
ENTRY e {
  p = f32[1024]{0} parameter(0)
  q = f32[1024]{0} parameter(1)
  n = f32[1024]{0} negate(p)
  c = f32[1024]{0} cosine(q)
  d = f32[1024]{0} sine(c)
  start = f32[1024]{0} all-reduce-start(n), replica_groups={}, to_apply=sum
  done = f32[1024]{0} all-reduce-done(start)
  ROOT r = f32[1024]{0} add(done, d)
}
"""
    )
    entry = next(one for one in module.computations if one.is_entry)
    order = [node.name for node in place_asynchronous(entry.instructions)]
    assert legal(order, entry)
    assert order.index("start") == order.index("n") + 1
    assert order.index("done") == order.index("r") - 1


CALLING = """HloModule calling
twice { p = f32[64]{0} parameter(0) ROOT d = f32[64]{0} add(p, p) }
ENTRY e {
  a = f32[64]{0} parameter(0)
  b = f32[64]{0} parameter(1)
  c = f32[64]{0} call(b), to_apply=twice
  ROOT t = (f32[64]{0}, f32[64]{0}) tuple(a, c)
}
"""


def test_the_list_scheduler_counts_what_a_call_gives_as_made_by_it() -> None:
    """As XLA:GPU of jaxlib 0.10.2 orders calls; by the dataflow alone the call would make nothing and come before a."""
    module = load_module(CALLING)
    analysis = AliasAnalysis(module)
    order = SCHEDULERS["list"](module.entry, analysis)
    assert [node.name for node in order] == ["b", "a", "c", "t"]
    early = [order[0], order[2], order[1], order[3]]
    assert first_impossible_step("list", module.entry, early, analysis) == 1
    assert first_impossible_step("list", module.entry, [order[1], order[0], *order[2:]], analysis) is None


def test_orders_that_differ_by_ties_alone_are_possible() -> None:
    module = load_module(WIDE)
    analysis = AliasAnalysis(module)
    order = SCHEDULERS["bfs"](module.entry, analysis)
    tie = [order[1], order[0], order[2], order[4], order[3], *order[5:]]
    # The slices become ready in the order of what they read.
    assert first_impossible_step("bfs", module.entry, tie, analysis) == 6
    tie[6], tie[7] = tie[7], tie[6]
    assert first_impossible_step("bfs", module.entry, tie, analysis) is None
    assert first_impossible_step("dfs", module.entry, order, analysis) is not None
