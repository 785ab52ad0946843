"""How an array is spread over devices: HLO's ``sharding={devices=[2,4]<=[8]}`` and the text of Shardy's shardings.

A block is as large as the largest one: the last blocks of a dimension that does not divide are padded, as the
partitioner pads them. Source: ``openxla/xla:xla/hlo/ir/hlo_sharding.cc``, ``xla/hlo/ir/tile_assignment.cc``;
``openxla/shardy:docs/sharding_representation.md``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from hloscope.core.errors import EvaluationError, UnsupportedError
from hloscope.core.hlo.attributes import braced, split_top
from hloscope.core.runtime.evaluator.values import Array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hloscope.core.hlo.module import HloModule

_TILED = re.compile(r"devices=\[([\d,]+)\](.*)$", re.S)
_IOTA = re.compile(r"<=\[([\d,]+)\](?:T\(([\d,]+)\))?")


@dataclass(frozen=True, slots=True)
class Sharding:
    """Blocks per dimension, and which block each device holds."""

    tiles: tuple[int, ...]
    """Blocks of each dimension; empty where every device holds everything."""
    block_of: tuple[tuple[int, ...], ...]
    """The block of each device, by its index in every dimension; empty where `tiles` is."""

    @property
    def replicated(self) -> bool:
        """Whether every device holds the whole array."""
        return all(n == 1 for n in self.tiles)

    def block_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Sizes of a block of an array of that shape. Raises EvaluationError where ranks differ."""
        if self.replicated:
            return tuple(shape)
        if len(shape) != len(self.tiles):
            raise EvaluationError(f"a sharding of {len(self.tiles)} dimensions for an array of {len(shape)}")
        return tuple(-(-size // count) for size, count in zip(shape, self.tiles, strict=True))

    def cut(self, array: Array, device: int) -> Array:
        """A device's block; what lies past the end is zeros."""
        if self.replicated:
            return array
        sizes = self.block_shape(array.shape)
        place = self.block_of[device]
        index = tuple(slice(p * n, (p + 1) * n) for p, n in zip(place, sizes, strict=True))
        found = array[index]
        if found.shape == sizes:
            return found
        out = np.zeros(sizes, array.dtype)
        out[tuple(slice(0, n) for n in found.shape)] = found
        return out

    def join(self, blocks: Sequence[Array], shape: Sequence[int]) -> tuple[Array, int]:
        """The whole array, and how many devices' blocks differ from another copy of the same block."""
        if self.replicated:
            first = blocks[0]
            return first, sum(not same_bits(first, other) for other in blocks[1:])
        sizes = self.block_shape(shape)
        full = np.zeros([n * count for n, count in zip(sizes, self.tiles, strict=True)], blocks[0].dtype)
        seen: dict[tuple[int, ...], Array] = {}
        unequal = 0
        for place, block in zip(self.block_of, blocks, strict=True):
            if place in seen:
                unequal += not same_bits(seen[place], block)
                continue
            seen[place] = block
            full[tuple(slice(p * n, (p + 1) * n) for p, n in zip(place, sizes, strict=True))] = block
        return full[tuple(slice(0, n) for n in shape)], unequal


REPLICATED = Sharding((), ())
"""Every device holds everything."""


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays hold the same bits."""
    return a is b or (a.shape == b.shape and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes())


def parse_sharding(text: str) -> Sharding | None:
    """One array's sharding in HLO's words; None for a manual or unknown one.

    Raises UnsupportedError for a form that is not known.
    """
    body = braced(text).strip()
    if body.startswith("replicated") or body.startswith("maximal"):
        return REPLICATED
    if body.startswith(("manual", "unknown", "unreduced")):
        return None
    found = _TILED.search(body)
    if found is None:
        raise UnsupportedError(f"the sharding {text[:60]!r}")
    dims = [int(p) for p in found[1].split(",")]
    rest = found[2].strip()
    iota = _IOTA.match(rest)
    if iota is not None:
        sizes = [int(p) for p in iota[1].split(",")]
        order = np.arange(prod(sizes)).reshape(sizes)
        order = order.transpose([int(p) for p in iota[2].split(",")]) if iota[2] else order
        rest = rest[iota.end() :]
    else:
        listed = re.match(r"[\d,]+", rest)
        order = np.asarray([int(p) for p in (listed[0] if listed else "").split(",") if p], np.int64)
        rest = rest[listed.end() :] if listed else rest
    if order.size != prod(dims):
        raise UnsupportedError(f"the sharding {text[:60]!r}")
    extra = 0
    if "last_tile_dim_replicate" in rest:
        extra = 1
    elif (kinds := re.search(r"last_tile_dims=\{([^}]*)\}", rest)) is not None:
        extra = len(kinds[1].split(","))
    grid = order.reshape(dims)
    tiles = tuple(dims[: len(dims) - extra])
    block_of: list[tuple[int, ...]] = [()] * grid.size
    for place, device in np.ndenumerate(grid):
        block_of[int(device)] = tuple(int(p) for p in place[: len(tiles)])
    return Sharding(tiles, tuple(block_of))


def parse_shardings(text: str) -> list[Sharding | None]:
    """The shardings of a value's leaves: one for an array, several for a tuple."""
    body = text.strip()
    inside = braced(body).strip()
    if inside.startswith("{"):
        return [parse_sharding(part) for part in split_top(inside)]
    return [parse_sharding(body)]


# ---------------------------------------------------------------- Shardy
_MESHES = re.compile(r"(\w+)\s*=\s*#sdy\.mesh<\[([^\]]*)\](?:\s*,\s*device_ids=\[([\d,\s]*)\])?>")
_NAMED = re.compile(r"\"([^\"]+)\"(?::\((\d+)\)(\d+))?")


@dataclass(frozen=True, slots=True)
class NamedMesh:
    """A mesh of named axes, devices in row-major order unless it lists them."""

    axes: Mapping[str, int]
    devices: tuple[int, ...]

    def sharding(self, dims: Sequence[Sequence[str]]) -> Sharding:
        """Each dimension cut along the axes that are named for it, the first one outermost."""
        names = list(self.axes)
        tiles = tuple(prod(self.axes[a] for a in axes) for axes in dims)
        block_of: list[tuple[int, ...]] = [()] * len(self.devices)
        sizes = [self.axes[name] for name in names]
        for number, device in enumerate(self.devices):
            at = dict(zip(names, np.unravel_index(number, sizes), strict=True))
            place: list[int] = []
            for axes in dims:
                index = 0
                for axis in axes:
                    index = index * self.axes[axis] + int(at[axis])
                place.append(index)
            block_of[device] = tuple(place)
        return Sharding(tiles, tuple(block_of))


def meshes(module: HloModule) -> dict[str, NamedMesh]:
    """The meshes that the header's frontend attributes declare."""
    out: dict[str, NamedMesh] = {}
    for name, axes, ids in _MESHES.findall(_unescaped(module.attrs.get("frontend_attributes", ""))):
        sizes = {a: int(n) for a, n in re.findall(r"\"([^\"]+)\"\s*=\s*(\d+)", axes)}
        order = tuple(int(p) for p in ids.split(",")) if ids.strip() else tuple(range(prod(sizes.values())))
        out[name] = NamedMesh(sizes, order)
    return out


def parse_per_value(text: str, module: HloModule, manual: frozenset[str] | None = None) -> list[Sharding]:
    """``#sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>, …]>``; with `manual`, only those axes cut.

    Raises UnsupportedError for sub-axes and for a mesh that the header does not declare.
    """
    known = meshes(module)
    body = _unescaped(text)
    out: list[Sharding] = []
    for found in re.finditer(r"<@(\w+),\s*\[((?:[^\[\]]|\[[^\]]*\])*)\]", body):
        dims: list[list[str]] = []
        for part in split_top(found[2]):
            named = _NAMED.findall(part)
            if any(pre for _, pre, _ in named):
                raise UnsupportedError(f"the sharding {found[0]!r} by a part of an axis")
            dims.append([name for name, _, _ in named if manual is None or name in manual])
        if not any(dims):
            out.append(REPLICATED)
            continue
        mesh = known.get(found[1])
        if mesh is None or any(axis not in mesh.axes for axes in dims for axis in axes):
            raise UnsupportedError(f"the sharding {found[0]!r}: the header does not declare that mesh")
        out.append(mesh.sharding(dims))
    return out


def manual_axes(text: str) -> frozenset[str]:
    """The axes of ``#sdy<manual_axes{"x", "y"}>``."""
    return frozenset(name for name, _, _ in _NAMED.findall(_unescaped(text)))


def _unescaped(text: str) -> str:
    return text.replace('\\"', '"')
