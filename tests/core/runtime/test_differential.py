"""Every opcode family against the installed XLA:CPU: one generated module, run by both, compared result by result.

Data travel as parameters: XLA folds constants by other rules than its kernels follow. The reference flushes subnormals
here, as the kernels do. Where a case is left out, XLA:CPU is known to be wrong or undefined there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hloscope.core.hlo.element_types import from_dtype, lookup
from hloscope.core.runtime.compare import compare
from hloscope.core.runtime.evaluator import EvaluationOptions, evaluate
from hloscope.core.runtime.evaluator.numerics import flush, narrow, total_order_key, widen
from hloscope.core.text import load_module
from hloscope.core.xla.execute import execute_hlo_text

Array = np.ndarray[Any, np.dtype[Any]]


def array(dtype: str, values: Any) -> Array:
    """The values as an array of a numpy type."""
    return np.asarray(values, np.dtype(dtype))


FLAGS = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
"""Quick to compile: a quarter of the time that the fusion emitters take."""
FLOATS = ("f32", "f64", "f16", "bf16")
INTS = ("s8", "s32", "s64", "u8", "u64")


@dataclass
class Builder:
    """Grows one module: parameters with data, computations, and results with the difference that each may have."""

    data: list[Array] = field(default_factory=list[Array])
    lines: list[str] = field(default_factory=list[str])
    computations: dict[str, str] = field(default_factory=dict[str, str])
    results: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    ulps: list[float] = field(default_factory=list[float])
    family: str = ""
    families: list[str] = field(default_factory=list[str])
    """The family of each result."""
    known: dict[tuple[str, bytes, tuple[int, ...]], str] = field(
        default_factory=dict[tuple[str, bytes, tuple[int, ...]], str]
    )

    def parameter(self, array: Array) -> str:
        """``TYPE[dims] %name`` of a parameter that holds the array."""
        element = from_dtype(array.dtype).name
        key = (element, array.tobytes(), array.shape)
        if key not in self.known:
            number = len(self.data)
            self.data.append(array)
            shape = f"{element}[{','.join(map(str, array.shape))}]"
            self.lines.append(f"  p{number} = {shape} parameter({number})")
            self.known[key] = f"p{number}"
        return self.known[key]

    def add(self, shape: str, opcode: str, *operands: Array, attrs: str = "", ulp: float = 0.0) -> None:
        """A result: the opcode applied to parameters. `ulp` is the difference allowed, in ulps; 0 is none."""
        name = f"r{len(self.results)}"
        names = ", ".join(self.parameter(o) for o in operands)
        self.lines.append(f"  {name} = {shape} {opcode}({names}){', ' + attrs if attrs else ''}")
        if shape.startswith("("):
            parts = [p.strip() for p in shape[1:-1].split(", ")]
            for i, part in enumerate(parts):
                self.lines.append(f"  {name}_{i} = {part} get-tuple-element({name}), index={i}")
                self.results.append((f"{name}_{i}", part))
        else:
            self.results.append((name, shape))
        added = len(self.results) - len(self.ulps)
        self.ulps += [ulp] * added
        self.families += [self.family] * added

    def computation(self, opcode: str, element: str) -> str:
        """The name of ``(a, b) -> opcode(a, b)`` on scalars."""
        name = f"{opcode}_{element}"
        self.computations[name] = (
            f"{name} {{\n  a = {element}[] parameter(0)\n  b = {element}[] parameter(1)\n"
            f"  ROOT r = {element}[] {opcode}(a, b)\n}}\n"
        )
        return name

    def text(self) -> str:
        """The module."""
        shapes = ", ".join(shape for _, shape in self.results)
        names = ", ".join(name for name, _ in self.results)
        body = "\n".join([*self.lines, f"  ROOT out = ({shapes}) tuple({names})"])
        return "HloModule generated\n\n" + "\n".join(self.computations.values()) + f"\nENTRY main {{\n{body}\n}}\n"

    def wrong(self) -> dict[str, list[str]]:
        """Run on both engines; per family the results that differ, and why."""
        text = self.text()
        ours = evaluate(load_module(text), self.data, options=EvaluationOptions(flush_subnormals=True))
        theirs, _, _ = execute_hlo_text(text, self.data, flags=FLAGS, timeout=280)
        out: dict[str, list[str]] = {family: [] for family in self.families}
        for (name, _), family, ulp, mine, real in zip(
            self.results, self.families, self.ulps, ours, theirs, strict=True
        ):
            assert isinstance(mine, np.ndarray)
            if found := differs(real, mine, ulp):
                line = next(line for line in self.lines if line.strip().startswith(f"{name.split('_')[0]} ="))
                out[family].append(f"{line.strip()}\n    {found}")
        return out


def differs(expected: Array, actual: Array, ulps: float) -> str:
    """Why two arrays are not equal within `ulps`, or the empty string. NaNs are one class, subnormals zeros."""
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return f"{expected.dtype}{expected.shape} is not {actual.dtype}{actual.shape}"
    element = from_dtype(expected.dtype)
    if element.kind == "complex":
        return compare_parts(expected, actual, ulps)
    if element.kind != "float":
        bad = expected != actual
    else:
        a, b = (flush(element)(widen(element)(x)) for x in (expected, actual))
        nan = np.isnan(a) | np.isnan(b)
        keys = [total_order_key(narrow(element)(np.where(nan, 0, x).astype(x.dtype) + 0), element) for x in (a, b)]
        far = np.abs(keys[0].astype(np.float64) - keys[1].astype(np.float64))
        with np.errstate(all="ignore"):  # of two far ends the difference of integers wraps
            distance = np.where(far < 1e6, np.abs(keys[0] - keys[1]), far)
        bad = (np.isnan(a) != np.isnan(b)) | (distance > ulps)
        if ulps == 0:  # data movement and exact operations keep the sign of zero
            bad |= ~nan & (np.signbit(a) != np.signbit(b))
    if not bad.any():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(bad)) if expected.ndim else ()
    return f"at {at}: XLA {expected[at]!r}, ours {actual[at]!r}; {int(np.count_nonzero(bad))} of {bad.size}"


def compare_parts(expected: Array, actual: Array, ulps: float) -> str:
    """Complex numbers: relative to their size; a part that is not finite on either side counts as any."""
    finite = np.isfinite(expected) & np.isfinite(actual)
    size = np.abs(np.where(finite, expected, 0))
    eps = 1.2e-7 if expected.dtype == np.complex64 else 2.3e-16
    bad = finite & (np.abs(np.where(finite, expected - actual, 0)) > ulps * eps * size + 1e-37)
    if not bad.any():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(bad)) if expected.ndim else ()
    return f"at {at}: XLA {expected[at]!r}, ours {actual[at]!r}"


def edges(name: str) -> Array:
    """Values at which operations turn: zeros of both signs, ties, ends of the range, subnormals, infinities, NaN."""
    element = lookup(name)
    if element.kind == "pred":
        return np.array([True, False])
    if element.is_integral:
        low = -(1 << (element.bits - 1)) if element.kind == "int" else 0
        high = (1 << (element.bits - (element.kind == "int"))) - 1
        values = {0, 1, 2, 3, 5, 7, 31, 63, high, high - 1, high // 2, low, low + 1, max(low, -1), max(low, -3)}
        return np.array(sorted(values), np.uint64 if name == "u64" else np.int64).astype(element.dtype)
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 3.0, 7.3, -11.25, 100.0, 1e-3, -1e-3]
    values += [float("inf"), float("-inf"), float("nan"), 3e4, -3e4, 1e-40, -1e-41, 0.1, 0.9, -0.9, 20.0, -20.0, 88.0]
    with np.errstate(all="ignore"):
        return np.array(values, np.float64).astype(element.dtype)


def without_subnormals(x: Array) -> Array:
    """Values that are subnormal in f32 taken out."""
    return x[~is_subnormal(x)]


def is_subnormal(x: Array) -> Array:
    """Where values are subnormal in f32."""
    return (x != 0) & (np.abs(x.astype(np.float64)) < 1e-37)


def pairs(name: str) -> tuple[Array, Array]:
    """All pairs of edges."""
    values = edges(name)
    first, second = np.meshgrid(np.arange(values.size), np.arange(values.size), indexing="ij")
    return values[first.reshape(-1)], values[second.reshape(-1)]


# ulps of each engine added up, by type; the exact operations are not listed
TRANSCENDENTAL: dict[str, dict[str, float]] = {
    "exponential": {}, "exponential-minus-one": {}, "log": {}, "log-plus-one": {"f64": 256}, "logistic": {},
    "tanh": {}, "sine": {}, "cosine": {}, "tan": {}, "erf": {"f32": 12}, "cbrt": {}, "rsqrt": {}, "sqrt": {},
}  # fmt: skip
ROUNDING = ("floor", "ceil", "round-nearest-even", "round-nearest-afz", "sign", "abs", "negate")


def allowed(opcode: str, element: str) -> float:
    """Ulps that an opcode's results may differ by."""
    return TRANSCENDENTAL[opcode].get(element, 8.0 if element in ("f32", "f64") else 2.0)


def unary(build: Builder) -> None:
    for name in FLOATS:
        x = edges(name)
        shape = f"{name}[{x.size}]"
        for opcode in TRANSCENDENTAL if name != "f16" else ("exponential", "tanh", "rsqrt"):
            value = x
            if opcode == "cbrt":  # XLA's is wrong for subnormals
                value = without_subnormals(x)
            build.add(f"{name}[{value.size}]", opcode, value, ulp=allowed(opcode, name))
        for opcode in ROUNDING:
            build.add(shape, opcode, x)
        build.add(f"pred[{x.size}]", "is-finite", x)
    for name in INTS:
        x = edges(name)
        for opcode in ("not", "popcnt", "count-leading-zeros", "negate", *(("abs", "sign") if name[0] == "s" else ())):
            build.add(f"{name}[{x.size}]", opcode, x)
    build.add("pred[2]", "not", edges("pred"))
    z = (np.linspace(-2, 2, 12) + 1j * np.linspace(3, -1, 12)).astype(np.complex64)
    for opcode in ("exponential", "log", "sqrt", "rsqrt", "tanh", "sine", "cosine", "negate", "sign", "logistic"):
        build.add("c64[12]", opcode, z, ulp=32)
    for opcode in ("abs", "real", "imag"):
        build.add("f32[12]", opcode, z, ulp=2)


def binary(build: Builder) -> None:
    for name in ("f32", "f64", "bf16"):
        x, y = pairs(name)
        shape = f"{name}[{x.size}]"
        for opcode in ("add", "subtract", "multiply", "divide", "maximum", "minimum"):
            build.add(shape, opcode, x, y)
        build.add(shape, "remainder", x, y)
        # The kernels treat a subnormal operand of these as something between itself and zero.
        tame = ~(is_subnormal(x) | is_subnormal(y))
        for opcode in ("power", "atan2"):
            build.add(
                f"{name}[{int(tame.sum())}]", opcode, x[tame], y[tame], ulp=8.0 if name in ("f32", "f64") else 2.0
            )
        for direction in ("EQ", "NE", "LT", "LE", "GT", "GE"):
            build.add(f"pred[{x.size}]", "compare", x, y, attrs=f"direction={direction}")
    for name in INTS:
        x, y = pairs(name)
        shape = f"{name}[{x.size}]"
        for opcode in ("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor"):
            build.add(shape, opcode, x, y)
        for opcode in ("shift-left", "shift-right-logical", "shift-right-arithmetic"):
            build.add(shape, opcode, x, y)
        # The kernels look at the six lowest bits of an exponent only, and take large unsigned ones for negative.
        # Of -1 to a negative power the two emitters make different things.
        small = np.where((y > 40) | ((y < -3) | (x == -1) if name[0] == "s" else False), 3, y).astype(y.dtype)
        build.add(shape, "power", x, small)
        for direction in ("EQ", "LT", "GE"):
            build.add(f"pred[{x.size}]", "compare", x, y, attrs=f"direction={direction}")
    x, y = pairs("pred")
    for opcode in ("add", "multiply", "maximum", "minimum", "and", "or", "xor"):
        build.add("pred[4]", opcode, x, y)
    for direction in ("EQ", "NE", "LT", "GE"):
        build.add("pred[4]", "compare", x, y, attrs=f"direction={direction}")


def total_order_and_ternary(build: Builder) -> None:
    for name in ("f32", "f16", "bf16"):
        x, y = pairs(name)
        x = np.concatenate([x, np.negative(x.astype(np.float32)).astype(x.dtype)])
        y = np.concatenate([y, y])
        for direction in ("EQ", "LT", "GE"):
            attrs = f"direction={direction}, type=TOTALORDER"
            build.add(f"pred[{x.size}]", "compare", x, y, attrs=attrs)
    for name in ("f32", "bf16", "s32", "u8"):
        values = edges(name)[:9]
        low, x, high = (np.array(side, values.dtype) for side in zip(*itertools.product(values, repeat=3), strict=True))
        build.add(f"{name}[{x.size}]", "clamp", low, x, high)
        chosen = np.arange(x.size) % 3 == 0
        build.add(f"{name}[{x.size}]", "select", chosen, x, high)


def conversions(build: Builder) -> None:
    types = ("pred", "s8", "s32", "s64", "u8", "u16", "u64", "f16", "bf16", "f32", "f64")
    narrow_floats = ("f8e4m3fn", "f8e5m2", "f8e4m3b11fnuz", "f8e5m2fnuz")
    for source, target in itertools.product(types, types):
        x = edges(source)
        if target == "pred" and source in ("f16", "bf16"):
            x = without_subnormals(x)
        if {source, target} <= {"f32", "f64", "bf16"} and source != target:
            x = without_subnormals(x)
        if source != target:
            build.add(f"{target}[{x.size}]", "convert", x)
    for target in narrow_floats:
        x = edges("f32")
        x = without_subnormals(x)
        build.add(f"{target}[{x.size}]", "convert", x)
        with np.errstate(all="ignore"):
            build.add(f"f32[{x.size}]", "convert", x.astype(lookup(target).dtype))
    for exponent, mantissa in ((5, 10), (8, 7), (4, 3), (8, 23), (3, 1)):
        x = np.concatenate([edges("f32"), array("float32", [65519.9, 65520.0, 6.1e-5, 248.0, 240.0, 1.0000001])])
        x = without_subnormals(x)
        attrs = f"exponent_bits={exponent}, mantissa_bits={mantissa}"
        build.add(f"f32[{x.size}]", "reduce-precision", x, attrs=attrs)
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7
    build.add("s32[2,3,4]", "bitcast-convert", x)
    build.add("u8[2,3,4,4]", "bitcast-convert", x)
    build.add("bf16[2,3,4,2]", "bitcast-convert", x)
    build.add("u32[2,3]", "bitcast-convert", (x.astype(np.int8)))


def data_movement(build: Builder) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    fill = array("float32", 9)
    for low, high, interior in ((1, 2, 0), (-1, 2, 1), (-2, -1, 2), (0, -4, 0), (5, -7, 1), (-6, 8, 1)):
        size = max(0, 4 + 3 * interior + low + high)
        attrs = f"padding=0_0_0x{low}_{high}_{interior}x1_0_1"
        build.add(f"f32[3,{size},10]", "pad", x, fill, attrs=attrs)
    build.add("f32[2,2,2]", "slice", x, attrs="slice={[1:3:1], [0:4:3], [1:5:2]}")
    for order in itertools.permutations(range(3)):
        dims = ",".join(str(x.shape[d]) for d in order)
        build.add(f"f32[{dims}]", "transpose", x, attrs=f"dimensions={{{','.join(map(str, order))}}}")
    build.add("f32[3,4,5]", "reverse", x, attrs="dimensions={0,2}")
    build.add("f32[5,12]", "reshape", x)
    build.add("f32[3,8,5]", "concatenate", x, x + 1, attrs="dimensions={1}")
    build.add("f32[2,3,6,4,5]", "broadcast", x, attrs="dimensions={1,3,4}")
    for name in ("s8", "u8", "f16", "bf16", "f32", "s64"):
        build.add(f"{name}[3,300]", "iota", attrs="iota_dimension=1")
    for start in (-7, 0, 1, 2, 9):
        at = [array("int32", start), array("int64", start), array("uint8", start % 256)]
        for index in at[:2]:
            build.add("f32[2,2,3]", "dynamic-slice", x, index, index, index, attrs="dynamic_slice_sizes={2,2,3}")
        build.add("f32[3,4,5]", "dynamic-update-slice", x, x[:2, :2, :3] + 5, at[2], at[2], at[2])


def dot_and_convolution(build: Builder) -> None:
    rng = np.random.default_rng(4)

    def draw(name: str, *shape: int) -> Array:
        return rng.integers(-3, 4, shape).astype(np.float32).astype(lookup(name).dtype)

    # Small integers in floats: every order of summation gives the same bits.
    for name in ("f32", "f64", "f16", "bf16", "s32"):
        build.add(
            f"{name}[2,3,5]", "dot", draw(name, 2, 3, 4), draw(name, 2, 4, 5),
            attrs="lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}",
        )  # fmt: skip
        build.add(
            f"{name}[3,6]", "dot", draw(name, 4, 3, 2), draw(name, 6, 2, 4),
            attrs="lhs_contracting_dims={0,2}, rhs_contracting_dims={2,1}",
        )  # fmt: skip
    build.add("s32[3,5]", "dot", draw("s8", 3, 300), draw("s8", 300, 5),
              attrs="lhs_contracting_dims={1}, rhs_contracting_dims={0}")  # fmt: skip
    build.add("f32[3,5]", "dot", draw("bf16", 3, 64), draw("bf16", 64, 5),
              attrs="lhs_contracting_dims={1}, rhs_contracting_dims={0}")  # fmt: skip
    windows = [
        (8, "size=3 stride=2 pad=1_1", 1, 1), (8, "size=2 pad=-1_3", 1, 1), (6, "size=3 pad=2_2 lhs_dilate=2", 1, 1),
        (9, "size=3 rhs_dilate=2", 1, 1), (8, "size=3 pad=1_1 rhs_reversal=1", 1, 1),
        (7, "size=3 stride=2 pad=1_2 lhs_dilate=3 rhs_dilate=2", 1, 1), (8, "size=3 pad=1_1", 2, 1),
        (8, "size=3 pad=1_1", 4, 1), (8, "size=3 pad=1_1", 1, 2),
    ]  # fmt: skip
    for size, window, features, batches in windows:
        for name in ("f32", "bf16"):
            x, w = draw(name, 4, size, 4), draw(name, 3, 4 // features, 8)
            w = w[: int(window.split()[0].removeprefix("size="))]
            out = conv_size(size, window)
            attrs = f"window={{{window}}}, dim_labels=b0f_0io->b0f, feature_group_count={features}"
            attrs += f", batch_group_count={batches}"
            build.add(f"{name}[{4 // batches},{out},8]", "convolution", x, w, attrs=attrs)
    x, w = draw("f32", 2, 3, 7, 6), draw("f32", 5, 3, 3, 2)
    build.add(
        "f32[2,5,4,6]", "convolution", x, w,
        attrs="window={size=3x2 stride=2x1 pad=1_1x0_1}, dim_labels=bf01_oi01->bf01",
    )  # fmt: skip


def conv_size(size: int, window: str) -> int:
    """Outputs of a one-dimensional window."""
    items = dict(part.split("=") for part in window.split())
    low, high = (int(p) for p in items.get("pad", "0_0").split("_"))
    reach = (int(items["size"]) - 1) * int(items.get("rhs_dilate", "1")) + 1
    base = (size - 1) * int(items.get("lhs_dilate", "1")) + 1 + low + high
    return (base - reach) // int(items.get("stride", "1")) + 1


ARGMAX = """argmax {
  v0 = f32[] parameter(0)
  i0 = s32[] parameter(1)
  v1 = f32[] parameter(2)
  i1 = s32[] parameter(3)
  ge = pred[] compare(v0, v1), direction=GE
  v = f32[] select(ge, v0, v1)
  i = s32[] select(ge, i0, i1)
  ROOT r = (f32[], s32[]) tuple(v, i)
}
"""


def reductions(build: Builder) -> None:
    rng = np.random.default_rng(5)
    build.computations["argmax"] = ARGMAX
    for name in ("f32", "f16", "bf16", "s32", "u8"):
        x = rng.integers(0, 5, (3, 4, 6)).astype(np.float32).astype(lookup(name).dtype)
        # Identities: the kernels apply an initial value once per node of their reduction tree.
        for opcode, init in (("add", 0), ("maximum", 0), ("minimum", 100), ("multiply", 1)):
            apply = build.computation(opcode, name)
            start = np.array(init).astype(lookup(name).dtype)
            if opcode == "multiply":
                x = np.where(x == 0, x.dtype.type(1), np.where(x > 2, x.dtype.type(2), x)).astype(x.dtype)
            ulp = 0.0 if name in ("s32", "u8") or opcode in ("maximum", "minimum") else 2.0
            for dims, shape in (("0,2", "4"), ("1", "3,6"), ("0,1,2", "")):
                if name == "u8" and opcode == "multiply":
                    continue
                attrs = f"dimensions={{{dims}}}, to_apply={apply}"
                build.add(f"{name}[{shape}]", "reduce", x, start, attrs=attrs, ulp=ulp)
            if opcode != "multiply":
                attrs = f"window={{size=1x2x3 stride=1x1x2 pad=0_0x1_0x2_1}}, to_apply={apply}"
                build.add(f"{name}[3,4,4]", "reduce-window", x, start, attrs=attrs, ulp=ulp)
    for opcode, init in (("and", True), ("or", False)):
        apply = build.computation(opcode, "pred")
        x = rng.random((5, 7)) < 0.5
        build.add("pred[5]", "reduce", x, np.array(init), attrs=f"dimensions={{1}}, to_apply={apply}")
    x = rng.integers(0, 4, (5, 9)).astype(np.float32)
    x[1, 0] = x[2, 3] = np.nan
    places = np.broadcast_to(np.arange(9, dtype=np.int32), (5, 9)).copy()
    build.add(
        "(f32[5], s32[5])", "reduce", x, places, array("float32", -np.inf), array("int32", 0),
        attrs="dimensions={1}, to_apply=argmax",
    )  # fmt: skip
    build.computations["ge"] = (
        "ge {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = pred[] compare(a, b), direction=GE\n}\n"
    )
    add = build.computation("add", "f32")
    source = rng.integers(1, 5, (1, 4, 4)).astype(np.float32)
    build.add(
        "f32[1,8,8]", "select-and-scatter", rng.integers(0, 5, (1, 8, 8)).astype(np.float32), source,
        array("float32", 0),
        attrs=f"window={{size=1x3x3 stride=1x2x2 pad=0_0x0_1x0_1}}, select=ge, scatter={add}",
    )  # fmt: skip


def sort(build: Builder) -> None:
    rng = np.random.default_rng(6)
    build.computations["less"] = (
        "less {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        "  i = s32[] parameter(2)\n  j = s32[] parameter(3)\n"
        "  ROOT r = pred[] compare(a, b), direction=LT, type=TOTALORDER\n}\n"
    )
    build.computations["greater"] = (
        "greater {\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n"
        "  ROOT r = pred[] compare(a, b), direction=GT\n}\n"
    )
    build.computations["two_keys"] = (
        "two_keys {\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n  i = s32[] parameter(2)\n"
        "  j = s32[] parameter(3)\n  lt = pred[] compare(a, b), direction=LT\n"
        "  eq = pred[] compare(a, b), direction=EQ\n"
        "  gt = pred[] compare(i, j), direction=GT\n  both = pred[] and(eq, gt)\n  ROOT r = pred[] or(lt, both)\n}\n"
    )
    x = np.concatenate([edges("f32"), rng.integers(-3, 3, 40).astype(np.float32)])
    places = np.arange(x.size, dtype=np.int32)
    build.add(
        f"(f32[{x.size}], s32[{x.size}])",
        "sort",
        x,
        places,
        attrs="dimensions={0}, is_stable=true, to_apply=less",
    )
    keys = rng.integers(0, 6, (4, 33, 3)).astype(np.int32)
    other = rng.integers(0, 9, (4, 33, 3)).astype(np.int32)
    build.add("s32[4,33,3]", "sort", keys, attrs="dimensions={1}, is_stable=true, to_apply=greater")
    build.add(
        "(s32[4,33,3], s32[4,33,3])", "sort", keys, other, attrs="dimensions={1}, is_stable=true, to_apply=two_keys"
    )


def gather_and_scatter(build: Builder) -> None:
    rng = np.random.default_rng(7)
    x = rng.integers(-9, 9, (6, 5, 4)).astype(np.float32)
    index = np.array([[0, 1], [-3, 9], [5, 4], [7, 0]], np.int32)
    build.add(
        "f32[4,2,4]", "gather", x, index,
        attrs="offset_dims={1,2}, collapsed_slice_dims={0}, start_index_map={0,1}, index_vector_dim=1,"
              " slice_sizes={1,2,4}",
    )  # fmt: skip
    build.add(
        "f32[3,2,4,1]", "gather", x, index.T.copy(),
        attrs="offset_dims={0,1,3}, collapsed_slice_dims={}, start_index_map={2,0}, index_vector_dim=0,"
              " slice_sizes={3,2,1}",
    )  # fmt: skip
    build.add(
        "f32[6,2,4]", "gather", x, rng.integers(-1, 6, (6, 2, 1)).astype(np.int32),
        attrs="offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1}, operand_batching_dims={0},"
              " start_indices_batching_dims={0}, index_vector_dim=2, slice_sizes={1,1,4}",
    )  # fmt: skip
    build.computations["assign"] = (
        "assign {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = f32[] add(b, b)\n}\n"
    )
    updates = rng.integers(1, 5, (4, 2, 4)).astype(np.float32)
    for apply in (build.computation("add", "f32"), build.computation("maximum", "f32"), "assign"):
        for where in (index, np.array([[1, 1], [1, 2], [1, 1], [0, 0]], np.int32)):
            build.add(
                "f32[6,5,4]", "scatter", x, where, updates,
                attrs="update_window_dims={1,2}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0,1},"
                      f" index_vector_dim=1, to_apply={apply}",
            )  # fmt: skip


def random_bits_and_fft(build: Builder) -> None:
    rng = np.random.default_rng(8)
    for algorithm, words in (("rng_three_fry", 2), ("rng_philox", 2), ("rng_philox", 3)):
        state = rng.integers(0, 2**63, words).astype(np.uint64)
        for element, shape in (("u32", ""), ("u32", "3,4"), ("u64", "5"), ("u8", "3,5,7")):
            result = f"(u64[{words}], {element}[{shape}])"
            build.add(result, "rng-bit-generator", state, attrs=f"algorithm={algorithm}")
    z = (rng.standard_normal((3, 12)) + 1j * rng.standard_normal((3, 12))).astype(np.complex64)
    real = rng.standard_normal((3, 6, 10)).astype(np.float32)
    build.add("c64[3,12]", "fft", z, attrs="fft_type=FFT, fft_length={12}", ulp=64)
    build.add("c64[3,12]", "fft", z, attrs="fft_type=IFFT, fft_length={12}", ulp=64)
    build.add("c64[3,6,6]", "fft", real, attrs="fft_type=RFFT, fft_length={6,10}", ulp=256)


def test_solves() -> None:
    # Solved by LAPACK there: compared with a bound instead of ulps.
    rng = np.random.default_rng(9)
    m = rng.standard_normal((2, 5, 5)).astype(np.float32)
    spd = (m @ m.transpose(0, 2, 1) + 5 * np.eye(5)).astype(np.float32)
    rhs = rng.standard_normal((2, 5, 3)).astype(np.float32)
    text = """HloModule solve
ENTRY main {
  a = f32[2,5,5] parameter(0)
  b = f32[2,5,3] parameter(1)
  l = f32[2,5,5] cholesky(a), lower=true
  u = f32[2,5,5] cholesky(a), lower=false
  x = f32[2,5,3] triangular-solve(a, b), left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE
  y = f32[2,5,3] triangular-solve(a, b), left_side=true, lower=false, unit_diagonal=true, transpose_a=TRANSPOSE
  ROOT r = (f32[2,5,5], f32[2,5,5], f32[2,5,3], f32[2,5,3]) tuple(l, u, x, y)
}
"""
    theirs, _, _ = execute_hlo_text(text, [spd, rhs])
    for mine, real_one in zip(evaluate(load_module(text), [spd, rhs]), theirs, strict=True):
        assert isinstance(mine, np.ndarray)
        found = compare(real_one, mine)
        assert found.max_abs <= 1e-4, str(found)


FAMILIES: tuple[Callable[[Builder], None], ...] = (
    unary,
    binary,
    total_order_and_ternary,
    conversions,
    data_movement,
    dot_and_convolution,
    reductions,
    sort,
    gather_and_scatter,
    random_bits_and_fft,
)


@pytest.fixture(scope="module")
def wrong() -> dict[str, list[str]]:
    """One module of all families: one child, one compile."""
    build = Builder()
    for family in FAMILIES:
        build.family = family.__name__
        family(build)
    assert len(build.results) > 400
    return build.wrong()


@pytest.mark.parametrize("family", [family.__name__ for family in FAMILIES])
def test_family(wrong: dict[str, list[str]], family: str) -> None:
    found = wrong[family]
    assert not found, f"{len(found)} results differ\n" + "\n".join(found[:40])


def test_a_wrong_result_is_seen() -> None:
    build = Builder()
    build.add("f32[3]", "add", array("float32", [1, 2, 3]), array("float32", [1, 1, 1]))
    right = evaluate(load_module(build.text()), build.data)[0]
    wrong = evaluate(load_module(build.text().replace("add(", "subtract(")), build.data)[0]
    assert isinstance(right, np.ndarray) and isinstance(wrong, np.ndarray)
    assert not differs(right, right.copy(), 0)
    assert differs(right, wrong, 8)
