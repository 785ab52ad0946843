"""The fixture kernels, each file traced once for all tests: a trace starts a child process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from hloscope.core.pallas.checks.finding import Finding
from hloscope.core.pallas.interpret.session import interpret_trace
from hloscope.core.pallas.report import PallasReport, Rung, analyse_trace
from hloscope.core.pallas.tracing import Trace, trace_file

KERNELS = Path(__file__).resolve().parents[3] / "fixtures" / "pallas"
TARGETS = {
    "mesh.py": "v7x",
    "pairs.py": "v5e",
    "right.py": "v5e",
    "wrong.py": "v5e",
    "refused.py": "v5e",
    "programs.py": "h100",
}


@dataclass(frozen=True)
class Looked:
    """One fixture file, and all that is found in it."""

    trace: Trace
    static: PallasReport
    lines: list[str]
    expected: set[tuple[str, int, str]]
    """(code, line, ``static`` or ``run``) of its ``# FAULT`` comments."""

    @property
    def ran(self) -> tuple[list[Finding], list[Rung]]:
        """Findings of running it."""
        return _run(self.trace.path)

    def line(self, finding: Finding) -> str:
        """The line that a finding names."""
        return self.lines[finding.line - 1]


@cache
def look_at(name: str) -> Looked:
    path = os.path.relpath(KERNELS / name)
    target = TARGETS[name]
    # tables of rules and chips cost a second, and only kernels that are refused need them
    lower = None if name == "pairs.py" else target  # lowering takes as long again
    trace = trace_file(path, lower=lower, facts=name in ("pairs.py", "refused.py"))
    lines = (KERNELS / name).read_text().splitlines()
    expected = {
        (match[1], number, match[2])
        for number, line in enumerate(lines, 1)
        if (match := re.search(r"# FAULT: (\S+) (static|run)$", line))
    }
    return Looked(trace, analyse_trace(trace, target), lines, expected)


@cache
def _run(path: str) -> tuple[list[Finding], list[Rung]]:
    name = Path(path).name
    return interpret_trace(look_at(name).trace, TARGETS[name], runs=2)


@pytest.fixture(scope="session")
def kernels() -> Callable[[str], Looked]:
    """A fixture file by its name."""
    return look_at


@pytest.fixture(scope="session")
def right() -> Trace:
    """Kernels without faults."""
    return look_at("right.py").trace
