"""Questions about memory put to the real compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.errors import UsageError
from hloscope.core.views.prove_buffers import prove_changes
from hloscope.core.views.run import load

PROGRAM = """\
HloModule m, entry_computation_layout={(f32[256,256]{1,0}, f32[256,256]{1,0})->f32[256,256]{1,0}}

ENTRY main {
  p = f32[256,256]{1,0} parameter(0)
  q = f32[256,256]{1,0} parameter(1)
  kept = f32[256,256]{1,0} dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="kept"}
  a = f32[256,256]{1,0} sine(kept)
  second = f32[256,256]{1,0} dot(a, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  third = f32[256,256]{1,0} dot(second, second), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT last = f32[256,256]{1,0} add(third, kept)
}
"""
ARRAY = 256 * 256 * 4


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "m.hlo"
    path.write_text(PROGRAM)
    return str(path)


@pytest.mark.slow
def test_the_real_compiler_makes_each_change(program: str) -> None:
    """A product waits while the third is made; a donated parameter takes in the result."""
    with load(program) as run:
        dropped, narrow, donated = prove_changes(run, ["drop:kept", "dtype:kept=f16", "donate:0"], "cpu")
    assert dropped.peak_before == donated.peak_before
    assert dropped.peak_after == pytest.approx(dropped.peak_before - ARRAY, abs=4096)
    assert narrow.peak_after <= narrow.peak_before
    assert donated.total_after <= donated.total_before - ARRAY


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("drop:nobody", "no instruction 'nobody'"),
        ("drop:last", "is a result or one number"),
        ("drop:p", "cannot be found in the program"),
        ("dtype:kept=f33", "no element type"),
        ("donate:7", "there is no parameter 7"),
        ("grow:kept", "cannot be asked"),
    ],
)
def test_changes_that_the_program_does_not_take(program: str, change: str, said: str) -> None:
    with load(program) as run, pytest.raises(UsageError, match=said):
        prove_changes(run, [change], "cpu")
