"""The search for the fastest tiling with all candidates side by side in arrays.

It computes what `hloscope.core.fusion.cost_model.tiled` computes for one tiling, rounding included, for thousands at
once: a search over four dimensions is a matter of milliseconds. A *lane* is one candidate; masks say in which lanes
something holds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hloscope.core.analysis.cost import shape_bytes
from hloscope.core.analysis.cost_units import TICKS_PER_SECOND
from hloscope.core.analysis.elementwise import minor_to_major
from hloscope.core.analysis.indexing import factor_groups, regroups
from hloscope.core.fusion.cost_model.run_time import L1_SPEEDUP, L2_SPEEDUP, OVERLAP

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.fusion.cost_model.tiled import TileNode

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class _Dim(NamedTuple):
    """One dimension of a tile in every lane."""

    size: Ints
    stride: Ints
    key: Hashable
    """What the offset is made of; equal keys mean equal offsets."""
    zero: Mask
    """Where the offset is 0."""


class _Visit(NamedTuple):
    tile: tuple[_Dim, ...]
    blocks: Ints
    active: Mask


class NotTileableError(Exception):
    """An instruction through which no tile passes."""

    def __init__(self, node: TileNode) -> None:
        super().__init__(node.instruction.name)
        self.node = node


@dataclass(slots=True)
class _Lanes:
    """The arrays of one search."""

    device: DeviceDescription
    valid: Mask
    visits: dict[TileNode, list[_Visit]]
    one: _Dim
    powers: dict[int, tuple[_Dim, Ints]] = field(default_factory=dict[int, "tuple[_Dim, Ints]"])
    """The power of two from a dimension's size on, by the dimension's identity."""
    padded: dict[tuple[int, ...], Ints] = field(default_factory=dict[tuple[int, ...], "Ints"])


def fastest(
    device: DeviceDescription,
    root: TileNode,
    candidates: Sequence[tuple[int, ...]],
    warps: Sequence[tuple[int, int]],
    limits: tuple[float, int],
) -> int | None:
    """Index of the fastest candidate, the first among equals; None where none is possible.

    `limits` are elements that fit in registers and elements of any tile. Raises NotTileableError.
    """
    sizes = np.array(candidates, dtype=np.int64).reshape(len(candidates), len(root.dims))
    count = len(candidates)
    everywhere = np.ones(count, dtype=bool)
    ones = np.ones(count, dtype=np.int64)
    lanes = _Lanes(device, everywhere.copy(), {}, _Dim(ones, np.zeros(count, dtype=np.int64), 0, everywhere))
    tile = tuple(
        _Dim(sizes[:, dim], ones, ("block", dim), sizes[:, dim] >= whole) for dim, whole in enumerate(root.dims)
    )
    blocks = ones.copy()
    for dim, whole in enumerate(root.dims):
        blocks = blocks * -(-whole // sizes[:, dim])
    _propagate(lanes, root, tile, blocks, everywhere)
    times = _times(lanes, root, blocks, warps, limits)
    if not lanes.valid.any():
        return None
    times[~lanes.valid] = np.iinfo(np.int64).max
    return int(np.argmin(times))


# ---------------------------------------------------------------- propagation
def _propagate(lanes: _Lanes, root: TileNode, tile: tuple[_Dim, ...], blocks: Ints, everywhere: Mask) -> None:
    queue: list[tuple[TileNode, tuple[_Dim, ...], Ints, Mask]] = [(root, tile, blocks, everywhere)]
    while queue:
        node, tile, count, active = queue.pop()
        known = lanes.visits.setdefault(node, [])
        for visit in known:
            active = active & ~(_same(tile, count, visit) & visit.active)
        if not active.any():
            continue
        known.append(_Visit(tile, count, active))
        if not node.inside:
            continue
        below = tile
        if 1 in node.dims:
            below = tuple(lanes.one if whole == 1 else one for one, whole in zip(tile, node.dims, strict=True))
        for operand, part, part_count in _operands(lanes, node, below, count, active):
            queue.append((operand, part, part_count, active))


def _same(tile: tuple[_Dim, ...], count: Ints, visit: _Visit) -> Mask:
    same = count == visit.blocks
    for a, b in zip(tile, visit.tile, strict=True):
        if a is b:
            continue
        same = same & (a.size == b.size) & (a.stride == b.stride)
        same = same & ((a.zero & b.zero) | ((a.key == b.key) & ~a.zero & ~b.zero))
    return same


def _operands(
    lanes: _Lanes, node: TileNode, tile: tuple[_Dim, ...], count: Ints, active: Mask
) -> list[tuple[TileNode, tuple[_Dim, ...], Ints]]:
    instruction = node.instruction
    opcode = instruction.opcode
    if node.elementwise:
        return [(one, tile if len(one.dims) == len(tile) else (), count) for one in node.operands]
    if opcode in ("constant", "iota"):
        return []
    first = node.operands[0]
    if opcode == "broadcast":
        mapped = instruction.dimensions
        part = tuple(lanes.one if first.dims[place] == 1 else tile[dim] for place, dim in enumerate(mapped))
        return [(first, part, count)]
    if opcode == "transpose":
        made = [lanes.one] * len(tile)
        for dim, source in enumerate(instruction.dimensions):
            made[source] = tile[dim]
        return [(first, tuple(made), count)]
    if opcode == "reduce" and len(node.operands) == 2:
        kept = iter(tile)
        reduced = instruction.dimensions
        part = tuple(_full(lanes, size) if dim in reduced else next(kept) for dim, size in enumerate(first.dims))
        return [(first, part, count), (node.operands[1], (), count)]
    if opcode == "slice":
        return [
            (
                first,
                tuple(_sliced(one, bounds) for one, bounds in zip(tile, instruction.attr("slice"), strict=True)),
                count,
            )
        ]  # noqa: E501
    if opcode in ("bitcast", "reshape"):
        if regroups(node.dims, first.dims):
            raise NotTileableError(node)
        part, failed = _reshaped(lanes, node.dims, first.dims, tile)
        lanes.valid &= ~(active & (failed | ~_passes_padded(lanes, node.dims, first.dims, tile)))
        return [(first, part, count)]
    if opcode == "concatenate":
        dim = instruction.dimensions[0]
        parts: list[tuple[TileNode, tuple[_Dim, ...], Ints]] = []
        for place, operand in enumerate(node.operands):
            if place < len(node.operands) - 1:
                uneven = (operand.dims[dim] % _power(tile[dim].size) != 0) | (tile[dim].stride > 1)
                lanes.valid &= ~(active & uneven)
            made = list(tile)
            made[dim] = _Dim(tile[dim].size, tile[dim].stride, ("part", place, tile[dim].key), ~lanes.one.zero)
            parts.append((operand, tuple(made), count * operand.dims[dim] // node.dims[dim]))
        return parts
    raise NotTileableError(node)


def _full(lanes: _Lanes, whole: int) -> _Dim:
    if whole == 1:
        return lanes.one
    return _Dim(lanes.one.size * whole, lanes.one.size, 0, lanes.one.zero)


def _sliced(one: _Dim, bounds: Any) -> _Dim:
    if not bounds.start and bounds.stride == 1:
        return one
    return _Dim(one.size, one.stride * bounds.stride, ("slice", one.key, bounds.start, bounds.stride), one.zero & False)


def _reshaped(
    lanes: _Lanes, result: tuple[int, ...], source: tuple[int, ...], tile: tuple[_Dim, ...]
) -> tuple[tuple[_Dim, ...], Mask]:
    made = [lanes.one] * len(source)
    failed = ~lanes.one.zero
    for out_dims, in_dims in factor_groups(result, source):
        outs = [dim for dim in out_dims if result[dim] != 1]
        ins = [dim for dim in in_dims if source[dim] != 1]
        if not ins:
            continue
        if len(outs) == 1 and len(ins) == 1:
            made[ins[0]] = tile[outs[0]]
            continue
        flat, bad = _collapse(lanes, [tile[dim] for dim in outs], [result[dim] for dim in outs])
        failed = failed | bad
        for dim, one in zip(ins, _expand(flat, [source[dim] for dim in ins], failed), strict=True):
            made[dim] = one
    return tuple(made), failed


def _passes_padded(lanes: _Lanes, result: tuple[int, ...], source: tuple[int, ...], tile: tuple[_Dim, ...]) -> Mask:
    """Whether the tile would pass the reshape with every size padded to a power of two, as Triton works on it."""
    fine = lanes.one.zero
    for out_dims, in_dims in factor_groups(result, source):
        outs = [dim for dim in out_dims if result[dim] != 1]
        ins = [dim for dim in in_dims if source[dim] != 1]
        if len(outs) == 1 and len(ins) > 1:
            size = _power(tile[outs[0]].size)
            below = 1
            for place in range(len(ins) - 1, -1, -1):
                whole = source[ins[place]]
                if place:
                    part = -(-size // below)
                    fine = fine & ((whole % part == 0) | (part % whole == 0))
                    below *= whole
                else:
                    fine = fine & ((below % size == 0) | (size % below == 0))
        elif len(ins) == 1 and len(outs) > 1:
            closed = started = ~lanes.one.zero
            for dim in reversed(outs):
                size = _power(tile[dim].size)
                single = size == 1
                fine = fine & ~(closed & ~single)
                closed = closed | np.where(single, started, size != result[dim])
                started = started | ~single
    return fine


def _collapse(lanes: _Lanes, tile: list[_Dim], sizes: list[int]) -> tuple[_Dim, Mask]:
    size, stride = lanes.one.size, lanes.one.stride
    closed = failed = ~lanes.one.zero
    inner = 1
    for one, whole in zip(reversed(tile), reversed(sizes), strict=True):
        single = one.size == 1
        failed = failed | (closed & ~single)
        closed = closed | np.where(single, stride > 0, one.size < whole)
        stride = np.where(~single & (stride == 0), one.stride * inner, stride)
        size = size * one.size
        inner *= whole
    covered = size == prod(sizes)
    stride = np.where(covered | (stride == 0), 1, stride)
    return _Dim(size, stride, ("flat", tuple(one.key for one in tile), tuple(sizes)), covered), failed


def _expand(flat: _Dim, sizes: list[int], failed: Mask) -> list[_Dim]:
    """The dimensions that one is spread over; lanes where it does not fill them evenly are marked in `failed`."""
    left = flat.size
    made: list[_Dim] = []
    for place in range(len(sizes) - 1, -1, -1):
        whole = sizes[place]
        if place == 0:
            size = left
        else:
            more = left >= whole
            failed |= np.where(more, left % whole != 0, whole % np.maximum(left, 1) != 0)
            size = np.where(more, whole, left)
            left = np.where(more, left // whole, 1)
        covered = size >= whole
        stride = np.where(covered | (size == 1), flat.stride, flat.stride if not made else 1)
        made.append(_Dim(size, np.where(stride == 0, 1, stride), ("digit", flat.key, tuple(sizes), place), covered))
    return made[::-1]


# ---------------------------------------------------------------- time
def _power(size: Ints) -> Ints:
    """The power of two from each size on."""
    exponent = np.ceil(np.log2(size.astype(np.float64))).astype(np.int64)
    return np.left_shift(1, exponent)


def _padded(lanes: _Lanes, tile: tuple[_Dim, ...]) -> Ints:
    """Elements of a tile with every dimension padded to a power of two."""
    key = tuple([id(one) for one in tile])
    made = lanes.padded.get(key)
    if made is None:
        made = lanes.one.size
        for one in tile:
            known = lanes.powers.get(id(one))
            if known is None:
                known = lanes.powers[id(one)] = (one, _power(one.size))
            made = made * known[1]
        lanes.padded[key] = made
    return made


def _times(
    lanes: _Lanes, root: TileNode, blocks: Ints, warps: Sequence[tuple[int, int]], limits: tuple[float, int]
) -> Ints:
    device = lanes.device
    ones = lanes.one.size
    flops = ones * 0
    largest = ones
    read = ones * 0
    for node, visits in lanes.visits.items():
        total = ones * 0
        worst = np.ones(len(ones))
        for tile, count, active in visits:
            padded = _padded(lanes, tile)
            lanes.valid &= ~(active & (padded > limits[1]))
            if node.tight:
                lanes.valid &= ~(active & (padded > limits[0]))
            largest = np.where(active, np.maximum(largest, padded), largest)
            if node.inside:
                flops = flops + np.where(active, node.flops * padded * count, 0)
                continue
            part = count
            for one, whole in zip(tile, node.dims, strict=True):
                part = part * np.minimum(one.size, whole)
            total = total + np.where(active, part * node.size, 0)
            worst = np.where(active, np.minimum(worst, _share(device, node, tile)), worst)
        if not node.inside:
            read = read + _read(device, shape_bytes(node.instruction.shape), blocks, total, worst)
    rooted = lanes.visits[root][0].tile
    bandwidth = np.trunc(_share(device, root, rooted) * device.memory_bandwidth)
    written = sum(shape_bytes(leaf) for _, leaf in root.instruction.shape.leaves())
    memory = read + _seconds(written / bandwidth)
    threads = np.full(len(ones), 8)
    for limit, number in reversed(warps):
        threads = np.where(largest <= limit, number, threads)
    compute = _compute(device, flops, blocks, threads * device.threads_per_warp)
    return compute + memory - _scaled(np.minimum(compute, memory), OVERLAP)


def _share(device: DeviceDescription, node: TileNode, tile: tuple[_Dim, ...]) -> Floats:
    if not tile:
        used = np.array([node.size])
    else:
        used = np.full(len(tile[0].size), node.size)
        going = np.ones(len(used), dtype=bool)
        for dim in minor_to_major(node.shape):
            size, stride, _, _ = tile[dim]
            going = going & (stride == 1)
            used = np.where(going, used * np.minimum(size, node.dims[dim]), used)
            going = going & (size >= node.dims[dim])
    line = device.dram_transaction_bytes
    return used / (line * -(-used // line))


def _read(device: DeviceDescription, whole: int, blocks: Ints, total: Ints, share: Floats) -> Ints:
    single = np.float32
    net = np.minimum(whole, total)
    memory = single(device.memory_bandwidth)
    dram = (device.memory_bandwidth * share).astype(single)
    near = np.where(
        net < device.l1_cache_per_core * device.core_count,
        single(memory * single(L2_SPEEDUP)) * single(L1_SPEEDUP),
        memory * single(L2_SPEEDUP),
    )
    rest = np.where(net < device.l2_cache_size, near, (memory * share).astype(single)).astype(single)
    per_block = single(single(device.clock_rate_ghz) * single(1e9)) * single(device.memory_transactions_per_clock)
    most = blocks.astype(single) * single(per_block)
    dram, rest = np.minimum(dram, most), np.minimum(rest, most)
    return _seconds(net.astype(single) / dram) + _seconds((total - net).astype(single) / rest)


def _compute(device: DeviceDescription, flops: Ints, blocks: Ints, threads: Ints) -> Ints:
    single = np.float32
    lanes = np.minimum(threads, device.fpus_per_core) * np.minimum(blocks, device.core_count)
    speed = np.trunc(float(single(device.clock_rate_ghz) * single(2)) * lanes)
    value = (flops.astype(single) / speed.astype(single)).astype(np.float64)
    return _scaled(np.full(len(flops), 4, dtype=np.int64), value)


def _half_away(value: Floats) -> Ints:
    whole = np.trunc(value)
    return (whole + (value - whole >= 0.5)).astype(np.int64)


def _seconds(value: Any) -> Ints:
    value = np.asarray(value, dtype=np.float64)
    whole = np.trunc(value)
    return whole.astype(np.int64) * TICKS_PER_SECOND + _half_away((value - whole) * TICKS_PER_SECOND)


def _scaled(ticks: Ints, factor: Any) -> Ints:
    high = (ticks // TICKS_PER_SECOND) * factor
    low = (ticks % TICKS_PER_SECOND) * factor
    whole = np.trunc(high)
    low = low / TICKS_PER_SECOND + (high - whole)
    carry = np.trunc(low)
    return (whole + carry).astype(np.int64) * TICKS_PER_SECOND + _half_away((low - carry) * TICKS_PER_SECOND)
