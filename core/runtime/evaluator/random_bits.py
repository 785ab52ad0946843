"""Random numbers: rng-bit-generator bit for bit, rng and its state by distribution only.

Source: ``openxla/xla:xla/hlo/builder/lib/prng.cc`` (ThreeFry2x32, Philox4x32), whose results XLA:CPU gives bit for bit;
``xla/service/rng_expander.cc`` for ``rng``, whose results depend on the compile and are not reproduced.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.runtime.evaluator import numerics
from hloscope.core.runtime.evaluator.values import Array, InstructionUnsupported, Kernel, Machine, Prepare, Value

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction

_LOW = np.uint64(0xFFFFFFFF)
_THIRTY_TWO = np.uint64(32)
_RNG_STATE = 0x7012395
"""First value of a private counter (``kRngStateInitialValue`` as XLA:CPU shows it)."""


def _words(x: Array) -> tuple[Array, Array]:
    return (x & _LOW).astype(np.uint32), (x >> _THIRTY_TWO).astype(np.uint32)


def _join(low: Array, high: Array) -> Array:
    return low.astype(np.uint64) | (high.astype(np.uint64) << _THIRTY_TWO)


# ---------------------------------------------------------------- ThreeFry
def threefry(key: Array, counter: Array) -> tuple[Array, Array]:
    """ThreeFry-2x32, 20 rounds: two u32 words for each u64 counter under a u64 key."""
    k0, k1 = _words(key)
    keys = [k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA)]
    x0, x1 = _words(counter)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for block in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn))) ^ x0
        step = block + 1
        x0 = x0 + keys[step % 3]
        x1 = x1 + keys[(step + 1) % 3] + np.uint32(step)
    return x0, x1


def _threefry_bits(state: Array, dims: tuple[int, ...], bits: int) -> tuple[Array, Array]:
    key, first = state[0], state[1]
    if bits == 64:
        count = prod(dims)
        low, high = threefry(key, first + np.arange(count, dtype=np.uint64))
        return _join(low, high).reshape(dims), first + np.uint64(count)
    # One dimension is halved: the first even one, else the first of the largest size.
    axis = next((d for d, n in enumerate(dims) if n % 2 == 0), int(np.argmax(dims)) if dims else 0)
    shape = dims or (1,)
    half = [*shape[:axis], -(-shape[axis] // 2), *shape[axis + 1 :]]
    count = prod(half)
    low, high = threefry(key, (first + np.arange(count, dtype=np.uint64)).reshape(half))
    pairs = np.stack([low, high], axis=axis + 1)
    both = pairs.reshape(*half[:axis], half[axis] * 2, *half[axis + 1 :])
    index = [slice(None)] * len(shape)
    index[axis] = slice(0, shape[axis])
    return both[tuple(index)].reshape(dims), first + np.uint64(count)


# ---------------------------------------------------------------- Philox
def philox(key: Array, low: Array, high: Array) -> list[Array]:
    """Philox-4x32, 10 rounds: four u32 words for each 128-bit counter under a u64 key."""
    k0, k1 = _words(key)
    s0, s1 = _words(low)
    s2, s3 = _words(high)
    for _ in range(10):
        p0 = s0.astype(np.uint64) * np.uint64(0xD2511F53)
        p1 = s2.astype(np.uint64) * np.uint64(0xCD9E8D57)
        (l0, h0), (l1, h1) = _words(p0), _words(p1)
        s0, s1, s2, s3 = h1 ^ s1 ^ k0, l1, h0 ^ s3 ^ k1, l0
        k0, k1 = k0 + np.uint32(0x9E3779B9), k1 + np.uint32(0xBB67AE85)
    return [s0, s1, s2, s3]


def _philox_bits(state: Array, dims: tuple[int, ...], bits: int) -> tuple[Array, Array]:
    key, low = state[0], state[1]
    high = state[2] if state.shape[0] == 3 else key
    count = prod(dims)
    words = count * 2 if bits == 64 else count
    blocks = -(-words // 4)
    lows = low + np.arange(blocks, dtype=np.uint64)
    highs = high + (lows < low).astype(np.uint64)
    s0, s1, s2, s3 = philox(key, lows, highs)
    if bits == 64:
        flat = np.stack([_join(s0, s1), _join(s2, s3)], axis=1).reshape(-1)
    else:
        flat = np.stack([s0, s1, s2, s3], axis=1).reshape(-1)
    after = low + np.uint64(blocks)
    end = np.asarray([after, high + np.uint64(after < low)], np.uint64)
    return flat[:count].reshape(dims), end


def _rng_bit_generator(instruction: HloInstruction, machine: Machine) -> Kernel:
    algorithm = instruction.attr("algorithm")
    if algorithm not in ("rng_three_fry", "rng_philox", "rng_default"):
        raise InstructionUnsupported(instruction, f"with algorithm={algorithm}")
    shape = instruction.shape
    # libtpu takes the bits apart from the state.
    result = shape.tuple_shapes[1] if shape.is_tuple else shape
    if not result.is_array or not result.type.is_integral or result.type.bits < 8:
        raise InstructionUnsupported(instruction, f"of shape {shape.to_text(layout=False)}")
    state_shape = instruction.operand(0).shape
    if state_shape.element_type != "u64" or state_shape.dimensions not in ((2,), (3,)):
        raise InstructionUnsupported(instruction, f"with a state of shape {state_shape.to_text(layout=False)}")
    dims, bits, dtype = result.dimensions, result.type.bits, result.type.dtype
    philox_used = algorithm != "rng_three_fry"

    def kernel(state: Array) -> Value:
        after = state.copy()
        if philox_used:
            values, end = _philox_bits(state, dims, bits)
            after[1:] = end[: state.shape[0] - 1]
        else:
            values, after[1] = _threefry_bits(state, dims, bits)
        wide = values if bits == 64 else values.astype(np.dtype(f"u{bits // 8}"))
        return (after, wide.view(dtype)) if shape.is_tuple else wide.view(dtype)

    return kernel


# ---------------------------------------------------------------- rng
def generator(instruction: HloInstruction, machine: Machine) -> np.random.Generator:
    """A generator that depends on the seed and the instruction's name only."""
    return np.random.default_rng([machine.options.seed, zlib.crc32(instruction.name.encode())])


def _rng(instruction: HloInstruction, machine: Machine) -> Kernel:
    """Numbers of the right distribution; XLA's own depend on the order of compilation and on the run."""
    distribution = instruction.attr("distribution")
    element, dims = instruction.shape.type, instruction.shape.dimensions
    source = generator(instruction, machine)
    wide, out = numerics.widen(element), numerics.narrow(element)
    if distribution == "rng_normal" and element.kind == "float":
        return lambda mean, deviation: out(
            (wide(mean) + wide(deviation) * source.standard_normal(dims)).astype(numerics.carrier(element))
        )
    if distribution != "rng_uniform" or element.kind == "complex":
        raise InstructionUnsupported(instruction, f"with distribution={distribution} of {element.name}")
    if element.kind == "float":
        return lambda low, high: out(
            (wide(low) + (wide(high) - wide(low)) * source.random(dims)).astype(numerics.carrier(element))
        )
    if element.kind == "pred":
        return lambda low, high: source.random(dims) < 0.5
    return lambda low, high: out(source.integers(int(low), int(high), dims).astype(numerics.carrier(element)))


def _rng_state(instruction: HloInstruction, machine: Machine) -> Kernel:
    """A private 128-bit counter per instruction and run: its value, then advanced by ``delta``."""
    delta = int(instruction.attr("delta") or 0)
    counter = [_RNG_STATE]

    def kernel() -> Array:
        value = counter[0]
        counter[0] = (value + delta) % (1 << 128)
        return np.asarray([value & (2**64 - 1), value >> 64], np.uint64).reshape(instruction.shape.dimensions)

    return kernel


TABLE: Mapping[str, Prepare] = MappingProxyType(
    {"rng": _rng, "rng-bit-generator": _rng_bit_generator, "rng-get-and-update-state": _rng_state}
)
