"""How an array lies in memory: where each element is, what a byte holds, and what tiles waste on padding.

Dimensions in memory order, slowest first, are cut by each tile in turn: the fastest dimensions become numbers of tiles
(the last tile is padded) followed by the places within a tile; a tile dimension ``*`` merges with the next. What is
left is row-major. Source: ``openxla/xla:docs/tiled_layout.md``, ``xla/layout_util.cc#LinearIndex``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from hloscope.core.errors import UnsupportedError, UsageError
from hloscope.core.hlo.layout import COMBINE
from hloscope.core.layout.bitcast import relayout_is_bitcast, reshape_is_bitcast, transpose_is_bitcast
from hloscope.core.layout.orders import layout_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from hloscope.core.hlo.shape import Shape


@dataclass(frozen=True, slots=True)
class PhysicalView:
    """An array in memory. Offsets are in bytes from the start of the buffer."""

    shape: str
    sizes: tuple[int, ...]
    """Logical dimensions."""
    order: tuple[int, ...]
    """Dimensions, fastest first."""
    tiles: tuple[tuple[int, ...], ...]
    element_bits: int
    """Bits that an element takes in memory."""
    padded: tuple[int, ...]
    """Sizes after all tiles were cut, slowest first; their product is the number of elements stored."""
    data_bytes: int
    """Bytes without padding."""
    bytes: int
    """Bytes of the buffer."""

    @property
    def padding_bytes(self) -> int:
        """What tiles and alignment waste."""
        return self.bytes - self.data_bytes

    @property
    def strides(self) -> tuple[int, ...] | None:
        """Bytes from one index to the next, by logical dimension; None with tiles or elements of part of a byte."""
        if self.tiles or self.element_bits % 8:
            return None
        out = [0] * len(self.sizes)
        step = self.element_bits // 8
        for dim in self.order:
            out[dim] = step
            step *= self.sizes[dim]
        return tuple(out)

    def bit_offset_of(self, index: Sequence[int]) -> int:
        """Where an element begins, in bits. Raises UsageError for an index that is not in the array."""
        if len(index) != len(self.sizes) or any(not 0 <= i < size for i, size in zip(index, self.sizes, strict=True)):
            raise UsageError(f"index {tuple(index)} is not in {self.shape}")
        return self._linear(index) * self.element_bits

    def offset_of(self, index: Sequence[int]) -> int:
        """The byte in which an element begins. Raises UsageError for an index that is not in the array."""
        return self.bit_offset_of(index) // 8

    def index_at(self, offset: int) -> tuple[int, ...] | None:
        """The element whose first bit lies in a byte or before it; None for padding and past the end."""
        if not 0 <= offset < self.bytes:
            return None
        number = offset * 8 // self.element_bits
        if number >= prod(self.padded):
            return None
        parts: list[int] = []
        for size in reversed(self.padded):
            parts.append(number % size)
            number //= size
        return self._logical(parts[::-1])

    def places(self) -> NDArray[np.int64]:
        """Number of the stored element that each logical element is, as an array of the logical dimensions."""
        import numpy as np

        grids = np.indices(self.sizes, dtype=np.int64, sparse=True)
        places: list[Any] = [grids[d] for d in reversed(self.order)]
        sizes = [self.sizes[d] for d in reversed(self.order)]
        for tile in self.tiles:
            places, sizes = _cut(places, sizes, tile)
        number: Any = np.zeros(self.sizes, dtype=np.int64)
        for place, size in zip(places, sizes, strict=True):
            number = number * size + place
        return number

    # ---------------------------------------------------------------- inside
    def _linear(self, index: Sequence[int]) -> int:
        places = [index[d] for d in reversed(self.order)]
        sizes = [self.sizes[d] for d in reversed(self.order)]
        for tile in self.tiles:
            places, sizes = _cut(places, sizes, tile)
        number = 0
        for place, size in zip(places, sizes, strict=True):
            number = number * size + place
        return number

    def _logical(self, places: list[int]) -> tuple[int, ...] | None:
        """The way back through the tiles; None where a place lies in padding."""
        shapes = [[self.sizes[d] for d in reversed(self.order)]]
        for tile in self.tiles:
            shapes.append(_cut([0] * len(shapes[-1]), shapes[-1], tile)[1])
        for tile, sizes in zip(reversed(self.tiles), reversed(shapes[:-1]), strict=True):
            joined = _join(places, sizes, tile)
            if joined is None:
                return None
            places = joined
        if any(place >= size for place, size in zip(places, shapes[0], strict=True)):
            return None
        out = [0] * len(self.sizes)
        for place, dim in zip(places, reversed(self.order), strict=True):
            out[dim] = place
        return tuple(out)


def _merged(sizes: list[int], tile: tuple[int, ...]) -> tuple[int, list[int], list[int], list[list[int]]]:
    """What a tile cuts: dimensions before it, sizes after merging, tile without ``*``, and the merged groups."""
    before = len(sizes) - len(tile)
    groups: list[list[int]] = []
    dims: list[int] = []
    open_group: list[int] = []
    for dim, size in enumerate(tile):
        open_group.append(sizes[before + dim])
        if size != COMBINE:
            groups.append(open_group)
            dims.append(size)
            open_group = []
    return before, [prod(group) for group in groups], dims, groups


def _cut(places: list[Any], sizes: list[int], tile: tuple[int, ...]) -> tuple[list[Any], list[int]]:
    """One tile: numbers of tiles, then places within a tile (numbers or arrays of them).

    A tile of more dimensions than there are adds ones.
    """
    missing = max(0, len(tile) - len(sizes))
    places, sizes = [0] * missing + places, [1] * missing + sizes
    before, merged, dims, groups = _merged(sizes, tile)
    joined: list[Any] = []
    at = before
    for group in groups:
        number = 0
        for size in group:
            number = number * size + places[at]
            at += 1
        joined.append(number)
    outer = [-(-size // dim) for size, dim in zip(merged, dims, strict=True)]
    return (
        [*places[:before], *(n // d for n, d in zip(joined, dims, strict=True)),
         *(n % d for n, d in zip(joined, dims, strict=True))],
        [*sizes[:before], *outer, *dims],
    )  # fmt: skip


def _join(places: list[int], sizes: list[int], tile: tuple[int, ...]) -> list[int] | None:
    """Undo `_cut`; None in padding."""
    missing = max(0, len(tile) - len(sizes))
    whole = [1] * missing + sizes
    before, merged, dims, groups = _merged(whole, tile)
    count = len(dims)
    out = places[:before]
    for i, (size, dim, group) in enumerate(zip(merged, dims, groups, strict=True)):
        number = places[before + i] * dim + places[before + count + i]
        if number >= size:
            return None
        parts: list[int] = []
        for part in reversed(group):
            parts.append(number % part)
            number //= part
        out += reversed(parts)
    return out[missing:]


def physical_view(shape: Shape) -> PhysicalView:
    """How an array shape lies in memory; row-major where it has no layout.

    Raises UnsupportedError for what is no array of a known size, UsageError for a layout that is no order of its
    dimensions.
    """
    if not shape.is_array or shape.is_unbounded or shape.type.bits == 0:
        raise UnsupportedError(f"{shape} has no place in memory of its own")
    layout = layout_of(shape)
    if sorted(layout.minor_to_major) != list(range(shape.rank)):
        raise UsageError(f"the layout of {shape} does not name each dimension once")
    if any(size <= 0 and size != COMBINE for tile in layout.tiles for size in tile):
        raise UsageError(f"a tile of {shape} has no size")
    sizes = list(shape.dimensions)
    padded = [sizes[d] for d in reversed(layout.minor_to_major)]
    for tile in layout.tiles:
        padded = _cut([0] * len(padded), padded, tile)[1]
    bits = layout.element_size_in_bits or shape.type.byte_size * 8
    align = layout.tail_padding_alignment_in_elements
    stored = -(-prod(padded) // align) * align
    return PhysicalView(
        shape=str(shape),
        sizes=tuple(sizes),
        order=layout.minor_to_major,
        tiles=layout.tiles,
        element_bits=bits,
        padded=tuple(padded),
        data_bytes=-(-prod(sizes) * bits // 8),
        bytes=-(-stored * bits // 8) + layout.dynamic_shape_metadata_prefix_bytes,
    )


@dataclass(frozen=True, slots=True)
class Move:
    """Whether bytes move between two laid out shapes."""

    free: bool
    reason: str
    """In words."""


def reshape_move(source: Shape, target: Shape) -> Move:
    """Whether a reshape between two laid out shapes moves bytes."""
    return _judge(
        source, target,
        reshape_is_bitcast(source.dimensions, layout_of(source).minor_to_major, target.dimensions,
                           layout_of(target).minor_to_major),
        "the elements stand in the same order on both sides",
        "dimensions that are split or joined do not lie next to each other in both layouts",
    )  # fmt: skip


def transpose_move(source: Shape, dimensions: Sequence[int], target: Shape) -> Move:
    """Whether a transpose between two laid out shapes moves bytes; dimension i comes from ``dimensions[i]``."""
    return _judge(
        source, target,
        transpose_is_bitcast(source.dimensions, layout_of(source).minor_to_major, dimensions,
                             layout_of(target).minor_to_major),
        "the layouts differ just as the dimensions do",
        "the target's layout is not the source's with its dimensions renamed",
        dimensions,
    )  # fmt: skip


def copy_move(source: Shape, target: Shape) -> Move:
    """Whether a copy between two layouts of one shape moves bytes to other places."""
    return _judge(
        source, target,
        relayout_is_bitcast(source.dimensions, layout_of(source).minor_to_major, layout_of(target).minor_to_major),
        "the layouts differ in dimensions of size 1 at most",
        "the dimensions are in another order",
    )  # fmt: skip


MOST_COMPARED = 1 << 21
"""Elements up to which tiled arrays are compared place by place."""


def _judge(source: Shape, target: Shape, free: bool, yes: str, no: str, moved: Sequence[int] | None = None) -> Move:
    """`moved` has the dimensions of a transpose; None where elements keep their row-major numbers."""
    a, b = layout_of(source), layout_of(target)
    if a.memory_space != b.memory_space:
        return Move(False, f"memory space {a.memory_space} and {b.memory_space}")
    if a.tiles or b.tiles:
        return _judge_tiles(source, target, moved)
    return Move(free, yes if free else no)


def _judge_tiles(source: Shape, target: Shape, moved: Sequence[int] | None) -> Move:
    if source == target and moved is None:
        return Move(True, "the same dimensions and tiles")
    one, other = physical_view(source), physical_view(target)
    if one.bytes != other.bytes:
        return Move(False, f"with their tiles they take {one.bytes} and {other.bytes} bytes")
    if prod(one.sizes) > MOST_COMPARED:
        return Move(False, f"tiled arrays of more than {MOST_COMPARED} elements are not compared place by place")
    here, there = one.places(), other.places()
    if moved is not None:
        here = here.transpose(tuple(moved))
    different = int((here.reshape(-1) != there.reshape(-1)).sum())
    if different:
        return Move(False, f"{different} of {prod(one.sizes)} elements lie elsewhere, because of the tiles")
    return Move(True, "every element lies in the same place of the same tiles")
