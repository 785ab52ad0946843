"""Reduced modules beside the smallest by hand: the cases of ``benchmarks/bench_reduce.py``."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from hloscope.bisect.reduce import reduce_module
from hloscope.core.passes.invariants import findings
from hloscope.core.text import load_module

CASES: dict[str, Any] = run_path(str(Path(__file__).resolve().parents[2] / "fixtures" / "faults" / "reducible.py"))[
    "CASES"
]


@pytest.mark.parametrize("name", CASES)
def test_a_reduced_module_is_at_most_twice_the_smallest_by_hand(name: str) -> None:
    case = CASES[name]
    by_hand = load_module(case.by_hand)
    assert case.shows(by_hand) and not list(findings(by_hand))
    found = reduce_module(load_module(case.text), case.shows)
    assert case.shows(found.module) and not list(findings(found.module))
    assert found.after <= 2 * by_hand.instruction_count
    assert found.probes <= 60


def test_trip_counts_and_types_become_plain() -> None:
    text = CASES["multiplication in a loop"].text.replace("f32", "f64")
    found = reduce_module(load_module(text), CASES["multiplication in a loop"].shows)
    kinds = {leaf.element_type for one in found.module.instructions() for _, leaf in one.shape.leaves()}
    assert "f64" not in kinds
    counts = [one.payload for one in found.module.instructions() if one.opcode == "constant" and one.shape.rank == 0]
    assert not any("5" in str(one) for one in counts)
