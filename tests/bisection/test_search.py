"""The search alone: exact, within its probe budget, and honest about ends that do not differ."""

from __future__ import annotations

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloscope.bisect.search import NoFault, Outcome, Step, first_wrong

RIGHT, WRONG, FAILED, UNKNOWN = (Outcome(k) for k in ("right", "wrong", "failed", "unknown"))


@given(st.integers(1, 5000), st.data())
def test_finds_the_turning_point_within_the_budget(count: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(1, count))
    asked: list[int] = []

    def probe(position: int) -> Outcome:
        asked.append(position)
        return WRONG if position >= culprit else RIGHT

    found = first_wrong(count, probe, "pass")
    assert found.position == culprit and found.exact
    assert len(asked) == len(set(asked)) <= ceil(log2(count)) + 2 if count > 1 else len(asked) <= 2


@given(st.integers(2, 60), st.data())
def test_positions_without_an_answer_widen_the_result_and_never_point_elsewhere(
    count: int, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(1, count))
    silent = data.draw(st.sets(st.integers(1, count - 1), max_size=10))

    def probe(position: int) -> Outcome:
        if position in silent:
            return UNKNOWN
        return WRONG if position >= culprit else RIGHT

    found = first_wrong(count, probe, "pass")
    assert found.low < culprit <= found.position
    assert all(p in silent for p in range(found.low + 1, found.position))


@pytest.mark.parametrize(
    ("outcomes", "where"),
    [
        ([RIGHT, RIGHT], "absent"),
        ([WRONG, WRONG], "everywhere"),
        ([UNKNOWN, WRONG], "unknown"),
        ([RIGHT, UNKNOWN], "unknown"),
    ],
)
def test_ends_that_do_not_differ_are_said_so(outcomes: list[Outcome], where: str) -> None:
    with pytest.raises(NoFault) as raised:
        first_wrong(1, lambda position: outcomes[position], "pass")
    assert raised.value.where == where


def test_a_crash_is_not_taken_for_a_wrong_result() -> None:
    found = first_wrong(10, lambda p: RIGHT if p < 4 else WRONG if p < 7 else FAILED, "pass")
    assert found.position == 7 and found.outcome is FAILED


def test_steps_tell_what_remains() -> None:
    steps: list[Step] = []
    first_wrong(16, lambda p: WRONG if p >= 11 else RIGHT, "fuel", steps.append)
    assert [s.remaining for s in steps[2:]] == [3, 2, 1, 0]
    assert {s.level for s in steps} == {"fuel"}
