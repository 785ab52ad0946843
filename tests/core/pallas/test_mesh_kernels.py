"""Kernels over a mesh of cores (``pl.kernel``, ``pl.core_map``): described, run and checked as the calls they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hloscope.core.pallas.interpret.generic import ProgramMachine
from hloscope.core.pallas.interpret.order import Choices
from hloscope.core.pallas.interpret.session import make_arguments
from hloscope.core.pallas.interpret.tpu import run_tpu
from hloscope.core.pallas.tracing import Trace

Look = Callable[[str], Any]
RIGHT = {
    "halves": lambda x: x * 2 + np.repeat([0.0, 1.0], 16)[:, None],
    "in_place": lambda x: x + 1,
    "stateful": lambda x: x * 2,
    "handed_over": lambda x: np.roll(x, 16, axis=0),
    "in_turns": lambda x: x,
}


def result(trace: Trace, function: str, seed: int | None) -> tuple[np.ndarray, np.ndarray]:
    program = next(one for one in trace.programs if one.function == function)
    assert program.jaxpr is not None
    (x,) = make_arguments(program)
    machine = ProgramMachine(
        trace.calls, lambda call, operands: run_tpu(call, [operands], Choices(seed), cores=2).outputs[0]
    )
    return x, np.asarray(machine.evaluate(program.jaxpr, [x])[0])


@pytest.mark.parametrize("function", RIGHT)
@pytest.mark.parametrize("seed", [None, 3])
def test_a_kernel_over_two_cores_computes_what_it_says(kernels: Look, function: str, seed: int | None) -> None:
    x, found = result(kernels("mesh.py").trace, function, seed)
    np.testing.assert_allclose(found, RIGHT[function](x), rtol=1e-6)


def test_faults_between_cores_are_found_and_nothing_else(kernels: Look) -> None:
    looked = kernels("mesh.py")
    static = {(one.code, one.line) for one in looked.static.findings if one.severity in ("error", "warning")}
    run = {(one.code, one.line) for one in looked.ran[0] if one.severity in ("error", "warning")}
    expected = {how: {(code, line) for code, line, kind in looked.expected if kind == how} for how in ("static", "run")}
    assert static >= expected["static"] != set()
    assert run >= expected["run"] != set()
    wrong = ("shifted_by_eight", "exchange_at_once", "at_once")
    findings = [*looked.static.findings, *looked.ran[0]]
    assert [one.message for one in findings if one.call not in wrong and one.severity != "information"] == []


def test_each_core_runs_its_own_point_of_the_grid(kernels: Look) -> None:
    looked = kernels("mesh.py")
    calls = {call.name: call for call in looked.trace.calls}
    assert calls["each_half"].grid == (2,) and calls["each_half"].grid_names == ("core",)
    assert calls["each_half"].semantics == ("parallel",)
    assert {one.space for one in calls["each_half"].operands} == {"any"}
    assert calls["add_one"].aliases == ((0, 0),)
    _, rungs = looked.ran
    assert {rung.outcome for rung in rungs if rung.name == "tpu" and rung.call == "exchange"} == {"done"}
