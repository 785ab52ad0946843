"""What the text of a file says by itself, without importing it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hloscope.core.errors import UsageError
from hloscope.core.pallas.checks.finding import Finding
from hloscope.core.pallas.checks.undecided import said_once
from hloscope.core.pallas.report import analyse
from hloscope.core.pallas.static_source import scan_text
from hloscope.core.pallas.untraced import untraced_findings

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
    text = CALL.format(block="(4, 128)", map="lambda i: (i, 0)", more="").replace("def f(x)", "def f(x=SHAPE)")
    known = text.replace("SHAPE", 'jax.ShapeDtypeStruct((32, 128), "float32")')
    assert findings(known) == []
    assert findings(known, "v5e") == [("block-shape", 6, "error")]
    assert findings(known, "h100") == []
    # The array's shape is not in the text, or the block is as high as the array.
    assert findings(text, "v5e") == []
    assert findings(literal(x="(4, 512)", block="(4, 128)", grid="(1, 4)"), "v5e") == []
    for params, told in (("pltpu.", ["block-shape"]), ("plgpu.", []), ("other.", [])):
        meant = known.replace("out_shape", f"compiler_params={params}CompilerParams(), out_shape")
        assert [one[0] for one in findings(meant)] == told
        assert [one[0] for one in findings(GPU + meant, "v5e")] == told


GPU = "from jax.experimental.pallas import mosaic_gpu as plgpu\n"


def test_parallel_steps_on_one_block() -> None:
    more = ', compiler_params=pltpu.CompilerParams(dimension_semantics=("{}",))'
    one_block = "lambda i: (0, 0)"
    parallel = CALL.format(block="(8, 128)", map=one_block, more=more.format("parallel"))
    parallel = parallel.replace("((32, 128)", "((8, 128)")
    assert findings(parallel) == [("parallel-write-race", 7, "warning")]
    assert findings(parallel.replace('"parallel"', '"arbitrary"')) == []
    # A GPU's programs have no order; a kernel with memory of a TPU is not meant for one.
    plain = CALL.format(block="(8, 128)", map=one_block, more="").replace("((32, 128)", "((8, 128)")
    assert findings(plain, "h100") == [("parallel-write-race", 7, "warning")]
    assert findings(plain.replace("o_ref[...] =", "o_ref[0] ="), "h100") == findings(plain, "v5e") == []
    assert findings(plain.replace("grid=", "scratch_shapes=[pltpu.VMEM((8, 128), F)], grid="), "h100") == []
    # Which words, or how many steps, the text does not say.
    assert findings(parallel.replace('"parallel"', "word")) == findings(parallel.replace("(4,)", "(n,)"))[1:] == []
    assert [one[0] for one in findings(parallel.replace("(4,)", "(n,)"))] == ["unsupported"]


LITERAL = """
import jax.numpy as jnp
def kernel(x_ref, o_ref): o_ref[...] = x_ref[...]
def f(x=jnp.ones({x}, {dtype})):
    return pl.pallas_call(
        kernel, grid={grid}, out_shape=jax.ShapeDtypeStruct({x}, x.dtype),
        in_specs=[pl.BlockSpec({block}, {read})],
        out_specs=pl.BlockSpec({block}, {map}){more})(x)
"""


def literal(**given: str) -> str:
    words = {"x": "(512, 512)", "dtype": "jnp.float32", "grid": "(4, 4)", "block": "(128, 128)", "more": ""}
    words |= {"map": "lambda i, j: (i, j)", **given}
    return LITERAL.format(**{"read": words["map"], **words})


SEMANTICS = ", compiler_params=pltpu.CompilerParams(dimension_semantics=({}))"


@pytest.mark.parametrize(
    ("given", "target", "expected"),
    [
        ({}, "v5e", []),
        # blocks that do not divide, in each dimension with its own part
        ({"x": "(500, 512)"}, None, [("partial-block", 6), ("partial-block", 7)]),
        ({"x": "(500, 1000)", "block": "(128, 512)", "grid": "(4, 2)"}, None,
         [("partial-block", 6), ("partial-block", 7)]),
        # rows that no step writes
        ({"grid": "(3, 4)"}, None, [("output-never-written", 7)]),
        ({"grid": "(3, 4)", "more": ", input_output_aliases={0: 0}"}, None, []),
        # memory: 16 MiB of blocks of a v5e, 32 MiB of a v6e
        ({"block": "(4096, 512)", "x": "(8192, 1024)", "grid": "(2, 2)"}, "v5e", [("vmem-budget", 6)]),
        ({"block": "(4096, 512)", "x": "(8192, 1024)", "grid": "(2, 2)"}, "v6e", []),
        ({"block": "(4096, 512)", "x": "(8192, 1024)", "grid": "(2, 2)", "dtype": "jnp.int8"}, "v5e", []),
        ({"block": "(4096, 512)", "x": "(8192, 1024)", "grid": "(2, 2)", "dtype": "kind"}, "v5e", []),
        ({"block": "(4096, 512)", "x": "(8192, 1024)", "grid": "(2, 2)",
          "more": ", compiler_params=pltpu.CompilerParams(vmem_limit_bytes=64 << 20)"}, "v5e", []),
        ({"block": "(4096, 512)", "x": "(8192, 1024)", "grid": "(2, 2)",
          "more": ", compiler_params=pltpu.CompilerParams(vmem_limit_bytes=1 << 20)"}, "v6e", [("vmem-budget", 6)]),
        # blocks of one dimension, by the width of the type
        ({"x": "(512,)", "block": "(128,)", "grid": "(4,)", "map": "lambda i: i"}, "v5e", []),
        ({"x": "(512,)", "block": "(128,)", "grid": "(4,)", "map": "lambda i: i", "dtype": "jnp.int8"}, "v5e",
         [("block-shape", 6), ("block-shape", 7)]),
        # two steps of parallel dimensions on one block, by a map that ignores neither
        ({"x": "(512, 512)", "grid": "(8, 4)", "map": "lambda i, j: (i // 2, j)",
          "more": SEMANTICS.format('"parallel", "parallel"')}, None, [("parallel-write-race", 7)]),
        ({"x": "(512, 512)", "grid": "(8, 4)", "map": "lambda i, j: (i // 2, j)",
          "more": SEMANTICS.format('"arbitrary", "arbitrary"')}, None, []),
        ({"more": SEMANTICS.format('"parallel",')}, None, [("dimension-semantics-length", 4)]),
        ({"more": SEMANTICS.format('"arbitrary", "parallel"')}, None, [("dimension-semantics", 4)]),
        ({"more": SEMANTICS.format('*words, "parallel"')}, None, []),
        # grids that are too large to walk
        ({"x": "(131072, 131072)", "grid": "(1024, 1024)"}, None, []),
        ({"x": "(131072, 131072)", "grid": "(1024, 1024)", "map": "lambda i, j: (i, j + 1)"}, None,
         [("index-map-out-of-range", 6), ("index-map-out-of-range", 7)]),
        ({"x": "(1 << 20, 4096)", "block": "(8, 128)", "grid": "(1 << 17, 32)"}, None, []),
        ({"x": "(1 << 20, 4096)", "block": "(8, 128)", "grid": "(1 << 17, 32)",
          "map": "lambda i, j: (i * 2 - i - 1, j)"}, None,
         [("index-map-out-of-range", 6), ("index-map-out-of-range", 7)]),
        ({"grid": "(4, 0)"}, None, [("empty-grid", 4)]),
        # what lies in HBM is the whole array
        ({"block": "(128, 128), memory_space=pl.ANY, index_map", "map": "lambda i, j: (i, j)"}, "v5e",
         [("block-window", 6), ("block-window", 7)]),
        # every way to write a dimension
        ({"x": "(4, 512, 512)", "block": "(pl.squeezed, pl.Blocked(128), 512)",
          "map": "lambda i, j: (i, j, 0)"}, "v5e", []),
        ({"x": "(4, 512, 512)", "block": "(pl.Squeezed(), pl.Element(128), pl.Element(512))",
          "map": "lambda i, j: (i, j * 128, 0)"}, None, []),
        ({"x": "(4, 512, 512)", "block": "(None, pl.Element(128), pl.Element(512))",
          "map": "lambda i, j: (i, j * 129, 0)"}, None, [("index-map-out-of-range", 6), ("index-map-out-of-range", 7)]),
    ],
)  # fmt: skip
def test_literal_calls_get_the_checks_of_traced_ones(
    given: dict[str, str], target: str | None, expected: list[tuple[str, int]]
) -> None:
    text = literal(**given).replace("index_map, lambda", "index_map=lambda")
    assert [(code, line - 1) for code, line, _ in findings(text, target)] == expected


FAULTY = {
    "an index map": literal(map="lambda i, j: (i + 1, j)"),
    "an uncovered row": literal(grid="(3, 4)"),
    "a partial block": literal(x="(500, 512)"),
}
UNKNOWN = {
    "arguments from elsewhere": [("grid=(", "**more, metadata=(")],
    "a wrapper": [("pl.pallas_call", "self.pallas_call")],
    "a function of that name": [
        ("pl.pallas_call", "elsewhere.pallas_call"), ("def f", "from us import elsewhere\ndef f"),
    ],
    "partial, of which more may come": [("pl.pallas_call(", "partial(pl.pallas_call, "), (")(x)\n", ")\n")],
    "a grid that a loop binds": [
        ("grid=(", "grid=grid, metadata=("), ("    return", "    for grid in GRIDS: pass\n    return"),
    ],
    "a grid of a parameter": [("grid=(", "grid=grid, metadata=("), ("def f(", "grid = (3, 4)\ndef f(grid, ")],
    "a grid of a lambda": [("grid=(", "grid=grid, metadata=("), ("return ", "grid = (3, 4)\n    return lambda grid: ")],
    "a grid of a comprehension": [
        ("grid=(", "grid=grid, metadata=("), ("return ", "grid = (3, 4)\n    return [0 for grid in GRIDS if "),
        (")(x)\n", ")(x)]\n"),
    ],
    "a grid changed elsewhere": [
        ("grid=(", "grid=grid, metadata=("),
        ("def f(", "grid = (3, 4)\ndef g():\n    global grid\n    grid = (4, 4)\ndef f("),
    ],
    "a grid with more before it": [("grid=(", "grid=(*batch, ")],
    "a grid that a star import may replace": [
        ("grid=(", "grid=grid, metadata=("), ("def f(", "grid = (3, 4)\nfrom us import *\ndef f("),
    ],
    "a list of specs that is changed": [
        ("return ", "specs = [pl.BlockSpec((128, 128), lambda i, j: (i + 1, j))]\n    specs[0] = good\n    return "),
        ("in_specs=[", "in_specs=specs, metadata=["), ("out_specs=", "out_specs=specs[0], cost_estimate="),
    ],
    "a block with more before it": [("BlockSpec((", "BlockSpec((*batch, ")],
    "an array with more before it": [("def f(x=jnp.ones((", "def f(x=jnp.ones((*b, "), ("Struct((", "Struct((*b, ")],
    "another kind of spec": [("pl.BlockSpec", "plgpu.BlockSpec"), (": (i", ": other(i"), ("128, 128", "n, m")],
}  # fmt: skip


@pytest.mark.parametrize("what", UNKNOWN)
@pytest.mark.parametrize("fault", FAULTY)
def test_no_finding_where_the_text_does_not_say_all(fault: str, what: str) -> None:
    text = FAULTY[fault]
    assert {one[0] for one in findings(text)} - {"unsupported"}
    for old, new in UNKNOWN[what]:
        assert old in text, old
        text = text.replace(old, new)
    for target in (None, "v5e", "h100"):
        assert {one[0] for one in findings(text, target)} <= {"unsupported"}, text


def test_an_output_of_unknown_shape_shifts_no_other() -> None:
    call = """
def f(x):
    spec = pl.BlockSpec((8, 128), lambda i: ({map}, 0))
    return pl.pallas_call(
        kernel, grid=(2,), in_specs=[spec], out_specs=[spec, spec, spec],
        out_shape=[S(x.shape, "float32"), S((16, 128), "float32"), S((16, 128), "float32")]{more})(x)
""".replace("S(", "jax.ShapeDtypeStruct(")
    assert findings(call.format(map="i", more="")) == []
    parallel = ', compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",))'
    raced = [one[0] for one in findings(call.format(map="0", more=parallel))]
    assert (raced.count("parallel-write-race"), raced.count("output-never-written")) == (3, 2)


def test_a_call_that_has_a_name_is_tied_to_what_it_is_given() -> None:
    text = """
def f(x=jax.ShapeDtypeStruct((32, 128), "float32"), y=jax.ShapeDtypeStruct((64, 128), "float32"), z=()):
    call = pl.pallas_call(
        kernel, grid=(4,), out_shape=jax.ShapeDtypeStruct((32, 128), "float32"),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i + 1, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)))
    return {use}
"""
    for use, given in (("call(x)", 1), ("call(x) + call(x)", 1), ("call(x) + call(y)[:32]", 0), ("call(*z)", 0),
                       ("[call(x) for x in z]", 0), ("(lambda x: call(x))(y)", 0)):  # fmt: skip
        found = findings(text.replace("{use}", use))
        assert [one for one in found if one[2] == "error"] == [("index-map-out-of-range", 5, "error")] * given, use


def test_things_may_be_called_by_other_names() -> None:
    text = FAULTY["an uncovered row"].replace("jax.ShapeDtypeStruct(", "S(").replace("pl.BlockSpec(", "block(")
    text = text.replace("jnp.float32", "F").replace(
        "def kernel", "S, F = jax.ShapeDtypeStruct, jnp.float32\ndef kernel"
    )
    assert findings("from jax.experimental.pallas import BlockSpec as block\n" + text, "v5e") == [
        ("output-never-written", 10, "warning")
    ]
    assert "output-never-written" not in [one[0] for one in findings(text)]


def test_names_stand_for_what_they_are_where_they_are_seen() -> None:
    here = "def index_map(i): return (i, 0)\n"
    for more in ("def f(x, index_map)", "def f(x)"):
        text = (here + CALL.format(block="(8, 128)", map="index_map", more="")).replace("grid=(4,)", "grid=(4, 4)")
        text = text.replace("lambda i: ", "lambda i, j: ").replace("def f(x)", more)
        told = [one[0] for one in findings(text)]
        assert ("trace-refused" in told) == (more == "def f(x)")
    branches = "    if x: \n        def index_map(i, j): return (i, 0)\n    return"
    assert "trace-refused" not in [one[0] for one in findings(text.replace("    return", branches))]
    # what a lambda takes from around it, and a spec that stands elsewhere
    shift = CALL.format(block="(8, 128)", map="lambda i: (i + n, 0)", more="")
    (told,) = findings(shift.replace("    return", "    n = 1\n    return"))
    assert told[0] == "index-map-out-of-range"
    assert findings(shift.replace("    return", "    n = 0\n    return")) == []
    spec = "SPEC = pl.BlockSpec((8, 128), lambda i: (i + n, 0))\ndef f(x):\n    n = 1\n"
    written = "out_specs=pl.BlockSpec((8, 128), lambda i: (i + n, 0))"
    shared = shift.replace("def f(x):\n", spec).replace(written, "out_specs=SPEC")
    assert findings(shared) == []


def test_what_is_computed_is_said_not_to_be_known() -> None:
    text = """
def f(x, n):
    return pl.pallas_call(kernel, grid=(n // 8,), in_specs=make_specs(), out_shape=x)(x)
"""
    assert findings(text) == [("unsupported", 3, "information")]
    # once for the file
    again = text + text.replace("def f(", "def g(").replace("(n // 8,)", "(4,)")
    (told,) = scan_text(HEADER + again, "kernels.py")[1]
    assert told.line == 6 and "parts of 1 other call, line 9" in told.message


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


def test_what_no_trace_reached_keeps_what_its_text_shows(tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(HEADER + FAULTY["an index map"] + FAULTY["an uncovered row"].replace("def f(", "def g("))
    calls, _ = scan_text(path.read_text(), str(path))
    places = {one.function: (one.file, one.line) for one in calls}
    refusal = Finding("trace-refused", "error", "jax's words", str(path), places["g"][1], 1, 1, 1)

    def told(function: str | None, traced: list[str], refused: list[str]) -> list[tuple[str, str | None, int]]:
        found = untraced_findings(str(path), function, None, [places[one] for one in traced], [refusal], refused)
        return [(one.code, one.function or one.call, one.line) for one in found]

    assert told(None, ["f", "g"], []) == told("f", ["f"], []) == []
    line = places["g"][1]
    assert told("g", [], ["g"]) == told(None, ["f"], ["g"]) == [("output-never-written", "g", line + 3)]
    assert told(None, ["f"], [])[1:] == [("unsupported", "kernel", line)]
    # What jax said of a line is not said again, and what two calls leave open is said once.
    open_ = Finding("unsupported", "information", "not checked", str(path), 3, 1, 3, 1)
    others = [replace(open_, line=line) for line in (7, 7, 9)]
    once = said_once([open_, refusal, *others])
    assert [one.message for one in once] == ["not checked (so at lines 7, 9)", "jax's words"]
