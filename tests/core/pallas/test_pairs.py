"""Every code: a kernel that gives it, and the nearest right one beside it that gives nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hloscope.core.pallas.checks.finding import Finding
from hloscope.core.pallas.checks.registry import CODES, check_call
from hloscope.core.pallas.chips import find_chip
from hloscope.core.pallas.interpret.session import interpret_trace
from hloscope.core.pallas.report import calls_of, subject_of
from hloscope.core.pallas.tracing import Program, Trace

Look = Callable[[str], Any]
NAMES = re.findall(
    r"^def (\w+)_wrong\(", (Path(__file__).resolve().parents[3] / "fixtures" / "pallas" / "pairs.py").read_text(), re.M
)
RUN = frozenset(
    "race order-dependent out-of-bounds deadlock livelock semaphore-left memory-space copy-shape".split()
    + ["uninitialized-read"]
)
"""Codes that a run gives."""
ELSEWHERE = frozenset({"unsupported", "interpreter-failed", "lowering-refused"})
"""No faults of a kernel by our own rules; ``test_findings`` sees to the last one."""


def code_of(name: str) -> str:
    """The code that a pair is named after."""
    text = name.removeprefix("gpu_").replace("_", "-")
    return max((code for code in CODES if text.startswith(code)), key=len)


@cache
def _calls(trace: Trace) -> list[tuple[Program, Any, Any]]:
    return calls_of(trace)


def findings(trace: Trace, function: str) -> list[Finding]:
    target = "h100" if function.startswith("gpu_") else "v5e"
    program = next(one for one in trace.programs if one.function == function)
    found: list[Finding] = []
    for owner, call, operands in _calls(trace):
        if owner is program:
            found += check_call(subject_of(trace, program, call, find_chip(target, trace.chips), operands))
    if code_of(function) in RUN:
        found += interpret_trace(replace(trace, programs=(program,)), target, runs=2)[0]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_and_its_right_neighbour(kernels: Look, name: str) -> None:
    trace, code = kernels("pairs.py").trace, code_of(name)
    if code == "trace-refused":
        refused = {one.function: one.refused is not None for one in trace.programs}
        assert refused[f"{name}_wrong"] and not refused[f"{name}_right"]
    else:
        assert code in {one.code for one in findings(trace, f"{name}_wrong")}
    told = [one for one in findings(trace, f"{name}_right") if one.severity != "information" or one.code == code]
    assert [one.message for one in told] == []


def test_every_code_has_a_pair() -> None:
    assert {code_of(name) for name in NAMES} | ELSEWHERE == set(CODES)
