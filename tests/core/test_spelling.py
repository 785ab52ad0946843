"""What a misspelt name may have meant."""

from __future__ import annotations

import pytest

from hloscope.core.spelling import did_you_mean, nearest

COLUMNS = ("index", "pipeline", "pass", "changed", "instructions_before", "instructions_after", "unannounced")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("pipline", ["pipeline"]),
        ("instr", ["instructions_after", "instructions_before"]),
        ("as", ["pass"]),
        ("in", []),
        ("xyzzy", []),
        ("", []),
    ],
)
def test_the_nearest_come_first(name: str, found: list[str]) -> None:
    assert nearest(name, COLUMNS) == found
    assert nearest(name, COLUMNS, most=1) == found[:1]


def test_the_question() -> None:
    assert did_you_mean("chnged", COLUMNS) == "did you mean changed?"
    assert did_you_mean("instr", iter(COLUMNS)) == "did you mean instructions_after or instructions_before?"
    assert did_you_mean("xyzzy", COLUMNS) is None
