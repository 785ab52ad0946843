"""Where elements lie in memory: what a bitcast needs, which keeps bytes and changes their reading.

Source: ``openxla/xla:xla/layout_util.cc`` and ``docs/tiled_layout.md``; the nested rule, in which each tile is applied
to the dimensions that the one before it made.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.hlo.layout import COMBINE
from hloscope.core.runtime.evaluator.values import Array

if TYPE_CHECKING:
    from hloscope.core.hlo.shape import Shape


def major_to_minor(shape: Shape) -> tuple[int, ...]:
    """The dimensions, slowest varying first; descending where the shape has no layout."""
    if shape.layout is None or len(shape.layout.minor_to_major) != shape.rank:
        return tuple(range(shape.rank))
    return tuple(reversed(shape.layout.minor_to_major))


def tiles(shape: Shape) -> tuple[tuple[int, ...], ...]:
    """The tiles of the layout."""
    return shape.layout.tiles if shape.layout is not None else ()


def offsets(shape: Shape) -> tuple[Array, int]:
    """The element offset of every element (an int64 array of the shape's dimensions), and the elements allocated."""
    order = major_to_minor(shape)
    sizes = [shape.dimensions[d] for d in order]
    grid = np.ogrid[tuple(slice(0, n) for n in shape.dimensions)] if shape.rank else []
    index: list[Array] = [np.asarray(grid[d], np.int64) for d in order]
    for tile in tiles(shape):
        size = list(tile)
        while COMBINE in size:
            # The dimension merges into the next more minor one; both counted from the minor end.
            at = len(size) - 1 - size[::-1].index(COMBINE)
            place = len(sizes) - (len(size) - at)
            index[place + 1] = index[place] * sizes[place + 1] + index[place + 1]
            sizes[place + 1] *= sizes[place]
            del index[place], sizes[place], size[at]
        while len(sizes) < len(size):
            sizes.insert(0, 1)
            index.insert(0, np.zeros((1,) * shape.rank, np.int64))
        cut = len(sizes) - len(size)
        last, last_sizes = index[cut:], sizes[cut:]
        index = index[:cut] + [e // t for e, t in zip(last, size, strict=True)]
        index += [e % t for e, t in zip(last, size, strict=True)]
        sizes = sizes[:cut] + [-(-d // t) for d, t in zip(last_sizes, size, strict=True)] + size
    total = np.zeros(shape.dimensions, np.int64)
    step = 1
    for place in range(len(sizes) - 1, -1, -1):
        total = total + index[place] * step
        step *= sizes[place]
    return total, max(step, prod(shape.dimensions))


def to_physical(x: Array, shape: Shape) -> Array:
    """The buffer's elements in memory order; the contents of padding are zeros."""
    if not tiles(shape):
        return x.transpose(major_to_minor(shape)).reshape(-1)
    places, size = offsets(shape)
    buffer = np.zeros(size, x.dtype)
    buffer[places] = x
    return buffer


def from_physical(buffer: Array, shape: Shape) -> Array:
    """The logical array of a buffer's elements. Raises ValueError where the buffer is too small."""
    if not tiles(shape):
        order = major_to_minor(shape)
        count = prod(shape.dimensions)
        physical = buffer[:count].reshape([shape.dimensions[d] for d in order])
        return physical.transpose(np.argsort(np.asarray(order, np.int64))) if order else physical
    places, size = offsets(shape)
    if size > buffer.size:
        raise ValueError(f"{shape} takes {size} elements, the buffer has {buffer.size}")
    return buffer[places]


def same_bytes_order(a: Shape, b: Shape) -> bool:
    """Whether a row-major reshape is all that a bitcast between the two shapes is."""
    return not tiles(a) and not tiles(b) and _descending(a) and _descending(b)


def _descending(shape: Shape) -> bool:
    # Dimensions of size 1 may stand anywhere.
    order = [d for d in major_to_minor(shape) if shape.dimensions[d] != 1]
    return order == sorted(order)
