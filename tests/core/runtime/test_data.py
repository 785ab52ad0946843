"""Arrays on disk, random inputs, and comparisons."""

from __future__ import annotations

import io
import json
import os
import subprocess
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloscope.core.cli import main
from hloscope.core.errors import EvaluationError
from hloscope.core.hlo.element_types import ELEMENT_TYPES
from hloscope.core.hlo.shape import Shape
from hloscope.core.runtime import npz
from hloscope.core.runtime.compare import Rules, compare, rules_for
from hloscope.core.runtime.inputs import random_inputs
from hloscope.core.text import load_module

Array = np.ndarray[Any, np.dtype[Any]]


def array(dtype: str, values: Any) -> Array:
    """The values as an array of a numpy type."""
    return np.asarray(values, np.dtype(dtype))


TYPES = [name for name, row in ELEMENT_TYPES.items() if row.numpy_name is not None]


# ---------------------------------------------------------------- npz
@pytest.mark.parametrize("name", TYPES)
def test_every_element_type_survives_the_file(tmp_path: Path, name: str) -> None:
    shape = Shape.array(name, (2, 3))
    try:
        (array,) = random_inputs([shape], 5)
    except AttributeError:
        pytest.skip("this ml_dtypes lacks the type")
    assert isinstance(array, np.ndarray)
    npz.write(tmp_path / "a.npz", inputs=[array], outputs=[array, array.reshape(3, 2)])
    back = npz.read(tmp_path / "a.npz")
    assert [len(back.inputs), len(back.outputs)] == [1, 2]
    assert back.inputs[0].dtype == array.dtype
    assert back.inputs[0].tobytes() == array.tobytes()


def test_the_file_can_be_read_without_ml_dtypes(tmp_path: Path) -> None:
    values = np.asarray([1.0, -2.0], ml_dtypes.bfloat16)
    npz.write(tmp_path / "a.npz", outputs=[values])
    with np.load(tmp_path / "a.npz") as file:
        assert file["out_000"].dtype == np.uint16
        assert json.loads(str(file["dtypes"])) == {"out_000": "bf16"}


def test_files_by_others_are_read(tmp_path: Path) -> None:
    bits = np.asarray([1.0, 2.0], ml_dtypes.bfloat16).view(np.uint16)
    np.savez(tmp_path / "a.npz", in_000=bits, in_001=array("float32", [3]), dtypes=json.dumps({"in_000": "bfloat16"}))
    first, second = npz.read(tmp_path / "a.npz").inputs
    assert first.astype(np.float32).tolist() == [1.0, 2.0]
    assert second.dtype == np.float32


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"HloModule m\n", "expected an .npz archive"),
        (b"", "expected an .npz archive"),
    ],
)
def test_unusable_files_are_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EvaluationError, match=message) as caught:
        npz.read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_gap_in_the_numbering_is_said(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", in_000=np.zeros(1), in_002=np.zeros(1))
    with pytest.raises(EvaluationError, match="holds in_002 and no in_001"):
        npz.read(tmp_path / "a.npz")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="cannot be written"):
        npz.write(tmp_path / "missing" / "a.npz", outputs=[np.zeros(1)])
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- inputs
def test_random_inputs_depend_on_seed_and_place_only() -> None:
    shapes = [Shape.array("f32", (3,)), Shape.array("s32", (100,)), Shape.tuple_([Shape.scalar("pred")])]
    one, same, other = random_inputs(shapes, 1), random_inputs([shapes[1]] + shapes[1:], 1), random_inputs(shapes, 2)
    assert isinstance(one[1], np.ndarray) and isinstance(same[1], np.ndarray) and isinstance(other[1], np.ndarray)
    assert np.array_equal(one[1], same[1])
    assert not np.array_equal(one[1], other[1])
    assert one[1].min() >= -4 and one[1].max() <= 8
    assert isinstance(one[2], tuple)


# ---------------------------------------------------------------- compare
def test_the_worst_element_is_found() -> None:
    a = np.ones((4, 5), np.float32)
    b = a.copy()
    b[2, 3] = 1.5
    b[1, 1] = np.nextafter(np.float32(1), np.float32(2))
    found = compare(a, b)
    assert (found.within, found.outside, found.worst_index) == (False, 1, (2, 3))
    assert found.max_abs == 0.5
    assert found.max_ulp == 1 << 22
    assert "at [2, 3]: 1.0 against 1.5" in str(found)


def test_rounding_is_within_and_bits_are_noted() -> None:
    a = np.linspace(1, 2, 50, dtype=np.float32)
    b = np.nextafter(a, np.float32(3))
    found = compare(a, b)
    assert found.within and not found.same_bits and found.max_ulp == 1
    assert compare(a, a.copy()).same_bits


@pytest.mark.parametrize(
    ("a", "b", "within"),
    [
        ([np.nan, 1.0], [np.nan, 1.0], True),
        ([np.nan, 1.0], [1.0, 1.0], False),
        ([np.inf, 1.0], [np.inf, 1.0], True),
        ([np.inf, 1.0], [-np.inf, 1.0], False),
        ([np.inf, 1.0], [3e38, 1.0], False),
        ([1e-40, 1.0], [0.0, 1.0], True),
        ([0.0, 1.0], [-0.0, 1.0], True),
    ],
)
def test_special_values(a: list[float], b: list[float], within: bool) -> None:
    found = compare(array("float32", a), array("float32", [*b]))
    assert found.within is within
    assert found.nan_mismatches == (0 if within or np.isinf(a[0]) else 1)


def test_zeros_of_both_signs_are_one_value() -> None:
    assert compare(array("float32", [0.0]), array("float32", [-0.0])).max_ulp == 0


def test_integers_are_exact_unless_rounding_made_them() -> None:
    a, b = array("int8", [1, 2, 3]), array("int8", [1, 3, 3])
    assert not compare(a, b).within
    assert compare(a, b, Rules(integer_slack=1)).within
    far = compare(array("int64", [-(2**63)]), array("int64", [2**63 - 1]))
    assert far.max_ulp == 2**64 - 1


def test_other_shapes_and_types_are_said() -> None:
    assert "float32[2] is not float32[3]" in str(compare(np.zeros(2, np.float32), np.zeros(3, np.float32)))
    assert not compare(np.zeros(2, np.float32), np.zeros(2, np.float64)).within


def test_rules_follow_from_the_module() -> None:
    text = (
        "HloModule m\nENTRY e {\n  a = f32[4,300] parameter(0)\n  b = bf16[300,5] parameter(1)\n"
        "  c = f32[300,5] convert(b)\n  d = f32[4,5] dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "  ROOT r = s8[4,5] convert(d)\n}\n"
    )
    rules = rules_for(load_module(text))
    assert (rules.terms, rules.narrowest, rules.integer_slack) == (300, "bf16", 1)
    f32 = ELEMENT_TYPES["f32"]
    assert Rules(terms=1).relative(f32) < Rules(terms=300).relative(f32) < rules.relative(f32)


# ---------------------------------------------------------------- hloscope run
def command(*args: str) -> subprocess.CompletedProcess[str]:
    """``hloscope run`` in this process: nine of its own would take seconds."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main.run(["run", *args])
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())


def test_run_meets_the_oracle_and_writes_the_results(fixtures: Path, tmp_path: Path) -> None:
    folder = fixtures / "programs" / "softmax_layernorm"
    module, oracle, out = str(folder / "before_optimizations.txt"), str(folder / "oracle.npz"), tmp_path / "out.npz"
    done = command(module, "--args", oracle, "-o", str(out), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    expected = npz.read(oracle)
    written = npz.read(out)
    assert answer["source"]["module"] == "jit_softmax_layernorm"
    assert [row["shape"] for row in answer["outputs"]] == [list(a.shape) for a in expected.outputs]
    assert set(answer["outputs"][0]) == {"shape", "dtype", "min", "max", "nan_count", "sha256"}
    rules = rules_for(load_module(Path(module).read_text()))
    assert all(compare(a, b, rules).within for a, b in zip(expected.outputs, written.outputs, strict=True))
    again = command(module, "--args", oracle, "-o", str(out))
    assert again.returncode == 2
    assert again.stderr.strip() == f"hloscope: {out}: exists already (--force replaces it)"


def test_run_draws_the_same_inputs_for_the_same_seed(fixtures: Path) -> None:
    module = str(fixtures / "programs" / "fft_cholesky" / "before_optimizations.txt")
    rows = [json.loads(command(module, "--seed", seed, "--json").stdout)["outputs"] for seed in ("1", "1", "2")]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


def test_run_on_xla_gives_what_the_oracle_has(fixtures: Path, tmp_path: Path) -> None:
    folder = fixtures / "programs" / "softmax_layernorm"
    out = tmp_path / "out.npz"
    done = command(
        str(folder / "before_optimizations.txt"),
        "--args",
        str(folder / "oracle.npz"),
        "--engine",
        "xla",
        "-o",
        str(out),
    )
    assert done.returncode == 0, done.stderr
    pairs = zip(npz.read(folder / "oracle.npz").outputs, npz.read(out).outputs, strict=True)
    assert all(compare(a, b, Rules(terms=64)).within for a, b in pairs)


def test_run_says_where_it_cannot_go_on(tmp_path: Path) -> None:
    module = tmp_path / "m.hlo"
    module.write_text(
        "HloModule m\n\nENTRY e {\n  x = f32[2] parameter(0)\n"
        '  ROOT k = f32[2] custom-call(x), custom_call_target="odd"\n}\n'
    )
    done = command(str(module))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"hloscope: {module}:5:8: cannot evaluate %k: custom-call")
    assert done.stderr.count("\n") == 1
    assert command(str(module), "--opaque", "odd").returncode == 0
    wrong = tmp_path / "args.npz"
    npz.write(wrong, inputs=[np.zeros(3, np.float32)])
    done = command(str(module), "--args", str(wrong))
    assert done.stderr == f"hloscope: {wrong}: argument 0 for parameter x is f32[3], expected f32[2]\n"


def test_arrays_go_into_a_pipe_and_do_not_replace_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    npz.write(pipe, outputs=[np.ones(3, np.float32)])
    reader.join(timeout=30)
    assert got and got[0].startswith(b"PK") and pipe.is_fifo()
