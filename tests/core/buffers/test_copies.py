"""Copy insertion: what it adds, what it removes, and that the program still means the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hloscope.core.buffers.assignment import assign_buffers
from hloscope.core.buffers.copy_insertion import CopyInsertion
from hloscope.core.buffers.loop_schedule_linearizer import LoopScheduleLinearizer
from hloscope.core.buffers.slab import run_in_slab
from hloscope.core.cli import main
from hloscope.core.errors import UnsupportedError
from hloscope.core.fusion.deciders import DecisionList
from hloscope.core.hlo.module import HloModule
from hloscope.core.hlo.verifier.verify import verify
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.pipelines import compile_module, transforms_pipeline
from hloscope.core.passes.registry import Registry
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.schedule.memory_scheduler import HloMemoryScheduler
from hloscope.core.text import load_module
from hloscope.core.views.run import load

LOOP = """HloModule loop

cond {{
  p = (s32[], f32[4]{{0}}, f32[4]{{0}}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(5)
  ROOT l = pred[] compare(i, n), direction=LT
}}

body {{
  p = (s32[], f32[4]{{0}}, f32[4]{{0}}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4]{{0}} get-tuple-element(p), index=1
  y = f32[4]{{0}} get-tuple-element(p), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
{body}
}}

ENTRY e {{
  a = f32[4]{{0}} parameter(0)
  b = f32[4]{{0}} parameter(1)
  z = s32[] constant(0)
  t = (s32[], f32[4]{{0}}, f32[4]{{0}}) tuple(z, a, b)
  w = (s32[], f32[4]{{0}}, f32[4]{{0}}) while(t), condition=cond, body=body
  u = f32[4]{{0}} get-tuple-element(w), index=1
  v = f32[4]{{0}} get-tuple-element(w), index=2
  ROOT o = (f32[4]{{0}}, f32[4]{{0}}) tuple(u, v)
}}
"""
KEPT = "  m = f32[4]{0} multiply(x, x)\n  ROOT r = (s32[], f32[4]{0}, f32[4]{0}) tuple(j, m, y)"
SWAPPED = "  ROOT r = (s32[], f32[4]{0}, f32[4]{0}) tuple(j, y, x)"
CROSSED = (
    "  m = f32[4]{0} add(x, y)\n  k = f32[4]{0} subtract(x, m)\n  ROOT r = (s32[], f32[4]{0}, f32[4]{0}) tuple(j, k, m)"
)
TWICE = """HloModule twice
ENTRY e {
  a = f32[4]{0} parameter(0)
  n = f32[4]{0} negate(a)
  ROOT o = (f32[4]{0}, f32[4]{0}, f32[4]{0}) tuple(n, n, a)
}
"""
UPDATED = """HloModule updated
ENTRY e {
  a = f32[8]{0} parameter(0)
  u = f32[2]{0} parameter(1)
  i = s32[] constant(3)
  d = f32[8]{0} dynamic-update-slice(a, u, i)
  n = f32[8]{0} add(a, d)
  ROOT o = (f32[8]{0}, f32[8]{0}) tuple(d, n)
}
"""
BRANCHES = """HloModule branches
yes { p = f32[4]{0} parameter(0) ROOT r = f32[4]{0} negate(p) }
no { p = f32[4]{0} parameter(0) ROOT r = f32[4]{0} copy(p) }
ENTRY e {
  c = pred[] parameter(0)
  a = f32[4]{0} parameter(1)
  r = f32[4]{0} conditional(c, a, a), true_computation=yes, false_computation=no
  ROOT s = f32[4]{0} add(r, a)
}
"""
CROSS_DONATED = """HloModule crossed, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }
ENTRY e {
  a = f32[4]{0} parameter(0)
  b = f32[4]{0} parameter(1)
  ROOT o = (f32[4]{0}, f32[4]{0}) tuple(b, a)
}
"""


def copies(module: HloModule) -> int:
    return sum(node.opcode == "copy" for node in module.instructions())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (LOOP.format(body=KEPT), 3),  # the constant counter, the parameter that changes, the one that is given back
        (LOOP.format(body=SWAPPED), None),
        (LOOP.format(body=CROSSED), None),
        (TWICE, 2),
        (UPDATED, 1),
        (BRANCHES, None),
        (CROSS_DONATED, None),
    ],
    ids=["kept", "swapped", "crossed", "twice", "updated", "branches", "cross-donated"],
)
@pytest.mark.parametrize("region_limit", [0, -1], ids=["plain", "regions"])
def test_a_module_with_copies_means_the_same_in_its_memory(text: str, wanted: int | None, region_limit: int) -> None:
    plain, module = load_module(text), load_module(text)
    ctx = PassContext()
    assert CopyInsertion(region_limit).run(module, ctx)
    if wanted is not None and not region_limit:
        assert copies(module) == wanted
    HloMemoryScheduler().run(module, ctx)
    arguments = inputs_for(plain.entry, 2)
    expected = evaluate(plain, arguments)
    for found in (evaluate(module, arguments), run_in_slab(assign_buffers(module), arguments)):
        assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(expected, found, strict=True))


def test_swapped_state_keeps_a_copy_that_kept_state_does_not_need() -> None:
    counts = []
    for body in (KEPT, SWAPPED):
        module = load_module(LOOP.format(body=body))
        CopyInsertion().run(module, PassContext())
        body_computation = next(one for one in module.computations if one.name == "body")
        counts.append(sum(node.opcode == "copy" for node in body_computation))
    assert counts[0] == 0 and counts[1] > 0


def test_without_fuel_no_copy_is_removed() -> None:
    text = LOOP.format(body=KEPT)
    full, none = load_module(text), load_module(text)
    CopyInsertion().run(full, PassContext())
    from hloscope.core.passes.pipeline import HloPassPipeline

    ctx = PassContext(fuel=Fuel({"copy-insertion": 0}))
    HloPassPipeline("p", [CopyInsertion()]).run(none, ctx)
    assert copies(none) > copies(full)
    arguments = inputs_for(none.entry, 2)
    for a, b in zip(evaluate(full, arguments), evaluate(none, arguments), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b))


def test_a_shared_computation_is_refused() -> None:
    module = load_module(
        """HloModule s
f { p = f32[4]{0} parameter(0) ROOT r = f32[4]{0} negate(p) }
ENTRY e {
  a = f32[4]{0} parameter(0)
  b = f32[4]{0} call(a), to_apply=f
  ROOT c = f32[4]{0} call(b), to_apply=f
}
"""
    )
    with pytest.raises(UnsupportedError, match="f is run by b and c"):
        CopyInsertion().run(module, PassContext())


def test_the_linearizer_saves_the_copy_of_state_that_is_read_before_it_is_written() -> None:
    body = (
        "  m = f32[4]{0} multiply(x, y)\n  k = f32[4]{0} add(x, y)\n"
        "  ROOT r = (s32[], f32[4]{0}, f32[4]{0}) tuple(j, m, k)"
    )
    counts: list[int] = []
    for linear in (False, True):
        module = load_module(LOOP.format(body=body))
        ctx = PassContext(target="gpu")
        if linear:
            assert LoopScheduleLinearizer().run(module, ctx)
            edges = {(before.name, node.name) for node in module.instructions() for before in node.control_predecessors}
            assert ("k", "m") in edges or ("m", "k") in edges
            assert not LoopScheduleLinearizer().run(module, ctx)
        CopyInsertion().run(module, ctx)
        counts.append(copies(module))
    assert counts[1] <= counts[0]


def test_every_decision_is_on_record(tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(LOOP.format(body=SWAPPED))
    ledger = tmp_path / "r.ledger"
    passes = "copy-insertion,hlo-memory-scheduler,buffer-assignment"
    assert main.run(["opt", "--passes", passes, str(path), "-o", str(tmp_path / "o.hlo"), "--ledger", str(ledger)]) == 0
    with load(str(ledger)) as run:
        kinds = {one.type for one in run.events()}
        assert {"copy_added", "copy_interference", "schedule_chosen", "buffer_placement", "memory_peak"} <= kinds
        stays = [one for one in run.events(type="copy_interference")]
        assert stays and all(one.code and one.subject for one in stays)
        placed = run.events(type="buffer_placement")
        peaks = [int(str(one.numbers["bytes"])) for one in run.events(type="memory_peak")]
        assert peaks == sorted(peaks) and run.buffers.map().peak_bytes == peaks[-1]
        assert len(placed) == sum(len(one.values) for one in run.buffers.map().allocations)


COPIED_FILL = """HloModule fill
fill {
  z = f32[] constant(0)
  ROOT b = f32[4,8]{1,0} broadcast(z), dimensions={}
}
shift {
  p = f32[4,8]{1,0} parameter(0)
  ROOT r = f32[4,8]{1,0} reverse(p), dimensions={0}
}
ENTRY e {
  x = f32[4,8]{1,0} parameter(0)
  f = f32[4,8]{1,0} fusion(), kind=kLoop, calls=fill
  c1 = f32[4,8]{1,0} copy(f)
  v = f32[32]{0} bitcast(f)
  c2 = f32[32]{0} copy(v)
  g = f32[4,8]{1,0} fusion(x), kind=kLoop, calls=shift
  c3 = f32[4,8]{1,0} copy(g)
  ROOT t = (f32[4,8]{1,0}, f32[4,8]{1,0}, f32[32]{0}, f32[4,8]{1,0}, f32[4,8]{1,0}) tuple(f, c1, c2, g, c3)
}
"""


def test_copies_of_a_fusion_s_result_become_further_results_of_it() -> None:
    """As in XLA:GPU, where a loop's zeroed accumulators are one kernel; a fusion that moves elements takes none."""
    module = load_module(COPIED_FILL)
    ledger = DecisionList()
    context = PassContext(ledger, target="h100")
    assert Registry().make("copy_fusion").run(module, context)
    assert not verify(module)
    entry = module.entry
    assert [one.name for one in entry if one.opcode == "copy"] == ["c3"]
    fill = module.find_instruction("f")
    assert fill is not None and fill.shape.to_text(layout=False) == "(f32[4,8], f32[4,8], f32[32])"
    assert [one.opcode for one in entry.root.operands] == ["get-tuple-element"] * 3 + ["fusion", "copy"]
    refused = [one for one in ledger.decisions if one.verdict == "refused"]
    assert [(one.subject, one.code) for one in refused] == [("c3", "the_fusion_moves_elements_of_what_it_reads")]
    limited = load_module(COPIED_FILL)
    registry = Registry()
    pipeline = transforms_pipeline([registry.make("copy_fusion")], registry)
    compile_module(limited, pipeline, PassContext(target="h100", fuel=Fuel({"copy_fusion": 1})), registry)
    assert [one.name for one in limited.entry if one.opcode == "copy"] == ["c2", "c3"]
