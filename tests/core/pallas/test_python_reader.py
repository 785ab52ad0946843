"""Python through tree-sitter: the tree of Python's own parser where there is no fault, most of it where there is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hloscope.core.pallas.python_reader import read_python
from hloscope.core.pallas.static_source import scan_text
from hloscope.core.views.pallas_source import pallas_facts

SYNTAX = """
a: int = 3; b = c = f(x, *y, **z, k=1); a, b = 1, 2; a += 1; x[1:2, ::3, ...] = -x ** ~y @ z; w[a,] = {*b.c, 1}
lambda x, y=1, *a, k, **w: (x, y)
def f(a, b: int, c=1, d: int = 2, /, e=3, *args: int, g, h=1, **kw) -> int: return not a and b or c if d else e
@d
@e(1)
class A(B, metaclass=C):
    async def g(self):
        async with a as b, c: await d
        async for x in y: yield x
        return a < b <= c not in d is not e, [x for x in y if z for w in v], {k: v for k in y}, {**a, 'b': 1}
with (a as b): x = (y := 3)
try: pass
except (A, B) as e: raise A from b
else: del a, b
finally: assert a, b
for i, (j, k) in z: continue
else: pass
while a: break
if a: global q
elif b: x = f(x for x in y)
else: "a" 'b'
from a.b import c as d, e
from .. import f
import a.b as c
é = "ü", b"x", 0x1F, 1_000, 1.5e3, 2j, None, True, ...
"""


def plain(tree: ast.AST) -> str:
    """A tree as text; f-strings and what a pattern compares with are not compared."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            node.values = []
    return ast.dump(tree)


def places(tree: ast.AST) -> list[tuple[int | None, ...]]:
    """Where calls and index maps stand: what is told of."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.Lambda)]
    return [(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) for node in nodes]


def test_the_tree_is_the_one_of_pythons_parser(fixtures: Path) -> None:
    here = Path(__file__).resolve()
    texts = [SYNTAX, here.read_text(), (here.parent / "conftest.py").read_text()]
    texts += [path.read_text() for path in sorted((fixtures / "pallas").glob("*.py"))]
    for text in texts:
        reading = read_python(text)
        assert reading.faults == ()
        assert places(reading.tree) == places(ast.parse(text))
        assert plain(reading.tree) == plain(ast.parse(text))


CALL = """
def {name}(x=jax.ShapeDtypeStruct((32, 128), "float32")):
    return pl.pallas_call(
        kernel, grid=(4,), in_specs=[pl.BlockSpec((8, 128), lambda i: ({index}, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)), out_shape=jax.ShapeDtypeStruct((32, 128), "float32"))(x)
"""
WRONG = CALL.format(name="wrong", index="i + 1")
BROKEN = {
    "a call": "def half(x):\n    return pl.pallas_call(kernel, grid=(2,\n",
    "a keyword": "def half(x):\n    y = pl.pallas_call(kernel, grid=(2,), in_specs=\n    return y\n",
    "a lambda": "def half(x):\n    return pl.pallas_call(kernel, grid=(2,), out_specs=pl.BlockSpec((8,), lambda i\n",
    "a bracket in the middle": "half = pl.pallas_call(\n    kernel,\n    grid=(2,\n    out_shape=x,\n)(x)\n",
    "a wrong closing bracket": "half = pl.pallas_call(kernel, grid=(2,], out_shape=x)\n",
    "a string": 'half = pl.pallas_call(kernel, grid=(2,), name="half\n',
    "a header without colon": "def half(x)\n    return pl.pallas_call(kernel, grid=(2,))\n",
    "parameters": "def half(x, y=\n    return pl.pallas_call(kernel, grid=(2,))\n",
    "a decorator": "@partial(jax.jit, static_argnames=(\ndef half(x):\n    return pl.pallas_call(kernel, grid=(2,))\n",
    "a branch": "def half(x):\n    if x\n        y = 1\n    else:\n        return pl.pallas_call(kernel, grid=(2,))\n",
    "a case": "def half(x):\n    match x:\n        case 1\n            pass\n        case 2:\n            y = (\n"
    "        case _:\n            return pl.pallas_call(kernel, grid=(2,))\n",
    "a method": "class Half:\n    def a(self):\n        return (1,\n    def b(self):\n"
    "        return pl.pallas_call(kernel, grid=(2,))\n",
    "an operator": "half = 2 *\npl.pallas_call(kernel, grid=(2,))\n",
}


@pytest.mark.parametrize("what", BROKEN)
def test_half_typed_text_takes_nothing_from_the_rest(what: str) -> None:
    broken = BROKEN[what]
    shift = broken.count("\n")
    for text, moved in ((WRONG + broken, 0), (broken + WRONG, shift), ("# é\n" + broken + WRONG, shift + 1)):
        calls, found = scan_text(text, "half.py", half_typed=True)
        assert {(2,), (4,)} == {one.grid for one in calls}
        told = [(one.code, one.line - moved) for one in found if one.code != "unsupported"]
        assert told == [("index-map-out-of-range", 4)]
        assert {(2,), (4,)} == {one.grid for one in pallas_facts(text)}


def test_no_finding_rests_on_what_is_half_typed() -> None:
    call = "pl.pallas_call(kernel, grid=grid, out_specs=pl.BlockSpec((8,), lambda i: (i + 1,)), out_shape=shape)"
    shape = 'shape = jax.ShapeDtypeStruct((32,), "float32")\n'
    whole = f"{shape}grid = (4,)\n{call}\n"
    for text, code in ((whole, "index-map-out-of-range"), (whole.replace("i + 1", "0"), "output-never-written")):
        assert [one.code for one in scan_text(text, "a.py")[1]] == [code]
        for half in (text.replace("(4,)", "(4, "), text.replace("shape=shape)", "shape=shape, name=")):
            assert half != text
            told = {one.code for one in scan_text(half, "a.py", half_typed=True)[1]}
            assert told <= {"unsupported"}
    # A default of which a part is still to come gives no shape to what is called with it.
    spec = "pl.BlockSpec((8, 128), lambda i: (i, 0))"
    called = f"    return pl.pallas_call(k, grid=(4,), in_specs=[{spec}], out_shape=shape)(x)\n"
    for default, codes in (
        ("(256,), f)):", ["trace-refused"]),
        ("(256, ", []),
        ("(", []),
        ("(256", []),
        ("(256,), f", []),
    ):
        assert [
            one.code
            for one in scan_text(f"def g(x=jnp.zeros({default}\n{called}", "a.py", half_typed=True)[1]
            if one.code != "unsupported"
        ] == codes, default


def test_columns_are_characters_behind_non_ascii_text_of_any_line_end() -> None:
    for end in ("\n", "\r\n", "\r"):
        text = ("# ü\u2028\n" + WRONG.replace("kernel,", 'kernel, name="héé😀",')).replace("\n", end)
        (found,) = scan_text(text, "a.py")[1]
        assert text.split(end)[found.line - 1][found.column - 1 : found.end_column - 1] == "lambda i: (i + 1, 0)"


@pytest.mark.parametrize(
    ("text", "kernel", "function"),
    [
        ("call = partial(pl.pallas_call, grid=(3,))\n", "pallas_call", None),
        ("@functools.partial(pl.pallas_call, grid=(3,))\ndef k(x_ref): pass\n", "k", "k"),
        ("def f(x): return partial(pl.pallas_call, grid=(3,))(partial(k, n=1))(x)\n", "k", "f"),
        ("@jax.jit\ndef f(x):\n    def g(y): return pl.pallas_call(k, grid=3)(y)\n    return g(x)\n", "k", "f"),
        ("match x:\n    case [rows]:\n        pl.pallas_call(k, grid=(rows := 3,))\n", "k", None),
        ("with a as b:\n    n = 3\n    pl.pallas_call(k, grid=(n,))\n", "k", None),
    ],
)
def test_where_calls_hide(text: str, kernel: str, function: str | None) -> None:
    calls, _ = scan_text(text, "a.py")
    assert [(one.name, one.function) for one in calls] == [(kernel, function)]
    assert calls[0].grid in ((3,), (None,))
    assert (calls[0].grid == (None,)) == (":=" in text)


def test_names_that_a_branch_or_a_pattern_binds_are_not_known() -> None:
    binding = ("match x:\n    case (rows, 2): pass\n", "from a import rows\n", "if x: rows = 4\n", "def rows(): pass\n")
    for middle in binding:
        calls, _ = scan_text(f"rows = 8\n{middle}pl.pallas_call(k, grid=(rows,))\n", "a.py")
        assert calls[0].grid == (None,), middle


@pytest.mark.parametrize(
    ("parameters", "body", "code"),
    [
        ("x=jnp.ones((32, 128))", "", "index-map-out-of-range"),
        ("x=jax.ShapeDtypeStruct((32, 128), jnp.float32)", "", "index-map-out-of-range"),
        ("*, x=jnp.zeros((32, 128))", "", "index-map-out-of-range"),
        ("x=jnp.ones((64, 128))", "", "output-never-written"),
        ("x=jnp.ones((32, 128))", "x = x.reshape(64, 128)", None),
        ("x=jnp.ones((32, 128))", "for x in y: pass", None),
        ("x", "x = jnp.ones((32, 128))", None),
        ("y", "x = jnp.ones((32, 128))", "index-map-out-of-range"),
        ("x=jnp.ones(y.shape), y=jnp.ones(x.shape)", "", None),
    ],
)
def test_shapes_come_from_defaults_that_nothing_replaces(parameters: str, body: str, code: str | None) -> None:
    for out in ("x", "jax.ShapeDtypeStruct(x.shape, x.dtype)"):
        text = f"""
def f({parameters}):
    {body or "pass"}
    return pl.pallas_call(
        kernel, grid=(4,), out_specs=pl.BlockSpec((8, 128), lambda i: (i + 1, 0)), out_shape={out})()
"""
        told = [one.code for one in scan_text(text, "a.py")[1]]
        assert told == ([] if code is None else [code]), (out, told)
        pallas_facts(text)
