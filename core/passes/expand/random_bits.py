"""Random numbers by integer arithmetic: ``rng-bit-generator-expander`` bit for bit, ``rng-expander`` by distribution.

Source: ``openxla/xla:xla/hlo/builder/lib/prng.cc``, ``xla/hlo/transforms/expanders/rng_bit_generator_expander.cc``,
``rng_expander.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, prod
from typing import TYPE_CHECKING

from hloscope.core.passes.engine import RulePass
from hloscope.core.passes.gate import Refusal
from hloscope.core.passes.rules.base import Answer, Builder, RuleOptions, is_static_array, rule

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction

Words = tuple["HloInstruction", "HloInstruction"]
"""The low and the high half of 64-bit values, as u32."""


def _number(build: Builder, like: HloInstruction, value: int) -> HloInstruction:
    return build.scalar_like(like.shape, value)


def _halves(build: Builder, x: HloInstruction) -> Words:
    return build.convert(x, "u32"), build.convert(
        build.binary("shift-right-logical", x, _number(build, x, 32)), "u32"
    )


def _whole(build: Builder, low: HloInstruction, high: HloInstruction) -> HloInstruction:
    wide = build.convert(high, "u64")
    return build.binary("or", build.convert(low, "u64"), build.binary("shift-left", wide, _number(build, wide, 32)))


def _element(build: Builder, state: HloInstruction, place: int) -> HloInstruction:
    return build.reshape(build.slice(state, [place], [place + 1]), ())


def _spread(build: Builder, x: HloInstruction, like: HloInstruction) -> HloInstruction:
    return build.broadcast_scalar(x, like.shape.with_element_type(x.shape.element_type))


def _counters(build: Builder, first: HloInstruction, count: int) -> HloInstruction:
    places = build.iota("u64", [count], 0)
    return build.binary("add", _spread(build, first, places), places)


# ---------------------------------------------------------------- ThreeFry
def threefry(build: Builder, key: HloInstruction, counter: HloInstruction) -> Words:
    """ThreeFry-2x32 with 20 rounds: two u32 words for each u64 counter."""
    k0, k1 = _halves(build, key)
    k2 = build.binary("xor", build.binary("xor", k0, k1), build.scalar("u32", 0x1BD11BDA))
    x0, x1 = _halves(build, counter)
    keys = [_spread(build, k, x0) for k in (k0, k1, k2)]
    x0, x1 = build.binary("add", x0, keys[0]), build.binary("add", x1, keys[1])
    for block in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            x0 = build.binary("add", x0, x1)
            left = build.binary("shift-left", x1, _number(build, x1, turn))
            right = build.binary("shift-right-logical", x1, _number(build, x1, 32 - turn))
            x1 = build.binary("xor", build.binary("or", left, right), x0)
        step = block + 1
        x0 = build.binary("add", x0, keys[step % 3])
        x1 = build.binary("add", build.binary("add", x1, keys[(step + 1) % 3]), _number(build, x1, step))
    return x0, x1


def _threefry_bits(
    build: Builder, state: HloInstruction, dims: tuple[int, ...], bits: int
) -> tuple[HloInstruction, HloInstruction]:
    key, first = (_element(build, state, i) for i in range(2))
    if bits == 64:
        count = prod(dims)
        low, high = threefry(build, key, _counters(build, first, count))
        values = build.reshape(_whole(build, low, high), dims)
    else:
        # One dimension is halved: the first even one, else the first of the largest size.
        shape = dims or (1,)
        even = [d for d, n in enumerate(shape) if n % 2 == 0]
        axis = even[0] if even else shape.index(max(shape))
        half = [*shape[:axis], -(-shape[axis] // 2), *shape[axis + 1 :]]
        count = prod(half)
        words = threefry(build, key, _counters(build, first, count))
        parts = [build.reshape(w, [*half[: axis + 1], 1, *half[axis + 1 :]]) for w in words]
        joined = build.concatenate(parts, axis + 1)
        both = build.reshape(joined, [*half[:axis], 2 * half[axis], *half[axis + 1 :]])
        values = build.reshape(build.slice(both, [0] * len(shape), shape), dims)
    following = build.binary("add", first, build.scalar("u64", count))
    return values, build.concatenate([build.reshape(x, (1,)) for x in (key, following)], 0)


# ---------------------------------------------------------------- Philox
def philox(build: Builder, key: HloInstruction, low: HloInstruction, high: HloInstruction) -> list[HloInstruction]:
    """Philox-4x32 with 10 rounds: four u32 words for each 128-bit counter."""
    k0, k1 = _halves(build, key)
    (s0, s1), (s2, s3) = _halves(build, low), _halves(build, high)
    for _ in range(10):
        products: list[Words] = []
        for word, factor in ((s0, 0xD2511F53), (s2, 0xCD9E8D57)):
            wide = build.convert(word, "u64")
            products.append(_halves(build, build.binary("multiply", wide, _number(build, wide, factor))))
        (l0, h0), (l1, h1) = products
        first = build.binary("xor", build.binary("xor", h1, s1), _spread(build, k0, h1))
        second = build.binary("xor", build.binary("xor", h0, s3), _spread(build, k1, h0))
        s0, s1, s2, s3 = first, l1, second, l0
        k0 = build.binary("add", k0, build.scalar("u32", 0x9E3779B9))
        k1 = build.binary("add", k1, build.scalar("u32", 0xBB67AE85))
    return [s0, s1, s2, s3]


def _philox_flat(
    build: Builder, key: HloInstruction, low: HloInstruction, high: HloInstruction, count: int, bits: int
) -> tuple[HloInstruction, HloInstruction, HloInstruction]:
    """A vector of so many u32 or u64 values, and the counter afterwards."""
    blocks = -(-(count * 2 if bits == 64 else count) // 4)
    lows = _counters(build, low, blocks)
    carry = build.convert(build.compare(lows, _spread(build, low, lows), "LT"), "u64")
    highs = build.binary("add", _spread(build, high, lows), carry)
    words = philox(build, key, lows, highs)
    if bits == 64:
        words = [_whole(build, words[0], words[1]), _whole(build, words[2], words[3])]
    joined = build.concatenate([build.reshape(w, [blocks, 1]) for w in words], 1)
    flat = build.slice(build.reshape(joined, [blocks * len(words)]), [0], [count])
    after = build.binary("add", low, build.scalar("u64", blocks))
    over = build.convert(build.compare(after, low, "LT"), "u64")
    return flat, after, build.binary("add", high, over)


def _philox_bits(
    build: Builder, state: HloInstruction, dims: tuple[int, ...], bits: int
) -> tuple[HloInstruction, HloInstruction]:
    size = state.shape.dimensions[0]
    key, low = (_element(build, state, i) for i in range(2))
    high = _element(build, state, 2) if size == 3 else key
    flat, after, over = _philox_flat(build, key, low, high, prod(dims), bits)
    parts = [key, after, over][:size]
    return build.reshape(flat, dims), build.concatenate([build.reshape(x, (1,)) for x in parts], 0)


@rule("expand-bit-generator", "rng-bit-generator", "random bits → integer arithmetic on the state")
def expand_bits(one: HloInstruction, options: RuleOptions) -> Answer:
    state = one.operand(0)
    if not one.shape.is_tuple or state.shape.element_type != "u64" or state.shape.dimensions not in ((2,), (3,)):
        return Refusal("state", str(state.shape))
    result = one.shape.tuple_shapes[1]
    if not is_static_array(result) or not result.type.is_integral or result.type.bits < 8 or not result.element_count:
        return Refusal("shape", str(result))
    kind = result.type
    algorithm = str(one.attr("algorithm"))
    draw = {"rng_three_fry": _threefry_bits, "rng_philox": _philox_bits, "rng_default": _philox_bits}.get(algorithm)
    if draw is None or (draw is _threefry_bits and state.shape.dimensions != (2,)):
        return Refusal("algorithm", algorithm)

    def make(build: Builder) -> HloInstruction:
        values, after = draw(build, state, result.dimensions, 64 if kind.bits == 64 else 32)
        narrow = build.convert(values, f"u{kind.bits}")
        if kind.kind == "int":
            narrow = build.make("bitcast-convert", result, [narrow])
        return build.tuple([after, narrow])

    return make


@dataclass(frozen=True)
class RngBitGeneratorExpander(RulePass):
    """Generators of random bits written out."""

    name = "rng-bit-generator-expander"
    rules = (expand_bits,)


# ---------------------------------------------------------------- rng
def _fraction(build: Builder, bits: HloInstruction, kind: str) -> HloInstruction:
    """Numbers in [0, 1) from u32 or u64 bits."""
    wide = "f64" if bits.shape.type.bits == 64 else "f32"
    digits = 52 if wide == "f64" else 23
    shift = _number(build, bits, bits.shape.type.bits - digits)
    whole = build.convert(build.binary("shift-right-logical", bits, shift), wide)
    return build.convert(build.binary("multiply", whole, build.scalar_like(whole.shape, 2.0**-digits)), kind)


@rule("expand-rng", "rng", "random numbers → Philox on a private counter, then uniform or normal")
def expand_rng(one: HloInstruction, options: RuleOptions) -> Answer:
    kind, distribution = one.shape.type, str(one.attr("distribution"))
    if not is_static_array(one.shape) or not one.shape.element_count:
        return None
    normal = distribution == "rng_normal"
    if kind.kind not in ("float", "int", "uint", "pred") or (normal and kind.kind != "float"):
        return Refusal("distribution", f"{distribution} of {kind.name}")
    a, b = one.operands

    def make(build: Builder) -> HloInstruction:
        count = one.shape.element_count
        bits = 64 if kind.bits == 64 else 32
        drawn = count + count % 2 if normal else count
        blocks = -(-(drawn * (2 if bits == 64 else 1)) // 4)
        state = build.make(
            "rng-get-and-update-state", build.shape("u64", [2]), [], {"delta": str(blocks)}
        )
        low, high = (_element(build, state, i) for i in range(2))
        flat, _, _ = _philox_flat(build, build.scalar("u64", 0x5EED), low, high, drawn, bits)
        if normal:
            values = _normal(build, flat, drawn, "f64" if bits == 64 else "f32")
            values = build.convert(build.slice(values, [0], [count]), kind.name)
            values = build.reshape(values, one.shape.dimensions)
            scaled = build.binary("multiply", values, build.broadcast_scalar(b, one.shape))
            return build.binary("add", scaled, build.broadcast_scalar(a, one.shape))
        values = build.reshape(flat, one.shape.dimensions)
        if kind.kind == "pred":
            return build.compare(values, _number(build, values, 1 << (bits - 1)), "LT")
        first = build.broadcast_scalar(a, one.shape)
        width = build.broadcast_scalar(build.binary("subtract", b, a), one.shape)
        if kind.kind == "float":
            return build.binary("add", build.binary("multiply", _fraction(build, values, kind.name), width), first)
        unsigned = build.convert(values, f"u{kind.bits}")
        span = width if kind.kind == "uint" else build.make("bitcast-convert", unsigned.shape, [width])
        rest = build.binary("remainder", unsigned, span)
        offset = rest if kind.kind == "uint" else build.make("bitcast-convert", one.shape, [rest])
        return build.binary("add", offset, first)

    return make


def _normal(build: Builder, bits: HloInstruction, count: int, kind: str) -> HloInstruction:
    """Normal numbers by pairs (Box and Muller)."""
    half = count // 2
    u = build.unary("negate", _fraction(build, build.slice(bits, [0], [half]), kind))
    v = _fraction(build, build.slice(bits, [half], [count]), kind)
    radius = build.unary(
        "sqrt", build.binary("multiply", build.scalar_like(u.shape, -2.0), build.unary("log-plus-one", u))
    )
    angle = build.binary("multiply", v, build.scalar_like(v.shape, 2 * pi))
    return build.concatenate(
        [build.binary("multiply", radius, build.unary(f, angle)) for f in ("cosine", "sine")], 0
    )


@dataclass(frozen=True)
class RngExpander(RulePass):
    """Random numbers written out; the numbers differ from run to run as they did before."""

    name = "rng-expander"
    rules = (expand_rng,)
