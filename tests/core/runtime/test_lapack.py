"""LAPACK custom calls against the real ones of XLA:CPU, all in one module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hloscope.core.errors import UnsupportedError
from hloscope.core.runtime.evaluator import evaluate
from hloscope.core.text import load_module
from hloscope.core.xla.execute import execute_hlo_text

Array = np.ndarray[Any, np.dtype[Any]]
LAYOUTS = {1: "{0}", 2: "{0,1}", 3: "{1,2,0}"}
"""Matrices are column-major."""


def typed(shape: str) -> str:
    """A shape with LAPACK's layout; ``f32[2,3]v`` is a batch of vectors."""
    sizes = [n for n in shape.rstrip("v")[shape.index("[") + 1 : shape.rindex("]")].split(",") if n]
    if not sizes:
        return shape.rstrip("v")
    if shape.endswith("v"):
        return f"{shape[:-1]}{{{','.join(str(d) for d in reversed(range(len(sizes))))}}}"
    return shape + LAYOUTS[len(sizes)]


# target, operands (by name), results, options, results that are compared
CALLS: Sequence[tuple[str, str, str, str, Sequence[int]]] = (
    ("sgetrf", "A", "f32[2,4,3] s32[2,3]v s32[2]v", "", (0, 1, 2)),
    ("cgetrf", "C", "c64[4,3] s32[3]v s32[]v", "", (0, 1, 2)),
    ("sgeqrf", "A", "f32[2,4,3] f32[2,3]v", "", (0, 1)),
    ("cgeqrf", "C", "c64[4,3] c64[3]v", "", (0, 1)),
    ("sgeqp3", "A J", "f32[2,4,3] s32[2,3]v f32[2,3]v", "", (0, 1, 2)),
    ("sorgqr", "A T", "f32[2,4,3]", "", (0,)),
    ("cungqr", "C U", "c64[4,3]", "", (0,)),
    ("sormqr", "A T B", "f32[2,4,2]", "left = true, transpose = true", (0,)),
    ("cunmqr", "C U D", "c64[2,4]", "left = false, transpose = true", (0,)),
    ("ssyevd", "S", "f32[2,3,3] f32[2,3]v s32[2]v", "mode = 86 : ui8, uplo = 76 : ui8", (1, 2)),
    ("cheevd", "H", "c64[3,3] f32[3]v s32[]v", "mode = 86 : ui8, uplo = 76 : ui8", (1, 2)),
    ("sgesdd", "A", "f32[2,4,3] f32[2,3]v f32[2,4,4] f32[2,3,3] s32[2]v", "mode = 65 : ui8", (1, 4)),
    ("sgesvd", "A", "f32[2,4,3] f32[2,3]v f32[2,4,3] f32[2,3,3] s32[2]v", "mode = 83 : ui8", (1, 4)),
    ("cgeev", "H", "c64[3]v c64[3,3] c64[3,3] s32[]v", "compute_left = 86 : ui8, compute_right = 86 : ui8", (3,)),
    ("sgehrd", "S", "f32[2,3,3] f32[2,2]v s32[2]v", "high = 3 : i32, low = 1 : i32", (0, 1, 2)),
    ("ssytrd", "S", "f32[2,3,3] f32[2,3]v f32[2,2]v f32[2,2]v s32[2]v", "uplo = 76 : ui8", (1, 2, 3, 4)),
    ("dgtsv", "L M L X", "f64[2,5]v f64[2,5]v f64[2,5]v f64[2,5,2] s32[2]v", "", (3, 4)),
)


def data() -> dict[str, tuple[str, Array]]:
    """Operands by name: the shape as it is written, and values."""
    rng = np.random.default_rng(1)

    def pair(*sizes: int) -> Array:
        return (rng.standard_normal(sizes) + 1j * rng.standard_normal(sizes)).astype(np.complex64)

    square, hermitian = rng.standard_normal((2, 3, 3)).astype(np.float32), pair(3, 3)
    reflectors = rng.uniform(0.2, 1, (2, 3)).astype(np.float32)
    return {
        "A": ("f32[2,4,3]", rng.standard_normal((2, 4, 3)).astype(np.float32)),
        "B": ("f32[2,4,2]", rng.standard_normal((2, 4, 2)).astype(np.float32)),
        "C": ("c64[4,3]", pair(4, 3)),
        "D": ("c64[2,4]", pair(2, 4)),
        "H": ("c64[3,3]", hermitian + np.conj(hermitian.T)),
        "J": ("s32[2,3]v", np.array([[0, 0, 0], [0, 0, 1]], np.int32)),
        "L": ("f64[2,5]v", rng.standard_normal((2, 5))),
        "M": ("f64[2,5]v", rng.standard_normal((2, 5)) + 4),
        "S": ("f32[2,3,3]", (square + np.swapaxes(square, 1, 2)).astype(np.float32)),
        "T": ("f32[2,3]v", reflectors),
        "U": ("c64[3]v", pair(3)),
        "X": ("f64[2,5,2]", rng.standard_normal((2, 5, 2))),
    }


def program() -> tuple[str, list[Array]]:
    """All calls in one module, and its arguments."""
    known = data()
    lines = [f"  {name} = {typed(shape)} parameter({i})" for i, (name, (shape, _)) in enumerate(known.items())]
    results: list[str] = []
    for number, (target, operands, shapes, options, compared) in enumerate(CALLS):
        given = [typed(known[name][0]) for name in operands.split()]
        parts = [typed(shape) for shape in shapes.split()]
        whole = f"({', '.join(parts)})" if len(parts) > 1 else parts[0]
        lines.append(
            f"  call{number} = {whole} custom-call({', '.join(operands.split())}), "
            f'custom_call_target="lapack_{target}_ffi", operand_layout_constraints={{{", ".join(given)}}}, '
            f"api_version=API_VERSION_TYPED_FFI, backend_config={{{options}}}"
        )
        for place in compared:
            if len(parts) == 1:
                results.append(f"call{number}")
                continue
            lines.append(f"  r{number}_{place} = {parts[place]} get-tuple-element(call{number}), index={place}")
            results.append(f"r{number}_{place}")
    kinds = {line.split(" = ")[0].strip(): line.split(" = ")[1].split(" ")[0] for line in lines}
    root = f"  ROOT out = ({', '.join(kinds[name] for name in results)}) tuple({', '.join(results)})"
    text = "HloModule lapack\n\nENTRY main {\n" + "\n".join([*lines, root]) + "\n}\n"
    return text, [values for _, values in known.values()]


def test_calls_of_lapack_compute_what_it_computes() -> None:
    text, arguments = program()
    real, _, _ = execute_hlo_text(text, arguments)
    mine = [np.asarray(x) for x in evaluate(load_module(text), arguments)]
    compared = [(target, place) for target, _, _, _, places in CALLS for place in places]
    for (target, place), expected, actual in zip(compared, real, mine, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5, err_msg=f"result {place} of {target}")


def test_vectors_span_what_they_should() -> None:
    """Signs and phases of vectors are free: they are checked by what they mean."""
    values = data()
    matrix = values["A"][1].astype(np.float64)
    shapes = "(f32[2,4,3], f32[2,3], f32[2,4,3], f32[2,3,3], s32[2])"
    body = f'  ROOT r = {shapes} custom-call(a), custom_call_target="lapack_sgesdd_ffi", backend_config={{mode = 83}}'
    text = f"HloModule m\nENTRY e {{\n  a = f32[2,4,3] parameter(0)\n{body}\n}}\n"
    _, s, u, vt, _ = (np.asarray(x) for x in evaluate(load_module(text), [values["A"][1]]))
    np.testing.assert_allclose((u * s[:, None, :]) @ vt, matrix, atol=1e-5)
    square = data()["S"][1][0] + np.triu(np.ones((3, 3), np.float32))
    text = (
        "HloModule m\nENTRY e {\n  a = f32[3,3] parameter(0)\n  ROOT r = (f32[3], f32[3], c64[3,3], c64[3,3], s32[])"
        ' custom-call(a), custom_call_target="lapack_sgeev_ffi",'
        " backend_config={compute_left = 86 : ui8, compute_right = 86 : ui8}\n}\n"
    )
    real, imag, left, right, _ = (np.asarray(x) for x in evaluate(load_module(text), [square]))
    w = real + 1j * imag
    np.testing.assert_allclose(square @ right, right * w, atol=1e-4)
    np.testing.assert_allclose(np.conj(left.T) @ square, w[:, None] * np.conj(left.T), atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(left, axis=0), 1, atol=1e-5)


def test_an_unknown_routine_is_named() -> None:
    text = (
        "HloModule m\nENTRY e {\n  a = f32[3,3] parameter(0)\n"
        '  ROOT r = f32[3,3] custom-call(a), custom_call_target="lapack_sgees_ffi"\n}\n'
    )
    with pytest.raises(UnsupportedError, match="lapack_sgees_ffi"):
        evaluate(load_module(text), [np.eye(3, dtype=np.float32)])
