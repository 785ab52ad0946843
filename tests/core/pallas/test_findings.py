"""Faults of the fixture kernels: each found, at its line; and nothing found where nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hloscope.core.pallas.causes import MOST_BESIDE, beside_causes, joined, ordered, told_by_running, with_evidence
from hloscope.core.pallas.checks.finding import Finding
from hloscope.core.pallas.checks.registry import CODES
from hloscope.core.pallas.child_trace import whole_message
from hloscope.core.pallas.interpret.faults import Fault
from hloscope.core.pallas.interpret.order import ORDER_OF_CORES, ORDER_OF_STEPS
from hloscope.core.pallas.interpret.session import interpret_trace, told_once
from hloscope.core.pallas.jaxpr import Span, joint_at
from hloscope.core.pallas.report import Ran, analyse_trace

Look = Callable[[str], Any]
RUNS_TWICE = "one_row_of_a_later_run"
WITH_FAULTS = ("wrong.py", "refused.py", "programs.py")


@pytest.mark.parametrize("name", WITH_FAULTS)
def test_static_faults_are_found_at_their_lines(kernels: Look, name: str) -> None:
    looked = kernels(name)
    found = {(one.code, one.line) for one in looked.static.findings}
    static = {(code, line) for code, line, how in looked.expected if how == "static"}
    assert static and static <= found
    # what only a run can tell is not claimed without one
    assert not found & {(code, line) for code, line, how in looked.expected if how == "run"}


@pytest.mark.parametrize("name", ["wrong.py", "programs.py"])
def test_faults_of_a_run_are_found_at_their_lines(kernels: Look, name: str) -> None:
    looked = kernels(name)
    found = {(one.code, one.line) for one in looked.ran[0]}
    assert {(code, line) for code, line, how in looked.expected if how == "run"} <= found


def test_nothing_is_found_in_kernels_that_are_right(kernels: Look) -> None:
    looked = kernels("right.py")
    findings, rungs = looked.ran
    assert [one for one in [*looked.static.findings, *findings] if one.severity in ("error", "warning")] == []
    assert {rung.outcome for rung in rungs} == {"done"} and {rung.name for rung in rungs} == {"generic", "tpu"}


@pytest.mark.parametrize(
    "function", ["_atomic_sums", "_guarded", "_masked", "_lanes", "_own_part", "_locked", "_last_one_sums"]
)
def test_nothing_is_found_in_programs_that_are_right(kernels: Look, function: str) -> None:
    looked = kernels("programs.py")
    found = [one for one in [*looked.static.findings, *looked.ran[0]] if one.call == function]
    assert [one.message for one in found if one.severity in ("error", "warning")] == []
    assert [call.name for call in looked.static.calls].count(function) == 1
    # what a lock or a ticket orders is left to the run
    left = [one.message for one in looked.static.findings if one.call == function and "atomics order" in one.message]
    assert len(left) == (function in ("_locked", "_last_one_sums"))


def test_what_jax_refuses_is_refused_and_the_rest_is_not(kernels: Look) -> None:
    looked = kernels("refused.py")
    for program in looked.trace.programs:
        if program.function == "too_large":
            assert program.lowering.refusal is None  # only the compiler itself would notice
        elif program.refused is None:
            assert program.lowering.refusal is not None, program.function
    accepted = [one for one in kernels("right.py").trace.programs if one.lowering.refusal is None]
    assert len(accepted) == len(kernels("right.py").trace.programs)


def test_messages_carry_the_numbers(kernels: Look) -> None:
    looked = kernels("refused.py")
    (budget,) = [one for one in looked.static.findings if one.code == "vmem-budget"]
    assert f"{4 * 8192 * 8192 * 4:,} bytes" in budget.message
    shapes = [one for one in looked.static.findings if one.code == "block-shape"]
    assert "(8, 128)" in shapes[0].fix and "1024" in shapes[2].message
    refused = [one for one in looked.static.findings if one.code == "trace-refused"]
    assert "must return 2 values" in refused[0].message and "same number of dimensions" in refused[1].message
    (told,) = [one for one in looked.static.findings if one.code == "lowering-refused"]
    assert told.origin == "jax" and "Cannot store scalars to VMEM" in told.message


def test_what_is_not_decided_is_said(kernels: Look) -> None:
    looked = kernels("wrong.py")
    undecided = [looked.line(one) for one in looked.static.findings if one.code == "unsupported"]
    assert any("pl.ds(row, 8)" in line for line in undecided)
    assert any("acc_ref[...] + x_ref[...]" in line for line in undecided)


def test_a_grid_that_is_too_large_is_neither_walked_nor_run(kernels: Look) -> None:
    looked = kernels("wrong.py")
    report = next(one for one in looked.static.calls if one.function == "too_many_steps_to_walk")
    assert report.steps == (1 << 17) * 32 * 8 and report.schedule == ()
    found = [one for one in looked.static.findings if one.call == "_double" and "33,554,432 steps" in one.message]
    assert [one.code for one in found] == ["unsupported"]
    place = next(one for one in looked.static.findings if "elements 1048576:1048584" in one.message)
    assert "(131071, 0, 0)" in place.message and "8*i0 + 8" in place.message
    told = next(one for one in looked.ran[0] if "too_many_steps_to_walk is not run" in one.message)
    assert told.code == "unsupported" and "give smaller shapes" in told.message


def test_a_race_names_both_accesses(kernels: Look) -> None:
    looked = kernels("wrong.py")
    race = next(one for one in looked.ran[0] if one.code == "race" and "= buf[...]" in looked.line(one))
    assert "buf[0:8, 0:128]" in race.message
    assert all("copy.start()" in looked.lines[span.line - 1] for span, _ in race.related)
    assert [text for _, text in race.related if "copy of x_hbm" in text and "writes it" in text]


def test_a_line_that_two_calls_share_is_told_for_each() -> None:
    first = Finding("race", "error", "both write it", "f.py", 4, 1, 4, 9, function="one", call_line=7)
    second = replace(first, function="other", call_line=9)
    assert ordered([second, first, first]) == [second, first]
    assert told_by_running([first], [first, second]) == [second]


def test_a_changed_result_stands_beside_what_explains_it() -> None:
    padding = Finding("padding-reaches-output", "warning", "mixes", "f.py", 4, 1, 4, 9, "k", call_line=7, about="x")
    carried = replace(padding, code="uninitialized-read", severity="error", line=5, about=ORDER_OF_STEPS)
    changed = replace(padding, code="order-dependent", severity="error", line=7, message="with seed 0 o differs")
    by_cores = replace(changed, about=ORDER_OF_CORES, line=8)
    by_other = replace(changed, about="y", line=9)
    other_call = replace(changed, call_line=20)
    told = beside_causes([padding, carried, changed, by_cores, by_other, other_call])
    assert told[2:] == [by_other, other_call] and [one.severity for one in told[:2]] == ["error", "error"]
    assert [[(at.line, text) for at, text in one.related] for one in told[:2]] == [
        [(7, "with seed 0 o differs")], [(8, "with seed 0 o differs")]
    ]  # fmt: skip
    # a run that tells the trace's finding again leaves the places that it names
    again = replace(carried, related=told[1].related, message="other words")
    assert with_evidence([padding, carried], [again]) == [padding, told[1]]


def test_a_race_with_a_store_that_meets_itself_stands_beside_it() -> None:
    store, last = Span("f.py", "k", 4, 5, 4, 9), Span("f.py", "k", 7, 1, 7, 9)
    tied = joint_at(store, "o")
    met = Finding(
        "parallel-write-race", "warning", "both write o", "f.py", 4, 5, 4, 9, function="f", call_line=7, joints=tied
    )
    race = replace(
        met, code="race", severity="error", message="reads o", column=14, related=((store, "writes o"), (last, "late"))
    )
    (told,) = beside_causes([race, met])
    assert (told.code, told.severity) == (met.code, "error")
    assert [(at.column, text) for at, text in told.related] == [(14, "reads o [race]"), (1, "late")]
    apart = [replace(race, call_line=9), replace(race, joints=joint_at(last, "o")), met]
    assert beside_causes(apart) == apart
    # a long list is cut, and says so
    many = [replace(race, column=15 + k, message=f"reads {k}") for k in range(20)]
    (told,) = beside_causes([met, *many])
    assert len(told.related) == MOST_BESIDE and told.related[-1][1] == "10 more places are not listed"


ONE_FAULT: dict[str, tuple[str, set[str]]] = {
    # kernel with one fault: what is told, and the codes of what stands beside it
    "alias_hazard_wrong": ("alias-hazard", {"race"}),
    "parallel_write_race_wrong": ("parallel-write-race", {"uninitialized-read"}),
    "parallel_write_race_of_a_map_wrong": ("parallel-write-race", {"output-never-written", "output-revisited"}),
    "block_shape_wrong": ("block-shape", set()),
    "copy_shape_wrong": ("copy-shape", set()),
    "lost_sum": ("output-revisited", {"uninitialized-read"}),
    "one_wait_for_two": ("race", {"uninitialized-read"}),
}


@pytest.mark.parametrize("function", ONE_FAULT)
def test_one_fault_is_one_finding(kernels: Look, function: str) -> None:
    looked = kernels("pairs.py" if function.endswith("_wrong") else "wrong.py")
    alone = replace(looked.trace, programs=tuple(one for one in looked.trace.programs if one.function == function))
    known = [one for one in looked.static.findings if one.function == function]
    found = joined(known, interpret_trace(alone, "v5e", runs=3)[0])
    (one,) = [one for one in found if one.severity in ("error", "warning")]
    beside = {text.rpartition("[")[2].removesuffix("]") for _, text in one.related if text.endswith("]")}
    assert (one.code, beside) == ONE_FAULT[function] and one.severity == "error"


def test_one_fault_of_a_run_is_told_once() -> None:
    place, other = (Span("f.py", "k", line, 1, line, 9) for line in (4, 7))
    for about, cause in (
        (ORDER_OF_STEPS, Fault("uninitialized-read", "reads acc", place, about="acc")),
        ("x", Fault("index-map-out-of-range", "reads past x", place, about="x")),
        (ORDER_OF_STEPS, Fault("race", "both write", place)),
    ):
        changed = Fault("order-dependent", "with seed 0 o differs", other, about=about)
        (told,) = told_once({one.key: one for one in (cause, changed)}).values()
        assert told == replace(cause, related=((other, "with seed 0 o differs"),))
        alone = replace(changed, about="z")
        assert list(told_once({one.key: one for one in (cause, alone)}).values()) == [cause, alone]


def test_a_changed_result_names_the_choice_that_changed_it(kernels: Look) -> None:
    looked = kernels("wrong.py")
    found = [one for one in looked.ran[0] if one.code == "order-dependent"]
    races = [one for one in looked.ran[0] if one.code == "race"]
    # that of a race stands beside it: one fault is told once
    beside = [(looked.lines[span.line - 1], text) for one in races for span, text in one.related]
    assert any("copy.start()" in line and "ends at once or late" in text for line, text in beside)
    assert not {one.line for one in found} & {span.line for one in races for span, _ in one.related}
    causes = [one for one in looked.ran[0] if one.code in ("race", "uninitialized-read")]
    assert any("parallel dimension 0" in text for one in causes for _, text in one.related)


def test_a_call_made_several_times_shows_the_blocks_of_each(kernels: Look) -> None:
    looked = kernels("wrong.py")
    alone = replace(looked.trace, programs=tuple(p for p in looked.trace.programs if p.function == RUNS_TWICE))
    ran: list[Ran] = []
    found, _ = interpret_trace(alone, "v5e", runs=0, ran=ran)
    place = next(number for number, line in enumerate(looked.lines, 1) if "rows: (rows[i], 0)" in line)
    (told,) = [one for one in found if one.code == "index-map-out-of-range"]
    assert told.message.startswith("in run 2 of the call: at grid point (2,) the index map of input x_ref reads")
    assert told.line == place and "pallas_call" in looked.lines[(told.call_line or 0) - 1]
    report = analyse_trace(looked.trace, "v5e", ran)
    mine = [one for one in report.calls if one.function == RUNS_TWICE]
    assert [(one.turn, one.operands[0]["blocks"], one.operands[0]["out_of_range"]) for one in mine] == [
        (1, 3, 0), (2, 3, 1)
    ]  # fmt: skip
    mine = [one for one in report.findings if one.function == RUNS_TWICE]
    said = [one.message for one in mine if one.severity == "error"]
    assert not [one for one in mine if one.code == "unsupported" and "not known without running" in one.message]
    assert len(said) == 1 and "in run 2 of the call: at grid point (2,)" in said[0] and "block 4 of 4" in said[0]


def test_a_refusal_that_is_explained_is_told_once(kernels: Look) -> None:
    found = [one for one in kernels("wrong.py").static.findings if one.function == "reads_hbm"]
    assert [one.code for one in found if one.severity == "error"] == ["memory-space"]


def test_every_code_is_explained() -> None:
    for code, known in CODES.items():
        assert known.meaning and known.severity in ("error", "warning", "information"), code


def test_an_exception_without_words_is_told_by_its_place() -> None:
    with pytest.raises(AssertionError) as raised:
        raise AssertionError
    assert whole_message(raised.value).startswith("without a message, raised in ")
    assert whole_message(raised.value).endswith("(test_an_exception_without_words_is_told_by_its_place)")
    assert whole_message(ValueError("two\n  lines")) == "two lines"
