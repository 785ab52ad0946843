"""Buffer assignment against real reports, against an independent checker, and against the evaluator."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hloscope.core.analysis.real_compile import DumpCompile
from hloscope.core.buffers.assignment import CPU, GPU, Backend, assign_buffers
from hloscope.core.buffers.audit import audit
from hloscope.core.buffers.report_text import human_bytes
from hloscope.core.buffers.slab import overlaps, run_in_slab
from hloscope.core.dumps.directory import open_dump
from hloscope.core.hlo.computation import HloComputation
from hloscope.core.hlo.instruction import HloInstruction
from hloscope.core.hlo.module import HloModule
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.runtime.inputs import inputs_for
from hloscope.core.text import load_module

CASES = (
    "cpu_donated_sgd", "cpu_shifted_update", "cpu_switch_loop", "cpu_while_cond_in", "cpu_while_rotate",
    "gpu_nested_scan",
)  # fmt: skip
ORDERED = ("report_assignment_bytes", "report_values_bytes", "report_live_range_bytes")
"""Figures that depend on numbers which no text has."""

BRANCHY = """HloModule branchy

inner (p: f32[16,8]) -> f32[16,8] {
  p = f32[16,8]{1,0} parameter(0)
  q = f32[16,8]{1,0} exponential(p)
  ROOT r = f32[16,8]{1,0} subtract(q, p)
}

ENTRY e (a: f32[16,8], b: f32[8,4]) -> (f32[16,4], f32[16,8], f32[8,16]) {
  a = f32[16,8]{1,0} parameter(0)
  b = f32[8,4]{1,0} parameter(1)
  n = f32[16,8]{1,0} negate(a)
  s = f32[16,8]{1,0} sine(n)
  c = f32[16,8]{1,0} fusion(s), kind=kLoop, calls=inner
  d = f32[16,4]{1,0} dot(c, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[8,16]{1,0} transpose(n), dimensions={1,0}
  u = f32[8,16]{1,0} cosine(t)
  v = f32[16,8]{0,1} bitcast(u)
  w = f32[16,8]{1,0} copy(v)
  x = f32[16,8]{1,0} add(w, c)
  y = f32[16,4]{1,0} dot(x, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[16,4]{1,0} multiply(y, d)
  ROOT o = (f32[16,4]{1,0}, f32[16,8]{1,0}, f32[8,16]{1,0}) tuple(z, x, u)
}
"""


def final_module(fixtures: Path, case: str) -> HloModule:
    path = next((fixtures / "buffers" / case).glob("*after_optimizations.txt"))
    return load_module(path.read_text(), path=str(path))


@pytest.mark.parametrize("case", CASES)
def test_the_real_report_is_reproduced(fixtures: Path, case: str) -> None:
    with open_dump(str(fixtures / "buffers" / case)) as dump:
        figures = audit(DumpCompile(dump.matching(None)[0])).figures
    assert figures["offsets"].total > 0 and figures["live_ranges"].total > 0
    for name, found in figures.items():
        if name not in ORDERED:
            assert found.agree == found.total, (name, found.first_disagreements)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_the_corpus_is_reproduced(corpus: Path, backend: str) -> None:
    for folder in sorted((corpus / backend).iterdir()):
        with open_dump(str(folder / "dump")) as dump:
            for module in dump.matching(None):
                compile_ = DumpCompile(module)
                if compile_.stages and "is_scheduled=true" in compile_.text(-1)[:400]:
                    figures = audit(compile_).figures
                    for name in ("modules", "allocations", "offsets", "live_ranges"):
                        found = figures[name]
                        assert found.agree >= 0.99 * found.total, (folder.name, name, found.first_disagreements)


# ---------------------------------------------------------------- an independent checker
def needed(module: HloModule) -> dict[HloInstruction, tuple[int, int]]:
    """First and last step at which the bytes of each array of a straight-line entry are needed, worked out afresh."""
    order = list(module.entry.instructions)
    step = {node: number for number, node in enumerate(order)}
    last = {node: step[node] for node in order}
    for node in reversed(order):
        for operand in node.operands:
            reach = last[node] if node.opcode in ("bitcast", "tuple", "get-tuple-element") else step[node]
            last[operand] = max(last[operand], reach)
    root = module.entry.root
    for node in (root, *root.operands):
        last[node] = len(order)
    for node in reversed(order):
        if node.opcode == "bitcast":
            last[node.operand(0)] = max(last[node.operand(0)], last[node])
    return {node: (step[node], last[node]) for node in order}


def shuffled(computation: HloComputation, source: random.Random) -> list[HloInstruction]:
    waiting = {node: len(set(node.operands) | set(node.control_predecessors)) for node in computation}
    ready = [node for node, count in waiting.items() if not count]
    order: list[HloInstruction] = []
    while ready:
        node = ready.pop(source.randrange(len(ready)))
        order.append(node)
        for after in (*node.users, *node.control_successors):
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    return order


def random_schedules(text: str, count: int) -> Iterator[HloModule]:
    for seed in range(count):
        module = load_module(text)
        source = random.Random(seed)
        module.set_schedule({one: shuffled(one, source) for one in module.computations})
        yield module


@pytest.mark.parametrize("backend", [CPU, GPU], ids=["cpu", "gpu"])
def test_no_two_needed_values_overlap_under_any_schedule(backend: Backend) -> None:
    for module in random_schedules(BRANCHY, 40):
        assignment = assign_buffers(module, backend)
        life = needed(module)
        for a, b in overlaps(assignment):
            if a.instruction.parent is not module.entry or a.instruction is b.instruction:
                continue
            first, second = sorted((a, b), key=lambda one: life[one.instruction][0])
            end, start = life[first.instruction][1], life[second.instruction][0]
            assert end <= start, f"{first} is needed until {end}, {second} is written at {start}"
            if end == start:
                writer = second.instruction
                assert writer.opcode not in ("copy", "dot", "transpose"), f"{writer} writes over what it reads"


@pytest.mark.parametrize("backend", [CPU, GPU], ids=["cpu", "gpu"])
def test_random_schedules_compute_the_same_in_their_memory(backend: Backend) -> None:
    plain = load_module(BRANCHY)
    arguments = inputs_for(plain.entry, 3)
    wanted = evaluate(plain, arguments)
    for module in random_schedules(BRANCHY, 8):
        found = run_in_slab(assign_buffers(module, backend), arguments)
        assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(wanted, found, strict=True))


@pytest.mark.parametrize("case", [one for one in CASES if one != "cpu_donated_sgd"])
def test_real_modules_compute_the_same_in_their_memory(fixtures: Path, case: str) -> None:
    module = final_module(fixtures, case)
    arguments = inputs_for(module.entry, 1)
    wanted = evaluate(module, arguments)
    found = run_in_slab(assign_buffers(module, GPU if case.startswith("gpu") else CPU), arguments)
    for a, b in zip(wanted, found, strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)


def test_a_wrong_assignment_is_a_wrong_number() -> None:
    module = next(iter(random_schedules(BRANCHY, 1)))
    assignment = assign_buffers(module)
    arguments = inputs_for(module.entry, 3)
    wanted = evaluate(module, arguments)
    temp = next(one for one in assignment.allocations if one.is_temp)
    for value in temp.assigned:
        temp.assigned[value] = temp.assigned[value]._replace(offset=0)
    found = run_in_slab(assignment, arguments)
    assert not all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(wanted, found, strict=True))


# ---------------------------------------------------------------- refusals
def test_every_refusal_says_why() -> None:
    module = load_module(
        """HloModule r, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias) }
ENTRY e (a: f32[64], b: f32[64]) -> (f32[64], f32[32]) {
  a = f32[64]{0} parameter(0)
  b = f32[64]{0} parameter(1)
  n = f32[64]{0} negate(a)
  s = f32[64]{0} add(n, b)
  h = f32[32]{0} slice(s), slice={[0:32]}
  k = f32[32]{0} copy(h)
  ROOT o = (f32[64]{0}, f32[32]{0}) tuple(s, k)
}
"""
    )
    assignment = assign_buffers(module, keep_refusals=True)
    told = {(one.value.instruction.name, one.code) for one in assignment.refusals}
    assert ("n", "live_ranges_overlap") in told  # the donated parameter is read later
    assert ("k", "live_ranges_overlap") in told or ("k", "output_of_other_size") in told
    assert ("n", "read_only") in told  # its operand a is not donated
    by_name = {value.instruction.name: one for value, one, _ in assignment.placed() if not value.index}
    assert by_name["b"].parameter == 1 and by_name["b"] is by_name["s"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1.0KiB"), (401020, "391.6KiB"), (1 << 21, "2.00MiB"), (3 << 29, "1.50GiB")],
)
def test_bytes_read_as_xla_writes_them(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_elements_that_share_bytes_go_through_the_slab() -> None:
    """Seven s4 take four bytes; a u2 matrix changes its order; sums and products wrap as without the slab."""
    module = load_module(
        """\
HloModule m, is_scheduled=true

ENTRY e {
  a = s4[7]{0:E(4)} parameter(0)
  b = u2[3,5]{0,1:E(2)} parameter(1)
  d = s4[7]{0:E(4)} add(a, a)
  w = s32[7]{0} convert(d)
  k = s4[7]{0:E(4)} multiply(d, a)
  t = u2[3,5]{1,0:E(2)} copy(b)
  ROOT r = (s4[7]{0:E(4)}, s32[7]{0}, u2[3,5]{1,0:E(2)}) tuple(k, w, t)
}
"""
    )
    first, second = (one.shape.type.dtype for one in module.entry.parameters)
    matrix = (np.arange(15) % 4).reshape(3, 5).astype(second)
    arguments = [np.array([-8, -3, -1, 0, 2, 3, 7]).astype(first), matrix]
    assignment = assign_buffers(module)
    assert [one.size for one in assignment.allocations if one.parameter is not None] == [4, 4]
    found = run_in_slab(assignment, arguments)
    plain = evaluate(module, arguments)
    for got, wanted in zip(found, plain, strict=True):
        assert np.asarray(got).astype("int32").tolist() == np.asarray(wanted).astype("int32").tolist()
    assert np.asarray(found[1]).tolist() == [0, -6, -2, 0, 4, 6, -2]
