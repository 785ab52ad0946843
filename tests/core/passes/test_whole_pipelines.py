"""Our own compile from the program to addresses: pipelines, the late passes, reports, and what is kept."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.core.passes.random_modules import modules

from hloscope.core.buffers.assignment import assign_buffers, backend_of
from hloscope.core.buffers.slab import run_in_slab
from hloscope.core.cli.main import run
from hloscope.core.hlo.module import HloModule
from hloscope.core.passes.context import PassContext
from hloscope.core.passes.flags import PassFlags
from hloscope.core.passes.fuel import Fuel
from hloscope.core.passes.invariants import findings
from hloscope.core.passes.pipeline import pass_names
from hloscope.core.passes.pipelines import (
    compile_module,
    cut_before,
    named_pipeline,
    transforms_pipeline,
    whole_pipeline,
)
from hloscope.core.passes.registry import Registry
from hloscope.core.runtime.compare import compare_all, join_rules, rules_for
from hloscope.core.runtime.evaluator import Array, Token, Value, evaluate
from hloscope.core.runtime.inputs import moderate_inputs
from hloscope.core.text import load_module, print_module

LOOP = """HloModule loop, input_output_alias={ {0}: (0, {}, may-alias) }, entry_computation_layout={(f32[4]{0}, f32[4]{0})->(f32[4]{0}, f32[4]{0})}

body {
  p = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  a = f32[4] get-tuple-element(p), index=1
  b = f32[4] get-tuple-element(p), index=2
  one = s32[] constant(1)
  n = s32[] add(i, one)
  c = f32[4] subtract(a, b)
  ROOT t = (s32[], f32[4], f32[4]) tuple(n, b, c)
}

cond {
  p = (s32[], f32[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  k = s32[] constant(5)
  ROOT l = pred[] compare(i, k), direction=LT
}

ENTRY e {
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  z = s32[] constant(0)
  t = (s32[], f32[4], f32[4]) tuple(z, x, y)
  w = (s32[], f32[4], f32[4]) while(t), condition=cond, body=body
  g = f32[4] get-tuple-element(w), index=1
  h = f32[4] get-tuple-element(w), index=2
  ROOT r = (f32[4], f32[4]) tuple(g, h)
}
"""  # noqa: E501
REPORTS = ("-buffer-assignment-values.txt", "-buffer-assignment.txt", "-live-range.txt", "-memory-usage-report.txt")


def arrays(values: list[Array | Token]) -> list[Array]:
    return [np.asarray(one) for one in values if not isinstance(one, Token)]


def compiled(text: str, backend: str, fuel: Fuel | None = None) -> HloModule:
    module, registry = load_module(text), Registry()
    flags = PassFlags(xla_unsupported_crash_on_hlo_pass_silent_hlo_change=True)
    ctx = PassContext(fuel=fuel, flags=flags, target="cpu" if backend == "cpu" else "h100")
    compile_module(module, whole_pipeline(backend, registry), ctx, registry)
    assert not ctx.warnings
    return module


def check(text: str, backend: str) -> None:
    """Compile, read the result again, and run it plainly and in the memory that it was given."""
    args: list[Value] = moderate_inputs(load_module(text).entry, 1)
    expected = arrays(evaluate(load_module(text), args))
    if not all(np.isfinite(one).all() and (np.abs(one) < 1e6).all() for one in expected if one.dtype.kind == "f"):
        return
    module = load_module(print_module(compiled(text, backend)))
    assert module.is_scheduled and list(findings(module)) == []
    rules = join_rules(rules_for(load_module(text), 64.0), rules_for(module, 64.0))
    for got in (evaluate(module, args), run_in_slab(assign_buffers(module, backend_of(backend)), args)):
        pairs = compare_all(expected, arrays(got), rules)
        assert all(pair.within for pair in pairs), [str(pair) for pair in pairs]


def alone(text: str, names: str, target: str = "cpu") -> HloModule:
    module, registry = load_module(text), Registry()
    ctx = PassContext(target=target)
    compile_module(module, transforms_pipeline(registry.make_all(names), registry), ctx, registry)
    return module


def opcodes(module: HloModule) -> list[str]:
    return sorted(one.opcode for one in module.entry)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_a_loop_with_a_donated_buffer_is_compiled_to_the_end(backend: str) -> None:
    check(LOOP, backend)


@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(modules(devices=False))
def test_whole_pipelines_keep_what_a_random_module_computes(text: str) -> None:
    check(text, "cpu")
    check(text, "gpu")


def test_the_part_through_layout_assignment_is_the_head_of_the_whole() -> None:
    for backend in ("cpu", "gpu"):
        head = [name for one in named_pipeline(backend, Registry()) for name in pass_names(one)]
        whole = [name for one in whole_pipeline(backend, Registry()) for name in pass_names(one)]
        assert whole[: len(head)] == head and "layout-assignment" in head[-3:] and whole[-1] == "buffer-assignment"


def test_late_pipelines_have_the_real_names() -> None:
    cpu = [one.name for one in whole_pipeline("cpu", Registry())][4:]
    assert cpu[:2] == ["hlo normalization", "HLO passes after layout assignment"]
    gpu = [one.name for one in whole_pipeline("gpu", Registry())][5:]
    assert gpu[:3] == ["layout normalization", "hlo normalization", "post-layout_assignment"]
    assert [one for one in gpu if "schedul" in one] == [
        "pre-scheduling-copy-insertion", "pre-scheduling-passes", "scheduling", "post-scheduling-passes",
    ]  # fmt: skip


@pytest.mark.parametrize(("target", "stem"), [("cpu", "cpu_after"), ("h100", "sm_9.0a_gpu_after")])
def test_compile_leaves_a_dump_with_the_reports_and_a_ledger_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, stem: str
) -> None:
    (tmp_path / "loop.hlo").write_text(LOOP)
    dump, ledger = tmp_path / "dump", tmp_path / "run.ledger"
    words = ["compile", str(tmp_path / "loop.hlo"), "--target", target, "-o", str(ledger), "--dump-to", str(dump)]
    assert run([*words, "--json"]) == 0
    names = sorted(one.name for one in dump.iterdir())
    last = f"module_0000.loop.{stem}_optimizations"
    assert [name for name in names if name.startswith(last)] == sorted(f"{last}{end}" for end in (".txt", *REPORTS))
    inside = [name for name in names if ".copy-insertion.after_" in name]
    assert [re.sub(r".*copy-insertion\.", "", name) for name in inside] == [
        "after_adding_copies_to_resolve_interference.txt", "after_removing_unnecessary_copies.txt",
        "after_adding_special-case_copies.txt",
    ]  # fmt: skip
    assert any("after_layout-assignment" in name for name in names)
    maps: list[dict[str, object]] = []
    for path in (dump, ledger):
        capsys.readouterr()
        assert run(["buffers", str(path), "--json", "--hazards"]) == 0
        maps.append(json.loads(capsys.readouterr().out))
    assert maps[0]["allocations"] == maps[1]["allocations"] and maps[0]["peak_bytes"] == maps[1]["peak_bytes"]
    assert maps[1]["origin"] == "core" and maps[1]["refusals"]


def test_fuel_of_the_late_passes(tmp_path: Path) -> None:
    all_copies = sum(one.opcode == "copy" for one in compiled(LOOP, "cpu").instructions())
    kept = compiled(LOOP, "cpu", Fuel({"copy-insertion": 0}))
    assert sum(one.opcode == "copy" for one in kept.instructions()) > all_copies
    wrapped = compiled(LOOP, "cpu", Fuel({"fusion-wrapper": 1}))
    assert sum(one.opcode == "fusion" for one in wrapped.instructions()) == 1


def test_without_a_schedule_nothing_is_assigned() -> None:
    module, registry = load_module(LOOP), Registry()
    ctx = PassContext(flags=PassFlags(xla_disable_hlo_passes=("hlo-memory-scheduler",)))
    compile_module(module, whole_pipeline("cpu", registry), ctx, registry)
    assert not module.is_scheduled and ctx.warnings == ["no buffers were assigned: the module has no schedule"]


# ---------------------------------------------------------------- the passes
REDUCE = """HloModule m
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}
ENTRY e {
  x = f32[2,3,4]{2,1,0} parameter(0)
  z = f32[] constant(0)
  ROOT r = f32[3,4]{ORDER} reduce(x, z), dimensions={0}, to_apply=add
}
"""


def test_a_reduction_keeps_its_operands_order() -> None:
    made = alone(REDUCE.replace("ORDER", "0,1"), "reduce-decomposer")
    assert made.entry.root.opcode == "copy" and str(made.entry.root.operand(0).shape) == "f32[3,4]{1,0}"
    kept = alone(REDUCE.replace("ORDER", "1,0"), "reduce-decomposer")
    assert kept.entry.root.opcode == "reduce"


def test_broadcast_dimensions_ascend() -> None:
    text = (
        "HloModule m\nENTRY e {\n  x = f32[2,3] parameter(0)\n  ROOT b = f32[3,5,2] broadcast(x), dimensions={2,0}\n}\n"
    )
    made = alone(text, "broadcast_canonicalizer")
    assert made.entry.root.dimensions == (0, 2) and made.entry.root.operand(0).opcode == "transpose"
    args: list[Value] = moderate_inputs(made.entry, 1)
    got, expected = (arrays(evaluate(one, args))[0] for one in (made, load_module(text)))
    assert np.array_equal(got, expected)


def test_donors_are_matched_with_outputs_of_their_size() -> None:
    text = (
        "HloModule m, buffer_donor={ (0, {}), (1, {}) }, entry_computation_layout={(f32[4]{0}, f32[9]{0})"
        "->(f32[2]{0}, f32[4]{0})}\nENTRY e {\n  a = f32[4]{0} parameter(0)\n  b = f32[9]{0} parameter(1)\n"
        "  n = f32[4]{0} negate(a)\n  s = f32[2]{0} slice(b), slice={[0:2]}\n"
        "  ROOT t = (f32[2]{0}, f32[4]{0}) tuple(s, n)\n}\n"
    )
    made = load_module(print_module(alone(text, "optimize_input_output_buffer_alias")))
    assert made.attrs["input_output_alias"] == "{ {1}: (0, {}, may-alias) }"
    assert made.attrs["buffer_donor"] == "{ (1, {}) }"


def test_a_small_loop_becomes_a_call() -> None:
    made = alone(LOOP, "small-while-loop-hoisting")
    call = next(one for one in made.entry if one.opcode == "call")
    assert call.callee().root.opcode == "while" and "xla_cpu_small_call" in (
        call.raw_attrs["frontend_attributes"] or ""
    )
    assert "while" in opcodes(alone(LOOP, "small-while-loop-hoisting{bytes=8}"))


def test_names_of_calls_stand_before_those_of_what_they_call() -> None:
    text = (
        "HloModule m\nf {\n  p = f32[] parameter(0)\n"
        '  ROOT n = f32[] negate(p), metadata={op_name="neg"}\n}\n'
        'ENTRY e {\n  x = f32[] parameter(0)\n  ROOT c = f32[] call(x), to_apply=f, metadata={op_name="jit(g)/f"}\n}\n'
    )
    made = alone(text, "propagate-call-metadata")
    body = made.entry.root.callee()
    assert [one.metadata.op_name for one in body] == ["jit(g)/f", "jit(g)/f/neg"]


def test_constants_get_names_that_a_linker_takes() -> None:
    body = "  x = f32[] parameter(0)\n  c.1-a = f32[] constant(1)\n  ROOT r = f32[] add(x, c.1-a)\n"
    text = f"HloModule m\nENTRY e {{\n{body}}}\n"
    assert [one.name for one in alone(text, "sanitize-constant-names").entry] == ["x", "c_1_a", "r"]


def test_fusions_are_named_by_their_heroes_on_a_gpu() -> None:
    text = "HloModule m\nENTRY e {\n  x = f32[8]{0} parameter(0)\n  ROOT r = f32[8]{0} negate(x)\n}\n"
    made = alone(text, "fusion-wrapper, rename_fusions", "h100")
    assert (made.entry.root.name, made.entry.root.callee().name) == ("loop_negate_fusion", "fused_negate")


SCHEDULED = """HloModule m, is_scheduled=true

body {
  p = (s32[], f32[4]{0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  a = f32[4]{0} get-tuple-element(p), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  m = f32[4]{0} negate(a)
  k = f32[4]{0} copy(m)
  ROOT t = (s32[], f32[4]{0}) tuple(n, k)
}

cond {
  p = (s32[], f32[4]{0}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  five = s32[] constant(5)
  ROOT l = pred[] compare(i, five), direction=LT
}

ENTRY e {
  x = f32[4]{0} parameter(0)
  z = s32[] constant(0)
  w = f32[4]{0} negate(x)
  t = (s32[], f32[4]{0}) tuple(z, w)
  v = (s32[], f32[4]{0}) while(t), condition=cond, body=body
  ROOT g = f32[4]{0} get-tuple-element(v), index=1
}
"""


def test_copies_that_the_schedule_makes_needless_go_and_needed_ones_come() -> None:
    made = alone(SCHEDULED, "post-scheduling-copy-insertion", "h100")
    assert made.is_scheduled and list(findings(made)) == []
    body = made.find_computation("body")
    assert body is not None and "copy" not in [one.opcode for one in body]
    # the counter's start is a constant, which the loop would write over: its copy follows the constant at once
    assert [one.opcode for one in made.entry][:3] == ["parameter", "constant", "copy"]
    args: list[Value] = moderate_inputs(made.entry, 1)
    got, expected = (arrays(evaluate(one, args))[0] for one in (made, load_module(SCHEDULED)))
    assert np.array_equal(got, expected)


def test_bodies_made_late_are_printed_before_their_callers() -> None:
    names = [one.name for one in compiled(LOOP, "cpu").computations]
    text = print_module(compiled(LOOP, "cpu"))
    for name in names:
        first_use = re.search(rf"(?:calls|to_apply|body|condition)=%{re.escape(name)}\b", text)
        if first_use is not None:
            assert re.search(rf"^%{re.escape(name)} ", text, re.M).start() < first_use.start()  # pyright: ignore


_TWO_CONSTANTS = """HloModule m

ENTRY main {
  x = f32[] parameter(0)
  n = f32[] negate(x)
  a = f32[] constant(128)
  b = f32[] constant(128)
  left = f32[] multiply(n, a)
  right = f32[] multiply(x, b)
  ROOT sum = f32[] add(left, right)
}
"""


def test_what_the_last_merge_allows_waits_for_the_next_compile() -> None:
    # XLA:CPU 0.10.2 leaves two products in the first compile and one in the second, since cse comes after the loop.
    registry = Registry()
    module, counts = load_module(_TWO_CONSTANTS), list[int]()
    for _ in range(3):
        compile_module(module, cut_before(named_pipeline("cpu", registry), "layout-assignment"), PassContext())
        counts.append(opcodes(module).count("multiply"))
    assert counts == [2, 1, 1]


def test_narrow_numbers_are_packed_in_every_layout() -> None:
    module = alone(
        """HloModule m, entry_computation_layout={(s4[4]{0}, pred[4]{0})->(s4[4]{0}, pred[4]{0})}

ENTRY main {
  x = s4[4]{0} parameter(0)
  p = pred[4]{0} parameter(1)
  y = s4[4]{0} negate(x)
  ROOT t = (s4[4]{0}, pred[4]{0}) tuple(y, p)
}
""",
        "sub-byte-size-setter",
    )
    text = print_module(module)
    assert "entry_computation_layout={(s4[4]{0:E(4)}, pred[4]{0})->(s4[4]{0:E(4)}, pred[4]{0})}" in text
    assert text.count("E(4)") == 5 and "pred[4]{0} parameter(1)" in text
    assert [one.shape.byte_size for one in module.entry.parameters] == [2, 4]
