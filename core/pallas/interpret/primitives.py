"""What each pure primitive computes, with numpy: the table that index maps and every interpreter evaluate by.

A rule takes the parameters and the operands and returns the result (a tuple for several). Operands are numpy arrays or
scalars of the traced types; results are cast to the traced type by the caller, so a rule need not. Semantics are
XLA's: integer division truncates and gives -1 for a zero divisor, shifts past the width give 0 or the sign, slices of
``dynamic_slice`` are clamped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import ml_dtypes
import numpy as np

from hloscope.core.errors import UnsupportedError
from hloscope.core.pallas.jaxpr import Array, Record, dtype_of

Params: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[..., Any]

_NARROW_FLOATS = frozenset(
    {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}
    | {np.dtype(getattr(ml_dtypes, name)) for name in dir(ml_dtypes) if name.startswith(("float8", "float6", "float4"))}
)


def _is_narrow(array: Any) -> bool:
    return array.dtype in _NARROW_FLOATS


def _wide(array: Any) -> Any:
    """The operand in a type that numpy computes with: narrow floats as float32."""
    return array.astype(np.float32) if _is_narrow(array) else array


def _unary(function: Callable[[Any], Any]) -> Rule:
    def rule(params: Params, x: Any) -> Any:
        return function(_wide(x))

    return rule


def _binary(function: Callable[[Any, Any], Any]) -> Rule:
    def rule(params: Params, x: Any, y: Any) -> Any:
        return function(x, y)

    return rule


def _div(params: Params, x: Any, y: Any) -> Any:
    if x.dtype.kind not in "iu":
        return _wide(x) / _wide(y)
    safe = np.where(y == 0, np.ones_like(y), y)
    quotient = np.floor_divide(np.abs(x), np.abs(safe)) if x.dtype.kind == "i" else np.floor_divide(x, safe)
    if x.dtype.kind == "i":
        quotient = np.where((x < 0) != (safe < 0), -quotient, quotient)
    return np.where(y == 0, np.array(-1).astype(x.dtype), quotient)


def _rem(params: Params, x: Any, y: Any) -> Any:
    if x.dtype.kind not in "iu":
        return np.fmod(_wide(x), _wide(y))
    safe = np.where(y == 0, np.ones_like(y), y)
    return np.where(y == 0, x, np.fmod(x, safe))


def _shift(left: bool, arithmetic: bool) -> Rule:
    def rule(params: Params, x: Any, y: Any) -> Any:
        bits = x.dtype.itemsize * 8
        unsigned = np.dtype(f"u{x.dtype.itemsize}")
        amount = np.asarray(y).astype(np.int64)
        over = (amount < 0) | (amount >= bits)
        amount = np.where(over, 0, amount)
        if arithmetic:
            amount = np.where(over, bits - 1, amount)
            return np.right_shift(x, amount.astype(x.dtype))
        raw = np.asarray(x).astype(unsigned)
        moved = np.left_shift(raw, amount.astype(unsigned)) if left else np.right_shift(raw, amount.astype(unsigned))
        return np.where(over, np.zeros_like(moved), moved).astype(x.dtype)

    return rule


def _integer_pow(params: Params, x: Any) -> Any:
    power = int(params["y"])
    wide = _wide(x)
    if power == 2:
        return wide * wide
    return 1 / np.power(wide, -power) if power < 0 else np.power(wide, np.asarray(power).astype(wide.dtype))


def _pow(params: Params, x: Any, y: Any) -> Any:
    return np.power(_wide(x), _wide(y))


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _sign(params: Params, x: Any) -> Any:
    return np.sign(_wide(x))


def _vectorised(function: Callable[[float], float]) -> Callable[[Any], Any]:
    return lambda x: np.vectorize(function, otypes=[np.float64])(x) if np.size(x) else np.asarray(x)


def _erf_inv(x: Any) -> Any:
    from statistics import NormalDist

    inverse = NormalDist().inv_cdf

    def one(value: float) -> float:
        if not -1 < value < 1:
            return math.copysign(math.inf, value) if abs(value) == 1 else math.nan
        return inverse((value + 1) / 2) / math.sqrt(2)

    return _vectorised(one)(x)


def _round(params: Params, x: Any) -> Any:
    method = str(params.get("rounding_method", ""))
    wide = _wide(x)
    if method.endswith("AWAY_FROM_ZERO"):
        return np.trunc(wide + np.copysign(np.asarray(0.5, wide.dtype), wide))
    return np.rint(wide)


def _population_count(params: Params, x: Any) -> Any:
    return np.bitwise_count(np.asarray(x).view(f"u{x.dtype.itemsize}"))


def _clz(params: Params, x: Any) -> Any:
    bits = x.dtype.itemsize * 8
    raw = np.asarray(x).view(f"u{x.dtype.itemsize}")
    return np.vectorize(lambda v: bits - int(v).bit_length(), otypes=[np.int64])(raw)


def _select_n(params: Params, which: Any, *cases: Any) -> Any:
    if which.dtype == np.bool_ and len(cases) == 2:
        return np.where(which, cases[1], cases[0])
    return np.choose(np.clip(which.astype(np.int64), 0, len(cases) - 1), cases)


def _clamp(params: Params, low: Any, x: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


def _convert(params: Params, x: Any) -> Any:
    target = dtype_of(params["new_dtype"])
    if target.kind in "iu" and (x.dtype.kind == "f" or _is_narrow(x)):
        wide = np.nan_to_num(_wide(x).astype(np.float64), nan=0.0)
        info = np.iinfo(target)
        clipped = np.clip(np.trunc(wide), float(info.min), float(info.max))
        large = clipped >= float(info.max)
        return np.where(large, np.asarray(info.max, target), np.where(large, 0, clipped).astype(target))
    if target == np.bool_:
        return np.asarray(x) != 0
    return np.asarray(x).astype(target)


def _bitcast_convert(params: Params, x: Any) -> Any:
    target = dtype_of(params["new_dtype"])
    array = np.ascontiguousarray(x)
    if target.itemsize == array.dtype.itemsize:
        return array.view(target).reshape(array.shape)
    if target.itemsize < array.dtype.itemsize:
        return array.reshape(*array.shape, 1).view(target)
    return array.view(target).reshape(array.shape[:-1])


def _broadcast_in_dim(params: Params, x: Any, *dynamic: Any) -> Any:
    shape, dims = params["shape"], params["broadcast_dimensions"]
    array = np.asarray(x)
    spread = [1] * len(shape)
    for source, target in enumerate(dims):
        spread[target] = array.shape[source]
    return np.broadcast_to(array.reshape(spread), shape)


def _reshape(params: Params, x: Any, *dynamic: Any) -> Any:
    if params.get("dimensions") is not None:
        raise UnsupportedError("reshape with a dimension order is not supported by the interpreters")
    return np.reshape(x, params["new_sizes"])


def _pad(params: Params, x: Any, value: Any) -> Any:
    array = np.asarray(x)
    config = params["padding_config"]
    shape = [
        low + high + max(0, n + (n - 1) * inner if n else 0)
        for n, (low, high, inner) in zip(array.shape, config, strict=True)
    ]
    if any(size < 0 for size in shape):
        shape = [max(0, size) for size in shape]
    result = np.full(shape, value, array.dtype)
    target: list[slice] = []
    source: list[slice] = []
    for n, (low, _high, inner), size in zip(array.shape, config, shape, strict=True):
        step = inner + 1
        first = max(0, -(low // step)) if low < 0 else 0
        begin = low + first * step
        count = min(n - first, max(0, -(-(size - begin) // step)))
        source.append(slice(first, first + max(0, count)))
        target.append(slice(begin, begin + max(0, count) * step, step) if count > 0 else slice(0, 0))
    result[tuple(target)] = array[tuple(source)]
    return result


def _slice(params: Params, x: Any) -> Any:
    strides = params.get("strides") or (1,) * np.ndim(x)
    return np.asarray(x)[
        tuple(slice(a, b, s) for a, b, s in zip(params["start_indices"], params["limit_indices"], strides, strict=True))
    ]


def clamped(start: int, size: int, extent: int) -> int:
    """Where ``dynamic_slice`` begins: a negative start counts from the end, then the window is moved inside."""
    if start < 0:
        start += extent
    return max(0, min(start, extent - size))


def _dynamic_slice(params: Params, x: Any, *starts: Any) -> Any:
    array = np.asarray(x)
    sizes = params["slice_sizes"]
    begin = [max(0, min(int(s), n - size)) for s, size, n in zip(starts, sizes, array.shape, strict=True)]
    return array[tuple(slice(b, b + size) for b, size in zip(begin, sizes, strict=True))]


def _dynamic_update_slice(params: Params, x: Any, update: Any, *starts: Any) -> Any:
    array = np.array(x)
    change = np.asarray(update)
    begin = [max(0, min(int(s), n - size)) for s, size, n in zip(starts, change.shape, array.shape, strict=True)]
    array[tuple(slice(b, b + size) for b, size in zip(begin, change.shape, strict=True))] = change
    return array


def _iota(params: Params, *dynamic: Any) -> Any:
    shape, axis = params["shape"], params["dimension"]
    spread = [1] * len(shape)
    spread[axis] = shape[axis]
    line = np.arange(shape[axis]).astype(dtype_of(params["dtype"]))
    return np.broadcast_to(line.reshape(spread), shape)


def _reduce(function: Callable[..., Any]) -> Rule:
    def rule(params: Params, x: Any) -> Any:
        return function(_wide(np.asarray(x)), axis=tuple(params["axes"]))

    return rule


def _arg_reduce(function: Callable[..., Any], worst: float) -> Rule:
    def rule(params: Params, x: Any) -> Any:
        (axis,) = params["axes"]
        wide = _wide(np.asarray(x))
        if wide.dtype.kind == "f":  # the first NaN wins
            wide = np.where(np.isnan(wide), worst, wide)
        return function(wide, axis=axis)

    return rule


def _cumulative(function: Callable[..., Any]) -> Rule:
    def rule(params: Params, x: Any) -> Any:
        axis, wide = params["axis"], _wide(np.asarray(x))
        if params.get("reverse"):
            return np.flip(function(np.flip(wide, axis), axis=axis), axis)
        return function(wide, axis=axis)

    return rule


def _sort(params: Params, *operands: Any) -> Any:
    axis, keys = params["dimension"], params["num_keys"]
    wide = [_wide(np.asarray(one)) for one in operands[:keys]]
    order = np.lexsort(tuple(reversed(wide)), axis=axis) if keys > 1 else np.argsort(wide[0], axis=axis, kind="stable")
    return tuple(np.take_along_axis(np.asarray(one), order, axis) for one in operands)


def _top_k(params: Params, x: Any) -> Any:
    k = params["k"]
    order = np.argsort(-_wide(np.asarray(x)), axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(np.asarray(x), order, -1), order


def _dot_general(params: Params, x: Any, y: Any) -> Any:
    (left, right), (left_batch, right_batch) = params["dimension_numbers"]
    a, b = np.asarray(x), np.asarray(y)
    wanted = params.get("preferred_element_type")
    target = dtype_of(wanted) if wanted is not None else np.result_type(a, b)
    if a.dtype.kind in "iub" and b.dtype.kind in "iub":
        work: np.dtype[Any] = np.dtype(np.int64 if target.itemsize > 4 else np.int32)
    else:
        work = np.dtype(np.float64) if "float64" in (a.dtype.name, b.dtype.name) else np.dtype(np.float32)
        if "c" in (a.dtype.kind, b.dtype.kind):
            work = np.result_type(a, b)
    a_free = [d for d in range(a.ndim) if d not in left and d not in left_batch]
    b_free = [d for d in range(b.ndim) if d not in right and d not in right_batch]
    batch = tuple(a.shape[d] for d in left_batch)
    inner = math.prod(a.shape[d] for d in left)
    rows, columns = tuple(a.shape[d] for d in a_free), tuple(b.shape[d] for d in b_free)
    first = a.transpose(*left_batch, *a_free, *left).reshape(*batch, math.prod(rows), inner).astype(work, copy=False)
    second = b.transpose(*right_batch, *right, *b_free).reshape(*batch, inner, math.prod(columns))
    return np.matmul(first, second.astype(work, copy=False)).reshape(*batch, *rows, *columns)


def _threefry(params: Params, *words: Any) -> Any:
    """``threefry2x32``: two words of key and two of counter, hashed into two."""
    from hloscope.core.runtime.evaluator.random_bits import threefry

    low_key, high_key, low, high = np.broadcast_arrays(*(np.asarray(one).astype(np.uint64) for one in words))
    shift = np.uint64(32)
    return threefry(low_key | (high_key << shift), low | (high << shift))


def _concatenate(params: Params, *operands: Any) -> Any:
    return np.concatenate(operands, axis=params["dimension"])


def _split(params: Params, x: Any) -> Any:
    edges = np.cumsum(params["sizes"])[:-1]
    return tuple(np.split(np.asarray(x), edges, axis=params["axis"]))


def _numbers(value: Any) -> Mapping[str, Any]:
    return value.fields if isinstance(value, Record) else cast("Mapping[str, Any]", value)


def _gather(params: Params, operand: Any, indices: Any) -> Any:
    """Source: XLA's gather with ``GatherDimensionNumbers`` and batching dimensions."""
    array, starts = np.asarray(operand), np.asarray(indices).astype(np.int64)
    numbers = _numbers(params["dimension_numbers"])
    sizes = params["slice_sizes"]
    offset, collapsed, mapped = numbers["offset_dims"], numbers["collapsed_slice_dims"], numbers["start_index_map"]
    batched = cast("Sequence[int]", numbers.get("operand_batching_dims") or ())
    batched_starts = cast("Sequence[int]", numbers.get("start_indices_batching_dims") or ())
    batch_shape = starts.shape[:-1]
    kept = [d for d in range(array.ndim) if d not in collapsed and d not in batched]
    where: list[Any] = []
    valid = np.ones(batch_shape, bool)
    grids = np.indices(batch_shape)
    rank = len(kept)
    for d in range(array.ndim):
        if d in batched:
            base = grids[batched_starts[batched.index(d)]]
        elif d in mapped:
            base = starts[..., mapped.index(d)]
            valid &= (base >= 0) & (base <= array.shape[d] - sizes[d])
            base = np.clip(base, 0, array.shape[d] - sizes[d])
        else:
            base = np.zeros(batch_shape, np.int64)
        spread = base.reshape(*batch_shape, *[1] * rank)
        if d in kept:
            line = [1] * rank
            line[kept.index(d)] = sizes[d]
            spread = spread + np.arange(sizes[d]).reshape(line)
        where.append(spread)
    found = array[tuple(np.broadcast_arrays(*where))] if where else array
    mode = str(params.get("mode") or "")
    if "FILL" in mode.upper() and not valid.all():
        fill = params.get("fill_value")
        if fill is None:
            fill = np.nan if array.dtype.kind == "f" or _is_narrow(array) else uninitialised(array.dtype)
        found = np.where(valid.reshape(*batch_shape, *[1] * rank), found, np.asarray(fill).astype(array.dtype))
    out_rank = len(batch_shape) + rank
    batch_dims = [d for d in range(out_rank) if d not in offset]
    order = [0] * out_rank
    for source, target in enumerate(batch_dims):
        order[target] = source
    for source, target in enumerate(offset):
        order[target] = len(batch_shape) + source
    return found.transpose(order)


def _scatter(combine: Callable[[Any, Any], Any] | None) -> Rule:
    def rule(params: Params, operand: Any, indices: Any, updates: Any) -> Any:
        array, starts, change = np.array(operand), np.asarray(indices).astype(np.int64), np.asarray(updates)
        numbers = _numbers(params["dimension_numbers"])
        window_dims = numbers["update_window_dims"]
        inserted, mapped = numbers["inserted_window_dims"], numbers["scatter_dims_to_operand_dims"]
        batched = cast("Sequence[int]", numbers.get("operand_batching_dims") or ())
        batched_starts = cast("Sequence[int]", numbers.get("scatter_indices_batching_dims") or ())
        batch_dims = [d for d in range(change.ndim) if d not in window_dims]
        kept = [d for d in range(array.ndim) if d not in inserted and d not in batched]
        for position in np.ndindex(*[change.shape[d] for d in batch_dims]):
            begin = [0] * array.ndim
            for number, dim in enumerate(mapped):
                begin[dim] = int(starts[(*position, number)])
            for number, dim in enumerate(batched):
                begin[dim] = position[batched_starts[number]]
            sizes = [1] * array.ndim
            for number, dim in enumerate(kept):
                sizes[dim] = change.shape[window_dims[number]]
            if any(b < 0 or b + s > n for b, s, n in zip(begin, sizes, array.shape, strict=True)):
                continue  # out of bounds updates are dropped
            picked: list[Any] = [slice(None)] * change.ndim
            for dim, place in zip(batch_dims, position, strict=True):
                picked[dim] = place
            target = tuple(slice(b, b + s) for b, s in zip(begin, sizes, strict=True))
            value = change[tuple(picked)].reshape(sizes)
            array[target] = value if combine is None else combine(array[target], value)
        return array

    return rule


def _roll(params: Params, x: Any, shift: Any) -> Any:
    axis, stride = params["axis"], params.get("stride")
    if stride is None:
        return np.roll(x, int(shift), axis)
    other = params["stride_axis"]
    parts = np.split(np.asarray(x), np.shape(x)[other], other)
    return np.concatenate([np.roll(one, int(shift) + i * stride, axis) for i, one in enumerate(parts)], other)


def _bitcast(params: Params, x: Any) -> Any:
    """``pltpu.bitcast``: packs or unpacks along the second-to-last dimension. Source: ``mosaic/primitives.py``."""
    target = dtype_of(params["ty"])
    array = np.ascontiguousarray(x)
    source = array.dtype.itemsize
    *lead, rows, columns = array.shape
    if source < target.itemsize:
        factor = target.itemsize // source
        packed = array.reshape(*lead, rows // factor, factor, columns).swapaxes(-1, -2)
        return np.ascontiguousarray(packed).view(target).reshape(*lead, rows // factor, columns)
    if source > target.itemsize:
        factor = source // target.itemsize
        apart = array.view(target).reshape(*lead, rows, columns, factor).swapaxes(-1, -2)
        return apart.reshape(*lead, rows * factor, columns)
    return array.view(target)


def _expand(params: Params, x: Any) -> Any:
    return np.expand_dims(x, tuple(params["dimensions"]))


def _same(params: Params, x: Any, *rest: Any) -> Any:
    return x


def _compare(function: Callable[[Any, Any], Any]) -> Rule:
    return lambda params, x, y: function(x, y)


def _reduce_precision(params: Params, x: Any) -> Any:
    exponent, mantissa = params["exponent_bits"], params["mantissa_bits"]
    if (exponent, mantissa) == (8, 7):
        return np.asarray(x).astype(dtype_of("bfloat16")).astype(x.dtype)
    if (exponent, mantissa) == (5, 10):
        return np.asarray(x).astype(np.float16).astype(x.dtype)
    raise UnsupportedError(f"reduce_precision to {exponent} and {mantissa} bits is not supported by the interpreters")


def uninitialised(dtype: np.dtype[Any]) -> Any:
    """What memory that nobody wrote is filled with: NaN, the least integer, or False.

    Source: ``jax-ml/jax:jax/_src/pallas/primitives.py#uninitialized_value``.
    """
    if dtype.kind == "b":
        return np.False_
    if dtype.kind == "i":
        return np.iinfo(dtype).min
    if dtype.kind == "u":
        return 0
    if dtype.name.startswith("int") or dtype.name.startswith("uint"):
        return 0
    return np.nan


def filled(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Memory that nobody wrote."""
    return np.full(tuple(shape), uninitialised(dtype), dtype)


RULES: Mapping[str, Rule] = {
    "neg": _unary(np.negative), "sin": _unary(np.sin), "cos": _unary(np.cos), "tan": _unary(np.tan),
    "asin": _unary(np.arcsin), "acos": _unary(np.arccos), "atan": _unary(np.arctan), "sinh": _unary(np.sinh),
    "cosh": _unary(np.cosh), "tanh": _unary(np.tanh), "asinh": _unary(np.arcsinh), "acosh": _unary(np.arccosh),
    "atanh": _unary(np.arctanh), "exp": _unary(np.exp), "exp2": _unary(np.exp2), "log": _unary(np.log),
    "log1p": _unary(np.log1p), "expm1": _unary(np.expm1), "sqrt": _unary(np.sqrt),
    "rsqrt": _unary(lambda x: 1 / np.sqrt(x)), "cbrt": _unary(np.cbrt), "abs": _unary(np.abs), "sign": _sign,
    "floor": _unary(np.floor), "ceil": _unary(np.ceil), "round": _round, "is_finite": _unary(np.isfinite),
    "logistic": _unary(_logistic), "square": _unary(lambda x: x * x), "reciprocal": _unary(lambda x: 1 / x),
    "erf": _unary(_vectorised(math.erf)), "erfc": _unary(_vectorised(math.erfc)), "erf_inv": _unary(_erf_inv),
    "integer_pow": _integer_pow, "not": lambda p, x: np.logical_not(x) if x.dtype == np.bool_ else np.invert(x),
    "population_count": _population_count, "clz": _clz, "real": _unary(np.real), "imag": _unary(np.imag),
    "conj": _unary(np.conj), "stop_gradient": _same, "copy": _same, "copy_p": _same, "multiple_of": _same,
    "max_contiguous": _same, "optimization_barrier": lambda p, *xs: tuple(xs), "reduce_precision": _reduce_precision,
    "with_memory_space_constraint": _same, "layout_constraint": _same, "pvary": lambda p, *xs: tuple(xs),
    "add": _binary(np.add), "add_any": _binary(np.add), "sub": _binary(np.subtract), "mul": _binary(np.multiply),
    "div": _div, "rem": _rem, "max": _binary(np.maximum), "min": _binary(np.minimum), "pow": _pow,
    "atan2": lambda p, x, y: np.arctan2(_wide(x), _wide(y)), "nextafter": _binary(np.nextafter),
    "and": _binary(np.bitwise_and), "or": _binary(np.bitwise_or), "xor": _binary(np.bitwise_xor),
    "shift_left": _shift(True, False), "shift_right_logical": _shift(False, False),
    "shift_right_arithmetic": _shift(False, True),
    "eq": _compare(np.equal), "ne": _compare(np.not_equal), "lt": _compare(np.less), "le": _compare(np.less_equal),
    "gt": _compare(np.greater), "ge": _compare(np.greater_equal),
    "eq_to": _compare(np.equal), "lt_to": _compare(np.less), "le_to": _compare(np.less_equal),
    "tile": lambda p, x: np.tile(x, p["reps"]),
    "select_n": _select_n, "clamp": _clamp, "convert_element_type": _convert,
    "bitcast_convert_type": _bitcast_convert, "broadcast_in_dim": _broadcast_in_dim,
    "broadcast_to": lambda p, x: np.broadcast_to(x, p["shape"]), "reshape": _reshape,
    "squeeze": lambda p, x: np.squeeze(x, tuple(p["dimensions"])), "expand_dims": _expand,
    "transpose": lambda p, x: np.transpose(x, p["permutation"]),
    "rev": lambda p, x: np.flip(x, tuple(p["dimensions"])), "concatenate": _concatenate, "pad": _pad, "slice": _slice,
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice, "gather": _gather,
    "scatter": _scatter(None), "scatter-add": _scatter(np.add), "scatter-mul": _scatter(np.multiply),
    "scatter-min": _scatter(np.minimum), "scatter-max": _scatter(np.maximum), "iota": _iota,
    "reduce_sum": _reduce(np.sum), "reduce_max": _reduce(np.max), "reduce_min": _reduce(np.min),
    "reduce_prod": _reduce(np.prod), "reduce_and": _reduce(np.all), "reduce_or": _reduce(np.any),
    "reduce_xor": _reduce(np.bitwise_xor.reduce), "argmax": _arg_reduce(np.argmax, math.inf),
    "argmin": _arg_reduce(np.argmin, -math.inf), "cumsum": _cumulative(np.cumsum),
    "cumprod": _cumulative(np.cumprod), "cummax": _cumulative(np.maximum.accumulate),
    "cummin": _cumulative(np.minimum.accumulate), "cumlogsumexp": _cumulative(np.logaddexp.accumulate), "sort": _sort,
    "threefry2x32": _threefry,
    "top_k": _top_k, "dot_general": _dot_general, "split": _split, "roll": _roll, "bitcast": _bitcast,
    "stack": lambda p, *xs: np.stack(xs, axis=p.get("axis", 0)),
    "unstack": lambda p, x: tuple(np.moveaxis(np.asarray(x), p.get("axis", 0), 0)),
}  # fmt: skip
"""Primitive -> what it computes."""


def compute(primitive: str, params: Params, operands: Sequence[Any], dtypes: Sequence[np.dtype[Any]]) -> list[Any]:
    """Applies a rule and casts its results to the traced types. Raises ``UnsupportedError`` where there is no rule."""
    rule = RULES.get(primitive)
    if rule is None:
        raise UnsupportedError(f"the primitive {primitive} is not supported by the interpreters")
    with np.errstate(all="ignore"):
        found = rule(params, *operands)
        results = found if isinstance(found, tuple) else (found,)
        return [
            value if value.dtype == dtype else np.asarray(value).astype(dtype)
            for value, dtype in zip(cast("tuple[Any, ...]", results), dtypes, strict=True)
        ]
