"""Reductions and transposes as the emitters see them: a few numbers made of a shape and its layout.

Source: ``openxla/xla:xla/service/gpu/reduction_utils.cc``, ``xla/service/gpu/ir_emission_utils.cc``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from hloscope.core.analysis.elementwise import minor_to_major

if TYPE_CHECKING:
    from hloscope.core.analysis.device import DeviceDescription
    from hloscope.core.hlo.instruction import HloInstruction
    from hloscope.core.hlo.shape import Shape

RACE_FREE_BATCH = 8
"""Largest outer reduced dimension of a batched row reduction that one block handles."""
_ROW_RACE_FREE = 1024 * 16
_COLUMN_RACE_FREE_TILE = 128

BANKS = 32
"""Banks of shared memory, each 32 bits wide: tiles are this many wide."""
_BANK_BITS = 32
_MIN_TILED = 16
_MIN_TILED_SMALL = 8
_MIN_TILED_TOTAL = 64 * 128
_MAX_MINOR_BITS = 64


# ---------------------------------------------------------------- reductions
@dataclass(frozen=True, slots=True)
class ReductionShape:
    """A reduction of contiguous dimensions as three numbers, most major first.

    Row: [batch reduced, kept, reduced]; column: [kept, reduced, kept].
    """

    is_row: bool
    dims: tuple[int, int, int]

    def race_free(self, device: DeviceDescription) -> bool:
        """Whether one block sees all that it reduces, so that no atomic update is needed."""
        if self.is_row:
            return self.dims[2] <= _ROW_RACE_FREE and self.dims[0] <= RACE_FREE_BATCH
        return self.dims[1] <= device.threads_per_warp * _COLUMN_RACE_FREE_TILE

    def faster_than_loop(self, device: DeviceDescription) -> bool:
        """Whether it is worth a kernel of its own kind."""
        warp = device.threads_per_warp
        _, middle, minor = self.dims
        if self.is_row:
            return minor >= warp or warp % minor == 0
        small = (
            middle < warp
            or (middle < 2 * warp and minor < warp)
            or (middle < 4 * warp and minor < 8)
            or (middle < 8 * warp and minor < 3)
        )
        return not small


def _consecutive(shape: Shape, dims: list[int]) -> bool:
    places = sorted(minor_to_major(shape).index(dim) for dim in dims)
    return all(b - a == 1 for a, b in zip(places, places[1:], strict=False))


def _split(shape: Shape, middle: list[int]) -> tuple[int, int, int]:
    """Sizes of the dimensions more major than `middle`, of `middle`, and of those more minor."""
    sizes = [1, 1, 1]
    segment = 2
    for dim in minor_to_major(shape):
        if segment == 2 and dim in middle:
            segment = 1
        elif segment == 1 and dim not in middle:
            segment = 0
        sizes[segment] *= shape.dimensions[dim]
    return sizes[0], sizes[1], sizes[2]


def reduction_shape(reduce: HloInstruction) -> ReductionShape:
    """The three numbers of a reduce of contiguous kept or reduced dimensions."""
    shape = reduce.operand(0).shape
    reduced = list(reduce.dimensions)
    kept = [dim for dim in range(shape.rank) if dim not in reduced]
    if not kept:
        return ReductionShape(True, (1, 1, prod(shape.dimensions)))
    if _consecutive(shape, kept):
        major, middle, minor = _split(shape, kept)
        if middle == 1:
            return ReductionShape(True, (1, 1, major * minor))
        if minor == 1:
            return ReductionShape(False, (1, major, middle))
        return ReductionShape(True, (major, middle, minor))
    major, middle, minor = _split(shape, reduced)
    if minor == 1:
        return ReductionShape(True, (1, major, middle))
    return ReductionShape(False, (major, middle, minor))


def is_unnested_reduction(instruction: HloInstruction, device: DeviceDescription) -> bool:
    """Whether a reduce gets the reduction emitter (`IsReductionFromOrToContiguousDimensions`)."""
    if instruction.opcode != "reduce":
        return False
    shape = instruction.operand(0).shape
    reduced = list(instruction.dimensions)
    kept = [dim for dim in range(shape.rank) if dim not in reduced]
    if not (_consecutive(shape, kept) or _consecutive(shape, reduced)):
        return False
    return reduction_shape(instruction).faster_than_loop(device)


def is_real_reduction(root: HloInstruction, hero: HloInstruction, device: DeviceDescription) -> bool:
    """Whether the reduction emitter may run what stands between a reduce and the root."""
    if not is_unnested_reduction(hero, device):
        return False
    return root is hero or reduction_shape(hero).race_free(device)


# ---------------------------------------------------------------- transposes
@dataclass(frozen=True, slots=True)
class TiledTranspose:
    """A transpose that goes through shared memory."""

    dims: tuple[int, ...]
    """Sizes of the result's dimensions, neighbours that stay together merged."""
    permutation: tuple[int, ...]
    shared_bytes: int
    packed: tuple[int, ...] | None = None
    """Tile sizes of the packed form by dimension of `canonical`; None for the plain one."""
    canonical: tuple[int, ...] = ()
    """Result dimensions of the packed form."""


def element_bits(shape: Shape) -> int:
    """Bits of one element, 8 for pred."""
    return shape.type.bits


def normalized_transpose(transpose: HloInstruction) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Result dimensions and permutation without dimensions of size 1, neighbours merged; None off row-major layouts."""
    operand, result = transpose.operand(0).shape, transpose.shape
    for shape in (operand, result):
        if minor_to_major(shape) != tuple(range(shape.rank - 1, -1, -1)):
            return None
    sizes: list[int] = []
    sources: list[int] = []
    kept = [dim for dim in range(operand.rank) if operand.dimensions[dim] > 1]
    order = [dim for dim in transpose.dimensions if operand.dimensions[dim] > 1]
    rank = {dim: place for place, dim in enumerate(kept)}
    for dim in order:
        source = rank[dim]
        if sources and source == sources[-1] + 1:
            sizes[-1] *= operand.dimensions[dim]
            sources[-1] = source
        else:
            sizes.append(operand.dimensions[dim])
            sources.append(source)
    ranked = {source: place for place, source in enumerate(sorted(sources))}
    return tuple(sizes), tuple(ranked[source] for source in sources)


def tiled_transpose(instruction: HloInstruction) -> TiledTranspose | None:
    """How a transpose goes through shared memory, None where it is an ordinary loop."""
    if instruction.opcode != "transpose":
        return None
    normal = normalized_transpose(instruction)
    if normal is None:
        return None
    dims, permutation = normal
    if len(dims) < 2:
        return None
    bits = element_bits(instruction.shape)
    source = [0] * len(dims)
    for place, dim in enumerate(permutation):
        source[dim] = dims[place]
    packed = _packed(dims, permutation, bits)
    if packed is not None:
        canonical, tiles = packed
        vector = _BANK_BITS // bits
        return TiledTranspose(dims, permutation, BANKS * 4 * BANKS * vector, tiles, canonical)
    if permutation[-1] == len(dims) - 1:
        minor = bits * dims[-1]
        if minor <= _MAX_MINOR_BITS and minor * min(source[-2], dims[-2]) >= 8 * _MIN_TILED:
            return TiledTranspose(dims, permutation, -(-BANKS * (BANKS + 1) * minor // 8))
        return None
    a, b = source[-1], dims[-1]
    large = a >= _MIN_TILED and b >= _MIN_TILED
    small = a >= _MIN_TILED_SMALL and b >= _MIN_TILED_SMALL and a * b >= _MIN_TILED_TOTAL
    if (large or small) and bits != 4:
        return TiledTranspose(dims, permutation, -(-BANKS * (BANKS + 1) * bits // 8))
    return None


def _packed(
    dims: tuple[int, ...], permutation: tuple[int, ...], bits: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Result dimensions and tiles of the packed form (several elements in one bank), None where it does not apply."""
    if bits >= _BANK_BITS:
        return None
    shape, perm = list(dims), list(permutation)
    if perm[-1] != len(shape) - 1:
        perm.append(len(shape))
        shape.append(1)
    rank = len(shape)
    if rank < 3 or perm[rank - 3] != rank - 3:
        shape.insert(rank - 2, 1)
        perm = [dim + 1 if dim > rank - 3 else dim for dim in perm]
        perm.insert(rank - 2, rank - 2)
        rank += 1
    inverse = [0] * rank
    for place, dim in enumerate(perm):
        inverse[dim] = place
    vector = _BANK_BITS // bits
    side = BANKS * vector
    # The last transposed dimension of the result came from T1's place and the other way round.
    t2_at, b_at, a_at = rank - 2, rank - 1, rank - 3
    t1_at = inverse[rank - 2]
    t1, t2, a = shape[t1_at], shape[t2_at], shape[a_at]
    tile_t1 = min(t1, side)
    tile_a = min(a, side // tile_t1)
    tile_t2 = min(t2, side)
    columns = tile_a * tile_t1
    if columns < 10 * vector or tile_t2 < 10 * vector:
        return None
    if shape[b_at] != 1 or tile_t2 % vector or columns % vector or t2 % tile_t2 % vector:
        return None
    tiles = [1] * rank
    tiles[t1_at], tiles[t2_at], tiles[a_at] = tile_t1, tile_t2, tile_a
    return tuple(shape), tuple(tiles)
