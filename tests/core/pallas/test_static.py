"""What the text of a file says by itself, without importing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hloscope.core.errors import UsageError
from hloscope.core.pallas.report import analyse
from hloscope.core.pallas.static_source import scan_text

HEADER = "import jax\nfrom jax.experimental import pallas as pl\nfrom jax.experimental.pallas import tpu as pltpu\n"


def findings(text: str, target: str | None = None) -> list[tuple[str, int, str]]:
    _, found = scan_text(HEADER + text, "kernels.py", target=target)
    return [(one.code, one.line - HEADER.count("\n"), one.severity) for one in found]


def test_a_call_is_read_without_running_anything() -> None:
    text = """
raise SystemExit("this file is never imported")
ROWS = 8
def kernel(x_ref, o_ref): o_ref[...] = x_ref[...]
def f(x):
    grid = (4, 2)
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[pl.BlockSpec((ROWS, 64 * 2), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((ROWS, 128), index_map=lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((32, 256), "float32"),
    )(x)
"""
    calls, found = scan_text(HEADER + text, "kernels.py", target="v5e")
    assert not found
    (call,) = calls
    assert (call.name, call.function, call.grid, call.steps) == ("kernel", "f", (4, 2), 8)
    assert [row["block"] for row in call.operands] == [["8", "128"], ["8", "128"]]
    assert call.operands[1]["array"] == "[32,256]"


CALL = """
def kernel(x_ref, o_ref): o_ref[...] = x_ref[...]
def f(x):
    return pl.pallas_call(
        kernel, grid=(4,), out_shape=jax.ShapeDtypeStruct((32, 128), "float32"),
        in_specs=[pl.BlockSpec({block}, lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), {map}){more})(x)
"""


@pytest.mark.parametrize(
    ("index_map", "expected"),
    [
        ("lambda i: (i, 0)", []),
        ("lambda i: (i + 1, 0)", [("index-map-out-of-range", 7, "error")]),
        ("lambda i: (3 - i, 0)", []),
        ("lambda i: (4 - i, 0)", [("index-map-out-of-range", 7, "error")]),
        ("lambda i: (i // 2 * 2 + i % 2, 0)", []),
        ("lambda i, j: (i, 0)", [("trace-refused", 7, "error")]),
        ("lambda i: (i,)", [("trace-refused", 7, "error")]),
        ("lambda i, j=0: (i, j)", []),
        ("lambda *ids: (ids[0], 0)", []),
        ("lambda i: (table[i], 0)", []),
    ],
)
def test_index_maps(index_map: str, expected: list[tuple[str, int, str]]) -> None:
    assert findings(CALL.format(block="(8, 128)", map=index_map, more="")) == expected


def test_tiles_only_where_a_tpu_is_meant() -> None:
    text = CALL.format(block="(4, 128)", map="lambda i: (i, 0)", more="")
    assert findings(text) == []
    # the array's shape is not in the text, and a block of its own height would be taken
    assert findings(text, "v5e") == [("block-shape", 6, "warning")]
    assert findings(text, "h100") == []
    meant = CALL.format(block="(4, 128)", map="lambda i: (i, 0)", more=", compiler_params=pltpu.CompilerParams()")
    assert findings(meant) == [("block-shape", 6, "warning")]


def test_parallel_steps_on_one_block() -> None:
    more = ', compiler_params=pltpu.CompilerParams(dimension_semantics=("{}",))'
    one_block = "lambda i: (0, 0)"
    parallel = CALL.format(block="(8, 128)", map=one_block, more=more.format("parallel"))
    assert findings(parallel) == [("parallel-write-race", 7, "warning")]
    assert findings(CALL.format(block="(8, 128)", map=one_block, more=more.format("arbitrary"))) == []


def test_what_is_computed_is_said_not_to_be_known() -> None:
    text = """
def f(x, n):
    return pl.pallas_call(kernel, grid=(n // 8,), in_specs=make_specs(), out_shape=x)(x)
"""
    assert findings(text) == [("unsupported", 3, "information")]


def test_a_name_that_is_assigned_twice_is_not_known() -> None:
    text = """
rows = 8
rows = 16
def f(x):
    return pl.pallas_call(kernel, grid=(rows,), out_shape=x)(x)
"""
    calls, _ = scan_text(HEADER + text, "kernels.py")
    assert calls[0].grid == (None,) and calls[0].steps is None


def test_columns_count_characters() -> None:
    text = CALL.format(block="(8, 128)", map="lambda i: (i + 1, 0)", more="").replace("out_specs", "é = 1, out_specs")
    text = text.replace("é = 1, ", "é=1, ")
    _, found = scan_text(HEADER + text, "kernels.py")
    line = (HEADER + text).splitlines()[found[0].line - 1]
    assert line[found[0].column - 1 : found[0].end_column - 1] == "lambda i: (i + 1, 0)"


def test_text_that_is_no_python_is_the_users_fault(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def f(:\n")
    with pytest.raises(UsageError) as told:
        analyse(str(path))
    assert told.value.line == 1 and "not Python" in told.value.message
    with pytest.raises(UsageError, match="no function 'g'"):
        scan_text("def f(x): return x\n", "kernels.py", function="g")


AXIS = """
import jax.numpy as jnp
from elsewhere import helper
N = 2
def half(x): return x * pl.program_id(2)
def kernel(x_ref, o_ref):
    {body}
def f(x):
    return pl.pallas_call(
        kernel, grid=(4, 4, 3), out_shape=jax.ShapeDtypeStruct((32, 512), "float32"),
        in_specs=[pl.BlockSpec((8, 128), {map})],
        out_specs=pl.BlockSpec((8, 128), lambda i, j, k: (i, j)){more})(x)
"""
PLAIN, SAME = "o_ref[...] = jnp.tanh(x_ref[...]) + jnp.zeros_like(o_ref)", "lambda i, j, k: (i, j)"


@pytest.mark.parametrize(
    ("body", "index_map", "more", "found"),
    [
        (PLAIN, SAME, "", True),
        (PLAIN, "lambda i, *rest: (i, 0)", "", True),
        ("y = x_ref[...].astype(N); o_ref[...] = jax.lax.fori_loop(0, N, lambda _, z: z + y, y)", SAME, "", True),
        (PLAIN, "lambda i, j, k: (i, k)", "", False),
        (PLAIN, "lambda i, *rest: (i, rest[1])", "", False),
        (PLAIN, "helper", "", False),
        ("o_ref[...] = x_ref[...] * pl.program_id(N)", SAME, "", False),
        ("o_ref[...] = half(x_ref[...])", SAME, "", False),
        ("o_ref[...] = jax.lax.map(half, x_ref[...])", SAME, "", False),
        ("o_ref[...] = helper(x_ref[...])", SAME, "", False),
        ("o_ref[...] += x_ref[...]", SAME, "", False),
        ("helper.fill(o_ref)", SAME, "", False),
        ("o_ref[...] = pltpu.prng_random_bits((8, 128))", SAME, "", False),
        (PLAIN, SAME, ", input_output_aliases={0: 0}", False),
        (PLAIN, SAME, ", compiler_params=pltpu.CompilerParams(dimension_semantics=(P, P, pltpu.PARALLEL))", False),
    ],
)  # fmt: skip
def test_a_dimension_of_the_grid_on_which_nothing_depends(body: str, index_map: str, more: str, found: bool) -> None:
    text = AXIS.replace("{body}", body).replace("{map}", index_map).replace("{more}", more)
    _, all_found = scan_text(HEADER + text, "kernels.py")
    said = [one for one in all_found if one.code == "unused-grid-axis"]
    assert len(said) == found
    if found:
        assert (said[0].line - HEADER.count("\n"), said[0].severity) == (10, "information")
        assert "dimension 2 of the grid" in said[0].message and "computed 3 times" in said[0].message
