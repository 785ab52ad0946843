"""Thousands of generated cases, opcode by opcode, against the installed XLA:CPU: random shapes, types and attributes.

All cases of a module are results of one compile, in one child process. Its kernels come from XLA's plain emitters,
which take a sixth of the time of the fusion emitters; `test_differential` runs the latter. Values are small whole
numbers where an order of summation could show. What XLA:CPU is known to compute wrongly is not generated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import pytest

from hloscope.core.hlo.element_types import ElementType, from_dtype, lookup
from hloscope.core.runtime.compare import compare
from hloscope.core.runtime.evaluator import EvaluationOptions, evaluate
from hloscope.core.runtime.evaluator.numerics import flush, narrow, widen
from hloscope.core.text import load_module
from hloscope.core.xla.execute import execute_hlo_text

Array = np.ndarray[Any, np.dtype[Any]]
Rng = np.random.Generator
FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
SEED = 20
SCALED = 100.0
"""From so many ulps on they are those of the largest element: where sums cancel, small results are no more exact."""

FLOATS = ("f32", "f64", "f16", "bf16")
SIGNED = ("s8", "s16", "s32", "s64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTS = (*SIGNED, *UNSIGNED)
PLAIN = (*FLOATS, *INTS, "pred")
FLOAT8 = ("f8e4m3fn", "f8e5m2", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "f8e4m3", "f8e3m4")
SUB_BYTE = ("s4", "u4", "s2", "u2")
"""Types with several elements to a byte."""


@dataclass
class Cases:
    """Grows one module: parameters with data, and results with the difference that each may have."""

    data: list[Array] = field(default_factory=list[Array])
    lines: list[str] = field(default_factory=list[str])
    computations: dict[str, str] = field(default_factory=dict[str, str])
    results: list[tuple[str, str, str, float]] = field(default_factory=list[tuple[str, str, str, float]])
    """Name, shape, family and the ulps allowed of each result."""
    family: str = ""
    known: dict[tuple[str, bytes, tuple[int, ...]], str] = field(
        default_factory=dict[tuple[str, bytes, tuple[int, ...]], str]
    )
    count: int = 0

    def value(self, array: Array) -> str:
        """The name of a parameter that holds the array."""
        key = (from_dtype(array.dtype).name, array.tobytes(), array.shape)
        if key not in self.known:
            number = len(self.data)
            self.data.append(array)
            self.lines.append(f"  p{number} = {shape_of(array)} parameter({number})")
            self.known[key] = f"p{number}"
        return self.known[key]

    def add(self, shape: str, opcode: str, *operands: Array, attrs: str = "", ulp: float = 0.0) -> None:
        """A case: the opcode applied to values. `ulp` 0 means the same bits but for NaNs; more, that many ulps."""
        name = f"r{self.count}"
        self.count += 1
        given = ", ".join(self.value(o) for o in operands)
        self.lines.append(f"  {name} = {shape} {opcode}({given}){', ' + attrs if attrs else ''}")
        if not shape.startswith("("):
            self._result(name, shape, ulp)
            return
        for i, part in enumerate(shape[1:-1].split(", ")):
            self.lines.append(f"  {name}_{i} = {part} get-tuple-element({name}), index={i}")
            self._result(f"{name}_{i}", part, ulp)

    def _result(self, name: str, shape: str, ulp: float) -> None:
        self.results.append((name, shape, self.family, ulp))

    def apply(self, name: str, element: str, body: str = "") -> str:
        """The name of ``(a, b) -> body`` on scalars of a type; the body defaults to the opcode of that name."""
        key = f"{name}_{element}".replace("-", "_")
        body = body or f"ROOT r = {element}[] {name}(a, b)"
        self.computations[key] = (
            f"{key} {{\n  a = {element}[] parameter(0)\n  b = {element}[] parameter(1)\n  {body}\n}}\n"
        )
        return key

    def text(self) -> str:
        """The module."""
        shapes = ", ".join(shape for _, shape, _, _ in self.results)
        names = ", ".join(name for name, _, _, _ in self.results)
        body = "\n".join([*self.lines, f"  ROOT out = ({shapes}) tuple({names})"])
        return "HloModule generated\n\n" + "\n".join(self.computations.values()) + f"\nENTRY main {{\n{body}\n}}\n"

    def wrong(self) -> dict[str, list[str]]:
        """Run on both engines; per family the cases that differ, and how."""
        text = self.text()
        theirs, _, _ = execute_hlo_text(text, self.data, flags=FLAGS, timeout=280)
        ours = evaluate(load_module(text), self.data, options=EvaluationOptions(flush_subnormals=True))
        lines = {line.split(" = ", 1)[0].strip(): line.strip() for line in self.lines}
        out: dict[str, list[str]] = {family: [] for _, _, family, _ in self.results}
        for (name, _, family, ulp), real, mine in zip(self.results, theirs, ours, strict=True):
            found = differs(real, np.asarray(mine), ulp)
            if found:
                out[family].append(f"{lines[name.split('_')[0]]}\n    {found}")
        return out


def differs(expected: Array, actual: Array, ulp: float) -> str:
    """How two results differ by more than so many ulps; empty where they do not. Subnormals count as zeros."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return f"{expected.dtype}{expected.shape} is not {actual.dtype}{actual.shape}"
    element = from_dtype(expected.dtype)
    if element.kind == "complex":
        return _differing_parts(expected, actual, ulp)
    if element.kind != "float":
        bad = expected != actual
        return _said(expected, actual, bad)
    a, b = (narrow(element)(flush(element)(widen(element)(x))) for x in (expected, actual))
    wide = [x.astype(np.float64) for x in (a, b)]
    with np.errstate(all="ignore"):
        bad = (np.isnan(wide[0]) != np.isnan(wide[1])) | ((wide[0] != wide[1]) & ~np.isnan(wide[0]))
        if ulp == 0:
            bad |= (np.signbit(wide[0]) != np.signbit(wide[1])) & ~np.isnan(wide[0])
    if ulp >= SCALED:
        size = np.abs(wide[0][np.isfinite(wide[0])]).max(initial=0)
        with np.errstate(all="ignore"):
            bad &= ~(np.abs(wide[0] - wide[1]) <= ulp * np.finfo(expected.dtype).eps * size)
    elif bad.any() and ulp and not (found := compare(a, b)).nan_mismatches and found.max_ulp <= ulp:
        return ""
    return _said(expected, actual, bad)


def _differing_parts(expected: Array, actual: Array, ulp: float) -> str:
    """Complex numbers differ relative to their size; a part that is not finite on either side counts as any."""
    finite = np.isfinite(expected) & np.isfinite(actual)
    size = np.abs(np.where(finite, expected, 0))
    size = np.maximum(size, size.max(initial=0) if ulp >= SCALED else 0)
    eps = np.finfo(expected.dtype).eps
    with np.errstate(all="ignore"):
        bad = finite & (np.abs(np.where(finite, expected - actual, 0)) > ulp * eps * size + 1e-37)
    return _said(expected, actual, bad)


def _said(expected: Array, actual: Array, bad: Array) -> str:
    if not bad.any():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(bad)) if expected.ndim else ()
    return f"at {list(at)}: XLA {expected[at]!r}, ours {actual[at]!r}; {int(np.count_nonzero(bad))} of {bad.size}"


# ---------------------------------------------------------------- data
def shape_of(array: Array) -> str:
    return typed(from_dtype(array.dtype).name, array.shape)


def typed(element: str, sizes: Sequence[int]) -> str:
    return f"{element}[{','.join(map(str, sizes))}]"


def listed(values: Sequence[int]) -> str:
    return "{" + ",".join(map(str, values)) + "}"


def sizes(rng: Rng, rank: int | None = None, most: int = 6, least: int = 1) -> tuple[int, ...]:
    rank = int(rng.integers(0, 5)) if rank is None else rank
    return tuple(int(n) for n in rng.integers(least, most + 1, rank))


def whole(rng: Rng, element: str, shape: Sequence[int], reach: int = 4) -> Array:
    """Small whole numbers: sums and products of a few are exact in every type."""
    low = 0 if lookup(element).kind in ("uint", "pred") else -reach
    values = np.asarray(rng.integers(low, reach + 1, tuple(shape)))
    if lookup(element).kind == "pred":
        return values > reach // 2
    if lookup(element).kind == "complex":
        values = values + 1j * rng.integers(low, reach + 1, tuple(shape))
    return np.asarray(values.astype(np.complex64 if values.dtype.kind == "c" else np.float32)).astype(
        lookup(element).dtype
    )


def anything(rng: Rng, element: str, shape: Sequence[int]) -> Array:
    """Values of all sizes, with edges of the type among them; no subnormals, which kernels treat unlike each other."""
    kind = lookup(element)
    if kind.kind == "pred":
        return rng.random(tuple(shape)) < 0.5
    if kind.is_integral:
        bits = rng.integers(0, 2**63, tuple(shape), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        kept = rng.integers(1, kind.bits + 1, tuple(shape)).astype(np.uint64)
        value = bits >> (np.uint64(64) - kept)
        return narrowed(value.astype(np.int64), kind)
    with np.errstate(all="ignore"):
        value = rng.standard_normal(tuple(shape)) * 2.0 ** rng.integers(-6, 7, tuple(shape))
        value = np.where(rng.random(tuple(shape)) < 0.2, np.round(value), value)
        special = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 2.5])
        value = np.where(rng.random(tuple(shape)) < 0.15, rng.choice(special, tuple(shape)), value)
        return np.asarray(value).astype(np.float32).astype(kind.dtype)


def narrowed(value: Array, kind: ElementType) -> Array:
    """The low bits of integers, as a type."""
    if kind.bits < 8:
        spare = 64 - kind.bits
        value = (value << spare) >> spare if kind.kind == "int" else value & ((1 << kind.bits) - 1)
    return np.asarray(value.astype(np.uint64 if kind.name == "u64" else np.int64)).astype(kind.dtype)


# ---------------------------------------------------------------- elementwise
ULPS = {"f32": 16.0, "f64": 24.0, "f16": 2.0, "bf16": 2.0}
TRANSCENDENTAL = (
    "exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "tanh", "sine", "cosine", "tan", "erf",
    "cbrt", "rsqrt", "sqrt",
)  # fmt: skip
EXACT = ("floor", "ceil", "round-nearest-even", "round-nearest-afz", "sign", "abs", "negate")


def unary(cases: Cases, rng: Rng) -> None:
    for element in FLOATS:
        for opcode in (*TRANSCENDENTAL, *EXACT, "is-finite"):
            for _ in range(2):
                x = anything(rng, element, sizes(rng))
                if opcode == "logistic" and element == "f16":  # rounded at every step there: exp(-x) overflows
                    x = np.maximum(x, x.dtype.type(-9))
                result = "pred" if opcode == "is-finite" else element
                ulp = 0.0 if opcode in EXACT or opcode == "is-finite" else ULPS[element]
                ulp = 256.0 if (opcode, element) == ("log-plus-one", "f64") else ulp
                ulp = 4.0 if opcode == "logistic" and element == "f16" else ulp
                cases.add(typed(result, x.shape), opcode, x, ulp=ulp)
    for element in (*INTS, "s4", "u4"):
        # Of a negative 4-bit integer XLA:CPU counts the sign's copies too.
        some = ["not", "negate", *(("abs", "sign") if element[0] == "s" else ())]
        some += ["popcnt", "count-leading-zeros"] if element != "s4" else []
        for opcode in some:
            x = anything(rng, element, sizes(rng, most=9))
            cases.add(shape_of(x), opcode, x)
    for opcode in ("exponential", "log", "sqrt", "rsqrt", "tanh", "sine", "cosine", "negate", "logistic", "cbrt"):
        for element in ("c64", "c128") if opcode != "cbrt" else ():
            z = (rng.uniform(-3, 3, (2, 7)) + 1j * rng.uniform(-3, 3, (2, 7))).astype(lookup(element).dtype)
            cases.add(shape_of(z), opcode, z, ulp=64)
    for element in ("c64", "c128"):
        z = (rng.uniform(-1e-2, 1e-2, 40) + 1j * rng.uniform(-1e-2, 1e-2, 40)).astype(lookup(element).dtype)
        cases.add(shape_of(z), "log-plus-one", z, ulp=16)


def binary(cases: Cases, rng: Rng) -> None:
    for element in (*FLOATS, *INTS, "s4", "u4", "s2", "u2"):
        floating = element in FLOATS
        some = ["add", "subtract", "multiply", "maximum", "minimum", "divide", "remainder"]
        some += ["atan2", "power"] if floating else ["and", "or", "xor", "shift-left", "shift-right-logical"]
        some += [] if floating else ["shift-right-arithmetic"]
        for opcode in some:
            for _ in range(2):
                shape = sizes(rng, most=8)
                x, y = anything(rng, element, shape), anything(rng, element, shape)
                if opcode.startswith("shift"):
                    inside = narrowed(rng.integers(0, lookup(element).bits, shape), lookup(element))
                    y = np.where(rng.random(shape) < 0.7, inside, y).astype(y.dtype)
                ulp = ULPS[element] if opcode in ("atan2", "power") else 0.0
                cases.add(shape_of(x), opcode, x, y, ulp=ulp)
    for element in INTS:
        x, y = anything(rng, element, (40,)), whole(rng, element, (40,), 30)
        cases.add(shape_of(x), "power", x, np.abs(y.astype(np.int64)).astype(y.dtype))
    for element in ("c64", "c128"):
        for opcode in ("add", "subtract", "multiply", "divide"):
            x, y = whole(rng, element, (3, 5)), whole(rng, element, (3, 5))
            cases.add(shape_of(x), opcode, x, np.where(y == 0, 1, y).astype(y.dtype), ulp=8)
    for opcode in ("add", "multiply", "maximum", "minimum", "and", "or", "xor"):
        shape = sizes(rng)
        cases.add(typed("pred", shape), opcode, anything(rng, "pred", shape), anything(rng, "pred", shape))


def comparing(cases: Cases, rng: Rng) -> None:
    for element in (*PLAIN, "s4", "u4", *FLOAT8[:2]):
        for direction in ("EQ", "NE", "LT", "LE", "GT", "GE"):
            orders = ("", ", type=TOTALORDER") if element in ("f32", "f64", "f16", "bf16") else ("",)
            for order in orders:
                shape = sizes(rng)
                x, y = anything(rng, element, shape), anything(rng, element, shape)
                y = np.where(rng.random(shape) < 0.3, x, y).astype(x.dtype)
                cases.add(typed("pred", shape), "compare", x, y, attrs=f"direction={direction}{order}")
    for direction in ("EQ", "NE"):
        x, y = whole(rng, "c64", (20,), 1), whole(rng, "c64", (20,), 1)
        cases.add("pred[20]", "compare", x, y, attrs=f"direction={direction}")
    for element in (*FLOATS, *INTS, "s4"):
        shape = sizes(rng)
        low, x, high = (anything(rng, element, shape) for _ in range(3))
        cases.add(typed(element, shape), "clamp", low, x, high)
        cases.add(typed(element, shape), "clamp", anything(rng, element, ()), x, anything(rng, element, ()))
        cases.add(typed(element, shape), "select", anything(rng, "pred", shape), x, high)
        cases.add(typed(element, shape), "select", anything(rng, "pred", ()), x, high)


# ---------------------------------------------------------------- conversions
def conversions(cases: Cases, rng: Rng) -> None:
    """All ordered pairs of types, sub-byte integers and 8-bit floats among them."""
    every = (*PLAIN, *FLOAT8, *SUB_BYTE, "c64", "c128")
    for source in every:
        for target in every:
            if source == target or (source[0] == "c" and target == "pred"):
                continue  # complex to pred crashes XLA:CPU
            if target in FLOAT8 and source in FLOAT8 and rng.random() < 0.7:
                continue
            shape = sizes(rng, most=9)
            x = anything(rng, source, shape) if source[0] != "c" else whole(rng, source, shape)
            if source[0] != "c" and lookup(source).kind == "float" and target in ("f16", *FLOAT8):
                x = np.where(np.abs(x.astype(np.float64)) > 1e3, x.dtype.type(3.5), x).astype(x.dtype)
            if lookup(target).kind == "float" and lookup(target).bits == 8 and lookup(source).is_integral:
                # Integers go by way of f16 there, and round twice.
                x = np.where(np.abs(x.astype(np.float64)) > 256, x.dtype.type(1), x).astype(x.dtype)
            if "fnuz" in source + target and lookup(source).kind == "float" and lookup(target).bits == 8:
                # There a negative number that vanishes becomes NaN, or loses its sign.
                x = np.where(np.abs(x.astype(np.float64)) < 0.1, x.dtype.type(0.5), x).astype(x.dtype)
            cases.add(typed(target, shape), "convert", x)
    for element in FLOATS:
        for _ in range(12):
            exponent, mantissa = int(rng.integers(2, 12)), int(rng.integers(1, 53))
            x = anything(rng, element, (30,))
            attrs = f"exponent_bits={exponent}, mantissa_bits={mantissa}"
            cases.add(shape_of(x), "reduce-precision", x, attrs=attrs)
    widths = {8: ("s8", "u8", "f8e4m3fn", "f8e5m2"), 16: ("s16", "u16", "f16", "bf16"), 32: ("s32", "u32", "f32")}
    widths[64] = ("s64", "u64", "f64")
    for width, names in widths.items():
        for other, targets in widths.items():
            for source in names:
                target = targets[int(rng.integers(0, len(targets)))]
                shape = sizes(rng, 3)
                if width > other:
                    result = (*shape, width // other)
                elif width < other:
                    result, shape = shape, (*shape, other // width)
                else:
                    result = shape
                x = whole(rng, source, shape)
                cases.add(typed(target, result), "bitcast-convert", x)
    for element in FLOAT8[:2]:
        every = np.arange(256, dtype=np.uint8).view(lookup(element).dtype)
        for exponent, mantissa in ((3, 2), (4, 1), (5, 2), (2, 3)):
            attrs = f"exponent_bits={exponent}, mantissa_bits={mantissa}"
            cases.add(shape_of(every), "reduce-precision", every, attrs=attrs)


# ---------------------------------------------------------------- data movement
def movement(cases: Cases, rng: Rng) -> None:
    for _ in range(200):
        element = PLAIN[int(rng.integers(0, len(PLAIN)))]
        shape = sizes(rng, int(rng.integers(1, 5)))
        x = anything(rng, element, shape)
        order = [int(d) for d in rng.permutation(len(shape))]
        _moved(cases, rng, element, x, order)


def _moved(cases: Cases, rng: Rng, element: str, x: Array, order: list[int]) -> None:
    shape = x.shape
    which = int(rng.integers(0, 8))
    if which == 0:
        result = [shape[d] for d in order]
        cases.add(typed(element, result), "transpose", x, attrs=f"dimensions={listed(order)}")
    elif which == 1:
        some = sorted(order[: int(rng.integers(1, len(order) + 1))])
        cases.add(typed(element, shape), "reverse", x, attrs=f"dimensions={listed(some)}")
    elif which == 2:
        bounds = [sorted((int(rng.integers(0, n + 1)), int(rng.integers(0, n + 1)))) for n in shape]
        steps = [int(n) for n in rng.integers(1, 4, len(shape))]
        result = [-(-(high - low) // step) for (low, high), step in zip(bounds, steps, strict=True)]
        text = ", ".join(f"[{low}:{high}:{step}]" for (low, high), step in zip(bounds, steps, strict=True))
        cases.add(typed(element, result), "slice", x, attrs=f"slice={{{text}}}")
    elif which == 3:
        edges = [(int(rng.integers(-3, 4)), int(rng.integers(-3, 4)), int(rng.integers(0, 3))) for _ in shape]
        result = [n + (n - 1) * inner + low + high for n, (low, high, inner) in zip(shape, edges, strict=True)]
        if min(result) < 0:
            return
        text = "x".join(f"{low}_{high}_{inner}" for low, high, inner in edges)
        cases.add(typed(element, result), "pad", x, anything(rng, element, ()), attrs=f"padding={text}")
    elif which == 4:
        axis = order[0]
        parts = [anything(rng, element, [*shape[:axis], int(n), *shape[axis + 1 :]]) for n in rng.integers(0, 4, 2)]
        result = [*shape]
        result[axis] += sum(part.shape[axis] for part in parts)
        cases.add(typed(element, result), "concatenate", x, *parts, attrs=f"dimensions={{{axis}}}")
    elif which == 5:
        rank = len(shape) + int(rng.integers(0, 3))
        places = sorted(int(d) for d in rng.permutation(rank)[: len(shape)])
        result = list(sizes(rng, rank, 3))
        for place, size in zip(places, shape, strict=True):
            result[place] = size
        cases.add(typed(element, result), "broadcast", x, attrs=f"dimensions={listed(places)}")
    elif which == 6:
        result = [prod(shape[: len(shape) // 2]), prod(shape[len(shape) // 2 :])]
        cases.add(typed(element, result), "reshape", x)
    else:
        kind = (*FLOATS, *INTS, *FLOAT8[:4], "s4", "u4")[int(rng.integers(0, 18))]
        result = [*shape[:-1], int(rng.integers(1, 300))]
        axis = int(rng.integers(0, len(result)))
        cases.add(typed(kind, result), "iota", attrs=f"iota_dimension={axis}")


def run_time_slices(cases: Cases, rng: Rng) -> None:
    for _ in range(120):
        element = PLAIN[int(rng.integers(0, len(PLAIN)))]
        shape = sizes(rng, int(rng.integers(1, 4)))
        x = anything(rng, element, shape)
        taken = [int(rng.integers(0, n + 1)) for n in shape]
        index = INTS[int(rng.integers(0, len(INTS)))]
        at = [narrowed(np.asarray(int(rng.integers(-3, 9))), lookup(index)) for _ in shape]
        if rng.random() < 0.5:
            attrs = f"dynamic_slice_sizes={listed(taken)}"
            cases.add(typed(element, taken), "dynamic-slice", x, *at, attrs=attrs)
        else:
            cases.add(typed(element, shape), "dynamic-update-slice", x, anything(rng, element, taken), *at)


# ---------------------------------------------------------------- contractions
def dots(cases: Cases, rng: Rng) -> None:
    kinds = [(e, e, e) for e in (*FLOATS, "s32", "s64", "u32", "s8", "u8", "c64", "pred")]
    kinds += [("bf16", "bf16", "f32"), ("f16", "f16", "f32"), ("s8", "s8", "s32"), ("u8", "u8", "u32"),
              ("f8e4m3fn", "f8e4m3fn", "f32"), ("f8e5m2", "f8e4m3fn", "bf16")]  # fmt: skip
    for left, right, result in kinds:
        for _ in range(6):
            batch, contracted = sizes(rng, int(rng.integers(0, 3)), 3), sizes(rng, int(rng.integers(0, 3)), 7)
            free = sizes(rng, int(rng.integers(0, 3)), 4), sizes(rng, int(rng.integers(0, 3)), 4)
            sides = [_spread(rng, batch, contracted, own) for own in free]
            (a_shape, a_batch, a_dims), (b_shape, b_batch, b_dims) = sides
            attrs = f"lhs_contracting_dims={listed(a_dims)}, rhs_contracting_dims={listed(b_dims)}"
            if batch:
                attrs += f", lhs_batch_dims={listed(a_batch)}, rhs_batch_dims={listed(b_batch)}"
            # The free dimensions stand in the order in which the operand has them.
            kept = [[n for d, n in enumerate(s) if d not in (*x, *y)] for s, x, y in sides]
            a, b = whole(rng, left, a_shape, 2), whole(rng, right, b_shape, 2)
            cases.add(typed(result, [*batch, *kept[0], *kept[1]]), "dot", a, b, attrs=attrs, ulp=2)


def _spread(
    rng: Rng, batch: Sequence[int], contracted: Sequence[int], free: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """A shape with the three kinds of dimensions in random order, and where the first two kinds stand."""
    every = [*batch, *contracted, *free]
    order = [int(d) for d in rng.permutation(len(every))]
    place = {kind: where for where, kind in enumerate(order)}
    return (
        [every[kind] for kind in order],
        [place[d] for d in range(len(batch))],
        [place[d + len(batch)] for d in range(len(contracted))],
    )


def convolutions(cases: Cases, rng: Rng) -> None:
    for _ in range(110):
        element = ("f32", "f32", "f64", "f16", "bf16", "s32")[int(rng.integers(0, 6))]
        rank = int(rng.integers(0, 4)) or 2
        features, batches = 1, 1
        if rng.random() < 0.4:
            features = int(rng.integers(1, 4))
        elif rng.random() < 0.5:
            batches = int(rng.integers(1, 4))
        channels, outputs = int(rng.integers(1, 4)), int(rng.integers(1, 4)) * features * batches
        spatial, kernel = sizes(rng, rank, 7, 2), sizes(rng, rank, 3)
        terms = [_window(rng, n, k) for n, k in zip(spatial, kernel, strict=True)]
        result = [size for size, _ in terms]
        if min(result) < 1:
            continue
        batch = int(rng.integers(1, 3))
        dims = {"b": batch * batches, "f": channels * features, **{str(d): n for d, n in enumerate(spatial)}}
        weights = {"i": channels, "o": outputs, **{str(d): n for d, n in enumerate(kernel)}}
        out = {"b": batch, "f": outputs, **{str(d): n for d, n in enumerate(result)}}
        labels = ["".join(str(c) for c in rng.permutation(list(kind))) for kind in (dims, weights, out)]
        window = " ".join(
            f"{key}={'x'.join(part[key] for _, part in terms)}"
            for key in ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")
        )
        attrs = f"window={{{window}}}, dim_labels={labels[0]}_{labels[1]}->{labels[2]}"
        attrs += f", feature_group_count={features}, batch_group_count={batches}"
        x = whole(rng, element, [dims[c] for c in labels[0]], 2)
        w = whole(rng, element, [weights[c] for c in labels[1]], 2)
        cases.add(typed(element, [out[c] for c in labels[2]]), "convolution", x, w, attrs=attrs, ulp=2)


def _window(rng: Rng, size: int, kernel: int, *, dilate: bool = True) -> tuple[int, dict[str, str]]:
    """One dimension of a window, and the outputs that it has."""
    stride, base, inner = (int(n) for n in rng.integers(1, 3, 3)) if dilate else (int(rng.integers(1, 4)), 1, 1)
    low, high = int(rng.integers(-1, 3)), int(rng.integers(-1, 3))
    reach, length = (kernel - 1) * inner + 1, (size - 1) * base + 1 + low + high
    outputs = 0 if length < reach else (length - reach) // stride + 1
    part = {"size": f"{kernel}", "stride": f"{stride}", "pad": f"{low}_{high}", "lhs_dilate": f"{base}",
            "rhs_dilate": f"{inner}", "rhs_reversal": f"{int(rng.integers(0, 2))}"}  # fmt: skip
    return outputs, part


# ---------------------------------------------------------------- reductions
IDENTITY = {"add": 0, "multiply": 1, "and": -1, "or": 0, "xor": 0}


def monoid(rng: Rng, element: str) -> tuple[str, Array]:
    """A combiner for a type and its identity."""
    kind = lookup(element)
    names = ["add", "maximum", "minimum", *(["multiply"] if kind.kind != "pred" else [])]
    names += ["and", "or", "xor"] if kind.kind in ("int", "uint") else ["and", "or"] if kind.kind == "pred" else []
    name = names[int(rng.integers(0, len(names)))]
    if name in IDENTITY:
        value = IDENTITY[name]
        return name, (np.asarray(value != 0) if kind.kind == "pred" else narrowed_or_float(value, kind))
    low, high = (False, True) if kind.kind == "pred" else (-np.inf, np.inf)
    if kind.is_integral:
        low = -(1 << (kind.bits - 1)) if kind.kind == "int" else 0
        high = (1 << (kind.bits - (kind.kind == "int"))) - 1
    return name, np.asarray(low if name == "maximum" else high).astype(kind.dtype)


def narrowed_or_float(value: int, kind: ElementType) -> Array:
    return narrowed(np.asarray(value), kind) if kind.is_integral else np.asarray(value, np.float32).astype(kind.dtype)


def reductions(cases: Cases, rng: Rng) -> None:
    for _ in range(170):
        element = PLAIN[int(rng.integers(0, len(PLAIN)))]
        name, init = monoid(rng, element)
        shape = sizes(rng, int(rng.integers(1, 5)))
        dims = sorted(int(d) for d in rng.permutation(len(shape))[: int(rng.integers(1, len(shape) + 1))])
        x = whole(rng, element, shape, 1 if name == "multiply" else 3)
        kept = [n for d, n in enumerate(shape) if d not in dims]
        attrs = f"dimensions={listed(dims)}, to_apply={cases.apply(name, element)}"
        cases.add(typed(element, kept), "reduce", x, init, attrs=attrs, ulp=0 if name in ("maximum", "minimum") else 1)
    for _ in range(40):  # any computation, in the order of the elements
        x = whole(rng, "f32", (int(rng.integers(1, 5)), int(rng.integers(2, 30))))
        body = "two = f32[] constant(2)\n  d = f32[] divide(a, two)\n  ROOT r = f32[] subtract(d, b)"
        attrs = f"dimensions={{1}}, to_apply={cases.apply('odd', 'f32', body)}"
        cases.add(typed("f32", x.shape[:1]), "reduce", x, whole(rng, "f32", ()), attrs=attrs, ulp=4)
    _arguments(cases, rng)
    for _ in range(80):
        element = PLAIN[int(rng.integers(0, len(PLAIN) - 1))]
        name, init = monoid(rng, element)
        shape = sizes(rng, int(rng.integers(1, 4)), 7)
        kernel = sizes(rng, len(shape), 3)
        terms = [_window(rng, n, k) for n, k in zip(shape, kernel, strict=True)]
        if min(size for size, _ in terms) < 1:
            continue
        keys = ("size", "stride", "pad", "lhs_dilate", "rhs_dilate")
        window = " ".join(f"{key}={'x'.join(part[key] for _, part in terms)}" for key in keys)
        x = whole(rng, element, shape, 1 if name == "multiply" else 3)
        attrs = f"window={{{window}}}, to_apply={cases.apply(name, element)}"
        cases.add(typed(element, [size for size, _ in terms]), "reduce-window", x, init, attrs=attrs, ulp=1)


def _arguments(cases: Cases, rng: Rng) -> None:
    for direction in ("GE", "GT", "LE", "LT"):
        for element in ("f32", "bf16", "s32", "u8"):
            name = f"arg_{direction}_{element}"
            cases.computations[name] = (
                f"{name} {{\n  v0 = {element}[] parameter(0)\n  i0 = s32[] parameter(1)\n"
                f"  v1 = {element}[] parameter(2)\n  i1 = s32[] parameter(3)\n"
                f"  c = pred[] compare(v0, v1), direction={direction}\n  v = {element}[] select(c, v0, v1)\n"
                f"  i = s32[] select(c, i0, i1)\n  ROOT r = ({element}[], s32[]) tuple(v, i)\n}}\n"
            )
            x = whole(rng, element, (4, 13), 3)
            places = np.broadcast_to(np.arange(13, dtype=np.int32), (4, 13)).copy()
            cases.add(
                f"({element}[4], s32[4])", "reduce", x, places, x[0, :1].reshape(()), np.zeros((), np.int32),
                attrs=f"dimensions={{1}}, to_apply={name}",
            )  # fmt: skip


def windows_with_source(cases: Cases, rng: Rng) -> None:
    for element in ("f32", "bf16", "s32"):
        for direction in ("GE", "GT", "LE"):
            for _ in range(3):
                body = f"ROOT r = pred[] compare(a, b), direction={direction}"
                select = cases.apply(f"select{direction}", element, body)
                shape, kernel = sizes(rng, 2, 8, 4), sizes(rng, 2, 3)
                strides = [int(n) for n in rng.integers(1, 3, 2)]
                edges = [(int(rng.integers(0, k)), int(rng.integers(0, k))) for k in kernel]
                result = [
                    (n + low + high - k) // step + 1
                    for n, k, step, (low, high) in zip(shape, kernel, strides, edges, strict=True)
                ]
                pads = "x".join(f"{low}_{high}" for low, high in edges)
                window = f"size={kernel[0]}x{kernel[1]} stride={strides[0]}x{strides[1]} pad={pads}"
                attrs = f"window={{{window}}}, select={select}, scatter={cases.apply('add', element)}"
                cases.add(
                    typed(element, shape), "select-and-scatter", whole(rng, element, shape),
                    whole(rng, element, result), whole(rng, element, ()) * 0, attrs=attrs, ulp=1,
                )  # fmt: skip


# ---------------------------------------------------------------- sort, gather, scatter
def sorting(cases: Cases, rng: Rng) -> None:
    for element in ("f32", "bf16", "f64", "s32", "s8", "u8", "u64", "pred"):
        for direction in ("LT", "GT"):
            order = ", type=TOTALORDER" if element in FLOATS else ""
            for operands in (1, 2, 3):
                name = f"by_{element}_{direction}_{operands}"
                kinds = (element, "s32", "f32")[:operands]
                parameters = "".join(
                    f"  p{2 * i + j} = {kind}[] parameter({2 * i + j})\n"
                    for i, kind in enumerate(kinds)
                    for j in (0, 1)
                )
                cases.computations[name] = (
                    f"{name} {{\n{parameters}  ROOT r = pred[] compare(p0, p1), direction={direction}{order}\n}}\n"
                )
                shape = sizes(rng, int(rng.integers(1, 4)), 9)
                axis = int(rng.integers(0, len(shape)))
                arrays = [anything(rng, element, shape), *(whole(rng, kind, shape, 90) for kind in kinds[1:])]
                shapes = ", ".join(shape_of(x) for x in arrays)
                attrs = f"dimensions={{{axis}}}, is_stable=true, to_apply={name}"
                cases.add(f"({shapes})" if operands > 1 else shapes, "sort", *arrays, attrs=attrs)


def gathers(cases: Cases, rng: Rng) -> None:
    for _ in range(110):
        element = PLAIN[int(rng.integers(0, len(PLAIN)))]
        plan = _plan(rng)
        shape, batch, taken, window = plan.operand, plan.batch, plan.sizes, plan.window
        rank = len(batch) + len(window)
        offsets = sorted(int(d) for d in rng.permutation(rank)[: len(window)])
        result: list[int] = [0] * rank
        rest = iter(batch)
        kept = iter(taken[d] for d in window)
        for place in range(rank):
            result[place] = next(kept) if place in offsets else next(rest)
        attrs = (
            f"offset_dims={listed(offsets)}, collapsed_slice_dims={listed(plan.collapsed)}, "
            f"start_index_map={listed(plan.index_map)}, "
            f"{plan.batching_attrs('operand_batching_dims', 'start_indices_batching_dims')}"
            f"index_vector_dim={plan.vector_dim}, slice_sizes={listed(taken)}"
        )
        cases.add(typed(element, result), "gather", anything(rng, element, shape), plan.indices, attrs=attrs)


def scatters(cases: Cases, rng: Rng) -> None:
    for _ in range(70):
        element = (*FLOATS, *INTS)[int(rng.integers(0, 12))]
        plan = _plan(rng)
        rank = len(plan.batch) + len(plan.window)
        windows = sorted(int(d) for d in rng.permutation(rank)[: len(plan.window)])
        updates: list[int] = [0] * rank
        rest, kept = iter(plan.batch), iter(plan.sizes[d] for d in plan.window)
        for place in range(rank):
            updates[place] = next(kept) if place in windows else next(rest)
        name = ("add", "maximum", "multiply", "assign", "odd")[int(rng.integers(0, 5))]
        body = {"assign": f"ROOT r = {element}[] copy(b)", "odd": f"ROOT r = {element}[] subtract(b, a)"}.get(name, "")
        attrs = (
            f"update_window_dims={listed(windows)}, inserted_window_dims={listed(plan.collapsed)}, "
            f"scatter_dims_to_operand_dims={listed(plan.index_map)}, "
            f"{plan.batching_attrs('input_batching_dims', 'scatter_indices_batching_dims')}"
            f"index_vector_dim={plan.vector_dim}, to_apply={cases.apply(name, element, body)}"
        )
        x, new = whole(rng, element, plan.operand, 2), whole(rng, element, updates, 2)
        cases.add(shape_of(x), "scatter", x, plan.indices, new, attrs=attrs, ulp=1)


@dataclass
class Plan:
    """Dimension numbers that a gather and a scatter share."""

    operand: tuple[int, ...]
    batch: list[int]
    sizes: list[int]
    window: list[int]
    collapsed: list[int]
    batching: list[int]
    index_batching: list[int]
    index_map: list[int]
    vector_dim: int
    indices: Array

    def batching_attrs(self, operand: str, indices: str) -> str:
        """The two attributes of batching dimensions, where there are some."""
        return f"{operand}={listed(self.batching)}, {indices}={listed(self.index_batching)}, " if self.batching else ""


def _plan(rng: Rng) -> Plan:
    operand = sizes(rng, int(rng.integers(1, 5)), 5)
    rank = len(operand)
    order = [int(d) for d in rng.permutation(rank)]
    batch = list(sizes(rng, int(rng.integers(0, 3)), 4))
    batching: list[int] = []
    index_batching: list[int] = []
    if batch and rank > 1 and rng.random() < 0.4:
        batching, index_batching = [order.pop()], [int(rng.integers(0, len(batch)))]
        batch[index_batching[0]] = operand[batching[0]]
    index_map = order[: int(rng.integers(0, len(order) + 1))]
    taken = [1 if d in batching else int(rng.integers(1, n + 1)) for d, n in enumerate(operand)]
    collapsed = sorted(d for d in range(rank) if d not in batching and rng.random() < 0.4)
    for d in collapsed:
        taken[d] = 1
    window = [d for d in range(rank) if d not in collapsed and d not in batching]
    vector_dim = int(rng.integers(0, len(batch) + 1))
    shape = [*batch[:vector_dim], len(index_map), *batch[vector_dim:]]
    # A batching dimension of the indices is counted with the dimension of the vectors.
    index_batching = [d + (d >= vector_dim) for d in index_batching]
    if len(index_map) == 1 and not batching and rng.random() < 0.5:
        vector_dim, shape = len(batch), batch
    kind = ("s32", "s64", "s8", "u8", "u32", "s16")[int(rng.integers(0, 6))]
    values = narrowed(np.asarray(rng.integers(-2, 6, shape)), lookup(kind))
    return Plan(operand, batch, taken, window, collapsed, batching, index_batching, index_map, vector_dim, values)


# ---------------------------------------------------------------- the rest
def random_bits(cases: Cases, rng: Rng) -> None:
    for algorithm, words in (("rng_three_fry", 2), ("rng_philox", 2), ("rng_philox", 3), ("rng_default", 2)):
        for element in UNSIGNED:
            state = rng.integers(0, 2**63, words).astype(np.uint64)
            result = f"(u64[{words}], {typed(element, sizes(rng, most=7))})"
            cases.add(result, "rng-bit-generator", state, attrs=f"algorithm={algorithm}")


def transforms(cases: Cases, rng: Rng) -> None:
    for _ in range(24):
        rank = int(rng.integers(1, 4))
        lengths = sizes(rng, rank, 7)
        lead = sizes(rng, int(rng.integers(0, 2)), 3)
        single = rng.random() < 0.6
        real, pair = ("f32", "c64") if single else ("f64", "c128")
        half = (*lengths[:-1], lengths[-1] // 2 + 1)
        kind = ("FFT", "IFFT", "RFFT", "IRFFT")[int(rng.integers(0, 4))]
        given, result = {
            "FFT": ((pair, lengths), (pair, lengths)), "IFFT": ((pair, lengths), (pair, lengths)),
            "RFFT": ((real, lengths), (pair, half)), "IRFFT": ((pair, half), (real, lengths)),
        }[kind]  # fmt: skip
        x = whole(rng, given[0], (*lead, *given[1]))
        if kind == "IRFFT":
            x = np.real(x).astype(x.dtype)
        attrs = f"fft_type={kind}, fft_length={listed(lengths)}"
        cases.add(typed(result[0], (*lead, *result[1])), "fft", x, attrs=attrs, ulp=128)


def normalisations(cases: Cases, rng: Rng) -> None:
    for element in ("f32", "f64"):
        for axis in range(3):
            shape = sizes(rng, 3, 5, 2)
            x = (rng.standard_normal(shape)).astype(lookup(element).dtype)
            scale, offset, mean = (rng.uniform(0.5, 2, shape[axis]).astype(x.dtype) for _ in range(3))
            variance = rng.uniform(0.5, 2, shape[axis]).astype(x.dtype)
            feature = typed(element, (shape[axis],))
            attrs = f"epsilon=0.01, feature_index={axis}"
            ulp = 128.0
            training = f"({shape_of(x)}, {feature}, {feature})"
            cases.add(training, "batch-norm-training", x, scale, offset, attrs=attrs, ulp=ulp)
            cases.add(shape_of(x), "batch-norm-inference", x, scale, offset, mean, variance, attrs=attrs, ulp=ulp)
            down = rng.standard_normal(shape).astype(x.dtype)
            cases.add(training, "batch-norm-grad", x, scale, mean, variance, down, attrs=attrs, ulp=1024)


def odds(cases: Cases, rng: Rng) -> None:
    for element in ("f32", "bf16", "s32", "u8"):
        for largest in ("true", "false"):
            for _ in range(3):
                n = int(rng.integers(1, 12))
                k = int(rng.integers(1, n + 1))
                lead = sizes(rng, int(rng.integers(0, 2)), 3)
                x = anything(rng, element, (*lead, n))
                result = f"({typed(element, (*lead, k))}, {typed('s32', (*lead, k))})"
                cases.add(result, "topk", x, attrs=f"k={k}, largest={largest}")
    for element, bits in (("f32", "u32"), ("f16", "u16"), ("bf16", "u16"), ("f64", "u64")):
        for target in SIGNED:
            x = anything(rng, element, (25,))
            noise = rng.integers(0, 2**63, 25, dtype=np.uint64).astype(lookup(bits).dtype)
            if element == "f64":
                noise = noise << np.uint64(1)
            cases.add(typed(target, (25,)), "stochastic-convert", x, noise)
    for element in ("f32", "s32", "bf16"):
        shape = sizes(rng, 2)
        body = f"c = {element}[] multiply(a, b)\n  ROOT r = {element}[] subtract(c, b)"
        x, y = whole(rng, element, shape), whole(rng, element, shape)
        cases.add(
            shape_of(x), "map", x, y, attrs=f"dimensions={{0,1}}, to_apply={cases.apply('mapped', element, body)}"
        )
    for element in ("c64", "c128"):
        part = "f32" if element == "c64" else "f64"
        a, b = anything(rng, part, (3, 4)), anything(rng, part, (3, 4))
        cases.add(typed(element, (3, 4)), "complex", a, b)
        z = whole(rng, element, (3, 4))
        cases.add(typed(part, (3, 4)), "real", z)
        cases.add(typed(part, (3, 4)), "imag", z)
        cases.add(typed(part, (3, 4)), "abs", z, ulp=2)
    _control(cases, rng)


def _control(cases: Cases, rng: Rng) -> None:
    cases.computations["counting"] = (
        "count_body {\n  s = (s32[], f32[4]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
        "  x = f32[4] get-tuple-element(s), index=1\n  one = s32[] constant(1)\n  j = s32[] add(i, one)\n"
        "  y = f32[4] add(x, x)\n  ROOT r = (s32[], f32[4]) tuple(j, y)\n}\n"
        "count_cond {\n  s = (s32[], f32[4]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
        "  n = s32[] constant(5)\n  ROOT r = pred[] compare(i, n), direction=LT\n}\n"
    )
    cases.computations["branches"] = "".join(
        f"branch{i} {{\n  x = f32[4] parameter(0)\n  ROOT r = f32[4] {opcode}(x)\n}}\n"
        for i, opcode in enumerate(("negate", "abs", "floor"))
    )
    x = whole(rng, "f32", (4,))
    for start in (-2, 0, 4, 5, 9):
        name = f"t{len(cases.lines)}"
        given = f"{cases.value(np.asarray(start, np.int32))}, {cases.value(x)}"
        cases.lines.append(f"  {name} = (s32[], f32[4]) tuple({given})")
        cases.lines.append(f"  {name}w = (s32[], f32[4]) while({name}), condition=count_cond, body=count_body")
        for i, part in enumerate(("s32[]", "f32[4]")):
            cases.lines.append(f"  {name}w_{i} = {part} get-tuple-element({name}w), index={i}")
            cases.results.append((f"{name}w_{i}", part, cases.family, 0.0))
    for selector in (-1, 0, 1, 2, 3):
        at = np.asarray(selector, np.int32)
        attrs = "branch_computations={branch0, branch1, branch2}"
        cases.add("f32[4]", "conditional", at, x, x + 1, x - 1, attrs=attrs)
    for selector in (True, False):
        attrs = "true_computation=branch0, false_computation=branch1"
        cases.add("f32[4]", "conditional", np.asarray(selector), x, x + 1, attrs=attrs)


MODULES: tuple[tuple[Callable[[Cases, Rng], None], ...], ...] = (
    (unary, binary, comparing),
    (conversions, run_time_slices, dots, convolutions),
    (movement, reductions, windows_with_source, sorting),
    (gathers, scatters, random_bits, transforms, normalisations, odds),
)
"""Families by module: the time of a compile grows faster than the module."""


def generated(families: Sequence[Callable[[Cases, Rng], None]], seed: int = SEED) -> Cases:
    cases = Cases()
    for family in families:
        cases.family = family.__name__
        family(cases, np.random.default_rng([seed, *family.__name__.encode()]))
    return cases


@pytest.mark.parametrize("families", MODULES, ids=lambda families: " ".join(f.__name__ for f in families))
def test_generated_cases(families: Sequence[Callable[[Cases, Rng], None]]) -> None:
    cases = generated(families)
    counts = Counter(family for _, _, family, _ in cases.results)
    assert all(counts[family.__name__] >= 20 for family in families)
    wrong = {family: found for family, found in cases.wrong().items() if found}
    said = [
        f"{family}: {len(found)} of {counts[family]} differ\n" + "\n".join(found[:20])
        for family, found in wrong.items()
    ]
    assert not wrong, "\n".join(said)


def test_there_are_thousands() -> None:
    assert sum(len(generated(families).results) for families in MODULES) > 2200
