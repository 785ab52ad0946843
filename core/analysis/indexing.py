"""How a tile of a result maps onto tiles of what it is computed from.

A tile of an array is, for each dimension, a size, a stride and an offset. The offset is kept as a hashable expression
of the block number, only good for being compared: two reads with equal tiles are one read. Source:
``openxla/xla:xla/codegen/tiling/symbolic_tile.cc``, ``xla/codegen/tiling/symbolic_tile_analysis.cc``.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hloscope.core.hlo.instruction import HloInstruction


class TileDim(NamedTuple):
    """One dimension of a tile."""

    size: int
    """Elements."""
    stride: int
    """Distance of neighbours in the array; 0 where the index never changes."""
    offset: Hashable
    """0 where the tile always starts at the first element."""


Tile = tuple[TileDim, ...]
ONE = TileDim(1, 0, 0)
"""A dimension of size 1."""


def root_tile(dimensions: tuple[int, ...], sizes: tuple[int, ...]) -> Tile:
    """The tile of a root: block i starts at i times the size."""
    return tuple(
        TileDim(size, 1, 0 if size >= whole else ("block", dim, size))
        for dim, (size, whole) in enumerate(zip(sizes, dimensions, strict=True))
    )


def without_constant_strides(tile: Tile, dimensions: tuple[int, ...]) -> Tile:
    """The tile with stride 0 in dimensions of size 1, whose index never changes."""
    return tuple(ONE if whole == 1 else one for one, whole in zip(tile, dimensions, strict=True))


def full(whole: int) -> TileDim:
    """A dimension that is covered as a whole."""
    return ONE if whole == 1 else TileDim(whole, 1, 0)


def operand_tiles(instruction: HloInstruction, tile: Tile, elementwise: bool) -> list[Tile] | None:
    """Tiles of the operands that a tile of the result needs; None where they are no tiles.

    `tile` has stride 0 where the index does not change.
    """
    opcode = instruction.opcode
    shapes = [one.shape.dimensions for one in instruction.operands]
    if opcode in ("constant", "iota"):
        return []
    if elementwise:
        # a scalar operand of clamp or select is read as it is
        return [tile if len(dims) == len(tile) else () for dims in shapes]
    if opcode == "broadcast":
        mapped = instruction.dimensions
        return [tuple(ONE if shapes[0][place] == 1 else tile[dim] for place, dim in enumerate(mapped))]
    if opcode == "transpose":
        made = [ONE] * len(tile)
        for dim, source in enumerate(instruction.dimensions):
            made[source] = tile[dim]
        return [tuple(made)]
    if opcode == "reduce":
        return _reduce(instruction, tile, shapes)
    if opcode == "slice":
        return [_slice(instruction, tile)]
    if opcode in ("bitcast", "reshape"):
        found = reshape_tile(instruction.shape.dimensions, shapes[0], tile)
        return None if found is None else [found]
    if opcode == "concatenate":
        return [_concatenate(instruction, place, tile) for place in range(len(shapes))]
    return None


def _reduce(instruction: HloInstruction, tile: Tile, shapes: list[tuple[int, ...]]) -> list[Tile] | None:
    if instruction.operand_count != 2:
        return None
    kept = iter(tile)
    source = tuple(full(size) if dim in instruction.dimensions else next(kept) for dim, size in enumerate(shapes[0]))
    return [source, ()]


def _slice(instruction: HloInstruction, tile: Tile) -> Tile:
    made: list[TileDim] = []
    for one, bounds in zip(tile, instruction.attr("slice"), strict=True):
        offset = one.offset
        if bounds.start or bounds.stride != 1:
            offset = ("slice", one.offset, bounds.start, bounds.stride)
        made.append(TileDim(one.size, one.stride * bounds.stride, offset))
    return tuple(made)


def _concatenate(instruction: HloInstruction, place: int, tile: Tile) -> Tile:
    dim = instruction.dimensions[0]
    made = list(tile)
    made[dim] = TileDim(tile[dim].size, tile[dim].stride, ("part", place, tile[dim].offset))
    return tuple(made)


def reshape_tile(result: tuple[int, ...], source: tuple[int, ...], tile: Tile) -> Tile | None:
    """A tile before a row-major reshape; None where the elements of the tile do not lie in a tile there."""
    made: list[TileDim] = [ONE] * len(source)
    for out_dims, in_dims in factor_groups(result, source):
        outs = [dim for dim in out_dims if result[dim] != 1]
        ins = [dim for dim in in_dims if source[dim] != 1]
        if not ins:
            continue
        if len(outs) == 1 and len(ins) == 1:
            made[ins[0]] = tile[outs[0]]
            continue
        if len(outs) > 1 and len(ins) > 1:
            return None
        flat = _collapse([tile[dim] for dim in outs], [result[dim] for dim in outs])
        if flat is None:
            return None
        spread = _expand(flat, [source[dim] for dim in ins])
        if spread is None:
            return None
        for dim, one in zip(ins, spread, strict=True):
            made[dim] = one
    return tuple(made)


@lru_cache(maxsize=1024)
def factor_groups(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of both sides in the smallest groups of equal product."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        left, right = [], []
        size_a = size_b = 1
        if i < len(a):
            left.append(i)
            size_a *= a[i]
            i += 1
        if j < len(b):
            right.append(j)
            size_b *= b[j]
            j += 1
        while size_a != size_b:
            if size_a < size_b and i < len(a):
                left.append(i)
                size_a *= a[i]
                i += 1
            elif size_b < size_a and j < len(b):
                right.append(j)
                size_b *= b[j]
                j += 1
            else:
                break
        groups.append((left, right))
    return groups


def regroups(result: tuple[int, ...], source: tuple[int, ...]) -> bool:
    """Whether a reshape cuts several dimensions into several others, which no tile passes."""
    return any(
        sum(result[dim] != 1 for dim in outs) > 1 and sum(source[dim] != 1 for dim in ins) > 1
        for outs, ins in factor_groups(result, source)
    )


def _collapse(tile: list[TileDim], sizes: list[int]) -> TileDim | None:
    """Several dimensions as one. From the inside: single elements, whole dimensions, one in part, single elements."""
    size, inner, stride = 1, 1, 0
    closed = False
    for one, whole in zip(reversed(tile), reversed(sizes), strict=True):
        if one.size == 1:
            closed = closed or stride > 0
        elif closed:
            return None
        else:
            stride = stride or one.stride * inner
            size *= one.size
            closed = one.size < whole
        inner *= whole
    if size == prod(sizes):
        return TileDim(size, 1, 0)
    offset = ("flat", tuple(one.offset for one in tile), tuple(sizes))
    return TileDim(size, stride or 1, offset)


def _expand(flat: TileDim, sizes: list[int]) -> list[TileDim] | None:
    """One dimension as several: the inner ones are filled first and must be filled evenly."""
    left = flat.size
    made: list[TileDim] = []
    for place in range(len(sizes) - 1, -1, -1):
        whole = sizes[place]
        if place == 0:
            size = left
            left = 1
        elif left >= whole:
            if left % whole:
                return None
            size = whole
            left //= whole
        else:
            if whole % left:
                return None
            size, left = left, 1
        covered = size >= whole
        stride = flat.stride if not made or covered or size == 1 else 1
        made.append(TileDim(size, stride or 1, 0 if covered else ("digit", flat.offset, tuple(sizes), place)))
    return None if left != 1 else made[::-1]
