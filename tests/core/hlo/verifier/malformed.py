# ruff: noqa: E501
"""Malformed modules: the code of the rule that each breaks, and its text. Data for the tests of the verifier."""

from __future__ import annotations

from dataclasses import dataclass

COMPUTATIONS = {
    "add": "add {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT s = f32[] add(x, y)\n}\n",
    "adds": "adds {\n  x = s32[] parameter(0)\n  y = s32[] parameter(1)\n  ROOT s = s32[] add(x, y)\n}\n",
    "less": "less {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n"
    "  ROOT s = pred[] compare(x, y), direction=LT\n}\n",
    "neg": "neg {\n  x = f32[] parameter(0)\n  ROOT s = f32[] negate(x)\n}\n",
    "wide": "wide {\n  x = f32[4] parameter(0)\n  ROOT s = f32[4] negate(x)\n}\n",
    "cond": "cond {\n  x = f32[4] parameter(0)\n  ROOT s = pred[] constant(true)\n}\n",
    "pair": "pair {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT s = (f32[], f32[]) tuple(x, y)\n}\n",
}


@dataclass(frozen=True)
class Case:
    """One module that breaks a rule."""

    code: str
    text: str
    options: tuple[tuple[str, bool], ...] = ()
    """Options of the verifier that the rule needs."""


def module(body: str, *, with_: str = "", header: str = "", extra: str = "") -> str:
    """A module whose entry has these instructions (separated by ``;``), with computations of `COMPUTATIONS` before."""
    lines = "\n".join(f"  {line.strip()}" for line in body.split(";") if line.strip())
    before = "".join(COMPUTATIONS[name] for name in with_.split())
    return f"HloModule m{', ' + header if header else ''}\n\n{before}{extra}ENTRY e {{\n{lines}\n}}\n"


P = "p = f32[4,8]{1,0} parameter(0)"
V = "p = f32[4]{0} parameter(0)"
I32 = "i = s32[] constant(0)"

CASES: list[Case] = []


def _add(code: str, body: str, options: tuple[tuple[str, bool], ...] = (), **more: str) -> None:
    CASES.append(Case(code, module(body, **more), options))


# ---------------------------------------------------------------- elementwise
_add("shape-mismatch", f"{P}; ROOT r = f32[4,9] negate(p)")
_add("shape-mismatch", f"{P}; ROOT r = f16[4,8] negate(p)")
_add("shape-mismatch", f"{P}; ROOT r = f32[4,8] is-finite(p)")
_add("shape-mismatch", f"{P}; ROOT r = f32[4,8] compare(p, p), direction=LT")
_add("shape-mismatch", "p = c64[4] parameter(0); ROOT r = c64[4] abs(p)")
_add("shape-mismatch", "p = c64[4] parameter(0); ROOT r = c64[4] real(p)")
_add("shape-of-floor", "p = s32[4] parameter(0); ROOT r = s32[4] floor(p)")
_add("shape-of-cosine", "p = s32[4] parameter(0); ROOT r = s32[4] cosine(p)")
_add("shape-of-real", "p = s32[4] parameter(0); ROOT r = s32[4] real(p)")
_add("shape-of-abs", "p = u32[4] parameter(0); ROOT r = u32[4] abs(p)")
_add("shape-of-popcnt", f"{V}; ROOT r = f32[4] popcnt(p)")
_add("shape-of-count-leading-zeros", f"{V}; ROOT r = f32[4] count-leading-zeros(p)")
_add("shape-of-negate", "p = pred[4] parameter(0); ROOT r = pred[4] negate(p)")
_add("shape-of-sign", "p = u32[4] parameter(0); ROOT r = u32[4] sign(p)")
_add("shape-of-not", f"{V}; ROOT r = f32[4] not(p)")
_add("shape-of-is-finite", "p = s32[4] parameter(0); ROOT r = pred[4] is-finite(p)")
_add("shape-of-negate", "p = (f32[4]) parameter(0); ROOT r = (f32[4]) negate(p)")
_add("shape-of-convert", "p = (f32[4]) parameter(0); ROOT r = s32[4] convert(p)")
_add("shape-mismatch", f"{V}; ROOT r = s32[5] convert(p)")
_add("shape-of-bitcast-convert", f"{V}; ROOT r = f64[4] bitcast-convert(p)")
_add("shape-of-bitcast-convert", f"{V}; ROOT r = c64[4] bitcast-convert(p)")
_add("shape-mismatch", f"{V}; ROOT r = s16[4] bitcast-convert(p)")
_add("shape-of-stochastic-convert", f"{V}; q = s32[4] parameter(1); ROOT r = s8[4] stochastic-convert(p, q)")
_add("shape-of-stochastic-convert", f"{V}; q = u16[4] parameter(1); ROOT r = s8[4] stochastic-convert(p, q)")
_add("shape-of-reduce-precision", f"{V}; ROOT r = f32[4] reduce-precision(p), exponent_bits=0, mantissa_bits=3")
_add(
    "shape-of-reduce-precision",
    "p = s32[4] parameter(0); ROOT r = s32[4] reduce-precision(p), exponent_bits=5, mantissa_bits=3",
)
_add("shape-of-add", f"{V}; q = f32[5] parameter(1); ROOT r = f32[4] add(p, q)")
_add("shape-of-add", f"{V}; q = s32[4] parameter(1); ROOT r = f32[4] add(p, q)")
_add("implicit-broadcast", f"{V}; q = f32[] parameter(1); ROOT r = f32[4] add(p, q)")
_add("implicit-broadcast", f"{V}; q = f32[1] parameter(1); ROOT r = f32[4] add(p, q)")
_add("mixed-precision", f"{V}; q = f16[4] parameter(1); ROOT r = f32[4] add(p, q)")
_add("shape-of-subtract", "p = pred[4] parameter(0); ROOT r = pred[4] subtract(p, p)")
_add("shape-of-and", f"{V}; ROOT r = f32[4] and(p, p)")
_add("shape-of-atan2", "p = s32[4] parameter(0); ROOT r = s32[4] atan2(p, p)")
_add("shape-of-complex", "p = s32[4] parameter(0); ROOT r = c64[4] complex(p, p)")
_add("shape-mismatch", f"{V}; ROOT r = c128[4] complex(p, p)")
_add("comparison-type", f"{V}; ROOT r = pred[4] compare(p, p), direction=LT, type=SIGNED")
_add("comparison-type", "p = s32[4] parameter(0); ROOT r = pred[4] compare(p, p), direction=LT, type=UNSIGNED")
_add("shape-of-clamp", f"{V}; q = f32[5] parameter(1); ROOT r = f32[4] clamp(q, p, q)")
_add("shape-of-clamp", f"{V}; q = s32[] parameter(1); ROOT r = f32[4] clamp(q, p, q)")
_add("shape-of-select", f"{V}; ROOT r = f32[4] select(p, p, p)")
_add("shape-of-select", f"{V}; c = pred[5] parameter(1); ROOT r = f32[4] select(c, p, p)")
_add("shape-of-select", f"{V}; c = pred[4] parameter(1); q = f32[5] parameter(2); ROOT r = f32[4] select(c, p, q)")
_add("operand-count", f"{V}; ROOT r = f32[4] negate(p, p)")
_add("operand-count", f"{V}; ROOT r = f32[4] add(p)")
_add("result-accuracy", f"{V}; ROOT r = f32[4] negate(p), result_accuracy={{mode=highest}}")
# ---------------------------------------------------------------- dots
_add("shape-mismatch", f"{P}; ROOT r = f32[4,5] dot(p, p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}")
_add("shape-of-dot", f"{P}; ROOT r = f32[4,8] dot(p, p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}")
_add("shape-of-dot", f"{P}; ROOT r = f32[4,4] dot(p, p), lhs_contracting_dims={{2}}, rhs_contracting_dims={{1}}")
_add("shape-of-dot", f"{P}; ROOT r = f32[] dot(p, p), lhs_contracting_dims={{1,1}}, rhs_contracting_dims={{1,1}}")
_add("shape-of-dot", f"{P}; ROOT r = f32[4] dot(p, p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{}}")
_add(
    "shape-of-dot",
    f"{P}; ROOT r = f32[4,8,8] dot(p, p), lhs_batch_dims={{0}}, rhs_batch_dims={{1}}, lhs_contracting_dims={{}}, "
    "rhs_contracting_dims={}",
)
_add(
    "shape-of-ragged-dot",
    "a = f32[11,5] parameter(0); b = f32[3,5,7] parameter(1); g = s32[3] parameter(2); ROOT r = f32[11,7] "
    "ragged-dot(a, b, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={}",
)
_add(
    "shape-of-ragged-dot",
    "a = f32[11,5] parameter(0); b = f32[3,5,7] parameter(1); g = s32[4] parameter(2); ROOT r = f32[11,7] "
    "ragged-dot(a, b, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}",
)
_add(
    "scales",
    "a = f8e4m3fn[32,64] parameter(0); b = f8e4m3fn[16,64] parameter(1); s = f8e8m0fnu[32,3] parameter(2); t = "
    "f8e8m0fnu[16,2] parameter(3); ROOT r = f32[32,16] scaled-dot(a, b, s, t), lhs_contracting_dims={1}, "
    "rhs_contracting_dims={1}",
)
# ---------------------------------------------------------------- rearranging
_add("shape-of-concatenate", f"{P}; q = f32[5,9] parameter(1); ROOT r = f32[9,8] concatenate(p, q), dimensions={{0}}")
_add("shape-of-concatenate", f"{P}; ROOT r = f32[8,8] concatenate(p, p), dimensions={{2}}")
_add("shape-of-concatenate", f"{P}; q = s32[4,8] parameter(1); ROOT r = f32[8,8] concatenate(p, q), dimensions={{0}}")
_add("shape-of-concatenate", f"{P}; q = f32[8] parameter(1); ROOT r = f32[5,8] concatenate(p, q), dimensions={{0}}")
_add("shape-mismatch", f"{P}; ROOT r = f32[9,8] concatenate(p, p), dimensions={{0}}")
_add("missing-attribute", f"{P}; ROOT r = f32[8,8] concatenate(p, p)")
_add("shape-of-pad", f"{V}; z = f32[] constant(0); ROOT r = f32[4] pad(p, z), padding=1_1x1_1")
_add("shape-of-pad", f"{V}; z = s32[] constant(0); ROOT r = f32[6] pad(p, z), padding=1_1")
_add("shape-of-pad", f"{V}; z = f32[1] constant({{0}}); ROOT r = f32[6] pad(p, z), padding=1_1")
_add("shape-of-pad", f"{V}; z = f32[] constant(0); ROOT r = f32[0] pad(p, z), padding=-3_-3")
_add("shape-mismatch", f"{V}; z = f32[] constant(0); ROOT r = f32[7] pad(p, z), padding=1_1")
_add("shape-of-slice", f"{V}; ROOT r = f32[3] slice(p), slice={{[2:5]}}")
_add("shape-of-slice", f"{V}; ROOT r = f32[0] slice(p), slice={{[3:2]}}")
_add("shape-of-slice", f"{V}; ROOT r = f32[2] slice(p), slice={{[0:2], [0:2]}}")
_add("shape-mismatch", f"{V}; ROOT r = f32[3] slice(p), slice={{[0:4:2]}}")
_add("shape-of-dynamic-slice", f"{V}; {I32}; ROOT r = f32[5] dynamic-slice(p, i), dynamic_slice_sizes={{5}}")
_add("shape-of-dynamic-slice", f"{P}; {I32}; ROOT r = f32[2,2] dynamic-slice(p, i), dynamic_slice_sizes={{2,2}}")
_add(
    "shape-of-dynamic-slice",
    f"{V}; i = f32[] constant(0); ROOT r = f32[2] dynamic-slice(p, i), dynamic_slice_sizes={{2}}",
)
_add(
    "shape-of-dynamic-slice",
    f"{P}; {I32}; j = s64[] constant(0); ROOT r = f32[2,2] dynamic-slice(p, i, j), dynamic_slice_sizes={{2,2}}",
)
_add("shape-mismatch", f"{V}; {I32}; ROOT r = f32[3] dynamic-slice(p, i), dynamic_slice_sizes={{2}}")
_add(
    "shape-of-dynamic-update-slice",
    f"{V}; {I32}; u = f32[5] parameter(1); ROOT r = f32[4] dynamic-update-slice(p, u, i)",
)
_add(
    "shape-of-dynamic-update-slice",
    f"{V}; {I32}; u = s32[2] parameter(1); ROOT r = f32[4] dynamic-update-slice(p, u, i)",
)
_add(
    "shape-of-dynamic-update-slice",
    f"{V}; {I32}; u = f32[2,1] parameter(1); ROOT r = f32[4] dynamic-update-slice(p, u, i)",
)
_add("shape-mismatch", f"{V}; {I32}; u = f32[2] parameter(1); ROOT r = f32[2] dynamic-update-slice(p, u, i)")
_add("shape-of-reverse", f"{V}; ROOT r = f32[4] reverse(p), dimensions={{1}}")
_add("shape-of-reverse", f"{P}; ROOT r = f32[4,8] reverse(p), dimensions={{0,0}}")
_add("shape-of-transpose", f"{P}; ROOT r = f32[8,4] transpose(p), dimensions={{1,1}}")
_add("shape-mismatch", f"{P}; ROOT r = f32[4,8] transpose(p), dimensions={{1,0}}")
_add("shape-of-broadcast", f"{V}; ROOT r = f32[5,3] broadcast(p), dimensions={{0}}")
_add("shape-of-broadcast", f"{V}; ROOT r = f32[4,3] broadcast(p), dimensions={{}}")
_add("shape-of-broadcast", f"{V}; ROOT r = s32[4,3] broadcast(p), dimensions={{0}}")
_add(
    "broadcast-order",
    f"{P}; ROOT r = f32[8,4] broadcast(p), dimensions={{1,0}}",
    (("verify_broadcast_dimensions_order", True),),
)
_add("shape-of-reshape", f"{P}; ROOT r = f32[33] reshape(p)")
_add("shape-of-reshape", f"{P}; ROOT r = s32[32] reshape(p)")
_add(
    "reshape-is-bitcast",
    f"{P}; ROOT r = f32[32] reshape(p)".replace("{1,0}", "{0,1}"),
    (("verify_reshape_is_bitcast", True),),
)
_add("shape-of-dynamic-reshape", f"{P}; {I32}; ROOT r = f32[8,4] dynamic-reshape(p, i)")
_add("shape-of-iota", "ROOT r = s32[4] iota(), iota_dimension=1")
_add("shape-of-iota", "ROOT r = pred[4] iota(), iota_dimension=0")
_add("shape-of-get-dimension-size", f"{V}; ROOT r = s32[] get-dimension-size(p), dimensions={{1}}")
_add("shape-mismatch", f"{V}; ROOT r = u32[] get-dimension-size(p), dimensions={{0}}")
_add(
    "shape-of-set-dimension-size",
    f"{V}; n = s64[] constant(2); ROOT r = f32[<=4] set-dimension-size(p, n), dimensions={{0}}",
)
# ---------------------------------------------------------------- gather, scatter
GATHER = (
    "p = f32[10,5] parameter(0); i = s32[3,1] parameter(1); ROOT r = {shape} gather(p, i), offset_dims={{{offset}}}, "
    "collapsed_slice_dims={{{collapsed}}}, start_index_map={{{mapping}}}, index_vector_dim={vector}, "
    "slice_sizes={{{sizes}}}"
)


def _gather(code: str, **change: str) -> None:
    good = {"shape": "f32[3,5]", "offset": "1", "collapsed": "0", "mapping": "0", "vector": "1", "sizes": "1,5"}
    _add(code, GATHER.format(**{**good, **change}))


_gather("shape-mismatch", shape="f32[3,4]")
_gather("shape-of-gather", offset="2")
_gather("shape-of-gather", collapsed="2")
_gather("shape-of-gather", mapping="0,1")
_gather("shape-of-gather", mapping="5")
_gather("shape-of-gather", vector="3")
_gather("shape-of-gather", sizes="2,5")
_gather("shape-of-gather", sizes="1,6")
_gather("shape-of-gather", sizes="1")
_add(
    "shape-of-gather",
    GATHER.format(shape="f32[3,5]", offset="1", collapsed="0", mapping="0", vector="1", sizes="1,5").replace(
        "i = s32[3,1]", "i = f32[3,1]"
    ),
)
SCATTER = (
    "p = f32[10,5] parameter(0); i = s32[3,1] parameter(1); u = {updates} parameter(2); ROOT r = {shape} "
    "scatter(p, i, u), update_window_dims={{{window}}}, inserted_window_dims={{{inserted}}}, "
    "scatter_dims_to_operand_dims={{{mapping}}}, index_vector_dim=1, to_apply={apply}"
)


def _scatter(code: str, **change: str) -> None:
    good = {
        "shape": "f32[10,5]", "updates": "f32[3,5]", "window": "1", "inserted": "0", "mapping": "0", "apply": "add",
    }  # fmt: skip
    _add(code, SCATTER.format(**{**good, **change}), with_="add adds neg")


_scatter("shape-mismatch", shape="f32[10,6]")
_scatter("shape-of-scatter", updates="f32[3,5,1]")
_scatter("shape-of-scatter", updates="f32[4,5]")
_scatter("shape-of-scatter", updates="f32[3,6]")
_scatter("shape-of-scatter", window="2")
_scatter("shape-of-scatter", inserted="3")
_scatter("shape-of-scatter", mapping="2")
_scatter("shape-of-scatter", apply="adds")
_scatter("shape-of-scatter", apply="neg")
# ---------------------------------------------------------------- applied computations
Z = "z = f32[] constant(0)"
_add("shape-of-reduce", f"{P}; {Z}; ROOT r = f32[8] reduce(p, z), dimensions={{2}}, to_apply=add", with_="add")
_add("shape-of-reduce", f"{P}; {Z}; ROOT r = f32[8] reduce(p, z), dimensions={{0}}, to_apply=adds", with_="adds")
_add("shape-of-reduce", f"{P}; {Z}; ROOT r = f32[8] reduce(p, z), dimensions={{0}}, to_apply=neg", with_="neg")
_add("shape-of-reduce", f"{P}; {Z}; ROOT r = f32[] reduce(p, z), dimensions={{0,0}}, to_apply=add", with_="add")
_add("shape-of-reduce", f"{P}; ROOT r = f32[8] reduce(p, p), dimensions={{0}}, to_apply=add", with_="add")
_add("shape-mismatch", f"{P}; {Z}; ROOT r = f32[4] reduce(p, z), dimensions={{0}}, to_apply=add", with_="add")
_add(
    "shape-of-reduce",
    f"{P}; {Z}; ROOT r = (f32[8], f32[8]) reduce(p, p, z, z), dimensions={{0}}, to_apply=pair",
    with_="pair",
)
_add(
    "element-types",
    "p = f16[4] parameter(0); z = f16[] constant(0); ROOT r = f32[] reduce(p, z), dimensions={0}, to_apply=add",
    with_="add",
)
_add("missing-computation", f"{P}; {Z}; ROOT r = f32[8] reduce(p, z), dimensions={{0}}")
_add(
    "shape-of-reduce-window",
    f"{P}; {Z}; ROOT r = f32[3,7] reduce-window(p, z), window={{size=2}}, to_apply=add",
    with_="add",
)
_add(
    "shape-mismatch", f"{P}; {Z}; ROOT r = f32[4,8] reduce-window(p, z), window={{size=2x2}}, to_apply=add", with_="add"
)
_add(
    "shape-of-reduce-window",
    f"{P}; {Z}; ROOT r = f32[3,7] reduce-window(p, z), window={{size=2x2}}, to_apply=adds",
    with_="adds",
)
_add(
    "shape-of-select-and-scatter",
    f"{P}; {Z}; s = f32[4,8] parameter(1); ROOT r = f32[4,8] select-and-scatter(p, s, z), window={{size=2x2}}, "
    "select=less, scatter=add",
    with_="less add",
)
_add(
    "shape-of-select-and-scatter",
    f"{P}; {Z}; s = f32[3,7] parameter(1); ROOT r = f32[4,8] select-and-scatter(p, s, z), window={{size=2x2}}, "
    "select=add, scatter=add",
    with_="add",
)
_add("shape-of-map", f"{V}; ROOT r = f32[4] map(p, p), dimensions={{0}}, to_apply=neg", with_="neg")
_add(
    "shape-of-map",
    f"{V}; q = f32[5] parameter(1); ROOT r = f32[4] map(p, q), dimensions={{0}}, to_apply=add",
    with_="add",
)
_add("shape-of-map", f"{V}; ROOT r = f32[4] map(p, p), dimensions={{0}}, to_apply=adds", with_="adds")
_add("comparator", f"{V}; ROOT r = f32[4] sort(p), dimensions={{0}}, to_apply=add", with_="add")
_add(
    "parameter-count",
    f"{V}; q = f32[4] parameter(1); ROOT r = (f32[4], f32[4]) sort(p, q), dimensions={{0}}, to_apply=less",
    with_="less",
)
_add("comparator", "p = s32[4] parameter(0); ROOT r = s32[4] sort(p), dimensions={0}, to_apply=less", with_="less")
_add("sort-dimension", f"{V}; ROOT r = f32[4] sort(p), dimensions={{1}}, to_apply=less", with_="less")
_add("shape-of-topk", f"{V}; ROOT r = (f32[5], s32[5]) topk(p), k=5, largest=true")
_add("shape-mismatch", f"{V}; ROOT r = (f32[2], f32[2]) topk(p), k=2, largest=true")
# ---------------------------------------------------------------- convolution
CONV = (
    "p = f32[1,16,16,4] parameter(0); k = f32[3,3,4,8] parameter(1); ROOT r = {shape} convolution(p, k), "
    "window={{size={size}}}, dim_labels={labels}{more}"
)


def _conv(code: str, **change: str) -> None:
    good = {"shape": "f32[1,14,14,8]", "size": "3x3", "labels": "b01f_01io->b01f", "more": ""}
    _add(code, CONV.format(**{**good, **change}))


_conv("shape-mismatch", shape="f32[1,16,16,8]")
_conv("shape-of-convolution", size="2x2")
_conv("shape-of-convolution", labels="b01f_01oi->b01f")
_conv("shape-of-convolution", more=", feature_group_count=3")
_conv("shape-of-convolution", more=", batch_group_count=3")
_conv("shape-of-convolution", more=", feature_group_count=2, batch_group_count=2")
_conv("shape-of-convolution", size="3")
# ---------------------------------------------------------------- linear algebra
_add("shape-of-fft", f"{V}; ROOT r = f32[4] fft(p), fft_type=FFT, fft_length={{4}}")
_add("shape-of-fft", "p = c64[4] parameter(0); ROOT r = c64[3] fft(p), fft_type=RFFT, fft_length={4}")
_add("shape-of-fft", f"{V}; ROOT r = c64[3] fft(p), fft_type=RFFT, fft_length={{5}}")
_add("shape-of-fft", "p = c64[4] parameter(0); ROOT r = f32[4] fft(p), fft_type=IRFFT, fft_length={4}")
_add("shape-mismatch", f"{V}; ROOT r = c64[4] fft(p), fft_type=RFFT, fft_length={{4}}")
_add("shape-of-cholesky", f"{P}; ROOT r = f32[4,8] cholesky(p), lower=true")
_add("shape-of-cholesky", "p = s32[4,4] parameter(0); ROOT r = s32[4,4] cholesky(p), lower=true")
SOLVE = "left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE"
_add("shape-of-triangular-solve", f"{P}; ROOT r = f32[4,8] triangular-solve(p, p), {SOLVE}")
_add(
    "shape-of-triangular-solve",
    f"a = f32[4,4] parameter(0); b = f32[5,2] parameter(1); ROOT r = f32[5,2] triangular-solve(a, b), {SOLVE}",
)
_add(
    "shape-of-batch-norm-training",
    "p = f32[4,8] parameter(0); s = f32[4] parameter(1); ROOT r = (f32[4,8], f32[8], f32[8]) batch-norm-training(p, s, s), "
    "epsilon=0.1, feature_index=1",
)
_add(
    "shape-of-batch-norm-inference",
    "p = f32[4,8] parameter(0); s = f32[8] parameter(1); ROOT r = f32[4,8] batch-norm-inference(p, s, s, s, s), "
    "epsilon=0.1, feature_index=2",
)
# ---------------------------------------------------------------- tuples and control flow
_add("shape-mismatch", f"{V}; ROOT r = (f32[5]) tuple(p)")
_add("shape-of-get-tuple-element", "p = (f32[4]) parameter(0); ROOT r = f32[4] get-tuple-element(p), index=1")
_add("shape-of-get-tuple-element", f"{V}; ROOT r = f32[4] get-tuple-element(p), index=0")
_add("shape-mismatch", "p = (f32[4]) parameter(0); ROOT r = f32[5] get-tuple-element(p), index=0")
_add("shape-mismatch", f"{V}; ROOT r = f32[5] opt-barrier(p)")
_add("token", f"{V}; ROOT r = f32[4] add-dependency(p, p)")
_add("parameter-count", f"{V}; ROOT r = f32[4] call(p, p), to_apply=wide", with_="wide")
_add("operand-parameter", "p = f32[5] parameter(0); ROOT r = f32[4] call(p), to_apply=wide", with_="wide")
_add("shape-mismatch", f"{V}; ROOT r = f32[5] call(p), to_apply=wide", with_="wide")
_add(
    "composite",
    f'{V}; ROOT r = f32[4] call(p), to_apply=wide, is_composite=true, frontend_attributes={{a="b"}}',
    with_="wide",
)
_add(
    "operand-parameter",
    "p = f32[5] parameter(0); ROOT r = f32[5] while(p), condition=cond, body=wide",
    with_="cond wide",
)
_add("while-condition", f"{V}; ROOT r = f32[4] while(p), condition=wide, body=wide", with_="wide")
_add("shape-mismatch", f"{V}; ROOT r = f32[5] while(p), condition=cond, body=wide", with_="cond wide")
_add("parameter-count", f"{V}; ROOT r = f32[4] while(p), condition=cond, body=add", with_="cond add")
BRANCHES = "branch_computations={wide, wide}"
_add(
    "conditional-index", f"{V}; c = s32[1] parameter(1); ROOT r = f32[4] conditional(c, p, p), {BRANCHES}", with_="wide"
)
_add(
    "conditional-index", f"{V}; c = s64[] parameter(1); ROOT r = f32[4] conditional(c, p, p), {BRANCHES}", with_="wide"
)
_add("operand-count", f"{V}; c = s32[] parameter(1); ROOT r = f32[4] conditional(c, p), {BRANCHES}", with_="wide")
_add(
    "operand-parameter",
    f"{V}; q = f32[5] parameter(1); c = s32[] parameter(2); ROOT r = f32[4] conditional(c, p, q), {BRANCHES}",
    with_="wide",
)
_add("shape-mismatch", f"{V}; c = s32[] parameter(1); ROOT r = f32[5] conditional(c, p, p), {BRANCHES}", with_="wide")
_add(
    "conditional-index",
    f"{V}; c = pred[] parameter(1); ROOT r = f32[4] conditional(c, p, p, p), branch_computations={{wide, wide, wide}}",
    with_="wide",
)
# ---------------------------------------------------------------- fusion
FUSED = "f {{\n  x = f32[4]{{0}} parameter(0)\n{body}\n}}\n"


def _fusion(code: str, body: str, use: str, **more: str) -> None:
    lines = "\n".join(f"  {line.strip()}" for line in body.split(";"))
    _add(code, use, extra=FUSED.format(body=lines), **more)


_fusion("fusion-shape", "ROOT s = f32[4]{0} negate(x)", f"{V}; ROOT r = f32[5] fusion(p), kind=kLoop, calls=f")
_fusion(
    "fusion-shape",
    "ROOT s = f32[4]{0} negate(x)",
    "p = f32[5] parameter(0); ROOT r = f32[4] fusion(p), kind=kLoop, calls=f",
)
_fusion(
    "fusion-body",
    "d = f32[4]{0} sine(x); ROOT s = f32[4]{0} negate(x)",
    f"{V}; ROOT r = f32[4] fusion(p), kind=kLoop, calls=f",
)
_fusion(
    "fusion-body",
    "y = f32[4]{0} parameter(1); ROOT s = f32[4]{0} negate(x)",
    f"{V}; ROOT r = f32[4] fusion(p, p), kind=kLoop, calls=f",
)
_fusion(
    "fusion-body",
    "ROOT s = f32[4]{0} negate(x); u = f32[4]{0} sine(s)",
    f"{V}; ROOT r = f32[4] fusion(p), kind=kLoop, calls=f",
)
_fusion(
    "operand-aliasing",
    "ROOT s = f32[4]{0} negate(x)",
    f"{V}; ROOT r = f32[4] fusion(p), kind=kLoop, output_to_operand_aliasing={{{{}}: (1, {{}})}}, calls=f",
)
_fusion(
    "operand-aliasing",
    "ROOT s = f32[4]{0} negate(x)",
    f"{V}; ROOT r = f32[4] fusion(p), kind=kLoop, output_to_operand_aliasing={{{{0}}: (0, {{}})}}, calls=f",
)
# ---------------------------------------------------------------- custom calls
_add(
    "operand-aliasing",
    f'{V}; ROOT r = f32[4] custom-call(p), custom_call_target="x", output_to_operand_aliasing={{{{}}: (2, {{}})}}',
)
_add(
    "operand-aliasing",
    f'{V}; ROOT r = f32[5] custom-call(p), custom_call_target="x", output_to_operand_aliasing={{{{}}: (0, {{}})}}',
)
_add(
    "layout-constraint",
    f'{V}; ROOT r = f32[4] custom-call(p), custom_call_target="x", operand_layout_constraints={{f32[5]{{0}}}}',
)
_add(
    "layout-constraint", f'{V}; ROOT r = f32[4] custom-call(p), custom_call_target="x", operand_layout_constraints={{}}'
)
_add("get-rng-seed", 'ROOT r = u32[] custom-call(), custom_call_target="GetRngSeed"')
# ---------------------------------------------------------------- asynchronous pairs and transfers
_add("single-user", f"{V}; s = (f32[4], f32[4], u32[]) copy-start(p); ROOT r = f32[4] negate(p)")
_add("single-operand", "p = (f32[4], f32[4], u32[]) parameter(0); ROOT r = f32[4] copy-done(p)")
_add("shape-mismatch", f"{V}; s = (f32[4], f32[5], u32[]) copy-start(p); ROOT r = f32[4] copy-done(s)")
_add("copy-done", f"{V}; s = (f32[4], f32[5], u32[]) copy-start(p); ROOT r = f32[4] copy-done(s)")
_add(
    "single-user",
    f"{V}; s = f32[4] all-reduce-start(p), replica_groups={{}}, to_apply=add; ROOT r = f32[4] negate(s)",
    with_="add",
)
_add(
    "single-user",
    f"{V}; s = f32[4] all-reduce-start(p), replica_groups={{}}, to_apply=add; d = f32[4] all-reduce-done(s); e = f32[4] "
    "all-reduce-done(s); ROOT r = f32[4] add(d, e)",
    with_="add",
)
TOKEN = "t = token[] after-all()"
_add(
    "channel-pair",
    f"{V}; {TOKEN}; s = (f32[4], u32[], token[]) send(p, t), channel_id=1; d = token[] send-done(s), channel_id=2; ROOT r = "
    "f32[4] negate(p)",
)
_add(
    "channel-pair",
    f"{TOKEN}; s = (f32[4], u32[], token[]) recv(t), channel_id=1, is_host_transfer=true; ROOT r = (f32[4], token[]) "
    "recv-done(s), channel_id=1",
)
_add(
    "host-transfer",
    f"{V}; q = f32[5] parameter(1); {TOKEN}; s = (f32[4], u32[], token[]) send(p, t), channel_id=1, is_host_transfer=true; "
    "d = token[] send-done(s), channel_id=1, is_host_transfer=true; u = (f32[5], u32[], token[]) send(q, t), channel_id=1, "
    "is_host_transfer=true; v = token[] send-done(u), channel_id=1, is_host_transfer=true; ROOT r = f32[4] negate(p)",
)
_add(
    "shape-mismatch",
    f"{V}; {TOKEN}; s = (f32[5], u32[], token[]) send(p, t), channel_id=1; d = token[] send-done(s), channel_id=1; ROOT r = f32[4] negate(p)",
)
ASYNC = 'a {\n  x = f32[4]{0} parameter(0)\n  ROOT s = f32[4]{0} custom-call(x), custom_call_target="x"\n}\n'


def _async(code: str, body: str, extra: str = ASYNC) -> None:
    _add(code, body, extra=extra)


START = "s = ((f32[4]), f32[4], s32[]) async-start(p), calls=a"
_async("async-chain", f"{V}; {START}; ROOT r = f32[4] negate(p)")
_async("async-shape", f"{V}; s = ((f32[4]), f32[5], s32[]) async-start(p), calls=a; ROOT r = f32[4] async-done(s)")
_async("async-shape", f"{V}; s = ((f32[5]), f32[4], s32[]) async-start(p), calls=a; ROOT r = f32[4] async-done(s)")
_async("async-shape", f"{V}; {START}; ROOT r = f32[5] async-done(s)")
_async("async-chain", f"{V}; {START}; d = f32[4] async-done(s); e = f32[4] async-done(s); ROOT r = f32[4] add(d, e)")
_async("async-user", f'{V}; {START}; d = f32[4] async-done(s); ROOT r = f32[4] custom-call(s), custom_call_target="y"')
_async(
    "async-thread",
    f'{V}; s = ((f32[4]), f32[4], s32[]) async-start(p), async_execution_thread="other", calls=a; ROOT r = f32[4] async-done(s)',
)
_async(
    "async-computation",
    f"{V}; {START}; ROOT r = f32[4] async-done(s)",
    "a {\n  x = f32[4]{0} parameter(0)\n  y = f32[4]{0} negate(x)\n  ROOT s = f32[4]{0} sine(y)\n}\n",
)
# ---------------------------------------------------------------- collectives
EIGHT = "replica_count=8"
_add(
    "replica-groups",
    f"{V}; ROOT r = f32[4] all-reduce(p), replica_groups={{{{0,1}},{{1,2}}}}, to_apply=add",
    with_="add",
)
_add(
    "replica-groups", f"{V}; ROOT r = f32[4] all-reduce(p), replica_groups={{{{0,1}},{{}}}}, to_apply=add", with_="add"
)
_add("replica-groups", f"{V}; ROOT r = f32[4] all-reduce(p), replica_groups={{{{0,5}}}}, to_apply=add", with_="add")
_add(
    "replica-groups",
    f"{V}; ROOT r = f32[4] all-reduce(p), replica_groups={{{{0,1}}}}, to_apply=add",
    with_="add",
    header=EIGHT,
)
_add(
    "replica-groups",
    f"{V}; ROOT r = f32[4] all-reduce(p), channel_id=1, use_global_device_ids=true, replica_groups={{}}, to_apply=add",
    with_="add",
)
_add("replica-groups", f"{V}; ROOT r = f32[8] all-gather(p), replica_groups={{{{0,1}},{{2}}}}, dimensions={{0}}")
_add(
    "group-mode",
    f"{V}; ROOT r = f32[4] all-reduce(p), use_global_device_ids=true, replica_groups={{{{0,1}}}}, to_apply=add",
    with_="add",
)
_add("channel-id", f"{V}; ROOT r = f32[4] all-reduce(p), channel_id=0, replica_groups={{}}, to_apply=add", with_="add")
_add("shape-mismatch", f"{V}; ROOT r = f32[5] all-reduce(p), replica_groups={{}}, to_apply=add", with_="add")
_add("shard-count", f"{V}; ROOT r = f32[16] all-gather(p), replica_groups={{{{0,1}}}}, dimensions={{0}}")
_add("shard-count", f"{V}; ROOT r = f32[8] all-gather(p), replica_groups={{{{0,1}}}}, dimensions={{1}}")
_add("shape-mismatch", f"{V}; ROOT r = f32[9] all-gather(p), replica_groups={{}}, dimensions={{0}}")
_add(
    "shard-count",
    f"{V}; ROOT r = f32[1] reduce-scatter(p), replica_groups={{{{0,1}}}}, dimensions={{0}}, to_apply=add",
    with_="add",
)
_add(
    "shape-of-all-to-all",
    "p = f32[5] parameter(0); ROOT r = f32[5] all-to-all(p), replica_groups={{0,1}}, dimensions={0}",
)
_add("operand-count", f"{V}; ROOT r = (f32[4]) all-to-all(p), replica_groups={{{{0,1}}}}")
_add("source-target-pairs", f"{V}; ROOT r = f32[4] collective-permute(p), source_target_pairs={{{{0,1}},{{0,2}}}}")
_add("source-target-pairs", f"{V}; ROOT r = f32[4] collective-permute(p), source_target_pairs={{{{0,1}},{{2,1}}}}")
_add(
    "source-target-pairs", f"{V}; ROOT r = f32[4] collective-permute(p), source_target_pairs={{{{0,9}}}}", header=EIGHT
)
_add("shape-mismatch", f"{V}; ROOT r = f32[5] collective-permute(p), source_target_pairs={{{{0,1}}}}")
_add("shape-mismatch", "ROOT r = s32[] partition-id()")
_add(
    "all-reduce-layout",
    f"{V}; a = f32[4] all-reduce(p), replica_groups={{}}, constrain_layout=true, to_apply=add; ROOT r = f32[4] all-reduce(a), "
    "replica_groups={}, to_apply=add",
    with_="add",
)
# ---------------------------------------------------------------- random numbers, infeed, outfeed
_add("shape-of-rng", f"{V}; ROOT r = f32[4] rng(p, p), distribution=rng_uniform")
_add("shape-of-rng", "a = s32[] constant(0); ROOT r = s32[4] rng(a, a), distribution=rng_normal")
_add(
    "shape-of-rng-bit-generator",
    "p = u64[2] parameter(0); ROOT r = (u64[3], u32[4]) rng-bit-generator(p), algorithm=rng_default",
)
_add("shape-mismatch", "ROOT r = u64[3] rng-get-and-update-state(), delta=1")
_add("token", f"{V}; ROOT r = ((f32[4]), token[]) infeed(p)")
_add("outfeed-shape", f"{V}; {TOKEN}; ROOT r = token[] outfeed(p, t), outfeed_shape=f32[5]")
# ---------------------------------------------------------------- layouts
SCHEDULED = (("layout_sensitive", True), ("restrict_layout_changes", True))
_add("layout-change", f"{P}; ROOT r = f32[4,8]{{0,1}} negate(p)", SCHEDULED)
_add("shape-mismatch", f"{P}; ROOT r = (f32[4,8]{{0,1}}) tuple(p)", SCHEDULED)
_add("bitcast-size", f"{P}; ROOT r = f32[31] bitcast(p)", SCHEDULED)
_add("bitcast-memory-space", f"{P}; ROOT r = f32[32]{{0:S(5)}} bitcast(p)", SCHEDULED)
_add(
    "memory-space-change",
    f"{V}; {I32}; ROOT r = f32[2]{{0:S(5)}} dynamic-slice(p, i), dynamic_slice_sizes={{2}}",
    SCHEDULED,
)
_add("host-memory-space", "ROOT p = f32[4]{0:S(5)} parameter(0)", (("verify_no_host_memory_space", True),))
_add("unbounded-dynamism", "p = f32[?] parameter(0); ROOT r = f32[?] negate(p)")
# ---------------------------------------------------------------- module
_add("entry-result", f"{V}; ROOT r = f32[4] negate(p)", header="entry_computation_layout={(f32[4]{0})->f32[5]{0}}")
_add("entry-parameters", f"{V}; ROOT r = f32[4] negate(p)", header="entry_computation_layout={(f32[5]{0})->f32[4]{0}}")
_add(
    "entry-parameters",
    f"{V}; ROOT r = f32[4] negate(p)",
    header="entry_computation_layout={(f32[4]{0}, f32[4]{0})->f32[4]{0}}",
)
_add("alias-config", f"{V}; ROOT r = f32[4] negate(p)", header="input_output_alias={ {}: (1, {}, may-alias) }")
_add("alias-config", f"{V}; ROOT r = f32[4] negate(p)", header="input_output_alias={ {}: (0, {1}, may-alias) }")
_add("alias-config", f"{V}; ROOT r = f32[4] negate(p)", header="input_output_alias={ {0}: (0, {}, may-alias) }")
_add(
    "alias-config",
    f"{V}; n = f32[4] negate(p); ROOT r = (f32[4], f32[4]) tuple(n, p)",
    header="input_output_alias={ {0}: (0, {}, may-alias), {1}: (0, {}, may-alias) }",
)
_add("buffer-donor", f"{V}; ROOT r = f32[4] negate(p)", header="buffer_donor={ (3, {}) }")
_add(
    "buffer-donor",
    f"{V}; ROOT r = f32[4] negate(p)",
    header="input_output_alias={ {}: (0, {}, may-alias) }, buffer_donor={ (0, {}) }",
)
_add(
    "entry-alias",
    "p = f32[4]{{0}} parameter(0); ROOT r = s32[4] convert(p)",
    header="input_output_alias={ {}: (0, {}, must-alias) }, entry_computation_layout={(f32[4]{0})->s32[4]{0}}",
)
_add("sharding", f"{V}; ROOT r = f32[4] negate(p), sharding={{devices=[2,1]0,1}}")
_add("sharding", f"{V}; ROOT r = f32[4] negate(p), sharding={{devices=[2]0,0}}")
_add("sharding", f"{V}; ROOT r = f32[4] negate(p), sharding={{devices=[2]0,1}}", header="num_partitions=8")
_add("sharding", f"{V}; ROOT r = (f32[4], f32[4]) tuple(p, p), sharding={{{{replicated}}}}")
_add("sharding", f"{V}; ROOT r = f32[4] negate(p), sharding={{maximal device=9}}", header="num_partitions=8")
_add(
    "sharding-agrees",
    f"{V}; ROOT r = f32[4] while(p), condition=cond, body=b, sharding={{devices=[2]0,1}}",
    with_="cond",
    extra="b {\n  x = f32[4] parameter(0)\n  ROOT s = f32[4] negate(x), sharding={replicated}\n}\n",
)
_add("thread", f"{V}; ROOT r = f32[4] while(p), condition=cond, body=b", with_="cond",
     extra='b {\n  x = f32[4] parameter(0)\n  ROOT s = f32[4] negate(x)\n}, execution_thread="other"\n')  # fmt: skip
_add(
    "call-aliasing",
    f"{V}; ROOT r = f32[4] call(p), output_to_operand_aliasing={{{{}}: (0, {{}})}}, to_apply=wide",
    with_="wide",
)
_add("caller", f"{V}; ROOT r = f32[4] negate(p), to_apply=wide", with_="wide")
_add("original-value", f'{V}; ROOT r = f32[4] negate(p), origin={{({{"a"}}, {{"b"}})}}')
_add("duplicate-name", f"{V}; x = f32[4] call(p), to_apply=wide; ROOT r = f32[4] negate(x)", with_="wide")
_add(
    "name-unchanged",
    f'{V}; ROOT r = f32[4] negate(p), metadata={{scheduling_name="q"}}',
    (("verify_instruction_name_unchanged", True),),
)
_add(
    "schedule-order",
    f"{V}; a = f32[4] negate(p), control-predecessors={{b}}; b = f32[4] sine(p); ROOT r = f32[4] add(a, b)",
    header="is_scheduled=true",
)
_add("cycle", f"{V}; a = f32[4] negate(p), control-predecessors={{b}}; b = f32[4] sine(a); ROOT r = f32[4] add(a, b)")
# ---------------------------------------------------------------- buffers
PIN = 'b = b(f32[4]{0}) custom-call(p), custom_call_target="Pin", output_to_operand_aliasing={{}: (0, {})}'
UNPIN = 'ROOT r = f32[4]{0} custom-call(b), custom_call_target="Unpin", output_to_operand_aliasing={{}: (0, {})}'
_add("buffers-not-allowed", f"{V}; {PIN}; ROOT r = b(f32[4]{{0}}) copy(b)")
_add("pin", f'{V}; b = b(f32[5]{{0}}) custom-call(p), custom_call_target="Pin"; {UNPIN.replace("f32[4]", "f32[5]")}')
_add("buffer-aliasing", f'{V}; {PIN}; ROOT r = f32[4]{{0}} custom-call(b), custom_call_target="x"')
_add("buffer-writers", f"{V}; {PIN}; u = {UNPIN.removeprefix('ROOT r = ')}; {UNPIN}")
# ---------------------------------------------------------------- scan
SCAN = "sc {\n  x = f32[] parameter(0)\n  c = f32[] parameter(1)\n  s = f32[] add(x, c)\n  ROOT t = (f32[], f32[]) tuple(s, s)\n}\n"
_add("scan", f"{V}; {Z}; ROOT r = (f32[5], f32[]) scan(p, z), dimensions={{0}}, num_carries=1, to_apply=sc", extra=SCAN)
_add("scan", f"{P}; {Z}; ROOT r = (f32[4], f32[]) scan(p, z), dimensions={{0}}, num_carries=1, to_apply=sc", extra=SCAN)
_add("scan", f"{V}; {Z}; ROOT r = (f32[4], f32[]) scan(p, z), dimensions={{0}}, num_carries=3, to_apply=sc", extra=SCAN)
